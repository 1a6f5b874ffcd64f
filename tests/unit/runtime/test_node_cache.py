# SPDX-License-Identifier: Apache-2.0
"""A node beside libcni's callers: what it leaves in their cache, and what it takes from there."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pycni.errors import CniError, UnknownContainer
from pycni.model.names import ContainerId, IfName
from pycni.model.request import Attachment, Verb
from pycni.runtime.attachments import RUNTIME_LABEL, AttachmentKey, AttachmentParams, State
from pycni.runtime.libcni_cache import CachedAttachment, LibcniCache
from pycni.runtime.node import Node
from pycni.runtime.outcomes import GcTarget
from tests.unit.runtime.fakes import Lab, conflist, network, params

KEY = AttachmentKey("net", "c1", "eth0")
RESULT = b'{"cniVersion":"1.1.0","ips":[{"address":"10.9.9.9/24"}]}'


@pytest.fixture
def cache(tmp_path: Path) -> LibcniCache:
    """An empty cache."""
    return LibcniCache(str(tmp_path / "cache"), durable=False)


@pytest.fixture
def node(lab: Lab, cache: LibcniCache) -> Iterator[Node]:
    """A node that shares it."""
    node = lab.node(cache=cache, neighbours=cache.attachments)
    node.networks.put(conflist("a", "b"))
    yield node
    node.close()


def cached(**members: object) -> CachedAttachment:
    """An attachment that libcni has made on `net`."""
    members = {"config": conflist("a", "b"), "result": RESULT, **members}
    return CachedAttachment(network="net", container_id="c1", ifname="eth0", **members)


def entry(container_id: str) -> Attachment:
    """A valid attachment."""
    return Attachment(ContainerId(container_id), IfName("eth0"))


def test_an_add_is_found_by_libcnis_callers_until_it_is_deleted(
    node: Node, cache: LibcniCache
) -> None:
    """With all it was given and what came of it."""
    given = AttachmentParams(container_id="c1", ifname="eth0", cni_args=(("A", "b"),))
    added = node.add("net", given)
    found = cache.find("net", "c1", "eth0")
    assert found is not None
    assert (conflist("a", "b"), (("A", "b"),)) == (found.config, found.cni_args)
    assert added.attachment.result == found.result
    node.delete("net", given)
    assert None is cache.find("net", "c1", "eth0")


def test_what_another_runtime_remembers_itself_is_not_written(
    node: Node, cache: LibcniCache
) -> None:
    """Its own file of the same name must survive our DEL until its own is done."""
    given = AttachmentParams(container_id="c1", ifname="eth0", labels={RUNTIME_LABEL: "net"})
    node.add("net", given)
    assert () == cache.list()
    cache.write(cached())
    node.delete("net", given)
    assert 1 == len(cache.list())


def test_a_cache_that_cannot_be_written_does_not_fail_an_add(
    node: Node, cache: LibcniCache
) -> None:
    """The store is what the node relies on."""
    Path(cache.path).write_text("in the way")
    assert State.READY is node.add("net", params()).attachment.state


def test_a_del_of_libcnis_attachment_has_its_result_and_arguments(
    lab: Lab, node: Node, cache: LibcniCache
) -> None:
    """As if the node had made it; the file is gone afterwards."""
    cache.write(cached(cni_args=(("A", "b"),), netns="/run/netns/x"))
    assert node.delete("net", params()).existed
    assert "10.9.9.9/24" == lab.a.given(Verb.DEL)["prevResult"]["ips"][0]["address"]
    request = lab.a.last(Verb.DEL).request
    assert ("A=b", "/run/netns/x") == (request.args, request.netns)
    assert () == cache.list()
    assert () == node.list().attachments


def test_a_del_uses_the_cached_configuration_of_a_network_that_is_gone(
    lab: Lab, node: Node, cache: LibcniCache
) -> None:
    """Or that was edited: what ADD used is what DEL uses."""
    cache.write(cached(config=conflist("a", "c")))
    node.networks.delete("net")
    node.delete("net", params())
    assert ["DEL c", "DEL a"] == lab.log[-2:]


def test_a_failed_del_of_libcnis_attachment_becomes_a_debt(
    lab: Lab, node: Node, cache: LibcniCache
) -> None:
    """Which the node remembers, with the file still there for others."""
    cache.write(cached())
    lab.a.failures[Verb.DEL] = CniError("busy")
    with pytest.raises(CniError, match="busy"):
        node.delete("net", params())
    assert State.FAILED is node.get(KEY).state
    assert 1 == len(cache.list())
    del lab.a.failures[Verb.DEL]
    node.delete("net", params())
    assert () == cache.list()


def test_libcnis_attachment_is_checked_by_its_result(
    lab: Lab, node: Node, cache: LibcniCache
) -> None:
    """Unknown to both is unknown."""
    with pytest.raises(UnknownContainer):
        node.check(KEY)
    cache.write(cached())
    node.check(KEY)
    assert "10.9.9.9/24" == lab.a.given(Verb.CHECK)["prevResult"]["ips"][0]["address"]


def test_a_path_from_before_the_boot_is_not_followed(
    lab: Lab, node: Node, cache: LibcniCache
) -> None:
    """It leads to another container's namespace by now, if to any (plugins #714)."""
    cache.write(cached(netns="/run/netns/x"))
    os.utime(cache.file("net", "c1", "eth0"), (1, 1))
    node.delete("net", params())
    assert "" == lab.a.last(Verb.DEL).request.netns


@pytest.mark.parametrize("content", [b"", b"{", b'{"kind": "cniCacheV1"}', b"[]"])
def test_a_file_nobody_can_read_is_no_obstacle(
    lab: Lab, node: Node, cache: LibcniCache, content: bytes
) -> None:
    """DEL runs without it, and removes it."""
    cache.write(cached())
    Path(cache.file("net", "c1", "eth0")).write_bytes(content)
    assert not node.delete("net", params()).existed
    assert "prevResult" not in lab.a.given(Verb.DEL)
    assert not Path(cache.file("net", "c1", "eth0")).exists()


def test_a_legacy_file_has_the_networks_configuration(
    lab: Lab, node: Node, cache: LibcniCache
) -> None:
    """It holds a bare result."""
    cache.write(cached())
    Path(cache.file("net", "c1", "eth0")).write_bytes(RESULT)
    assert node.delete("net", params()).existed
    assert "10.9.9.9/24" == lab.a.given(Verb.DEL)["prevResult"]["ips"][0]["address"]


def test_a_reference_in_the_cache_is_no_configuration(
    lab: Lab, node: Node, cache: LibcniCache
) -> None:
    """Another runtime's list of the same name: running it would be to call ourselves."""
    cache.write(cached(config=conflist({"type": "pycni", "network": "net"})))
    node.delete("net", params())
    assert ["DEL b", "DEL a"] == lab.log[-2:]


def test_a_reference_is_no_network_of_a_node(node: Node) -> None:
    """It is neither put, nor attached to, nor found in the conf directory."""
    reference = {"type": "pycni", "network": "net"}
    with pytest.raises(CniError, match="refers to a network of this service"):
        node.networks.put(conflist(reference))
    with pytest.raises(CniError, match="refers to a network of this service"):
        node.add(network(reference), params())


def test_gc_by_label_judges_only_what_carries_it(node: Node, cache: LibcniCache) -> None:
    """Others' attachments count as valid, whether the node or only the cache knows them."""
    mine = {RUNTIME_LABEL: "outer"}
    for name, labels in (("keep", mine), ("stale", mine), ("other", {}), ("second", {"x": "y"})):
        node.add("net", AttachmentParams(container_id=name, ifname="eth0", labels=labels))
    cache.write(cached())
    target = GcTarget(network="net", valid=frozenset({entry("keep")}), labels=mine)
    (collected,) = node.gc([target])
    assert ["stale"] == [deleted.container_id for deleted in collected.deleted]
    left = {attachment.container_id for attachment in node.list().attachments}
    assert {"keep", "other", "second"} == left


def test_gc_by_label_hands_plugins_everything_that_is_valid(
    lab: Lab, node: Node, cache: LibcniCache
) -> None:
    """The caller's, the node's, and those of libcni's callers; not its own stale ones."""
    mine = {RUNTIME_LABEL: "outer"}
    node.add("net", AttachmentParams(container_id="stale", ifname="eth0", labels=mine))
    node.add("net", AttachmentParams(container_id="other", ifname="eth0"))
    cache.write(cached())
    cache.write(CachedAttachment(network="net", container_id="stale", ifname="eth0", result=RESULT))
    node.gc([GcTarget(network="net", valid=frozenset({entry("keep")}), labels=mine)])
    listed = json.loads(lab.a.last(Verb.GC).request.config)["cni.dev/valid-attachments"]
    assert ["c1", "keep", "other"] == [one["containerID"] for one in listed]
