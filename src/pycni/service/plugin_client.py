# SPDX-License-Identifier: Apache-2.0
"""One plugin daemon as the service calls it: a verb over gRPC, with the errors of a plugin."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any, cast

import grpc

from pycni.errors import CniError, InvalidConfig, InvalidEnvironment, TryAgain
from pycni.model import jsonio
from pycni.model.addresses import parse_cidr, parse_ip
from pycni.model.deadline import Deadline
from pycni.model.names import Mac
from pycni.model.request import Request, Verb
from pycni.model.result import DNS, Interface, IPConfig, Result, Route
from pycni.model.version import CURRENT, DEFAULT
from pycni.runtime import trace
from pycni.runtime.dispatch import fold, parse_valid_attachments, text_field
from pycni.runtime.errors import PluginFailed
from pycni.runtime.executors import canonical_result, netns_path
from pycni.service import views, wire
from pycni.service.interceptor import MAX_MESSAGE_BYTES
from pycni.service.operations import Operations
from pycni.service.pb.cni.v2alpha1 import (
    attachments_pb2,
    params_pb2,
    plugin_pb2,
    plugin_pb2_grpc,
    result_pb2,
)

VERSION_TIMEOUT_S = 10.0
SCHEMES = ("unix://", "unix:")
MAX_SOCKET_PATH = 107  # sun_path less the terminating NUL (unix(7))

# The result goes back to the daemon with CHECK and DEL, twice: in the config and as a view. Both
# must fit into what gRPC accepts if nobody tells it otherwise, or nothing could ever be deleted.
MAX_RESULT_BYTES = 1024 * 1024
MAX_REPLY_BYTES = 4 * MAX_RESULT_BYTES
ERROR_BYTES = 256 * 1024  # of another make of daemon: ours keeps to what everybody accepts

OPTIONS = (
    ("grpc.max_receive_message_length", MAX_REPLY_BYTES),
    ("grpc.max_metadata_size", ERROR_BYTES),
    ("grpc.absolute_max_metadata_size", 2 * ERROR_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.enable_http_proxy", 0),
    # A daemon that comes back must be reached at once: no back-off shared with, or inherited from,
    # another connection to the same socket.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


class ConnectionLost(TryAgain):
    """The daemon went away during the call, or was not there."""


def parse_endpoint(text: str) -> str:
    """A daemon's gRPC target; raise InvalidConfig (7) unless it is a unix socket's absolute path.

    Abstract sockets are refused because any user may bind one, TCP because it is not encrypted.
    """
    path = next((text.removeprefix(s) for s in SCHEMES if text.startswith(s)), "")
    if not path.startswith("/") or "\0" in path or "%" in path:
        raise InvalidConfig(
            f'endpoint: "{text}" is not a unix socket', hint='write "unix:///run/NAME/cni.sock"'
        )
    if (size := len(os.fsencode(path))) > MAX_SOCKET_PATH:
        raise InvalidConfig(
            f"endpoint: {path} is too long for a socket: {size} bytes of {MAX_SOCKET_PATH}"
        )
    return f"unix:{path}"


class PluginConnection:
    """A channel to one daemon; it stays open until it is closed and its last call has ended."""

    def __init__(self, endpoint: str, operations: Operations) -> None:
        self.endpoint = endpoint
        self._operations = operations
        self._channel = grpc.insecure_channel(parse_endpoint(endpoint), OPTIONS)
        self._stub = plugin_pb2_grpc.PluginStub(self._channel)
        self._lock = threading.Lock()
        self._calls = 0
        self._closing = False

    def close(self) -> None:
        """Take no more calls; those that run go on."""
        with self._lock:
            self._closing = True
            idle = not self._calls
        if idle:
            self._channel.close()

    def run(self, plugin_type: str, request: Request, deadline: Deadline, *, wait: bool) -> bytes:
        """Run one verb; the result's JSON on ADD, nothing otherwise.

        Raises ConnectionLost when the daemon could not be reached, or ceased to answer; with
        `wait` only the latter, for then it is waited for up to the deadline.
        """
        what = f"{request.verb} of plugin {plugin_type}"
        with (
            self._using(what),
            netns_path(request) as netns,
            self._operations.running(request, deadline) as (token, outer),
        ):
            method, message = self._message(request, netns)
            called = message if hasattr(message, "operation") else message.call
            called.operation, called.type = token, plugin_type
            if request.verb is not Verb.STATUS:
                called.outer_operations.extend(outer)
            reply = self._call(method, message, deadline, what, wait=wait)
        if request.verb is not Verb.ADD:
            return b""
        version = config_text(request.config, "cniVersion") or DEFAULT
        return result_document(plugin_type, reply.result, request, version)

    def versions(self, plugin_type: str, *, wait: bool) -> tuple[str, ...]:
        """The CNI versions the daemon says it supports."""
        what = f"VERSION of plugin {plugin_type}"
        message = plugin_pb2.PluginVersionRequest(cni_version=CURRENT)
        with self._using(what):
            deadline = Deadline(VERSION_TIMEOUT_S)
            reply = self._call(self._stub.Version, message, deadline, what, wait=wait)
        return tuple(reply.supported_versions)

    def _call(self, method: Any, message: Any, deadline: Deadline, what: str, *, wait: bool) -> Any:
        deadline.check(what)
        metadata = tuple((key.lower(), value) for key, value in trace.current().items())
        call = method.future(
            message, timeout=deadline.remaining_s(), metadata=metadata, wait_for_ready=wait
        )
        forget = deadline.on_cancel(call.cancel)
        try:
            return call.result()
        except grpc.FutureCancelledError:
            deadline.check(what)
            raise ConnectionLost(f"{what}: the connection was closed") from None
        except grpc.RpcError as failed:
            raise _translate(failed, what, self.endpoint, deadline) from failed
        finally:
            forget()

    @contextlib.contextmanager
    def _using(self, what: str) -> Iterator[None]:
        with self._lock:
            if self._closing:
                raise ConnectionLost(f"{what}: the daemon is not registered any more")
            self._calls += 1
        try:
            yield
        finally:
            self._end()

    def _end(self) -> None:
        with self._lock:
            self._calls -= 1
            last = self._closing and not self._calls
        if last:
            self._channel.close()

    def _message(self, request: Request, netns: str) -> tuple[Any, Any]:
        """The method of a verb and its request, without what concerns the operation."""
        match request.verb:
            case Verb.ADD:
                call = _plugin_call(request, netns)
                return self._stub.Add, plugin_pb2.PluginAddRequest(call=call)
            case Verb.DEL:
                call = _plugin_call(request, netns)
                return self._stub.Del, plugin_pb2.PluginDelRequest(call=call)
            case Verb.CHECK:
                call = _plugin_call(request, netns)
                return self._stub.Check, plugin_pb2.PluginCheckRequest(call=call)
            case Verb.GC:
                return self._stub.Gc, _gc_request(request)
            case _:
                return self._stub.Status, plugin_pb2.PluginStatusRequest(
                    config=request.config, path=request.path
                )


def _plugin_call(request: Request, netns: str) -> plugin_pb2.PluginCall:
    call = plugin_pb2.PluginCall(
        config=request.config,
        container_id=request.container_id,
        netns=netns,
        netns_inode=_inode(netns),
        ifname=request.ifname,
        cni_args=parse_args(request.args),
        path=request.path,
        netns_override=request.netns_override,
    )
    raw = fold(jsonio.decode_raw_object(request.config)).get("prevresult")
    if raw is not None and bytes(raw) != b"null":
        # What cannot be read is left to the plugin, which has it in the config.
        with contextlib.suppress(CniError):
            call.prev_result.CopyFrom(views.result_message(bytes(raw)))
    return call


def _gc_request(request: Request) -> plugin_pb2.PluginGcRequest:
    message = plugin_pb2.PluginGcRequest(config=request.config, path=request.path)
    valid = parse_valid_attachments(fold(jsonio.decode_raw_object(request.config)))
    if valid is not None:  # absent is not empty
        message.valid_attachments.SetInParent()
        for one in sorted(valid, key=lambda a: (a.container_id, a.ifname)):
            message.valid_attachments.attachments.append(
                attachments_pb2.ValidAttachment(container_id=one.container_id, ifname=one.ifname)
            )
    return message


def _inode(path: str) -> int:
    try:
        return os.stat(path).st_ino if path else 0
    except OSError:
        return 0


def parse_args(text: str) -> list[params_pb2.CniArg]:
    """CNI_ARGS as pairs, in order; raise InvalidEnvironment (4) for one that is none."""
    pairs = []
    for pair in text.split(";") if text else ():
        key, equals, value = pair.partition("=")
        if not equals:
            raise InvalidEnvironment(f'CNI_ARGS: invalid pair "{pair}"')
        pairs.append(params_pb2.CniArg(key=key, value=value))
    return pairs


def join_args(pairs: Any) -> str:
    """Pairs as CNI_ARGS; raise InvalidEnvironment (4) for one that would read as others."""
    for pair in pairs:
        if "=" in pair.key or ";" in pair.key + pair.value:
            raise InvalidEnvironment(f'CNI_ARGS: invalid pair "{pair.key}={pair.value}"')
    return ";".join(f"{pair.key}={pair.value}" for pair in pairs)


def config_text(config: bytes, key: str) -> str:
    """A text of a request config's own members; empty when it is absent."""
    return text_field(fold(jsonio.decode_raw_object(config)), key)


def result_document(
    plugin_type: str, message: result_pb2.Result, request: Request, version: str
) -> bytes:
    """What a daemon answered to ADD: its JSON byte for byte, or its fields rendered once."""
    if not message.json:
        try:
            document = model_result(message).encode(version)
        except CniError as error:
            raise PluginFailed(
                f"plugin {plugin_type} answered with an unusable result: {error.msg}"
            ) from error
        if len(document) > MAX_RESULT_BYTES:
            raise _too_large(plugin_type, len(document))
        return document
    if len(message.json) > MAX_RESULT_BYTES:
        raise _too_large(plugin_type, len(message.json))
    document = canonical_result(plugin_type, message.json, request)
    said = text_field(fold(jsonio.decode_raw_object(message.json)), "cniVersion")
    return message.json if said == version else document


def _too_large(plugin_type: str, size: int) -> PluginFailed:
    return PluginFailed(
        f"plugin {plugin_type} answered with a result of {size} bytes, and"
        f" {MAX_RESULT_BYTES} are allowed"
    )


def model_result(message: result_pb2.Result) -> Result:
    """The typed fields of a result; raise InvalidConfig (7) for what is no address."""
    return Result(
        cniVersion=message.cni_version,
        interfaces=tuple(
            Interface(
                name=one.name,
                mac=Mac.parse(one.mac) if one.mac else "",
                mtu=one.mtu,
                sandbox=one.sandbox,
                socketPath=one.socket_path,
                pciID=one.pci_id,
            )
            for one in message.interfaces
        ),
        ips=tuple(
            IPConfig(
                address=parse_cidr(one.address),
                gateway=parse_ip(one.gateway) if one.gateway else None,
                interface=one.interface if one.HasField("interface") else None,
            )
            for one in message.ips
        ),
        routes=tuple(
            Route(
                dst=parse_cidr(one.dst),
                gw=parse_ip(one.gw) if one.gw else None,
                mtu=one.mtu,
                advmss=one.advmss,
                priority=one.priority,
                table=one.table if one.HasField("table") else None,
                scope=one.scope if one.HasField("scope") else None,
            )
            for one in message.routes
        ),
        dns=DNS(
            nameservers=tuple(message.dns.nameservers),
            domain=message.dns.domain,
            search=tuple(message.dns.search),
            options=tuple(message.dns.options),
        ),
    )


def _translate(failed: grpc.RpcError, what: str, endpoint: str, deadline: Deadline) -> CniError:
    """What a failed call means to the chain; the plugin's own error as it is."""
    call = cast(grpc.Call, failed)  # true of every finished call; the stubs do not know
    status, said = call.code(), call.details() or ""
    if status is grpc.StatusCode.UNIMPLEMENTED:
        return PluginFailed(
            f"{what}: what listens at {endpoint} does not serve it",
            hint="a plugin daemon serves cni.v2alpha1.Plugin, all six verbs of it",
        )
    error = wire.find_error(failed)
    if error is not None:
        return _own(error, what, endpoint)
    if status is grpc.StatusCode.DEADLINE_EXCEEDED:
        return TryAgain(f"{what} did not finish before its deadline", f"at {endpoint}")
    if deadline.cancelled:
        return TryAgain(f"{what} was cancelled by the caller", f"at {endpoint}")
    if status in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
        return ConnectionLost(f"{what}: no answer from the daemon at {endpoint}", said)
    return PluginFailed(f"{what}: the daemon at {endpoint} answered {status.name}", said)


def _own(error: CniError, what: str, endpoint: str) -> CniError:
    """A daemon's error as one of the chain: whom it concerns, and where, is not its to say."""
    said = error.details if error.msg else f"CNI error code {error.wire_code}"
    msg = error.msg or f"{what}: the daemon at {endpoint} failed and did not say why"
    own = CniError.from_wire(error.wire_code or CniError.code, msg, said)
    own.cni_version, own.log_id = error.cni_version, error.log_id
    own.residue, own.causes, own.document = error.residue, error.causes, error.document
    return own
