# SPDX-License-Identifier: Apache-2.0
"""Neighbours: add, remove and list ARP and NDP entries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pycni.errors import NotFound
from pycni.kernel.nlsocket import NO_FAILURES, Mutation
from pycni.kernel.nlwire import NLM_F_CREATE, NLM_F_REPLACE
from pycni.kernel.nlwire import neighbour as wire
from pycni.kernel.types import Neighbour
from pycni.model.addresses import IPAddress

if TYPE_CHECKING:
    from pycni.kernel.rtnl import Rtnl


class Neighbours:
    """The neighbour table of one namespace."""

    __slots__ = ("_rtnl",)

    def __init__(self, rtnl: Rtnl) -> None:
        self._rtnl = rtnl

    def replace(self, neighbour: Neighbour) -> None:
        """Set an entry, whatever was there."""
        op = f"set neighbour {neighbour.address} of"
        flags = NLM_F_CREATE | NLM_F_REPLACE
        body = wire.change(neighbour)
        self._rtnl.mutate(
            Mutation(wire.RTM_NEWNEIGH, flags, body, op, neighbour.index, NO_FAILURES)
        )

    def remove(self, neighbour: Neighbour) -> None:
        """Remove an entry; NotFound."""
        op = f"remove neighbour {neighbour.address} of"
        body = wire.change(neighbour)
        self._rtnl.mutate(Mutation(wire.RTM_DELNEIGH, 0, body, op, neighbour.index, NO_FAILURES))

    def find(self, index: int, address: IPAddress) -> Neighbour | None:
        """The entry of an address on a link, learned or set, or None."""
        op = f"find neighbour {address} of"
        try:
            return wire.parse(
                self._rtnl.query(wire.RTM_GETNEIGH, wire.find(index, address), op, index)
            )
        except NotFound:
            return None

    def list(self, index: int | None = None, family: int | None = None) -> list[Neighbour]:
        """All entries, learned ones too, or those of a link or a family (4 or 6)."""
        body = wire.dump(index=index, family=family)
        payloads = self._rtnl.dump(wire.RTM_GETNEIGH, body, "list", "neighbours")
        return [
            entry
            for entry in map(wire.parse, payloads)
            if entry is not None
            and (family is None or entry.address.version == family)
            and (index is None or entry.index == index)
        ]
