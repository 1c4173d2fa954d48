"""``ssh``: its command, its errors, and a real sshd in a network namespace."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearmetal.errors import CannotRun, MachineFailed, PathError
from nearmetal.machines.base import Order, Shape, make_layer
from nearmetal.machines.host import Host
from nearmetal.machines.path import Environment
from nearmetal.machines.process import start
from nearmetal.machines.ssh import (
    Far,
    Params,
    explain,
    judge,
    read_probe,
    ssh_command,
    tree_kib,
)

SSHD = "/usr/sbin/sshd"


# --- what needs no machine

def test_the_command_asks_nothing_and_gives_up():
    words = ssh_command(Params(host="n1", user="root", port=2222, config="/c", identity="/k"),
                        "echo $1", "a b")
    text = " ".join(words)
    for wanted in ("BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=5", "-F /c",
                   "-i /k", "-p 2222", "-l root"):
        assert wanted in text
    assert words[-3:-1] == ["--", "n1"]
    assert shlex.split(words[-1]) == ["sh", "-c", "echo $1", "sh", "a b"]


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_arguments_survive_the_remote_shell(text):
    command = ssh_command(Params(host="n1"), 'printf %s "$1"', text)[-1]
    assert shlex.split(command)[-1] == text


def test_an_option_is_no_host():
    with pytest.raises(PathError, match="host"):
        make_layer("ssh", {"host": "-oProxyCommand=x"})
    with pytest.raises(PathError, match="host"):
        make_layer("ssh", {})


def test_it_can_be_written_as_a_path():
    layer = Environment.parse('ssh(host=node7, config="/etc/lab/ssh config")').layers[0]
    assert layer.params.host == "node7" and layer.params.config == "/etc/lab/ssh config"
    with pytest.raises(CannotRun, match="no file"):
        layer.check()


@pytest.mark.parametrize(("said", "why"), [
    ("ssh: connect to host n port 22: Connection refused", "cannot be reached"),
    ("ssh: connect to host n port 22: Connection timed out", "cannot be reached"),
    ("ssh: Could not resolve hostname n: Name or service not known", "name is not known"),
    ("Host key verification failed.", "host key is not known"),
    ("@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.",
     "not the one known"),
    ("root@n: Permission denied (publickey).", "refuses the key"),
    ("/c: line 1: Bad configuration option: x", "configuration"),
    ("something else", "status 255"),
])
def test_failures_are_told_apart(said, why):
    error = explain("n", 255, said)
    assert why in error.message and error.remedy
    assert "'n'" in error.message


def probe(**changes):
    said = {"uid": "0", "arch": "x86_64", "system": "Linux", "cache": "/root/.cache/nearmetal",
            "free": "9000000", "cpus": "0-1,4", "end": "1", **changes}
    return "Welcome!\n" + "".join(f"nearmetal:{k}={v}\n" for k, v in said.items())


def test_the_probe_is_read_among_a_login_scripts_words():
    far = read_probe("n", probe() + "nearmetal:missing=zstd\nnearmetal:missing=tar\n")
    assert far == Far(0, "x86_64", "Linux", "/root/.cache/nearmetal",
                      frozenset({"zstd", "tar"}), False, 9000000, (0, 1, 4))
    with pytest.raises(MachineFailed, match="sensible"):
        read_probe("n", "This account is not available.\n")


@pytest.mark.parametrize(("changes", "why"), [
    ({"uid": "1000"}, "not root"), ({"arch": "aarch64"}, "aarch64"),
    ({"system": "FreeBSD"}, "FreeBSD"), ({"free": "1000"}, "MiB free"),
    ({"missing": "unshare"}, "lacks: unshare"), ({"cpus": ""}, "has 0"),
])
def test_what_cannot_carry_a_machine_is_refused(changes, why):
    with pytest.raises(CannotRun, match=why) as caught:
        judge("n", read_probe("n", probe(**changes)), 500_000)
    assert caught.value.remedy


def test_more_processors_than_there_are_is_refused():
    judge("n", read_probe("n", probe()), 0, cpus=3)
    with pytest.raises(CannotRun, match="4 processors are asked for, 'n' has 3"):
        judge("n", read_probe("n", probe()), 0, cpus=4)


def test_what_can_is_not():
    judge("n", read_probe("n", probe()), 500_000)
    judge("n", read_probe("n", probe(missing="zstd")), 500_000)
    judge("n", read_probe("n", probe(free="10", userland="yes")), 500_000)


def test_size_of_a_tree_counts_a_file_once(tmp_path):
    (tmp_path / "a").write_bytes(bytes(1 << 20))
    once = tree_kib(tmp_path)
    os.link(tmp_path / "a", tmp_path / "b")
    assert 1024 <= once <= 1100 and tree_kib(tmp_path) == once


# --- a real one

real = pytest.mark.skipif(
    os.geteuid() != 0 or not Path(SSHD).exists() or shutil.which("ssh") is None
    or not Path("/bin/busybox").exists(), reason="needs root, openssh-server and busybox")


class Server:
    """An sshd in a network namespace of its own; nothing listens outside it."""

    def __init__(self, folder: Path, lab: str):
        self.folder, self.cache = folder, folder / "cache"
        for name in ("host", "user", "stranger"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name],
                           check=True, timeout=30)
        shutil.copy(folder / "user.pub", folder / "authorized_keys")
        (folder / "sshd_config").write_text(
            f"Port 2222\nListenAddress 127.0.0.1\nHostKey {folder}/host\nPidFile none\n"
            f"AuthorizedKeysFile {folder}/authorized_keys\nPermitRootLogin yes\nUsePAM no\n"
            f"StrictModes no\nPasswordAuthentication no\nSetEnv XDG_CACHE_HOME={self.cache}\n")
        script = ("ip link set lo up; mount -t tmpfs run /run; mkdir /run/sshd;"
                  f"exec {SSHD} -D -e -f {folder}/sshd_config")
        self.process = start(["unshare", "--net", "--mount", "--", "sh", "-ec", script], lab)
        for _ in range(10):
            line = self.process.stderr.readline()
            if b"listening" in line:
                break
        else:
            raise AssertionError("sshd does not start")
        key = (folder / "host.pub").read_text().split()
        self.write_config(f"node {key[0]} {key[1]}\n")

    def write_config(self, known: str, port: int = 2222) -> None:
        (self.folder / "known").write_text(known)
        (self.folder / "ssh_config").write_text(
            f"Host node\n HostKeyAlias node\n User root\n IdentityFile {self.folder}/user\n"
            f" IdentitiesOnly yes\n UserKnownHostsFile {self.folder}/known\n"
            " GlobalKnownHostsFile /dev/null\n StrictHostKeyChecking yes\n"
            f" ProxyCommand nsenter -t {self.process.pid} -n -- "
            f"/bin/busybox nc 127.0.0.1 {port}\n")

    def processes(self) -> list[psutil.Process]:
        """Remote processes that have to do with the copied userland."""
        found = []
        for process in psutil.process_iter(["cmdline"]):
            if any(str(self.cache) in word for word in process.info["cmdline"] or ()):
                found.append(process)
        return found


@pytest.fixture
def server(tmp_path, lab):
    made = Server(tmp_path, lab)
    yield made
    made.process.kill()
    made.process.close()


@pytest.fixture
def boot(lab, small_userland, tmp_path, server):
    made = []

    def one(name="m", **params):
        layer = make_layer("ssh", {"host": "node", "config": str(tmp_path / "ssh_config"),
                                   **params})
        layer.check()
        workdir = tmp_path / f"{name}.d"
        workdir.mkdir(exist_ok=True)
        order = Order(lab, name, Shape(), small_userland, workdir, None, 30)
        machine = layer.up(Host(lab, small_userland.tree), order)
        made.append(machine)
        return machine

    yield one
    for machine in made:
        machine.down()


@real
@pytest.mark.slow
def test_a_machine_by_ssh(boot, server, small_userland):
    machine = boot("far")
    done = machine.run(["sh", "-c", "hostname; cat; exit 3"], timeout=20, stdin=b"in\0put")
    assert (done.status, done.stdout) == (3, b"far\nin\0put")
    assert machine.run(["ls", "/opt/nearmetal/bin"], timeout=20).stdout == b"nm-agent\nnm-rsh\n"
    assert machine.facts()["network"] == "ssh to node"
    assert machine.facts()["cpus"] == 1
    assert machine.memory_bytes() is None and machine.alive()
    copied = server.cache / "nearmetal" / small_userland.id
    assert copied.is_dir() and [p.name for p in copied.parent.iterdir()] == [small_userland.id]
    before = copied.stat().st_ctime_ns
    machine.run(["touch", "/made"], timeout=20)
    assert not (copied / "made").exists()
    machine.spawn(["sleep", "1000"])
    machine.down()
    deadline = time.monotonic() + 10
    while server.processes() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert server.processes() == []
    again = boot("again")
    assert again.run(["true"], timeout=20).status == 0
    assert copied.stat().st_ctime_ns == before, "the userland was copied twice"


@real
@pytest.mark.slow
def test_a_broken_connection_is_a_failed_machine(boot, server):
    machine = boot()
    server.process.kill()
    with pytest.raises(MachineFailed, match="went away"):
        machine.run(["sleep", "60"], timeout=60)
    assert not machine.alive()


@real
@pytest.mark.slow
def test_what_goes_wrong_is_named(boot, server, tmp_path):
    with pytest.raises(CannotRun, match="refuses the key"):
        boot(identity=str(tmp_path / "stranger"), config=str(_without_key(tmp_path)))
    key = (tmp_path / "stranger.pub").read_text().split()
    server.write_config(f"node {key[0]} {key[1]}\n")
    with pytest.raises(CannotRun, match="not the one known"):
        boot()
    server.write_config("")
    with pytest.raises(CannotRun, match="host key is not known"):
        boot()
    server.write_config("", port=9)
    with pytest.raises(CannotRun, match="cannot be reached"):
        boot()


def _without_key(folder: Path) -> Path:
    """The configuration without its own key, so that the one given is the only one."""
    text = (folder / "ssh_config").read_text()
    path = folder / "other_config"
    path.write_text("".join(line for line in text.splitlines(True) if "IdentityFile" not in line))
    return path


@real
@pytest.mark.slow
def test_no_space_there(boot, server, monkeypatch):
    monkeypatch.setattr("nearmetal.machines.ssh.tree_kib", lambda tree: 1 << 50)
    with pytest.raises(CannotRun, match="MiB free"):
        boot()
    assert not list((server.cache / "nearmetal").iterdir())


@real
@pytest.mark.slow
def test_a_copy_that_breaks_leaves_nothing(boot, server, small_userland, monkeypatch):
    monkeypatch.setattr("nearmetal.machines.ssh.PUSH_LIMIT", 0.05)
    with pytest.raises((CannotRun, MachineFailed)):
        boot()
    deadline = time.monotonic() + 10
    while list((server.cache / "nearmetal").iterdir()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not list((server.cache / "nearmetal").iterdir())
