# SPDX-License-Identifier: Apache-2.0
"""The Networks service: what a node can attach containers to."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import grpc

from pycni.errors import CniError
from pycni.model.deadline import Deadline
from pycni.model.names import NetworkName
from pycni.runtime.errors import NetworkNotFound
from pycni.runtime.networks import Network
from pycni.runtime.news import News
from pycni.runtime.node import Node
from pycni.runtime.readiness import MAX_AGE_S
from pycni.service import access, findings, views, watches, wire
from pycni.service.configs import Configs
from pycni.service.params import field
from pycni.service.pb.cni.v2alpha1 import networks_pb2, networks_pb2_grpc

MAX_PAGE = 500
READERS_AGE_S = 1.0  # who may only look does not have the plugins run at will


class NetworksService(networks_pb2_grpc.NetworksServicer):
    """Answers for the node's networks; see networks.proto for what each call promises."""

    def __init__(self, node: Node, configs: Configs, news: News) -> None:
        self._node = node
        self._configs = configs
        self._news = news

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
            broken=self._broken(),
        )

    def Get(
        self, request: networks_pb2.GetNetworkRequest, context: grpc.ServicerContext
    ) -> networks_pb2.Network:
        """One network."""
        with _about(request.name):
            return self._message(self._node.networks.get(request.name))

    def Put(
        self, request: networks_pb2.PutNetworkRequest, context: grpc.ServicerContext
    ) -> networks_pb2.PutNetworkResponse:
        """Create or replace one."""
        config = self._configs.parse(request.config, where="config")
        with _about(config.name):
            outcome = self._node.networks.put(
                config.json,
                etag=request.etag if request.HasField("etag") else None,
                validate_only=request.validate_only,
            )
        return networks_pb2.PutNetworkResponse(
            network=self._message(outcome.network),
            created=outcome.created,
            unchanged=outcome.unchanged,
            warnings=findings.warnings(outcome.network.config),
        )

    def Delete(
        self, request: networks_pb2.DeleteNetworkRequest, context: grpc.ServicerContext
    ) -> networks_pb2.DeleteNetworkResponse:
        """Delete one that was put."""
        with _about(request.name):
            with field("name"):
                NetworkName.parse(request.name)
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
        response = networks_pb2.ValidateNetworkResponse()
        try:
            ref = self._configs.parse_ref(request.network)
            network = self._node.networks.resolve(ref).config
            response.config.CopyFrom(self._configs.view(network))
            response.capabilities.extend(sorted(network.capabilities))
            self._configs.check(network)
            faults = self._node.runtime.find_faults(network)
        except NetworkNotFound as error:
            error.network, error.field = request.network.name, "network.name"
            raise
        except CniError as error:
            if request.network.WhichOneof("ref") is None:
                raise
            faults = [error]
        else:
            response.findings.extend(findings.warnings(network))
        errors = [findings.finding(networks_pb2.SEVERITY_ERROR, fault) for fault in faults]
        response.findings.extend(errors)
        response.findings.sort(key=lambda finding: finding.error.plugin_index)
        response.valid = not faults
        return response

    def Status(
        self, request: networks_pb2.NetworkStatusRequest, context: grpc.ServicerContext
    ) -> networks_pb2.NetworkStatusResponse:
        """Whether networks can serve Add; what the plugins say is data."""
        max_age_s = MAX_AGE_S
        if request.HasField("max_age"):
            max_age_s = request.max_age.seconds + request.max_age.nanos / 1e9
        if access.caller.get() is not access.Role.ADMIN:
            max_age_s = max(max_age_s, READERS_AGE_S)
        deadline = Deadline(min(self._node.limits.call_timeout_s, context.time_remaining()))
        if not context.add_callback(deadline.cancel):
            deadline.cancel()
        statuses = [
            views.network_status(
                self._node.readiness.get(network, max_age_s=max_age_s, deadline=deadline)
            )
            for network in self._asked_about(request)
        ]
        return networks_pb2.NetworkStatusResponse(networks=statuses, broken=self._broken())

    def Watch(
        self, request: networks_pb2.WatchNetworksRequest, context: grpc.ServicerContext
    ) -> Iterator[networks_pb2.NetworkEvent]:
        """Changes of definitions and of readiness."""
        with self._news.watched():
            yield from watches.watch_networks(self._node, request, context, self._message)

    def _asked_about(self, request: networks_pb2.NetworkStatusRequest) -> list[Network]:
        if not request.networks:
            return self._node.networks.list()
        found = []
        for index, ref in enumerate(request.networks):
            if ref.HasField("inline"):
                # Its plugins are run with it, and its endpoints connected to.
                with field(f"networks[{index}].inline"):
                    access.expect_admin("the status of a configuration of the caller's own")
            network = self._configs.parse_ref(ref, where=f"networks[{index}]")
            with _about(network if isinstance(network, str) else network.name):
                with field(f"networks[{index}]"):
                    found.append(self._node.networks.resolve(network))
        return found

    def _broken(self) -> list[networks_pb2.BrokenSource]:
        return [views.broken_source(fault) for fault in self._node.networks.faults()]

    def _message(self, network: Network) -> networks_pb2.Network:
        return networks_pb2.Network(
            name=network.name,
            config=self._configs.view(network.config),
            etag=network.etag,
            source=_source(network),
            source_path=wire.text(network.source),
            dropin_paths=map(wire.text, network.dropins),
            capabilities=sorted(network.config.capabilities),
            attachment_count=self._node.store.count_attachments(network.name),
            create_time=views.timestamp(network.created),
            update_time=views.timestamp(network.updated),
        )


def _source(network: Network) -> networks_pb2.NetworkSource.ValueType:
    if network.source:
        return networks_pb2.NETWORK_SOURCE_CONF_DIR
    return networks_pb2.NETWORK_SOURCE_STORE


@contextlib.contextmanager
def _about(name: str) -> Iterator[None]:
    """Write on a passing error which network it concerns."""
    try:
        yield
    except CniError as error:
        error.network = error.network or name
        raise
