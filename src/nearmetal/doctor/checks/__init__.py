"""The doctor's checks, one file a concern.

Each module has ``check(system) -> list[Finding]``; all modules of this package are run.
"""
