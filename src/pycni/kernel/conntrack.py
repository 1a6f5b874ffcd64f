# SPDX-License-Identifier: Apache-2.0
"""Forgetting tracked connections: by protocol and the destination they had before translation.

Why: a UDP flow that was tracked before its port mapping came, or after it went, keeps its old
translation for as long as packets arrive; to the client the port is dead. (TCP starts afresh.)

Recent kernels delete by filter themselves, 0.7 ms among 2,000 flows. Older ones (Debian 12's 6.1)
refuse that request, because a destination port alone is not a whole tuple to them; they cannot
take it for "delete all". Then the table is dumped, filtered by the kernel where it can (5.8), and
the matching flows are deleted one by one, 7 ms. An empty table and a kernel without conntrack are
seen from one sysctl, before any of it.
"""

from __future__ import annotations

import errno
import threading

from pycni.kernel import netns, nfnetlink, nlwire
from pycni.kernel.netns import Netns
from pycni.kernel.nfnetlink import NFNL_SUBSYS_CTNETLINK, Answer, NfSocket, Request
from pycni.kernel.nlsocket import failure
from pycni.kernel.nlwire import attr, attributes, nest
from pycni.model.addresses import IPAddress

IPCTNL_MSG_CT_GET = 1
IPCTNL_MSG_CT_DELETE = 2

CTA_TUPLE_ORIG = 1
CTA_ID = 12
CTA_ZONE = 18
CTA_FILTER = 25
CTA_TUPLE_IP, CTA_TUPLE_PROTO = 1, 2
CTA_IP_V4_DST, CTA_IP_V6_DST = 2, 4
CTA_PROTO_NUM, CTA_PROTO_DST_PORT = 1, 3
CTA_FILTER_ORIG_FLAGS = 1
# Bits of CTA_FILTER_ORIG_FLAGS, by name of the attribute they switch on (host byte order).
CTA_FILTER_IP_DST = 1 << 1
CTA_FILTER_PROTO_NUM = 1 << 3
CTA_FILTER_PROTO_DST_PORT = 1 << 5

COUNT = "/proc/sys/net/netfilter/nf_conntrack_count"
FAMILIES = {4: 2, 6: 10}  # AF_INET, AF_INET6

# What names one flow exactly.
_NAMING = (CTA_TUPLE_ORIG, CTA_ZONE, CTA_ID)
_DELETE = "delete tracked flows to"


class Conntrack:
    """The connection table of one namespace; safe to share between threads."""

    def __init__(self, namespace: Netns | None = None) -> None:
        self._netns = namespace
        self._lock = threading.Lock()
        self._opened: NfSocket | None = None
        self._kernel_filters_deletes = True

    def remove(self, protocol: int, port: int, *, destination: IPAddress | None = None) -> None:
        """Forget the flows that were sent to `port`, of any address or of `destination` only."""
        if not netns.run(self._netns, _count):
            return
        wanted = _Filter(protocol, port, destination)
        for family in wanted.families:
            if not self._remove_filtered(family, wanted):
                self._remove_one_by_one(family, wanted)

    def close(self) -> None:
        """Close the socket; a later call opens another."""
        with self._lock:
            if self._opened is not None:
                self._opened.close()
                self._opened = None

    def _remove_filtered(self, family: int, wanted: _Filter) -> bool:
        """Let the kernel find and delete the flows; False if it cannot."""
        if not self._kernel_filters_deletes or not wanted.kernel_can_match:
            return False
        answer = self._delete(family, wanted.request(), wanted)
        if answer.code in (errno.EINVAL, errno.EOPNOTSUPP):
            self._kernel_filters_deletes = False
            return False
        if answer.code not in (0, errno.ENOENT):
            raise failure(_DELETE, str(wanted), answer.code, answer.explanation)
        return True

    def _remove_one_by_one(self, family: int, wanted: _Filter) -> None:
        kind = nfnetlink.kind(NFNL_SUBSYS_CTNETLINK, IPCTNL_MSG_CT_GET)
        body = nfnetlink.body(family, wanted.request())
        for payload in self._socket().dump(kind, body, "list tracked flows to", str(wanted)):
            flow = attributes(payload, nfnetlink.HEADER_SIZE)
            if not wanted.matches(flow.get(CTA_TUPLE_ORIG, b"")):
                continue
            named = (attr(part, flow[part]) for part in _NAMING if part in flow)
            answer = self._delete(family, b"".join(named), wanted)
            if answer.code not in (0, errno.ENOENT):
                raise failure(_DELETE, str(wanted), answer.code, answer.explanation)

    def _delete(self, family: int, attributes_: bytes, wanted: _Filter) -> Answer:
        kind = nfnetlink.kind(NFNL_SUBSYS_CTNETLINK, IPCTNL_MSG_CT_DELETE)
        asked = Request(kind, nfnetlink.body(family, attributes_), nlwire.NLM_F_ACK)
        return self._socket().ask_all([asked], _DELETE, str(wanted))[0]

    def _socket(self) -> NfSocket:
        with self._lock:
            if self._opened is None:
                self._opened = NfSocket(self._netns)
            return self._opened


class _Filter:
    """Which flows: the request the kernel filters by, and the same test for our own use."""

    def __init__(self, protocol: int, port: int, destination: IPAddress | None) -> None:
        self.protocol = bytes([protocol])
        self.port = port.to_bytes(2, "big")
        self.destination = destination
        # The kernel's test of IPv6 addresses is the wrong way round: it finds all other addresses
        # (seen on 6.18, in ctnetlink_filter_match_tuple). So it is not asked about those.
        self.kernel_can_match = destination is None or destination.version == 4
        self.families = [
            family
            for version, family in FAMILIES.items()
            if destination is None or destination.version == version
        ]

    def __str__(self) -> str:
        number = int.from_bytes(self.port, "big")
        at = f" of {self.destination}" if self.destination else ""
        return f"port {number}{at}, protocol {self.protocol[0]}"

    def request(self) -> bytes:
        """The attributes of a filtered request; without an IPv6 address, see above."""
        proto = nest(
            CTA_TUPLE_PROTO,
            attr(CTA_PROTO_NUM, self.protocol),
            attr(CTA_PROTO_DST_PORT, self.port),
        )
        flags = CTA_FILTER_PROTO_NUM | CTA_FILTER_PROTO_DST_PORT
        ip = b""
        if self.destination is not None and self.kernel_can_match:
            ip = nest(CTA_TUPLE_IP, attr(CTA_IP_V4_DST, self.destination.packed))
            flags |= CTA_FILTER_IP_DST
        mask = nlwire.u32(CTA_FILTER_ORIG_FLAGS, flags)
        return nest(CTA_TUPLE_ORIG, ip, proto) + nest(CTA_FILTER, mask)

    def matches(self, original: bytes) -> bool:
        """Does the tuple of a flow's original direction match?"""
        parts = attributes(original)
        proto = attributes(parts.get(CTA_TUPLE_PROTO, b""))
        if (proto.get(CTA_PROTO_NUM), proto.get(CTA_PROTO_DST_PORT)) != (self.protocol, self.port):
            return False
        if self.destination is None:
            return True
        ip = attributes(parts.get(CTA_TUPLE_IP, b""))
        kind = CTA_IP_V4_DST if self.destination.version == 4 else CTA_IP_V6_DST
        return ip.get(kind) == self.destination.packed


def _count() -> int:
    """How many connections are tracked; 0 when the kernel tracks none at all."""
    try:
        with open(COUNT, encoding="ascii") as file:
            return int(file.read())
    except FileNotFoundError:
        return 0
