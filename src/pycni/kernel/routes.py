# SPDX-License-Identifier: Apache-2.0
"""Routes: add, remove, list and look up."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from pycni.errors import NotFound
from pycni.kernel.nlsocket import Failures, Mutation
from pycni.kernel.nlwire import NLM_F_APPEND, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE
from pycni.kernel.nlwire import route as wire
from pycni.kernel.types import Route
from pycni.model.addresses import IPAddress

if TYPE_CHECKING:
    from pycni.kernel.rtnl import Rtnl

# ESRCH: no such route (ENOENT in the family's own words for a table).
_FAILURES: Failures = {errno.ESRCH: NotFound}
_LOOKUP_FAILURES: Failures = {
    errno.ENETUNREACH: NotFound,
    errno.EHOSTUNREACH: NotFound,
    errno.EACCES: NotFound,  # a prohibit route
    errno.EINVAL: NotFound,  # a blackhole route
}


class Routes:
    """The routes of one namespace."""

    __slots__ = ("_rtnl",)

    def __init__(self, rtnl: Rtnl) -> None:
        self._rtnl = rtnl

    def add(self, route: Route, *, replace: bool = False, append: bool = False) -> None:
        """Add a route; AlreadyExists when there is one to that destination.

        `replace` takes its place, `append` stands beside it (IPv6 makes one multipath route of
        the two); AlreadyExists then only if it is the same in everything.
        """
        flags = NLM_F_CREATE | (
            NLM_F_REPLACE if replace else NLM_F_APPEND if append else NLM_F_EXCL
        )
        body = wire.add(route)
        self._rtnl.mutate(
            Mutation(wire.RTM_NEWROUTE, flags, body, "add route", describe(route), _FAILURES)
        )

    def remove(self, route: Route) -> None:
        """Remove the first route that matches what is given; NotFound."""
        body = wire.remove(route)
        self._rtnl.mutate(
            Mutation(wire.RTM_DELROUTE, 0, body, "remove route", describe(route), _FAILURES)
        )

    def list(
        self, table: int | None = None, family: int | None = None, index: int | None = None
    ) -> list[Route]:
        """The routes of all tables, or of one; of a family (4 or 6); through one link.

        LinkNotFound when there is no such link.
        """
        routes: list[Route] = []
        for version in (4, 6) if family is None else (family,):
            body = wire.dump(version, table=table, index=index)
            try:
                payloads = self._rtnl.dump(wire.RTM_GETROUTE, body, "list", "routes", _FAILURES)
            except NotFound as exc:
                if exc.errno != errno.ENOENT:
                    raise
                continue  # the table does not exist
            for payload in payloads:
                routes += wire.parse(payload)
        return [
            route
            for route in routes
            if (table is None or route.table == table)
            and (family is None or route.dst.version == family)
            and (index is None or route.index == index)
        ]

    def get(self, dst: IPAddress) -> Route:
        """The route a packet to `dst` takes, to that very address; NotFound."""
        body = wire.lookup(dst)
        payload = self._rtnl.query(
            wire.RTM_GETROUTE, body, "find route to", str(dst), _LOOKUP_FAILURES
        )
        return wire.parse(payload)[0]


def describe(route: Route) -> str:
    """The route in the words of `ip route`, for errors."""
    words = [str(route.dst)]
    if route.gateway is not None:
        words.append(f"via {route.gateway}")
    if route.index is not None:
        words.append(f"dev index {route.index}")
    if route.table != 254:
        words.append(f"table {route.table}")
    return " ".join(words)
