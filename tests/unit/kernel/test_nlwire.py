# SPDX-License-Identifier: Apache-2.0
"""Netlink framing: messages, attributes, acknowledgements."""

from __future__ import annotations

import errno
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycni.kernel import nlwire
from tests.unit.kernel.oracle import relaxed, u8, u16, u32

kinds = st.integers(1, 0x3FFF)


@relaxed
@given(st.lists(st.tuples(u16, u16, u32, st.binary(max_size=64))))
def test_messages_come_back_as_they_were_sent(sent: list[tuple[int, int, int, bytes]]) -> None:
    """Any number of messages in one buffer, padded bodies."""
    padded = [(kind, flags, seq, body + bytes(-len(body) % 4)) for kind, flags, seq, body in sent]
    data = b"".join(nlwire.message(*message) for message in padded)
    assert padded == nlwire.messages(data)


@relaxed
@given(st.lists(st.tuples(kinds, st.binary(max_size=40))))
def test_attributes_come_back_as_they_were_sent(sent: list[tuple[int, bytes]]) -> None:
    """In order as a list, the last of each type as a dict."""
    data = b"".join(nlwire.attr(kind, payload) for kind, payload in sent)
    assert 0 == len(data) % 4
    assert sent == list(nlwire.attribute_list(data))
    assert dict(sent) == nlwire.attributes(data)


@relaxed
@given(kinds, u8, u16, u32, st.integers(-(2**31), 2**31 - 1))
def test_numbers_come_back_as_they_were_sent(
    kind: int, byte: int, short: int, word: int, signed: int
) -> None:
    """Every width, both byte orders."""

    def only(data: bytes) -> bytes:
        ((found, payload),) = nlwire.attribute_list(data)
        assert kind == found
        return payload

    assert byte == nlwire.as_u8(only(nlwire.u8(kind, byte)))
    assert short == nlwire.as_u16(only(nlwire.u16(kind, short)))
    assert short == nlwire.as_be16(only(nlwire.be16(kind, short)))
    assert word == nlwire.as_u32(only(nlwire.u32(kind, word)))
    assert signed == nlwire.as_s32(only(nlwire.s32(kind, signed)))
    assert struct.pack("=Q", word << 32 | short) == only(nlwire.u64(kind, word << 32 | short))
    assert struct.pack(">H", short) == struct.pack("=H", nlwire.swap16(short))


@relaxed
@given(kinds, st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_text_is_terminated_and_comes_back(kind: int, value: str) -> None:
    """Strings end with a NUL on the wire, and without one in Python."""
    ((_, payload),) = nlwire.attribute_list(nlwire.text(kind, value))
    assert payload.endswith(b"\0")
    assert value == nlwire.as_text(payload)


def test_text_that_is_not_utf8_is_escaped() -> None:
    """An alias may hold any bytes; reading it never fails."""
    assert "a\\xff" == nlwire.as_text(b"a\xff\0")


def test_a_nest_is_marked() -> None:
    """Strict parsing in the kernel demands NLA_F_NESTED; readers do not see the mark."""
    data = nlwire.nest(18, nlwire.u8(1, 7), nlwire.u8(2, 8))
    assert 18 | 0x8000 == struct.unpack_from("=HH", data)[1]
    assert {1: b"\7", 2: b"\x08"} == nlwire.attributes(nlwire.attributes(data)[18])


@pytest.mark.parametrize(
    "data",
    [
        b"\0" * 8,
        struct.pack("=IHHII", 15, 2, 0, 1, 0),
        struct.pack("=IHHII", 20, 2, 0, 1, 0),
    ],
    ids=["stray bytes", "shorter than its header", "longer than what was received"],
)
def test_a_message_with_a_wrong_length_is_refused(data: bytes) -> None:
    """Nothing is read outside of what was received."""
    with pytest.raises(nlwire.MalformedMessage, match="bytes"):
        nlwire.messages(data)


@pytest.mark.parametrize("length", [0, 3, 9], ids=["none", "too short", "too long"])
def test_an_attribute_with_a_wrong_length_is_refused(length: int) -> None:
    """Neither as a dict nor as a list."""
    data = struct.pack("=HHI", length, 5, 0)
    with pytest.raises(nlwire.MalformedMessage, match="attribute 5"):
        nlwire.attributes(data)
    with pytest.raises(nlwire.MalformedMessage, match="attribute 5"):
        list(nlwire.attribute_list(data))


def request_header(length: int = 16) -> bytes:
    return struct.pack("=IHHII", length, 16, 5, 1, 0)


def test_an_ack_without_an_error_is_zero() -> None:
    """Success carries nothing else."""
    assert (0, "") == nlwire.ack(nlwire.NLM_F_CAPPED, struct.pack("=i", 0) + request_header())


def test_an_ack_carries_errno_and_explanation() -> None:
    """With CAP_ACK the attributes follow the header of the request."""
    payload = struct.pack("=i", -errno.EINVAL) + request_header(999)
    payload += nlwire.text(nlwire.NLMSGERR_ATTR_MSG, "no such thing")
    flags = nlwire.NLM_F_CAPPED | nlwire.NLM_F_ACK_TLVS
    assert (errno.EINVAL, "no such thing") == nlwire.ack(flags, payload)


def test_an_ack_may_echo_the_request() -> None:
    """Without CAP_ACK the attributes follow the whole request, padded."""
    payload = struct.pack("=i", -errno.EPERM) + request_header(21) + b"12345" + b"\0\0\0"
    payload += nlwire.text(nlwire.NLMSGERR_ATTR_MSG, "why")
    assert (errno.EPERM, "why") == nlwire.ack(nlwire.NLM_F_ACK_TLVS, payload)


def test_an_ack_names_the_missing_attribute() -> None:
    """Where the kernel has no words it has a number."""
    payload = struct.pack("=i", -errno.EINVAL) + request_header()
    payload += nlwire.u32(nlwire.NLMSGERR_ATTR_MISS_TYPE, 5)
    flags = nlwire.NLM_F_CAPPED | nlwire.NLM_F_ACK_TLVS
    assert (errno.EINVAL, "attribute 5 is missing") == nlwire.ack(flags, payload)


def test_an_ack_may_explain_nothing() -> None:
    """Attributes of no interest are no explanation."""
    payload = struct.pack("=i", -errno.EINVAL) + request_header() + nlwire.u32(2, 24)
    flags = nlwire.NLM_F_CAPPED | nlwire.NLM_F_ACK_TLVS
    assert (errno.EINVAL, "") == nlwire.ack(flags, payload)


def test_an_ack_without_an_errno_is_refused() -> None:
    """Four bytes are the least."""
    with pytest.raises(nlwire.MalformedMessage, match="acknowledgement of 2 bytes"):
        nlwire.ack(0, b"\0\0")


def test_a_dump_ends_with_or_without_an_errno() -> None:
    """NLMSG_DONE is empty, or an errno, or an errno with attributes."""
    code = struct.pack("=i", -errno.ENODEV)
    explained = code + nlwire.text(nlwire.NLMSGERR_ATTR_MSG, "gone")
    assert (0, "") == nlwire.done(nlwire.NLM_F_MULTI, b"")
    assert (0, "") == nlwire.done(nlwire.NLM_F_MULTI, bytes(4))
    assert (errno.ENODEV, "") == nlwire.done(nlwire.NLM_F_MULTI, code)
    assert (errno.ENODEV, "gone") == nlwire.done(nlwire.NLM_F_ACK_TLVS, explained)
