# SPDX-License-Identifier: Apache-2.0
"""What the kernel's tables hold, as frozen structs: links, addresses, routes, rules, shaping.

Fields keep the kernel's meaning. A `None` in something handed *to* the kernel means "not said":
the kernel's default when adding, "any" when removing.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import force_setattr

from pycni.model.addresses import IPAddress, IPInterface, IPNetwork
from pycni.model.names import Mac

KindValue = int | str | bool

MAIN_TABLE = 254
LOCAL_TABLE = 255

SCOPE_UNIVERSE = 0
SCOPE_LINK = 253
SCOPE_HOST = 254

# The kernel's `rtm_protocol`: who made a route.
PROTOCOL_KERNEL = 2
PROTOCOL_BOOT = 3
PROTOCOL_STATIC = 4

NUD_PERMANENT = 0x80


class Link(Struct, frozen=True, kw_only=True):
    """A network interface. `peer_index` is IFLA_LINK: a veth's peer or a macvlan's master."""

    name: str
    index: int
    mac: Mac | None
    mtu: int
    kind: str | None
    up: bool
    promisc: bool
    allmulti: bool
    loopback: bool
    master: int
    peer_index: int
    # The namespace `peer_index` counts in, as an id of this namespace (`Rtnl.namespace_id`);
    # None when it is this namespace.
    peer_netnsid: int | None
    alias: str
    group: int
    txqlen: int
    operstate: str
    # Kind-specific attributes under the names `links.add` takes: {"mode": "bridge"}, {"id": 7}.
    data: dict[str, KindValue] | None
    # Bridge port attributes ("hairpin", "isolated") when the master is a bridge.
    port: dict[str, KindValue] | None


class Address(Struct, frozen=True, kw_only=True):
    """An address of an interface with its prefix length."""

    index: int
    address: IPInterface
    flags: int
    scope: int
    broadcast: IPAddress | None = None
    # The other end, when it differs from the address (`ip address add A peer B`).
    peer: IPInterface | None = None

    @property
    def permanent(self) -> bool:
        """No lifetime: configured, not learned."""
        return bool(self.flags & 0x80)

    @property
    def tentative(self) -> bool:
        """Duplicate address detection has not finished; the address cannot be used yet."""
        return bool(self.flags & 0x40)

    @property
    def dad_failed(self) -> bool:
        """Somebody else on the link has the address."""
        return bool(self.flags & 0x08)


class Route(Struct, frozen=True, kw_only=True):
    """One next hop of a route; a multipath route is listed as several.

    `dst` is never None: the default routes are 0.0.0.0/0 and ::/0. When adding, `scope` None is
    what `ip route` takes: link without a gateway, else universe; `protocol` None is boot.
    When removing, None is any.
    """

    dst: IPNetwork
    gateway: IPAddress | None = None
    index: int | None = None
    table: int = MAIN_TABLE
    priority: int | None = None
    scope: int | None = None
    protocol: int | None = None
    source: IPAddress | None = None
    mtu: int | None = None
    advmss: int | None = None
    type: str = "unicast"
    # The gateway is on the link even if no address says so.
    onlink: bool = False

    @property
    def default(self) -> bool:
        """Is this a default route?"""
        return self.dst.prefixlen == 0


class Rule(Struct, frozen=True, kw_only=True):
    """A policy routing rule. `family` (4 or 6) follows `src` or `dst` where one is given.

    `table` None is no table (another action, or `l3mdev`); `priority` None lets the kernel
    choose the one before its lowest.
    """

    family: int = 4
    src: IPNetwork | None = None
    dst: IPNetwork | None = None
    iif: str | None = None
    oif: str | None = None
    fwmark: int | None = None
    fwmask: int | None = None
    table: int | None = MAIN_TABLE
    priority: int | None = None
    action: str = "lookup"
    invert: bool = False
    l3mdev: bool = False
    protocol: int | None = None
    suppress_prefixlen: int | None = None

    def __post_init__(self) -> None:
        network = self.src or self.dst
        if network is not None:
            force_setattr(self, "family", network.version)


class Neighbour(Struct, frozen=True, kw_only=True):
    """An entry of the neighbour (ARP, NDP) table."""

    index: int
    address: IPAddress
    mac: Mac | None
    # NUD_* bits of linux/neighbour.h; permanent by default.
    state: int = NUD_PERMANENT

    @property
    def permanent(self) -> bool:
        """Configured, not learned."""
        return bool(self.state & NUD_PERMANENT)


class Qdisc(Struct, frozen=True, kw_only=True):
    """A queueing discipline; rate (bytes a second), burst and limit (bytes) are a tbf's."""

    index: int
    kind: str
    handle: int
    parent: int
    rate: int | None = None
    burst: int | None = None
    limit: int | None = None

    @property
    def root(self) -> bool:
        """Does it queue everything that leaves the link?"""
        return self.parent == 0xFFFFFFFF

    @property
    def ingress(self) -> bool:
        """Is it the place for filters on what arrives?"""
        return self.parent == 0xFFFFFFF1


class Filter(Struct, frozen=True, kw_only=True):
    """A traffic filter on a qdisc; `redirect_to` is the interface a mirred action sends to."""

    index: int
    kind: str
    parent: int
    priority: int
    protocol: int
    handle: int
    redirect_to: int | None = None


class BridgeVlan(Struct, frozen=True, kw_only=True):
    """A VLAN, or a range of them, that a bridge port (or the bridge itself) carries."""

    index: int
    vid: int
    vid_end: int
    pvid: bool = False
    untagged: bool = False


Subject = Link | Address | Route | Rule | Neighbour


class Event(Struct, frozen=True, kw_only=True):
    """A change the kernel told of; `subject` as it is now, or as it was when `removed`.

    Without a subject some events were lost: read the tables again. `nsid` is the namespace it
    happened in, as the listening one numbers it (`Rtnl.namespace_id`); None is its own.
    """

    subject: Subject | None
    removed: bool = False
    nsid: int | None = None

    @property
    def lost(self) -> bool:
        """Did the queue overflow before this event?"""
        return self.subject is None
