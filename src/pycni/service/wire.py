# SPDX-License-Identifier: Apache-2.0
"""CNI errors as gRPC statuses and back: the one table, and the one detail every status carries."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn, cast
from urllib.parse import quote

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from pycni.errors import CniError, TryAgain
from pycni.runtime import errors as runtime_errors
from pycni.service import access, types
from pycni.service.pb.cni.v2alpha1 import error_pb2

# The CNI code decides; proto/cni/v2alpha1/error.proto shows this table to callers.
STATUS_OF_CODE: dict[int, int] = {
    1: code_pb2.FAILED_PRECONDITION,
    2: code_pb2.INVALID_ARGUMENT,
    3: code_pb2.NOT_FOUND,
    4: code_pb2.INVALID_ARGUMENT,
    5: code_pb2.INTERNAL,
    6: code_pb2.INVALID_ARGUMENT,
    7: code_pb2.INVALID_ARGUMENT,
    8: code_pb2.INVALID_ARGUMENT,
    11: code_pb2.UNAVAILABLE,
    50: code_pb2.FAILED_PRECONDITION,
    51: code_pb2.FAILED_PRECONDITION,
}

# What a code cannot tell: statuses of the node's own refusals, most specific class first.
STATUS_OF_CLASS: dict[type[CniError], int] = {
    runtime_errors.NetworkNotFound: code_pb2.NOT_FOUND,
    runtime_errors.NetworkReadOnly: code_pb2.FAILED_PRECONDITION,
    runtime_errors.NetworkInUse: code_pb2.FAILED_PRECONDITION,
    runtime_errors.EtagMismatch: code_pb2.ABORTED,
    runtime_errors.AttachmentConflict: code_pb2.ALREADY_EXISTS,
    runtime_errors.Overloaded: code_pb2.RESOURCE_EXHAUSTED,
    access.NotPermitted: code_pb2.PERMISSION_DENIED,
    access.NoSuchMethod: code_pb2.UNIMPLEMENTED,
    access.TooManyCalls: code_pb2.RESOURCE_EXHAUSTED,
    access.AlreadyRegistered: code_pb2.ALREADY_EXISTS,
    types.TypeConflict: code_pb2.FAILED_PRECONDITION,
}

RETRY_AFTER_S = 1
MAX_CODE = (1 << 32) - 1  # the field has no room for more

# A status travels in HTTP trailers. gRPC clients refuse them, and with them the whole answer, above
# 16 KiB, and some already above 8.
MAX_TRAILERS = 7000
TEXT_LIMITS = (2048, 1024, 512, 256, 128, 64)  # tried in this order until a status fits


def status_code(error: CniError) -> int:
    """The gRPC status code (google.rpc.Code) that `error` travels under."""
    for cls, code in STATUS_OF_CLASS.items():
        if isinstance(error, cls):
            return code
    return STATUS_OF_CODE.get(error.wire_code, int(code_pb2.INTERNAL))


def error_message(error: CniError) -> error_pb2.CniError:
    """`error` as the API's message: a status detail, or data in a reply."""
    verb = error_pb2.Verb.Value(f"VERB_{error.verb or 'UNSPECIFIED'}")
    message = error_pb2.CniError(
        code=min(error.wire_code, MAX_CODE),
        msg=text(error.msg),
        details=text(error.details),
        cni_version=text(error.cni_version or ""),
        verb=verb,
        plugin_type=text(error.plugin_type or ""),
        residue=error_pb2.Residue.Value(f"RESIDUE_{error.residue or 'UNKNOWN'}"),
        json=error.document,
        log_id=error.log_id or "",
        network=text(error.network),
        container_id=text(error.container_id),
        ifname=text(error.ifname),
        field=text(error.field),
        causes=[error_message(cause) for cause in getattr(error, "errors", error.causes)],
    )
    if error.plugin_index is not None:
        message.plugin_index = error.plugin_index
    return message


def rebuild_error(message: error_pb2.CniError) -> CniError:
    """The exception class that owns the message's code, with the chain position it carries."""
    error = CniError.from_wire(message.code, message.msg, message.details)
    if message.verb in error_pb2.Verb.values():
        verb = error_pb2.Verb.Name(message.verb).removeprefix("VERB_")
        error.verb = verb if message.verb else None
    error.plugin_type = message.plugin_type or None
    error.plugin_index = message.plugin_index if message.HasField("plugin_index") else None
    if message.residue in error_pb2.Residue.values():  # a newer peer may know others
        error.residue = error_pb2.Residue.Name(message.residue).removeprefix("RESIDUE_")
    error.cni_version = message.cni_version or None
    error.log_id = message.log_id or None
    error.network, error.container_id = message.network, message.container_id
    error.ifname, error.field = message.ifname, message.field
    error.causes = tuple(map(rebuild_error, message.causes))
    error.document = message.json
    return error


def text(value: str) -> str:
    """`value` as UTF-8 can carry it: names off the system may hold stray bytes."""
    return value.encode("utf-8", "replace").decode()


def abort(context: grpc.ServicerContext, error: CniError, code: int | None = None) -> NoReturn:
    """End the call with the status of `error` (or `code`) and its CniError detail.

    What is too long for trailers is shortened: the caller must get the code and whom it concerns.
    """
    code = status_code(error) if code is None else code
    status = fitting_status(code, text(str(error)), error_message(error))
    context.abort_with_status(rpc_status.to_status(status))
    raise AssertionError("abort_with_status always raises")


def fitting_status(code: int, said: str, detail: error_pb2.CniError) -> status_pb2.Status:
    """A status with its detail, as much of both as trailers can carry."""
    status = _status(code, said, detail)
    for limit in TEXT_LIMITS:
        if _trailer_size(status) <= MAX_TRAILERS:
            break
        status = _status(code, _cut(said, limit), _shorten(detail, limit))
    return status


def _status(code: int, said: str, detail: error_pb2.CniError) -> status_pb2.Status:
    status = status_pb2.Status(code=code, message=said)
    _pack(status, detail)
    if detail.code == TryAgain.code:
        delay = duration_pb2.Duration(seconds=RETRY_AFTER_S)
        _pack(status, error_details_pb2.RetryInfo(retry_delay=delay))
    return status


def _trailer_size(status: status_pb2.Status) -> int:
    """Bytes of grpc-message, percent-encoded, and of grpc-status-details-bin, in base64."""
    return len(quote(status.message, safe=" ")) + (int(status.ByteSize()) + 2) // 3 * 4


def _shorten(detail: error_pb2.CniError, limit: int) -> error_pb2.CniError:
    """`detail` with no text longer than `limit`, and not many more causes than that allows."""
    short = error_pb2.CniError()
    short.CopyFrom(detail)
    for field, value in detail.ListFields():
        if isinstance(value, str):
            setattr(short, field.name, _cut(value, limit))
    if len(short.json) > limit:
        short.json = b""  # a document cut in two is none
    del short.causes[:]
    short.causes.extend(_shorten_causes(detail.causes, limit))
    return short


def _shorten_causes(
    causes: Iterable[error_pb2.CniError], limit: int
) -> Iterator[error_pb2.CniError]:
    room = limit  # for all of them together
    causes = list(causes)
    for index, cause in enumerate(causes):
        short = _shorten(cause, limit // 2)
        room -= short.ByteSize()
        if room < 0 and index:
            msg = f"and {len(causes) - index} more failures"
            yield error_pb2.CniError(code=cause.code, msg=msg)
            return
        yield short


def _cut(value: str, limit: int) -> str:
    """`value`, or its beginning and its end: what it is, and the hint."""
    if len(value) <= limit:
        return value
    tail = limit // 4
    return f"{value[: limit - tail - 3]} … {value[-tail:]}"


def _pack(status: status_pb2.Status, message: Any) -> None:
    detail = any_pb2.Any()
    detail.Pack(message)
    status.details.append(detail)


def find_error(failed: grpc.RpcError) -> CniError | None:
    """The CNI error a failed call carries, or None when the service was not the one to fail it."""
    # Every RpcError of a finished call is a grpc.Call too; the stubs do not know.
    status = rpc_status.from_call(cast(grpc.Call, failed))
    message = error_pb2.CniError()
    for detail in status.details if status else ():
        if detail.Unpack(message):
            return rebuild_error(message)
    return None


@contextlib.contextmanager
def cni_errors() -> Iterator[None]:
    """Around a client's call: raise the CniError that a failed call carries, if it carries one."""
    try:
        yield
    except grpc.RpcError as failed:
        error = find_error(failed)
        if error is None:
            raise
        raise error from failed
