# SPDX-License-Identifier: Apache-2.0
"""Addresses: add, remove and list the IP addresses of links."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from pycni.errors import NotFound
from pycni.kernel.nlsocket import Failures, Mutation
from pycni.kernel.nlwire import NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE
from pycni.kernel.nlwire import address as wire
from pycni.kernel.types import Address
from pycni.model.addresses import IPInterface

if TYPE_CHECKING:
    from pycni.kernel.rtnl import Rtnl

_FAILURES: Failures = {errno.EADDRNOTAVAIL: NotFound}


class Addresses:
    """The addresses of one namespace's links."""

    __slots__ = ("_rtnl",)

    def __init__(self, rtnl: Rtnl) -> None:
        self._rtnl = rtnl

    def add(
        self,
        index: int,
        cidr: IPInterface,
        *,
        peer: IPInterface | None = None,
        scope: int = 0,
        nodad: bool = False,
        noprefixroute: bool = False,
        replace: bool = False,
    ) -> None:
        """Give the link an address; AlreadyExists unless `replace`.

        `nodad`: an IPv6 address is usable at once, without asking whether it is taken.
        """
        body = wire.change(
            index, cidr, peer=peer, scope=scope, nodad=nodad, noprefixroute=noprefixroute
        )
        flags = NLM_F_CREATE | (NLM_F_REPLACE if replace else NLM_F_EXCL)
        op = f"add address {cidr} to"
        self._rtnl.mutate(Mutation(wire.RTM_NEWADDR, flags, body, op, index, _FAILURES))

    def remove(self, index: int, cidr: IPInterface, *, peer: IPInterface | None = None) -> None:
        """Take an address from the link; NotFound."""
        body = wire.change(index, cidr, peer=peer)
        op = f"remove address {cidr} from"
        self._rtnl.mutate(Mutation(wire.RTM_DELADDR, 0, body, op, index, _FAILURES))

    def list(self, index: int | None = None, family: int | None = None) -> list[Address]:
        """All addresses, or those of one link, or of a family (4 or 6); LinkNotFound."""
        payloads = self._rtnl.dump(
            wire.RTM_GETADDR,
            wire.dump(index=index, family=family),
            "list addresses of",
            "all links" if index is None else index,
            _FAILURES,
        )
        return [
            address
            for address in map(wire.parse, payloads)
            if address is not None
            and (family is None or address.address.version == family)
            and (index is None or address.index == index)
        ]
