"""Does /dev/kvm execute guest instructions natively? Proved by timing, not by opening it.

A device can open, create machines and run them, and still emulate every instruction in the host
kernel (seen: 0.9 us an instruction, a thousand times too slow). The probe runs a tiny
32-bit guest (``dec ecx; jnz``) of a known number of instructions, and a loop of port writes, each
of which leaves the guest.

It runs in a child process under a limit of processor time and a watchdog, so it can never hang
the lab. The child is this very file, so it imports the standard library only. Interface: Linux,
Documentation/virt/kvm/api.rst.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import functools
import json
import mmap
import os
import signal
import struct
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from typing import Literal

State = Literal["usable", "emulated", "absent", "denied", "broken"]

DEVICE = "/dev/kvm"
# A dec/jnz loop takes 0.2 to 1 ns an instruction on any processor of the last 15 years, also
# nested; emulation takes 500 ns or more. The threshold stands between, far from both.
NATIVE_LIMIT_NS = 20.0
CPU_LIMIT_S = 0.5  # processor time after which the guest is interrupted (0.05 s is usual)
WATCHDOG_S = 5.0  # the child is killed then, by the clock
_ENOUGH_S = 0.005  # a loop this long is timed well enough
_COUNTS = (2_000, 20_000, 200_000, 2_000_000, 20_000_000)  # iterations, 2 instructions each
_EXITS = 200

_GET_API_VERSION, _CREATE_VM, _GET_VCPU_MMAP_SIZE = 0xAE00, 0xAE01, 0xAE04
_SET_TSS_ADDR, _CREATE_VCPU, _RUN = 0xAE47, 0xAE41, 0xAE80
_SET_USER_MEMORY_REGION = 0x4020AE46
_GET_SREGS, _SET_SREGS, _SET_REGS = 0x8138AE83, 0x4138AE84, 0x4090AE82
_EXIT_IO, _EXIT_HLT = 2, 5
_CODE, _SPIN, _KICK = 0x1000, 0x1000, 0x1010
_SPIN_CODE = bytes.fromhex("49 75fd f4")  # 1: dec ecx; jnz 1b; hlt
_KICK_CODE = bytes.fromhex("e680 49 75fb f4")  # 1: out 0x80,al; dec ecx; jnz 1b; hlt


@dataclass(frozen=True)
class KvmProbe:
    """What the probe found.

    ``ns_per_instruction``: mean over a dec/jnz loop, ns. ``exit_us``: one port write, from guest
    to the process and back, us. Both None where they could not be measured. ``detail``: one
    sentence for people.
    """

    state: State
    ns_per_instruction: float | None = None
    exit_us: float | None = None
    detail: str = ""

    @property
    def usable(self) -> bool:
        return self.state == "usable"


def classify(ns_per_instruction: float, exit_us: float | None = None) -> KvmProbe:
    """The verdict on a measured figure (ns an instruction)."""
    figure = f"{ns_per_instruction:.2g} ns" if ns_per_instruction < 100 else (
        f"{ns_per_instruction / 1000:.2g} us")
    if ns_per_instruction <= NATIVE_LIMIT_NS:
        detail = f"KVM executes natively: {figure} an instruction."
        return KvmProbe("usable", ns_per_instruction, exit_us, detail)
    detail = (f"KVM opens but emulates: {figure} an instruction, where native execution takes"
              f" less than {NATIVE_LIMIT_NS:g} ns.")
    return KvmProbe("emulated", ns_per_instruction, exit_us, detail)


def probe_device(device: str = DEVICE) -> KvmProbe:
    """Time ``device`` now, in a child process: about 0.2 s, never more than 6 s."""
    if not os.path.exists(device):
        return KvmProbe("absent", detail=f"There is no {device}: no KVM in this kernel.")
    argv = [sys.executable, "-I", os.path.abspath(__file__), device]
    child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE)
    try:
        out, err = child.communicate(timeout=WATCHDOG_S)
    except subprocess.TimeoutExpired:
        child.kill()
        try:
            child.communicate(timeout=1)
        except subprocess.TimeoutExpired:
            pass  # stuck in the kernel: left behind, it can do no harm
        return KvmProbe("broken", detail=f"The probe hung in KVM for {WATCHDOG_S:g} s.")
    try:
        return KvmProbe(**json.loads(out))
    except (ValueError, TypeError):
        last = err.decode(errors="replace").strip().splitlines()[-1:]
        detail = f"The probe died (status {child.returncode}): {' '.join(last)}"
        return KvmProbe("broken", detail=detail)


@functools.lru_cache(maxsize=1)
def probe() -> KvmProbe:
    """:func:`probe_device` on /dev/kvm, once in the life of this process."""
    return probe_device()


class _Guest:
    """A virtual machine of one processor and one page, in flat 32-bit protected mode."""

    def __init__(self, device: str):
        kvm = os.open(device, os.O_RDWR | os.O_CLOEXEC)
        version = fcntl.ioctl(kvm, _GET_API_VERSION, 0)
        if version != 12:
            raise OSError(errno.ENOSYS, f"KVM speaks version {version}, not 12")
        vm = fcntl.ioctl(kvm, _CREATE_VM, 0)
        fcntl.ioctl(vm, _SET_TSS_ADDR, 0x0FFBD000)  # anywhere below 4 GiB, away from memory
        self.memory = mmap.mmap(-1, 4096)
        self.memory[0:4] = _SPIN_CODE
        self.memory[0x10:0x16] = _KICK_CODE
        start = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        region = struct.pack("IIQQQ", 0, 0, _CODE, 4096, start)
        fcntl.ioctl(vm, _SET_USER_MEMORY_REGION, region)
        self.cpu = fcntl.ioctl(vm, _CREATE_VCPU, 0)
        self.run_page = mmap.mmap(self.cpu, fcntl.ioctl(kvm, _GET_VCPU_MMAP_SIZE, 0))
        self.keep = (kvm, vm)

    def _protected_mode(self) -> None:
        sregs = bytearray(312)
        fcntl.ioctl(self.cpu, _GET_SREGS, sregs)
        # struct kvm_segment: base limit selector type present dpl db s l g avl unusable padding
        for place in range(6):  # cs ds es fs gs ss
            kind = 0xB if place == 0 else 0x3
            struct.pack_into("QIH10B", sregs, place * 24, 0, 0xFFFFFFFF, 8 * (2 - (place == 0)),
                             kind, 1, 0, 1, 1, 0, 1, 0, 0, 0)
        cr0 = 8 * 24 + 2 * 16  # after eight segments and two descriptor tables
        struct.pack_into("Q", sregs, cr0, struct.unpack_from("Q", sregs, cr0)[0] | 1)
        fcntl.ioctl(self.cpu, _SET_SREGS, bytes(sregs))

    def time(self, entry: int, count: int) -> tuple[float, int]:
        """Run from ``entry`` with ecx = ``count`` to ``hlt``: (seconds, port writes seen)."""
        self._protected_mode()
        # rax rbx rcx rdx rsi rdi rsp rbp r8..r15 rip rflags
        registers = [0, 0, count, *[0] * 13, entry, 2]
        fcntl.ioctl(self.cpu, _SET_REGS, struct.pack("18Q", *registers))
        exits = 0
        start = time.thread_time()  # includes the guest's; a busy host does not matter
        while True:
            fcntl.ioctl(self.cpu, _RUN, 0)
            reason = struct.unpack_from("I", self.run_page, 8)[0]
            if reason == _EXIT_HLT:
                return time.thread_time() - start, exits
            if reason != _EXIT_IO:
                raise OSError(errno.EIO, f"the guest left with KVM exit reason {reason}")
            exits += 1


def _measure(device: str) -> KvmProbe:
    """The probe itself, in the child."""
    guest = _Guest(device)
    guest.time(_SPIN, 10)  # the first entry pays for everything lazy
    base, _ = guest.time(_SPIN, 10)
    for count in _COUNTS:
        took, _ = guest.time(_SPIN, count)
        if took >= _ENOUGH_S:
            break
    ns = max(took - base, 0.0) / (2 * (count - 10)) * 1e9
    exits = _EXITS if ns <= NATIVE_LIMIT_NS else _EXITS // 10
    took, seen = guest.time(_KICK, exits)
    if seen != exits:
        raise OSError(errno.EIO, f"{exits} port writes, {seen} seen")
    return classify(round(ns, 4), round(max(took - base, 0.0) / exits * 1e6, 3))


def _main(device: str) -> None:
    def too_long(_signal, _frame):
        raise TimeoutError(f"the guest did not end within {CPU_LIMIT_S:g} s")

    signal.signal(signal.SIGPROF, too_long)
    signal.setitimer(signal.ITIMER_PROF, CPU_LIMIT_S, 0.1)
    try:
        found = _measure(device)
    except TimeoutError as error:
        found = KvmProbe("broken", detail=f"KVM does not work: {error}.")
    except OSError as error:
        denied = error.errno in (errno.EACCES, errno.EPERM)
        state = "denied" if denied else "broken"
        what = "may not be opened" if denied else "does not work"
        found = KvmProbe(state, detail=f"{device} {what}: {error.strerror or error}.")
    print(json.dumps(asdict(found)))


if __name__ == "__main__":
    _main(sys.argv[1] if len(sys.argv) > 1 else DEVICE)
