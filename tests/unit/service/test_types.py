# SPDX-License-Identifier: Apache-2.0
"""Types of Any: who knows which, and what a wrong definition does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2

from pycni.errors import CniError, DecodeFailure, InvalidConfig
from pycni.service.types import TypeConflict, Types

FileSet = descriptor_pb2.FileDescriptorSet
STRING, INT32, INT64 = 9, 5, 3
NERDCTL = "type.googleapis.com/helloworld.NerdctlNetworkConfig"


def file_set(files: list[Any]) -> FileSet:
    """A set of files given as dictionaries."""
    return FileSet(file=files)


def nerdctl(number_type: int = INT32, *, name: str = "config.proto") -> FileSet:
    """The type that dbnet's first extra member is of."""
    files = FileSet()
    file = files.file.add(name=name, package="helloworld", syntax="proto3")
    message = file.message_type.add(name="NerdctlNetworkConfig")
    message.field.add(name="NerdctlID", number=1, type=number_type, label=1)
    entry = message.nested_type.add(name="NerdctlLabelsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=STRING, label=1)
    entry.field.add(name="value", number=2, type=STRING, label=1)
    message.field.add(
        name="NerdctlLabels",
        number=2,
        type=11,
        label=3,
        type_name=".helloworld.NerdctlNetworkConfig.NerdctlLabelsEntry",
    )
    return files


def other(name: str = "config.proto") -> FileSet:
    """Somebody else's type, in a file of the same name."""
    files = FileSet()
    file = files.file.add(name=name, package="other", syntax="proto3")
    file.message_type.add(name="Thing").field.add(name="n", number=1, type=INT32, label=1)
    return files


def test_builtin_types_are_known_and_others_are_not() -> None:
    """Whatever stands before the last slash of the URL."""
    types = Types()
    for prefix in ("type.googleapis.com/", "x/y/", "/", ""):
        assert types.find(f"{prefix}pycni.plugins.v1.Bridge") is not None
    assert types.find("pycni.plugins.v1.RangeSet") is not None
    assert types.find(NERDCTL) is None
    assert types.find("google.protobuf.Duration") is None
    assert types.find("") is None
    assert [] == types.registered()


def test_a_set_is_registered_once() -> None:
    """The same again changes nothing, even in another file; names of files do not clash."""
    types = Types()
    first = types.register(nerdctl())
    assert (("helloworld.NerdctlNetworkConfig",), ()) == (first.added, first.known)
    again = types.register(nerdctl(name="renamed.proto").SerializeToString())
    assert ((), ("helloworld.NerdctlNetworkConfig",)) == (again.added, again.known)
    types.register(other())
    assert ["helloworld.NerdctlNetworkConfig", "other.Thing"] == types.registered()
    assert types.find(NERDCTL) is not None


def test_another_definition_is_refused_as_a_whole() -> None:
    """Nothing of such a set is registered; built-in types are nobody's to redefine."""
    types = Types()
    types.register(nerdctl())
    both = other("other.proto")
    both.file.extend(nerdctl(INT64).file)
    with pytest.raises(TypeConflict, match=r"helloworld\.NerdctlNetworkConfig"):
        types.register(both)
    assert types.find("other.Thing") is None
    mine = FileSet()
    file = mine.file.add(name="mine.proto", package="pycni.plugins.v1", syntax="proto3")
    file.message_type.add(name="Bridge")
    with pytest.raises(TypeConflict, match="Bridge"):
        types.register(mine)


def test_well_known_imports_need_not_be_sent() -> None:
    """A set may import google.protobuf and our options; an own copy of them does not count."""
    files = FileSet()
    file = files.file.add(name="a.proto", package="a", syntax="proto3")
    file.dependency.extend(
        [
            "google/protobuf/duration.proto",
            "google/protobuf/struct.proto",
            "pycni/plugins/v1/options.proto",
        ]
    )
    message = file.message_type.add(name="M")
    message.field.add(name="d", number=1, type=11, label=1, type_name=".google.protobuf.Duration")
    message.field.add(name="s", number=2, type=11, label=1, type_name=".google.protobuf.Struct")
    strange = files.file.add(name="google/protobuf/duration.proto", package="google.protobuf")
    strange.message_type.add(name="Duration")
    types = Types()
    assert ("a.M",) == types.register(files).added
    kind: Any = types.find("a.M")
    sent = kind()
    sent.d.seconds = 3
    sent.s["k"] = 1
    assert 3 == kind.FromString(sent.SerializeToString()).d.seconds


BROKEN = {
    "not protobuf": (b"\xff\xff", DecodeFailure, "not a FileDescriptorSet"),
    "a file without a name": (file_set([{}]), InvalidConfig, r"file\[0\]\.name: missing"),
    "a missing import": (
        file_set([{"name": "a", "dependency": ["b"]}]),
        InvalidConfig,
        "b is imported and missing",
    ),
    "a circle": (
        file_set([{"name": "a", "dependency": ["b"]}, {"name": "b", "dependency": ["a"]}]),
        InvalidConfig,
        "imports itself",
    ),
    "a file twice": (
        file_set([{"name": "a"}, {"name": "a", "package": "x"}]),
        InvalidConfig,
        "a is there twice",
    ),
    "an illegal name": (
        file_set([{"name": "a", "package": "v1.0.0", "message_type": [{"name": "B"}]}]),
        InvalidConfig,
        "invalid name",
    ),
    "an unknown field type": (
        file_set(
            [
                {
                    "name": "a",
                    "message_type": [
                        {
                            "name": "M",
                            "field": [
                                {"name": "f", "number": 1, "type": 11, "type_name": ".x.Nowhere"}
                            ],
                        }
                    ],
                }
            ]
        ),
        InvalidConfig,
        "Nowhere",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_set_is_refused(name: str) -> None:
    """With what is wrong; nothing is registered."""
    files, kind, words = BROKEN[name]
    types = Types()
    with pytest.raises(kind, match=words):
        types.register(files)
    assert [] == types.registered()


def test_a_directory_of_sets_is_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A bad file hides no good one; a directory that is not there is an error."""
    (tmp_path / "a.binpb").write_bytes(b"\xff\xff")
    (tmp_path / "b.binpb").write_bytes(nerdctl().SerializeToString())
    (tmp_path / "c.txt").write_bytes(other().SerializeToString())
    types = Types()
    types.load_directory(tmp_path)
    assert ["helloworld.NerdctlNetworkConfig"] == types.registered()
    assert "a.binpb" in caplog.text
    with pytest.raises(CniError, match="cannot list"):
        types.load_directory(tmp_path / "nowhere")
