"""Things that are one file each (layers, workloads, observers): found by looking into a folder."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any, TypeVar

T = TypeVar("T", bound=type)


def add(known: dict[str, Any], cls: T, kind: str) -> T:
    """Enter a class under its ``name``; raises ValueError when another module took that name."""
    other = known.get(cls.name)
    if other is not None and other.__module__ != cls.__module__:
        raise ValueError(f"two {kind}s are called {cls.name!r}")
    known[cls.name] = cls
    return cls


def load(package: str) -> None:
    """Import every module of a package, so that its classes are entered."""
    folder = importlib.import_module(package)
    for module in pkgutil.iter_modules(folder.__path__):
        importlib.import_module(f"{package}.{module.name}")
