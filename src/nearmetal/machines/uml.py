"""User Mode Linux: a Linux kernel that runs as a process of the host.

Arithmetic runs at the host's speed; every system call and page fault of a program is caught by
ptrace and served by the guest's kernel. Linux source: Documentation/virt/uml.
"""

from __future__ import annotations

import itertools
import os
import platform
import shlex
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import Field

from nearmetal.errors import CannotRun, MachineFailed
from nearmetal.machines.affinity import processors
from nearmetal.machines.agent import AgentMachine
from nearmetal.machines.base import (
    Completed,
    Layer,
    LayerParams,
    Machine,
    Order,
    register_layer,
)
from nearmetal.machines.channels import AgentProcess
from nearmetal.machines.uml_line import ON_THE_WAY, PacedLine

KERNEL = "linux.uml"
RUN = Path("/run/nearmetal")
LONGEST_REQUEST = ON_THE_WAY - 500  # bytes of a command's words; the rest is frame and folder

# Mounted in a mount namespace of its own, so nothing is left when the guest dies:
# - memory: UML's "physical memory" is an unlinked file that it maps. On a disk's file system dirty
#   pages would be written back in the middle of a measurement, and the host's /dev/shm may be
#   small (64 MiB in many containers); a tmpfs of our own is neither.
# - root: hostfs writes through to the host even where the guest has remounted it read-write, so
#   the userland's tree is bound read-only.
# The shell stays, as the first process of the process namespace: a kernel that panics ends itself
# by SIGABRT, which a first process does not feel, and so would spin for ever.
_LAUNCH = r"""
set -eu
here=$1 tree=$2 size=$3
shift 3
mount -t tmpfs -o size="$size"m,mode=700 nearmetal-uml "$here/memory"
mount --bind "$tree" "$here/root"
mount -o remount,bind,ro "$here/root"
export TMPDIR="$here/memory"
ulimit -c 0
status=0
"$@" || status=$?
exit $status
"""

# Two of the kernel's start-up steps time RAID checksum routines that nothing here uses; without
# them it is ready in 0.6 s instead of 1.4 s.
_SKIP = "initcall_blacklist=raid6_select_algo,calibrate_xor_blocks"


class Params(LayerParams):
    memory: int | None = Field(None, ge=64, le=1 << 20,
                               description="memory in MiB; the study's where not given")


def kernel_command(root: Path, folder: Path, memory_mib: int, interface: str | None,
                   mac: str | None = None) -> list[str]:
    """The UML kernel's command: guest root at ``root``, its own files in ``folder``.

    The agent's stream is the serial line on descriptors 0 and 1, the console goes to 2.
    ``interface`` is a tap of the network namespace it is started in.
    """
    words = [KERNEL, f"mem={memory_mib}M", f"uml_dir={folder}", "umid=guest",
             "root=/dev/root", "rootfstype=hostfs", f"hostfs={root}", "ro",
             "con=null", "con0=null,fd:2", "ssl0=fd:0,fd:1",
             "console=tty0",  # without it UML appends one, behind the agent's options
             "panic=-1", _SKIP]
    if interface:
        address = f",mac={mac}" if mac else ""
        words.append(f"vec0:transport=tap,ifname={interface},depth=128,gro=1{address}")
    return [*words, "init=/opt/nearmetal/bin/nm-agent", "--", "--init", "--tty", "/dev/ttyS0"]


def command(order: Order, folder: Path, tree: str, memory_mib: int) -> list[str]:
    """The whole command on the host: namespaces, mounts, kernel."""
    enter, interface, mac = [], None, None
    if order.port is not None:
        enter, interface = order.port.tap()
        mac = order.port.mac
    kernel = kernel_command(folder / "root", folder / "uml", memory_mib, interface, mac)
    # Its kernel and its programs are separate processes that run in turn: on one processor, as
    # the guest has one, neither pays for waking another. Without address randomisation no
    # "exec-shield gap" of up to 600 MiB is added to its memory. The memory's file holds the
    # kernel's image as well: 64 MiB more.
    return [*enter, "taskset", "-c", str(processors(1, order.port)[0]),
            "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc",
            "--uts", "--ipc", "--", "setarch", "--addr-no-randomize",
            "/bin/sh", "-c", _LAUNCH, "sh", str(folder), tree, str(memory_mib + 64), *kernel]


@register_layer
class Uml(Layer):
    """User Mode Linux from Debian's package; one processor."""

    name = "uml"
    summary = ("User Mode Linux: a Linux kernel that runs as a process and serves programs' "
               "system calls by ptrace; one processor")
    Params = Params
    max_cpus = 1
    on_host_only = True

    def check(self) -> None:
        if platform.machine() != "x86_64":
            raise CannotRun(f"User Mode Linux does not run on {platform.machine()}.",
                            "Use an x86-64 machine.")
        if shutil.which(KERNEL) is None:
            raise CannotRun("The User Mode Linux kernel is not installed.",
                            "apt-get install user-mode-linux")
        if os.geteuid() != 0:
            raise CannotRun("User Mode Linux needs root here: its files are mounted privately.",
                            "Run as root.")
        scope = Path("/proc/sys/kernel/yama/ptrace_scope")
        if scope.exists() and scope.read_text().strip() == "3":
            raise CannotRun("ptrace is switched off on this machine until it is booted again "
                            "(kernel.yama.ptrace_scope is 3), and User Mode Linux works by it.",
                            "Set kernel.yama.ptrace_scope to 1 and boot.")

    def up(self, carrier: Machine, order: Order) -> Machine:
        params = self.params
        assert isinstance(params, Params)
        memory = params.memory or order.shape.memory_mib
        folder = RUN / order.lab / order.name
        for name in ("root", "memory", "uml"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        clean = _Cleaner(folder)
        try:
            process = carrier.spawn(command(order, folder, carrier.root, memory))
            machine = UmlMachine(
                PacedLine(process), name=order.name, environment=self.name,
                address=order.port.address if order.port else None,
                console=order.workdir / "console.log", on_down=clean,
                boot_timeout=order.boot_timeout,
                extra_facts={"root": "hostfs, read-only", "memory_asked_mib": memory,
                             "system_calls": "ptrace"})
        except BaseException:
            clean()
            raise
        try:
            machine.join_network(order)
        except BaseException:
            machine.down()
            raise
        return machine


class _Cleaner:
    """Removes a guest's folder under /run; its mounts went with its mount namespace."""

    def __init__(self, folder: Path):
        self.folder = folder

    def __call__(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        try:
            self.folder.parent.rmdir()
        except OSError:
            pass  # other machines of the lab are still there


class UmlMachine(AgentMachine):
    """A UML guest. A command that its line cannot hold in one request goes there as a file."""

    _calls = itertools.count(1)

    def spawn(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None,
              cwd: str = "/") -> AgentProcess:
        argv, env = self._short(argv, env)
        return super().spawn(argv, env=env, cwd=cwd)

    def run(self, argv: Sequence[str], *, timeout: float, env: Mapping[str, str] | None = None,
            stdin: bytes = b"", cwd: str = "/") -> Completed:
        given = tuple(argv)
        argv, env = self._short(argv, env)
        done = super().run(argv, timeout=timeout, env=env, stdin=stdin, cwd=cwd)
        return replace(done, argv=given)

    def _short(self, argv: Sequence[str], env: Mapping[str, str] | None
               ) -> tuple[Sequence[str], Mapping[str, str] | None]:
        """The command itself, or one that runs it from a file in the guest."""
        words = [f"{key}={value}" for key, value in (env or {}).items()]
        if sum(len(os.fsencode(word)) + 1 for word in (*words, *argv)) < LONGEST_REQUEST:
            return argv, env
        script = f"/tmp/.nearmetal-call-{next(self._calls)}"
        with tempfile.NamedTemporaryFile("wb") as file:
            file.write(os.fsencode(f"exec env {shlex.join([*words, *argv])}\n"))
            file.flush()
            self.put(Path(file.name), script)
        return ["/bin/sh", script], None

    def join_network(self, order: Order) -> None:
        """Give its interface the address of its port, under the name it has everywhere."""
        if order.port is None:
            return
        script = ("ip link set vec0 name eth0 && ip link set eth0 up && "
                  f"ip addr add {order.port.address}/{order.port.prefix} dev eth0")
        done = self.run(["/bin/sh", "-c", script], timeout=order.boot_timeout)
        if done.status != 0:
            said = done.stderr.decode(errors="replace").strip()
            raise MachineFailed(f"The network of {self.name!r} does not come up: {said}.",
                                "Its console is kept.")
        self._extra_facts["network"] = f"lab network, {self.address} (UML vector device, tap)"
