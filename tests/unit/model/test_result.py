# SPDX-License-Identifier: Apache-2.0
"""Results: every version in, every version out, byte for byte as Go prints them.

The vectors of 0.1.0 to 0.4.0 were printed by Debian's containernetworking-plugins 1.1.1 (`static`
and, for interfaces, `portmap` without mappings); those of 1.x follow plugins main.
"""

from __future__ import annotations

import json
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycni.errors import CniError, DecodeFailure, IncompatibleVersion
from pycni.model.result import DNS, Interface, IPConfig, Result, Route
from pycni.model.version import SUPPORTED

RESULT = Result(
    cniVersion="1.1.0",
    interfaces=(
        Interface(name="br0", mac="aa:bb:cc:dd:ee:ff", mtu=1500, socketPath="/s", pciID="0:1"),
        Interface(name="eth0", sandbox="/run/netns/x"),
    ),
    ips=(
        IPConfig(
            address=IPv4Interface("10.1.0.5/16"), gateway=IPv4Address("10.1.0.1"), interface=0
        ),
        IPConfig(address=IPv6Interface("fd00::5/64"), interface=1),
        IPConfig(address=IPv4Interface("10.2.0.5/16")),
    ),
    routes=(
        Route(dst=IPv4Interface("0.0.0.0/0"), mtu=1400, advmss=1360, priority=5, table=0, scope=0),
        Route(dst=IPv4Interface("10.5.0.1/8"), gw=IPv4Address("10.1.0.9")),
        Route(dst=IPv6Interface("::/0"), gw=IPv6Address("fd00::1")),
    ),
    dns=DNS(nameservers=("1.1.1.1",), domain="a<b", search=("x",), options=("ndots:5",)),
)
V1 = (
    '{"cniVersion":"%s",'
    '"dns":{"domain":"a\\u003cb","nameservers":["1.1.1.1"],"options":["ndots:5"],"search":["x"]},'
    '"interfaces":[{"mac":"aa:bb:cc:dd:ee:ff","mtu":1500,"name":"br0","pciID":"0:1",'
    '"socketPath":"/s"},{"name":"eth0","sandbox":"/run/netns/x"}],'
    '"ips":[{"address":"10.1.0.5/16","gateway":"10.1.0.1","interface":0},'
    '{"address":"fd00::5/64","interface":1},{"address":"10.2.0.5/16"}],'
    '"routes":[{"advmss":1360,"dst":"0.0.0.0/0","mtu":1400,"priority":5,"scope":0,"table":0},'
    '{"dst":"10.5.0.1/8","gw":"10.1.0.9"},{"dst":"::/0","gw":"fd00::1"}]}'
)
V0_4 = (
    '{"cniVersion":"%s",'
    '"interfaces":[{"name":"br0","mac":"aa:bb:cc:dd:ee:ff"},'
    '{"name":"eth0","sandbox":"/run/netns/x"}],'
    '"ips":[{"version":"4","interface":0,"address":"10.1.0.5/16","gateway":"10.1.0.1"},'
    '{"version":"6","interface":1,"address":"fd00::5/64"},'
    '{"version":"4","address":"10.2.0.5/16"}],'
    '"routes":[{"dst":"0.0.0.0/0","mtu":1400,"advmss":1360,"priority":5,"table":0,"scope":0},'
    '{"dst":"10.5.0.1/8","gw":"10.1.0.9"},{"dst":"::/0","gw":"fd00::1"}],'
    '"dns":{"nameservers":["1.1.1.1"],"domain":"a\\u003cb","search":["x"],"options":["ndots:5"]}}'
)
V0_2 = (
    '{"cniVersion":"%s",'
    '"ip4":{"ip":"10.1.0.5/16","gateway":"10.1.0.1",'
    '"routes":[{"dst":"0.0.0.0/0"},{"dst":"10.5.0.1/8","gw":"10.1.0.9"}]},'
    '"ip6":{"ip":"fd00::5/64","routes":[{"dst":"::/0","gw":"fd00::1"}]},'
    '"dns":{"nameservers":["1.1.1.1"],"domain":"a\\u003cb","search":["x"],"options":["ndots:5"]}}'
)
LAYOUTS = {"0.1.0": V0_2, "0.2.0": V0_2, "0.3.0": V0_4, "0.3.1": V0_4, "0.4.0": V0_4}


@pytest.mark.parametrize("version", SUPPORTED)
def test_a_result_is_printed_as_go_prints_it_in_that_version(version: str) -> None:
    """V1-V4, V8: keys, their order, and what each version leaves out."""
    assert LAYOUTS.get(version, V1) % version == RESULT.encode(version).decode()


def test_the_empty_parts_of_a_result() -> None:
    """V7: an empty dns is printed as {} by versions below 1.0.0 only; an empty name always is."""
    empty = Result()
    assert b'{"cniVersion":"1.1.0"}' == empty.encode()
    assert b'{"cniVersion":"0.4.0","dns":{}}' == empty.encode("0.4.0")
    nameless = Result(interfaces=(Interface(),))
    assert b'{"cniVersion":"1.0.0","interfaces":[{"name":""}]}' == nameless.encode("1.0.0")
    assert b'"interfaces":[{"name":""}]' in nameless.encode("0.3.0")
    options = Result(dns=DNS(options=("x",)))
    assert b'{"cniVersion":"1.0.0","dns":{"options":["x"]}}' == options.encode("1.0.0")


def test_a_result_is_indented_on_request() -> None:
    """What an executable prints: four spaces, no newline at the end."""
    result = Result(ips=(IPConfig(address=IPv4Interface("10.0.0.5/8")),))
    expected = """{
    "cniVersion": "0.2.0",
    "ip4": {
        "ip": "10.0.0.5/8"
    },
    "dns": {}
}"""
    assert expected == result.encode("0.2.0", indent=4).decode()


def test_the_empty_version_is_the_first() -> None:
    """C14: a result "" is 0.1.0."""
    assert RESULT.encode("0.1.0") == RESULT.encode("")


def test_a_result_without_addresses_has_no_oldest_form() -> None:
    """V8: layer 2 only, or only routes."""
    for version in ("0.1.0", "0.2.0"):
        with pytest.raises(CniError) as caught:
            Result(routes=RESULT.routes).encode(version)
        expected = ("cannot convert: no valid IP addresses", 999)
        assert expected == (caught.value.msg, caught.value.wire_code)


def test_a_version_without_a_layout_is_refused() -> None:
    """V8: an unknown pair is an error, out and in."""
    with pytest.raises(IncompatibleVersion, match=r'layout for CNI version "0\.5\.0"$'):
        RESULT.encode("0.5.0")
    with pytest.raises(IncompatibleVersion) as caught:
        Result.parse(b'{"cniVersion": "0.5.0"}', default_version="1.0.0")
    assert 'unsupported CNI result version "0.5.0"' == caught.value.msg


# -- reading -------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", SUPPORTED)
def test_what_was_printed_is_read_back(version: str) -> None:
    """V8: what the version carries survives, printing it again gives the same bytes."""
    printed = RESULT.encode(version)
    result = Result.parse(printed, default_version="")
    assert version == result.cniVersion
    assert printed == result.encode(version)
    assert RESULT.dns == result.dns
    if version >= "1":
        assert (RESULT.interfaces, RESULT.ips, RESULT.routes) == (
            result.interfaces,
            result.ips,
            result.routes,
        )


def test_an_old_result_loses_nothing_on_its_way_up() -> None:
    """V8: both addresses, all routes, no interfaces."""
    result = Result.parse((V0_2 % "0.2.0").encode(), default_version="1.0.0")
    assert () == result.interfaces
    assert ["10.1.0.5/16", "fd00::5/64"] == [str(ip.address) for ip in result.ips]
    assert [IPv4Address("10.1.0.1"), None] == [ip.gateway for ip in result.ips]
    assert ["0.0.0.0/0", "10.5.0.1/8", "::/0"] == [str(route.dst) for route in result.routes]
    only6 = Result.parse(b'{"ip6": {"ip": "fd00::5/64"}}', default_version="")
    assert (["fd00::5/64"], "0.1.0") == ([str(ip.address) for ip in only6.ips], only6.cniVersion)


def test_a_result_without_version_has_the_default() -> None:
    """V5: the configuration's, and 0.1.0 without that."""
    for data in (b"{}", b'{"cniVersion": ""}', b'{"cniVersion": null}', b"null"):
        assert Result(cniVersion="0.4.0") == Result.parse(data, default_version="0.4.0")
        assert Result(cniVersion="0.1.0") == Result.parse(data)


def test_only_the_parts_of_its_version_are_looked_at() -> None:
    """V9: other keys are unknown, and dropped."""
    result = Result.parse(b'{"cniVersion": "1.0.0", "ip4": 5, "x": {"y": 1}}')
    assert Result(cniVersion="1.0.0") == result
    result = Result.parse(b'{"cniVersion": "0.2.0", "ips": 5, "interfaces": "x"}')
    assert Result(cniVersion="0.2.0") == result


def test_keys_match_without_regard_to_case() -> None:
    """V9: CNIVersion is accepted."""
    ip = b'{"ADDRESS": "10.0.0.5/8", "Interface": -1, "gateway": ""}'
    data = b'{"CNIVersion": "1.0.0", "IPs": [%b]}' % ip
    expected = IPConfig(address=IPv4Interface("10.0.0.5/8"), interface=-1)
    assert (expected,) == Result.parse(data).ips


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ('{"ips": [{}]}', "ips[0].address: missing"),
        ('{"IPS": [{"Address": "10.0.0.5"}]}', 'IPS[0].Address: not a CIDR: "10.0.0.5"'),
        ('{"ips": [{"address": "010.0.0.5/8"}]}', 'ips[0].address: not a CIDR: "010.0.0.5/8"'),
        ('{"routes": [{"gw": "1.2.3.4"}]}', "routes[0].dst: missing"),
        ('{"interfaces": [5]}', "interfaces[0]: expected object, got int"),
        ('{"dns": {"search": "x"}}', "dns.search: expected array, got str"),
        ("[]", "expected object, got array"),
        ('{"cniVersion": 1}', "cniVersion: expected str, got int"),
        ("", "not valid JSON: the document is empty"),
    ],
)
def test_a_wrong_result_is_code_6(document: str, message: str) -> None:
    """It is a plugin's output, so the configuration is not at fault."""
    with pytest.raises(DecodeFailure) as caught:
        Result.parse(document.encode(), default_version="1.0.0")
    assert message == caught.value.msg


def test_a_result_within_a_document_is_reported_there() -> None:
    """As prevResult of a request."""
    with pytest.raises(DecodeFailure, match=r"^prevResult\.ip4\.ip: missing$"):
        Result.parse(b'{"ip4": {}}', where="prevResult")


# -- any result ----------------------------------------------------------------------------------

ADDRESSES4 = st.ip_addresses(v=4)
ADDRESSES6 = st.ip_addresses(v=6).filter(lambda ip: ip.ipv4_mapped is None)  # type: ignore[union-attr]
INTERFACES4 = st.builds(lambda ip, n: IPv4Interface((int(ip), n)), ADDRESSES4, st.integers(0, 32))
INTERFACES6 = st.builds(lambda ip, n: IPv6Interface((int(ip), n)), ADDRESSES6, st.integers(0, 128))
CIDRS = INTERFACES4 | INTERFACES6
GATEWAYS = st.none() | ADDRESSES4 | ADDRESSES6
NUMBERS = st.integers(0, 2**31)
TEXTS = st.text(max_size=6)
RESULTS = st.builds(
    Result,
    interfaces=st.lists(
        st.builds(Interface, name=TEXTS, mac=TEXTS, sandbox=TEXTS, mtu=NUMBERS, pciID=TEXTS),
        max_size=3,
    ).map(tuple),
    ips=st.lists(
        st.builds(
            IPConfig, address=CIDRS, gateway=GATEWAYS, interface=st.none() | st.integers(-1, 3)
        ),
        max_size=3,
    ).map(tuple),
    routes=st.lists(
        st.builds(
            Route,
            dst=CIDRS,
            gw=GATEWAYS,
            mtu=NUMBERS,
            priority=NUMBERS,
            table=st.none() | NUMBERS,
            scope=st.none() | st.sampled_from([0, 253, 254]),
        ),
        max_size=3,
    ).map(tuple),
    dns=st.builds(DNS, domain=TEXTS, nameservers=st.lists(TEXTS, max_size=2).map(tuple)),
)


@given(RESULTS, st.sampled_from(SUPPORTED), st.sampled_from(SUPPORTED))
def test_any_result_goes_through_every_version(result: Result, version: str, other: str) -> None:
    """V8: what a version cannot carry is lost once, and nothing more on further ways."""
    try:
        printed = result.encode(version)
    except CniError:
        assert version in ("0.1.0", "0.2.0")
        assert () == result.ips
        return
    read = Result.parse(printed)
    assert printed == read.encode(version)
    if version[0] == "1":
        assert (result.interfaces, result.ips, result.routes, result.dns) == (
            read.interfaces,
            read.ips,
            read.routes,
            read.dns,
        )
    if version[0] == "1" or other < "0.3":
        assert result.encode(other) == read.encode(other) if result.ips else True


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["1.0.0", "0.2.0", "10.0.0.5/8"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["cniVersion", "ips", "IP4", "ip", "address", "routes", "dst", "dns"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.binary(max_size=40) | JSON.map(lambda value: json.dumps(value).encode()))
def test_no_bytes_raise_anything_but_a_cni_error(data: bytes) -> None:
    """A plugin may print what it likes."""
    outcome: Any
    try:
        outcome = Result.parse(data, default_version="1.0.0")
    except CniError as error:
        outcome = error
    assert isinstance(outcome, Result | DecodeFailure | IncompatibleVersion)
