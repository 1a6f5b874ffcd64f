# SPDX-License-Identifier: Apache-2.0
"""bridge: what becomes of a configuration and of an IPAM plugin's answer, without a kernel."""

from __future__ import annotations

from typing import Any

import pytest

from pycni.errors import CniError, InvalidConfig, UnsupportedField
from pycni.model import jsonio
from pycni.model.addresses import parse_cidr, parse_ip
from pycni.model.result import DNS, Interface, IPConfig, Result, Route
from pycni.plugins.bridge import Bridge, BridgeConfig, gateways, with_addresses

MADE = Result(interfaces=(Interface(name="cni0"), Interface(name="veth0"), Interface(name="eth0")))


def config(**keys: Any) -> BridgeConfig:
    """A configuration as it comes off the wire."""
    return jsonio.decode(jsonio.encode({"name": "net", "type": "bridge", **keys}), BridgeConfig)


def leased(*addresses: str, gateway: str | None = None, **parts: Any) -> Result:
    """An IPAM plugin's answer."""
    via = None if gateway is None else parse_ip(gateway)
    ips = tuple(IPConfig(address=parse_cidr(text), gateway=via) for text in addresses)
    return Result(ips=ips, **parts)


def test_defaults() -> None:
    """A1: a bare configuration is a layer 2 port of cni0."""
    bare = config()
    Bridge().validate(bare)
    assert ("cni0", 0, False, "") == (bare.bridge, bare.mtu, bare.is_gateway, bare.ipam.type)


def test_keys_match_without_regard_to_case() -> None:
    """A0: as Go reads them."""
    assert config(ISGATEWAY=True, Mtu=1400, IpMasq=None) == config(isGateway=True, mtu=1400)


def test_a_default_gateway_is_a_gateway() -> None:
    """A1: isDefaultGateway implies isGateway."""
    assert config(isDefaultGateway=True).is_gateway


@pytest.mark.parametrize(
    ("keys", "error"),
    [
        ({"vlan": 4095}, InvalidConfig),
        ({"vlan": 7}, UnsupportedField),
        ({"vlanTrunk": [{"minID": 2, "maxID": 9}]}, UnsupportedField),
        ({"macspoofchk": True}, UnsupportedField),
        ({"hairpinMode": True, "promiscMode": True}, InvalidConfig),
        ({"ipam": {"type": "static"}, "disableContainerInterface": True}, InvalidConfig),
        ({"ipMasqBackend": "ipfw"}, InvalidConfig),
        ({"mtu": 1}, InvalidConfig),
    ],
)
def test_what_is_refused(keys: dict[str, Any], error: type[CniError]) -> None:
    """Cases 20, 24, 25, found before a network is accepted."""
    with pytest.raises(error):
        Bridge().validate(config(**keys))


def test_gateways_are_filled_in_only_for_a_gateway() -> None:
    """The first address of the network, where the IPAM plugin named none."""
    answer = leased("10.1.2.7/16", "2001:db8:1::7/64")
    assert [None, None] == [ip.gateway for ip in with_addresses(MADE, answer, config()).ips]
    result = with_addresses(MADE, answer, config(isGateway=True))
    assert ["10.1.0.1", "2001:db8:1::1"] == [str(ip.gateway) for ip in result.ips]
    assert [2, 2] == [ip.interface for ip in result.ips]
    assert ["10.1.0.1/16", "2001:db8:1::1/64"] == [str(address) for address in gateways(result)]
    assert () == result.routes


def test_a_gateway_of_the_ipam_plugin_is_kept() -> None:
    """It knows its network."""
    answer = leased("10.1.2.7/16", gateway="10.1.255.254")
    result = with_addresses(MADE, answer, config(isGateway=True))
    assert ["10.1.255.254/16"] == [str(address) for address in gateways(result)]


def test_default_routes_are_one_per_family() -> None:
    """A1: with the first address's gateway; a route that names a gateway already stands."""
    answer = leased("10.1.2.7/24", "10.1.3.7/24", "2001:db8:1::7/64")
    result = with_addresses(MADE, answer, config(isDefaultGateway=True))
    assert [("0.0.0.0/0", "10.1.2.1"), ("::/0", "2001:db8:1::1")] == [
        (str(route.dst), str(route.gw)) for route in result.routes
    ]
    named = Route(dst=parse_cidr("0.0.0.0/0"), gw=parse_ip("10.1.2.9"))
    answer = leased("10.1.2.7/24", routes=(named,))
    result = with_addresses(MADE, answer, config(isDefaultGateway=True))
    assert (named,) == result.routes


def test_dns_is_the_configuration_s_or_the_ipam_plugin_s() -> None:
    """A1: never a mixture."""
    answer = leased("10.1.2.7/24", dns=DNS(domain="ipam"))
    assert DNS(domain="ipam") == with_addresses(MADE, answer, config()).dns
    made = Result(interfaces=MADE.interfaces, dns=DNS(search=("example.org",)))
    assert DNS(search=("example.org",)) == with_addresses(made, answer, config()).dns


def test_ipv6_needs_a_larger_mtu() -> None:
    """RFC 8200: the kernel would say "Invalid argument" when the address is added."""
    with pytest.raises(InvalidConfig, match=r"^mtu: IPv6 needs at least 1280, not 1279$"):
        with_addresses(MADE, leased("10.1.2.7/24", "2001:db8:1::7/64"), config(mtu=1279))
    assert with_addresses(MADE, leased("10.1.2.7/24"), config(mtu=1279)).ips
    assert with_addresses(MADE, leased("2001:db8:1::7/64"), config(mtu=1280)).ips


def test_no_address_is_an_error() -> None:
    """A1: an IPAM plugin that answers nothing has failed."""
    with pytest.raises(CniError, match=r"^IPAM plugin returned missing IP config$"):
        with_addresses(MADE, Result(), config())
