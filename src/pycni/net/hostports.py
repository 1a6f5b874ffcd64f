# SPDX-License-Identifier: Apache-2.0
"""Host ports: connections to a port of the node go on to a container.

A mapping is one map element: (protocol, port), or (host address, protocol, port), to the address
and port of the container. Two owners cannot hold one slot: `PortInUse` says who has it, before
anything is changed. An owner of the same container waits for it instead (`shared_ports`).

Where the answer would not come back through the node, the connection is masqueraded too (`snat`):

* from the container's own subnet, itself included: it would answer directly, from an address the
  client never called;
* from the node's own loopback addresses, which its kernel keeps off other interfaces unless
  `open_loopback` tells it otherwise. Over IPv6 that needs a kernel that does not pass bridged
  traffic to ip6tables (net/bridge/bridge-nf-call-ip6tables absent or 0): otherwise the answer is
  translated to ::1 before it reaches the check that drops such packets coming in from outside.
  There ::1 does not reach mapped ports; every other address of the node does.

With conditions, the element names a chain of the owner instead, which holds the conditions; so
those of one container never apply to another's connections.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_interface
from typing import NamedTuple, TypedDict, Unpack

from pycni.errors import AlreadyExists, CniError, InvalidConfig, KernelError, NotFound
from pycni.kernel import nftmaps
from pycni.kernel.conntrack import Conntrack
from pycni.kernel.nft import Nft
from pycni.kernel.nftmaps import Element, Protocol, Slot
from pycni.kernel.side import Side
from pycni.kernel.types import LOCAL_TABLE, Link, Route
from pycni.model.addresses import IPAddress, IPInterface
from pycni.model.request import PortMapping
from pycni.net import ruleset, shared_ports
from pycni.net.owner import Owner
from pycni.net.ruleset import BOTH_FAMILIES, KEYWORDS, Chain, Group, Wanted

_LOOPBACK: dict[int, IPAddress] = {4: IPv4Address("127.0.0.1"), 6: IPv6Address("::1")}
_PORT_MAPS = [
    name
    for maps in (
        ruleset.HOSTPORTS,
        ruleset.HOSTIP_HOSTPORTS,
        ruleset.CONDITIONAL,
        ruleset.HOSTIP_CONDITIONAL,
    )
    for name in maps.values()
]
_FIXED_MAPS = [*_PORT_MAPS, *shared_ports.SETS, *ruleset.MASQUERADE_ALL.values()]
# What would end the rule a condition is put into.
_RULE_ENDS = ("\n", ";", "#")


class HostPort(NamedTuple):
    """A port of the node; `address` is None when it is mapped on all of them."""

    protocol: Protocol
    port: int
    address: IPAddress | None = None


class PortInUse(CniError, code=101):
    """A host port is mapped to another container already; msg names port, protocol and holder."""


class _MustWait(Exception):
    """A slot is held by another owner of the same container."""

    def __init__(self, slot: Slot) -> None:
        self.slot = slot


class Options(TypedDict, total=False):
    """How to map; give `remove` and `expect` what `ensure` got.

    `snat` (default true) is explained above; `masq_all` masquerades all mapped connections, if
    `snat`; conditions are parts of an nft expression that a connection must match too.
    """

    snat: bool
    masq_all: bool
    conditions_v4: Sequence[str]
    conditions_v6: Sequence[str]


def ensure(
    nft: Nft,
    owner: Owner,
    mappings: Iterable[PortMapping],
    addresses: Iterable[IPInterface],
    *,
    is_sibling: Callable[[str], bool] = lambda _tag: False,
    **options: Unpack[Options],
) -> None:
    """Map the ports to the first IPv4 and the first IPv6 address; PortInUse if others hold one.

    `is_sibling` tells whether a tag is another one of the same container.
    """
    plan = _Plan(owner, options, is_sibling)
    plan.map_ports(mappings, addresses)
    try:
        while True:
            try:
                ruleset.ensure(nft, owner.tag, plan.wanted(), refuse=plan.refuse)
                return
            except _MustWait as held:
                plan.wait(held.slot)
    except KernelError as exc:
        if exc.op == "run" and plan.rules:
            keys = " or ".join(f"conditionsV{version}" for version in plan.rules)
            given = "; ".join(plan.conditions[version] for version in plan.rules)
            raise InvalidConfig(f"{keys}: {exc.extack}", given) from exc
        raise


def remove(
    nft: Nft,
    owner: Owner,
    mappings: Iterable[PortMapping] = (),
    addresses: Iterable[IPInterface] = (),
    **options: Unpack[Options],
) -> tuple[HostPort, ...]:
    """Unmap all of the owner's ports; with what `ensure` got as hints no map need be read.

    Returns the ports it had.
    """
    plan = _Plan(owner, {})
    # What ensure refused cannot be there, and must not stand in the way of removing the rest.
    with contextlib.suppress(InvalidConfig):
        plan = _Plan(owner, options)
        plan.map_ports(mappings, addresses)
    removed = ruleset.remove(
        nft,
        owner.tag,
        maps=lambda: _maps(nft),
        hints=list(plan.elements),
        chains=[_chain_name(owner, version) for version in BOTH_FAMILIES],
    )
    ports = [element.slot for element in removed if element.slot.map in _PORT_MAPS]
    if ports:
        shared_ports.promote(nft)
    return tuple(map(_read_port, ports))


def expect(
    nft: Nft,
    owner: Owner,
    mappings: Iterable[PortMapping],
    addresses: Iterable[IPInterface],
    **options: Unpack[Options],
) -> None:
    """Raise CniError unless the ports are mapped, on behalf of `owner`."""
    plan = _Plan(owner, options)
    plan.map_ports(mappings, addresses)
    elements, chains = ruleset.find_missing(nft, plan.wanted())
    elements = _without_waiting(nft, elements)
    lost = [plan.labels[element.slot] for element in elements if element.slot in plan.labels]
    if lost:
        raise CniError(f"not mapped: host port {', '.join(lost)}", f"owner {owner.tag}")
    if elements:
        raise CniError("mapped ports are not masqueraded", f"owner {owner.tag}")
    if chains:
        raise CniError(f"port mapping is broken: nft chain {chains[0]} is not as it was made")


def gc(nft: Nft, network: str, valid: Iterable[Owner]) -> None:
    """Unmap the ports of the network's attachments that are not valid any more."""
    ruleset.gc(nft, network, valid, maps=_maps(nft))
    shared_ports.promote(nft)


def open_loopback(host: Side, addresses: Iterable[IPInterface]) -> None:
    """Let 127.0.0.1 and ::1 of the node reach ports mapped to these addresses.

    Concerns the interface that leads there, and is gone with it. What comes in from outside with
    such addresses is dropped as ever: over IPv6 by the kernel, over IPv4 by a chain of ours, for
    the same switch takes the kernel's own check away (CVE-2020-8558).
    """
    links: dict[int, Link | None] = {}
    for version, address in _first(addresses).items():
        link = _find_link_to(host, address.ip, links)
        if link is None:
            continue
        if version == 4:
            ruleset.ensure_chain(host.nft, ruleset.LOOPBACK_GUARD)
            key = f"net/ipv4/conf/{link.name}/route_localnet"
            if host.sysctl.read(key) != "1":
                host.sysctl.write(key, 1)
        else:
            # An answer is routed by the interface it came in on: ::1 must be an address of that.
            loopback = IPv6Network((int(_LOOPBACK[6]), 128))
            route = Route(dst=loopback, index=link.index, table=LOCAL_TABLE, type="local")
            with contextlib.suppress(AlreadyExists):
                host.routes.add(route, append=True)


def host_port(mapping: PortMapping) -> HostPort:
    """The host's side of a mapping."""
    return HostPort(_protocol(mapping), mapping.hostPort, _host_ip(mapping))


def forget_flows(conntrack: Conntrack, ports: Iterable[HostPort]) -> None:
    """Forget UDP flows to the ports, which would keep the translation they began with."""
    for each in dict.fromkeys(ports):
        if each.protocol is Protocol.UDP:
            conntrack.remove(Protocol.UDP, each.port, destination=each.address)


class _Plan:
    """The elements and chains that mappings need, and what to call each slot of a port."""

    def __init__(
        self,
        owner: Owner,
        options: Options,
        is_sibling: Callable[[str], bool] = lambda _tag: False,
    ) -> None:
        self.owner = owner
        self.is_sibling = is_sibling
        self.snat = options.get("snat", True)
        self.masq_all = options.get("masq_all", False)
        self.conditions = {
            4: expression("conditionsV4", options.get("conditions_v4", ())),
            6: expression("conditionsV6", options.get("conditions_v6", ())),
        }
        self.elements: dict[Slot, Element] = {}
        self.labels: dict[Slot, str] = {}
        self.vacant: list[Slot] = []
        self.targets: dict[Slot, str] = {}
        self.rules: dict[int, list[str]] = {}
        self.groups: dict[Group, None] = {}
        self.waits = False

    def map_ports(self, mappings: Iterable[PortMapping], addresses: Iterable[IPInterface]) -> None:
        """Plan each mapping, and the masquerading of each address that has any."""
        first = _first(addresses)
        mapped: dict[IPInterface, None] = {}
        for mapping in mappings:
            for version, address in first.items():
                if mapping.hostIP is None or mapping.hostIP.version == version:
                    self._map_port(mapping, address)
                    mapped[address] = None
        if self.snat:
            for address in mapped:
                self._masquerade(address)

    def wanted(self) -> Wanted:
        """What the ruleset shall hold."""
        owned = (
            Chain(name=_chain_name(self.owner, version), rules=tuple(rules), owned=True)
            for version, rules in self.rules.items()
        )
        return Wanted(
            elements=tuple(self.elements.values()),
            chains=(
                *(group.chain() for group in self.groups),
                *((shared_ports.CHAIN,) if self.waits else ()),
                *owned,
            ),
            vacant=tuple(self.vacant),
        )

    def refuse(self, held: Element) -> None:
        """Raise PortInUse if the slot that somebody else holds is one of a port."""
        if held.slot in self.labels:
            goal = self.elements.get(held.slot)
            if goal and shared_ports.waiting(goal) and self.is_sibling(held.comment):
                raise _MustWait(held.slot)
            raise PortInUse(
                f"host port {self.labels[held.slot]} is in use",
                f"held by {held.comment or 'an element without owner'}",
                hint=f"`nft list map inet pycni {held.slot.map}` shows who holds what",
            )

    def wait(self, slot: Slot) -> None:
        """Want the slot when it is free, and not before."""
        waiter = shared_ports.waiting(self.elements.pop(slot))
        assert waiter is not None
        self.elements[waiter.slot] = waiter
        self.waits = True

    def _map_port(self, mapping: PortMapping, address: IPInterface) -> None:
        version = address.version
        protocol, host_ip = _protocol(mapping), _host_ip(mapping)
        port = nftmaps.protocol(protocol) + nftmaps.port(mapping.hostPort)
        if host_ip is None:
            plain = Slot(ruleset.HOSTPORTS[version], port)
            conditional = Slot(ruleset.CONDITIONAL[version], port)
        else:
            key = nftmaps.address(host_ip) + port
            plain = Slot(ruleset.HOSTIP_HOSTPORTS[version], key)
            conditional = Slot(ruleset.HOSTIP_CONDITIONAL[version], key)
        label = f"{mapping.hostPort}/{protocol.name.lower()}"
        label += f" of {host_ip}" if host_ip else ""
        target = f"[{address.ip}]" if version == 6 else str(address.ip)
        target += f":{mapping.containerPort}"
        known = self.targets.setdefault(plain, target)
        if known != target:
            raise InvalidConfig(f"portMappings: host port {label} is mapped twice")
        if plain in self.labels:
            return
        self.labels[plain] = self.labels[conditional] = label
        if not self.conditions[version]:
            value = nftmaps.address(address.ip) + nftmaps.port(mapping.containerPort)
            self._hold(plain, value=value)
            self.vacant.append(conditional)
            return
        self._hold(conditional, jump=_chain_name(self.owner, version))
        self.vacant.append(plain)
        ip = KEYWORDS[version]
        self.rules.setdefault(version, []).append(
            (f"{ip} daddr {host_ip} " if host_ip else "")
            + f"{protocol.name.lower()} dport {mapping.hostPort} {self.conditions[version]} "
            + f"dnat {ip} to {target}"
        )

    def _masquerade(self, address: IPInterface) -> None:
        ip = nftmaps.address(address.ip)
        if self.masq_all:
            self._hold(Slot(ruleset.MASQUERADE_ALL[address.version], ip))
            return
        group = Group.of(address)
        self.groups[group] = None
        for network in (address.network.network_address, _loopback_network(group)):
            self._hold(Slot(group.hairpin, ip + nftmaps.address(network)))

    def _hold(self, slot: Slot, *, value: bytes = b"", jump: str = "") -> None:
        self.elements[slot] = Element(slot=slot, value=value, jump=jump, comment=self.owner.tag)


def _without_waiting(nft: Nft, elements: list[Element]) -> list[Element]:
    """Those of the elements that do not wait either for a slot that is held."""
    waiters = [shared_ports.waiting(element) for element in elements]
    slots = [waiter.slot for waiter in waiters if waiter]
    there = {found for found in ruleset.table(nft).find(slots) if found}
    return [each for each, waiter in zip(elements, waiters, strict=True) if waiter not in there]


def _first(addresses: Iterable[IPInterface]) -> dict[int, IPInterface]:
    """The first address of each family, as the Go plugin chooses."""
    first: dict[int, IPInterface] = {}
    for address in addresses:
        first.setdefault(address.version, address)
    return first


@lru_cache(maxsize=256)
def _loopback_network(group: Group) -> IPAddress:
    """What is left of the loopback address under the group's mask."""
    return ip_interface((_LOOPBACK[group.version], group.length)).network.network_address


def _find_link_to(host: Side, address: IPAddress, links: dict[int, Link | None]) -> Link | None:
    """The interface that leads to a container; None if there is no way from the node.

    `links` are those that were looked up before: both families are mostly on one.
    """
    try:
        index = host.routes.get(address).index
    except NotFound:
        return None
    if index is None:
        return None
    if index not in links:
        links[index] = host.links.find_index(index)
    link = links[index]
    return None if link is None or link.loopback else link


def _protocol(mapping: PortMapping) -> Protocol:
    try:
        return Protocol[mapping.protocol.upper()]
    except KeyError:
        known = ", ".join(protocol.name.lower() for protocol in Protocol)
        raise InvalidConfig(
            f'portMappings: protocol "{mapping.protocol}" of host port {mapping.hostPort} '
            f"is not one of {known}"
        ) from None


def _host_ip(mapping: PortMapping) -> IPAddress | None:
    """The host address the mapping is for; None for all of them (also 0.0.0.0 and ::)."""
    if mapping.hostIP is None or mapping.hostIP.is_unspecified:
        return None
    return mapping.hostIP


def _read_port(slot: Slot) -> HostPort:
    """The port a slot of `_PORT_MAPS` is for."""
    address, protocol, port = nftmaps.read_port_key(slot.key)
    return HostPort(protocol, port, address)


def expression(key: str, conditions: Sequence[str]) -> str:
    """The conditions as one nft expression; InvalidConfig if they would end the rule."""
    joined = " ".join(conditions)
    if any(end in joined for end in _RULE_ENDS):
        raise InvalidConfig(f"{key}: one nft expression, without ; or # or line breaks")
    return joined


def _chain_name(owner: Owner, version: int) -> str:
    _, network, attachment = owner.tag.split(":")
    return f"{ruleset.OWNER_CHAIN}{version}-{network}-{attachment}"


def _maps(nft: Nft) -> list[str]:
    return [*_FIXED_MAPS, *(group.hairpin for group in ruleset.groups(nft))]
