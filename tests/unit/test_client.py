# SPDX-License-Identifier: Apache-2.0
"""The client where no service is."""

from __future__ import annotations

from pathlib import Path

import pytest

from pycni.client import Client, ServiceUnavailable
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
