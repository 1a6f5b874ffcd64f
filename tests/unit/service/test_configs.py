# SPDX-License-Identifier: Apache-2.0
"""Configurations in JSON and in protobuf, both ways; typed and opaque members of `extra`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import any_pb2, descriptor_pb2
from google.protobuf.message import Message

from pycni.cli.network import strict_json
from pycni.errors import CniError, InvalidConfig
from pycni.model.config import NetworkConfigList, request_config
from pycni.service.configs import Configs
from pycni.service.pb.cni.v2alpha1 import config_pb2, result_pb2
from pycni.service.pb.pycni.plugins.v1 import (
    bandwidth_pb2,
    bridge_pb2,
    host_local_pb2,
    portmap_pb2,
    route_pb2,
    tuning_pb2,
    win_bridge_pb2,
)
from pycni.service.types import Types
from tests.unit.service.test_types import NERDCTL, nerdctl

DBNET = strict_json(
    (Path(__file__).parents[3] / "deploy/networks/dbnet.jsonc").read_text(), "dbnet"
)
OPAQUE = "type.googleapis.com/cni.v2alpha1.OpaqueJson"
SECOND = "type.googleapis.com/k8s.cni.cncf.io/v1.0.0.BridgeNetworkConfig"


def pack(message: Message, url: str = "") -> any_pb2.Any:
    """The message in an Any."""
    packed = any_pb2.Any()
    packed.Pack(message)
    if url:
        packed.type_url = url
    return packed


def opaque(member: any_pb2.Any) -> config_pb2.OpaqueJson:
    """The OpaqueJson in an Any."""
    assert OPAQUE == member.type_url
    return config_pb2.OpaqueJson.FromString(member.value)


def conflist(*plugins: dict[str, Any], **more: Any) -> bytes:
    """A configuration list."""
    return json.dumps(
        {"cniVersion": "1.1.0", "name": "net", "plugins": list(plugins), **more}
    ).encode()


def parse(configs: Configs, message: config_pb2.NetworkConfig) -> NetworkConfigList:
    return configs.parse(message, where="config")


@pytest.fixture
def types() -> Types:
    """Those of a service nobody has registered any with."""
    return Types()


@pytest.fixture
def configs(types: Types) -> Configs:
    """Configurations with these types."""
    return Configs(types)


# -- dbnet -----------------------------------------------------------------------------------------


def test_dbnet_survives_without_its_types(configs: Configs) -> None:
    """Byte for byte in JSON, and verbatim as OpaqueJson; from there it is the same JSON again."""
    network = parse(configs, config_pb2.NetworkConfig(json=DBNET))
    assert DBNET == network.json
    view = configs.view(network)
    first, second = map(opaque, view.plugins[0].extra)
    assert (NERDCTL, SECOND) == (first.type_url, second.type_url)
    assert json.loads(DBNET)["plugins"][0]["extra"] == [
        json.loads(first.json),
        json.loads(second.json),
    ]
    assert first.json in DBNET
    del view.plugins[1:]
    view.ClearField("json")
    view.plugins[0].ClearField("json")
    again = json.loads(parse(configs, view).json)
    assert json.loads(DBNET)["plugins"][0] == again["plugins"][0]


def test_dbnet_is_typed_once_its_type_is_registered(configs: Configs, types: Types) -> None:
    """The first member is a message, checked; the second can have no type and stays as it is."""
    types.register(nerdctl())
    view = configs.view(parse(configs, config_pb2.NetworkConfig(json=DBNET)))
    first, second = view.plugins[0].extra
    kind: Any = types.find(NERDCTL)
    message = kind.FromString(first.value)
    assert (112233, {"bob": "11"}) == (message.NerdctlID, dict(message.NerdctlLabels))
    assert SECOND == opaque(second).type_url
    assert DBNET == parse(configs, view).json


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a string for a number": ({"NerdctlID": "many"}, "NerdctlID: expected int, got str"),
    "a number out of range": (
        {"NerdctlID": 1 << 31},
        "NerdctlID: 2147483648 is out of range: -2147483648 to 2147483647",
    ),
    "a label that is no text": (
        {"NerdctlLabels": {"bob": 11}},
        "NerdctlLabels.bob: expected str, got int",
    ),
    "a list for a map": ({"nerdctllabels": []}, "nerdctllabels: expected object, got array"),
    "an unknown field": (
        {"NerdctlName": 1},
        "NerdctlName: helloworld.NerdctlNetworkConfig has no such field",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_field_of_a_registered_type_is_refused(
    configs: Configs, types: Types, name: str
) -> None:
    """With its path; unregistered the same member is nobody's business."""
    fields, words = WRONG[name]
    data = conflist({"type": "bridge", "extra": [{"@type": "x/y"}, {"@type": NERDCTL, **fields}]})
    message = config_pb2.NetworkConfig(json=data)
    assert data == parse(configs, message).json
    types.register(nerdctl())
    with pytest.raises(InvalidConfig) as caught:
        parse(configs, message)
    assert caught.value.msg.startswith(f"plugins[0].extra[1].{words}")
    # What was stored before is still shown.
    view = configs.view(NetworkConfigList.parse(data))
    assert NERDCTL == opaque(view.plugins[0].extra[1]).type_url


def test_binary_members_survive(configs: Configs, types: Types) -> None:
    """Unregistered as base64; registered as JSON; with fields we do not know as base64 again."""
    types.register(nerdctl())
    kind: Any = types.find(NERDCTL)
    known = kind(NerdctlID=7, NerdctlLabels={"b": "2", "a": "1"})
    newer = kind.FromString(known.SerializeToString() + b"\x1a\x01x")
    message = config_pb2.NetworkConfig(name="net")
    plugin = message.plugins.add(type="loopback")
    plugin.extra.add(type_url="example.com/strange", value=b"\x00\xff")
    plugin.extra.append(pack(known))
    plugin.extra.append(pack(newer))
    message.extra.add(type_url=SECOND, value=b"\x01")
    network = parse(configs, message)
    assert network.json == parse(configs, message).json
    document = json.loads(network.json)
    assert [
        {"@type": "example.com/strange", "@value": "AP8="},
        {"@type": NERDCTL, "NerdctlID": 7, "NerdctlLabels": {"a": "1", "b": "2"}},
    ] == document["plugins"][0]["extra"][:2]
    assert [{"@type": SECOND, "@value": "AQ=="}] == document["extra"]
    view = configs.view(network)
    assert plugin.extra[0] == view.plugins[0].extra[0]
    assert known == kind.FromString(view.plugins[0].extra[1].value)
    assert newer == kind.FromString(view.plugins[0].extra[2].value)
    assert message.extra == view.extra


def test_extra_that_is_not_ours_is_left_alone(configs: Configs) -> None:
    """Any JSON may stand under that key; what has no type is opaque."""
    data = conflist(
        {"type": "loopback", "extra": {"a": 1}},
        {"type": "loopback", "extra": [1, {"@type": 5}, {"@type": "a/b", "@value": "!"}]},
    )
    view = configs.view(parse(configs, config_pb2.NetworkConfig(json=data)))
    assert [] == list(view.plugins[0].extra)
    assert [b"1", b'{"@type": 5}'] == [opaque(one).json for one in view.plugins[1].extra[:2]]


# -- typed configurations --------------------------------------------------------------------------


def edge() -> config_pb2.NetworkConfig:
    """A network of typed messages alone."""
    message = config_pb2.NetworkConfig(name="edge", cni_version="1.0.0")
    bridge = bridge_pb2.Bridge(bridge="cni1", is_gateway=True, mtu=1400)
    bridge.vlan_trunk.add(min_id=2, max_id=4)
    first = message.plugins.add(type="bridge", config=pack(bridge))
    first.dns.nameservers.append("10.1.0.1")
    ranges = host_local_pb2.HostLocal(routes=[route_pb2.Route(dst="0.0.0.0/0", table=0)])
    ranges.ranges.add().ranges.add(subnet="10.1.0.0/16")
    first.ipam.type = "host-local"
    first.ipam.config.CopyFrom(pack(ranges))
    tuning = tuning_pb2.Tuning(sysctl={"net.b": "2", "net.a": "1"}, promisc=False)
    message.plugins.add(type="tuning", config=pack(tuning), capabilities={"mac": True})
    rates = bandwidth_pb2.Bandwidth(ingress_rate=1 << 40)
    message.plugins.add(type="bandwidth", config=pack(rates), endpoint="unix:///run/x.sock")
    portmap = portmap_pb2.Portmap(snat=False, mark_masq_bit=0)
    message.plugins.add(type="portmap", config=pack(portmap))
    return message


EDGE = {
    "cniVersion": "1.0.0",
    "name": "edge",
    "plugins": [
        {
            "type": "bridge",
            "bridge": "cni1",
            "isGateway": True,
            "mtu": 1400,
            "vlanTrunk": [{"minID": 2, "maxID": 4}],
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": "10.1.0.0/16"}]],
                "routes": [{"dst": "0.0.0.0/0", "table": 0}],
            },
            "dns": {"nameservers": ["10.1.0.1"]},
        },
        {
            "type": "tuning",
            "sysctl": {"net.a": "1", "net.b": "2"},
            "promisc": False,
            "capabilities": {"mac": True},
        },
        {"type": "bandwidth", "ingressRate": 1 << 40, "cni.dev/endpoint": "unix:///run/x.sock"},
        {"type": "portmap", "snat": False, "markMasqBit": 0},
    ],
}


def test_typed_messages_render_to_the_plugins_json(configs: Configs) -> None:
    """The keys and the types the plugins read; the same bytes every time."""
    network = parse(configs, edge())
    assert EDGE == json.loads(network.json)
    assert network.json == parse(Configs(Types()), edge()).json


def test_the_view_of_json_is_the_message_it_would_come_from(configs: Configs) -> None:
    """JSON to messages and back is the same JSON, and both together agree."""
    network = parse(configs, edge())
    view = configs.view(network)
    assert network.json == parse(configs, view).json
    view.ClearField("json")
    for plugin in view.plugins:
        plugin.ClearField("json")
        plugin.ipam.ClearField("json") if plugin.HasField("ipam") else None
    assert network.json == parse(configs, view).json


def test_json_in_the_view_is_verbatim(configs: Configs) -> None:
    """Of the list, of each plugin, of ipam: white space, order and spelling of numbers."""
    plugin = b'{ "type" :"bridge","x": 1.50,  "mtu":1500, "ipam": {"type":"host-local" , "y":1e3}}'
    data = b'{"name":"net","cniVersion":"1.0.0", "plugins": [ ' + plugin + b" ]}"
    view = configs.view(parse(configs, config_pb2.NetworkConfig(json=data)))
    assert data == view.json
    assert plugin == view.plugins[0].json
    assert b'{"type":"host-local" , "y":1e3}' == view.plugins[0].ipam.json
    single = b'{"name":"net","cniVersion":"1.0.0","type":"loopback"}'
    assert single == configs.view(NetworkConfigList.parse(single)).plugins[0].json


def test_extra_supplies_what_the_plugin_does_not_say(configs: Configs) -> None:
    """The plugin's own typed configuration in `extra` counts, after json and config."""
    typed = bridge_pb2.Bridge(bridge="cni7", mtu=1400, is_gateway=True)
    message = config_pb2.NetworkConfig(name="net")
    plugin = message.plugins.add(type="bridge", config=pack(bridge_pb2.Bridge(mtu=9000)))
    plugin.extra.append(pack(tuning_pb2.Tuning(mtu=1)))
    plugin.extra.append(pack(typed))
    network = parse(configs, message)
    given = json.loads(request_config(network, network.plugins[0]))
    assert ("cni7", 9000, True) == (given["bridge"], given["mtu"], given["isGateway"])
    assert 2 == len(given["extra"])
    data = conflist(
        {
            "type": "bridge",
            "MTU": 1280,
            "extra": [
                {"@type": "x/pycni.plugins.v1.Bridge", "mtu": 1, "bridge": "cni8"},
                {"@type": "x/pycni.plugins.v1.Ptp", "ipMasq": True},
            ],
        }
    )
    network = parse(configs, config_pb2.NetworkConfig(json=data))
    given = json.loads(request_config(network, network.plugins[0]))
    assert ("cni8", 1280) == (given["bridge"], given["MTU"])
    assert not {"mtu", "ipMasq", "@type"} & given.keys()
    assert data == network.json


def test_policies_keep_their_json(configs: Configs) -> None:
    """A field with json_raw is rendered as it is."""
    policy = win_bridge_pb2.WinPolicy(name="EndpointPolicy", value=b'{ "Type": "ACL" }')
    message = config_pb2.NetworkConfig(name="net")
    config = pack(win_bridge_pb2.WinBridge(policies=[policy], loopback_dsr=True))
    message.plugins.add(type="win-bridge", config=config)
    network = parse(configs, message)
    assert b'"policies":[{"name":"EndpointPolicy","value":{ "Type": "ACL" }}]' in network.json
    assert b'"loopbackDSR":true' in network.json


def bad(**plugin: Any) -> config_pb2.NetworkConfig:
    message = config_pb2.NetworkConfig(name="net")
    message.plugins.add(**{"type": "bridge", **plugin})
    return message


def beside(json: bytes, *plugins: Any) -> config_pb2.NetworkConfig:
    return config_pb2.NetworkConfig(json=json, plugins=plugins)


JSON = conflist({"type": "bridge", "mtu": 1500, "ipam": {"type": "host-local"}})
BRIDGE = "type.googleapis.com/pycni.plugins.v1.Bridge"
BAD = {
    "an unregistered configuration": (
        bad(config=any_pb2.Any(type_url="x/y")),
        'plugins[0].config: type "x/y" is not registered',
    ),
    "another plugin's configuration": (
        bad(config=pack(tuning_pb2.Tuning())),
        'plugins[0].config: plugin "bridge" is configured by pycni.plugins.v1.Bridge',
    ),
    "bytes that are no message": (
        bad(config=any_pb2.Any(type_url=BRIDGE, value=b"\xff")),
        "plugins[0].config.value: not a pycni.plugins.v1.Bridge",
    ),
    "fields nobody knows": (
        bad(config=any_pb2.Any(type_url=BRIDGE, value=b"\xf8\x01\x01")),
        "plugins[0].config: it has fields that are unknown",
    ),
    "a member without a type": (bad(extra=[any_pb2.Any()]), "plugins[0].extra[0].type_url: miss"),
    "opaque JSON that is none": (
        bad(extra=[pack(config_pb2.OpaqueJson(json=b"{"))]),
        "plugins[0].extra[0].json: not valid JSON",
    ),
    "opaque JSON of another type": (
        bad(extra=[pack(config_pb2.OpaqueJson(type_url="a/b", json=b"{}"))]),
        "plugins[0].extra[0].type_url: differs",
    ),
    "a name beside JSON": (config_pb2.NetworkConfig(json=JSON, name="other"), "name: differs"),
    "a type beside JSON": (
        beside(JSON, {"type": "ptp"}),
        "plugins[0].type: differs",
    ),
    "a plugin too many": (
        beside(JSON, {}, {}),
        "plugins: differs",
    ),
    "a parameter beside JSON": (
        beside(JSON, {"config": pack(bridge_pb2.Bridge(mtu=1400))}),
        "plugins[0].config: differs",
    ),
    "an ipam beside JSON": (
        beside(JSON, {"ipam": {"type": "static"}}),
        "plugins[0].ipam.type: differs",
    ),
    "a plugin's type beside its JSON": (
        bad(type="ptp", json=b'{"type": "bridge"}'),
        "plugins[0].type: differs",
    ),
    "a plugin's JSON beside the list's": (
        beside(JSON, {"json": b'{"type": "bridge"}'}),
        "plugins[0].json: differs",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_meant_is_refused(configs: Configs, name: str) -> None:
    """With its path in the text, and in the request as `field`."""
    message, words = BAD[name]
    with pytest.raises(CniError) as caught:
        parse(configs, message)
    assert caught.value.msg.startswith(words)
    if "not valid JSON" not in words:
        assert f"config.{caught.value.msg.partition(':')[0]}" == caught.value.field


def test_fields_that_agree_with_the_json_are_fine(configs: Configs) -> None:
    """Each alone, and a plugin's JSON spelled otherwise."""
    config = pack(bridge_pb2.Bridge(mtu=1500))
    same = json.dumps(json.loads(JSON)["plugins"][0], indent=1).encode()
    plugin: Any
    for plugin in ({}, {"type": "bridge"}, {"config": config}, {"json": same}):
        message = beside(JSON, plugin)
        assert JSON == parse(configs, message).json
    named = config_pb2.NetworkConfig(json=JSON, name="net", cni_version="1.1.0")
    assert JSON == parse(configs, named).json


def test_a_third_party_type_configures_its_plugin(configs: Configs, types: Types) -> None:
    """Any registered type will do for a plugin that has none here; not one with our own keys."""
    files = descriptor_pb2.FileDescriptorSet()
    file = files.file.add(name="v.proto", package="vendor.v1", syntax="proto3")
    message = file.message_type.add(name="Fast")
    message.field.add(name="queue_count", number=2, type=4, label=1)
    message.field.add(name="share", number=1, type=1, label=1)
    wrong = file.message_type.add(name="Wrong")
    wrong.field.add(name="ipam", number=1, type=9, label=1)
    types.register(files)
    fast, bad_one = types.find("vendor.v1.Fast"), types.find("vendor.v1.Wrong")
    assert fast is not None
    assert bad_one is not None
    network = config_pb2.NetworkConfig(name="net")
    config = pack(fast(queue_count=1 << 63, share=0.5))
    network.plugins.add(type="fast", config=config)
    document = json.loads(parse(configs, network).json)
    assert [{"type": "fast", "share": 0.5, "queueCount": 1 << 63}] == document["plugins"]
    network.plugins[0].config.CopyFrom(pack(bad_one(ipam="x")))
    with pytest.raises(InvalidConfig, match='has a key "ipam", which is given beside it'):
        parse(configs, network)


def test_dns_and_switches_render(configs: Configs) -> None:
    """What is not set is left out."""
    message = config_pb2.NetworkConfig(
        name="net", cni_versions=["0.4.0"], disable_check=True, disable_gc=True
    )
    message.plugins.add(type="loopback", dns=result_pb2.Dns(domain="d", search=["s"]))
    assert {
        "cniVersion": "1.1.0",
        "cniVersions": ["0.4.0"],
        "name": "net",
        "disableCheck": True,
        "disableGC": True,
        "plugins": [{"type": "loopback", "dns": {"domain": "d", "search": ["s"]}}],
    } == json.loads(parse(configs, message).json)
