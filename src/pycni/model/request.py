# SPDX-License-Identifier: Apache-2.0
"""What a runtime asks of a plugin: the verb, its parameters, CNI_ARGS, capability arguments."""

from __future__ import annotations

import enum
from typing import Any, Self, TypeVar

from msgspec import Struct

from pycni.errors import InvalidConfig, InvalidEnvironment
from pycni.model import jsonio
from pycni.model.addresses import IPAddress, IPInterface
from pycni.model.names import ContainerId, IfName, Mac

# What tells a node that an executable it runs calls back: a third-party plugin that delegates to
# one of ours. Shims forward every variable of this prefix.
PARENT_VARIABLE = "CNI_PYCNI_PARENT"


class Verb(enum.StrEnum):
    """CNI_COMMAND, in spec order."""

    ADD = "ADD"
    DEL = "DEL"
    CHECK = "CHECK"
    GC = "GC"
    STATUS = "STATUS"
    VERSION = "VERSION"


class Attachment(Struct, frozen=True, rename={"container_id": "containerID"}):
    """One interface of one container: an entry of `cni.dev/valid-attachments`."""

    container_id: ContainerId
    ifname: IfName


class Request(Struct, frozen=True, kw_only=True):
    """One plugin call as it arrived: the CNI_* parameters and the configuration bytes.

    `netns_fd` is an open handle on the namespace `netns` names, where the caller sent one.
    `netns_override` is CNI_NETNS_OVERRIDE: the plugin's own namespace is a permitted target.
    `parent` names the call of a node, if any, on whose behalf an executable made this one.
    """

    verb: Verb
    container_id: str = ""
    netns: str = ""
    ifname: str = ""
    args: str = ""
    path: tuple[str, ...] = ()
    config: bytes = b""
    netns_fd: int | None = None
    netns_override: bool = False
    parent: str = ""


# -- CNI_ARGS --------------------------------------------------------------------------------------


class CniArgs(Struct, frozen=True, kw_only=True):
    """CNI_ARGS read strictly; a plugin lists the keys it knows as fields of a subclass.

    `class Args(CniArgs): IP: IPAddress | None = None` then `Args.parse(call.args)`. Keys are
    case-sensitive; a key without a field is an error unless IgnoreUnknown is true.
    """

    IgnoreUnknown: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the typed arguments of `K=V;K2=V2`; faults are code 4 and name the pair."""
        known = cls.__struct_fields__  # structs.fields() would evaluate the annotations every time
        values: dict[str, str] = {}
        unknown: list[str] = []
        for pair in text.split(";") if text else ():
            key, *rest = pair.split("=")
            if len(rest) != 1:
                raise InvalidEnvironment(f'CNI_ARGS: invalid pair "{pair}"')
            if key in known:
                values[key] = rest[0]
            else:
                unknown.append(f'"{pair}"')
        arguments = _typed(cls, values)
        if unknown and not arguments.IgnoreUnknown:
            raise InvalidEnvironment(f"CNI_ARGS: unknown args [{' '.join(unknown)}]")
        return arguments

    @staticmethod
    def pairs(text: str) -> dict[str, str]:
        """Return the pairs of `text` loosely: split at the first "=", anything else is skipped."""
        found: dict[str, str] = {}
        for pair in text.split(";"):
            key, equals, value = pair.partition("=")
            if equals:
                found[key] = value
        return found


A = TypeVar("A", bound=CniArgs)

_FLAGS = {"1": True, "true": True, "0": False, "false": False}


def _typed(cls: type[A], values: dict[str, str]) -> A:
    typed: dict[str, Any] = dict(values)
    if (flag := values.get("IgnoreUnknown")) is not None:
        if flag.lower() not in _FLAGS:
            raise InvalidEnvironment(f'CNI_ARGS: IgnoreUnknown: not a boolean: "{flag}"')
        typed["IgnoreUnknown"] = _FLAGS[flag.lower()]
    try:
        return jsonio.convert(typed, cls)
    except InvalidConfig as exc:
        raise InvalidEnvironment(f"CNI_ARGS: {exc.msg}") from exc


# -- capability arguments (runtimeConfig), by the names of CONVENTIONS.md --------------------------


class PortMapping(Struct, frozen=True, kw_only=True):
    """`portMappings`: a port of the host forwarded to one of the container."""

    hostPort: int
    containerPort: int
    protocol: str = "tcp"
    hostIP: IPAddress | None = None


class Bandwidth(Struct, frozen=True, kw_only=True):
    """`bandwidth`: rates in bits per second, bursts in bits; 0 means unlimited."""

    ingressRate: jsonio.Uint = 0
    ingressBurst: jsonio.Uint = 0
    egressRate: jsonio.Uint = 0
    egressBurst: jsonio.Uint = 0


class IpRange(Struct, frozen=True, kw_only=True):
    """`ipRanges`: a range of addresses; `subnet` keeps the host bits it was written with."""

    subnet: IPInterface
    rangeStart: IPAddress | None = None
    rangeEnd: IPAddress | None = None
    gateway: IPAddress | None = None


class RuntimeDns(Struct, frozen=True, kw_only=True):
    """`dns`: what the runtime wants in the container's resolv.conf."""

    searches: tuple[str, ...] = ()
    servers: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


class RuntimeConfig(Struct, frozen=True, kw_only=True):
    """`runtimeConfig` with every conventional capability; a plugin reads the ones it declares.

    `ips` stay text: host-local takes them with or without a prefix length, static needs one.
    """

    portMappings: tuple[PortMapping, ...] = ()
    bandwidth: Bandwidth | None = None
    ipRanges: tuple[tuple[IpRange, ...], ...] = ()
    ips: tuple[str, ...] = ()
    mac: Mac | None = None
    dns: RuntimeDns | None = None
    deviceID: str = ""
    infinibandGUID: str = ""
    aliases: tuple[str, ...] = ()
    cgroupPath: str = ""
