# SPDX-License-Identifier: Apache-2.0
"""Changes of the table while others change it: planned again, given up, never half done."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from ipaddress import ip_interface

import pytest

from pycni.errors import AlreadyExists, Busy, KernelError
from pycni.kernel.nftmaps import Element, Slot
from pycni.net import ruleset
from pycni.net.owner import Owner
from pycni.net.ruleset import SKELETON, Chain, Group, Wanted

OWNER = Owner("web", "c1", "eth0")
RIVAL = Owner("web", "c2", "eth0")
SLOT = Slot("hostports4", b"port")
MINE = Element(slot=SLOT, value=b"mine", comment=OWNER.tag)
THEIRS = Element(slot=SLOT, value=b"theirs", comment=RIVAL.tag)


class FakeNft:
    """A ruleset in memory: `nft.run` counts rules, `maps` holds elements by slot.

    `meanwhile` is called before each commit: what another process does at the worst moment.
    """

    def __init__(self) -> None:
        self.at = 1
        self.elements: dict[Slot, Element] = {}
        self.rules: dict[str, int] = {}
        self.runs: list[str] = []
        self.commits = self.reads = 0
        self.fail: KernelError | None = None
        self.meanwhile: Callable[[], None] = lambda: None

    def maps(self, family: str, table: str) -> FakeNft:
        assert ("inet", "pycni") == (family, table)
        return self

    def run(self, commands: str) -> str:
        if self.fail is not None:
            raise self.fail
        self.runs.append(commands)
        for line in commands.splitlines():
            match line.split()[:5]:
                case ["flush", "chain", _, _, name]:
                    self.rules[name] = 0
                case ["add", "rule", _, _, name]:
                    self.rules[name] += 1
        self.at += 1
        return ""

    def generation(self) -> int:
        return self.at

    def find(self, slots: Sequence[Slot]) -> list[Element | None]:
        self.reads += 1
        return [self.elements.get(slot) for slot in slots]

    def list_elements(self, name: str, *, comment_prefix: str) -> list[Element]:
        return [
            element
            for element in self.elements.values()
            if element.slot.map == name and element.comment.startswith(comment_prefix)
        ]

    def list_chains(self) -> dict[str, int]:
        return {name: self.chain_uses([name])[0] or 0 for name in self.rules}

    def chain_uses(self, names: Sequence[str]) -> list[int | None]:
        jumps = [element.jump for element in self.elements.values()]
        return [
            self.rules[name] + jumps.count(name) if name in self.rules else None for name in names
        ]

    def count_rules(self, name: str) -> int:
        self.reads += 1
        return self.rules.get(name, 0)

    def commit(
        self,
        *,
        remove: Iterable[Slot],
        add: Iterable[Element],
        drop_chains: Iterable[str],
        generation: int,
    ) -> bool:
        self.meanwhile()
        if generation != self.at:
            return False
        added = {element.slot: element for element in add}
        kept = {slot: old for slot, old in self.elements.items() if slot not in set(remove)}
        if taken := kept.keys() & added.keys():
            same = all(kept[slot].value == added[slot].value for slot in taken)
            raise (AlreadyExists if same else Busy)("change maps of", "table", 0)
        self.elements = kept | added
        for name in drop_chains:
            del self.rules[name]
        self.at = 1 if self.at == 0xFFFFFFFF else self.at + 1
        self.commits += 1
        return True

    def flush(self) -> None:
        """What `nft flush ruleset` does."""
        self.elements.clear()
        self.rules.clear()
        self.at += 1


def once(what: Callable[[], None], *, at: int = 0) -> Callable[[], None]:
    """Do it the first time only, or that time."""
    times = itertools.count()
    return lambda: what() if next(times) == at else None


def refuse(held: Element) -> None:
    """What mapping a port does when it is held by somebody else."""
    raise PermissionError(held.comment)


@pytest.fixture
def nft() -> FakeNft:
    """A ruleset with the skeleton built and one element of somebody else."""
    nft = FakeNft()
    ensure(nft, Element(slot=Slot("hostports4", b"other"), comment=RIVAL.tag), RIVAL)
    nft.runs.clear()
    return nft


def ensure(
    nft: FakeNft,
    element: Element,
    owner: Owner = OWNER,
    *,
    chains: tuple[Chain, ...] = (),
    refuse: Callable[[Element], None] | None = None,
) -> None:
    """`ruleset.ensure` of one element."""
    wanted = Wanted(elements=(element,), chains=chains)
    ruleset.ensure(nft, owner.tag, wanted, refuse=refuse)  # type: ignore[arg-type]  # a fake


def remove(nft: FakeNft, *hints: Slot, chains: tuple[str, ...] = ()) -> None:
    """`ruleset.remove` of what the owner has."""
    maps = ("hostports4", "conditional4")
    ruleset.remove(nft, OWNER.tag, maps=lambda: maps, hints=hints, chains=chains)  # type: ignore[arg-type]  # a fake


def test_a_change_in_between_means_planning_again(nft: FakeNft) -> None:
    """The element is there in the end, written once."""

    def other_table() -> None:
        nft.at += 1

    nft.meanwhile = once(other_table)
    before = nft.commits
    ensure(nft, MINE)
    assert MINE == nft.elements[SLOT]
    assert before + 1 == nft.commits
    assert [] == nft.runs


@pytest.mark.parametrize("changed", [False, True])
def test_who_takes_the_slot_in_between_keeps_it(nft: FakeNft, changed: bool) -> None:
    """The next look finds the rival, and refuses; also if the ruleset was not ours before."""

    def rival() -> None:
        nft.elements[SLOT] = THEIRS
        nft.at += 1

    nft.at += changed
    nft.meanwhile = once(rival, at=int(changed))
    with pytest.raises(PermissionError, match=RIVAL.tag):
        ensure(nft, MINE, refuse=refuse)
    assert THEIRS == nft.elements[SLOT]


def test_a_removal_spares_who_takes_the_slot_in_between(nft: FakeNft) -> None:
    """Plugins #1139 at its narrowest: between looking and deleting."""
    ensure(nft, MINE)

    def rival() -> None:
        nft.elements[SLOT] = THEIRS
        nft.at += 1

    nft.meanwhile = once(rival)
    remove(nft, SLOT)
    assert THEIRS == nft.elements[SLOT]


@pytest.mark.parametrize("step", ["ensure", "remove", "gc"])
def test_a_ruleset_that_never_rests_is_busy(nft: FakeNft, step: str) -> None:
    """Retryable (11), after a bounded number of plans."""
    ensure(nft, MINE)

    def other_table() -> None:
        nft.at += 1

    nft.meanwhile = other_table
    with pytest.raises(Busy, match="keeps changing") as busy:
        match step:
            case "ensure":
                ensure(nft, Element(slot=SLOT, value=b"new", comment=OWNER.tag))
            case "remove":
                remove(nft, SLOT)
            case "gc":
                ruleset.gc(nft, "web", [], maps=["hostports4"])  # type: ignore[arg-type]  # a fake
    assert 11 == busy.value.code
    assert MINE == nft.elements[SLOT]


def test_the_skeleton_is_built_once_and_again_after_a_flush(nft: FakeNft) -> None:
    """No text transaction on the way of an ADD, until somebody breaks something."""
    group = Group.of(ip_interface("10.0.0.1/24")).chain()
    ensure(nft, MINE, chains=(group,))
    assert 1 == len(nft.runs)
    remove(nft, SLOT)
    ensure(nft, MINE, chains=(group,))
    assert 1 == len(nft.runs)
    nft.flush()
    remove(nft, SLOT)
    # Asking for nothing of that group: it had been seen, so it is mended too.
    ensure(nft, MINE)
    assert len(group.rules) == nft.rules[group.name]
    assert 2 == len(nft.runs)


def test_a_removal_does_not_vouch_for_the_skeleton(nft: FakeNft) -> None:
    """After a flush, a DEL that comes first must not make the next ADD believe all is well."""
    ensure(nft, MINE)
    nft.rules["output"] = 0
    nft.at += 1
    remove(nft, SLOT)
    ensure(nft, MINE)
    assert 1 == nft.rules["output"]


def test_an_add_reads_nothing_while_nobody_else_changes_the_ruleset(nft: FakeNft) -> None:
    """The kernel itself refuses what is in the way."""
    nft.reads = 0
    ensure(nft, MINE)
    assert (0, 2) == (nft.reads, nft.commits)


@pytest.mark.parametrize("value", [b"", b"other"])
def test_an_element_in_the_way_is_seen_before_anything_is_changed(
    nft: FakeNft, value: bytes
) -> None:
    """With its value or with another one."""
    before = dict(nft.elements)
    slot = Slot("hostports4", b"other")
    with pytest.raises(PermissionError, match=RIVAL.tag):
        ensure(nft, Element(slot=slot, value=value, comment=OWNER.tag), refuse=refuse)
    assert before == nft.elements


def test_a_check_counts_rules_only_when_somebody_else_was_there(nft: FakeNft) -> None:
    """While the generation is that of our last change, the chains are as we left them."""
    wanted = Wanted(elements=())
    nft.reads = 0
    assert ([], []) == ruleset.find_missing(nft, wanted)  # type: ignore[arg-type]  # a fake
    assert 1 == nft.reads
    nft.flush()
    missing = ruleset.find_missing(nft, wanted)  # type: ignore[arg-type]  # as above
    assert ([], [chain.name for chain in SKELETON]) == missing


def test_an_owned_chain_is_written_anew_when_its_rules_change(nft: FakeNft) -> None:
    """The same number of other rules is not the same chain; it goes with the last jump."""
    element = Element(slot=Slot("conditional4", b"port"), jump="owner4-x", comment=OWNER.tag)
    for rule in ("ip ttl 1 accept", "ip ttl 2 accept", "ip ttl 2 accept"):
        chain = Chain(name="owner4-x", rules=(rule,), owned=True)
        ensure(nft, element, chains=(chain,))
    assert ["ttl 1", "ttl 2"] == [run[-12:-7] for run in nft.runs]
    remove(nft, element.slot, chains=("owner4-x",))
    assert "owner4-x" not in nft.rules


def test_an_owned_chain_without_a_jump_is_removed_too(nft: FakeNft) -> None:
    """What a crash between chain and element left goes with the owner's DEL."""
    nft.rules["owner4-x"] = 1
    remove(nft, chains=("owner4-x", "owner6-x"))
    assert "owner4-x" not in nft.rules


def test_a_refused_transaction_leaves_nothing_to_believe(nft: FakeNft) -> None:
    """After an error in the text everything is looked at again."""
    chain = Chain(name="owner4-x", rules=("nonsense",), owned=True)
    nft.fail = KernelError("run", "`nft`", 22, "syntax error")
    with pytest.raises(KernelError, match="syntax error"):
        ensure(nft, MINE, chains=(chain,))
    assert SLOT not in nft.elements
    nft.fail = None
    nft.rules["output"] = 0
    ensure(nft, MINE)
    assert 1 == nft.rules["output"]


def test_many_changes_are_several_batches(nft: FakeNft) -> None:
    """A batch must fit one send; each is a swap on the generation the one before it made."""
    elements = tuple(
        Element(slot=Slot("hostports4", bytes([n >> 8, n & 255])), comment=OWNER.tag)
        for n in range(600)
    )
    before = nft.commits
    ruleset.ensure(nft, OWNER.tag, Wanted(elements=elements))  # type: ignore[arg-type]  # a fake
    assert before + 3 == nft.commits
    remove(nft)
    assert 1 == len(nft.elements)


def test_generations_wrap_around_without_zero(nft: FakeNft) -> None:
    """The number after the last is 1: zero means that any generation will do."""
    nft.at = 0xFFFFFFFF
    ensure(nft, MINE)
    assert 1 == nft.at
    reads: list[str] = []
    count = nft.count_rules
    nft.count_rules = lambda name: reads.append(name) or count(name)  # type: ignore[method-assign,func-returns-value]  # a spy
    ensure(nft, MINE)
    assert [] == reads


@pytest.mark.parametrize(
    ("address", "mask"),
    [
        ("10.1.2.3/8", "255.0.0.0"),
        ("10.1.2.3/32", "255.255.255.255"),
        ("fd00::1/64", "ffff:ffff:ffff:ffff::"),
    ],
)
def test_a_group_compares_by_its_own_mask(address: str, mask: str) -> None:
    """One chain per prefix length, named by family and length."""
    interface = ip_interface(address)
    chain = Group.of(interface).chain()
    assert f"postrouting{interface.version}-{interface.network.prefixlen}" == chain.name
    assert all(f"& {mask} " in rule for rule in chain.rules)
