# SPDX-License-Identifier: Apache-2.0
"""The service manager's protocols: readiness is told, listening sockets are taken over."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from pycni.service import systemd


def test_readiness_is_one_datagram(tmp_path: Path) -> None:
    """The manager's socket receives the state as text."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        assert systemd.notify("READY=1", environ={"NOTIFY_SOCKET": str(tmp_path / "notify")})
        assert b"READY=1" == manager.recv(64)


def test_an_abstract_address_begins_with_nul() -> None:
    """ "@name" in the environment is an abstract socket."""
    name = f"pycni-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"\0{name}")
        assert systemd.notify("STOPPING=1", environ={"NOTIFY_SOCKET": f"@{name}"})
        assert b"STOPPING=1" == manager.recv(64)


def test_without_a_manager_nothing_is_sent() -> None:
    """A service started by hand notifies nobody."""
    assert not systemd.notify("READY=1", environ={})


@pytest.fixture
def environ() -> dict[str, str]:
    """A manager's variables for this process."""
    return {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "2", "LISTEN_FDNAMES": "shim"}


def test_listeners_come_by_name(environ: dict[str, str]) -> None:
    """Descriptors count up from the first; one without a name is numbered."""
    pair = socket.socketpair()
    # Two neighbouring descriptors, as a manager hands them over.
    first = 200
    for offset, end in enumerate(pair):
        os.dup2(end.fileno(), first + offset)
        end.close()
    found = systemd.take_listeners(environ=environ, first=first)
    assert ["shim", "unnamed-1"] == list(found)
    assert [first, first + 1] == [end.fileno() for end in found.values()]
    assert [False, False] == [os.get_inheritable(end.fileno()) for end in found.values()]
    for end in found.values():
        end.close()
    assert {} == environ


def test_another_process_variables_are_not_ours(environ: dict[str, str]) -> None:
    """Variables inherited from a parent that was activated name descriptors we do not have."""
    environ["LISTEN_PID"] = "1"
    assert {} == systemd.take_listeners(environ=environ)
