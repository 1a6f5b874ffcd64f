# SPDX-License-Identifier: Apache-2.0
"""portmap where the configuration names iptables: the Go plugin's rules, and one holder a port."""

from __future__ import annotations

import pytest

from pycni.net import hostports
from tests.kernel.test_portmap import CLIENT, CLIENT6, HOST, HOST6, OTHER_HOST, TCP, WEB, Town
from tests.kernel.test_portmap import town as town  # the fixture

pytestmark = [pytest.mark.nft, pytest.mark.iptables]


def test_by_iptables_a_port_is_reached_from_everywhere(town: Town) -> None:
    """As by nftables, except ::1 of the node, which the Go plugin's rules do not know."""
    web = town.server(town.container, TCP, 80)
    host, config = town.node.netns, town.config(WEB, backend="iptables")
    town.node.status(config)
    town.node.add(config)
    assert [CLIENT, CLIENT6, HOST, "10.1.2.1", "10.1.2.1", "2001:db8:1::1"] == [
        town.calls(town.client, HOST, 8080, web),
        town.calls(town.client, HOST6, 8080, web),
        town.calls(host, HOST, 8080, web),
        town.calls(host, "127.0.0.1", 8080, web),
        town.calls(town.container, HOST, 8080, web),
        town.calls(town.container, HOST6, 8080, web),
    ]
    town.node.check(config, config["prevResult"])
    town.node.delete(config)
    assert town.calls(town.client, HOST, 8080, web) is None
    forget_iptables(town)


def test_by_iptables_masq_all_hides_every_caller(town: Town) -> None:
    """The container sees the node; GC removes what a lost container had."""
    web = town.server(town.container, TCP, 80)
    config = town.config(WEB, backend="iptables", masqAll=True)
    town.node.add(config)
    assert "10.1.2.1" == town.calls(town.client, HOST, 8080, web)
    town.node.gc(config, [])
    assert town.calls(town.client, HOST, 8080, web) is None
    forget_iptables(town)


def test_by_iptables_a_port_has_one_holder(town: Town) -> None:
    """Two rules for one port would be no error to iptables, and the second be for nothing."""
    udp, elsewhere = WEB | {"protocol": "udp"}, WEB | {"hostIP": OTHER_HOST}
    town.node.add(town.config(WEB, backend="iptables"))
    saved = rules(town)
    with pytest.raises(hostports.PortInUse) as caught:
        town.node.add(town.config(udp, WEB, backend="iptables"), container_id="c2")
    assert "host port 8080/tcp is in use" == caught.value.msg
    assert caught.value.details.startswith("held by container c1 on network testnet")
    assert saved == rules(town)
    # Another protocol or address is another port; and the same again is the same.
    town.node.add(town.config(udp, elsewhere, backend="iptables"), container_id="c2")
    town.node.add(town.config(WEB, backend="iptables"))
    town.node.add(town.config(WEB, backend="iptables", name="othernet"))
    for config in ({"name": "othernet"}, {}):
        town.node.delete(town.config(WEB, backend="iptables", **config))
    town.node.add(town.config(WEB, backend="iptables"), container_id="c3")
    for container_id in ("c2", "c3"):
        town.node.delete(town.config(backend="iptables"), container_id=container_id)
    forget_iptables(town)


def test_by_iptables_a_wrong_condition_leaves_nothing(town: Town) -> None:
    """iptables' own complaint, and no chain of the container."""
    config = town.config(WEB, conditionsV4=["-m", "nonsense"])
    assert "nonsense" in town.fault(config)[1]
    assert "CNI-DN-" not in town.node.host("iptables-save", "-t", "nat")
    forget_iptables(town)


def rules(town: Town) -> list[str]:
    """The rules there are; the comments around them tell the time."""
    saved = town.node.host("iptables-save", "-t", "nat")
    return [line for line in saved.splitlines() if line.startswith("-A ")]


def forget_iptables(town: Town) -> None:
    """Take away what iptables itself leaves, and the chains that all containers share."""
    for family in ("ip", "ip6"):
        town.node.host("nft", "delete", "table", family, "nat", check=False)
