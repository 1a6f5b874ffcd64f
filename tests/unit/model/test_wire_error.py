# SPDX-License-Identifier: Apache-2.0
"""Errors on the wire: Go's layout out, anything Go would read in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycni.errors import CniError, DecodeFailure, InvalidConfig, TryAgain, UnsupportedField
from pycni.model.wire_error import encode_error, parse_error


def test_an_error_is_printed_as_go_prints_it() -> None:
    """Four spaces, HTML escaped, empty details left out, no newline at the end."""
    expected = b'{\n    "code": 7,\n    "msg": "a \\u003c b \\u0026 c"\n}'
    assert expected == encode_error(InvalidConfig("a < b & c"))
    expected = b'{\n    "code": 2,\n    "msg": "m",\n    "details": "d; try x"\n}'
    assert expected == encode_error(UnsupportedField("m", "d", hint="try x"))


def test_the_version_is_printed_when_known() -> None:
    """E1: the SPEC asks for it, Go leaves it out."""
    expected = b'{"cniVersion":"1.0.0","code":11,"msg":""}'
    assert expected == encode_error(TryAgain(""), "1.0.0", indent=None)


def test_stray_bytes_do_not_keep_an_error_from_being_printed() -> None:
    """Names out of the environment may hold what is not UTF-8."""
    printed = encode_error(CniError("a\udcffb", "c\ud800"), indent=None)
    assert '{"code":999,"msg":"a\ufffdb","details":"c\ufffd"}'.encode() == printed
    assert "😀" == parse_error(encode_error(CniError("😀"))).msg


def test_an_error_is_rebuilt_in_its_class() -> None:
    """Keys match without regard to case; an unowned code keeps its number."""
    error = parse_error(b'{"CniVersion": "1.0.0", "Code": 11, "Msg": "m", "details": "d", "x": 1}')
    assert (TryAgain, 11, "m", "d", "1.0.0") == (
        type(error),
        error.wire_code,
        error.msg,
        error.details,
        error.cni_version,
    )
    error = parse_error(b'{"code": 4711, "msg": "m", "details": null}')
    assert (CniError, 4711, "", None) == (
        type(error),
        error.wire_code,
        error.details,
        error.cni_version,
    )
    assert 0 == parse_error(b'{"msg": "m"}').wire_code
    assert "" == parse_error(b'{"code": 5}').msg


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not valid JSON: the document is empty"),
        (b"panic: x", "not valid JSON: invalid character (byte 0)"),
        (b"{}", "not an error: neither code nor msg is there"),
        (b"null", "not an error: neither code nor msg is there"),
        (b"[]", "expected object, got array"),
        (b'{"code": "7"}', "code: expected int | null, got str"),
        (b'{"code": -1}', "code: expected int >= 0"),
        (b'{"code": 10} {}', "not valid JSON: trailing characters (byte 14)"),
    ],
)
def test_anything_else_is_not_an_error_object(data: bytes, message: str) -> None:
    """E3: what to make of it is the caller's affair."""
    with pytest.raises(DecodeFailure) as caught:
        parse_error(data)
    assert message == caught.value.msg


@given(st.integers(0, 2**32), st.text(), st.text())
def test_an_error_survives_the_wire(code: int, msg: str, details: str) -> None:
    """Code, message and details come back as they were."""
    error = parse_error(encode_error(CniError.from_wire(code, msg, details)))
    assert (code, msg, details) == (error.wire_code, error.msg, error.details)
