# SPDX-License-Identifier: Apache-2.0
"""The simulated service's schema 1 documents: views on, and translations into, its own.

Written apart from `pycni.windows.policies` on purpose: the two check each other.
"""

from __future__ import annotations

import ipaddress
from typing import Any

PROTOCOLS = {"tcp": 6, "udp": 17, "icmpv4": 1, "igmp": 2, "icmpv6": 58}
STATE_CREATED, STATE_ATTACHED, STATE_SHARED = 1, 2, 3


def network_from_v1(doc: dict[str, Any]) -> dict[str, Any]:
    """A schema 1 network as the service keeps it."""
    subnets = []
    for subnet in doc.get("Subnets") or ():
        prefix = subnet.get("AddressPrefix", "")
        default = "::/0" if ":" in prefix else "0.0.0.0/0"
        policies = [
            {"Type": one["Type"], "Settings": {"IsolationId": one.get("VSID", one.get("VLAN"))}}
            for one in subnet.get("Policies") or ()
        ]
        gateway = subnet.get("GatewayAddress")
        routes = [{"NextHop": gateway, "DestinationPrefix": default}] if gateway else []
        subnets.append({"IpAddressPrefix": prefix, "Routes": routes, "Policies": policies})
    kept = {key: doc[key] for key in ("ID", "Name", "Type", "Flags") if key in doc}
    return kept | {"Ipams": [{"Type": "Static", "Subnets": subnets}]}


def network_to_v1(network: dict[str, Any], management_ip: str) -> dict[str, Any]:
    """The schema 1 view of a network."""
    subnets = []
    for ipam in network.get("Ipams") or ():
        for subnet in ipam.get("Subnets") or ():
            routes = subnet.get("Routes") or ()
            subnets.append(
                {
                    "AddressPrefix": subnet.get("IpAddressPrefix", ""),
                    "GatewayAddress": next((r["NextHop"] for r in routes if r.get("NextHop")), ""),
                    "Policies": [
                        {"Type": one["Type"]} | {one["Type"]: one["Settings"].get("IsolationId")}
                        for one in subnet.get("Policies") or ()
                    ],
                }
            )
    return {
        "ID": network["ID"],
        "Name": network["Name"],
        "Type": network.get("Type", "NAT"),
        "Subnets": subnets,
        "ManagementIP": management_ip,
        "State": 1,
    }


def policy_from_v1(policy: dict[str, Any]) -> dict[str, Any]:
    """A flat policy as the service keeps it."""
    rest = {key: value for key, value in policy.items() if key != "Type"}
    match str(policy.get("Type", "")).casefold():
        case "nat":
            protocol = rest.pop("Protocol", "")
            number = PROTOCOLS.get(str(protocol).casefold(), protocol)
            reserved = rest.pop("ExternalPortReserved", False)
            flags = {"Flags": 4} if reserved else {}
            return {"Type": "PortMapping", "Settings": rest | {"Protocol": number} | flags}
        case "route":
            return {"Type": "SDNRoute", "Settings": rest}
        case "pa":
            return {"Type": "ProviderAddress", "Settings": {"ProviderAddress": rest.get("PA", "")}}
        case "outboundnat":
            renamed = {"ExceptionList": "Exceptions", "VIP": "VirtualIP"}
            settings = {renamed.get(key, key): value for key, value in rest.items()}
            return {"Type": "OutBoundNAT", "Settings": settings}
    return {"Type": policy.get("Type", ""), "Settings": rest}


def policy_to_v1(policy: dict[str, Any]) -> dict[str, Any]:
    """The schema 1 view of a policy."""
    settings: dict[str, Any] = dict(policy.get("Settings") or {})
    match str(policy.get("Type", "")).casefold():
        case "portmapping":
            names = {number: name.upper() for name, number in PROTOCOLS.items()}
            protocol = settings.get("Protocol")
            return {
                "Type": "NAT",
                "InternalPort": settings.get("InternalPort"),
                "ExternalPort": settings.get("ExternalPort"),
                "Protocol": names.get(protocol, protocol)
                if isinstance(protocol, int)
                else protocol,
            }
        case "sdnroute":
            return {"Type": "ROUTE"} | settings
        case "provideraddress":
            return {"Type": "PA", "PA": settings.get("ProviderAddress", "")}
        case "outboundnat":
            renamed = {"Exceptions": "ExceptionList", "VirtualIP": "VIP"}
            return {"Type": "OutBoundNAT"} | {
                renamed.get(key, key): value for key, value in settings.items()
            }
    return {"Type": policy.get("Type", "")} | settings


def endpoint_from_v1(doc: dict[str, Any]) -> dict[str, Any]:
    """A schema 1 endpoint as the service keeps it."""
    addresses = [{"IpAddress": doc[key]} for key in ("IPAddress", "IPv6Address") if doc.get(key)]
    routes = []
    for key, default in (("GatewayAddress", "0.0.0.0/0"), ("GatewayAddressV6", "::/0")):
        if doc.get(key):
            routes.append({"NextHop": doc[key], "DestinationPrefix": default})
    return {
        "ID": doc.get("ID", ""),
        "Name": doc.get("Name", ""),
        "HostComputeNetwork": doc.get("VirtualNetwork", ""),
        "MacAddress": doc.get("MacAddress", ""),
        "Policies": [policy_from_v1(policy) for policy in doc.get("Policies") or ()],
        "IpConfigurations": addresses,
        "Routes": routes,
        "Dns": {
            "Search": [part for part in doc.get("DNSSuffix", "").split(",") if part],
            "ServerList": [part for part in doc.get("DNSServerList", "").split(",") if part],
        },
    }


def endpoint_to_v1(endpoint: dict[str, Any], network_name: str) -> dict[str, Any]:
    """The schema 1 view of an endpoint."""
    doc: dict[str, Any] = {
        "ID": endpoint["ID"],
        "Name": endpoint["Name"],
        "VirtualNetwork": endpoint["HostComputeNetwork"],
        "VirtualNetworkName": network_name,
        "MacAddress": endpoint["MacAddress"],
        "Policies": [policy_to_v1(policy) for policy in endpoint["Policies"]],
        "DNSSuffix": ",".join(endpoint["Dns"].get("Search") or ()),
        "DNSServerList": ",".join(endpoint["Dns"].get("ServerList") or ()),
        "SharedContainers": endpoint["SharedContainers"],
        "State": endpoint["State"],
    }
    for one in endpoint["IpConfigurations"]:
        six = ipaddress.ip_address(one["IpAddress"]).version == 6
        doc["IPv6Address" if six else "IPAddress"] = one["IpAddress"]
        doc["IPv6PrefixLength" if six else "PrefixLength"] = one["PrefixLength"]
    for route in endpoint["Routes"]:
        if route["DestinationPrefix"] in ("0.0.0.0/0", "::/0"):
            key = "GatewayAddressV6" if ":" in route["DestinationPrefix"] else "GatewayAddress"
            doc[key] = route["NextHop"]
    if endpoint["HostComputeNamespace"] != ZERO:
        doc["Namespace"] = {"ID": endpoint["HostComputeNamespace"]}
    return doc


ZERO = "00000000-0000-0000-0000-000000000000"
