# SPDX-License-Identifier: Apache-2.0
"""The server's own life: what its health says, and when."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pycni.runtime.node import Node
from pycni.runtime.opening import open_node
from pycni.service.server import READINESS, Server

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """A node on no state."""
    (tmp_path / "state").mkdir()
    opened = open_node(str(tmp_path / "state"), plugin_path=())
    yield opened
    opened.close()


def test_readiness_is_told_from_the_first_moment(node: Node, tmp_path: Path) -> None:
    """Live, not ready, ready, retired; never "no such service"."""
    server = Server(node)
    server.listen(tmp_path / "cni.sock")
    server.start(ready=False)
    with grpc.insecure_channel(f"unix:{tmp_path}/cni.sock") as channel:
        stub = health_pb2_grpc.HealthStub(channel)

        def health() -> tuple[int, int]:
            live = stub.Check(health_pb2.HealthCheckRequest(), timeout=10)
            ready = stub.Check(health_pb2.HealthCheckRequest(service=READINESS), timeout=10)
            return live.status, ready.status

        assert (SERVING, NOT_SERVING) == health()
        server.set_ready()
        assert (SERVING, SERVING) == health()
        server.retire()
        assert (SERVING, NOT_SERVING) == health()
    server.stop(1)
