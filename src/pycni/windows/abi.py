# SPDX-License-Identifier: Apache-2.0
"""computenetwork.dll and vmcompute.dll: signature tables, and ctypes calls made from them.

Every function takes and gives only six kinds of argument, so one table row per function says all
there is to say, and one routine (`Library.invoke`) makes every call. The rules it keeps:

- A GUID is passed by pointer to its 16 bytes, the first three fields little-endian.
- Text is UTF-16LE with a terminating NUL, encoded here: `c_wchar` has four bytes on Linux, where
  the same code runs against a stand-in library.
- Each string the service returns belongs to the caller and is freed with CoTaskMemFree, also on
  failure. (LocalFree belongs to computecore.dll's newer HCS calls, which are not used.)
- HRESULT is a 32-bit integer, which `c_long` is not everywhere.
- The DLLs are looked for in system32 only, so nobody can plant one beside the executable.

The table is checked against mingw-w64's computenetwork.h by a test.
"""

from __future__ import annotations

import ctypes
import enum
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import msgspec

from pycni.windows import errors

COMPUTENETWORK = "computenetwork.dll"
VMCOMPUTE = "vmcompute.dll"
_OLE32 = "ole32.dll"
_LOAD_LIBRARY_SEARCH_SYSTEM32 = 0x800
_PAGE = 4096

NIL = uuid.UUID(int=0)


class Kind(enum.Enum):
    """What one argument is."""

    GUID = "REFGUID"
    TEXT = "PCWSTR"
    HANDLE = "HCN_*"
    HANDLE_OUT = "PHCN_*"
    TEXT_OUT = "PWSTR*"
    RECORD_OUT = "PWSTR* ErrorRecord"


class Signature(msgspec.Struct, frozen=True):
    """One exported function. `closer` names what closes the handle it returns."""

    name: str
    params: tuple[Kind, ...]
    library: str = COMPUTENETWORK
    closer: str = ""
    optional: bool = False


class Reply(msgspec.Struct, frozen=True):
    """What a native function gave back; `hresult` is unsigned."""

    hresult: int = 0
    handle: int = 0
    text: str = ""
    record: str = ""


class Native(Protocol):
    """The service's functions by name: the two DLLs, or the simulator in `pycni.testing`."""

    def invoke(
        self,
        function: str,
        *,
        guid: uuid.UUID = NIL,
        handle: int = 0,
        texts: tuple[str, ...] = (),
    ) -> Reply:
        """Call `function`; its inputs of each kind are taken from the arguments in order."""


# Enumerate… takes the plural; SdnRoute and GuestNetworkService are missing on older systems and
# from the public header (hcsshim binds them lazily too).
OBJECTS = ("Network", "Endpoint", "Namespace", "LoadBalancer")
OPTIONAL_OBJECTS = ("SdnRoute", "GuestNetworkService")


def _object_signatures(noun: str, *, optional: bool) -> Iterator[Signature]:
    """The seven functions each object type has."""
    owner = (Kind.HANDLE,) if noun == "Endpoint" else ()  # an endpoint is created on a network
    closer = f"HcnClose{noun}"
    rows: tuple[tuple[str, tuple[Kind, ...], str], ...] = (
        (f"HcnEnumerate{noun}s", (Kind.TEXT, Kind.TEXT_OUT, Kind.RECORD_OUT), ""),
        (
            f"HcnCreate{noun}",
            (*owner, Kind.GUID, Kind.TEXT, Kind.HANDLE_OUT, Kind.RECORD_OUT),
            closer,
        ),
        (f"HcnOpen{noun}", (Kind.GUID, Kind.HANDLE_OUT, Kind.RECORD_OUT), closer),
        (f"HcnModify{noun}", (Kind.HANDLE, Kind.TEXT, Kind.RECORD_OUT), ""),
        (
            f"HcnQuery{noun}Properties",
            (Kind.HANDLE, Kind.TEXT, Kind.TEXT_OUT, Kind.RECORD_OUT),
            "",
        ),
        (f"HcnDelete{noun}", (Kind.GUID, Kind.RECORD_OUT), ""),
        (closer, (Kind.HANDLE,), ""),
    )
    for name, params, closes in rows:
        yield Signature(name, params, closer=closes, optional=optional)


def _signatures() -> Iterator[Signature]:
    for noun in OBJECTS:
        yield from _object_signatures(noun, optional=False)
    for noun in OPTIONAL_OBJECTS:
        yield from _object_signatures(noun, optional=True)
    query = (Kind.HANDLE, Kind.TEXT, Kind.TEXT_OUT, Kind.RECORD_OUT)
    yield Signature("HcnQueryEndpointStats", query, optional=True)
    yield Signature("HcnQueryEndpointAddresses", query, optional=True)
    # HNSCall(method, path, object, response); the response holds success and error both.
    rest = (Kind.TEXT, Kind.TEXT, Kind.TEXT, Kind.TEXT_OUT)
    yield Signature("HNSCall", rest, VMCOMPUTE)
    yield Signature(
        "HcsOpenComputeSystem",
        (Kind.TEXT, Kind.HANDLE_OUT, Kind.RECORD_OUT),
        VMCOMPUTE,
        closer="HcsCloseComputeSystem",
    )
    yield Signature("HcsModifyComputeSystem", (Kind.HANDLE, Kind.TEXT, Kind.RECORD_OUT), VMCOMPUTE)
    yield Signature("HcsCloseComputeSystem", (Kind.HANDLE,), VMCOMPUTE)


SIGNATURES: dict[str, Signature] = {row.name: row for row in _signatures()}


def encode_utf16(text: str) -> bytes:
    """UTF-16LE with its terminator; a NUL inside would cut the text short, so it is refused."""
    if "\0" in text:
        raise errors.HnsError("encode text", 0x80070057, detail="text contains a NUL character")
    return text.encode("utf-16-le", "surrogatepass") + b"\0\0"


def decode_utf16(address: int) -> str:
    """The NUL-terminated UTF-16LE text at `address`.

    Read up to the end of each page and no further: the page behind the terminator may not exist.
    """
    raw = bytearray()
    while True:
        chunk = ctypes.string_at(address, _PAGE - address % _PAGE)
        end = chunk.find(b"\0\0")
        while end % 2 and end >= 0:  # the high byte of one unit and the low byte of the next
            end = chunk.find(b"\0\0", end + 1)
        if end >= 0:
            raw += chunk[:end]
            return raw.decode("utf-16-le", "replace")
        raw += chunk
        address += len(chunk)


Loader = Callable[[str], Any]


def load_system32(name: str) -> Any:
    """Load one DLL from system32, whatever lies in the current directory or on PATH."""
    if sys.platform == "win32":
        return ctypes.WinDLL(name, winmode=_LOAD_LIBRARY_SEARCH_SYSTEM32)
    raise FileNotFoundError(name)


class Library:
    """The DLLs, bound lazily: a function is looked up when it is first called."""

    def __init__(self, load: Loader = load_system32) -> None:
        self._load = load
        self._lock = threading.Lock()
        self._libraries: dict[str, Any] = {}
        self._functions: dict[str, Any] = {}

    def invoke(
        self,
        function: str,
        *,
        guid: uuid.UUID = NIL,
        handle: int = 0,
        texts: tuple[str, ...] = (),
    ) -> Reply:
        """Call `function` by its table row; free each returned string, whatever happened."""
        signature = SIGNATURES[function]
        native = self._bind(signature)
        given = iter(texts)
        arguments: list[Any] = []
        keep: list[Any] = []  # the buffers must outlive the call
        outs = {Kind.TEXT_OUT: ctypes.c_void_p(), Kind.RECORD_OUT: ctypes.c_void_p()}
        new_handle = ctypes.c_void_p()
        for kind in signature.params:
            match kind:
                case Kind.GUID:
                    keep.append(ctypes.create_string_buffer(guid.bytes_le, 16))
                    arguments.append(keep[-1])
                case Kind.TEXT:
                    data = encode_utf16(next(given))
                    keep.append(ctypes.create_string_buffer(data, len(data)))
                    arguments.append(keep[-1])
                case Kind.HANDLE:
                    arguments.append(handle)
                case Kind.HANDLE_OUT:
                    arguments.append(ctypes.byref(new_handle))
                case Kind.TEXT_OUT | Kind.RECORD_OUT:
                    arguments.append(ctypes.byref(outs[kind]))
        try:
            hresult = native(*arguments) & 0xFFFFFFFF
            return Reply(
                hresult,
                new_handle.value or 0,
                _text_at(outs[Kind.TEXT_OUT]),
                _text_at(outs[Kind.RECORD_OUT]),
            )
        finally:
            free = self._free()
            for pointer in outs.values():
                if pointer.value:
                    free(pointer)

    def _bind(self, signature: Signature) -> Any:
        """The ctypes function of one row, with argument and result types set."""
        with self._lock:
            bound = self._functions.get(signature.name)
            if bound is None:
                library = self._library(signature.library)
                try:
                    bound = library[signature.name]
                except AttributeError as exc:
                    raise errors.HnsUnsupported(
                        f"function {signature.name}", hint=f"{signature.library} does not export it"
                    ) from exc
                bound.argtypes = [ctypes.c_void_p] * len(signature.params)
                bound.restype = ctypes.c_int32
                self._functions[signature.name] = bound
            return bound

    def _free(self) -> Any:
        """CoTaskMemFree."""
        with self._lock:
            free = self._functions.get("CoTaskMemFree")
            if free is None:
                free = self._library(_OLE32)["CoTaskMemFree"]
                free.argtypes = [ctypes.c_void_p]
                free.restype = None
                self._functions["CoTaskMemFree"] = free
            return free

    def _library(self, name: str) -> Any:
        if name not in self._libraries:
            try:
                self._libraries[name] = self._load(name)
            except OSError as exc:
                raise errors.HnsUnavailable(
                    f"{name} cannot be loaded",
                    hint="the host networking service comes with the Windows feature Containers",
                ) from exc
        return self._libraries[name]


def _text_at(pointer: ctypes.c_void_p) -> str:
    return decode_utf16(pointer.value) if pointer.value else ""
