"""What this machine is, what can run on it, and what would disturb a measurement."""

from __future__ import annotations

import importlib
import pkgutil

from nearmetal.doctor.facts import machine_facts
from nearmetal.doctor.model import GROUPS, Finding, State
from nearmetal.doctor.render import render, to_json
from nearmetal.doctor.system import System


def examine(system: System | None = None) -> list[Finding]:
    """Run all checks (about 2 s), grouped in the order of ``GROUPS``.

    A check that fails is a finding as well; it never hides the others.
    """
    from nearmetal.doctor import checks

    system = system or System()
    found: list[Finding] = []
    for module in pkgutil.iter_modules(checks.__path__):
        check = importlib.import_module(f"{checks.__name__}.{module.name}")
        try:
            found += check.check(system)
        except Exception as error:
            found.append(Finding(f"Check '{module.name}'", check.GROUP, "bad",
                                 f"failed: {type(error).__name__}: {error}",
                                 "What it would have found is not known.",
                                 "Please report it with this machine's kernel and processor."))
    return sorted(found, key=lambda one: GROUPS.index(one.group)
                  if one.group in GROUPS else len(GROUPS))


__all__ = ["Finding", "State", "System", "examine", "machine_facts", "render", "to_json"]
