# SPDX-License-Identifier: Apache-2.0
"""Messages as JSON and back: every kind of field, and faults with their path."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pycni import plugins
from pycni.errors import CniError, InvalidConfig
from pycni.model.config import typed_config
from pycni.service import type_json
from pycni.service.types import Types

TYPES = Types()
F = descriptor_pb2.FieldDescriptorProto

# name, number, type, label, type name
FIELDS: list[tuple[str, int, int, int, str]] = [
    ("text", 20, F.TYPE_STRING, 1, ""),
    ("flag", 1, F.TYPE_BOOL, 1, ""),
    ("small", 2, F.TYPE_SINT32, 1, ""),
    ("large", 3, F.TYPE_FIXED64, 1, ""),
    ("single", 4, F.TYPE_FLOAT, 1, ""),
    ("double_value", 5, F.TYPE_DOUBLE, 3, ""),
    ("data", 6, F.TYPE_BYTES, 1, ""),
    ("mode", 7, F.TYPE_ENUM, 1, ".t.Mode"),
    ("inner", 8, F.TYPE_MESSAGE, 1, ".t.M"),
    ("many", 9, F.TYPE_MESSAGE, 3, ".t.M"),
    ("wait", 10, F.TYPE_MESSAGE, 1, ".google.protobuf.Duration"),
    ("free", 11, F.TYPE_MESSAGE, 1, ".google.protobuf.Struct"),
    ("flags", 12, F.TYPE_MESSAGE, 3, ".t.M.FlagsEntry"),
    ("named", 13, F.TYPE_MESSAGE, 3, ".t.M.NamedEntry"),
    ("packed", 14, F.TYPE_MESSAGE, 1, ".google.protobuf.Any"),
]


def kind() -> Any:
    """The class of a message with every kind of field."""
    files = descriptor_pb2.FileDescriptorSet()
    imports = [f"google/protobuf/{name}.proto" for name in ("any", "duration", "struct")]
    file = files.file.add(name="t.proto", package="t", syntax="proto3", dependency=imports)
    mode = file.enum_type.add(name="Mode")
    mode.value.add(name="OFF", number=0)
    mode.value.add(name="ON", number=1)
    message = file.message_type.add(name="M")
    for name, number, type_, label, type_name in FIELDS:
        field = message.field.add(name=name, number=number, label=label)  # type: ignore[arg-type]  # a number
        field.type = type_  # type: ignore[assignment]  # so is this
        if type_name:
            field.type_name = type_name
    message.oneof_decl.add(name="one")
    for number, name in ((15, "left"), (16, "right")):
        message.field.add(name=name, number=number, type=F.TYPE_STRING, label=1, oneof_index=0)
    for name, key, value, type_name in (
        ("FlagsEntry", F.TYPE_BOOL, F.TYPE_INT32, ""),
        ("NamedEntry", F.TYPE_UINT32, F.TYPE_MESSAGE, ".t.M"),
    ):
        entry = message.nested_type.add(name=name)
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, type=key, label=1)
        entry.field.add(name="value", number=2, type=value, label=1)
        if type_name:
            entry.field[1].type_name = type_name
    types = Types()
    types.register(files)
    return types.find("t.M")


M = kind()


def parse(document: Any, **more: Any) -> Any:
    message = M()
    type_json.fill(message, document, **more)
    return message


WHOLE = {
    "flag": True,
    "small": -5,
    "large": (1 << 64) - 1,
    "single": 0.5,
    "doubleValue": [1e300, "NaN", "-Infinity"],
    "data": "AP8=",
    "mode": "ON",
    "inner": {"inner": {}},
    "many": [{"text": "a"}, {}],
    "wait": "1.500s",
    "free": {"a": [1.0, None], "b": 2.0},
    "flags": {"false": 1, "true": 2},
    "named": {"10": {"flag": True}, "9": {}},
    "left": "",
    "text": "ü",
}


def test_every_kind_of_field_is_rendered_and_read() -> None:
    """By number of the field, maps by key; 64 bits are a number."""
    rendered = type_json.render(parse(WHOLE))
    assert list(WHOLE.items()) == list(json.loads(rendered).items())
    again = parse(json.loads(rendered))
    assert again.SerializeToString(deterministic=True) == parse(WHOLE).SerializeToString(
        deterministic=True
    )
    assert rendered == type_json.render(again)
    assert b"{}" == type_json.render(M())


LENIENT: list[tuple[Any, dict[str, Any]]] = [
    ({"double_value": [1], "DOUBLEVALUE": [2]}, {"doubleValue": [1.0, 2.0]}),
    ({"large": "18446744073709551615"}, {"large": (1 << 64) - 1}),
    ({"flag": None, "many": None}, {}),
    ({"mode": 1}, {"mode": "ON"}),
    ({"@TYPE": "x", "text": "a"}, {"text": "a"}),
]


@pytest.mark.parametrize(("document", "expected"), LENIENT)
def test_what_is_meant_is_read(document: Any, expected: Any) -> None:
    """Any spelling of a key, null as nothing, numbers and enums as people write them."""
    assert expected == json.loads(type_json.render(parse(document, skipped=("@type",))))


WRONG: list[tuple[Any, str]] = [
    ([], "x: expected object, got array"),
    ({"flag": 1}, "x.flag: expected bool, got int"),
    ({"text": 1}, "x.text: expected str, got int"),
    ({"small": 1.5}, "x.small: expected int, got float"),
    ({"small": True}, "x.small: expected int, got bool"),
    ({"small": 1 << 31}, "x.small: 2147483648 is out of range"),
    ({"large": -1}, "x.large: -1 is out of range"),
    ({"large": "9" * 30}, "x.large: expected int, got str"),
    ({"single": 1e39}, "x.single: the number is out of range"),
    ({"single": "1"}, "x.single: expected number, got str"),
    ({"doubleValue": 1}, "x.doubleValue: expected array, got int"),
    ({"doubleValue": [1, []]}, "x.doubleValue[1]: expected number, got array"),
    ({"doubleValue": [10**400]}, "x.doubleValue[0]: the number is out of range"),
    ({"data": "?"}, "x.data: not base64"),
    ({"data": 1}, "x.data: expected str (base64), got int"),
    ({"mode": "HALF"}, 'x.mode: "HALF" is none of OFF, ON'),
    ({"mode": 7}, "x.mode: 7 is none of OFF, ON"),
    ({"inner": {"Inner": {"many": [{}, {"text": 1}]}}}, "x.inner.Inner.many[1].text: expected str"),
    ({"wait": "soon"}, "x.wait: "),
    ({"flags": {"maybe": 1}}, "x.flags.maybe: the key is neither true nor false"),
    ({"flags": []}, "x.flags: expected object, got array"),
    ({"named": {"-1": {}}}, "x.named.-1: -1 is out of range"),
    ({"named": {"1": {"no": 1}}}, "x.named.1.no: t.M has no such field"),
    ({"left": "", "right": ""}, "x.right: left is set already"),
    ({"packed": {"@type": "x/nowhere"}}, "x.packed: "),
]


@pytest.mark.parametrize(("document", "words"), WRONG)
def test_a_fault_begins_with_its_path(document: Any, words: str) -> None:
    """In the spelling of the document."""
    with pytest.raises(InvalidConfig) as caught:
        parse(document, where="x")
    assert caught.value.msg.startswith(words)


def test_what_json_cannot_say_is_refused() -> None:
    """An Any inside a message whose type nobody knows."""
    message = M()
    message.packed.type_url = "x/nowhere"
    message.packed.value = b"\x01"
    with pytest.raises(InvalidConfig):
        type_json.render(message)


def test_unknown_keys_can_be_passed_over() -> None:
    """At every level, for a view of what a plugin reads."""
    assert "a" == parse({"text": "a", "x": 1, "inner": {"y": 1}}, strict=False).text


# -- the built-in plugins' own ---------------------------------------------------------------------


def values(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    """Values of one field of a typed configuration."""
    inner = field.message_type
    if inner is not None and inner.GetOptions().map_entry:
        return st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2)
    if inner is not None:
        one: st.SearchStrategy[Any] = messages(inner)
    elif field.type == F.TYPE_BYTES:
        one = st.sampled_from([b"1", b'{"a":1}', b"[]"])
    elif field.type == F.TYPE_STRING:
        one = st.text(max_size=4)
    elif field.type == F.TYPE_BOOL:
        one = st.booleans()
    else:
        one = st.integers(0, (1 << 32) - 1)
    return st.lists(one, max_size=2) if field.is_repeated else one


def messages(descriptor: Any) -> st.SearchStrategy[Any]:
    """Arguments of a message's class."""
    return st.fixed_dictionaries({}, optional={f.name: values(f) for f in descriptor.fields})


@pytest.mark.parametrize("plugin_type", sorted(plugins.BUILTIN))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_typed_configurations_survive_json(plugin_type: str, data: st.DataObject) -> None:
    """Rendered, read again and rendered again they are the same."""
    found: Any = TYPES.find(typed_config(plugin_type))
    message = found(**data.draw(messages(found.DESCRIPTOR)))
    rendered = type_json.render(message)
    again = found()
    type_json.fill(again, json.loads(rendered))
    assert message == again
    assert rendered == type_json.render(again)


def test_policies_must_be_json() -> None:
    """A json_raw field is checked, as it is rendered without a change."""
    found: Any = TYPES.find("pycni.plugins.v1.WinBridge")
    with pytest.raises(CniError, match=r"x\.policies\[0\]\.value: not valid JSON"):
        type_json.render(found(policies=[{"value": b"{"}]), where="x")
