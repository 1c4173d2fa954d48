"""The lab network: machines reach each other on it, and nothing else."""

from __future__ import annotations

import os
import subprocess

import pytest

from nearmetal import cleanup
from nearmetal.errors import MachineFailed
from nearmetal.machines.network import LabNetwork

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")


@pytest.fixture
def network(lab):
    made = LabNetwork(lab, 3)
    yield made
    made.down()


def inside(prefix: list[str], *argv: str, check: bool = True) -> str:
    done = subprocess.run([*prefix, *argv], capture_output=True, text=True, timeout=20)
    assert not check or done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def reach(prefix: list[str], address: str, port: int) -> str:
    """Connect there and read a line; or the error."""
    code = (f"import socket; s = socket.create_connection(({address!r}, {port}), 3); "
            "print(s.makefile().readline().strip())")
    return inside(prefix, "python3", "-c", code, check=False)


def test_ports_have_addresses_of_their_own(network):
    ports = [network.port(rank) for rank in range(3)]
    assert [port.address for port in ports] == ["10.77.0.1", "10.77.0.2", "10.77.0.3"]
    assert {port.prefix for port in ports} == {24}
    assert len({port.mac for port in ports}) == 3
    with pytest.raises(IndexError):
        network.port(3)


def test_a_namespace_is_configured(network):
    port = network.port(1)
    said = inside(port.enter(), "ip", "addr")
    assert "10.77.0.2/24" in said and port.mac in said and "127.0.0.1/8" in said
    assert port.namespace() == port.namespace()
    names = [line.split()[1] for line in inside(port.enter(), "ip", "-o", "link").splitlines()]
    assert sorted(name.split("@")[0].rstrip(":") for name in names) == ["eth0", "lo"]


def test_machines_reach_each_other_and_no_way_out(network, lab, host):
    code = ("import socket; s = socket.create_server(('10.77.0.2', 5000))\n"
            "print('up', flush=True)\n"
            "while True: s.accept()[0].sendall(b'hello\\n')")
    server = host.spawn([*network.port(1).enter(), "python3", "-c", code])
    assert server.stdout.readline() == b"up\n"
    assert reach(network.port(0).enter(), "10.77.0.2", 5000) == "hello\n"
    assert "unreachable" in reach(network.port(0).enter(), "192.0.2.1", 80).lower()
    assert "hello" not in reach([], "10.77.0.2", 5000)  # nor in: the host is not on it
    server.kill()
    server.close()


def test_a_tap_is_on_the_bridge(network):
    prefix, tap = network.port(2).tap()
    assert network.port(2).tap() == (prefix, tap)
    assert "master br0" in inside(prefix, "ip", "-o", "link", "show", "dev", tap)
    assert not os.path.exists(f"/sys/class/net/{tap}")


def test_two_networks_do_not_meet(network, lab):
    other = LabNetwork(lab, 1)
    try:
        assert other.port(0).address == network.port(0).address
        links = inside(other.enter(), "ip", "-o", "link")
        network.port(0).namespace()
        assert inside(other.enter(), "ip", "-o", "link") == links
    finally:
        other.down()


def test_down_leaves_nothing(lab):
    network = LabNetwork(lab, 2)
    network.port(0).namespace()
    network.port(1).tap()
    assert len(cleanup.leftovers(lab)) >= 2
    network.down()
    network.down()
    assert cleanup.leftovers(lab) == []


def test_what_cannot_be_made_is_said(lab, monkeypatch):
    with pytest.raises(MachineFailed, match="1 to 250"):
        LabNetwork(lab, 0)
    with pytest.raises(MachineFailed, match="cannot be made: Error: Unknown device type[.] "):
        from nearmetal.machines import network as module

        module._keeper(lab, "ip link add nonsense type nonsense;")
