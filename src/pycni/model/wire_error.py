# SPDX-License-Identifier: Apache-2.0
"""The JSON form of an error: what a plugin prints on stdout when it fails."""

from __future__ import annotations

from msgspec import Struct

from pycni.errors import CniError, DecodeFailure, InvalidConfig
from pycni.model import jsonio


class _WireError(Struct, frozen=True, kw_only=True, omit_defaults=True):
    cniVersion: str = ""
    code: jsonio.Uint | None = None
    msg: str | None = None
    details: str = ""


def encode_error(error: CniError, cni_version: str = "", *, indent: int | None = 4) -> bytes:
    """Return `error` as Go prints it, with the SPEC's `cniVersion` in front when it is known."""
    return jsonio.encode_go(
        _WireError(
            cniVersion=cni_version,
            code=error.wire_code,
            msg=_clean(error.msg),
            details=_clean(error.details),
        ),
        indent=indent,
    )


def parse_error(data: jsonio.Buffer) -> CniError:
    """Return the error `data` describes, in the class that owns its code.

    Raises DecodeFailure if it is not JSON or has neither a code nor a message.
    """
    try:
        wire = jsonio.decode(data, _WireError)
    except InvalidConfig as exc:
        raise DecodeFailure(exc.msg) from exc
    if wire.code is None and wire.msg is None:
        raise DecodeFailure("not an error: neither code nor msg is there")
    error = CniError.from_wire(wire.code or 0, wire.msg or "", wire.details)
    error.cni_version = wire.cniVersion or None
    error.document = bytes(data)
    return error


def _clean(text: str) -> str:
    """Replace what UTF-8 cannot carry: names from the environment may hold stray bytes."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
