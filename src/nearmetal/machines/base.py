"""What a machine is, what a layer is, and the registry of layers.

A *machine* is up and can run commands, take and give files, and sit on a lab network. A *layer*
turns a machine (its carrier) into another machine. A layer is one module in this package: it
defines a :class:`Layer`, decorated with :func:`register_layer`; nothing else names it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, Protocol

from pydantic import BaseModel, ConfigDict

from nearmetal import registry
from nearmetal.errors import CannotRun, PathError

if TYPE_CHECKING:
    from nearmetal.machines.network import Port
    from nearmetal.userland import Userland


@dataclass(frozen=True)
class Completed:
    """A command that ran on a machine.

    ``status`` is the exit status (128 + signal for a death by signal), None when it was cut off by
    the time limit. ``host_ns`` is the elapsed time by the lab's clock, ``machine_ns`` by the
    machine's own monotonic clock (None where the machine has none), both in ns.
    ``max_rss_kib`` is the largest resident set of the command, in KiB, where known.
    """

    argv: tuple[str, ...]
    status: int | None
    stdout: bytes
    stderr: bytes
    host_ns: int
    machine_ns: int | None = None
    max_rss_kib: int | None = None
    timed_out: bool = False


class Process(Protocol):
    """A command under way on a machine, its three streams as binary files."""

    stdin: BinaryIO
    stdout: BinaryIO
    stderr: BinaryIO | None

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def kill(self) -> None: ...


@dataclass(frozen=True)
class Shape:
    """How large a machine is to be: processors and memory (MiB)."""

    cpus: int = 1
    memory_mib: int = 1024


@dataclass(frozen=True)
class Order:
    """An order for one machine.

    ``lab`` is the mark of the lab that asks (every resource carries it), ``name`` the machine's
    name, unique in that lab; ``workdir`` an existing folder of its own on the host, for consoles
    and other files kept; ``port`` its place on a lab network (None: no network of its own);
    ``boot_timeout`` in seconds.
    """

    lab: str
    name: str
    shape: Shape
    userland: Userland
    workdir: Path
    port: Port | None = None
    boot_timeout: float = 120.0
    extra: Mapping[str, Any] = field(default_factory=dict)


class Machine(ABC):
    """Something that is up and can run commands, take and give files.

    ``root`` is where the userland lies as commands on this machine see it: "/" inside a guest.
    ``address`` is its address on the lab network, or None. ``console`` is the file on the host
    that holds its console output, or None.
    """

    name: str = ""
    root: str = "/"
    address: str | None = None
    console: Path | None = None

    @abstractmethod
    def spawn(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: str = "/"
    ) -> Process:
        """Start a command; raises MachineFailed when the machine does not answer."""

    @abstractmethod
    def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
    ) -> Completed:
        """Run a command to its end, or kill it after ``timeout`` seconds (and say so)."""

    @abstractmethod
    def put(self, source: Path, target: str, mode: int = 0o644) -> None:
        """Copy a file of the host to ``target`` on the machine."""

    @abstractmethod
    def get(self, source: str, target: Path) -> None:
        """Copy a file of the machine to ``target`` on the host."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """What it is, as seen from inside where that can be asked.

        Keys that every machine has: ``cpus`` (int), ``memory_mib`` (int or None for no limit),
        ``kernel`` (str), ``clocksource`` (str), ``network`` (how it is reached, str). Layers add
        their own (``accel``, ``platform``, ...). Values are JSON scalars.
        """

    @abstractmethod
    def memory_bytes(self) -> int | None:
        """Memory of the host that the machine occupies now (proportional set size), in bytes."""

    def clock_ns(self) -> int | None:
        """The machine's own monotonic clock now, in ns; None where it has none to ask."""
        return None

    @abstractmethod
    def alive(self) -> bool:
        """Whether it is still there; cheap."""

    @abstractmethod
    def down(self) -> None:
        """End it and all that it made. Safe to call twice, and on a machine that died."""


class LayerParams(BaseModel):
    """Parameters of a layer, as written in a path: ``qemu(io=virtio, cpus=2)``."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Layer(ABC):
    """Turns a carrier into another machine.

    Class attributes: ``name`` (as in a path), ``summary`` (one sentence for lists and reports),
    ``Params`` (a LayerParams model), ``max_cpus`` (None: no limit of its own),
    ``on_host_only`` (True: it can stand on the host alone).
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    Params: ClassVar[type[LayerParams]] = LayerParams
    max_cpus: ClassVar[int | None] = None
    on_host_only: ClassVar[bool] = False

    def __init__(self, params: LayerParams):
        self.params = params

    @classmethod
    def prepare(cls, say: Callable[[str], None]) -> None:
        """Build what it needs on the host besides the userland; nothing when it is there.

        Called by ``nearmetal setup``; ``say`` takes a line of progress. Raises CannotRun.
        """
        return None

    def check(self) -> None:
        """Raise CannotRun (why, remedy) if it cannot run on this host; quick, no side effects."""
        return None

    def substrate(self) -> str | None:
        """What executes the instructions: "TCG", "KVM"; None: whatever its carrier runs on."""
        return None

    @abstractmethod
    def up(self, carrier: Machine, order: Order) -> Machine:
        """Boot; returns when the machine answers a command. Raises MachineFailed, CannotRun."""


_layers: dict[str, type[Layer]] = {}


def register_layer(cls: type[Layer]) -> type[Layer]:
    """Class decorator: make the layer known by its name."""
    return registry.add(_layers, cls, "layer")


def layers() -> dict[str, type[Layer]]:
    """All layers by name; every module of this package is loaded."""
    registry.load(__package__)
    return dict(sorted(_layers.items()))


def make_layer(name: str, params: Mapping[str, str]) -> Layer:
    """The layer ``name`` with ``params`` (text, as in a path). Raises PathError."""
    import difflib

    from pydantic import ValidationError

    known = layers()
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        hint = f"Did you mean {near[0]!r}?" if near else f"Known layers: {', '.join(known)}."
        raise PathError(f"There is no layer called {name!r}.", hint)
    cls = known[name]
    try:
        return cls(cls.Params(**params))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        fields = cls.Params.model_fields
        if first["type"] == "extra_forbidden":
            takes = ", ".join(fields) or "none"
            message = f"Layer {name!r} has no parameter {key!r}."
            raise PathError(message, f"It takes: {takes}.") from None
        raise PathError(f"Layer {name!r}, parameter {key!r}: {first['msg']}.",
                        f"Given: {first['input']!r}.") from None


__all__ = [
    "CannotRun", "Completed", "Layer", "LayerParams", "Machine", "Order", "Process", "Shape",
    "layers", "make_layer", "register_layer",
]
