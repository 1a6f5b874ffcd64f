# SPDX-License-Identifier: Apache-2.0
"""libcni's cache: its file names, its content, and what is made of files that are no good."""

from __future__ import annotations

import base64
import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from pycni.errors import InvalidConfig, InvalidEnvironment, IOFailure
from pycni.model.names import ContainerId, IfName
from pycni.model.request import Attachment
from pycni.runtime import libcni_cache
from pycni.runtime.libcni_cache import CachedAttachment, LibcniCache

LIST = b'{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"bridge"}]}'
RESULT = b'{"cniVersion":"1.0.0","ips":[{"address":"10.1.0.5/16"}]}'
ENTRY = CachedAttachment(
    network="net",
    container_id="c1",
    ifname="eth0",
    netns="/run/netns/x",
    config=LIST,
    cni_args=(("IgnoreUnknown", "1"), ("K8S_POD_NAME", "p")),
    capability_args={"portMappings": Raw(b'[{"hostPort":80}]')},
    result=RESULT,
)
# As libcni 1.1 writes it: the order is that of its struct, absent parts are left out.
FILE = (
    b'{"kind":"cniCacheV1","containerId":"c1","config":"%b","ifName":"eth0","networkName":"net",'
    b'"netns":"/run/netns/x","cniArgs":[["IgnoreUnknown","1"],["K8S_POD_NAME","p"]],'
    b'"capabilityArgs":{"portMappings":[{"hostPort":80}]},"result":%b}'
) % (base64.b64encode(LIST), RESULT)


@pytest.fixture
def cache(tmp_path: Path) -> LibcniCache:
    """An empty cache."""
    return LibcniCache(str(tmp_path / "cni"), durable=False)


def plant(cache: LibcniCache, name: str, data: bytes) -> Path:
    """Put a file among the cache's."""
    path = Path(cache.results) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def entry_file(**changes: Any) -> bytes:
    """A file as libcni writes it, with members replaced."""
    return json.dumps({**json.loads(FILE), **changes}).encode()


def test_an_entry_is_written_as_libcni_writes_it(cache: LibcniCache) -> None:
    """L8: name, content and modes; nothing else is left in either directory."""
    cache.write(ENTRY)
    path = Path(cache.path, "results", "net-c1-eth0")
    assert FILE == path.read_bytes()
    assert (0o600, 0o700) == (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777)
    assert (["results"], ["net-c1-eth0"]) == (os.listdir(cache.path), os.listdir(cache.results))


def test_absent_parts_are_left_out(cache: LibcniCache) -> None:
    """As by Go's omitempty."""
    bare = CachedAttachment(network="net", container_id="c1", ifname="eth0", config=b"{}")
    cache.write(bare)
    expected = {
        "kind": "cniCacheV1",
        "containerId": "c1",
        "config": "e30=",
        "ifName": "eth0",
        "networkName": "net",
    }
    assert expected == json.loads(Path(cache.file("net", "c1", "eth0")).read_bytes())
    assert bare == cache.find("net", "c1", "eth0")


def test_an_entry_of_libcni_is_read(cache: LibcniCache) -> None:
    """L8: keys fold as Go's do, and the result is typed on demand."""
    plant(cache, "net-c1-eth0", FILE.replace(b"containerId", b"ContainerID"))
    entry = cache.find("net", "c1", "eth0")
    assert ENTRY == entry
    assert entry is not None
    assert "10.1.0.5/16" == str(entry.parse_result("0.4.0").ips[0].address)


@pytest.mark.parametrize("durable", [True, False])
def test_an_entry_is_replaced_and_removed(tmp_path: Path, durable: bool) -> None:
    """L9: removing what is absent is fine."""
    cache = LibcniCache(str(tmp_path), durable=durable)
    cache.remove("net", "c1", "eth0")
    cache.write(ENTRY)
    changed = CachedAttachment(network="net", container_id="c1", ifname="eth0", netns="/y")
    cache.write(changed)
    assert changed == cache.find("net", "c1", "eth0")
    cache.remove("net", "c1", "eth0")
    assert cache.find("net", "c1", "eth0") is None
    assert [] == os.listdir(cache.results)


def test_a_result_need_not_be_there(cache: LibcniCache) -> None:
    """An ADD whose plugins printed null."""
    plant(cache, "net-c1-eth0", entry_file(result=None))
    entry = cache.find("net", "c1", "eth0")
    assert entry is not None
    assert (b"", "0.4.0") == (entry.result, entry.parse_result("0.4.0").cniVersion)


def test_a_legacy_file_is_its_result(cache: LibcniCache) -> None:
    """L9: what caches held before libcni 0.8."""
    plant(cache, "net-c1-eth0", RESULT)
    expected = CachedAttachment(network="net", container_id="c1", ifname="eth0", result=RESULT)
    assert expected == cache.find("net", "c1", "eth0")
    assert () == cache.list()
    cache.remove("net", "c1", "eth0")
    assert [] == os.listdir(cache.results)


BROKEN = [
    b"",
    FILE[:-20],
    b"\0" * 100,
    b"[]",
    b"null",
    b"{}",
    b'{"kind": "other"}',
    b'{"kind": 5, "note": "x"}',
    b'{"cniVersion": "9.9.9"}',
    b'{"cniVersion": "1.0.0", "ips": [{"address": "x"}]}',
    entry_file(config="***"),
    entry_file(containerId="../x"),
    entry_file(networkName=""),
    entry_file(ifName="a/b"),
    entry_file(cniArgs=[["a"]]),
    entry_file(cniArgs={"a": "b"}),
    entry_file(capabilityArgs=[]),
]


@pytest.mark.parametrize("data", BROKEN, ids=lambda data: repr(data)[:40])
def test_a_file_that_is_no_good_is_no_cache(
    cache: LibcniCache, caplog: pytest.LogCaptureFixture, data: bytes
) -> None:
    """Zero-length after a power loss, truncated, or another program's: DEL goes on without."""
    path = plant(cache, "net-c1-eth0", data)
    with caplog.at_level(logging.WARNING):
        assert cache.find("net", "c1", "eth0") is None
    assert f"ignored cache file {path}" in caplog.text
    assert () == cache.list()
    cache.remove("net", "c1", "eth0")
    assert not path.exists()


def test_what_is_not_a_file_is_no_cache(
    cache: LibcniCache, caplog: pytest.LogCaptureFixture
) -> None:
    """Directories, links and pipes."""
    plant(cache, "other", FILE)
    results = Path(cache.results)
    (results / "net-c1-eth0").mkdir()
    (results / "net-c2-eth0").symlink_to("other")
    os.mkfifo(results / "net-c3-eth0")
    for container_id in ("c1", "c2", "c3"):
        assert cache.find("net", container_id, "eth0") is None
    assert 3 == caplog.text.count("ignored cache file")


def test_a_file_may_not_be_huge(cache: LibcniCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it is, it is not read."""
    monkeypatch.setattr(libcni_cache, "MAX_BYTES", 1 << 20)
    plant(cache, "net-c1-eth0", b" " * ((1 << 20) + 1))
    assert cache.find("net", "c1", "eth0") is None


def test_two_attachments_may_share_a_file_name(
    cache: LibcniCache, caplog: pytest.LogCaptureFixture
) -> None:
    """L8: network a-b with id c, network a with id b-c; neither takes the other's entry."""
    mine = CachedAttachment(network="a-b", container_id="c", ifname="eth0", config=b"{}")
    cache.write(mine)
    assert cache.file("a-b", "c", "eth0") == cache.file("a", "b-c", "eth0")
    assert cache.find("a", "b-c", "eth0") is None
    assert "it belongs to a-b/c/eth0" in caplog.text
    cache.remove("a", "b-c", "eth0")
    assert mine == cache.find("a-b", "c", "eth0")


def test_names_are_checked_before_they_are_joined(cache: LibcniCache) -> None:
    """No path leaves the directory."""
    with pytest.raises(InvalidConfig):
        cache.find("../net", "c1", "eth0")
    with pytest.raises(InvalidEnvironment):
        cache.remove("net", "c/1", "eth0")
    with pytest.raises(InvalidEnvironment):
        cache.write(CachedAttachment(network="net", container_id="c1", ifname="../x"))


def test_a_name_too_long_for_a_file_is_an_error(cache: LibcniCache) -> None:
    """L2: names have no limit of their own."""
    long = CachedAttachment(network="n" * 200, container_id="c" * 64, ifname="eth0")
    with pytest.raises(IOFailure, match="is too long a file name"):
        cache.write(long)
    assert cache.find("n" * 200, "c" * 64, "eth0") is None


def test_entries_are_listed_by_file_name(cache: LibcniCache) -> None:
    """L11: filtered by what they say of themselves."""
    entries = {
        (network, container_id): CachedAttachment(
            network=network, container_id=container_id, ifname="eth0", config=b"{}"
        )
        for network in ("net", "a")
        for container_id in ("c2", "c1")
    }
    for entry in entries.values():
        cache.write(entry)
    plant(cache, "zzz", b"{")
    assert (entries["a", "c1"], entries["a", "c2"], entries["net", "c1"], entries["net", "c2"]) == (
        cache.list()
    )
    assert (entries["a", "c1"], entries["net", "c1"]) == cache.list(container_id="c1")
    assert (entries["a", "c1"], entries["a", "c2"]) == cache.list(network="a")
    expected = {Attachment(ContainerId(name), IfName("eth0")) for name in ("c1", "c2")}
    assert expected == cache.attachments("a")


def test_a_directory_that_is_not_there_has_no_entries(
    cache: LibcniCache, caplog: pytest.LogCaptureFixture
) -> None:
    """L12: nor has one that cannot be read."""
    assert () == cache.list()
    assert "" == caplog.text
    Path(cache.path).mkdir()
    Path(cache.results).write_text("")
    assert frozenset() == cache.attachments("net")
    assert f"cannot list {cache.results}: Not a directory" in caplog.text


def test_what_cannot_be_written_or_removed_is_code_5(
    cache: LibcniCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L9: and no temporary file is left behind."""

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    cache.write(ENTRY)
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", refuse)
        with pytest.raises(IOFailure, match=r"^cannot write .*net-c1-eth0: No space left"):
            cache.write(ENTRY)
    assert ["results"] == os.listdir(cache.path)
    monkeypatch.setattr(os, "unlink", refuse)
    with pytest.raises(IOFailure, match=r"^cannot remove .*net-c1-eth0: "):
        cache.remove("net", "c1", "eth0")


def test_a_directory_is_not_synced_where_it_cannot_be_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On Windows."""
    monkeypatch.setattr(os, "name", "nt")
    libcni_cache._sync_directory("/nowhere")


@given(st.binary(max_size=60), st.integers(0, len(FILE)))
def test_no_content_is_ever_an_exception(tmp_path_factory: Any, data: bytes, cut: int) -> None:
    """Any bytes, and libcni's own cut anywhere."""
    cache = LibcniCache(str(tmp_path_factory.getbasetemp() / "fuzz"), durable=False)
    for content in (data, FILE[:cut], FILE[:cut] + data + FILE[cut:]):
        plant(cache, "net-c1-eth0", content)
        cache.find("net", "c1", "eth0")
        cache.list()
