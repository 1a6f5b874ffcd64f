# SPDX-License-Identifier: Apache-2.0
"""A container interface's addresses and routes, from a result: give them, announce them, expect
them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence

from pycni.errors import CniError, KernelError, Unsupported, doing
from pycni.kernel.addresses import Addresses
from pycni.kernel.routes import Routes
from pycni.kernel.side import Side
from pycni.kernel.sysctl import Sysctl
from pycni.kernel.types import MAIN_TABLE, SCOPE_UNIVERSE
from pycni.kernel.types import Route as KernelRoute
from pycni.model.addresses import IPAddress, IPInterface
from pycni.model.deadline import Deadline
from pycni.model.names import Mac
from pycni.model.result import Result, Route

# As long as the reference waits; duplicate address detection takes one second and a bit, and
# where it is off, a tenth of a millisecond.
DAD_TIMEOUT_S = 5.0
FIRST_PAUSE_S = 0.0001
LONGEST_PAUSE_S = 0.02

FORWARDING = {4: "net/ipv4/ip_forward", 6: "net/ipv6/conf/all/forwarding"}


class Unreachable(CniError):
    """CHECK: an address or a route of the result is not there any more."""


def configure(
    container: Side,
    index: int,
    ifname: str,
    result: Result,
    *,
    deadline: Deadline,
    detect_duplicates: bool = False,
) -> None:
    """Bring the interface up with the addresses and routes the result has for it.

    With `detect_duplicates` the network is given a second to say that an address is taken.
    """
    later = prepare(container, ifname, result, detect_duplicates=detect_duplicates)
    assign(container, index, ifname, result)
    settle(container, index, ifname, result, later, deadline=deadline)


def prepare(
    container: Side,
    ifname: str,
    result: Result,
    *,
    detect_duplicates: bool = False,
    announce: bool = True,
    solicit_routers: bool = True,
) -> dict[str, str]:
    """Set the interface's parameters, each as far as the kernel has it and lets us.

    With `announce` the kernel announces the IPv6 addresses as soon as they can be used. Without
    `solicit_routers` it does not ask for router advertisements, but still takes them. Without
    either there is no hurry to be heard, and it reports its multicast groups by MLD version 1: at
    once, for a bridge's port that lets nothing in yet, and again within ten seconds; version 2
    would be heard by every port three times within one.

    Returns the parameters to set once the addresses can be used (`settle`).
    None is worth failing for: where one matters, adding the address fails and says so. A kernel
    without IPv6 serves IPv4 (plugins #102).
    """
    own = f"net/ipv6/conf/{ifname}"
    settings = {
        f"net/ipv4/conf/{ifname}/arp_notify": "1",
        f"{own}/accept_dad": "1" if detect_duplicates else "0",
    }
    later: dict[str, str] = {}
    if not solicit_routers:
        settings[f"{own}/router_solicitations"] = "0"
    mld = "" if announce or solicit_routers else f"{own}/force_mld_version"
    switches: list[str] = []
    if detect_duplicates:
        settings[f"{own}/enhanced_dad"] = "1"
    if any(address.version == 6 for address in addresses_of(result, ifname)):
        (settings if announce else later)[f"{own}/ndisc_notify"] = "1"
        settings[f"{own}/keep_addr_on_down"] = "1"
        switches = ["net/ipv6/conf/lo/disable_ipv6", f"{own}/disable_ipv6"]

    def write() -> None:
        if mld:
            with contextlib.suppress(KernelError):
                later[mld] = container.sysctl.read(mld)
                container.sysctl.write(mld, "1")
        for key, value in settings.items():
            with contextlib.suppress(KernelError):
                container.sysctl.write(key, value)
        for key in switches:
            # Read first: writing this one waits for the lock of all of networking, and spins.
            with contextlib.suppress(KernelError):
                if container.sysctl.read(key) != "0":
                    container.sysctl.write(key, "0")
        container.rtnl  # noqa: B018 - opened while a thread is inside anyway

    container.run(write)
    return later


def assign(
    container: Side,
    index: int,
    ifname: str,
    result: Result,
    *,
    mac: Mac | None = None,
    announce: bool = True,
) -> None:
    """Give the interface the addresses and routes the result has for it, and have it up.

    With `announce` the kernel announces IPv4 addresses when the interface comes up (arp_notify).
    If that is up before, give `mac`, its MAC: setting that, even to what it is, does the same
    (NETDEV_CHANGEADDR), so that a reused address works at once and not when ARP caches expire.

    Without `announce` the interface must be down; it takes `mac` and is up before it has anything
    to announce.
    """
    addresses = addresses_of(result, ifname)
    with doing(f"configure {ifname}"), container.batch():
        if not announce:
            container.links.set(index, up=True, mac=mac)
        for address in addresses:
            container.addresses.add(index, address)
        if announce:
            ipv4 = any(address.version == 4 for address in addresses)
            container.links.set(index, up=True, mac=mac if ipv4 else None)
        for route in _routes(result, index):
            # append: ECMP routes to one destination stand beside each other.
            container.routes.add(route, append=True)


def settle(
    container: Side,
    index: int,
    ifname: str,
    result: Result,
    later: Mapping[str, str],
    *,
    deadline: Deadline,
) -> None:
    """Wait until the interface's IPv6 addresses can be used, then set what `prepare` left.

    IPv6 addresses are added as tentative, and waited for, even where nobody is asked whether
    they are taken (`prepare`, RFC 4862): the kernel joins the group that is asked for their MAC
    in a worker of its own, and until then a neighbour's question is lost for a second. That is
    also when it announces them (ndisc_notify).
    """
    if not later and all(address.version == 4 for address in addresses_of(result, ifname)):
        return
    with doing(f"configure {ifname}"):
        wait_until_usable(container, index, deadline)

    def write() -> None:
        for key, value in later.items():
            with contextlib.suppress(KernelError):  # as in `prepare`
                container.sysctl.write(key, value)

    if later:
        container.run(write)


def wait_until_usable(container: Side, index: int, deadline: Deadline) -> None:
    """Wait until no IPv6 address of the interface is tentative; raise if one is taken."""
    pause, left = FIRST_PAUSE_S, DAD_TIMEOUT_S
    while True:
        addresses = container.addresses.list(index=index, family=6)
        for address in addresses:
            if address.dad_failed:
                raise CniError(f"{address.address} is in use by another host on the link")
        waiting = [address for address in addresses if address.tentative]
        if not waiting:
            return
        if left <= 0:
            if container.links.get(index).operstate != "up":
                return  # nobody can object before there is a carrier
            raise CniError(f"{waiting[0].address} is still tentative")
        deadline.sleep(pause)
        left -= pause
        pause = min(2 * pause, LONGEST_PAUSE_S)


def enable_forwarding(sysctl: Sysctl, families: Iterable[int]) -> None:
    """Make the host forward packets of these families (4, 6)."""
    for family in sorted(set(families)):
        # Read first: writing IPv6's walks all interfaces, even when nothing changes.
        if sysctl.read(FORWARDING[family]) != "1":
            sysctl.write(FORWARDING[family], "1")


def expect_forwarding_possible(sysctl: Sysctl) -> None:
    """Raise if the host cannot be made to forward; changes nothing."""
    for family, key in FORWARDING.items():
        try:
            value = sysctl.read(key)
        except Unsupported:
            if family == 4:
                raise
            continue
        if value != "1":
            sysctl.write(key, value)  # the same value: only to see whether we may


def addresses_of(result: Result, ifname: str) -> list[IPInterface]:
    """The addresses the result has for the interface; one without an interface is nobody's."""
    if result.ips and not result.interfaces:
        raise CniError("no interfaces to configure")
    addresses = []
    for ip in result.ips:
        if ip.interface is None:
            continue
        known = 0 <= ip.interface < len(result.interfaces)
        if not known or result.interfaces[ip.interface].name != ifname:
            raise CniError(
                f'failed to add IP addr {ip.address} to "{ifname}": invalid interface index'
            )
        addresses.append(ip.address)
    return addresses


def addresses_on(result: Result, ifname: str) -> list[IPInterface]:
    """The addresses a whole chain's result has on the interface, or leaves open where."""
    names = dict(enumerate(interface.name for interface in result.interfaces))
    return [
        ip.address for ip in result.ips if ip.interface is None or names.get(ip.interface) == ifname
    ]


def expect_addresses(addresses: Addresses, index: int, expected: Iterable[IPInterface]) -> None:
    """Raise unless the interface has every address, with its prefix length."""
    present = {a.address for a in addresses.list(index=index) if not a.dad_failed}
    for address in expected:
        if address not in present:
            raise Unreachable(f"the interface has lost its address {address}")


def expect_routes(routes: Routes, expected: Iterable[Route]) -> None:
    """Raise unless every route is there, in whatever table.

    Later plugins of the chain move routes to other tables (sbr, vrf) and give default routes
    another gateway (SPEC P7b); a route without a gateway got one of ours (plugins #886).
    """
    present = [route for route in routes.list() if route.type == "unicast"]
    for route in expected:
        network = route.dst.network
        gateway = route.gw if network.prefixlen else None
        if not any(
            found.dst == network and (gateway is None or found.gateway == gateway)
            for found in present
        ):
            via = "" if route.gw is None else f" via {route.gw}"
            raise Unreachable(f"the route to {network}{via} is missing")


def _routes(result: Result, index: int) -> list[KernelRoute]:
    """The result's routes through the interface, each once, with the gateways filled in."""
    gateways: dict[int, IPAddress] = {}
    for ip in result.ips:
        if ip.interface is not None and ip.gateway is not None:
            gateways.setdefault(ip.address.version, ip.gateway)
    routes = [
        KernelRoute(
            dst=route.dst.network,
            gateway=route.gw or gateways.get(route.dst.version),
            index=index,
            table=route.table or MAIN_TABLE,
            priority=route.priority or None,
            # Universe also without a gateway, as the reference.
            scope=route.scope or SCOPE_UNIVERSE,
            mtu=route.mtu or None,
            advmss=route.advmss or None,
        )
        for route in result.routes
    ]
    return _unique(routes)


def _unique(routes: Sequence[KernelRoute]) -> list[KernelRoute]:
    return [route for at, route in enumerate(routes) if route not in routes[:at]]
