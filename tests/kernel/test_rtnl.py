# SPDX-License-Identifier: Apache-2.0
"""Batches, threads, and addresses, routes, rules and neighbours as `ip` shows them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from ipaddress import ip_address, ip_interface, ip_network
from typing import Any

import pytest

from pycni.errors import AlreadyExists, KernelError, LinkExists, LinkNotFound, NotFound
from pycni.kernel.netns import Netns
from pycni.kernel.rtnl import Rtnl
from pycni.kernel.types import (
    LOCAL_TABLE,
    MAIN_TABLE,
    PROTOCOL_KERNEL,
    PROTOCOL_STATIC,
    SCOPE_HOST,
    Neighbour,
    Route,
    Rule,
)
from pycni.model.names import Mac
from tests.fix_netns import json_in, run_in

pytestmark = pytest.mark.root

MakeNetns = Callable[..., Netns]

DEFAULT4, DEFAULT6 = ip_network("0.0.0.0/0"), ip_network("::/0")
INDEX = 10  # of the link the tests use


@pytest.fixture
def namespace(make_netns: MakeNetns) -> Netns:
    """Where the tests work; it dies with whatever is in it."""
    return make_netns()


@pytest.fixture
def rtnl(namespace: Netns) -> Iterator[Rtnl]:
    """rtnetlink of that namespace, with one link `i0` that is up."""
    with Rtnl(namespace) as opened:
        opened.links.add("i0", "ifb", index=INDEX, up=True)
        yield opened


def addresses(namespace: Netns, device: str = "i0") -> list[dict[str, Any]]:
    """What `ip` shows on a link, without what the kernel added by itself."""
    (link,) = json_in(namespace, "ip", "-j", "address", "show", "dev", device)
    return [entry for entry in link["addr_info"] if not entry["local"].startswith("fe80")]


def routes(namespace: Netns, *selector: str) -> list[dict[str, Any]]:
    """What `ip` shows, without IPv6's own routes."""
    found = json_in(namespace, "ip", "-j", "-d", "route", "show", *selector)
    found += json_in(namespace, "ip", "-j", "-d", "-6", "route", "show", *selector)
    return [route for route in found if not route["dst"].startswith(("fe80", "ff00"))]


# Batches


def test_a_container_is_set_up_in_one_batch(namespace: Netns, rtnl: Rtnl) -> None:
    """Nothing happens before the block ends, everything after, in order."""
    with rtnl.batch():
        rtnl.links.set("lo", up=True)
        rtnl.addresses.add(INDEX, ip_interface("10.0.0.2/24"))
        rtnl.routes.add(Route(dst=DEFAULT4, gateway=ip_address("10.0.0.1")))
        assert [] == addresses(namespace)
    assert ["10.0.0.2"] == [entry["local"] for entry in addresses(namespace)]
    assert {"default", "10.0.0.0/24"} == {route["dst"] for route in routes(namespace)}


def test_a_new_link_can_be_used_in_the_batch_that_makes_it(namespace: Netns, rtnl: Rtnl) -> None:
    """By name, or by the index the caller chose; its alias too."""
    with rtnl.batch():
        rtnl.links.add("i1", "ifb", index=20, alias="cni:x")
        rtnl.links.set("i1", up=True)
        rtnl.addresses.add(20, ip_interface("10.0.0.3/24"))
    (link,) = json_in(namespace, "ip", "-j", "link", "show", "dev", "i1")
    assert ("cni:x", ["10.0.0.3"]) == (
        link["ifalias"],
        [entry["local"] for entry in addresses(namespace, "i1")],
    )


def test_a_batch_raises_the_first_refusal_and_has_done_the_rest(
    namespace: Netns, rtnl: Rtnl
) -> None:
    """Named by its own operation and target."""
    with (
        pytest.raises(LinkNotFound, match=r"^add address 10.0.0.3/24 to index 999: "),
        rtnl.batch(),
    ):
        rtnl.addresses.add(INDEX, ip_interface("10.0.0.2/24"))
        rtnl.addresses.add(999, ip_interface("10.0.0.3/24"))
        rtnl.links.add("i0", "ifb")
        rtnl.addresses.add(INDEX, ip_interface("10.0.0.4/24"))
    assert ["10.0.0.2", "10.0.0.4"] == [entry["local"] for entry in addresses(namespace)]


def test_a_batch_whose_block_raises_is_not_sent(namespace: Netns, rtnl: Rtnl) -> None:
    """And the next call is not in it any more."""
    with pytest.raises(ZeroDivisionError), rtnl.batch():
        rtnl.addresses.add(INDEX, ip_interface("10.0.0.2/24"))
        raise ZeroDivisionError
    rtnl.addresses.add(INDEX, ip_interface("10.0.0.3/24"))
    assert ["10.0.0.3"] == [entry["local"] for entry in addresses(namespace)]


def test_a_block_inside_a_block_joins_it(namespace: Netns, rtnl: Rtnl) -> None:
    """A recipe may batch whether or not its caller does."""
    with rtnl.batch():
        with rtnl.batch():
            rtnl.addresses.add(INDEX, ip_interface("10.0.0.2/24"))
        assert [] == addresses(namespace)
    assert 1 == len(addresses(namespace))


def test_reading_in_a_batch_sees_what_is_there_now(rtnl: Rtnl) -> None:
    """Queries are answered at once."""
    with rtnl.batch():
        rtnl.addresses.add(INDEX, ip_interface("10.0.0.2/24"))
        assert [] == rtnl.addresses.list(INDEX, family=4)
    assert 1 == len(rtnl.addresses.list(INDEX, family=4))


def test_a_batch_belongs_to_its_thread(namespace: Netns, rtnl: Rtnl) -> None:
    """Another thread's call in the meantime is neither queued nor lost."""
    with rtnl.batch():
        rtnl.addresses.add(INDEX, ip_interface("10.0.0.2/24"))
        other = threading.Thread(
            target=rtnl.addresses.add, args=(INDEX, ip_interface("10.0.0.3/24"))
        )
        other.start()
        other.join()
        assert ["10.0.0.3"] == [entry["local"] for entry in addresses(namespace)]
    assert 2 == len(addresses(namespace))


def test_a_thousand_mutations_fit(namespace: Netns, rtnl: Rtnl) -> None:
    """More than one send, no acknowledgement lost."""
    with rtnl.batch():
        for number in range(1000):
            rtnl.addresses.add(INDEX, ip_interface(f"10.1.{number // 250}.{number % 250}/16"))
    assert 1000 == len(rtnl.addresses.list(INDEX, family=4))


def test_many_threads_share_one_socket(rtnl: Rtnl) -> None:
    """Each gets its own answers, among dumps, queries, mutations and refusals."""
    wrong: list[str] = []

    def work(number: int) -> None:
        name = f"t{number}"
        for _ in range(20):
            rtnl.links.add(name, "ifb", index=100 + number)
            if rtnl.links.get(name).index != 100 + number:
                wrong.append(f"{name} has another's index")
            if name not in {link.name for link in rtnl.links.list()}:
                wrong.append(f"{name} is not listed")
            try:
                rtnl.links.add(name, "ifb")
                wrong.append(f"{name} was made twice")
            except LinkExists as exc:
                if exc.target != name:
                    wrong.append(f"{name} got the error of {exc.target}")
            rtnl.links.set(name, name=None, mtu=1400)
            rtnl.links.remove(name)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [] == wrong


def test_a_socket_answers_for_its_namespace_from_any_thread(namespace: Netns, rtnl: Rtnl) -> None:
    """Also from a thread that is in another one."""
    with Netns.current() as outside:
        assert ["lo", "i0"] == [link.name for link in outside.run(rtnl.links.list)]


def test_a_closed_namespace_cannot_be_opened(make_netns: MakeNetns) -> None:
    """The error names its path."""
    with Netns.open(make_netns().path) as handle:
        path = handle.path
    with pytest.raises(KernelError, match=path):
        Rtnl(handle)


# Addresses


def test_addresses_are_added_as_asked(namespace: Netns, rtnl: Rtnl) -> None:
    """Broadcast for IPv4; scope, peer, flags."""
    rtnl.addresses.add(INDEX, ip_interface("10.0.0.2/24"))
    rtnl.addresses.add(INDEX, ip_interface("10.0.1.1/32"), scope=SCOPE_HOST)
    rtnl.addresses.add(INDEX, ip_interface("10.0.2.1/32"), peer=ip_interface("10.0.2.2/32"))
    rtnl.addresses.add(INDEX, ip_interface("fd00::2/64"), nodad=True, noprefixroute=True)
    shown = {entry["local"]: entry for entry in addresses(namespace)}
    first, second, third, fourth = (
        shown[ip] for ip in ("10.0.0.2", "10.0.1.1", "10.0.2.1", "fd00::2")
    )
    assert (24, "10.0.0.255") == (first["prefixlen"], first["broadcast"])
    assert ("host", False) == (second["scope"], "broadcast" in second)
    assert "10.0.2.2" == third["address"]
    assert (True, True) == (fourth["nodad"], fourth["noprefixroute"])
    assert "fd00::/64" not in {route["dst"] for route in routes(namespace)}


def test_addresses_are_listed_by_link_and_family(namespace: Netns, rtnl: Rtnl) -> None:
    """Made by `ip`, read by us."""
    run_in(namespace, "ip", "link", "set", "lo", "up")
    run_in(namespace, "ip", "address", "add", "10.0.0.2/24", "brd", "+", "dev", "i0")
    run_in(namespace, "ip", "address", "add", "fd00::2/64", "dev", "i0", "nodad")
    run_in(namespace, "ip", "address", "add", "10.0.2.1", "peer", "10.0.2.2/30", "dev", "i0")
    first, second = rtnl.addresses.list(INDEX, family=4)
    assert (INDEX, ip_interface("10.0.0.2/24"), ip_address("10.0.0.255"), None) == (
        first.index,
        first.address,
        first.broadcast,
        first.peer,
    )
    assert (ip_interface("10.0.2.1/30"), ip_interface("10.0.2.2/30")) == (
        second.address,
        second.peer,
    )
    assert first.permanent
    assert ip_interface("fd00::2/64") in {a.address for a in rtnl.addresses.list(INDEX, family=6)}
    assert {1, INDEX} == {address.index for address in rtnl.addresses.list()}
    assert {4} == {address.address.version for address in rtnl.addresses.list(family=4)}


def test_an_address_is_tentative_until_nobody_objects(namespace: Netns, rtnl: Rtnl) -> None:
    """Unless duplicate detection is left out."""
    rtnl.links.add("br0", "bridge", index=11, up=True)
    rtnl.addresses.add(11, ip_interface("fd00::1/64"))
    rtnl.addresses.add(11, ip_interface("fd00::2/64"), nodad=True)
    found = {str(a.address.ip): a.tentative for a in rtnl.addresses.list(11, family=6)}
    assert {"fd00::1": True, "fd00::2": False}.items() <= found.items()
    assert not any(a.dad_failed for a in rtnl.addresses.list(11))


def test_an_address_is_added_once(rtnl: Rtnl) -> None:
    """Twice is an error unless it may replace."""
    for cidr in (ip_interface("10.0.0.2/24"), ip_interface("fd00::2/64")):
        rtnl.addresses.add(INDEX, cidr)
        with pytest.raises(AlreadyExists, match=f"add address {cidr} to index {INDEX}"):
            rtnl.addresses.add(INDEX, cidr)
        rtnl.addresses.add(INDEX, cidr, replace=True)


def test_an_address_is_removed_once(namespace: Netns, rtnl: Rtnl) -> None:
    """Absent is NotFound, for both families; on no link LinkNotFound."""
    for cidr in (ip_interface("10.0.0.2/24"), ip_interface("fd00::2/64")):
        rtnl.addresses.add(INDEX, cidr)
        rtnl.addresses.remove(INDEX, cidr)
        with pytest.raises(NotFound, match=f"remove address {cidr} from index {INDEX}"):
            rtnl.addresses.remove(INDEX, cidr)
    assert [] == addresses(namespace)
    with pytest.raises(LinkNotFound):
        rtnl.addresses.remove(999, ip_interface("10.0.0.2/24"))
    with pytest.raises(LinkNotFound):
        rtnl.addresses.list(999)


# Routes


@pytest.fixture
def addressed(rtnl: Rtnl) -> Rtnl:
    """The link has an address of each family."""
    rtnl.addresses.add(INDEX, ip_interface("10.0.0.2/24"))
    rtnl.addresses.add(INDEX, ip_interface("fd00::2/64"), nodad=True)
    return rtnl


def test_routes_are_added_as_asked(namespace: Netns, addressed: Rtnl) -> None:
    """Metrics, priority, table, source, protocol; link scope where there is no gateway."""
    addressed.routes.add(
        Route(
            dst=DEFAULT4,
            gateway=ip_address("10.0.0.1"),
            priority=7,
            mtu=1300,
            advmss=1260,
            source=ip_address("10.0.0.2"),
            protocol=PROTOCOL_STATIC,
        )
    )
    addressed.routes.add(Route(dst=ip_network("10.9.0.0/16"), index=INDEX))
    addressed.routes.add(Route(dst=DEFAULT6, gateway=ip_address("fd00::1"), table=1000))
    addressed.routes.add(Route(dst=ip_network("10.8.0.0/16"), type="blackhole", table=1000))
    addressed.routes.add(
        Route(
            dst=ip_network("10.7.0.0/16"), gateway=ip_address("10.99.0.1"), index=INDEX, onlink=True
        )
    )
    addressed.routes.add(
        Route(dst=ip_network("10.6.0.0/16"), gateway=ip_address("fd00::1"), index=INDEX)
    )
    main = {route["dst"]: route for route in routes(namespace)}
    assert {
        "gateway": "10.0.0.1",
        "metric": 7,
        "prefsrc": "10.0.0.2",
        "protocol": "static",
        "metrics": [{"mtu": 1300, "advmss": 1260}],
    }.items() <= main["default"].items()
    assert ("link", "boot") == (main["10.9.0.0/16"]["scope"], main["10.9.0.0/16"]["protocol"])
    assert ["onlink"] == main["10.7.0.0/16"]["flags"]
    assert {"family": "inet6", "host": "fd00::1"} == main["10.6.0.0/16"]["via"]
    other = {route["dst"]: route for route in routes(namespace, "table", "1000")}
    assert ("fd00::1", "blackhole") == (other["default"]["gateway"], other["10.8.0.0/16"]["type"])


def test_routes_are_listed_by_table_family_and_link(namespace: Netns, addressed: Rtnl) -> None:
    """Made by `ip`, read by us; a table nobody made is empty."""
    for command in (
        "route add default via 10.0.0.1 mtu 1300 metric 5",
        "route add 10.9.0.0/16 dev i0 table 1000 proto static",
        "-6 route add default via fd00::1 advmss 1200",
    ):
        run_in(namespace, "ip", *command.split())
    (default,) = [r for r in addressed.routes.list(table=MAIN_TABLE, family=4) if r.default]
    assert (ip_address("10.0.0.1"), INDEX, 5, 1300) == (
        default.gateway,
        default.index,
        default.priority,
        default.mtu,
    )
    (other,) = addressed.routes.list(table=1000)
    assert (ip_network("10.9.0.0/16"), PROTOCOL_STATIC, 1000) == (
        other.dst,
        other.protocol,
        other.table,
    )
    (six,) = [r for r in addressed.routes.list(family=6, index=INDEX) if r.default]
    assert (1200, DEFAULT6) == (six.advmss, six.dst)
    assert {LOCAL_TABLE, MAIN_TABLE, 1000} == {r.table for r in addressed.routes.list()}
    assert [] == addressed.routes.list(table=77)
    with pytest.raises(LinkNotFound):
        addressed.routes.list(index=999)


def test_a_route_is_added_once(addressed: Rtnl) -> None:
    """Twice is an error; it may be replaced."""
    for gateway, other in (("10.0.0.1", "10.0.0.9"), ("fd00::1", "fd00::9")):
        dst = DEFAULT4 if "." in gateway else DEFAULT6
        addressed.routes.add(Route(dst=dst, gateway=ip_address(gateway)))
        with pytest.raises(AlreadyExists, match=f"add route {dst} via {other}"):
            addressed.routes.add(Route(dst=dst, gateway=ip_address(other)))
        addressed.routes.add(Route(dst=dst, gateway=ip_address(other)), replace=True)
        found = [r for r in addressed.routes.list(MAIN_TABLE, family=dst.version) if r.default]
        assert [ip_address(other)] == [route.gateway for route in found]


def test_routes_to_one_destination_stand_beside_each_other(
    namespace: Netns, addressed: Rtnl
) -> None:
    """IPv4 keeps two routes, IPv6 makes one with two next hops; we list two either way."""
    gateways = {4: ("10.0.0.1", "10.0.0.9"), 6: ("fd00::1", "fd00::9")}
    for version, dst in ((4, DEFAULT4), (6, DEFAULT6)):
        for gateway in gateways[version]:
            route = Route(dst=dst, gateway=ip_address(gateway))
            addressed.routes.add(route, append=True)
        with pytest.raises(AlreadyExists):
            addressed.routes.add(route, append=True)
        found = [r for r in addressed.routes.list(MAIN_TABLE, family=version) if r.default]
        assert set(gateways[version]) == {str(r.gateway) for r in found}
    six = json_in(namespace, "ip", "-j", "-6", "route", "show", "default")
    assert [2] == [len(route["nexthops"]) for route in six]


def test_a_route_is_removed_by_what_is_said_of_it(namespace: Netns, addressed: Rtnl) -> None:
    """The kernel's own too; absent is NotFound."""
    gateways = [ip_address("10.0.0.1"), ip_address("10.0.0.9")]
    for gateway in gateways:
        addressed.routes.add(Route(dst=DEFAULT4, gateway=gateway, mtu=1300), append=True)
    addressed.routes.remove(Route(dst=DEFAULT4, gateway=gateways[1]))
    assert ["10.0.0.1"] == [r.get("gateway") for r in routes(namespace) if r["dst"] == "default"]
    (listed,) = [r for r in addressed.routes.list(MAIN_TABLE, family=4) if r.default]
    addressed.routes.remove(listed)
    with pytest.raises(NotFound, match=r"^remove route 0.0.0.0/0: "):
        addressed.routes.remove(Route(dst=DEFAULT4))
    kernels = Route(dst=ip_network("10.0.0.0/24"), index=INDEX)
    assert [PROTOCOL_KERNEL] == [
        r.protocol for r in addressed.routes.list(MAIN_TABLE, family=4) if r.dst == kernels.dst
    ]
    addressed.routes.remove(kernels)
    assert [] == [r for r in routes(namespace) if r["dst"] == "10.0.0.0/24"]
    with pytest.raises(NotFound):
        addressed.routes.remove(Route(dst=DEFAULT6, gateway=ip_address("fd00::1")))


def test_the_route_of_a_packet(addressed: Rtnl) -> None:
    """As the kernel would choose; NotFound where it knows none."""
    addressed.routes.add(Route(dst=DEFAULT4, gateway=ip_address("10.0.0.1")))
    taken = addressed.routes.get(ip_address("192.0.2.1"))
    assert (ip_address("10.0.0.1"), INDEX, ip_address("10.0.0.2")) == (
        taken.gateway,
        taken.index,
        taken.source,
    )
    assert INDEX == addressed.routes.get(ip_address("fd00::77")).index
    with pytest.raises(NotFound, match="find route to 2001:db8::1: "):
        addressed.routes.get(ip_address("2001:db8::1"))
    for kind in ("unreachable", "blackhole", "prohibit"):
        addressed.routes.add(Route(dst=ip_network("10.9.0.0/16"), type=kind), replace=True)
        with pytest.raises(NotFound):
            addressed.routes.get(ip_address("10.9.0.1"))


def test_a_refused_route_says_why(rtnl: Rtnl) -> None:
    """In the kernel's words."""
    route = Route(dst=DEFAULT4, gateway=ip_address("10.0.0.1"), index=INDEX, table=1000)
    text = f"^add route 0.0.0.0/0 via 10.0.0.1 dev index {INDEX} table 1000: .*gateway"
    with pytest.raises(KernelError, match=text):
        rtnl.routes.add(route)


# Rules


def test_rules_are_added_as_asked_and_listed(namespace: Netns, rtnl: Rtnl) -> None:
    """`ip` shows what we made; we read what `ip` made."""
    rtnl.rules.add(Rule(src=ip_network("10.0.0.2/32"), table=100))
    rtnl.rules.add(
        Rule(
            src=ip_network("fd00::/64"),
            dst=ip_network("fd01::/64"),
            iif="i0",
            oif="lo",
            fwmark=0x10,
            fwmask=0xFF,
            table=1000,
            priority=55,
            invert=True,
            suppress_prefixlen=0,
        )
    )
    rtnl.rules.add(Rule(action="unreachable", table=None, priority=9))
    (four,) = [r for r in json_in(namespace, "ip", "-j", "rule") if r.get("table") == "100"]
    assert ("10.0.0.2", 32765) == (four["src"], four["priority"])
    (six,) = [r for r in json_in(namespace, "ip", "-j", "-6", "rule") if r["priority"] == 55]
    assert {
        "src": "fd00::",
        "srclen": 64,
        "dst": "fd01::",
        "dstlen": 64,
        "iif": "i0",
        "oif": "lo",
        "fwmark": "0x10",
        "fwmask": "0xff",
        "table": "1000",
        "not": None,
    }.items() <= six.items()
    run_in(namespace, "ip", "rule", "add", "to", "10.1.0.0/16", "lookup", "7", "pref", "77")
    (found,) = rtnl.rules.list(family=4, table=7)
    expected = Rule(dst=ip_network("10.1.0.0/16"), table=7, priority=77, protocol=0)
    assert expected == found
    assert {4, 6} == {rule.family for rule in rtnl.rules.list()}
    assert ["unreachable"] == [r.action for r in rtnl.rules.list(family=4) if r.priority == 9]
    assert [rtnl.rules.list(family=6)[0].priority] == [0]


def test_a_rule_is_added_once_and_removed_once(namespace: Netns, rtnl: Rtnl) -> None:
    """At one priority; removing matches what is said: here the source alone."""
    before = json_in(namespace, "ip", "-j", "rule")
    rule = Rule(src=ip_network("10.0.0.2/32"), table=100, priority=50)
    rtnl.rules.add(rule)
    with pytest.raises(AlreadyExists, match=r"^add rule from 10.0.0.2/32 lookup 100: "):
        rtnl.rules.add(rule)
    rtnl.rules.remove(Rule(src=ip_network("10.0.0.2/32"), table=None))
    with pytest.raises(NotFound, match=r"^remove rule from 10.0.0.2/32 to 10.0.0.0/8 lookup: "):
        rtnl.rules.remove(
            Rule(src=ip_network("10.0.0.2/32"), dst=ip_network("10.0.0.0/8"), table=None)
        )
    assert before == json_in(namespace, "ip", "-j", "rule")


# Neighbours


def test_neighbours_are_set_listed_and_removed(namespace: Netns, rtnl: Rtnl) -> None:
    """Of both families, again and again."""
    rtnl.links.add("br0", "bridge", index=11, up=True)
    for ip in ("10.0.0.1", "fd00::1"):
        for mac in ("02:00:00:00:00:01", "02:00:00:00:00:02"):
            entry = Neighbour(index=11, address=ip_address(ip), mac=Mac.parse(mac))
            rtnl.neighbours.replace(entry)
        shown = json_in(namespace, "ip", "-j", "neighbour", "show", ip, "dev", "br0")
        assert [(mac, ["PERMANENT"])] == [(seen["lladdr"], seen["state"]) for seen in shown]
        found = rtnl.neighbours.list(index=11, family=entry.address.version)
        assert [entry] == [neighbour for neighbour in found if neighbour.permanent]
        assert entry in rtnl.neighbours.list()
        found_one = rtnl.neighbours.find(11, entry.address)
        assert found_one is not None
        assert entry == found_one
        rtnl.neighbours.remove(entry)
        assert rtnl.neighbours.find(11, entry.address) is None
        with pytest.raises(NotFound, match=f"^remove neighbour {ip} of index 11: "):
            rtnl.neighbours.remove(entry)
    with pytest.raises(LinkNotFound):
        rtnl.neighbours.replace(Neighbour(index=99, address=ip_address("10.0.0.1"), mac=None))
