# SPDX-License-Identifier: Apache-2.0
"""JSON Schema of the model's types, and of any plugin configuration built from them."""

from __future__ import annotations

import functools
import operator
import types
import typing
from typing import Any

import msgspec
from msgspec import NODEFAULT, Raw, Struct, structs

from pycni.model.addresses import IPAddress, IPInterface, IPNetwork
from pycni.model.names import ContainerId, IfName, Mac, NetworkName, PluginType

_NAME = r"^[a-zA-Z0-9][a-zA-Z0-9_.\-]*$"
_CUSTOM: dict[Any, dict[str, Any]] = {
    IPAddress: {"description": "an IPv4 or IPv6 address"},
    IPInterface: {"description": "an address with its prefix length, such as 10.1.0.5/16"},
    IPNetwork: {"description": "a network, such as 10.1.0.0/16"},
    ContainerId: {"description": "a container id", "pattern": _NAME},
    NetworkName: {"description": "a network name", "pattern": _NAME},
    IfName: {"description": "an interface name", "minLength": 1, "maxLength": 15},
    PluginType: {"description": "a plugin type, the name of its executable", "minLength": 1},
    Mac: {"description": "a hardware address, such as 0a:58:0a:01:00:05"},
}


def json_schema(kind: Any) -> dict[str, Any]:
    """Return the JSON Schema of `kind`; custom types are strings with a description."""
    return msgspec.json.schema(_plain(kind))


@functools.cache
def _plain(kind: Any) -> Any:
    """Return `kind` with custom types as described strings, which msgspec can give defaults."""
    if isinstance(kind, type) and issubclass(kind, Struct):
        return _plain_struct(kind)
    if kind is Raw:
        return Any
    if kind in _CUSTOM or hasattr(kind, "parse"):
        described = _CUSTOM.get(kind, {"description": kind.__name__})
        return typing.Annotated[str, msgspec.Meta(extra_json_schema=described)]
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return functools.reduce(operator.or_, map(_plain, arguments))
    if origin is typing.Annotated:
        return typing.Annotated[(_plain(arguments[0]), *arguments[1:])]
    if isinstance(origin, type):
        return origin[tuple(map(_plain, arguments))]  # type: ignore[index]  # a generic class
    return kind


def _plain_struct(kind: type[Struct]) -> type[Struct]:
    fields = structs.fields(kind)
    config = kind.__struct_config__
    return msgspec.defstruct(
        kind.__name__,
        [_plain_field(field) for field in fields],
        namespace={"__doc__": kind.__doc__},
        rename={field.name: field.encode_name for field in fields},
        frozen=True,
        kw_only=True,
        tag_field=config.tag_field,
        tag=config.tag,
        forbid_unknown_fields=config.forbid_unknown_fields,
    )


def _plain_field(field: structs.FieldInfo) -> tuple[str, Any, Any]:
    kind = _plain(field.type)
    if field.default is NODEFAULT:
        return field.name, kind, msgspec.field(default_factory=field.default_factory)
    default = msgspec.to_builtins(field.default, enc_hook=_plain_value)
    return field.name, kind, msgspec.convert(default, kind)


def _plain_value(value: Any) -> str | None:
    return None if isinstance(value, Raw) else str(value)
