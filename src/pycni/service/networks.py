# SPDX-License-Identifier: Apache-2.0
"""The Networks service: what a node can attach containers to."""

from __future__ import annotations

import grpc

from pycni.errors import CniError, InvalidEnvironment
from pycni.model.config import NetworkConfigList
from pycni.runtime.errors import NetworkNotFound
from pycni.runtime.networks import Network
from pycni.runtime.node import Node
from pycni.service import configs, views, wire
from pycni.service.pb.cni.v2alpha1 import networks_pb2, networks_pb2_grpc

MAX_PAGE = 500


class NetworksService(networks_pb2_grpc.NetworksServicer):
    """Answers for the node's networks; see networks.proto for what each call promises."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def List(
        self, request: networks_pb2.ListNetworksRequest, context: grpc.ServicerContext
    ) -> networks_pb2.ListNetworksResponse:
        """Networks by name, a page at a time."""
        networks = [
            network
            for network in self._node.networks.list()
            if network.name > request.page_token
            and request.source in (networks_pb2.NETWORK_SOURCE_UNSPECIFIED, _source(network))
        ]
        size = min(request.page_size or MAX_PAGE, MAX_PAGE)
        page = networks[:size]
        return networks_pb2.ListNetworksResponse(
            networks=[self._message(network) for network in page],
            next_page_token=page[-1].name if len(networks) > size else "",
        )

    def Get(
        self, request: networks_pb2.GetNetworkRequest, context: grpc.ServicerContext
    ) -> networks_pb2.Network:
        """One network."""
        return self._message(self._node.networks.get(request.name))

    def Put(
        self, request: networks_pb2.PutNetworkRequest, context: grpc.ServicerContext
    ) -> networks_pb2.PutNetworkResponse:
        """Create or replace one."""
        config = configs.parse_config(request.config)
        outcome = self._node.networks.put(
            config.json,
            etag=request.etag if request.HasField("etag") else None,
            validate_only=request.validate_only,
        )
        return networks_pb2.PutNetworkResponse(
            network=self._message(outcome.network),
            created=outcome.created,
            unchanged=outcome.unchanged,
        )

    def Delete(
        self, request: networks_pb2.DeleteNetworkRequest, context: grpc.ServicerContext
    ) -> networks_pb2.DeleteNetworkResponse:
        """Delete one that was put."""
        remaining = self._node.networks.delete(
            request.name,
            etag=request.etag or None,
            force=request.force,
            validate_only=request.validate_only,
        )
        return networks_pb2.DeleteNetworkResponse(
            remaining=[views.key_message(key) for key in remaining]
        )

    def Validate(
        self, request: networks_pb2.ValidateNetworkRequest, context: grpc.ServicerContext
    ) -> networks_pb2.ValidateNetworkResponse:
        """Say what is wrong with a definition; faults are data."""
        if request.network.WhichOneof("ref") is None:
            raise InvalidEnvironment("network: neither name nor inline is set")
        response = networks_pb2.ValidateNetworkResponse()
        try:
            ref = configs.parse_ref(request.network)
            network = self._node.networks.resolve(ref).config
            response.config.CopyFrom(views.config_message(network))
            response.capabilities.extend(sorted(network.capabilities))
            faults = self._node.runtime.find_faults(network)
        except NetworkNotFound:
            raise
        except CniError as error:
            faults = [error]
        for fault in faults:
            response.findings.add(
                severity=networks_pb2.SEVERITY_ERROR,
                path=_path(fault),
                error=wire.error_message(fault),
            )
        response.valid = not faults
        return response

    def _message(self, network: Network) -> networks_pb2.Network:
        config: NetworkConfigList = network.config
        return networks_pb2.Network(
            name=network.name,
            config=views.config_message(config),
            etag=network.etag,
            source=_source(network),
            source_path=network.source,
            capabilities=sorted(config.capabilities),
            attachment_count=self._node.store.count_attachments(network.name),
            create_time=views.timestamp(network.created),
            update_time=views.timestamp(network.updated),
        )


def _source(network: Network) -> networks_pb2.NetworkSource.ValueType:
    if network.source:
        return networks_pb2.NETWORK_SOURCE_CONF_DIR
    return networks_pb2.NETWORK_SOURCE_STORE


def _path(error: CniError) -> str:
    """The JSON path a configuration fault begins with, or nothing."""
    path, colon, _ = error.msg.partition(": ")
    return path if colon and " " not in path else ""
