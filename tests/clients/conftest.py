# SPDX-License-Identifier: Apache-2.0
"""The machines that clients run on, in the three ways our plugins can be there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.machine import Machine
from tests.clients.runtimes import WITHOUT_CNI, Containerd, Podman


@pytest.fixture
def empty_machine(tmp_path: Path) -> Iterator[Machine]:
    """A machine with no plugins yet, and another one outside."""
    machine = Machine(tmp_path)
    try:
        machine.add_outside()
        yield machine
    finally:
        machine.close()


@pytest.fixture(params=["executables alone", "service", "service, Python shim"])
def machine(request: pytest.FixtureRequest, empty_machine: Machine) -> Machine:
    """A machine with our plugins installed: compiled or in Python, with our service or without."""
    empty_machine.install_plugins(*(["--python"] if "Python" in request.param else []))
    if "service" in request.param:
        empty_machine.serve()
    return empty_machine


@pytest.fixture
def containerd(machine: Machine, tmp_path: Path) -> Containerd:
    """containerd beside our plugins."""
    return Containerd(machine, tmp_path)


@pytest.fixture
def make_podman(tmp_path: Path) -> Callable[..., Podman]:
    """Make a podman on a machine."""

    def make(machine: Machine, **options: Any) -> Podman:
        try:
            return Podman(machine, tmp_path, **options)
        except AssertionError as error:
            if WITHOUT_CNI in str(error):  # nothing to test here, whatever we do
                pytest.xfail(f"the distribution's podman cannot: {error}")
            raise

    return make


@pytest.fixture
def podman(machine: Machine, make_podman: Callable[..., Podman]) -> Podman:
    """podman, which looks for plugins among ours and then among Debian's."""
    return make_podman(machine)
