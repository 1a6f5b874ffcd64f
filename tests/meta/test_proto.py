# SPDX-License-Identifier: Apache-2.0
"""The public API: generated code is current, every part is explained, the surface is whole."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)

# Imported before the files are parsed, or its options would be unknown to them.
from pycni.service.pb.pycni.plugins.v1 import options_pb2
from tests.meta.source import ROOT, builtin_plugins, report

# DESIGN.md section 3.
SERVICES = {
    "Networks": "List Get Put Delete Validate Status Watch",
    "Attachments": "Add Del Check List Get Gc AttachAll DetachAll Watch",
    "Node": "GetInfo RegisterTypes ListPlugins",
    "Plugin": "Add Del Check Gc Status Version Init Deinit Finalize Update Capacity",
    "Registry": "Register",
    "Delegate": "Exec",
}
WORD = re.compile(r"[A-Za-z]{3,}")


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    """tools/generate_proto.py as a module."""
    spec = importlib.util.spec_from_file_location(
        "generate_proto", ROOT / "tools/generate_proto.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def files(tool: ModuleType) -> list[FileDescriptorProto]:
    """Every proto file with its comments."""
    found: list[FileDescriptorProto] = tool.descriptors()
    return found


def elements(file: FileDescriptorProto) -> Iterator[tuple[tuple[int, ...], str]]:
    """Path and name of everything a comment is due to: the path as in SourceCodeInfo."""

    def enums(
        prefix: tuple[int, ...], found: list[EnumDescriptorProto]
    ) -> Iterator[tuple[tuple[int, ...], str]]:
        for i, enum in enumerate(found):
            yield (*prefix, i), enum.name
            for j, value in enumerate(enum.value):
                yield (*prefix, i, 2, j), f"{enum.name}.{value.name}"

    def messages(
        prefix: tuple[int, ...], found: list[DescriptorProto]
    ) -> Iterator[tuple[tuple[int, ...], str]]:
        for i, message in enumerate(found):
            if message.options.map_entry:
                continue
            yield (*prefix, i), message.name
            for j, field in enumerate(message.field):
                yield (*prefix, i, 2, j), f"{message.name}.{field.name}"
            for j, oneof in enumerate(message.oneof_decl):
                if not is_synthetic(message, j):
                    yield (*prefix, i, 8, j), f"{message.name}.{oneof.name}"
            yield from messages((*prefix, i, 3), list(message.nested_type))
            yield from enums((*prefix, i, 4), list(message.enum_type))

    yield from messages((4,), list(file.message_type))
    yield from enums((5,), list(file.enum_type))
    for i, service in enumerate(file.service):
        yield (6, i), service.name
        for j, method in enumerate(service.method):
            yield (6, i, 2, j), f"{service.name}.{method.name}"
    for i, extension in enumerate(file.extension):
        yield (7, i), extension.name


def is_synthetic(message: DescriptorProto, oneof: int) -> bool:
    """Whether a oneof only expresses an `optional` field."""
    return any(
        field.proto3_optional and field.oneof_index == oneof and field.HasField("oneof_index")
        for field in message.field
    )


def test_generated_code_is_current(tool: ModuleType) -> None:
    """What is committed is what `make proto` writes."""
    assert tool.differences(tool.generate()) == []


def test_numbers_are_never_reused(tool: ModuleType) -> None:
    """A published field number keeps its field, or is reserved: old peers still send it."""
    assert tool.reused() == []


def test_every_number_is_remembered(tool: ModuleType) -> None:
    """proto/numbers.txt, written by `make proto`, knows every field there is."""
    fields = {key: name for key, name in tool.numbers().items() if name}
    assert fields == {key: name for key, name in tool.published().items() if key in fields}


def test_everything_is_explained(files: list[FileDescriptorProto]) -> None:
    """Every service, rpc, message, field, oneof, enum and value has a comment of its own."""
    faults = []
    for file in files:
        comments = {
            tuple(location.path): location.leading_comments
            for location in file.source_code_info.location
        }
        faults += [
            f"{file.name}: {name} has no comment"
            for path, name in elements(file)
            if not WORD.search(comments.get(path, ""))
        ]
    assert not faults, report(faults)


def test_the_surface_is_whole(files: list[FileDescriptorProto]) -> None:
    """The services have the calls that DESIGN.md section 3 names."""
    assert SERVICES == {
        service.name: " ".join(method.name for method in service.method)
        for file in files
        if file.package == "cni.v2alpha1"
        for service in file.service
    }


def test_each_call_has_messages_of_its_own(files: list[FileDescriptorProto]) -> None:
    """No two calls share a request, so each can grow alone."""
    requests = [
        method.input_type for file in files for service in file.service for method in service.method
    ]
    assert sorted(set(requests)) == sorted(requests)


def test_enums_begin_with_a_neutral_value(files: list[FileDescriptorProto]) -> None:
    """Value 0 means not known, because absent values decode as it."""
    first = [enum.value[0] for file in files for enum in file.enum_type]
    assert [] == [
        value.name
        for value in first
        if value.number or not value.name.endswith(("_UNSPECIFIED", "_UNKNOWN"))
    ]


def test_every_built_in_plugin_has_a_typed_config(files: list[FileDescriptorProto]) -> None:
    """pycni.plugins.v1 has a message for each plugin: "host-local" is HostLocal."""
    messages = {
        message.name
        for file in files
        if file.package == "pycni.plugins.v1"
        for message in file.message_type
    }
    wanted = {"".join(word.title() for word in name.split("-")) for name in builtin_plugins()}
    assert set() == wanted - messages


def test_typed_configs_have_one_field_where_rendered_inline(
    files: list[FileDescriptorProto],
) -> None:
    """A message with json_inline stands for the value of its only field."""
    inline = {
        message.name: len(message.field)
        for file in files
        for message in file.message_type
        if message.options.Extensions[options_pb2.json_inline]
    }
    assert inline == {"RangeSet": 1}


def test_addresses_are_text(files: list[FileDescriptorProto]) -> None:
    """No address is raw bytes: bytes fields hold JSON, or a process's output."""
    allowed = {"json", "config", "previous_config", "config_schema", "value", "stderr"}
    found = {
        field.name
        for file in files
        for message in file.message_type
        if not message.options.map_entry
        for field in message.field
        if field.type == FieldDescriptorProto.TYPE_BYTES
    }
    assert set() == found - allowed


def test_proto_files_are_shipped() -> None:
    """The package holds a link to proto/, so that an installation has the sources."""
    link = ROOT / "src/pycni/service/proto"
    assert Path(link).resolve() == ROOT / "proto"
