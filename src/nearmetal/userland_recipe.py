"""What the userland is made of, and the commands that make it.

Three parts, cached apart: the *base* (Debian's packages and kernel, rebuilt when this recipe
changes), the *programs* (the agent and the workloads, rebuilt when their sources change), and the
*userland* itself (both together as a folder and as an ext4 image, about two seconds' work).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from nearmetal.errors import NearmetalError

SUITE = "bookworm"
PACKAGES = (
    "busybox-static", "crun", "iproute2", "kmod", "libgfortran5", "liblapack3",
    "libopenblas0-pthread", "procps", "util-linux",
)
KERNEL = "linux-image-amd64"
EXCLUDED = ("/usr/share/doc/*", "/usr/share/info/*", "/usr/share/locale/*", "/usr/share/man/*")
MOUNT_POINTS = ("proc", "sys", "dev", "dev/pts", "dev/shm", "tmp", "run", "mnt", "opt/nearmetal")
# Names for the machines of a lab network, in the order of their ranks.
LAB_PREFIX, LAB_NAMES = "10.77.0.", 64
FILES = {
    "etc/hostname": "nearmetal\n",
    "etc/hosts": "127.0.0.1 localhost nearmetal\n::1 localhost\n"
    + "".join(f"{LAB_PREFIX}{rank + 1} m{rank}\n" for rank in range(LAB_NAMES)),
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\nhosts: files\n"
    "protocols: files\nservices: files\n",
    "etc/resolv.conf": "",
    "etc/machine-id": "",
    "etc/fstab": "",
}
# Fixed, so that the same files make the same image.
IMAGE_UUID = "6e656172-6d65-4461-8c00-6e6d726f6f74"
EPOCH = "1700000000"
PROGRAM_FOLDERS = ("agent", "workloads")
SOURCE_SUFFIXES = {".c", ".h", ".S", ".f", ".f90", ".mk", ".sh"}
BIN = "opt/nearmetal/bin"
MPI = "opt/nearmetal/mpi"
# Commands of the host that a build needs, and the Debian packages that bring them.
NEEDED = {
    "mmdebstrap": "mmdebstrap", "mke2fs": "e2fsprogs", "depmod": "kmod", "make": "make",
    "gcc": "gcc", "gfortran": "gfortran", "apt-get": "apt",
    "dpkg-deb": "dpkg", "unshare": "util-linux", "setpriv": "util-linux",
}
BASE_BYTES, FINAL_BYTES = 1_500_000_000, 400_000_000
TIME_LIMIT = 900.0

Say = Callable[[str], None]


class UserlandError(NearmetalError):
    """The userland cannot be built here: why, and the way out."""


def recipe_key() -> str:
    """A short hash of everything above that decides what the base holds."""
    recipe = [SUITE, PACKAGES, KERNEL, EXCLUDED, MOUNT_POINTS, FILES, EPOCH, KERNEL_HOOK]
    return _digest(json.dumps(recipe).encode())


def sources_key(source: Path) -> str:
    """A short hash of the names, modes and contents of the programs' sources."""
    entries = []
    for path in source_files(source):
        executable = bool(path.stat().st_mode & 0o100)
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        entries.append([str(path.relative_to(source)), executable, content])
    entries.append(["mpich", True, _mpich_version()])
    return _digest(json.dumps(entries).encode())


def _mpich_version() -> str:
    """Version of the Python package mpich; "" where it is not installed (no build without it)."""
    try:
        return metadata.version("mpich")
    except metadata.PackageNotFoundError:
        return ""


def source_files(source: Path) -> list[Path]:
    """The programs' source files, sorted: no hidden files, no products of a build by hand."""
    found = []
    for folder in PROGRAM_FOLDERS:
        for path in (source / folder).rglob("*"):
            parts = path.relative_to(source).parts
            hidden = any(part.startswith(".") or part == "build" for part in parts)
            source_like = path.suffix in SOURCE_SUFFIXES or path.name == "Makefile"
            if path.is_file() and not hidden and source_like:
                found.append(path)
    return sorted(found)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]


# --- commands ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Runner:
    """Runs the commands of a build: output to a log, lines worth reading to ``say``.

    ``start`` is the build's beginning by time.monotonic().
    """

    log: Path
    say: Say
    start: float

    def step(self, text: str) -> None:
        """Say what begins now, with the seconds since the build began."""
        self.say(f"[{time.monotonic() - self.start:4.0f} s] {text}")

    def run(self, argv: Sequence[str], *, what: str, cwd: Path | None = None, stdin: str = "",
            env: dict[str, str] | None = None) -> None:
        """Run a command to its end. Raises UserlandError with the end of its output.

        The command and all its children die with this process, and its mounts with them: it runs
        in mount and PID namespaces of its own, so a killed build leaves nothing but files.
        """
        guard = ["setpriv", "--pdeathsig", "KILL", "--", "unshare", "--mount", "--pid", "--fork",
                 "--kill-child", "--mount-proc", "--"]
        with self.log.open("ab") as log:
            log.write(f"$ {' '.join(argv)}\n".encode())
            log.flush()
            begin = log.tell()
            process = subprocess.Popen(
                [*guard, *argv], cwd=cwd, env={**os.environ, "LC_ALL": "C", **(env or {})},
                stdin=subprocess.PIPE, stdout=log, stderr=log)
            try:
                process.stdin.write(stdin.encode())
                process.stdin.close()
            except BrokenPipeError:
                pass
            self._follow(process, begin, what)

    def _follow(self, process: subprocess.Popen, begin: int, what: str) -> None:
        """Wait for the command, passing on the steps that it names (``I: ...``)."""
        limit = time.monotonic() + TIME_LIMIT
        shown = begin
        while True:
            status = process.poll()
            with self.log.open("rb") as log:
                log.seek(shown)
                lines = log.read().splitlines(keepends=True)
            for line in lines:
                if not line.endswith(b"\n"):
                    break
                shown += len(line)
                if line.startswith(b"I: ") and b"hook" not in line:
                    self.step("  " + line[3:].decode(errors="replace").strip(" .\n"))
            if status is not None:
                break
            if time.monotonic() > limit:
                process.kill()
                process.wait()
                raise UserlandError(f"{what} did not end within {TIME_LIMIT:.0f} s.",
                                    f"Its output is in {self.log}.")
            time.sleep(0.05)
        if status:
            raise self._explain(what, status, begin)

    def _explain(self, what: str, status: int, begin: int) -> UserlandError:
        with self.log.open("rb") as log:
            log.seek(begin)
            output = log.read().decode(errors="replace")
        for sign, cause, remedy in KNOWN_TROUBLES:
            if any(text in output for text in sign):
                return UserlandError(f"{what} failed: {cause}.", remedy)
        lines = [line for line in output.splitlines() if line.strip()]
        tail = " | ".join(lines[-3:])
        return UserlandError(f"{what} failed with status {status}: {tail}",
                             f"The whole output is in {self.log}.")


KNOWN_TROUBLES = (
    (("No space left on device",), "the disk is full",
     "Free some space, or set NEARMETAL_CACHE to a folder on a larger disk."),
    (("Could not resolve", "Temporary failure", "Could not connect", "Unable to connect",
      "Network is unreachable", "Failed to fetch"), "Debian's archive cannot be reached",
     "Check the network and apt's sources (`apt-get update` must succeed), then try again."),
    (("NO_PUBKEY", "is not signed"), "Debian's signatures cannot be checked",
     "Install debian-archive-keyring, then try again."),
    (("Operation not permitted", "unshare: "), "the system forbids an operation that it needs",
     "In a container, give it CAP_SYS_ADMIN and CAP_MKNOD (for example --privileged)."),
)


# --- the base ------------------------------------------------------------------------------------

# mmdebstrap runs this with its own apt settings, so the kernel comes from the same sources; it is
# unpacked beside the root, not into it.
KERNEL_HOOK = (
    "export APT_CONFIG=$MMDEBSTRAP_APT_CONFIG; "
    f"name=$(apt-cache depends {KERNEL} | sed -n 's/.*Depends: *//p' | head -n 1) && "
    'apt-get -q -o APT::Sandbox::User=root download "$name" && '
    'dpkg-deb -x "$name"_*.deb kernel'
)
PACKAGES_HOOK = (
    "dpkg-query --admindir=\"$1\"/var/lib/dpkg -W -f '${Package} ${Version}\\n' > packages.txt"
)


def debian_sources() -> str:
    """Sources of Debian's main archive as this host's apt has them, one ``deb`` line each."""
    form = "$(ORIGIN)|$(CODENAME)|$(COMPONENT)|$(REPO_URI)"
    out = subprocess.run(["apt-get", "indextargets", "--format", form, "Created-By: Packages"],
                         capture_output=True, text=True, timeout=60)
    return parse_targets(out.stdout)


def parse_targets(text: str) -> str:
    """``deb`` lines from lines of ``origin|codename|component|address``. Raises UserlandError."""
    rows = {tuple(line.split("|")) for line in text.splitlines() if line.count("|") == 3}
    debian = sorted(row for row in rows if row[0] == "Debian" and row[2] == "main")
    if not debian:
        raise UserlandError("apt on this machine has no package lists of Debian.",
                            "Run `apt-get update` (with Debian's main archive in apt's sources).")
    wanted = {SUITE, f"{SUITE}-updates", f"{SUITE}-security"}
    chosen = [row for row in debian if row[1] in wanted]
    if not any(row[1] == SUITE for row in chosen):
        others = ", ".join(sorted({row[1] for row in debian}))
        raise UserlandError(f"The userland is Debian {SUITE}, but apt here has only {others}.",
                            f"Add Debian {SUITE}'s main archive to apt's sources.")
    return "".join(f"deb {uri} {codename} main\n" for _, codename, _, uri in chosen)


def build_base(folder: Path, runner: Runner) -> None:
    """Debian's packages to ``folder/tree``; ``kernel/`` and ``packages.txt`` beside it."""
    runner.step("Debian's packages and kernel (about 60 s)")
    argv = ["mmdebstrap", "--variant=minbase", "--mode=root", "--format=directory",
            f"--include={','.join(PACKAGES)}", "--aptopt=APT::Install-Recommends \"false\"",
            *(f"--dpkgopt=path-exclude={pattern}" for pattern in EXCLUDED),
            f"--customize-hook={KERNEL_HOOK}", f"--customize-hook={PACKAGES_HOOK}",
            SUITE, "tree", "-"]
    runner.run(argv, what="Installing Debian's packages", cwd=folder, stdin=debian_sources(),
               env={"SOURCE_DATE_EPOCH": EPOCH, "DEBIAN_FRONTEND": "noninteractive"})
    for package in folder.glob("*.deb"):
        package.unlink()
    runner.step("kernel modules' index")
    version = kernel_version(folder)
    runner.run(["depmod", "-b", str(folder / "kernel"), version], what="Indexing kernel modules")
    prepare_root(folder / "tree")
    runner.step("writing to disk")
    subprocess.run(["sync", "-f", str(folder)], check=False, timeout=TIME_LIMIT)


def kernel_version(base: Path) -> str:
    """Version of the kernel in a base, as in ``lib/modules/<version>``."""
    found = sorted((base / "kernel/boot").glob("vmlinuz-*"))
    if not found:
        raise UserlandError("Debian's kernel package held no kernel.", "Run the build again.")
    return found[-1].name.removeprefix("vmlinuz-")


def prepare_root(tree: Path) -> None:
    """Write the files and folders that a root mounted read-only must already have."""
    for name in MOUNT_POINTS:
        (tree / name).mkdir(parents=True, exist_ok=True)
    for name, text in FILES.items():
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_text(text)
    mtab = tree / "etc/mtab"
    mtab.unlink(missing_ok=True)
    mtab.symlink_to("/proc/self/mounts")


# --- the programs, and both together -------------------------------------------------------------


def mpich_files() -> dict[str, Path]:
    """Files of the MPICH that nearmetal depends on (a Python package), by their place below its
    prefix. Raises UserlandError.

    Debian 12's own MPICH (4.0.2) speaks through UCX alone; between machines its MPI_Finalize hung
    in every second to tenth run: one rank waits in the launcher's barrier, where it no longer
    serves the other, which waits for it. This one has libfabric's TCP.
    """
    try:
        found = metadata.files("mpich") or []
    except metadata.PackageNotFoundError:
        raise UserlandError("The Python package mpich is not installed.",
                            "Run `make setup`, or `pip install -e .` again.") from None
    paths = [Path(str(file.locate())).resolve() for file in found if ".." in file.parts]
    # All lie below one prefix, that of this Python environment.
    prefix = next(path.parents[1] for path in paths if path.name == "mpiexec.hydra")
    places = {str(path.relative_to(prefix)): path for path in paths}
    return places


def install_mpich(root: Path) -> Path:
    """Put MPICH into a root; returns its prefix."""
    prefix = root / MPI
    for name, path in mpich_files().items():
        target = prefix / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target, follow_symlinks=False)
    return prefix


def build_programs(source: Path, folder: Path, runner: Runner) -> None:
    """Compile the agent and the workloads aside; install them below ``folder/root``."""
    for path in source_files(source):
        copy = folder / "source" / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, copy)
    root = folder / "root"
    (root / BIN).mkdir(parents=True)
    mpi = install_mpich(root)
    for name in PROGRAM_FOLDERS:
        if not (source / name / "Makefile").exists():
            raise UserlandError(f"The sources in {source} have no {name}/Makefile.",
                                "Set NEARMETAL_SOURCE to a whole checkout of nearmetal.")
        runner.step(f"compiling {name}")
        runner.run(["make", "-C", str(folder / "source" / name), f"DESTDIR={root}",
                    f"MPI_HOME={mpi}", "install"],
                   what=f"Compiling {name}", env={"MAKEFLAGS": f"-j{os.cpu_count() or 1}"})
    shutil.rmtree(folder / "source")
    (folder / "about.txt").write_text(f"{sources_key(source)} {_compilers()}\n")


def _compilers() -> str:
    """The compilers' own words about their versions."""
    said = [subprocess.run([name, "--version"], capture_output=True, text=True, timeout=30).stdout
            for name in ("gcc", "gfortran")]
    return "; ".join(text.partition("\n")[0] for text in said)


def build_final(base: Path, programs: Path, folder: Path, runner: Runner) -> dict[str, str]:
    """Base and programs as ``folder/tree`` and ``folder/rootfs.ext4``; returns the manifest."""
    runner.step("root file system and its image")
    tree = folder / "tree"
    # Hard links: nothing is written through the tree, and the base stays as it is.
    runner.run(["cp", "-al", str(base / "tree"), str(tree)], what="Copying the base")
    runner.run(["cp", "-a", f"{programs / 'root'}/.", str(tree)], what="Adding the programs")
    make_image(tree, folder / "rootfs.ext4", runner)
    parts = [(base / "packages.txt").read_text(), (programs / "about.txt").read_text()]
    identity = _digest(json.dumps(parts).encode())
    subprocess.run(["sync", "-f", str(folder)], check=False, timeout=TIME_LIMIT)
    return {"id": identity, "kernel_version": kernel_version(base)}


def make_image(tree: Path, image: Path, runner: Runner) -> None:
    """An ext4 image without journal of ``tree``, as small as its files allow (sparse)."""
    used = sum(-(-info.st_size // 4096) + 1 for info in _inodes(tree))
    blocks = int(used * 1.06) + 4096
    runner.run(
        ["mke2fs", "-q", "-F", "-t", "ext4", "-b", "4096", "-m", "0", "-L", "nearmetal",
         "-O", "^has_journal,^resize_inode", "-U", IMAGE_UUID, "-E", f"hash_seed={IMAGE_UUID}",
         "-d", str(tree), str(image), str(blocks)],
        what="Making the root image", env={"E2FSPROGS_FAKE_TIME": EPOCH})


def _inodes(tree: Path) -> list[os.stat_result]:
    """lstat of every file below a folder, each inode once."""
    seen = {}
    for folder, names, files in os.walk(tree):
        for name in [*names, *files]:
            info = os.lstat(os.path.join(folder, name))
            seen[info.st_ino] = info
    return list(seen.values())
