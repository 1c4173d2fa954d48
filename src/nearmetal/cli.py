"""The commands: parse, call, print. What they do is elsewhere."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from nearmetal import __version__
from nearmetal.errors import Interrupted, NearmetalError

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode="rich",
                  pretty_exceptions_enable=False,
                  help="What does virtualization cost an HPC code on this machine, and why?")
out = Console(highlight=False)
err = Console(stderr=True, highlight=False)

Folder = Annotated[Path, typer.Argument(help="A results folder, or its results.sqlite.")]


def _version(wanted: bool) -> None:
    if wanted:
        print(f"nearmetal {__version__}")
        raise typer.Exit


@app.callback()
def top(debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
        version: Annotated[bool, typer.Option("--version", help="Show the version.",
                                              callback=_version, is_eager=True)] = False) -> None:
    """What does virtualization cost an HPC code on this machine, and why?"""
    if debug:
        os.environ["NEARMETAL_DEBUG"] = "1"


@app.command()
def run(study: Annotated[Path, typer.Argument(help="The study, a TOML file.")],
        output: Annotated[Path | None, typer.Option(
            help="Results folder; results/NAME if not given.")] = None,
        dry_run: Annotated[bool, typer.Option(
            "--dry-run", help="Show the plan; boot nothing.")] = False,
        seed: Annotated[int | None, typer.Option(help="Seed of the random order.")] = None,
        again: Annotated[bool, typer.Option(
            "--again", help="Set earlier results in the folder aside.")] = False) -> None:
    """Carry out a study: boot its environments, run its workloads, write a report."""
    from nearmetal import lab
    from nearmetal.study import read

    made = read(study)
    if dry_run:
        _show_plan(made, seed)
        return
    folder = output or Path("results") / made.name
    lab.require(folder)
    with lab.start(made, folder, str(study), seed=seed, again=again) as store:
        _carry_out(made, store, folder)


@app.command()
def resume(folder: Folder) -> None:
    """Continue a study that was interrupted, where it stopped."""
    from nearmetal import lab
    from nearmetal.store import locate

    place = locate(folder).parent
    lab.require(place)
    store, made = lab.reopen(folder)
    with store:
        out.print(f"{len(store.done())} runs are kept; continuing.")
        _carry_out(made, store, place)


def _carry_out(made, store, folder: Path) -> None:
    from nearmetal import lab, progress

    with progress.make(out) as display:
        try:
            summary = lab.Lab(made, store, folder, display).carry_out()
        except KeyboardInterrupt:
            raise Interrupted(
                f"Interrupted; {len(store.done())} runs are kept.",
                f"`nearmetal resume {folder}` continues.") from None
        display.say("writing the report")
        page, findings = _write_report(folder)
    from nearmetal.report import text

    text.verdict_table(findings, out)
    _say_end(summary)
    out.print(f"Report: {escape(str(page))}", soft_wrap=True)
    if summary.exit_status:
        raise typer.Exit(summary.exit_status)


def _say_end(summary) -> None:
    for label, reason in summary.given_up.items():
        out.print(f"Given up: {label}: {reason}", markup=False)
    if summary.stopped_by:
        out.print(f"Stopped by {summary.stopped_by}; intervals are as wide as they are.")
    if summary.failed:
        out.print(f"{len(summary.failed)} of {summary.runs} runs failed:")
        for line in summary.failed[:10]:
            out.print(f"  {line}", markup=False)


def _write_report(folder: Path, figures: bool = True):
    from nearmetal.report import figures as pictures
    from nearmetal.report import html
    from nearmetal.results import findings

    found = findings(folder)
    if figures:  # before the page, which links those that it finds
        pictures.write(found, folder)
    return html.write(found, folder), found


def _show_plan(made, seed: int | None) -> None:
    from nearmetal import plan, progress
    from nearmetal.errors import CannotRun

    planned = plan.make(made, seed if seed is not None else made.statistics.seed or 0)
    table = Table("environment", "role", "compared with", "CPUs", "substrate", "here")
    for one in planned.participants:
        try:
            one.environment.check()
            here = "can run"
        except CannotRun as error:
            here = f"cannot: {error}"
        table.add_row(escape(one.label), one.role, escape(one.matched), str(one.shape.cpus),
                      one.environment.substrate(), escape(here))
    out.print(f"[bold]{escape(made.title)}[/bold]")
    out.print(table)
    table = Table("workload", "params", "machines", "blocks")
    for item in made.items:
        table.add_row(item.name, escape(item.params), str(item.machines),
                      f"{item.min_blocks} to {item.max_blocks}")
    out.print(table)
    least, most = planned.runs()
    short, long = planned.estimate_total_s()
    out.print(f"{least} to {most} runs, about {progress.clock(short)} to {progress.clock(long)}"
              " plus booting.")
    if made.statistics.time_limit:
        out.print(f"Stops after {progress.clock(made.statistics.time_limit)} once every workload"
                  " has its least number of blocks.")
    out.print("First block, in order:")
    for step in planned.block(0):
        out.print(f"  {step.position + 1:3} {step.participant.label}: {step.item.name}",
                  markup=False)


@app.command()
def report(folder: Folder,
           figures: Annotated[bool, typer.Option(help="Write figures as files too.")] = True
           ) -> None:
    """Write the report of a results folder anew, and print its verdicts."""
    from nearmetal.report import text
    from nearmetal.store import locate

    page, found = _write_report(locate(folder).parent, figures)
    text.verdict_table(found, out)
    out.print(f"Report: {escape(str(page))}", soft_wrap=True)


@app.command()
def compare(first: Annotated[str, typer.Argument(help="A results folder; FOLDER:LABEL picks one "
                                                      "environment.")],
            second: Annotated[str, typer.Argument(help="Another, or the same with another label.")],
            across_machines: Annotated[bool, typer.Option(
                "--across-machines", help="Compare although the machines differ.")] = False
            ) -> None:
    """How SECOND compares with FIRST: two results folders, or any two environments."""
    from nearmetal.results import compare_labels

    (path_one, label_one), (path_two, label_two) = _pick(first), _pick(second)
    frame = compare_labels(path_one, path_two, labels=(label_one, label_two),
                           force=across_machines)
    if frame.empty:
        raise NearmetalError("The two have no figure in common.",
                             "Compare folders that ran the same workloads with the same params.")
    table = Table("what", "ratio", "95 % interval", "p (Holm)", "verdict")
    for row in frame.itertuples():
        point = "" if row.point == "{}" else f" {row.point}"
        known = row.ratio == row.ratio and row.lo == row.lo  # NaN: too few runs
        table.add_row(escape(f"{row.label}: {row.workload} {row.metric}{point}"),
                      f"{row.ratio:.3f}" if row.ratio == row.ratio else "-",
                      f"{row.lo:.3f} to {row.hi:.3f}" if known else "-",
                      f"{row.p_holm:.3g}" if known else "-", row.verdict)
    out.print(f"{second} against {first}; the ratio is of the figures themselves.", markup=False)
    out.print(table)


def _pick(text: str) -> tuple[str, str | None]:
    if not Path(text).exists() and ":" in text:
        path, _, label = text.partition(":")
        return path, label
    return text, None


@app.command()
def export(folder: Folder,
           to: Annotated[Path, typer.Argument(help="File to write: .csv, .parquet or .json.")]
           ) -> None:
    """Write the measurements as CSV, Parquet or JSON."""
    from nearmetal.results import export as write

    out.print(f"{write(folder, to)} measurements written to {escape(str(to))}")


@app.command()
def merge(folders: Annotated[list[str], typer.Argument(help="Results folders of one machine.")],
          to: Annotated[Path, typer.Option(help="File to write: .csv or .parquet.")]) -> None:
    """Merge results of one machine into one table; refused when machine facts differ."""
    from nearmetal.results import merge as write

    out.print(f"{write(folders, to)} measurements written to {escape(str(to))}")


@app.command()
def doctor(json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False) -> None:
    """What this machine is, what can run on it, and what would disturb a measurement."""
    from nearmetal import doctor as examiner

    found = examiner.examine()
    if json:
        print(examiner.to_json(found))
    else:
        examiner.render(found, out)


@app.command()
def tune(show: Annotated[bool, typer.Option("--show", help="Only show what would change.")] = False,
         undo: Annotated[bool, typer.Option("--undo", help="Put back what tune changed.")] = False
         ) -> None:
    """Quieten this machine for measurements, or undo that."""
    from nearmetal.doctor import tuning

    lines = tuning.undo() if undo else tuning.tune(show_only=show)
    for line in lines:
        out.print(str(line), markup=False)


@app.command()
def clean(force: Annotated[bool, typer.Option(
        "--force", help="Also what a lab that still runs holds.")] = False) -> None:
    """Remove what a killed lab left: processes, namespaces, mounts, cgroups, folders."""
    from nearmetal import cleanup

    if os.geteuid() != 0:
        raise NearmetalError("Only root can see and remove what a lab left.", "Run it as root.")
    gone = cleanup.clean(force=force)
    for one in gone:
        out.print(f"removed {one}", markup=False)
    if not gone:
        out.print("Nothing was left behind.")


@app.command()
def setup() -> None:
    """Build the userland and the tools that environments need; does nothing when they are there."""
    from nearmetal import lab, progress

    with progress.make(out) as display:
        built, missing = lab.prepare(display.say)
    out.print(f"The userland {built.id} is ready.")
    for name, error in missing.items():
        out.print(f"Layer {name} cannot be used: {error}", markup=False)


@app.command("list")
def list_all() -> None:
    """The layers and workloads there are, with their parameters."""
    from nearmetal.machines.base import layers
    from nearmetal.workloads.base import workloads

    for title, known in (("layer", layers()), ("workload", workloads())):
        table = Table(title, "what it is", "parameters")
        for name, cls in known.items():
            table.add_row(name, escape(cls.summary), ", ".join(cls.Params.model_fields))
        out.print(table)


def main() -> None:
    """Entry point: errors are one sentence and the remedy; tracebacks only with --debug."""
    try:
        app()
    except NearmetalError as error:
        if os.environ.get("NEARMETAL_DEBUG"):
            raise
        err.print(f"[red]Error:[/red] {escape(error.message)}", soft_wrap=True)
        if error.remedy:
            err.print(escape(error.remedy), soft_wrap=True)
        sys.exit(error.exit_status)
    except KeyboardInterrupt:
        err.print("Interrupted.")
        sys.exit(130)
    except OSError as error:
        if os.environ.get("NEARMETAL_DEBUG"):
            raise
        where = f" ({error.filename})" if error.filename else ""
        err.print(f"[red]Error:[/red] {escape(str(error.strerror or error))}{escape(where)}.",
                  soft_wrap=True)
        err.print("Give a place that can be written, or free some space. What was measured is kept;"
                  " `nearmetal resume` continues a study.")
        sys.exit(2)


if __name__ == "__main__":
    main()
