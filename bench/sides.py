# SPDX-License-Identifier: Apache-2.0
"""What is compared: the service over gRPC, the runtime in process, the Go plugins exec'd."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Protocol

import grpc
from msgspec import Raw

from bench.execs import IFNAME, Chain, port_mappings
from bench.world import Container, World
from pycni.kernel.side import Side
from pycni.model.config import NetworkConfigList
from pycni.runtime.attachments import AttachmentParams
from pycni.runtime.executors import Executors
from pycni.runtime.executors import InProcess as InProcessExecutor
from pycni.runtime.runtime import Runtime
from pycni.service.pb.cni.v2alpha1 import (
    attachments_pb2,
    attachments_pb2_grpc,
    config_pb2,
    networks_pb2,
    networks_pb2_grpc,
    params_pb2,
)

GO_PLUGINS = next(
    (d for d in map(Path, ("/usr/lib/cni", "/usr/libexec/cni", "/opt/cni/bin")) if d.is_dir()), None
)
START_TIMEOUT_S = 15.0


class Subject(Protocol):
    """One side of the comparison."""

    name: str

    def add(self, container: Container, number: int) -> None:
        """Attach."""

    def check(self, container: Container, number: int) -> None:
        """Check."""

    def delete(self, container: Container, number: int) -> None:
        """Detach."""

    def close(self) -> None:
        """Stop and remove everything."""


class Service:
    """`pycni serve` in a namespace of its own, called over its unix socket."""

    name = "service"

    def __init__(self) -> None:
        self.world = World(self.name)
        socket = self.world.state / "cni.sock"
        self.shim_socket = self.world.state / "shim.sock"
        command = [
            sys.executable, "-m", "pycni.cli.main", "serve", "--socket", str(socket),
            "--state-dir", str(self.world.state / "state"), "--conf-dir", "",
            "--shim-socket", str(self.shim_socket), "--cache-dir", str(self.world.state / "cache"),
        ]  # fmt: skip
        log = (self.world.state / "log").open("wb")
        self.process = self.world.host.run(lambda: subprocess.Popen(command, stderr=log))
        self._channel = grpc.insecure_channel(f"unix:{socket}")
        grpc.channel_ready_future(self._channel).result(START_TIMEOUT_S)
        self._attachments = attachments_pb2_grpc.AttachmentsStub(self._channel)
        networks = networks_pb2_grpc.NetworksStub(self._channel)
        config = config_pb2.NetworkConfig(json=json.dumps(self.world.edge()).encode())
        networks.Put(networks_pb2.PutNetworkRequest(config=config))

    def add(self, container: Container, number: int) -> None:
        self._attachments.Add(
            attachments_pb2.AddRequest(
                network=config_pb2.NetworkRef(name="edge"),
                container_id=container.id,
                netns=container.netns,
                ifname=IFNAME,
                capability_args=params_pb2.CapabilityArgs(
                    json={"portMappings": json.dumps(port_mappings(number)).encode()}
                ),
            )
        )

    def check(self, container: Container, number: int) -> None:
        self._attachments.Check(
            attachments_pb2.CheckRequest(network="edge", container_id=container.id, ifname=IFNAME)
        )

    def delete(self, container: Container, number: int) -> None:
        self._attachments.Del(
            attachments_pb2.DelRequest(
                network=config_pb2.NetworkRef(name="edge"),
                container_id=container.id,
                ifname=IFNAME,
            )
        )

    def resident_mb(self) -> float:
        """Resident memory of the service, in MB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) / 1024

    def close(self) -> None:
        self._channel.close()
        self.process.terminate()
        self.process.wait(START_TIMEOUT_S)
        self.world.close()


class InProcess:
    """The runtime as a library, no service and no store."""

    name = "in process"

    def __init__(self) -> None:
        self.world = World("inprocess")
        self._side = Side.open(self.world.path)
        self._runtime = Runtime(Executors(InProcessExecutor(self._side)))
        config = json.dumps(self.world.edge()).encode()
        self._network = NetworkConfigList.parse(config)
        self._results: dict[str, bytes] = {}

    def _params(self, container: Container, number: int) -> AttachmentParams:
        return AttachmentParams(
            container_id=container.id,
            ifname=IFNAME,
            netns=container.netns,
            capability_args={"portMappings": Raw(json.dumps(port_mappings(number)).encode())},
        )

    def add(self, container: Container, number: int) -> None:
        outcome = self._runtime.add(self._network, self._params(container, number))
        self._results[container.id] = outcome.result

    def check(self, container: Container, number: int) -> None:
        self._runtime.check(
            self._network,
            self._params(container, number),
            prev_result=self._results[container.id],
        )

    def delete(self, container: Container, number: int) -> None:
        self._runtime.delete(
            self._network,
            self._params(container, number),
            prev_result=self._results.pop(container.id),
        )

    def close(self) -> None:
        self._side.close()
        self.world.close()


class GoChain(Chain):
    """The same chain by the Go plugins."""

    NAME = "go plugins"

    # portmap 1.1.1 looks for its IPv4 rules among the IPv6 ones and fails every dual-stack CHECK
    # once IPv4 is done.
    check_defect = b"could not check ipv6 dnat"

    def __init__(self) -> None:
        if GO_PLUGINS is None:
            raise SystemExit("the Go plugins are missing: install containernetworking-plugins")
        self.directory = GO_PLUGINS
        self.world = World("go")
        super().__init__(self.NAME, self.world, GO_PLUGINS, self.world.edge())

    def close(self) -> None:
        self.world.close()


def milliseconds(action: Any, container: Container, number: int) -> float:
    """How long one verb takes."""
    start = time.perf_counter()
    action(container, number)
    return (time.perf_counter() - start) * 1000
