# SPDX-License-Identifier: Apache-2.0
"""Elements of nftables maps, read and changed as raw nf_tables messages.

Why not through libnftables, which does everything else: to look for an element that is not there
it loads every set of the table into its cache, 7.9 ms at 4,000 elements, where one message costs
0.005 ms at any size. And only a raw batch can carry the generation of the ruleset it was planned
on, which turns "look, then change" into a compare-and-swap: `commit` applies whole or not at all,
and not at all when anybody, in this process or another, changed any rule since `generation()`.
A refused swap costs 0.01 ms (it is turned away before the transaction starts), so planning again
is cheap. Measured figures: docs/decisions/0004-libnftables-by-ctypes.md.

Keys and values travel as the kernel stores them: fields in network order, each padded to four
bytes. `address`, `protocol` and `port` make the fields.
"""

from __future__ import annotations

import enum
import errno
from collections.abc import Iterable, Iterator, Sequence
from ipaddress import ip_address
from typing import NamedTuple

import msgspec

from pycni.errors import KernelError, NotFound, Unsupported
from pycni.kernel import nfnetlink, nlwire
from pycni.kernel.nfnetlink import NfSocket, Request
from pycni.kernel.nlsocket import failure
from pycni.kernel.nlwire import as_text, attr, attributes, nest, text
from pycni.model.addresses import IPAddress

NFPROTO = {"inet": 1, "ip": 2, "ip6": 10}

NFT_MSG_GETTABLE = 1
NFT_MSG_DELTABLE = 2
NFT_MSG_GETCHAIN = 4
NFT_MSG_DELCHAIN = 5
NFT_MSG_GETRULE = 7
NFT_MSG_GETSET = 10
NFT_MSG_NEWSETELEM = 12
NFT_MSG_GETSETELEM = 13
NFT_MSG_DELSETELEM = 14
NFT_MSG_GETGEN = 16

NFTA_TABLE_NAME = 1
NFTA_SET_TABLE, NFTA_SET_NAME = 1, 2
NFTA_CHAIN_TABLE, NFTA_CHAIN_NAME, NFTA_CHAIN_USE = 1, 3, 6
NFTA_RULE_TABLE, NFTA_RULE_CHAIN = 1, 2
NFTA_SET_ELEM_LIST_TABLE, NFTA_SET_ELEM_LIST_SET, NFTA_SET_ELEM_LIST_ELEMENTS = 1, 2, 3
NFTA_LIST_ELEM = 1
NFTA_SET_ELEM_KEY, NFTA_SET_ELEM_DATA, NFTA_SET_ELEM_USERDATA = 1, 2, 6
NFTA_DATA_VALUE, NFTA_DATA_VERDICT = 1, 2
NFTA_VERDICT_CODE, NFTA_VERDICT_CHAIN = 1, 2
NFTA_GEN_ID = 1
NFT_JUMP = -3
NFTNL_UDATA_SET_ELEM_COMMENT = 0


class Protocol(enum.IntEnum):
    """The transport protocols whose header begins with two port numbers."""

    TCP = 6
    UDP = 17
    SCTP = 132


class Slot(NamedTuple):
    """A place in a map: at most one element can be there."""

    map: str
    key: bytes


class Element(msgspec.Struct, frozen=True, kw_only=True):
    """One element: a data map's has a `value`, a verdict map's a chain to `jump` to."""

    slot: Slot
    value: bytes = b""
    jump: str = ""
    comment: str = ""


def address(ip: IPAddress) -> bytes:
    """An `ipv4_addr` or `ipv6_addr` field."""
    return ip.packed


def protocol(number: Protocol) -> bytes:
    """An `inet_proto` field."""
    return bytes([number, 0, 0, 0])


def port(number: int) -> bytes:
    """An `inet_service` field."""
    return number.to_bytes(2, "big") + b"\0\0"


def read_port_key(key: bytes) -> tuple[IPAddress | None, Protocol, int]:
    """The fields of a key that is a protocol and a port, after an address or without one."""
    address, rest = key[:-8], key[-8:]
    number = int.from_bytes(rest[4:6], "big")
    return (ip_address(address) if address else None), Protocol(rest[0]), number


class Maps:
    """The maps and chains of one table; safe to share between threads."""

    def __init__(self, socket: NfSocket, *, family: str, table: str) -> None:
        self._socket = socket
        self._family = NFPROTO[family]
        self._table = table
        self._name = f"{family} {table}"

    def generation(self) -> int:
        """The number of the ruleset as it is now; every transaction adds one.

        Unsupported where the kernel has no nf_tables, which it says with EINVAL.
        """
        asked = self._request(NFT_MSG_GETGEN)
        try:
            payload = self._socket.query(asked.kind, asked.body, "read", "ruleset generation")
        except KernelError as exc:
            if exc.errno != errno.EINVAL:
                raise
            raise Unsupported(
                exc.op, exc.target, exc.errno, "no nf_tables", hint="load the module nf_tables"
            ) from exc
        return nfnetlink.as_be32(attributes(payload, nfnetlink.HEADER_SIZE)[NFTA_GEN_ID])

    def find(self, slots: Sequence[Slot]) -> list[Element | None]:
        """What is in each slot now; nothing, if there is no such map or table."""
        asked = [self._request(NFT_MSG_GETSETELEM, self._element_list(slot)) for slot in slots]
        answers = self._socket.ask_all(asked, "look up elements of table", self._name)
        for slot, answer in zip(slots, answers, strict=True):
            if answer.code not in (0, errno.ENOENT):
                target = f"{self._name}, map {slot.map}"
                raise failure("look up element of table", target, answer.code, answer.explanation)
        return [
            next(_elements(slot.map, answer.payload), None)
            for slot, answer in zip(slots, answers, strict=True)
        ]

    def list_elements(self, name: str, *, comment_prefix: str = "") -> list[Element]:
        """The elements of a map whose comment begins so; none if there is no such map."""
        wanted = text(NFTA_SET_ELEM_LIST_TABLE, self._table) + text(NFTA_SET_ELEM_LIST_SET, name)
        marker = comment_prefix.encode()
        return [
            element
            for payload in self._dump(NFT_MSG_GETSETELEM, wanted)
            # The bytes first: a message holds hundreds of elements, mostly others'.
            if marker in payload
            for element in _elements(name, payload[nfnetlink.HEADER_SIZE :])
            if element.comment.startswith(comment_prefix)
        ]

    def table_exists(self) -> bool:
        """Is there such a table?"""
        asked = self._request(NFT_MSG_GETTABLE, text(NFTA_TABLE_NAME, self._table))
        return not self._socket.ask_all([asked], "look up table", self._name)[0].code

    def chain_uses(self, chains: Sequence[str]) -> list[int | None]:
        """Rules in each chain plus jumps to it; None where there is no such chain."""
        asked = [self._request(NFT_MSG_GETCHAIN, self._chain(chain)) for chain in chains]
        return [
            None if answer.code else _use(attributes(answer.payload))
            for answer in self._socket.ask_all(asked, "look up chains of table", self._name)
        ]

    def list_chains(self) -> dict[str, int]:
        """Every chain of the table, with its rules plus the jumps to it."""
        chains = [
            attributes(payload, nfnetlink.HEADER_SIZE) for payload in self._dump(NFT_MSG_GETCHAIN)
        ]
        return {
            as_text(chain[NFTA_CHAIN_NAME]): _use(chain)
            for chain in chains
            if as_text(chain.get(NFTA_CHAIN_TABLE, b"")) == self._table
        }

    def list_maps(self) -> list[str]:
        """The names of the table's maps and sets."""
        maps = [
            attributes(payload, nfnetlink.HEADER_SIZE) for payload in self._dump(NFT_MSG_GETSET)
        ]
        return [
            as_text(found[NFTA_SET_NAME])
            for found in maps
            if as_text(found.get(NFTA_SET_TABLE, b"")) == self._table
        ]

    def count_rules(self, chain: str) -> int:
        """How many rules the chain has; 0 if there is no such chain."""
        wanted = text(NFTA_RULE_TABLE, self._table) + text(NFTA_RULE_CHAIN, chain)
        return len(self._dump(NFT_MSG_GETRULE, wanted))

    def commit(
        self,
        *,
        remove: Iterable[Slot] = (),
        add: Iterable[Element] = (),
        drop_chains: Iterable[str] = (),
        drop_table: bool = False,
        generation: int = 0,
    ) -> bool:
        """Apply removals, then additions, then removals of chains, as one transaction.

        With `drop_table` the table goes last, with whatever is in it.

        False, and nothing happened, when the ruleset is not at `generation` any more.
        """
        create = nlwire.NLM_F_CREATE | nlwire.NLM_F_EXCL
        requests = [
            *(self._request(NFT_MSG_DELSETELEM, self._element_list(slot)) for slot in remove),
            *(
                self._request(
                    NFT_MSG_NEWSETELEM, self._element_list(new.slot, *_content(new)), flags=create
                )
                for new in add
            ),
            *(self._request(NFT_MSG_DELCHAIN, self._chain(chain)) for chain in drop_chains),
        ]
        if drop_table:
            requests.append(self._request(NFT_MSG_DELTABLE, text(NFTA_TABLE_NAME, self._table)))
        if not requests:
            return True
        op = "change maps of table"
        answer = self._socket.transact(requests, op, self._name, generation=generation)
        if generation and answer.code == errno.ERESTART:
            return False
        if answer.code:
            raise failure(op, self._name, answer.code, answer.explanation)
        return True

    def _request(self, command: int, attributes_: bytes = b"", *, flags: int = 0) -> Request:
        kind = nfnetlink.kind(nfnetlink.NFNL_SUBSYS_NFTABLES, command)
        return Request(kind, nfnetlink.body(self._family, attributes_), flags)

    def _dump(self, command: int, attributes_: bytes = b"") -> list[bytes]:
        asked = self._request(command, attributes_)
        try:
            return self._socket.dump(asked.kind, asked.body, "list table", self._name)
        except NotFound:
            return []

    def _chain(self, name: str) -> bytes:
        return text(NFTA_CHAIN_TABLE, self._table) + text(NFTA_CHAIN_NAME, name)

    def _element_list(self, slot: Slot, *content: bytes) -> bytes:
        key = nest(NFTA_SET_ELEM_KEY, attr(NFTA_DATA_VALUE, slot.key))
        return (
            text(NFTA_SET_ELEM_LIST_TABLE, self._table)
            + text(NFTA_SET_ELEM_LIST_SET, slot.map)
            + nest(NFTA_SET_ELEM_LIST_ELEMENTS, nest(NFTA_LIST_ELEM, key, *content))
        )


def _content(element: Element) -> Iterator[bytes]:
    """The attributes of an element beside its key."""
    if element.jump:
        verdict = nfnetlink.be32(NFTA_VERDICT_CODE, NFT_JUMP) + text(
            NFTA_VERDICT_CHAIN, element.jump
        )
        yield nest(NFTA_SET_ELEM_DATA, nest(NFTA_DATA_VERDICT, verdict))
    elif element.value:
        yield nest(NFTA_SET_ELEM_DATA, attr(NFTA_DATA_VALUE, element.value))
    if element.comment:
        comment = element.comment.encode() + b"\0"
        udata = bytes([NFTNL_UDATA_SET_ELEM_COMMENT, len(comment)]) + comment
        yield attr(NFTA_SET_ELEM_USERDATA, udata)


def _elements(name: str, body: bytes) -> Iterator[Element]:
    """The elements of one GETSETELEM answer."""
    listed = attributes(body).get(NFTA_SET_ELEM_LIST_ELEMENTS, b"")
    for _, raw in nlwire.attribute_list(listed):
        fields = attributes(raw)
        if NFTA_SET_ELEM_KEY not in fields:
            continue  # a catch-all element (`*`) has no key; we never make one
        data = attributes(fields.get(NFTA_SET_ELEM_DATA, b""))
        verdict = attributes(data.get(NFTA_DATA_VERDICT, b""))
        yield Element(
            slot=Slot(name, attributes(fields[NFTA_SET_ELEM_KEY])[NFTA_DATA_VALUE]),
            value=data.get(NFTA_DATA_VALUE, b""),
            jump=as_text(verdict.get(NFTA_VERDICT_CHAIN, b"")),
            comment=_comment(fields.get(NFTA_SET_ELEM_USERDATA, b"")),
        )


def _comment(udata: bytes) -> str:
    """The comment among libnftnl's user data: type, length, value, type, length, value."""
    while len(udata) >= 2:
        kind, length = udata[0], udata[1]
        if kind == NFTNL_UDATA_SET_ELEM_COMMENT:
            return as_text(udata[2 : 2 + length])
        udata = udata[2 + length :]
    return ""


def _use(chain: dict[int, bytes]) -> int:
    return nfnetlink.as_be32(chain.get(NFTA_CHAIN_USE, b""))
