# SPDX-License-Identifier: Apache-2.0
"""Namespaces for tests: the run itself is put into private ones, and so is every host.

When pytest is root it moves, before anything is collected, into a network and a mount namespace
of its own with an empty /run/netns: no test can touch the machine, whatever it does. Every
pytest-xdist worker does the same for itself.

Tests that use `host` or `make_netns` get the marker `root`. For those with `host`, and all in
tests/kernel, the world must be the same after the test as before; what is meant to stay is named
with `@pytest.mark.world_allows("regular expression", …)`, searched for in each line of difference.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pycni.testing.world import World, snapshot

if sys.platform == "linux":
    from pycni.kernel import netns
    from pycni.kernel.netns import Netns

NETNS_DIR = "/run/netns"

_CLONE_NEWNS, _CLONE_NEWNET = 0x00020000, 0x40000000
_MS_REC, _MS_PRIVATE = 0x4000, 0x40000

_isolated = pytest.StashKey[str]()
_own_world = pytest.StashKey[World]()
_fresh_host_world = pytest.StashKey[World]()
_failed = pytest.StashKey[bool]()

_numbers = itertools.count(1)


def pytest_configure(config: pytest.Config) -> None:
    """Leave the machine's namespaces, if that is allowed."""
    config.addinivalue_line(
        "markers", "world_allows(*patterns): differences in the world that the test means to leave"
    )
    if sys.platform != "linux":
        reason = "not Linux"
    elif os.geteuid() != 0:
        reason = "not root"
    else:
        reason = _isolate()
    config.stash[_isolated] = reason


def pytest_report_header(config: pytest.Config) -> str:
    """Tell where the tests run."""
    reason = config.stash[_isolated]
    if reason:
        return f"netns: not isolated ({reason}); tests marked root are skipped"
    return f"netns: isolated in {os.readlink('/proc/self/ns/net')}"


def pytest_itemcollected(item: pytest.Item) -> None:
    """Whoever asks for a namespace needs root."""
    if {"host", "make_netns"} & set(getattr(item, "fixturenames", ())):
        item.add_marker("root")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs root where there is none."""
    reason = item.config.stash[_isolated]
    if reason and item.get_closest_marker("root"):
        pytest.skip(f"needs root and namespaces of its own: {reason}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Remember whether the test failed: what it left behind is then no news."""
    report = yield
    if report.failed:  # type: ignore[attr-defined]  # the wrapper protocol's result is untyped
        item.stash[_failed] = True
    return report


@pytest.fixture
def make_netns() -> Iterator[Callable[..., Netns]]:
    """Make fresh namespaces; `make_netns("web", loopback=True)` names one and has its lo up."""
    made: list[Netns] = []

    def make(name: str = "ns", *, loopback: bool = False) -> Netns:
        path = f"{NETNS_DIR}/{name}-{next(_numbers)}"
        netns.create_named(path)
        namespace = Netns.open(path)
        made.append(namespace)
        if loopback:
            run_in(namespace, "ip", "link", "set", "lo", "up")
        return namespace

    yield make
    for namespace in made:
        netns.remove_named(namespace.path)
        namespace.close()


@pytest.fixture
def host(make_netns: Callable[..., Netns]) -> Netns:
    """A fresh namespace to be the host: nothing in it but a loopback that is up."""
    return make_netns("host", loopback=True)


@pytest.fixture(autouse=True)
def world_unchanged(request: pytest.FixtureRequest) -> Iterator[None]:
    """Nothing a test did may stay: not on its `host`, not where pytest runs."""
    host_used = "host" in request.fixturenames
    in_kernel_tests = request.path.is_relative_to(Path(__file__).parent / "kernel")
    if request.config.stash[_isolated] or not (host_used or in_kernel_tests):
        yield
        return
    stash = request.config.stash
    if _own_world not in stash:
        stash[_own_world] = snapshot()
    own_before = stash[_own_world]
    host: Netns | None = request.getfixturevalue("host") if host_used else None
    if host is not None and _fresh_host_world not in stash:
        stash[_fresh_host_world] = snapshot(host)
    yield
    own_after = stash[_own_world] = snapshot()
    differences = [f"pytest's own namespace: {line}" for line in own_before.diff(own_after)]
    if host is not None:
        after = snapshot(host)
        differences += [f"host: {line}" for line in stash[_fresh_host_world].diff(after)]
    allowed = [
        pattern for marker in request.node.iter_markers("world_allows") for pattern in marker.args
    ]
    left = [
        line for line in differences if not any(re.search(pattern, line) for pattern in allowed)
    ]
    if left and not request.node.stash.get(_failed, False):
        pytest.fail("the test changed the world:\n" + "\n".join(left), pytrace=False)


def run_in(namespace: Netns | None, *command: str, check: bool = True) -> str:
    """Run a command inside a namespace and return what it printed."""

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, capture_output=True, text=True, check=False)

    done = netns.run(namespace, run)
    if check and done.returncode:
        raise AssertionError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def json_in(namespace: Netns | None, *command: str) -> Any:
    """Run a command inside a namespace and return the JSON it printed; nothing is []."""
    return json.loads(run_in(namespace, *command) or "[]")


def _isolate() -> str:
    """Move this process into private namespaces; what kept it from that, or ""."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS | _CLONE_NEWNET):
        return os.strerror(ctypes.get_errno())
    if libc.mount(b"none", b"/", None, ctypes.c_ulong(_MS_REC | _MS_PRIVATE), None):
        raise OSError(ctypes.get_errno(), "cannot make the mounts private")
    os.makedirs(NETNS_DIR, exist_ok=True)
    if libc.mount(b"none", NETNS_DIR.encode(), b"tmpfs", ctypes.c_ulong(0), b"mode=0755"):
        raise OSError(ctypes.get_errno(), f"cannot mount on {NETNS_DIR}")
    subprocess.run(("ip", "link", "set", "lo", "up"), check=True)
    return ""
