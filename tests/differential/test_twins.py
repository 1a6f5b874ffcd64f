# SPDX-License-Identifier: Apache-2.0
"""Our plugins beside Debian's Go plugins: same ADD, either's DEL, either's CHECK.

Differences are lines: "-" is what only theirs has or does, "+" only ours. Those that are meant are
listed in deviations.toml, and nothing stays there that no test shows any more.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pycni.kernel.netns import Netns
from pycni.model.request import Verb
from tests.differential.cases import CASES, EDGE, IPTABLES, MUTATIONS, Mutation
from tests.differential.twins import (
    Case,
    Deviations,
    GoNode,
    collect,
    complaint,
    delete,
    look,
    request_config,
    result_lines,
    run_chain,
    switched,
)
from tests.harness import Node

pytestmark = [pytest.mark.root, pytest.mark.go]

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
every_case_with_check = pytest.mark.parametrize(
    "case", [case for case in CASES if case.has_check], ids=lambda case: case.name
)
every_mutation = pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: each.name)
every_end = pytest.mark.parametrize("alive", [True, False], ids=["alive", "dead and forgotten"])

DEVIATIONS = Deviations()
OTHER_TESTS = 2 + len(IPTABLES)  # that of the old iptables, and the last one
JUDGES: tuple[tuple[type[Node], str], ...] = ((GoNode, "theirs"), (Node, "ours"))
# What Go's DEL leaves after Go's ADD, by the case's name.
_left_by_go: dict[str, set[str]] = {}


@pytest.fixture
def make_node(
    make_netns: Callable[..., Netns], tmp_path: Path
) -> Iterator[Callable[[type[Node]], Node]]:
    """Make fresh nodes, each with a directory of its own for what plugins write."""
    made: list[Node] = []

    def make(kind: type[Node]) -> Node:
        directory = tmp_path / f"node{len(made)}"
        directory.mkdir()
        made.append(kind(make_netns("twin", loopback=True), make_netns, directory))
        return made[-1]

    yield make
    for node in made:
        node.side.close()


@pytest.fixture
def go(make_node: Callable[[type[Node]], Node]) -> Node:
    """A node run by the Go plugins."""
    return make_node(GoNode)


@pytest.fixture
def ours(make_node: Callable[[type[Node]], Node]) -> Node:
    """A node run by ours."""
    return make_node(Node)


@pytest.fixture
def left_by_go(make_node: Callable[[type[Node]], Node]) -> Callable[[Case], set[str]]:
    """What Go's plugins leave themselves: bridge, forwarding, the chains all containers share."""

    def left(case: Case) -> set[str]:
        if case.name not in _left_by_go:
            left, said = after_delete(make_node(GoNode), GoNode, case, alive=True)
            assert "" == said
            _left_by_go[case.name] = left
        return _left_by_go[case.name]

    return left


def after_delete(node: Node, kind: type[Node], case: Case, alive: bool) -> tuple[set[str], str]:
    """What is left after ADD by the node's plugins and DEL by `kind`, and what DEL said.

    Not `alive` is a container that is dead and forgotten: without a namespace or a result.
    """
    before = look(node, container=alive)
    result = run_chain(node, case, Verb.ADD)
    if not alive:
        node.forget_container("c1")
    deleter = switched(node, kind)
    said = delete(deleter, case, result) if alive else delete(deleter, case, None, netns="")
    return set(before.diff(look(node, container=alive))), said


def expect_explained(lines: list[str]) -> None:
    """Fail for differences that nobody meant."""
    left = DEVIATIONS.unexplained(lines)
    assert not left, "\n".join(line[:300] for line in left)


# -- form 1: the same ADD --------------------------------------------------------------------------


@every_case
def test_the_same_add_makes_the_same_world(case: Case, go: Node, ours: Node) -> None:
    """Result, links, addresses, routes, rules, sysctls and files are theirs."""
    theirs = result_lines(go, run_chain(go, case, Verb.ADD))
    mine = result_lines(ours, run_chain(ours, case, Verb.ADD))
    expect_explained(
        [
            *(f"- {line}" for line in sorted(theirs - mine)),
            *(f"+ {line}" for line in sorted(mine - theirs)),
            *look(go).diff(look(ours)),
        ]
    )


@pytest.mark.parametrize("case", IPTABLES, ids=lambda case: case.name)
def test_the_iptables_backend_makes_their_rules(case: Case, go: Node, ours: Node) -> None:
    """Byte for byte and in their order, of both families; a second ADD of portmap adds none."""
    theirs, mine = run_chain(go, case, Verb.ADD), run_chain(ours, case, Verb.ADD)
    assert nat_rules(go) == nat_rules(ours)
    assert any("CNI-DN-" in line for line in nat_rules(ours))
    for node, result in ((go, theirs), (ours, mine)):
        portmap = request_config(node, case.chain[1], case, result)
        node.call(Verb.ADD, portmap, "c1")
        node.call(Verb.ADD, portmap, "c1")
    assert nat_rules(go) == nat_rules(ours)


def nat_rules(node: Node) -> list[str]:
    """Chains and rules as iptables-save prints them."""
    return [
        line.split(" [")[0]
        for program in ("iptables-save", "ip6tables-save")
        for line in node.host(program, "-t", "nat").splitlines()
        if line.startswith((":CNI", "-A"))
    ]


# -- form 2: the other's DEL -----------------------------------------------------------------------


@every_end
@every_case
def test_our_del_after_their_add_leaves_no_more_than_theirs(
    case: Case, alive: bool, go: Node, left_by_go: Callable[[Case], set[str]]
) -> None:
    """Rules of iptables, leases, tuning's backup: all found, also without netns and result."""
    left, said = after_delete(go, Node, case, alive)
    assert "" == said
    assert [] == [line for line in left if re.search(r"element of|CNI-.*[0-9a-f]{15}|'c1", line)]
    expect_explained([f"DEL by ours leaves {line}" for line in left - left_by_go(case)])


@every_case
def test_their_del_after_our_add_leaves_what_our_gc_removes(
    case: Case, ours: Node, left_by_go: Callable[[Case], set[str]]
) -> None:
    """Elements of our nftables table stay, which Go knows nothing of, until our next GC."""
    before = look(ours)
    left, said = after_delete(ours, GoNode, case, alive=True)
    complaints = [f"DEL by theirs of {case.name}: {said}"] if said else []
    left -= left_by_go(case)
    expect_explained([*complaints, *(f"DEL by theirs leaves {line}" for line in left)])
    collect(ours, case)
    left = set(before.diff(look(ours))) - left_by_go(case)
    assert not left, "\n".join(left)


def test_rules_of_the_old_iptables_go_too(
    go: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node where `iptables` is the old one: our CHECK accepts its rules, our DEL removes them."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("iptables", "ip6tables"):
        (programs / name).symlink_to(f"/usr/sbin/{name}-legacy")
    monkeypatch.setattr(GoNode, "search_path", f"{programs}:{os.environ['PATH']}")
    result = run_chain(go, EDGE, Verb.ADD)
    assert any("CNI-" in fact for topic, fact in look(go).facts if topic == "host iptables")
    mine = switched(go, Node)
    assert "" == complaint(mine, EDGE, result)
    assert "" == delete(mine, EDGE, result)
    left = "".join(fact for topic, fact in look(go).facts if topic == "host iptables")
    assert "CNI-HOSTPORT-DNAT" in left
    assert 'id: \\"c1\\"' not in left


# -- form 3: the other's CHECK ---------------------------------------------------------------------


@every_case_with_check
def test_our_check_accepts_their_add(case: Case, go: Node) -> None:
    """What Go made is as good as ours: nobody restarts containers for a switch of plugins."""
    result = run_chain(go, case, Verb.ADD)
    assert "" == complaint(switched(go, Node), case, result)


@every_case_with_check
def test_their_check_accepts_our_add(case: Case, ours: Node) -> None:
    """As far as it accepts what they made themselves."""
    result = run_chain(ours, case, Verb.ADD)
    said = complaint(switched(ours, GoNode), case, result)
    expect_explained([f"+ CHECK by theirs of {case.name}: {said}"] if said else [])


@every_case_with_check
def test_each_check_accepts_its_own_add(case: Case, go: Node, ours: Node) -> None:
    """Both implementations at one: all is well."""
    for node, who in ((ours, "+ CHECK by ours"), (go, "- CHECK by theirs")):
        said = complaint(node, case, run_chain(node, case, Verb.ADD))
        expect_explained([f"{who} of {case.name}: {said}"] if said else [])


# -- form 4: one thing changes ---------------------------------------------------------------------


@every_mutation
def test_every_check_notices_what_happened(mutation: Mutation, go: Node, ours: Node) -> None:
    """Theirs of what they made, ours of what we made, ours of what they made."""
    case, silent = mutation.case, []
    for node, who in ((go, "theirs"), (ours, "ours")):
        result = run_chain(node, case, Verb.ADD)
        # Each by its own plugins, and both by ours.
        judges = [(kind, name) for kind, name in JUDGES if name == "ours" or name == who]
        able = [(k, n) for k, n in judges if not complaint(switched(node, k), case, result)]
        assert (Node, "ours") in able
        mutation.happen(node)
        silent += [
            f"CHECK by {name} of what {who} made notices nothing: {mutation.name}"
            for kind, name in able
            if not complaint(switched(node, kind), case, result)
        ]
    expect_explained(silent)


# -- the list of deviations ------------------------------------------------------------------------


def test_every_deviation_was_seen(request: pytest.FixtureRequest) -> None:
    """An entry that nothing shows any more is to be deleted; needs a run of the whole file."""
    ran = sum(item.path == request.path for item in request.session.items)
    forms = 4 * len(CASES) + 3 * sum(case.has_check for case in CASES) + len(MUTATIONS)
    if ran == forms + OTHER_TESTS:
        assert [] == DEVIATIONS.stale()
