# SPDX-License-Identifier: Apache-2.0
"""Three levels for every test of the Windows layer.

- `simulator`: the plugins call the simulator in this process.
- `elf`: Linux CPython calls it through ctypes and a stand-in library compiled with gcc.
- `dll`: Windows CPython (under wine: tools/test-wine.sh) calls it through ctypes and the stand-in
  DLLs in system32. This file and all tests here run there unchanged.

After every test no handle may be open and no string unfreed.
"""

from __future__ import annotations

import ctypes
import pathlib
import shutil
import sys
from collections.abc import Iterator

import pytest

from pycni.testing import hns_forwarder
from pycni.testing.hns_simulator import HnsSimulator
from pycni.windows import abi, service
from tests.windows.drive import CBR0, VXLAN0, Node

LEVELS = ("simulator", "dll") if sys.platform == "win32" else ("simulator", "elf")


class Bench:
    """A simulator on one level, before it has any network."""

    def __init__(self, level: str, libraries: hns_forwarder.ElfLibraries | None) -> None:
        self.level = level
        self.simulator = HnsSimulator()
        self.native: abi.Native = self.simulator
        self._libraries = libraries
        if level != "simulator":
            self.native = abi.Library(libraries) if libraries else abi.Library()

    @property
    def outstanding(self) -> int:
        """Strings the stand-in handed out that nobody freed."""
        if self.level == "simulator":
            return 0
        if self._libraries is not None:
            return self._libraries.outstanding
        if sys.platform == "win32":
            return hns_forwarder.outstanding(ctypes.CDLL(abi.COMPUTENETWORK, winmode=0x800))
        raise AssertionError(self.level)


@pytest.fixture(scope="session")
def elf_libraries(tmp_path_factory: pytest.TempPathFactory) -> hns_forwarder.ElfLibraries | None:
    """The stand-in library, compiled once."""
    if sys.platform == "win32":
        return None
    if shutil.which("gcc") is None:
        pytest.skip("gcc is missing: the level elf needs it")
    return hns_forwarder.ElfLibraries(hns_forwarder.build_elf(tmp_path_factory.mktemp("fakehns")))


@pytest.fixture(params=LEVELS)
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    """A simulator reachable on the level under test; clean at the end."""
    level = request.param
    libraries = request.getfixturevalue("elf_libraries") if level == "elf" else None
    bench = Bench(level, libraries)
    with hns_forwarder.serving(bench.simulator), service.standing_in(bench.native):
        yield bench
    assert (0, 0) == (bench.simulator.open_handles, bench.outstanding)


@pytest.fixture
def node(bench: Bench, tmp_path: pathlib.Path) -> Node:
    """A node with the networks cbr0 (L2Bridge) and vxlan0 (Overlay), and one namespace."""
    node = Node(bench.simulator, tmp_path / "leases", bench.level)
    node.simulator.add_network(CBR0)
    node.simulator.add_network(VXLAN0)
    node.namespace = node.new_namespace()
    return node
