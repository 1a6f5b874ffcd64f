# SPDX-License-Identifier: Apache-2.0
"""Attachments over the socket: watching, all of a container at once, collecting, listing."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from pycni.client import Client
from pycni.errors import CniError, InvalidEnvironment, TryAgain, UnknownContainer
from pycni.kernel.netns import Netns
from pycni.service.pb.cni.v2alpha1 import attachments_pb2, config_pb2
from tests.fix_netns import run_in
from tests.service_host import LOOPBACK, Service, network, status_of

pytestmark = pytest.mark.root

MakeNetns = Callable[..., Netns]
READY, FAILED = attachments_pb2.ATTACHMENT_STATE_READY, attachments_pb2.ATTACHMENT_STATE_FAILED
ADDING = attachments_pb2.ATTACHMENT_STATE_ADDING
DELETING = attachments_pb2.ATTACHMENT_STATE_DELETING
STUCK = """#!/bin/sh
cat >/dev/null
case $CNI_COMMAND in
VERSION) echo '{"cniVersion":"1.1.0","supportedVersions":["1.1.0"]}' ;;
ADD) echo '{"cniVersion":"1.1.0"}' ;;
DEL|GC) [ -e "$0.free" ] || { echo '{"code":11,"msg":"stuck"}'; exit 1; } ;;
esac
"""
REFUSES = """#!/bin/sh
cat >/dev/null
case $CNI_COMMAND in
VERSION) echo '{"cniVersion":"1.1.0","supportedVersions":["1.1.0"]}' ;;
ADD) echo '{"code":123,"msg":"no more today"}'; exit 1 ;;
esac
"""


def events(client: Client, **request: Any) -> Iterator[attachments_pb2.AttachmentEvent]:
    """A watch that ends with the test."""
    return client.attachments.Watch(attachments_pb2.WatchAttachmentsRequest(**request), timeout=60)


def what(event: attachments_pb2.AttachmentEvent) -> tuple[Any, ...]:
    """The kind of an event, the container it is about, and its state."""
    match event.WhichOneof("event"):
        case "changed":
            return event.changed.key.container_id, event.changed.state
        case "deleted":
            return event.deleted.container_id, "gone"
        case other:
            return (other,)


def join(name: str, ifname: str) -> attachments_pb2.InterfaceRequest:
    """One interface of an AttachAll."""
    return attachments_pb2.InterfaceRequest(network=config_pb2.NetworkRef(name=name), ifname=ifname)


def segment(name: str, service: Service, subnet: str) -> dict[str, Any]:
    """A network with a bridge of its own and leases below the test's directory."""
    ipam = {"type": "host-local", "subnet": subnet, "dataDir": str(service.leases)}
    return network({"type": "bridge", "bridge": name, "ipam": ipam}, name=name)


def test_transitions_are_watched_in_order(service: Service, make_netns: MakeNetns) -> None:
    """The present state, `synced`, then each step; filters and cursors hold."""
    service.put(LOOPBACK)
    netns = make_netns("c").path
    service.add("c1", netns, network="lo", ifname="lo")
    stream = events(service.client)
    assert [("c1", READY), ("synced",)] == [what(e) for e in itertools.islice(stream, 2)]
    service.add("c2", netns, network="lo", ifname="lo")
    first = list(itertools.islice(stream, 2))
    assert [("c2", ADDING), ("c2", READY)] == [what(event) for event in first]
    assert first[1].changed.result.json
    assert not first[1].changed.HasField("config")
    service.delete("c2", network="lo", ifname="lo")
    service.delete("c1", network="lo", ifname="lo")
    rest = [("c2", DELETING), ("c2", "gone"), ("c1", DELETING), ("c1", "gone")]
    assert rest == [what(event) for event in itertools.islice(stream, 4)]
    resumed = events(service.client, cursor=first[1].cursor)
    assert rest == [what(event) for event in itertools.islice(resumed, 4)]
    one = events(service.client, cursor=first[1].cursor, container_id="c1")
    assert rest[2:] == [what(event) for event in itertools.islice(one, 2)]
    lost = next(events(service.client, cursor="x"))
    assert "present run" in lost.lost.reason


@pytest.mark.nft
def test_the_kernel_s_changes_are_watched(service: Service, make_netns: MakeNetns) -> None:
    """A link that goes down inside and outside, an address that comes and goes (SLAAC, say)."""
    service.put(segment("br-w", service, "10.9.0.0/24"))
    old, new = make_netns("old"), make_netns("new")
    service.add("old", old.path, network="br-w")
    stream = events(service.client, network="br-w")
    assert [("old", READY), ("synced",)] == [what(e) for e in itertools.islice(stream, 2)]
    service.add("new", new.path, network="br-w")
    assert [("new", ADDING), ("new", READY)] == [what(e) for e in itertools.islice(stream, 2)]

    def until(true: Callable[[attachments_pb2.AttachmentEvent], bool]) -> Any:
        return next(event for event in stream if true(event))

    for container_id, namespace in (("old", old), ("new", new)):
        run_in(namespace, "ip", "address", "add", "10.9.0.77/24", "dev", "eth0")
        came = until(lambda e: e.address.address == "10.9.0.77/24").address
        assert (container_id, "eth0", namespace.path, False) == (
            came.key.container_id, came.name, came.sandbox, came.removed,
        )  # fmt: skip
        run_in(namespace, "ip", "address", "delete", "10.9.0.77/24", "dev", "eth0")
        gone = until(lambda e: e.address.address == "10.9.0.77/24").address
        assert gone.removed
        run_in(namespace, "ip", "link", "set", "eth0", "mtu", "1300")
        change = until(lambda e: e.link.mtu == 1300).link
        assert (container_id, "eth0", True) == (change.key.container_id, change.name, change.up)
        run_in(namespace, "ip", "link", "set", "eth0", "down")
        inside = until(lambda e: bool(e.link.sandbox) and not e.link.up).link
        assert container_id == inside.key.container_id
        outside = until(lambda e: e.HasField("link") and not e.link.sandbox).link
        assert container_id == outside.key.container_id
        assert outside.name.startswith("veth")
        assert not outside.running
    stream.cancel()  # type: ignore[attr-defined]  # a grpc call, too
    for container_id in ("old", "new"):
        service.delete(container_id, network="br-w")
    service.remove("br-w")


def test_a_container_is_attached_to_all_or_to_none(service: Service, make_netns: MakeNetns) -> None:
    """In order; what was attached before a failure is detached again; detached in reverse."""
    service.install("refuses", REFUSES)
    service.put(LOOPBACK)
    service.put(network({"type": "loopback"}, name="lo2"))
    service.put(network({"type": "loopback"}, {"type": "refuses"}, name="bad"))
    netns = make_netns("c").path
    attach, detach = service.client.attachments.AttachAll, service.client.attachments.DetachAll
    both = attachments_pb2.AttachAllRequest(
        container_id="c1", netns=netns, interfaces=[join("lo", "lo"), join("lo2", "lo")]
    )
    added = attach(both).interfaces
    assert ["lo", "lo2"] == [one.attachment.key.network for one in added]
    with pytest.raises(CniError) as caught:
        attach(attachments_pb2.AttachAllRequest(container_id="c/1"))
    assert "container_id" == caught.value.field
    assert [True, True] == [one.replayed for one in attach(both).interfaces]
    detached = detach(attachments_pb2.DetachAllRequest(container_id="c1")).detached
    assert ["lo2", "lo"] == [key.network for key in detached]
    assert [] == service.attachments()
    assert [] == list(detach(attachments_pb2.DetachAllRequest(container_id="c1")).detached)
    with pytest.raises(CniError, match="no more today") as caught:
        attach(
            attachments_pb2.AttachAllRequest(
                container_id="c1", netns=netns, interfaces=[join("lo", "lo"), join("bad", "lo")]
            )
        )
    assert (123, "refuses", 1, "NONE") == (
        caught.value.wire_code, caught.value.plugin_type, caught.value.plugin_index,
        caught.value.residue,
    )  # fmt: skip
    assert ("bad", "c1", "lo") == (
        caught.value.network, caught.value.container_id, caught.value.ifname,
    )  # fmt: skip
    assert [] == service.attachments()
    with pytest.raises(InvalidEnvironment) as wrong:
        attach(
            attachments_pb2.AttachAllRequest(
                container_id="c1", netns=netns, interfaces=[join("lo", "lo"), join("lo2", "a/b")]
            )
        )
    assert "interfaces[1].ifname" == wrong.value.field
    assert [] == service.attachments()


def test_every_failure_says_whom_it_concerns(service: Service, make_netns: MakeNetns) -> None:
    """Del, DetachAll and Gc go past a failing plugin; what failed stays FAILED until it goes."""
    service.install("stuck", STUCK)
    netns = make_netns("c").path
    for name in ("s1", "s2"):
        service.put(network({"type": "loopback"}, {"type": "stuck"}, name=name))
        service.add("c1", netns, network=name, ifname="lo")
    with pytest.raises(TryAgain, match="stuck") as caught:
        service.delete("c1", network="s1", ifname="lo")
    assert grpc.StatusCode.UNAVAILABLE is status_of(caught)
    assert ("s1", "c1", "lo", "stuck", 1) == (
        caught.value.network, caught.value.container_id, caught.value.ifname,
        caught.value.plugin_type, caught.value.plugin_index,
    )  # fmt: skip
    with pytest.raises(TryAgain) as all_of_it:
        service.client.attachments.DetachAll(attachments_pb2.DetachAllRequest(container_id="c1"))
    causes = all_of_it.value.causes
    assert [("s2", "lo", 11), ("s1", "lo", 11)] == [
        (cause.network, cause.ifname, cause.wire_code) for cause in causes
    ]
    assert [FAILED, FAILED] == [a.state for a in service.attachments()]
    assert ["stuck"] * 2 == [a.error.plugin_type for a in service.attachments()]
    with pytest.raises(CniError) as collected:
        service.client.attachments.Gc(attachments_pb2.GcRequest())
    assert ["s1", "s1", "s2", "s2"] == [cause.network for cause in collected.value.causes]
    with pytest.raises(CniError) as inline:
        request = attachments_pb2.AddRequest(container_id="c1", netns=netns, ifname="lo")
        request.network.inline.json = json.dumps(network({"type": "gone"}, name="own")).encode()
        service.client.attachments.Add(request)
    assert ("own", "c1", "lo") == (
        inline.value.network, inline.value.container_id, inline.value.ifname,
    )  # fmt: skip
    (service.plugin_path / "stuck.free").touch()
    service.client.attachments.DetachAll(attachments_pb2.DetachAllRequest(container_id="c1"))
    assert [] == service.attachments()


def test_gc_takes_absent_for_known_and_empty_for_none(
    service: Service, make_netns: MakeNetns
) -> None:
    """Several networks in one call; validate_only only says what would go."""
    for name in ("lo", "lo2", "lo3"):
        service.put(network({"type": "loopback"}, name=name))
        for container_id in ("c1", "c2"):
            netns = make_netns(container_id).path
            service.add(container_id, netns, network=name, ifname="lo")

    def target(name: str, *valid: str) -> attachments_pb2.GcNetwork:
        message = attachments_pb2.GcNetwork(network=config_pb2.NetworkRef(name=name))
        message.valid_attachments.SetInParent()
        for container_id in valid:
            message.valid_attachments.attachments.add(container_id=container_id, ifname="lo")
        return message

    def collect(*networks: attachments_pb2.GcNetwork, **more: Any) -> list[tuple[str, list[str]]]:
        request = attachments_pb2.GcRequest(networks=networks, **more)
        answer = service.client.attachments.Gc(request)
        return [(one.network, [k.container_id for k in one.deleted]) for one in answer.networks]

    absent = attachments_pb2.GcNetwork(network=config_pb2.NetworkRef(name="lo3"))
    asked = (target("lo", "c2"), target("lo2"), absent)
    expected = [("lo", ["c1"]), ("lo2", ["c1", "c2"]), ("lo3", [])]
    assert expected == collect(*asked, validate_only=True)
    assert 6 == len(service.attachments())
    assert expected == collect(*asked)
    left = [(a.key.network, a.key.container_id) for a in service.attachments()]
    assert [("lo", "c2"), ("lo3", "c1"), ("lo3", "c2")] == left
    assert [("lo", []), ("lo2", []), ("lo3", [])] == collect()
    assert [("lo", ["c2"])] == collect(target("lo"))
    with pytest.raises(CniError) as caught:
        bad = target("lo")
        bad.valid_attachments.attachments.add(container_id="c1", ifname="a/b")
        collect(bad)
    assert "networks[0].valid_attachments.attachments[0]" == caught.value.field
    with pytest.raises(CniError, match='network "lo3" is there twice') as caught:
        collect(target("lo3", "c1"), target("lo3", "c2"))  # each list condemns the other's
    assert "networks[1]" == caught.value.field
    assert 2 == len(service.attachments())


def test_lists_are_filtered_and_paged(service: Service, make_netns: MakeNetns) -> None:
    """By network, container, state and labels; in pages; with configuration only if asked."""
    service.put(LOOPBACK)
    service.put(network({"type": "loopback"}, name="lo2"))
    netns = make_netns("c").path
    for number in range(7):
        labels = {"parity": "odd" if number % 2 else "even", "number": str(number)}
        service.add(f"c{number}", netns, network="lo", ifname="lo", labels=labels)
    service.add("c0", netns, network="lo2", ifname="lo")

    def ask(**filters: Any) -> list[str]:
        request = attachments_pb2.ListAttachmentsRequest(**filters)
        answer = service.client.attachments.List(request)
        return [f"{a.key.network}/{a.key.container_id}" for a in answer.attachments]

    assert ["lo2/c0"] == ask(network="lo2")
    assert ["lo/c0", "lo2/c0"] == ask(container_id="c0")
    assert ["lo/c1", "lo/c3", "lo/c5"] == ask(labels={"parity": "odd"})
    assert ["lo/c3"] == ask(labels={"parity": "odd", "number": "3"})
    assert 8 == len(ask(states=[READY]))
    assert [] == ask(states=[FAILED, DELETING])
    for states in ([0], [77]):
        with pytest.raises(InvalidEnvironment) as caught:
            ask(states=states)
        assert "states" == caught.value.field
    request = attachments_pb2.ListAttachmentsRequest(
        page_size=3, view=attachments_pb2.ATTACHMENT_VIEW_FULL
    )
    pages = []
    while True:
        answer = service.client.attachments.List(request)
        pages.append([a.key.container_id for a in answer.attachments])
        assert all(a.config.json and a.network_etag for a in answer.attachments)
        if not answer.next_page_token:
            break
        request.page_token = answer.next_page_token
    assert [["c0", "c1", "c2"], ["c3", "c4", "c5"], ["c6", "c0"]] == pages
    with pytest.raises(CniError, match="page_token") as caught:
        ask(page_token="nonsense")
    assert "page_token" == caught.value.field


def test_an_attachment_remembers_its_configuration(service: Service, make_netns: MakeNetns) -> None:
    """Get shows what Add used, also when the network is another by now; unknown is NOT_FOUND."""
    service.put(LOOPBACK)
    service.add("c1", make_netns("c").path, network="lo", ifname="lo")
    service.put(LOOPBACK | {"x": 1})
    key = {"network": "lo", "container_id": "c1", "ifname": "lo"}
    got = service.client.attachments.Get(attachments_pb2.GetAttachmentRequest(**key))
    assert LOOPBACK == json.loads(got.config.json)
    assert service.add("c1", got.netns, network="lo", ifname="lo").replayed
    service.client.attachments.Check(attachments_pb2.CheckRequest(**key))
    for call, request in (
        (service.client.attachments.Get, attachments_pb2.GetAttachmentRequest),
        (service.client.attachments.Check, attachments_pb2.CheckRequest),
    ):
        with pytest.raises(UnknownContainer) as caught:
            call(request(**(key | {"container_id": "c2"})))
        assert grpc.StatusCode.NOT_FOUND is status_of(caught)
        assert ("lo", "c2", "lo") == (
            caught.value.network, caught.value.container_id, caught.value.ifname,
        )  # fmt: skip
