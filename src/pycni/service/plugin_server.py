# SPDX-License-Identifier: Apache-2.0
"""A plugin class as a daemon: its verbs over gRPC, registered with the service.

This runs in the process of the plugin's author; `pycni.sdk.run` starts it. The service serialises
calls for a container, but a cancelled ADD may still be running when the DEL that cleans up after
it arrives, so calls for an attachment take turns here too.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent import futures
from pathlib import Path
from typing import Any, cast

import grpc
from grpc_health.v1 import health, health_pb2_grpc

from pycni.errors import InvalidConfig, TryAgain
from pycni.kernel.side import Side
from pycni.model import jsonio
from pycni.model.deadline import Deadline
from pycni.model.request import Request, Verb
from pycni.model.schema import json_schema
from pycni.model.version import CURRENT, SUPPORTED
from pycni.plugins.sdk import Plugin
from pycni.runtime.dispatch import dispatch
from pycni.runtime.errors import PluginNotFound
from pycni.runtime.locks import SharedLocks
from pycni.service import sockets, wire
from pycni.service.interceptor import MAX_MESSAGE_BYTES, Boundary, Gate
from pycni.service.pb.cni.v2alpha1 import (
    attachments_pb2,
    error_pb2,
    plugin_pb2,
    plugin_pb2_grpc,
    registry_pb2,
    registry_pb2_grpc,
    result_pb2,
)
from pycni.service.plugin_client import OPTIONS, config_text, join_args, parse_args

log = logging.getLogger(__name__)

WORKERS = 128  # a call that delegates holds one, and what it delegates to may come back here
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0  # between attempts to register
STREAM_GRACE_S = 0.5
DRAIN_PAUSE_S = 0.1  # until the service has heard of it

VERBS = [Verb.ADD, Verb.DEL, Verb.CHECK, Verb.GC, Verb.STATUS, Verb.VERSION]


class PluginService(plugin_pb2_grpc.PluginServicer):
    """The six verbs of the SPEC; the optional ones answer UNIMPLEMENTED, as generated."""

    def __init__(
        self, plugins: Mapping[str, Plugin[Any]], host: Side, service: ServiceLink | None
    ) -> None:
        self._plugins = plugins
        self._host = host
        self._service = service
        self._networks = SharedLocks("network")
        self._attachments = SharedLocks("attachment")
        self._holding: set[str] = set()  # the operations that have their turn

    def Add(
        self, request: plugin_pb2.PluginAddRequest, context: grpc.ServicerContext
    ) -> plugin_pb2.PluginAddResponse:
        """Attach."""
        document = self._run(Verb.ADD, request.call, context)
        return plugin_pb2.PluginAddResponse(result=result_pb2.Result(json=document))

    def Del(
        self, request: plugin_pb2.PluginDelRequest, context: grpc.ServicerContext
    ) -> plugin_pb2.PluginDelResponse:
        """Detach."""
        self._run(Verb.DEL, request.call, context)
        return plugin_pb2.PluginDelResponse()

    def Check(
        self, request: plugin_pb2.PluginCheckRequest, context: grpc.ServicerContext
    ) -> plugin_pb2.PluginCheckResponse:
        """Verify."""
        self._run(Verb.CHECK, request.call, context)
        return plugin_pb2.PluginCheckResponse()

    def Gc(
        self, request: plugin_pb2.PluginGcRequest, context: grpc.ServicerContext
    ) -> plugin_pb2.PluginGcResponse:
        """Collect."""
        self._run(Verb.GC, request, context)
        return plugin_pb2.PluginGcResponse()

    def Status(
        self, request: plugin_pb2.PluginStatusRequest, context: grpc.ServicerContext
    ) -> plugin_pb2.PluginStatusResponse:
        """Say whether Add can be served."""
        self._run(Verb.STATUS, request, context)
        return plugin_pb2.PluginStatusResponse()

    def Version(
        self, request: plugin_pb2.PluginVersionRequest, context: grpc.ServicerContext
    ) -> plugin_pb2.PluginVersionResponse:
        """Name the versions that every plugin of this daemon supports."""
        return plugin_pb2.PluginVersionResponse(
            cni_version=request.cni_version or CURRENT,
            supported_versions=common_versions(self._plugins),
        )

    def _run(self, verb: Verb, message: Any, context: grpc.ServicerContext) -> bytes:
        request = _request(verb, message)
        # A caller that does not say is one without delegation; then it is the config's type.
        plugin_type = message.type or config_text(request.config, "type")
        plugin = self._plugins.get(plugin_type)
        if plugin is None:
            raise PluginNotFound(plugin_type, (), sorted(self._plugins))
        left = context.time_remaining()
        # Without a deadline gRPC says a time that no wait can take.
        deadline = Deadline(left if left < threading.TIMEOUT_MAX else None)
        if not context.add_callback(deadline.cancel):
            deadline.cancel()
        delegate = OperationDelegate(self._service, message.operation)
        with self._turn(request, message, deadline):
            return dispatch(plugin, request, host=self._host, delegate=delegate, deadline=deadline)

    @contextlib.contextmanager
    def _turn(self, request: Request, message: Any, deadline: Deadline) -> Iterator[None]:
        """Hold the network for a GC, or the attachment for what concerns only that.

        A call that was delegated by one that runs here is part of that one's turn.
        """
        if request.verb is Verb.STATUS or self._holding.intersection(message.outer_operations):
            yield
            return
        network = config_text(request.config, "name")
        with contextlib.ExitStack() as held:
            if request.verb is Verb.GC:
                held.enter_context(self._networks.alone(network, deadline))
            else:
                key = f"{network} {request.container_id} {request.ifname}"
                held.enter_context(self._networks.shared(network, deadline))
                held.enter_context(self._attachments.alone(key, deadline))
            name = message.operation.partition(".")[0]
            self._holding.add(name)
            held.callback(self._holding.discard, name)
            yield


def _request(verb: Verb, message: Any) -> Request:
    """What a plugin is asked, from any of the request messages' PluginCall or its like."""
    if not isinstance(message, plugin_pb2.PluginCall):
        return Request(verb=verb, config=message.config, path=tuple(message.path))
    return Request(
        verb=verb,
        container_id=message.container_id,
        netns=message.netns,
        ifname=message.ifname,
        args=join_args(message.cni_args),
        path=tuple(message.path),
        config=message.config,
        netns_override=message.netns_override,
    )


def common_versions(plugins: Mapping[str, Plugin[Any]]) -> list[str]:
    """The CNI versions that all of them support, oldest first."""
    return [v for v in SUPPORTED if all(v in plugin.versions for plugin in plugins.values())]


class OperationDelegate:
    """Has the service run another plugin in the name of the operation that is being served."""

    def __init__(self, service: ServiceLink | None, operation: str) -> None:
        self._service = service
        self._operation = operation

    def run(self, plugin_type: str, request: Request, deadline: Deadline) -> bytes:
        """The other plugin's result; its CniError unchanged. A failed ADD was undone already."""
        if self._service is None:
            raise InvalidConfig(
                f"plugin {plugin_type} cannot be delegated to",
                hint="start the daemon with --service",
            )
        message = registry_pb2.DelegateExecRequest(
            operation=self._operation,
            type=plugin_type,
            verb=error_pb2.Verb.Value(f"VERB_{request.verb}"),
            config=request.config,
            ifname=request.ifname,
            cni_args=registry_pb2.DelegateArgs(args=parse_args(request.args)),
        )
        return self._service.delegate(message, deadline).result.json


class ServiceLink:
    """The daemon's connection to the service, and its registration there."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self._channel = grpc.insecure_channel(f"unix:{socket}", OPTIONS)
        self._delegate = registry_pb2_grpc.DelegateStub(self._channel)
        self._registry = registry_pb2_grpc.RegistryStub(self._channel)
        self._outbox: queue.SimpleQueue[registry_pb2.RegisterRequest | None] | None = None
        self._stopping = threading.Event()
        self._keeper: threading.Thread | None = None
        self.registered = threading.Event()
        self.superseded = threading.Event()

    def delegate(
        self, message: registry_pb2.DelegateExecRequest, deadline: Deadline
    ) -> registry_pb2.DelegateExecResponse:
        """Have the service run another plugin; its deadline and cancellation are passed on."""
        call = self._delegate.Exec.future(message, timeout=deadline.remaining_s())
        forget = deadline.on_cancel(call.cancel)
        try:
            with wire.cni_errors():
                return call.result()
        except grpc.FutureCancelledError:
            raise TryAgain(f"delegation to {message.type} was cancelled") from None
        except grpc.RpcError as failed:
            said = cast(grpc.Call, failed).details()
            raise TryAgain(f"delegation to {message.type} failed: {said}") from failed
        finally:
            forget()

    def register(self, registration: registry_pb2.Registration) -> None:
        """Register, and do so again whenever the service has been away."""
        self._keeper = threading.Thread(
            target=self._keep, args=(registration,), name="registration", daemon=True
        )
        self._keeper.start()

    def notify(self, notice: attachments_pb2.PluginNotice) -> bool:
        """Tell the watchers of attachments something; False while the service is away."""
        outbox = self._outbox
        if outbox is None or not self.registered.is_set():
            return False
        outbox.put(registry_pb2.RegisterRequest(notice=notice))
        return True

    def drain(self, *, leaving: bool) -> None:
        """Have the service send no new calls; it forgets the types if the daemon is `leaving`."""
        self._stopping.set()
        if (outbox := self._outbox) is not None:
            draining = registry_pb2.Draining(leaving=leaving)
            outbox.put(registry_pb2.RegisterRequest(draining=draining))

    def close(self) -> None:
        """End the registration and the connection."""
        self._stopping.set()
        if (outbox := self._outbox) is not None:
            outbox.put(None)
        if self._keeper is not None:
            self._keeper.join(LONGEST_PAUSE_S)
        self._channel.close()

    def _keep(self, registration: registry_pb2.Registration) -> None:
        pause = FIRST_PAUSE_S
        reason = ""
        while not self._stopping.is_set() and not self.superseded.is_set():
            try:
                self._stay(registration)
            except grpc.RpcError as failed:
                error = wire.find_error(failed)
                said = str(error or cast(grpc.Call, failed).details())
                if said != reason and not self._stopping.is_set():
                    log.warning("not registered with %s: %s", self.socket, said)
                reason = said
            if self.registered.is_set():
                self.registered.clear()
                pause, reason = FIRST_PAUSE_S, ""
            self._stopping.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def _stay(self, registration: registry_pb2.Registration) -> None:
        """Be registered until the stream ends."""
        outbox: queue.SimpleQueue[registry_pb2.RegisterRequest | None] = queue.SimpleQueue()
        outbox.put(registry_pb2.RegisterRequest(registration=registration))
        stream = self._registry.Register(iter(outbox.get, None))
        self._outbox = outbox
        try:
            for message in stream:
                if message.WhichOneof("message") == "superseded":
                    log.info("%s took over", message.superseded.endpoint)
                    self.superseded.set()
                elif message.WhichOneof("message") == "registered":
                    log.info("registered with %s", message.registered.service)
                    self.registered.set()
        finally:
            self._outbox = None
            outbox.put(None)  # or its iterator would wait in a thread for ever
            stream.cancel()  # type: ignore[no-untyped-call]  # untyped in the stubs


class PluginDaemon:
    """A running plugin daemon."""

    def __init__(
        self,
        plugins: Mapping[str, Plugin[Any]],
        socket: Path,
        *,
        service: Path | None = None,
        register: bool = True,
        take_over: bool = False,
        name: str = "",
    ) -> None:
        """Serve `plugins` on `socket`; `service` is whom to register with and to delegate through.

        Raises IOFailure (5) when the socket is taken.
        """
        self.socket = socket.absolute()
        self.service = ServiceLink(service) if service is not None else None
        self._register = register and self.service is not None
        self._registration = registry_pb2.Registration(
            types=sorted(plugins),
            endpoint=f"unix://{self.socket}",
            cni_versions=common_versions(plugins),
            verbs=[error_pb2.Verb.Value(f"VERB_{verb}") for verb in VERBS],
            daemon=name,
            config_schemas={
                plugin_type: jsonio.encode(json_schema(plugin.config))
                for plugin_type, plugin in plugins.items()
            },
            take_over=take_over,
        )
        self._host = Side()
        self._gate = Gate()
        self._server = grpc.server(
            futures.ThreadPoolExecutor(WORKERS, thread_name_prefix="plugin"),
            interceptors=[Boundary(gate=self._gate)],
            options=(
                ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
                ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
            ),
        )
        servicer = PluginService(plugins, self._host, self.service)
        plugin_pb2_grpc.add_PluginServicer_to_server(servicer, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(health.HealthServicer(), self._server)
        sockets.bind(self._server, self.socket)

    def start(self) -> None:
        """Answer calls, then register."""
        self._server.start()
        if self._register and self.service is not None:
            self.service.register(self._registration)

    @property
    def superseded(self) -> bool:
        """Whether another daemon has taken over every type."""
        return self.service is not None and self.service.superseded.is_set()

    def stop(self, grace_s: float, *, leaving: bool = False) -> None:
        """Take no new calls, let running ones end for `grace_s`, and go."""
        if self.service is not None:
            self.service.drain(leaving=leaving)
        self._await_quiet(grace_s)
        if self.service is not None:
            self.service.close()
        self._server.stop(STREAM_GRACE_S).wait()
        self.socket.unlink(missing_ok=True)
        self._host.close()

    def _await_quiet(self, grace_s: float) -> None:
        """Until nothing runs. A call the service sent before it heard of the draining is served."""
        end = time.monotonic() + grace_s
        time.sleep(min(DRAIN_PAUSE_S, grace_s))
        self._gate.wait(max(0.0, end - time.monotonic()))
