"""Processes of the host that belong to a lab and die with it.

Every process carries the lab's mark in its environment (``NEARMETAL_LAB``), so that what a killed
lab left can be found. Each is started by one long-lived thread, because "die with your parent"
(PR_SET_PDEATHSIG, prctl(2)) means the parent *thread*.
"""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, BinaryIO, cast

import psutil

from nearmetal.errors import CannotRun, MachineFailed

LAB_VARIABLE = "NEARMETAL_LAB"
_START_LIMIT = 60.0


class _Spawner:
    """The thread that starts all processes; it lives as long as this Python process."""

    def __init__(self) -> None:
        self._jobs: queue.Queue[tuple[Callable[[], Any], Future[Any]]] = queue.Queue()
        self._thread: threading.Thread | None = None
        self._pid = 0
        self._lock = threading.Lock()

    def call(self, start: Callable[[], Any]) -> Any:
        with self._lock:
            if self._thread is None or self._pid != os.getpid():  # first use, or after a fork
                self._jobs = queue.Queue()
                self._thread = threading.Thread(target=self._serve, args=(self._jobs,),
                                                name="nearmetal-spawner", daemon=True)
                self._pid = os.getpid()
                self._thread.start()
        future: Future[Any] = Future()
        self._jobs.put((start, future))
        return future.result(_START_LIMIT)

    @staticmethod
    def _serve(jobs: queue.Queue[tuple[Callable[[], Any], Future[Any]]]) -> None:
        while True:
            start, future = jobs.get()
            try:
                future.set_result(start())
            except BaseException as error:
                future.set_exception(error)


_spawner = _Spawner()


def _tree(pid: int) -> list[psutil.Process]:
    """The process and all that descend from it; empty when it is gone."""
    try:
        top = psutil.Process(pid)
        return [top, *top.children(recursive=True)]
    except psutil.Error:
        return []


def _wait_dead(processes: list[psutil.Process]) -> None:
    """Wait, for 2 s at most, until they are dead; reaped or not, for that is init's business."""
    deadline = time.monotonic() + 2
    while processes and time.monotonic() < deadline:
        processes = [one for one in processes if not _dead(one)]
        if processes:
            time.sleep(0.005)


def _dead(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return True


class HostProcess:
    """A process of the host, its three streams as binary files (see base.Process)."""

    def __init__(self, popen: subprocess.Popen[bytes]):
        self._popen = popen
        self.pid = popen.pid
        self.argv = tuple(str(word) for word in cast(Sequence[str], popen.args))
        self.stdin = cast(BinaryIO, popen.stdin)
        self.stdout = cast(BinaryIO, popen.stdout)
        self.stderr = cast("BinaryIO | None", popen.stderr)

    def poll(self) -> int | None:
        status = self._popen.poll()
        return status if status is None or status >= 0 else 128 - status

    def wait(self, timeout: float | None = None) -> int:
        """Its status (128 + signal for a death by signal). Raises subprocess.TimeoutExpired."""
        status = self._popen.wait(timeout)
        return status if status >= 0 else 128 - status

    def kill(self) -> None:
        """SIGKILL to it, its process group and all that descend from it."""
        if self._popen.poll() is not None:
            return  # its number may be another's by now
        tree: list[psutil.Process] = []
        for _ in range(20):  # what forks while it is being killed is caught the next time
            tree = _tree(self.pid) or tree
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            for process in tree:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._popen.wait(0.5)
                break
        _wait_dead(tree)

    def terminate(self) -> None:
        """SIGTERM to the process alone."""
        self._popen.terminate()

    def close(self) -> None:
        """Close the streams that are still open."""
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                with contextlib.suppress(OSError, ValueError):
                    stream.close()

    def memory_bytes(self) -> int | None:
        """Proportional set size of it and its descendants, in bytes; None when it is gone."""
        return tree_memory_bytes(self.pid)


def tree_memory_bytes(pid: int) -> int | None:
    """Proportional set size of a process tree, in bytes (smaps_rollup, proc(5))."""
    total, seen = 0, False
    for process in _tree(pid):
        try:
            with open(f"/proc/{process.pid}/smaps_rollup", encoding="ascii") as file:
                for line in file:
                    if line.startswith("Pss:"):
                        total += int(line.split()[1]) * 1024
                        seen = True
        except OSError:
            continue
    return total if seen else None


def start(argv: Sequence[str], lab: str, *, env: Mapping[str, str] | None = None,
          cwd: str = "/", leash: bool = True) -> HostProcess:
    """Start ``argv`` on the host with the lab's mark, pipes for its streams, in a session of its
    own; with ``leash`` it is killed when this Python process ends, however it ends.

    Raises CannotRun when there is no such program.
    """
    words = [str(word) for word in argv]
    leashed = ["setpriv", "--pdeathsig", "KILL", "--", *words] if leash else words
    full = {**os.environ, **(env or {}), LAB_VARIABLE: lab}
    full["PATH"] = f"{full.get('PATH', '/usr/bin:/bin')}:/usr/local/sbin:/usr/sbin:/sbin"
    if shutil.which(words[0], path=full["PATH"]) is None:
        raise CannotRun(f"The program {words[0]!r} is not on this machine.",
                        "Install it; 'nearmetal doctor' says which package has it.")

    def begin() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            leashed, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=full, cwd=cwd, start_new_session=True)

    try:
        return HostProcess(_spawner.call(begin))
    except OSError as error:
        raise CannotRun(f"{words[0]!r} does not start: {error.strerror}.",
                        "Is the machine out of memory or processes?") from None


def do(argv: Sequence[str], lab: str, *, timeout: float = 30.0, stdin: bytes = b"") -> bytes:
    """Run a short command of the host to its end; its output. Raises MachineFailed."""
    process = start(argv, lab)
    try:
        out, err = process._popen.communicate(stdin, timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.close()
        raise MachineFailed(f"{' '.join(argv)!r} took more than {timeout:g} s.") from None
    status = process.wait()
    if status:
        said = (err or out).decode(errors="replace").strip(" .\n")[-500:]
        raise MachineFailed(f"{' '.join(argv)!r} failed with status {status}: {said}.")
    return out
