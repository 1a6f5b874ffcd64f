# SPDX-License-Identifier: Apache-2.0
"""Around every call: who may make it, how large it is, and failures that carry a CniError."""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any, NoReturn, cast

import grpc
from google.protobuf.message import DecodeError
from google.rpc import code_pb2

from pycni.errors import CniError, DecodeFailure, TryAgain
from pycni.runtime import trace
from pycni.service import wire
from pycni.service.access import (
    PUBLIC,
    READ_ONLY,
    Identity,
    NoSuchMethod,
    Policy,
    TooManyCalls,
    caller,
)

log = logging.getLogger(__name__)

MAX_REQUEST_BYTES = 16 * 1024 * 1024
# gRPC itself refuses larger ones, with a status that carries no CniError: leave room for ours.
MAX_MESSAGE_BYTES = 128 * 1024 * 1024

MAX_STREAMS = 256  # watches and registrations of one listener; each has a thread
SPARE_THREADS = 8  # to tell the next one that there are enough
DELEGATIONS = 128

DELEGATE = "/cni.v2alpha1.Delegate/"
# What a service that is stopping still does, beside showing things: what ends calls, or helps
# them to their end.
LAST = (
    *PUBLIC,
    DELEGATE,
    "/cni.v2alpha1.Registry/",
    "/cni.v2alpha1.Attachments/Del",
    "/cni.v2alpha1.Attachments/DetachAll",
)

Handler = Callable[[Any, grpc.ServicerContext], Any]
Reader = Callable[[bytes], Any]


class ServiceStopping(TryAgain):
    """The service is about to end and begins nothing new."""


class TooLarge(CniError, code=6):
    """The request is larger than the service accepts."""


class Gate:
    """The unary calls that run, on all listeners of a service; it can be closed."""

    def __init__(self) -> None:
        self._running = 0
        self._closed = False
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def passing(self, method: str) -> Iterator[None]:
        """Count a call; raise ServiceStopping (11) if the gate is closed to it."""
        with self._changed:
            if self._closed and not (method in READ_ONLY or method.startswith(LAST)):
                raise ServiceStopping("the service is stopping", hint="its successor will answer")
            self._running += 1
        try:
            yield
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def close(self) -> None:
        """Let nothing new in, but for what shows things, ends calls or helps them to their end."""
        with self._changed:
            self._closed = True

    def wait(self, grace_s: float) -> bool:
        """Wait for what runs; whether it all came to its end in time."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._running, grace_s)


class Boundary(grpc.ServerInterceptor):  # type: ignore[type-arg]  # generic only in the stubs
    """What every handler would otherwise do itself: permission, limits, errors as statuses.

    Streams and delegations have threads of their own: watchers must not use up those of the
    calls, nor calls that wait for a daemon those on which it asks for its delegates.
    """

    def __init__(self, policy: Policy | None = None, gate: Gate | None = None) -> None:
        """Without a `policy` everybody may do everything, as is right behind a 0600 socket."""
        self._policy = policy
        self._gate = gate or Gate()
        self._wrapped: dict[str, Any] = {}
        self._streams = threading.BoundedSemaphore(MAX_STREAMS)
        self._stream_threads = futures.ThreadPoolExecutor(
            MAX_STREAMS + SPARE_THREADS, thread_name_prefix="stream"
        )
        self._delegate_threads = futures.ThreadPoolExecutor(
            DELEGATIONS, thread_name_prefix="delegate"
        )

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Any],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """The handler of this call, wrapped; each is wrapped once."""
        method = handler_call_details.method
        wrapped = self._wrapped.get(method)
        if wrapped is None:
            handler = continuation(handler_call_details)
            if handler is None:  # not kept: callers think up as many methods as they like
                nothing = self._unary(_missing(method), method)
                return grpc.unary_unary_rpc_method_handler(nothing)
            wrapped = self._wrapped[method] = self._wrap(handler, method)
        return wrapped

    def _wrap(self, handler: Any, method: str) -> Any:
        read = handler.request_deserializer
        # gRPC gets the bytes as they are: its own failure to read them carries no CniError.
        serializers = (None, handler.response_serializer)
        if handler.unary_unary:
            wrapped = self._unary(_reading(handler.unary_unary, read), method)
            return grpc.unary_unary_rpc_method_handler(wrapped, *serializers)
        if handler.unary_stream:
            if hasattr(handler.unary_stream, "experimental_non_blocking"):
                watch = self._threadless(handler.unary_stream, method)
                return grpc.unary_stream_rpc_method_handler(
                    watch, read, handler.response_serializer
                )
            wrapped = self._stream(_reading(handler.unary_stream, read), method)
            return grpc.unary_stream_rpc_method_handler(wrapped, *serializers)
        if handler.stream_unary:
            wrapped = self._unary_reply(_reading_all(handler.stream_unary, read), method)
            return grpc.stream_unary_rpc_method_handler(wrapped, *serializers)
        wrapped = self._stream(_reading_all(handler.stream_stream, read), method)
        return grpc.stream_stream_rpc_method_handler(wrapped, *serializers)

    def _unary(self, handler: Handler, method: str) -> Handler:
        def call(request: Any, context: grpc.ServicerContext) -> Any:
            try:
                self._admit(method, context)
                with self._gate.passing(method), trace.bound(_variables(context)):
                    return handler(request, context)
            except Exception as exc:  # noqa: BLE001 - service boundary: every failure is a status
                _fail(exc, method, context)

        if method.startswith(DELEGATE):
            call.experimental_thread_pool = self._delegate_threads  # type: ignore[attr-defined]  # grpc reads it
        return call

    def _unary_reply(self, handler: Handler, method: str) -> Handler:
        def call(requests: Any, context: grpc.ServicerContext) -> Any:
            try:
                self._admit(method, context)
                with self._place():
                    return handler(requests, context)
            except Exception as exc:  # noqa: BLE001 - service boundary: every failure is a status
                _fail(exc, method, context)

        call.experimental_thread_pool = self._stream_threads  # type: ignore[attr-defined]  # grpc reads it
        return call

    def _stream(self, handler: Handler, method: str) -> Handler:
        def call(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            try:
                self._admit(method, context)
                with self._place():
                    yield from handler(request, context)
            except Exception as exc:  # noqa: BLE001 - service boundary: every failure is a status
                _fail(exc, method, context)

        call.experimental_thread_pool = self._stream_threads  # type: ignore[attr-defined]  # grpc reads it
        return call

    def _threadless(self, handler: Callable[..., Any], method: str) -> Callable[..., Any]:
        """Health's Watch: a stream that needs no thread, and so no place among the streams."""

        def call(request: Any, context: grpc.ServicerContext, *more: Any) -> Any:
            try:
                self._admit(method, context)
                return handler(request, context, *more)
            except Exception as exc:  # noqa: BLE001 - service boundary: every failure is a status
                _fail(exc, method, context)

        call.experimental_non_blocking = True  # type: ignore[attr-defined]  # grpc reads it
        return call

    def _admit(self, method: str, context: grpc.ServicerContext) -> None:
        if self._policy is not None:
            # The stubs have the values as bytes; they are lists of bytes.
            role = self._policy.check(method, cast(Identity, context.auth_context()))
            caller.set(role)

    @contextlib.contextmanager
    def _place(self) -> Iterator[None]:
        if not self._streams.acquire(blocking=False):
            raise TooManyCalls(f"{MAX_STREAMS} streams are open already")
        try:
            yield
        finally:
            self._streams.release()


def _variables(context: grpc.ServicerContext) -> dict[str, str]:
    """The caller's metadata as environment variables; of these the trace context is used."""
    return {key.upper(): str(value) for key, value in context.invocation_metadata()}


def _missing(method: str) -> Handler:
    """What answers a method that there is not: as gRPC does, and with a CniError."""

    def answer(_request: Any, _context: grpc.ServicerContext) -> NoReturn:
        raise NoSuchMethod(f"{method} is not implemented by this service")

    return answer


def _reading(handler: Handler, read: Reader) -> Handler:
    """`handler`, which takes a message, as one that takes the bytes of it."""
    return lambda data, context: handler(_parse(data, read), context)


def _reading_all(handler: Handler, read: Reader) -> Handler:
    """The same for a stream of messages."""
    return lambda stream, context: handler((_parse(data, read) for data in stream), context)


def _parse(data: bytes, read: Reader) -> Any:
    if len(data) > MAX_REQUEST_BYTES:
        raise TooLarge(
            f"the request has {len(data)} bytes and {MAX_REQUEST_BYTES} are allowed",
            hint="a network configuration has a few thousand",
        )
    try:
        return read(data)
    except DecodeError as exc:
        raise DecodeFailure("the request is not the protobuf message that this call takes") from exc


def _fail(exc: Exception, method: str, context: grpc.ServicerContext) -> None:
    if not context.is_active() and not isinstance(exc, CniError):
        raise exc  # the status is set already (abort), or nobody is left to be told
    if isinstance(exc, TooLarge):
        wire.abort(context, exc, code_pb2.RESOURCE_EXHAUSTED)
    if isinstance(exc, CniError):
        wire.abort(context, exc)
    if isinstance(exc, NotImplementedError):  # of a method that only the generated code has
        wire.abort(context, NoSuchMethod(f"{method} is not implemented by this service"))
    log_id = secrets.token_hex(4)
    log.error("internal error in %s, log id %s", method, log_id, exc_info=exc)
    error = CniError(
        f"internal error in {method}, log id {log_id}",
        hint="the service's log has the traceback under that id",
    )
    error.log_id = log_id
    wire.abort(context, error)
