# SPDX-License-Identifier: Apache-2.0
"""Errors as statuses: what a caller must get whatever the error holds."""

from __future__ import annotations

from collections.abc import Callable
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import code_pb2, error_details_pb2

from pycni.errors import CniError, InvalidConfig, TryAgain
from pycni.model.wire_error import parse_error
from pycni.runtime.errors import ChainFailed
from pycni.service import wire

SOFT_LIMIT = 8192  # of gRPC's C core and of Java, for all the headers of an answer

LONG = [
    pytest.param(lambda: InvalidConfig("x" * 100_000), id="a long message"),
    pytest.param(lambda: InvalidConfig("é☃" * 5000, "%" * 50_000), id="much to be escaped"),
    pytest.param(lambda: TryAgain("short", "d" * 50_000, hint="what to do"), id="long details"),
    pytest.param(
        lambda: ChainFailed("GC", [CniError(f"cause {n} " + "y" * 300) for n in range(2000)]),
        id="many causes",
    ),
    pytest.param(
        lambda: parse_error(b'{"code": 101, "msg": "%s"}' % (b"z" * 9000)), id="a long document"
    ),
]


def met_by_a_client(tmp_path: Path, error: CniError) -> grpc.RpcError:
    """How `error` arrives at a client that has no options of its own."""

    def handle(_request: bytes, context: grpc.ServicerContext) -> Any:
        wire.abort(context, error)

    server = grpc.server(futures.ThreadPoolExecutor(1))
    method = grpc.unary_unary_rpc_method_handler(handle)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("s", {"m": method}),))
    server.add_insecure_port(f"unix:{tmp_path}/s")
    server.start()
    try:
        with grpc.insecure_channel(f"unix:{tmp_path}/s") as channel:
            with pytest.raises(grpc.RpcError) as failed:
                channel.unary_unary("/s/m", bytes, bytes)(b"", timeout=10)
            return failed.value
    finally:
        server.stop(0).wait()


@pytest.mark.parametrize("make", LONG)
def test_a_long_error_still_arrives(tmp_path: Path, make: Callable[[], CniError]) -> None:
    """gRPC drops an answer whose trailers are too long, and with it the error."""
    error = make()
    failed: Any = met_by_a_client(tmp_path, error)
    assert wire.status_code(error) == failed.code().value[0]
    arrived = wire.find_error(failed)
    assert arrived is not None
    assert (error.wire_code, error.msg[:20]) == (arrived.wire_code, arrived.msg[:20])
    size = sum(len(key) + len(value) * 4 / 3 + 32 for key, value in failed.trailing_metadata())
    assert size + len(failed.details()) <= SOFT_LIMIT


def test_a_short_error_arrives_whole() -> None:
    """Nothing is cut that fits, and the causes keep their order."""
    error = ChainFailed("DEL", [CniError(f"cause {n}", "because") for n in range(5)])
    detail = wire.error_message(error)
    status = wire.fitting_status(int(code_pb2.INTERNAL), str(error), detail)
    assert str(error) == status.message
    kept = type(detail)()
    assert status.details[0].Unpack(kept)
    assert detail == kept


def test_what_is_left_out_is_counted() -> None:
    """The last cause says how many more there are."""
    error = ChainFailed("GC", [CniError(f"cause {n} " + "y" * 300) for n in range(2000)])
    status = wire.fitting_status(13, str(error), wire.error_message(error))
    message = wire.error_message(error)
    assert status.details[0].Unpack(message)
    kept = message.causes
    assert f"and {2000 - len(kept) + 1} more failures" == kept[-1].msg
    assert "cause 0 " == kept[0].msg[:8]


def test_the_hint_at_the_end_survives() -> None:
    """What to do next is at the end of the details."""
    error = TryAgain("short", "d" * 50_000, hint="what to do")
    status = wire.fitting_status(14, str(error), wire.error_message(error))
    message = wire.error_message(error)
    assert status.details[0].Unpack(message)
    assert message.details.endswith("what to do")
    assert status.details[1].Is(error_details_pb2.RetryInfo.DESCRIPTOR)


def test_a_plugin_s_document_is_passed_on_as_it_came() -> None:
    """Only an error that came as JSON has a document."""
    document = b'{ "code": 101, "msg": "full", "more": [1] }'
    there = wire.error_message(parse_error(document))
    assert document == there.json
    assert document == wire.rebuild_error(there).document
    assert b"" == wire.error_message(CniError("born here")).json
