"""Workloads: a program, its parameters and its metrics; one file a workload."""
