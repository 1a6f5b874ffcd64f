# SPDX-License-Identifier: Apache-2.0
"""containerd's `ctr run --cni` runs our plugins."""

from __future__ import annotations

import json

import pytest

from tests.clients.images import PAGE
from tests.clients.machine import PYCNI, Machine
from tests.clients.runtimes import EDGE, Containerd, add_network

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(180)]

# What every plugin of `edge` did for a container, and whom it reaches; `-x` tells what it was not.
LOOK = """set -ex
ip addr show eth0 | grep 10.2.0.2/16
ip addr show eth0 | grep fd00:10:2::2/64
grep '^500$' /proc/sys/net/core/somaxconn
for there in 10.2.0.1 fd00:10:2::1 192.0.2.2 2001:db8::2; do ping -c1 -W5 $there; done
"""


def add_edge(machine: Machine, name: str = "10-edge.conflist") -> None:
    """The network `edge` where containerd looks first."""
    add_network(machine, name, json.loads(EDGE.read_text()))


def test_a_container_on_edge(containerd: Containerd) -> None:
    """It has both addresses and gets out, masqueraded; after it nothing is left."""
    add_edge(containerd.machine)
    containerd.run("c1", "sh", "-c", LOOK)
    assert [] == containerd.machine.left()


def test_containers_beside_each_other(containerd: Containerd) -> None:
    """Each has its own address, they reach each other, and one's end is not the other's."""
    machine = containerd.machine
    add_edge(machine)
    containerd.start("c1")
    containerd.start("c2")
    assert PAGE == machine.fetch("http://10.2.0.2/index.html")
    address = "http://[fd00:10:2::3]/index.html"
    containerd.execute("c1", "wget", "-q", "-O", "/page", address)
    containerd.stop("c1")
    assert PAGE == machine.fetch(address)
    assert 1 == len(machine.veths())
    assert ["edge/10.2.0.3", "edge/fd00:10:2::3"] == machine.leases()
    containerd.stop("c2")
    assert [] == machine.left()


def test_a_whole_network_in_one_exec(containerd: Containerd) -> None:
    """A list of one plugin, `pycni`, does all that `edge` does; and takes it back."""
    machine = containerd.machine
    add_edge(machine, "50-edge.conflist")
    machine.run(PYCNI, "install", "--conf-dir", "/etc/cni/net.d", "--network", "edge")
    containerd.run("c1", "sh", "-c", LOOK)
    assert [] == machine.left()
    assert ["pycni"] == [
        plugin["type"]
        for plugin in machine.json("cat", "/etc/cni/net.d/10-edge.conflist")["plugins"]
    ]
