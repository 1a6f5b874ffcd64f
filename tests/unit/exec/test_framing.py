# SPDX-License-Identifier: Apache-2.0
"""The shims' frames: what goes in comes out, and nothing malformed comes through."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycni.errors import DecodeFailure
from pycni.exec import framing
from pycni.exec.framing import HEADER_SIZE, Call, Reply

NAMES = st.text(
    st.characters(codec="utf-8", exclude_characters="=\0"), min_size=1, max_size=20
).filter(lambda name: name != framing.PLUGIN_VARIABLE)
# Bytes that are not UTF-8 reach us as lone surrogates, as os.environ has them.
VALUES = st.binary(max_size=40).map(
    lambda raw: raw.replace(b"\0", b"?").decode("utf-8", "surrogateescape")
)


def unframed(frame: bytes) -> bytes:
    """The body of a frame, whose length must be the announced one."""
    body = frame[HEADER_SIZE:]
    assert framing.body_length(frame[:HEADER_SIZE]) == len(body)
    return body


@given(st.text(st.characters(codec="ascii", categories=["L"]), min_size=1),
       st.dictionaries(NAMES, VALUES, max_size=5), st.binary(max_size=200))  # fmt: skip
def test_a_call_survives_the_frame(plugin: str, env: dict[str, str], stdin: bytes) -> None:
    """Plugin, every variable and stdin arrive as they were."""
    frame = framing.encode_call(plugin, env, stdin)
    assert Call(plugin, env, stdin) == framing.decode_call(unframed(frame))


@given(st.integers(0, 255), st.binary(max_size=200), st.binary(max_size=200))
def test_a_reply_survives_the_frame(status: int, stdout: bytes, stderr: bytes) -> None:
    """Exit status, stdout and stderr arrive as they were."""
    reply = Reply(status, stdout, stderr)
    assert reply == framing.decode_reply(unframed(framing.encode_reply(reply)))


@given(st.binary(max_size=64))
def test_arbitrary_bytes_are_a_call_or_code_6(body: bytes) -> None:
    """Whatever a stranger sends, the answer is a call or a CNI error."""
    try:
        call = framing.decode_call(body)
    except DecodeFailure:
        return
    assert call.plugin


@given(st.binary(max_size=64))
def test_arbitrary_bytes_are_a_reply_or_code_6(body: bytes) -> None:
    """The same on the way back."""
    try:
        framing.decode_reply(body)
    except DecodeFailure:
        return
    assert len(body) >= 5


def test_a_variable_without_value_is_no_variable() -> None:
    """An item without "=" is skipped, as execve's callees skip it."""
    block = b"PYCNI_PLUGIN=bridge\0JUNK\0"
    body = bytes([framing.VERSION]) + len(block).to_bytes(4, "big") + block
    assert Call("bridge", {}, b"") == framing.decode_call(body)


def test_a_request_may_be_as_large_as_the_limit() -> None:
    """The limit itself is allowed, one more is not, and nothing is read before that is known."""
    limit = framing.MAX_REQUEST
    assert limit == framing.body_length(limit.to_bytes(HEADER_SIZE, "big"))
    with pytest.raises(DecodeFailure, match="larger than") as caught:
        framing.body_length((limit + 1).to_bytes(HEADER_SIZE, "big"))
    assert "stdin" in caught.value.details


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (b"", "shorter than its header"),
        (b"\x01\0\0\0", "shorter than its header"),
        (b"\x02\0\0\0\0", "speaks frame version 2"),
        (b"\x01\0\0\0\x09A=1\0", "ends inside its environment"),
        (b"\x01\0\0\0\x04A=1\0{}", "does not name a plugin"),
    ],
)
def test_a_malformed_request_says_what_is_wrong(body: bytes, fault: str) -> None:
    """Code 6, and the part of the frame that is wrong."""
    with pytest.raises(DecodeFailure, match=fault):
        framing.decode_call(body)


@pytest.mark.parametrize(
    ("body", "fault"),
    [(b"\0\0", "shorter than its header"), (b"\0\0\0\0\x05{}", "ends inside stdout")],
)
def test_a_malformed_reply_says_what_is_wrong(body: bytes, fault: str) -> None:
    """A service that dies while it answers does not look like one that succeeded."""
    with pytest.raises(DecodeFailure, match=fault):
        framing.decode_reply(body)
