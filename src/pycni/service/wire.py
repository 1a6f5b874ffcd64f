# SPDX-License-Identifier: Apache-2.0
"""CNI errors as gRPC statuses and back: the one table, and the one detail every status carries."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NoReturn, cast

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from pycni.errors import CniError, TryAgain
from pycni.model.wire_error import encode_error
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
    access.TooManyCalls: code_pb2.RESOURCE_EXHAUSTED,
    access.AlreadyRegistered: code_pb2.ALREADY_EXISTS,
    types.TypeConflict: code_pb2.FAILED_PRECONDITION,
}

RETRY_AFTER_S = 1
MAX_CODE = (1 << 32) - 1  # the field has no room for more


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
        json=encode_error(error, error.cni_version or ""),
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
    return error


def text(value: str) -> str:
    """`value` as UTF-8 can carry it: names off the system may hold stray bytes."""
    return value.encode("utf-8", "replace").decode()


def abort(context: grpc.ServicerContext, error: CniError, code: int | None = None) -> NoReturn:
    """End the call with the status of `error` (or `code`) and its CniError detail."""
    status = status_pb2.Status(
        code=status_code(error) if code is None else code, message=str(error)
    )
    _pack(status, error_message(error))
    if error.wire_code == TryAgain.code:
        delay = duration_pb2.Duration(seconds=RETRY_AFTER_S)
        _pack(status, error_details_pb2.RetryInfo(retry_delay=delay))
    context.abort_with_status(rpc_status.to_status(status))
    raise AssertionError("abort_with_status always raises")


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
