# SPDX-License-Identifier: Apache-2.0
"""Endpoint policies: both schemas' spellings, and one list of them without duplicates.

Everywhere above this module a policy is a schema 2 `Policy`. A configuration may spell it either
way, whichever API is used: schema 1 is flat (`{"Type": "OutBoundNAT", "ExceptionList": […]}`),
schema 2 nested (`{"Type": "OutBoundNAT", "Settings": {"Exceptions": […]}}`). The reference sends a
flat one to schema 2 as a policy without settings, which NATs everything.

`PolicyList` then adds what the plugin itself needs. Exceptions from NAT are merged into one
OutBoundNAT per address family; a provider address in the configuration wins over the network's.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from pycni.errors import InvalidConfig
from pycni.model.addresses import IPAddress, IPNetwork, parse_cidr, parse_ip
from pycni.windows.schemas import Policy

log = logging.getLogger(__name__)

PROTOCOLS = {"icmpv4": 1, "igmp": 2, "tcp": 6, "udp": 17, "icmpv6": 58}
_PROTOCOL_NAMES = {number: name.upper() for name, number in PROTOCOLS.items()}
_HIGHEST_PROTOCOL = 1023  # ten bits, as the reference reads it

_LEADING_ZERO = re.compile(r"^0(?=[0-9])")  # an octal number in Go, an error in Python

# Flags of a port mapping.
LOCAL_ROUTED_VIP = 1
IPV6 = 2
PORT_RESERVED = 4

OUTBOUND_NAT = "OutBoundNAT"
PORT_MAPPING = "PortMapping"
PROVIDER_ADDRESS = "ProviderAddress"
SDN_ROUTE = "SDNRoute"
QOS = "QOS"

# Schema 2 types by folded name; the service takes any case, so the configuration may too.
TYPES = {
    name.casefold(): name
    for name in (
        PORT_MAPPING,
        "ACL",
        QOS,
        "L2Driver",
        OUTBOUND_NAT,
        SDN_ROUTE,
        "L4Proxy",
        "L4WFPPROXY",
        PROVIDER_ADDRESS,
        "PortName",
        "EncapOverhead",
        "InterfaceConstraint",
        "Encryption",
        "VLAN",
        "InterfaceParameters",
        "Iov",
        "TierAcl",
    )
}
# Schema 1 types that have another name in schema 2.
RENAMED = {"nat": PORT_MAPPING, "route": SDN_ROUTE, "pa": PROVIDER_ADDRESS, "proxy": "L4Proxy"}
_V1_NAMES = {PORT_MAPPING: "NAT", SDN_ROUTE: "ROUTE", PROVIDER_ADDRESS: "PA", "L4Proxy": "PROXY"}

# Keys with another name in schema 2, by schema 2 type.
RENAMED_KEYS: dict[str, dict[str, str]] = {
    OUTBOUND_NAT: {"ExceptionList": "Exceptions", "VIP": "VirtualIP"},
    PROVIDER_ADDRESS: {"PA": "ProviderAddress"},
    "VLAN": {"VLAN": "IsolationId"},
    "ACL": {"Protocol": "Protocols", "LocalPort": "LocalPorts", "RemotePort": "RemotePorts"},
}


def parse_policy(value: Mapping[str, Any], *, where: str) -> Policy:
    """A policy in either spelling; raise InvalidConfig (7) naming `where` if it is in neither."""
    kind = _get(value, "Type")
    if not isinstance(kind, str) or not kind:
        raise InvalidConfig(f"{where}: a policy needs a Type")
    folded = kind.casefold()
    settings = _get(value, "Settings")
    if settings is None:
        name = RENAMED.get(folded) or TYPES.get(folded)
        if name is None:
            raise InvalidConfig(f"{where}: unknown policy type {kind!r} without Settings")
        settings = _nested(name, value, where)
    else:
        name = TYPES.get(folded, kind)
        if not isinstance(settings, Mapping):
            raise InvalidConfig(f"{where}.Settings: expected object")
        if folded in RENAMED:
            raise InvalidConfig(
                f"{where}: policy type {kind!r} belongs to schema 1, which has no Settings",
                hint=f"write Type {RENAMED[folded]!r}",
            )
    return _checked(Policy(Type=name, Settings=dict(settings)), where)


def _nested(name: str, value: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The settings of a flat policy, with the keys of schema 2."""
    renamed = RENAMED_KEYS.get(name, {})
    settings = {
        renamed.get(key, key): given for key, given in value.items() if key.casefold() != "type"
    }
    if name == PORT_MAPPING:
        protocol = settings.get("Protocol", "")
        number = parse_protocol(str(protocol))
        if number is None:
            raise InvalidConfig(f"{where}.Protocol: unknown protocol {protocol!r}")
        settings["Protocol"] = number
        if settings.pop("ExternalPortReserved", False):
            settings["Flags"] = settings.get("Flags", 0) | PORT_RESERVED
    if name == "ACL":
        for key in ("Protocols", "LocalPorts", "RemotePorts"):
            if isinstance(settings.get(key), int):  # schema 2 lists them in a text: "6,17"
                settings[key] = str(settings[key])
    return settings


def _checked(policy: Policy, where: str) -> Policy:
    """The policy with its networks normalised: since Server 2022 host bits are refused."""
    if policy.Type != OUTBOUND_NAT:
        return policy
    settings = dict(policy.Settings)
    for key in ("Exceptions", "Destinations"):
        given = settings.get(key)
        if given is None:
            continue
        if not isinstance(given, Sequence) or isinstance(given, str):
            raise InvalidConfig(f"{where}.{key}: expected array")
        settings[key] = [_network(text, f"{where}.{key}[{i}]") for i, text in enumerate(given)]
    return Policy(Type=policy.Type, Settings=settings)


def _network(text: object, where: str) -> str:
    try:
        spelled = str(text)
        return str(parse_cidr(spelled).network if "/" in spelled else parse_ip(spelled))
    except InvalidConfig:
        raise InvalidConfig(f"{where}: not a CIDR: {text!r}") from None


def to_v1(policy: Policy) -> dict[str, Any]:
    """The flat spelling of schema 1, `Type` first."""
    renamed = {new: old for old, new in RENAMED_KEYS.get(policy.Type, {}).items()}
    flat: dict[str, Any] = {"Type": _V1_NAMES.get(policy.Type, policy.Type)}
    flat |= {renamed.get(key, key): value for key, value in policy.Settings.items()}
    if policy.Type == PORT_MAPPING:
        flat["Protocol"] = _PROTOCOL_NAMES.get(flat.get("Protocol", 0), flat.get("Protocol"))
        if int(flat.pop("Flags", 0)) & PORT_RESERVED:
            flat["ExternalPortReserved"] = True
        if flat.pop("VIP", ""):
            log.warning("schema 1 has no host address for a port mapping; it is open on all")
    return flat


def from_v1(flat: Mapping[str, Any]) -> Policy:
    """What the service shows in schema 1, as schema 2; nothing is refused."""
    kind = str(flat.get("Type", ""))
    name = RENAMED.get(kind.casefold()) or TYPES.get(kind.casefold()) or kind
    try:
        return Policy(Type=name, Settings=_nested(name, flat, "policy"))
    except InvalidConfig:
        return Policy(Type=name, Settings=dict(flat))


def parse_protocol(text: str) -> int | None:
    """A protocol's number: a number in any of Go's bases, or a name; None if it is neither."""
    try:
        number = int(_LEADING_ZERO.sub("0o", text), 0) if text[:1].isdigit() else -1
    except ValueError:
        number = -1
    if 0 <= number <= _HIGHEST_PROTOCOL:
        return number
    return PROTOCOLS.get(text.casefold())


class PolicyList:
    """An endpoint's policies: the configured ones first, then what is added."""

    def __init__(self, configured: Iterable[Policy] = ()) -> None:
        self._policies: list[Policy] = []
        for policy in configured:
            if policy.Type == OUTBOUND_NAT and "Destinations" not in policy.Settings:
                self._add_nat(policy)
            else:
                self._policies.append(policy)

    def add_exceptions(self, networks: Iterable[IPNetwork]) -> None:
        """Traffic to `networks` keeps the container's own address."""
        for network in networks:
            self._add_nat(Policy(Type=OUTBOUND_NAT, Settings={"Exceptions": [str(network)]}))

    def add_destinations(self, addresses: Iterable[IPAddress]) -> None:
        """Traffic of the container to itself through a service address is NATed (loopback DSR)."""
        present = {
            target
            for policy in self._policies
            if policy.Type == OUTBOUND_NAT
            for target in policy.Settings.get("Destinations") or ()
        }
        for address in addresses:
            if str(address) not in present:
                present.add(str(address))
                settings = {"Destinations": [str(address)]}
                self._policies.append(Policy(Type=OUTBOUND_NAT, Settings=settings))

    def add_provider_address(self, address: str) -> None:
        """Packets to other nodes leave from `address`, unless the configuration names another."""
        if not any(policy.Type == PROVIDER_ADDRESS for policy in self._policies):
            settings = {"ProviderAddress": address}
            self._policies.append(Policy(Type=PROVIDER_ADDRESS, Settings=settings))

    def add(self, policies: Iterable[Policy]) -> None:
        """Add those that are not there yet."""
        for policy in policies:
            if policy not in self._policies:
                self._policies.append(policy)

    def freeze(self) -> tuple[Policy, ...]:
        return tuple(self._policies)

    def _add_nat(self, policy: Policy) -> None:
        """Merge exceptions into the first OutBoundNAT of their family."""
        rest = {key: value for key, value in policy.Settings.items() if key != "Exceptions"}
        exceptions = policy.Settings.get("Exceptions") or []
        if not exceptions or rest:
            # Settings of its own (a virtual address, a port pool): stays as it was written.
            self._policies.append(policy)
            return
        for exception in exceptions:
            home = self._home(family(exception))
            if home is None:
                settings = {"Exceptions": [exception]}
                self._policies.append(Policy(Type=OUTBOUND_NAT, Settings=settings))
            elif exception not in (
                present := self._policies[home].Settings.get("Exceptions") or []
            ):
                settings = self._policies[home].Settings | {"Exceptions": [*present, exception]}
                self._policies[home] = Policy(Type=OUTBOUND_NAT, Settings=settings)

    def _home(self, wanted: int) -> int | None:
        """Where an exception of that family belongs: into the first list of its kind."""
        for position, policy in enumerate(self._policies):
            if policy.Type != OUTBOUND_NAT or "Destinations" in policy.Settings:
                continue
            families = {family(one) for one in policy.Settings.get("Exceptions") or ()}
            if wanted in families or not families:
                return position
        return None


def port_mappings(
    *,
    host_port: int,
    container_port: int,
    protocol: str,
    host_ip: IPAddress | None,
    families: Iterable[int],
    local_routed: bool,
) -> list[Policy]:
    """The policies of one port mapping: one per family the container has and `host_ip` allows.

    The service knows no SCTP: like the reference, a mapping of a protocol it does not know is
    left out, but not silently.
    """
    number = parse_protocol(protocol)
    if number is None:
        log.warning("port mapping skipped: protocol=%s hostPort=%s", protocol, host_port)
        return []
    # An unspecified address means all of its family.
    vip = None if host_ip is None or host_ip.is_unspecified else host_ip
    found = []
    for version in families:
        if host_ip is not None and host_ip.version != version:
            continue
        settings: dict[str, Any] = {
            "InternalPort": container_port,
            "ExternalPort": host_port,
            "Protocol": number,
        }
        if vip is not None:
            settings["VIP"] = str(vip)
        flags = (LOCAL_ROUTED_VIP if local_routed else 0) | (IPV6 if version == 6 else 0)
        if flags:
            settings["Flags"] = flags
        found.append(Policy(Type=PORT_MAPPING, Settings=settings))
    return found


def family(text: str) -> int:
    """The IP version of an address or network; 4 for what is neither."""
    return 6 if ":" in text else 4


def contains(actual: Iterable[Policy], wanted: Policy) -> bool:
    """Whether one of `actual` has the type of `wanted` and all its settings.

    The service adds settings of its own and orders lists as it likes.
    """
    return any(
        policy.Type.casefold() == wanted.Type.casefold()
        and all(_alike(policy.Settings.get(key), value) for key, value in wanted.Settings.items())
        for policy in actual
    )


def _alike(actual: object, wanted: object) -> bool:
    if isinstance(wanted, list):
        return isinstance(actual, list) and {_key(one) for one in wanted} <= {
            _key(one) for one in actual
        }
    if wanted in ("", 0, False) and actual is None:
        return True
    return _key(actual) == _key(wanted)


def _key(value: object) -> str:
    """Numbers and texts compare alike, ids and networks without regard to case."""
    if isinstance(value, Mapping | list):
        return msgspec.json.encode(value, order="deterministic").decode().casefold()
    return str(value).casefold()


def _get(value: Mapping[str, Any], key: str) -> Any:
    """The member `key`, in its exact spelling or in any case."""
    if key in value:
        return value[key]
    return next((given for name, given in value.items() if name.casefold() == key.casefold()), None)
