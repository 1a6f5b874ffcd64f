# SPDX-License-Identifier: Apache-2.0
"""Whose a link, a rule or a map element is: the tag that every kernel object of ours carries.

    cni:<16 hex of sha256(network)>:<16 hex of sha256(container id, NUL, ifname)>

Hashes, because a tag must fit a comment (128 bytes) and an alias whatever the names are, and
because the network's part alone is what GC looks for. Nothing is ever found by recomputing
addresses: DEL, CHECK and GC find by tag.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from pycni.net.hashes import sha256

_HEX_DIGITS = 16
_VETH_NAMES = 10


class Owner(NamedTuple):
    """An attachment as the owner of kernel objects."""

    network: str
    container_id: str
    ifname: str

    @property
    def tag(self) -> str:
        """What link aliases and comments say."""
        return network_prefix(self.network) + _attachment(self.container_id, self.ifname)

    def host_veth_names(self) -> tuple[str, ...]:
        """Names for the host end of the pair, to be tried in this order."""
        return tuple(
            "veth" + _hashed("\0".join((*self, str(attempt))))[:8] for attempt in range(_VETH_NAMES)
        )


def is_of_container(tag: str, container_id: str, ifnames: Iterable[str]) -> bool:
    """Whether the tag is that of one of the container's interfaces, on whatever network."""
    hashed = tag.rpartition(":")[2]
    return any(_attachment(container_id, ifname) == hashed for ifname in ifnames)


def network_prefix(network: str) -> str:
    """How the tags of all of a network's attachments begin."""
    return f"cni:{_hashed(network)}:"


def _attachment(container_id: str, ifname: str) -> str:
    return _hashed(f"{container_id}\0{ifname}")


@lru_cache(maxsize=256)  # one call asks for its own tag a dozen times
def _hashed(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:_HEX_DIGITS]
