# SPDX-License-Identifier: Apache-2.0
"""Addresses by Go's rules: what is read, what is refused, how it is spelled."""

from __future__ import annotations

from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    ip_address,
)

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycni.errors import CniError, InvalidConfig
from pycni.model.addresses import (
    IPAddress,
    IPInterface,
    IPNetwork,
    parse_cidr,
    parse_ip,
    parse_network,
)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("10.1.0.5", IPv4Address("10.1.0.5")),
        ("::FFFF:10.1.0.5", IPv4Address("10.1.0.5")),
        ("::ffff:a01:5", IPv4Address("10.1.0.5")),
        ("FD00::0:5", IPv6Address("fd00::5")),
        ("::1.2.3.4", IPv6Address("::102:304")),
    ],
)
def test_an_address_is_read_as_go_reads_it(text: str, address: IPAddress) -> None:
    """An IPv4-mapped address is IPv4."""
    assert address == parse_ip(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1.2.3",
        "1.2.3.4.5",
        "01.2.3.4",
        "1.2.3.256",
        "fe80::1%eth0",
        "1.2.3.4/8",
        " 1.2.3.4",
        "1",
        "x",
        "::12345",
        "1::2::3",
        "١.2.3.4",
    ],
)
def test_anything_else_is_not_an_address(text: str) -> None:
    """Leading zeros, zones, prefixes and blanks are refused."""
    with pytest.raises(InvalidConfig) as caught:
        parse_ip(text)
    assert f'not an IP address: "{text}"' == caught.value.msg


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        ("10.1.0.5/16", "10.1.0.5/16"),
        ("10.1.2.3/024", "10.1.2.3/24"),
        ("0.0.0.0/0", "0.0.0.0/0"),
        ("FD00::5/64", "fd00::5/64"),
        ("::ffff:10.1.0.6/120", "10.1.0.6/24"),
        ("::/0", "::/0"),
    ],
)
def test_a_cidr_keeps_its_host_bits(text: str, spelled: str) -> None:
    """The spellings are those Go's plugins print for the same texts."""
    assert spelled == str(parse_cidr(text))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "10.1.0.0",
        "10.1.0.0/",
        "10.1.0.0/33",
        "10.1.0.0/-1",
        "10.1.0.0/+1",
        "10.1.0.0/255.0.0.0",
        "010.1.0.5/16",
        "fd00::/129",
        "::ffff:10.1.0.6/64",
        "10.1.0.0/8/8",
        "10.1.0.0/٣",
        "10.1.0.0/0008",
        "fe80::1%eth0/64",
    ],
)
def test_anything_else_is_not_a_cidr(text: str) -> None:
    """A netmask, a sign, a length beyond the family's bits and a missing length are refused."""
    with pytest.raises(InvalidConfig) as caught:
        parse_cidr(text)
    assert f'not a CIDR: "{text}"' == caught.value.msg


def test_a_network_has_no_host_bits() -> None:
    """The error says which network may have been meant."""
    assert IPv4Network("10.1.0.0/16") == parse_network("10.1.0.0/16")
    with pytest.raises(InvalidConfig) as caught:
        parse_network("10.1.0.5/16")
    expected = 'not a network: "10.1.0.5/16" has host bits set, did you mean 10.1.0.0/16?'
    assert expected == caught.value.msg


def test_the_unions_hold_at_run_time() -> None:
    """isinstance works with them, although they are no typing unions there."""
    assert isinstance(IPv4Address("1.2.3.4"), IPAddress)
    assert isinstance(IPv6Interface("::1/64"), IPInterface)
    assert isinstance(IPv4Network("1.0.0.0/8"), IPNetwork)
    assert not isinstance(IPv4Address("1.2.3.4"), IPInterface)


@given(st.ip_addresses())
def test_a_printed_address_is_read_back(address: IPAddress) -> None:
    """Printing and reading are inverse, mapped addresses apart."""
    mapped = getattr(address, "ipv4_mapped", None)
    assert (mapped or address) == parse_ip(str(address))


@given(st.ip_addresses(v=4), st.integers(0, 32))
def test_a_printed_cidr_is_read_back(address: IPv4Address, length: int) -> None:
    """Printing and reading are inverse."""
    assert IPv4Interface((int(address), length)) == parse_cidr(f"{address}/{length}")


@given(st.text(alphabet="0123456789abcdef:./% ", max_size=45))
def test_no_text_escapes_as_another_exception(text: str) -> None:
    """Whatever is read, Python agrees with; whatever is not, is a CNI error."""
    for parse in (parse_ip, parse_cidr, parse_network):
        try:
            value = parse(text)
        except CniError:
            continue
        if parse is parse_ip:
            assert ip_address(str(value)) == value
