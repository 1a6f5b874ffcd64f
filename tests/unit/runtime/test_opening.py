# SPDX-License-Identifier: Apache-2.0
"""Opening a node: on what its predecessor left, and not beside it."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pycni.errors import IOFailure
from pycni.runtime.attachments import AttachmentKey, State
from pycni.runtime.node import Node
from pycni.runtime.opening import open_node, read_boot_id, take_lifeline
from tests.unit.runtime.fakes import Lab, conflist, params

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the service runs on Linux here")


def reopen(directory: Path, lab: Lab, **more: Any) -> Node:
    """The node in the directory, on the lab's plugins."""
    return open_node(
        str(directory), plugin_path=(), plugins={p.type: p for p in (lab.a, lab.b, lab.c)}, **more
    )


def test_a_node_continues_where_it_was_closed(tmp_path: Path) -> None:
    """Networks, attachments, results."""
    lab = Lab()
    node = reopen(tmp_path, lab)
    node.networks.put(conflist("a"))
    added = node.add("net", params()).attachment
    assert read_boot_id() == added.boot_id != ""
    node.close()
    node = reopen(tmp_path, lab)
    assert () == node.recover().settled
    assert node.add("net", params()).replayed
    node.delete("net", params())
    node.close()


def test_a_node_repairs_what_it_was_killed_over(tmp_path: Path) -> None:
    """The row is what a killed ADD leaves."""
    lab = Lab()
    node = reopen(tmp_path, lab)
    node.networks.put(conflist("a"))
    added = node.add("net", params()).attachment
    node.store.put_attachment(msgspec.structs.replace(added, state=State.ADDING, result=None))
    node.close()
    node = reopen(tmp_path, lab)
    assert (AttachmentKey("net", "c1", "eth0"),) == node.recover().settled
    assert ["ADD a", "DEL a"] == lab.log
    node.close()


def test_plugins_of_a_killed_predecessor_are_waited_for(tmp_path: Path) -> None:
    """Settling an attachment beside a plugin that still works on it would undo nothing."""
    path = str(tmp_path / "plugins.lock")
    service = take_lifeline(path, wait_s=0)
    plugin = os.dup(service)
    os.close(service)
    threading.Timer(0.2, os.close, [plugin]).start()
    started = time.monotonic()
    os.close(take_lifeline(path, wait_s=10))
    assert 0.15 < time.monotonic() - started < 5


def test_a_daemon_a_plugin_has_left_is_not_waited_for_for_ever(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It may live as long as the machine."""
    path = str(tmp_path / "plugins.lock")
    daemon = take_lifeline(path, wait_s=0)
    own = take_lifeline(path, wait_s=0.1)
    assert "still running" in caplog.text
    os.close(own)
    os.close(daemon)


def test_a_state_directory_that_cannot_be_used_is_let_go_of(tmp_path: Path) -> None:
    """A second try must not find the first one in its way."""
    (tmp_path / "plugins.lock").mkdir()
    for _ in range(2):
        with pytest.raises(IOFailure, match=r"cannot open .*plugins\.lock: Is a directory"):
            reopen(tmp_path, Lab())
    (tmp_path / "plugins.lock").rmdir()
    reopen(tmp_path, Lab()).close()
