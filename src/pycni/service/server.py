# SPDX-License-Identifier: Apache-2.0
"""The gRPC server of a node: its services, health and reflection, on listeners that differ in
whom they let do what."""

from __future__ import annotations

from concurrent import futures
from pathlib import Path

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from pycni.errors import IOFailure
from pycni.runtime.link_changes import LinkChanges
from pycni.runtime.news import News
from pycni.runtime.node import Node
from pycni.service import sockets
from pycni.service.access import DEFAULT_RATES, Policy, Rates, Role, Roles
from pycni.service.attachments import AttachmentsService
from pycni.service.configs import Configs
from pycni.service.daemons import Daemons
from pycni.service.interceptor import MAX_MESSAGE_BYTES, Boundary, Gate
from pycni.service.networks import NetworksService
from pycni.service.node import NodeService
from pycni.service.operations import Operations
from pycni.service.pb.cni.v2alpha1 import (
    attachments_pb2,
    attachments_pb2_grpc,
    networks_pb2,
    networks_pb2_grpc,
    node_pb2,
    node_pb2_grpc,
    plugin_pb2,
    registry_pb2,
    registry_pb2_grpc,
)
from pycni.service.registry import DelegateService, RegistryService
from pycni.service.tls import TlsFiles
from pycni.service.types import Types

WORKERS = 64
READ_ONLY_WORKERS = 16  # of their own: readers never keep administrators waiting
READ_ONLY_MESSAGE_BYTES = 64 * 1024  # names and filters; answers may be larger
READINESS = "cni.v2alpha1.Attachments"  # the name to ask health for: can it serve Add?
STREAM_GRACE_S = 0.5

OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # One process owns the socket: sharing a TCP port would split calls between two nodes.
    ("grpc.so_reuseport", 0),
)
READ_ONLY_OPTIONS = (("grpc.max_receive_message_length", READ_ONLY_MESSAGE_BYTES), *OPTIONS[1:])


class Server:
    """Serves one node; liveness is "" and readiness `READINESS` in grpc.health.v1."""

    def __init__(
        self,
        node: Node,
        *,
        daemons: Daemons | None = None,
        types: Types | None = None,
        conf_dir: str = "",
        workers: int = WORKERS,
        rates: Rates = DEFAULT_RATES,
    ) -> None:
        """`daemons` are those the node was opened with; without them none can register usefully.

        `types` are the message types that are known already, `conf_dir` is what to tell of it.
        """
        self._daemons = daemons or Daemons(Operations())
        self._workers = workers
        self._rates = rates
        self._gate = Gate()
        self._health = health.HealthServicer()
        types = types or Types()
        configs = Configs(types)
        self._news = News(node)
        self._links = LinkChanges(node)
        self._networks = NetworksService(node, configs, self._news)
        self._attachments = AttachmentsService(node, configs, self._links)
        self._node = NodeService(node, types, self._daemons, conf_dir=conf_dir)
        self._registry = RegistryService(node, self._daemons, types)
        self._delegate = DelegateService(node, self._daemons)
        self._servers: list[grpc.Server] = []

    def listen(self, socket: Path) -> None:
        """Bind the administrators' unix socket, its owner's only; raise IOFailure (5) if taken."""
        server = self._add_server(Policy(Role.ADMIN, rates=self._rates), self._workers, OPTIONS)
        sockets.bind(server, socket)

    def listen_read_only(self, socket: Path, *, group: str = "") -> None:
        """Bind a socket for those who may look and not touch: the owner, or also a group."""
        policy = Policy(Role.READ_ONLY, rates=self._rates)
        server = self._add_server(policy, READ_ONLY_WORKERS, READ_ONLY_OPTIONS)
        mode = sockets.OWNER_AND_GROUP if group else sockets.OWNER_ONLY
        sockets.bind(server, socket, mode=mode, group=group)

    def listen_tls(self, address: str, files: TlsFiles, *, roles: Roles | None = None) -> int:
        """Bind host:port for clients with a certificate; return the port, which 0 leaves open."""
        credentials = files.server_credentials()
        policy = Policy(None, roles=roles, rates=self._rates)
        server = self._add_server(policy, self._workers, OPTIONS)
        try:
            port = server.add_secure_port(address, credentials)
        except RuntimeError:
            port = 0
        if not port:  # gRPC has written the reason to stderr and does not tell us
            raise IOFailure(
                f"cannot listen on {address}",
                hint="give HOST:PORT, an address of this machine and a port nobody listens on",
            )
        return port

    def start(self, *, ready: bool = True) -> None:
        """Serve, and say that the node is live; also that it is `ready`, or leave that for now."""
        self._news.start()
        self._health.set("", health_pb2.HealthCheckResponse.SERVING)
        # From the first moment: a probe must not take "not yet" for "no such service".
        self._health.set(READINESS, health_pb2.HealthCheckResponse.NOT_SERVING)
        for server in self._servers:
            server.start()
        if ready:
            self.set_ready()

    def set_ready(self) -> None:
        """Say that the node can serve Add."""
        self._health.set(READINESS, health_pb2.HealthCheckResponse.SERVING)

    def retire(self) -> None:
        """Flip readiness and begin nothing new, but for what deletes attachments."""
        self._health.set(READINESS, health_pb2.HealthCheckResponse.NOT_SERVING)
        self._gate.close()

    def stop(self, grace_s: float) -> None:
        """Retire, and let what runs end for `grace_s`.

        Daemons stay registered and may delegate until then: what runs may need them.
        """
        self.retire()
        self._gate.wait(grace_s)
        self._daemons.close()
        self._news.stop()
        self._links.stop()
        for stopped in [server.stop(STREAM_GRACE_S) for server in self._servers]:
            stopped.wait()

    def _add_server(
        self, policy: Policy, workers: int, options: tuple[tuple[str, int], ...]
    ) -> grpc.Server:
        server = grpc.server(
            futures.ThreadPoolExecutor(workers, thread_name_prefix="grpc"),
            interceptors=[Boundary(policy, self._gate)],
            options=options,
        )
        networks_pb2_grpc.add_NetworksServicer_to_server(self._networks, server)
        attachments_pb2_grpc.add_AttachmentsServicer_to_server(self._attachments, server)
        node_pb2_grpc.add_NodeServicer_to_server(self._node, server)
        registry_pb2_grpc.add_RegistryServicer_to_server(self._registry, server)
        registry_pb2_grpc.add_DelegateServicer_to_server(self._delegate, server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = [
            service.full_name
            for module in (networks_pb2, attachments_pb2, node_pb2, registry_pb2, plugin_pb2)
            for service in module.DESCRIPTOR.services_by_name.values()
            if module is not plugin_pb2  # implemented by plugin daemons, not by this service
        ]
        names += [health.SERVICE_NAME, reflection.SERVICE_NAME]
        reflection.enable_server_reflection(names, server)
        self._servers.append(server)
        return server
