# SPDX-License-Identifier: Apache-2.0
"""Typed configs in protobuf and the plugins' own models describe the same keys."""

from __future__ import annotations

import importlib
import types
import typing
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from pycni.plugins.sdk import IPAM, Config
from pycni.service.pb.pycni.plugins.v1 import options_pb2
from tests.meta.source import builtin_plugins, report

# What a runtime supplies, and no config holds (SPEC section 1).
SUPPLIED = {"args", "runtimeConfig", "prevResult"}
# Spellings that plugins still read and nobody should write any more.
OBSOLETE = {"HcnPolicyArgs"}
PACKAGE = "pycni.service.pb.pycni.plugins.v1"


def typed_config(plugin_type: str) -> Descriptor:
    """The protobuf message of a plugin: "host-local" has HostLocal in host_local.proto."""
    module = importlib.import_module(f"{PACKAGE}.{plugin_type.replace('-', '_')}_pb2")
    name = "".join(word.title() for word in plugin_type.split("-"))
    message: Descriptor = getattr(module, name).DESCRIPTOR
    return message


def model(plugin_type: str) -> tuple[type[msgspec.Struct], set[str]]:
    """The Struct that holds a plugin's own keys, and the keys every plugin has."""
    module, _, name = builtin_plugins()[plugin_type].partition(":")
    config: type[Config] = getattr(importlib.import_module(module), name).config
    ipam = typing.get_type_hints(config)["ipam"]
    # An IPAM plugin's keys stand in `ipam`, whose base has the type alone.
    if ipam is not IPAM:
        return ipam, set(IPAM.__struct_fields__)
    return config, set(Config.__struct_fields__) | SUPPLIED | OBSOLETE


def differences(
    struct: type[msgspec.Struct], message: Descriptor, common: set[str]
) -> Iterator[str]:
    """Keys that only one of the two has, at any depth."""
    fields = {field.json_name: field for field in message.fields}
    keys = {
        field.encode_name: field.type
        for field in msgspec.structs.fields(struct)
        if field.encode_name not in common
    }
    for name in sorted(fields.keys() ^ keys.keys()):
        where = "protobuf" if name in fields else "the model"
        yield f"{message.full_name}: {name!r} is known to {where} only"
    for name in sorted(fields.keys() & keys.keys()):
        yield from _compare(fields[name], keys[name])


def _compare(field: FieldDescriptor, annotation: Any) -> Iterator[str]:
    inner = field.message_type
    if inner is None or inner.GetOptions().map_entry:
        return
    if inner.GetOptions().Extensions[options_pb2.json_inline]:
        inner = inner.fields[0].message_type
    struct = _find_struct(annotation)
    if struct is not None and inner is not None:
        yield from differences(struct, inner, set())


def _find_struct(annotation: Any) -> type[msgspec.Struct] | None:
    """The Struct inside `tuple[X, ...]`, `X | None` and their like."""
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return annotation
    if isinstance(annotation, types.GenericAlias | types.UnionType) or typing.get_args(annotation):
        inner = (_find_struct(argument) for argument in typing.get_args(annotation))
        return next((found for found in inner if found is not None), None)
    return None


@pytest.mark.parametrize("plugin_type", builtin_plugins())
def test_typed_config_has_the_keys_of_the_model(plugin_type: str) -> None:
    """Each key of a plugin's config is a field of its message, under the same JSON name."""
    struct, common = model(plugin_type)
    faults = list(differences(struct, typed_config(plugin_type), common))
    assert not faults, report(faults)
