# SPDX-License-Identifier: Apache-2.0
"""Networks: put, replaced, deleted and found by name, beside those of files."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pycni.errors import InvalidConfig
from pycni.model.config import NetworkConfigList
from pycni.model.names import NetworkName
from pycni.runtime.confdir import Fault
from pycni.runtime.errors import (
    EtagMismatch,
    NetworkInUse,
    NetworkNotFound,
    NetworkReadOnly,
    PluginNotFound,
)
from pycni.runtime.events import Kind
from pycni.runtime.node import Node
from tests.unit.runtime.fakes import Lab, conflist, network, params


class Files:
    """A conf directory of one file."""

    def __init__(self) -> None:
        self.config = NetworkConfigList.parse(
            conflist("a", name="filed"), source="/etc/cni/net.d/10-filed.conflist"
        )

    def find(self, name: str) -> NetworkConfigList | None:
        """The network of that name."""
        return self.config if name == self.config.name else None

    def list(self) -> Sequence[NetworkConfigList]:
        """The one network."""
        return [self.config]

    def faults(self) -> Sequence[Fault]:
        """Nothing is wrong."""
        return ()

    def dropins(self, network: NetworkConfigList) -> Sequence[str]:
        """No drop-ins."""
        return ()


@pytest.fixture
def node() -> Node:
    """A node of fake plugins with a conf directory."""
    return Lab().node(source=Files(), clock=lambda: 5.0)


def test_what_is_put_is_kept_byte_for_byte(node: Node) -> None:
    """The JSON bytes are authoritative: order, unknown keys, spelling of numbers."""
    data = b'{ "name":"net", "cniVersion":"1.0.0", "x": 1.50, "plugins":[{"type":"a","x":1e3}] }'
    outcome = node.networks.put(data)
    assert (True, False) == (outcome.created, outcome.unchanged)
    assert data == node.networks.get("net").config.json
    assert outcome.network == node.networks.get("net")


def test_putting_the_same_again_changes_nothing(node: Node) -> None:
    """Nobody is told of a change that was none."""
    first = node.networks.put(conflist("a"))
    watch = node.events.watch()
    again = node.networks.put(conflist("a"), etag=first.network.etag)
    assert again.unchanged
    assert first.network == again.network
    assert watch.get(0) is None


def test_putting_other_content_replaces(node: Node) -> None:
    """With a new etag, and told to watchers."""
    first = node.networks.put(conflist("a"))
    watch = node.events.watch()
    second = node.networks.put(conflist("b"), etag=first.network.etag)
    assert (False, False) == (second.created, second.unchanged)
    assert "b" == node.networks.get("net").config.plugins[0].type
    event = watch.get(0)
    assert event is not None
    assert (Kind.NETWORK_PUT, "net", second.network.etag) == (event.kind, event.network, event.etag)


def test_an_etag_guards_against_overwriting(node: Node) -> None:
    """Also when only validating, and also for equal content."""
    node.networks.put(conflist("a"), etag="")
    for data in (conflist("a"), conflist("b")):
        with pytest.raises(EtagMismatch):
            node.networks.put(data, etag="")
        with pytest.raises(EtagMismatch):
            node.networks.put(data, etag="x", validate_only=True)


def test_validate_only_stores_nothing(node: Node) -> None:
    """It answers as if it had."""
    outcome = node.networks.put(conflist("a"), validate_only=True)
    assert outcome.created
    assert outcome.network.etag
    assert node.networks.find("net") is None


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (conflist("nonesuch"), PluginNotFound),
        (conflist({"type": "a", "size": "1"}), InvalidConfig),
        (conflist("a", name="../net"), InvalidConfig),
        (b'{"cniVersion": "1.0.0", "name": "net"}', InvalidConfig),
    ],
)
def test_a_network_that_cannot_work_is_not_stored(
    node: Node, data: bytes, error: type[InvalidConfig]
) -> None:
    """C10: validated before it is accepted."""
    with pytest.raises(error):
        node.networks.put(data)
    assert ["filed"] == [n.name for n in node.networks.list()]


def test_both_places_are_listed_by_name(node: Node) -> None:
    """A network tells where it is from."""
    node.networks.put(conflist("a", name="aaa"))
    node.networks.put(conflist("a", name="zzz"))
    assert [("aaa", ""), ("filed", "/etc/cni/net.d/10-filed.conflist"), ("zzz", "")] == [
        (n.name, n.source) for n in node.networks.list()
    ]
    assert "/etc/cni/net.d/10-filed.conflist" == node.networks.get("filed").source


def test_a_network_of_a_file_is_changed_there(node: Node) -> None:
    """The error says where."""
    for attempt in (
        lambda: node.networks.put(conflist("b", name="filed")),
        lambda: node.networks.delete("filed"),
    ):
        with pytest.raises(NetworkReadOnly, match=r"defined by /etc/cni/net\.d/10-filed"):
            attempt()


def test_an_unknown_network_is_told(node: Node) -> None:
    """By name, on every way."""
    for attempt in (
        lambda: node.networks.get("x"),
        lambda: node.networks.delete("x"),
        lambda: node.networks.resolve("x"),
    ):
        with pytest.raises(NetworkNotFound, match='"x"'):
            attempt()


def test_a_name_is_checked_before_it_is_looked_up(node: Node) -> None:
    """It may become a path."""
    for name in ("", "../x", "x\n", "a/b"):
        with pytest.raises(InvalidConfig, match="network name"):
            node.networks.get(name)


def test_an_inline_network_is_itself(node: Node) -> None:
    """Nothing is looked up, though a network of that name may exist."""
    node.networks.put(conflist("a"))
    assert "b" == node.networks.resolve(network("b")).config.plugins[0].type
    assert "" == node.networks.resolve(network("b")).etag


def test_a_network_without_bytes_cannot_be_remembered(node: Node) -> None:
    """DEL will need them."""
    made = NetworkConfigList(name=NetworkName("net"), cniVersion="1.0.0")
    with pytest.raises(InvalidConfig, match="has no JSON"):
        node.networks.resolve(made)


def test_a_network_in_use_is_not_deleted(node: Node) -> None:
    """The error names who uses it."""
    node.networks.put(conflist("a"))
    node.add("net", params("c1"))
    node.add("net", params("c2"))
    with pytest.raises(NetworkInUse) as caught:
        node.networks.delete("net")
    assert "c1/eth0, c2/eth0" in caught.value.details
    assert ["c1", "c2"] == [key.container_id for key in caught.value.attachments]
    assert node.networks.find("net") is not None


def test_forced_its_attachments_outlive_it(node: Node) -> None:
    """C16: they keep the configuration they were added with."""
    node.networks.put(conflist("a"))
    key = node.add("net", params()).attachment.key
    assert (key,) == node.networks.delete("net", force=True, validate_only=True)
    assert (key,) == node.networks.delete("net", force=True)
    assert node.networks.find("net") is None
    node.check(key)
    assert node.delete("net", params()).existed


def test_deleting_is_told_and_guarded_by_the_etag(node: Node) -> None:
    """Watchers see it go."""
    etag = node.networks.put(conflist("a")).network.etag
    with pytest.raises(EtagMismatch):
        node.networks.delete("net", etag="x")
    watch = node.events.watch()
    assert () == node.networks.delete("net", etag=etag)
    event = watch.get(0)
    assert event is not None
    assert (Kind.NETWORK_DELETED, "net") == (event.kind, event.network)
