# SPDX-License-Identifier: Apache-2.0
"""CNI SPEC 1.1.0, the lines that concern data.

Configurations (C), what a runtime hands over (R, Q), results (V), errors (E). Each test is named
by its line of the conformance list; lines about processes, verbs and state are tested where those
live.
"""

from __future__ import annotations

import json
from ipaddress import IPv4Address, IPv4Interface, IPv6Interface
from typing import Any

import pytest
from msgspec import Raw

from pycni import errors
from pycni.errors import (
    CniError,
    DecodeFailure,
    InvalidConfig,
    InvalidEnvironment,
    UnknownContainer,
    UnsupportedField,
)
from pycni.model import jsonio
from pycni.model.config import NetworkConfigList, request_config
from pycni.model.names import ContainerId, IfName
from pycni.model.request import Attachment, CniArgs, RuntimeConfig, Verb
from pycni.model.result import DNS, Interface, IPConfig, Result, Route
from pycni.model.version import GATES, SUPPORTED, at_least
from pycni.model.wire_error import encode_error, parse_error
from pycni.plugins.sdk import Config

BRIDGE = {"type": "bridge"}


def load(**members: Any) -> NetworkConfigList:
    """The list of these members, with a name and one plugin unless given."""
    return NetworkConfigList.parse(
        json.dumps({"cniVersion": "1.1.0", "name": "net", "plugins": [BRIDGE], **members}).encode()
    )


def refusal(**members: Any) -> InvalidConfig:
    """The error that list is refused with."""
    with pytest.raises(InvalidConfig) as caught:
        load(**members)
    return caught.value


def request(network: NetworkConfigList, index: int = 0, **given: Any) -> dict[str, Any]:
    """The decoded request config of one plugin."""
    decoded: dict[str, Any] = json.loads(request_config(network, network.plugins[index], **given))
    return decoded


# -- C: network configuration --------------------------------------------------------------------


def test_C1_a_configuration_is_a_json_object_with_a_semver_string() -> None:
    """Anything else is code 6 or 7."""
    assert "1.1.0" == load().cniVersion
    assert "cniVersion: expected str, got int" == refusal(cniVersion=1).msg
    assert 'cniVersion: not a version: "one"' == refusal(cniVersion="one").msg
    with pytest.raises(InvalidConfig, match="expected object, got array"):
        NetworkConfigList.parse(b"[]")
    with pytest.raises(DecodeFailure):
        NetworkConfigList.parse(b"name: net")


def test_C2_cni_versions_is_a_list_of_strings() -> None:
    """Kept as written, beside the version selected from it."""
    assert ("0.4.0", "1.0.0") == load(cniVersions=["0.4.0", "1.0.0"]).cniVersions
    assert "cniVersions[0]: expected str, got int" == refusal(cniVersions=[1]).msg


@pytest.mark.parametrize("name", ["", ".a", "a/b", "a\\b", "a b", "-a", "a\n", "ä"])
def test_C3_a_name_starts_alphanumeric_and_is_safe_in_a_path(name: str) -> None:
    """Code 7, whichever character it is."""
    assert 7 == refusal(name=name).code
    assert "a_b.c-d" == load(name="a_b.c-d").name


@pytest.mark.parametrize("key", ["disableCheck", "disableGC", "loadOnlyInlinedPlugins"])
def test_C4_C5_C6_switches_are_bools_or_the_words_true_and_false(key: str) -> None:
    """C4 and C5 read two of them; C6 [L]: the words in any case, else an error."""
    for value, expected in (
        (True, True),
        ("TRUE", True),
        ("true", True),
        (False, False),
        ("False", False),
    ):
        assert expected is getattr(load(**{key: value}), key)
    for value in (1, "yes", "", [], {}):
        assert refusal(**{key: value}).msg.startswith(f"{key}: expected bool")
    assert False is getattr(load(), key)


def test_C7_drop_in_objects_are_appended_unless_only_inlined() -> None:
    """The sentence of the SPEC that says the opposite is a slip; the code follows this one."""
    dropins = [b'{"type": "tuning"}', b'{"type": "sbr"}']
    types = [plugin.type for plugin in load().with_dropins(dropins).plugins]
    assert ["bridge", "tuning", "sbr"] == types
    only = load(loadOnlyInlinedPlugins=True).with_dropins(dropins)
    assert ["bridge"] == [plugin.type for plugin in only.plugins]


def test_C7_only_inlined_plugins_need_inlined_plugins() -> None:
    """loadOnlyInlinedPlugins MUST NOT be true when `plugins` is absent."""
    with pytest.raises(InvalidConfig, match="loadOnlyInlinedPlugins"):
        NetworkConfigList.parse(b'{"name": "n", "loadOnlyInlinedPlugins": true}')


def test_C8_plugins_is_a_list_with_members_or_absent() -> None:
    """[L]: absent is allowed when plugins may come from elsewhere."""
    for plugins in ([], None, {}, "bridge"):
        assert refusal(plugins=plugins).msg.startswith("plugins: ")
    assert () == NetworkConfigList.parse(b'{"name": "n"}').plugins


@pytest.mark.parametrize(
    "plugin", [{}, {"type": ""}, {"type": "a/b"}, {"type": "a\\b"}, {"type": 1}]
)
def test_C9_a_plugin_has_a_type_without_separators(plugin: dict[str, Any]) -> None:
    """The path names the plugin object."""
    assert refusal(plugins=[BRIDGE, plugin]).msg.startswith("plugins[1].type: ")


def test_C10_every_plugin_object_is_validated() -> None:
    """Drop-ins too, counted on from the inlined ones."""
    with pytest.raises(InvalidConfig, match=r"^plugins\[1\]\.type: missing$"):
        load().with_dropins([b"{}"])


def test_C11_reserved_keys_do_not_pass() -> None:
    """What a configuration holds of them gives way to what the runtime puts there."""
    plugin = {
        **BRIDGE,
        "runtimeConfig": {"mac": "x"},
        "cni.dev/valid-attachments": [1],
        "args": {"a": 1},
    }
    assert {"cniVersion": "1.1.0", "name": "net", "type": "bridge", "args": {"a": 1}} == request(
        load(plugins=[plugin])
    )


def test_C12_unknown_plugin_keys_pass_unchanged() -> None:
    """Byte for byte: numbers keep their spelling."""
    member = b'"x": {"Z": 1.50, "a": 12345678901234567890, "a ": [ ]}'
    network = NetworkConfigList.parse(b'{"name": "n", "plugins": [{"type": "t", %b}]}' % member)
    sent = request_config(network, network.plugins[0])
    assert member.removeprefix(b'"x": ') in sent


def test_C12_a_plugin_may_refuse_unknown_keys() -> None:
    """With code 2, naming key and value."""

    with pytest.raises(UnsupportedField) as caught:
        jsonio.decode(b'{"name": "n", "mtuu": 1}', Strict)
    assert (2, "mtuu: unknown key, its value is 1") == (caught.value.code, caught.value.msg)


class Strict(Config, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A configuration of the well-known keys and no other."""


def test_C13_well_known_keys_keep_their_meaning() -> None:
    """ipam.type and dns are read for every plugin; their other members are left alone."""
    document = {
        "name": "n",
        "ipam": {"type": "host-local", "subnet": "10.0.0.0/8"},
        "dns": {"nameservers": ["1.1.1.1"], "domain": "d", "search": ["s"], "options": ["o"]},
    }
    config = jsonio.decode(json.dumps(document).encode(), Config)
    assert "host-local" == config.ipam.type
    assert DNS(nameservers=("1.1.1.1",), domain="d", search=("s",), options=("o",)) == config.dns
    assert "host-local" == load(plugins=[{"type": "bridge", **document}]).plugins[0].ipam_type


def test_C14_the_highest_version_both_know_is_selected() -> None:
    """Of cniVersion and cniVersions; newer ones than ours are skipped, malformed ones refused."""
    assert "1.1.0" == load(cniVersion="0.4.0", cniVersions=["1.0.0", "1.1.0", "2.0.0"]).cniVersion
    assert "0.4.0" == load(cniVersion="0.4.0", cniVersions=[]).cniVersion
    assert "0.1.0" == load(cniVersion="").cniVersion
    assert "2.0.0" == load(cniVersion="2.0.0").cniVersion
    assert 'cniVersions[1]: not a version: "x"' == refusal(cniVersions=["1.0.0", "x"]).msg


def test_C15_C16_a_configuration_is_immutable_and_keeps_its_bytes() -> None:
    """What ADD used, DEL can use again."""
    data = b' {"name" : "n", "plugins": [{"type":"t"}]}\n'
    network = NetworkConfigList.parse(data)
    assert data == network.json
    with pytest.raises(AttributeError):
        network.name = "m"  # type: ignore[misc, assignment]  # that it is frozen is the point


# -- R: what a runtime hands over ----------------------------------------------------------------


@pytest.mark.parametrize("text", [".a", "a/b", "a b", "a\n", "_a"])
def test_R8_a_container_id_starts_alphanumeric(text: str) -> None:
    """L1: code 4, and code 3 when it is empty."""
    with pytest.raises(InvalidEnvironment):
        ContainerId.parse(text)
    with pytest.raises(UnknownContainer):
        ContainerId.parse("")


def test_R9_there_are_six_verbs() -> None:
    """The list of CNI_COMMAND values in the SPEC lacks STATUS."""
    assert ["ADD", "DEL", "CHECK", "GC", "STATUS", "VERSION"] == [str(verb) for verb in Verb]


def test_R12_cni_args_are_pairs() -> None:
    """L18: unknown keys are an error unless IgnoreUnknown says otherwise."""
    assert {"A": "1", "B": "2"} == CniArgs.pairs("A=1;B=2")
    with pytest.raises(InvalidEnvironment, match="invalid pair"):
        CniArgs.parse("A")
    with pytest.raises(InvalidEnvironment, match="unknown args"):
        CniArgs.parse("A=1")
    assert CniArgs.parse("A=1;IgnoreUnknown=true").IgnoreUnknown


def test_R15_each_plugin_gets_its_predecessors_result() -> None:
    """The first has none."""
    network = load(plugins=[BRIDGE, {"type": "tuning"}])
    assert "prevResult" not in request(network)
    assert {"ips": []} == request(network, 1, prev_result=b'{"ips": []}')["prevResult"]


def test_R19_R20_R21_verbs_have_version_gates() -> None:
    """CHECK from 0.4.0; GC and STATUS from 1.1.0."""
    allowed = {verb: [v for v in SUPPORTED if at_least(v, GATES[verb])] for verb in Verb}
    assert list(SUPPORTED) == allowed[Verb.ADD] == allowed[Verb.DEL]
    assert ["0.4.0", "1.0.0", "1.1.0"] == allowed[Verb.CHECK]
    assert ["1.1.0"] == allowed[Verb.GC] == allowed[Verb.STATUS]


def test_R20_valid_attachments_are_pairs_of_container_and_interface() -> None:
    """Under the key of the SPEC and of older runtimes alike."""
    attachments = (Attachment(ContainerId("c1"), IfName("eth0")),)
    value = Raw(jsonio.encode(attachments))
    extra = {"cni.dev/valid-attachments": value, "cni.dev/attachments": value}
    sent = request(load(), extra=extra)
    expected = [{"containerID": "c1", "ifname": "eth0"}]
    assert expected == sent["cni.dev/valid-attachments"] == sent["cni.dev/attachments"]


def test_R24_results_without_interfaces_or_with_index_minus_one_are_taken() -> None:
    """spec-upgrades.md: plugins that predate interfaces."""
    ip = b'{"version": "4", "interface": -1, "address": "10.0.0.5/8"}'
    data = b'{"cniVersion": "0.3.1", "ips": [%b]}' % ip
    result = Result.parse(data)
    assert ((), -1) == (result.interfaces, result.ips[0].interface)


# -- Q: deriving the request config --------------------------------------------------------------


def test_Q1_version_and_name_are_those_of_the_list() -> None:
    """Whatever the plugin object says."""
    plugin = {**BRIDGE, "cniVersion": "0.1.0", "NAME": "other"}
    network = load(cniVersion="0.4.0", cniVersions=["1.0.0"], plugins=[plugin])
    assert {"cniVersion": "1.0.0", "name": "net", "type": "bridge"} == request(network)


def test_Q2_runtime_config_is_what_is_declared_and_supplied() -> None:
    """Omitted when nothing is both."""
    network = load(plugins=[{**BRIDGE, "capabilities": {"mac": True, "ips": False, "dns": True}}])
    supplied = {"mac": Raw(b'"m"'), "ips": Raw(b"[]"), "aliases": Raw(b"[]")}
    assert {"mac": "m"} == request(network, runtime_config=supplied)["runtimeConfig"]
    assert "runtimeConfig" not in request(network, runtime_config={"ips": Raw(b"[]")})


def test_Q3_Q6_prev_result_and_runtime_config_are_absent_unless_given() -> None:
    """On the first ADD, on GC and on STATUS."""
    assert ["cniVersion", "name", "type"] == list(request(load()))


def test_Q4_capabilities_do_not_reach_the_plugin() -> None:
    """libcni leaves them in; the SPEC does not."""
    assert "capabilities" not in request(load(plugins=[{**BRIDGE, "capabilities": {"mac": True}}]))


def test_Q5_cni_dev_keys_of_a_configuration_are_dropped() -> None:
    """Their meaning is the runtime's."""
    assert "cni.dev/x" not in request(load(plugins=[{**BRIDGE, "cni.dev/x": 1}]))


def test_Q7_empty_keys_and_null_values_are_not_injected() -> None:
    """[L]: an error."""
    for extra in ({"": Raw(b"1")}, {"k": Raw(b"null")}):
        with pytest.raises(InvalidConfig, match="cannot inject"):
            request(load(), extra=extra)


def test_Q8_list_level_keys_do_not_reach_the_plugin() -> None:
    """Nor do they when a plugin object of a single-plugin file holds them."""
    switches = {"cniVersions": ["1.1.0"], "disableCheck": True, "disableGC": True}
    assert ["cniVersion", "name", "type"] == list(request(load(**switches)))
    single = NetworkConfigList.parse(json.dumps({"name": "n", **BRIDGE, **switches}).encode())
    assert (["cniVersion", "name", "type"], True) == (list(request(single)), single.disableGC)


def test_Q9_capabilities_have_conventional_shapes() -> None:
    """In the capitals containerd sends them in."""
    config = jsonio.decode(
        b'{"PortMappings": [{"HostPort": 1, "ContainerPort": 2}]}', RuntimeConfig
    )
    assert (1, 2, "tcp") == (
        config.portMappings[0].hostPort,
        config.portMappings[0].containerPort,
        config.portMappings[0].protocol,
    )


# -- V: results ----------------------------------------------------------------------------------

ADDRESS = IPConfig(
    address=IPv4Interface("10.1.0.5/16"), gateway=IPv4Address("10.1.0.1"), interface=0
)
ADDRESS6 = IPConfig(address=IPv6Interface("fd00::5/64"))
FULL = Result(
    interfaces=(
        Interface(name="eth0", mac="aa:bb:cc:dd:ee:ff", mtu=9000, sandbox="/x", pciID="p"),
    ),
    ips=(ADDRESS, ADDRESS6),
    routes=(Route(dst=IPv4Interface("0.0.0.0/0"), mtu=1400, table=0, scope=253),),
)


def printed(version: str, result: Result = FULL) -> Any:
    """The result in that version, decoded."""
    return json.loads(result.encode(version))


@pytest.mark.parametrize("version", ["0.1.0", "0.2.0"])
def test_V1_the_oldest_results_have_one_address_per_family(version: str) -> None:
    """A missing or empty version means 0.1.0."""
    expected = {
        "cniVersion": version,
        "ip4": {"ip": "10.1.0.5/16", "gateway": "10.1.0.1", "routes": [{"dst": "0.0.0.0/0"}]},
        "ip6": {"ip": "fd00::5/64"},
        "dns": {},
    }
    assert expected == printed(version)
    assert "0.1.0" == Result.parse(b'{"ip4": {"ip": "1.2.3.4/8"}}').cniVersion


@pytest.mark.parametrize("version", ["0.3.0", "0.3.1", "0.4.0"])
def test_V2_results_of_0_3_have_interfaces_and_numbered_families(version: str) -> None:
    """Under the key `ips`, which the text of 0.3.0 spells `ip`."""
    document = printed(version)
    assert [{"name": "eth0", "mac": "aa:bb:cc:dd:ee:ff", "sandbox": "/x"}] == document["interfaces"]
    assert ["4", "6"] == [ip["version"] for ip in document["ips"]]


@pytest.mark.parametrize("version", ["1.0.0", "1.1.0"])
def test_V3_V4_results_of_1_x_have_no_family_and_all_fields(version: str) -> None:
    """Go writes the new fields under the 1.0.0 label too."""
    document = printed(version)
    assert {"address": "10.1.0.5/16", "gateway": "10.1.0.1", "interface": 0} == document["ips"][0]
    assert (9000, "p") == (document["interfaces"][0]["mtu"], document["interfaces"][0]["pciID"])
    assert [{"dst": "0.0.0.0/0", "mtu": 1400, "scope": 253, "table": 0}] == document["routes"]


def test_V5_a_result_has_the_version_of_the_request() -> None:
    """A plugin's result without one has the configuration's; null is an empty result."""
    for version in SUPPORTED:
        assert version == printed(version)["cniVersion"]
        assert Result(cniVersion=version) == Result.parse(b"null", default_version=version)


def test_V6_an_ipam_result_has_neither_interfaces_nor_indexes() -> None:
    """What it leaves out is left out again."""
    result = Result(ips=(IPConfig(address=IPv4Interface("10.0.0.5/8")),))
    assert {"cniVersion": "1.1.0", "ips": [{"address": "10.0.0.5/8"}]} == printed("1.1.0", result)


def test_V7_zero_is_not_absent() -> None:
    """For an interface index, a table and a scope."""
    ip, route = b'{"address": "1.2.3.4/8", "interface": 0}', b'{"dst": "::/0", "table": 0}'
    data = b'{"ips": [%b], "routes": [%b]}' % (ip, route)
    result = Result.parse(data, default_version="1.1.0")
    assert (0, 0, None) == (result.ips[0].interface, result.routes[0].table, result.routes[0].scope)
    assert json.loads(data) | {"cniVersion": "1.1.0"} == printed("1.1.0", result)


def test_V7_dns_and_addresses() -> None:
    """An empty dns is printed below 1.0.0; host bits are kept; leading zeros are refused."""
    assert {} == printed("0.4.0", Result())["dns"]
    assert "dns" not in printed("1.0.0", Result())
    assert "10.1.0.5/16" == printed("1.0.0")["ips"][0]["address"]
    with pytest.raises(DecodeFailure, match="not a CIDR"):
        Result.parse(b'{"cniVersion": "1.0.0", "ips": [{"address": "10.1.0.05/16"}]}')


def test_V8_conversion_down() -> None:
    """Extra route fields stay in 0.3 and 0.4; without an address there is no 0.2."""
    assert [{"dst": "0.0.0.0/0", "mtu": 1400, "table": 0, "scope": 253}] == printed("0.4.0")[
        "routes"
    ]
    with pytest.raises(CniError, match="cannot convert: no valid IP addresses"):
        Result().encode("0.2.0")
    with pytest.raises(CniError, match="cannot convert"):
        FULL.encode("0.3.2")


def test_V8_conversion_up_loses_nothing() -> None:
    """From 0.2: both addresses, gateways and routes; no interfaces."""
    old = Result.parse(FULL.encode("0.2.0"))
    assert ["10.1.0.5/16", "fd00::5/64"] == [str(ip.address) for ip in old.ips]
    assert (["0.0.0.0/0"], ()) == ([str(route.dst) for route in old.routes], old.interfaces)


def test_V9_keys_fold_and_unknown_ones_are_dropped() -> None:
    """Liberal in, canonical out."""
    data = b'{"CNIVersion": "1.0.0", "IPS": [{"Address": "1.2.3.4/8", "x": 1}], "y": {}}'
    assert b'{"cniVersion":"1.0.0","ips":[{"address":"1.2.3.4/8"}]}' == Result.parse(data).encode(
        "1.0.0"
    )


# -- E: errors -----------------------------------------------------------------------------------


def test_E1_an_error_has_version_code_message_and_details() -> None:
    """Go leaves the version out, and empty details."""
    error = CniError.from_wire(7, "m", "d")
    expected = {"cniVersion": "1.0.0", "code": 7, "msg": "m", "details": "d"}
    assert expected == json.loads(encode_error(error, "1.0.0"))
    assert b'{\n    "code": 999,\n    "msg": "\\u003cm\\u003e"\n}' == encode_error(CniError("<m>"))


def test_E2_the_codes_are_the_specs() -> None:
    """8 and 999 are libcni's."""
    kinds = {
        1: errors.IncompatibleVersion,
        2: errors.UnsupportedField,
        3: errors.UnknownContainer,
        4: errors.InvalidEnvironment,
        5: errors.IOFailure,
        6: errors.DecodeFailure,
        7: errors.InvalidConfig,
        8: errors.InvalidNetns,
        11: errors.TryAgain,
        50: errors.NotAvailable,
        51: errors.LimitedConnectivity,
        999: errors.CniError,
    }
    assert kinds == {code: type(CniError.from_wire(code, "m")) for code in kinds}


def test_E3_a_plugins_stdout_is_its_error() -> None:
    """Keys fold here too; what is no error object is for the executor to describe."""
    error = parse_error(b'{"Code": 100, "Msg": "m", "Details": "d"}')
    assert (100, "m", "d") == (error.wire_code, error.msg, error.details)
    for data in (b"", b"panic", b"{}", b"[1]"):
        with pytest.raises(DecodeFailure):
            parse_error(data)
