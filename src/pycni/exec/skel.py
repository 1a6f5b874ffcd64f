# SPDX-License-Identifier: Apache-2.0
"""One plugin execution by the letter of the protocol: environment checks, JSON out, exit status.

`answer` is the same for a plugin run in this process and for one run by the service on behalf of
a shim; `main` is what an executable becomes when no service listens.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import msgspec

from pycni import __version__
from pycni.errors import CniError, DecodeFailure, InvalidEnvironment, IOFailure
from pycni.exec.framing import MAX_REQUEST, Call, Reply
from pycni.log import Log
from pycni.model import jsonio
from pycni.model.names import ContainerId, IfName
from pycni.model.request import PARENT_VARIABLE, Request, Verb
from pycni.model.version import CURRENT
from pycni.model.wire_error import encode_error
from pycni.plugins.sdk import Plugin
from pycni.runtime import trace
from pycni.runtime.dispatch import internal_error

log = Log(__name__)

Execute = Callable[[str, Request], bytes]
Versions = Callable[[str], tuple[str, ...]]

# What a variable is needed for, in the order the reference implementation reports them.
ATTACHMENT_VERBS = (Verb.ADD, Verb.CHECK, Verb.DEL)
REQUIRED: dict[str, tuple[Verb, ...]] = {
    "CNI_CONTAINERID": ATTACHMENT_VERBS,
    "CNI_NETNS": (Verb.ADD, Verb.CHECK),
    "CNI_IFNAME": ATTACHMENT_VERBS,
}
OVERRIDE_VALUES = ("TRUE", "true", "1")


def answer(
    call: Call, *, execute: Execute, versions: Versions, netns_fd: int | None = None
) -> Reply:
    """Run one plugin call; every outcome is a reply.

    What delegates that are executables say on stderr is passed on (SPEC D3).
    """
    with trace.overhearing() as said:
        reply = _answer(call, execute, versions, netns_fd)
    said.append(reply.stderr.decode("utf-8", "replace"))
    return reply._replace(stderr="\n".join(filter(None, said)).encode("utf-8", "replace"))


def _answer(call: Call, execute: Execute, versions: Versions, netns_fd: int | None) -> Reply:
    try:
        if not call.env.get("CNI_COMMAND"):
            return Reply(0, b"", _about(call.plugin, versions))
        verb = _parse_verb(call.env["CNI_COMMAND"])
        if verb is Verb.VERSION:
            return Reply(0, _version(call, versions), b"")
        request = parse_request(call.env, verb, call.stdin, netns_fd)
        result = execute(call.plugin, request)
    except CniError as error:
        return Reply(1, encode_error(error, error.cni_version or ""), b"")
    except Exception as exc:  # noqa: BLE001 - the skel boundary: a bug becomes code 999
        what = f"{call.env.get('CNI_COMMAND')} of plugin {call.plugin}"
        return Reply(1, encode_error(internal_error(exc, what)), b"")
    return Reply(0, jsonio.go_layout(result, indent=4) if verb is Verb.ADD else b"", b"")


def parse_request(
    env: Mapping[str, str], verb: Verb, stdin: bytes, netns_fd: int | None = None
) -> Request:
    """Check the environment `verb` needs; raise InvalidEnvironment (4) naming what is missing.

    CNI_PATH is not required: built-in plugins need none (SPEC section 3 makes it optional).
    """
    missing = []
    for name, verbs in REQUIRED.items():
        if verb not in verbs:
            continue
        value = env.get(name, "")
        if not value:
            missing.append(name)
        elif name == "CNI_CONTAINERID":
            ContainerId.parse(value)
        elif name == "CNI_IFNAME":
            IfName.parse(value)
    if missing:
        raise InvalidEnvironment(f"required env variables [{','.join(missing)}] missing")
    return Request(
        verb=verb,
        container_id=env.get("CNI_CONTAINERID", ""),
        netns=env.get("CNI_NETNS", ""),
        ifname=env.get("CNI_IFNAME", ""),
        args=env.get("CNI_ARGS", ""),
        path=tuple(part for part in env.get("CNI_PATH", "").split(os.pathsep) if part),
        config=stdin,
        netns_fd=netns_fd,
        netns_override=env.get("CNI_NETNS_OVERRIDE", "") in OVERRIDE_VALUES,
        parent=env.get(PARENT_VARIABLE, ""),
    )


def _parse_verb(command: str) -> Verb:
    try:
        return Verb(command)
    except ValueError:
        raise InvalidEnvironment(f"unknown CNI_COMMAND: {command}") from None


def _about(plugin: str, versions: Versions) -> bytes:
    supported = ", ".join(versions(plugin))
    return (
        f"CNI {plugin} plugin pycni {__version__}\nCNI protocol versions supported: {supported}\n"
    ).encode()


def _version(call: Call, versions: Versions) -> bytes:
    """SPEC, operation VERSION: cniVersion echoes the input; our own maximum when there is none."""
    asked = CURRENT
    if call.stdin.strip():
        fields = jsonio.decode_raw_object(call.stdin)
        asked = next(
            (
                jsonio.decode(bytes(value), str, where=key)
                for key, value in fields.items()
                if key.lower() == "cniversion"
            ),
            CURRENT,
        )
    reply = {"cniVersion": asked, "supportedVersions": versions(call.plugin)}
    return msgspec.json.encode(reply) + b"\n"


def read_stdin() -> bytes:
    """All of stdin; raise IOFailure (5) when it cannot be read, DecodeFailure (6) when it is huge.

    The limit is that of a request to the service, less room for the environment.
    """
    data = bytearray()
    try:
        while chunk := os.read(0, 1 << 16):
            data += chunk
            if len(data) > MAX_REQUEST:
                raise DecodeFailure("the network configuration on stdin is larger than 16 MiB")
    except OSError as exc:
        raise IOFailure(f"error reading from stdin: {exc.strerror}") from exc
    return bytes(data)


def _occupy_standard_descriptors() -> None:
    """Else a closed one would become that of a socket, and stdin or stdout be the kernel's."""
    if sys.platform != "linux":
        return
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_PATH)  # reads and writes fail, as on a closed one


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def main(plugin: str, plugins: Mapping[str, Plugin[Any]] | None = None) -> NoReturn:
    """Run the plugin named `plugin`, a built-in one or one of `plugins`, in this process; exit."""
    gc.disable()  # the process is over before there is anything to collect
    _occupy_standard_descriptors()
    from pycni.exec import standalone

    env = {name: value for name, value in os.environ.items() if name.startswith("CNI_")}
    try:
        stdin = read_stdin() if env.get("CNI_COMMAND") else b""
        reply = standalone.run(Call(plugin, env, stdin), plugins)
    except CniError as error:
        reply = Reply(1, encode_error(error), b"")
    try:
        _write_all(1, reply.stdout)
    except OSError:
        os._exit(1)  # nobody is there to be told
    with contextlib.suppress(OSError):  # what is only for a log fails no call
        _write_all(2, reply.stderr)
    # Taking the interpreter apart costs 10 ms, a sixth of the whole.
    os._exit(reply.exit_status)
