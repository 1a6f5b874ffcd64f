# SPDX-License-Identifier: Apache-2.0
"""win-bridge: what a container gets on a bridged network."""

from __future__ import annotations

from tests.windows.drive import Node, bridge


def test_add_makes_an_endpoint_in_the_namespace(node: Node) -> None:
    """ADD creates `<container id>_<network>` and attaches it to CNI_NETNS."""
    result = node.run("ADD", bridge(ipam=node.ipam())).expect()
    assert {
        "cniVersion": "1.1.0",
        "interfaces": [{"mac": "00-15-5D-52-C0-01", "name": "c1_cbr0"}],
        "ips": [{"address": "10.244.3.10/24", "gateway": "10.244.3.2"}],
    } == result
    assert node.namespace == node.endpoint("c1_cbr0")["HostComputeNamespace"]
