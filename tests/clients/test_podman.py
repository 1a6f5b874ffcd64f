# SPDX-License-Identifier: Apache-2.0
"""podman with its CNI backend runs our plugins, and Debian's Go firewall beside them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.machine import GO_PLUGINS, Machine, make_rootfs, wait_until

pytestmark = [pytest.mark.root, pytest.mark.go, pytest.mark.slow, pytest.mark.timeout(180)]

LOCAL_IMAGE = "localhost/bb:1"
BROWSER = (
    "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=2).read().decode())"
)
WEB = "exec httpd -f -p 80 -h /"


class Podman:
    """podman on a machine, with storage and networks of its own."""

    def __init__(self, machine: Machine, directory: Path) -> None:
        self.machine = machine
        self.networks = directory / "net.d"
        config, storage = directory / "containers.conf", directory / "storage.conf"
        config.write_text(
            "[network]\n"
            'network_backend = "cni"\n'
            f'cni_plugin_dirs = ["{machine.bin}", "{GO_PLUGINS}"]\n'
            f'network_config_dir = "{self.networks}"\n'
            "[engine]\n"
            'runtime = "runc"\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
            "[containers]\n"
            'default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]\n'
        )
        storage.write_text(
            f'[storage]\ndriver = "vfs"\ngraphroot = "{directory}/storage"\nrunroot = "/run/pod"\n'
        )
        self._env = {"CONTAINERS_CONF": str(config), "CONTAINERS_STORAGE_CONF": str(storage)}
        rootfs = make_rootfs(directory)
        archive = directory / "rootfs.tar"
        machine.run("tar", "-C", str(rootfs), "-cf", str(archive), ".")
        self("import", str(archive), LOCAL_IMAGE)

    def __call__(self, *arguments: str, check: bool = True) -> str:
        return self.machine.run("podman", *arguments, check=check, timeout_s=90, **self._env)

    def start(self, name: str, *options: str) -> None:
        """Run a web server."""
        self("run", "-d", "--name", name, *options, LOCAL_IMAGE, "sh", "-c", WEB)

    def addresses(self, name: str, interface: str = "eth0") -> str:
        """What the container's interface says."""
        return self("exec", name, "ip", "addr", "show", interface)

    def remove(self, *names: str) -> None:
        """Stop at once and remove."""
        self("rm", "-f", "-t", "0", *names)


@pytest.fixture
def podman(machine: Machine, tmp_path: Path) -> Iterator[Podman]:
    """podman; whatever containers a test left are removed."""
    podman = Podman(machine, tmp_path)
    yield podman
    podman("rm", "-f", "-a", "-t", "0", check=False)


def fetch(machine: Machine, url: str) -> str:
    """The page a browser on the machine sees, once the server is up."""
    page: list[str] = []

    def answered() -> bool:
        page[:] = [machine.run(sys.executable, "-c", BROWSER, url, check=False)]
        return bool(page[0])

    wait_until(answered, url, 15)
    return page[0]


def test_a_published_port_leads_to_the_container(podman: Podman) -> None:
    """`podman network create` and `run -p`; `rm` leaves no link, no rule and no lease."""
    machine = podman.machine
    podman("network", "create", "--subnet", "10.99.0.0/24", "testnet")
    podman.start("web", "--network", "testnet", "-p", "8080:80")
    assert "10.99.0.2/24" in podman.addresses("web")
    assert "hello from inside" in fetch(machine, "http://127.0.0.1:8080/index.html")
    podman.remove("web")
    assert [] == machine.nft_elements()
    assert [] == machine.leases("testnet")
    assert not [link for link in machine.links() if link.startswith("veth")]


def test_a_container_on_two_networks(podman: Podman) -> None:
    """Each network gives an interface and an address; both are gone afterwards."""
    for name, number in (("one", 1), ("two", 2)):
        podman("network", "create", "--subnet", f"10.9{number}.0.0/24", name)
    podman.start("web", "--network", "one,two")
    assert "10.91.0." in podman.addresses("web", "eth0")
    assert "10.92.0." in podman.addresses("web", "eth1")
    podman.remove("web")
    assert [] == podman.machine.leases("one") + podman.machine.leases("two")


def test_network_connect_and_disconnect(podman: Podman) -> None:
    """A running container joins a network, talks on it, and leaves it again."""
    podman("network", "create", "--subnet", "10.93.0.0/24", "first")
    podman("network", "create", "--subnet", "10.94.0.0/24", "second")
    podman.start("mover", "--network", "first")
    podman.start("peer", "--network", "second")
    podman("network", "connect", "second", "mover")
    assert "10.94.0." in podman.addresses("mover", "eth1")
    podman("exec", "mover", "ping", "-c1", "-W2", "10.94.0.2")
    podman("network", "disconnect", "second", "mover")
    assert "eth1" not in podman("exec", "mover", "ip", "link")
    assert 1 == len(podman.machine.leases("second"))
