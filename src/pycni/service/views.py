# SPDX-License-Identifier: Apache-2.0
"""Messages of the API as views of the model: results, attachments, arguments, readiness."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping

import msgspec
from google.protobuf import timestamp_pb2

from pycni.errors import CniError
from pycni.model.result import DNS, Result
from pycni.runtime.attachments import Attachment, AttachmentKey, State
from pycni.runtime.confdir import Fault
from pycni.runtime.readiness import NetworkReadiness
from pycni.service import wire
from pycni.service.pb.cni.v2alpha1 import (
    attachments_pb2,
    config_pb2,
    networks_pb2,
    params_pb2,
    result_pb2,
)

RESULTS = 256  # views of results kept

_STATES = {
    state: attachments_pb2.AttachmentState.Value(f"ATTACHMENT_STATE_{state}") for state in State
}


def timestamp(seconds: float) -> timestamp_pb2.Timestamp:
    """A point in time from seconds since the epoch."""
    whole = int(seconds)
    return timestamp_pb2.Timestamp(seconds=whole, nanos=int((seconds - whole) * 1e9))


# An attachment is shown to whoever added it, to every watcher and in lists.
@functools.lru_cache(maxsize=RESULTS)
def result_message(document: bytes) -> result_pb2.Result:
    """A result document with its typed view; copy it before you change it."""
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
        message.dns.CopyFrom(dns_message(result.dns))
    return message


def dns_message(dns: DNS) -> result_pb2.Dns:
    """Name resolution as a message."""
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


def cni_arg_messages(pairs: Iterable[tuple[str, str]]) -> list[params_pb2.CniArg]:
    """CNI_ARGS, in order."""
    return [params_pb2.CniArg(key=key, value=value) for key, value in pairs]


def attachment_message(
    attachment: Attachment, config: config_pb2.NetworkConfig | None = None
) -> attachments_pb2.Attachment:
    """An attachment, with its configuration where that is given."""
    message = attachments_pb2.Attachment(
        key=key_message(attachment.key),
        state=_STATES[attachment.state],
        netns=attachment.netns,
        cni_args=cni_arg_messages(attachment.cni_args),
        capability_args=capability_message(attachment.capability_args),
        labels=attachment.labels,
        config=config,
        network_etag=attachment.network_etag,
        result=None if attachment.result is None else result_message(attachment.result),
        create_time=timestamp(attachment.created),
        update_time=timestamp(attachment.updated),
    )
    if attachment.error is not None:
        stored = attachment.error
        error = CniError.from_wire(stored.code, stored.msg, stored.details)
        error.verb = stored.verb or None
        error.plugin_type = stored.plugin_type or None
        error.plugin_index = stored.plugin_index
        about(error, attachment.key)
        message.error.CopyFrom(wire.error_message(error))
    return message


def about(error: CniError, key: AttachmentKey) -> None:
    """Write on an error which attachment it concerns."""
    error.network, error.container_id, error.ifname = key.network, key.container_id, key.ifname


def broken_source(fault: Fault) -> networks_pb2.BrokenSource:
    """A file that defines no usable network."""
    fault.error.network = fault.name
    return networks_pb2.BrokenSource(
        path=wire.text(fault.path),
        error=wire.error_message(fault.error),
        since=timestamp(fault.since),
    )


def network_status(readiness: NetworkReadiness) -> networks_pb2.NetworkStatus:
    """What the plugins of a network say of themselves."""
    return networks_pb2.NetworkStatus(
        name=readiness.name,
        ready=readiness.ready,
        conditions=[
            networks_pb2.PluginCondition(
                plugin_type=plugin.plugin_type,
                plugin_index=plugin.plugin_index,
                ready=plugin.ready,
                error=None if plugin.error is None else wire.error_message(plugin.error),
                since=timestamp(plugin.since),
            )
            for plugin in readiness.plugins
        ],
        last_checked=timestamp(readiness.last_checked),
        since=timestamp(readiness.since),
    )
