"""A session of the lab: from a study file or an unfinished store to its end."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from nearmetal import __version__, cleanup, plan, runner, userland
from nearmetal.booter import Booter
from nearmetal.doctor import machine_facts
from nearmetal.errors import NearmetalError
from nearmetal.machines.base import Layer, layers
from nearmetal.machines.host import Host
from nearmetal.observe.base import Observers
from nearmetal.store import FILE, Store, StoreError, now
from nearmetal.study import Study, StudyError, parse

LEAST_DISK = 256 * 1024 * 1024


class Refused(NearmetalError):
    """The lab cannot start here at all."""


def settings_of(study: Study) -> dict[str, Any]:
    """What the analysis and the report need to know of a study."""
    return {"machine": study.machine.model_dump(), "about": study.about,
            "statistics": study.statistics.model_dump(), "baseline": study.baseline.path}


def require(folder: Path) -> None:
    """Raise Refused unless the lab can run here: root, and room on the disk."""
    if os.geteuid() != 0:
        raise Refused("The lab needs root: it makes namespaces, mounts and virtual machines.",
                      "Run it with sudo, or as root.")
    existing = next(one for one in [folder, *folder.parents] if one.exists())
    free = shutil.disk_usage(existing).free
    if free < LEAST_DISK:
        raise Refused(f"Only {free // 2**20} MiB are free on the disk of {str(folder)!r}.",
                      f"Free at least {LEAST_DISK // 2**20} MiB, or give another --output.")


def start(study: Study, folder: Path, file: str, *, seed: int | None, again: bool) -> Store:
    """Make the store of a new study. ``again`` sets earlier results aside, under a dated name."""
    if (folder / FILE).exists() and again:
        stamp = time.strftime("%Y%m%d-%H%M%S")
        folder.rename(folder.with_name(f"{folder.name}.{stamp}-{secrets.token_hex(2)}"))
    chosen = seed if seed is not None else study.statistics.seed
    if chosen is None:
        chosen = secrets.randbelow(2**31)
    return Store.create(folder, name=study.name, title=study.title, text=study.text, file=file,
                        seed=chosen, settings=settings_of(study), facts=machine_facts(),
                        version=__version__)


def reopen(folder: Path) -> tuple[Store, Study]:
    """The store of an unfinished study, and the study as it was when it began.

    Raises StoreError when this machine is not the one that the store was begun on.
    """
    from nearmetal.analysis.compare import mergeable

    store = Store(folder, write=True)
    kept = store.study()
    differing = mergeable(kept["facts"], machine_facts())
    if differing:
        store.close()
        raise StoreError("This machine is not as it was when the study began: "
                         f"{', '.join(map(str, differing))} differ.",
                         "Start the study anew with another --output, and compare the two.")
    try:
        return store, parse(kept["file"], kept["text"])
    except StudyError:
        store.close()
        raise


class Lab:
    """Carries out a study in this process. Use as ``Lab(...).carry_out()``."""

    def __init__(self, study: Study, store: Store, folder: Path, progress: Any):
        self.study, self.store, self.folder, self.progress = study, store, folder, progress
        self.mark = cleanup.new_mark()

    def carry_out(self) -> runner.Summary:
        """Userland, machines, runs; ends all that it made. Interrupts end it in order."""
        signal.signal(signal.SIGTERM, _interrupt)
        signal.signal(signal.SIGHUP, _interrupt)
        cleanup.clean()  # what a killed lab left
        built = userland.find() or userland.ensure(self.progress.say)
        host = Host(self.mark, built.tree)
        try:
            booter = Booter(host, built, self.mark, self.folder / "machines" / _stamp(),
                            self.study.machine.boot_timeout)
            made = plan.make(self.study, self.store.study()["seed"])
            return runner.Runner(made, self.store, booter, self.progress, Observers).run()
        finally:
            host.down()
            cleanup.clean(self.mark)


def prepare(say: Callable[[str], None]
            ) -> tuple[userland.Userland, dict[str, NearmetalError]]:
    """Build the userland and, beside it, what each layer needs; layers that failed, by name."""
    if os.geteuid() != 0:
        raise Refused("Setting up needs root: the userland holds files of root.",
                      "Run it with sudo, or as root.")

    def one(name: str, layer: type[Layer]) -> tuple[str, NearmetalError | None]:
        try:
            layer.prepare(say)
        except NearmetalError as error:
            return name, error
        return name, None

    with ThreadPoolExecutor(max_workers=4) as pool:
        tasks = [pool.submit(one, name, layer) for name, layer in layers().items()]
        built = userland.ensure(say)
        ended = [task.result() for task in tasks]
    return built, {name: error for name, error in ended if error is not None}


def _stamp() -> str:
    return now().replace(":", "").split(".")[0]


def _interrupt(number: int, _frame: object) -> None:
    raise KeyboardInterrupt(signal.Signals(number).name)
