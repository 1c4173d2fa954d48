"""A machine reached by ssh, with the OpenSSH client of the host.

The userland is copied there once, to ``~/.cache/nearmetal/<id>`` (``$XDG_CACHE_HOME`` where set),
and every machine is a set of namespaces there with the agent in it; the remote kernel and its
network stay as they are. When the connection ends, the agent's standard input ends, and with it
all that it started.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from nearmetal.errors import CannotRun, MachineFailed
from nearmetal.machines.agent import AgentMachine
from nearmetal.machines.base import (
    Layer,
    LayerParams,
    Machine,
    Order,
    Process,
    register_layer,
)
from nearmetal.machines.rootfs import MOUNTS

PUSH_LIMIT = 1800.0  # s, for the copy of the userland
TOOLS = ("tar", "unshare", "taskset", "chroot", "mount", "hostname")

# What the far side is. Lines are marked, because login scripts print what they like.
_PROBE = r"""
say() { echo "nearmetal:$1=$2"; }
cache=${XDG_CACHE_HOME:-$HOME/.cache}/nearmetal
say uid "$(id -u)"; say arch "$(uname -m)"; say system "$(uname -s)"; say cache "$cache"
say cpus "$(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status 2>/dev/null)"
for tool in %(tools)s zstd; do command -v $tool >/dev/null || say missing $tool; done
[ -x "$cache/%(id)s/opt/nearmetal/bin/nm-agent" ] && say userland yes
mkdir -p "$cache" 2>/dev/null
say free "$(df -Pk "$cache" 2>/dev/null | awk 'END { print $4 }')"
say end 1
"""

# $1 archive's compression, $2 final folder. Built aside and renamed: what exists is whole.
_RECEIVE = r"""
set -e
umask 022
aside=$2.part.$$
trap 'rm -rf "$aside"' EXIT
rm -rf "$aside"
mkdir -p "$aside"
tar "--$1" --numeric-owner -xpf - -C "$aside"
[ -x "$aside/opt/nearmetal/bin/nm-agent" ]
mv -T "$aside" "$2" 2>/dev/null || [ -d "$2" ]
"""

# $1 userland, $2 host name. The root is an overlay on a tmpfs where the kernel allows, else
# read-only; everything mounted here vanishes with this mount namespace.
_SETUP = r"""
set -e
mount -t tmpfs -o mode=755 nearmetal /mnt
mkdir /mnt/upper /mnt/work /mnt/root
if ! mount -t overlay -o "lowerdir=$1,upperdir=/mnt/upper,workdir=/mnt/work" nearmetal /mnt/root \
    2>/dev/null; then
    mount --bind "$1" /mnt/root
    mount -o remount,bind,ro /mnt/root
fi
cd /mnt/root
""" + MOUNTS + r"""hostname "$2"
exec chroot . /opt/nearmetal/bin/nm-agent
"""


class Params(LayerParams):
    """How to reach it; what is not given is left to ssh's own configuration."""

    host: str = Field(min_length=1, pattern=r"^[^-]", description="name or address, as for ssh")
    user: str | None = Field(None, pattern=r"^[^-]", description="user; must be root there")
    port: int | None = Field(None, ge=1, le=65535, description="TCP port")
    config: str | None = Field(None, description="ssh configuration file")
    identity: str | None = Field(None, description="file with the private key")
    cpus: int | None = Field(None, ge=1, description="processors; the study's where not given")
    connect_timeout: int = Field(10, ge=1, le=600, description="seconds to connect")


def ssh_command(params: Params, script: str, *arguments: str) -> list[str]:
    """The ssh command that runs a shell ``script`` with ``arguments`` there; never asks."""
    words = ["ssh", "-T", "-o", "BatchMode=yes",
             "-o", f"ConnectTimeout={params.connect_timeout}",
             "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=6",
             "-o", "EscapeChar=none", "-o", "ClearAllForwardings=yes", "-o", "ControlPath=none",
             "-o", "LogLevel=ERROR"]
    for option, value in (("-F", params.config), ("-i", params.identity), ("-p", params.port),
                          ("-l", params.user)):
        if value is not None:
            words += [option, str(value)]
    return [*words, "--", params.host, shlex.join(["sh", "-c", script, "sh", *arguments])]


_FAILURES: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (("IDENTIFICATION HAS CHANGED",), "its host key is not the one known",
     "If that is as it should be, remove the old key with 'ssh-keygen -R' and log in by hand."),
    (("Host key verification failed",), "its host key is not known here",
     "Log in once by hand with the same options and accept the key."),
    (("Permission denied", "Too many authentication failures"), "it refuses the key",
     "Put the public key into its authorized_keys, or name the key with identity=."),
    (("Could not resolve hostname",), "the name is not known",
     "Check host=, or name a configuration file with config=."),
    (("Bad configuration option", "terminating,", "Can't open user config file"),
     "ssh does not accept its configuration", "Correct the file given as config=."),
    (("timed out", "refused", "No route to host", "unreachable", "Connection closed",
      "Connection reset", "UNKNOWN port"),
     "it cannot be reached", "Is it up, and does 'ssh' with the same options work by hand?"),
)


def explain(host: str, status: int | None, stderr: str) -> CannotRun:
    """What a failed ssh command means, for a person."""
    said = " ".join(line.strip() for line in stderr.strip().splitlines()[-3:] if line.strip())
    detail = f" ({said[-300:]})" if said else ""
    for marks, why, remedy in _FAILURES:
        if any(mark in stderr for mark in marks):
            return CannotRun(f"No ssh to {host!r}: {why}{detail}.", remedy)
    if status is None:
        return CannotRun(f"No ssh to {host!r}: it does not answer.",
                         "Does 'ssh' with the same options work by hand?")
    return CannotRun(f"No ssh to {host!r}: ssh ended with status {status}{detail}.",
                     "Does 'ssh' with the same options work by hand?")


@dataclass(frozen=True)
class Far:
    """What the far side said of itself: ``cpus`` are the processors it may use, ``free_kib`` is
    None where it cannot be told."""

    uid: int
    arch: str
    system: str
    cache: str
    missing: frozenset[str]
    has_userland: bool
    free_kib: int | None
    cpus: tuple[int, ...] = ()


def read_probe(host: str, text: str) -> Far:
    """Raises MachineFailed when the answer is not one of ours."""
    pairs = [line.removeprefix("nearmetal:").partition("=") for line in text.splitlines()
             if line.startswith("nearmetal:")]
    said = {key: value.strip() for key, _, value in pairs}
    if "end" not in said or not said.get("uid", "").isdigit():
        raise MachineFailed(f"The machine {host!r} gives no sensible answer to a shell command: "
                            f"{text.strip()[:200]!r}.", "Its login shell must be a POSIX shell.")
    free = said.get("free", "")
    return Far(int(said["uid"]), said.get("arch", ""), said.get("system", ""),
               said.get("cache", ""),
               frozenset(value.strip() for key, _, value in pairs if key == "missing"),
               said.get("userland") == "yes", int(free) if free.isdigit() else None,
               tuple(cpu_list(said.get("cpus", ""))))


def cpu_list(text: str) -> list[int]:
    """Processor numbers of a list in the kernel's form, ``0-3,8``; [] for anything else."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if not (first.isdigit() and (last or first).isdigit()):
            return []
        found.extend(range(int(first), int(last or first) + 1))
    return found


def judge(host: str, far: Far, needed_kib: int, cpus: int = 1) -> None:
    """Raises CannotRun when ``far`` cannot carry a machine of ``cpus`` processors."""
    if far.system != "Linux" or far.arch != "x86_64":
        raise CannotRun(f"{host!r} is {far.system} on {far.arch}; the userland is for Linux on "
                        "x86_64.", "Name another machine.")
    if far.uid != 0:
        raise CannotRun(f"The user on {host!r} is not root (uid {far.uid}), and namespaces and "
                        "mounts need root.", "Give user=root, with its key set up there.")
    missing = sorted(far.missing - {"zstd"})
    if missing:
        raise CannotRun(f"{host!r} lacks: {', '.join(missing)}.",
                        "Install util-linux, coreutils, tar and hostname there.")
    if cpus > len(far.cpus):
        raise CannotRun(f"{cpus} processors are asked for, {host!r} has {len(far.cpus)}.",
                        "Ask for fewer, as in ssh(host=..., cpus=1).")
    if not far.has_userland and far.free_kib is not None and far.free_kib < needed_kib:
        raise CannotRun(f"{host!r} has {far.free_kib // 1024} MiB free under {far.cache}; the "
                        f"userland needs {needed_kib // 1024} MiB.", "Make room there.")


def tree_kib(tree: Path) -> int:
    """Size of a file tree on disk, in KiB; a file with several names counts once."""
    seen: set[tuple[int, int]] = set()
    total = 0
    for folder, _, names in os.walk(tree):
        for name in (".", *names):
            with contextlib.suppress(OSError):
                about = os.lstat(os.path.join(folder, name))
                if (about.st_dev, about.st_ino) not in seen:
                    seen.add((about.st_dev, about.st_ino))
                    total += about.st_blocks // 2
    return total


@register_layer
class Ssh(Layer):
    """A real machine, by ssh."""

    name = "ssh"
    summary = "A machine reached by ssh, with the same userland in namespaces on its own kernel"
    Params = Params
    on_host_only = True

    def check(self) -> None:
        if shutil.which("ssh") is None:
            raise CannotRun("The OpenSSH client is not installed.",
                            "apt-get install openssh-client")
        for name in ("config", "identity"):
            path = getattr(self.params, name, None)
            if path and not Path(path).is_file():
                raise CannotRun(f"There is no file {path!r}, given as {name}=.",
                                "Give the path of an existing file, in quotes.")

    def up(self, carrier: Machine, order: Order) -> Machine:
        params = self.params
        assert isinstance(params, Params)
        if order.port is not None:
            raise CannotRun("A machine reached by ssh cannot join a lab network.",
                            "Use it in studies with one machine.")
        tree = Path(order.userland.tree)
        far = self._probe(carrier, order)
        cpus = params.cpus or order.shape.cpus
        judge(params.host, far, tree_kib(tree) if not far.has_userland else 0, cpus)
        place = f"{far.cache}/{order.userland.id}"
        if not far.has_userland:
            self._push(carrier, tree, place, far)
        start = ["taskset", "-c", ",".join(map(str, far.cpus[:cpus])),
                 "unshare", "--mount", "--pid", "--fork", "--kill-child", "--uts", "--ipc",
                 "--", "sh", "-c", _SETUP, "sh", place, order.name]
        process = carrier.spawn(ssh_command(params, 'exec "$@"', *start))
        return SshMachine(
            process, name=order.name, environment=self.name,
            console=order.workdir / "console.log", boot_timeout=order.boot_timeout,
            extra_facts={"host": params.host, "network": f"ssh to {params.host}"})

    def _probe(self, carrier: Machine, order: Order) -> Far:
        params = self.params
        assert isinstance(params, Params)
        script = _PROBE % {"tools": " ".join(TOOLS), "id": order.userland.id}
        done = carrier.run(ssh_command(params, script), timeout=params.connect_timeout + 30.0)
        if done.status != 0:
            raise explain(params.host, done.status, done.stderr.decode(errors="replace"))
        return read_probe(params.host, done.stdout.decode(errors="replace"))

    def _push(self, carrier: Machine, tree: Path, place: str, far: Far) -> None:
        """Copy the userland. Raises CannotRun, MachineFailed."""
        params = self.params
        assert isinstance(params, Params)
        packer = "gzip" if "zstd" in far.missing or shutil.which("zstd") is None else "zstd"
        pack = carrier.spawn(["tar", f"--{packer}", "--numeric-owner", "-C", str(tree),
                              "-cf", "-", "."])
        send = carrier.spawn(ssh_command(params, _RECEIVE, packer, place))
        try:
            status, said = stream(pack, send, PUSH_LIMIT)
        finally:
            for process in (pack, send):
                process.kill()
                close = getattr(process, "close", None)
                if close is not None:
                    close()
        if status == 0:
            return
        if "No space left" in said:
            raise CannotRun(f"{params.host!r} ran out of space under {far.cache}.",
                            "Make room there.")
        if status in (None, 255):
            raise explain(params.host, status, said)
        raise MachineFailed(f"The userland cannot be copied to {params.host!r}: "
                            f"{said.strip()[-300:] or f'status {status}'}.")


def stream(source: Process, target: Process, limit: float) -> tuple[int | None, str]:
    """Feed ``source``'s output to ``target``; (status or None for out of time, what they said).

    The status is the target's; the source's when only that one failed.
    """
    said: list[bytes] = []
    readers = [_drain(stream, said) for stream in (source.stderr, target.stderr, target.stdout)]
    out_of_time = threading.Event()

    def stop() -> None:
        out_of_time.set()
        source.kill()
        target.kill()

    timer = threading.Timer(limit, stop)
    timer.start()
    try:
        with contextlib.suppress(OSError):  # the target's own words say why it takes no more
            shutil.copyfileobj(source.stdout, target.stdin, 1 << 20)
        with contextlib.suppress(OSError):
            target.stdin.close()
        status = target.wait(limit)
        if status == 0:
            status = source.wait(10.0)
    except subprocess.TimeoutExpired:
        return None, ""
    finally:
        timer.cancel()
    for reader in readers:
        reader.join(2.0)
    text = b"".join(said).decode(errors="replace")
    return (None if out_of_time.is_set() else status), text


def _drain(stream: Any, into: list[bytes]) -> threading.Thread:
    def follow() -> None:
        with contextlib.suppress(OSError, ValueError):
            while stream is not None and (data := stream.read1(65536)):
                into.append(data)

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    return thread


class SshMachine(AgentMachine):
    """A machine elsewhere: it occupies no memory of this host."""

    def memory_bytes(self) -> int | None:
        return None


__all__: Sequence[str] = ("Far", "Params", "Ssh", "explain", "judge", "read_probe", "ssh_command")
