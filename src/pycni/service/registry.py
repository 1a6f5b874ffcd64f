# SPDX-License-Identifier: Apache-2.0
"""The Registry and Delegate services: how plugin daemons come, and have other plugins run."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Protocol

import grpc
import msgspec

from pycni import __version__
from pycni.errors import InvalidEnvironment
from pycni.model import jsonio
from pycni.model.deadline import Deadline
from pycni.model.names import IfName, PluginType
from pycni.model.request import Request, Verb
from pycni.model.version import SUPPORTED, parse_version
from pycni.runtime.events import Event, Kind
from pycni.runtime.node import Node
from pycni.service import params, views
from pycni.service.daemons import Daemons, Lease, Registration
from pycni.service.operations import Operation
from pycni.service.pb.cni.v2alpha1 import (
    attachments_pb2,
    error_pb2,
    registry_pb2,
    registry_pb2_grpc,
)
from pycni.service.plugin_client import join_args, parse_endpoint

log = logging.getLogger(__name__)

SERVICE = f"pycni {__version__}"


class Types(Protocol):
    """What registers the message types of a daemon's configurations."""

    def register(self, descriptors: bytes) -> object:
        """Register a serialised FileDescriptorSet; raise CniError if it contradicts a known one."""
        ...


class RegistryService(registry_pb2_grpc.RegistryServicer):
    """Holds the streams of the registered daemons."""

    def __init__(self, node: Node, daemons: Daemons, types: Types | None = None) -> None:
        self._node = node
        self._daemons = daemons
        self._types = types

    def Register(
        self,
        request_iterator: Iterator[registry_pb2.RegisterRequest],
        context: grpc.ServicerContext,
    ) -> Iterator[registry_pb2.RegisterResponse]:
        """Keep a daemon registered for as long as the stream stays open."""
        first = next(request_iterator, None)
        if first is None or first.WhichOneof("message") != "registration":
            raise InvalidEnvironment("the first message of a daemon must be its registration")
        lease = self._register(first.registration)
        try:
            reader = threading.Thread(
                target=self._read, args=(request_iterator, lease), name="registry", daemon=True
            )
            reader.start()
            registered = registry_pb2.Registered(service=SERVICE, cni_versions=SUPPORTED)
            yield registry_pb2.RegisterResponse(registered=registered)
            while (message := lease.outbox.get()) is not None:
                yield message
        finally:
            self._daemons.release(lease)
            self._node.runtime.forget_validated()

    def _register(self, message: registry_pb2.Registration) -> Lease:
        if message.HasField("descriptors") and self._types is not None:
            self._types.register(message.descriptors.SerializeToString())
        registration = _registration(message)
        lease = self._daemons.register(message.types, registration, take_over=message.take_over)
        self._node.runtime.forget_validated()
        return lease

    def _read(self, messages: Iterator[registry_pb2.RegisterRequest], lease: Lease) -> None:
        """What the daemon says after its registration, until it or the stream ends."""
        try:
            for message in messages:
                match message.WhichOneof("message"):
                    case "notice":
                        self._publish(message.notice, lease)
                    case "draining":
                        self._daemons.drain(lease, leaving=message.draining.leaving)
                    case other:
                        log.warning("a daemon's %s is ignored after its registration", other)
        except grpc.RpcError:
            pass  # the stream broke: the same as its end
        finally:
            lease.outbox.put(None)

    def _publish(self, notice: attachments_pb2.PluginNotice, lease: Lease) -> None:
        served = sorted(lease.types)
        if not served:
            return  # superseded: it has nothing to say any more
        self._node.events.publish(
            Event(
                kind=Kind.PLUGIN_NOTICE,
                network=notice.key.network or notice.network,
                container_id=notice.key.container_id,
                ifname=notice.key.ifname,
                # A daemon speaks for the types it serves and for no other.
                plugin_type=notice.plugin_type if notice.plugin_type in served else served[0],
                reason=notice.reason,
                message=notice.message,
            )
        )


class DelegateService(registry_pb2_grpc.DelegateServicer):
    """Runs plugins for daemons, inside the calls these are serving."""

    def __init__(self, node: Node, daemons: Daemons) -> None:
        self._node = node
        self._operations = daemons.operations

    def Exec(
        self, request: registry_pb2.DelegateExecRequest, context: grpc.ServicerContext
    ) -> registry_pb2.DelegateExecResponse:
        """Run one verb of one plugin with the container, namespace and time of an operation."""
        operation = self._operations.get(request.operation)
        verb = _verb(request.verb)
        executors = self._node.runtime.executors
        with operation.joined():
            if verb is Verb.VERSION:
                versions = executors.versions(request.type)
                return registry_pb2.DelegateExecResponse(supported_versions=versions)
            call = _request(request, verb, operation)
            deadline = Deadline(_time_left(request, operation, context))
            forget = operation.deadline.on_cancel(deadline.cancel)
            try:
                if not context.add_callback(deadline.cancel):
                    deadline.cancel()
                document = executors.delegate.run(request.type, call, deadline)
            finally:
                forget()
        response = registry_pb2.DelegateExecResponse()
        if verb is Verb.ADD:
            response.result.CopyFrom(views.result_message(document))
        return response


def _registration(message: registry_pb2.Registration) -> Registration:
    """What a daemon says of itself; raise InvalidConfig (7) for what it cannot be right about,
    DecodeFailure (6) for a schema that is no JSON."""
    with params.field("registration.types"):
        for name in message.types:
            PluginType.parse(name)
    with params.field("registration.endpoint"):
        parse_endpoint(message.endpoint)
    for index, version in enumerate(message.cni_versions):
        with params.field(f"registration.cni_versions[{index}]"):
            parse_version(version)
    for name, schema in message.config_schemas.items():
        with params.field(where := f'registration.config_schemas["{name}"]'):
            jsonio.loads(schema, where=where)
    return Registration(
        endpoint=message.endpoint,
        cni_versions=tuple(message.cni_versions),
        daemon=message.daemon,
        verbs=tuple(message.verbs),
        capabilities=tuple(message.capabilities),
        config_types=dict(message.config_types),
        config_schemas={name: msgspec.Raw(text) for name, text in message.config_schemas.items()},
    )


def _verb(value: int) -> Verb:
    """One of the SPEC's verbs; raise InvalidEnvironment (4) for any other."""
    try:
        return Verb(error_pb2.Verb.Name(value).removeprefix("VERB_"))  # type: ignore[arg-type]  # an int on the wire
    except ValueError:
        raise InvalidEnvironment(f"verb: {value} is none that can be delegated") from None


def _request(
    message: registry_pb2.DelegateExecRequest, verb: Verb, operation: Operation
) -> Request:
    given = operation.request
    return msgspec.structs.replace(
        given,
        verb=verb,
        config=message.config,
        ifname=IfName.parse(message.ifname) if message.ifname else given.ifname,
        args=join_args(message.cni_args.args) if message.HasField("cni_args") else given.args,
        parent=operation.parent,
    )


def _time_left(
    message: registry_pb2.DelegateExecRequest,
    operation: Operation,
    context: grpc.ServicerContext,
) -> float | None:
    # Without a deadline gRPC says a time that no wait can take.
    limits = [left for left in (context.time_remaining(),) if left < threading.TIMEOUT_MAX]
    if (left := operation.deadline.remaining_s()) is not None:
        limits.append(left)
    if message.HasField("timeout"):
        limits.append(message.timeout.seconds + message.timeout.nanos / 1e9)
    return min(limits, default=None)
