"""Which layers can stand on this machine: each is asked, none is known by name."""

from __future__ import annotations

from nearmetal.doctor.model import Finding
from nearmetal.doctor.system import System
from nearmetal.errors import CannotRun
from nearmetal.machines.base import Layer, layers

GROUP = "Environments"


def check(system: System) -> list[Finding]:
    if not system.live:
        return []
    return [layer_finding(cls) for cls in layers().values()]


def layer_finding(cls: type[Layer]) -> Finding:
    """Ask one layer, with its default parameters, whether it can run here."""
    required = [name for name, field in cls.Params.model_fields.items() if field.is_required()]
    params = cls.Params.model_construct() if required else cls.Params()
    layer = cls(params)
    try:
        layer.check()
        substrate = layer.substrate()
    except CannotRun as error:
        return Finding(cls.name, GROUP, "warn", "cannot run", error.message, error.remedy)
    said = ["can run" + (f", given {', '.join(f'{name}=' for name in required)}"
                         if required else "")]
    if substrate:
        said.append(f"on {substrate}")
    if cls.max_cpus:
        said.append("one processor" if cls.max_cpus == 1 else f"{cls.max_cpus} processors at most")
    return Finding(cls.name, GROUP, "ok", "; ".join(said), cls.summary)
