# SPDX-License-Identifier: Apache-2.0
"""The client where no service is."""

from __future__ import annotations

import socket
import threading
from concurrent import futures
from pathlib import Path

import grpc
import pytest

from pycni.client import CallFailed, Client, ServiceUnavailable, status_of
from pycni.errors import CniError
from pycni.service.pb.cni.v2alpha1 import networks_pb2


def test_waiting_for_a_service_ends_in_time(tmp_path: Path) -> None:
    """The error names the socket and says what to do."""
    socket = tmp_path / "cni.sock"
    with (
        Client(str(socket)) as client,
        pytest.raises(ServiceUnavailable, match=str(socket)) as caught,
    ):
        client.wait_ready(0.2)
    assert "pycni serve" in caught.value.details


def test_a_call_without_a_service_says_so(tmp_path: Path) -> None:
    """It fails at once, as something to try again."""
    with Client(str(tmp_path / "cni.sock")) as client, pytest.raises(ServiceUnavailable) as caught:
        client.networks.List(networks_pb2.ListNetworksRequest())
    assert 11 == caught.value.wire_code


def test_the_status_of_a_failed_call_can_be_asked_for(tmp_path: Path) -> None:
    """It tells apart what has one CNI code."""
    with Client(str(tmp_path / "cni.sock")) as client, pytest.raises(ServiceUnavailable) as caught:
        client.networks.List(networks_pb2.ListNetworksRequest())
    assert grpc.StatusCode.UNAVAILABLE is status_of(caught.value)
    assert status_of(CniError("born here")) is None


def test_a_call_that_ran_out_of_time_says_what_becomes_of_it(tmp_path: Path) -> None:
    """gRPC says no more than that the deadline was exceeded."""
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "cni.sock"))
        silent.listen()
        with Client(str(tmp_path / "cni.sock")) as client, pytest.raises(CallFailed) as caught:
            client.networks.List(
                networks_pb2.ListNetworksRequest(), timeout=0.2, wait_for_ready=True
            )
    assert "DEADLINE_EXCEEDED: the call did not end within its timeout" == caught.value.msg
    assert "List shows" in caught.value.details


def test_a_refusal_shows_that_the_service_is_there(tmp_path: Path) -> None:
    """Who may not even ask for health has waited long enough all the same."""
    server = grpc.server(futures.ThreadPoolExecutor(1))  # which has no method at all
    server.add_insecure_port(f"unix:{tmp_path}/cni.sock")
    with Client(str(tmp_path / "cni.sock")) as client:
        threading.Timer(0.3, server.start).start()  # bound, and not yet serving
        client.wait_ready(10)
    server.stop(0).wait()
