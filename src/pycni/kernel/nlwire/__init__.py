# SPDX-License-Identifier: Apache-2.0
"""Netlink framing, without sockets: messages, attributes, acknowledgements.

The modules beside this one hold one rtnetlink object each: functions that build a request's body
and functions that turn a reply's payload into a struct of `kernel.types`. Nothing here does I/O,
so all of it is tested byte for byte on any machine.

    message     length:u32 type:u16 flags:u16 seq:u32 pid:u32, then the body; padded to 4
    attribute   length:u16 type:u16, then the payload; padded to 4
    ack         errno:i32, the request's header, then (with EXT_ACK) attributes that explain

Names of constants are the kernel's (linux/netlink.h, linux/rtnetlink.h).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from struct import Struct, error

NLMSG_ERROR = 2
NLMSG_DONE = 3

NLM_F_REQUEST = 0x01
NLM_F_MULTI = 0x02
NLM_F_ACK = 0x04
NLM_F_DUMP_INTR = 0x10
NLM_F_DUMP = 0x300
NLM_F_REPLACE = 0x100
NLM_F_EXCL = 0x200
NLM_F_CREATE = 0x400
NLM_F_APPEND = 0x800
# The same bits on an acknowledgement.
NLM_F_CAPPED = 0x100
NLM_F_ACK_TLVS = 0x200

NLMSGERR_ATTR_MSG = 1
NLMSGERR_ATTR_MISS_TYPE = 5

NLA_F_NESTED = 0x8000
NLA_TYPE_MASK = 0x3FFF

HEADER = Struct("=IHHII")
HEADER_SIZE = 16

_ATTRIBUTE = Struct("=HH")
_U8 = Struct("=HHB3x")
_U16 = Struct("=HHH2x")
_U32 = Struct("=HHI")
_S32 = Struct("=HHi")
_U64 = Struct("=HHQ")
_BE16 = Struct(">H2x")
_ERRNO = Struct("=i")
_SWAP = Struct(">H")
_HOST = Struct("=H")
_PADDING = (b"", b"\0\0\0", b"\0\0", b"\0")

BYTE_ORDER = sys.byteorder

Message = tuple[int, int, int, bytes]


class MalformedMessage(ValueError):
    """Bytes that are not netlink: a length that points outside what was received."""


def message(kind: int, flags: int, seq: int, body: bytes) -> bytes:
    """One message; `body` is padded already, as everything built here is."""
    return HEADER.pack(HEADER_SIZE + len(body), kind, flags, seq, 0) + body


def messages(data: bytes) -> list[Message]:
    """Split what one `recv` returned into (type, flags, seq, payload)."""
    found: list[Message] = []
    offset, end = 0, len(data)
    while offset < end:
        try:
            length, kind, flags, seq, _ = HEADER.unpack_from(data, offset)
        except error:
            raise MalformedMessage(f"{end - offset} stray bytes after a message") from None
        if length < HEADER_SIZE or offset + length > end:
            raise MalformedMessage(f"message of {length} bytes, {end - offset} received")
        found.append((kind, flags, seq, data[offset + HEADER_SIZE : offset + length]))
        offset += (length + 3) & -4
    return found


def ack(flags: int, payload: bytes) -> tuple[int, str]:
    """The errno (0 is success) and the kernel's explanation in an NLMSG_ERROR's payload."""
    code = _errno(payload)
    if not flags & NLM_F_ACK_TLVS:
        return code, ""
    offset = 4 + HEADER_SIZE
    if not flags & NLM_F_CAPPED:
        # The whole failed request is echoed before the attributes.
        offset = 4 + (HEADER.unpack_from(payload, 4)[0] + 3 & -4)
    return code, _explanation(payload, offset)


def done(flags: int, payload: bytes) -> tuple[int, str]:
    """The errno (0 is success) and explanation with which an NLMSG_DONE ends a dump."""
    if len(payload) < 4:
        return 0, ""
    code = _errno(payload)
    return code, _explanation(payload, 4) if flags & NLM_F_ACK_TLVS else ""


def _errno(payload: bytes) -> int:
    try:
        (code,) = _ERRNO.unpack_from(payload)
    except error:
        raise MalformedMessage(f"acknowledgement of {len(payload)} bytes") from None
    return -int(code)


def _explanation(payload: bytes, offset: int) -> str:
    found = attributes(payload, offset)
    if NLMSGERR_ATTR_MSG in found:
        return as_text(found[NLMSGERR_ATTR_MSG])
    if NLMSGERR_ATTR_MISS_TYPE in found:
        return f"attribute {as_u32(found[NLMSGERR_ATTR_MISS_TYPE])} is missing"
    return ""


def attr(kind: int, payload: bytes) -> bytes:
    """An attribute with any payload, padded."""
    length = len(payload)
    return _ATTRIBUTE.pack(length + 4, kind) + payload + _PADDING[length & 3]


def text(kind: int, value: str) -> bytes:
    """An attribute holding a NUL-terminated string."""
    return attr(kind, value.encode() + b"\0")


def u8(kind: int, value: int) -> bytes:
    """An attribute holding 8 bits."""
    return _U8.pack(5, kind, value)


def u16(kind: int, value: int) -> bytes:
    """An attribute holding 16 bits."""
    return _U16.pack(6, kind, value)


def be16(kind: int, value: int) -> bytes:
    """An attribute holding 16 bits in network order."""
    return _ATTRIBUTE.pack(6, kind) + _BE16.pack(value)


def u32(kind: int, value: int) -> bytes:
    """An attribute holding 32 bits."""
    return _U32.pack(8, kind, value)


def s32(kind: int, value: int) -> bytes:
    """An attribute holding 32 bits with a sign."""
    return _S32.pack(8, kind, value)


def u64(kind: int, value: int) -> bytes:
    """An attribute holding 64 bits."""
    return _U64.pack(12, kind, value)


def nest(kind: int, *children: bytes) -> bytes:
    """An attribute that holds attributes, marked as such (strict parsing demands the mark)."""
    return attr(kind | NLA_F_NESTED, b"".join(children))


def attributes(data: bytes, offset: int = 0) -> dict[int, bytes]:
    """The attributes from `offset` on by type; of a repeated one the last."""
    found: dict[int, bytes] = {}
    end = len(data)
    unpack = _ATTRIBUTE.unpack_from
    while end - offset >= 4:
        length, kind = unpack(data, offset)
        if length < 4 or length > end - offset:
            raise MalformedMessage(f"attribute {kind} of {length} bytes, {end - offset} left")
        found[kind & NLA_TYPE_MASK] = data[offset + 4 : offset + length]
        offset += (length + 3) & -4
    return found


def attribute_list(data: bytes, offset: int = 0) -> Iterator[tuple[int, bytes]]:
    """The attributes in order, repeated ones included."""
    end = len(data)
    while end - offset >= 4:
        length, kind = _ATTRIBUTE.unpack_from(data, offset)
        if length < 4 or length > end - offset:
            raise MalformedMessage(f"attribute {kind} of {length} bytes, {end - offset} left")
        yield kind & NLA_TYPE_MASK, data[offset + 4 : offset + length]
        offset += (length + 3) & -4


def as_text(payload: bytes) -> str:
    """A NUL-terminated string; bytes that are not UTF-8 (an alias may hold any) are escaped."""
    return payload.rstrip(b"\0").decode("utf-8", "backslashreplace")


def as_u8(payload: bytes) -> int:
    """8 bits."""
    return payload[0]


def as_u16(payload: bytes) -> int:
    """16 bits."""
    return int.from_bytes(payload[:2], BYTE_ORDER)


def as_be16(payload: bytes) -> int:
    """16 bits in network order."""
    return int.from_bytes(payload[:2], "big")


def as_u32(payload: bytes) -> int:
    """32 bits."""
    return int.from_bytes(payload[:4], BYTE_ORDER)


def as_s32(payload: bytes) -> int:
    """32 bits with a sign."""
    return int.from_bytes(payload[:4], BYTE_ORDER, signed=True)


def swap16(value: int) -> int:
    """A 16 bit number between host and network order."""
    (swapped,) = _HOST.unpack(_SWAP.pack(value))
    return int(swapped)
