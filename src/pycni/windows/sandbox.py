# SPDX-License-Identifier: Apache-2.0
"""Where a Windows container is, as CNI_NETNS tells it, and which API goes with that.

- a GUID: a host compute namespace; containerd. Schema 2.
- `none`: the pause container of a pod under dockershim, and HNS's own containers. Schema 1.
- `container:<id>`: a container that shares the network of container <id>. Schema 1.
- empty: on DEL, when the runtime does not know any more.
"""

from __future__ import annotations

import uuid
from typing import Protocol

from msgspec import Struct

from pycni.errors import InvalidConfig, InvalidNetns
from pycni.windows import schemas
from pycni.windows.features import Feature, Features

NONE = "none"


class Sandbox(Struct, frozen=True):
    """One attachment's place: CNI_NETNS and CNI_CONTAINERID."""

    netns: str
    container_id: str

    @property
    def namespace(self) -> uuid.UUID | None:
        """The host compute namespace, if CNI_NETNS is one."""
        return schemas.parse_id(self.netns)

    @property
    def shares(self) -> bool:
        """Whether the container uses the network of another one."""
        return self.netns not in ("", NONE) and ":" in self.netns and self.namespace is None

    @property
    def ident(self) -> str:
        """The container that owns the network: the other one if it is shared."""
        return self.netns.partition(":")[2] if self.shares else self.container_id

    def get_namespace(self) -> uuid.UUID:
        """The host compute namespace; raise InvalidNetns (8) if CNI_NETNS is not one."""
        if self.namespace is None:
            raise InvalidNetns(
                f"CNI_NETNS {self.netns!r} is not the id of a host compute namespace"
            )
        return self.namespace


def endpoint_name(ident: str, network: str) -> str:
    """The name an endpoint has in HNS; other implementations look for it too."""
    return f"{ident}_{network}"


class KnowsFeatures(Protocol):
    """Whoever can tell the service's features, at the cost of a call."""

    @property
    def features(self) -> Features: ...


def choose_api(configured: int | None, sandbox: Sandbox, service: KnowsFeatures) -> int:
    """1 or 2; raise InvalidConfig (7) if the configured one cannot serve this sandbox.

    Not configured, it follows the sandbox: the reference's default of 1 fails under containerd
    with a message that names neither key nor value (plugins #1229, hcsshim #1698).
    """
    if configured in (None, 0):
        if sandbox.namespace is not None or not sandbox.netns:
            return 2 if service.features.has(Feature.V2) else 1
        return 1
    if configured not in (1, 2):
        raise InvalidConfig(f"apiVersion: expected 1 or 2, got {configured}")
    if configured == 1 and sandbox.namespace is not None:
        raise InvalidConfig(
            f"apiVersion: 1 cannot attach to the host compute namespace {sandbox.netns}",
            hint="set apiVersion to 2 or leave it out",
        )
    if configured == 2 and sandbox.netns and sandbox.namespace is None:
        raise InvalidConfig(
            f"apiVersion: 2 needs the id of a host compute namespace in CNI_NETNS,"
            f" not {sandbox.netns!r}",
            hint="set apiVersion to 1 or leave it out",
        )
    assert configured is not None
    return configured
