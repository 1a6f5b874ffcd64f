# SPDX-License-Identifier: Apache-2.0
"""nftables through libnftables, the library inside `nft`: text or JSON in, one transaction out.

The context is resident: made at the first command and kept, because closing its socket after a
deletion waits 5-18 ms for the kernel, which is what every `nft delete` process pays. A command is
atomic however many lines it has. One that fails in the kernel costs a grace period (6-8 ms): look
first (`Nft.maps` looks cheaply), and never let a transaction fail on purpose.

libnftables opens its socket at the first command, reopens it when a dump was interrupted, and
asks for interface names on another one; so with a namespace given every command runs on a thread
inside it (`kernel.netns`). Debian 12's 1.0.6 is the oldest supported: no `destroy` command.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import threading
from typing import Any

import msgspec

from pycni.errors import KernelError, Unsupported
from pycni.kernel import netns
from pycni.kernel.netns import Netns
from pycni.kernel.nfnetlink import NfSocket
from pycni.kernel.nftmaps import Maps
from pycni.kernel.nlsocket import failure

SONAME = "libnftables.so.1"

NFT_CTX_DEFAULT = 0
NFT_CTX_OUTPUT_HANDLE = 1 << 3
NFT_CTX_OUTPUT_JSON = 1 << 4

# One object of the library's JSON dialect, and the only dicts that cross this module's border.
JsonObject = dict[str, Any]


class Nft:
    """nftables as one namespace sees it; safe to share between threads."""

    def __init__(self, namespace: Netns | None = None) -> None:
        self._netns = namespace
        self._context: int | None = None
        self._lock = threading.Lock()
        self._socket: NfSocket | None = None

    def run(self, commands: str) -> str:
        """Run commands in nft's language as one transaction; returns what they print."""
        return self._run(commands, flags=0)

    def run_json(self, commands: list[JsonObject]) -> list[JsonObject]:
        """Run commands of libnftables-json(5) as one transaction; returns the objects printed."""
        output = self._run(
            msgspec.json.encode({"nftables": commands}).decode(),
            flags=NFT_CTX_OUTPUT_JSON | NFT_CTX_OUTPUT_HANDLE,
        )
        return _objects(output)

    def list_json(self, command: str) -> list[JsonObject]:
        """What a `list …` command shows, as objects with handles, without the metainfo."""
        return _objects(self._run(command, flags=NFT_CTX_OUTPUT_JSON | NFT_CTX_OUTPUT_HANDLE))

    def maps(self, family: str, table: str) -> Maps:
        """The maps and chains of a table; looking at them never loads libnftables."""
        with self._lock:
            if self._socket is None:
                self._socket = NfSocket(self._netns)
            return Maps(self._socket, family=family, table=table)

    def probe(self) -> None:
        """Raise unless nftables works here: the library is there and the kernel answers."""
        _library()
        self.maps("inet", "").generation()

    def close(self) -> None:
        """Free the context and its sockets; a later command opens them again."""
        with self._lock:
            if self._socket is not None:
                self._socket.close()
                self._socket = None
            if self._context is not None:
                _library().nft_ctx_free(self._context)
                self._context = None

    def _run(self, commands: str, *, flags: int) -> str:
        if "\0" in commands:
            raise KernelError("run", "nft commands", errno.EINVAL, "NUL character in commands")
        with self._lock:
            code, output, complaint = netns.run(
                self._netns, lambda: self._run_here(commands.encode(), flags)
            )
        if code:
            raise _error(commands, complaint)
        return output

    def _run_here(self, commands: bytes, flags: int) -> tuple[int, str, str]:
        library = _library()
        if self._context is None:
            self._context = _new_context(library)
        library.nft_ctx_output_set_flags(self._context, flags)
        code = library.nft_run_cmd_from_buffer(self._context, commands)
        output = library.nft_ctx_get_output_buffer(self._context)
        complaint = library.nft_ctx_get_error_buffer(self._context)
        return code, output.decode(errors="replace"), complaint.decode(errors="replace")


@functools.cache
def _library() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(SONAME)
    except OSError as exc:
        raise Unsupported(
            "load",
            SONAME,
            errno.ENOENT,
            str(exc),
            hint="install the package libnftables1 (Debian, Ubuntu) or nftables-libs / nftables "
            "(Fedora, RHEL), or choose the iptables backend",
        ) from exc
    context = ctypes.c_void_p
    for name, result, arguments in (
        ("nft_ctx_new", context, [ctypes.c_uint32]),
        ("nft_ctx_free", None, [context]),
        ("nft_ctx_buffer_output", ctypes.c_int, [context]),
        ("nft_ctx_buffer_error", ctypes.c_int, [context]),
        ("nft_ctx_get_output_buffer", ctypes.c_char_p, [context]),
        ("nft_ctx_get_error_buffer", ctypes.c_char_p, [context]),
        ("nft_ctx_output_set_flags", None, [context, ctypes.c_uint]),
        ("nft_run_cmd_from_buffer", ctypes.c_int, [context, ctypes.c_char_p]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def _new_context(library: ctypes.CDLL) -> int:
    context: int | None = library.nft_ctx_new(NFT_CTX_DEFAULT)
    if not context:
        raise KernelError("create", "libnftables context", errno.ENOMEM)
    if library.nft_ctx_buffer_output(context) or library.nft_ctx_buffer_error(context):
        library.nft_ctx_free(context)
        raise KernelError("buffer", "libnftables output", errno.ENOMEM)
    return context


def _objects(output: str) -> list[JsonObject]:
    if not output.strip():
        return []
    objects: list[JsonObject] = msgspec.json.decode(output)["nftables"]
    return [entry for entry in objects if "metainfo" not in entry]


def _error(commands: str, complaint: str) -> KernelError:
    """nft's first error line, on the command if there was only one.

    Of several, 1.0.6 shows the first one whichever it means.
    """
    lines = [line for line in complaint.splitlines() if line.strip()]
    reason = lines[0].split("Error: ", 1)[-1] if lines else "no reason given"
    reason = reason.removeprefix("Could not process rule: ")
    command, *others = commands.strip().splitlines() or [""]
    target = f"`nft {_shortened(command)}`"
    if others:
        target += f" and {len(others)} more"
    return failure("run", target, _errno_of(reason), reason)


def _errno_of(reason: str) -> int:
    """The errno whose text is `reason`; EINVAL for a fault nft itself found."""
    return _ERRNO_BY_TEXT.get(reason.partition(";")[0], errno.EINVAL)


def _shortened(command: str, limit: int = 120) -> str:
    return command if len(command) <= limit else command[: limit - 1] + "…"


_ERRNO_BY_TEXT = {os.strerror(code): code for code in errno.errorcode}
