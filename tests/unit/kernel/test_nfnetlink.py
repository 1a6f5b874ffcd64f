# SPDX-License-Identifier: Apache-2.0
"""The netfilter socket against a scripted kernel: bulk questions, transactions, lost answers."""

from __future__ import annotations

import errno
from collections.abc import Callable
from ipaddress import ip_address

import pytest

from pycni.errors import Busy, KernelError, Unsupported
from pycni.kernel import nfnetlink, nftmaps, nlsocket, nlwire
from pycni.kernel.nfnetlink import Answer, NfSocket, Request
from pycni.kernel.nftmaps import Element, Maps, Protocol, Slot
from tests.unit.kernel.test_nlsocket import Request as Sent
from tests.unit.kernel.test_nlsocket import ScriptedSocket, error

Script = Callable[[Sent], list[bytes | OSError]]
Connect = Callable[[Script], tuple[NfSocket, ScriptedSocket]]

ASK = Request(nfnetlink.kind(nfnetlink.NFNL_SUBSYS_NFTABLES, 1), nfnetlink.body(1, b"ask!"))


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Connect:
    """An NfSocket whose kernel is a script."""

    def make(script: Script) -> tuple[NfSocket, ScriptedSocket]:
        scripted = ScriptedSocket(script)
        monkeypatch.setattr(nlsocket, "open_socket", lambda *_: scripted)
        return NfSocket(), scripted

    return make


def data(seq: int, payload: bytes) -> bytes:
    """An answer with data behind its nfgenmsg."""
    return nlwire.message(0xA00, 0, seq, nfnetlink.body(1) + payload)


def test_many_questions_go_in_one_send_and_are_answered_in_order(connect: Connect) -> None:
    """Errors are answers too: what is not there is an answer for whoever asks."""

    def script(sent: Sent) -> list[bytes | OSError]:
        seq = sent[2]
        return [error(seq, errno.ENOENT, "no") if seq % 2 else data(seq, b"%4d" % seq)]

    socket, kernel = connect(script)
    answers = socket.ask_all([ASK] * 4, "ask", "x")
    assert [1] == [len(answers) // len(send) for send in kernel.sends]
    assert [(2, b""), (0, b"   2"), (2, b""), (0, b"   4")] == [each[:2] for each in answers]
    assert "no" == answers[0].explanation


def test_too_many_questions_for_one_send_are_split(connect: Connect) -> None:
    """The answers must fit the receive queue."""
    socket, kernel = connect(lambda sent: [data(sent[2], b"")])
    assert 300 == len(socket.ask_all([ASK] * 300, "ask", "x"))
    assert [256, 44] == [len(send) for send in kernel.sends]


def test_a_question_without_an_answer_is_an_error_of_its_own(connect: Connect) -> None:
    """The others keep theirs."""
    socket, _ = connect(lambda sent: [] if sent[2] == 2 else [data(sent[2], b"")])
    codes = [answer.code for answer in socket.ask_all([ASK] * 3, "ask", "x")]
    assert [0, errno.EIO, 0] == codes


def test_a_lost_queue_is_busy_and_the_next_exchange_starts_clean(connect: Connect) -> None:
    """ENOBUFS: the kernel dropped answers; leftovers are read away before the next question."""
    answers: list[list[bytes | OSError]] = [[OSError(errno.ENOBUFS, "full"), b"left"]]
    socket, _ = connect(lambda sent: answers.pop() if answers else [data(sent[2], b"")])
    with pytest.raises(Busy):
        socket.ask_all([ASK], "ask", "x")
    assert [0] == [answer.code for answer in socket.ask_all([ASK], "ask", "x")]


def test_a_transaction_has_a_beginning_an_end_and_one_ack(connect: Connect) -> None:
    """Only the last request asks for an acknowledgement: it is sent after the commit."""

    def script(sent: Sent) -> list[bytes | OSError]:
        return [error(sent[2], 0)] if sent[1] & nlwire.NLM_F_ACK else []

    socket, kernel = connect(script)
    assert Answer(0, b"", "") == socket.transact([ASK, ASK], "change", "x", generation=7)
    [[begin, first, last, end]] = kernel.sends
    assert [0x10, 0xA01, 0xA01, 0x11] == [sent[0] for sent in (begin, first, last, end)]
    # nfgenmsg with the subsystem, then the generation, both in network order.
    assert bytes([0, 0, 0, 10]) + bytes([8, 0, 1, 0, 0, 0, 0, 7]) == begin[3]
    assert [False, True] == [bool(sent[1] & nlwire.NLM_F_ACK) for sent in (first, last)]


def test_a_transactions_first_refusal_counts(connect: Connect) -> None:
    """Turned away as a whole (an answer to its beginning), or by one request in the middle."""
    for refused in (0, 2):
        socket, _ = connect(
            lambda sent, at=refused + 1: (  # type: ignore[misc]  # bound now, on purpose
                [error(sent[2], errno.ERESTART)]
                if sent[2] == at
                else [error(sent[2], errno.EEXIST)] * bool(sent[2] == 4)
            )
        )
        answer = socket.transact([ASK] * 3, "change", "x")
        assert errno.ERESTART == answer.code


def test_a_transaction_without_an_answer_has_not_succeeded(connect: Connect) -> None:
    """Silence is an error, not a success."""
    socket, _ = connect(lambda sent: [])
    maps = Maps(socket, family="inet", table="t")
    with pytest.raises(KernelError, match="change maps of table inet t: no answer"):
        maps.commit(remove=[Slot("m", b"1234")])


def test_a_lookup_that_fails_otherwise_than_by_absence_is_an_error(connect: Connect) -> None:
    """EPERM is not "free"."""
    socket, _ = connect(lambda sent: [error(sent[2], errno.EPERM)])
    maps = Maps(socket, family="inet", table="t")
    with pytest.raises(KernelError, match="inet t, map m"):
        maps.find([Slot("m", b"1234")])


def test_a_kernel_without_nftables_says_so(connect: Connect) -> None:
    """EOPNOTSUPP: no such subsystem."""
    socket, _ = connect(lambda sent: [error(sent[2], errno.EOPNOTSUPP)])
    with pytest.raises(Unsupported):
        Maps(socket, family="inet", table="t").generation()


def test_fields_are_in_network_order_and_padded_to_four_bytes() -> None:
    """As nf_tables keeps them in the registers of a concatenation."""
    assert bytes([192, 0, 2, 1]) == nftmaps.address(ip_address("192.0.2.1"))
    assert bytes(15) + b"\x01" == nftmaps.address(ip_address("::1"))
    assert bytes([132, 0, 0, 0]) == nftmaps.protocol(Protocol.SCTP)
    assert bytes([0x1F, 0x90, 0, 0]) == nftmaps.port(8080)


def test_elements_without_key_or_comment_are_read_as_they_are() -> None:
    """A catch-all element is nobody's; foreign user data is no comment."""
    key = nlwire.nest(1, nlwire.attr(1, b"key."))
    foreign = nlwire.attr(6, bytes([9, 2, 1, 1]) + bytes([0, 3]) + b"me\0")
    silent = nlwire.attr(6, bytes([9, 2, 1, 1]))
    catch_all = nlwire.u32(3, 2)
    listed = nlwire.nest(
        3,
        nlwire.nest(1, catch_all),
        nlwire.nest(1, key),
        nlwire.nest(1, key, silent),
        nlwire.nest(1, key, foreign),
    )
    slot = Slot("m", b"key.")
    bare = Element(slot=slot)
    assert [bare, bare, Element(slot=slot, comment="me")] == list(nftmaps._elements("m", listed))
