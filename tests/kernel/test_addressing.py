# SPDX-License-Identifier: Apache-2.0
"""Addresses and routes of a container interface, and the host's forwarding."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from pycni.errors import CniError, KernelError, TryAgain
from pycni.kernel.netns import Netns
from pycni.kernel.side import Side
from pycni.model.addresses import parse_cidr, parse_ip
from pycni.model.deadline import Deadline
from pycni.model.result import Interface, IPConfig, Result, Route
from pycni.net import addressing
from pycni.net.addressing import Unreachable
from tests.fix_netns import run_in

pytestmark = pytest.mark.root

MakeNetns = Callable[..., Netns]

# Two ends of one wire in one namespace are all it takes.
WIRE = "ip link add eth0 type veth peer other0"


@pytest.fixture
def side(make_netns: MakeNetns) -> Iterator[Side]:
    """A namespace with eth0 in it, whose other end is up."""
    namespace = make_netns("c1")
    run_in(namespace, *WIRE.split())
    run_in(namespace, "ip", "link", "set", "other0", "up")
    with Side(namespace) as side:
        yield side


def result(*addresses: str, gateway: str | None = None, routes: tuple[Route, ...] = ()) -> Result:
    """A result with these addresses on eth0."""
    return Result(
        interfaces=(Interface(name="eth0", sandbox="c1"),),
        ips=tuple(
            IPConfig(
                address=parse_cidr(address),
                gateway=parse_ip(gateway) if gateway else None,
                interface=0,
            )
            for address in addresses
        ),
        routes=routes,
    )


def configure(side: Side, result: Result, *, detect_duplicates: bool = False) -> int:
    """Configure eth0; its index."""
    index = side.links.get("eth0").index
    addressing.configure(
        side,
        index,
        "eth0",
        result,
        deadline=Deadline(10),
        detect_duplicates=detect_duplicates,
    )
    return index


def shown(side: Side, *what: str) -> str:
    """What `ip` shows."""
    return run_in(side.netns, "ip", *what)


def test_addresses_can_be_used_at_once(side: Side) -> None:
    """D40: no second is lost to duplicate address detection, unless asked for."""
    start = time.monotonic()
    configure(side, result("10.1.2.2/24", "2001:db8::2/64"))
    assert time.monotonic() - start < 0.5
    printed = shown(side, "address", "show", "dev", "eth0")
    assert "inet 10.1.2.2/24 brd 10.1.2.255 scope global eth0" in printed
    assert "inet6 2001:db8::2/64 scope global" in printed
    assert "tentative" not in printed
    # The group a neighbour asks for the MAC (RFC 4291, 2.7.1).
    assert "inet6 ff02::1:ff00:2" in shown(side, "maddress", "show", "dev", "eth0")


def test_an_interface_without_addresses_is_just_up(side: Side) -> None:
    """A result without ips is not an error."""
    configure(side, result())
    assert side.links.get("eth0").up


def test_routes_take_the_gateway_of_their_family(side: Side) -> None:
    """The first gateway of the family stands in for a route without one; each route goes once."""
    routes = (
        Route(dst=parse_cidr("0.0.0.0/0")),
        Route(dst=parse_cidr("0.0.0.0/0"), gw=parse_ip("10.1.2.1")),
        Route(dst=parse_cidr("192.0.2.7/24")),  # host bits are the network's business
        Route(dst=parse_cidr("2001:db8:1::/48")),
    )
    made = result("10.1.2.2/24", "2001:db8::2/64", gateway="10.1.2.1", routes=routes)
    ip6 = IPConfig(
        address=parse_cidr("2001:db8::2/64"), gateway=parse_ip("2001:db8::1"), interface=0
    )
    configure(side, Result(interfaces=made.interfaces, ips=(made.ips[0], ip6), routes=routes))
    printed = shown(side, "route")
    assert 1 == printed.count("default via 10.1.2.1 dev eth0")
    assert "192.0.2.0/24 via 10.1.2.1 dev eth0" in printed
    assert "2001:db8:1::/48 via 2001:db8::1 dev eth0" in shown(side, "-6", "route")


def test_a_route_without_any_gateway_is_on_the_link(side: Side) -> None:
    """As the reference: scope global, no next hop."""
    configure(side, result("10.1.2.2/24", routes=(Route(dst=parse_cidr("192.0.2.0/24")),)))
    assert "192.0.2.0/24 dev eth0" in shown(side, "route")


def test_a_refused_address_names_itself_and_the_interface(side: Side) -> None:
    """The error says what was being done."""
    run_in(side.netns, "ip", "address", "add", "10.1.2.2/24", "dev", "eth0")
    with pytest.raises(KernelError, match=r"add address 10\.1\.2\.2/24") as caught:
        configure(side, result("10.1.2.2/24"))
    assert "while configure eth0" in caught.value.details


@pytest.mark.parametrize("interface", [-1, 1, 7])
def test_an_address_of_another_interface_is_an_error(interface: int) -> None:
    """A0: out of range, or an interface of another name."""
    made = Result(
        interfaces=(Interface(name="eth0"), Interface(name="eth1")),
        ips=(IPConfig(address=parse_cidr("10.1.2.2/24"), interface=interface),),
    )
    message = r'^failed to add IP addr 10\.1\.2\.2/24 to "eth0": invalid interface index'
    with pytest.raises(CniError, match=message):
        addressing.addresses_of(made, "eth0")


def test_an_address_of_no_interface_is_skipped() -> None:
    """A0: silently; and without interfaces there is nothing to configure."""
    ips = (IPConfig(address=parse_cidr("10.1.2.2/24")),)
    made = Result(interfaces=(Interface(name="eth0"),), ips=ips)
    assert [] == addressing.addresses_of(made, "eth0")
    with pytest.raises(CniError, match=r"^no interfaces to configure$"):
        addressing.addresses_of(Result(ips=ips), "eth0")


def test_a_duplicate_address_is_detected(side: Side) -> None:
    """enabledad: somebody on the link has the address; ADD must not report success."""
    run_in(side.netns, *"ip address add 2001:db8::2/64 dev other0 nodad".split())
    side.sysctl.write("net/ipv6/conf/other0/accept_dad", 0)
    with pytest.raises(CniError, match=r"^2001:db8::2/64 is in use by another host"):
        configure(side, result("2001:db8::2/64"), detect_duplicates=True)


def test_detection_waits_no_longer_than_it_must(side: Side) -> None:
    """enabledad: when ADD returns the address is not tentative any more."""
    configure(side, result("2001:db8::2/64"), detect_duplicates=True)
    assert "tentative" not in shown(side, "address", "show", "dev", "eth0", "scope", "global")


def test_waiting_ends_with_the_call(side: Side) -> None:
    """The caller's deadline and cancellation end the wait for detection (code 11)."""
    index = configure(side, result())
    side.sysctl.write("net/ipv6/conf/eth0/accept_dad", 1)
    side.addresses.add(index, parse_cidr("2001:db8::2/64"))
    with pytest.raises(TryAgain):
        addressing.wait_until_usable(side, index, Deadline(0.01))
    cancelled = Deadline(10)
    cancelled.cancel()
    with pytest.raises(TryAgain):
        addressing.wait_until_usable(side, index, cancelled)


@pytest.mark.parametrize("carrier", [True, False])
def test_waiting_without_a_carrier_is_no_failure(
    side: Side, carrier: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A0: at the limit it is an error only if somebody could have answered."""
    index = configure(side, result())
    if not carrier:
        side.links.set("other0", up=False)
    side.sysctl.write("net/ipv6/conf/eth0/accept_dad", 1)
    side.addresses.add(index, parse_cidr("2001:db8::2/64"))
    monkeypatch.setattr(addressing, "DAD_TIMEOUT_S", 0.02)
    if carrier:
        with pytest.raises(CniError, match=r"^2001:db8::2/64 is still tentative"):
            addressing.wait_until_usable(side, index, Deadline(10))
    else:
        addressing.wait_until_usable(side, index, Deadline(10))


def test_expectations(side: Side) -> None:
    """CHECK: addresses with their prefix length, routes in any table and by any default gateway."""
    routes = (
        Route(dst=parse_cidr("0.0.0.0/0"), gw=parse_ip("10.1.2.1")),
        Route(dst=parse_cidr("192.0.2.0/24"), gw=parse_ip("10.1.2.9"), table=99),
    )
    index = configure(side, result("10.1.2.2/24", routes=routes))
    addressing.expect_addresses(side.addresses, index, [parse_cidr("10.1.2.2/24")])
    addressing.expect_routes(side.routes, routes)
    for address in ("10.1.2.2/25", "10.1.2.3/24"):
        with pytest.raises(Unreachable, match=f"has lost its address {address}"):
            addressing.expect_addresses(side.addresses, index, [parse_cidr(address)])
    addressing.expect_routes(
        side.routes,
        [
            Route(dst=parse_cidr("0.0.0.0/0"), gw=parse_ip("10.1.2.200")),
            Route(dst=parse_cidr("192.0.2.0/24")),
        ],
    )
    for lost, words in (
        (Route(dst=parse_cidr("192.0.2.0/24"), gw=parse_ip("10.1.2.8")), "via 10.1.2.8"),
        (Route(dst=parse_cidr("::/0")), "the route to ::/0 is missing"),
    ):
        with pytest.raises(Unreachable, match=words):
            addressing.expect_routes(side.routes, [lost])


def test_forwarding_is_enabled_per_family(side: Side) -> None:
    """Only for the families served; a second time writes nothing."""
    v4, v6 = "net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"
    addressing.enable_forwarding(side.sysctl, [4])
    assert {v4: "1", v6: "0"} == side.sysctl.read_all(v4, v6)
    addressing.enable_forwarding(side.sysctl, [4, 6, 4])
    assert {v4: "1", v6: "1"} == side.sysctl.read_all(v4, v6)
    # Writing 1 again would give every interface back its own forwarding.
    side.sysctl.write("net/ipv4/conf/eth0/forwarding", 0)
    addressing.enable_forwarding(side.sysctl, [4, 6])
    assert "0" == side.sysctl.read("net/ipv4/conf/eth0/forwarding")


def test_seeing_whether_forwarding_is_possible_changes_nothing(side: Side) -> None:
    """STATUS asks without acting."""
    addressing.expect_forwarding_possible(side.sysctl)
    assert "0" == side.sysctl.read("net/ipv4/ip_forward")


def test_a_parameter_the_kernel_lacks_is_no_failure(
    side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P#102: on a host without IPv6, IPv4 is served; STATUS says so too."""
    from pycni.kernel import sysctl

    def hide(key: str) -> str:
        if "/ipv6/" in key:
            return "/proc/sys/net/ipv6-is-missing"
        return f"{sysctl.ROOT}/{key}"

    monkeypatch.setattr(sysctl, "_path", hide)
    configure(side, result("10.1.2.2/24"))
    assert "1" == side.sysctl.read("net/ipv4/conf/eth0/arp_notify")
    addressing.enable_forwarding(side.sysctl, [4])
    addressing.expect_forwarding_possible(side.sysctl)
    assert "inet 10.1.2.2/24" in shown(side, "address", "show", "dev", "eth0")
