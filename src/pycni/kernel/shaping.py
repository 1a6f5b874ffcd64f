# SPDX-License-Identifier: Apache-2.0
"""Traffic control: token buckets, the ingress qdisc, filters that redirect."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from pycni.errors import NotFound, Unsupported
from pycni.kernel.nlsocket import Failures, Mutation
from pycni.kernel.nlwire import NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE
from pycni.kernel.nlwire import tc as wire
from pycni.kernel.types import Filter, Qdisc

if TYPE_CHECKING:
    from pycni.kernel.rtnl import Rtnl

# "Specified qdisc kind is unknown" and its like are ENOENT when something is made.
_ADD_FAILURES: Failures = {errno.ENOENT: Unsupported}
# EINVAL: there is no qdisc the filter could be on.
_FILTER_FAILURES: Failures = {errno.EINVAL: NotFound}

TBF_HANDLE = 0x10000  # 1:, the handle the bandwidth plugins have always used
_REDIRECT_HANDLE = 0x80000800  # 800::800, the u32 filter's first key


class Qdiscs:
    """The queueing disciplines of one namespace's links."""

    __slots__ = ("_rtnl",)

    def __init__(self, rtnl: Rtnl) -> None:
        self._rtnl = rtnl

    def replace_tbf(
        self, index: int, *, rate: int, burst: int, limit: int, handle: int = TBF_HANDLE
    ) -> None:
        """Let no more leave the link than `rate` bytes a second after a `burst` of bytes.

        `limit` bytes may wait; more is dropped. What was the root qdisc is replaced. A burst of
        more than 274 s at the rate is cut to that (`nlwire.tc.cap_burst`).
        """
        body = wire.set_tbf(index, rate=rate, burst=burst, limit=limit, handle=handle)
        flags = NLM_F_CREATE | NLM_F_REPLACE
        self._rtnl.mutate(
            Mutation(wire.RTM_NEWQDISC, flags, body, "set tbf on", index, _ADD_FAILURES)
        )

    def add_ingress(self, index: int) -> None:
        """Make the place for filters on what arrives; AlreadyExists."""
        body = wire.add_ingress(index)
        flags = NLM_F_CREATE | NLM_F_EXCL
        self._rtnl.mutate(
            Mutation(wire.RTM_NEWQDISC, flags, body, "add ingress qdisc to", index, _ADD_FAILURES)
        )

    def remove_root(self, index: int) -> None:
        """Back to the link's default qdisc; NotFound when that is what it has."""
        self._remove(index, wire.TC_H_ROOT, "remove root qdisc of")

    def remove_ingress(self, index: int) -> None:
        """Remove the ingress qdisc and its filters; NotFound."""
        self._remove(index, wire.TC_H_INGRESS, "remove ingress qdisc of")

    def list(self, index: int | None = None) -> list[Qdisc]:
        """All queueing disciplines, or those of one link."""
        payloads = self._rtnl.dump(wire.RTM_GETQDISC, wire.dump_qdiscs(), "list", "qdiscs")
        return [
            qdisc
            for qdisc in map(wire.parse_qdisc, payloads)
            if index is None or qdisc.index == index
        ]

    def _remove(self, index: int, parent: int, op: str) -> None:
        body = wire.remove_qdisc(index, parent)
        # EINVAL: the link has none there, in older kernels' words.
        failures: Failures = {errno.EINVAL: NotFound}
        self._rtnl.mutate(Mutation(wire.RTM_DELQDISC, 0, body, op, index, failures))


class Filters:
    """The traffic filters of one namespace's links."""

    __slots__ = ("_rtnl",)

    def __init__(self, rtnl: Rtnl) -> None:
        self._rtnl = rtnl

    def replace_redirect(self, index: int, *, to: int, priority: int = 1) -> None:
        """Send everything that arrives at the link out of link `to`, after `add_ingress`."""
        body = wire.add_redirect(
            index, to, parent=wire.INGRESS_HANDLE, priority=priority, handle=_REDIRECT_HANDLE
        )
        flags = NLM_F_CREATE | NLM_F_REPLACE
        op = f"redirect to index {to} what arrives at"
        self._rtnl.mutate(
            Mutation(
                wire.RTM_NEWTFILTER, flags, body, op, index, {**_ADD_FAILURES, **_FILTER_FAILURES}
            )
        )

    def remove_redirect(self, index: int, *, priority: int = 1) -> None:
        """Remove the filters of that priority on what arrives; NotFound."""
        body = wire.remove_filters(index, parent=wire.INGRESS_HANDLE, priority=priority)
        self._rtnl.mutate(
            Mutation(wire.RTM_DELTFILTER, 0, body, "remove filters of", index, _FILTER_FAILURES)
        )

    def list(self, index: int, *, ingress: bool = True) -> list[Filter]:
        """The filters on what arrives at a link, or on its root qdisc."""
        body = wire.dump_filters(index, wire.INGRESS_HANDLE if ingress else 0)
        payloads = self._rtnl.dump(wire.RTM_GETTFILTER, body, "list filters of", index)
        return [wire.parse_filter(payload) for payload in payloads]
