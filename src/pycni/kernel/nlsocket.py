# SPDX-License-Identifier: Apache-2.0
"""A netlink socket: requests out, acknowledgements in, refusals as named errors.

The socket belongs to the namespace it was opened in and may be used from any thread: one lock
covers each send and the answers to it. Dumps the kernel calls interrupted are read again here,
and nowhere else.
"""

from __future__ import annotations

# Not `socket`: importing that costs 9 ms, which an executable pays on every call.
import _socket
import contextlib
import errno
import struct
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from pycni.errors import AlreadyExists, Busy, KernelError, LinkNotFound, NotFound, Unsupported
from pycni.kernel import nlwire
from pycni.kernel.netns import Netns, run

AF_NETLINK = 16
NETLINK_ROUTE = 0

SOL_NETLINK = 270
NETLINK_CAP_ACK = 10
NETLINK_EXT_ACK = 11
NETLINK_GET_STRICT_CHK = 12

ENOTSUPP = 524  # the kernel's internal "not supported", which some drivers let out

_RECEIVE_SIZE = 1 << 16
_RECEIVE_QUEUE = 1 << 20
# The kernel works through a send before it returns, queueing one acknowledgement (about 1 KiB of
# queue) per message; both limits keep the queue from overflowing and the send below SO_SNDBUF.
_BATCH_MESSAGES = 256
_BATCH_BYTES = 1 << 16
# The kernel answers inside send(); this only turns a lost answer into an error.
_ANSWER_TIMEOUT = struct.pack("@ll", 10, 0)
_DUMP_TRIES = 32
_LAST_SEQ = 0x7FFFFFFF

Failures = Mapping[int, type[KernelError]]
Target = str | int

NO_FAILURES: Failures = {}
COMMON_FAILURES: Failures = {
    errno.EOPNOTSUPP: Unsupported,
    errno.EAFNOSUPPORT: Unsupported,
    errno.EPROTONOSUPPORT: Unsupported,
    errno.EBUSY: Busy,
    errno.EAGAIN: Busy,
    errno.EINTR: Busy,
    errno.ENOBUFS: Busy,
    errno.ENODEV: LinkNotFound,
    errno.EEXIST: AlreadyExists,
    errno.ENOENT: NotFound,
}
_HINTS = {errno.EPERM: "this needs CAP_NET_ADMIN in the network namespace"}


class Mutation(NamedTuple):
    """A request that changes something, and how to speak of it when it fails."""

    kind: int
    flags: int
    body: bytes
    op: str
    target: Target
    failures: Failures


class NetlinkSocket:
    """A request-and-answer socket of one netlink protocol in one namespace."""

    def __init__(self, namespace: Netns | None = None, protocol: int = NETLINK_ROUTE) -> None:
        self._lock = threading.Lock()
        self._seq = 0
        self._dirty = False
        self._socket = open_socket(namespace, protocol)
        # CAP_ACK: do not echo the request. STRICT_CHK: honour the filters of a dump. Kernels too
        # old for one of them only say less and send more.
        for option in (NETLINK_CAP_ACK, NETLINK_EXT_ACK, NETLINK_GET_STRICT_CHK):
            with contextlib.suppress(OSError):
                self._socket.setsockopt(SOL_NETLINK, option, 1)
        self._socket.setsockopt(_socket.SOL_SOCKET, _socket.SO_RCVBUF, _RECEIVE_QUEUE)
        self._socket.setsockopt(_socket.SOL_SOCKET, _socket.SO_RCVTIMEO, _ANSWER_TIMEOUT)

    def close(self) -> None:
        """Close the socket; a second call does nothing."""
        self._socket.close()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Let no other thread use the socket, nor this one."""
        with self._lock:
            yield

    def query(
        self, kind: int, body: bytes, op: str, target: Target, failures: Failures = NO_FAILURES
    ) -> bytes:
        """Ask for one object; the payload of the answer."""
        with self._lock:
            seq = self._ask(kind, 0, body, op, target)
            while True:
                for reply, flags, reply_seq, payload in self._receive(op, target):
                    if reply_seq != seq:
                        continue
                    self._dirty = False
                    if reply != nlwire.NLMSG_ERROR:
                        return payload
                    code, explanation = nlwire.ack(flags, payload)
                    raise failure(op, target, code or errno.ENODATA, explanation, failures)

    def dump(
        self, kind: int, body: bytes, op: str, target: Target, failures: Failures = NO_FAILURES
    ) -> list[bytes]:
        """Ask for all objects; the payload of each. Asked again when a change interrupted it."""
        with self._lock:
            for _ in range(_DUMP_TRIES):
                seq = self._ask(kind, nlwire.NLM_F_DUMP, body, op, target)
                try:
                    return self._read_dump(seq, op, target, failures)
                except Busy as exc:
                    if exc.errno not in (errno.EINTR, errno.ENOBUFS):
                        raise
        raise Busy(op, name_of(target), errno.EINTR, "the table keeps changing while it is read")

    def apply(self, mutations: Sequence[Mutation]) -> list[KernelError | None]:
        """Send everything at once; what became of each, in order.

        A refused message does not stop those behind it in the same send. Beyond 256 messages or
        64 KiB there is a second send, which does not happen when the first met a refusal.
        """
        outcomes: list[KernelError | None] = []
        with self._lock:
            for chunk in _chunks(mutations):
                outcomes += self._apply(chunk)
                if any(outcomes):
                    break
        return outcomes

    def mutate(self, mutations: Sequence[Mutation]) -> None:
        """Send everything at once; raise the first refusal, with the others as notes."""
        refusals = [outcome for outcome in self.apply(mutations) if outcome is not None]
        if refusals:
            for other in refusals[1:]:
                refusals[0].add_note(f"also: {other.msg}")
            raise refusals[0]

    def _ask(self, kind: int, flags: int, body: bytes, op: str, target: Target) -> int:
        seq = self._next_seq(1)
        data = nlwire.message(kind, flags | nlwire.NLM_F_REQUEST, seq, body)
        self._send(data, op, target)
        return seq

    def _read_dump(self, seq: int, op: str, target: Target, failures: Failures) -> list[bytes]:
        """Read one dump to its end; Busy with EINTR when it is not consistent."""
        payloads: list[bytes] = []
        interrupted = False
        while True:
            for reply, flags, reply_seq, payload in self._receive(op, target):
                if reply_seq != seq:
                    continue
                interrupted = interrupted or bool(flags & nlwire.NLM_F_DUMP_INTR)
                if reply != nlwire.NLMSG_DONE and reply != nlwire.NLMSG_ERROR:
                    payloads.append(payload)
                    continue
                self._dirty = False
                read = nlwire.done if reply == nlwire.NLMSG_DONE else nlwire.ack
                code, explanation = read(flags, payload)
                if interrupted and not code:
                    code = errno.EINTR
                if code:
                    raise failure(op, target, code, explanation, failures)
                return payloads

    def _apply(self, chunk: Sequence[Mutation]) -> list[KernelError | None]:
        first = self._next_seq(len(chunk))
        flags = nlwire.NLM_F_REQUEST | nlwire.NLM_F_ACK
        data = b"".join(
            [
                nlwire.message(mutation.kind, mutation.flags | flags, seq, mutation.body)
                for seq, mutation in enumerate(chunk, first)
            ]
        )
        op, target = chunk[0].op, chunk[0].target
        outcomes: dict[int, KernelError | None] = {}
        self._send(data, op, target)
        while len(outcomes) < len(chunk):
            for reply, reply_flags, seq, payload in self._receive(op, target):
                position = seq - first
                if reply != nlwire.NLMSG_ERROR or not 0 <= position < len(chunk):
                    continue
                code, explanation = nlwire.ack(reply_flags, payload)
                outcomes[position] = (
                    failure(*chunk[position][3:5], code, explanation, chunk[position].failures)
                    if code
                    else None
                )
        self._dirty = False
        return [outcomes[position] for position in range(len(chunk))]

    def _send(self, data: bytes, op: str, target: Target) -> None:
        if self._dirty:
            self._drain()
        # Until the last answer is read: whatever ends the exchange early leaves some behind.
        self._dirty = True
        try:
            self._socket.send(data)
        except OSError as exc:
            raise failure(op, target, exc.errno or errno.EIO, "") from exc

    def _receive(self, op: str, target: Target) -> list[nlwire.Message]:
        try:
            return nlwire.messages(self._socket.recv(_RECEIVE_SIZE))
        except BlockingIOError as exc:
            raise KernelError(op, name_of(target), errno.ETIMEDOUT, "no answer") from exc
        except OSError as exc:
            raise failure(op, target, exc.errno or errno.EIO, "") from exc

    def _drain(self) -> None:
        """Read away the answers to an exchange that was given up; a dump under way ends too."""
        while True:
            try:
                self._socket.recv(_RECEIVE_SIZE, _socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            except OSError as exc:
                if exc.errno != errno.ENOBUFS:
                    raise KernelError("read", "netlink socket", exc.errno or errno.EIO) from exc
        self._dirty = False

    def _next_seq(self, count: int) -> int:
        first = self._seq + 1
        if first + count > _LAST_SEQ:
            first = 1
        self._seq = first + count - 1
        return first


def open_socket(namespace: Netns | None, protocol: int) -> _socket.socket:
    """A netlink socket that stays in `namespace`, whichever thread uses it."""

    def opened() -> _socket.socket:
        return _socket.socket(AF_NETLINK, _socket.SOCK_RAW, protocol)

    try:
        return run(namespace, opened)
    except OSError as exc:
        where = "this network namespace" if namespace is None else namespace.path
        raise failure("open netlink socket in", where, exc.errno or errno.EIO, "") from exc


def failure(
    op: str, target: Target, code: int, explanation: str, failures: Failures = NO_FAILURES
) -> KernelError:
    """The error for an errno: the object's own meaning of it, else the common one."""
    if code == ENOTSUPP:
        code = errno.EOPNOTSUPP
    error = failures.get(code) or COMMON_FAILURES.get(code, KernelError)
    return error(op, name_of(target), code, explanation, hint=_HINTS.get(code, ""))


def name_of(target: Target) -> str:
    """What an error calls its target; a number is an interface's index."""
    return target if isinstance(target, str) else f"index {target}"


def _chunks(mutations: Sequence[Mutation]) -> Iterator[Sequence[Mutation]]:
    start = size = 0
    for position, mutation in enumerate(mutations):
        size += len(mutation.body) + nlwire.HEADER_SIZE
        if position - start == _BATCH_MESSAGES or (size > _BATCH_BYTES and position > start):
            yield mutations[start:position]
            start, size = position, len(mutation.body) + nlwire.HEADER_SIZE
    if start < len(mutations):
        yield mutations[start:]
