# SPDX-License-Identifier: Apache-2.0
"""Which features a service version has. Source: hcsshim's table of API version ranges."""

from __future__ import annotations

import enum

from pycni.windows import errors
from pycni.windows.schemas import Version

_Range = tuple[tuple[int, int], tuple[int, int]]
_OPEN = 10**6  # no upper end


def _since(major: int, minor: int) -> _Range:
    return ((major, minor), (_OPEN, _OPEN))


def _within(major: int, minor: int) -> _Range:
    """From major.minor to the end of that major version (a backport)."""
    return ((major, minor), (major, _OPEN))


class Feature(enum.Enum):
    """What the service may or may not do, by the name error messages use."""

    V1_ACL = "Access Control Lists (ACL) in schema 1"
    V2 = "schema 2 of the host compute network"
    REMOTE_SUBNET = "remote subnet routes"
    HOST_ROUTE = "host routes"
    DSR = "Direct Server Return (DSR)"
    SLASH32_ENDPOINT_PREFIXES = "/32 endpoint prefixes"
    VXLAN_PORT = "a chosen VXLAN port"
    ACL_PROTOCOL_252 = "Access Control Lists for protocol 252"
    IPV6_DUAL_STACK = "IPv6 dual stack"
    SESSION_AFFINITY = "session affinity"
    SET_POLICY = "set policies"
    L4_PROXY = "the layer 4 proxy"
    L4_WFP_PROXY = "the layer 4 WFP proxy"
    TIER_ACL = "tiered Access Control Lists"
    NETWORK_ACL = "network Access Control Lists"
    NESTED_IP_SET = "nested IP sets"
    DISABLE_HOST_PORT = "networks without a host port"
    MODIFY_LOAD_BALANCER = "changing a load balancer"
    ACCELNET = "accelerated networking"


RANGES: dict[Feature, tuple[_Range, ...]] = {
    Feature.V1_ACL: (_since(7, 2),),
    Feature.V2: (_since(9, 2),),
    Feature.REMOTE_SUBNET: (_since(9, 2),),
    Feature.HOST_ROUTE: (_since(9, 2),),
    Feature.DSR: (_within(9, 3), _since(10, 2)),
    Feature.SLASH32_ENDPOINT_PREFIXES: (_within(9, 3), _since(10, 4)),
    Feature.VXLAN_PORT: (_since(10, 3),),
    Feature.ACL_PROTOCOL_252: (_since(11, 0),),
    Feature.IPV6_DUAL_STACK: (_since(11, 10),),
    Feature.SESSION_AFFINITY: (_since(12, 0),),
    Feature.SET_POLICY: (_since(13, 0),),
    Feature.L4_PROXY: (
        _within(9, 5),
        _within(10, 5),
        _within(11, 11),
        _within(12, 1),
        _since(13, 1),
    ),
    Feature.L4_WFP_PROXY: (_since(13, 2),),
    Feature.TIER_ACL: (_since(14, 0),),
    Feature.NETWORK_ACL: (_since(15, 0),),
    Feature.NESTED_IP_SET: (_since(15, 0),),
    Feature.DISABLE_HOST_PORT: (_since(15, 1),),
    Feature.MODIFY_LOAD_BALANCER: (_since(15, 4),),
    Feature.ACCELNET: (_since(15, 4),),
}


class Features:
    """What one service can do. Version 0.0 stands for a service too old to tell: nothing."""

    def __init__(self, version: Version) -> None:
        self.version = version

    def has(self, feature: Feature) -> bool:
        now = (self.version.Major, self.version.Minor)
        return any(first <= now <= last for first, last in RANGES[feature])

    def expect(self, feature: Feature) -> None:
        """Raise unless the service has `feature`."""
        if not self.has(feature):
            version = f"{self.version.Major}.{self.version.Minor}"
            raise errors.HnsUnsupported(
                f"feature {feature.value}", hint=f"the service has version {version}"
            )
