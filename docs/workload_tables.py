"""Writes the tables of docs/workloads.md from the definitions: `python docs/workload_tables.py`.

Between `<!-- begin NAME -->` and `<!-- end NAME -->` of the page stands what this program printed
for the workload NAME; a test sees to it that it is up to date.
"""

from __future__ import annotations

import re
from pathlib import Path

from nearmetal.workloads.base import Workload, workloads

PAGE = Path(__file__).parent / "workloads.md"


def _default(value) -> str:
    if isinstance(value, tuple):
        return "`[" + ", ".join(map(str, value)) + "]`"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _bounds(schema: dict) -> str:
    if "enum" in schema:
        return ", ".join(f"`{one}`" for one in schema["enum"])
    schema = schema.get("items", schema)
    if "enum" in schema:
        return "some of " + ", ".join(f"`{one}`" for one in schema["enum"])
    if schema.get("type") == "boolean":
        return "`true`, `false`"
    if "minimum" not in schema:
        return schema.get("type", "")
    text = f"{schema['minimum']:.10g} to {schema['maximum']:.10g}"
    return text + (", even" if schema.get("multipleOf") == 2 else "")


def table(cls: type[Workload]) -> str:
    """A workload's source, parameters and metrics as Markdown."""
    lines = [f"Source: {cls.source}."] if cls.source else []
    if cls.machines > 1:
        lines.append(f"A cluster of {cls.machines} machines, unless the study says otherwise.")
    lines += [""] if lines else []
    fields = cls.Params.model_json_schema().get("properties", {})
    if fields:
        lines += ["| parameter | default | values | what it is |", "| --- | --- | --- | --- |"]
        for name, schema in fields.items():
            default = _default(cls.Params.model_fields[name].default)
            lines.append(f"| `{name}` | {default} | {_bounds(schema)} | {schema['description']} |")
    else:
        lines.append("It takes no parameters.")
    lines += ["", "| metric | unit | better | by | what it is |", "| --- | --- | --- | --- | --- |"]
    for metric in cls.metrics:
        name = f"**`{metric.name}`**" if metric.headline else f"`{metric.name}`"
        axis = f"`{metric.axis}`" if metric.axis else ""
        lines.append(f"| {name} | {metric.unit} | {metric.better} | {axis} | {metric.summary} |")
    return "\n".join(lines)


def updated(text: str) -> str:
    """The page with its tables written anew. Raises KeyError for a workload that is not known."""
    known = workloads()
    return re.sub(r"(<!-- begin (\S+) -->\n).*?(<!-- end \2 -->)",
                  lambda found: f"{found[1]}{table(known[found[2]])}\n{found[3]}", text, flags=re.S)


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text()))
