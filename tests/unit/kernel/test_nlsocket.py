# SPDX-License-Identifier: Apache-2.0
"""The netlink socket against a scripted kernel: what real kernels do only under stress."""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable
from typing import Any

import pytest

from pycni.errors import AlreadyExists, Busy, KernelError, LinkExists, LinkNotFound, NotFound
from pycni.kernel import nlsocket, nlwire
from pycni.kernel.nlsocket import Mutation, NetlinkSocket
from pycni.kernel.nlwire import NLMSG_DONE, NLMSG_ERROR

REPLY = 16
Request = tuple[int, int, int, bytes]
Answer = bytes | OSError


class ScriptedSocket:
    """Answers each request as `script` says; an answer that is an exception is raised."""

    def __init__(self, script: Callable[[Request], list[Answer]]) -> None:
        self.script = script
        self.sends: list[list[Request]] = []
        self.queue: list[Answer] = []
        self.closed = False
        self.send_error: OSError | None = None

    def setsockopt(self, *_: Any) -> None: ...

    def close(self) -> None:
        self.closed = True

    def send(self, data: bytes) -> int:
        if self.send_error is not None:
            raise self.send_error
        requests = nlwire.messages(data)
        self.sends.append(requests)
        for request in requests:
            self.queue += self.script(request)
        return len(data)

    def recv(self, _: int, flags: int = 0) -> bytes:
        if not self.queue:
            raise BlockingIOError(errno.EAGAIN, "nothing there")
        answer = self.queue.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer


Connect = Callable[[Callable[[Request], list[Answer]]], tuple[NetlinkSocket, ScriptedSocket]]


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Connect:
    """A NetlinkSocket whose kernel is a script."""

    def make(
        script: Callable[[Request], list[Answer]],
    ) -> tuple[NetlinkSocket, ScriptedSocket]:
        scripted = ScriptedSocket(script)
        monkeypatch.setattr(nlsocket, "open_socket", lambda *_: scripted)
        return NetlinkSocket(), scripted

    return make


def error(seq: int, code: int, text: str = "") -> bytes:
    payload = struct.pack("=iIHHII", -code, 16, REPLY, 0, seq, 0)
    if not text:
        return nlwire.message(NLMSG_ERROR, nlwire.NLM_F_CAPPED, seq, payload)
    flags = nlwire.NLM_F_CAPPED | nlwire.NLM_F_ACK_TLVS
    return nlwire.message(NLMSG_ERROR, flags, seq, payload + nlwire.text(1, text))


def done(seq: int, code: int = 0, flags: int = 0) -> bytes:
    return nlwire.message(NLMSG_DONE, nlwire.NLM_F_MULTI | flags, seq, struct.pack("=i", -code))


def mutation(target: str | int = "x", body: bytes = b"", **failures: Any) -> Mutation:
    return Mutation(REPLY, nlwire.NLM_F_CREATE, body, "add", target, failures.get("failures", {}))


def test_a_query_returns_the_answer(connect: Connect) -> None:
    """Answers to earlier requests are passed over."""
    netlink, kernel = connect(
        lambda request: [
            nlwire.message(REPLY, 0, request[2] + 1000, b"old!"),
            nlwire.message(REPLY, 0, request[2], b"body"),
        ]
    )
    assert b"body" == netlink.query(18, b"ask!", "find", "x")
    assert [[(18, nlwire.NLM_F_REQUEST, 1, b"ask!")]] == kernel.sends


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (errno.ENODEV, LinkNotFound),
        (errno.ENOENT, NotFound),
        (errno.EEXIST, AlreadyExists),
        (errno.EBUSY, Busy),
        (errno.EINVAL, KernelError),
    ],
)
def test_a_refusal_is_an_error_by_errno(
    connect: Connect, code: int, expected: type[KernelError]
) -> None:
    """It carries the operation, the target, the errno and the kernel's words."""
    netlink, _ = connect(lambda request: [error(request[2], code, "because")])
    with pytest.raises(KernelError, match=r"^find index 7: because") as caught:
        netlink.query(18, b"", "find", 7)
    assert expected is type(caught.value)
    assert (code, "because") == (caught.value.errno, caught.value.extack)


def test_an_object_may_read_an_errno_its_own_way(connect: Connect) -> None:
    """A link that exists is more than something that exists."""
    netlink, _ = connect(lambda request: [error(request[2], errno.EEXIST)])
    with pytest.raises(LinkExists, match="add x: File exists"):
        netlink.mutate([mutation(failures={errno.EEXIST: LinkExists})])


def test_no_permission_says_what_is_missing(connect: Connect) -> None:
    """The hint is in the details."""
    netlink, _ = connect(lambda request: [error(request[2], errno.EPERM)])
    with pytest.raises(KernelError, match="CAP_NET_ADMIN"):
        netlink.mutate([mutation()])


def test_the_kernels_private_errno_is_not_shown(connect: Connect) -> None:
    """524 means nothing to anybody."""
    netlink, _ = connect(lambda request: [error(request[2], 524)])
    with pytest.raises(KernelError, match="Operation not supported") as caught:
        netlink.mutate([mutation()])
    assert errno.EOPNOTSUPP == caught.value.errno


def test_several_mutations_are_one_send(connect: Connect) -> None:
    """Each with its own acknowledgement; what else the kernel says is passed over."""
    netlink, kernel = connect(
        lambda request: [nlwire.message(REPLY, 0, request[2], b"echo") + error(request[2], 0)]
    )
    netlink.mutate([mutation("a"), mutation("b"), mutation("c")])
    flags = nlwire.NLM_F_REQUEST | nlwire.NLM_F_ACK | nlwire.NLM_F_CREATE
    assert [[(REPLY, flags, seq, b"") for seq in (1, 2, 3)]] == kernel.sends


def test_the_first_refusal_is_raised_with_the_others_as_notes(connect: Connect) -> None:
    """Named by its own operation and target, not the first one's."""
    codes = iter([0, errno.ENODEV, 0, errno.EINVAL])
    netlink, _ = connect(lambda request: [error(request[2], next(codes))])
    with pytest.raises(LinkNotFound, match=r"^add b: No such device") as caught:
        netlink.mutate([mutation(target) for target in "abcd"])
    assert "also: add d: Invalid argument" in caught.value.details


def test_a_long_batch_is_sent_in_pieces(connect: Connect) -> None:
    """By number and by size, in order."""
    netlink, kernel = connect(lambda request: [error(request[2], 0)])
    netlink.mutate([mutation() for _ in range(600)])
    assert [256, 256, 88] == [len(send) for send in kernel.sends]
    assert list(range(1, 601)) == [request[2] for send in kernel.sends for request in send]
    kernel.sends.clear()
    netlink.mutate([mutation(body=bytes(40_000)), mutation(body=bytes(40_000)), mutation()])
    assert [1, 2] == [len(send) for send in kernel.sends]
    netlink.mutate([])
    assert 2 == len(kernel.sends)


def test_a_refusal_ends_a_batch_in_pieces(connect: Connect) -> None:
    """The piece with the refusal is the last."""
    netlink, kernel = connect(
        lambda request: [error(request[2], errno.EINVAL if request[2] == 10 else 0)]
    )
    outcomes = netlink.apply([mutation() for _ in range(600)])
    assert (256, 1) == (len(outcomes), len(kernel.sends))
    assert [9] == [position for position, outcome in enumerate(outcomes) if outcome]


def test_a_dump_is_read_to_its_end(connect: Connect) -> None:
    """Over several receives, without the answers to something else."""
    netlink, _ = connect(
        lambda request: [
            nlwire.message(REPLY, 0, request[2], b"one!")
            + nlwire.message(REPLY, 0, request[2] + 1000, b"old!"),
            nlwire.message(REPLY, 0, request[2], b"two!") + done(request[2]),
        ]
    )
    assert [b"one!", b"two!"] == netlink.dump(18, b"", "list", "things")


def test_an_interrupted_dump_is_asked_for_again(connect: Connect) -> None:
    """Whether a message says so, or the errno, or the queue overflowed."""
    interruption = iter(["flag", "errno", "overflow", ""])

    def script(request: Request) -> list[Answer]:
        part = nlwire.message(REPLY, 0, request[2], b"part")
        match next(interruption):
            case "flag":
                flagged = nlwire.message(REPLY, nlwire.NLM_F_DUMP_INTR, request[2], b"part")
                return [flagged, done(request[2])]
            case "errno":
                return [part, done(request[2], errno.EINTR)]
            case "overflow":
                return [part, OSError(errno.ENOBUFS, "overrun"), part, done(request[2])]
            case _:
                return [part, done(request[2])]

    netlink, kernel = connect(script)
    assert [b"part"] == netlink.dump(18, b"", "list", "things")
    assert 4 == len(kernel.sends)
    assert [] == kernel.queue


def test_a_dump_that_never_settles_is_given_up(connect: Connect) -> None:
    """As something that may succeed later."""
    netlink, _ = connect(lambda request: [done(request[2], flags=nlwire.NLM_F_DUMP_INTR)])
    with pytest.raises(Busy, match="keeps changing") as caught:
        netlink.dump(18, b"", "list", "things")
    assert 11 == caught.value.code


@pytest.mark.parametrize("answer", [done, error], ids=["at its end", "at once"])
def test_a_dump_may_be_refused(connect: Connect, answer: Callable[[int, int], bytes]) -> None:
    """With an errno in place of the result; only an interruption is tried again."""
    netlink, kernel = connect(lambda request: [answer(request[2], errno.EBUSY)])
    with pytest.raises(Busy, match="list things: Device or resource busy"):
        netlink.dump(18, b"", "list", "things")
    assert 1 == len(kernel.sends)


def test_an_answer_that_does_not_come_is_an_error(connect: Connect) -> None:
    """Nobody waits for ever with the lock held."""
    netlink, _ = connect(lambda _: [])
    with pytest.raises(KernelError, match="find x: no answer") as caught:
        netlink.query(18, b"", "find", "x")
    assert errno.ETIMEDOUT == caught.value.errno


def test_what_an_exchange_left_behind_is_drained(connect: Connect) -> None:
    """The next one starts with an empty queue, however the last one ended."""
    netlink, kernel = connect(
        lambda request: [OSError(errno.ENOBUFS, "overrun"), error(request[2], 0)]
    )
    with pytest.raises(Busy):
        netlink.mutate([mutation()])
    kernel.queue += [b"rubbish", OSError(errno.ENOBUFS, "again"), b"more"]
    kernel.script = lambda request: [error(request[2], 0)]
    netlink.mutate([mutation()])
    assert [] == kernel.queue


def test_a_broken_socket_is_an_error_of_ours(connect: Connect) -> None:
    """On sending, on receiving and on draining."""
    netlink, kernel = connect(lambda _: [OSError(errno.EBADF, "closed")])
    with pytest.raises(KernelError, match="find x: Bad file descriptor"):
        netlink.query(18, b"", "find", "x")
    kernel.queue = [OSError(errno.EBADF, "closed")]
    with pytest.raises(KernelError, match="read netlink socket: Bad file descriptor"):
        netlink.query(18, b"", "find", "x")
    kernel.queue = []

    kernel.send_error = OSError(errno.EBADF, "closed")
    with pytest.raises(KernelError, match="find x: Bad file descriptor"):
        netlink.query(18, b"", "find", "x")
    netlink.close()
    assert kernel.closed


def test_sequence_numbers_start_again_before_they_overflow(connect: Connect) -> None:
    """A daemon lives long; a batch never spans the wrap."""
    netlink, kernel = connect(lambda request: [error(request[2], 0)])
    netlink._seq = 0x7FFFFFFD
    netlink.mutate([mutation(), mutation()])
    assert [1, 2] == [request[2] for request in kernel.sends[0]]
