# SPDX-License-Identifier: Apache-2.0
"""The noop plugin: it does what a debug file says and writes down how it was called.

The file is that of the noop plugin in libcni's tests, byte for byte as Go writes it, so that each
side can use the other's: a Go test can steer this program, and `Debug` can steer the Go one.

    noop.place(plugin_dir)                       # an executable, of the CNI type `noop`
    Debug(ReportResult='{"cniVersion": "1.1.0"}').write(path)
    ...                                          # a runtime calls it; CNI_ARGS is DEBUG=path
    assert Debug.read(path).Command == "ADD"

The file is named by `DEBUG=` in CNI_ARGS, else by `debugFile` in the configuration. Without one
the plugin prints `{}`. `commandLog` in the configuration names a file that gets every call.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import NoReturn, Self

import msgspec
from msgspec import Struct

import pycni
from pycni.errors import CniError
from pycni.exec import skel
from pycni.exec.framing import Call, Reply
from pycni.model import jsonio
from pycni.model.names import NetworkName
from pycni.model.request import Request
from pycni.model.result import Result
from pycni.model.version import DEFAULT, SUPPORTED
from pycni.model.wire_error import encode_error
from pycni.runtime.dispatch import check_version

PASSTHROUGH, INJECT_DNS = "PASSTHROUGH", "INJECT-DNS"
INJECTED = "1.2.3.4"
# The first is no version: a runtime must cope with what a plugin says it supports.
DEFAULT_VERSIONS = ("0.-42.0", *SUPPORTED)
PANIC = 2  # the exit status of a Go program that gave up
NO_DEBUG = "CNI_ARGS or config empty, no debug behavior\n"


class Arguments(Struct, kw_only=True):
    """What the runtime handed over; `StdinData` is base64 in the file."""

    ContainerID: str = ""
    Netns: str = ""
    IfName: str = ""
    Args: str = ""
    Path: str = ""
    NetnsOverride: str = ""
    StdinData: bytes | None = None


class Debug(Struct, kw_only=True):
    """The debug file: the Report fields and ExitWithCode steer, the others are written back.

    `ReportResult` is printed as it is; PASSTHROUGH prints prevResult instead, INJECT-DNS
    prevResult with a name server. A `ReportError` comes before both.
    """

    ReportResult: str = ""
    ReportError: str = ""
    ReportErrorCode: int = 0
    ReportStderr: str = ""
    ReportVersionSupport: list[str] | None = None
    ExitWithCode: int = 0
    Command: str = ""
    CmdArgs: Arguments = msgspec.field(default_factory=Arguments)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """The file's content; raise CniError if there is none, or it is none."""
        return jsonio.decode(_read(path), cls, where=os.fspath(path))

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the file."""
        _write(path, jsonio.encode_go(self), 0o600)


class LoggedCall(Struct, kw_only=True):
    """One entry of a command log."""

    Command: str = ""
    CmdArgs: Arguments = msgspec.field(default_factory=Arguments)


def read_log(path: str | os.PathLike[str]) -> list[LoggedCall]:
    """The calls a command log has, oldest first."""
    data = _read(path) if os.path.exists(path) else b""
    return jsonio.decode(data, list[LoggedCall], where=os.fspath(path)) if data.strip() else []


def place(directory: Path, name: str = "noop") -> Path:
    """Put the plugin into a plugin directory, as an executable of that CNI type."""
    root = Path(pycni.__file__).parents[1]
    path = directory / name
    path.write_text(
        f"#!/bin/sh\nPYTHONPATH={shlex.quote(str(root))} "
        f"exec {shlex.quote(sys.executable)} -m pycni.testing.noop\n"
    )
    path.chmod(0o755)
    return path


class _Config(Struct, kw_only=True):
    cniVersion: str = ""
    name: str = ""
    debugFile: str = ""
    commandLog: str = ""
    prevResult: msgspec.Raw = msgspec.Raw(b"")


class _SetupError(Exception):
    """The test is set up wrongly; a Go program would panic."""


def run(call: Call) -> Reply:
    """Answer one call."""
    try:
        versions = _versions(call)
    except _SetupError as exc:
        return Reply(PANIC, b"", f"panic: test setup error: {exc}\n".encode())
    said: list[Reply] = []

    def execute(_plugin: str, request: Request) -> bytes:
        said.append(_behave(call, request, versions))
        return b"{}"  # skel would lay out what must be printed as it is

    reply = skel.answer(call, execute=execute, versions=lambda _plugin: versions)
    return said[0] if said else reply


def _behave(call: Call, request: Request, versions: tuple[str, ...]) -> Reply:
    config = jsonio.decode(request.config, _Config)
    NetworkName.parse(config.name)
    version = config.cniVersion or DEFAULT
    if version in SUPPORTED or version not in versions:
        check_version(request.verb, version, versions)
    args = Arguments(
        ContainerID=request.container_id,
        Netns=request.netns,
        IfName=request.ifname,
        Args=request.args,
        Path=call.env.get("CNI_PATH", ""),
        NetnsOverride=call.env.get("CNI_NETNS_OVERRIDE", ""),
        StdinData=request.config,
    )
    if config.commandLog:
        entries = [*read_log(config.commandLog), LoggedCall(Command=request.verb, CmdArgs=args)]
        _write(config.commandLog, jsonio.encode_go(entries), 0o644)
    path = _debug_file(call, config)
    if not path:
        return Reply(0, b"{}", NO_DEBUG.encode())
    debug = Debug.read(path)
    debug.Command, debug.CmdArgs = str(request.verb), args
    debug.write(path)
    stderr = debug.ReportStderr.encode()
    if debug.ReportError:
        error = CniError.from_wire(debug.ReportErrorCode or 999, debug.ReportError, "")
        return Reply(1, encode_error(error), stderr)
    return Reply(max(debug.ExitWithCode, 0), _result(debug, config, version), stderr)


def _result(debug: Debug, config: _Config, version: str) -> bytes:
    if debug.ReportResult not in (PASSTHROUGH, INJECT_DNS):
        return debug.ReportResult.encode()
    if not bytes(config.prevResult):
        raise CniError(f"{debug.ReportResult} needs a prevResult")
    result = Result.parse(bytes(config.prevResult), default_version=version, where="prevResult")
    if debug.ReportResult == INJECT_DNS:
        dns = msgspec.structs.replace(result.dns, nameservers=(INJECTED,))
        result = msgspec.structs.replace(result, dns=dns)
    return result.encode(version)


def _versions(call: Call) -> tuple[str, ...]:
    """What VERSION answers: the debug file may say so, if CNI_ARGS has anything at all."""
    if not call.env.get("CNI_ARGS"):
        return DEFAULT_VERSIONS
    try:
        path = _debug_file(call, jsonio.decode(call.stdin, _Config))
        if not path:
            raise CniError("neither DEBUG in CNI_ARGS nor debugFile is there")
        listed = Debug.read(path).ReportVersionSupport
    except CniError as error:
        raise _SetupError(f"unable to read debug file: {error.msg}") from error
    return DEFAULT_VERSIONS if listed is None else tuple(listed)


def _debug_file(call: Call, config: _Config) -> str:
    """`DEBUG` of CNI_ARGS if it is there, even empty; else the configuration's."""
    given = {}
    args = call.env.get("CNI_ARGS", "")
    for item in args.split(";") if args else ():
        if item.count("=") != 1:
            raise CniError(f"CNI_ARGS invalid key/value pair: [{item.replace('=', ' ')}]")
        key, _, value = item.partition("=")
        given[key] = value
    return given.get("DEBUG", config.debugFile)


def _read(path: str | os.PathLike[str]) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as exc:
        raise CniError(f"open {path}: {(exc.strerror or '').lower()}") from exc


def _write(path: str | os.PathLike[str], data: bytes, mode: int) -> None:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
        with open(fd, "wb") as file:
            file.write(data)
    except OSError as exc:
        raise CniError(f"open {path}: {(exc.strerror or '').lower()}") from exc


def main() -> NoReturn:
    """Be the plugin, and exit."""
    env = {name: value for name, value in os.environ.items() if name.startswith("CNI_")}
    reply = run(Call("noop", env, sys.stdin.buffer.read() if env.get("CNI_COMMAND") else b""))
    sys.stderr.buffer.write(reply.stderr)
    sys.stdout.buffer.write(reply.stdout)
    sys.exit(reply.exit_status)


if __name__ == "__main__":
    main()
