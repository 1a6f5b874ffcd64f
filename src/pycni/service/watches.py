# SPDX-License-Identifier: Apache-2.0
"""The two Watch streams: the present state, `synced`, and then the node's events as messages."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import TypeVar

import grpc

from pycni.errors import CniError
from pycni.runtime.attachments import Attachment, AttachmentKey
from pycni.runtime.confdir import Fault
from pycni.runtime.events import AddressChange, Event, EventLog, Kind, LinkChange
from pycni.runtime.networks import Network
from pycni.runtime.node import Node
from pycni.runtime.readiness import NetworkReadiness
from pycni.runtime.store import AttachmentFilter
from pycni.service import views
from pycni.service.pb.cni.v2alpha1 import attachments_pb2, event_pb2, networks_pb2

M = TypeVar("M", networks_pb2.NetworkEvent, attachments_pb2.AttachmentEvent)

OVERTAKEN = "more happened than is kept for watchers; list again"
STRANGE = "the cursor is not of this service's present run; list again"


def watch_networks(
    node: Node,
    request: networks_pb2.WatchNetworksRequest,
    context: grpc.ServicerContext,
    show: Callable[[Network], networks_pb2.Network],
) -> Iterator[networks_pb2.NetworkEvent]:
    """The events of networks; `show` renders one."""
    names = frozenset(request.names)
    cursor = request.cursor
    if not cursor:
        cursor = node.events.cursor()
        for network in node.networks.list():
            if not names or network.name in names:
                yield networks_pb2.NetworkEvent(changed=show(network))
        for fault in node.networks.faults():
            if not names or fault.name in names:
                yield networks_pb2.NetworkEvent(broken=views.broken_source(fault))
        yield networks_pb2.NetworkEvent(cursor=cursor, synced=event_pb2.Synced())
    for event in _follow(node.events, cursor, context):
        message = _network_event(node, event, names, show)
        if message is not None:
            yield _stamp(message, event)


def _network_event(
    node: Node,
    event: Event,
    names: Collection[str],
    show: Callable[[Network], networks_pb2.Network],
) -> networks_pb2.NetworkEvent | None:
    message = networks_pb2.NetworkEvent()
    match event.kind:
        case Kind.LOST:
            message.lost.CopyFrom(_lost(event))
            return message
        case Kind.SOURCE_MENDED:
            message.mended = event.message
            return message  # which network it is about is known by its `changed` only
    if names and event.network not in names:
        return None
    match event.kind, event.detail:
        case Kind.NETWORK_PUT, _:
            network = _find(node, event.network)
            if network is None:
                return None  # gone again meanwhile, which is an event of its own
            message.changed.CopyFrom(show(network))
        case Kind.NETWORK_DELETED, _:
            message.deleted = event.network
        case Kind.NETWORK_READINESS, NetworkReadiness() as readiness:
            message.status.CopyFrom(views.network_status(readiness))
        case Kind.SOURCE_BROKEN, Fault() as fault:
            message.broken.CopyFrom(views.broken_source(fault))
        case _:
            return None
    return message


def _find(node: Node, name: str) -> Network | None:
    try:
        return node.networks.find(name)
    except CniError:
        return None  # broken meanwhile


def watch_attachments(
    node: Node, request: attachments_pb2.WatchAttachmentsRequest, context: grpc.ServicerContext
) -> Iterator[attachments_pb2.AttachmentEvent]:
    """The events of attachments."""
    cursor = request.cursor
    if not cursor:
        cursor = node.events.cursor()
        for attachment in _present(node, request):
            shown = views.attachment_message(attachment)
            yield attachments_pb2.AttachmentEvent(changed=shown)
        yield attachments_pb2.AttachmentEvent(cursor=cursor, synced=event_pb2.Synced())
    for event in _follow(node.events, cursor, context):
        message = _attachment_event(event, request)
        if message is not None:
            yield _stamp(message, event)


def _present(node: Node, request: attachments_pb2.WatchAttachmentsRequest) -> Iterator[Attachment]:
    matching = AttachmentFilter(network=request.network, container_id=request.container_id)
    token = ""
    while True:
        page = node.list(matching, page_token=token)
        yield from page.attachments
        token = page.next_page_token
        if not token:
            return


def _attachment_event(
    event: Event, request: attachments_pb2.WatchAttachmentsRequest
) -> attachments_pb2.AttachmentEvent | None:
    message = attachments_pb2.AttachmentEvent()
    if event.kind in (Kind.LOST, Kind.LINKS_LOST):
        message.lost.CopyFrom(_lost(event))
        return message
    if request.network not in ("", event.network):
        return None
    if request.container_id not in ("", event.container_id):
        return None
    key = views.key_message(AttachmentKey(event.network, event.container_id, event.ifname))
    match event.kind, event.detail:
        case Kind.ATTACHMENT, Attachment() as attachment:
            message.changed.CopyFrom(views.attachment_message(attachment))
        case Kind.ATTACHMENT_GONE, _:
            message.deleted.CopyFrom(key)
        case Kind.LINK, LinkChange() as link:
            message.link.CopyFrom(
                attachments_pb2.LinkChange(
                    key=key,
                    name=link.name,
                    sandbox=link.sandbox,
                    removed=link.removed,
                    running=link.running,
                    up=link.up,
                    mtu=link.mtu,
                )
            )
        case Kind.ADDRESS, AddressChange() as address:
            message.address.CopyFrom(
                attachments_pb2.AddressChange(
                    key=key,
                    name=address.name,
                    sandbox=address.sandbox,
                    address=address.address,
                    removed=address.removed,
                )
            )
        case Kind.PLUGIN_NOTICE, _:
            message.notice.CopyFrom(
                attachments_pb2.PluginNotice(
                    plugin_type=event.plugin_type,
                    key=key if event.container_id else None,
                    network=event.network,
                    reason=event.reason,
                    message=event.message,
                )
            )
        case _:
            return None
    return message


def _follow(events: EventLog, cursor: str, context: grpc.ServicerContext) -> Iterator[Event]:
    """Every event behind `cursor`, until the caller leaves or the service ends."""
    watch = events.watch(cursor)
    if context.add_callback(watch.stop):
        yield from watch


def _stamp(message: M, event: Event) -> M:
    message.cursor = event.cursor
    message.time.CopyFrom(views.timestamp(event.at))
    return message


def _lost(event: Event) -> event_pb2.Lost:
    reason = event.message or (OVERTAKEN if event.missed else STRANGE)
    return event_pb2.Lost(count=event.missed, reason=reason)
