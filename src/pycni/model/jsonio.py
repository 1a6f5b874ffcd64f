# SPDX-License-Identifier: Apache-2.0
"""JSON as CNI speaks it: Go's liberal reading, strict types, faults with their path.

Reading: keys match without regard to case at every level, the last match wins, unknown keys are
ignored, `null` means the default (containerd sends `HostPort`, operators write `bandWidth`). An
empty string means "not given" for a name or an address that has a default. Nothing is coerced.

msgspec does the parsing and the type checks. Its keys are exact, so a document is first decoded
untyped and its keys are folded by a plan worked out once per type; a fault is then reported with
the path in the spelling of the document: `ipam.ranges[0][1].subnet: not a CIDR: "10.1.0.0/33"`.
Types that keep parts of a document verbatim (`msgspec.Raw`) are folded on the bytes instead;
a part that may be absent is a `Raw` with a default, never `Raw | None`, which msgspec cannot read.
"""

from __future__ import annotations

import re
import threading
import types
import typing
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
)
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import Raw, Struct

from pycni.errors import CniError, DecodeFailure, InvalidConfig, UnsupportedField
from pycni.model.addresses import (
    IPAddress,
    IPInterface,
    IPNetwork,
    parse_cidr,
    parse_ip,
    parse_network,
)

T = TypeVar("T")
Buffer = bytes | bytearray | memoryview | Raw

Uint = typing.Annotated[int, msgspec.Meta(ge=0)]

# -- custom types ----------------------------------------------------------------------------------

_PARSERS: dict[Any, Callable[[str], object]] = {
    **dict.fromkeys((IPAddress, IPv4Address, IPv6Address), parse_ip),
    **dict.fromkeys((IPInterface, IPv4Interface, IPv6Interface), parse_cidr),
    **dict.fromkeys((IPNetwork, IPv4Network, IPv6Network), parse_network),
}
# Go reads "" into these as "not given"; an empty CIDR is an error there, and so it is here.
_ADDRESSES = (IPAddress, IPv4Address, IPv6Address)


def _dec_hook(kind: Any, value: Any) -> Any:
    """Parse `value` by the parser of `kind`: an address class, or any class with `parse(str)`."""
    if not isinstance(value, str):
        raise ValueError(f"expected str, got {_word(value)}")
    parse = _PARSERS.get(kind) or kind.parse
    try:
        return parse(value)
    except CniError as exc:
        # msgspec adds the path to a ValueError only.
        raise ValueError(str(exc)) from exc


@lru_cache(maxsize=256, typed=True)  # a chain writes the same few addresses again and again
def _enc_hook(value: Any) -> str:
    """Render the custom types, all of which are their text."""
    return str(value)


def _word(value: object) -> str:
    """The word msgspec uses for the JSON type of `value`."""
    words = {type(None): "null", dict: "object", list: "array"}
    return words.get(type(value), type(value).__name__)


# -- reading ---------------------------------------------------------------------------------------

_UNTYPED = msgspec.json.Decoder()
_MEMBERS = msgspec.json.Decoder(dict[str, Raw])
_ITEMS = msgspec.json.Decoder(list[Raw])
_NULL, _BLANK = b"null", b'""'

# Deeper than any configuration, and within the recursion every supported interpreter allows: what
# is refused must not depend on who runs it.
MAX_DEPTH = 512
_STRING = rb'"(?:[^"\\]|\\.)*"'
_BRACKET = rb"[\[\]{}]"


def decode(data: Buffer, type: type[T], *, where: str = "") -> T:
    """Read `data` as `type`; not JSON is code 6, a wrong shape is code 7 and names its path.

    `where` is put before the path, for a document that is itself part of a larger one.
    """
    doc = loads(data, where=where)
    plan = _plan_of(type)
    if not plan.raw:
        return _convert(doc, type, plan, where)
    try:
        folded = plan.fold_bytes(data if doc is not None else b"{}")
        return msgspec.json.decode(folded, type=type, dec_hook=_dec_hook)
    except msgspec.ValidationError as exc:
        raise _fault(str(exc), plan, doc, where) from exc
    except RecursionError as exc:
        raise DecodeFailure(_prefixed(where, "nested too deep")) from exc


def convert(doc: Any, type: type[T], *, where: str = "") -> T:
    """Read the decoded JSON value `doc` as `type`, by the rules of `decode`."""
    return _convert(doc, type, _plan_of(type), where)


def _convert(doc: Any, kind: type[T], plan: _Plan, where: str) -> T:
    try:
        if doc is None and _is_struct(kind):
            doc = {}
        return msgspec.convert(plan.fold(doc), kind, dec_hook=_dec_hook)
    except msgspec.ValidationError as exc:
        raise _fault(str(exc), plan, doc, where) from exc
    except RecursionError as exc:
        raise DecodeFailure(_prefixed(where, "nested too deep")) from exc


def loads(data: Buffer, *, where: str = "") -> Any:
    """Return the JSON value `data` holds, untyped; anything but one JSON document is code 6."""
    return _guarded(_UNTYPED.decode, data, where)


def decode_raw_object(data: Buffer, *, where: str = "") -> dict[str, Raw]:
    """Return the members of a JSON object, verbatim, in document order; `null` is empty."""
    if not (isinstance(data, bytes) and data.isascii()):
        # Raw members are skipped over, not decoded: their UTF-8 would go unseen.
        _guarded(lambda buffer: bytes(buffer).decode(), data, where)
    try:
        return _guarded(_MEMBERS.decode, data, where)
    except _NotAnObject as exc:
        doc = loads(data, where=where)
        if doc is None:
            return {}
        raise InvalidConfig(_prefixed(where, f"expected object, got {_word(doc)}")) from exc


class _NotAnObject(Exception):
    """The document is JSON, but not of the type asked for."""


def _guarded(read: Callable[[Any], T], data: Buffer, where: str) -> T:
    if _is_too_deep(data if isinstance(data, bytes) else bytes(data)):
        raise DecodeFailure(_prefixed(where, f"nested too deep: more than {MAX_DEPTH} levels"))
    try:
        return read(data)
    except msgspec.ValidationError as exc:
        if "out of range" not in str(exc):
            raise _NotAnObject from exc
        raise DecodeFailure(_prefixed(where, "not valid JSON: number out of range")) from exc
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        reason = str(exc).removeprefix("JSON is malformed: ")
        if isinstance(exc, UnicodeDecodeError):
            reason = f"invalid UTF-8 (byte {exc.start})"
        if not bytes(data).strip():
            reason = "the document is empty"
        raise DecodeFailure(_prefixed(where, f"not valid JSON: {reason}")) from exc


def _is_too_deep(data: bytes) -> bool:
    # Each level needs a bracket, so a document with few of them need not be looked at.
    if data.count(b"{") + data.count(b"[") <= MAX_DEPTH:
        return False
    depth = 0
    for bracket in re.findall(_BRACKET, re.sub(_STRING, b"", data)):
        depth += 1 if bracket in b"[{" else -1
        if depth > MAX_DEPTH:
            return True
    return False


def fold_key(key: str) -> str:
    """Return the spelling under which Go takes two keys for the same."""
    # U+017F LATIN SMALL LETTER LONG S folds to s in Go; lower() does the Kelvin sign already.
    return key.lower().replace("\u017f", "s")


def _prefixed(where: str, text: str) -> str:
    return f"{where}: {text}" if where else text


# -- writing ---------------------------------------------------------------------------------------

_ENCODER = msgspec.json.Encoder(enc_hook=_enc_hook)
_HTML = (
    (b"<", b"\\u003c"),
    (b">", b"\\u003e"),
    (b"&", b"\\u0026"),
    ("\u2028".encode(), b"\\u2028"),
    ("\u2029".encode(), b"\\u2029"),
)


def encode(obj: object) -> bytes:
    """Return `obj` as compact JSON."""
    return _ENCODER.encode(obj)


def encode_go(obj: object, *, indent: int | None = None) -> bytes:
    """Return `obj` as Go's encoding/json prints it: HTML escaped, `indent` spaces if asked."""
    return go_layout(_ENCODER.encode(obj), indent=indent)


def go_layout(data: bytes, *, indent: int | None = None) -> bytes:
    """Return the compact JSON `data` escaped and indented as Go does it."""
    if indent is not None:
        data = msgspec.json.format(data, indent=indent)
    for plain, escaped in _HTML:
        if plain in data:  # these can only stand inside strings
            data = data.replace(plain, escaped)
    return data


# -- plans: how the keys of a type are folded ------------------------------------------------------


class _Plan:
    """How to fold a value of one type; this base, for scalars, leaves it alone."""

    raw = False  # whether a Raw lies at or below this type
    blank = False  # whether "" means "not given"

    def fold(self, value: Any) -> Any:
        """Return `value` with the keys the type spells."""
        return value

    def fold_bytes(self, data: Buffer) -> bytes:
        """Return the JSON `data` with the keys the type spells, all else verbatim."""
        return bytes(data)

    def step(self, doc: Any, path: str) -> _Step:
        """Go one step along msgspec's `path` inside `doc`, the document before folding."""
        return _Step(path, None, _LEAF, "")


class _Step(NamedTuple):
    spelled: str
    doc: Any
    plan: _Plan
    rest: str


class _Field(NamedTuple):
    name: str
    plan: _Plan
    has_default: bool


class _Raw(_Plan):
    raw = True


class _Blank(_Plan):
    blank = True


_LEAF = _Plan()


class _Object(_Plan):
    """A Struct, or the Structs of a union taken together."""

    def __init__(self) -> None:
        self.table: dict[str, _Field] = {}
        self.closed = False  # keys it does not know must reach msgspec, which refuses them

    def add(self, kind: Any) -> None:
        """Take the fields of Struct `kind` into the table, exact spellings before folded ones."""
        fields = [
            _Field(field.encode_name, _plan_of(field.type), not field.required)
            for field in msgspec.structs.fields(kind)
        ]
        config = kind.__struct_config__
        if config.tag_field is not None:
            fields.append(_Field(config.tag_field, _LEAF, False))
        self.closed |= config.forbid_unknown_fields
        self.raw |= any(field.plan.raw for field in fields)
        self.table.update({field.name: field for field in fields})
        for field in fields:
            self.table.setdefault(fold_key(field.name), field)

    def find(self, key: str) -> _Field | None:
        return self.table.get(key) or self.table.get(fold_key(key))

    def fold(self, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        folded = {}
        for key, item in value.items():
            field = self.table.get(key) or self.table.get(fold_key(key))
            if field is None:
                if self.closed:
                    folded[key] = item
            elif not (field.has_default and (item is None or (item == "" and field.plan.blank))):
                folded[field.name] = item if field.plan is _LEAF else field.plan.fold(item)
        return folded

    def fold_bytes(self, data: Buffer) -> bytes:
        try:
            members = _MEMBERS.decode(data)
        except msgspec.ValidationError:
            return bytes(data)  # not an object: the typed reading that follows says so
        folded: dict[str, bytes] = {}
        for key, item in members.items():
            field = self.find(key)
            if field is None:
                if self.closed:
                    folded[key] = bytes(item)
                continue
            text = field.plan.fold_bytes(item)
            if field.has_default and (text == _NULL or (text == _BLANK and field.plan.blank)):
                continue
            folded[field.name] = text
        return join_object(folded)

    def step(self, doc: Any, path: str) -> _Step:
        names = {field.name for field in self.table.values()}
        for name in sorted(names, key=len, reverse=True):  # a name may itself contain dots
            rest = path.removeprefix(f".{name}")
            if rest != path and rest[:1] in ("", ".", "["):
                field = self.table[name]
                key = [key for key in doc if self.find(key) is field][-1]
                return _Step(f".{key}", doc[key], field.plan, rest)
        return super().step(doc, path)


class _List(_Plan):
    """An array whose items share one plan."""

    def __init__(self, item: _Plan) -> None:
        self.item, self.raw = item, item.raw

    def fold(self, value: Any) -> Any:
        if self.item is _LEAF or not isinstance(value, list):
            return value
        return [self.item.fold(item) for item in value]

    def fold_bytes(self, data: Buffer) -> bytes:
        try:
            items = _ITEMS.decode(data)
        except msgspec.ValidationError:
            return bytes(data)
        return b"[" + b",".join(map(self.item.fold_bytes, items)) + b"]"

    def step(self, doc: Any, path: str) -> _Step:
        index, _, rest = path[1:].partition("]")
        return _Step(f"[{index}]", doc[int(index)], self.item, rest)


class _Map(_Plan):
    """An object with free keys; a `null` value is dropped where the value type has no null."""

    def __init__(self, item: _Plan, kind: Any) -> None:
        self.item, self.raw, self.kind = item, item.raw, kind
        self.nullable = _accepts_null(kind)

    def fold(self, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {
            key: self.item.fold(item)
            for key, item in value.items()
            if item is not None or self.nullable
        }

    def fold_bytes(self, data: Buffer) -> bytes:
        try:
            members = _MEMBERS.decode(data)
        except msgspec.ValidationError:
            return bytes(data)
        folded = {key: self.item.fold_bytes(item) for key, item in members.items()}
        return join_object(
            {key: text for key, text in folded.items() if text != _NULL or self.nullable}
        )

    def step(self, doc: Any, path: str) -> _Step:
        """Name the faulty member: msgspec's path says only that there is one."""
        key = next((key for key, item in doc.items() if self._refuses(item)), "*")
        return _Step(f".{key}", doc.get(key), self.item, path.removeprefix("[...]"))

    def _refuses(self, item: Any) -> bool:
        if item is None and not self.nullable:
            return False
        try:
            msgspec.convert(self.item.fold(item), self.kind, dec_hook=_dec_hook)
        except msgspec.ValidationError:
            return True
        return False


class _Either(_Plan):
    """A union: which plan applies is told by the JSON type of the value."""

    def __init__(self, plans: list[_Plan]) -> None:
        self.raw = any(plan.raw for plan in plans)
        lists = [plan for plan in plans if isinstance(plan, _List)]
        objects = [plan for plan in plans if isinstance(plan, _Object | _Map)]
        self.array = lists[0] if lists else _LEAF
        self.object = objects[0] if objects else _LEAF

    def _plan_for(self, first: str) -> _Plan:
        return {"[": self.array, "{": self.object}.get(first, _LEAF)

    def fold(self, value: Any) -> Any:
        return self._plan_for(_opening(value)).fold(value)

    def fold_bytes(self, data: Buffer) -> bytes:
        return self._plan_for(bytes(data).lstrip()[:1].decode()).fold_bytes(data)

    def step(self, doc: Any, path: str) -> _Step:
        return self._plan_for(_opening(doc)).step(doc, path)


def _opening(value: Any) -> str:
    return "[" if isinstance(value, list) else "{" if isinstance(value, dict) else ""


def join_object(members: Mapping[str, Buffer]) -> bytes:
    """Return the JSON object of `members`, whose values are JSON already."""
    return b"{" + b",".join([encode(k) + b":" + bytes(v) for k, v in members.items()]) + b"}"


_PLANS: dict[Any, _Plan] = {}
_UNDER_WAY: dict[Any, _Plan] = {}  # plans that are being made, by the holder of the lock
_MAKING = threading.RLock()


def _plan_of(kind: Any) -> _Plan:
    plan = _PLANS.get(kind)
    if plan is not None:
        return plan
    with _MAKING:
        if _UNDER_WAY:
            return _PLANS.get(kind) or _make_plan(kind)
        try:
            plan = _PLANS.get(kind) or _make_plan(kind)
            # Published whole: another thread must not fold by half a table.
            _PLANS.update(_UNDER_WAY)
        finally:
            _UNDER_WAY.clear()
    return plan


def _make_plan(kind: Any) -> _Plan:
    plan = _UNDER_WAY.get(kind)
    if plan is None:
        if _is_struct(kind):
            # Known before its fields are looked at: a Struct may contain itself.
            plan = _UNDER_WAY[kind] = _Object()
            plan.add(kind)
        else:
            plan = _UNDER_WAY[kind] = _compound_plan(kind)
    return plan


def _compound_plan(kind: Any) -> _Plan:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return _plan_of(arguments[0])
    if origin in (typing.Union, types.UnionType):
        return _union_plan([argument for argument in arguments if argument is not type(None)])
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _Map(_plan_of(arguments[1]), arguments[1])
    if isinstance(origin, type) and issubclass(origin, Collection):
        # A tuple of fixed length may mix types, which no CNI document does: its keys stay exact.
        fixed = origin is tuple and arguments[-1] is not Ellipsis
        return _LEAF if fixed else _List(_plan_of(arguments[0]))
    if kind is Raw:
        return _Raw()
    if kind in _ADDRESSES or hasattr(kind, "parse"):
        return _Blank()
    return _LEAF


def _union_plan(kinds: list[Any]) -> _Plan:
    if all(map(_is_struct, kinds)) and len(kinds) > 1:
        merged = _Object()
        for kind in kinds:
            merged.add(kind)
        return merged
    if Raw in kinds:
        raise TypeError("msgspec has no optional Raw: give it a default, such as Raw(b'')")
    plans = [plan for plan in map(_plan_of, kinds) if plan is not _LEAF]
    return plans[0] if len(plans) == 1 else _Either(plans) if plans else _LEAF


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct)


def _accepts_null(kind: Any) -> bool:
    return kind in (Any, object, Raw) or type(None) in typing.get_args(kind)


# -- faults ----------------------------------------------------------------------------------------


def _fault(text: str, plan: _Plan, doc: Any, where: str) -> CniError:
    """Turn msgspec's message into ours: the path first, in the document's spelling."""
    what, _, path = text.rpartition(" - at `")
    if not what:
        what, path = text, ""
    path = path.rpartition("$")[2].rstrip("`")  # a bad key reads: - at `key` in `$.path`
    spelled = "" if where else "."
    while path:
        step = plan.step(doc, path)
        spelled, doc, plan, path = spelled + step.spelled, step.doc, step.plan, step.rest
    spelled = where + spelled if where else spelled.lstrip(".")
    if what.startswith("Object missing required field"):
        return InvalidConfig(f"{_join(spelled, what.split('`')[1])}: missing")
    if what.startswith("Object contains unknown field"):
        key = what.split("`")[1]
        value = encode(doc[key]).decode()
        return UnsupportedField(f"{_join(spelled, key)}: unknown key, its value is {value}")
    what = what.replace("`", "")
    if what.startswith(("Expected", "Invalid", "Number")):
        what = what[0].lower() + what[1:]
    return InvalidConfig(_prefixed(spelled, what))


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
