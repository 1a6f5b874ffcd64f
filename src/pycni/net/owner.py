# SPDX-License-Identifier: Apache-2.0
"""Who a kernel object belongs to: a tag to put on it, and to find it by.

`cni:<network>:<attachment>`, each part 16 hex digits of a hash, so that it fits wherever the
kernel takes a comment and says nothing about names nobody checked.
"""

from __future__ import annotations

from hashlib import sha256

from msgspec import Struct

VETH_NAMES = 10


class Owner(Struct, frozen=True):
    """One attachment: an interface of a container on a network."""

    network: str
    container_id: str
    ifname: str

    @property
    def tag(self) -> str:
        """What marks an object as this owner's."""
        return network_prefix(self.network) + _hex16(f"{self.container_id}\0{self.ifname}")

    def host_veth_names(self) -> tuple[str, ...]:
        """Names for the host end of the owner's veth pair, in the order to try them."""
        digest = sha256(self.tag.encode()).hexdigest()
        later = (sha256(f"{self.tag}\0{at}".encode()).hexdigest() for at in range(1, VETH_NAMES))
        return tuple(f"veth{name[:8]}" for name in (digest, *later))


def network_prefix(network: str) -> str:
    """How the tags of all owners on the network begin."""
    return f"cni:{_hex16(network)}:"


def _hex16(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:16]
