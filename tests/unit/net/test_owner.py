# SPDX-License-Identifier: Apache-2.0
"""An owner's tag and names are stable, distinct, and fit where the kernel takes them."""

from __future__ import annotations

from hashlib import sha256

from pycni.net.owner import Owner, network_prefix


def test_a_tag_is_the_network_and_the_attachment_hashed() -> None:
    """`cni:<16 hex of network>:<16 hex of container_id NUL ifname>`."""
    network = sha256(b"dbnet").hexdigest()[:16]
    attachment = sha256(b"c1\0eth0").hexdigest()[:16]
    assert f"cni:{network}:{attachment}" == Owner("dbnet", "c1", "eth0").tag


def test_all_tags_of_a_network_begin_alike_and_no_others_do() -> None:
    """GC finds a network's objects by prefix."""
    assert Owner("dbnet", "c1", "eth0").tag.startswith(network_prefix("dbnet"))
    assert not Owner("dbnet2", "c1", "eth0").tag.startswith(network_prefix("dbnet"))


def test_each_part_of_an_owner_counts() -> None:
    """No two attachments share a tag, however their parts are cut."""
    owners = [
        Owner("a", "b", "c"),
        Owner("a", "bc", "eth0"),
        Owner("a", "b", "ceth0"),
        Owner("ab", "c", "eth0"),
    ]
    assert len(owners) == len({owner.tag for owner in owners})


def test_host_veth_names_are_ten_stable_interface_names() -> None:
    """Deterministic, distinct, `veth` and eight hex digits as the reference's random ones."""
    names = Owner("dbnet", "c1", "eth0").host_veth_names()
    assert names == Owner("dbnet", "c1", "eth0").host_veth_names()
    assert 10 == len(set(names))
    assert all(len(name) == 12 and int(name[4:], 16) >= 0 for name in names)
