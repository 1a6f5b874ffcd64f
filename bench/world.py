# SPDX-License-Identifier: Apache-2.0
"""The worlds measurements run in: one fresh host namespace a side, containers made beforehand."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Self

from pycni.kernel import netns
from pycni.kernel.netns import Netns

REPOSITORY = Path(__file__).resolve().parent.parent
NETNS_DIR = Path("/run/netns")

_numbers = itertools.count()


class Container:
    """A named namespace that stands for a container."""

    def __init__(self) -> None:
        self.id = f"bench{next(_numbers)}"
        self.netns = str(NETNS_DIR / self.id)
        netns.create_named(self.netns)

    def remove(self) -> None:
        """Delete the namespace."""
        netns.remove_named(self.netns)


class World:
    """A host namespace with loopback up and a state directory, for one side."""

    def __init__(self, side: str) -> None:
        self.path = str(NETNS_DIR / f"host-{side}")
        netns.create_named(self.path)
        self.host = Netns.open(self.path)
        self.state = Path(tempfile.mkdtemp(prefix=f"pycni-bench-{side}-"))
        self.host.run(lambda: subprocess.run(["ip", "link", "set", "lo", "up"], check=True))

    def edge(self, *, name: str = "edge", cni_version: str = "1.0.0") -> dict[str, Any]:
        """The shipped network `edge`, with its leases in this world's state directory."""
        config: dict[str, Any] = json.loads((REPOSITORY / "deploy/networks/edge.json").read_text())
        config |= {"name": name, "cniVersion": cni_version}
        config.pop("cniVersions", None)
        config["plugins"][0]["ipam"]["dataDir"] = str(self.state / "leases")
        config["plugins"][1]["dataDir"] = str(self.state / "tuning")
        return config

    def close(self) -> None:
        """Remove the namespace and the directory."""
        self.host.close()
        netns.remove_named(self.path)
        shutil.rmtree(self.state, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()
