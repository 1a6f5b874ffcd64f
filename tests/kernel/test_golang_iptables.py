# SPDX-License-Identifier: Apache-2.0
"""Rules that the Go plugins left in iptables: found by chain and comment, judged, removed."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address, ip_interface
from typing import NamedTuple

import pytest

from pycni.errors import KernelError
from pycni.kernel import iptables, netns
from pycni.kernel.iptables import Nat
from pycni.kernel.netns import Netns
from pycni.kernel.side import Side
from pycni.model.addresses import IPInterface
from pycni.model.request import PortMapping
from pycni.net import golang_leftovers, iptables_backend
from pycni.net.golang_iptables import MASQUERADE, PORTS
from pycni.net.iptables_backend import PortOptions
from pycni.net.owner import Owner
from tests.fix_netns import run_in

# On the test's own host stays what iptables programs leave in a namespace: empty tables.
pytestmark = [pytest.mark.root, pytest.mark.iptables, pytest.mark.world_allows("nft|iptables")]

C1, C2, OTHER = Owner("podnet", "c1", "eth0"), Owner("podnet", "c2", "eth0"), Owner("o", "c1", "e")
ADDRESSES: dict[Owner, tuple[IPInterface, ...]] = {
    C1: (ip_interface("10.77.0.2/16"), ip_interface("fd00:77::2/64")),
    C2: (ip_interface("10.77.0.3/16"), ip_interface("fd00:77::3/64")),
    OTHER: (ip_interface("10.9.0.2/24"), ip_interface("fd00:9::2/64")),
}
WEB = PortMapping(hostPort=8080, containerPort=80, protocol="tcp")
DNS = PortMapping(hostPort=5353, containerPort=53, protocol="udp", hostIP=ip_address("127.0.0.1"))

SHARED = """*nat
:CNI-HOSTPORT-DNAT - [0:0]
:CNI-HOSTPORT-SETMARK - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-A OUTPUT -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-A CNI-HOSTPORT-SETMARK -j MARK --set-xmark 0x2000/0x2000
"""


def rules_of(owner: Owner, address: IPInterface) -> str:
    """What Go's bridge with ipMasq and portmap made for an address of a container."""
    [chain], [ports, _] = MASQUERADE.chains(owner), PORTS.chains(owner)
    label = f'name: \\"{owner.network}\\" id: \\"{owner.container_id}\\"'
    multicast, target = "224.0.0.0/4", f"{address.ip}"
    if address.version == 6:
        multicast, target = "ff00::/8", f"[{address.ip}]"
    entry = f'-A CNI-HOSTPORT-DNAT -m comment --comment "dnat {label}" -m multiport'
    extra = (
        f"-A {ports} -d 127.0.0.1 -p udp -m udp --dport 5353 -j DNAT --to-destination {target}:53"
    )
    return f"""
:{chain} - [0:0]
:{ports} - [0:0]
-A {chain} -d {address.network} -m comment --comment "{label}" -j ACCEPT
-A {chain} ! -d {multicast} -m comment --comment "{label}" -j MASQUERADE
-A POSTROUTING -s {address.ip} -m comment --comment "{label}" -j {chain}
{entry} -p tcp --dports 8080 -j {ports}
{entry} -p udp --dports 5353 -j {ports}
-A {ports} -p tcp -m tcp --dport 8080 -s {address.network} -j CNI-HOSTPORT-SETMARK
-A {ports} -p tcp -m tcp --dport 8080 -j DNAT --to-destination {target}:80
{extra if address.version == 4 else ""}
"""


class Tables(NamedTuple):
    """A host where Go's plugins have used one kind of iptables."""

    side: Side
    kind: str

    def restore(self, version: int, text: str) -> None:
        """Add rules."""
        program = f"{'iptables' if version == 4 else 'ip6tables'}-{self.kind}-restore"
        netns.run(
            self.side.netns,
            lambda: subprocess.run((program, "--noflush"), input=text, text=True, check=True),
        )

    def rules(self) -> list[str]:
        """All rules of both families."""
        return [
            line
            for program in ("iptables", "ip6tables")
            for line in run_in(
                self.side.netns, f"{program}-{self.kind}-save", "-t", "nat"
            ).splitlines()
            if line.startswith(("-A", ":CNI"))
        ]

    def mentioning(self, owner: Owner) -> list[str]:
        """The rules and chains of a container."""
        chains = (*MASQUERADE.chains(owner), *PORTS.chains(owner))
        return [line for line in self.rules() if any(chain in line for chain in chains)]

    def remove(self, owner: Owner) -> None:
        """What DEL of bridge and portmap do."""
        ips = [address.ip for address in ADDRESSES[owner]]
        golang_leftovers.remove_masquerade(self.side, owner, addresses=ips)
        golang_leftovers.remove_ports(self.side, owner, addresses=ips)


@pytest.fixture(params=["nft", "legacy"])
def tables(host: Netns, request: pytest.FixtureRequest) -> Iterator[Tables]:
    """Three containers on two networks, by each kind of iptables."""
    tables = Tables(Side(host), request.param)
    for version, place in ((4, 0), (6, 1)):
        own = "".join(rules_of(owner, ADDRESSES[owner][place]) for owner in ADDRESSES)
        tables.restore(version, f"{SHARED}{own}COMMIT\n")
    yield tables
    tables.side.close()


def test_names_of_chains_are_those_of_the_go_plugins() -> None:
    """Vectors of golang, which hashes network and container id without anything between."""
    assert ["CNI-1d96a4c7e0d1b705cc10f1f7"] == MASQUERADE.chains(C1)
    assert ["CNI-2bbe0c48b91a7d1b8a6753a8"] == MASQUERADE.chains(Owner("test", "1234", "eth0"))
    assert "CNI-DN-1d96a4c7e0d1b705cc10f" == PORTS.chains(C1)[0]


def test_an_attachments_chains_go_and_others_stay(tables: Tables) -> None:
    """Both families at once, with the rules that lead there; again finds nothing to do."""
    others = [line for line in tables.rules() if line not in tables.mentioning(C1)]
    for _ in range(2):
        tables.remove(C1)
        assert others == tables.rules()


def test_another_interface_of_the_container_keeps_its_rules(tables: Tables) -> None:
    """The chains are the container's: those in use by another address stay."""
    second = ip_interface("10.77.0.9/16")
    [chain], [ports, _] = MASQUERADE.chains(C1), PORTS.chains(C1)
    kept = [
        f"-A POSTROUTING -s 10.77.0.9/32 -j {chain}",
        f"-A {ports} -p tcp -m tcp --dport 8089 -j DNAT --to-destination 10.77.0.9:80",
    ]
    tables.restore(4, "\n".join(["*nat", *kept, "COMMIT", ""]))
    tables.remove(C1)
    left = tables.mentioning(C1)
    assert set(kept) <= set(left)
    assert not [line for line in left if "10.77.0.2" in line]
    golang_leftovers.remove_masquerade(tables.side, C1, addresses=[second.ip])
    golang_leftovers.remove_ports(tables.side, C1, addresses=[second.ip])
    assert [] == tables.mentioning(C1)


def test_old_chains_of_portmap_go_too(tables: Tables) -> None:
    """Before 0.7 there was one for SNAT beside that for DNAT."""
    old = PORTS.chains(C1)[1]
    text = f"*nat\n:CNI-HOSTPORT-SNAT - [0:0]\n:{old} - [0:0]\n-A CNI-HOSTPORT-SNAT -j {old}\n"
    tables.restore(4, f"{text}COMMIT\n")
    tables.remove(C1)
    assert [] == tables.mentioning(C1)


def test_gc_removes_the_networks_invalid_only(tables: Tables) -> None:
    """Other networks and valid attachments keep theirs."""
    kept = [tables.mentioning(owner) for owner in (C2, OTHER)]
    golang_leftovers.gc_masquerade(tables.side, "podnet", [C2])
    golang_leftovers.gc_ports(tables.side, "podnet", [C2])
    assert [] == tables.mentioning(C1)
    assert kept == [tables.mentioning(owner) for owner in (C2, OTHER)]


@pytest.mark.parametrize(
    "command",
    [
        f"POSTROUTING -s 10.77.0.2/32 -m comment --comment LABEL -j {MASQUERADE.chains(C1)[0]}",
        f"{MASQUERADE.chains(C1)[0]} -d 10.77.0.0/16 -m comment --comment LABEL -j ACCEPT",
        f"{MASQUERADE.chains(C1)[0]} ! -d 224.0.0.0/4 -m comment --comment LABEL -j MASQUERADE",
    ],
)
def test_masquerading_is_accepted_while_it_is_whole(tables: Tables, command: str) -> None:
    """The way from POSTROUTING, what stays inside the subnet, and all the rest but multicast."""
    assert golang_leftovers.has_masquerade(tables.side, C1, ADDRESSES[C1])
    command = command.replace("LABEL", '"name: \\"podnet\\" id: \\"c1\\""')
    tables.restore(4, f"*nat\n-D {command}\nCOMMIT\n")
    assert not golang_leftovers.has_masquerade(tables.side, C1, ADDRESSES[C1])
    assert golang_leftovers.has_masquerade(tables.side, C1, ADDRESSES[C1][1:])


@pytest.mark.parametrize(
    "command",
    [
        "PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT",
        f"CNI-HOSTPORT-DNAT -p tcp -m comment --comment LABEL -m multiport --dports 8080 "
        f"-j {PORTS.chains(C1)[0]}",
        f"{PORTS.chains(C1)[0]} -p tcp -m tcp --dport 8080 -j DNAT --to-destination 10.77.0.2:80",
    ],
)
def test_ports_are_accepted_while_they_lead_there(tables: Tables, command: str) -> None:
    """The way from PREROUTING and OUTPUT, the container's port list, and its DNAT."""
    assert golang_leftovers.has_ports(tables.side, C1, [WEB, DNS], ADDRESSES[C1])
    other = PortMapping(hostPort=8080, containerPort=81, protocol="tcp")
    assert not golang_leftovers.has_ports(tables.side, C1, [other], ADDRESSES[C1])
    command = command.replace("LABEL", '"dnat name: \\"podnet\\" id: \\"c1\\""')
    tables.restore(4, f"*nat\n-D {command}\nCOMMIT\n")
    assert not golang_leftovers.has_ports(tables.side, C1, [WEB, DNS], ADDRESSES[C1])


def test_a_change_is_whole_or_not_at_all(tables: Tables) -> None:
    """A missing chain in the second command leaves the first undone."""
    before = tables.rules()
    nat = Nat(4, legacy=tables.kind == "legacy")
    with pytest.raises(KernelError):
        iptables.change(
            tables.side.netns, nat, [f"-F {MASQUERADE.chains(C1)[0]}", "-X CNI-ffffffffffff"]
        )
    assert before == tables.rules()


def test_without_programs_there_is_nothing(
    host: Netns, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node without iptables deletes containers all the same."""
    monkeypatch.setattr("pycni.kernel.iptables._SBIN", ())
    before = tables.rules()
    with monkeypatch.context() as patch:
        patch.setenv("PATH", "/nonexistent")
        tables.remove(C1)
        golang_leftovers.gc_masquerade(tables.side, "podnet", [])
        assert not golang_leftovers.has_masquerade(tables.side, C1, ADDRESSES[C1])
        with pytest.raises(KernelError, match="not installed"):
            iptables.change(host, Nat(4, legacy=False), ["-F X"])
    assert before == tables.rules()


def test_many_containers_at_once_share_what_is_shared(host: Netns) -> None:
    """Nobody's chain is emptied by another that makes the same one; no rule is there twice."""
    side = Side(host)
    owners = [Owner("podnet", f"c{number}", "eth0") for number in range(6)]

    def add(owner: Owner) -> None:
        number = owners.index(owner) + 2
        addresses = (ip_interface(f"10.77.0.{number}/16"),)
        port = PortMapping(hostPort=8000 + number, containerPort=80, protocol="tcp")
        iptables_backend.ensure_masquerade(side, owner, addresses)
        iptables_backend.ensure_ports(side, owner, [port], addresses, PortOptions())

    with ThreadPoolExecutor(len(owners)) as pool:
        list(pool.map(add, owners))
    rules = run_in(host, "iptables-save", "-t", "nat").splitlines()
    rules = [rule for rule in rules if rule.startswith("-A")]
    # Per container: three to masquerade; an entry, two marks and the translation for its port.
    assert len(owners) * 7 + 5 == len(rules)
    assert len(set(rules)) == len(rules)
    side.close()
