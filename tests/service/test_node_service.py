# SPDX-License-Identifier: Apache-2.0
"""The Node service: what the service is, its plugins, and the types of Any it is taught."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2

from pycni.cli.network import strict_json
from pycni.client import Client
from pycni.errors import CniError, InvalidConfig
from pycni.kernel.netns import Netns
from pycni.service.node import FEATURES
from pycni.service.pb.cni.v2alpha1 import (
    attachments_pb2,
    config_pb2,
    networks_pb2,
    node_pb2,
)
from pycni.service.pb.pycni.plugins.v1 import bridge_pb2, host_local_pb2
from tests.fix_netns import json_in
from tests.service_host import Service, eventually, serving, status_of

pytestmark = pytest.mark.root

ROOT = Path(__file__).parents[2]
OPAQUE = "type.googleapis.com/cni.v2alpha1.OpaqueJson"
NERDCTL = "helloworld.NerdctlNetworkConfig"
VERSIONS = """#!/bin/sh
echo asked >>"$0.log"
cat >/dev/null
echo '{"cniVersion":"1.1.0","supportedVersions":["0.4.0","1.1.0"]}'
"""


def nerdctl(number_type: int = 5) -> descriptor_pb2.FileDescriptorSet:
    """The type that dbnet's first extra member is of."""
    files = descriptor_pb2.FileDescriptorSet()
    file = files.file.add(name="hello.proto", package="helloworld", syntax="proto3")
    message = file.message_type.add(name="NerdctlNetworkConfig")
    message.field.add(name="NerdctlID", number=1, type=number_type, label=1)
    entry = message.nested_type.add(name="NerdctlLabelsEntry", options={"map_entry": True})
    entry.field.add(name="key", number=1, type=9, label=1)
    entry.field.add(name="value", number=2, type=9, label=1)
    kind = f".{NERDCTL}.NerdctlLabelsEntry"
    message.field.add(name="NerdctlLabels", number=2, type=11, label=3, type_name=kind)
    return files


def register(
    client: Client, files: descriptor_pb2.FileDescriptorSet
) -> node_pb2.RegisterTypesResponse:
    return client.node.RegisterTypes(node_pb2.RegisterTypesRequest(descriptors=files))


def info(client: Client) -> node_pb2.NodeInfo:
    return client.node.GetInfo(node_pb2.GetInfoRequest())


def dbnet(service: Service) -> bytes:
    """The network this project began with, its leases below the test's directory."""
    text = strict_json((ROOT / "deploy/networks/dbnet.jsonc").read_text(), "dbnet")
    leases = json.dumps(str(service.leases)).encode()
    return text.replace(
        b'"subnet": "10.1.0.0/16"', b'"dataDir": %b,"subnet": "10.1.0.0/16"' % leases
    )


def put(service: Service, config: config_pb2.NetworkConfig) -> networks_pb2.Network:
    request = networks_pb2.PutNetworkRequest(config=config)
    return service.client.networks.Put(request).network


def test_a_service_says_what_it_is(service: Service, client: Client) -> None:
    """Versions, verbs, limits, where it looks; no feature is claimed that answers UNIMPLEMENTED."""
    said = info(client)
    assert "pycni" == said.implementation
    assert ["0.1.0", "1.1.0"] == [said.cni_versions[0], said.cni_versions[-1]]
    assert 6 == len(said.verbs)
    assert list(FEATURES) == list(said.features)
    assert (str(service.conf_dir), [str(service.plugin_path)]) == (
        said.conf_dir, list(said.plugin_path),
    )  # fmt: skip
    assert 16 << 20 == said.limits.max_message_bytes
    assert said.limits.max_concurrent_calls > 0
    assert Path("/proc/sys/kernel/random/boot_id").read_text().strip() == said.boot_id


def test_plugins_are_listed_by_precedence(service: Service, client: Client) -> None:
    """The built-in before the binary; binaries are asked for their versions when told to."""
    for name in ("loopback", "vendor"):
        service.install(name, VERSIONS)

    def ask(**request: Any) -> list[node_pb2.PluginInfo]:
        return list(client.node.ListPlugins(node_pb2.ListPluginsRequest(**request)).plugins)

    every = ask()
    assert sorted(plugin.type for plugin in every) == [plugin.type for plugin in every]
    built_in, binary = ask(type="loopback")
    assert (attachments_pb2.EXECUTOR_KIND_BUILTIN, True) == (built_in.executor, built_in.preferred)
    assert (attachments_pb2.EXECUTOR_KIND_EXEC, False) == (binary.executor, binary.preferred)
    assert str(service.plugin_path / "loopback") == binary.location
    assert not binary.cni_versions
    [bridge] = ask(type="bridge")
    assert "pycni.plugins.v1.Bridge" == bridge.config_type
    assert ["mac"] == list(bridge.capabilities)
    assert "isGateway" in json.loads(bridge.config_schema)["$defs"]["BridgeConfig"]["properties"]
    [vendor] = ask(type="vendor", refresh=True)
    assert (["0.4.0", "1.1.0"], True) == (list(vendor.cni_versions), vendor.preferred)
    ask(refresh=True)  # too soon: nothing is started again
    assert 1 == len((service.plugin_path / "vendor.log").read_text().split())
    assert [] == ask(type="nobody")
    with pytest.raises(InvalidConfig) as caught:
        ask(type="a/b")
    assert "type" == caught.value.field


@pytest.mark.nft
def test_dbnet_with_and_without_its_types(
    service: Service, client: Client, make_netns: Callable[..., Netns]
) -> None:
    """Verbatim while unregistered; typed and checked when registered; attached either way."""
    text = dbnet(service)
    view = put(service, config_pb2.NetworkConfig(json=text)).config
    assert text == view.json
    assert [OPAQUE, OPAQUE] == [member.type_url for member in view.plugins[0].extra]
    assert [NERDCTL] == list(register(client, nerdctl()).added)
    assert [NERDCTL] == list(register(client, nerdctl()).known)
    assert [NERDCTL] == list(info(client).registered_types)
    shown = client.networks.Get(networks_pb2.GetNetworkRequest(name="dbnet"))
    assert text == shown.config.json
    first, second = shown.config.plugins[0].extra
    assert (f"type.googleapis.com/{NERDCTL}", OPAQUE) == (first.type_url, second.type_url)
    assert b"v1.0.0.BridgeNetworkConfig" in config_pb2.OpaqueJson.FromString(second.value).json
    wrong = config_pb2.NetworkConfig(json=text.replace(b"112233", b'"many"'))
    with pytest.raises(InvalidConfig, match="expected int") as caught:
        put(service, wrong)
    assert caught.value.msg.startswith("plugins[0].extra[0].NerdctlID: ")
    assert grpc.StatusCode.INVALID_ARGUMENT is status_of(caught)
    ref = config_pb2.NetworkRef(inline=wrong)
    found = client.networks.Validate(networks_pb2.ValidateNetworkRequest(network=ref))
    assert not found.valid
    assert ["plugins[0].extra[0].NerdctlID"] == [finding.path for finding in found.findings]
    with pytest.raises(CniError, match="another definition") as conflict:
        register(client, nerdctl(9))
    assert grpc.StatusCode.FAILED_PRECONDITION is status_of(conflict)
    assert "descriptors" == conflict.value.field
    container = make_netns("c1")
    added = service.add("c1", container.path, network="dbnet")
    assert ["10.1.0.2/16"] == [ip.address for ip in added.attachment.result.ips]
    service.delete("c1", network="dbnet")
    service.remove("dbnet")


@pytest.mark.nft
def test_a_network_of_typed_messages_is_attached_to(
    service: Service, make_netns: Callable[..., Netns]
) -> None:
    """Its bridge is named in the plugin's `extra`, its ranges in ipam's configuration."""
    message = config_pb2.NetworkConfig(name="typed")
    plugin = message.plugins.add(type="bridge")
    plugin.extra.add().Pack(bridge_pb2.Bridge(bridge="br-typed", mtu=1400))
    plugin.ipam.type = "host-local"
    ranges = host_local_pb2.HostLocal(subnet="10.8.0.0/24", data_dir=str(service.leases))
    plugin.ipam.config.Pack(ranges)
    stored = put(service, message)
    assert stored.config.json == put(service, message).config.json
    container = make_netns("c1")
    added = service.add("c1", container.path, network="typed").attachment
    assert "br-typed" in [link["ifname"] for link in json_in(service.host, "ip", "-j", "link")]
    [inside] = [link for link in json_in(container, "ip", "-j", "link") if link["ifname"] == "eth0"]
    assert 1400 == inside["mtu"]
    assert ["10.8.0.2/24"] == [ip.address for ip in added.result.ips]
    service.delete("c1", network="typed")
    service.remove("typed")


def test_types_are_read_from_a_directory(host: Netns, tmp_path: Path) -> None:
    """A bad file in it is logged and keeps nobody from serving."""
    (tmp_path / "types").mkdir()
    (tmp_path / "types/a.binpb").write_bytes(b"\xff\xff")
    (tmp_path / "types/hello.binpb").write_bytes(nerdctl().SerializeToString())
    with serving(host, tmp_path) as service:
        assert [NERDCTL] == list(info(service.client).registered_types)
        eventually(lambda: "a.binpb" in service.log.read_text(), "the warning")
