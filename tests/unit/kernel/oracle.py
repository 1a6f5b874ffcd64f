# SPDX-License-Identifier: Apache-2.0
"""pyroute2's codec as the oracle, and what to try it with."""

from __future__ import annotations

from typing import Any, Literal

from hypothesis import settings
from hypothesis import strategies as st

from pycni.kernel import nlwire
from pycni.model.names import Mac

# The machines that run this are shared: no deadline per example.
relaxed = settings(deadline=None, max_examples=60)

u8 = st.integers(0, 0xFF)
u16 = st.integers(0, 0xFFFF)
u32 = st.integers(0, 0xFFFFFFFF)
indexes = st.integers(1, 0x7FFFFFFF)
names = st.text("abcdefghijklmnopqrstuvwxyz0123456789.-_@", min_size=1, max_size=15)
macs = st.binary(min_size=6, max_size=6).map(Mac.from_bytes)


def interfaces(version: Literal[4, 6] | None = None) -> st.SearchStrategy[Any]:
    """Addresses with a prefix length."""
    from ipaddress import ip_interface

    def build(address: Any, prefix: int) -> Any:
        return ip_interface(f"{address}/{min(prefix, address.max_prefixlen)}")

    return st.builds(build, st.ip_addresses(v=version), st.integers(0, 128))


def networks(version: Literal[4, 6] | None = None) -> st.SearchStrategy[Any]:
    """Networks, default routes included."""
    return interfaces(version).map(lambda interface: interface.network)


def theirs(codec: type[Any], kind: int, body: bytes) -> Any:
    """Our body as pyroute2 reads it."""
    message = codec(nlwire.message(kind, 0, 1, body))
    message.decode()
    return message


def ours(codec: type[Any], kind: int, **fields: Any) -> bytes:
    """The payload that pyroute2 makes of fields and `attrs`, for us to parse."""
    message = codec()
    for name, value in fields.items():
        message[name] = value
    message["header"]["type"] = kind
    message.encode()
    ((_, _, _, payload),) = nlwire.messages(bytes(message.data))
    return payload


def path(message: Any, *attributes: str) -> Any:
    """The attribute at the end of a path of nested ones, or None."""
    for attribute in attributes:
        if message is None:
            return None
        message = message.get_attr(attribute)
    return message
