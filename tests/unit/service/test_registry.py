# SPDX-License-Identifier: Apache-2.0
"""The Registry stream and daemons that were not made with our SDK, over real sockets."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest
from google.protobuf import descriptor_pb2
from google.rpc import status_pb2
from grpc_status import rpc_status

from pycni.errors import CniError, TryAgain
from pycni.model.deadline import Deadline
from pycni.model.request import Request, Verb
from pycni.runtime.events import Kind
from pycni.runtime.node import Node
from pycni.runtime.opening import open_node
from pycni.service import wire
from pycni.service.daemons import Daemons, Registration
from pycni.service.operations import Operations
from pycni.service.pb.cni.v2alpha1 import (
    attachments_pb2,
    error_pb2,
    plugin_pb2,
    plugin_pb2_grpc,
    registry_pb2,
    registry_pb2_grpc,
    result_pb2,
)
from pycni.service.plugin_client import MAX_RESULT_BYTES, ConnectionLost
from pycni.service.registry import RegistryService
from pycni.service.server import Server

ADD = Request(
    verb=Verb.ADD,
    container_id="c1",
    ifname="eth0",
    args="K8S_POD_NAME=web;A=",
    config=b'{"cniVersion": "1.1.0", "name": "net", "type": "foreign"}',
)


class Foreign(plugin_pb2_grpc.PluginServicer):
    """A daemon of somebody else's: it answers what the test says, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[plugin_pb2.PluginCall] = []
        self.fail: grpc.StatusCode | None = None
        self.error: error_pb2.CniError | None = None
        self.result = result_pb2.Result(ips=[result_pb2.IpConfig(address="10.0.0.2/24")])

    def Version(self, request: Any, context: grpc.ServicerContext) -> Any:
        """The versions of a plugin that is not new."""
        return plugin_pb2.PluginVersionResponse(supported_versions=["1.0.0", "1.1.0"])

    def Add(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Answer, or fail without a CniError."""
        self.asked.append(request.call)
        if self.fail is not None:
            context.abort(self.fail, "as asked for")
        if self.error is not None:
            status = status_pb2.Status(code=13, message="as asked for")
            status.details.add().Pack(self.error)
            context.abort_with_status(rpc_status.to_status(status))
        return plugin_pb2.PluginAddResponse(result=self.result)


@pytest.fixture
def foreign(tmp_path: Path) -> Iterator[Foreign]:
    """The daemon at unix:TMP/foreign.sock."""
    servicer = Foreign()
    server = grpc.server(futures.ThreadPoolExecutor(4))
    plugin_pb2_grpc.add_PluginServicer_to_server(servicer, server)
    server.add_insecure_port(f"unix:{tmp_path}/foreign.sock")
    server.start()
    yield servicer
    server.stop(0).wait()


@pytest.fixture
def daemons() -> Daemons:
    """Nobody registered."""
    return Daemons(Operations())


@pytest.fixture
def node(tmp_path: Path, daemons: Daemons) -> Iterator[Node]:
    """A node on no state, which reaches plugin daemons."""
    (tmp_path / "state").mkdir()
    opened = open_node(
        str(tmp_path / "state"), plugin_path=(), registered=[daemons], endpoints=daemons.at
    )
    yield opened
    opened.close()


class Stream:
    """A registration in the hands of the test."""

    def __init__(self, socket: Path, first: registry_pb2.RegisterRequest) -> None:
        self.channel = grpc.insecure_channel(f"unix:{socket}")
        self.outbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.outbox.put(first)
        stub = registry_pb2_grpc.RegistryStub(self.channel)
        self.inbox = iter(stub.Register(iter(self.outbox.get, None)))

    def close(self) -> None:
        """End it."""
        self.outbox.put(None)
        self.channel.close()


def registration(tmp_path: Path, **more: Any) -> registry_pb2.RegisterRequest:
    """The first message of the foreign daemon."""
    return registry_pb2.RegisterRequest(
        registration=registry_pb2.Registration(
            types=["foreign"], endpoint=f"unix://{tmp_path}/foreign.sock", **more
        )
    )


def test_the_life_of_a_registration(
    node: Node, daemons: Daemons, foreign: Foreign, tmp_path: Path
) -> None:
    """Registered, heard, draining, gone; and stopping the service does not wait for it."""
    server = Server(node, daemons=daemons)
    server.listen(tmp_path / "cni.sock")
    server.start()
    watch = node.events.watch()
    stream = Stream(tmp_path / "cni.sock", registration(tmp_path))
    assert next(stream.inbox).registered.service.startswith("pycni ")
    assert ("1.0.0", "1.1.0") == daemons.versions("foreign")
    for said, told in (("foreign", "foreign"), ("bridge", "foreign"), ("", "foreign")):
        notice = attachments_pb2.PluginNotice(plugin_type=said, network="net", reason="full")
        stream.outbox.put(registry_pb2.RegisterRequest(notice=notice))
        event = watch.get(10)
        assert event is not None
        assert (Kind.PLUGIN_NOTICE, "net", told) == (event.kind, event.network, event.plugin_type)
    stream.outbox.put(registry_pb2.RegisterRequest(draining=registry_pb2.Draining()))
    until(lambda: not daemons.is_present("foreign"))
    stream.close()
    other = Stream(tmp_path / "cni.sock", registration(tmp_path))
    next(other.inbox)
    started = time.monotonic()
    server.stop(30)
    assert time.monotonic() - started < 10
    other.close()


def until(true: Any) -> None:
    """Wait for it."""
    end = time.monotonic() + 10
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


class Types:
    """A registry of message types that knows one it will not have."""

    def __init__(self) -> None:
        self.known: list[bytes] = []

    def register(self, descriptors: bytes) -> None:
        """Keep it."""
        if b"refused" in descriptors:
            raise CniError("a different definition is known")
        self.known.append(descriptors)


def test_message_types_come_with_a_registration(
    node: Node, daemons: Daemons, foreign: Foreign, tmp_path: Path
) -> None:
    """Types that contradict known ones keep the daemon out."""
    types = Types()
    service = RegistryService(node, daemons, types)
    for name, accepted in (("fine", True), ("refused", False)):
        files = descriptor_pb2.FileDescriptorSet()
        files.file.add(name=name)
        first = registration(tmp_path, descriptors=files)
        stream = service.Register(iter([first]), None)  # type: ignore[arg-type]  # needs no context
        if accepted:
            assert next(stream).HasField("registered")
            assert [files.SerializeToString()] == types.known
            del stream  # which ends the lease
        else:
            with pytest.raises(CniError, match="different definition"):
                next(stream)


def test_a_foreign_daemon_is_asked_as_the_proto_says(
    daemons: Daemons, foreign: Foreign, tmp_path: Path
) -> None:
    """Everything an executable finds in its environment and on stdin; typed results will do."""
    daemons.register(["foreign"], Registration(endpoint=f"unix://{tmp_path}/foreign.sock"))
    config = ADD.config[:-1] + b', "prevResult": {"cniVersion": "1.1.0", "ips": []}}'
    request = Request(**{name: getattr(ADD, name) for name in ADD.__struct_fields__} | {
        "config": config, "path": ("/opt/cni/bin",), "netns": "/proc/self/ns/net",
    })  # fmt: skip
    document = daemons.run("foreign", request, Deadline(10))
    assert b'"10.0.0.2/24"' in document
    (call,) = foreign.asked
    assert (config, "c1", "eth0", "foreign") == (
        call.config, call.container_id, call.ifname, call.type,
    )  # fmt: skip
    assert [("K8S_POD_NAME", "web"), ("A", "")] == [(a.key, a.value) for a in call.cni_args]
    assert Path("/proc/self/ns/net").stat().st_ino == call.netns_inode
    assert call.HasField("prev_result")
    assert "." in call.operation
    assert 0 == len(daemons.operations)


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (grpc.StatusCode.INTERNAL, 999),
        (grpc.StatusCode.UNIMPLEMENTED, 999),
        (grpc.StatusCode.INVALID_ARGUMENT, 999),
        (grpc.StatusCode.UNAVAILABLE, 11),
    ],
)
def test_a_status_without_a_cni_error(
    daemons: Daemons, foreign: Foreign, tmp_path: Path, status: grpc.StatusCode, expected: int
) -> None:
    """Counts as code 999; that nobody answers is 11, and an ADD is not sent twice."""
    daemons.register(["foreign"], Registration(endpoint=f"unix://{tmp_path}/foreign.sock"))
    foreign.fail = status
    with pytest.raises(CniError) as failed:
        daemons.run("foreign", ADD, Deadline(10))
    assert expected == failed.value.wire_code
    assert 1 == len(foreign.asked)


def failing(
    daemons: Daemons, foreign: Foreign, tmp_path: Path, error: error_pb2.CniError
) -> CniError:
    """What becomes of an error of the foreign daemon."""
    daemons.register(["foreign"], Registration(endpoint=f"unix://{tmp_path}/foreign.sock"))
    foreign.error = error
    with pytest.raises(CniError) as failed:
        daemons.run("foreign", ADD, Deadline(10))
    return failed.value


def test_a_daemon_does_not_say_whom_its_error_concerns(
    daemons: Daemons, foreign: Foreign, tmp_path: Path
) -> None:
    """The chain knows which plugin failed, and for whom."""
    told = error_pb2.CniError(
        code=142, msg="no", details="because", verb=error_pb2.VERB_DEL, plugin_type="bridge",
        plugin_index=7, network="other", container_id="c9", ifname="eth9", field="config",
        log_id="abc", residue=error_pb2.RESIDUE_NETNS_ONLY,
    )  # fmt: skip
    error = failing(daemons, foreign, tmp_path, told)
    assert (142, "no", "because") == (error.wire_code, error.msg, error.details)
    assert (None, None, None) == (error.verb, error.plugin_type, error.plugin_index)
    assert ("", "", "", "") == (error.network, error.container_id, error.ifname, error.field)
    assert ("abc", "NETNS_ONLY") == (error.log_id, error.residue)


def test_a_daemon_s_empty_error_says_where_it_came_from(
    daemons: Daemons, foreign: Foreign, tmp_path: Path
) -> None:
    """A code of 0 and no text are nothing to show to people."""
    error = failing(daemons, foreign, tmp_path, error_pb2.CniError())
    assert 999 == error.wire_code
    assert error.msg.startswith("ADD of plugin foreign: the daemon at unix://")


def test_a_daemon_s_long_error_is_heard(daemons: Daemons, foreign: Foreign, tmp_path: Path) -> None:
    """Trailers that gRPC's default would refuse, with the code in them."""
    told = error_pb2.CniError(code=142, msg="no", details="d" * 100_000)
    error = failing(daemons, foreign, tmp_path, told)
    assert (142, "no", 100_000) == (error.wire_code, error.msg, len(error.details))


@pytest.mark.parametrize("typed", [False, True])
def test_a_result_that_could_not_be_handed_back_is_refused(
    daemons: Daemons, foreign: Foreign, tmp_path: Path, typed: bool
) -> None:
    """CHECK and DEL hand the result back; what the daemon cannot receive could not be deleted."""
    daemons.register(["foreign"], Registration(endpoint=f"unix://{tmp_path}/foreign.sock"))
    filling = "x" * MAX_RESULT_BYTES
    if typed:
        foreign.result = result_pb2.Result(dns=result_pb2.Dns(domain=filling))
    else:
        foreign.result = result_pb2.Result(
            json=b'{"cniVersion":"1.1.0","x":"%s"}' % filling.encode()
        )
    with pytest.raises(CniError, match=f"bytes, and {MAX_RESULT_BYTES} are allowed"):
        daemons.run("foreign", ADD, Deadline(10))
    foreign.result.Clear()
    foreign.result.json = b'{"cniVersion":"1.1.0","x":"%s"}' % filling[100:].encode()
    result = daemons.run("foreign", ADD, Deadline(10))
    foreign.result.Clear()
    again = msgspec.structs.replace(ADD, config=ADD.config[:-1] + b', "prevResult": %s}' % result)
    daemons.run("foreign", again, Deadline(10))


def test_closing_waits_for_the_last_call(
    daemons: Daemons, foreign: Foreign, tmp_path: Path
) -> None:
    """A lease that ends does not cut off what runs on it; new calls do not get on it."""
    lease = daemons.register(["foreign"], Registration(endpoint=f"unix://{tmp_path}/foreign.sock"))
    lease.connection.close()
    with pytest.raises(ConnectionLost):
        lease.connection.run("foreign", ADD, Deadline(10), wait=False)
    with pytest.raises(TryAgain):
        daemons.run("foreign", ADD, Deadline(10))


@pytest.mark.parametrize("code", [1, 3, 7, 11, 50, 100, 142, 999])
def test_a_code_survives_two_boundaries(code: int) -> None:
    """As a status detail and back, it is the same class with the same number."""
    error = CniError.from_wire(code, "msg", "details")
    again = wire.rebuild_error(wire.error_message(error))
    assert (type(error), code, "msg", "details") == (
        type(again), again.wire_code, again.msg, again.details,
    )  # fmt: skip
