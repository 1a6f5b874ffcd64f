# SPDX-License-Identifier: Apache-2.0
"""Networks that a plugin makes itself: looked for, compared, created if they are not there.

An existing network is never changed: subnets cannot be (hcsshim #786), and others use it. If it
is not what the configuration says, ADD fails and names the differences.
"""

from __future__ import annotations

import ipaddress

from msgspec import Struct

from pycni.errors import CniError
from pycni.model.addresses import IPAddress, IPNetwork
from pycni.windows import errors, schemas
from pycni.windows.dialects import OWNER, Network, default_prefix
from pycni.windows.service import Service

_NON_PERSISTENT = 8


class NetworkMismatch(CniError):
    """A network of that name exists, but is another one."""


class NetworkWish(Struct, frozen=True, kw_only=True):
    """The network a configuration describes."""

    name: str
    kind: str
    subnet: IPNetwork | None = None
    gateway: IPAddress | None = None  # None: the subnet's first address
    dhcp: bool = False

    @property
    def creatable(self) -> bool:
        """Whether the description is enough to make it. NAT finds itself a subnet."""
        if self.kind == "Overlay":
            return False  # its isolation id is the cluster's business
        return self.subnet is not None or self.dhcp or self.kind == "NAT"


def ensure_network(service: Service, wish: NetworkWish) -> None:
    """Create the network unless it exists; raise NetworkMismatch if it exists otherwise."""
    dialect = service.v2
    found = dialect.find_networks(wish.name)
    if not found and wish.creatable:
        try:
            service.hcn.networks.create(_document(wish))
            return
        except errors.HnsConflict:
            found = dialect.find_networks(wish.name)  # somebody was faster
    for network in found:
        differences = compare(network, wish)
        if differences:
            raise NetworkMismatch(
                f"network {wish.name} is not as configured: {'; '.join(differences)}",
                hint="remove the network, or adapt the configuration to it",
            )


def compare(network: Network, wish: NetworkWish) -> list[str]:
    """Where an existing network differs from the wish, in words; what is not wished is not seen."""
    if network.kind != wish.kind:
        return [f"its type is {network.kind}, not {wish.kind}"]
    if wish.subnet is None:
        return []
    same = [subnet for subnet in network.subnets if subnet.prefix == wish.subnet]
    if not same:
        shown = ", ".join(str(subnet.prefix) for subnet in network.subnets) or "none"
        return [f"its subnet is {shown}, not {wish.subnet}"]
    gateway = same[0].gateway
    if wish.gateway is not None and gateway != wish.gateway:
        return [f"its gateway is {gateway}, not {wish.gateway}"]
    return []


def _document(wish: NetworkWish) -> schemas.Network:
    ipams: tuple[schemas.Ipam, ...] = ()
    if wish.dhcp:
        ipams = (schemas.Ipam(Type="Dhcp"),)
    elif wish.subnet is not None:
        gateway = wish.gateway or first_address(wish.subnet)
        route = schemas.Route(NextHop=str(gateway), DestinationPrefix=default_prefix(gateway))
        subnet = schemas.Subnet(IpAddressPrefix=str(wish.subnet), Routes=(route,))
        ipams = (schemas.Ipam(Subnets=(subnet,)),)
    return schemas.Network(
        Name=wish.name,
        Type=wish.kind,
        Ipams=ipams,
        # Bridged networks of containers do not survive a reboot, like their endpoints.
        Flags=None if wish.kind == "NAT" else _NON_PERSISTENT,
        SchemaVersion=schemas.V2,
        Owner=OWNER,
    )


def first_address(subnet: IPNetwork) -> IPAddress:
    """The customary gateway: the network's address plus one."""
    return ipaddress.ip_address(int(subnet.network_address) + 1)
