# SPDX-License-Identifier: Apache-2.0
"""The message types that may stand in an Any: those of the built-in plugins, and registered ones.

Each set of descriptors that is registered gets a pool of its own: two authors may both call a
file "config.proto", and a set that is refused leaves nothing behind. A type has one definition on
a node, whichever sets it comes in.
"""

from __future__ import annotations

import importlib
import logging
import pkgutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import msgspec
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)
from google.protobuf.message import DecodeError, Message

from pycni.errors import CniError, DecodeFailure, InvalidConfig, IOFailure
from pycni.service.pb.pycni.plugins import v1

log = logging.getLogger(__name__)

URL = "type.googleapis.com/"
SUFFIXES = (".binpb", ".pb", ".desc", ".protoset")
OURS = ("google/protobuf/", "pycni/plugins/v1/", "cni/v2alpha1/")

# What a set may import without bringing it.
WELL_KNOWN = frozenset(
    "any api descriptor duration empty field_mask source_context struct timestamp type"
    " wrappers".split()
)

MessageClass = type[Message]


class TypeConflict(InvalidConfig):
    """A type of that name is registered with another definition."""


class Registered(msgspec.Struct, frozen=True, kw_only=True):
    """The full names a set of descriptors brought: new ones, and those that were known."""

    added: tuple[str, ...]
    known: tuple[str, ...]


class Types:
    """Message classes by full name; registering and finding may happen on any thread."""

    def __init__(self) -> None:
        self._builtin = dict(_builtin_types())
        self._registered: dict[str, MessageClass] = {}
        self._lock = threading.Lock()

    def find(self, type_url: str) -> MessageClass | None:
        """The class of a type URL's message, or None if it is not registered."""
        name = type_url.rpartition("/")[2]
        return self._builtin.get(name) or self._registered.get(name)

    def registered(self) -> list[str]:
        """Full names of what was registered, sorted; without the built-in types."""
        return sorted(self._registered)

    def register(self, descriptors: bytes | FileDescriptorSet) -> Registered:
        """Register every message type of a set, or none.

        Raises InvalidConfig (7) for a set that is not whole, TypeConflict for another definition
        of a known type, DecodeFailure (6) for bytes that are no set.
        """
        try:
            classes = dict(_message_classes(_parse(descriptors)))
        except (KeyError, ValueError) as exc:  # names that are not UTF-8, which nobody checks
            raise InvalidConfig(f"descriptors: {exc}") from exc
        with self._lock:
            known = [name for name in classes if self.find(name) is not None]
            for name in known:
                if not _is_same(classes[name], self.find(name)):
                    raise TypeConflict(
                        f"descriptors: {name} is registered already, with another definition",
                        hint="give the new definition a name of its own, such as a new version",
                    )
            added = classes.keys() - set(known)
            self._registered |= {name: classes[name] for name in added}
        return Registered(added=tuple(sorted(added)), known=tuple(sorted(known)))

    def load_directory(self, directory: Path) -> None:
        """Register each descriptor set of a directory; a bad file is logged and hides no other.

        Raises IOFailure (5) if the directory cannot be read.
        """
        try:
            paths = sorted(p for p in directory.iterdir() if p.suffix in SUFFIXES)
        except OSError as exc:
            raise IOFailure(f"cannot list {directory}: {exc.strerror}") from exc
        for path in paths:
            try:
                added = self.register(path.read_bytes()).added
            except (CniError, OSError) as error:
                log.error("types of %s are not registered: %s", path, error)
            else:
                log.info("registered types from=%s added=%s", path, ",".join(added))


def _builtin_types() -> Iterator[tuple[str, MessageClass]]:
    for module in pkgutil.iter_modules(v1.__path__):
        if module.name.endswith("_pb2"):
            file = importlib.import_module(f"{v1.__name__}.{module.name}").DESCRIPTOR
            for descriptor in _all_messages(file.message_types_by_name.values()):
                yield descriptor.full_name, message_factory.GetMessageClass(descriptor)


def _parse(descriptors: bytes | FileDescriptorSet) -> dict[str, FileDescriptorProto]:
    if isinstance(descriptors, bytes):
        try:
            descriptors = FileDescriptorSet.FromString(descriptors)
        except DecodeError as exc:
            raise DecodeFailure("descriptors: not a FileDescriptorSet") from exc
    files: dict[str, FileDescriptorProto] = {}
    for index, file in enumerate(descriptors.file):
        if not file.name:
            raise InvalidConfig(f"descriptors.file[{index}].name: missing")
        if files.setdefault(file.name, file) != file:
            raise InvalidConfig(f"descriptors.file[{index}]: {file.name} is there twice")
    return files


def _message_classes(files: dict[str, FileDescriptorProto]) -> Iterator[tuple[str, MessageClass]]:
    """Build the files in a pool of their own; what they import of ours is there already."""
    pool = descriptor_pool.DescriptorPool()
    built: dict[str, bool] = {}  # False while a file's imports are being built

    def build(name: str) -> None:
        if name in built:
            if not built[name]:
                raise InvalidConfig(f"descriptors: {name} imports itself")
            return
        built[name] = False
        file = _find_ours(name) or files.get(name)
        if file is None:
            raise InvalidConfig(
                f"descriptors: {name} is imported and missing",
                hint="write the set with protoc --include_imports",
            )
        for dependency in file.dependency:
            build(dependency)
        try:
            pool.Add(file)
        except TypeError as exc:
            reason = str(exc).removeprefix("Couldn't build proto file into descriptor pool: ")
            raise InvalidConfig(f"descriptors: {name}: {reason}") from exc
        built[name] = True

    for name in files:
        try:
            build(name)
        except RecursionError as exc:
            raise InvalidConfig(f"descriptors: {name}: imports are too deep") from exc
    for name in files:
        if not name.startswith(OURS):
            file = pool.FindFileByName(name)
            for descriptor in _all_messages(file.message_types_by_name.values()):
                yield descriptor.full_name, message_factory.GetMessageClass(descriptor)


def _find_ours(name: str) -> FileDescriptorProto | None:
    """A file of the well-known types or of this API; a caller's own of that name does not count."""
    if not name.startswith(OURS):
        return None
    path, _, base = name.removesuffix(".proto").rpartition("/")
    if path == "google/protobuf" and base in WELL_KNOWN:
        importlib.import_module(f"google.protobuf.{base}_pb2")  # which puts it into the pool
    try:
        file: FileDescriptor = descriptor_pool.Default().FindFileByName(name)
    except KeyError:
        return None
    found = FileDescriptorProto()
    file.CopyToProto(found)
    return found


def _all_messages(messages: object) -> Iterator[Descriptor]:
    """Messages and those nested in them, without the entries of maps."""
    for descriptor in messages:  # type: ignore[attr-defined]  # a ValuesView the stubs do not name
        if not descriptor.GetOptions().map_entry:
            yield descriptor
            yield from _all_messages(descriptor.nested_types)


def _is_same(one: MessageClass, other: MessageClass | None) -> bool:
    return other is not None and _definition(one) == _definition(other)


def _definition(message: MessageClass) -> DescriptorProto:
    found = DescriptorProto()
    cast(Descriptor, message.DESCRIPTOR).CopyToProto(found)
    return found
