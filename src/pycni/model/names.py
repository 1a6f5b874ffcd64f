# SPDX-License-Identifier: Apache-2.0
"""Validated names: once parsed, a name is safe in a path, a message and a kernel call.

Each type is a `str` with a `parse` that raises the error CNI prescribes for it. Config Structs
use the types directly (`master: IfName | None = None`); a fault is then reported with its path.
"""

from __future__ import annotations

import re
from typing import Self

from pycni.errors import CniError, InvalidConfig, InvalidEnvironment, UnknownContainer

# SPEC, "Parameters" and "Network configuration format": alphanumeric first. fullmatch, because
# `$` would let a trailing newline through.
_IDENTIFIER = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.\-]*")
# Unicode White_Space, as Go's unicode.IsSpace; str.isspace would add \x1c-\x1f.
_SPACES = frozenset("\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000") | frozenset(
    map(chr, range(0x2000, 0x200B))
)
_IFNAME_BYTES = 15  # IFNAMSIZ less the terminating NUL
_MAC_LENGTHS = (6, 8, 20)  # Ethernet, EUI-64, InfiniBand
_MAC_TEXT = re.compile(
    r"[0-9a-fA-F]{2}(?:([:-])[0-9a-fA-F]{2})(?:\1[0-9a-fA-F]{2})*"
    r"|[0-9a-fA-F]{4}(?:\.[0-9a-fA-F]{4})+"
)


class ContainerId(str):
    """CNI_CONTAINERID: the runtime's name of the container."""

    __slots__ = ()

    @classmethod
    def parse(cls, raw: str) -> Self:
        """Return `raw` checked; empty is code 3, other faults are code 4 (libcni's choice)."""
        if not raw:
            raise UnknownContainer("missing containerID")
        if _IDENTIFIER.fullmatch(raw) is None:
            raise InvalidEnvironment("invalid characters in containerID", raw)
        return cls(raw)


class NetworkName(str):
    """The `name` of a network configuration."""

    __slots__ = ()

    @classmethod
    def parse(cls, raw: str) -> Self:
        """Return `raw` checked; every fault is code 7."""
        if not raw:
            raise InvalidConfig("missing network name")
        if _IDENTIFIER.fullmatch(raw) is None:
            raise InvalidConfig("invalid characters found in network name", raw)
        return cls(raw)


class IfName(str):
    """The name of a network interface, as the kernel accepts it."""

    __slots__ = ()

    @classmethod
    def parse(cls, raw: str) -> Self:
        """Return `raw` checked; every fault is code 4."""
        fault = _ifname_fault(raw)
        if fault is not None:
            raise fault
        return cls(raw)


def _ifname_fault(raw: str) -> CniError | None:
    if not raw:
        return InvalidEnvironment("interface name is empty")
    try:
        size = len(raw.encode())
    except UnicodeEncodeError:
        return InvalidEnvironment("interface name is not valid UTF-8")
    if size > _IFNAME_BYTES:
        return InvalidEnvironment(
            "interface name is too long", "interface name should be less than 16 characters"
        )
    if raw in (".", ".."):
        return InvalidEnvironment("interface name is . or ..")
    if "/" in raw or ":" in raw:
        return InvalidEnvironment("interface name contains / or :")
    if "%" in raw:
        # dev_alloc_name() in net/core/dev.c: a pattern, not a name; eth%d comes out as eth0.
        return InvalidEnvironment("interface name contains %, for which the kernel puts a number")
    if "\0" in raw:
        return InvalidEnvironment("interface name contains a NUL byte")
    if not _SPACES.isdisjoint(raw):
        return InvalidEnvironment("interface name contains whitespace characters")
    return None


class PluginType(str):
    """The `type` of a plugin: a file name to be found in the plugin directories."""

    __slots__ = ()

    @classmethod
    def parse(cls, raw: str) -> Self:
        """Return `raw` checked: never empty, never a path."""
        if not raw:
            raise InvalidConfig("no plugin name provided")
        if raw in (".", "..") or any(char in raw for char in "/\\\0"):
            raise InvalidConfig(f"invalid plugin name: {raw}")
        return cls(raw)


class FilePath(str):
    """The path of a file or a directory in a configuration."""

    __slots__ = ()

    @classmethod
    def parse(cls, raw: str) -> Self:
        """Return `raw` checked: no path has a NUL byte in it."""
        if "\0" in raw:
            raise InvalidConfig("a path contains a NUL byte")
        return cls(raw)


class Mac(str):
    """A hardware address, spelled in lower case with colons."""

    __slots__ = ()

    @classmethod
    def parse(cls, raw: str) -> Self:
        """Accept 6, 8 or 20 bytes written with colons, hyphens or Cisco dots."""
        if _MAC_TEXT.fullmatch(raw) is not None:
            digits = raw.translate({ord(mark): None for mark in ":-."})
            if len(digits) // 2 in _MAC_LENGTHS:
                return cls.from_bytes(bytes.fromhex(digits))
        raise InvalidConfig(f'not a MAC address: "{raw}"')

    @classmethod
    def from_bytes(cls, packed: bytes) -> Self:
        """Return the address whose bytes, as the kernel gives them, are `packed`."""
        return cls(packed.hex(":"))

    @property
    def is_of_host(self) -> bool:
        """Whether one interface can have it: not a group's, not all zero."""
        packed = self.packed
        return any(packed) and not (len(packed) == _MAC_LENGTHS[0] and packed[0] & 1)

    @property
    def packed(self) -> bytes:
        """The address as bytes."""
        return bytes.fromhex(self.replace(":", ""))
