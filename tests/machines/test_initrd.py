"""The initrd and the unpacked kernel, from made-up modules and kernels."""

import gzip
import lzma
import os
import stat
import struct
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearmetal.errors import CannotRun
from nearmetal.machines import initrd


def module(depends="", signature=b""):
    body = b"\x7fELF....\0license=GPL\0depends=" + depends.encode() + b"\0retpoline=Y\0"
    if signature:
        body += signature + bytes(8) + struct.pack(">I", len(signature)) + (
            b"~Module signature appended~\n")
    return body


@pytest.fixture
def modules(tmp_path):
    """A lib/modules folder with every driver that any set wants, and a chain of dependencies."""
    folder = tmp_path / "lib/modules/6.1.0-test"
    (folder / "kernel/drivers").mkdir(parents=True)
    names = {name for group in initrd.DRIVERS.values() for name in group} | set(
        initrd.FILE_SYSTEMS) | {"virtio_ring", "virtio", "t10-pi"}
    depends = {"virtio_pci": "virtio,virtio_ring", "virtio": "virtio_ring", "sd_mod": "t10-pi",
               "virtio_net": "virtio"}
    for name in names - {"overlay"}:
        path = folder / "kernel/drivers" / f"{name}.ko"
        path.write_bytes(module(depends.get(name, ""), b"signed"))
    (folder / "modules.builtin").write_text("kernel/fs/overlayfs/overlay.ko\n")
    return folder


@pytest.fixture
def busybox(tmp_path):
    path = tmp_path / "busybox"
    path.write_bytes(b"\x7fELF busybox")
    return path


def names(paths):
    return [path.name.removesuffix(".ko") for path in paths]


def test_modules_come_after_what_they_depend_on(modules):
    assert names(initrd.load_order(modules, ["virtio_net", "virtio_pci"])) == [
        "virtio_ring", "virtio", "virtio_net", "virtio_pci"]


def test_dashes_and_underscores_are_the_same(modules):
    assert names(initrd.load_order(modules, ["sd_mod"])) == ["t10-pi", "sd_mod"]


def test_built_in_modules_are_left_out(modules):
    assert initrd.load_order(modules, ["overlay"]) == []


def test_a_missing_module_is_named(modules):
    with pytest.raises(CannotRun, match="6.1.0-test has no module nosuch"):
        initrd.load_order(modules, ["nosuch"])


def test_modules_that_depend_on_each_other_end(modules):
    for one, other in (("a", "b"), ("b", "a")):
        (modules / f"kernel/{one}.ko").write_bytes(module(other))
    assert sorted(names(initrd.load_order(modules, ["a"]))) == ["a", "b"]


def test_a_signature_is_cut_off():
    assert initrd.unsigned(module("x", b"0123456789")) == module("x")
    assert initrd.unsigned(module("x")) == module("x")


@pytest.mark.parametrize("drivers", sorted(initrd.DRIVERS))
def test_what_an_initrd_holds(modules, busybox, drivers):
    held = {name: (mode, content) for name, mode, content in initrd.read_cpio(
        initrd.initrd_bytes(modules, busybox, drivers))}
    assert held["bin/busybox"] == (0o100755, busybox.read_bytes())
    assert held["init"][0] == 0o100755
    assert initrd.AGENT.encode() + b" --init --tty" in held["init"][1]
    for applet in initrd.APPLETS:
        assert stat.S_ISLNK(held[f"bin/{applet}"][0])
    order = held["modules/order"][1].decode().split()
    assert set(order) == {name[8:] for name in held if name.endswith(".ko")}
    wanted = {f"{name}.ko" for name in (*initrd.DRIVERS[drivers], "ext4", "crc32c_generic")}
    assert wanted <= set(order) and "overlay.ko" not in order
    assert all(b"signature" not in held[f"modules/{name}"][1] for name in order)
    for name in ("dev", "proc", "lower", "cover", "root"):
        assert stat.S_ISDIR(held[name][0])


def test_a_kernel_without_modules_gets_an_empty_list(busybox):
    held = dict((name, content) for name, _, content in initrd.read_cpio(
        initrd.initrd_bytes(None, busybox, "emulated")))
    assert held["modules/order"] == b""


def test_init_is_a_shell_script_that_parses():
    assert subprocess.run(["sh", "-n"], input=initrd.INIT.encode(), timeout=10).returncode == 0


def test_init_calls_no_applet_that_is_not_there():
    words = {word for line in initrd.INIT.splitlines() for word in line.replace("(", " ").split()}
    for applet in ("sleep", "modprobe", "ls", "grep", "sed", "umount", "ln"):
        assert applet not in words


def test_the_cache_is_named_by_content(modules, busybox, tmp_path):
    cache = tmp_path / "cache"
    one = initrd.make_initrd(modules, busybox, "virtio-pci", cache)
    when = one.stat().st_mtime_ns
    assert initrd.make_initrd(modules, busybox, "virtio-pci", cache) == one
    assert one.stat().st_mtime_ns == when
    busybox.write_bytes(b"another")
    assert initrd.make_initrd(modules, busybox, "virtio-pci", cache) != one
    assert not [path for path in cache.iterdir() if path.name.startswith(".")]


entries = st.lists(st.tuples(
    st.text(st.characters(codec="ascii", min_codepoint=33, max_codepoint=126), min_size=1,
            max_size=40).filter(lambda name: name != "TRAILER!!!"),
    st.integers(0, 0o177777), st.binary(max_size=200)), max_size=8)


@given(entries)
def test_cpio_reads_back(given_entries):
    archive = initrd.cpio(given_entries)
    assert len(archive) % 4 == 0
    assert list(initrd.read_cpio(archive)) == given_entries


@given(st.binary(max_size=300))
def test_no_cpio_is_a_value_error(data):
    with pytest.raises(ValueError):
        list(initrd.read_cpio(b"x" + data))


def test_cpio_is_what_cpio_reads(tmp_path):
    archive = initrd.cpio([("folder", 0o040755, b""), ("folder/file", 0o100640, b"text\n"),
                           ("link", 0o120777, b"folder/file")])
    done = subprocess.run(["cpio", "-idm", "--quiet"], input=archive, cwd=tmp_path, timeout=10)
    assert done.returncode == 0
    assert (tmp_path / "folder/file").read_bytes() == b"text\n"
    assert os.readlink(tmp_path / "link") == "folder/file"


def bz_image(payload, version=b"6.1.0-test (maker) #1"):
    """A bzImage of one set-up sector with ``payload`` behind it."""
    setup = bytearray(1024)
    setup[0x1F1], setup[0x202:0x206] = 1, b"HdrS"
    struct.pack_into("<H", setup, 0x20E, 0x300 - 0x200)
    setup[0x300:0x300 + len(version)] = version
    struct.pack_into("<II", setup, 0x248, 64, len(payload))
    return bytes(setup) + bytes(64) + payload + b"the rest"


ELF = b"\x7fELF" + bytes(range(256)) * 10


@pytest.mark.parametrize("pack", [
    lambda data: lzma.compress(data, check=lzma.CHECK_CRC32) + struct.pack("<I", len(data)),
    lambda data: gzip.compress(data) + struct.pack("<I", len(data)),
])
def test_a_kernel_is_taken_out_of_its_image(tmp_path, pack):
    kernel = tmp_path / "vmlinuz"
    kernel.write_bytes(bz_image(pack(ELF)))
    unpacked = initrd.unpacked_kernel(kernel, tmp_path / "cache")
    assert unpacked.parent == tmp_path / "cache" and unpacked.read_bytes() == ELF
    assert initrd.kernel_version(kernel) == "6.1.0-test"


@pytest.mark.parametrize("payload", [b"\x02!L\x18 lz4", b"\xfd7zXZ\0 broken", b"\x1f\x8b broken"])
def test_a_kernel_that_cannot_be_unpacked_is_left_as_it_is(tmp_path, payload):
    kernel = tmp_path / "vmlinuz"
    kernel.write_bytes(bz_image(payload))
    assert initrd.unpacked_kernel(kernel, tmp_path / "cache") == kernel


def test_an_unpacked_kernel_stays(tmp_path):
    kernel = tmp_path / "vmlinux"
    kernel.write_bytes(ELF + b"Linux version 6.9.1-own (me)")
    assert initrd.unpacked_kernel(kernel, tmp_path) == kernel
    assert initrd.kernel_version(kernel) == "6.9.1-own"


def test_what_is_no_kernel_is_refused(tmp_path):
    (tmp_path / "text").write_text("no kernel " * 100)
    with pytest.raises(CannotRun, match="not a Linux kernel"):
        initrd.unpacked_kernel(tmp_path / "text", tmp_path)
    with pytest.raises(CannotRun, match="cannot be read"):
        initrd.unpacked_kernel(tmp_path / "absent", tmp_path)


def test_a_busybox_of_the_userland_comes_first(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/busybox").write_bytes(b"")
    assert initrd.find_busybox(tmp_path) == tmp_path / "bin/busybox"
