# SPDX-License-Identifier: Apache-2.0
"""A caller that goes away, a deadline that is over, a service that is told to stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pycni.client import Client
from pycni.errors import CniError, TryAgain
from pycni.kernel.netns import Netns
from pycni.service.pb.cni.v2alpha1 import attachments_pb2, config_pb2
from pycni.service.server import READINESS
from tests.service_host import LOOPBACK, Service, eventually, network

pytestmark = pytest.mark.root

MakeNetns = Callable[..., Netns]
# Waits on ADD or DEL, as long as the file of that name is there, and writes down what it did.
SLOW = """#!/bin/sh
cat >/dev/null
[ "$CNI_COMMAND" = VERSION ] && {
    echo '{"cniVersion":"1.1.0","supportedVersions":["1.1.0"]}'; exit 0; }
echo "$CNI_COMMAND begins" >>"$0.log"
while [ -e "$0.$CNI_COMMAND" ]; do sleep 0.05; done
echo "$CNI_COMMAND ends" >>"$0.log"
[ "$CNI_COMMAND" = ADD ] && echo '{"cniVersion":"1.1.0"}'
exit 0
"""


class Slow:
    """The plugin, held at a verb while its file is there."""

    def __init__(self, service: Service) -> None:
        service.install("slow", SLOW)
        self.path = service.plugin_path / "slow"
        service.put(network({"type": "loopback"}, {"type": "slow"}, name="slow"))

    def file(self, verb: str) -> Path:
        return self.path.with_name(f"slow.{verb}")

    def lines(self) -> list[str]:
        log = self.path.with_name("slow.log")
        return log.read_text().splitlines() if log.exists() else []


@pytest.fixture
def slow(service: Service) -> Slow:
    """The plugin, and the network `slow` that uses it."""
    return Slow(service)


def add_request(netns: str, container_id: str = "c1") -> attachments_pb2.AddRequest:
    return attachments_pb2.AddRequest(
        network=config_pb2.NetworkRef(name="slow"),
        container_id=container_id,
        netns=netns,
        ifname="lo",
    )


def del_request(container_id: str = "c1") -> attachments_pb2.DelRequest:
    return attachments_pb2.DelRequest(
        network=config_pb2.NetworkRef(name="slow"), container_id=container_id, ifname="lo"
    )


@pytest.mark.parametrize("how", ["deadline", "cancellation", "connection"])
def test_an_add_without_a_caller_leaves_nothing(
    service: Service, slow: Slow, make_netns: MakeNetns, how: str
) -> None:
    """Its plugin is killed, and DEL runs in reverse on time of its own."""
    slow.file("ADD").touch()
    request = add_request(make_netns("c").path)
    other = Client(str(service.socket))
    timeout = 0.5 if how == "deadline" else 30

    def attach() -> None:
        with pytest.raises(CniError, match=r"DEADLINE_EXCEEDED|CANCELLED|time"):
            other.attachments.Add(request, timeout=timeout)

    pending = threading.Thread(target=attach)
    if how == "cancellation":
        stub = other._channel.unary_unary(
            "/cni.v2alpha1.Attachments/Add", lambda m: m.SerializeToString(), lambda data: data
        )
        call = stub.future(request)
        eventually(lambda: "ADD begins" in slow.lines(), "the plugin")
        call.cancel()
    else:
        pending.start()
        eventually(lambda: "ADD begins" in slow.lines(), "the plugin")
        if how == "connection":
            other.close()
        pending.join()
    eventually(lambda: "DEL ends" in slow.lines(), "the clean-up")
    eventually(lambda: not service.attachments(), "the attachment's end")
    assert ["ADD begins", "DEL begins", "DEL ends"] == slow.lines()
    other.close()
    slow.file("ADD").unlink()
    assert not service.add("c1", request.netns, network="slow", ifname="lo").replayed
    service.delete("c1", network="slow", ifname="lo")


def test_a_del_outlives_its_caller(service: Service, slow: Slow, make_netns: MakeNetns) -> None:
    """It runs to its end, and the attachment is gone then."""
    service.add("c1", make_netns("c").path, network="slow", ifname="lo")
    slow.file("DEL").touch()
    with pytest.raises(CniError, match="DEADLINE_EXCEEDED"):
        service.client.attachments.Del(del_request(), timeout=0.5)
    assert [attachments_pb2.ATTACHMENT_STATE_DELETING] == [a.state for a in service.attachments()]
    slow.file("DEL").unlink()
    eventually(lambda: not service.attachments(), "the attachment's end")
    assert "DEL ends" == slow.lines()[-1]


def test_a_second_call_waits_for_the_first(
    service: Service, slow: Slow, make_netns: MakeNetns
) -> None:
    """Calls of one container are in turn; one whose time is over has touched nothing."""
    slow.file("ADD").touch()
    request = add_request(make_netns("c").path)
    answers: list[attachments_pb2.AddResponse] = []
    first = threading.Thread(
        target=lambda: answers.append(service.client.attachments.Add(request, timeout=30))
    )
    first.start()
    eventually(lambda: "ADD begins" in slow.lines(), "the plugin")
    with pytest.raises(CniError):
        service.client.attachments.Add(request, timeout=0.3)
    slow.file("ADD").unlink()
    first.join()
    assert [False] == [answer.replayed for answer in answers]
    assert 1 == slow.lines().count("ADD begins")
    service.delete("c1", network="slow", ifname="lo")


def test_a_service_that_is_told_to_stop_ends_what_runs(
    service: Service, slow: Slow, make_netns: MakeNetns
) -> None:
    """Readiness goes first; what runs is answered, what deletes is served, nothing else begins."""
    service.put(LOOPBACK)
    health = health_pb2_grpc.HealthStub(service.client._channel)
    netns = make_netns("c").path
    service.add("gone", netns, network="lo", ifname="lo")
    slow.file("ADD").touch()
    answers: list[attachments_pb2.AddResponse] = []
    running = threading.Thread(
        target=lambda: answers.append(
            service.client.attachments.Add(add_request(netns, "last"), timeout=30)
        )
    )
    running.start()
    eventually(lambda: "ADD begins" in slow.lines(), "the plugin")

    def ready() -> bool:
        answer = health.Check(health_pb2.HealthCheckRequest(service=READINESS))
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    assert ready()
    service.process.terminate()
    eventually(lambda: not ready(), "the end of readiness")
    assert (
        health_pb2.HealthCheckResponse.SERVING
        == health.Check(health_pb2.HealthCheckRequest()).status
    )
    with pytest.raises(TryAgain, match="stopping"):
        service.add("new", netns, network="lo", ifname="lo")
    assert service.delete("gone", network="lo", ifname="lo").existed
    assert service.process.poll() is None
    slow.file("ADD").unlink()
    running.join()
    assert ["last"] == [answer.attachment.key.container_id for answer in answers]
    assert 0 == service.process.wait(20)


def test_streams_end_with_the_service(service: Service) -> None:
    """A watcher is told by the end of its stream, at once, and holds nothing up."""
    watch_all = attachments_pb2.WatchAttachmentsRequest()
    stream: Any = service.client.attachments.Watch(watch_all)
    next(stream)
    ended: list[BaseException] = []

    def watch() -> None:
        try:
            next(stream)
        except (CniError, StopIteration, grpc.RpcError) as end:
            ended.append(end)

    watcher = threading.Thread(target=watch)
    watcher.start()
    started = time.monotonic()
    service.process.terminate()
    assert 0 == service.process.wait(20)
    watcher.join()
    assert 1 == len(ended)
    assert time.monotonic() - started < 5
