"""OCI bundles: what an OCI runtime (crun, runsc) is told, and what its carrier has to offer.

A bundle is a folder with ``config.json`` (Open Container Initiative, runtime specification 1.0).
It is made from a survey of the carrier, so it asks for those limits only that can be set there;
the others are named in the machine's facts. Everything here but :func:`survey`, :func:`lay_out` and
:func:`remove` is a pure function.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from nearmetal.errors import CannotRun, MachineFailed, NearmetalError
from nearmetal.machines.base import Machine, Order, Shape

T = TypeVar("T")

RUN = "/run/nearmetal"
AGENT = "/opt/nearmetal/bin/nm-agent"
PERIOD_US = 100_000  # of the processor quota: the kernel's and Docker's default
MIB = 1 << 20
_STEP_LIMIT = 30.0  # s, for a short command on the carrier

# What Docker gives a container's root: it may own and bind, not administer the machine.
CAPABILITIES = tuple(f"CAP_{name}" for name in (
    "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD",
    "NET_BIND_SERVICE", "NET_RAW", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"))

_SURVEY = """
echo uid=$(id -u)
echo cpus=$(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status)
grep -qw overlay /proc/filesystems || modprobe overlay 2>/dev/null
grep -qw overlay /proc/filesystems && echo overlay=1
c=/sys/fs/cgroup
if [ -f $c/cgroup.controllers ]; then
  if [ -w $c/cgroup.procs ]; then
    echo cgroup=v2; echo controllers=$(cat $c/cgroup.controllers)
    for i in $c/*/memory.swap.max; do [ -f "$i" ] && echo swap=1 && break; done
  fi
elif [ -w $c/memory/cgroup.procs ] || [ -w $c/cpu/cgroup.procs ]; then
  echo cgroup=v1
  for i in cpu cpuset memory pids; do [ -w $c/$i/cgroup.procs ] && found="$found $i"; done
  echo controllers=$found
  [ -f $c/memory/memory.memsw.limit_in_bytes ] && echo swap=1
  [ -f $c/unified/cgroup.procs ] && echo unified=1
elif grep -qw cgroup2 /proc/filesystems && [ -d $c ]; then
  echo cgroup=unmounted
  echo controllers=$(awk '$4 == 1 { print ($1 == "blkio" ? "io" : $1) }' /proc/cgroups)
fi
true
"""

_REMOVE = """
for d in /sys/fs/cgroup/*/"$1" /sys/fs/cgroup/"$1"; do
  [ -d "$d" ] || continue
  for try in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    find "$d" -depth -type d -exec rmdir {} + 2>/dev/null
    [ -d "$d" ] || break
    for pid in $(cat "$d"/cgroup.procs 2>/dev/null); do kill -9 "$pid" 2>/dev/null; done
    sleep 0.1
  done
done
rm -rf --one-file-system "$2"
rmdir "${2%/*}" 2>/dev/null
rmdir "$3" 2>/dev/null
true
"""


@dataclass(frozen=True)
class Carrier:
    """What a carrier offers to an OCI runtime.

    ``cpus``: numbers of the processors that may be used; ``cgroup``: "v1", "v2", "unmounted" (v2
    is in the kernel, nobody has mounted it) or "none"; ``controllers``: those that can be used;
    ``unified``: a v2 hierarchy is mounted beside v1; ``swap_limit``: swap can be limited;
    ``overlay``: the kernel has overlayfs.
    """

    uid: int
    cpus: tuple[int, ...]
    cgroup: str
    controllers: frozenset[str]
    unified: bool
    swap_limit: bool
    overlay: bool


def number_list(text: str) -> tuple[int, ...]:
    """(0, 2, 3) of "0,2-3", the kernel's list format. Raises ValueError."""
    found: list[int] = []
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            found.extend(range(int(first), int(last or first) + 1))
    return tuple(found)


def read_survey(text: str) -> Carrier:
    """A carrier from the survey's ``key=value`` lines. Raises MachineFailed."""
    said = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    try:
        cpus, uid = number_list(said["cpus"]), int(said["uid"])
    except (KeyError, ValueError):
        raise MachineFailed("The carrier did not say what it has.", f"It said: {text!r}.") from None
    return Carrier(
        uid=uid, cpus=cpus, cgroup=said.get("cgroup", "none"),
        controllers=frozenset(said.get("controllers", "").split()),
        unified="unified" in said, swap_limit="swap" in said, overlay="overlay" in said)


_known: WeakKeyDictionary[Machine, dict[Any, Any]] = WeakKeyDictionary()


def once(carrier: Machine, key: Any, ask: Callable[[], T]) -> T:
    """The answer to a question about a carrier that is asked once in its life: asking it again
    would count as the time that the next machine takes to boot."""
    answers = _known.setdefault(carrier, {})
    if key not in answers:
        answers[key] = ask()
    return answers[key]


def survey(carrier: Machine) -> Carrier:
    """What a carrier offers. Raises MachineFailed, and CannotRun when we are not root."""
    return once(carrier, "survey", lambda: _survey(carrier))


def _survey(carrier: Machine) -> Carrier:
    done = carrier.run(["/bin/sh", "-c", _SURVEY], timeout=_STEP_LIMIT)
    if done.status != 0:
        raise MachineFailed(f"The survey of {carrier.name!r} failed: "
                            f"{done.stderr.decode(errors='replace').strip()}.")
    found = read_survey(done.stdout.decode(errors="replace"))
    if found.uid != 0:
        raise CannotRun("Namespaces, mounts and cgroups need root.", "Run nearmetal as root.")
    return found


@dataclass(frozen=True)
class Limits:
    """What a machine is limited to: ``resources`` for config.json; ``missing`` tells what could
    not be limited and why; ``cpus`` are the processors it may use."""

    resources: dict[str, Any]
    cpus: tuple[int, ...]
    memory_mib: int | None
    missing: tuple[str, ...]


def limits(carrier: Carrier, shape: Shape, rank: int = 0) -> Limits:
    """The limits of the machine with this shape and rank (on its network) on that carrier.

    It gets the processors that ``native`` gives to a machine of that rank: neighbours get
    different ones while there are enough. Memory is limited with no swap above it, where swap can
    be limited. Raises CannotRun: too few processors.
    """
    have = len(carrier.cpus)
    if shape.cpus > have:
        raise CannotRun(f"{shape.cpus} processors are asked for, its carrier has {have}.",
                        "Ask for fewer in the study's [machine] cpus.")
    cpus = tuple(sorted(carrier.cpus[(rank * shape.cpus + i) % have] for i in range(shape.cpus)))
    why = "no cgroups" if carrier.cgroup == "none" else f"no controller in cgroup {carrier.cgroup}"
    cpu: dict[str, Any] = {}
    resources: dict[str, Any] = {}
    missing: list[str] = []
    if "cpuset" in carrier.controllers:
        cpu["cpus"] = ",".join(map(str, cpus))
    else:
        missing.append(f"cpuset ({why})")
    if "cpu" in carrier.controllers:
        cpu |= {"quota": shape.cpus * PERIOD_US, "period": PERIOD_US}
    else:
        missing.append(f"cpu quota ({why})")
    if cpu:
        resources["cpu"] = cpu
    limited = "memory" in carrier.controllers
    if limited:
        size = shape.memory_mib * MIB
        resources["memory"] = {"limit": size, **({"swap": size} if carrier.swap_limit else {})}
    else:
        missing.append(f"memory ({why})")
    return Limits(resources, cpus, shape.memory_mib if limited else None, tuple(missing))


def safe(text: str) -> str:
    """``text`` as a part of a file's or cgroup's name."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", text).strip(".") or "-"


def cgroup_name(order: Order) -> str:
    """Name of the machine's cgroup: it carries the lab's mark."""
    return f"nearmetal-{safe(order.lab)}-{safe(order.name)}"


def place(order: Order) -> str:
    """The machine's working folder on its carrier."""
    return f"{RUN}/{safe(order.lab)}/{safe(order.name)}"


def _mount(target: str, kind: str, *options: str, source: str | None = None) -> dict[str, Any]:
    return {"destination": target, "type": kind, "source": source or kind, "options": [*options]}


def mounts(memory_mib: int) -> list[dict[str, Any]]:
    """The usual mounts; files in memory may take half the machine's memory, as on any Linux."""
    size = f"size={max(1, memory_mib // 2)}m"
    return [
        _mount("/proc", "proc", "nosuid", "noexec", "nodev"),
        _mount("/dev", "tmpfs", "nosuid", "strictatime", "mode=755", "size=65536k"),
        _mount("/dev/pts", "devpts", "nosuid", "noexec", "newinstance", "ptmxmode=0666",
               "mode=0620"),
        _mount("/dev/shm", "tmpfs", "nosuid", "noexec", "nodev", "mode=1777", size, source="shm"),
        _mount("/dev/mqueue", "mqueue", "nosuid", "noexec", "nodev"),
        _mount("/sys", "sysfs", "nosuid", "noexec", "nodev", "ro"),
        _mount("/tmp", "tmpfs", "nosuid", "nodev", "mode=1777", size),
        _mount("/run", "tmpfs", "nosuid", "nodev", "mode=755", size),
    ]


def config(order: Order, root: str, limited: Limits, *, network: str | None,
           read_only: bool = False, args: Sequence[str] = (AGENT,)) -> dict[str, Any]:
    """The content of config.json; ``args`` is the machine's first command.

    ``root`` is the machine's root as a folder of the carrier; ``network``: None shares the network
    of the process that starts the runtime, "" makes a new one (only lo), else the path of a
    namespace.
    """
    spaces: list[dict[str, str]] = [
        {"type": kind} for kind in ("pid", "mount", "ipc", "uts", "cgroup")]
    if network is not None:
        spaces.append({"type": "network", **({"path": network} if network else {})})
    return {
        "ociVersion": "1.0.2",
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0},
            "args": list(args),
            "env": ["PATH=/opt/nearmetal/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:"
                    "/sbin:/bin", "HOME=/root", "LC_ALL=C.UTF-8"],
            "cwd": "/",
            "capabilities": {kind: list(CAPABILITIES)
                             for kind in ("bounding", "effective", "permitted")},
            "noNewPrivileges": False,
        },
        "root": {"path": root, "readonly": read_only},
        "hostname": safe(order.name),
        "mounts": mounts(order.shape.memory_mib),
        "linux": {
            "namespaces": spaces,
            "resources": limited.resources,
            "cgroupsPath": f"/{cgroup_name(order)}",
            "maskedPaths": ["/proc/kcore", "/proc/keys", "/proc/sysrq-trigger"],
            "readonlyPaths": ["/proc/sys", "/proc/irq", "/proc/bus"],
        },
    }


def facts(carrier: Carrier, limited: Limits) -> dict[str, Any]:
    """What to tell of the limits, for Machine.facts()."""
    cpu, memory = limited.resources.get("cpu", {}), limited.resources.get("memory")
    said = []
    if "cpus" in cpu:
        said.append(f"processors {cpu['cpus']}")
    if "quota" in cpu:
        said.append(f"processor quota {cpu['quota'] / cpu['period']:g}")
    if memory:
        swap = ", no swap" if "swap" in memory else ""
        said.append(f"memory {memory['limit'] // MIB} MiB{swap}")
    kind = "v2" if carrier.cgroup == "unmounted" else carrier.cgroup
    found: dict[str, Any] = {"cgroup": kind, "limits": "; ".join(said) or "none",
                             "limits_missing": "; ".join(limited.missing)}
    if limited.memory_mib:
        found["memory_mib"] = limited.memory_mib
    return found


def guard(limited: Limits) -> list[str]:
    """The prefix of a runtime: the right processors (also where there is no cpuset), and
    namespaces in which all that it starts and mounts dies when the first process is killed."""
    return ["taskset", "-c", ",".join(map(str, limited.cpus)),
            "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--"]


def cgroup_mounts(carrier: Carrier) -> str:
    """Shell lines that make the cgroup mounts such as crun takes them (in a private namespace).

    crun refuses a v2 hierarchy beside v1 ("hybrid mode"), and nobody may have mounted v2.
    """
    if carrier.unified:
        return "umount /sys/fs/cgroup/unified\n"
    if carrier.cgroup == "unmounted":
        return "mount -t cgroup2 -o nosuid,nodev,noexec cgroup2 /sys/fs/cgroup\n"
    return ""


def rank(order: Order) -> int:
    """The machine's rank on its lab network; 0 without one."""
    return order.port.rank if order.port else 0


def lay_out(carrier: Machine, order: Order, content: dict[str, Any]) -> None:
    """Make the machine's folder on the carrier, with config.json. Raises MachineFailed."""
    folder = place(order)
    done = carrier.run(["mkdir", "-p", f"{folder}/state", f"{folder}/scratch"],
                       timeout=_STEP_LIMIT)
    if done.status != 0:
        raise MachineFailed(f"{carrier.name!r} has no room for {folder}: "
                            f"{done.stderr.decode(errors='replace').strip()}.")
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(content, file, indent=1)
        file.flush()
        carrier.put(Path(file.name), f"{folder}/config.json")


def remove(carrier: Machine, order: Order) -> None:
    """Remove the machine's cgroup and folder from the carrier; also when it has died."""
    folder = place(order)
    try:
        carrier.run(["/bin/sh", "-c", _REMOVE, "remove", cgroup_name(order), folder, RUN],
                    timeout=_STEP_LIMIT)
    except (NearmetalError, OSError):
        return  # the carrier is gone, and all with it


def runtime_version(carrier: Machine, argv: Sequence[str]) -> str | None:
    """First line of what ``argv`` (a runtime's --version) prints; None when it is not there."""
    return once(carrier, tuple(argv), lambda: _version(carrier, argv))


def _version(carrier: Machine, argv: Sequence[str]) -> str | None:
    try:
        done = carrier.run(argv, timeout=_STEP_LIMIT)
    except CannotRun:
        return None
    lines = done.stdout.decode(errors="replace").split("\n")
    return lines[0].strip() if done.status == 0 else None
