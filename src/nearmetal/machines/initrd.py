"""What a virtual machine boots: the kernel, unpacked, and a small initrd with its drivers.

The initrd holds a static busybox, the few modules that reach the root disk and the agent's port,
in load order, and a short /init: mount the userland's image read-only, cover it with a tmpfs, hand
over to the agent as process 1. Format: Linux, Documentation/driver-api/early-userspace/
buffer-format.rst ("newc" cpio).

The kernel is taken out of its bzImage, so that the guest need not decompress it (2 s under TCG);
boot protocol fields: Linux, Documentation/arch/x86/boot.rst.
"""

from __future__ import annotations

import gzip
import hashlib
import lzma
import os
import re
import shutil
import struct
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from nearmetal.errors import CannotRun, MachineFailed

AGENT = "/opt/nearmetal/bin/nm-agent"
# File systems, and checksums that ext4 asks for by algorithm, not by module name.
FILE_SYSTEMS = ("crc32c_generic", "ext4", "overlay")
DRIVERS = {
    "virtio-pci": ("virtio_pci", "virtio_blk", "virtio_console", "virtio_net"),
    "virtio-mmio": ("virtio_mmio", "virtio_blk", "virtio_console", "virtio_net"),
    "emulated": ("ahci", "sd_mod", "e1000"),
}
_SIGNATURE = b"~Module signature appended~\n"

INIT = """\
#!/bin/sh
# Words of the kernel's command line: nm.root=DEVICE, nm.agent=DEVICE (may be a pattern).
fail() { echo "initrd: $*"; exit 1; }  # the kernel then panics, and the machine ends
mount -t devtmpfs dev /dev || fail "no devtmpfs"
mount -t proc proc /proc || fail "no proc"
for word in $(cat /proc/cmdline); do
    case $word in nm.root=*) root=${word#*=} ;; nm.agent=*) agent=${word#*=} ;; esac
done
while read -r module; do
    insmod "/modules/$module" || fail "module $module does not load"
done < /modules/order
await() {  # TEST DEVICE: devices are found in the background
    tries=0
    until [ "$1" "$2" ]; do
        tries=$((tries + 1))
        [ $tries -lt 400 ] || fail "$2 did not appear"
        usleep 25000
        set -- "$1" $2  # a pattern stays as it is until it has a match
    done
}
await -b "$root"
await -c "$agent"
agent=$(echo $agent)
mount -t ext4 -o ro "$root" /lower || fail "the root disk $root does not mount"
mount -t tmpfs -o mode=0755 cover /cover || fail "no tmpfs"
mkdir /cover/upper /cover/work
mount -t overlay -o lowerdir=/lower,upperdir=/cover/upper,workdir=/cover/work root /root ||
    fail "no overlay"
mount --move /dev /root/dev
mount --move /proc /root/proc
unset PATH  # the agent has its own
exec /bin/busybox switch_root /root AGENT --init --tty "$agent"
fail "the agent does not start"
""".replace("AGENT", AGENT)
# busybox applets that /init calls by name.
APPLETS = ("sh", "cat", "insmod", "mkdir", "mount", "usleep")


def load_order(modules: Path, wanted: Iterable[str]) -> list[Path]:
    """Files of the modules ``wanted`` and of all that they depend on, in load order.

    ``modules`` is a lib/modules/<version> folder; depmod need not have been run. Names that are
    built into the kernel are left out. Raises CannotRun for a module that does not exist.
    """
    files = {_plain(path.name.removesuffix(".ko")): path for path in modules.rglob("*.ko")}
    listed = modules / "modules.builtin"
    built_in = {_plain(Path(line).name.removesuffix(".ko"))
                for line in (listed.read_text().splitlines() if listed.exists() else ())}
    order: dict[str, Path] = {}

    def visit(name: str, trail: tuple[str, ...]) -> None:
        if name in order or name in built_in or name in trail:
            return
        if name not in files:
            raise CannotRun(f"The kernel {modules.name} has no module {name}.",
                            "Use the generic Debian kernel (linux-image-amd64).")
        for needed in _depends(files[name]):
            visit(needed, (*trail, name))
        order[name] = files[name]

    for name in wanted:
        visit(_plain(name), ())
    return list(order.values())


def _plain(name: str) -> str:
    return name.replace("-", "_")


def _depends(module: Path) -> list[str]:
    """Names that a module's own .modinfo says it needs."""
    found = re.search(rb"\0depends=([^\0]*)\0", b"\0" + module.read_bytes())
    return [_plain(name) for name in found[1].decode().split(",") if name] if found else []


def unsigned(module: bytes) -> bytes:
    """A module without its signature: verifying one costs 10 to 30 ms each under TCG."""
    if not module.endswith(_SIGNATURE):
        return module
    end = len(module) - len(_SIGNATURE)
    size = struct.unpack(">I", module[end - 4:end])[0]  # struct module_signature is 12 bytes
    return module[: end - 12 - size]


def cpio(entries: Sequence[tuple[str, int, bytes]]) -> bytes:
    """A newc archive of (name, mode with file type, content); all owned by root, time 0."""
    parts = []
    for number, (name, mode, content) in enumerate([*entries, ("TRAILER!!!", 0, b"")], start=1):
        raw = name.encode() + b"\0"
        fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(raw), 0)
        header = b"070701" + b"".join(b"%08X" % field for field in fields) + raw
        parts += [header, bytes(-len(header) % 4), content, bytes(-len(content) % 4)]
    return b"".join(parts)


def read_cpio(archive: bytes) -> Iterator[tuple[str, int, bytes]]:
    """The entries of a newc archive, as :func:`cpio` takes them. Raises ValueError."""
    place = 0
    while True:
        header = archive[place:place + 110]
        if len(header) < 110 or header[:6] != b"070701":
            raise ValueError(f"no cpio header at byte {place}")
        fields = [int(header[6 + 8 * i:14 + 8 * i], 16) for i in range(13)]
        mode, size, name_size = fields[1], fields[6], fields[11]
        name = archive[place + 110:place + 110 + name_size - 1].decode()
        start = (place + 110 + name_size + 3) & ~3
        if name == "TRAILER!!!":
            return
        if start + size > len(archive):
            raise ValueError(f"{name} is cut short")
        yield name, mode, archive[start:start + size]
        place = (start + size + 3) & ~3


def initrd_bytes(modules: Path | None, busybox: Path, drivers: str) -> bytes:
    """The initrd for ``drivers`` (a key of DRIVERS), uncompressed: unpacking costs more.

    ``modules`` None: a kernel that has them all built in.
    """
    folder, plain, program, link = 0o040755, 0o100644, 0o100755, 0o120777
    names = ("bin", "modules", "dev", "proc", "lower", "cover", "root")
    entries = [(name, folder, b"") for name in names]
    entries += [("bin/busybox", program, busybox.read_bytes()), ("init", program, INIT.encode())]
    entries += [(f"bin/{name}", link, b"busybox") for name in APPLETS]
    wanted = (*DRIVERS[drivers], *FILE_SYSTEMS)
    order = load_order(modules, wanted) if modules else []
    entries += [(f"modules/{path.name}", plain, unsigned(path.read_bytes())) for path in order]
    listing = "".join(f"{path.name}\n" for path in order)
    return cpio([*entries, ("modules/order", plain, listing.encode())])


def make_initrd(modules: Path | None, busybox: Path, drivers: str, cache: Path) -> Path:
    """The initrd for ``drivers`` as a file in ``cache``, named by its content; made if missing."""
    data = initrd_bytes(modules, busybox, drivers)
    digest = hashlib.sha256(data).hexdigest()[:12]
    return _keep(cache / f"initrd-{drivers}-{digest}.cpio", data)


def unpacked_kernel(kernel: Path, cache: Path) -> Path:
    """The kernel's ELF file (vmlinux), taken out of a bzImage, in ``cache``; made if missing.

    An ELF file is returned as it is, and so is a bzImage whose packing is not known here.
    """
    try:
        image = kernel.read_bytes()
    except OSError as error:
        raise CannotRun(f"The kernel {kernel} cannot be read: {error.strerror}.",
                        "Give the path of a bzImage or vmlinux, or leave `kernel` out.") from error
    if image[:4] == b"\x7fELF":
        return kernel
    if len(image) < 0x250 or image[0x202:0x206] != b"HdrS":
        raise CannotRun(f"{kernel} is not a Linux kernel.",
                        "Give the path of a bzImage or vmlinux, or leave `kernel` out.")
    target = cache / f"vmlinux-{hashlib.sha256(image).hexdigest()[:12]}"
    if target.exists():
        return target
    unpacked = _payload(image)
    return kernel if unpacked is None else _keep(target, unpacked)


def _payload(image: bytes) -> bytes | None:
    """The unpacked payload of a bzImage, or None if its packing is not known."""
    offset, length = struct.unpack_from("<II", image, 0x248)
    start = (image[0x1F1] + 1) * 512 + offset
    packed = image[start:start + length]
    try:
        if packed[:6] == b"\xfd7zXZ\0":
            unpacked = lzma.LZMADecompressor(lzma.FORMAT_XZ).decompress(packed)
        elif packed[:2] == b"\x1f\x8b":
            unpacked = gzip.decompress(packed[:-4])  # four bytes of size follow
        else:
            return None
    except (lzma.LZMAError, OSError, EOFError):
        return None
    return unpacked if unpacked[:4] == b"\x7fELF" else None


def kernel_version(kernel: Path) -> str:
    """The release of a bzImage or vmlinux, such as "6.1.0-9-amd64"; "" when it does not say."""
    image = kernel.read_bytes()
    if image[0x202:0x206] == b"HdrS":
        start = struct.unpack_from("<H", image, 0x20E)[0] + 0x200
        text = image[start:image.index(b"\0", start)]
        return text.decode(errors="replace").split(" ")[0]
    found = re.search(rb"Linux version (\S+)", image)
    return found[1].decode(errors="replace") if found else ""


def _keep(target: Path, data: bytes) -> Path:
    """Write ``target`` so that it is whole or absent, whoever else does the same."""
    if target.exists():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.chmod(name, 0o644)
            os.rename(name, target)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        raise MachineFailed(f"{target} cannot be written: {error.strerror}.",
                            "Free some space, or set NEARMETAL_CACHE to another folder.") from error
    return target


def find_busybox(tree: Path) -> Path:
    """The static busybox: the userland's, or the host's. Raises CannotRun."""
    candidates = [tree / "bin/busybox", tree / "usr/bin/busybox"]
    on_host = shutil.which("busybox")
    for path in [*candidates, *([Path(on_host)] if on_host else [])]:
        if path.is_file():
            return path
    raise CannotRun("There is no busybox for the initrd.", "apt-get install busybox-static")
