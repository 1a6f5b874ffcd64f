# SPDX-License-Identifier: Apache-2.0
"""The embedded store: durable, private, owned by one process, and clear about what is wrong."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pycni.errors import IOFailure
from pycni.runtime.attachments import Attachment, AttachmentKey, State, StoredError
from pycni.runtime.errors import EtagMismatch, NodeBusy, StoreUnusable
from pycni.runtime.store import AttachmentFilter, SqliteStore, StoredNetwork, etag_of


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Where the store is."""
    return str(tmp_path / "state" / "node.db")


def attachment(container_id: str = "c1", network: str = "net", **more: Any) -> Attachment:
    """An attachment."""
    values = {"ifname": "eth0", "state": State.READY, "config": b"{}", **more}
    return Attachment(network=network, container_id=container_id, **values)


FULL = attachment(
    netns="/run/netns/x",
    netns_id="4:5",
    config=b'{ "a": 1500 }',
    source="/etc/cni/net.d/x",
    inline=True,
    network_etag="abc",
    cni_args=(("B", "1"), ("A", "2")),
    capability_args={"mac": msgspec.Raw(b'"02:00:00:00:00:01"')},
    labels={"app": "db"},
    result=b"{}",
    error=StoredError(code=11, msg="m", details="d", verb="DEL", plugin_type="x", plugin_index=0),
    boot_id="boot",
    created=1.5,
    updated=2.5,
)


def test_what_is_stored_comes_back_after_reopening(path: str) -> None:
    """Every field of it."""
    store = SqliteStore.open(path)
    network = store.put_network(StoredNetwork(name="net", json=b'{"x":1.0}', source="s", created=1))
    store.put_attachment(FULL)
    store.close()
    store = SqliteStore.open(path)
    assert network == store.get_network("net")
    assert FULL == store.get_attachment(FULL.key)
    store.close()


def test_a_killed_process_loses_nothing(path: str) -> None:
    """Each change is one transaction that the system has when the call returns."""
    script = textwrap.dedent("""
        import os, sys
        from pycni.runtime.store import SqliteStore, StoredNetwork
        from pycni.runtime.attachments import Attachment, State
        store = SqliteStore.open(sys.argv[1])
        store.put_network(StoredNetwork(name="net", json=b"{}"))
        for number in range(20):
            store.put_attachment(Attachment(network="net", container_id=f"c{number}",
                ifname="eth0", state=State.ADDING, config=b"{}"))
        os.kill(os.getpid(), 9)
    """)
    process = subprocess.run([sys.executable, "-c", script, path], check=False)
    assert -9 == process.returncode
    store = SqliteStore.open(path)
    assert 20 == store.count_attachments("net")
    assert store.get_network("net") is not None
    store.close()


def test_the_files_are_their_owners_only(path: str) -> None:
    """Attachments tell who talks to whom."""
    store = SqliteStore.open(path)
    store.put_attachment(FULL)
    directory = Path(path).parent
    assert 0o700 == directory.stat().st_mode & 0o777
    assert {0o600} == {file.stat().st_mode & 0o777 for file in directory.iterdir()}
    store.close()


def test_one_process_at_a_time_owns_the_store(path: str) -> None:
    """Two would each believe to be alone with the kernel."""
    store = SqliteStore.open(path)
    with pytest.raises(NodeBusy, match="in use by another process"):
        SqliteStore.open(path, timeout_s=0.05)
    store.close()
    SqliteStore.open(path).close()


@pytest.mark.parametrize("content", [b"not a database" * 100, b"SQLite format 3\0" + b"\0" * 4096])
def test_a_damaged_store_is_told_clearly(path: str, content: bytes) -> None:
    """With what to do about it."""
    Path(path).parent.mkdir()
    Path(path).write_bytes(content)
    with pytest.raises(StoreUnusable, match="damaged") as caught:
        SqliteStore.open(path)
    assert "move the file away" in caught.value.details


def test_damage_inside_is_found_when_opening(path: str) -> None:
    """Not when some container is being deleted."""
    store = SqliteStore.open(path)
    for number in range(200):
        store.put_attachment(attachment(f"c{number}", config=b"x" * 1000))
    store.close()
    with open(path, "r+b") as file:
        file.seek(8192)
        file.write(b"\xff" * 50_000)
    with pytest.raises(StoreUnusable, match="damaged"):
        SqliteStore.open(path)


def test_a_newer_store_is_left_alone(path: str) -> None:
    """A downgrade must not destroy what it does not understand."""
    SqliteStore.open(path).close()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version=99")
    db.close()
    with pytest.raises(StoreUnusable, match="has schema 99, this release knows 1") as caught:
        SqliteStore.open(path)
    assert "newer" in caught.value.details


def test_somebody_elses_database_is_left_alone(path: str) -> None:
    """A wrong path must not add tables to it."""
    Path(path).parent.mkdir()
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE x (y)")
    db.close()
    with pytest.raises(StoreUnusable, match="not a pycni store"):
        SqliteStore.open(path)


def test_a_path_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    """A file where a directory should be."""
    (tmp_path / "state").touch()
    with pytest.raises(IOFailure, match="cannot create store"):
        SqliteStore.open(str(tmp_path / "state" / "node.db"))


@pytest.fixture
def store() -> Iterator[SqliteStore]:
    """An empty store in memory."""
    store = SqliteStore.open(":memory:")
    yield store
    store.close()


def test_etags_stand_for_content_and_revisions_count_changes(store: SqliteStore) -> None:
    """The same content has the same etag, whenever it was put."""
    first = store.put_network(StoredNetwork(name="a", json=b"1"))
    second = store.put_network(StoredNetwork(name="b", json=b"1"))
    store.delete_network("b")
    third = store.put_network(StoredNetwork(name="a", json=b"2"))
    assert etag_of(b"1") == first.etag == second.etag != third.etag
    assert [1, 2, 4] == [first.revision, second.revision, third.revision]
    assert ["a"] == [network.name for network in store.list_networks()]


@pytest.mark.parametrize(
    ("present", "etag", "accepted"),
    [
        (None, None, True),
        (None, "", True),
        (None, "x", False),
        (b"1", None, True),
        (b"1", "", False),
        (b"1", "x", False),
        (b"1", etag_of(b"1"), True),
    ],
)
def test_a_network_is_replaced_only_if_the_etag_says_so(
    store: SqliteStore, present: bytes | None, etag: str | None, accepted: bool
) -> None:
    """Empty means that it must not be there."""
    if present is not None:
        store.put_network(StoredNetwork(name="a", json=present))
    if accepted:
        store.put_network(StoredNetwork(name="a", json=b"2"), etag=etag)
    else:
        with pytest.raises(EtagMismatch) as caught:
            store.put_network(StoredNetwork(name="a", json=b"2"), etag=etag)
        assert ("a", etag) == (caught.value.name, caught.value.expected)
        with pytest.raises(EtagMismatch):
            store.delete_network("a", etag=etag)
    found = store.get_network("a")
    assert (b"2" if accepted else present) == (found.json if found else None)


def test_deleting_says_whether_it_was_there(store: SqliteStore) -> None:
    """Absent is no error here."""
    store.put_network(StoredNetwork(name="a", json=b"1"))
    assert store.delete_network("a")
    assert not store.delete_network("a")
    store.delete_attachment(AttachmentKey("a", "b", "c"))


def test_attachments_are_listed_by_key_and_filtered(store: SqliteStore) -> None:
    """All filters must match."""
    store.put_attachment(attachment("c2", labels={"app": "db", "tier": "1"}))
    store.put_attachment(attachment("c1", state=State.FAILED))
    store.put_attachment(attachment("c1", "edge", labels={"app": "db"}))
    store.put_attachment(attachment("c1", ifname="eth1"))

    def listed(**terms: Any) -> list[str]:
        found = store.list_attachments(AttachmentFilter(**terms))
        return [f"{a.network}/{a.container_id}/{a.ifname}" for a in found]

    assert ["edge/c1/eth0", "net/c1/eth0", "net/c1/eth1", "net/c2/eth0"] == listed()
    assert ["net/c1/eth0", "net/c1/eth1"] == listed(network="net", container_id="c1")
    assert ["net/c1/eth1"] == listed(ifname="eth1")
    assert ["net/c1/eth0"] == listed(states=frozenset({State.FAILED, State.DELETING}))
    assert ["edge/c1/eth0", "net/c2/eth0"] == listed(labels={"app": "db"})
    assert ["net/c2/eth0"] == listed(labels={"app": "db", "tier": "1"})
    assert (3, 0) == (store.count_attachments("net"), store.count_attachments("none"))


@pytest.mark.parametrize("labels", [{}, {"app": "db"}])
def test_pages_neither_repeat_nor_skip(store: SqliteStore, labels: dict[str, str]) -> None:
    """Also when others come and go in between."""
    for number in range(10):
        store.put_attachment(attachment(f"c{number}", labels={"app": "db"}))
    first = store.list_attachments(AttachmentFilter(labels=labels), limit=4)
    store.delete_attachment(first[3].key)
    rest = store.list_attachments(AttachmentFilter(labels=labels), after=first[3].key, limit=100)
    assert [f"c{n}" for n in range(4)] == [a.container_id for a in first]
    assert [f"c{n}" for n in range(4, 10)] == [a.container_id for a in rest]


def test_threads_share_the_store(store: SqliteStore) -> None:
    """One connection under a lock."""

    def work(thread: int) -> None:
        for number in range(50):
            one = attachment(f"c{thread}-{number}")
            store.put_attachment(one)
            assert store.get_attachment(one.key) is not None
            store.put_network(StoredNetwork(name=f"n{thread}", json=str(number).encode()))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 200 == store.count_attachments("net")
    assert 200 == max(network.revision for network in store.list_networks())


def test_a_failing_disk_is_code_5(store: SqliteStore) -> None:
    """SQLite's own words, in our class."""
    store.close()
    with pytest.raises(IOFailure, match=r"store :memory:: Cannot operate on a closed database"):
        store.put_attachment(FULL)
