"""What killed labs left behind, and removing it.

Everything that a machine makes carries the mark of its lab, ``<pid>-<start time>-<random>``: in
the environment of processes (``NEARMETAL_LAB``), in the names of cgroups (``nearmetal-<mark>-*``)
and network namespaces, in the alias of interfaces, and in the path of mounts and folders
(``/run/nearmetal/<mark>/``). A mark tells whether its lab still runs.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

RUN = Path("/run/nearmetal")
CGROUPS = Path("/sys/fs/cgroup")
NETNS = Path("/run/netns")
MARK = re.compile(r"\d+-\d+-[0-9a-f]+")
_VARIABLE = b"NEARMETAL_LAB="
_ORDER = ("process", "mount", "cgroup", "netns", "interface", "folder")
_ROUNDS = 5
_PROCESS_LIMIT = 5.0


@dataclass(frozen=True)
class Leftover:
    """``kind`` is process, mount, cgroup, netns, interface or folder; ``name`` its number, path
    or name; ``lab`` the mark it carries; ``detail`` for people."""

    kind: str
    name: str
    lab: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" + (f" ({self.detail})" if self.detail else "")


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name: state first, start time at 19; [] when gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def new_mark() -> str:
    """A mark for a lab that runs in this process."""
    return f"{os.getpid()}-{_stat(os.getpid())[19]}-{secrets.token_hex(4)}"


def mark_alive(mark: str) -> bool:
    """Whether the lab with this mark still runs: its process is there and is not another one
    with the same number."""
    if not MARK.fullmatch(mark):
        return False
    pid, began, _ = mark.split("-")
    fields = _stat(int(pid))
    return bool(fields) and fields[0] not in "ZX" and fields[19] == began


def _processes() -> Iterator[Leftover]:
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environment = Path(f"/proc/{entry.name}/environ").read_bytes()
        except OSError:
            continue
        for item in environment.split(b"\0"):
            if item.startswith(_VARIABLE):
                lab = item[len(_VARIABLE):].decode(errors="replace")
                yield Leftover("process", entry.name, lab, _command(entry.name))
                break


def _command(pid: str) -> str:
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return Path(words[0].decode(errors="replace")).name
    return ""


def _mark_after(text: str, before: str) -> str | None:
    """The mark that follows ``before`` in ``text``."""
    found = re.search(re.escape(before) + f"({MARK.pattern})(?![0-9a-f])", text)
    return found.group(1) if found else None


def _mounts() -> Iterator[Leftover]:
    try:
        lines = Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        point = line.split()[4].encode().decode("unicode_escape")
        lab = _mark_after(f"{point}/", f"{RUN}/")
        if lab:
            yield Leftover("mount", point, lab)


def _cgroups() -> Iterator[Leftover]:
    seen: set[tuple[int, int]] = set()
    for folder, inner, _ in os.walk(CGROUPS):
        with contextlib.suppress(OSError):
            where = os.stat(folder)
            if (where.st_dev, where.st_ino) in seen:  # cpu and cpuacct may be one hierarchy
                inner.clear()
                continue
            seen.add((where.st_dev, where.st_ino))
        lab = _mark_after(folder, "/nearmetal-")
        if lab:  # those within it as well, which must go before it can
            yield Leftover("cgroup", folder, lab)


def _named(kind: str, folder: Path) -> Iterator[Leftover]:
    """Entries of ``folder`` that are called nearmetal-<mark>..."""
    with contextlib.suppress(OSError):
        for entry in sorted(folder.iterdir()):
            lab = _mark_after(entry.name, "nearmetal-")
            if lab:
                yield Leftover(kind, entry.name, lab)


def _interfaces() -> Iterator[Leftover]:
    for alias in Path("/sys/class/net").glob("*/ifalias"):
        with contextlib.suppress(OSError):
            lab = _mark_after(alias.read_text().strip(), "nearmetal-")
            if lab:
                yield Leftover("interface", alias.parent.name, lab)


def _folders() -> Iterator[Leftover]:
    with contextlib.suppress(OSError):
        for entry in sorted(RUN.iterdir()):
            if MARK.fullmatch(entry.name):
                yield Leftover("folder", str(entry), entry.name)


def _all() -> Iterator[Leftover]:
    yield from _processes()
    yield from _mounts()
    yield from _cgroups()
    yield from _named("netns", NETNS)
    yield from _interfaces()
    yield from _folders()


def leftovers(lab: str | None = None, *, force: bool = False) -> list[Leftover]:
    """What carries the mark ``lab``; without it, what labs that run no more left, or with
    ``force`` what any lab has. In the order in which it is to be removed."""
    alive: dict[str, bool] = {}

    def wanted(one: Leftover) -> bool:
        if lab is not None:
            return one.lab == lab
        if force:
            return True
        if one.lab not in alive:
            alive[one.lab] = mark_alive(one.lab)
        return not alive[one.lab]

    found = [one for one in _all() if wanted(one)]
    return sorted(found, key=lambda one: (_ORDER.index(one.kind), -one.name.count("/")))


def clean(lab: str | None = None, *, force: bool = False) -> list[Leftover]:
    """Remove what :func:`leftovers` finds; what was removed. What will not go is found again by
    :func:`leftovers`. Never touches this process."""
    removed: dict[Leftover, None] = {}
    for _ in range(_ROUNDS):  # removing one thing may bring another to light
        found = leftovers(lab, force=force)
        if not found:
            break
        killed = [int(one.name) for one in found if one.kind == "process" and _remove(one)]
        _wait_gone(killed)
        for one in found:
            if one.kind == "process" or _remove(one):
                removed[one] = None
    with contextlib.suppress(OSError):
        RUN.rmdir()
    left = set(leftovers(lab, force=force))
    return [one for one in removed if one not in left]


def _wait_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + _PROCESS_LIMIT
    while time.monotonic() < deadline:
        pids = [pid for pid in pids if _stat(pid)[:1] not in ([], ["Z"], ["X"])]
        if not pids:
            return
        time.sleep(0.01)


def _remove(one: Leftover) -> bool:
    """Whether it went, or was gone already."""
    try:
        if one.kind == "process":
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(one.name), signal.SIGKILL)
            return True
        if one.kind == "folder":
            return _remove_folder(Path(one.name))
        if one.kind == "cgroup":
            return _remove_cgroup(Path(one.name))
        return _run({"mount": ["umount", "--lazy", one.name],
                     "netns": ["ip", "netns", "delete", one.name],
                     "interface": ["ip", "link", "delete", "dev", one.name]}[one.kind])
    except OSError:
        return False


def _remove_folder(folder: Path) -> bool:
    """Never into a mount: what is mounted there is not ours to delete."""
    if any(Path(one.name).is_relative_to(folder) for one in _mounts()):
        return False
    shutil.rmtree(folder)
    return True


def _remove_cgroup(folder: Path) -> bool:
    """Processes in it are killed; they need not carry the mark (a container's own)."""
    for _ in range(50):
        with contextlib.suppress(OSError):
            for line in (folder / "cgroup.procs").read_text().split():
                if int(line) not in (0, os.getpid()):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(line), signal.SIGKILL)
        try:
            folder.rmdir()
            return True
        except FileNotFoundError:
            return True
        except OSError:  # busy: a killed process is still on its way out
            time.sleep(0.02)
    return False


def _run(argv: list[str]) -> bool:
    try:
        return subprocess.run(argv, capture_output=True, timeout=10).returncode == 0
    except (subprocess.TimeoutExpired, FileNotFoundError):
        return False
