# SPDX-License-Identifier: Apache-2.0
"""Host ports that a container wants on several networks: one has them, the others wait for them.

podman gives every network that a container joins the same mappings. The slot of a port has one
holder, the first; what the others would put there waits, in sets that no packet is looked up in,
and takes the slot when the holder has left it. So a port goes on when its container leaves the
network that the port led through.
"""

from __future__ import annotations

from collections.abc import Iterator

from pycni.kernel.nft import Nft
from pycni.kernel.nftmaps import Element, Maps, Slot
from pycni.net import ruleset
from pycni.net.ruleset import ADDRESS_TYPES, BOTH_FAMILIES, PORT_TYPES, Chain

# Per map of ports: the set of those that wait for a slot of it, and the map of conditional ones,
# where the same port may be held too.
_WAITING = {
    ports[version]: (f"waiting_{ports[version]}", conditional[version])
    for ports, conditional in (
        (ruleset.HOSTPORTS, ruleset.CONDITIONAL),
        (ruleset.HOSTIP_HOSTPORTS, ruleset.HOSTIP_CONDITIONAL),
    )
    for version in BOTH_FAMILIES
}
_PORTS = {waiting: ports for ports, (waiting, _) in _WAITING.items()}
_VALUE_SIZES = {
    ports[version]: size
    for ports in (ruleset.HOSTPORTS, ruleset.HOSTIP_HOSTPORTS)
    for version, size in ((4, 8), (6, 20))
}

SETS = tuple(_PORTS)


def _types() -> Iterator[tuple[str, str]]:
    for version, address in ADDRESS_TYPES.items():
        target = f"{address} . inet_service"
        yield _WAITING[ruleset.HOSTPORTS[version]][0], f"{PORT_TYPES} . {target}"
        name = _WAITING[ruleset.HOSTIP_HOSTPORTS[version]][0]
        yield name, f"{address} . {PORT_TYPES} . {target}"


# Nothing jumps here: the chain stands for the sets, which come with it. Its rule makes it known.
CHAIN = Chain(name="waiting-ports", rules=("return",), sets=tuple(_types()))


def waiting(element: Element) -> Element | None:
    """What waits in the place of an element; None if that kind cannot."""
    names = _WAITING.get(element.slot.map)
    if names is None:
        return None
    slot = Slot(names[0], element.slot.key + element.value)
    return Element(slot=slot, comment=element.comment)


def promote(nft: Nft) -> None:
    """Let those that wait have the slots that are free."""
    if ruleset.table(nft).chain_uses([CHAIN.name]) != [None]:
        ruleset.change(nft, _promotions)


def _promotions(maps: Maps) -> Iterator[tuple[Element | None, Element | None]]:
    taken = set()
    for name in SETS:
        for waiter in maps.list_elements(name):
            held = _held(waiter)
            conditional = Slot(_WAITING[held.slot.map][1], held.slot.key)
            if held.slot not in taken and not any(maps.find([held.slot, conditional])):
                taken.add(held.slot)
                yield waiter, None
                yield None, held


def _held(waiter: Element) -> Element:
    """What a waiting element becomes when its turn has come."""
    ports = _PORTS[waiter.slot.map]
    size = _VALUE_SIZES[ports]
    key, value = waiter.slot.key[:-size], waiter.slot.key[-size:]
    return Element(slot=Slot(ports, key), value=value, comment=waiter.comment)
