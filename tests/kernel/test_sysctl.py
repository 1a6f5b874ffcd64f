# SPDX-License-Identifier: Apache-2.0
"""Kernel parameters of a namespace, and a Side with all it bundles."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from ipaddress import ip_interface
from types import SimpleNamespace

import pytest

from pycni.errors import KernelError, Unsupported
from pycni.kernel import procfs
from pycni.kernel.netns import Netns
from pycni.kernel.side import Side
from pycni.kernel.sysctl import Sysctl
from tests.fix_netns import run_in

pytestmark = pytest.mark.root

MakeNetns = Callable[..., Netns]
FORWARD = "net/ipv4/ip_forward"


def seen(namespace: Netns | None, key: str) -> str:
    """What a process in the namespace reads."""
    return run_in(namespace, "cat", f"/proc/sys/{key}").strip()


def test_a_parameter_is_the_namespaces_own(make_netns: MakeNetns) -> None:
    """Written there, unchanged here."""
    namespace = make_netns()
    outside = seen(None, FORWARD)
    inside = "0" if outside == "1" else "1"
    Sysctl(namespace).write(FORWARD, inside)
    assert [inside, inside, outside, outside] == [
        seen(namespace, FORWARD),
        Sysctl(namespace).read(FORWARD),
        seen(None, FORWARD),
        Sysctl().read(FORWARD),
    ]


def test_several_parameters_in_one_visit(make_netns: MakeNetns) -> None:
    """Numbers and text; a link's name may have a dot in it."""
    namespace = make_netns()
    run_in(namespace, "ip", "link", "add", "eth0.100", "type", "ifb")
    sysctl = Sysctl(namespace)
    values: dict[str, str | int] = {
        "net/ipv4/conf/eth0.100/arp_notify": 1,
        "net/ipv6/conf/eth0.100/accept_dad": "0",
    }
    sysctl.write_all(values)
    assert {key: str(value) for key, value in values.items()} == sysctl.read_all(*values)
    assert ["1", "0"] == [seen(namespace, key) for key in values]


def test_a_missing_parameter_is_unsupported(make_netns: MakeNetns) -> None:
    """Reading and writing say which; finding says None."""
    sysctl = Sysctl(make_netns())
    with pytest.raises(Unsupported, match=r"^read sysctl net/none: No such file"):
        sysctl.read("net/none")
    with pytest.raises(Unsupported, match=r"^write 1 to sysctl net/none: No such file"):
        sysctl.write("net/none", 1)
    with pytest.raises(Unsupported, match=f"{FORWARD}/none"):
        sysctl.read(f"{FORWARD}/none")
    assert sysctl.find("net/none") is None
    assert "0" == sysctl.find("net/ipv4/conf/lo/arp_notify")
    assert [True, False] == [sysctl.exists(FORWARD), sysctl.exists("net/none")]


def test_a_value_the_kernel_refuses_is_an_error(make_netns: MakeNetns) -> None:
    """What came before it in one visit stays."""
    sysctl = Sysctl(make_netns())
    with pytest.raises(KernelError, match=rf"^write maybe to sysctl {FORWARD}: ") as caught:
        sysctl.write_all({"net/ipv4/conf/lo/arp_notify": 1, FORWARD: "maybe"})
    assert errno.EINVAL == caught.value.errno
    assert "1" == sysctl.read("net/ipv4/conf/lo/arp_notify")


@pytest.mark.parametrize(
    "key", ["../version", "/net/ipv4/ip_forward", "net/./ipv4", "net//ipv4", ""]
)
def test_a_key_stays_below_proc_sys(key: str) -> None:
    """Neither up, nor absolute, nor in detours."""
    with pytest.raises(Unsupported, match="not a relative path"):
        Sysctl().write(key, 1)
    with pytest.raises(Unsupported, match="not a relative path"):
        Sysctl().exists(key)


def test_a_side_bundles_a_namespace(make_netns: MakeNetns) -> None:
    """Links, addresses, sysctls and code, all in one place; closing leaves the handle open."""
    namespace = make_netns()
    with Side(namespace) as side:
        with side.batch():
            side.links.add("i0", "ifb", index=10)
            side.addresses.add(10, ip_interface("10.0.0.1/24"))
        assert ["lo", "i0"] == [link.name for link in side.links.list()]
        assert side.addresses.list(10)
        assert [] == side.routes.list(table=254)
        assert side.rules.list()
        assert [] == side.neighbours.list()
        assert [] == side.qdiscs.list()
        assert [] == side.filters.list(10)
        with pytest.raises(KernelError, match="list vlans of index 10"):
            side.bridge_vlans.list(10)  # not a bridge
        assert "0" == side.sysctl.read("net/ipv4/conf/i0/arp_notify")
        assert f"net:[{namespace.identity[1]}]" == side.run(
            lambda: os.readlink("/proc/thread-self/ns/net")
        )
        rtnl = side.rtnl
    assert namespace.fd >= 0
    with side:
        assert rtnl is not side.rtnl


def test_a_side_may_own_its_namespace(make_netns: MakeNetns) -> None:
    """Opened by path or from somebody's descriptor, which stays theirs; closed with the Side."""
    namespace = make_netns()
    for side in (Side.open(namespace.path), Side.open("the pod", fd=namespace.fd)):
        with side:
            assert side.netns is not None
            assert side.netns.same_as(namespace)
            handle = side.netns
        assert handle.fd < 0
    assert namespace.fd >= 0


def test_a_side_without_a_namespace_is_the_process() -> None:
    """Nothing is entered."""
    with Side() as side:
        here = os.readlink("/proc/thread-self/ns/net")
        assert here == side.run(lambda: os.readlink("/proc/thread-self/ns/net"))
        assert "lo" in [link.name for link in side.links.list()]
        assert side.sysctl.exists(FORWARD)


def test_parameters_are_found_without_a_mount_of_their_own(
    make_netns: MakeNetns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No permission to mount, or a kernel that cannot do it so: through /proc, as everybody."""

    def refuse() -> int:
        raise PermissionError(errno.EPERM, "not here")

    monkeypatch.setattr(procfs, "_mount", refuse)
    sysctl = Sysctl(make_netns())
    sysctl.write(FORWARD, 1)
    assert "1" == sysctl.read(FORWARD)
    sysctl.close()
    assert "1" == sysctl.read(FORWARD)
    assert Sysctl().read(FORWARD) == seen(None, FORWARD)


def test_a_proc_sys_made_read_only_stays_so(
    make_netns: MakeNetns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fresh procfs would be writable; that is not what whoever made it read-only wants."""
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_RDONLY))
    monkeypatch.setattr(procfs, "_mount", lambda: pytest.fail("mounted"))
    assert "0" == Sysctl(make_netns()).read("net/ipv4/conf/lo/arp_notify")
