# SPDX-License-Identifier: Apache-2.0
"""libnftables in our process and raw map elements, with `nft` as the witness."""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from collections.abc import Callable, Iterator
from ipaddress import ip_address

import pytest

from pycni.errors import AlreadyExists, KernelError, NotFound, Unsupported
from pycni.kernel import nft as nft_module
from pycni.kernel import nftmaps
from pycni.kernel.netns import Netns
from pycni.kernel.nft import Nft
from pycni.kernel.nftmaps import Element, Maps, Protocol, Slot
from tests.fix_netns import json_in, run_in

pytestmark = [pytest.mark.root, pytest.mark.nft]

TABLE = """
table inet try {
    set addresses { type ipv6_addr; }
    map verdicts { type ipv4_addr : verdict; }
    map ports { type ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service; }
    chain target { ip ttl 1 accept; ip ttl 2 accept; }
    chain other { }
    chain gate { type filter hook input priority 0; ip saddr vmap @verdicts; }
}
"""
ADDRESS = Slot("addresses", nftmaps.address(ip_address("2001:db8::1")))
VERDICT = Slot("verdicts", nftmaps.address(ip_address("10.0.0.1")))
PORT = Slot(
    "ports",
    nftmaps.address(ip_address("192.0.2.1")) + nftmaps.protocol(Protocol.SCTP) + nftmaps.port(8080),
)
ELEMENTS = [
    Element(slot=ADDRESS, comment="cni:a"),
    Element(slot=VERDICT, jump="target", comment="cni:a"),
    Element(
        slot=PORT,
        value=nftmaps.address(ip_address("10.0.0.2")) + nftmaps.port(80),
        comment="cni:b",
    ),
]


@pytest.fixture
def nft(host: Netns) -> Iterator[Nft]:
    """nftables on the host, without a table at the end."""
    nft = Nft(host)
    yield nft
    nft.run("flush ruleset")
    nft.close()


@pytest.fixture
def maps(nft: Nft) -> Maps:
    """The maps of a table with one of each kind."""
    nft.run(TABLE)
    return nft.maps("inet", "try")


# -- libnftables -----------------------------------------------------------------------------------


def test_commands_are_one_transaction(host: Netns, nft: Nft) -> None:
    """The last line fails, so the first has not happened; the error is nft's first line."""
    with pytest.raises(NotFound) as failed:
        nft.run("add table inet one\nadd chain inet one c\nadd rule inet two c accept")
    assert errno.ENOENT == failed.value.errno
    assert "run `nft add table inet one` and 2 more" in failed.value.msg
    assert "No such file or directory" in failed.value.msg
    assert "" == run_in(host, "nft", "list", "ruleset")


@pytest.mark.parametrize(
    ("command", "error", "code", "text"),
    [
        ("create table inet try", AlreadyExists, errno.EEXIST, "File exists"),
        ("delete table inet none", NotFound, errno.ENOENT, "No such file or directory"),
        ("add rool", KernelError, errno.EINVAL, "syntax error"),
        ("add table \0", KernelError, errno.EINVAL, "NUL character"),
    ],
)
def test_errors_carry_the_kernels_errno_and_nfts_words(
    nft: Nft, command: str, error: type[KernelError], code: int, text: str
) -> None:
    """What the kernel refuses has its errno; what nft itself refuses is EINVAL."""
    nft.run("add table inet try")
    with pytest.raises(KernelError, match=text) as failed:
        nft.run(command)
    assert error is type(failed.value)
    assert code == failed.value.errno
    nft.run("delete table inet try")


def test_json_goes_in_and_comes_out(host: Netns, nft: Nft) -> None:
    """Objects go in as the library's JSON; lists come back with handles, without metainfo."""
    nft.run_json([{"add": {"table": {"family": "ip", "name": "made"}}}])
    [listed] = nft.list_json("list tables")
    assert ("ip", "made") == (listed["table"]["family"], listed["table"]["name"])
    assert "handle" in listed["table"]
    assert [listed] == nft.run_json([{"list": {"tables": None}}])
    witness = json_in(host, "nft", "-j", "list", "tables")["nftables"]
    assert ["made"] == [item["table"]["name"] for item in witness if "table" in item]


def test_text_after_json_is_text_again(nft: Nft) -> None:
    """The output format belongs to the call, not to the context."""
    nft.run("add table ip made")
    nft.list_json("list tables")
    assert "table ip made\n" == nft.run("list tables")


def test_each_namespace_has_its_own_ruleset(make_netns: Callable[..., Netns], nft: Nft) -> None:
    """A context given a namespace works there, whichever thread uses it."""
    other_netns = make_netns("other")
    other = Nft(other_netns)
    nft.run("add table ip here")
    thread = threading.Thread(target=other.run, args=("add table ip there",))
    thread.start()
    thread.join()
    assert "table ip there" in run_in(other_netns, "nft", "list", "tables")
    assert "table ip here\n" == nft.run("list tables")
    assert not nft.maps("ip", "there").table_exists()
    assert other.maps("ip", "there").table_exists()
    other.close()


def test_interface_names_are_those_of_the_namespace(
    make_netns: Callable[..., Netns], nft: Nft
) -> None:
    """`iif` is an index, looked up where the rule will be, not where the process is."""
    there = make_netns("there", loopback=True)
    run_in(there, *"ip link add only0 type veth peer only1".split())
    other = Nft(there)
    other.run("add table ip t; add chain ip t c; add rule ip t c iif only0 accept")
    assert 'iif "only0"' in run_in(there, "nft", "list", "ruleset")
    with pytest.raises(KernelError):
        nft.run("add table ip t; add chain ip t c; add rule ip t c iif only0 accept")
    other.close()


def test_a_closed_context_opens_again(nft: Nft) -> None:
    """close twice is fine, and so is using it afterwards."""
    nft.run("add table ip made")
    nft.close()
    nft.close()
    assert "table ip made\n" == nft.run("list tables")
    assert nft.maps("ip", "made").table_exists()


def test_nothing_stays_open(host: Netns) -> None:
    """A closed context has given back its descriptors."""

    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    nft = Nft(host)
    before = descriptors()
    nft.run("list tables")
    nft.probe()
    assert before < descriptors()
    nft.close()
    assert before == descriptors()


def test_without_the_library_the_error_says_what_to_install(
    host: Netns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unsupported, with the package's name; looking at maps works without the library."""

    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    nft_module._library.cache_clear()
    monkeypatch.setattr(ctypes, "CDLL", missing)
    nft = Nft(host)
    try:
        with pytest.raises(Unsupported, match="libnftables1"):
            nft.run("list tables")
        with pytest.raises(Unsupported, match="libnftables1"):
            nft.probe()
        assert not nft.maps("inet", "none").table_exists()
    finally:
        nft.close()
        nft_module._library.cache_clear()


# -- maps ------------------------------------------------------------------------------------------


def test_elements_are_those_nft_shows(host: Netns, maps: Maps) -> None:
    """Addresses, verdicts and concatenations, with comments, as nft reads them."""
    assert maps.commit(add=ELEMENTS)
    listed = run_in(host, "nft", "list", "table", "inet", "try")
    for shown in (
        '{ 2001:db8::1 comment "cni:a" }',
        '{ 10.0.0.1 comment "cni:a" : jump target }',
        '{ 192.0.2.1 . sctp . 8080 comment "cni:b" : 10.0.0.2 . 80 }',
    ):
        assert shown in listed


def test_elements_that_nft_made_are_read(host: Netns, maps: Maps) -> None:
    """Both ways of reading give back what `nft` was told."""
    for element in (
        'addresses { 2001:db8::1 comment "cni:a" }',
        'verdicts { 10.0.0.1 comment "cni:a" : jump target }',
        'ports { 192.0.2.1 . sctp . 8080 comment "cni:b" : 10.0.0.2 . 80 }',
    ):
        run_in(host, "nft", f"add element inet try {element}")
    assert ELEMENTS == maps.find([ADDRESS, VERDICT, PORT])
    listed = [maps.list_elements(name) for name in ("addresses", "verdicts", "ports")]
    assert [[element] for element in ELEMENTS] == listed


def test_what_is_not_there_is_none(nft: Nft, maps: Maps) -> None:
    """A free slot, a map that does not exist, a table that does not: nothing, and no error."""
    absent = Slot("nomap", ADDRESS.key)
    assert maps.commit(add=ELEMENTS[:1])
    assert [ELEMENTS[0], None, None] == maps.find([ADDRESS, VERDICT, absent])
    assert [] == maps.find([])
    assert [] == maps.list_elements("nomap")
    nowhere = nft.maps("inet", "nowhere")
    assert [None] == nowhere.find([ADDRESS])
    assert [] == nowhere.list_elements("addresses")
    assert 0 == nowhere.count_rules("target")
    assert {} == nowhere.list_chains()
    assert not nowhere.table_exists()


def test_elements_are_listed_by_the_beginning_of_their_comment(maps: Maps) -> None:
    """Among many elements, in several messages, only those asked for."""
    slots = [Slot("addresses", number.to_bytes(16, "big")) for number in range(1000)]
    maps.commit(add=[Element(slot=slot, comment="cni:crowd:x") for slot in slots])
    wanted = {Element(slot=ADDRESS, comment="cni:one:y"), Element(slot=slots[0], comment="cni:o")}
    maps.commit(remove=[slots[0]], add=wanted)
    assert wanted == set(maps.list_elements("addresses", comment_prefix="cni:o"))
    assert 1001 == len(maps.list_elements("addresses"))


def test_a_slot_changes_hands_in_one_transaction(maps: Maps) -> None:
    """Removal and addition of the same key: there is no moment without an element."""
    maps.commit(add=ELEMENTS)
    heir = Element(slot=VERDICT, jump="other", comment="cni:heir")
    assert maps.commit(remove=[VERDICT], add=[heir])
    assert [heir] == maps.find([VERDICT])


def test_a_transaction_is_whole_or_nothing(maps: Maps) -> None:
    """An element that exists already makes the others of the batch not happen."""
    maps.commit(add=ELEMENTS[1:2])
    with pytest.raises(AlreadyExists, match="change maps of table inet try"):
        maps.commit(add=ELEMENTS)
    assert [None, ELEMENTS[1], None] == maps.find([ADDRESS, VERDICT, PORT])
    with pytest.raises(NotFound):
        maps.commit(remove=[VERDICT, ADDRESS])
    assert [ELEMENTS[1]] == maps.find([VERDICT])


def test_a_swap_planned_on_an_older_ruleset_is_refused(nft: Nft, maps: Maps) -> None:
    """Whoever changed anything in between, even in another table, makes the plan void."""
    generation = maps.generation()
    assert maps.commit(add=ELEMENTS[:1], generation=generation)
    assert generation + 1 == maps.generation()
    assert not maps.commit(add=ELEMENTS[1:], generation=generation)
    generation = maps.generation()
    nft.run("add table ip another")
    assert not maps.commit(remove=[ADDRESS], generation=generation)
    assert [ELEMENTS[0], None] == maps.find([ADDRESS, VERDICT])
    assert maps.commit(remove=[ADDRESS], generation=maps.generation())


def test_an_empty_change_is_no_transaction(maps: Maps) -> None:
    """Nothing to do counts as done, whatever the generation."""
    generation = maps.generation()
    assert maps.commit(generation=1)
    assert generation == maps.generation()


def test_chains_tell_their_rules_and_their_jumps(maps: Maps) -> None:
    """uses minus rules is what still jumps there; a chain without either can be dropped."""
    maps.commit(add=ELEMENTS)
    assert {"target": 3, "other": 0, "gate": 1} == maps.list_chains()
    assert [3, None, 0] == maps.chain_uses(["target", "none", "other"])
    assert [2, 0, 1] == [maps.count_rules(name) for name in ("target", "other", "gate")]
    assert maps.commit(remove=[VERDICT], drop_chains=["target", "other"])
    assert {"gate": 1} == maps.list_chains()


def test_a_chain_in_use_is_not_dropped(maps: Maps) -> None:
    """The kernel refuses, and the rest of the batch with it."""
    maps.commit(add=ELEMENTS)
    with pytest.raises(KernelError) as refused:
        maps.commit(remove=[ADDRESS], drop_chains=["target"])
    assert errno.EBUSY == refused.value.errno
    assert [ELEMENTS[0]] == maps.find([ADDRESS])


def test_maps_are_safe_to_share_between_threads(maps: Maps) -> None:
    """Interleaved readers and writers each get the answers to their own questions."""
    failures: list[BaseException] = []

    def work(number: int) -> None:
        slot = Slot("addresses", number.to_bytes(16, "big"))
        element = Element(slot=slot, comment=f"cni:{number}")
        try:
            for _ in range(50):
                assert maps.commit(add=[element])
                assert [element, None] == maps.find([slot, ADDRESS])
                assert [element] == maps.list_elements("addresses", comment_prefix=element.comment)
                assert maps.commit(remove=[slot])
        except BaseException as exc:  # noqa: BLE001 - raised again in the test's own thread
            failures.append(exc)

    threads = [threading.Thread(target=work, args=(100 + number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [] == failures
