# SPDX-License-Identifier: Apache-2.0
"""What calls that share a bridge do to each other, step by step; see tests/kernel for the rest."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec import structs

from pycni.errors import CniError, KernelError, LinkExists, NotFound, TryAgain, Unsupported
from pycni.kernel.types import Address, Link
from pycni.model.addresses import IPInterface, parse_cidr
from pycni.model.deadline import Deadline
from pycni.model.names import Mac
from pycni.net import bridges
from pycni.net.undo import Undo

GATEWAY = parse_cidr("10.1.2.1/24")


def link(name: str, index: int, **fields: Any) -> Link:
    """A link with nothing special about it."""
    defaults: dict[str, Any] = {
        "mac": Mac("02:00:00:00:00:01"),
        "mtu": 1500,
        "kind": "veth",
        "up": True,
        "promisc": False,
        "allmulti": False,
        "loopback": False,
        "master": 0,
        "peer_index": 0,
        "peer_netnsid": None,
        "alias": "",
        "group": 0,
        "txqlen": 1000,
        "operstate": "up",
        "data": None,
        "port": None,
    }
    return Link(name=name, index=index, **(defaults | fields))


BRIDGE = link("cni0", 2, kind="bridge")


class FakeHost:
    """A host's links and the addresses of its bridge; `between` runs after each listing."""

    def __init__(self, *links: Link, addresses: Sequence[IPInterface] = ()) -> None:
        self.known = {held.index: held for held in links}
        self.held = list(addresses)
        self.written: list[str] = []
        self.between: Callable[[], None] = lambda: None
        self.refusal: KernelError | None = None
        self.links = self
        self.addresses = FakeAddresses(self)
        self.sysctl = self
        self.netns = None

    def find(self, name: str) -> Link | None:
        return next((held for held in self.known.values() if held.name == name), None)

    def get(self, key: int | str) -> Link:
        found = self.find(key) if isinstance(key, str) else self.known.get(key)
        assert found is not None
        return found

    def list(self, master: int) -> list[Link]:
        ports = [held for held in self.known.values() if held.master == master]
        self.between()
        return ports

    def add(self, name: str, kind: str, **_: object) -> None:
        if self.refusal is not None:
            self.between()
            raise self.refusal

    def set(self, index: int, **fields: Any) -> None:
        self.known[index] = structs.replace(self.known[index], **fields)

    def write(self, key: str, value: str) -> None:
        self.written.append(key)


class FakeAddresses:
    """The addresses of the one bridge."""

    def __init__(self, host: FakeHost) -> None:
        self.host = host

    def list(self, index: int) -> list[Address]:
        return [Address(index=index, address=held, flags=0, scope=0) for held in self.host.held]

    def add(self, index: int, cidr: IPInterface, *, nodad: bool) -> None:
        assert nodad is (cidr.version == 6)
        self.host.held.append(cidr)

    def remove(self, index: int, cidr: IPInterface) -> None:
        if cidr not in self.host.held:
            raise NotFound("remove address", str(cidr), errno.EADDRNOTAVAIL)
        self.host.held.remove(cidr)


def attach(host: FakeHost, index: int = 9) -> None:
    """Another call attaches its port."""
    host.known[index] = link(f"veth{index}", index, master=BRIDGE.index)


def test_a_gateway_goes_with_the_last_port() -> None:
    """A failing call takes the address it added back; its own port does not count."""
    host = FakeHost(BRIDGE, link("veth3", 3, master=2))
    with pytest.raises(CniError, match="later"), Undo() as undo:
        bridges.ensure_gateways(host, BRIDGE, [GATEWAY], own_port=3, force=False, undo=undo)
        assert [GATEWAY] == host.held
        raise CniError("later")
    assert [] == host.held


def test_a_gateway_that_others_rely_on_stays() -> None:
    """A port that attached meanwhile has seen the address."""
    host = FakeHost(BRIDGE, link("veth3", 3, master=2))
    with pytest.raises(CniError, match="later"), Undo() as undo:
        bridges.ensure_gateways(host, BRIDGE, [GATEWAY], own_port=3, force=False, undo=undo)
        attach(host)
        raise CniError("later")
    assert [GATEWAY] == host.held


def test_a_port_that_attaches_while_the_gateway_goes_gets_it_back() -> None:
    """Between the look and the removal another call may have found the address there."""
    host = FakeHost(BRIDGE, addresses=[GATEWAY])
    looks = itertools.count()
    host.between = lambda: attach(host) if next(looks) == 0 else None
    bridges.remove_gateway(host, BRIDGE, GATEWAY, own_port=3)
    assert [GATEWAY] == host.held


def test_a_gateway_that_is_gone_is_gone() -> None:
    """Absent is success."""
    bridges.remove_gateway(FakeHost(BRIDGE), BRIDGE, GATEWAY, own_port=3)


def test_an_address_that_is_there_is_not_written_again() -> None:
    """Idempotent: the second ADD of a network makes no change, and undoes none."""
    host = FakeHost(BRIDGE, addresses=[GATEWAY])
    with Undo() as undo:
        bridges.ensure_gateways(host, BRIDGE, [GATEWAY], own_port=3, force=True, undo=undo)
    assert [GATEWAY] == host.held


def test_an_error_names_what_is_in_the_way() -> None:
    """The message is the reference's; details and hint say what to do."""
    host = FakeHost(BRIDGE, addresses=[parse_cidr("10.9.9.1/24"), parse_cidr("fe80::1/64")])
    with pytest.raises(CniError) as caught, Undo() as undo:
        bridges.ensure_gateways(host, BRIDGE, [GATEWAY], own_port=3, force=False, undo=undo)
    assert '"cni0" already has an IP address different from 10.1.2.1/24' == caught.value.msg
    assert "it has 10.9.9.1/24; set forceAddress to replace it" == caught.value.details


def test_ipv6_gateways_are_in_each_other_s_way_only_where_they_overlap() -> None:
    """Forced: the overlapping one goes, the others stay."""
    overlapping, disjoint = parse_cidr("2001:db8::9/48"), parse_cidr("2001:db8:9::1/64")
    gateway = parse_cidr("2001:db8:0:1::1/64")
    host = FakeHost(BRIDGE, addresses=[GATEWAY, overlapping, disjoint])
    with Undo() as undo:
        bridges.ensure_gateways(host, BRIDGE, [gateway], own_port=3, force=True, undo=undo)
        undo.commit()
    assert [GATEWAY, disjoint, gateway] == host.held


def test_two_gateways_of_one_call_see_each_other() -> None:
    """Two IPv4 subnets cannot share a bridge, also when one ADD brings both."""
    host = FakeHost(BRIDGE, link("veth3", 3, master=2))
    wanted = [GATEWAY, parse_cidr("10.7.7.1/24")]
    with pytest.raises(CniError, match="already has an IP address"), Undo() as undo:
        bridges.ensure_gateways(host, BRIDGE, wanted, own_port=3, force=False, undo=undo)
    assert [] == host.held


def test_losing_the_race_to_make_the_bridge_is_fine() -> None:
    """Another call was first: its bridge is used, and never removed by us."""
    host = FakeHost()
    host.refusal = LinkExists("add bridge", "cni0", errno.EEXIST)
    host.between = lambda: host.known.update({2: BRIDGE})
    with Undo() as undo:
        assert bridges.ensure(host, "cni0", undo=undo) == BRIDGE
    assert {2: BRIDGE} == host.known


def test_losing_the_race_to_another_kind_of_link_is_not() -> None:
    """Whoever made it, it must be a bridge."""
    host = FakeHost()
    host.refusal = LinkExists("add bridge", "cni0", errno.EEXIST)
    host.between = lambda: host.known.update({2: link("cni0", 2, kind="ifb")})
    with pytest.raises(CniError, match="is not a bridge"), Undo() as undo:
        bridges.ensure(host, "cni0", undo=undo)


def test_a_port_that_stays_down_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference's words, after as long as it waits."""
    monkeypatch.setattr(bridges, "PORT_TIMEOUT_S", 0.005)
    port = link("veth3", 3, master=2, operstate="down")
    with pytest.raises(CniError, match=r"^bridge port in error state: down$"):
        bridges.wait_for_port(FakeHost(BRIDGE, port), port, BRIDGE, Deadline(10))


def test_waiting_for_a_port_ends_with_the_call() -> None:
    """Code 11 when the caller's time is up."""
    port = link("veth3", 3, master=2, operstate="down")
    with pytest.raises(TryAgain):
        bridges.wait_for_port(FakeHost(BRIDGE, port), port, BRIDGE, Deadline(0.005))


def test_a_port_whose_bridge_was_taken_away_is_tried_again() -> None:
    """Code 11: the call that made the bridge failed, and removed it while we attached."""
    port = link("veth3", 3, master=0)
    with pytest.raises(TryAgain, match="cni0 was removed"):
        bridges.wait_for_port(FakeHost(port), port, BRIDGE, Deadline(10))


def test_only_an_unknown_kind_is_unsupported() -> None:
    """EINVAL is the answer hoped for; another refusal passes as it is."""
    host = FakeHost()
    host.refusal = KernelError("add bridge", "pycni-probe", errno.EINVAL)
    bridges.expect_kinds(host, "bridge")
    host.refusal = Unsupported("add bridge", "pycni-probe", errno.EOPNOTSUPP)
    with pytest.raises(Unsupported, match=r"^make a bridge") as caught:
        bridges.expect_kinds(host, "bridge")
    assert "the kernel needs the module bridge" in caught.value.details
    host.refusal = KernelError("add bridge", "pycni-probe", errno.EPERM)
    with pytest.raises(KernelError, match="not permitted"):
        bridges.expect_kinds(host, "bridge")
