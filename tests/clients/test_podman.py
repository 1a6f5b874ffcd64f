# SPDX-License-Identifier: Apache-2.0
"""podman with its CNI backend runs our plugins, and Debian's Go firewall beside them."""

from __future__ import annotations

import json
import sys

import pytest

from tests.clients.images import PAGE
from tests.clients.machine import Machine
from tests.clients.runtimes import EDGE, Podman, add_network

pytestmark = [pytest.mark.root, pytest.mark.go, pytest.mark.slow, pytest.mark.timeout(180)]

# The host itself, and another machine, by the addresses of both families.
HERE = ("127.0.0.1", "192.0.2.1", "[2001:db8::1]")
OUTSIDE = ("192.0.2.1", "[2001:db8::1]")
# busybox has no server for datagrams: ours stands in the container's namespace.
ECHO = """
import socket
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
    server.bind(("0.0.0.0", 53))
    while True:
        server.sendto(*server.recvfrom(100))
"""
ASK = """
import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ask:
    ask.settimeout(2)
    for _ in range(20):
        ask.sendto(b"hello", ("192.0.2.1", int(sys.argv[1])))
        try:
            print(ask.recv(5).decode(), end="")
            break
        except OSError:
            pass
"""


def expect_page(machine: Machine, port: int) -> None:
    """The web server behind a published port is seen from everywhere."""
    for address in HERE:
        assert PAGE == machine.fetch(f"http://{address}:{port}/index.html"), address
    for address in OUTSIDE:
        page = machine.fetch(f"http://{address}:{port}/index.html", outside=True)
        assert PAGE == page, address


def create_network(podman: Podman, name: str, number: int) -> None:
    """`podman network create` with a subnet of each family."""
    podman(
        "network", "create", "--ipv6", "--subnet", f"10.{number}.0.0/24",
        "--subnet", f"fd00:{number}::/64", name,
    )  # fmt: skip


def test_a_published_port_leads_to_the_container(podman: Podman) -> None:
    """`podman network create` and `run -p`, TCP from here and outside; `rm` leaves nothing."""
    machine = podman.machine
    create_network(podman, "testnet", 99)
    podman.start("web", "--network", "testnet", "-p", "8080:80")
    assert "10.99.0.2/24" in podman.addresses("web")
    assert "fd00:99::2/64" in podman.addresses("web")
    expect_page(machine, 8080)
    podman.execute("web", "ping", "-c1", "-W5", "192.0.2.2")
    podman.remove("web")
    assert machine.refuses("http://127.0.0.1:8080/index.html")
    assert [] == machine.left()


def test_a_published_udp_port(podman: Podman) -> None:
    """Datagrams from outside reach the container, and the answers come back."""
    machine = podman.machine
    create_network(podman, "testnet", 99)
    podman.start("echo", "--network", "testnet", "-p", "5353:53/udp")
    netns = podman("inspect", "--format", "{{.NetworkSettings.SandboxKey}}", "echo").strip()
    log = machine.directory / "echo.log"
    machine.start("nsenter", f"--net={netns}", sys.executable, "-c", ECHO, log=log)
    outside = ("ip", "netns", "exec", "outside")
    assert "hello" == machine.run(*outside, sys.executable, "-c", ASK, "5353"), log.read_text()
    podman.remove("echo")
    assert [] == machine.left()


def test_a_container_on_two_networks(podman: Podman) -> None:
    """Each network gives an interface, an address and a way; all are gone afterwards."""
    machine = podman.machine
    # Without names of ours podman numbers the interfaces in an order that changes.
    for number, (name, interface) in enumerate({"one": "left", "two": "right"}.items(), 1):
        create_network(podman, name, 90 + number)
        podman.start(f"peer{number}", "--network", f"{name}:interface_name={interface}")
    both = ("--network", "one:interface_name=left", "--network", "two:interface_name=right")
    podman.start("web", *both, "-p", "8080:80")
    for number, interface in enumerate(("left", "right"), 1):
        assert f"10.9{number}.0.3/24" in podman.addresses("web", interface)
        assert f"fd00:9{number}::3/64" in podman.addresses("web", interface)
        podman.execute("web", "ping", "-c1", "-W5", f"10.9{number}.0.2")
        podman.execute("web", "ping", "-c1", "-W5", f"fd00:9{number}::2")
    expect_page(machine, 8080)
    podman.remove("web")
    assert machine.refuses("http://127.0.0.1:8080/index.html")
    assert 2 == len(machine.veths())
    podman.remove("peer1", "peer2")
    assert [] == machine.left()


def test_network_connect_and_disconnect(podman: Podman) -> None:
    """A running container joins a network, talks on it, and leaves it; its port goes on."""
    machine = podman.machine
    create_network(podman, "first", 93)
    create_network(podman, "second", 94)
    podman.start("mover", "--network", "first", "-p", "8080:80")
    podman.start("peer", "--network", "second")
    for _ in range(2):
        podman("network", "connect", "second", "mover")
        assert "10.94.0." in podman.addresses("mover", "eth1")
        podman.execute("mover", "ping", "-c1", "-W5", "10.94.0.2")
        expect_page(machine, 8080)
        podman("network", "disconnect", "second", "mover")
        assert "eth1" not in podman.execute("mover", "ip", "link")
        assert ["second/10.94.0.2", "second/fd00:94::2"] == leases(machine, "second")
    podman("network", "connect", "second", "mover")
    podman("network", "disconnect", "first", "mover")
    assert [] == leases(machine, "first")
    # The way out went with the first network: only neighbours get an answer.
    assert PAGE == machine.fetch("http://192.0.2.1:8080/index.html")
    podman.remove("mover", "peer")
    assert machine.refuses("http://192.0.2.1:8080/index.html")
    assert [] == machine.left()


def leases(machine: Machine, network: str) -> list[str]:
    """The addresses given out in one network."""
    return [lease for lease in machine.leases() if lease.startswith(f"{network}/")]


def test_a_whole_network_in_one_exec(podman: Podman) -> None:
    """A network of the one type `pycni` is `edge`, published ports included."""
    machine = podman.machine
    add_network(machine, "edge.conflist", json.loads(EDGE.read_text()))
    reference = {"type": "pycni", "network": "edge", "capabilities": {"portMappings": True}}
    whole = {"cniVersion": "1.0.0", "name": "whole", "plugins": [reference]}
    (podman.networks / "whole.conflist").write_text(json.dumps(whole))
    podman.start("web", "--network", "whole", "-p", "8080:80")
    assert "10.2.0.2/16" in podman.addresses("web")
    assert "500" == podman.execute("web", "cat", "/proc/sys/net/core/somaxconn").strip()
    expect_page(machine, 8080)
    podman.remove("web")
    assert machine.refuses("http://127.0.0.1:8080/index.html")
    assert [] == machine.left()
