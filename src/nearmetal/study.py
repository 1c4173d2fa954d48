"""Read and validate a study file (TOML).

Every error names the file, the line, the key and the remedy. :func:`read` gives a :class:`Study`,
whose environments and workloads are already parsed and checked for spelling.
"""

from __future__ import annotations

import difflib
import itertools
import json
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from nearmetal.errors import NearmetalError, PathError
from nearmetal.machines.path import Environment
from nearmetal.units import mebibytes, seconds
from nearmetal.workloads.base import Workload, workloads


class StudyError(NearmetalError):
    """A study file that cannot be used."""


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class MachineTable(_Table):
    """``[machine]``: how large every machine is, as far as its environment allows."""

    cpus: int = Field(1, ge=1, le=4096)
    memory: int = Field(1024, ge=64, description="MiB")
    boot_timeout: float = Field(180.0, gt=0, description="s")

    _memory = field_validator("memory", mode="before")(mebibytes)
    _time = field_validator("boot_timeout", mode="before")(seconds)


class StatisticsTable(_Table):
    """``[statistics]``: how often, how precisely, and how it is judged."""

    target: float = Field(0.03, gt=0, lt=1)
    min_blocks: int = Field(5, ge=2)
    max_blocks: int = Field(15, ge=2)
    margin: float = Field(0.02, gt=0, lt=1)
    confidence: float = Field(0.95, gt=0.5, lt=1)
    protocol: str = "all"
    seed: int | None = None
    time_limit: float | None = Field(None, gt=0)

    _time = field_validator("time_limit", mode="before")(seconds)


class WorkloadTable(_Table):
    """``[[workload]]``: one workload, its parameters, and what it changes of the defaults."""

    name: str
    params: dict[str, Any] = {}
    vary: dict[str, list[Any]] = {}
    environments: list[str] | None = None
    timeout: float = Field(300.0, gt=0)
    min_blocks: int | None = Field(None, ge=1)
    max_blocks: int | None = Field(None, ge=1)
    fresh: bool = False
    machines: int | None = Field(None, ge=1, le=64)

    _time = field_validator("timeout", mode="before")(seconds)


class StudyTable(_Table):
    """The whole file."""

    title: str
    about: str = ""
    baseline: str
    environments: list[str] = Field(min_length=1)
    machine: MachineTable = MachineTable()
    statistics: StatisticsTable = StatisticsTable()
    workload: list[WorkloadTable] = Field(min_length=1)


@dataclass(frozen=True)
class Item:
    """A workload at one point of its parameters, as a study asks for it.

    ``params`` is canonical JSON of what the study set; ``machines`` how many it needs.
    """

    workload: Workload
    params: str
    environments: tuple[str, ...] | None
    timeout: float
    min_blocks: int
    max_blocks: int
    fresh: bool
    machines: int

    @property
    def name(self) -> str:
        return self.workload.name


@dataclass(frozen=True)
class Study:
    """A study that has been read: ``text`` is the file as it stood."""

    name: str
    text: str
    title: str
    about: str
    baseline: Environment
    environments: tuple[Environment, ...]
    items: tuple[Item, ...]
    machine: MachineTable
    statistics: StatisticsTable

    @property
    def machines(self) -> int:
        """Machines of one environment that must be up at the same time."""
        return max(item.machines for item in self.items)


def key_line(text: str, location: tuple[Any, ...]) -> int | None:
    """The line (from 1) on which the key at ``location`` stands, or its nearest parent's."""
    table: list[Any] = []
    counts: dict[str, int] = {}
    best, depth = None, 0
    for number, line in enumerate(text.splitlines(), 1):
        head = re.match(r"\s*(\[\[?)\s*([\w.\-]+)\s*\]\]?", line)
        if head:
            table = list(head[2].split("."))
            if head[1] == "[[":
                counts[head[2]] = counts.get(head[2], -1) + 1
            table = _with_index(table, counts)
            here = table
        else:
            key = re.match(r"""\s*["']?([\w\-]+)["']?\s*=""", line)
            if not key:
                continue
            here = [*table, key[1]]
        shared = sum(1 for _ in itertools.takewhile(
            lambda pair: pair[0] == pair[1], zip(here, location, strict=False)))
        if shared == len(here) and shared > depth:
            best, depth = number, shared
    return best


def _with_index(table: list[Any], counts: dict[str, int]) -> list[Any]:
    first = table[0]
    return [first, counts[first], *table[1:]] if first in counts else table


class _Source:
    """The file under validation; makes errors that say where."""

    def __init__(self, name: str, text: str):
        self.name, self.text = name, text

    def error(self, location: tuple[Any, ...], message: str, remedy: str) -> StudyError:
        line = key_line(self.text, location)
        where = f"{self.name}, line {line}" if line else self.name
        words = ""
        for part in location:
            words += f"[{part + 1}]" if isinstance(part, int) else f"{'.' if words else ''}{part}"
        return StudyError(f"{where}, {words}: {message}", remedy)


def _table(source: _Source) -> StudyTable:
    try:
        data = tomllib.loads(source.text)
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"at line (\d+), column (\d+)", str(error))
        where = f", line {line[1]}" if line else ""
        reason = str(error).split(" (at ")[0]
        raise StudyError(f"{source.name}{where}: this is not TOML: {reason}.",
                         "Mend the line; strings are in quotes, lists in [ ].") from None
    try:
        return StudyTable(**data)
    except ValidationError as error:
        # A misspelt key is both unknown and missing: the unknown one says where it stands.
        first = min(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
        location = tuple(first["loc"])
        raise source.error(location, *_explain(first, location)) from None


def _explain(first: Any, location: tuple[Any, ...]) -> tuple[str, str]:
    kind, message = first["type"], first["msg"].removeprefix("Value error, ")
    if kind == "missing":
        return "this key is missing.", "Add it; docs/guide.md shows a complete study."
    if kind == "extra_forbidden":
        model: Any = StudyTable
        for part in location[:-1]:
            if isinstance(part, str):
                model = {"machine": MachineTable, "statistics": StatisticsTable,
                         "workload": WorkloadTable}.get(part, model)
        known = list(model.model_fields)
        near = difflib.get_close_matches(str(location[-1]), known, 1)
        hint = f"Did you mean {near[0]!r}?" if near else f"Known keys: {', '.join(known)}."
        return "there is no such key.", hint
    return f"{message} (given: {first['input']!r}).", "Mend the value."


def _environments(source: _Source, paths: list[str], location: tuple[Any, ...]):
    made: dict[str, Environment] = {}
    for path in paths:
        try:
            environment = Environment.parse(path)
        except PathError as error:
            raise source.error(location, error.message, error.remedy) from None
        made[environment.path] = environment
    return made


def _workload(source: _Source, index: int, table: WorkloadTable) -> type[Workload]:
    known = workloads()
    if table.name not in known:
        near = difflib.get_close_matches(table.name, known, 1)
        hint = f"Did you mean {near[0]!r}?" if near else f"Known workloads: {', '.join(known)}."
        raise source.error(("workload", index, "name"),
                           f"there is no workload called {table.name!r}.", hint)
    return known[table.name]


def _points(table: WorkloadTable) -> list[dict[str, Any]]:
    keys = list(table.vary)
    return [{**table.params, **dict(zip(keys, values, strict=True))}
            for values in itertools.product(*table.vary.values())]


def _item(source: _Source, index: int, table: WorkloadTable, params: dict[str, Any],
          defaults: StatisticsTable, known: dict[str, Environment]) -> Item:
    cls = _workload(source, index, table)
    try:
        workload = cls(cls.Params(**params))
    except ValidationError as error:
        first = error.errors()[0]
        key = first["loc"][0] if first["loc"] else "params"
        group = "vary" if key in table.vary else "params"
        takes = ", ".join(cls.Params.model_fields) or "none"
        why = f"{first['msg'].removeprefix('Value error, ')} (given: {first['input']!r})."
        message = (f"workload {table.name!r} has no such parameter."
                   if first["type"] == "extra_forbidden" else why)
        raise source.error(("workload", index, group, str(key)), message,
                           f"It takes: {takes}.") from None
    subset = None
    if table.environments is not None:
        where = ("workload", index, "environments")
        subset = tuple(_environments(source, table.environments, where))
        for path in subset:
            if path not in known:
                raise source.error(where, f"{path!r} is not among the study's environments.",
                                   "List it under environments at the top as well.")
    low = table.min_blocks or min(defaults.min_blocks, table.max_blocks or defaults.min_blocks)
    high = table.max_blocks or max(defaults.max_blocks, low)
    if high < low:
        raise source.error(("workload", index, "max_blocks"),
                           f"max_blocks ({high}) is less than min_blocks ({low}).", "Raise it.")
    return Item(workload, json.dumps(params, sort_keys=True), subset, table.timeout, low, high,
                table.fresh, table.machines or workload.machines)


def parse(name: str, text: str) -> Study:
    """Read a study from its text; ``name`` is used in errors. Raises StudyError."""
    from nearmetal.analysis.protocols import protocols

    source = _Source(name, text)
    table = _table(source)
    known = _environments(source, table.environments, ("environments",))
    base = _environments(source, [table.baseline], ("baseline",))
    baseline = next(iter(base.values()))
    stats = table.statistics
    if stats.max_blocks < stats.min_blocks:
        raise source.error(("statistics", "max_blocks"), f"max_blocks ({stats.max_blocks}) is less"
                           f" than min_blocks ({stats.min_blocks}).", "Raise it.")
    if stats.protocol not in protocols():
        raise source.error(("statistics", "protocol"), f"no protocol {stats.protocol!r}.",
                           f"Known protocols: {', '.join(protocols())}.")
    items = [_item(source, index, entry, params, stats, {**known, **base})
             for index, entry in enumerate(table.workload) for params in _points(entry)]
    keys = [(item.name, item.params) for item in items]
    for index, key in enumerate(keys):
        if key in keys[:index]:
            raise StudyError(f"{name}: workload {key[0]!r} with {key[1]} is listed twice.",
                             "Remove one, or give it other params.")
    return Study(Path(name).stem, text, table.title, table.about, baseline,
                 tuple(known[path] for path in known if path != baseline.path), tuple(items),
                 table.machine, stats)


def read(path: Path) -> Study:
    """Read a study file. Raises StudyError."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise StudyError(f"There is no study file {str(path)!r}.",
                         "Give the path of a TOML file, such as studies/quick.toml.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise StudyError(f"Cannot read {str(path)!r}: {error}.", "Give a readable UTF-8 file.") \
            from None
    return parse(str(path), text)
