# SPDX-License-Identifier: Apache-2.0
"""JSON Schema of the types: custom types are strings that say what they hold."""

from __future__ import annotations

from typing import Annotated, Any, Self

from msgspec import Meta, Raw, Struct

from pycni.model.addresses import IPInterface
from pycni.model.request import RuntimeConfig
from pycni.model.schema import json_schema


class Colour(str):
    """A plugin's own custom type."""

    __slots__ = ()

    @classmethod
    def parse(cls, raw: str) -> Self:
        """Any text will do."""
        return cls(raw)


class Edge(Struct, frozen=True, tag="edge", tag_field="kind", forbid_unknown_fields=True):
    """Part of a shape."""

    length: Annotated[int, Meta(ge=0)] = 0


class Shape(Struct, frozen=True, rename={"frame": "cni.dev/frame"}):
    """A plugin's configuration."""

    subnet: IPInterface
    colour: Colour = Colour("red")
    sides: int = 4
    edges: tuple[Edge, ...] = ()
    frame: Edge | None = Edge(length=1)
    labels: dict[str, str] = {}
    raw: Raw = Raw(b"")
    anything: Any = None


def test_custom_types_are_strings() -> None:
    """One the model does not know is described by its name."""
    schema = json_schema(Shape)["$defs"]["Shape"]
    described = "an address with its prefix length, such as 10.1.0.5/16"
    assert {"type": "string", "description": described} == schema["properties"]["subnet"]
    colour = {"type": "string", "description": "Colour", "default": "red"}
    assert colour == schema["properties"]["colour"]


def test_a_schema_keeps_names_defaults_bounds_and_texts() -> None:
    """What a documentation page is made of."""
    definitions = json_schema(Shape)["$defs"]
    shape, edge = definitions["Shape"], definitions["Edge"]
    assert "A plugin's configuration." == shape["description"]
    assert ["subnet"] == shape["required"]
    assert {"type": "integer", "default": 4} == shape["properties"]["sides"]
    assert {"kind": "edge", "length": 1} == shape["properties"]["cni.dev/frame"]["default"]
    assert {} == shape["properties"]["labels"]["default"]
    assert {"default": None} == shape["properties"]["raw"]
    assert {"type": "integer", "minimum": 0, "default": 0} == edge["properties"]["length"]
    assert ({"enum": ["edge"]}, False) == (edge["properties"]["kind"], edge["additionalProperties"])


def test_every_conventional_capability_has_a_schema() -> None:
    """The types of runtimeConfig, nested ones included."""
    properties = json_schema(RuntimeConfig)["$defs"]["RuntimeConfig"]["properties"]
    names = {"portMappings", "bandwidth", "ipRanges", "ips", "mac", "dns", "deviceID"}
    assert names | {"infinibandGUID", "aliases", "cgroupPath"} == set(properties)
