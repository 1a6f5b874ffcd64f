# SPDX-License-Identifier: Apache-2.0
"""JSON: Go's liberal keys, strict types, the path of every fault, nothing but CNI errors."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw, Struct

from pycni.errors import CniError, DecodeFailure, InvalidConfig, UnsupportedField
from pycni.model import jsonio
from pycni.model.addresses import IPAddress, IPInterface, IPNetwork
from pycni.model.names import IfName, Mac
from pycni.model.request import PortMapping


class Range(Struct, frozen=True):
    subnet: IPInterface
    gateway: IPAddress | None = None


class Ipam(Struct, frozen=True):
    type: str = ""
    ranges: tuple[tuple[Range, ...], ...] = ()
    routes: Sequence[IPNetwork] = ()


class Closed(Struct, frozen=True, forbid_unknown_fields=True):
    port: int


class Nat(Struct, frozen=True, tag="nat", tag_field="kind"):
    toPort: int = 0


class Drop(Struct, frozen=True, tag="drop", tag_field="kind"):
    logPrefix: str = ""


class Tree(Struct, frozen=True):
    leaf: int = 0
    branch: Tree | None = None


class Config(Struct, frozen=True):
    mtu: int = 1500
    ipMasq: bool = False
    rate: float = 0.0
    ipam: Ipam = Ipam()
    master: IfName | None = None
    mac: Mac | None = None
    ports: list[PortMapping] = []
    byName: Mapping[str, Closed] = {}
    capabilities: dict[str, bool] = {}
    labels: dict[str, str | None] = {}
    rules: list[Nat | Drop] = []
    mode: Literal["l2", "l3"] = "l2"
    pair: tuple[int, str] = (0, "")
    either: bool | Closed = False
    tree: Tree = Tree()
    args: Any = None


class Verbatim(Struct, frozen=True):
    mtu: int = 0
    policy: Raw = Raw(b"")
    policies: list[Raw] = []
    byName: dict[str, Raw] = {}
    nested: Inner | None = None
    ipam: Ipam = Ipam()
    mac: Mac | None = None


class Inner(Struct, frozen=True, forbid_unknown_fields=True):
    settings: Raw = Raw(b"")
    values: dict[str, list[Raw] | None] = {}


class Checked(Struct):
    vlan: int = 0

    def __post_init__(self) -> None:
        if self.vlan > 4094:
            raise ValueError("invalid VLAN ID")


class Holder(Struct):
    port: Checked


class Dotted(Struct, rename={"short": "a", "long": "a.b-c"}):
    short: int = 0
    long: list[int] = []


class Chain(Struct):
    next: Chain | None = None
    policy: Raw = Raw(b"")


class Plain(Struct):
    mtu: int = 0
    ipam: Ipam = Ipam()
    mac: Mac | None = None
    byName: dict[str, int] = {}


class WithRaw(Plain):
    extra: Raw = Raw(b"")


class Several(Struct):
    one: str | list[PortMapping] | PortMapping | None = None


class SeveralRaw(Several):
    raw: bool | list[Inner] | Inner = False


class Flat(Struct, array_like=True):
    size: int = 0


class Impossible(Struct):
    extra: Raw | None = None


def fault(data: bytes, kind: Any = Config, where: str = "") -> str:
    """The message a document is refused with."""
    with pytest.raises(InvalidConfig) as caught:
        jsonio.decode(data, kind, where=where)
    return caught.value.msg


# -- keys ----------------------------------------------------------------------------------------


def test_keys_match_without_regard_to_case_at_every_level() -> None:
    """V9: containerd sends HostPort, and Go's plugins take it."""
    config = jsonio.decode(
        b'{"MTU": 9000, "IPAM": {"Ranges": [[{"SUBNET": "10.1.0.5/16"}]]},'
        b' "PORTS": [{"HostPort": 80, "CONTAINERPORT": 8080, "hostip": "10.0.0.1"}],'
        b' "BYNAME": {"Web": {"Port": 1}}, "RULES": [{"Kind": "nat", "TOPORT": 2}],'
        b' "EITHER": {"PORT": 3}, "Tree": {"BRANCH": {"Branch": {"LEAF": 4}}}}',
        Config,
    )
    expected = Config(
        mtu=9000,
        ipam=Ipam(ranges=((Range(subnet=IPv4Interface("10.1.0.5/16")),),)),
        ports=[PortMapping(hostPort=80, containerPort=8080, hostIP=IPv4Address("10.0.0.1"))],
        byName={"Web": Closed(port=1)},
        rules=[Nat(toPort=2)],
        either=Closed(port=3),
        tree=Tree(branch=Tree(branch=Tree(leaf=4))),
    )
    assert expected == config


def test_the_last_match_wins() -> None:
    """V9: in document order, exact or not; a null leaves what came before."""
    assert jsonio.decode(b'{"mtu": 1, "MTU": 2}', Config).mtu == 2
    assert jsonio.decode(b'{"MTU": 2, "mtu": 1}', Config).mtu == 1
    assert jsonio.decode(b'{"mtu": 1, "mtu": 3}', Config).mtu == 3
    assert jsonio.decode(b'{"mtu": 1, "MTU": null}', Config).mtu == 1


def test_keys_fold_as_in_go() -> None:
    """The long s and the Kelvin sign are letters to Go; nothing else outside ASCII is."""
    assert jsonio.decode('{"ipMa\u017fq": true}'.encode(), Config).ipMasq
    assert jsonio.fold_key("\u212aey") == "key"
    assert jsonio.fold_key("stra\u00dfe") != "strasse"


def test_unknown_keys_are_ignored() -> None:
    """C12: a plugin takes what it knows."""
    assert Config() == jsonio.decode(b'{"unknown": {"mtu": 5}}', Config)


def test_null_means_the_default() -> None:
    """At every level, and for the document itself."""
    assert Config() == jsonio.decode(b"null", Config)
    assert Config() == jsonio.decode(b'{"mtu": null, "ipam": null, "ports": null}', Config)
    assert jsonio.decode(b"null", int | None) is None  # type: ignore[arg-type]  # a type form
    config = jsonio.decode(
        b'{"capabilities": {"a": null, "b": true}, "labels": {"c": null}}', Config
    )
    assert ({"b": True}, {"c": None}) == (config.capabilities, config.labels)


def test_an_empty_name_or_address_means_not_given() -> None:
    """Go reads "" as the zero value; an empty CIDR is an error there too."""
    assert Config() == jsonio.decode(b'{"master": "", "mac": ""}', Config)
    document = b'{"ranges": [[{"subnet": "10.0.0.0/8", "gateway": ""}]]}'
    assert jsonio.decode(document, Ipam).ranges[0][0].gateway is None
    assert 'subnet: not a CIDR: ""' == fault(b'{"subnet": ""}', Range)


# -- types and paths -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ('{"mtu": "1500"}', "mtu: expected int, got str"),
        ('{"mtu": 1.0}', "mtu: expected int, got float"),
        ('{"mtu": true}', "mtu: expected int, got bool"),
        ('{"ipMasq": 1}', "ipMasq: expected bool, got int"),
        ('{"ipMasq": "true"}', "ipMasq: expected bool, got str"),
        ('{"ipam": []}', "ipam: expected object, got array"),
        ('{"ports": {}}', "ports: expected array, got object"),
        ('{"byName": []}', "byName: expected object, got array"),
        ('{"IPAM": {"Ranges": [[], [{}]]}}', "IPAM.Ranges[1][0].subnet: missing"),
        (
            '{"ipam": {"ranges": [[{"subnet": "10.0.0.0/8"}, {"subnet": "10.1.0.0/33"}]]}}',
            'ipam.ranges[0][1].subnet: not a CIDR: "10.1.0.0/33"',
        ),
        ('{"ipam": {"routes": ["10.0.0.0/8", 5]}}', "ipam.routes[1]: expected str, got int"),
        ('{"ipam": {"routes": [{}]}}', "ipam.routes[0]: expected str, got object"),
        ('{"ipam": {"routes": [null]}}', "ipam.routes[0]: expected str, got null"),
        (
            '{"Master": "0123456789abcdef"}',
            "Master: interface name is too long: interface name should be less than 16 characters",
        ),
        ('{"mac": "zz"}', 'mac: not a MAC address: "zz"'),
        ('{"ports": [{"HostPort": 1}]}', "ports[0].containerPort: missing"),
        (
            '{"ports": [{"HostPort": "1", "containerPort": 2}]}',
            "ports[0].HostPort: expected int, got str",
        ),
        ('{"capabilities": {"a": true, "b": 1}}', "capabilities.b: expected bool, got int"),
        ('{"capabilities": {"a": null, "b": 1}}', "capabilities.b: expected bool, got int"),
        (
            '{"byName": {"a": {"port": 1}, "B": {"Port": []}}}',
            "byName.B.Port: expected int, got array",
        ),
        ('{"labels": {"a": null, "b": 1}}', "labels.b: expected str | null, got int"),
        ('{"rules": [{"kind": "x"}]}', "rules[0].kind: invalid value 'x'"),
        (
            '{"rules": [{"Kind": "drop", "LOGPREFIX": 1}]}',
            "rules[0].LOGPREFIX: expected str, got int",
        ),
        ('{"mode": "l4"}', "mode: invalid enum value 'l4'"),
        ('{"pair": [1]}', "pair: expected array of length 2, got 1"),
        ('{"pair": [1, 2]}', "pair[1]: expected str, got int"),
        ('{"Tree": {"branch": {"LEAF": "x"}}}', "Tree.branch.LEAF: expected int, got str"),
        (
            '{"ports": [{"hostPort": 1, "containerPort": 2, "hostIP": "x"}]}',
            'ports[0].hostIP: not an IP address: "x"',
        ),
        ('{"rate": %s}' % ("9" * 400), "rate: number out of range"),
        ("[]", "expected object, got array"),
        ('"x"', "expected object, got str"),
    ],
)
def test_a_fault_begins_with_its_path_as_the_user_spelled_it(document: str, message: str) -> None:
    """Nothing is coerced, and no msgspec spelling of a path is left in the message."""
    assert message == fault(document.encode())


def test_where_stands_before_the_path() -> None:
    """A part of a larger document is reported within it."""
    assert "plugins[0].mtu: expected int, got str" == fault(b'{"mtu": ""}', where="plugins[0]")
    assert "plugins[0]: expected object, got array" == fault(b"[]", where="plugins[0]")
    assert "plugins[0].port: missing" == fault(b"{}", Closed, where="plugins[0]")
    assert "cni.args[1]: expected int, got str" == fault(b'[1, ""]', list[int], where="cni.args")


def test_a_key_with_dots_is_found_in_a_path() -> None:
    """`io.kubernetes.cri.pod-annotations` is one key."""

    assert "A.b-c[0]: expected int, got str" == fault(b'{"A.b-c": ["x"]}', Dotted)
    assert "A: expected int, got str" == fault(b'{"A": "x"}', Dotted)


def test_a_key_of_the_wrong_form_names_its_object() -> None:
    """msgspec tells where the key is, not which it is."""
    assert "expected int, got str" == fault(b'{"a": 1}', dict[int, int])


def test_a_key_a_closed_type_does_not_know_is_code_2() -> None:
    """E2: the message names the key and its value."""
    with pytest.raises(UnsupportedField) as caught:
        jsonio.decode(b'{"byName": {"web": {"port": 1, "Extra": {"a": 1.50}}}}', Config)
    assert 'byName.web.Extra: unknown key, its value is {"a":1.5}' == caught.value.msg


def test_a_plugins_own_check_is_reported_with_its_path() -> None:
    """A ValueError of __post_init__ is a fault of the object it looks at."""

    assert "Port: invalid VLAN ID" == fault(b'{"Port": {"VLAN": 5000}}', Holder)


def test_a_bare_value_can_be_read() -> None:
    """A document need not be an object."""
    assert IPv4Network("10.0.0.0/8") == jsonio.decode(b'"10.0.0.0/8"', IPv4Network)
    assert jsonio.decode(b"[1, 2]", list) == [1, 2]
    assert 'not an IP address: "x"' == fault(b'"x"', IPv4Address)
    assert "expected str, got bool" == fault(b"true", Mac)
    assert jsonio.convert({"MTU": 1}, Config).mtu == 1


def test_one_or_many_is_told_by_the_value() -> None:
    """A union folds by the JSON type it is given."""
    port = PortMapping(hostPort=1, containerPort=2)
    one, many = b'{"HostPort": 1, "ContainerPort": 2}', b'[{"HOSTPORT": 1, "containerPort": 2}]'
    for key in (b"one", b"ONE"):
        for kind in (Several, SeveralRaw):
            assert port == jsonio.decode(b'{"%b": %b}' % (key, one), kind).one
            assert [port] == jsonio.decode(b'{"%b": %b}' % (key, many), kind).one
            assert "1" == jsonio.decode(b'{"%b": "1"}' % key, kind).one
    assert jsonio.decode(b'{"Raw": true}', SeveralRaw).raw is True
    found = jsonio.decode(b'{"Raw": [{"Settings": 1.0}]}', SeveralRaw).raw
    assert isinstance(found, list)
    assert b"1.0" == bytes(found[0].settings)
    found = jsonio.decode(b'{"Raw":  {"SETTINGS": 1.0}}', SeveralRaw).raw
    assert isinstance(found, Inner)
    assert b"1.0" == bytes(found.settings)


def test_faults_within_one_or_many_have_their_path() -> None:
    """In an object, in an array, in neither."""
    assert "One.HostPort: expected int, got str" == fault(
        b'{"One": {"HostPort": "", "containerPort": 1}}', Several
    )
    assert "One[0].HostPort: expected int, got str" == fault(
        b'{"One": [{"HostPort": "", "containerPort": 1}]}', Several
    )
    assert "One: expected str | object | array | null, got bool" == fault(b'{"One": true}', Several)
    assert "[0]: expected int, got str" == fault(b'["x"]', Flat)


def test_a_fault_nobody_can_find_again_is_still_reported() -> None:
    """Should msgspec blame a member that passes by itself."""
    plan = jsonio._Map(jsonio._LEAF, int)
    assert ".*" == plan.step({"a": 1}, "[...]").spelled


# -- verbatim parts ------------------------------------------------------------------------------


def test_raw_parts_stay_verbatim_while_their_surroundings_fold() -> None:
    """Key case, big integers and float spelling of a Raw are the writer's."""
    document = (
        b'{"MTU": 5, "Policy": {"Type": 1.50, "type": 12345678901234567890123},'
        b' "POLICIES": [{"A": 1.0}, null], "byname": {"X": [1.0]}, "unknown": 1,'
        b' "NESTED": {"Settings": {"B": 2.0}, "VALUES": {"k": [3.0], "n": null}},'
        b' "IPAM": {"TYPE": "x", "Ranges": [[{"Subnet": "10.0.0.0/8"}]]}, "Mac": ""}'
    )
    found = jsonio.decode(document, Verbatim)
    assert found.nested is not None
    assert bytes(found.policy) == b'{"Type": 1.50, "type": 12345678901234567890123}'
    assert [bytes(raw) for raw in found.policies] == [b'{"A": 1.0}', b"null"]
    assert {"X": b"[1.0]"} == {key: bytes(raw) for key, raw in found.byName.items()}
    assert bytes(found.nested.settings or b"") == b'{"B": 2.0}'
    assert [bytes(raw) for raw in found.nested.values["k"] or ()] == [b"3.0"]
    assert found.nested.values["n"] is None
    assert (5, "x", None) == (found.mtu, found.ipam.type, found.mac)
    assert IPv4Interface("10.0.0.0/8") == found.ipam.ranges[0][0].subnet


def test_faults_around_raw_parts_have_their_path_too() -> None:
    """The same messages come from both ways of reading."""
    assert "MTU: expected int, got str" == fault(b'{"MTU": ""}', Verbatim)
    assert "expected object, got array" == fault(b"[]", Verbatim)
    assert "Nested: expected object | null, got int" == fault(b'{"Nested": 1}', Verbatim)
    assert "Policies: expected array, got object" == fault(b'{"Policies": {}}', Verbatim)
    assert "ByName: expected object, got array" == fault(b'{"ByName": []}', Verbatim)
    assert Verbatim() == jsonio.decode(b"null", Verbatim)
    with pytest.raises(UnsupportedField, match=r"^nested\.x: unknown key, its value is 1$"):
        jsonio.decode(b'{"nested": {"x": 1}}', Verbatim)


def test_the_members_of_an_object_come_verbatim_and_in_order() -> None:
    """Later duplicates win; null is an empty object."""
    members = jsonio.decode_raw_object(b' {"b": 1.0, "a": [ 1 ], "b": 2.50} ')
    assert [("b", b"2.50"), ("a", b"[ 1 ]")] == [(k, bytes(v)) for k, v in members.items()]
    assert {} == jsonio.decode_raw_object(b"null")
    assert list(jsonio.decode_raw_object('{"é": 1}'.encode())) == ["é"]
    assert list(jsonio.decode_raw_object(Raw(b'{"a": 1}'))) == ["a"]
    with pytest.raises(InvalidConfig, match=r"^prevResult: expected object, got array$"):
        jsonio.decode_raw_object(b"[]", where="prevResult")


# -- not JSON ------------------------------------------------------------------------------------

NOT_JSON = [
    (b"", "the document is empty"),
    (b" \n", "the document is empty"),
    (b'{"a": NaN}', "invalid character (byte 6)"),
    (b"{} {}", "trailing characters (byte 3)"),
    (b'{"a": 1,}', "trailing comma in object (byte 8)"),
    (b'{"a": "\xff"}', "invalid UTF-8"),
    (b'{"a": "\\ud800"}', ""),
    (b"\xef\xbb\xbf{}", "invalid character (byte 0)"),
    (b"[" * 100_000, ""),
    (b'{"a":' * 5000 + b"1" + b"}" * 5000, "nested too deep"),
]


@pytest.mark.parametrize(("document", "reason"), NOT_JSON, ids=lambda value: repr(value)[:30])
def test_what_is_not_one_json_document_is_code_6(document: bytes, reason: str) -> None:
    """By every way of reading."""
    for kind in (Config, Verbatim, dict[str, Raw]):
        with pytest.raises(DecodeFailure) as caught:
            jsonio.decode(document, kind, where="x")  # type: ignore[arg-type]  # several types
        assert caught.value.msg.startswith("x: ")
    with pytest.raises(CniError) as raised:
        jsonio.decode_raw_object(document, where="x")
    assert reason.split(" (")[0] in raised.value.msg
    with pytest.raises(DecodeFailure):
        jsonio.loads(document)


def test_numbers_too_large_are_code_6() -> None:
    """Go cannot hold them either."""
    with pytest.raises(DecodeFailure, match=r"^not valid JSON: number out of range$"):
        jsonio.loads(b'{"a": 1e999}')


@pytest.mark.parametrize("depth", [100, 250, 400, 600, 950])
@pytest.mark.parametrize("document", ['{"Branch":', '{"NEXT":'])
def test_deep_documents_are_read_or_refused(document: str, depth: int) -> None:
    """A type that holds itself is folded as deep as the document goes."""
    data = (document * depth + "{}" + "}" * depth).encode()
    for kind in (Tree, Chain):
        with contextlib.suppress(DecodeFailure):
            jsonio.decode(data, kind)  # type: ignore[type-var]  # several types


def nested(levels: int) -> bytes:
    """A document of that many objects, one in the other."""
    return b'{"a":' * levels + b'"[{"' + b"}" * levels


def test_documents_are_nested_up_to_a_limit() -> None:
    """The same on every interpreter; what stands in strings does not count."""
    assert jsonio.loads(nested(jsonio.MAX_DEPTH))
    with pytest.raises(DecodeFailure, match="more than 512 levels"):
        jsonio.loads(nested(jsonio.MAX_DEPTH + 1))
    many = [{"text": "[[[" * 600}, [{}] * 600]
    assert many == jsonio.loads(jsonio.encode(many))


def test_endless_values_are_code_6() -> None:
    """Only a caller's own Python value can be endless."""
    with pytest.raises(DecodeFailure, match=r"^x: nested too deep$"):
        jsonio.convert(endless(), Tree, where="x")


def test_folding_verbatim_too_deep_is_code_6(monkeypatch: pytest.MonkeyPatch) -> None:
    """How deep is too deep depends on the caller's own stack."""

    def overflow(*_: object) -> bytes:
        raise RecursionError

    monkeypatch.setattr(jsonio._Object, "fold_bytes", overflow)
    with pytest.raises(DecodeFailure, match=r"^x: nested too deep$"):
        jsonio.decode(b"{}", Verbatim, where="x")


def test_an_optional_raw_is_refused_when_the_type_is_first_used() -> None:
    """msgspec would take null only; a Raw with a default says the same."""
    with pytest.raises(TypeError, match="give it a default"):
        jsonio.decode(b"{}", Impossible)


def endless() -> dict[str, Any]:
    """An object that holds itself."""
    value: dict[str, Any] = {}
    value["branch"] = value
    return value


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "mtu",
                    "MTU",
                    "ipam",
                    "Ranges",
                    "subnet",
                    "ports",
                    "byName",
                    "x",
                    "rules",
                    "Kind",
                    "either",
                    "pair",
                    "tree",
                    "branch",
                    "policy",
                    "NESTED",
                    "settings",
                    "values",
                    "labels",
                    "capabilities",
                    "mac",
                    "master",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(st.binary(max_size=40) | JSON.map(lambda value: json.dumps(value).encode()))
def test_no_document_raises_anything_but_a_cni_error(document: bytes) -> None:
    """Whatever arrives, the caller gets a code and a message."""
    for kind in (Config, Verbatim, dict[str, Raw], list[PortMapping], Closed, Tree):
        try:
            jsonio.decode(document, kind)  # type: ignore[arg-type]  # several types
        except CniError as error:
            assert type(error) in (DecodeFailure, InvalidConfig, UnsupportedField)  # noqa: PT017
    with contextlib.suppress(DecodeFailure, InvalidConfig):
        jsonio.decode_raw_object(document)


@given(JSON)
def test_both_ways_of_reading_agree(value: Any) -> None:
    """A Raw elsewhere in a type changes nothing for its other fields."""
    document = json.dumps(value).encode()
    outcomes = []
    for kind in (Plain, WithRaw):
        try:
            found = jsonio.decode(document, kind)
        except CniError as error:
            # msgspec has other words for numbers beyond 64 bits in its two ways of reading.
            outcomes.append((type(error), error.msg.rpartition(": ")[0]))
        else:
            outcomes.append((found.mtu, found.ipam, found.mac, found.byName))
    assert outcomes[0] == outcomes[1]


# -- writing -------------------------------------------------------------------------------------


def test_custom_types_are_written_as_text() -> None:
    """Addresses, CIDRs, networks and names."""
    values = [
        IPv4Address("1.2.3.4"),
        IPv4Interface("1.2.3.4/8"),
        IPv4Network("1.0.0.0/8"),
        Mac("aa"),
    ]
    assert b'["1.2.3.4","1.2.3.4/8","1.0.0.0/8","aa"]' == jsonio.encode(values)


def test_gos_layout_escapes_html() -> None:
    """As encoding/json does it, in keys and values alike."""
    expected = b'{"\\u003ca\\u003e":"\\u0026\\u2028\\u2029\xc3\xa9"}'
    assert expected == jsonio.encode_go({"<a>": "&\u2028\u2029é"})


def test_gos_layout_indents() -> None:
    """Empty arrays and objects stay on one line."""
    expected = b'{\n    "a": [],\n    "b": {},\n    "c": [\n        1\n    ]\n}'
    assert expected == jsonio.encode_go({"a": [], "b": {}, "c": [1]}, indent=4)


def test_an_object_is_joined_from_members_as_they_are() -> None:
    """Keys are escaped, values are not touched."""
    assert b'{"a\\"":1.50,"b":{ }}' == jsonio.join_object({'a"': b"1.50", "b": Raw(b"{ }")})
