# SPDX-License-Identifier: Apache-2.0
"""Rules that the Go plugins made for a container before this node was switched over.

They are found, accepted by CHECK and removed by DEL and GC, but never made. In nftables they are
recognised by what Go writes into comments:

    inet cni_plugins_masquerade   <hash of network>-<hash of ifname:container id>, net: …
    ip, ip6 cni_hostport          the container id alone, whatever the network

Those of iptables, what Go uses where there is a choice, are `golang_iptables`'s. A node that never
ran Go's plugins pays a few lookups, 0.05 ms, and neither libnftables nor a program is started.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable

from pycni.errors import NotFound
from pycni.kernel.nft import JsonObject, Nft
from pycni.kernel.side import Side
from pycni.model.addresses import IPAddress, IPInterface
from pycni.model.request import PortMapping
from pycni.net import golang_iptables
from pycni.net.golang_iptables import MASQUERADE, PORTS, Forward
from pycni.net.hashes import sha512
from pycni.net.owner import Owner
from pycni.net.undo import Gather

Table = tuple[str, str]

MASQUERADE_TABLE: Table = ("inet", "cni_plugins_masquerade")
HOSTPORT_TABLES: tuple[Table, ...] = (("ip", "cni_hostport"), ("ip6", "cni_hostport"))

_HEX_DIGITS = 16
_TRIES = 3


def remove_masquerade(host: Side, owner: Owner, *, addresses: Collection[IPAddress] = ()) -> None:
    """Remove what hides an attachment's addresses; none is fine.

    The chain of iptables is the container's on this network: with `addresses`, those of its
    interface, the rules of another interface stay.
    """
    mark = masquerade_mark(*owner)
    with Gather("remove masquerading of the Go plugins") as gather:
        gather.run(
            _remove_rules, host.nft, MASQUERADE_TABLE, lambda rule: _comment(rule).startswith(mark)
        )
        gather.run(golang_iptables.remove, host, MASQUERADE, owner, addresses)


def remove_ports(host: Side, owner: Owner, *, addresses: Collection[IPAddress] = ()) -> None:
    """Remove what leads host ports to an attachment; none is fine.

    nftables rules do not say which network they belong to. With `addresses`, the container's on
    this one, those of its other networks stay.
    """
    wanted = {str(address) for address in addresses}

    def is_mapping(rule: JsonObject) -> bool:
        ours = _comment(rule) == owner.container_id
        return ours and (not wanted or bool(wanted & _strings(rule)))

    with Gather("remove host ports of the Go plugins") as gather:
        for table in HOSTPORT_TABLES:
            gather.run(_remove_rules, host.nft, table, is_mapping)
        gather.run(golang_iptables.remove, host, PORTS, owner, addresses)


def gc_masquerade(host: Side, network: str, valid: Iterable[Owner]) -> None:
    """Remove masquerading of the network's attachments that are not valid any more."""
    valid = frozenset(valid)
    ours = _hashed(network) + "-"
    keep = tuple(masquerade_mark(*owner) for owner in valid)

    def is_stale(rule: JsonObject) -> bool:
        comment = _comment(rule)
        return comment.startswith(ours) and not comment.startswith(keep)

    with Gather("collect masquerading of the Go plugins") as gather:
        gather.run(_remove_rules, host.nft, MASQUERADE_TABLE, is_stale)
        gather.run(golang_iptables.gc, host, MASQUERADE, network, valid)


def gc_ports(host: Side, network: str, valid: Iterable[Owner]) -> None:
    """Remove host ports of the network's attachments that are not valid any more.

    Those in nftables stay: they do not say which network they belong to.
    """
    golang_iptables.gc(host, PORTS, network, frozenset(valid))


def has_masquerade(host: Side, owner: Owner, addresses: Iterable[IPInterface]) -> bool:
    """Whether the Go plugins hide every one of these addresses, for this attachment."""
    mark = masquerade_mark(*owner)
    rules = [r for r in _list_rules(host.nft, MASQUERADE_TABLE) if _comment(r).startswith(mark)]
    hidden = {text for rule in rules for text in _strings(rule)}
    rest = [address for address in addresses if str(address.ip) not in hidden]
    return golang_iptables.hides(host, owner, rest)


def has_ports(
    host: Side, owner: Owner, mappings: Iterable[PortMapping], addresses: Iterable[IPInterface]
) -> bool:
    """Whether the Go plugins lead every one of these ports to the attachment."""
    wanted = golang_iptables.forwards(mappings, addresses)
    rules = [
        rule
        for table in HOSTPORT_TABLES
        for rule in _list_rules(host.nft, table)
        if _comment(rule) == owner.container_id
    ]
    rest = [each for each in wanted if not any(_leads(rule, each) for rule in rules)]
    return golang_iptables.leads(host, owner, rest)


def masquerade_mark(network: str, container_id: str, ifname: str) -> str:
    """How the comment of a masquerading rule begins."""
    return f"{_hashed(network)}-{_hashed(f'{ifname}:{container_id}')}"


def _remove_rules(nft: Nft, table: Table, is_leftover: Callable[[JsonObject], bool]) -> None:
    family, name = table
    for _ in range(_TRIES):
        leftovers = [rule for rule in _list_rules(nft, table) if is_leftover(rule)]
        if not leftovers:
            return
        commands = (
            f"delete rule {family} {name} {rule['chain']} handle {rule['handle']}"
            for rule in leftovers
        )
        # Go's own DEL, or another of ours, may have been faster with one of them.
        with contextlib.suppress(NotFound):
            nft.run("\n".join(commands))
            return


def _list_rules(nft: Nft, table: Table) -> list[JsonObject]:
    """The rules of a table; none if there is no such table."""
    family, name = table
    if not nft.maps(family, name).table_exists():
        return []
    listed = (item.get("rule") for item in nft.list_json(f"list table {family} {name}"))
    return [rule for rule in listed if rule]


def _leads(rule: JsonObject, wanted: Forward) -> bool:
    """Whether a rule of Go's nftables backend is the mapping."""
    target = {"addr": str(wanted.target), "port": wanted.target_port}
    matches = [part["match"] for part in rule["expr"] if "match" in part]
    return any(target.items() <= part.get("dnat", {}).items() for part in rule["expr"]) and any(
        match["right"] == wanted.port
        and match["left"].get("payload", {}).get("protocol") == wanted.protocol
        for match in matches
    )


def _comment(rule: JsonObject) -> str:
    return str(rule.get("comment", ""))


def _strings(value: object) -> set[str]:
    """Every string in a JSON value."""
    if isinstance(value, str):
        return {value}
    children = value.values() if isinstance(value, dict) else value
    if not isinstance(children, Iterable):
        return set()
    return {found for child in children for found in _strings(child)}


def _hashed(text: str) -> str:
    return sha512(text.encode()).hexdigest()[:_HEX_DIGITS]
