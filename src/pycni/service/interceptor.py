# SPDX-License-Identifier: Apache-2.0
"""Around every call: the size limit, and failures as statuses that carry a CniError."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator
from typing import Any

import grpc
from google.rpc import code_pb2

from pycni.errors import CniError
from pycni.service import wire

log = logging.getLogger(__name__)

MAX_REQUEST_BYTES = 16 * 1024 * 1024
# gRPC itself refuses larger ones, with a status that carries no CniError: leave room for ours.
MAX_MESSAGE_BYTES = 128 * 1024 * 1024

Handler = Callable[[Any, grpc.ServicerContext], Any]


class Boundary(grpc.ServerInterceptor):  # type: ignore[type-arg]  # generic only in the stubs
    """Turns whatever a handler raises into a status; nothing else of the service needs to."""

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Any],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Wrap the handler of this call."""
        handler = continuation(handler_call_details)
        if handler is None or not handler_call_details.method.startswith("/cni."):
            return handler
        method = handler_call_details.method
        if handler.unary_unary:
            return grpc.unary_unary_rpc_method_handler(
                _unary(handler.unary_unary, method),
                handler.request_deserializer,
                handler.response_serializer,
            )
        if handler.unary_stream:
            return grpc.unary_stream_rpc_method_handler(
                _stream(handler.unary_stream, method),
                handler.request_deserializer,
                handler.response_serializer,
            )
        return grpc.stream_stream_rpc_method_handler(
            _stream(handler.stream_stream, method),
            handler.request_deserializer,
            handler.response_serializer,
        )


def _unary(handler: Handler, method: str) -> Handler:
    def call(request: Any, context: grpc.ServicerContext) -> Any:
        try:
            _check_size(request)
            return handler(request, context)
        except Exception as exc:  # noqa: BLE001 - service boundary: every failure is a status
            _fail(exc, method, context)

    return call


def _stream(handler: Handler, method: str) -> Handler:
    def call(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        try:
            yield from handler(request, context)
        except Exception as exc:  # noqa: BLE001 - service boundary: every failure is a status
            _fail(exc, method, context)

    return call


class TooLarge(CniError, code=6):
    """The request is larger than the service accepts."""


def _check_size(request: Any) -> None:
    size = request.ByteSize()
    if size > MAX_REQUEST_BYTES:
        raise TooLarge(
            f"the request has {size} bytes and {MAX_REQUEST_BYTES} are allowed",
            hint="a network configuration has a few thousand",
        )


def _fail(exc: Exception, method: str, context: grpc.ServicerContext) -> None:
    if not context.is_active() and not isinstance(exc, CniError):
        raise exc  # the status is set already (abort), or nobody is left to be told
    if isinstance(exc, TooLarge):
        wire.abort(context, exc, code_pb2.RESOURCE_EXHAUSTED)
    if isinstance(exc, CniError):
        wire.abort(context, exc)
    if isinstance(exc, NotImplementedError):
        wire.abort(
            context,
            CniError(f"{method} is not implemented by this service"),
            code_pb2.UNIMPLEMENTED,
        )
    log_id = secrets.token_hex(4)
    log.error("internal error in %s, log id %s", method, log_id, exc_info=exc)
    error = CniError(
        f"internal error in {method}, log id {log_id}",
        hint="the service's log has the traceback under that id",
    )
    error.log_id = log_id
    wire.abort(context, error)
