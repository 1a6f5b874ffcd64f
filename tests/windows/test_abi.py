# SPDX-License-Identifier: Apache-2.0
"""The binary interface: prototypes, text, memory, handles, missing parts."""

from __future__ import annotations

import ctypes
import mmap
import pathlib
import re
import sys
import uuid

import pytest

from pycni.windows import abi, errors
from pycni.windows.abi import Kind, Reply
from tests.windows.conftest import Bench
from tests.windows.drive import CBR0

HEADERS = [
    pathlib.Path(directory) / "computenetwork.h"
    for directory in (
        "/usr/share/mingw-w64/include",
        "/usr/x86_64-w64-mingw32/sys-root/mingw/include",
        "/usr/x86_64-w64-mingw32/include",
    )
]
# In neither the header nor the documentation: hcsshim's lazy bindings and the export list of
# mingw's import library are the authority for these.
UNDOCUMENTED = {
    *(f"Hcn{verb}" for verb in ("QueryEndpointStats", "QueryEndpointAddresses")),
    *(name for name in abi.SIGNATURES if "SdnRoute" in name),
    "HcnEnumerateGuestNetworkServices",
    "HcnOpenGuestNetworkService",
    "HcnQueryGuestNetworkServiceProperties",
}
# In the header and not bound: notifications, and port reservations for virtual machines.
UNUSED = re.compile(r"Callback|PortReservation|Reserve")
PROTOTYPE = re.compile(r"^(HRESULT|VOID) WINAPI (\w+) \((.*)\);$", re.MULTILINE)


def kind_of(parameter: str) -> Kind:
    """The table's kind for a parameter as the header spells it."""
    spelled, _, name = parameter.rpartition(" ")
    spelled = spelled.replace(" ", "") + "*" * name.count("*")
    name = name.strip("*")
    if spelled == "PWSTR*":
        return Kind.RECORD_OUT if name == "ErrorRecord" else Kind.TEXT_OUT
    if spelled.startswith("PHCN_"):
        return Kind.HANDLE_OUT
    return Kind.HANDLE if spelled.startswith("HCN_") else Kind(spelled)


def test_each_prototype_is_that_of_the_public_header() -> None:
    """Every function of computenetwork.h we bind has its arguments, in order; none is invented."""
    if sys.platform == "win32":
        return  # checked on Linux, where the header is
    source = next(path for path in HEADERS if path.exists()).read_text(encoding="utf-8")
    header = {
        name: (result, tuple(kind_of(one) for one in parameters.split(", ")))
        for result, name, parameters in PROTOTYPE.findall(source)
        if not UNUSED.search(name)
    }
    table = {
        row.name: ("HRESULT", row.params)
        for row in abi.SIGNATURES.values()
        if row.library == abi.COMPUTENETWORK
        # Newer headers know some of what older ones leave out.
        and (row.name in header or row.name not in UNDOCUMENTED)
    }
    assert header == table


def test_undocumented_functions_are_optional() -> None:
    """A build without them works all the same."""
    assert all(abi.SIGNATURES[name].optional for name in UNDOCUMENTED)


def test_every_function_that_gives_a_handle_names_what_closes_it() -> None:
    """And that function takes one handle and nothing else."""
    for row in abi.SIGNATURES.values():
        assert (Kind.HANDLE_OUT in row.params) == bool(row.closer)
        if row.closer:
            assert abi.SIGNATURES[row.closer].params == (Kind.HANDLE,)


def test_a_guid_travels_in_reference_order(bench: Bench) -> None:
    """The first three fields are little-endian, the rest as written."""
    ident = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
    bench.native.invoke("HcnDeleteNetwork", guid=ident)
    assert ident == bench.simulator.calls[-1].guid
    assert bytes.fromhex("33221100 5544 7766 8899 aabbccddeeff") == ident.bytes_le


@pytest.mark.parametrize("name", ["cbr0", "ネット", "\N{GRINNING FACE}", "a" * 70000, "\ud800"])
def test_text_travels_unchanged_both_ways(bench: Bench, name: str) -> None:
    """UTF-16 by hand: beyond the basic plane, longer than a page, even half a pair going out."""
    bench.simulator.hook("HNSCall", lambda call: Reply(text=call.texts[1]))
    reply = bench.native.invoke("HNSCall", texts=("GET", name, ""))
    assert name == bench.simulator.calls[-1].texts[1]
    lone = "\ufffd" if bench.level != "simulator" else name
    assert (name if name != "\ud800" else lone) == reply.text


def test_text_with_a_nul_is_refused() -> None:
    """It would arrive cut short."""
    with pytest.raises(errors.HnsError, match="NUL"):
        abi.encode_utf16("cbr0\0evil")


def test_text_is_not_read_beyond_its_page() -> None:
    """The page behind the terminator may not exist."""
    page = mmap.PAGESIZE
    with mmap.mmap(-1, 2 * page) as area:
        base = ctypes.addressof(ctypes.c_char.from_buffer(area))
        text = "x" * 10
        data = text.encode("utf-16-le") + b"\0\0"
        start = page - len(data)
        area[start:page] = data
        assert text == abi.decode_utf16(base + start)
        area[page - 4 : page + 4] = "abcd".encode("utf-16-le")
        assert "abcd" == abi.decode_utf16(base + page - 4)
        del base


def test_strings_are_freed_when_the_call_fails(bench: Bench) -> None:
    """The error record is the caller's too; the fixture counts what is left."""
    reply = bench.native.invoke("HcnOpenNetwork", guid=uuid.uuid4())
    assert errors.E_NOTFOUND == reply.hresult
    assert "Element not found. " == errors.read_record(reply.record).Error


def test_the_stand_in_notices_a_string_that_is_not_freed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the fixture's check at the end of every test would say nothing."""
    if bench.level == "simulator":
        return
    assert isinstance(bench.native, abi.Library)
    really_free = bench.native._free()
    kept: list[ctypes.c_void_p] = []
    monkeypatch.setattr(bench.native, "_free", lambda: kept.append)
    bench.native.invoke("HcnOpenNetwork", guid=uuid.uuid4())
    assert 1 == bench.outstanding
    for pointer in kept:
        really_free(pointer)
    assert 0 == bench.outstanding


def test_handles_are_the_services_and_close(bench: Bench) -> None:
    """A handle is passed back as it came."""
    ident = bench.simulator.add_network(CBR0)
    handle = bench.native.invoke("HcnOpenNetwork", guid=ident).handle
    assert [handle] == list(bench.simulator.handles)
    assert 0 == bench.native.invoke("HcnCloseNetwork", handle=handle).hresult
    assert 0 == bench.simulator.open_handles


def test_a_missing_export_is_an_unsupported_function(bench: Bench) -> None:
    """Found out when it is called, so that the rest works without it."""
    if bench.level == "simulator":
        assert bench.native.invoke("HcnEnumerateSdnRoutes", texts=("{}",)).hresult
        return
    with pytest.raises(errors.HnsUnsupported, match="platform does not support function") as caught:
        bench.native.invoke("HcnEnumerateSdnRoutes", texts=("{}",))
    assert 2 == caught.value.code


def test_a_missing_dll_is_an_unavailable_service() -> None:
    """The message says what brings it."""

    def load(name: str) -> None:
        raise FileNotFoundError(name)

    with pytest.raises(errors.HnsUnavailable, match="cannot be loaded") as caught:
        abi.Library(load).invoke("HNSCall", texts=("GET", "/networks/", ""))
    assert "Containers" in caught.value.hint


if sys.platform == "win32":

    def test_dlls_come_from_system32_only(
        tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A DLL in the current directory or on PATH is never loaded."""
        innocent = pathlib.Path(sys.executable).with_name("python3.dll")
        (tmp_path / "planted.dll").write_bytes(innocent.read_bytes())
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(FileNotFoundError):
            abi.load_system32("planted.dll")
        assert abi.load_system32("computenetwork.dll")
