# SPDX-License-Identifier: Apache-2.0
"""The veth pair of an attachment: made with both ends at home, found again by its owner.

The host end's name is a hash of the owner, so that it can be looked up without a list of all
links; its alias, the owner's tag, proves that it is ours. MACs are set when the pair is made:
udev leaves such links alone (systemd #21185, plugins #620), and nothing needs to be read back.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable

from msgspec import Struct

from pycni.errors import CniError, KernelError, LinkExists, LinkNotFound
from pycni.kernel.links import Links
from pycni.kernel.side import Side
from pycni.kernel.types import Link
from pycni.model.addresses import IPInterface
from pycni.model.names import Mac
from pycni.net import reaper
from pycni.net.hashes import sha256
from pycni.net.owner import Owner, network_prefix


class Pair(Struct, frozen=True, kw_only=True):
    """Both ends of an attachment; the container's is known by what it was made with."""

    host: Link
    container_index: int
    container_mac: Mac
    locked: bool = False


class BridgePort(Struct, frozen=True, kw_only=True):
    """What a bridge does with the host's end."""

    master: int
    hairpin: bool = False
    isolated: bool = False
    locked: bool = False  # until `unlock`


def random_mac(rand: Callable[[int], bytes] = os.urandom) -> Mac:
    """A locally administered unicast MAC, which no vendor uses."""
    packed = bytearray(rand(6))
    packed[0] = packed[0] & 0xFC | 0x02
    return Mac.from_bytes(bytes(packed))


def address_mac(addresses: Iterable[IPInterface]) -> Mac:
    """The MAC that goes with the first IPv4 address, or without one the first IPv6 address.

    It is the same whenever the address is used again, so nobody who knows it must be told. No two
    links of one bridge have an address in common, so no MAC either: an IPv4 address is in it as it
    is, and 46 bits of a hash are as good as random ones.
    """
    packed = [each.ip.packed for each in sorted(addresses, key=lambda each: each.version)]
    if len(packed[0]) == 4:
        return Mac.from_bytes(b"\x0a\x58" + packed[0])
    return random_mac(lambda size: sha256(packed[0]).digest()[:size])


def make(
    host: Side,
    container: Side,
    owner: Owner,
    *,
    mtu: int = 0,
    mac: Mac | None = None,
    port: BridgePort | None = None,
    keep_down: bool = False,
) -> Pair:
    """Make the owner's pair: host end up and, with `port`, attached; container end still down.

    `mac` is the container's; 0 as `mtu` is the kernel's default. A pair the same owner left
    behind in a crash is replaced. With `keep_down` the container's end never comes up, so that
    being down does not tell a leftover.
    """
    container_mac = mac or random_mac()
    name = _add(host, container, owner, mtu=mtu, mac=container_mac, port=port, keep_down=keep_down)
    try:
        link = host.links.get(name)
        with host.batch():
            host.links.set(link.index, alias=owner.tag, up=True)
            if port is not None and (port.hairpin or port.isolated or port.locked):
                host.links.set_port(
                    link.index,
                    # A new port has none of them, and what is not said costs nothing.
                    hairpin=port.hairpin or None,
                    isolated=port.isolated or None,
                    locked=port.locked or None,
                )
        if port is not None:
            _switch_ipv6_off(host, name)
        else:
            with contextlib.suppress(KernelError):  # no IPv6, or a read-only /proc/sys
                host.sysctl.write(f"net/ipv6/conf/{name}/accept_ra", "0")
    except BaseException:
        with contextlib.suppress(LinkNotFound):
            host.links.remove(name)
        raise
    return Pair(
        host=link,
        container_index=link.peer_index,
        container_mac=container_mac,
        locked=port is not None and port.locked,
    )


def unlock(host: Side, pair: Pair) -> None:
    """Have the port, if it is locked, let frames in."""
    if pair.locked:
        host.links.set_port(pair.host.index, locked=False)


def find_host(links: Links, owner: Owner) -> Link | None:
    """The host end of the owner's pair, or None."""
    # All names, not only up to the first free one: who had it may be gone since.
    for name in owner.host_veth_names():
        link = links.find(name)
        if link is not None and link.alias == owner.tag:
            return link
    return None


def remove(host: Side, owner: Owner) -> bool:
    """Remove the owner's pair, wherever the container's end is; False when there was none."""
    link = find_host(host.links, owner)
    if link is not None:
        remove_link(host, link)
    return link is not None


def remove_link(host: Side, link: Link) -> None:
    """Remove one end, and the other with it; together with whatever else goes now."""
    reaper.of(host).remove(link.index)


def remove_stale(host: Side, network: str, valid: frozenset[Owner]) -> None:
    """Remove every pair of the network whose owner is not valid any more."""
    prefix = network_prefix(network)
    tags = {owner.tag for owner in valid}
    stale = [
        link.index
        for link in host.links.list(kind="veth")
        if link.alias.startswith(prefix) and link.alias not in tags
    ]
    reaper.of(host).remove(*stale)


def _add(
    host: Side,
    container: Side,
    owner: Owner,
    *,
    mtu: int,
    mac: Mac,
    port: BridgePort | None,
    keep_down: bool,
) -> str:
    """Add the pair under the first of the owner's names that is free; return that name."""
    assert container.netns is not None
    reclaimed = False
    names = iter(owner.host_veth_names())
    name = next(names)
    while True:
        try:
            host.links.add_veth(
                name,
                owner.ifname,
                container_netns=container.netns,
                mtu=mtu or None,
                host_mac=random_mac(),
                container_mac=mac,
                master=None if port is None else port.master,
                # Up from the start, a bridge would take it for a link that carries, go through
                # all its ports, and again a moment later when it sees that it does not.
                host_up=False,
            )
        except LinkExists as exists:
            rival = host.links.find(name)
            if rival is not None and rival.alias == owner.tag and not reclaimed:
                _expect_leftover(container, owner, rival, keep_down=keep_down)
                reaper.of(host).remove(rival.index)
                reclaimed = True
                continue
            following = next(names, None)
            if rival is None or following is None:
                raise _taken(owner, name) from exists
            name = following
        else:
            return name


def _switch_ipv6_off(host: Side, name: str) -> None:
    """Keep IPv6 off a bridge's port, where nothing arrives: the bridge takes it.

    An address and routes of the kernel's own are of no use there, and the kernel walks through all
    such routes of the node whenever a port changes.
    """
    own = f"net/ipv6/conf/{name}"
    with contextlib.suppress(KernelError), host.rtnl.alone():  # as above
        host.sysctl.write_all({f"{own}/accept_ra": 0, f"{own}/disable_ipv6": 1})


def _expect_leftover(container: Side, owner: Owner, rival: Link, *, keep_down: bool) -> None:
    """Raise unless `rival` is what a crashed ADD, or a container that is gone, left of the owner.

    A finished attachment has its interface in the container, and up.
    """
    inside = container.links.find(owner.ifname)
    if inside is not None and (keep_down or inside.up or inside.index != rival.peer_index):
        raise _taken(owner, rival.name)


def _taken(owner: Owner, host_name: str) -> CniError:
    return CniError(
        f'container veth name ("{owner.ifname}") peer provided ("{host_name}") already exists',
        hint="delete the attachment, or whatever has the name, before adding it",
    )
