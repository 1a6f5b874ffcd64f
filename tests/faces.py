# SPDX-License-Identifier: Apache-2.0
"""The ways a plugin can be executed, behind one signature, for tables of cases that run on each."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from pycni.exec import framing, standalone
from pycni.exec.framing import Call, Reply

TIMEOUT_S = 60

# Without a service: this process, an executable. With one: its socket, and through either shim.
FACES = ("in-process", "alone", "socket", "compiled", "python")


class Done(NamedTuple):
    """What an execution came to."""

    status: int
    stdout: bytes
    stderr: bytes

    @property
    def document(self) -> Any:
        """The JSON on stdout."""
        return json.loads(self.stdout)

    @property
    def error(self) -> tuple[int, str]:
        """Code and message of the error on stdout."""
        assert self.status == 1, self
        return self.document["code"], self.document["msg"]


Execute = Callable[[str, dict[str, str], bytes], Done]


class Face:
    """One way to execute plugins: `face("static", "ADD", config, CNI_NETNS=…)`.

    `path` is CNI_PATH, `directories` what the plugins keep state in.
    """

    def __init__(self, name: str, execute: Execute, path: Path) -> None:
        self.name = name
        self.path = path
        self._execute = execute

    def __call__(
        self, plugin: str, command: str | None, config: Any = b"", **env: str | None
    ) -> Done:
        """Execute a plugin; `None` for a variable leaves it out, a config is JSON unless bytes."""
        variables = {
            "CNI_COMMAND": command,
            "CNI_CONTAINERID": "c1",
            "CNI_NETNS": "/run/netns/none",
            "CNI_IFNAME": "eth0",
            "CNI_PATH": str(self.path),
            **env,
        }
        stdin = config if isinstance(config, bytes) else json.dumps(config).encode()
        given = {name: value for name, value in variables.items() if value is not None}
        return self._execute(plugin, given, stdin)


def in_process(plugin: str, env: dict[str, str], stdin: bytes) -> Done:
    """Run the plugin in this process, as an executable does without a service."""
    return Done(*standalone.run(Call(plugin, env, stdin)))


def over_socket(path: Path) -> Execute:
    """Send the frames a shim would send."""

    def execute(plugin: str, env: dict[str, str], stdin: bytes) -> Done:
        return Done(*ask(path, framing.encode_call(plugin, env, stdin), env.get("CNI_NETNS", "")))

    return execute


def ask(path: Path, frame: bytes, netns: str = "") -> Reply:
    """Send one frame with the descriptor of `netns`, and read the reply."""
    fds = []
    if netns and os.path.exists(netns):
        fds.append(os.open(netns, os.O_RDONLY | os.O_NONBLOCK))
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(TIMEOUT_S)
            connection.connect(str(path))
            socket.send_fds(connection, [frame[:4]], fds)
            connection.sendall(frame[4:])
            reply = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    finally:
        for fd in fds:
            os.close(fd)
    return framing.decode_reply(reply[framing.HEADER_SIZE :])


def executables(directory: Path, shim_socket: Path | None, **more: str) -> Execute:
    """Start the executables of a directory, as every runtime does."""

    def execute(plugin: str, env: dict[str, str], stdin: bytes) -> Done:
        variables = {"PATH": os.environ["PATH"], **more, **env}
        for name in ("PYCNI_STATE_DIR", "PYCNI_CONF_DIR", "PYCNI_CACHE_DIR"):
            if name in os.environ:
                variables[name] = os.environ[name]
        if shim_socket is not None:
            variables["PYCNI_SHIM_SOCKET"] = str(shim_socket)
        done = subprocess.run(
            [str(directory / plugin)],
            input=stdin,
            env=variables,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    return execute
