# SPDX-License-Identifier: Apache-2.0
"""loopback: `lo` comes up, is reported in every version, and is never set down again."""

from __future__ import annotations

import pytest

from pycni.errors import CniError, InvalidNetns
from pycni.model.version import SUPPORTED
from tests.harness import Json, Node

LOOPBACK: Json = {"type": "loopback"}


def is_up(node: Node) -> bool:
    link = node.link("lo", "c1")
    assert link is not None
    return "UP" in link["flags"]


def lower(node: Node) -> None:
    """Give the namespace back as it was."""
    node.inside("ip", "link", "set", "lo", "down")
    node.inside("ip", "address", "flush", "dev", "lo")


def test_add_brings_lo_up_and_reports_its_addresses(node: Node) -> None:
    """Case 35: 127.0.0.1/8 and ::1/128, on an interface called lo whatever CNI_IFNAME says."""
    result = node.add(LOOPBACK, ifname="eth0")
    assert is_up(node)
    assert ["lo"] == [interface["name"] for interface in result["interfaces"]]
    assert node.container().path == result["interfaces"][0]["sandbox"]
    assert [("127.0.0.1/8", 0), ("::1/128", 0)] == [
        (ip["address"], ip["interface"]) for ip in result["ips"]
    ]
    assert node.pings("127.0.0.1", "c1")
    assert node.pings("::1", "c1")
    node.delete(LOOPBACK)
    lower(node)


@pytest.mark.parametrize("version", SUPPORTED)
def test_the_result_is_in_the_layout_of_its_version(node: Node, version: str) -> None:
    """The reference prints the 1.x layout labelled 0.2.0 (A0); here 0.2.0 has ip4 and ip6."""
    result = node.add({**LOOPBACK, "cniVersion": version})
    assert version == result["cniVersion"]
    if version in ("0.1.0", "0.2.0"):
        assert {"cniVersion", "dns", "ip4", "ip6"} == result.keys()
        assert "127.0.0.1/8" == result["ip4"]["ip"]
        assert "::1/128" == result["ip6"]["ip"]
    else:
        assert "127.0.0.1/8" == result["ips"][0]["address"]
    lower(node)


def test_a_chained_loopback_passes_the_result_on(node: Node) -> None:
    """SPEC P5b: with prevResult the output is an equivalent of it."""
    previous = {
        "cniVersion": "1.1.0",
        "interfaces": [{"name": "eth0", "sandbox": "/run/netns/c1"}],
        "ips": [{"address": "10.1.2.3/24", "interface": 0}],
    }
    assert previous == node.add({**LOOPBACK, "prevResult": previous})
    assert is_up(node)
    lower(node)


def test_add_twice_is_fine(node: Node) -> None:
    """Bringing up what is up changes nothing."""
    assert node.add(LOOPBACK) == node.add(LOOPBACK)
    lower(node)


def test_an_address_that_is_not_loopback_is_an_error(node: Node) -> None:
    """Somebody uses lo for something else; reporting it as loopback would be wrong."""
    node.inside("ip", "address", "add", "192.0.2.1/32", "dev", "lo")
    with pytest.raises(CniError, match=r"not a loopback address: 192\.0\.2\.1/32"):
        node.add(LOOPBACK)
    lower(node)


def test_delete_leaves_lo_up(node: Node) -> None:
    """#714: DEL with a recycled path set the host's lo down; ours never touches it."""
    node.add(LOOPBACK)
    node.delete(LOOPBACK)
    node.delete(LOOPBACK)
    assert is_up(node)
    lower(node)


def test_delete_needs_no_namespace(node: Node) -> None:
    """SPEC P6: netns empty or gone is success."""
    node.delete(LOOPBACK, netns="")
    node.delete(LOOPBACK, netns="/run/netns/gone")


def test_add_into_a_missing_namespace_is_code_8(node: Node) -> None:
    """ADD cannot do without."""
    with pytest.raises(InvalidNetns, match="does not exist"):
        node.add(LOOPBACK, netns="/run/netns/gone")


def test_add_into_the_plugin_s_own_namespace_is_refused(node: Node) -> None:
    """E9: refused before anything is touched, not after."""
    with pytest.raises(InvalidNetns, match="should not be the same"):
        node.add(LOOPBACK, netns=node.netns.path)


def test_check_fails_when_lo_is_down(node: Node) -> None:
    """Case 35: CHECK follows the state of the link."""
    result = node.add(LOOPBACK)
    node.check(LOOPBACK, result)
    lower(node)
    with pytest.raises(CniError, match=r"^loopback interface is down"):
        node.check(LOOPBACK, result)


def test_status_and_gc_have_nothing_to_complain_about(node: Node) -> None:
    """Both verbs exist and succeed."""
    node.status(LOOPBACK)
    node.gc(LOOPBACK, [])
