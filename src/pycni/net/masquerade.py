# SPDX-License-Identifier: Apache-2.0
"""Masquerading: what containers send out of their subnet leaves with the node's address.

Traffic from a container's address to anything outside its subnet is masqueraded, multicast
excepted. An address is two elements: itself, and itself with the subnet it needs no masquerading
for; the rule that looks at both is its prefix length's (`ruleset.Group`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from pycni.errors import CniError
from pycni.kernel import nftmaps
from pycni.kernel.nft import Nft
from pycni.kernel.nftmaps import Element, Slot
from pycni.model.addresses import IPInterface
from pycni.net import ruleset
from pycni.net.owner import Owner
from pycni.net.ruleset import BOTH_FAMILIES, Group, Wanted


def ensure(
    nft: Nft,
    owner: Owner,
    addresses: Iterable[IPInterface],
    *,
    families: Collection[int] = BOTH_FAMILIES,
) -> None:
    """Masquerade traffic of these addresses; an earlier holder of one loses it to `owner`."""
    ruleset.ensure(nft, owner.tag, _wanted(owner, addresses, families))


def remove(
    nft: Nft,
    owner: Owner,
    hints: Iterable[IPInterface] = (),
    *,
    families: Collection[int] = BOTH_FAMILIES,
) -> None:
    """Stop masquerading for `owner`; with its addresses as `hints` no set need be read."""
    slots = [slot for address in hints if address.version in families for slot in _slots(address)]
    ruleset.remove(nft, owner.tag, maps=lambda: _sets(nft), hints=slots)


def expect(
    nft: Nft,
    owner: Owner,
    addresses: Iterable[IPInterface],
    *,
    families: Collection[int] = BOTH_FAMILIES,
) -> None:
    """Raise CniError unless traffic of these addresses is masqueraded, on behalf of `owner`."""
    addresses = [address for address in addresses if address.version in families]
    elements, chains = ruleset.find_missing(nft, _wanted(owner, addresses, families))
    slots = {element.slot for element in elements}
    lost = [str(address.ip) for address in addresses if slots.intersection(_slots(address))]
    if lost:
        raise CniError(f"masquerading is missing for {', '.join(lost)}", f"owner {owner.tag}")
    if chains:
        raise CniError(f"masquerading is broken: nft chain {chains[0]} is not as it was made")


def gc(nft: Nft, network: str, valid: Iterable[Owner]) -> None:
    """Stop masquerading for the network's attachments that are not valid any more."""
    ruleset.gc(nft, network, valid, maps=_sets(nft))


def _wanted(owner: Owner, addresses: Iterable[IPInterface], families: Collection[int]) -> Wanted:
    chosen = [address for address in addresses if address.version in families]
    return Wanted(
        elements=tuple(
            Element(slot=slot, comment=owner.tag) for address in chosen for slot in _slots(address)
        ),
        chains=tuple(group.chain() for group in dict.fromkeys(map(Group.of, chosen))),
    )


def _slots(address: IPInterface) -> tuple[Slot, Slot]:
    group, ip = Group.of(address), nftmaps.address(address.ip)
    subnet = nftmaps.address(address.network.network_address)
    return Slot(group.masquerade, ip), Slot(group.local, ip + subnet)


def _sets(nft: Nft) -> list[str]:
    return [name for group in ruleset.groups(nft) for name in (group.masquerade, group.local)]
