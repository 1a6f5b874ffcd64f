# SPDX-License-Identifier: Apache-2.0
"""The bridge device that the attachments of a node share: make it once, agree on it, leave it.

Calls for different containers, even of different processes, meet here without a lock. What keeps
them apart is order: a call attaches its port before it relies on the bridge or its gateway
address, and a failing call removes those only while no other port is there, then looks again.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterable, Sequence

from pycni.errors import (
    AlreadyExists,
    CniError,
    KernelError,
    LinkExists,
    LinkNotFound,
    NotFound,
    TryAgain,
    Unsupported,
)
from pycni.kernel.links import Links
from pycni.kernel.rtnl import Rtnl
from pycni.kernel.side import Side
from pycni.kernel.types import Link
from pycni.model.addresses import IPInterface
from pycni.model.deadline import Deadline
from pycni.net.undo import Undo
from pycni.net.veth import random_mac

# As long as the reference waits in all; a port is up 0.1 to 0.6 ms after its peer.
PORT_TIMEOUT_S = 2.55
# Shared by networks, so no attachment's tag: the bridge of this name is ours to remove.
MADE_BY_US = "cni:bridge"
MAX_PORTS = 1023  # BR_MAX_PORTS (net/bridge/br_private.h) and no port 0
FIRST_PAUSE_S = 0.0001
LONGEST_PAUSE_S = 0.01


class NotABridge(CniError):
    """Another kind of link has the bridge's name."""


class BridgeFull(CniError):
    """The bridge has all the ports it can have."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"bridge {name} has no free port",
            f"a Linux bridge has at most {MAX_PORTS}",
            hint="delete attachments, or give further networks another `bridge`",
        )


def ensure(host: Side, name: str, *, mtu: int = 0, promisc: bool = False, undo: Undo) -> Link:
    """The bridge `name`, up; made if there is none, otherwise taken as it is."""
    bridge = host.links.find(name)
    if bridge is None:
        bridge = _create(host, name, mtu=mtu, undo=undo)
    _expect_kind(bridge)
    if promisc and not bridge.promisc:
        host.links.set(bridge.index, promisc=True)
        undo.push(_reset_promisc, host, bridge)
    if not bridge.up:
        host.links.set(bridge.index, up=True)
    return bridge


def ensure_gateways(
    host: Side,
    bridge: Link,
    gateways: Iterable[IPInterface],
    *,
    own_port: int,
    force: bool,
    undo: Undo,
) -> None:
    """Give the bridge the gateways' addresses; one of IPv4, and of IPv6 for disjoint subnets.

    An address in the way is an error, or with `force` replaced.
    """
    present = [held.address for held in host.addresses.list(index=bridge.index)]
    for gateway in gateways:
        if gateway not in present:
            replaced = _ensure_gateway(
                host, bridge, gateway, present, own_port=own_port, force=force, undo=undo
            )
            present = [gateway, *(other for other in present if other not in replaced)]


def _ensure_gateway(
    host: Side,
    bridge: Link,
    gateway: IPInterface,
    present: Sequence[IPInterface],
    *,
    own_port: int,
    force: bool,
    undo: Undo,
) -> list[IPInterface]:
    rivals = [other for other in present if _in_the_way(other, gateway)]
    if rivals and not force:
        raise CniError(
            f'"{bridge.name}" already has an IP address different from {gateway}',
            f"it has {', '.join(map(str, rivals))}",
            hint="set forceAddress to replace it",
        )
    for rival in rivals:
        with contextlib.suppress(NotFound):
            host.addresses.remove(bridge.index, rival)
            undo.push(_add_address, host, bridge, rival)
    _add_address(host, bridge, gateway)
    undo.push(remove_gateway, host, bridge, gateway, own_port=own_port)
    if bridge.mac is not None:
        # The kernel gives a bridge the lowest MAC of its ports, unless one was set: containers
        # would lose their gateway's whenever a port comes or goes (net/bridge/br_stp_if.c).
        host.links.set(bridge.index, mac=bridge.mac)
    return rivals


def remove_gateway(host: Side, bridge: Link, gateway: IPInterface, *, own_port: int) -> None:
    """Take the gateway's address back, unless other ports are there to rely on it."""
    if _others(host.links, bridge, own_port):
        return
    with contextlib.suppress(NotFound):
        host.addresses.remove(bridge.index, gateway)
        if _others(host.links, bridge, own_port):
            # A port attached since we looked, and perhaps saw the address before it went.
            _add_address(host, bridge, gateway)


def wait_for_port(links: Links, port: Link, bridge: Link, deadline: Deadline) -> None:
    """Wait until the bridge forwards for `port`, whose peer is up."""
    pause, left = FIRST_PAUSE_S, PORT_TIMEOUT_S
    while (link := links.get(port.index)).operstate != "up":
        if left <= 0:
            raise CniError(f"bridge port in error state: {link.operstate}")
        deadline.sleep(pause)
        left -= pause
        pause = min(2 * pause, LONGEST_PAUSE_S)
    if link.master != bridge.index:
        raise TryAgain(f"{bridge.name} was removed by another call that failed meanwhile")


def expect(links: Links, name: str) -> Link:
    """The bridge `name`; raise if it is missing, down, or not a bridge."""
    bridge = links.find(name)
    if bridge is None:
        raise CniError(f"bridge {name} is missing")
    _expect_kind(bridge)
    if not bridge.up:
        raise CniError(f"bridge {name} is down")
    return bridge


def expect_usable_name(links: Links, name: str) -> None:
    """Raise if something that is no bridge has the name."""
    bridge = links.find(name)
    if bridge is not None:
        _expect_kind(bridge)


def expect_kinds(links: Links, *kinds: str) -> None:
    """Raise Unsupported if the kernel cannot make a link of one of the kinds; makes none."""
    for kind in kinds:
        try:
            # Refused for its size after the kernel has looked up (and loaded) the kind.
            links.add("pycni-probe", kind, mtu=0x7FFFFFFF)
        except Unsupported as exc:
            raise Unsupported(
                "make", f"a {kind}", exc.errno, hint=f"the kernel needs the module {kind}"
            ) from exc
        except KernelError as exc:
            if exc.errno != errno.EINVAL:
                raise


def _create(host: Side, name: str, *, mtu: int, undo: Undo) -> Link:
    try:
        # Pin the MAC from the start; see ensure_gateway.
        host.links.add(name, "bridge", mtu=mtu or None, mac=random_mac(), up=True, alias=MADE_BY_US)
    except LinkExists:
        return host.links.get(name)  # another call was first; its kind is looked at by ours
    bridge = host.links.get(name)
    undo.push(_remove_unused, host, bridge)
    own = f"net/ipv6/conf/{name}"
    with contextlib.suppress(KernelError):  # no IPv6, or a read-only /proc/sys
        # While its link-local address is tentative, the node cannot ask for the containers' MACs
        # on behalf of others: a new bridge would forward nothing for a second (ndisc_solicit()).
        host.sysctl.write_all({f"{own}/accept_ra": 0, f"{own}/accept_dad": 0})
    return bridge


def remove_idle(host: Side, name: str) -> None:
    """Remove the bridge if it was made here and has no ports; one that was there before stays."""
    bridge = host.links.find(name)
    if bridge is not None and bridge.kind == "bridge" and bridge.alias == MADE_BY_US:
        _remove_unused(host, bridge)


def _remove_unused(host: Side, bridge: Link) -> None:
    # Not through the reaper, where it could wait for others between the look and the removal,
    # and not on the shared socket, which the removal would hold up.
    with Rtnl(host.netns) as rtnl, contextlib.suppress(LinkNotFound):
        if not _others(rtnl.links, bridge):
            rtnl.links.remove(bridge.index)


def _reset_promisc(host: Side, bridge: Link) -> None:
    with contextlib.suppress(LinkNotFound):
        host.links.set(bridge.index, promisc=False)


def _add_address(host: Side, bridge: Link, address: IPInterface) -> None:
    if address.version == 6:
        with contextlib.suppress(KernelError):  # then adding the address says what is wrong
            host.sysctl.write(f"net/ipv6/conf/{bridge.name}/disable_ipv6", "0")
    with contextlib.suppress(AlreadyExists):
        # nodad: a gateway that is tentative for a second answers nobody.
        host.addresses.add(bridge.index, address, nodad=address.version == 6)


def _in_the_way(other: IPInterface, gateway: IPInterface) -> bool:
    if other.version != gateway.version:
        return False
    return gateway.version == 4 or gateway.network.overlaps(other.network)


def _others(links: Links, bridge: Link, own_port: int = 0) -> list[Link]:
    return [port for port in links.list(master=bridge.index) if port.index != own_port]


def _expect_kind(link: Link) -> None:
    if link.kind != "bridge":
        raise NotABridge(f'"{link.name}" already exists but is not a bridge')
