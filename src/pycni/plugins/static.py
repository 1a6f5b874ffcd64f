# SPDX-License-Identifier: Apache-2.0
"""IPAM `static`: the addresses, routes and DNS settings that the configuration spells out.

It keeps no state: whoever writes the configuration sees to it that no address is used twice.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from pycni.errors import CniError, InvalidConfig, InvalidEnvironment, NotAvailable
from pycni.model.addresses import IPAddress, IPInterface, parse_cidr, parse_ip
from pycni.model.request import CniArgs
from pycni.model.result import DNS, IPConfig, Result, Route
from pycni.model.version import at_least
from pycni.plugins.sdk import IPAM, Call, Config, Plugin


class AddressText(Struct, frozen=True, kw_only=True):
    """An address as written. Texts, because a DEL must not fail for an address that is wrong."""

    address: str
    gateway: str = ""


class StaticIPAM(IPAM, frozen=True, kw_only=True):
    """The `ipam` key."""

    addresses: tuple[AddressText, ...] = ()
    routes: tuple[Route, ...] = ()
    dns: DNS = DNS()


class Addresses(Struct, frozen=True, kw_only=True):
    """`args.cni` and `runtimeConfig` (capability `ips`): addresses that replace the configured."""

    ips: tuple[str, ...] = ()


class Args(Struct, frozen=True, kw_only=True):
    """The `args` key (CONVENTIONS.md)."""

    cni: Addresses = Addresses()


class StaticConfig(Config, frozen=True, kw_only=True):
    """Configuration of a network whose IPAM plugin is static."""

    ipam: StaticIPAM = StaticIPAM()
    args: Args = Args()
    runtimeConfig: Addresses = Addresses()


class EnvArgs(CniArgs, frozen=True, kw_only=True):
    """CNI_ARGS: `IP`, addresses with prefix lengths, and `GATEWAY`, both lists with commas."""

    IP: str = ""
    GATEWAY: str = ""


class Static(Plugin[StaticConfig], type="static", config=StaticConfig):
    """Addresses by hand."""

    def add(self, call: Call[StaticConfig]) -> Result:
        """Return what is configured; no address at all is fine."""
        return Result(
            cniVersion=call.config.cniVersion,
            ips=parse_addresses(call.config, call.request.args),
            routes=call.config.ipam.routes,
            dns=call.config.ipam.dns,
        )

    def delete(self, call: Call[StaticConfig]) -> None:
        """There is nothing to release."""

    def check(self, call: Call[StaticConfig]) -> None:
        """Raise unless the result has every configured address with its gateway."""
        given = {ip.address: ip.gateway for ip in call.get_prev_result().ips}
        for ip in parse_addresses(call.config, call.request.args):
            if ip.address not in given or given[ip.address] != (ip.gateway or given[ip.address]):
                via = f" with gateway {ip.gateway}" if ip.gateway else ""
                raise CniError(f"static: the result has no address {ip.address}{via}")

    def gc(self, call: Call[StaticConfig]) -> None:
        """There is nothing to release."""

    def status(self, call: Call[StaticConfig]) -> None:
        """Raise NotAvailable (50) if the addresses are wrong."""
        try:
            parse_addresses(call.config)
        except CniError as exc:
            raise NotAvailable(exc.msg, exc.details) from exc

    def validate(self, config: StaticConfig) -> None:
        """Raise for addresses and gateways that are none."""
        parse_addresses(config)


def parse_addresses(config: StaticConfig, args: str = "") -> tuple[IPConfig, ...]:
    """The addresses of one source: the capability, else `args`, else configuration and CNI_ARGS."""
    from_env = parse_environment(args)
    if config.runtimeConfig.ips:
        found = parse_ips("runtimeConfig.ips", config.runtimeConfig.ips)
    elif config.args.cni.ips:
        found = parse_ips("args.cni.ips", config.args.cni.ips)
    else:
        found = [*parse_configured(config.ipam.addresses), *from_env]
    families = [ip.address.version for ip in found]
    if len(families) > len(set(families)) and not at_least(config.cniVersion, "0.3.0"):
        raise InvalidConfig(
            f"ipam.addresses: CNI version {config.cniVersion} does not support more than 1 "
            "address per family"
        )
    return tuple(found)


def parse_configured(addresses: Iterable[AddressText]) -> list[IPConfig]:
    """The addresses under `ipam`."""
    found: list[IPConfig] = []
    for number, text in enumerate(addresses):
        path = f"ipam.addresses[{number}]"
        address = parse_or_none(text.address)
        if address is None:
            raise InvalidConfig(
                f"{path}.address: the 'address' field is expected to be in CIDR notation, "
                f"got: '{text.address}'"
            )
        found.append(
            IPConfig(address=address, gateway=parse_gateway(f"{path}.gateway", text.gateway))
        )
    return found


def parse_ips(path: str, texts: Iterable[str]) -> list[IPConfig]:
    """Addresses without gateways: those of `args` and of the capability."""
    found: list[IPConfig] = []
    for number, text in enumerate(texts):
        address = parse_or_none(text)
        if address is None:
            raise InvalidConfig(
                f"{path}[{number}]: an entry in the 'ips' field is NOT in CIDR notation, "
                f"got: '{text}'"
            )
        found.append(IPConfig(address=address))
    return found


def parse_environment(args: str) -> list[IPConfig]:
    """The addresses of CNI_ARGS; each gateway is that of every one whose subnet it is in."""
    env = EnvArgs.parse(args)
    addresses: list[IPInterface] = []
    for text in split(env.IP):
        address = parse_or_none(text)
        if address is None:
            raise InvalidEnvironment(
                f"CNI_ARGS: the 'ip' field is expected to be in CIDR notation, got: '{text}'"
            )
        addresses.append(address)
    gateways: list[IPAddress] = []
    for text in split(env.GATEWAY):
        try:
            gateways.append(parse_ip(text))
        except InvalidConfig as exc:
            raise InvalidEnvironment(f"CNI_ARGS: invalid gateway address: {text}") from exc
    return [
        IPConfig(
            address=address,
            # The last one wins, as in the Go plugin.
            gateway=next((gw for gw in reversed(gateways) if gw in address.network), None),
        )
        for address in addresses
    ]


def split(text: str) -> list[str]:
    """The items of a list with commas; of an empty text, none."""
    return [item.strip() for item in text.split(",")] if text else []


def parse_or_none(text: str) -> IPInterface | None:
    """The address with prefix length, None if it is none: the callers know what to say."""
    try:
        return parse_cidr(text)
    except InvalidConfig:
        return None


def parse_gateway(path: str, text: str) -> IPAddress | None:
    """The gateway; not given is None."""
    try:
        return parse_ip(text) if text else None
    except InvalidConfig as exc:
        raise InvalidConfig(f"{path}: {exc.msg}") from exc
