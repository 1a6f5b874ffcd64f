# SPDX-License-Identifier: Apache-2.0
"""What the simulated host networking service accepts, rule by rule.

Each rule is marked with where it comes from, for nobody can check them without Windows:

- ``[documented]``: the error table, the enumerations, the schema and the field descriptions of
  Microsoft's documentation, or a public bug report that quotes the service's answer.
- ``[inferred]``: what the service very likely does; the code it answers with is our guess.
"""

from __future__ import annotations

import ipaddress
import re
import uuid
from collections.abc import Iterable
from typing import Any

E_NOTFOUND = 0x80070490
E_INVALIDARG = 0x80070057
E_HANDLE = 0x80070006

NETWORK_NOT_FOUND = 0x803B0001
ENDPOINT_NOT_FOUND = 0x803B0002
INVALID_NETWORK = 0x803B000A
INVALID_NETWORK_TYPE = 0x803B000B
INVALID_ENDPOINT = 0x803B000C
INVALID_POLICY = 0x803B000D
INVALID_POLICY_TYPE = 0x803B000E
NETWORK_EXISTS = 0x803B0010
PORT_EXISTS = 0x803B0013
UNSUPPORTED = 0x803B0015
NO_PORT_MAPPING = 0x803B0016
INVALID_GUID = 0x803B0019
INVALID_JSON = 0x803B001B
INVALID_IP = 0x803B001E
IN_NAMESPACE = 0x803B002B
HAS_REFERENCES = 0x803B002C
NO_INTERNAL_PORT = 0x803B002D
RESERVED_ADDRESS = 0x803B002F
INVALID_PREFIX = 0x803B0030

NETWORK_TYPES = (
    "NAT",
    "ICS",
    "Transparent",
    "L2Bridge",
    "L2Tunnel",
    "Overlay",
    "Private",
    "Internal",
    "Mirrored",
    "Infiniband",
    "ConstrainedICS",
)
NAMESPACE_TYPES = ("Host", "HostDefault", "Guest", "GuestDefault")
ENDPOINT_POLICIES = frozenset(
    {
        "portmapping",
        "acl",
        "qos",
        "l2driver",
        "outboundnat",
        "sdnroute",
        "l4proxy",
        "l4wfpproxy",
        "provideraddress",
        "portname",
        "encapoverhead",
        "interfaceconstraint",
        "encryption",
        "vlan",
        "interfaceparameters",
        "iov",
        "tieracl",
    }
)
ENDPOINT_POLICIES_V1 = frozenset(
    {
        "nat",
        "outboundnat",
        "route",
        "pa",
        "acl",
        "vlan",
        "vsid",
        "qos",
        "proxy",
        "l4wfpproxy",
        "elb",
        "l2driver",
    }
)
NETWORK_POLICIES = frozenset(
    {
        "sourcemacaddress",
        "netadaptername",
        "interfaceconstraint",
        "vswitchextension",
        "provideraddress",
        "drmacaddress",
        "automaticdns",
        "remotesubnetroute",
        "vxlanport",
        "hostroute",
        "setpolicy",
        "l4proxy",
        "layerconstraint",
        "networkacl",
    }
)
# Schema versions by the service's version: 2.0 came with 1809, whose service is 9.2.
SCHEMA_SINCE = {(2, 0): (9, 2), (1, 0): (0, 0)}

_MAC = re.compile(r"([0-9A-Fa-f]{2}-){5}[0-9A-Fa-f]{2}")


class Refused(Exception):
    """The service's answer to what breaks a rule."""

    def __init__(self, hresult: int) -> None:
        super().__init__(f"{hresult:#010x}")
        self.hresult = hresult


def check_id(text: object) -> uuid.UUID:
    """[documented] An id is a GUID; 0x803b0019 says it is not."""
    try:
        return uuid.UUID(str(text))
    except ValueError:
        raise Refused(INVALID_GUID) from None


def check_network(doc: dict[str, Any], names: Iterable[str]) -> None:
    """A network to be created, `names` being those that exist."""
    if network_type(doc) not in NETWORK_TYPES:  # [documented] the enumeration
        raise Refused(INVALID_NETWORK_TYPE)
    if not doc.get("Name"):  # [inferred]
        raise Refused(INVALID_NETWORK)
    if doc["Name"] in names:  # [inferred] the code is documented, uniqueness is not
        raise Refused(NETWORK_EXISTS)
    for policy in doc.get("Policies") or ():
        if str(policy.get("Type", "")).casefold() not in NETWORK_POLICIES:  # [documented]
            raise Refused(INVALID_POLICY_TYPE)
    for subnet in subnets(doc):
        try:
            ipaddress.ip_network(subnet.get("IpAddressPrefix", ""))
        except ValueError:  # [documented] code; [inferred] that host bits count
            raise Refused(INVALID_PREFIX) from None
        if network_type(doc) == "Overlay":
            check_isolation(subnet)


def check_isolation(subnet: dict[str, Any]) -> None:
    """[documented: flannel] Overlay subnets carry a VSID of 4096 or more; [inferred] the code."""
    for policy in subnet.get("Policies") or ():
        if str(policy.get("Type", "")).casefold() == "vsid":
            if int((policy.get("Settings") or {}).get("IsolationId", 0)) >= 4096:
                return
            break
    raise Refused(INVALID_POLICY)


def check_endpoint(
    doc: dict[str, Any],
    network: dict[str, Any],
    others: list[dict[str, Any]],
    version: tuple[int, int],
) -> None:
    """An endpoint to be created on `network`, `others` being the endpoints that exist."""
    if doc.get("HostComputeNamespace"):
        # [documented] the field is read-only on create; [inferred] that setting it is refused.
        raise Refused(INVALID_ENDPOINT)
    mac = doc.get("MacAddress")
    if mac and not _MAC.fullmatch(mac):  # [inferred]
        raise Refused(INVALID_ENDPOINT)
    configurations = doc.get("IpConfigurations") or []
    families = []
    for configuration in configurations:
        if configuration.get("IpAddress"):
            families.append(check_address(configuration, network, others, version))
    if len(families) != len(set(families)):  # [documented] one IPv4 and one IPv6 at most
        raise Refused(INVALID_ENDPOINT)
    if 6 in families and version < (11, 10):  # [documented] dual stack came with 11.10
        raise Refused(INVALID_IP)
    for policy in doc.get("Policies") or ():
        check_endpoint_policy(policy, network, version)
    check_ports(doc, others)


def check_address(
    configuration: dict[str, Any],
    network: dict[str, Any],
    others: list[dict[str, Any]],
    version: tuple[int, int],
) -> int:
    """One address of an endpoint; its IP version."""
    try:
        address = ipaddress.ip_address(configuration["IpAddress"])
    except ValueError:  # [documented] 0x803b001e
        raise Refused(INVALID_IP) from None
    length = configuration.get("PrefixLength")
    if length is not None and not 0 <= length <= 255:  # [documented] an unsigned byte
        raise Refused(INVALID_JSON)
    home = None
    for subnet in subnets(network):
        prefix = ipaddress.ip_network(subnet["IpAddressPrefix"])
        if address in prefix:
            home = (subnet, prefix)
    if home is None:
        if subnets(network):  # [documented] 0x803b001e
            raise Refused(INVALID_IP)
        return address.version
    subnet, prefix = home
    gateways = {route.get("NextHop") for route in subnet.get("Routes") or ()}
    reserved = {prefix.network_address}
    if prefix.version == 4:
        reserved.add(prefix.broadcast_address)
    # [inferred] network, broadcast and gateway address are reserved, and addresses are unique
    if prefix.num_addresses > 2 and (address in reserved or str(address) in gateways):
        raise Refused(RESERVED_ADDRESS)
    taken = {
        ipaddress.ip_address(one["IpAddress"])
        for other in others
        if other["HostComputeNetwork"] == network["ID"]
        for one in other["IpConfigurations"]
    }
    if address in taken:
        raise Refused(RESERVED_ADDRESS)
    return address.version


def check_endpoint_policy(
    policy: dict[str, Any], network: dict[str, Any], version: tuple[int, int]
) -> None:
    """One schema 2 policy of an endpoint."""
    kind = str(policy.get("Type", "")).casefold()  # [documented: calico] any case is taken
    if kind not in ENDPOINT_POLICIES:  # [documented] the enumeration
        raise Refused(INVALID_POLICY_TYPE)
    settings = policy.get("Settings") or {}
    match kind:
        case "outboundnat":
            for text in settings.get("Exceptions") or ():
                check_prefix(text, strict=version >= (13, 0))
            for text in settings.get("Destinations") or ():
                check_prefix(text, strict=False)
        case "portmapping":
            if not settings.get("InternalPort"):  # [documented] 0x803b002d
                raise Refused(NO_INTERNAL_PORT)
            for key, most in (("InternalPort", 65535), ("ExternalPort", 65535), ("Protocol", 255)):
                if not 0 <= int(settings.get(key, 0)) <= most:  # [documented] integer widths
                    raise Refused(INVALID_JSON)
            if network_type(network) in ("Transparent", "Private"):  # [inferred] which types
                raise Refused(NO_PORT_MAPPING)
        case "sdnroute":
            check_prefix(settings.get("DestinationPrefix", ""), strict=False)
        case "provideraddress":
            check_ip(settings.get("ProviderAddress", ""))


def check_prefix(text: str, *, strict: bool) -> None:
    """[documented: hcsshim 1951] Host bits pass on Server 2019 and are 0x803b000d on 2022."""
    try:
        ipaddress.ip_network(text, strict=strict)
    except ValueError:
        raise Refused(INVALID_POLICY) from None


def check_ip(text: str) -> None:
    """[documented] A policy with an unusable address is 0x803b000d."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        raise Refused(INVALID_POLICY) from None


def check_ports(doc: dict[str, Any], others: list[dict[str, Any]]) -> None:
    """[documented] 0x803b0013 for a port that is taken; [inferred] what counts as the same port."""
    taken = {key for other in others for key in external_ports(other)}
    mine = list(external_ports(doc))
    if any(key in taken for key in mine) or len(mine) != len(set(mine)):
        raise Refused(PORT_EXISTS)


def external_ports(endpoint: dict[str, Any]) -> Iterable[tuple[object, ...]]:
    """Host port, protocol, address and family of each port mapping."""
    for policy in endpoint.get("Policies") or ():
        if str(policy.get("Type", "")).casefold() == "portmapping":
            settings = policy.get("Settings") or {}
            if settings.get("ExternalPort"):
                yield (
                    settings["ExternalPort"],
                    settings.get("Protocol"),
                    settings.get("VIP") or "",
                    bool(int(settings.get("Flags", 0)) & 2),
                )


def check_namespace(doc: dict[str, Any]) -> None:
    """[documented] The enumeration of namespace types."""
    kind = doc.get("Type") or "HostDefault"
    if isinstance(kind, int):
        if not 0 <= kind < len(NAMESPACE_TYPES):
            raise Refused(E_INVALIDARG)
    elif kind not in NAMESPACE_TYPES:
        raise Refused(E_INVALIDARG)


def check_schema(doc: dict[str, Any], version: tuple[int, int]) -> None:
    """[documented] The map of schema versions; [inferred] the code for one that is too new."""
    schema = doc.get("SchemaVersion") or {}
    wanted = (int(schema.get("Major", 2)), int(schema.get("Minor", 0)))
    floor = SCHEMA_SINCE.get(wanted, (11, 0) if wanted[0] == 2 else (10**6, 0))
    if version < floor:
        raise Refused(UNSUPPORTED)


def network_type(doc: dict[str, Any]) -> str:
    """The type by name; 0 or nothing is NAT."""
    kind = doc.get("Type") or "NAT"
    if isinstance(kind, int):
        return NETWORK_TYPES[kind] if kind < len(NETWORK_TYPES) else ""
    return next((known for known in NETWORK_TYPES if known.casefold() == str(kind).casefold()), "")


def subnets(doc: dict[str, Any]) -> list[dict[str, Any]]:
    """The subnets of all its address managers."""
    return [one for ipam in doc.get("Ipams") or () for one in ipam.get("Subnets") or ()]
