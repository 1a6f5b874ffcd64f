# SPDX-License-Identifier: Apache-2.0
"""Traffic control as `tc` shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from pycni.errors import AlreadyExists, LinkNotFound, NotFound, Unsupported
from pycni.kernel.netns import Netns
from pycni.kernel.rtnl import Rtnl
from tests.fix_netns import json_in, run_in

pytestmark = pytest.mark.root

MakeNetns = Callable[..., Netns]

IFB, LINK = 10, 11


@pytest.fixture
def namespace(make_netns: MakeNetns) -> Netns:
    """Where the tests work; it dies with whatever is in it."""
    return make_netns()


@pytest.fixture
def rtnl(namespace: Netns) -> Iterator[Rtnl]:
    """rtnetlink of that namespace, with an ifb and another link."""
    with Rtnl(namespace) as opened:
        opened.links.add("ifb0", "ifb", index=IFB, up=True)
        opened.links.add("link0", "bridge", index=LINK, up=True)
        yield opened


def test_a_token_bucket_is_what_the_reference_plugin_makes(namespace: Netns, rtnl: Rtnl) -> None:
    """1 Mbit/s with a burst of 2 Mbit shows as "burst 250000b lat 25ms"; again changes nothing."""
    for _ in range(2):
        rtnl.qdiscs.replace_tbf(IFB, rate=125_000, burst=250_000, limit=253_125)
        (qdisc,) = json_in(namespace, "tc", "-j", "qdisc", "show", "dev", "ifb0")
        assert ("tbf", "1:", True) == (qdisc["kind"], qdisc["handle"], qdisc["root"])
        options = qdisc["options"]
        assert (125_000, 250_000, 25_000) == (options["rate"], options["burst"], options["lat"])
    (read,) = rtnl.qdiscs.list(IFB)
    assert (True, 125_000, 250_000, 253_125) == (read.root, read.rate, read.burst, read.limit)


def test_a_token_bucket_may_change(namespace: Netns, rtnl: Rtnl) -> None:
    """Beyond 32 bits of rate, beyond 4 seconds of burst."""
    for rate, burst in ((5_000_000_000, 4_000_000_000), (1000, 100_000)):
        rtnl.qdiscs.replace_tbf(IFB, rate=rate, burst=burst, limit=burst)
        (qdisc,) = json_in(namespace, "tc", "-j", "qdisc", "show", "dev", "ifb0")
        assert rate == qdisc["options"]["rate"]
        (read,) = rtnl.qdiscs.list(IFB)
        assert (rate, burst, burst) == (read.rate, read.burst, read.limit)


def test_a_token_bucket_of_tcs_is_read(namespace: Netns, rtnl: Rtnl) -> None:
    """With the numbers `tc` was given."""
    command = "tc qdisc add dev ifb0 root handle 7: tbf rate 8mbit burst 10000 limit 20000"
    run_in(namespace, *command.split())
    (read,) = rtnl.qdiscs.list(IFB)
    assert (0x70000, 1_000_000, 10_000, 20_000) == (
        read.handle,
        read.rate,
        read.burst,
        read.limit,
    )


def test_the_root_qdisc_goes_back_to_the_default(namespace: Netns, rtnl: Rtnl) -> None:
    """A second time there is nothing to remove."""
    rtnl.qdiscs.replace_tbf(IFB, rate=1000, burst=2000, limit=2000)
    rtnl.qdiscs.remove_root(IFB)
    (qdisc,) = json_in(namespace, "tc", "-j", "qdisc", "show", "dev", "ifb0")
    assert "tbf" != qdisc["kind"]
    with pytest.raises(NotFound, match=f"^remove root qdisc of index {IFB}: "):
        rtnl.qdiscs.remove_root(IFB)


def test_what_arrives_is_redirected(namespace: Netns, rtnl: Rtnl) -> None:
    """Ingress qdisc and filter in one batch; repeating it makes no second filter."""
    with rtnl.batch():
        rtnl.qdiscs.add_ingress(LINK)
        rtnl.filters.replace_redirect(LINK, to=IFB)
    rtnl.filters.replace_redirect(LINK, to=IFB)
    shown = json_in(namespace, "tc", "-j", "filter", "show", "dev", "link0", "ingress")
    (filtering,) = [entry for entry in shown if "actions" in entry.get("options", {})]
    (action,) = filtering["options"]["actions"]
    assert ("mirred", "redirect", "egress", "ifb0", "stolen") == (
        action["kind"],
        action["mirred_action"],
        action["direction"],
        action["to_dev"],
        action["control_action"]["type"],
    )
    assert ("all", 1, "1:1") == (
        filtering["protocol"],
        filtering["pref"],
        filtering["options"]["flowid"],
    )
    found = [entry for entry in rtnl.filters.list(LINK) if entry.redirect_to is not None]
    assert [(LINK, 1, 3, IFB)] == [
        (entry.index, entry.priority, entry.protocol, entry.redirect_to) for entry in found
    ]
    assert [] == rtnl.filters.list(LINK, ingress=False)


def test_redirection_and_ingress_are_removed_once(namespace: Netns, rtnl: Rtnl) -> None:
    """Absent is NotFound."""
    rtnl.qdiscs.add_ingress(LINK)
    with pytest.raises(AlreadyExists, match=f"^add ingress qdisc to index {LINK}: "):
        rtnl.qdiscs.add_ingress(LINK)
    rtnl.filters.replace_redirect(LINK, to=IFB)
    rtnl.filters.remove_redirect(LINK)
    assert [] == json_in(namespace, "tc", "-j", "filter", "show", "dev", "link0", "ingress")
    with pytest.raises(NotFound):
        rtnl.filters.remove_redirect(LINK)
    assert [True] == [qdisc.ingress for qdisc in rtnl.qdiscs.list(LINK) if qdisc.handle]
    rtnl.qdiscs.remove_ingress(LINK)
    with pytest.raises(NotFound):
        rtnl.qdiscs.remove_ingress(LINK)
    with pytest.raises(NotFound, match="redirect to index 10 what arrives at index 11: "):
        rtnl.filters.replace_redirect(LINK, to=IFB)


def test_all_qdiscs_are_listed(rtnl: Rtnl) -> None:
    """Of every link, or of none that is not there."""
    rtnl.qdiscs.add_ingress(LINK)
    assert {IFB, LINK} <= {qdisc.index for qdisc in rtnl.qdiscs.list()}
    assert [] == rtnl.qdiscs.list(999)
    with pytest.raises(LinkNotFound):
        rtnl.qdiscs.replace_tbf(999, rate=1, burst=1, limit=1)


def test_bridge_vlans_work_or_are_unsupported(rtnl: Rtnl) -> None:
    """Where 8021q is missing that is said; where it is not, tests/vm goes on."""
    try:
        rtnl.bridge_vlans.list(LINK)
    except Unsupported:
        with pytest.raises(Unsupported, match=r"^add vlan 100 to index 11: Operation not supp"):
            rtnl.bridge_vlans.add(LINK, 100, on_bridge=True)
        with pytest.raises(Unsupported, match=r"^remove vlan 100-110 from index 11: "):
            rtnl.bridge_vlans.remove(LINK, 100, 110)
    else:
        rtnl.bridge_vlans.add(LINK, 100, on_bridge=True)
        assert 100 in [vlan.vid for vlan in rtnl.bridge_vlans.list(LINK)]
