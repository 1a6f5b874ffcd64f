# SPDX-License-Identifier: Apache-2.0
"""What the Go plugins keep in iptables' nat tables for a container: found, judged, removed.

Each chain belongs to one container on one network, whatever the interface, and is named after both:

    CNI-<hash>       ipMasq: POSTROUTING sends what comes from the container's address there
    CNI-DN-<hash>    portmap: CNI-HOSTPORT-DNAT sends connections to the mapped ports there
    CNI-SN-<hash>    portmap before 0.7, reached from CNI-HOSTPORT-SNAT

Rules leading there say `name: "<network>" id: "<container id>"` in a comment, which is what GC goes
by. The chains that all containers share (CNI-HOSTPORT-…) stay: Go's plugins keep them too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from ipaddress import ip_address, ip_network
from typing import NamedTuple

from pycni.errors import KernelError
from pycni.kernel import iptables
from pycni.kernel.iptables import Nat
from pycni.kernel.side import Side
from pycni.model.addresses import IPAddress, IPInterface, IPNetwork
from pycni.model.request import PortMapping
from pycni.net.hashes import sha512
from pycni.net.owner import Owner

MULTICAST = {4: ip_network("224.0.0.0/4"), 6: ip_network("ff00::/8")}

_CHAIN_NAME_LENGTH = 28
_TRIES = 3
# Compiled by those who find such rules: nearly every DEL finds none.
_OPTION = r'(! )?(-{1,2}[a-z][a-z-]*) ("(?:[^"\\]|\\.)*"|[^ ]+)'
_COMMENT = r'name: "([^"]*)" id: "([^"]*)"'


class Kind(NamedTuple):
    """What chains are for: how their names begin, and all of them."""

    prefixes: tuple[str, ...]
    pattern: str

    def chains(self, owner: Owner) -> list[str]:
        """The chains of an attachment's container on its network."""
        digest = sha512((owner.network + owner.container_id).encode()).hexdigest()
        return [(prefix + digest)[:_CHAIN_NAME_LENGTH] for prefix in self.prefixes]

    def is_chain(self, name: str) -> bool:
        """Whether a chain of that name can be some container's."""
        return re.fullmatch(self.pattern, name) is not None

    def among(self, names: Iterable[str]) -> set[str]:
        """The names that can be some container's chain."""
        return {name for name in names if self.is_chain(name)}


MASQUERADE = Kind(("CNI-",), "CNI-[0-9a-f]{24}")
PORTS = Kind(("CNI-DN-", "CNI-SN-"), "CNI-[DS]N-[0-9a-f]{21}")


class Forward(NamedTuple):
    """A port of the node, on one of its addresses or on all, and where it leads."""

    protocol: str
    host_address: IPAddress | None
    port: int
    target: IPAddress
    target_port: int


class Rule(NamedTuple):
    """A rule as iptables-save prints it after `-A`, and what was read in it."""

    text: str
    chain: str
    target: str
    options: dict[str, str]

    @classmethod
    def parse(cls, text: str) -> Rule:
        """Read a line that begins with the chain's name; `! -d` counts as an option of its own."""
        chain, _, rest = text.partition(" ")
        options = {(no or "") + name: value for no, name, value in re.findall(_OPTION, rest)}
        return cls(text, chain, options.get("-j", options.get("-g", "")), options)

    @property
    def label(self) -> tuple[str, str]:
        """The network and container id its comment names, as far as it names them whole."""
        comment = self.options.get("--comment", "").replace('\\"', '"')
        found = re.search(_COMMENT, comment)
        return (found[1], found[2]) if found else ("", "")

    def network(self, option: str) -> IPNetwork | None:
        """The network an option names; None without such an option."""
        value = self.options.get(option)
        return ip_network(value) if value else None

    def leads_to(self) -> IPAddress | None:
        """Where DNAT goes; None for any other rule."""
        host = self.options.get("--to-destination", "").rpartition(":")[0].strip("[]")
        return ip_address(host) if host else None


# Given the rules and the names of the chains there are, what to do about them.
Commands = Callable[[list[Rule], set[str]], Iterable[str]]


def remove(host: Side, kind: Kind, owner: Owner, addresses: Collection[IPAddress]) -> None:
    """Remove a container's chains and what leads there; with addresses, only what is theirs."""
    chains = kind.chains(owner)

    def commands(rules: list[Rule], present: set[str]) -> Iterator[str]:
        labelled = {
            rule.target for rule in rules if rule.label == (owner.network, owner.container_id)
        }
        for chain in present.intersection({*chains, *kind.among(labelled)}):
            yield from _removal(rules, chain, addresses)

    for nat in iptables.in_use(host.netns, host.nft, has_chain=chains):
        _apply(host, nat, commands)


def gc(host: Side, kind: Kind, network: str, valid: Iterable[Owner]) -> None:
    """Remove the chains of the network's containers that are not valid any more."""
    keep = {chain for owner in valid for chain in kind.chains(owner)}

    def commands(rules: list[Rule], present: set[str]) -> Iterator[str]:
        stale = {rule.target for rule in rules if rule.label[0] == network} - keep
        for chain in present.intersection(kind.among(stale)):
            yield from _removal(rules, chain, ())

    for nat in iptables.in_use(host.netns, host.nft, has_chain=kind.is_chain):
        _apply(host, nat, commands)


def hides(host: Side, owner: Owner, addresses: Collection[IPInterface]) -> bool:
    """Whether all of these addresses are masqueraded by the container's chain."""
    [chain] = MASQUERADE.chains(owner)
    tables = _read_tables(host, [chain]) if addresses else []
    return all(
        any(
            _hides(rules, chain, address) for nat, rules in tables if nat.version == address.version
        )
        for address in addresses
    )


def forwards(mappings: Iterable[PortMapping], addresses: Iterable[IPInterface]) -> list[Forward]:
    """What mappings come to for the first address of each family."""
    first: dict[int, IPAddress] = {}
    for address in addresses:
        first.setdefault(address.version, address.ip)
    return [
        Forward(
            mapping.protocol.lower(),
            None if mapping.hostIP is None or mapping.hostIP.is_unspecified else mapping.hostIP,
            mapping.hostPort,
            target,
            mapping.containerPort,
        )
        for mapping in mappings
        for version, target in first.items()
        if mapping.hostIP is None or mapping.hostIP.version == version
    ]


def leads(host: Side, owner: Owner, wanted: Collection[Forward]) -> bool:
    """Whether all of these ports lead to the container by its chain."""
    chain = PORTS.chains(owner)[0]
    tables = _read_tables(host, [chain]) if wanted else []
    return all(
        any(
            _leads(rules, chain, each)
            for nat, rules in tables
            if nat.version == each.target.version
        )
        for each in wanted
    )


def _removal(rules: list[Rule], chain: str, addresses: Collection[IPAddress]) -> Iterator[str]:
    """Commands that remove a chain, or of a chain with others' addresses only what is theirs."""
    jumps = [rule for rule in rules if rule.target == chain]
    content = [rule for rule in rules if rule.chain == chain]
    held = [(rule, _single(rule.network("-s"))) for rule in jumps]
    held += [(rule, rule.leads_to()) for rule in content]
    if addresses and {of for _, of in held if of is not None} - set(addresses):
        yield from (f"-D {rule.text}" for rule, of in held if of in addresses)
        return
    yield from (f"-D {rule.text}" for rule in jumps)
    yield f"-F {chain}"
    yield f"-X {chain}"


def _hides(rules: list[Rule], chain: str, address: IPInterface) -> bool:
    inside = [rule for rule in rules if rule.chain == chain]
    return (
        any(
            rule.chain == "POSTROUTING" and _single(rule.network("-s")) == address.ip
            for rule in rules
            if rule.target == chain
        )
        and any(rule.network("-d") == address.network for rule in inside if rule.target == "ACCEPT")
        and any(
            rule.network("! -d") == MULTICAST[address.version]
            for rule in inside
            if rule.target == "MASQUERADE"
        )
    )


def _leads(rules: list[Rule], chain: str, wanted: Forward) -> bool:
    host = f"[{wanted.target}]" if wanted.target.version == 6 else str(wanted.target)
    forwarded = any(
        rule.options.get("--to-destination") == f"{host}:{wanted.target_port}"
        and rule.options.get("-p") == wanted.protocol
        and rule.options.get("--dport") == str(wanted.port)
        and _single(rule.network("-d")) == wanted.host_address
        for rule in rules
        if rule.chain == chain
    )
    entries = {
        rule.chain
        for rule in rules
        if rule.target == chain
        and rule.options.get("-p") == wanted.protocol
        and str(wanted.port) in rule.options.get("--dports", "").split(",")
    }
    # All containers' ports are looked at from there.
    ways = {rule.chain for rule in rules if rule.target in entries}
    return forwarded and {"PREROUTING", "OUTPUT"} <= ways


def _single(network: IPNetwork | None) -> IPAddress | None:
    """The address, if the network is a single one."""
    single = network is not None and network.num_addresses == 1
    return network.network_address if network is not None and single else None


def _read_tables(host: Side, chains: list[str]) -> list[tuple[Nat, list[Rule]]]:
    tables = iptables.in_use(host.netns, host.nft, has_chain=chains)
    return [(nat, _parse(iptables.read(host.netns, nat))[0]) for nat in tables]


def _parse(lines: list[str]) -> tuple[list[Rule], set[str]]:
    """The rules that concern containers' chains, and every chain's name."""
    chains = {line[1:] for line in lines if line.startswith(":")}
    rules = [Rule.parse(line.removeprefix("-A ")) for line in lines if "CNI-" in line]
    return rules, chains


def _apply(host: Side, nat: Nat, commands: Commands) -> None:
    """Read the table, do what `commands` says of it, again if somebody else was faster."""
    for tries_left in reversed(range(_TRIES)):
        rules, chains = _parse(iptables.read(host.netns, nat))
        wanted = list(commands(rules, chains))
        if not wanted:
            return
        try:
            iptables.change(host.netns, nat, wanted)
            return
        except KernelError:
            if not tries_left:
                raise
