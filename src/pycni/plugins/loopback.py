# SPDX-License-Identifier: Apache-2.0
"""loopback: bring up the container's `lo`. The smallest plugin; read this one first."""

from __future__ import annotations

from pycni.errors import CniError
from pycni.kernel.side import Side
from pycni.model.result import Interface, IPConfig, Result
from pycni.plugins.sdk import Call, Config, Plugin

LO = "lo"  # whatever CNI_IFNAME says


class Loopback(Plugin[Config], type="loopback", config=Config):
    """The five verbs of the loopback plugin; it has no keys of its own."""

    def add(self, call: Call[Config]) -> Result:
        """Bring `lo` up; pass a chain's result on, or report the addresses `lo` has."""
        lo = call.container.links.get(LO)
        if not lo.up:
            call.container.links.set(lo.index, up=True)
        if call.prev_result is not None:
            return call.prev_result
        return Result(
            interfaces=(Interface(name=LO, mac=lo.mac or "", sandbox=call.request.netns),),
            ips=loopback_addresses(call.container, lo.index),
        )

    def delete(self, call: Call[Config]) -> None:
        """Leave `lo` as it is: it goes with its namespace, and the runtime may want it until then.

        The reference sets it down, and has so cut off a host whose namespace CNI_NETNS named by
        mistake (containernetworking/plugins #714).
        """

    def check(self, call: Call[Config]) -> None:
        """Raise if `lo` is down."""
        if not call.container.links.get(LO).up:
            raise CniError("loopback interface is down")

    def gc(self, call: Call[Config]) -> None:
        """Nothing outside the containers' namespaces, nothing to collect."""

    def status(self, call: Call[Config]) -> None:
        """Every kernel has a loopback interface."""


def loopback_addresses(container: Side, index: int) -> tuple[IPConfig, ...]:
    """The first address of each family on `lo`; raise if one is no loopback address."""
    first: dict[int, IPConfig] = {}
    for family in (4, 6):
        for held in container.addresses.list(index=index, family=family):
            if not held.address.is_loopback:
                raise CniError(
                    f"{LO} has an address that is not a loopback address: {held.address}"
                )
            first.setdefault(family, IPConfig(address=held.address, interface=0))
    return tuple(first.values())
