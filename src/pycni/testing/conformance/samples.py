# SPDX-License-Identifier: Apache-2.0
"""Configurations that the reference plugin types accept, so that their verbs can be called.

A plugin of another type needs one from its author. Types whose work cannot be tried in fresh
namespaces (a daemon, a device) are here with the reason: their refusals are still tested.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

IPAM = "conformance-ipam"
UPLINK = "cnf-uplink"
DEVICE = "cnf-device"
STATE = "{state}"  # stands for a directory of this run

FIRST_HOST_PORT = 18080


class Role(enum.Enum):
    """What ADD does with the interface CNI_IFNAME."""

    CREATES = "creates it"
    ADJUSTS = "finds it made by an earlier plugin"
    ADDRESSES = "only hands out addresses"
    UNKNOWN = "the first ADD tells"


class Sample(Struct, frozen=True, kw_only=True):
    """A plugin object without cniVersion, name and type, and what its ADD takes for granted."""

    config: Mapping[str, Any] | None = None
    role: Role = Role.UNKNOWN
    ifname: str = "eth0"
    needs_root: bool = True
    # Kinds of link the kernel must know.
    kinds: tuple[str, ...] = ()
    # A link the host must have before each ADD.
    host_link: str = ""
    # Why there is no configuration.
    reason: str = ""

    @property
    def delegates(self) -> bool:
        """Whether the plugin runs our IPAM plugin."""
        ipam = (self.config or {}).get("ipam")
        return isinstance(ipam, Mapping) and ipam.get("type") == IPAM


NONE = Sample(reason="there is no sample configuration of this type; give one with --config")
DELEGATED = {"ipam": {"type": IPAM}}


def creates(**members: Any) -> Mapping[str, Any]:
    """A configuration with our IPAM plugin."""
    return {**members, **DELEGATED}


SAMPLES: Mapping[str, Sample] = {
    "bridge": Sample(config=creates(bridge="cnf-br0", isGateway=True), role=Role.CREATES),
    "dummy": Sample(config=creates(), role=Role.CREATES, kinds=("dummy",)),
    "host-device": Sample(config=creates(device=DEVICE), role=Role.CREATES, host_link=DEVICE),
    "ipvlan": Sample(
        config=creates(master=UPLINK), role=Role.CREATES, kinds=("ipvlan",), host_link=UPLINK
    ),
    "loopback": Sample(config={}, ifname="lo"),
    "macvlan": Sample(
        config=creates(master=UPLINK, mode="bridge"),
        role=Role.CREATES,
        kinds=("macvlan",),
        host_link=UPLINK,
    ),
    "ptp": Sample(config=creates(), role=Role.CREATES),
    "tap": Sample(config=creates(), role=Role.CREATES),
    "vlan": Sample(
        config=creates(master=UPLINK, vlanId=5),
        role=Role.CREATES,
        kinds=("vlan",),
        host_link=UPLINK,
    ),
    "host-local": Sample(
        config={
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": "10.88.0.0/24"}], [{"subnet": "fd00:88::/64"}]],
                "routes": [{"dst": "0.0.0.0/0"}],
                "dataDir": STATE,
            }
        },
        role=Role.ADDRESSES,
        needs_root=False,
    ),
    "static": Sample(
        config={
            "ipam": {
                "type": "static",
                "addresses": [
                    {"address": "10.88.0.5/16", "gateway": "10.88.0.1"},
                    {"address": "fd00:88::5/64", "gateway": "fd00:88::1"},
                ],
                "routes": [{"dst": "0.0.0.0/0", "gw": "10.88.0.1"}, {"dst": "fd01::/64"}],
                "dns": {"nameservers": ["10.88.0.1"]},
            }
        },
        role=Role.ADDRESSES,
        needs_root=False,
    ),
    "dhcp": Sample(role=Role.ADDRESSES, reason="dhcp needs its daemon and a server"),
    "bandwidth": Sample(
        config={"ingressRate": 8000000, "ingressBurst": 8000000}, role=Role.ADJUSTS, kinds=("ifb",)
    ),
    "firewall": Sample(config={"backend": "iptables"}, role=Role.ADJUSTS),
    "portmap": Sample(
        config={
            "runtimeConfig": {
                "portMappings": [
                    {"hostPort": FIRST_HOST_PORT, "containerPort": 80, "protocol": "tcp"}
                ]
            }
        },
        role=Role.ADJUSTS,
    ),
    "sbr": Sample(config={}, role=Role.ADJUSTS),
    "tuning": Sample(config={"sysctl": {"net.core.somaxconn": "500"}}, role=Role.ADJUSTS),
    "vrf": Sample(config={"vrfname": "cnf-vrf0"}, role=Role.ADJUSTS, kinds=("vrf",)),
    "pycni": Sample(
        reason="it runs a network of the service; give its configuration with --config"
    ),
}
