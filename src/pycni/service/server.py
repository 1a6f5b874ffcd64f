# SPDX-License-Identifier: Apache-2.0
"""The gRPC server of a node: its services, health and reflection on a unix socket."""

from __future__ import annotations

import os
from concurrent import futures
from pathlib import Path

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from pycni.errors import IOFailure
from pycni.exec.endpoint import claim_socket
from pycni.runtime.node import Node
from pycni.service.attachments import AttachmentsService
from pycni.service.interceptor import MAX_MESSAGE_BYTES, Boundary
from pycni.service.networks import NetworksService
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
from pycni.service.tls import TlsFiles

WORKERS = 64
READINESS = "cni.v2alpha1.Attachments"  # the name to ask health for: can it serve Add?

OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # One process owns the socket: sharing a TCP port would split calls between two nodes.
    ("grpc.so_reuseport", 0),
)


class Server:
    """Serves one node; liveness is "" and readiness `READINESS` in grpc.health.v1."""

    def __init__(self, node: Node, *, workers: int = WORKERS) -> None:
        self._server = grpc.server(
            futures.ThreadPoolExecutor(workers, thread_name_prefix="grpc"),
            interceptors=[Boundary()],
            options=OPTIONS,
        )
        self._health = health.HealthServicer()
        self._add_services(node)

    def _add_services(self, node: Node) -> None:
        networks_pb2_grpc.add_NetworksServicer_to_server(NetworksService(node), self._server)
        attachments_pb2_grpc.add_AttachmentsServicer_to_server(
            AttachmentsService(node), self._server
        )
        node_pb2_grpc.add_NodeServicer_to_server(node_pb2_grpc.NodeServicer(), self._server)
        registry_pb2_grpc.add_RegistryServicer_to_server(
            registry_pb2_grpc.RegistryServicer(), self._server
        )
        registry_pb2_grpc.add_DelegateServicer_to_server(
            registry_pb2_grpc.DelegateServicer(), self._server
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = [
            service.full_name
            for module in (networks_pb2, attachments_pb2, node_pb2, registry_pb2, plugin_pb2)
            for service in module.DESCRIPTOR.services_by_name.values()
            if module is not plugin_pb2  # implemented by plugin daemons, not by this service
        ]
        names += [health.SERVICE_NAME, reflection.SERVICE_NAME]
        reflection.enable_server_reflection(names, self._server)

    def listen(self, socket: Path) -> None:
        """Bind the unix socket, readable by its owner only; raise IOFailure (5) if it is taken."""
        claim_socket(socket)
        mask = os.umask(0o177)
        try:
            self._server.add_insecure_port(f"unix:{socket}")
        finally:
            os.umask(mask)

    def listen_tls(self, address: str, files: TlsFiles) -> int:
        """Bind host:port for clients with a certificate; return the port, which 0 leaves open."""
        credentials = files.server_credentials()
        try:
            port = self._server.add_secure_port(address, credentials)
        except RuntimeError as exc:
            raise IOFailure(f"cannot listen on {address}: {exc}") from exc
        if not port:
            raise IOFailure(f"cannot listen on {address}")
        return port

    def start(self) -> None:
        """Serve, and say that the node is live and ready."""
        self._server.start()
        self._health.set("", health_pb2.HealthCheckResponse.SERVING)
        self._health.set(READINESS, health_pb2.HealthCheckResponse.SERVING)

    def stop(self, grace_s: float) -> None:
        """Flip readiness, refuse new calls and let running ones end for `grace_s`."""
        self._health.set(READINESS, health_pb2.HealthCheckResponse.NOT_SERVING)
        self._server.stop(grace_s).wait()
