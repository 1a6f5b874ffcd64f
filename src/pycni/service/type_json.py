# SPDX-License-Identifier: Apache-2.0
"""Protobuf messages as JSON and back, by the rules of pycni/plugins/v1/options.proto.

The protobuf JSON mapping will not do: it makes strings of 64-bit integers, which plugins in Go
refuse, and its faults do not say where they are. Messages of google.protobuf itself (Duration,
Struct and their like) keep the mapping they have there.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Iterable, Mapping
from typing import Any, cast

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

from pycni.errors import InvalidConfig
from pycni.model import jsonio
from pycni.service.pb.pycni.plugins.v1 import options_pb2

WELL_KNOWN = "google.protobuf"

_INTEGERS = {
    FieldDescriptor.CPPTYPE_INT32: (-(1 << 31), (1 << 31) - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, (1 << 32) - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(1 << 63), (1 << 63) - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, (1 << 64) - 1),
}
_FLOATS = (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE)
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_LARGEST_FLOAT = 3.4028234663852886e38


# -- rendering -------------------------------------------------------------------------------------


def render(message: Message, *, where: str = "") -> bytes:
    """The message as JSON, the same bytes for equal messages.

    Raises InvalidConfig (7) with the path for a `json_raw` field that holds no JSON.
    """
    descriptor = _descriptor(message)
    if descriptor.file.package == WELL_KNOWN:
        return _render_well_known(message, where)
    if _is_inline(descriptor):
        return _render_field(message, descriptor.fields[0], where)
    return jsonio.join_object(render_members(message, where=where))


def render_members(message: Message, *, where: str = "") -> dict[str, bytes]:
    """The fields that are set, each under its JSON name, in the order of their numbers."""
    members = {}
    for field in sorted(_descriptor(message).fields, key=lambda field: field.number):
        present = message.HasField(field.name) if field.has_presence else _is_set(message, field)
        if present:
            members[field.json_name] = _render_field(message, field, _join(where, field.json_name))
    return members


def _render_well_known(message: Message, where: str) -> bytes:
    try:
        return jsonio.encode(_sorted(json_format.MessageToDict(message)))
    except (json_format.Error, TypeError, ValueError) as exc:
        raise InvalidConfig(_at(where, str(exc))) from exc


def _is_set(message: Message, field: FieldDescriptor) -> bool:
    value = getattr(message, field.name)
    return bool(len(value)) if field.is_repeated else bool(value != field.default_value)


def _render_field(message: Message, field: FieldDescriptor, where: str) -> bytes:
    value = getattr(message, field.name)
    entry = _map_entry(field)
    if entry is not None:
        item = entry.fields_by_name["value"]
        members = {_map_key(key): (key, value[key]) for key in value}
        return jsonio.join_object(
            {
                name: _render_value(members[name][1], item, _join(where, name))
                for name in sorted(members, key=str.encode)
            }
        )
    if field.is_repeated:
        items = [_render_value(one, field, f"{where}[{i}]") for i, one in enumerate(value)]
        return b"[" + b",".join(items) + b"]"
    return _render_value(value, field, where)


def _render_value(value: Any, field: FieldDescriptor, where: str) -> bytes:
    if field.message_type is not None:
        return render(value, where=where)
    if field.enum_type is not None:
        named = field.enum_type.values_by_number.get(value)
        return jsonio.encode(value if named is None else named.name)
    if field.type == FieldDescriptor.TYPE_BYTES:
        if not field.GetOptions().Extensions[options_pb2.json_raw]:
            return jsonio.encode(base64.b64encode(value).decode())
        jsonio.loads(value, where=where)
        return bytes(value)
    if isinstance(value, float) and not math.isfinite(value):
        return jsonio.encode(next(k for k, v in _NOT_FINITE.items() if repr(v) == repr(value)))
    return jsonio.encode(value)


def _map_key(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def _sorted(value: Any) -> Any:
    """JSON with its keys in order: a Struct keeps them in none."""
    match value:
        case dict():
            return {key: _sorted(value[key]) for key in sorted(value)}
        case list():
            return [_sorted(item) for item in value]
    return value


# -- reading ---------------------------------------------------------------------------------------


def fill(
    message: Message,
    document: Any,
    *,
    where: str = "",
    skipped: Iterable[str] = (),
    strict: bool = True,
) -> None:
    """Set the fields of `message` that `document`, a decoded JSON value, speaks of.

    Raises InvalidConfig (7) that begins with the path of what is wrong. Keys match as everywhere
    in CNI, without regard to case, `skipped` are passed over; `strict` refuses unknown ones.
    """
    descriptor = _descriptor(message)
    if descriptor.file.package == WELL_KNOWN:
        _fill_well_known(message, document, where)
    elif _is_inline(descriptor):
        _fill_field(message, descriptor.fields[0], document, where, strict)
    else:
        _fill_members(message, document, where, frozenset(skipped), strict)


def _fill_members(
    message: Message, document: Any, where: str, skipped: frozenset[str], strict: bool
) -> None:
    if not isinstance(document, dict):
        raise _unexpected(where, "object", document)
    descriptor = _descriptor(message)
    fields = _fields_of(descriptor)
    for key, value in document.items():
        if jsonio.fold_key(key) in skipped:
            continue
        found = fields.get(key) or fields.get(jsonio.fold_key(key))
        if found is not None:
            if value is not None:  # null is the default, as in every configuration
                _fill_field(message, found, value, _join(where, key), strict)
        elif strict:
            raise InvalidConfig(f"{_join(where, key)}: {descriptor.full_name} has no such field")


def _fields_of(descriptor: Descriptor) -> Mapping[str, FieldDescriptor]:
    """Fields by every spelling; exact ones before folded ones."""
    found = {field.name: field for field in descriptor.fields}
    found |= {field.json_name: field for field in descriptor.fields}
    for field in descriptor.fields:
        found.setdefault(jsonio.fold_key(field.json_name), field)
    return found


def _fill_well_known(message: Message, document: Any, where: str) -> None:
    try:
        json_format.ParseDict(document, message)
    except json_format.ParseError as exc:
        raise InvalidConfig(_at(where, str(exc))) from exc


def _fill_field(
    message: Message, field: FieldDescriptor, value: Any, where: str, strict: bool
) -> None:
    if field.containing_oneof is not None:
        taken = message.WhichOneof(field.containing_oneof.name)
        if taken not in (None, field.name):
            raise InvalidConfig(_at(where, f"{taken} is set already, and only one may be"))
    entry = _map_entry(field)
    if entry is not None:
        _fill_map(getattr(message, field.name), entry, value, where, strict)
    elif field.is_repeated:
        if not isinstance(value, list):
            raise _unexpected(where, "array", value)
        items = getattr(message, field.name)
        for index, item in enumerate(value):
            place = f"{where}[{index}]"
            if field.message_type is not None:
                fill(items.add(), item, where=place, strict=strict)
            else:
                items.append(_scalar(field, item, place))
    elif field.message_type is not None:
        inner = getattr(message, field.name)
        inner.SetInParent()
        fill(inner, value, where=where, strict=strict)
    else:
        setattr(message, field.name, _scalar(field, value, where))


def _fill_map(items: Any, entry: Descriptor, value: Any, where: str, strict: bool) -> None:
    if not isinstance(value, dict):
        raise _unexpected(where, "object", value)
    key_field, item_field = entry.fields_by_name["key"], entry.fields_by_name["value"]
    for name, item in value.items():
        place = _join(where, name)
        key = _parse_map_key(key_field, name, place)
        if item_field.message_type is not None:
            fill(items[key], item, where=place, strict=strict)
        else:
            items[key] = _scalar(item_field, item, place)


def _parse_map_key(field: FieldDescriptor, name: str, where: str) -> Any:
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        if name not in ("true", "false"):
            raise InvalidConfig(f"{where}: the key is neither true nor false")
        return name == "true"
    return name if field.type == FieldDescriptor.TYPE_STRING else _integer(field, name, where)


def _scalar(field: FieldDescriptor, value: Any, where: str) -> Any:
    """The JSON value as one of the field's type."""
    if field.enum_type is not None:
        return _enum(field.enum_type, value, where)
    if field.cpp_type in _INTEGERS:
        return _integer(field, value, where)
    if field.cpp_type in _FLOATS:
        return _float(field, value, where)
    if field.type == FieldDescriptor.TYPE_BYTES:
        if field.GetOptions().Extensions[options_pb2.json_raw]:
            return jsonio.encode(value)
        return _base64(value, where)
    kind = {FieldDescriptor.CPPTYPE_BOOL: bool}.get(field.cpp_type, str)
    if not isinstance(value, kind):
        raise _unexpected(where, kind.__name__, value)
    if isinstance(value, str):
        _expect_text(value, where)
    return value


def _expect_text(value: str, where: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError as exc:
        raise InvalidConfig(_at(where, "half of a surrogate pair")) from exc


def _integer(field: FieldDescriptor, value: Any, where: str) -> int:
    number = value
    if isinstance(value, str) and value.removeprefix("-").isdecimal() and value.isascii():
        # The protobuf JSON mapping writes 64-bit integers, and map keys, as strings.
        number = int(value) if len(value) <= len(str(1 << 64)) else value
    if not isinstance(number, int) or isinstance(number, bool):
        raise _unexpected(where, "int", value)
    low, high = _INTEGERS[field.cpp_type]
    if not low <= number <= high:
        raise InvalidConfig(_at(where, f"{number} is out of range: {low} to {high}"))
    return number


def _float(field: FieldDescriptor, value: Any, where: str) -> float:
    if isinstance(value, str) and value in _NOT_FINITE:
        return _NOT_FINITE[value]
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise _unexpected(where, "number", value)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    largest = _LARGEST_FLOAT if field.cpp_type == FieldDescriptor.CPPTYPE_FLOAT else math.inf
    if math.isinf(number) or abs(number) > largest:
        raise InvalidConfig(_at(where, "the number is out of range"))
    return number


def _enum(kind: EnumDescriptor, value: Any, where: str) -> int:
    if isinstance(value, str) and value in kind.values_by_name:
        return int(kind.values_by_name[value].number)
    if isinstance(value, int) and not isinstance(value, bool) and value in kind.values_by_number:
        return value
    names = ", ".join(kind.values_by_name)
    raise InvalidConfig(_at(where, f"{jsonio.encode(value).decode()} is none of {names}"))


def _base64(value: Any, where: str) -> bytes:
    if not isinstance(value, str):
        raise _unexpected(where, "str (base64)", value)
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError) as exc:
        raise InvalidConfig(_at(where, f"not base64: {exc}")) from exc


# -- both ------------------------------------------------------------------------------------------


def _descriptor(message: Message) -> Descriptor:
    return cast(Descriptor, message.DESCRIPTOR)  # the stubs also know that of another backend


def _map_entry(field: FieldDescriptor) -> Descriptor | None:
    """The type of a map's entries, or None if the field is none."""
    entry = field.message_type
    return entry if entry is not None and entry.GetOptions().map_entry else None


def _is_inline(descriptor: Descriptor) -> bool:
    inline = descriptor.GetOptions().Extensions[options_pb2.json_inline]
    return bool(inline) and len(descriptor.fields) == 1


def _join(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def _at(where: str, text: str) -> str:
    return f"{where}: {text}" if where else text


def _unexpected(where: str, wanted: str, value: Any) -> InvalidConfig:
    words = {type(None): "null", dict: "object", list: "array"}
    word = words.get(type(value), type(value).__name__)
    return InvalidConfig(_at(where, f"expected {wanted}, got {word}"))
