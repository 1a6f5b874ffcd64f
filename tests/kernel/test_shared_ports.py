# SPDX-License-Identifier: Apache-2.0
"""A container on several networks wants its ports on each: the first has them, the others wait."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any

import pytest

from pycni.errors import CniError
from pycni.model.request import PortMapping
from pycni.net import hostports, ruleset
from pycni.net.hostports import PortInUse
from pycni.net.owner import Owner, is_of_container
from tests.fix_netns import run_in
from tests.nat import HOST, SILENCE_S, TCP, UDP, World

pytestmark = [pytest.mark.root, pytest.mark.nft]

WEB = PortMapping(hostPort=8080, containerPort=80)
DNS = PortMapping(hostPort=5353, containerPort=53, protocol="udp")
# One container, with an interface in each network: c1 and d1 stand for them.
FIRST, SECOND = Owner("web", "both", "eth0"), Owner("other", "both", "eth1")


def is_sibling(tag: str) -> bool:
    """Whether a tag is one of that container's."""
    return is_of_container(tag, "both", ["lo", "eth0", "eth1"])


def map_ports(nat: World, owner: Owner, *mappings: PortMapping, **options: Any) -> None:
    """Map ports to the container's address in a network."""
    addresses = nat.addresses("c1" if owner is FIRST else "d1")
    hostports.ensure(nat.nft, owner, mappings, addresses, is_sibling=is_sibling, **options)


def remove(nat: World, owner: Owner, *mappings: PortMapping) -> tuple[hostports.HostPort, ...]:
    """Unmap them, with hints if there are mappings."""
    addresses = nat.addresses("c1" if owner is FIRST else "d1")
    return hostports.remove(nat.nft, owner, mappings, addresses if mappings else ())


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("mappings", [(), (WEB, DNS)], ids=["without hints", "with hints"])
def test_a_port_goes_on_when_its_container_leaves_a_network(
    nat: World, version: int, mappings: tuple[PortMapping, ...]
) -> None:
    """It leads through the first network, then through the one that waited, then nowhere."""
    first, second = nat.serve("c1", TCP, 80), nat.serve("d1", TCP, 80)
    second_dns = nat.serve("d1", UDP, 53)
    map_ports(nat, FIRST, WEB, DNS)
    map_ports(nat, SECOND, WEB, DNS)
    assert nat.flow(first, "outside", HOST[version], 8080)
    for owner, name in ((FIRST, "c1"), (SECOND, "d1")):
        hostports.expect(nat.nft, owner, [WEB, DNS], nat.addresses(name))

    assert 4 == len(remove(nat, FIRST, *mappings))
    assert nat.flow(second, "outside", HOST[version], 8080)
    assert nat.flow(second_dns, "outside", HOST[version], 5353)
    hostports.expect(nat.nft, SECOND, [WEB, DNS], nat.addresses("d1"))

    assert 4 == len(remove(nat, SECOND, *mappings))
    assert not nat.flow(second, "outside", HOST[version], 8080, timeout_s=SILENCE_S)
    assert [] == nat.elements()


@pytest.mark.parametrize("mappings", [(), (WEB,)], ids=["without hints", "with hints"])
def test_who_waits_may_leave_first(nat: World, mappings: tuple[PortMapping, ...]) -> None:
    """The port stays where it was, and nobody waits any more."""
    first = nat.serve("c1", TCP, 80)
    map_ports(nat, FIRST, WEB)
    before = nat.elements()
    map_ports(nat, SECOND, WEB)
    assert () == remove(nat, SECOND, *mappings)
    assert before == nat.elements()
    assert nat.flow(first, "outside", HOST[4], 8080)


def test_waiting_twice_is_waiting_once(nat: World) -> None:
    """The same ADD again writes nothing."""
    map_ports(nat, FIRST, WEB)
    map_ports(nat, SECOND, WEB)
    generation = ruleset.table(nat.nft).generation()
    map_ports(nat, SECOND, WEB)
    assert generation == ruleset.table(nat.nft).generation()


def test_gc_passes_a_port_on(nat: World) -> None:
    """As DEL does."""
    second = nat.serve("d1", TCP, 80)
    map_ports(nat, FIRST, WEB)
    map_ports(nat, SECOND, WEB)
    hostports.gc(nat.nft, "web", [])
    assert nat.flow(second, "outside", HOST[4], 8080)
    hostports.gc(nat.nft, "other", [])
    assert [] == nat.elements()


def test_a_port_of_one_host_address_is_waited_for_too(nat: World) -> None:
    """hostIP is part of what is waited for."""
    second = nat.serve("d1", TCP, 80)
    specific = PortMapping(hostPort=8080, containerPort=80, hostIP=ip_address(HOST[4]))
    map_ports(nat, FIRST, specific)
    map_ports(nat, SECOND, specific)
    remove(nat, FIRST)
    assert nat.flow(second, "outside", HOST[4], 8080)


def test_other_containers_do_not_wait(nat: World) -> None:
    """They are refused, before anything is changed."""
    map_ports(nat, FIRST, WEB)
    before = run_in(nat.host, "nft", "list", "ruleset")
    stranger = Owner("other", "stranger", "eth0")
    with pytest.raises(PortInUse):
        hostports.ensure(
            nat.nft,
            stranger,
            [WEB],
            nat.addresses("d1"),
            is_sibling=lambda tag: is_of_container(tag, "stranger", ["eth0", "eth1"]),
        )
    assert before == run_in(nat.host, "nft", "list", "ruleset")


def test_conditions_are_not_waited_for(nat: World) -> None:
    """What holds a port under conditions cannot be written down as an element that waits."""
    map_ports(nat, FIRST, WEB, conditions_v4=["ip ttl > 1"])
    with pytest.raises(PortInUse):
        map_ports(nat, SECOND, WEB)


def test_a_check_fails_when_neither_is_there(nat: World) -> None:
    """Not mapped and not waiting: somebody took it away."""
    map_ports(nat, FIRST, WEB)
    map_ports(nat, SECOND, WEB)
    run_in(nat.host, "nft", "flush", "set", "inet", "pycni", "waiting_hostports4")
    with pytest.raises(CniError, match="not mapped: host port 8080/tcp"):
        hostports.expect(nat.nft, SECOND, [WEB], nat.addresses("d1"))
