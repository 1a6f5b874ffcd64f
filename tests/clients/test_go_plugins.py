# SPDX-License-Identifier: Apache-2.0
"""Beside Debian's Go plugins: chains of both, run by either's runtime, and a node switched over."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.clients.images import PAGE, make_rootfs
from tests.clients.machine import PYCNI, Machine
from tests.clients.runtimes import EDGE, WEB, Containerd, Podman, add_network

pytestmark = [pytest.mark.root, pytest.mark.go, pytest.mark.slow, pytest.mark.timeout(180)]

served = pytest.mark.parametrize("served", [False, True], ids=["executables alone", "service"])
# Who makes what in a chain with ports: their executables, with their own way to address.
mixed = pytest.mark.parametrize(
    "theirs", [("bridge", "host-local"), ("portmap", "tuning")], ids=" and ".join
)

NETNS = "/run/netns/c1"
URL = "http://192.0.2.1:8080/index.html"
PORTS = [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]


def expect_ports(machine: Machine, *, made_by_go: bool) -> None:
    """The page is seen from outside, through whose rules it should."""
    assert PAGE == machine.fetch(URL, outside=True)
    assert made_by_go == any("CNI-DN-" in rule for rule in machine.iptables_rules())
    mapped = [element for element in machine.nft_elements() if "8080" in json.dumps(element)]
    assert made_by_go != bool(mapped)


# -- chains of both ------------------------------------------------------------------------------


@mixed
def test_podman_runs_a_chain_of_both(
    machine: Machine, make_podman: Callable[..., Podman], theirs: tuple[str, ...]
) -> None:
    """Bridge of theirs with portmap of ours, and the reverse."""
    for name in theirs:
        machine.run("rm", f"{machine.bin}/{name}")
    podman = make_podman(machine)
    podman("network", "create", "--subnet", "10.99.0.0/24", "mixed")
    podman.start("web", "--network", "mixed", "-p", "8080:80")
    expect_ports(machine, made_by_go="portmap" in theirs)
    podman.remove("web")
    assert machine.refuses(URL)
    assert [] == machine.left()


@mixed
def test_cnitool_runs_a_chain_of_both(empty_machine: Machine, theirs: tuple[str, ...]) -> None:
    """Our runtime takes what CNI_PATH has from there, and the rest from itself."""
    machine = empty_machine
    machine.install_go_plugins(*theirs)
    add_network(machine, "10-mixed.conflist", mixed_network())
    make_container(machine)
    environment = {"CNI_PATH": str(machine.bin), "CAP_ARGS": json.dumps({"portMappings": PORTS})}
    tool = (PYCNI, "cnitool")
    machine.run(*tool, "add", "mixed", NETNS, **environment)
    expect_ports(machine, made_by_go="portmap" in theirs)
    if "portmap" not in theirs:  # whose CHECK looks for IPv4's rules among those of IPv6
        machine.run(*tool, "check", "mixed", NETNS, **environment)
    machine.run(*tool, "del", "mixed", NETNS, **environment)
    assert machine.refuses(URL)
    machine.run("ip", "netns", "delete", "c1")
    assert [] == machine.left()


@pytest.mark.parametrize("theirs", ["bridge", "portmap"])
def test_the_service_runs_a_chain_of_both(empty_machine: Machine, theirs: str) -> None:
    """What it has not built in is run from files: their `firewall`, and another by another name."""
    machine = empty_machine
    machine.install_go_plugins("firewall", theirs)
    machine.run("mv", f"{machine.bin}/{theirs}", f"{machine.bin}/their-{theirs}")
    network = mixed_network(**{theirs: f"their-{theirs}"})
    network["plugins"].append({"type": "firewall"})
    add_network(machine, "10-mixed.conflist", network)
    machine.serve()
    make_container(machine)
    machine.run(PYCNI, "add", "mixed", "c1", "--netns", NETNS, "--port", "8080:80")
    expect_ports(machine, made_by_go=theirs == "portmap")
    if theirs != "portmap":
        machine.run(PYCNI, "check", "mixed", "c1")
    machine.run(PYCNI, "del", "mixed", "c1")
    assert machine.refuses(URL)
    machine.run("ip", "netns", "delete", "c1")
    assert [] == machine.left()


def mixed_network(*, bridge: str = "bridge", portmap: str = "portmap") -> dict[str, Any]:
    """A bridge with ports, by these types."""
    ranges = [[{"subnet": "10.98.0.0/24"}], [{"subnet": "fd00:98::/64"}]]
    return {
        "cniVersion": "1.0.0",
        "name": "mixed",
        "plugins": [
            {
                "type": bridge,
                "bridge": "mixed0",
                "isGateway": True,
                "ipMasq": True,
                "ipam": {
                    "type": "host-local",
                    "ranges": ranges,
                    "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
                },
            },
            {"type": "tuning", "sysctl": {"net.core.somaxconn": "500"}},
            {"type": portmap, "capabilities": {"portMappings": True}},
        ],
    }


def make_container(machine: Machine) -> None:
    """A namespace with a web server in it."""
    root = make_rootfs(machine.directory)
    machine.run("ip", "netns", "add", "c1")
    command = ("ip", "netns", "exec", "c1", "chroot", str(root), "/bin/sh", "-c", WEB)
    machine.start(*command, log=machine.directory / "web.log")


# -- a node that is switched over ----------------------------------------------------------------


def switch_over(machine: Machine, *, served: bool) -> None:
    """Ours in the place of theirs, which are kept."""
    machine.run(PYCNI, "install", "--bin-dir", str(machine.bin), "--force")
    assert "bridge.pycni-backup" in machine.run("ls", str(machine.bin))
    if served:
        machine.serve()


@served
def test_podmans_containers_are_switched_over(
    empty_machine: Machine, make_podman: Callable[..., Podman], tmp_path: Path, *, served: bool
) -> None:
    """Running ones go on, new ones start beside them, and both leave nothing when they end."""
    machine = empty_machine
    machine.install_go_plugins()
    podman = make_podman(machine, plugin_dirs=())
    for number, name in enumerate(("net", "other"), 1):
        podman(
            "network", "create", "--ipv6", "--subnet", f"10.9{number}.0.0/24",
            "--subnet", f"fd00:9{number}::/64", name,
        )  # fmt: skip
    for number in (1, 2):
        podman.start(f"old{number}", "--network", "net", "-p", f"808{number}:80")
    podman("network", "connect", "other", "old2")
    assert machine.iptables_rules()
    switch_over(machine, served=served)
    podman.start("new", "--network", "net", "-p", "8083:80")
    for port in (8081, 8082, 8083):
        for address in ("192.0.2.1", "[2001:db8::1]"):
            page = machine.fetch(f"http://{address}:{port}/index.html", outside=True)
            assert PAGE == page, (address, port)
    for here, there in (("old1", "10.91.0.4"), ("new", "10.91.0.2"), ("new", "fd00:91::3")):
        podman.execute(here, "ping", "-c1", "-W5", there)
    podman("network", "disconnect", "other", "old2")
    assert {"net"} == {lease.partition("/")[0] for lease in machine.leases()}
    podman.remove("old1", "old2")
    assert ["net/10.91.0.4", "net/fd00:91::4"] == machine.leases()
    assert machine.refuses("http://192.0.2.1:8081/index.html")
    assert PAGE == machine.fetch("http://192.0.2.1:8083/index.html", outside=True)
    podman.remove("new")
    assert [] == machine.left()


@served
def test_containerds_containers_are_switched_over(
    empty_machine: Machine, tmp_path: Path, *, served: bool
) -> None:
    """As podman's."""
    machine = empty_machine
    machine.install_go_plugins()
    add_network(machine, "10-edge.conflist", json.loads(EDGE.read_text()))
    containerd = Containerd(machine, tmp_path)
    containerd.start("old1")
    containerd.start("old2")
    assert machine.iptables_rules()
    switch_over(machine, served=served)
    containerd.stop("old1")
    assert ["edge/10.2.0.3", "edge/fd00:10:2::3"] == machine.leases()
    assert 1 == len(machine.veths())
    containerd.start("new")
    for here, there in (("old2", "10.2.0.4"), ("new", "10.2.0.3"), ("new", "192.0.2.2")):
        containerd.execute(here, "ping", "-c1", "-W5", there)
    containerd.stop("old2")
    assert PAGE == machine.fetch("http://[fd00:10:2::4]/index.html")
    containerd.stop("new")
    assert [] == machine.left()
