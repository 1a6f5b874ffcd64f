# SPDX-License-Identifier: Apache-2.0
"""Nonsense on every method: built from the descriptors, and bytes that were tampered with."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pycni.kernel.netns import Netns
from pycni.kernel.side import Side
from pycni.runtime.opening import open_node
from pycni.service import wire
from pycni.service.access import Rate, Rates
from pycni.service.pb.cni.v2alpha1 import (
    attachments_pb2,
    networks_pb2,
    node_pb2,
    registry_pb2,
)
from pycni.service.pb.pycni.plugins.v1 import bridge_pb2
from pycni.service.server import Server
from tests.service_host import LOOPBACK, network

pytestmark = [pytest.mark.root, pytest.mark.slow]

CASES = 10_000
STREAMS = 150  # of each method that streams: a stream without events takes its whole time
STREAM_S = 0.02
SERVICES = [
    service
    for module in (networks_pb2, attachments_pb2, node_pb2, registry_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
]
METHODS: list[MethodDescriptor] = [method for service in SERVICES for method in service.methods]
# What ends a call without the service having been asked, or having an answer.
OURS = (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)

NETNS = "/run/netns/fuzz"  # taken for the container's namespace
CONFIGS = [
    json.dumps(LOOPBACK).encode(),
    json.dumps(network({"type": "loopback"}, {"type": "portmap"}, name="ports")).encode(),
    json.dumps(network({"type": "nope"}, name="nope")).encode(),
    b'{"cniVersion": "0.2.0", "name": "old", "type": "loopback", "extra": [{"@type": "a/b"}]}',
    b'{"name": "x", "cniVersion": "9.9.9", "plugins": [{"type": "loopback"}]}',
    b'{"name": "x", "plugins": [{"type": "loopback", "extra": [1, {"@type": "a", "@value": ""}]}]}',
    b"[]", b"{", b"null", b'"\\ud800"', b"\xff", b"[" * 600,
]  # fmt: skip
# By the names of fields: what gets further than nonsense does.
WORDS: dict[str, list[Any]] = {
    "name": ["lo", "ports", "bad name", "x" * 300],
    "network": ["lo", "ports", "nope"],
    "container_id": ["c1", "c2", "a/b"],
    "ifname": ["lo", "eth0", "sixteen-bytes-xx", "a b"],
    "netns": [NETNS, "/etc/hostname", "/nowhere", "\0"],
    "type": ["loopback", "portmap", "nope", "a/b"],
    "types": ["fuzzed", "a/b"],
    "endpoint": ["unix:///nowhere.sock", "http://x", ""],
    "json": CONFIGS,
    "config": CONFIGS,
    "type_url": ["type.googleapis.com/pycni.plugins.v1.Bridge", "a/b", ""],
    "cni_version": ["1.0.0", "1.1.0", "0.1.0", "9"],
    "page_token": ["lo/c1/lo", "lo", "/"],
    "cursor": ["0", "x-1", "-"],
    "operation": ["0"],
}
INTEGERS = {
    FieldDescriptor.CPPTYPE_INT32: (-(1 << 31), (1 << 31) - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, (1 << 32) - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(1 << 63), (1 << 63) - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, (1 << 64) - 1),
}


def scalar(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    """Values of a field: some that mean something, and any."""
    known = st.sampled_from(WORDS.get(field.name, [""]))
    if field.cpp_type in INTEGERS:
        low, high = INTEGERS[field.cpp_type]
        return st.sampled_from([low, high, 0, 1, min(80, high)]) | st.integers(low, high)
    if field.enum_type is not None:
        known = st.sampled_from(list(field.enum_type.values_by_number))
        return known if field.enum_type.is_closed else known | st.integers(0, 99)
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return st.booleans()
    if field.cpp_type in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return st.floats(width=32)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return st.sampled_from(WORDS.get(field.name, CONFIGS)).map(_bytes) | st.binary(max_size=20)
    return known.filter(lambda word: isinstance(word, str)) | st.text(max_size=8)


def _bytes(word: Any) -> bytes:
    return word if isinstance(word, bytes) else str(word).encode()


@functools.cache
def messages(descriptor: Descriptor, depth: int = 4) -> st.SearchStrategy[Any]:
    """Messages of a type, as the arguments of its class."""
    if descriptor.full_name == "google.protobuf.Any":
        value = bridge_pb2.Bridge(mtu=1).SerializeToString()
        good = st.just({"type_url": "x/pycni.plugins.v1.Bridge", "value": value})
        return good | st.fixed_dictionaries(
            {"type_url": st.sampled_from(WORDS["type_url"]), "value": st.binary(max_size=4)}
        )
    given_values = {field.name: values(field, depth) for field in descriptor.fields}
    fields = {name: value for name, value in given_values.items() if value is not None}
    often = {name: fields.pop(name) for name in list(fields) if name in WORDS and name != "json"}
    return st.fixed_dictionaries(often, optional=fields)


def values(field: FieldDescriptor, depth: int) -> Any:
    """Values of a field, lists and maps included; None where it is too deep."""
    inner = field.message_type
    if inner is None:
        one = scalar(field)
    elif depth == 0:
        return None
    elif inner.GetOptions().map_entry:
        key, value = (values(inner.fields_by_name[n], depth - 1) for n in ("key", "value"))
        return None if value is None else st.dictionaries(key, value, max_size=2)
    else:
        one = messages(inner, depth - 1)
    return st.lists(one, max_size=2) if field.is_repeated else one


@st.composite
def requests(draw: st.DrawFn, method: MethodDescriptor) -> bytes:
    """The bytes of a request: whole, tampered with, or any."""
    kind: Any = GetMessageClass(method.input_type)
    data: bytes = _build(kind, draw(messages(method.input_type))).SerializeToString()
    match draw(st.integers(0, 9)):
        case 0:
            return draw(st.binary(max_size=60))
        case 1 | 2 if data:
            at = draw(st.integers(0, len(data) - 1))
            return data[:at] + draw(st.binary(max_size=3)) + data[at + draw(st.integers(0, 3)) :]
    return data


def _build(kind: Any, arguments: dict[str, Any]) -> Message:
    """The message; of a oneof the last field counts."""
    message: Message = kind()
    for name, value in arguments.items():
        message.MergeFrom(kind(**{name: value}))
    return message


class Fuzzed:
    """A service in this process on `host`, called with bytes."""

    def __init__(self, host: Netns, directory: Path) -> None:
        self.side = Side(host)
        self.node = open_node(str(directory), host=self.side, plugin_path=(str(directory / "bin"),))
        free = Rate(per_second=0, burst=0)
        self.server = Server(self.node, rates=Rates(admin=free, read_only=free))
        self.server.listen(directory / "cni.sock")
        self.server.start()
        self.channel = grpc.insecure_channel(f"unix:{directory / 'cni.sock'}")
        self.stubs = {method.full_name: self.stub(method) for method in METHODS}
        self.answered = 0

    def stub(self, method: MethodDescriptor) -> Callable[..., Any]:
        kinds: dict[tuple[bool, bool], Callable[..., Any]] = {
            (False, False): self.channel.unary_unary,
            (False, True): self.channel.unary_stream,
            (True, True): self.channel.stream_stream,
        }
        path = f"/{method.containing_service.full_name}/{method.name}"
        stub: Callable[..., Any] = kinds[method.client_streaming, method.server_streaming](path)
        return stub

    def call(self, method: MethodDescriptor, data: bytes) -> None:
        """Call; only an answer or a CniError will do, and never an internal one."""
        stub = self.stubs[method.full_name]
        try:
            if method.client_streaming:
                list(itertools.islice(stub(iter([data, data]), timeout=STREAM_S), 2))
            elif method.server_streaming:
                list(itertools.islice(stub(data, timeout=STREAM_S), 3))
            else:
                stub(data, timeout=20)
            self.answered += 1
        except grpc.RpcError as failed:
            self.judge(method, failed)

    def judge(self, method: MethodDescriptor, failed: Any) -> None:
        """A failed call must say why, and not that we have a bug."""
        error = wire.find_error(failed)
        if error is None:
            assert failed.code() in OURS, failed
            assert method.server_streaming, failed
        else:
            assert not error.log_id, error
            assert grpc.StatusCode.UNIMPLEMENTED is not failed.code()

    def close(self) -> None:
        """Detach everything, forget the networks, stop."""
        for attachment in self.node.list().attachments:
            self.node.detach_all(attachment.container_id)
        assert () == self.node.list().attachments
        for one in self.node.networks.list():
            self.node.networks.delete(one.name)
        self.channel.close()
        self.server.stop(5)
        self.node.close()


@pytest.fixture
def fuzzed(
    host: Netns, make_netns: Callable[..., Netns], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Fuzzed]:
    """The service; whatever it was asked, nothing stays on `host`."""
    monkeypatch.setitem(WORDS, "netns", [make_netns("fuzz").path, *WORDS["netns"][1:]])
    messages.cache_clear()
    fuzzed = Fuzzed(host, tmp_path)
    yield fuzzed
    fuzzed.close()


def fuzz(fuzzed: Fuzzed, method: MethodDescriptor, examples: int) -> int:
    """So many requests to one method; how many it came to."""
    counted = itertools.count()

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(data=requests(method))
    def run(data: bytes) -> None:
        next(counted)
        fuzzed.call(method, data)

    run()
    return next(counted)


def test_nonsense_is_answered_and_leaves_nothing(fuzzed: Fuzzed) -> None:
    """10,000 cases over all methods: an answer or a CniError, and the service lives on."""
    streaming = [method for method in METHODS if method.server_streaming]
    each = -(-(CASES - STREAMS * len(streaming)) // (len(METHODS) - len(streaming)))
    cases = 0
    for method in METHODS:
        for config in CONFIGS[:2]:
            fuzzed.node.networks.put(config)
        cases += fuzz(fuzzed, method, STREAMS if method in streaming else each)
    assert CASES <= cases
    assert CASES // 20 < fuzzed.answered
