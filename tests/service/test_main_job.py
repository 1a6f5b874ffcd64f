# SPDX-License-Identifier: Apache-2.0
"""The main job over gRPC: a service of its own process on a fresh host, and what users do wrong."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pool, message_factory
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from pycni.errors import CniError, DecodeFailure, InvalidConfig, InvalidEnvironment, InvalidNetns
from pycni.kernel.netns import Netns, remove_named
from pycni.service import wire
from pycni.service.pb.cni.v2alpha1 import (
    attachments_pb2,
    config_pb2,
    networks_pb2,
    params_pb2,
)
from pycni.testing.world import snapshot
from tests.service_host import Service, status_of

pytestmark = [pytest.mark.root, pytest.mark.nft]

MB = 1024 * 1024


@pytest.fixture
def node(service: Service) -> Service:
    """A running service; forwarding was on before it, as on any node that routes."""
    return service


def attachments(node: Service) -> list[attachments_pb2.Attachment]:
    return node.attachments()


def test_the_life_of_an_attachment(node: Service, make_netns: Callable[..., Netns]) -> None:
    """Add, replay, Check, List, Get, Del, Del again; then the network goes and all is as before."""
    node.put(node.config())
    container = make_netns("c1")
    added = node.add("c1", container.path, ports=[{"hostPort": 8080, "containerPort": 80}])
    assert ["10.2.0.2/16", "fd00:10:2::2/64"] == [ip.address for ip in added.attachment.result.ips]
    assert ["bridge", "tuning", "portmap"] == [step.plugin_type for step in added.steps]
    again = node.add("c1", container.path, ports=[{"hostPort": 8080, "containerPort": 80}])
    assert again.replayed
    assert added.attachment.result.json == again.attachment.result.json
    key = {"network": "edge", "container_id": "c1", "ifname": "eth0"}
    node.client.attachments.Check(attachments_pb2.CheckRequest(**key))
    [listed] = attachments(node)
    assert attachments_pb2.ATTACHMENT_STATE_READY == listed.state
    got = node.client.attachments.Get(attachments_pb2.GetAttachmentRequest(**key))
    assert "edge" == got.config.name
    assert (node.directory / "cache/results/edge-c1-eth0").exists()
    assert node.delete("c1").existed
    assert not node.delete("c1").existed
    assert [] == node.held() + attachments(node)
    assert [] == list((node.directory / "cache/results").iterdir())
    node.client.networks.Delete(networks_pb2.DeleteNetworkRequest(name="edge"))


def test_other_parameters_are_a_conflict(node: Service, make_netns: Callable[..., Netns]) -> None:
    """A second Add that asks for something else is ALREADY_EXISTS and changes nothing."""
    node.put(node.config())
    container = make_netns("c1")
    node.add("c1", container.path)
    with pytest.raises(CniError, match="exists with other parameters") as caught:
        node.add("c1", container.path, ports=[{"hostPort": 8080, "containerPort": 80}])
    failed: Any = caught.value.__cause__  # an RpcError that is a grpc.Call too
    assert grpc.StatusCode.ALREADY_EXISTS is failed.code()
    node.delete("c1")
    node.client.networks.Delete(networks_pb2.DeleteNetworkRequest(name="edge"))


def test_a_network_in_use_is_not_deleted(node: Service, make_netns: Callable[..., Netns]) -> None:
    """The refusal names the attachments; afterwards the network can go."""
    node.put(node.config())
    node.add("c1", make_netns("c1").path)
    with pytest.raises(CniError, match="has 1 attachments") as caught:
        node.client.networks.Delete(networks_pb2.DeleteNetworkRequest(name="edge"))
    assert "c1/eth0" in caught.value.details
    node.delete("c1")
    node.client.networks.Delete(networks_pb2.DeleteNetworkRequest(name="edge"))


def test_del_frees_everything_when_the_namespace_is_gone(
    node: Service, make_netns: Callable[..., Netns]
) -> None:
    """Address, rules and host link go although nobody can look into the container."""
    node.put(node.config())
    container = make_netns("c1")
    node.add("c1", container.path, ports=[{"hostPort": 8080, "containerPort": 80}])
    remove_named(container.path)
    assert node.delete("c1").existed
    assert [] == node.held()
    node.client.networks.Delete(networks_pb2.DeleteNetworkRequest(name="edge"))


def test_the_conf_dir_is_a_source_of_networks(node: Service) -> None:
    """A file that appears is a network; a broken one hides nobody."""
    directory = node.conf_dir
    directory.mkdir()
    config = node.config() | {"name": "filed"}
    (directory / "10-filed.conflist").write_text(json.dumps(config))
    (directory / "20-broken.conflist").write_text("{")
    networks = node.client.networks.List(networks_pb2.ListNetworksRequest()).networks
    assert ["filed"] == [network.name for network in networks]
    assert str(directory / "10-filed.conflist") == networks[0].source_path


# -- what users do wrong: (what is put, what is added, class, words) -------------------------------

BAD_NETWORKS = {
    "a wrong type": ({"mtu": "1500"}, InvalidConfig, r"plugins\[0\]\.mtu: expected int"),
    "a bad CIDR": (
        {"ipam": {"type": "host-local", "subnet": "10.2.0.0/33"}},
        InvalidConfig,
        r"plugins\[0\]\.ipam\.subnet: ",
    ),
    "an unknown IPAM plugin": ({"ipam": {"type": "nowhere"}}, InvalidConfig, 'plugin "nowhere"'),
    "contradicting modes": (
        {"hairpinMode": True, "promiscMode": True},
        InvalidConfig,
        "hairpin mode and promiscuous mode",
    ),
}


@pytest.mark.parametrize("name", BAD_NETWORKS)
def test_a_bad_network_is_refused(node: Service, name: str) -> None:
    """With the class and the JSON path of the fault; it is not stored."""
    keys, kind, words = BAD_NETWORKS[name]
    with pytest.raises(kind, match=words) as caught:
        node.put(node.config(**keys))
    assert grpc.StatusCode.INVALID_ARGUMENT is status_of(caught)
    assert (0, "bridge") == (caught.value.plugin_index, caught.value.plugin_type)
    assert "edge" == caught.value.network
    assert not node.client.networks.List(networks_pb2.ListNetworksRequest()).networks


def test_an_unknown_plugin_and_an_unsupported_version(node: Service) -> None:
    """The plugin that is missing is named, and the version that nobody speaks."""
    unknown = node.config()
    unknown["plugins"].append({"type": "warp-drive"})
    with pytest.raises(InvalidConfig, match='failed to find plugin "warp-drive"') as caught:
        node.put(unknown)
    assert 3 == caught.value.plugin_index
    old = node.config() | {"cniVersion": "9.9.9"}
    old.pop("cniVersions")
    with pytest.raises(CniError, match=r"9\.9\.9") as version:
        node.put(old)
    assert grpc.StatusCode.FAILED_PRECONDITION is status_of(version)


BAD_ADDS: dict[str, tuple[dict[str, Any], type[CniError], str, str]] = {
    "an ifname of 16 bytes": (
        {"ifname": "e" * 16},
        InvalidEnvironment,
        "interface name is too long",
        "ifname",
    ),
    "a namespace that is none": (
        {"netns": "/etc/hostname"},
        InvalidNetns,
        "unknown FS magic",
        "netns",
    ),
    "a namespace that is missing": (
        {"netns": "/run/netns/nobody"},
        InvalidNetns,
        "nobody",
        "netns",
    ),
    "a mapping of port 0": (
        {"ports": [{"hostPort": 0, "containerPort": 80}]},
        InvalidConfig,
        r"plugins\[2\]\.runtimeConfig\.portMappings\[0\]\.hostPort",
        'capability_args.json["portMappings"][0].hostPort',
    ),
    "a typed mapping of port 0": (
        {
            "capability_args": params_pb2.CapabilityArgs(
                port_mappings={"mappings": [{"host_port": 1}, {"container_port": 80}]}
            )
        },
        InvalidConfig,
        "portMappings",
        "capability_args.port_mappings.mappings[0].container_port",
    ),
    "a capability that is no JSON": (
        {"capability_args": params_pb2.CapabilityArgs(json={"mac": b"{"})},
        DecodeFailure,
        "not valid JSON",
        'capability_args.json["mac"]',
    ),
    "an argument with a semicolon": (
        {"cni_args": [params_pb2.CniArg(key="a"), params_pb2.CniArg(key="b", value=";")]},
        InvalidEnvironment,
        "CNI_ARGS",
        "cni_args[1].value",
    ),
    "a container id with a slash": (
        {"container_id": "a/b"},
        InvalidEnvironment,
        "containerID",
        "container_id",
    ),
}


@pytest.mark.parametrize("name", BAD_ADDS)
def test_a_bad_add_leaves_nothing(
    node: Service, make_netns: Callable[..., Netns], name: str
) -> None:
    """The fault is found before anything is made: no lease, no attachment, no link."""
    keys, kind, words, field = BAD_ADDS[name]
    node.put(node.config())
    before = snapshot(node.host)
    arguments = {"container_id": "c1", "netns": make_netns("c1").path, **keys}
    with pytest.raises(kind, match=words) as caught:
        node.add(**arguments)
    assert grpc.StatusCode.INVALID_ARGUMENT is status_of(caught)
    assert (field, "NONE") == (caught.value.field, caught.value.residue)
    assert ("edge", arguments["container_id"]) == (caught.value.network, caught.value.container_id)
    assert [] == node.held() + attachments(node)
    assert [] == before.diff(snapshot(node.host))


def test_an_exhausted_range_and_a_taken_port(
    node: Service, make_netns: Callable[..., Netns]
) -> None:
    """What the first attachment holds is refused to the second, which leaves nothing."""
    config = node.config()
    config["plugins"][0]["ipam"] = {
        "type": "host-local",
        "subnet": "10.2.0.0/29",
        "rangeStart": "10.2.0.2",
        "rangeEnd": "10.2.0.3",
        "dataDir": str(node.leases),
    }
    node.put(config)
    port = [{"hostPort": 8080, "containerPort": 80}]
    node.add("c1", make_netns("c1").path, ports=port)
    with pytest.raises(CniError, match="8080") as caught:
        node.add("c2", make_netns("c2").path, ports=port)
    assert 101 == caught.value.wire_code
    assert "portmap" == caught.value.plugin_type
    assert ["10.2.0.2"] == node.held()
    node.add("c3", make_netns("c3").path)
    with pytest.raises(CniError, match="no IP addresses available in range set"):
        node.add("c4", make_netns("c4").path)
    assert ["c1", "c3"] == [a.key.container_id for a in attachments(node)]
    node.delete("c1")
    node.delete("c3")
    assert [] == node.held()
    node.client.networks.Delete(networks_pb2.DeleteNetworkRequest(name="edge"))


def test_a_request_of_65_mb_is_refused(node: Service) -> None:
    """With a CniError that names the limit; the service lives on."""
    message = config_pb2.NetworkConfig(json=b'{"x": "' + b"x" * (65 * MB) + b'"}')
    networks = node.client.networks
    with pytest.raises(CniError, match="bytes and 16777216 are allowed") as caught:
        networks.Put(networks_pb2.PutNetworkRequest(config=message))
    assert grpc.StatusCode.RESOURCE_EXHAUSTED is status_of(caught)
    assert 6 == caught.value.wire_code
    networks.List(networks_pb2.ListNetworksRequest())


def test_every_method_that_reflection_shows_answers(node: Service) -> None:
    """An empty request is answered, or refused with a CniError; no status without one."""
    channel = node.client._channel
    database = ProtoReflectionDescriptorDatabase(channel)
    pool = descriptor_pool.DescriptorPool(database)
    services = [name for name in database.get_services() if name.startswith("cni.")]
    called = []
    for name in services:
        for method in pool.FindServiceByName(name).methods:
            called.append(f"{name}/{method.name}")
            _call(channel, method)
    assert {"cni.v2alpha1.Networks/Put", "cni.v2alpha1.Attachments/Add"} <= set(called)
    assert 20 <= len(called)


def _call(channel: grpc.Channel, method: Any) -> None:
    request = message_factory.GetMessageClass(method.input_type)()
    response = message_factory.GetMessageClass(method.output_type)
    path = f"/{method.containing_service.full_name}/{method.name}"
    streams = (method.client_streaming, method.server_streaming)
    kind = {
        (False, False): channel.unary_unary,
        (False, True): channel.unary_stream,
        (True, True): channel.stream_stream,
    }[streams]
    stub = kind(path, lambda m: m.SerializeToString(), response.FromString)
    failure: Any = None
    try:
        answer = stub(iter([request]) if streams[0] else request, timeout=10)
        if streams[1]:
            next(answer, None)
            answer.cancel()
    except grpc.RpcError as failed:
        failure = failed
    assert failure is None or wire.find_error(failure) is not None, (path, failure)
    assert failure is None or failure.code() is not grpc.StatusCode.UNIMPLEMENTED, path


def test_the_socket_is_the_owners_alone(node: Service) -> None:
    """Mode 0600, and the state directory 0700."""
    assert 0o600 == os.stat(node.socket).st_mode & 0o777
    assert 0o700 == os.stat(node.directory / "state").st_mode & 0o777


@pytest.mark.slow
def test_the_demo_shows_what_it_says() -> None:
    """`pycni demo` runs through, proves that nothing is left and takes less than 30 s."""
    done = subprocess.run(
        [Path(sys.executable).with_name("pycni"), "demo"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert 0 == done.returncode, done.stdout + done.stderr
    took = re.search(r"all of it worked, in ([\d.]+) s", done.stdout)
    assert took is not None
    assert float(took[1]) < 30
