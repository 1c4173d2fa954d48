"""Reading the machine's own description of itself: /proc, /sys and CPUID.

Everything that reads a file goes through :class:`System`, whose root can be a folder made up by a
test. Nothing here judges; the checks do.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import struct
from dataclasses import dataclass
from pathlib import Path

# CPUID leaf 0x40000000: the vendor string a hypervisor gives of itself (Linux source,
# arch/x86/include/asm/*; Xen's and Microsoft's public interface documents).
HYPERVISORS = {
    "KVMKVMKVM": "KVM",
    "Linux KVM Hv": "KVM",
    "XenVMMXenVMM": "Xen",
    "VMwareVMware": "VMware",
    "Microsoft Hv": "Hyper-V",
    "TCGTCGTCGTCG": "QEMU TCG",
    "bhyve bhyve": "bhyve",
    "VBoxVBoxVBox": "VirtualBox",
    "ACRNACRNACRN": "ACRN",
    "QNXQVMBSQG": "QNX",
}


@dataclass(frozen=True)
class System:
    """A root folder under which ``proc`` and ``sys`` lie; ``/`` for the machine itself."""

    root: Path = Path("/")

    @property
    def live(self) -> bool:
        """Whether this is the machine itself, so that it can be measured and not only read."""
        return self.root == Path("/")

    def path(self, name: str) -> Path:
        return self.root / name.lstrip("/")

    def read(self, name: str) -> str | None:
        """The text of a file, stripped; None where it is missing or cannot be read."""
        try:
            return self.path(name).read_text(errors="replace").strip("\0 \n\t")
        except OSError:
            return None

    def number(self, name: str) -> int | None:
        """A file that holds one integer."""
        text = self.read(name)
        try:
            return int(text) if text is not None else None
        except ValueError:
            return None

    def chosen(self, name: str) -> str | None:
        """The value in brackets of a file such as ``always [madvise] never``."""
        text = self.read(name)
        if text is None:
            return None
        for word in text.split():
            if word.startswith("["):
                return word.strip("[]")
        return text or None

    def names(self, name: str) -> list[str]:
        """The sorted names in a folder; [] where it is missing."""
        try:
            return sorted(entry.name for entry in self.path(name).iterdir())
        except OSError:
            return []

    def cpuinfo(self) -> dict[str, str]:
        """/proc/cpuinfo of the first processor."""
        first = (self.read("/proc/cpuinfo") or "").split("\n\n")[0]
        pairs = (line.partition(":") for line in first.splitlines())
        return {key.strip(): value.strip() for key, _, value in pairs if key.strip()}

    def cpu_flags(self) -> frozenset[str]:
        return frozenset(self.cpuinfo().get("flags", "").split())

    def meminfo(self) -> dict[str, int]:
        """/proc/meminfo: sizes in KiB (counts such as HugePages_Total as they are)."""
        out = {}
        for line in (self.read("/proc/meminfo") or "").splitlines():
            key, _, rest = line.partition(":")
            words = rest.split()
            if words and words[0].isdigit():
                out[key] = int(words[0])
        return out

    def cpu_ticks(self) -> dict[str, int]:
        """Totals of /proc/stat since boot, in clock ticks, by state."""
        states = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
        first = (self.read("/proc/stat") or "").partition("\n")[0].split()[1:]
        return {state: int(value) for state, value in zip(states, first, strict=False)}

    def online_cpus(self) -> int:
        """The number of processors online."""
        listed = self.read("/sys/devices/system/cpu/online")
        return len(cpu_list(listed)) if listed else (os.cpu_count() or 1)

    def kernel(self) -> str:
        if self.live:
            return platform.release()
        return self.read("/proc/sys/kernel/osrelease") or "unknown"

    def hypervisor(self) -> str | None:
        """The name of what virtualizes this machine; None: no sign of any.

        Asked of CPUID, whose bit 31 of leaf 1 ECX every hypervisor sets for its guests and which
        /proc/cpuinfo shows as the flag ``hypervisor``; then DMI and /sys/hypervisor.
        """
        kind = self.read("/sys/hypervisor/type")
        if kind and kind != "none":
            return kind.capitalize()
        if "hypervisor" in self.cpu_flags():
            vendor = cpuid_vendor() if self.live else None
            name = HYPERVISORS.get(vendor or "", vendor or "")
            return name or self._dmi_hypervisor() or "unknown"
        return self._dmi_hypervisor()

    def _dmi_hypervisor(self) -> str | None:
        names = ("sys_vendor", "product_name", "board_vendor", "bios_vendor")
        text = " ".join(self.read(f"/sys/class/dmi/id/{name}") or "" for name in names)
        known = ("QEMU", "KVM", "VMware", "VirtualBox", "innotek", "Xen", "Bochs", "Amazon EC2",
                 "Google Compute Engine", "Virtual Machine", "OpenStack", "Parallels")
        return next((word for word in known if word in text), None)


def cpu_list(text: str) -> list[int]:
    """Processor numbers of a list in the kernel's form, ``0-3,8``."""
    out: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if first:
            out.extend(range(int(first), int(last or first) + 1))
    return out


def cpuid(leaf: int, subleaf: int = 0) -> tuple[int, int, int, int] | None:
    """EAX, EBX, ECX, EDX of the CPUID instruction; None where it cannot be asked."""
    if platform.machine() != "x86_64":
        return None
    # push rbx; mov eax,edi; mov ecx,esi; mov r8,rdx; cpuid;
    # mov [r8],eax; mov [r8+4],ebx; mov [r8+8],ecx; mov [r8+12],edx; pop rbx; ret
    code = bytes.fromhex("53 89f8 89f1 4989d0 0fa2 418900 41895804 41894808 4189500c 5b c3")
    try:
        page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    except OSError:
        return None
    page.write(code)
    hold = ctypes.c_char.from_buffer(page)
    out = (ctypes.c_uint32 * 4)()
    call = ctypes.CFUNCTYPE(None, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p)
    call(ctypes.addressof(hold))(leaf, subleaf, ctypes.addressof(out))
    del hold
    page.close()
    return out[0], out[1], out[2], out[3]


def cpuid_vendor() -> str | None:
    """The hypervisor's vendor string of leaf 0x40000000; None where it gives none."""
    found = cpuid(0x40000000)
    if not found:
        return None
    text = struct.pack("<III", *found[1:]).decode("ascii", "replace").strip("\0 ")
    return text or None
