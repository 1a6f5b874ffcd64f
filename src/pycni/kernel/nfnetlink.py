# SPDX-License-Identifier: Apache-2.0
"""nfnetlink, the netlink of netfilter: its header, and a socket that can ask and change in bulk.

Framing and attributes are `nlwire`'s; unlike rtnetlink, most integers inside attributes are in
network order. Behind the netlink header stands

    nfgenmsg    family:u8 version:u8 resource:be16
"""

from __future__ import annotations

# Not `socket`: see `nlsocket`.
import _socket
import errno
from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

from pycni.kernel import nlwire
from pycni.kernel.netns import Netns
from pycni.kernel.nlsocket import NetlinkSocket, Target, failure

NETLINK_NETFILTER = 12
NFNL_SUBSYS_NONE = 0
NFNL_SUBSYS_CTNETLINK = 1
NFNL_SUBSYS_NFTABLES = 10
NFNL_MSG_BATCH_BEGIN = 0x10
NFNL_MSG_BATCH_END = 0x11
NFNL_BATCH_GENID = 1

_NFGENMSG = Struct(">BBH")
HEADER_SIZE = 4

_RECEIVE_SIZE = 1 << 16
# What one send carries: the answers, about 1 KiB of queue each, must fit the receive queue.
_MESSAGES_PER_SEND = 256


class Request(NamedTuple):
    """A request, not numbered yet; `body` begins with nfgenmsg (see `body`)."""

    kind: int
    body: bytes
    flags: int = 0


class Answer(NamedTuple):
    """What a request met: `code` is an errno, 0 for data and for success."""

    code: int
    payload: bytes
    explanation: str


_NO_ANSWER = Answer(errno.EIO, b"", "no answer")


def kind(subsystem: int, command: int) -> int:
    """The netlink message type of a subsystem's command."""
    return subsystem << 8 | command


def body(family: int, *attributes: bytes, resource: int = 0) -> bytes:
    """A request's body: the header, then attributes."""
    return _NFGENMSG.pack(family, 0, resource) + b"".join(attributes)


class NfSocket(NetlinkSocket):
    """A NETLINK_NETFILTER socket.

    Keep it open: closing one waits 5-18 ms for the kernel to free what was deleted just before.
    """

    def __init__(self, namespace: Netns | None = None) -> None:
        super().__init__(namespace, NETLINK_NETFILTER)

    def ask_all(self, requests: Sequence[Request], op: str, target: Target) -> list[Answer]:
        """Send requests that have one answer each; the answers, in the same order."""
        answers: list[Answer] = []
        with self._lock:
            for start in range(0, len(requests), _MESSAGES_PER_SEND):
                part = requests[start : start + _MESSAGES_PER_SEND]
                first, found = self._exchange(part, op, target)
                answers += [found.get(seq, _NO_ANSWER) for seq in range(first, first + len(part))]
        return answers

    def transact(
        self, requests: Sequence[Request], op: str, target: Target, *, generation: int = 0
    ) -> Answer:
        """Apply nf_tables requests whole or not at all: the first refusal, or the success.

        A non-zero `generation` makes it a compare-and-swap: ERESTART, before the transaction
        starts, unless the ruleset is still at that generation.
        """
        guard = be32(NFNL_BATCH_GENID, generation) if generation else b""
        # The acknowledgement of the last request says that the whole batch is in force: they are
        # sent after the commit. (BATCH_END itself is acknowledged only since Linux 6.10.)
        last = requests[-1]._replace(flags=requests[-1].flags | nlwire.NLM_F_ACK)
        begin = _batch_edge(NFNL_MSG_BATCH_BEGIN, guard)
        end = _batch_edge(NFNL_MSG_BATCH_END)
        with self._lock:
            first, answers = self._exchange([begin, *requests[:-1], last, end], op, target)
        refusals = [answer for _, answer in sorted(answers.items()) if answer.code]
        return refusals[0] if refusals else answers.get(first + len(requests), _NO_ANSWER)

    def _exchange(
        self, requests: Sequence[Request], op: str, target: Target
    ) -> tuple[int, dict[int, Answer]]:
        """Send all at once; the number of the first, and every answer by number."""
        first = self._next_seq(len(requests))
        self._send(
            b"".join(
                [
                    nlwire.message(
                        request.kind, request.flags | nlwire.NLM_F_REQUEST, seq, request.body
                    )
                    for seq, request in enumerate(requests, first)
                ]
            ),
            op,
            target,
        )
        answers: dict[int, Answer] = {}
        # The kernel works inside send(): what is queued when it returns is all there will be.
        while (data := self._receive_queued(op, target)) is not None:
            for reply, flags, seq, payload in nlwire.messages(data):
                if reply == nlwire.NLMSG_ERROR:
                    code, explanation = nlwire.ack(flags, payload)
                    answers[seq] = Answer(code, b"", explanation)
                else:
                    answers[seq] = Answer(0, payload[HEADER_SIZE:], "")
        self._dirty = False
        return first, answers

    def _receive_queued(self, op: str, target: Target) -> bytes | None:
        try:
            return self._socket.recv(_RECEIVE_SIZE, _socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        except OSError as exc:
            raise failure(op, target, exc.errno or errno.EIO, "") from exc


def be32(kind: int, value: int) -> bytes:
    """An attribute holding 32 bits in network order, negative values as two's complement."""
    return nlwire.attr(kind, (value & 0xFFFFFFFF).to_bytes(4, "big"))


def as_be32(payload: bytes) -> int:
    """32 bits in network order."""
    return int.from_bytes(payload[:4], "big")


def _batch_edge(command: int, *attributes: bytes) -> Request:
    return Request(
        kind(NFNL_SUBSYS_NONE, command), body(0, *attributes, resource=NFNL_SUBSYS_NFTABLES)
    )
