"""The host itself, as the machine that the first layer stands on."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from nearmetal.machines.base import Completed, Machine
from nearmetal.machines.process import HostProcess, start

if TYPE_CHECKING:
    from nearmetal.userland import Userland

_KILLED_LIMIT = 10.0


class Host(Machine):
    """This machine. ``root`` is the userland's tree, which lies in the host's file system;
    ``userland`` may be given as that folder.

    Commands run with the host's own root and programs; every process carries the lab's mark and
    dies with this Python process.
    """

    def __init__(self, lab: str, userland: Userland | Path | str = "/"):
        self.lab = lab
        self.name = "host"
        self.root = str(getattr(userland, "tree", userland))

    def spawn(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: str = "/"
    ) -> HostProcess:
        """Raises CannotRun when there is no such program."""
        return start(argv, self.lab, env=env, cwd=cwd)

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        cwd: str = "/",
    ) -> Completed:
        began = time.monotonic_ns()
        process = start(argv, self.lab, env=env, cwd=cwd)
        timed_out = False
        popen = process._popen
        try:
            out, err = popen.communicate(stdin, timeout=timeout)
        except subprocess.TimeoutExpired:
            timed_out = True
            process.kill()
            out, err = _rest(popen)
        elapsed = time.monotonic_ns() - began
        status = None if timed_out else process.wait(_KILLED_LIMIT)
        process.close()
        return Completed(tuple(argv), status, out, err, host_ns=elapsed, machine_ns=elapsed,
                         timed_out=timed_out)

    def put(self, source: Path, target: str, mode: int = 0o644) -> None:
        aside = Path(f"{target}.{os.getpid()}.{threading.get_ident()}.part")
        shutil.copyfile(source, aside)
        aside.chmod(mode)
        aside.replace(target)

    def get(self, source: str, target: Path) -> None:
        shutil.copyfile(source, target)

    def clock_ns(self) -> int:
        return time.monotonic_ns()

    def facts(self) -> dict[str, Any]:
        clock = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
        return {
            "cpus": len(os.sched_getaffinity(0)),
            "memory_mib": psutil.virtual_memory().total >> 20,
            "kernel": f"{platform.system()} {platform.release()}",
            "clocksource": clock.read_text().strip() if clock.exists() else "",
            "network": "the host's",
        }

    def memory_bytes(self) -> int | None:
        return None  # it costs nothing above itself

    def alive(self) -> bool:
        return True

    def down(self) -> None:
        """Nothing: what was started on it belongs to those who started it."""


def _rest(popen: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    """What a killed command had printed; a stray that holds its pipes open is not waited for."""
    try:
        return popen.communicate(timeout=1.0)
    except subprocess.TimeoutExpired as error:
        return error.stdout or b"", error.stderr or b""
