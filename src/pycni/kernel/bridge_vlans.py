# SPDX-License-Identifier: Apache-2.0
"""Bridge VLANs: which VLANs a bridge port carries, and how."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pycni.kernel.nlsocket import NO_FAILURES, Mutation
from pycni.kernel.nlwire import link as link_wire
from pycni.kernel.nlwire import vlan as wire
from pycni.kernel.types import BridgeVlan

if TYPE_CHECKING:
    from pycni.kernel.rtnl import Rtnl


class BridgeVlans:
    """The VLANs of one namespace's bridges and their ports."""

    __slots__ = ("_rtnl",)

    def __init__(self, rtnl: Rtnl) -> None:
        self._rtnl = rtnl

    def add(
        self,
        index: int,
        vid: int,
        vid_end: int | None = None,
        *,
        pvid: bool = False,
        untagged: bool = False,
        on_bridge: bool = False,
    ) -> None:
        """Let a port carry a VLAN, or all from `vid` to `vid_end`; again changes the flags.

        `on_bridge`: `index` is the bridge itself, not a port.
        """
        end = vid if vid_end is None else vid_end
        vlan = BridgeVlan(index=index, vid=vid, vid_end=end, pvid=pvid, untagged=untagged)
        body = wire.change(vlan, on_bridge=on_bridge)
        op = f"add vlan {_range(vid, end)} to"
        self._rtnl.mutate(Mutation(link_wire.RTM_SETLINK, 0, body, op, index, NO_FAILURES))

    def remove(
        self, index: int, vid: int, vid_end: int | None = None, *, on_bridge: bool = False
    ) -> None:
        """Take a VLAN, or a range of them, from a port; those it does not carry are passed over."""
        end = vid if vid_end is None else vid_end
        body = wire.change(BridgeVlan(index=index, vid=vid, vid_end=end), on_bridge=on_bridge)
        op = f"remove vlan {_range(vid, end)} from"
        self._rtnl.mutate(Mutation(link_wire.RTM_DELLINK, 0, body, op, index, NO_FAILURES))

    def list(self, index: int | None = None) -> list[BridgeVlan]:
        """The VLANs of all bridges and ports, or of one; Unsupported without VLAN filtering."""
        op, target = "list vlans of", "bridges" if index is None else index
        payloads = self._rtnl.dump(wire.RTM_GETVLAN, wire.dump(index), op, target)
        return [vlan for payload in payloads for vlan in wire.parse(payload)]


def _range(vid: int, vid_end: int) -> str:
    return str(vid) if vid == vid_end else f"{vid}-{vid_end}"
