# SPDX-License-Identifier: Apache-2.0
"""Configuration lists and request configs: what is kept verbatim, what is refused and how."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from pycni.errors import CniError, DecodeFailure, InvalidConfig
from pycni.model import jsonio
from pycni.model.config import NetworkConfigList, PluginConfig, request_config

BRIDGE = b"""{
  "type": "bridge", "mtu": 1500.0, "Capabilities": {"mac": true, "ips": false},
  "big": 123456789012345678901234567890, "ipam": {"type": "host-local", "x": [1.50]}
}"""
DBNET = (
    b"""{
  "cniVersion": "0.4.0", "cniVersions": ["0.3.1", "1.0.0"], "name": "dbnet",
  "extra": [{"@type": "x"}],
  "disableCheck": "TRUE", "disableGC": true,
  "plugins": [%b, {"type": "portmap", "capabilities": {"portMappings": true}}]
}"""
    % BRIDGE
)


def parse(**members: Any) -> NetworkConfigList:
    """A list of the given members, named dbnet."""
    return NetworkConfigList.parse(json.dumps({"name": "dbnet", **members}).encode())


def refused(**members: Any) -> str:
    """The message such a list is refused with."""
    with pytest.raises(InvalidConfig) as caught:
        parse(**members)
    return caught.value.msg


def keys(request: bytes) -> list[str]:
    """The keys of a request config, in order."""
    return list(json.loads(request))


# -- reading -------------------------------------------------------------------------------------


def test_a_list_is_read_and_its_bytes_are_kept() -> None:
    """The typed fields are a view; `json` and the plugins' members are what was written."""
    network = NetworkConfigList.parse(DBNET, source="10-dbnet.conflist")
    assert ("dbnet", "1.0.0", ("0.3.1", "1.0.0")) == (
        network.name,
        network.cniVersion,
        network.cniVersions,
    )
    assert (True, True, False) == (
        network.disableCheck,
        network.disableGC,
        network.loadOnlyInlinedPlugins,
    )
    assert ["bridge", "portmap"] == [plugin.type for plugin in network.plugins]
    bridge, portmap = network.plugins
    assert ("host-local", None) == (bridge.ipam_type, portmap.ipam_type)
    assert {"mac": True, "ips": False} == bridge.capabilities
    assert ["type", "mtu", "Capabilities", "big", "ipam"] == list(bridge.fields)
    assert b"1500.0" == bytes(bridge.fields["mtu"])
    assert (DBNET, DBNET, "10-dbnet.conflist") == (network.json, network.resolved, network.source)
    assert frozenset({"mac", "portMappings"}) == network.capabilities


def test_a_single_plugin_becomes_a_list_of_one() -> None:
    """V3: single-plugin configurations left the SPEC with 1.0.0, libraries still load them."""
    single = b'{"cniVersion": "0.3.1", "name": "n", "Type": "ptp", "ipam": null}'
    network = NetworkConfigList.parse(single)
    assert network == NetworkConfigList.parse_single(single)
    assert ("n", "0.3.1", single) == (network.name, network.cniVersion, network.resolved)
    assert ["ptp"] == [plugin.type for plugin in network.plugins]
    assert ["cniVersion", "name", "Type", "ipam"] == keys(
        request_config(network, network.plugins[0])
    )


def test_a_file_of_a_single_plugin_needs_a_type() -> None:
    """Whatever else it holds."""
    with pytest.raises(InvalidConfig, match=r"^type: missing$"):
        NetworkConfigList.parse_single(b'{"name": "n", "plugins": [{"type": "bridge"}]}')


def test_keys_of_the_list_match_without_regard_to_case() -> None:
    """Liberal in: the whole document folds."""
    network = NetworkConfigList.parse(
        b'{"NAME": "n", "Plugins": [{"TYPE": "bridge"}], "cniversion": "1.0.0"}'
    )
    assert ("n", "1.0.0", "bridge") == (network.name, network.cniVersion, network.plugins[0].type)


def test_the_name_is_checked_first() -> None:
    """P14: without a name nothing else is looked at."""
    for data in (
        b"null",
        b"{}",
        b'{"name": ""}',
        b'{"name": null, "plugins": []}',
        b'{"type": "x"}',
    ):
        with pytest.raises(InvalidConfig, match=r"^missing network name$"):
            NetworkConfigList.parse(data)
    assert "name: expected str, got int" == refused(name=5)
    assert "invalid characters found in network name" == refused(name="../etc")


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"cniVersion": 1}, "cniVersion: expected str, got int"),
        ({"cniVersion": "1.x"}, 'cniVersion: not a version: "1.x"'),
        ({"cniVersions": "1.0.0"}, "cniVersions: expected array, got str"),
        ({"cniVersions": ["1.0.0", "x"]}, 'cniVersions[1]: not a version: "x"'),
        ({"cniVersions": [1]}, "cniVersions[0]: expected str, got int"),
        ({"disableCheck": 1}, "disableCheck: expected bool, got 1"),
        ({"disableGC": "yes"}, 'disableGC: expected bool, got "yes"'),
        ({"loadOnlyInlinedPlugins": []}, "loadOnlyInlinedPlugins: expected bool, got []"),
        ({"plugins": []}, "plugins: the list is empty"),
        ({"plugins": None}, "plugins: expected array, got null"),
        ({"plugins": {}}, "plugins: expected array | null, got object"),
        ({"plugins": [{"type": "a"}, 5]}, "plugins[1]: expected object, got int"),
        ({"plugins": [{}]}, "plugins[0].type: missing"),
        ({"plugins": [{"type": ""}]}, "plugins[0].type: no plugin name provided"),
        ({"plugins": [{"Type": "../x"}]}, "plugins[0].Type: invalid plugin name: ../x"),
        ({"plugins": [{"type": "a", "ipam": "b"}]}, "plugins[0].ipam: expected object, got str"),
        (
            {"plugins": [{"type": "a", "ipam": {"type": "b/c"}}]},
            "plugins[0].ipam.type: invalid plugin name: b/c",
        ),
        (
            {"plugins": [{"type": "a", "capabilities": {"mac": "yes"}}]},
            "plugins[0].capabilities.mac: expected bool, got str",
        ),
    ],
)
def test_a_fault_of_the_list_names_its_path(members: dict[str, Any], message: str) -> None:
    """C1-C14: the path is in the document's spelling."""
    assert message == refused(**{"plugins": [{"type": "x"}], **members})


def test_inlined_plugins_cannot_be_the_only_ones_when_there_are_none() -> None:
    """C7: loadOnlyInlinedPlugins must not be true when `plugins` is absent."""
    message = "plugins: missing, and loadOnlyInlinedPlugins is true"
    assert message == refused(loadOnlyInlinedPlugins=True)
    assert message == refused(loadOnlyInlinedPlugins="true")


def test_the_file_is_named_in_the_details() -> None:
    """Where the bytes came from, when that is known."""
    for read in (NetworkConfigList.parse, NetworkConfigList.parse_single):
        with pytest.raises(InvalidConfig) as caught:
            read(b"{}", source="/etc/cni/net.d/10-x.conf")
        assert "while reading /etc/cni/net.d/10-x.conf" == caught.value.details


def test_what_is_not_json_is_code_6() -> None:
    """And what is not an object is code 7."""
    with pytest.raises(DecodeFailure):
        NetworkConfigList.parse(b"{")
    with pytest.raises(InvalidConfig, match=r"^expected object, got array$"):
        NetworkConfigList.parse(b"[]")


def test_an_empty_ipam_names_no_plugin() -> None:
    """Layer 2 only."""
    for ipam in ({}, None, {"type": ""}, {"type": None}):
        assert parse(plugins=[{"type": "bridge", "ipam": ipam}]).plugins[0].ipam_type is None


# -- drop-ins ------------------------------------------------------------------------------------


def test_dropins_are_appended_and_resolved() -> None:
    """L10: `json` stays the main file's bytes, `resolved` stands on its own."""
    network = NetworkConfigList.parse(DBNET).with_dropins([b'{"type":"tuning", "n": 1.0}'])
    network = network.with_dropins([b'{"Type":"sbr"}'])
    assert (DBNET, 2) == (network.json, network.dropins)
    again = NetworkConfigList.parse(network.resolved)
    assert ["bridge", "portmap", "tuning", "sbr"] == [plugin.type for plugin in again.plugins]
    assert [p.fields for p in network.plugins] == [p.fields for p in again.plugins]
    assert b'"n":1.0' in network.resolved
    assert b'"extra":[{"@type": "x"}]' in network.resolved


def test_a_network_may_consist_of_dropins_only() -> None:
    """C8: `plugins` may be absent."""
    network = parse()
    assert () == network.plugins
    network = network.with_dropins([b'{"type": "bridge"}'])
    assert ["bridge"] == [p.type for p in NetworkConfigList.parse(network.resolved).plugins]


def test_dropins_are_ignored_where_only_inlined_plugins_count() -> None:
    """C7: not even looked at."""
    network = parse(plugins=[{"type": "x"}], loadOnlyInlinedPlugins=True)
    assert network is network.with_dropins([b"{"])


def test_a_bad_dropin_is_refused_with_its_place_in_the_chain() -> None:
    """L15: it fails the load."""
    with pytest.raises(InvalidConfig, match=r"^plugins\[3\]\.type: missing$"):
        NetworkConfigList.parse(DBNET).with_dropins([b'{"type": "tuning"}', b"{}"])


# -- request configs -----------------------------------------------------------------------------


def test_a_plugins_members_reach_it_as_they_were_written() -> None:
    """Q5: unknown keys, key order, big integers and the spelling of floats."""
    network = NetworkConfigList.parse(DBNET)
    expected = (
        b'{"cniVersion":"1.0.0","name":"dbnet","type":"bridge","mtu":1500.0,'
        b'"big":123456789012345678901234567890,"ipam":{"type": "host-local", "x": [1.50]}}'
    )
    assert expected == request_config(network, network.plugins[0])


def test_injected_keys_have_no_second_spelling() -> None:
    """Q1: Go reads the last of two spellings, which must not be the user's."""
    network = parse(
        cniVersion="1.0.0",
        plugins=[
            {"type": "x", "Name": "y", "CNIVersion": "0.1.0", "PrevResult": {}, "runtimeconfig": {}}
        ],
    )
    request = request_config(network, network.plugins[0], prev_result=b'{"ips": []}')
    assert b'{"cniVersion":"1.0.0","name":"dbnet","type":"x","prevResult":{"ips": []}}' == request


def test_keys_of_the_runtime_do_not_reach_a_plugin() -> None:
    """Q4, Q5, Q8: in whatever case they are spelled; a key `plugins` of a plugin is its own."""
    plugin = {
        "type": "x",
        "Capabilities": {},
        "cniversions": [],
        "disablecheck": True,
        "DisableGC": True,
        "loadOnlyInlinedPlugins": True,
        "cni.dev/valid-attachments": [],
        "CNI.dev/x": 1,
        "plugins": 1,
        "args": {},
    }
    network = parse(plugins=[plugin])
    assert ["cniVersion", "name", "type", "plugins", "args"] == keys(
        request_config(network, network.plugins[0])
    )


def test_runtime_config_holds_what_is_declared_and_supplied() -> None:
    """Q2: and is left out when empty."""
    network = NetworkConfigList.parse(DBNET)
    bridge, portmap = network.plugins
    supplied = {"mac": Raw(b'"aa:bb:cc:dd:ee:ff"'), "ips": Raw(b"[]"), "portMappings": Raw(b"[ ]")}
    given = json.loads(request_config(network, bridge, runtime_config=supplied))
    assert {"mac": "aa:bb:cc:dd:ee:ff"} == given["runtimeConfig"]
    assert b'"runtimeConfig":{"portMappings":[ ]}' in request_config(
        network, portmap, runtime_config=supplied
    )
    assert "runtimeConfig" not in keys(request_config(network, portmap, runtime_config={}))
    assert "runtimeConfig" not in keys(
        request_config(network, portmap, runtime_config={"mac": Raw(b'""')})
    )


@pytest.mark.parametrize("prev_result", [None, b"", b"null"])
def test_no_prev_result_is_no_key(prev_result: bytes | None) -> None:
    """Q3: the first plugin of an ADD has none."""
    network = NetworkConfigList.parse(DBNET)
    request = request_config(network, network.plugins[0], prev_result=prev_result)
    assert "prevResult" not in keys(request)


def test_extra_members_replace_the_users() -> None:
    """R20: a GC names the valid attachments."""
    network = parse(plugins=[{"type": "x", "Trace": 1}])
    extra = {"cni.dev/valid-attachments": Raw(b"[]"), "trace": Raw(b"2")}
    request = request_config(network, network.plugins[0], extra=extra)
    assert request.endswith(b'"type":"x","cni.dev/valid-attachments":[],"trace":2}')


@pytest.mark.parametrize("extra", [{"": Raw(b"1")}, {"a": Raw(b"null")}])
def test_empty_keys_and_values_are_not_injected(extra: dict[str, Raw]) -> None:
    """Q7: an error, as in libcni."""
    network = NetworkConfigList.parse(DBNET)
    with pytest.raises(InvalidConfig, match="cannot inject"):
        request_config(network, network.plugins[0], extra=extra)


@given(
    st.dictionaries(
        st.text(max_size=6), st.text(max_size=4) | st.integers() | st.none(), max_size=5
    )
)
def test_any_members_survive(members: dict[str, Any]) -> None:
    """Q5: whatever a plugin object holds besides."""
    known = {"type", "ipam", "capabilities", "cniversion", "name", "runtimeconfig", "prevresult"}
    members = {k: v for k, v in members.items() if jsonio.fold_key(k) not in known}
    plugin = PluginConfig.parse(json.dumps({"type": "x", **members}).encode())
    network = parse(plugins=[{"type": "x"}])
    request = json.loads(request_config(network, plugin))
    assert members == {k: request[k] for k in members}


@given(st.binary(max_size=60))
def test_no_bytes_raise_anything_but_a_cni_error(data: bytes) -> None:
    """Neither in the list nor in a plugin object."""
    for document in (data, b'{"name":"n","plugins":[{"type":"x",%b}]}' % data):
        try:
            network = NetworkConfigList.parse(document)
        except CniError:
            continue
        for plugin in network.plugins:
            assert "n" == jsonio.decode(request_config(network, plugin), dict[str, Any])["name"]
