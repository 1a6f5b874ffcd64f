# SPDX-License-Identifier: Apache-2.0
"""Masquerading and host ports by iptables, for configurations that name that backend.

Chains, rules and their spelling are the Go plugins', so that either's DEL, CHECK and GC find what
the other made (`golang_iptables` has ours). For each address family one program reads the table and
one changes it, while others of ours wait. What is there already stays as it is, and nobody's chain
is ever emptied: a new one is made by `-N`, which empties none that a Go plugin was faster to make.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from ipaddress import ip_network
from typing import NamedTuple

from pycni.errors import KernelError
from pycni.kernel import iptables
from pycni.kernel.iptables import Nat
from pycni.kernel.side import Side
from pycni.model.addresses import IPInterface
from pycni.model.request import PortMapping
from pycni.net import golang_iptables
from pycni.net.golang_iptables import MASQUERADE, MULTICAST, PORTS, Forward, Rule
from pycni.net.hostports import PortInUse
from pycni.net.owner import Owner

SETMARK, MASQ, DNAT = "CNI-HOSTPORT-SETMARK", "CNI-HOSTPORT-MASQ", "CNI-HOSTPORT-DNAT"
DEFAULT_MARK_BIT = 13

_TRIES = 3
_PORTS_PER_RULE = 15  # what the multiport match takes
_COMMENT_LENGTH = 255
_LOOPBACK = "127.0.0.1/32"


class PortOptions(NamedTuple):
    """How to map ports; the keys of the portmap plugin."""

    snat: bool = True
    masq_all: bool = False
    mark_bit: int = DEFAULT_MARK_BIT
    external_chain: str = ""
    conditions: dict[int, Sequence[str]] = {4: (), 6: ()}  # noqa: RUF012 - never changed


def ensure_masquerade(host: Side, owner: Owner, addresses: Iterable[IPInterface]) -> None:
    """Masquerade what these addresses send out of their subnets, multicast excepted."""
    addresses = tuple(addresses)
    [chain] = MASQUERADE.chains(owner)
    comment = _comment("", owner)
    for version in sorted({address.version for address in addresses}):
        rules = []
        for address in addresses:
            if address.version == version:
                rules += [
                    f"{chain} -d {address.network} {comment} -j ACCEPT",
                    f"{chain} ! -d {MULTICAST[version]} {comment} -j MASQUERADE",
                    f"POSTROUTING -s {address.ip}/{address.max_prefixlen} {comment} -j {chain}",
                ]
        _ensure(host, version, [chain], rules)


def ensure_ports(
    host: Side,
    owner: Owner,
    mappings: Iterable[PortMapping],
    addresses: Iterable[IPInterface],
    options: PortOptions,
) -> None:
    """Lead the ports to the first address of each family."""
    addresses = tuple(addresses)
    wanted = golang_iptables.forwards(mappings, addresses)
    for version in sorted({each.target.version for each in wanted}):
        first = next(address for address in addresses if address.version == version)
        own = [each for each in wanted if each.target.version == version]
        chain = PORTS.chains(owner)[0]
        chains, rules = _shared(options)
        _ensure(
            host,
            version,
            [*chains, chain],
            [*rules, *_entries(owner, chain, own, options), *_forwards(chain, first, own, options)],
            refuse=partial(_refuse_taken, owner, own),
        )


def _shared(options: PortOptions) -> tuple[list[str], list[str]]:
    """The chains of all containers, and the rules that lead there."""
    chains, rules = [DNAT], []
    if options.snat and not options.external_chain:
        mark = f"{1 << options.mark_bit:#x}/{1 << options.mark_bit:#x}"
        comment = '-m comment --comment "CNI portfwd'
        chains = [SETMARK, MASQ, DNAT]
        rules = [
            f'{SETMARK} {comment} masquerade mark" -j MARK --set-xmark {mark}',
            f"{MASQ} -m mark --mark {mark} -j MASQUERADE",
            f'POSTROUTING {comment} requiring masquerade" -j {MASQ}',
        ]
    for hook in ("PREROUTING", "OUTPUT"):
        rules.append(f"{hook} -m addrtype --dst-type LOCAL -j {DNAT}")
    return chains, rules


def _entries(
    owner: Owner, chain: str, wanted: Sequence[Forward], options: PortOptions
) -> Iterator[str]:
    """The rules that send connections to the mapped ports to the container's chain."""
    comment = _comment("dnat ", owner)
    for protocol in sorted({each.protocol for each in wanted}):
        ports = [str(each.port) for each in wanted if each.protocol == protocol]
        extra = "".join(
            f" {_quoted(word)}" for word in options.conditions[wanted[0].target.version]
        )
        for start in range(0, len(ports), _PORTS_PER_RULE):
            group = ",".join(ports[start : start + _PORTS_PER_RULE])
            yield (
                f"{DNAT} -p {protocol} {comment} -m multiport --dports {group}{extra} -j {chain}"
            )


def _forwards(
    chain: str, address: IPInterface, wanted: Sequence[Forward], options: PortOptions
) -> Iterator[str]:
    """The container's own rules: mark what must be masqueraded, then translate."""
    marking = options.external_chain or SETMARK
    for each in wanted:
        host = each.host_address
        port = f" -d {host}/{host.max_prefixlen}" if host else ""
        port += f" -p {each.protocol} -m {each.protocol} --dport {each.port}"
        if options.snat:
            source = "" if options.masq_all else f" -s {address.network}"
            yield f"{chain}{source}{port} -j {marking}"
            if address.version == 4 and not options.masq_all:
                yield f"{chain} -s {_LOOPBACK}{port} -j {marking}"
        target = f"[{each.target}]" if address.version == 6 else f"{each.target}"
        yield f"{chain}{port} -j DNAT --to-destination {target}:{each.target_port}"


def _refuse_taken(owner: Owner, wanted: Sequence[Forward], lines: Sequence[str]) -> None:
    """Raise PortInUse if a port is another container's: whose rule is first would get it all."""
    ports = [f" --dport {each.port} " for each in wanted]
    rules = [Rule.parse(line.removeprefix("-A ")) for line in lines if f"{DNAT} " in line]
    entries = {rule.target: rule for rule in rules if rule.chain == DNAT}
    for line in lines:
        if not any(port in line for port in ports):
            continue
        rule = Rule.parse(line.removeprefix("-A "))
        entry = entries.get(rule.chain)
        if entry is None or rule.leads_to() is None or entry.label[1] == owner.container_id:
            continue  # led to by nothing, or by its own other networks
        for each in wanted:
            address = each.host_address and ip_network(each.host_address)
            held = rule.options.get("-p"), rule.options.get("--dport"), rule.network("-d")
            if held == (each.protocol, str(each.port), address):
                at = f" of {each.host_address}" if each.host_address else ""
                raise PortInUse(
                    f"host port {each.port}/{each.protocol}{at} is in use",
                    f"held by container {entry.label[1]} on network {entry.label[0]}",
                    hint=f"`iptables-save -t nat` shows who holds what in {DNAT}",
                )


def _ensure(
    host: Side,
    version: int,
    chains: Sequence[str],
    rules: Sequence[str],
    *,
    refuse: Callable[[Sequence[str]], None] = lambda lines: None,
) -> None:
    nat = Nat(version, legacy=None)
    for tries_left in reversed(range(_TRIES)):
        with iptables.exclusive(host.netns):
            lines = iptables.read(host.netns, nat)
            refuse(lines)
            commands = _missing(lines, chains, rules)
            if not commands:
                return
            try:
                iptables.change(host.netns, nat, commands)
                return
            except KernelError:
                if not tries_left:
                    raise


def _missing(lines: Sequence[str], chains: Sequence[str], rules: Sequence[str]) -> list[str]:
    """What to add to a table."""
    commands = [f"-N {chain}" for chain in chains if f":{chain}" not in lines]
    known = [line.removeprefix("-A ") for line in lines]
    for rule in dict.fromkeys(rules):
        if not _has(known, rule):
            # What asks for masquerading is looked for before anybody else's rules.
            first = rule.startswith("POSTROUTING ") and rule.endswith(f" {MASQ}")
            commands.append(f"-{'I' if first else 'A'} {rule}")
    return commands


def _has(known: list[str], rule: str) -> bool:
    """Whether a rule is there; conditions may be spelled otherwise, so ports and target decide."""
    if rule in known:
        return True
    if not rule.startswith(f"{DNAT} "):
        return False
    wanted = Rule.parse(rule)
    return any(
        each.target == wanted.target
        and all(each.options.get(key) == wanted.options.get(key) for key in ("-p", "--dports"))
        for each in map(Rule.parse, known)
        if each.chain == DNAT
    )


def _comment(prefix: str, owner: Owner) -> str:
    text = f'{prefix}name: "{owner.network}" id: "{owner.container_id}"'
    if len(text) > _COMMENT_LENGTH:
        text = text[: _COMMENT_LENGTH - 3] + "..."
    return f"-m comment --comment {_quoted(text)}"


def _quoted(word: str) -> str:
    """A word as iptables-restore reads it and iptables-save prints it."""
    if word and not set(word) & set(" \"'\\"):
        return word
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'
