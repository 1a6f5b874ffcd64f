# SPDX-License-Identifier: Apache-2.0
"""The result of an ADD: read from any CNI version, held in the shape of 1.1.0, written in any.

The internal Structs spell their fields in alphabetical order because that is the wire order of
1.0.0 and newer; the `_…040` Structs below have the order and the keys of the older layouts.
"""

from __future__ import annotations

import contextlib
from functools import lru_cache
from typing import Any, Self, TypeVar

from msgspec import Struct, field, structs

from pycni.errors import CniError, DecodeFailure, IncompatibleVersion, InvalidConfig
from pycni.model import jsonio
from pycni.model.addresses import IPAddress, IPInterface
from pycni.model.version import CURRENT, DEFAULT, SUPPORTED

W = TypeVar("W")


class DNS(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Resolver settings for the container."""

    domain: str = ""
    nameservers: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    search: tuple[str, ...] = ()


class Interface(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An interface the chain made or uses; `sandbox` is set for those inside the container."""

    mac: str = ""
    mtu: int = 0
    # A factory, because Go prints an empty name, and omit_defaults would not.
    name: str = field(default_factory=str)
    pciID: str = ""
    sandbox: str = ""
    socketPath: str = ""


class IPConfig(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An address; `interface` is an index into the result's interfaces, None when not given."""

    address: IPInterface
    gateway: IPAddress | None = None
    interface: int | None = None


class Route(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A route in the container; `dst` keeps the host bits it was written with."""

    advmss: int = 0
    dst: IPInterface
    gw: IPAddress | None = None
    mtu: int = 0
    priority: int = 0
    scope: int | None = None
    table: int | None = None


class Result(Struct, frozen=True, kw_only=True):
    """What a chain has made so far. `cniVersion` is the version it was read from."""

    cniVersion: str = CURRENT
    interfaces: tuple[Interface, ...] = ()
    ips: tuple[IPConfig, ...] = ()
    routes: tuple[Route, ...] = ()
    dns: DNS = DNS()

    @classmethod
    def parse(cls, data: jsonio.Buffer, *, default_version: str = "", where: str = "") -> Result:
        """Read a result of any version; without a version of its own it has `default_version`.

        `null` is an empty result. Faults are DecodeFailure: a result is a plugin's output, so a
        wrong one is not the configuration's fault. `where` is put before the path in messages.
        """
        text = bytes(data)
        if len(text) <= _REMEMBERED_BYTES:
            with contextlib.suppress(CniError):  # below, with its place
                return _parse_again(text, default_version)
        return cls._parse(text, default_version, where)

    @classmethod
    def _parse(cls, data: bytes, default_version: str, where: str = "") -> Result:
        doc = jsonio.loads(data, where=where)
        try:
            version = jsonio.convert(doc, _Version, where=where).cniVersion
            version = version or default_version or DEFAULT
            if version not in SUPPORTED:
                raise IncompatibleVersion(f'unsupported CNI result version "{version}"')
            if version in _V02:
                return cls._from_02(jsonio.convert(doc, _Read020, where=where), version)
            result = jsonio.convert(doc, cls, where=where)
        except InvalidConfig as exc:
            raise DecodeFailure(exc.msg) from exc
        return structs.replace(result, cniVersion=version)

    @classmethod
    def _from_02(cls, old: _Read020, version: str) -> Self:
        families = [family for family in (old.ip4, old.ip6) if family is not None]
        return cls(
            cniVersion=version,
            ips=tuple(IPConfig(address=ip.ip, gateway=ip.gateway) for ip in families),
            routes=tuple(Route(dst=r.dst, gw=r.gw) for ip in families for r in ip.routes),
            dns=old.dns,
        )

    def encode(self, version: str = CURRENT, *, indent: int | None = None) -> bytes:
        """Return the JSON Go prints for this result in `version`, `indent` spaces if asked."""
        version = version or DEFAULT
        try:
            layout = _LAYOUTS[version]
        except KeyError:
            raise IncompatibleVersion(
                f'cannot convert: no result layout for CNI version "{version}"'
            ) from None  # the KeyError adds nothing
        return jsonio.encode_go(layout(self, version), indent=indent)


# The plugins of a chain, and who shows what came of it, read one and the same result.
_REMEMBERED_BYTES = 1 << 14
_parse_again = lru_cache(maxsize=16)(Result._parse)


class _Version(Struct, frozen=True):
    cniVersion: str = ""


# -- 1.0.0 and 1.1.0: sorted keys, empty parts left out --------------------------------------------


class _Result100(Struct, frozen=True, kw_only=True, omit_defaults=True):
    cniVersion: str
    dns: DNS | None = None
    interfaces: tuple[Interface, ...] = ()
    ips: tuple[IPConfig, ...] = ()
    routes: tuple[Route, ...] = ()


_EMPTY_DNS = DNS()


def _as_100(result: Result, version: str) -> _Result100:
    return _Result100(
        cniVersion=version,
        dns=result.dns if result.dns != _EMPTY_DNS else None,
        interfaces=result.interfaces,
        ips=result.ips,
        routes=result.routes,
    )


# -- 0.3.0 to 0.4.0: `version` in ips, dns always there --------------------------------------------


class _Dns040(Struct, frozen=True, kw_only=True, omit_defaults=True):
    nameservers: tuple[str, ...] = ()
    domain: str = ""
    search: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


class _Interface040(Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    mac: str = ""
    sandbox: str = ""


class _IPConfig040(Struct, frozen=True, kw_only=True, omit_defaults=True):
    version: str
    interface: int | None = None
    address: IPInterface
    gateway: IPAddress | None = None


class _Route040(Struct, frozen=True, kw_only=True, omit_defaults=True):
    # Go shares the route of 1.1.0 with the older results, so its new fields survive (V8).
    dst: IPInterface
    gw: IPAddress | None = None
    mtu: int = 0
    advmss: int = 0
    priority: int = 0
    table: int | None = None
    scope: int | None = None


class _Result040(Struct, frozen=True, kw_only=True, omit_defaults=True):
    cniVersion: str
    interfaces: tuple[_Interface040, ...] = ()
    ips: tuple[_IPConfig040, ...] = ()
    routes: tuple[_Route040, ...] = ()
    dns: _Dns040


def _as_040(result: Result, version: str) -> _Result040:
    return _Result040(
        cniVersion=version,
        interfaces=tuple(
            _Interface040(name=link.name, mac=link.mac, sandbox=link.sandbox)
            for link in result.interfaces
        ),
        ips=tuple(
            _IPConfig040(
                version=str(ip.address.version),
                interface=ip.interface,
                address=ip.address,
                gateway=ip.gateway,
            )
            for ip in result.ips
        ),
        routes=tuple(_relaid(route, _Route040) for route in result.routes),
        dns=_relaid(result.dns, _Dns040),
    )


def _relaid(source: Struct, kind: type[W]) -> W:
    """Return `source` in the field order of `kind`, which has the same fields."""
    return kind(**structs.asdict(source))


# -- 0.1.0 and 0.2.0: one address per family -------------------------------------------------------


class _Route020(Struct, frozen=True, kw_only=True, omit_defaults=True):
    dst: IPInterface
    gw: IPAddress | None = None


class _IPConfig020(Struct, frozen=True, kw_only=True, omit_defaults=True):
    ip: IPInterface
    gateway: IPAddress | None = None
    routes: tuple[_Route020, ...] = ()


class _Result020(Struct, frozen=True, kw_only=True, omit_defaults=True):
    cniVersion: str
    ip4: _IPConfig020 | None = None
    ip6: _IPConfig020 | None = None
    dns: _Dns040


class _Read020(Struct, frozen=True, kw_only=True):
    ip4: _IPConfig020 | None = None
    ip6: _IPConfig020 | None = None
    dns: DNS = DNS()


def _as_020(result: Result, version: str) -> _Result020:
    ip4, ip6 = _family(result, 4), _family(result, 6)
    if ip4 is None and ip6 is None:
        raise CniError("cannot convert: no valid IP addresses")
    return _Result020(cniVersion=version, ip4=ip4, ip6=ip6, dns=_relaid(result.dns, _Dns040))


def _family(result: Result, number: int) -> _IPConfig020 | None:
    """The first address of a family with the routes of that family, or None."""
    for ip in result.ips:
        if ip.address.version == number:
            routes = [r for r in result.routes if r.dst.version == number]
            return _IPConfig020(
                ip=ip.address,
                gateway=ip.gateway,
                routes=tuple(_Route020(dst=route.dst, gw=route.gw) for route in routes),
            )
    return None


_V02 = ("0.1.0", "0.2.0")
_LAYOUTS: dict[str, Any] = {
    **dict.fromkeys(_V02, _as_020),
    **dict.fromkeys(("0.3.0", "0.3.1", "0.4.0"), _as_040),
    **dict.fromkeys(("1.0.0", "1.1.0"), _as_100),
}
