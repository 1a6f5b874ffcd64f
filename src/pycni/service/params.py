# SPDX-License-Identifier: Apache-2.0
"""What a request says of an attachment, checked; faults carry the path of the field."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from pycni.errors import CniError, InvalidEnvironment, InvalidNetns
from pycni.model import jsonio
from pycni.model.names import ContainerId, IfName
from pycni.runtime.attachments import AttachmentKey, AttachmentParams
from pycni.service.pb.cni.v2alpha1 import params_pb2

# Where a plugin found a fault in what it got by capability.
RUNTIME_CONFIG = re.compile(r"(?:plugins\[\d+\]\.)?runtimeConfig\.(\w+)((?:\[\d+\]|\.\w+)*)")
# The messages that stand for lists, from the outside in.
LISTS = {
    "port_mappings": ("mappings",),
    "ip_ranges": ("sets", "ranges"),
    "ips": ("values",),
    "aliases": ("values",),
}


@contextlib.contextmanager
def field(path: str) -> Iterator[None]:
    """Write on a passing error which field of the request is wrong, if that is not known."""
    try:
        yield
    except CniError as error:
        error.field = error.field or path
        raise


def parse_params(
    request: Any, *, container_id: str = "", netns: str = "", where: str = ""
) -> AttachmentParams:
    """What an Add, a Del or one interface of an AttachAll says of the attachment.

    `where` is the path of that interface; container and namespace then stand above it.
    """
    container_id = container_id or getattr(request, "container_id", "")
    place = "container_id"
    try:  # plain, as every Add comes through here
        ContainerId.parse(container_id)
        place = f"{where}ifname"
        IfName.parse(request.ifname)
        place = f"{where}capability_args"
        capability_args = parse_capability_args(request.capability_args)
    except CniError as error:
        error.field = f"{where}{error.field}" if error.field else place
        raise
    return AttachmentParams(
        container_id=container_id,
        netns=netns or getattr(request, "netns", ""),
        ifname=request.ifname,
        cni_args=_parse_cni_args(request, where),
        capability_args=capability_args,
        labels=dict(getattr(request, "labels", {})),
    )


def _parse_cni_args(request: Any, where: str) -> tuple[tuple[str, str], ...]:
    pairs = []
    for index, arg in enumerate(request.cni_args):
        if not arg.key or any(char in arg.key for char in "=;\0"):
            bad = "key"
        elif any(char in arg.value for char in ";\0"):
            bad = "value"
        else:
            pairs.append((arg.key, arg.value))
            continue
        with field(f"{where}cni_args[{index}].{bad}"):
            raise InvalidEnvironment(f'CNI_ARGS: invalid pair "{arg.key}={arg.value}"')
    return tuple(pairs)


@contextlib.contextmanager
def concerning(
    key: AttachmentKey, request: Any = None, *, where: str = "", residue: str | None = None
) -> Iterator[None]:
    """Write on a passing error which attachment it concerns, and the field at fault.

    `residue` is what it has left if whoever raised it does not say.
    """
    try:
        yield
    except CniError as error:
        error.residue = error.residue or residue
        for one in (error, *getattr(error, "errors", ())):
            one.network = one.network or key.network or _inline_name(request)
            one.container_id = one.container_id or key.container_id
            one.ifname = one.ifname or key.ifname
            one.field = one.field or _find_field(one, request, where)
        raise


def _inline_name(request: Any) -> str:
    """The name in a configuration that came with the request as JSON; empty if there is none."""
    if request is None or not request.network.inline.json:
        return ""
    with contextlib.suppress(CniError):
        for key, value in jsonio.decode_raw_object(request.network.inline.json).items():
            if jsonio.fold_key(key) == "name":
                return jsonio.decode(value, str)
    return ""


def _find_field(error: CniError, request: Any, where: str) -> str:
    """The field behind a fault that was found further down; empty if there is none."""
    if isinstance(error, InvalidNetns):
        return "netns"
    found = RUNTIME_CONFIG.match(error.msg)
    if found is None or request is None:
        return ""
    capability, path = found.groups()
    name = _snake(capability)
    arguments: params_pb2.CapabilityArgs = request.capability_args
    if capability in arguments.json or name not in arguments.DESCRIPTOR.fields_by_name:
        return f'{where}capability_args.json["{capability}"]{path}'
    for inner in LISTS.get(name, ()):
        path = re.sub(r"(^|\])\[", rf"\1.{inner}[", path, count=1)
    return f"{where}capability_args.{name}{_snake(path)}"


def _snake(name: str) -> str:
    """A JSON name as protobuf spells it: hostIP is host_ip."""
    return re.sub(r"(?<=[a-z0-9])([A-Z]+)", r"_\1", name).lower()


# -- capability arguments --------------------------------------------------------------------------


def _port_mapping(mapping: params_pb2.PortMapping) -> dict[str, object]:
    value: dict[str, object] = {
        "hostPort": mapping.host_port,
        "containerPort": mapping.container_port,
        "protocol": mapping.protocol or "tcp",
    }
    if mapping.host_ip:
        value["hostIP"] = mapping.host_ip
    return value


def _ip_range(entry: params_pb2.IpRange) -> dict[str, str]:
    pairs = (
        ("subnet", entry.subnet),
        ("rangeStart", entry.range_start),
        ("rangeEnd", entry.range_end),
        ("gateway", entry.gateway),
    )
    return {key: value for key, value in pairs if value}


def parse_capability_args(arguments: params_pb2.CapabilityArgs) -> dict[str, msgspec.Raw]:
    """Both spellings of capability arguments as the JSON plugins get.

    Raises DecodeFailure (6) for one that is no JSON, InvalidEnvironment (4) for one that is given
    both ways and differs.
    """
    found: dict[str, msgspec.Raw] = {}
    if not arguments.ListFields():
        return found
    for name, document in arguments.json.items():
        place = f'capability_args.json["{name}"]'
        with field(place):
            jsonio.loads(document, where=place)
        found[name] = msgspec.Raw(document)
    for name, value in _typed_capabilities(arguments).items():
        document = jsonio.encode(value)
        place = f"capability_args.{_snake(name)}"
        with field(place):
            if name in found and jsonio.loads(bytes(found[name])) != jsonio.loads(document):
                raise InvalidEnvironment(f"{place}: differs from what json says of {name}")
        found.setdefault(name, msgspec.Raw(document))
    return found


def _typed_capabilities(arguments: params_pb2.CapabilityArgs) -> dict[str, object]:
    typed: dict[str, object] = {}
    if arguments.HasField("port_mappings"):
        typed["portMappings"] = [_port_mapping(m) for m in arguments.port_mappings.mappings]
    if arguments.HasField("ip_ranges"):
        typed["ipRanges"] = [
            [_ip_range(entry) for entry in one.ranges] for one in arguments.ip_ranges.sets
        ]
    if arguments.HasField("bandwidth"):
        typed["bandwidth"] = {
            "ingressRate": arguments.bandwidth.ingress_rate,
            "ingressBurst": arguments.bandwidth.ingress_burst,
            "egressRate": arguments.bandwidth.egress_rate,
            "egressBurst": arguments.bandwidth.egress_burst,
        }
    if arguments.HasField("dns"):
        typed["dns"] = {
            "servers": list(arguments.dns.servers),
            "searches": list(arguments.dns.searches),
            "options": list(arguments.dns.options),
        }
    if arguments.HasField("ips"):
        typed["ips"] = list(arguments.ips.values)
    if arguments.HasField("aliases"):
        typed["aliases"] = list(arguments.aliases.values)
    scalars = {
        "mac": "mac",
        "infiniband_guid": "infinibandGUID",
        "device_id": "deviceID",
        "cgroup_path": "cgroupPath",
    }
    for field, capability in scalars.items():
        if arguments.HasField(field):  # type: ignore[arg-type]  # the stub wants a literal
            typed[capability] = getattr(arguments, field)
    return typed
