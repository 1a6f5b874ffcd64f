# SPDX-License-Identifier: Apache-2.0
"""HRESULTs of the host networking service as typed errors.

    HnsError                    999   the service refused an operation
    ├── HnsNotFound             999   the object is not there (any code that says so)
    ├── HnsConflict             999   name, port or policy is taken, or the object is attached
    ├── HnsDenied               999   the caller is not an administrator
    ├── HnsUnsupported            2   this build has no such function or feature
    ├── HnsTransient             11   worth trying again
    │   └── HnsTimeout           11   no answer within the deadline
    └── HnsUnavailable           11   the service or its DLL is not there

The service answers in three shapes: a failing HRESULT, a JSON error record beside it (present now
and then with a success code too), and schema 1's `{"Success":false,"Error":…}` under a success
code. `from_reply` and `from_response` turn each into the class above.
"""

from __future__ import annotations

import ctypes
import sys

import msgspec

from pycni.errors import CniError

E_NOTFOUND = 0x80070490
E_INVALIDARG = 0x80070057
E_ACCESSDENIED = 0x80070005

# Texts as the service's records spell them; FormatMessage has them on Windows only.
TEXTS = {
    0x803B0001: "The network was not found.",
    0x803B0002: "The endpoint was not found.",
    0x803B0003: "The layer was not found.",
    0x803B0004: "The switch was not found.",
    0x803B0005: "The network does not have a subnet for this endpoint.",
    0x803B0006: "An adapter was not found.",
    0x803B0007: "The switch-port was not found.",
    0x803B0008: "An expected policy was not found.",
    0x803B0009: "A required VFP port setting was not found.",
    0x803B000A: "The provided network configuration is invalid or missing parameters.",
    0x803B000B: "Invalid network type.",
    0x803B000C: "The provided endpoint configuration is invalid or missing parameters.",
    0x803B000D: "The provided policy configuration is invalid or missing parameters.",
    0x803B000E: "Invalid policy type.",
    0x803B000F: "This requested operation is invalid for a remote endpoint.",
    0x803B0010: "A network with this name already exists.",
    0x803B0011: "A layer with this name already exists.",
    0x803B0012: "Policy information already exists on this object.",
    0x803B0013: "The specified port already exists.",
    0x803B0014: "This endpoint is already attached to the switch.",
    0x803B0015: "The specified request is unsupported.",
    0x803B0016: "Port mapping is not supported on the given network.",
    0x803B0017: "There was an operation attempted on a degraded object.",
    0x803B0018: "Cannot modify a switch shared by multiple networks.",
    0x803B0019: "Failed to interpret a parameter as a GUID.",
    0x803B001A: "Failed to process registry key.",
    0x803B001B: "Invalid JSON document string.",
    0x803B001C: "The reference is invalid in the JSON document.",
    0x803B001D: "Endpoint sharing is disabled.",
    0x803B001E: "IP address is either invalid or not part of any configured subnet(s).",
    0x803B001F: "The specified switch extension does not exist on this switch.",
    0x803B0020: "Operation cannot be performed while service is stopping.",
    0x803B002A: "Internet connection sharing (ICS) is disabled.",
    0x803B002B: "This requested operation is invalid as endpoint is already part of a network"
    " namespace.",
    0x803B002C: "The specified entity cannot be removed while it still has references.",
    0x803B002D: "The internal port must exist and cannot be zero.",
    0x803B002E: "The requested operation for attach namespace failed.",
    0x803B002F: "An address provided is invalid or reserved.",
    0x803B0030: "The specified prefix is invalid.",
    0x803B0031: "A call was performed to an object that was torn down.",
    0x80070490: "Element not found.",
    0x80070057: "The parameter is incorrect.",
    0x80070005: "Access is denied.",
    0x80070020: "The process cannot access the file because it is being used by another process.",
    0x80070022: "The wrong diskette is in the drive.",
    0x80070422: "The service cannot be started, either because it is disabled or because it has no"
    " enabled devices associated with it.",
    0x80070426: "The service has not been started.",
    0x800706BA: "The RPC server is unavailable.",
    0xC037010E: "A virtual machine or container with the specified identifier does not exist.",
    0xC0370103: "The operation is being carried out; its result comes later.",
}

NOT_FOUND = frozenset({E_NOTFOUND, 0x803B0001, 0x803B0002})
CONFLICT = frozenset({0x803B0010, 0x803B0012, 0x803B0013, 0x803B0014, 0x803B002B})
# A missing adapter, a degraded object or a stopping service passes; "wrong diskette" is what a
# network answers while its adapter is rebound (flannel #1112).
TRANSIENT = frozenset({0x803B0006, 0x803B0017, 0x803B0020, 0x80070022, 0x80070426, 0x800706BA})
UNAVAILABLE = frozenset({0x80070422})
NO_COMPUTE_SYSTEM = 0xC037010E
PENDING = 0xC0370103
PORT_EXISTS = 0x803B0013
SHARING_VIOLATION = 0x80070020
ALREADY_IN_NAMESPACE = 0x803B002B


class Record(msgspec.Struct, frozen=True):
    """The error record of HCN, and the envelope of every schema 1 response."""

    Success: bool = True
    Error: str = ""
    ErrorCode: int = 0
    Output: msgspec.Raw = msgspec.Raw(b"")


class HnsError(CniError, code=999):
    """The host networking service refused `op`; `hresult` is unsigned, 0 if it gave none."""

    def __init__(self, op: str, hresult: int, record: str = "", *, detail: str = "") -> None:
        text = detail or describe(hresult, record)
        shown = f" {record}" if record else ""
        super().__init__(f"{op} failed in Win32: {text} (0x{win32_code(hresult):x}){shown}")
        self.op = op
        self.hresult = hresult
        self.record = record
        if hresult in (PORT_EXISTS, SHARING_VIOLATION):
            self.hint = "another container or process of this node holds the host port"


class HnsNotFound(HnsError):
    """The object does not exist, or no longer does."""


class HnsConflict(HnsError):
    """The name, port or policy exists already, or the endpoint is attached already."""


class HnsDenied(HnsError):
    """Only administrators may use the host networking service."""


class HnsTransient(HnsError, code=11):
    """A passing condition; the same call may succeed later."""


class HnsTimeout(HnsTransient, code=11):
    """The service did not answer in time; what it does with the call is not known."""

    def __init__(self, op: str, timeout_s: float) -> None:
        super().__init__(op, 0x800705B4, detail=f"no answer within {timeout_s:.1f} s")
        self.hint = "the host networking service may hang; restarting the service 'hns' helps"


class HnsUnsupported(CniError, code=2):
    """This build of Windows has no such function or feature."""

    def __init__(self, feature: str, *, hint: str = "") -> None:
        super().__init__(f"platform does not support {feature}", hint=hint)


class HnsUnavailable(CniError, code=11):
    """The host networking service, or one of its DLLs, is not there."""


def win32_code(hresult: int) -> int:
    """The Win32 code inside `hresult`, or the HRESULT itself."""
    return hresult & 0xFFFF if hresult & 0x1FFF0000 == 0x00070000 else hresult


def describe(hresult: int, record: str = "") -> str:
    """What the code means: the system's text, our table's, else what the record says."""
    if sys.platform == "win32":
        text = ctypes.FormatError(ctypes.c_int32(hresult).value).strip()
        if text and text != "<no description>":
            return text
    return TEXTS.get(hresult) or read_record(record).Error.strip() or f"error {hresult:#010x}"


def read_record(record: str) -> Record:
    """The error record, or an empty one if it is not what the documentation says."""
    try:
        return msgspec.json.decode(record, type=Record)
    except msgspec.DecodeError:
        return Record()


def from_hresult(op: str, hresult: int, record: str = "", *, detail: str = "") -> CniError:
    """The typed error of a failing call."""
    if hresult in UNAVAILABLE:
        return HnsUnavailable(
            f"{op} failed in Win32: {describe(hresult)} (0x{win32_code(hresult):x})",
            hint="start the service 'hns'",
        )
    classes = (
        (NOT_FOUND, HnsNotFound),
        (CONFLICT, HnsConflict),
        (TRANSIENT, HnsTransient),
        (frozenset({E_ACCESSDENIED}), HnsDenied),
    )
    for codes, kind in classes:
        if hresult in codes:
            return kind(op, hresult, record, detail=detail)
    return HnsError(op, hresult, record, detail=detail)


def from_response(op: str, text: str) -> CniError:
    """The typed error of a schema 1 response that says Success: false; it carries no code."""
    said = read_record(text)
    if said.ErrorCode:
        return from_hresult(op, said.ErrorCode & 0xFFFFFFFF, text)
    error = said.Error.strip()
    by_text = {known.casefold(): code for code, known in TEXTS.items()}
    code = by_text.get(error.casefold(), 0)
    if not code and "not found" in error.casefold():
        code = E_NOTFOUND
    raised = from_hresult(op, code, text, detail=error)
    if isinstance(raised, HnsError):
        raised.msg = f"{op}: hns failed with error : {error}"
    return raised
