# SPDX-License-Identifier: Apache-2.0
"""Rules that the Go plugins made for a container before this node was switched over.

They are recognised by what Go writes into comments, and only removed, never made:

    inet cni_plugins_masquerade   <hash of network>-<hash of ifname:container id>, net: …
    ip, ip6 cni_hostport          the container id alone, whatever the network

Nodes that never ran Go's nftables backend pay three lookups, 0.02 ms, and no libnftables.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable
from hashlib import sha512

from pycni.errors import NotFound
from pycni.kernel.nft import JsonObject, Nft
from pycni.model.addresses import IPAddress
from pycni.net.owner import Owner

MASQUERADE_TABLE = ("inet", "cni_plugins_masquerade")
HOSTPORT_TABLES = (("ip", "cni_hostport"), ("ip6", "cni_hostport"))

_HEX_DIGITS = 16
_TRIES = 3


def remove_nft(
    nft: Nft,
    network: str,
    container_id: str,
    ifname: str,
    *,
    addresses: Collection[IPAddress] = (),
) -> None:
    """Remove the rules of Go's nftables backends for one attachment; none is fine.

    Rules for host ports do not say which network they belong to. With `addresses`, the container's
    on this one, those of its other networks stay.
    """
    mark = masquerade_mark(network, container_id, ifname)
    _remove_rules(nft, *MASQUERADE_TABLE, lambda rule: _comment(rule).startswith(mark))
    wanted = {str(address) for address in addresses}

    def is_mapping(rule: JsonObject) -> bool:
        return _comment(rule) == container_id and (not wanted or bool(wanted & _strings(rule)))

    for family, table in HOSTPORT_TABLES:
        _remove_rules(nft, family, table, is_mapping)


def gc_nft(nft: Nft, network: str, valid: Iterable[Owner]) -> None:
    """Remove Go's masquerading of the network's attachments that are not valid any more."""
    ours = _hashed(network) + "-"
    keep = tuple(masquerade_mark(*owner) for owner in valid)

    def is_stale(rule: JsonObject) -> bool:
        comment = _comment(rule)
        return comment.startswith(ours) and not comment.startswith(keep)

    _remove_rules(nft, *MASQUERADE_TABLE, is_stale)


def masquerade_mark(network: str, container_id: str, ifname: str) -> str:
    """How the comment of a masquerading rule begins."""
    return f"{_hashed(network)}-{_hashed(f'{ifname}:{container_id}')}"


def _remove_rules(
    nft: Nft, family: str, table: str, is_leftover: Callable[[JsonObject], bool]
) -> None:
    if not nft.maps(family, table).table_exists():
        return
    for _ in range(_TRIES):
        listed = (item.get("rule") for item in nft.list_json(f"list table {family} {table}"))
        leftovers = [rule for rule in listed if rule and is_leftover(rule)]
        if not leftovers:
            return
        commands = (
            f"delete rule {family} {table} {rule['chain']} handle {rule['handle']}"
            for rule in leftovers
        )
        # Go's own DEL, or another of ours, may have been faster with one of them.
        with contextlib.suppress(NotFound):
            nft.run("\n".join(commands))
            return


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
