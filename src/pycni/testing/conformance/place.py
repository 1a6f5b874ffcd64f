# SPDX-License-Identifier: Apache-2.0
"""Where plugins may act: a host namespace, containers made for each case, a directory of state."""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path
from typing import Any

from pycni.errors import KernelError, LinkExists
from pycni.kernel import netns
from pycni.kernel.netns import Netns
from pycni.kernel.side import Side
from pycni.model.result import Result
from pycni.testing.conformance.samples import IPAM, UPLINK
from pycni.testing.foreign import Foreign
from pycni.testing.world import World, snapshot

NETNS_DIR = "/run/netns"
SCRATCH = "cnf-try"
SETTLING_S, SETTLING_TRIES = 0.02, 50

ADDRESSES = b"""{
    "ips": [{"address": "10.88.0.9/24", "gateway": "10.88.0.1"}],
    "routes": [{"dst": "0.0.0.0/0", "gw": "10.88.0.1"}]
}"""


class Place:
    """A directory and, where `isolated`, a host namespace that nobody else uses.

    `plugins` is a directory of the plugin path for our own IPAM plugin, `host` the namespace that
    plugins are run in (None: that of this process).
    """

    def __init__(
        self,
        directory: Path,
        *,
        isolated: bool,
        host: Netns | None = None,
        plugins: Path | None = None,
        state: tuple[str, ...] = (),
    ) -> None:
        self.directory = directory
        self.isolated = isolated
        self.plugins = plugins or directory / "plugins"
        self.plugins.mkdir(parents=True, exist_ok=True)
        self.ipam = Foreign(
            self.plugins, IPAM, versions=("0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0")
        )
        self.netns = host
        self._host: Side | None = None
        self._state = (str(directory / "state"), *state)
        self._numbers = itertools.count(1)
        self._kinds: dict[str, bool] = {}

    @property
    def host(self) -> Side:
        """The host's links and addresses."""
        if self._host is None:
            self._host = Side(self.netns)
        return self._host

    @property
    def state(self) -> str:
        """The directory that stands for {state} in a sample configuration."""
        return self._state[0]

    def make_netns(self, number: int) -> Netns:
        """A fresh namespace for a container."""
        path = f"{NETNS_DIR}/conformance-{os.getpid()}-{number}"
        netns.create_named(path)
        return Netns.open(path)

    def number(self) -> int:
        """The next number: of a container, its address, its port."""
        return next(self._numbers)

    def answer(self, version: str) -> None:
        """Have the IPAM plugin answer in a version."""
        result = Result.parse(ADDRESSES, default_version="1.1.0")
        self.ipam.write("result", result.encode(version).decode())

    def ensure_link(self, name: str) -> None:
        """Make the link that a sample takes for granted, if it is not there."""
        if self.host.links.find(name) is None:
            own = self.netns or Netns.current()
            self.host.links.add_veth(name, f"cnf-p{self.number()}", container_netns=own)
            if self.netns is None:
                own.close()

    def knows(self, kind: str) -> bool:
        """Whether the kernel can make links of that kind."""
        if kind not in self._kinds:
            self._kinds[kind] = self._try(kind)
        return self._kinds[kind]

    def world(self) -> World:
        """The host namespace, and the names of the files below the directories of state."""
        seen = snapshot(self.netns)
        files = [
            ("file", os.path.join(parent, name))
            for directory in self._state
            for parent, _, names in os.walk(directory)
            for name in names
        ]
        return World(tuple(sorted((*seen.facts, *files))))

    def settled_world(self) -> World:
        """The same once nothing changes any more: links go a little later than their namespace."""
        seen = self.world()
        for _ in range(SETTLING_TRIES):
            time.sleep(SETTLING_S)
            last, seen = seen, self.world()
            if not last.diff(seen):
                break
        return seen

    def close(self) -> None:
        """Remove what was made on the host."""
        if self._host is not None:
            link = self._host.links.find(UPLINK)
            if link is not None:
                self._host.links.remove(link.index)
            self._host.close()
        self.ipam.remove()

    def _try(self, kind: str) -> bool:
        parent = None
        if kind in ("ipvlan", "macvlan", "vlan"):
            self.ensure_link(UPLINK)
            parent = self.host.links.get(UPLINK).index
        number = {"vlan": "id", "vrf": "table"}.get(kind)
        data: Any = {number: 4094} if number else {}
        try:
            self.host.links.add(SCRATCH, kind, link=parent, **data)
        except LinkExists:
            return True
        except KernelError:
            return False
        self.host.links.remove(SCRATCH)
        return True
