# SPDX-License-Identifier: Apache-2.0
"""containerd's `ctr run --cni` runs our plugins."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.clients.machine import IMAGE, Machine, make_image, wait_until

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(180)]

EDGE = Path(__file__).parents[2] / "deploy/networks/edge.json"


class Containerd:
    """A containerd of the test's own."""

    def __init__(self, machine: Machine, directory: Path) -> None:
        self.machine = machine
        self._socket = "/run/containerd-test.sock"
        config = directory / "containerd.toml"
        config.write_text(
            "version = 2\n"
            f'root = "{directory}/root"\nstate = "/run/containerd-test"\n'
            'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n'
            f'[grpc]\naddress = "{self._socket}"\n'
        )
        log = directory / "containerd.log"
        machine.start("containerd", "--config", str(config), log=log)
        wait_until(lambda: bool(self("version", check=False)), "containerd")
        self("images", "import", "--no-unpack", str(make_image(directory)))

    def __call__(self, *arguments: str, check: bool = True) -> str:
        command = ("ctr", "--address", self._socket, *arguments)
        return self.machine.run(*command, check=check, timeout_s=60)


@pytest.fixture
def containerd(machine: Machine, tmp_path: Path) -> Containerd:
    """containerd with the network `edge` in the default conf dir."""
    config = json.loads(EDGE.read_text())
    target = tmp_path / "10-edge.conflist"
    target.write_text(json.dumps(config))
    machine.run("cp", str(target), "/etc/cni/net.d/10-edge.conflist")
    return Containerd(machine, tmp_path)


def test_a_container_on_edge(containerd: Containerd) -> None:
    """It has both addresses and reaches its gateway; after it nothing is left."""
    printed = containerd(
        "run", "--rm", "--cni", "--snapshotter", "native", IMAGE, "c1",
        "sh", "-c", "ip addr show eth0; ping -c1 -W2 10.2.0.1",
    )  # fmt: skip
    assert "10.2.0.2/16" in printed
    assert "fd00:10:2::2/64" in printed
    assert "1 packets received" in printed
    machine = containerd.machine
    assert [] == machine.leases("edge")
    assert [] == machine.nft_elements()
    assert not [link for link in machine.links() if link.startswith("veth")]
