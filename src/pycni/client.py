# SPDX-License-Identifier: Apache-2.0
"""A typed client of a pycni service; failed calls raise the plugins' own exception classes.

    with Client() as client:
        for network in client.networks.List(networks_pb2.ListNetworksRequest()).networks:
            print(network.name)

The stubs are the generated ones, so every method, message and field is typed. A call that the
service failed raises the CniError of its status detail (InvalidConfig, TryAgain, …); one that
never reached it raises ServiceUnavailable.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self, cast

import grpc

from pycni.errors import CniError, InvalidEnvironment, TryAgain
from pycni.service import wire
from pycni.service.pb.cni.v2alpha1 import attachments_pb2_grpc, networks_pb2_grpc, node_pb2_grpc
from pycni.service.tls import client_credentials

DEFAULT_SOCKET = "/run/pycni/cni.sock"
MAX_SOCKET_PATH = 107  # sun_path less the terminating NUL (unix(7))
MAX_MESSAGE_BYTES = 128 * 1024 * 1024

HEALTH_CHECK = "/grpc.health.v1.Health/Check"
NOBODY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
RETRY_S = 0.1

START_IT = "start it with `pycni serve`, or name its socket"
CHECK_TLS = "is it there, and do it and the client know each other's authority?"
LOOK_AGAIN = "the service undoes an Add and ends a Del by itself; List shows what there is"


class ServiceUnavailable(TryAgain):
    """No service answers on the socket, or the connection broke."""


class CallFailed(CniError):
    """The call failed in gRPC itself: its status carries no CNI error."""

    def __init__(self, status: grpc.StatusCode, msg: str, *, hint: str = "") -> None:
        super().__init__(f"{status.name}: {msg}", hint=hint)
        self.status = status


class Client:
    """A connection to one service: `networks`, `attachments` and `node` are its gRPC stubs."""

    def __init__(
        self,
        target: str = DEFAULT_SOCKET,
        *,
        credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        """Connect to a unix socket's path, or with `credentials` to host:port by mutual TLS."""
        options = (
            ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
            ("grpc.enable_http_proxy", 0),
            # The service is on this machine: one that is just starting is there in a moment, and
            # gRPC's own first pause of a second is for servers far away.
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 2000),
        )
        self.target = target
        if credentials is None:
            _expect_short(target)
            channel = grpc.insecure_channel(f"unix:{target}", options)
        else:
            channel = grpc.secure_channel(target, credentials, options)
        self._channel = channel
        self._hint = START_IT if credentials is None else CHECK_TLS
        self.channel = grpc.intercept_channel(channel, _Errors(target, self._hint))
        self.networks = networks_pb2_grpc.NetworksStub(self.channel)
        self.attachments = attachments_pb2_grpc.AttachmentsStub(self.channel)
        self.node = node_pb2_grpc.NodeStub(self.channel)

    @classmethod
    def with_tls(cls, address: str, *, certificate: Path, key: Path, server_ca: Path) -> Self:
        """Connect to host:port with a certificate; `server_ca` is who signed the service's."""
        return cls(
            address,
            credentials=client_credentials(certificate=certificate, key=key, server_ca=server_ca),
        )

    def wait_ready(self, timeout_s: float) -> None:
        """Wait for the service to be there; raise ServiceUnavailable (11) after `timeout_s`."""
        # A call, not grpc.channel_ready_future: that one can miss the moment and then wait for ever
        # while calls get through (grpcio 1.85; about one in a hundred while a server starts).
        ask = self._channel.unary_unary(HEALTH_CHECK, bytes, bytes)
        end = time.monotonic() + timeout_s
        reason = ""
        while (left := end - time.monotonic()) > 0:
            try:
                ask(b"", timeout=left, wait_for_ready=True)
            except grpc.RpcError as failed:
                call = cast(grpc.Call, failed)
                if call.code() not in NOBODY:
                    return  # even a refusal is an answer
                reason = call.details() or ""
                time.sleep(min(RETRY_S, left))
            else:
                return
        raise ServiceUnavailable(
            f"no pycni service answers on {self.target} within {timeout_s:g} s",
            reason,
            hint=self._hint,
        )

    def close(self) -> None:
        """Close the connection; streams end."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


class _Errors(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):  # type: ignore[type-arg]  # generic only in the stubs
    """Turns the RpcError of a call into the CniError it carries."""

    def __init__(self, target: str, hint: str) -> None:
        self._target = target
        self._hint = hint

    def intercept_unary_unary(
        self, continuation: Callable[..., Any], client_call_details: Any, request: Any
    ) -> Any:
        """Wait for the answer here, so that its failure can be translated."""
        call = continuation(client_call_details, request)
        try:
            call.result()
        except grpc.RpcError as failed:
            raise self._translate(failed) from failed
        return call

    def intercept_unary_stream(
        self, continuation: Callable[..., Any], client_call_details: Any, request: Any
    ) -> Any:
        """Translate a failure wherever in the stream it comes."""
        return _Stream(continuation(client_call_details, request), self._translate)

    def _translate(self, failed: grpc.RpcError) -> CniError:
        error = wire.find_error(failed)
        if error is not None:
            return error
        call = cast(grpc.Call, failed)  # true of every finished call; the stubs do not know
        status, message = call.code(), call.details() or ""
        if status is grpc.StatusCode.UNAVAILABLE and "Permission denied" in message:
            return ServiceUnavailable(
                f"permission denied to use {self._target}",
                hint="call it as the user that the service runs as, root as a rule",
            )
        if status is grpc.StatusCode.UNAVAILABLE:
            return ServiceUnavailable(
                f"no pycni service answers on {self._target}",
                message,
                hint=self._hint,
            )
        if status is grpc.StatusCode.DEADLINE_EXCEEDED:
            return CallFailed(status, "the call did not end within its timeout", hint=LOOK_AGAIN)
        return CallFailed(status, message)


def status_of(error: CniError) -> grpc.StatusCode | None:
    """The gRPC status a call failed with, such as ALREADY_EXISTS; None if it was no call."""
    cause = cast(object, error.__cause__)  # the stubs do not know that it can be both
    return cause.code() if isinstance(cause, grpc.Call) else None


def _expect_short(path: str) -> None:
    size = len(os.fsencode(path))
    if size > MAX_SOCKET_PATH:
        raise InvalidEnvironment(
            f"the socket's path is too long: {path}", f"{size} bytes of {MAX_SOCKET_PATH}"
        )


class _Stream:
    """A server stream whose failures are CniErrors; otherwise the call itself."""

    def __init__(self, call: Any, translate: Callable[[grpc.RpcError], CniError]) -> None:
        self._call = call
        self._translate = translate

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            return next(self._call)
        except grpc.RpcError as failed:
            raise self._translate(failed) from failed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._call, name)
