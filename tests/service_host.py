# SPDX-License-Identifier: Apache-2.0
"""A service as a process of its own on a fresh host, with its state below one directory."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from pycni.client import Client
from pycni.errors import CniError
from pycni.kernel.netns import Netns
from pycni.service.pb.cni.v2alpha1 import (
    attachments_pb2,
    config_pb2,
    networks_pb2,
    params_pb2,
)

EDGE = Path(__file__).parents[1] / "deploy/networks/edge.json"
START_S = 20
STOP_S = 40
WAIT_S = 15.0


class Service:
    """`pycni serve` on `host`, and a client of it."""

    def __init__(self, host: Netns, directory: Path, *options: str) -> None:
        self.host = host
        self.directory = directory
        self.socket = directory / "cni.sock"
        self.leases = directory / "leases"
        self.conf_dir = directory / "net.d"
        self.types_dir = directory / "types"
        self.plugin_path = directory / "bin"
        self.log = directory / "log"
        self.types_dir.mkdir(exist_ok=True)
        self.plugin_path.mkdir(exist_ok=True)
        command = [
            sys.executable, "-m", "pycni.cli.main", "--socket", str(self.socket), "serve",
            "--state-dir", str(directory / "state"), "--shim-socket", "", "--rate", "0",
            "--conf-dir", str(self.conf_dir), "--cache-dir", str(directory / "cache"),
            "--types-dir", str(self.types_dir), "--plugin-path", str(self.plugin_path), *options,
        ]  # fmt: skip
        with self.log.open("ab") as log:
            self.process = host.run(lambda: subprocess.Popen(command, stderr=log))
        self.client = Client(str(self.socket))
        self.client.wait_ready(START_S)

    def stop(self) -> None:
        """End the client, then the service, which has had no internal error."""
        self.client.close()
        self.process.terminate()
        assert 0 == self.process.wait(STOP_S)
        assert "internal error" not in self.log.read_text()

    # -- networks ----------------------------------------------------------------------------------

    def config(self, **bridge: Any) -> dict[str, Any]:
        """`edge` with its state below the test's directory."""
        config: dict[str, Any] = json.loads(EDGE.read_text())
        config["plugins"][0]["ipam"]["dataDir"] = str(self.leases)
        config["plugins"][1]["dataDir"] = str(self.directory / "tuning")
        config["plugins"][0] |= bridge
        return config

    def put(self, config: dict[str, Any], **more: Any) -> networks_pb2.PutNetworkResponse:
        """Put a network."""
        message = config_pb2.NetworkConfig(json=json.dumps(config).encode())
        return self.client.networks.Put(networks_pb2.PutNetworkRequest(config=message, **more))

    def names(self) -> list[str]:
        """The networks there are."""
        networks = self.client.networks.List(networks_pb2.ListNetworksRequest()).networks
        return [network.name for network in networks]

    def remove(self, name: str) -> None:
        """Delete a network."""
        self.client.networks.Delete(networks_pb2.DeleteNetworkRequest(name=name))

    # -- attachments -------------------------------------------------------------------------------

    def add(self, container_id: str, netns: str, **more: Any) -> attachments_pb2.AddResponse:
        """Add to `edge`, or to another `network`."""
        timeout = more.pop("timeout", 30)
        ports = more.pop("ports", None)
        if ports is not None:
            document = {"portMappings": json.dumps(ports).encode()}
            more["capability_args"] = params_pb2.CapabilityArgs(json=document)
        request = attachments_pb2.AddRequest(
            network=config_pb2.NetworkRef(name=more.pop("network", "edge")),
            container_id=container_id,
            netns=netns,
            ifname=more.pop("ifname", "eth0"),
            **more,
        )
        return self.client.attachments.Add(request, timeout=timeout)

    def delete(
        self, container_id: str, *, network: str = "edge", ifname: str = "eth0"
    ) -> attachments_pb2.DelResponse:
        """Delete from `edge`, or from another network."""
        return self.client.attachments.Del(
            attachments_pb2.DelRequest(
                network=config_pb2.NetworkRef(name=network),
                container_id=container_id,
                ifname=ifname,
            ),
            timeout=30,
        )

    def attachments(self) -> list[attachments_pb2.Attachment]:
        """Every attachment."""
        request = attachments_pb2.ListAttachmentsRequest()
        return list(self.client.attachments.List(request).attachments)

    def held(self) -> list[str]:
        """The addresses that are leased."""
        names = [entry.name for entry in self.leases.glob("*/*")]
        return sorted(n for n in names if n != "lock" and not n.startswith("last_"))

    def install(self, name: str, script: str) -> None:
        """Put an executable plugin into the plugin path."""
        file = self.plugin_path / name
        file.write_text(script)
        file.chmod(0o755)


@contextlib.contextmanager
def serving(host: Netns, directory: Path, *options: str) -> Iterator[Service]:
    """A service for the duration of the block; the switches of forwarding are set back."""
    service = Service(host, directory, *options)
    try:
        yield service
        service.stop()
    finally:
        if service.process.poll() is None:
            service.process.kill()
            service.process.wait()
        host.run(_stop_forwarding)


def _stop_forwarding() -> None:
    for name in ("net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"):
        subprocess.run(("sysctl", "-qw", f"{name}=0"), check=True)


def eventually(true: Callable[[], Any], what: str = "it") -> Any:
    """The first true value; fails after a while."""
    end = time.monotonic() + WAIT_S
    while not (value := true()):
        assert time.monotonic() < end, f"{what} did not come true"
        time.sleep(0.02)
    return value


def status_of(caught: pytest.ExceptionInfo[CniError]) -> grpc.StatusCode:
    """The gRPC status under which an error came."""
    call: Any = caught.value.__cause__
    status: grpc.StatusCode = call.code()
    return status


def network(*plugins: dict[str, Any], name: str = "net") -> dict[str, Any]:
    """A network's configuration."""
    return {"cniVersion": "1.1.0", "name": name, "plugins": list(plugins)}


LOOPBACK = network({"type": "loopback"}, name="lo")
