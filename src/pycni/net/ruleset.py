# SPDX-License-Identifier: Apache-2.0
"""Our one nftables table, `inet pycni`: a fixed skeleton of chains, and sets and maps for the rest.

    prerouting, output   fib daddr type local → hostports
    hostports            the port's map entry says where the connection goes    (net/hostports.py)
    postrouting4-24      sources with a /24 go out masqueraded, if in the set  (net/masquerade.py)

A container is a few elements, tagged with its owner in their comments, so a packet and an ADD cost
the same with 10 containers and with 10,000. Three things would break that, and are avoided:

* a rule or a chain per container, or per subnet. A subnet's prefix length cannot come out of a
  map, so there is one small chain per prefix length in use (`Group`), made with the first;
* elements that say `jump CHAIN`: for each one added the kernel looks for loops among them all,
  0.6 ms at 16,000. Only mappings with conditions of their own need them;
* libnftables looking for an element (see `kernel.nftmaps`).

Every change is planned on one generation of the ruleset and applied only if that is still the
generation: between looking whose an element is and replacing it nobody else can get in. Chains
are written as text, flushed and filled in one go, and only when missing or damaged: the check is
a few reads, and none at all while the generation is the one our last change made. That is how a
flushed ruleset heals with the next change.

Empty chains and sets stay when the last container goes, like a bridge; `remove_table` removes all.
"""

from __future__ import annotations

import errno
import re
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from ipaddress import ip_network
from typing import NamedTuple
from weakref import WeakKeyDictionary

import msgspec

from pycni.errors import AlreadyExists, Busy
from pycni.kernel.nft import Nft
from pycni.kernel.nftmaps import Element, Maps, Slot
from pycni.kernel.side import Side
from pycni.model.addresses import IPInterface
from pycni.net.owner import Owner, network_prefix

FAMILY = "inet"
TABLE = "pycni"
COMMENT = "pycni: masquerading and host ports of containers"

BOTH_FAMILIES = (4, 6)
# Per IP version: the keyword of its header, the type of its addresses, its multicast addresses.
KEYWORDS = {4: "ip", 6: "ip6"}
ADDRESS_TYPES = {4: "ipv4_addr", 6: "ipv6_addr"}
PORT_TYPES = "inet_proto . inet_service"
_MULTICAST = {4: "224.0.0.0/4", 6: "ff00::/8"}

HOSTPORTS = {4: "hostports4", 6: "hostports6"}
HOSTIP_HOSTPORTS = {4: "hostip_hostports4", 6: "hostip_hostports6"}
CONDITIONAL = {4: "conditional4", 6: "conditional6"}
HOSTIP_CONDITIONAL = {4: "hostip_conditional4", 6: "hostip_conditional6"}
MASQUERADE_ALL = {4: "masquerade_all4", 6: "masquerade_all6"}

OWNER_CHAIN = "owner"

_GROUP_NAME = r"postrouting([46])-(\d+)"
_TRIES = 16
_STEPS_PER_BATCH = 256


class Chain(msgspec.Struct, frozen=True, kw_only=True):
    """A chain and the sets its rules name; `owned` ones have rules their name does not imply."""

    name: str
    rules: tuple[str, ...]
    hook: str = ""
    sets: tuple[tuple[str, str], ...] = ()
    owned: bool = False


class Group(NamedTuple):
    """What is common to all addresses with one prefix length: a chain and three sets.

    Each set holds addresses of containers; two hold them with a network: `local` with the subnet,
    which needs no masquerading, `hairpin` with those that need it to reach a mapped port.
    """

    version: int
    length: int

    @classmethod
    def of(cls, address: IPInterface) -> Group:
        """The group an address with prefix length belongs to."""
        return cls(address.version, address.network.prefixlen)

    @property
    def masquerade(self) -> str:
        """The set of addresses whose traffic is masqueraded."""
        return f"masquerade{self}"

    @property
    def local(self) -> str:
        """The set of those addresses, each with its subnet."""
        return f"local{self}"

    @property
    def hairpin(self) -> str:
        """The set of addresses with mapped ports, each with a network it would answer past us."""
        return f"hairpin{self}"

    def __str__(self) -> str:
        return f"{self.version}-{self.length}"

    @lru_cache(maxsize=256)  # noqa: B019 - of tuples, and there are 162 of them
    def chain(self) -> Chain:
        """The chain that evaluates the sets, on a hook of its own."""
        ip, address = KEYWORDS[self.version], ADDRESS_TYPES[self.version]
        zero = ip_network(("0.0.0.0" if self.version == 4 else "::", self.length))
        saddr, daddr = (f"{ip} {word} & {zero.netmask}" for word in ("saddr", "daddr"))
        not_multicast = f"{ip} daddr != {_MULTICAST[self.version]}"
        return Chain(
            name=f"postrouting{self}",
            hook=_hook("postrouting"),
            sets=(
                (self.masquerade, address),
                (self.local, f"{address} . {address}"),
                (self.hairpin, f"{address} . {address}"),
            ),
            rules=(
                f"{ip} saddr @{self.masquerade} {ip} saddr . {daddr} != @{self.local} "
                f"{not_multicast} masquerade",
                f"ct status dnat {ip} daddr . {saddr} @{self.hairpin} masquerade",
            ),
        )


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What a recipe wants to be in the table; `vacant` are slots that must hold nothing."""

    elements: tuple[Element, ...]
    chains: tuple[Chain, ...] = ()
    vacant: tuple[Slot, ...] = ()


class _Memory:
    """What we know of the table behind one `Nft`, and the lock that makes changes take turns."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        # The generation at which all was seen to be whole; our own changes carry it on.
        self.generation = 0
        self.chains: dict[str, Chain] = {}


_memories: WeakKeyDictionary[Nft, _Memory] = WeakKeyDictionary()
_memories_lock = threading.Lock()


def ensure(
    nft: Nft, tag: str, wanted: Wanted, *, refuse: Callable[[Element], None] | None = None
) -> None:
    """Make the table hold what is wanted, and write nothing if it does.

    An element of somebody else in the way is replaced, unless `refuse` raises for it; it is asked
    before anything is changed. Other owners' vacant slots are left alone.
    """
    slots = [element.slot for element in wanted.elements] + list(wanted.vacant)
    goals: list[Element | None] = [*wanted.elements, *[None for _ in wanted.vacant]]
    memory, maps = _memory(nft), table(nft)
    with memory.lock:
        if _add_at_once(maps, memory, wanted):
            return
        for _ in range(_TRIES):
            generation = maps.generation()
            found = maps.find(slots)
            for element in found:
                if element is not None and element.comment != tag and refuse is not None:
                    refuse(element)
            if _build_what_is_broken(nft, memory, wanted.chains, generation):
                continue
            changes = [
                (old, goal)
                for old, goal in zip(found, goals, strict=True)
                if old != goal and (goal is not None or (old and old.comment == tag))
            ]
            if _commit(maps, memory, changes, (), generation):
                return
    raise _always_changing()


def ensure_chain(nft: Nft, chain: Chain) -> None:
    """Make the table have a chain that no element needs."""
    ensure(nft, "", Wanted(elements=(), chains=(chain,)))


def remove(
    nft: Nft,
    tag: str,
    *,
    maps: Callable[[], Iterable[str]],
    hints: Sequence[Slot] = (),
    chains: Iterable[str] = (),
) -> tuple[Element, ...]:
    """Remove the elements tagged `tag`, and the chains that nothing jumps to any more.

    They are looked for at `hints` first. Unless all of those are ours, `maps` are read through.
    Returns what was removed.
    """
    memory, ours = _memory(nft), table(nft)
    with memory.lock:
        for _ in range(_TRIES):
            generation = ours.generation()
            found = [element for element in ours.find(hints) if element and element.comment == tag]
            if not hints or len(found) < len(hints):
                found = _listed(ours, maps(), tag)
            unneeded = _unneeded(ours, found, chains)
            if _commit(ours, memory, [(old, None) for old in found], unneeded, generation):
                return tuple(found)
    raise _always_changing()


def gc(nft: Nft, network: str, valid: Iterable[Owner], *, maps: Iterable[str]) -> None:
    """Remove the network's elements whose owner is not valid, and chains nobody needs."""
    prefix = network_prefix(network)
    keep = {owner.tag for owner in valid}
    names = tuple(maps)
    memory, ours = _memory(nft), table(nft)
    with memory.lock:
        for _ in range(_TRIES):
            generation = ours.generation()
            stale = [old for old in _listed(ours, names, prefix) if old.comment not in keep]
            chains = [name for name in ours.list_chains() if name.startswith(OWNER_CHAIN)]
            unneeded = _unneeded(ours, stale, chains)
            if _commit(ours, memory, [(old, None) for old in stale], unneeded, generation):
                return
    raise _always_changing()


def change(
    nft: Nft, plan: Callable[[Maps], Iterable[tuple[Element | None, Element | None]]]
) -> None:
    """Replace old elements by new ones, as `plan` says of the generation it has looked at."""
    memory, ours = _memory(nft), table(nft)
    with memory.lock:
        for _ in range(_TRIES):
            generation = ours.generation()
            if _commit(ours, memory, list(plan(ours)), (), generation):
                return
    raise _always_changing()


def find_missing(nft: Nft, wanted: Wanted) -> tuple[list[Element], list[str]]:
    """The elements and the chains that are not there as wanted."""
    memory, maps = _memory(nft), table(nft)
    with memory.lock:
        generation = maps.generation()
        whole = memory.chains if generation == memory.generation else {}
    found = maps.find([element.slot for element in wanted.elements])
    elements = [goal for old, goal in zip(found, wanted.elements, strict=True) if old != goal]
    chains = [
        chain.name
        for chain in (*SKELETON, *wanted.chains)
        if whole.get(chain.name) != chain and maps.count_rules(chain.name) != len(chain.rules)
    ]
    return elements, chains


def remove_table(nft: Nft) -> None:
    """Remove the table with everything in it: for uninstalling, and for tests."""
    memory = _memory(nft)
    with memory.lock:
        if table(nft).table_exists():
            nft.run(f"delete table {FAMILY} {TABLE}")
        memory.generation, memory.chains = 0, {}


def remove_idle_table(host: Side) -> None:
    """Remove the table if nobody's elements are in it, and nothing on the node needs its guard."""
    memory, ours = _memory(host.nft), table(host.nft)
    with memory.lock:
        # A changed generation means that somebody may be using it: then it stays.
        generation = ours.generation()
        if not ours.table_exists() or any(map(ours.list_elements, ours.list_maps())):
            return
        if _is_loopback_routed(host):
            return
        if ours.commit(drop_table=True, generation=generation):
            memory.generation, memory.chains = 0, {}


def _is_loopback_routed(host: Side) -> bool:
    names = [link.name for link in host.links.list()]
    keys = [f"net/ipv4/conf/{name}/route_localnet" for name in names]
    return any(host.sysctl.exists(key) and host.sysctl.read(key) == "1" for key in keys)


def table(nft: Nft) -> Maps:
    """The table's maps, as they are now."""
    return nft.maps(FAMILY, TABLE)


def groups(nft: Nft) -> list[Group]:
    """The groups that exist."""
    names = (re.fullmatch(_GROUP_NAME, name) for name in table(nft).list_chains())
    return [Group(int(name[1]), int(name[2])) for name in names if name]


def _hook(name: str) -> str:
    # The priorities called dstnat and srcnat; nft does not know the word dstnat in output.
    priority = 100 if name == "postrouting" else -100
    return f"{{ type nat hook {name} priority {priority}; policy accept; }}"


def _dnat_rules(version: int) -> Iterator[str]:
    keyword = KEYWORDS[version]
    port = "meta l4proto . th dport"
    at = f"{keyword} daddr . {port}"
    family = f"meta nfproto ipv{version}"
    # The entry for one host address goes before the entry for any.
    yield f"dnat {keyword} to {at} map @{HOSTIP_HOSTPORTS[version]}"
    yield f"{at} vmap @{HOSTIP_CONDITIONAL[version]}"
    yield f"{family} dnat {keyword} to {port} map @{HOSTPORTS[version]}"
    yield f"{family} {port} vmap @{CONDITIONAL[version]}"


def _skeleton() -> Iterator[Chain]:
    yield Chain(
        name="hostports",
        rules=tuple(rule for version in BOTH_FAMILIES for rule in _dnat_rules(version)),
    )
    for hook in ("prerouting", "output"):
        # Only what is addressed to this node: GHSA-jv3w-x3r3-g6rm is about a plugin that also
        # took connections passing through it.
        rule = "fib daddr type local jump hostports"
        yield Chain(name=hook, hook=_hook(hook), rules=(rule,))
    yield Chain(
        name="postrouting",
        hook=_hook("postrouting"),
        rules=tuple(
            f"ct status dnat {KEYWORDS[version]} daddr @{MASQUERADE_ALL[version]} masquerade"
            for version in BOTH_FAMILIES
        ),
    )


SKELETON = tuple(_skeleton())


# In force on nodes where the kernel was told to route 127.0.0.0/8 (see `hostports`): packets from
# outside must not carry such addresses, and none can that is an answer, before it is translated.
LOOPBACK_GUARD = Chain(
    name="loopback-guard",
    hook="{ type filter hook prerouting priority -300; policy accept; }",
    rules=('iif != "lo" ip daddr 127.0.0.0/8 drop', 'iif != "lo" ip saddr 127.0.0.0/8 drop'),
)


def _map_types() -> Iterator[tuple[str, str]]:
    for version, address in ADDRESS_TYPES.items():
        port = PORT_TYPES
        yield HOSTPORTS[version], f"{port} : {address} . inet_service"
        yield HOSTIP_HOSTPORTS[version], f"{address} . {port} : {address} . inet_service"
        yield CONDITIONAL[version], f"{port} : verdict"
        yield HOSTIP_CONDITIONAL[version], f"{address} . {port} : verdict"


def _skeleton_text() -> Iterator[str]:
    yield f'add table {FAMILY} {TABLE} {{ comment "{COMMENT}"; }}'
    for name, types in _map_types():
        yield f"add map {FAMILY} {TABLE} {name} {{ type {types}; }}"
    for version, name in MASQUERADE_ALL.items():
        yield f"add set {FAMILY} {TABLE} {name} {{ type {ADDRESS_TYPES[version]}; }}"


def _chain_text(chain: Chain) -> Iterator[str]:
    for name, types in chain.sets:
        yield f"add set {FAMILY} {TABLE} {name} {{ type {types}; }}"
    yield f"add chain {FAMILY} {TABLE} {chain.name} {chain.hook}"
    yield f"flush chain {FAMILY} {TABLE} {chain.name}"
    for rule in chain.rules:
        yield f"add rule {FAMILY} {TABLE} {chain.name} {rule}"


def _memory(nft: Nft) -> _Memory:
    with _memories_lock:
        return _memories.setdefault(nft, _Memory())


def _add_at_once(maps: Maps, memory: _Memory, wanted: Wanted) -> bool:
    """Add the elements without looking what is there, if all else is known to be right; done?

    So it is for nearly every ADD. The kernel refuses an element that is in the way, and a ruleset
    that somebody has changed; then nothing has happened, and it takes a closer look.
    """
    if not memory.generation or len(wanted.elements) > _STEPS_PER_BATCH:
        return False
    if any(memory.chains.get(chain.name) != chain for chain in wanted.chains):
        return False
    if wanted.vacant and any(maps.find(wanted.vacant)):
        return False
    changes = [(None, goal) for goal in wanted.elements]
    try:
        return bool(changes) and _commit(maps, memory, changes, (), memory.generation)
    except (AlreadyExists, Busy):  # with the same value, with another one
        return False


def _build_what_is_broken(
    nft: Nft, memory: _Memory, chains: Iterable[Chain], generation: int
) -> bool:
    """Write the chains that are not as they should be, the skeleton included; did we?"""
    requested = {chain.name: chain for chain in chains}
    known = memory.chains
    if memory.generation == generation:
        suspects = [chain for name, chain in requested.items() if known.get(name) != chain]
        if not suspects:
            return False
    else:
        # Somebody else was here, and may have emptied what this call does not ask for too.
        shared = {name: chain for name, chain in known.items() if not chain.owned}
        suspects = [*SKELETON, *(shared | requested).values()]
        known = {}
    broken = [chain for chain in suspects if _is_broken(table(nft), memory, chain)]
    memory.chains = known | {chain.name: chain for chain in suspects}
    if not broken:
        memory.generation = generation
        return False
    lines = [line for chain in broken for line in _chain_text(chain)]
    if any(chain in SKELETON for chain in broken):
        lines = [*_skeleton_text(), *lines]
    try:
        nft.run("\n".join(lines))
    except BaseException:
        memory.chains, memory.generation = {}, 0
        raise
    return True


def _is_broken(maps: Maps, memory: _Memory, chain: Chain) -> bool:
    # An owned chain may have the right number of wrong rules.
    if chain.owned and memory.chains.get(chain.name) != chain:
        return True
    return maps.count_rules(chain.name) != len(chain.rules)


def _listed(ours: Maps, maps: Iterable[str], comment_prefix: str) -> list[Element]:
    return [
        element
        for name in maps
        for element in ours.list_elements(name, comment_prefix=comment_prefix)
    ]


def _unneeded(ours: Maps, removed: Iterable[Element], also: Iterable[str] = ()) -> list[str]:
    """The chains that no element jumps to once `removed` are gone."""
    jumps = Counter(element.jump for element in removed if element.jump)
    names = list({*jumps, *also})
    return [
        name
        for name, uses in zip(names, ours.chain_uses(names), strict=True)
        if uses is not None and uses - ours.count_rules(name) == jumps[name]
    ]


def _commit(
    maps: Maps,
    memory: _Memory,
    changes: Sequence[tuple[Element | None, Element | None]],
    drop_chains: Collection[str],
    generation: int,
) -> bool:
    """Replace old elements by new ones, if the ruleset is still at `generation`; was it?"""
    # Chains last: elements still jump to them.
    steps = [*changes, *drop_chains]
    for start in range(0, len(steps), _STEPS_PER_BATCH):
        part = steps[start : start + _STEPS_PER_BATCH]
        pairs = [step for step in part if isinstance(step, tuple)]
        done = maps.commit(
            remove=[old.slot for old, _ in pairs if old is not None],
            add=[new for _, new in pairs if new is not None],
            drop_chains=[step for step in part if isinstance(step, str)],
            generation=generation,
        )
        if not done:
            return False
        # Nobody got in between, so ours is the next generation: what was known still holds.
        following = 1 if generation == 0xFFFFFFFF else generation + 1
        if memory.generation == generation:
            memory.generation = following
        generation = following
    for name in drop_chains:
        memory.chains.pop(name, None)
    return True


def _always_changing() -> Busy:
    return Busy("change", f"table {FAMILY} {TABLE}", errno.EAGAIN, "the ruleset keeps changing")
