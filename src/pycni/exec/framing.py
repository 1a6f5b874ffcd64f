# SPDX-License-Identifier: Apache-2.0
"""The frames between a plugin executable (the shim) and the service; bytes only, no sockets.

All integers are big-endian::

    request   u32 length of what follows | u8 version | u32 length of env | env | stdin
    env       "NAME=VALUE\\0" for each variable; PYCNI_PLUGIN names the executable
    reply     u32 length of what follows | u8 exit status | u32 length of stdout | stdout | stderr

The descriptor of CNI_NETNS, when the shim could open it, rides as SCM_RIGHTS on the first byte
of the request. `shim.c` and `shim.py` speak the same frames; a connection carries one call.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple

from pycni.errors import DecodeFailure

VERSION = 1
MAX_REQUEST = 16 * 1024 * 1024
PLUGIN_VARIABLE = "PYCNI_PLUGIN"

_LENGTH = struct.Struct(">I")
_REQUEST = struct.Struct(">BI")
_REPLY = struct.Struct(">BI")
HEADER_SIZE = _LENGTH.size


class Call(NamedTuple):
    """One plugin execution as the shim saw it."""

    plugin: str
    env: dict[str, str]
    stdin: bytes


class Reply(NamedTuple):
    """What the executable prints and how it exits."""

    exit_status: int
    stdout: bytes
    stderr: bytes


def body_length(header: bytes) -> int:
    """Length of the frame body announced by its first `HEADER_SIZE` bytes.

    Raises DecodeFailure (6) above `MAX_REQUEST`, before anything is read.
    """
    length: int = _LENGTH.unpack(header)[0]
    if length > MAX_REQUEST:
        raise DecodeFailure(
            f"the request of {length} bytes is larger than the {MAX_REQUEST} allowed",
            hint="a network configuration belongs on stdin, and nothing else",
        )
    return length


def encode_call(plugin: str, env: Mapping[str, str], stdin: bytes) -> bytes:
    """Frame one execution; names and values keep their undecodable bytes."""
    variables = {**env, PLUGIN_VARIABLE: plugin}
    block = b"".join(
        f"{name}={value}\0".encode("utf-8", "surrogateescape") for name, value in variables.items()
    )
    body = _REQUEST.pack(VERSION, len(block)) + block + stdin
    return _LENGTH.pack(len(body)) + body


def decode_call(body: bytes) -> Call:
    """Parse a request's body; raise DecodeFailure (6) if it is not one of this version."""
    try:
        version, env_length = _REQUEST.unpack_from(body)
    except struct.error as exc:
        raise DecodeFailure("the request frame is shorter than its header") from exc
    if version != VERSION:
        raise DecodeFailure(
            f"the shim speaks frame version {version}, the service {VERSION}",
            hint="run `pycni install` again after an upgrade",
        )
    start = _REQUEST.size
    block = body[start : start + env_length]
    if len(block) != env_length:
        raise DecodeFailure("the request frame ends inside its environment")
    env = {}
    for item in block.decode("utf-8", "surrogateescape").split("\0"):
        name, equals, value = item.partition("=")
        if equals:
            env[name] = value
    plugin = env.pop(PLUGIN_VARIABLE, "")
    if not plugin:
        raise DecodeFailure(f"the request frame does not name a plugin in {PLUGIN_VARIABLE}")
    return Call(plugin, env, body[start + env_length :])


def encode_reply(reply: Reply) -> bytes:
    """Frame what the executable shall print."""
    body = _REPLY.pack(reply.exit_status, len(reply.stdout)) + reply.stdout + reply.stderr
    return _LENGTH.pack(len(body)) + body


def decode_reply(body: bytes) -> Reply:
    """Parse a reply's body; raise DecodeFailure (6) when it is cut short."""
    try:
        exit_status, stdout_length = _REPLY.unpack_from(body)
    except struct.error as exc:
        raise DecodeFailure("the reply frame is shorter than its header") from exc
    end = _REPLY.size + stdout_length
    if len(body) < end:
        raise DecodeFailure("the reply frame ends inside stdout")
    return Reply(exit_status, body[_REPLY.size : end], body[end:])
