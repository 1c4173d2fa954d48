"""The userland: the one Debian root file system that every environment runs.

Built once, kept in a cache (``$NEARMETAL_CACHE`` or /var/cache/nearmetal), laid out as::

    base/<key>/        Debian's packages (tree/), kernel (kernel/), packages.txt
    programs/<key>/    the compiled agent and workloads (root/)
    userland/<key>/    both together: tree/, rootfs.ext4, userland.json
    tools/             programs for the host that nearmetal builds itself
    build/, logs/      builds under way, and what the last ones printed

Every entry is built aside and renamed into place, so that what exists is whole, whatever was
killed. A process that uses a userland holds a shared lock on it; old ones without a user go.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from nearmetal import userland_recipe as recipe
from nearmetal.errors import NearmetalError
from nearmetal.userland_recipe import Runner, UserlandError

KEEP = 3  # userlands kept besides those in use
FORMAT = 2  # of the cache's layout

_in_use: dict[Path, TextIO] = {}  # lock files held until this process ends


@dataclass(frozen=True)
class Userland:
    """A built userland. All paths are on the host.

    ``id`` is a short hash of what it holds (versions of packages, sources and compilers of the
    programs), the same on any machine that built the same; ``tree`` the root as a folder, to be
    read only; ``image`` the same as an ext4 image without journal; ``kernel`` Debian's generic
    kernel, ``kernel_version`` its version and ``modules`` its lib/modules/<version>; ``tools`` the
    folder of host programs built by us.
    """

    id: str
    tree: Path
    image: Path
    kernel: Path
    kernel_version: str
    modules: Path
    tools: Path


def cache_dir() -> Path:
    """Where userlands and tools are kept: ``$NEARMETAL_CACHE`` or /var/cache/nearmetal."""
    return Path(os.environ.get("NEARMETAL_CACHE") or "/var/cache/nearmetal").absolute()


def tools_dir() -> Path:
    """Where host programs that nearmetal builds itself are kept (may not exist yet)."""
    return cache_dir() / "tools"


def source_root() -> Path | None:
    """The checkout with the programs' sources: ``$NEARMETAL_SOURCE``, or where this file lies."""
    given = os.environ.get("NEARMETAL_SOURCE")
    root = Path(given).absolute() if given else Path(__file__).resolve().parents[2]
    return root if all((root / name).is_dir() for name in recipe.PROGRAM_FOLDERS) else None


def find() -> Userland | None:
    """The userland of the present recipe and sources if it is built; builds nothing.

    Without the sources (an installation away from the checkout), the one built last.
    """
    source = source_root()
    folder = cache_dir() / "userland"
    if source:
        candidates = [folder / _key(source)]
    else:
        candidates = sorted(_entries(folder), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in candidates:
        # Looked at again once held: it may have been removed in between.
        if _load(path) and _hold(path) and (found := _load(path)):
            return found
    return None


def ensure(progress: Callable[[str], None] | None = None) -> Userland:
    """The userland, built first where it is missing (about 75 s) or its sources have changed.

    ``progress`` gets a line for each step. Safe to call from several processes at once and after
    a build was killed. Raises UserlandError: no root, no sources, a missing tool, no space, no
    network.
    """
    say = progress or (lambda text: None)
    found = find()
    if found is None:
        with _locked(say):
            found = find() or _build(say)
            _prune()
    return found


def _key(source: Path) -> str:
    """Name of the userland of a recipe and sources in the cache."""
    return f"{FORMAT}-{recipe.recipe_key()}-{recipe.sources_key(source)}"


def _load(folder: Path) -> Userland | None:
    """The userland in ``folder``, or None where there is none or its base has gone."""
    try:
        about = json.loads((folder / "userland.json").read_text())
    except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError):
        return None
    version = about["kernel_version"]
    kernel = cache_dir() / "base" / about["base"] / "kernel"
    found = Userland(
        id=about["id"], tree=folder / "tree", image=folder / "rootfs.ext4",
        kernel=kernel / "boot" / f"vmlinuz-{version}", kernel_version=version,
        modules=kernel / "lib/modules" / version, tools=tools_dir())
    parts = (found.tree, found.image, found.kernel, found.modules)
    return found if all(path.exists() for path in parts) else None


def _build(say: Callable[[str], None]) -> Userland:
    """Build what is missing. The lock is held."""
    source = source_root()
    if source is None:
        raise UserlandError("The sources of the agent and the workloads are not to be found.",
                            "Set NEARMETAL_SOURCE to a checkout of nearmetal.")
    cache = cache_dir()
    base = cache / "base" / f"{FORMAT}-{recipe.recipe_key()}"
    programs = cache / "programs" / f"{FORMAT}-{recipe.sources_key(source)}"
    final = cache / "userland" / _key(source)
    _check_host(cache, base.exists())
    (cache / "logs").mkdir(exist_ok=True)
    log = cache / "logs" / "userland.log"
    log.write_bytes(b"")
    runner = Runner(log, say, time.monotonic())
    try:
        if not programs.exists():  # first: a compiler's error comes before a minute's download
            with _aside(programs) as folder:
                recipe.build_programs(source, folder, runner)
        if not base.exists():
            with _aside(base) as folder:
                recipe.build_base(folder, runner)
        with _aside(final) as folder:
            about = recipe.build_final(base, programs, folder, runner)
            text = json.dumps({**about, "base": base.name, "built": time.time()})
            (folder / "userland.json").write_text(text)
    except OSError as error:
        raise UserlandError(f"The userland cannot be written: {error.strerror} ({error.filename}).",
                            "Free some space, or set NEARMETAL_CACHE to another folder.") from error
    found = _load(final)
    if found is None:
        raise UserlandError(f"The userland in {final} is not whole.",
                            f"Remove {cache} and try again.")
    _hold(final)
    runner.step(f"userland {found.id} is ready")
    return found


def _check_host(cache: Path, has_base: bool) -> None:
    """Raise UserlandError for what would stop a build later on."""
    if os.geteuid() != 0:
        raise UserlandError("Building the userland needs root.", "Run it again as root.")
    missing = [command for command in recipe.NEEDED if not shutil.which(command)]
    if missing:
        packages = " ".join(dict.fromkeys(recipe.NEEDED[command] for command in missing))
        raise UserlandError(f"Building the userland needs {', '.join(missing)}.",
                            f"Run `make setup`, or `apt-get install {packages}`.")
    need = recipe.FINAL_BYTES + (0 if has_base else recipe.BASE_BYTES)
    free = shutil.disk_usage(cache).free
    if free < need:
        raise UserlandError(
            f"The userland needs {need / 1e9:.1f} GB in {cache}; {free / 1e9:.1f} GB are free.",
            "Free some space, or set NEARMETAL_CACHE to a folder on a larger disk.")


@contextlib.contextmanager
def _aside(target: Path) -> Iterator[Path]:
    """A new folder to build in, renamed to ``target`` when the block ends well."""
    folder = cache_dir() / "build" / f"{target.parent.name}-{target.name}"
    _remove(folder)  # of a build that was killed
    folder.mkdir(parents=True)
    try:
        yield folder
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():  # present but not whole
            _remove(target)
        folder.rename(target)
    except BaseException:
        _remove(folder)
        raise


def _remove(folder: Path) -> None:
    """Remove a folder of the cache, never crossing into another file system."""
    if folder.exists():
        subprocess.run(["rm", "-rf", "--one-file-system", "--", str(folder)], check=False)


@contextlib.contextmanager
def _locked(say: Callable[[str], None]) -> Iterator[None]:
    """The cache's lock: one build at a time. The kernel frees it when its holder dies."""
    cache = cache_dir()
    try:
        cache.mkdir(parents=True, exist_ok=True)
        lock = open(cache / "lock", "a+")
    except OSError as error:
        raise UserlandError(f"The cache {cache} cannot be written: {error.strerror}.",
                            "Run as root, or set NEARMETAL_CACHE to a folder of yours.") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            say(f"waiting for another build of the userland (process {lock.read() or '?'})")
            fcntl.flock(lock, fcntl.LOCK_EX)
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def _hold(folder: Path) -> bool:
    """Mark a userland as in use until this process ends, and as used last; False: it has gone."""
    try:
        lock = open(folder / "userland.json")
        fcntl.flock(lock, fcntl.LOCK_SH)
    except FileNotFoundError:
        return False
    kept = _in_use.get(folder)
    if kept and os.path.sameopenfile(kept.fileno(), lock.fileno()):
        lock.close()
    else:
        _in_use[folder] = lock
    with contextlib.suppress(OSError):  # a cache that may only be read
        os.utime(folder)
    return True


def _prune() -> None:
    """Remove old userlands that no process uses, and bases and programs that none needs."""
    cache = cache_dir()
    built = sorted(_entries(cache / "userland"), key=lambda path: path.stat().st_mtime)
    for folder in built[:-KEEP]:
        with contextlib.suppress(OSError), open(folder / "userland.json") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Renamed first: a removal that is cut short leaves no half of a userland.
            doomed = cache / "build" / f"old-{folder.name}"
            folder.rename(doomed)
            _remove(doomed)
    keys = [path.name.split("-") for path in _entries(cache / "userland")]
    for part, column in (("base", 1), ("programs", 2)):
        needed = {f"{key[0]}-{key[column]}" for key in keys}
        for folder in _entries(cache / part):
            if folder.name not in needed:
                _remove(folder)
    for folder in _entries(cache / "build"):
        _remove(folder)


def remove() -> None:
    """Remove the userlands, what they were built of, and the tools. Raises UserlandError.

    Refuses while a process uses one of them.
    """
    cache = cache_dir()
    if not cache.is_dir():
        return
    with _locked(lambda text: None):
        for folder in _entries(cache / "userland"):
            with open(folder / "userland.json") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise UserlandError(f"The userland in {folder} is in use.",
                                        "Wait until the lab that uses it has ended.") from None
        for name in ("userland", "programs", "base", "build", "tools", "logs"):
            _remove(cache / name)


def _entries(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []


def main() -> int:
    """``python -m nearmetal.userland``: build, with a line for each step; ``--remove`` it all."""
    try:
        if sys.argv[1:] == ["--remove"]:
            remove()
            print(f"userland: {cache_dir()} is empty")
            return 0
        found = ensure(lambda text: print(f"userland: {text}", flush=True))
    except NearmetalError as error:
        print(f"userland: {error.message}", file=sys.stderr)
        if error.remedy:
            print(f"          {error.remedy}", file=sys.stderr)
        return error.exit_status
    print(f"userland: {found.id} in {found.tree.parent}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
