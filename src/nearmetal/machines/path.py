"""The path grammar: how an environment is written, and booting it.

    environment = step *( "/" step )
    step        = NAME [ "(" [ NAME "=" VALUE *( "," NAME "=" VALUE ) ] ")" ]

A VALUE is bare text without ``,()=/`` and blanks, or text in double quotes. ``native`` alone, or
``qemu(io=virtio, cpus=2) / container``: the host is understood as the first carrier.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nearmetal.errors import CannotRun, PathError
from nearmetal.machines.base import Layer, Machine, Order, Shape, make_layer

_TOKEN = re.compile(r'\s*(?:(?P<word>[^\s,()=/"]+)|(?P<text>"[^"]*")|(?P<mark>[,()=/]))')
_PLAIN = re.compile(r'[^\s,()=/"]+\Z')


def _tokens(path: str) -> list[tuple[str, str, int]]:
    found, position = [], 0
    while position < len(path):
        match = _TOKEN.match(path, position)
        if not match:
            if not path[position:].strip():
                break
            raise PathError(f"Environment {path!r}: cannot read it at column {position + 1}.",
                            'Write it as in "qemu(io=virtio)/container".')
        kind = match.lastgroup or ""
        text = match.group(kind)
        found.append((kind, text[1:-1] if kind == "text" else text, match.start(kind)))
        position = match.end()
    return found


class _Reader:
    """Reads tokens one by one; errors name the column."""

    def __init__(self, path: str):
        self.path, self.tokens, self.at = path, _tokens(path), 0

    def peek(self) -> str | None:
        if self.at >= len(self.tokens):
            return None
        kind, text, _ = self.tokens[self.at]
        return text if kind == "mark" else None

    def take(self, *kinds: str, what: str) -> str:
        if self.at >= len(self.tokens):
            raise PathError(f"Environment {self.path!r} ends where {what} is expected.",
                            'Write it as in "qemu(io=virtio)/container".')
        kind, text, column = self.tokens[self.at]
        if kind not in kinds:
            raise PathError(f"Environment {self.path!r}: {what} is expected at column {column + 1},"
                            f" not {text!r}.", 'Write it as in "qemu(io=virtio)/container".')
        self.at += 1
        return text

    def skip(self, mark: str) -> bool:
        if self.peek() == mark:
            self.at += 1
            return True
        return False

    def step(self) -> tuple[str, dict[str, str]]:
        name, params = self.take("word", what="a layer's name"), {}
        if not self.skip("("):
            return name, params
        while not self.skip(")"):
            key = self.take("word", what="a parameter's name")
            if not self.skip("="):
                self.take(what="'='")
            if key in params:
                raise PathError(f"Environment {self.path!r} gives {key!r} twice.", "Give it once.")
            params[key] = self.take("word", "text", what=f"a value for {key!r}")
            if not self.skip(",") and self.peek() != ")":
                self.take(what="',' or ')'")
        return name, params


def parse(path: str) -> tuple[tuple[str, tuple[tuple[str, str], ...]], ...]:
    """The steps of a path: (layer name, ((key, value), ...)). Raises PathError."""
    reader = _Reader(path)
    steps = [reader.step()]
    while reader.skip("/"):
        steps.append(reader.step())
    if reader.at != len(reader.tokens):
        reader.take(what="'/' or the end")
    return tuple((name, tuple(params.items())) for name, params in steps)


def _step_text(name: str, params: tuple[tuple[str, str], ...]) -> str:
    def value(text: str) -> str:
        return text if _PLAIN.match(text) else f'"{text}"'

    inside = ", ".join(f"{key}={value(text)}" for key, text in params)
    return f"{name}({inside})" if inside else name


@dataclass(frozen=True)
class Environment:
    """A stack of layers on the host. ``path`` is its canonical text."""

    path: str
    layers: tuple[Layer, ...]

    @classmethod
    def parse(cls, text: str) -> Environment:
        """Raises PathError: cannot be read, or an unknown layer or parameter."""
        steps = parse(text)
        made = tuple(make_layer(name, dict(params)) for name, params in steps)
        for layer in made[1:]:
            if layer.on_host_only:
                raise PathError(f"Layer {layer.name!r} stands on the host alone, not in {text!r}.",
                                "Put it first in the path.")
        return cls("/".join(_step_text(name, params) for name, params in steps), made)

    def check(self) -> None:
        """Raise CannotRun when one of its layers cannot run on this host."""
        for layer in self.layers:
            layer.check()

    def substrate(self) -> str:
        """What executes its instructions: the innermost layer that has a say, or the host CPU."""
        for layer in reversed(self.layers):
            found = layer.substrate()
            if found:
                return found
        return "host CPU"

    def most_cpus(self, wanted: int) -> int:
        """The processors that a machine of this environment can have, of those wanted."""
        return min([wanted, *(layer.max_cpus for layer in self.layers if layer.max_cpus)])

    def up(self, host: Machine, order: Order) -> Machine:
        """Boot one machine: the layers in turn, each on the one before.

        Ends what is already up when a layer fails. Raises MachineFailed, CannotRun.
        """
        machine, stack = host, []
        try:
            for depth, layer in enumerate(self.layers):
                machine = layer.up(machine, _order_for(order, depth))
                stack.append(machine)
        except BaseException:
            _down(stack)
            raise
        return stack[0] if len(stack) == 1 else Stack(stack)


def _order_for(order: Order, depth: int) -> Order:
    if depth == 0:
        return order
    from dataclasses import replace

    # Upper layers share their carrier's place on the lab network.
    return replace(order, name=f"{order.name}.{depth}", port=None)


def _down(stack: list[Machine]) -> None:
    for machine in reversed(stack):
        with suppress(Exception):
            machine.down()


class Stack(Machine):
    """The uppermost of several machines, ending those below it with it."""

    def __init__(self, machines: list[Machine]):
        self.machines, self.top = machines, machines[-1]
        self.name, self.root = self.top.name, self.top.root
        self.address = self.top.address or machines[0].address
        self.console = machines[0].console

    def spawn(self, argv, *, env=None, cwd="/"):
        return self.top.spawn(argv, env=env, cwd=cwd)

    def run(self, argv, *, timeout, env=None, stdin=b""):
        return self.top.run(argv, timeout=timeout, env=env, stdin=stdin)

    def put(self, source: Path, target: str, mode: int = 0o644) -> None:
        self.top.put(source, target, mode)

    def get(self, source: str, target: Path) -> None:
        self.top.get(source, target)

    def facts(self) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        for machine in self.machines:
            merged.update(machine.facts())
        return merged

    def memory_bytes(self) -> int | None:
        return self.machines[0].memory_bytes()

    def clock_ns(self) -> int | None:
        return self.top.clock_ns()

    def alive(self) -> bool:
        return all(machine.alive() for machine in self.machines)

    def down(self) -> None:
        _down(self.machines)


__all__ = ["CannotRun", "Environment", "Shape", "Stack", "parse"]
