"""What this machine is, what can run on it, and what would disturb a measurement."""

from nearmetal.doctor.facts import machine_facts

__all__ = ["machine_facts"]
