# SPDX-License-Identifier: Apache-2.0
"""`pycni serve` under a service manager: it says when it is ready and takes over its socket."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pycni.exec import framing

pytestmark = pytest.mark.root


def call(path: Path) -> bytes:
    """A VERSION call by a shim; the raw reply."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(20)
        connection.connect(str(path))
        frame = framing.encode_call("loopback", {"CNI_COMMAND": "VERSION"}, b"{}")
        connection.sendall(frame)
        return b"".join(iter(lambda: connection.recv(4096), b""))


def test_the_service_is_activated_by_its_socket(tmp_path: Path) -> None:
    """A call that came before the service is answered, and the socket stays when it stops."""
    shim = tmp_path / "shim.sock"
    with (
        socket.socket(socket.AF_UNIX) as listener,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager,
    ):
        listener.bind(str(shim))
        listener.listen()
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(20)
        # As systemd does it: the socket becomes descriptor 3, LISTEN_PID the service's own.
        options = [f"--state-dir={tmp_path}/state", f"--shim-socket={shim}", "--conf-dir="]
        script = 'exec 3<&"$0"; LISTEN_PID=$$ exec "$@"'
        socket_option = f"--socket={tmp_path}/cni.sock"
        serve = [sys.executable, "-m", "pycni.cli.main", socket_option, "serve"]
        environ = {
            "LISTEN_FDS": "1",
            "LISTEN_FDNAMES": "shim",
            "NOTIFY_SOCKET": str(tmp_path / "notify"),
        }
        service = subprocess.Popen(
            ["bash", "-c", script, str(listener.fileno()), *serve, *options, "--cache-dir="],
            pass_fds=[listener.fileno()],
            env=os.environ | environ,
        )
        try:
            assert b'"supportedVersions"' in call(shim)
            assert b"READY=1" == manager.recv(64)
        finally:
            service.send_signal(signal.SIGTERM)
        assert b"STOPPING=1" == manager.recv(64)
        assert 0 == service.wait(20)
        assert shim.is_socket()
        with socket.socket(socket.AF_UNIX) as later:
            later.connect(str(shim))
