# SPDX-License-Identifier: Apache-2.0
"""Messages of the API as views of the model: results, configurations, attachments, arguments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from google.protobuf import timestamp_pb2

from pycni.errors import CniError, InvalidEnvironment
from pycni.model import jsonio
from pycni.model.config import NetworkConfigList, PluginConfig
from pycni.model.result import DNS, Result
from pycni.runtime.attachments import Attachment, AttachmentKey
from pycni.service import wire
from pycni.service.pb.cni.v2alpha1 import (
    attachments_pb2,
    config_pb2,
    params_pb2,
    result_pb2,
)


def timestamp(seconds: float) -> timestamp_pb2.Timestamp:
    """A point in time from seconds since the epoch."""
    whole = int(seconds)
    return timestamp_pb2.Timestamp(seconds=whole, nanos=int((seconds - whole) * 1e9))


def result_message(document: bytes) -> result_pb2.Result:
    """A result document with its typed view."""
    result = Result.parse(document)
    message = result_pb2.Result(json=document, cni_version=result.cniVersion)
    for interface in result.interfaces:
        message.interfaces.add(
            name=interface.name,
            mac=interface.mac,
            mtu=interface.mtu,
            sandbox=interface.sandbox,
            socket_path=interface.socketPath,
            pci_id=interface.pciID,
        )
    for ip in result.ips:
        message.ips.add(
            address=str(ip.address),
            gateway=str(ip.gateway) if ip.gateway else "",
            interface=ip.interface,
        )
    for route in result.routes:
        message.routes.add(
            dst=str(route.dst),
            gw=str(route.gw) if route.gw else "",
            mtu=route.mtu,
            advmss=route.advmss,
            priority=route.priority,
            table=route.table,
            scope=route.scope,
        )
    if result.dns != DNS():
        message.dns.CopyFrom(_dns_message(result.dns))
    return message


def _dns_message(dns: DNS) -> result_pb2.Dns:
    return result_pb2.Dns(
        nameservers=dns.nameservers, domain=dns.domain, search=dns.search, options=dns.options
    )


def key_message(key: AttachmentKey) -> attachments_pb2.AttachmentKey:
    """What names an attachment."""
    return attachments_pb2.AttachmentKey(
        network=key.network, container_id=key.container_id, ifname=key.ifname
    )


def capability_message(arguments: Mapping[str, msgspec.Raw]) -> params_pb2.CapabilityArgs:
    """Capability arguments as they were given, byte for byte."""
    return params_pb2.CapabilityArgs(json={name: bytes(value) for name, value in arguments.items()})


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

    Raises InvalidEnvironment (4) for one that is no JSON, or is given both ways and differs.
    """
    found: dict[str, msgspec.Raw] = {}
    for name, document in arguments.json.items():
        jsonio.loads(document, where=f'capability_args.json["{name}"]')
        found[name] = msgspec.Raw(document)
    for name, value in _typed_capabilities(arguments).items():
        document = jsonio.encode(value)
        if name in found and jsonio.loads(bytes(found[name])) != jsonio.loads(document):
            raise InvalidEnvironment(
                f"capability_args: {name} is given as a field and in json, and they differ"
            )
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


def cni_arg_messages(pairs: Iterable[tuple[str, str]]) -> list[params_pb2.CniArg]:
    """CNI_ARGS, in order."""
    return [params_pb2.CniArg(key=key, value=value) for key, value in pairs]


def attachment_message(
    attachment: Attachment, *, with_config: bool = False
) -> attachments_pb2.Attachment:
    """An attachment; its configuration only where asked for."""
    message = attachments_pb2.Attachment(
        key=key_message(attachment.key),
        state=attachments_pb2.AttachmentState.Value(f"ATTACHMENT_STATE_{attachment.state}"),
        netns=attachment.netns,
        cni_args=cni_arg_messages(attachment.cni_args),
        capability_args=capability_message(attachment.capability_args),
        labels=attachment.labels,
        create_time=timestamp(attachment.created),
        update_time=timestamp(attachment.updated),
    )
    if attachment.result is not None:
        message.result.CopyFrom(result_message(attachment.result))
    if with_config:
        network = NetworkConfigList.parse(attachment.config, source=attachment.source)
        message.config.CopyFrom(config_message(network))
    if attachment.error is not None:
        stored = attachment.error
        error = CniError.from_wire(stored.code, stored.msg, stored.details)
        error.verb = stored.verb or None
        error.plugin_type = stored.plugin_type or None
        error.plugin_index = stored.plugin_index
        message.error.CopyFrom(wire.error_message(error))
    return message


def config_message(network: NetworkConfigList) -> config_pb2.NetworkConfig:
    """A configuration list byte for byte, with its typed view."""
    return config_pb2.NetworkConfig(
        json=network.json,
        name=network.name,
        cni_version=network.cniVersion,
        cni_versions=network.cniVersions,
        disable_check=network.disableCheck,
        disable_gc=network.disableGC,
        load_only_inlined_plugins=network.loadOnlyInlinedPlugins,
        plugins=[plugin_message(plugin) for plugin in network.plugins],
    )


def plugin_message(plugin: PluginConfig) -> config_pb2.PluginConfig:
    """One plugin object byte for byte, with its typed view."""
    message = config_pb2.PluginConfig(
        json=jsonio.join_object(plugin.fields),
        type=plugin.type,
        capabilities=plugin.capabilities,
    )
    for key, value in plugin.fields.items():
        if jsonio.fold_key(key) == "ipam" and bytes(value) != b"null":
            message.ipam.CopyFrom(
                config_pb2.IpamConfig(json=bytes(value), type=plugin.ipam_type or "")
            )
        elif jsonio.fold_key(key) == "dns" and bytes(value) != b"null":
            message.dns.CopyFrom(_dns_message(jsonio.decode(bytes(value), DNS, where=key)))
    return message
