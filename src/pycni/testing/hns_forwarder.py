# SPDX-License-Identifier: Apache-2.0
"""The simulator behind the service's real binary interface.

`Server` answers the stand-in libraries built from `fakehns.c`; `build_elf` and `build_dlls` make
them. A client that was told to load them cannot tell the simulator from the service.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.resources
import os
import pathlib
import socket
import struct
import subprocess
import threading
import uuid
from collections.abc import Iterator

from pycni.windows import abi

SOURCE = "fakehns.c"
ADDRESS_VARIABLE = "FAKEHNS_ADDR"
MINGW = "x86_64-w64-mingw32-gcc"
_NIL_TEXT = 0xFFFFFFFF
_VMCOMPUTE_FUNCTIONS = tuple(
    row.name for row in abi.SIGNATURES.values() if row.library == abi.VMCOMPUTE
)


class Server:
    """Takes forwarded calls on a loopback port, each on a connection and thread of its own."""

    def __init__(self, native: abi.Native) -> None:
        self._native = native
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._accept, name="fakehns", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening; calls under way end by themselves."""
        # A closed listener does not wake its accept() everywhere, a connection does.
        host, _, port = self.address.partition(":")
        self._native = _Gone()
        with contextlib.suppress(OSError):
            socket.create_connection((host, int(port)), timeout=1).close()
        self._listener.close()
        self._thread.join(5)

    def _accept(self) -> None:
        while not isinstance(self._native, _Gone):
            try:
                link, _peer = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(link,), daemon=True).start()

    def _serve(self, link: socket.socket) -> None:
        with link, contextlib.suppress(OSError):
            head = _receive(link, 4)
            if head:
                (size,) = struct.unpack("<I", head)
                link.sendall(encode_reply(self._call(_receive(link, size))))

    def _call(self, frame: bytes) -> abi.Reply:
        function, guid, handle, texts = decode_request(frame)
        return self._native.invoke(function, guid=guid, handle=handle, texts=texts)


class _Gone:
    """What answers when the server is closed."""

    def invoke(
        self,
        function: str,
        *,
        guid: uuid.UUID = abi.NIL,
        handle: int = 0,
        texts: tuple[str, ...] = (),
    ) -> abi.Reply:
        return abi.Reply(hresult=0x800706BA)


def decode_request(frame: bytes) -> tuple[str, uuid.UUID, int, tuple[str, ...]]:
    """Function, GUID, handle and texts of a request frame (see fakehns.c)."""
    (name_size,) = struct.unpack_from("<H", frame)
    name = frame[2 : 2 + name_size].decode()
    at = 2 + name_size
    guid = uuid.UUID(bytes_le=frame[at : at + 16])
    handle, count = struct.unpack_from("<QH", frame, at + 16)
    at += 26
    texts = []
    for _ in range(count):
        (units,) = struct.unpack_from("<I", frame, at)
        at += 4
        texts.append(frame[at : at + 2 * units].decode("utf-16-le", "surrogatepass"))
        at += 2 * units
    return name, guid, handle, tuple(texts)


def encode_reply(reply: abi.Reply) -> bytes:
    """A reply frame (see fakehns.c); an empty text is NULL, as the service does it."""
    hresult = reply.hresult - (1 << 32) if reply.hresult & 0x80000000 else reply.hresult
    body = struct.pack("<iQ", hresult, reply.handle)
    for text in (reply.text, reply.record):
        units = text.encode("utf-16-le", "surrogatepass")
        body += struct.pack("<I", len(units) // 2 if text else _NIL_TEXT) + units
    return struct.pack("<I", len(body)) + body


def _receive(link: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = link.recv(size - len(data))
        if not chunk:
            return b""
        data += chunk
    return data


@contextlib.contextmanager
def serving(native: abi.Native) -> Iterator[Server]:
    """A server the stand-in libraries of this process and its children find."""
    server = Server(native)
    before = os.environ.get(ADDRESS_VARIABLE)
    os.environ[ADDRESS_VARIABLE] = server.address
    try:
        yield server
    finally:
        if before is None:
            del os.environ[ADDRESS_VARIABLE]
        else:
            os.environ[ADDRESS_VARIABLE] = before
        server.close()


def source() -> pathlib.Path:
    """The C source beside this file."""
    return pathlib.Path(str(importlib.resources.files("pycni.testing") / SOURCE))


def build_elf(directory: pathlib.Path) -> pathlib.Path:
    """Compile the stand-in as one Linux library with gcc."""
    built = directory / "libfakehns.so"
    _compile(["gcc", "-Wall", "-Werror", "-O1", "-shared", "-fPIC", "-o", built, source()])
    return built


def build_dlls(directory: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    """Compile computenetwork.dll, and vmcompute.dll whose exports lead to the first one."""
    network, compute = directory / abi.COMPUTENETWORK, directory / abi.VMCOMPUTE
    flags = ["-Wall", "-Werror", "-O1", "-shared"]
    _compile([MINGW, *flags, "-o", network, source(), "-lws2_32", "-lole32"])
    exports = directory / "vmcompute.def"
    lines = [f"{name} = computenetwork.{name}" for name in _VMCOMPUTE_FUNCTIONS]
    exports.write_text("LIBRARY vmcompute.dll\nEXPORTS\n" + "\n".join(lines) + "\n")
    _compile([MINGW, "-shared", "-nostdlib", "-Wl,--entry,0", "-o", compute, exports])
    exports.unlink()
    return network, compute


def _compile(command: list[str | pathlib.Path]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {done.stderr}")


class ElfLibraries:
    """A loader for `abi.Library`: every DLL name leads to the one Linux library."""

    def __init__(self, path: pathlib.Path) -> None:
        self._library = ctypes.CDLL(str(path))

    def __call__(self, name: str) -> ctypes.CDLL:
        return self._library

    @property
    def outstanding(self) -> int:
        """Strings handed out and not freed."""
        return outstanding(self._library)


def outstanding(library: ctypes.CDLL) -> int:
    """The stand-in's count of strings handed out and not freed."""
    count = library["FakeHnsOutstanding"]
    count.argtypes = []
    count.restype = ctypes.c_long
    return int(count())
