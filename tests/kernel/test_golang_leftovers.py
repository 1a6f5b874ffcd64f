# SPDX-License-Identifier: Apache-2.0
"""Rules that the Go plugins' nftables backends left: found by their comments, and removed."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address

import pytest

from pycni.kernel.netns import Netns
from pycni.kernel.side import Side
from pycni.net import golang_leftovers
from pycni.net.owner import Owner
from tests.fix_netns import run_in

pytestmark = [pytest.mark.root, pytest.mark.nft]


def masquerading(container_id: str, number: int, network: str = "podnet") -> str:
    """What ipMasq made of one address."""
    mark = golang_leftovers.masquerade_mark(network, container_id, "eth0")
    comment = f"{mark}, net: {network}, if: eth0, id: {container_id}"
    return f'ip saddr == 10.1.2.{number} ip daddr != 10.1.2.0/24 masquerade comment "{comment}"'


# What the plugins of 2026 leave after two containers on two networks, one with two host ports.
TABLES = f"""
table inet cni_plugins_masquerade {{
    chain masq_checks {{
        {masquerading("c1", 3)}
        {masquerading("c2", 4)}
        {masquerading("c1", 5, "other")}
    }}
    chain postrouting {{
        type nat hook postrouting priority 100
        ip daddr 224.0.0.0/4 return
        goto masq_checks
    }}
}}
table ip cni_hostport {{
    chain hostports {{
        tcp dport 8080 dnat to 10.1.2.3:80 comment "c1"
        ip daddr 192.0.2.1 udp dport 53 dnat to 10.9.9.3:53 comment "c1"
        tcp dport 8081 dnat to 10.1.2.4:80 comment "c2"
    }}
    chain hostip_hostports {{ }}
    chain hostports_all {{ jump hostip_hostports; jump hostports; }}
    chain prerouting {{
        type nat hook prerouting priority -100
        fib daddr type local jump hostports_all
    }}
    chain masquerading {{
        type nat hook postrouting priority 100
        ip saddr 10.1.2.3 ip daddr 10.1.2.3 masquerade comment "c1"
        ip saddr 127.0.0.1 ip daddr 10.1.2.3 masquerade comment "c1"
        ip saddr 127.0.0.1 ip daddr 10.9.9.3 masquerade comment "c1"
    }}
}}
table ip6 cni_hostport {{
    chain hostports {{ tcp dport 8080 dnat to [fd00::3]:80 comment "c1"; }}
}}
"""


C1 = Owner("podnet", "c1", "eth0")


def remove(side: Side) -> None:
    """What DEL of bridge and portmap do."""
    golang_leftovers.remove_masquerade(side, C1)
    golang_leftovers.remove_ports(side, C1)


@pytest.fixture
def side(host: Netns) -> Iterator[Side]:
    """A host where Go's plugins have been."""
    side = Side(host)
    side.nft.run(TABLES)
    yield side
    side.nft.run("flush ruleset")
    side.close()


def rules(host: Netns) -> list[str]:
    """The rules with a comment, as nft shows them."""
    listed = run_in(host, "nft", "list", "ruleset").splitlines()
    return [line.strip() for line in listed if "comment" in line]


def test_an_attachments_rules_go_and_others_stay(host: Netns, side: Side) -> None:
    """Masquerading by network, interface and container; host ports by container."""
    before = rules(host)
    remove(side)
    left = [
        line
        for line in before
        if 'comment "c1"' not in line and "net: podnet, if: eth0, id: c1" not in line
    ]
    assert 3 == len(left)
    assert left == rules(host)
    remove(side)
    assert left == rules(host)


def test_addresses_keep_the_host_ports_of_another_network(host: Netns, side: Side) -> None:
    """Go removes those of both: its comment does not say which network a rule is of."""
    addresses = [ip_address("10.1.2.3"), ip_address("fd00::3")]
    golang_leftovers.remove_ports(side, C1, addresses=addresses)
    left = [line for line in rules(host) if 'comment "c1"' in line]
    assert 2 == len(left)
    assert all("10.9.9.3" in line for line in left)


def test_gc_removes_masquerading_of_the_networks_invalid(host: Netns, side: Side) -> None:
    """Other networks and valid attachments keep theirs."""
    golang_leftovers.gc_masquerade(side, "podnet", [Owner("podnet", "c2", "eth0")])
    left = "".join(line for line in rules(host) if "net:" in line)
    assert "net: podnet, if: eth0, id: c1" not in left
    assert "net: podnet, if: eth0, id: c2" in left
    assert "net: other, if: eth0, id: c1" in left


def test_a_node_that_never_ran_go_is_left_alone(host: Netns) -> None:
    """A few lookups, and not even libnftables is opened."""
    side = Side(host)
    remove(side)
    golang_leftovers.gc_masquerade(side, "podnet", [])
    golang_leftovers.gc_ports(side, "podnet", [])
    assert side.nft._context is None
    assert "" == run_in(host, "nft", "list", "ruleset")
    side.close()
