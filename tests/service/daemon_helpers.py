# SPDX-License-Identifier: Apache-2.0
"""A service, its plugin daemons and its clients, each a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pycni.client import Client
from pycni.errors import CniError
from pycni.service.pb.cni.v2alpha1 import attachments_pb2, config_pb2, networks_pb2, node_pb2

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs/examples"
SCRIPTED = Path(__file__).parent / "scripted_plugin.py"
WAIT_S = 20.0

Config = dict[str, Any]
Add = attachments_pb2.AddRequest
Spawn = Callable[[list[str], dict[str, str]], "subprocess.Popen[bytes]"]


def spawn_here(command: list[str], environ: dict[str, str]) -> subprocess.Popen[bytes]:
    """A process in the namespaces of the test run, which are private."""
    return subprocess.Popen(command, env=os.environ | environ, stderr=subprocess.PIPE)


def eventually(true: Callable[[], Any], what: str = "it") -> Any:
    """The first true value; fails after a while."""
    end = time.monotonic() + WAIT_S
    while not (value := true()):
        assert time.monotonic() < end, f"{what} did not come true"
        time.sleep(0.02)
    return value


class World:
    """A service below `directory`, and what was started with it."""

    def __init__(self, directory: Path, spawn: Spawn = spawn_here) -> None:
        self.directory = directory
        self.spawn = spawn
        self.socket = directory / "cni.sock"
        self.log = directory / "log"
        self.plugin_path = directory / "bin"
        self.plugin_path.mkdir()
        self.processes: list[subprocess.Popen[bytes]] = []
        self.stack = contextlib.ExitStack()

    def serve(self, *options: str, **environ: str) -> subprocess.Popen[bytes]:
        """Start the service and wait until it answers."""
        command = [
            sys.executable, "-m", "pycni.cli.main", "--socket", str(self.socket), "serve",
            "--state-dir", str(self.directory / "state"), "--shim-socket", "",
            "--conf-dir", "", "--cache-dir", "", "--plugin-path", str(self.plugin_path), *options,
        ]  # fmt: skip
        process = self.start(command, environ)
        with Client(str(self.socket)) as client:
            eventually(lambda: answers(client, process), "the service")
        return process

    def daemon(
        self, script: Path, *options: str, socket: str = "plugin.sock"
    ) -> subprocess.Popen[bytes]:
        """Start a plugin daemon."""
        command = [
            sys.executable, str(script), "--serve", str(self.directory / socket),
            "--service", str(self.socket), *options,
        ]  # fmt: skip
        return self.start(command, {})

    def start(self, command: list[str], environ: dict[str, str]) -> subprocess.Popen[bytes]:
        """Start any process; it ends with the test."""
        process = self.spawn(command, environ)
        self.processes.append(process)
        return process

    def install(self, plugin_type: str, script: Path) -> None:
        """Put a plugin's script into the plugin path under its type."""
        file = self.plugin_path / plugin_type
        file.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{script}" "$@"\n')
        file.chmod(0o755)

    def client(self) -> Client:
        """A client of the administrators' socket."""
        client: Client = self.stack.enter_context(Client(str(self.socket)))
        return client

    def lines(self) -> list[str]:
        """What the scripted plugins wrote down."""
        return self.log.read_text().splitlines() if self.log.exists() else []

    def scripted(self, plugin_type: str = "scripted", **script: Any) -> Config:
        """A plugin object of the scripted plugin."""
        return {"type": plugin_type, "log": str(self.log), "script": script}

    def close(self) -> None:
        """End what still runs, last started first."""
        self.stack.close()
        for process in reversed(self.processes):
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(WAIT_S)
                except subprocess.TimeoutExpired:
                    process.kill()
            process.communicate()


def answers(client: Client, process: subprocess.Popen[bytes]) -> bool:
    """Whether the service does; fails if it has ended."""
    if process.poll() is not None:
        pytest.fail(process.communicate()[1].decode())
    try:
        client.networks.List(networks_pb2.ListNetworksRequest(), timeout=1)
    except CniError:
        return False
    return True


def network(*plugins: Config, name: str = "net") -> Config:
    """A network's configuration."""
    return {"cniVersion": "1.1.0", "name": name, "plugins": list(plugins)}


def add_request(config: Config, netns: str, container_id: str = "c1", ifname: str = "eth0") -> Add:
    """Attach to a network given inline."""
    request = attachments_pb2.AddRequest(container_id=container_id, netns=netns, ifname=ifname)
    request.network.inline.json = json.dumps(config).encode()
    return request


def del_request(
    name: str = "net", container_id: str = "c1", ifname: str = "eth0"
) -> attachments_pb2.DelRequest:
    """Detach from a network whose attachment is known."""
    return attachments_pb2.DelRequest(
        network=config_pb2.NetworkRef(name=name), container_id=container_id, ifname=ifname
    )


def add(client: Client, config: Config, netns: str, timeout: float = 30, **more: str) -> Any:
    """Attach; the response."""
    return client.attachments.Add(add_request(config, netns, **more), timeout=timeout)


def await_plugin(client: Client, plugin_type: str) -> None:
    """Wait until a network of that plugin alone is accepted, so somebody runs it."""

    def known() -> bool:
        config = network({"type": plugin_type}, name="probe")
        request = networks_pb2.PutNetworkRequest(validate_only=True)
        request.config.json = json.dumps(config).encode()
        try:
            client.networks.Put(request, timeout=5)
        except CniError:
            return False
        return True

    eventually(known, f"plugin {plugin_type}")


def kill(process: subprocess.Popen[bytes]) -> None:
    """End it as a crash would."""
    process.send_signal(signal.SIGKILL)
    process.wait()


def await_absence(client: Client, plugin_type: str) -> None:
    """Wait until the service knows that the type's daemon is gone: an ADD before that may fail."""
    request = node_pb2.ListPluginsRequest(type=plugin_type)

    def absent() -> bool:
        return client.node.ListPlugins(request).plugins[0].HasField("error")

    eventually(absent, f"the end of the daemon of {plugin_type}")


@contextlib.contextmanager
def world(directory: Path, spawn: Spawn = spawn_here) -> Iterator[World]:
    """A world, taken apart afterwards."""
    made = World(directory, spawn)
    try:
        yield made
    finally:
        made.close()
