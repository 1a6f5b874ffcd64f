# SPDX-License-Identifier: Apache-2.0
"""The shims' socket: bound or inherited, one call a connection, and how it stops."""

from __future__ import annotations

import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from pycni.errors import IOFailure
from pycni.exec import framing
from pycni.exec.endpoint import ShimEndpoint
from pycni.exec.framing import Call, Reply


def echo(call: Call, _netns_fd: int | None) -> Reply:
    """Answer with what was asked."""
    return Reply(0, call.stdin, call.plugin.encode())


def ask(path: Path) -> bytes:
    """One call over the socket; the raw reply frame."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(5)
        connection.connect(str(path))
        connection.sendall(framing.encode_call("bridge", {"CNI_COMMAND": "VERSION"}, b"{}"))
        return b"".join(iter(lambda: connection.recv(4096), b""))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the socket goes."""
    return tmp_path / "run" / "shim.sock"


@pytest.fixture
def endpoint(path: Path) -> Iterator[ShimEndpoint]:
    """A running endpoint."""
    endpoint = ShimEndpoint(path, echo)
    endpoint.start()
    yield endpoint
    endpoint.stop(1)


@pytest.mark.usefixtures("endpoint")
def test_a_call_is_answered(path: Path) -> None:
    """The reply is a frame with status, output and log."""
    assert framing.encode_reply(Reply(0, b"{}", b"bridge")) == ask(path)


@pytest.mark.usefixtures("endpoint")
def test_the_socket_is_its_owners_alone(path: Path) -> None:
    """Nobody but the service's user may connect."""
    assert 0o600 == stat.S_IMODE(path.stat().st_mode)


@pytest.mark.usefixtures("endpoint")
def test_a_live_socket_is_not_taken_over(path: Path) -> None:
    """A second service on the same path is refused."""
    with pytest.raises(IOFailure, match="another process listens"):
        ShimEndpoint(path, echo).start()


def test_a_dead_socket_is_replaced(path: Path) -> None:
    """What a killed service left behind is no obstacle."""
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    endpoint = ShimEndpoint(path, echo)
    endpoint.start()
    assert ask(path)
    endpoint.stop(1)


def test_stopping_removes_the_socket(path: Path, endpoint: ShimEndpoint) -> None:
    """A shim that comes later finds no socket and runs the plugin itself."""
    endpoint.stop(1)
    assert not path.exists()


def test_an_inherited_socket_outlives_the_endpoint(path: Path) -> None:
    """The service manager goes on listening: calls wait for the next service."""
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as manager:
        manager.bind(str(path))
        manager.listen()
        for _ in range(2):
            endpoint = ShimEndpoint(path, echo, inherited=manager.dup())
            endpoint.start()
            assert ask(path)
            endpoint.stop(1)
            assert path.exists()
