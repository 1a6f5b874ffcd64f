# SPDX-License-Identifier: Apache-2.0
"""RTM_*LINK bodies: build requests about links, parse what the kernel says of one.

A link is named by index or by name: every request takes either, so that a message can follow the
creation of the link in the same send, before anybody knows the index.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from struct import Struct
from typing import TypedDict, Unpack

from pycni.kernel import nlwire
from pycni.kernel.nlwire import as_text, as_u8, as_u16, as_u32
from pycni.kernel.types import KindValue, Link
from pycni.model.names import Mac

RTM_NEWLINK, RTM_DELLINK, RTM_GETLINK, RTM_SETLINK = 16, 17, 18, 19

IFF_UP, IFF_LOOPBACK, IFF_PROMISC, IFF_ALLMULTI = 0x1, 0x8, 0x100, 0x200

IFLA_ADDRESS = 1
IFLA_IFNAME = 3
IFLA_MTU = 4
IFLA_LINK = 5
IFLA_MASTER = 10
IFLA_TXQLEN = 13
IFLA_OPERSTATE = 16
IFLA_LINKINFO = 18
IFLA_IFALIAS = 20
IFLA_GROUP = 27
IFLA_NET_NS_FD = 28
IFLA_EXT_MASK = 29
IFLA_LINK_NETNSID = 37

IFLA_INFO_KIND = 1
IFLA_INFO_DATA = 2
IFLA_INFO_SLAVE_KIND = 4
IFLA_INFO_SLAVE_DATA = 5

VETH_INFO_PEER = 1

RTEXT_FILTER_SKIP_STATS = 1 << 3

# linux/if.h, IF_OPER_*
OPERSTATES = (
    "unknown",
    "notpresent",
    "down",
    "lowerlayerdown",
    "testing",
    "dormant",
    "up",
)

_IFINFO = Struct("=BxHiII")
_AF_UNSPEC = 0
# Statistics are most of a link message and nobody here reads them.
_SKIP_STATS = nlwire.u32(IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS)
_FIND = _IFINFO.pack(_AF_UNSPEC, 0, 0, 0, 0) + _SKIP_STATS


class Common(TypedDict, total=False):
    """What creating and changing a link have in common; a None is not said."""

    mtu: int | None
    mac: bytes | None
    master: int | None
    txqlen: int | None
    group: int | None


_Encode = Callable[[int, KindValue], bytes]
_Decode = Callable[[bytes], KindValue]


def _number(encode: Callable[[int, int], bytes]) -> _Encode:
    return lambda kind, value: encode(kind, int(value))


def _as_bool(payload: bytes) -> bool:
    return payload[0] != 0


def _choice(
    encode: Callable[[int, int], bytes], decode: Callable[[bytes], int], names: Mapping[str, int]
) -> tuple[_Encode, _Decode]:
    """A number with names; unnamed numbers pass both ways as numbers."""
    by_number = {number: name for name, number in names.items()}

    def to_wire(kind: int, value: KindValue) -> bytes:
        return encode(kind, names[value] if isinstance(value, str) else value)

    def from_wire(payload: bytes) -> KindValue:
        number = decode(payload)
        return by_number.get(number, number)

    return to_wire, from_wire


_U8: tuple[_Encode, _Decode] = _number(nlwire.u8), as_u8
_BOOL: tuple[_Encode, _Decode] = _number(nlwire.u8), _as_bool
_U16: tuple[_Encode, _Decode] = _number(nlwire.u16), as_u16
_U32: tuple[_Encode, _Decode] = _number(nlwire.u32), as_u32

_MACVLAN = {
    "mode": (
        1,
        *_choice(
            nlwire.u32,
            as_u32,
            {"private": 1, "vepa": 2, "bridge": 4, "passthru": 8, "source": 16},
        ),
    ),
    "bcqueuelen": (7, *_U32),
}

# kind: {our name: (attribute number in IFLA_INFO_DATA, encoder, decoder)}
KINDS: dict[str, dict[str, tuple[int, _Encode, _Decode]]] = {
    "bridge": {
        "stp_state": (5, *_U32),
        "vlan_filtering": (7, *_BOOL),
        "mcast_snooping": (23, *_BOOL),
        "vlan_default_pvid": (39, *_U16),
    },
    "macvlan": _MACVLAN,
    "macvtap": _MACVLAN,
    "ipvlan": {
        "mode": (1, *_choice(nlwire.u16, as_u16, {"l2": 0, "l3": 1, "l3s": 2})),
        "flags": (2, *_choice(nlwire.u16, as_u16, {"bridge": 0, "private": 1, "vepa": 2})),
    },
    "vlan": {
        "id": (1, *_U16),
        "protocol": (
            5,
            *_choice(nlwire.be16, nlwire.as_be16, {"802.1q": 0x8100, "802.1ad": 0x88A8}),
        ),
    },
    "vrf": {"table": (1, *_U32)},
    # Made with an ioctl, not by message; the kernel tells what it is all the same.
    "tun": {
        "owner": (1, *_U32),
        "group": (2, *_U32),
        "type": (3, *_choice(nlwire.u8, as_u8, {"tun": 1, "tap": 2})),
        "pi": (4, *_BOOL),
        "vnet_hdr": (5, *_BOOL),
        "persist": (6, *_BOOL),
        "multi_queue": (7, *_BOOL),
    },
}

# Bridge port attributes, IFLA_BRPORT_*.
PORT: dict[str, tuple[int, _Encode, _Decode]] = {
    "hairpin": (4, *_BOOL),
    "learning": (8, *_BOOL),
    "isolated": (33, *_BOOL),
    "locked": (39, *_BOOL),
}

_KIND_DECODERS = {
    kind: {number: (name, decode) for name, (number, _, decode) in fields.items()}
    for kind, fields in KINDS.items()
}
_PORT_DECODERS = {number: (name, decode) for name, (number, _, decode) in PORT.items()}


def find(link: int | str) -> bytes:
    """RTM_GETLINK of one link."""
    if isinstance(link, str):
        return _FIND + nlwire.text(IFLA_IFNAME, link)
    return _IFINFO.pack(_AF_UNSPEC, 0, link, 0, 0) + _SKIP_STATS


def dump(*, kind: str | None = None, master: int | None = None) -> bytes:
    """RTM_GETLINK of all links, or those of a kind or with a master (a kernel may ignore both)."""
    parts = [_FIND]
    if master is not None:
        parts.append(nlwire.u32(IFLA_MASTER, master))
    if kind is not None:
        parts.append(nlwire.nest(IFLA_LINKINFO, nlwire.text(IFLA_INFO_KIND, kind)))
    return b"".join(parts)


def create(
    name: str,
    kind: str,
    *,
    index: int | None = None,
    up: bool = False,
    link: int | None = None,
    netns_fd: int | None = None,
    data: Mapping[str, KindValue | None] | None = None,
    **common: Unpack[Common],
) -> bytes:
    """RTM_NEWLINK of a link of `kind`; a None is not said."""
    parts = [
        _IFINFO.pack(_AF_UNSPEC, 0, index or 0, IFF_UP if up else 0, IFF_UP if up else 0),
        nlwire.text(IFLA_IFNAME, name),
        *_common(netns_fd=netns_fd, **common),
    ]
    if link is not None:
        parts.append(nlwire.u32(IFLA_LINK, link))
    info = nlwire.text(IFLA_INFO_KIND, kind)
    encoded = _encode_fields(KINDS.get(kind, {}), kind, data or {})
    if encoded:
        info += nlwire.nest(IFLA_INFO_DATA, *encoded)
    parts.append(nlwire.nest(IFLA_LINKINFO, info))
    return b"".join(parts)


def create_veth(
    name: str,
    *,
    peer_name: str,
    peer_netns_fd: int | None,
    index: int | None = None,
    peer_index: int | None = None,
    up: bool = False,
    mtu: int | None = None,
    mac: bytes | None = None,
    peer_mac: bytes | None = None,
    master: int | None = None,
) -> bytes:
    """RTM_NEWLINK of both ends of a pair, the peer at home in its own namespace from birth.

    The peer cannot be up in this message: the kernel ignores its flags.
    """
    flags = IFF_UP if up else 0
    peer = [
        _IFINFO.pack(_AF_UNSPEC, 0, peer_index or 0, 0, 0),
        nlwire.text(IFLA_IFNAME, peer_name),
        *_common(mtu=mtu, mac=peer_mac, netns_fd=peer_netns_fd),
    ]
    return b"".join(
        (
            _IFINFO.pack(_AF_UNSPEC, 0, index or 0, flags, flags),
            nlwire.text(IFLA_IFNAME, name),
            *_common(mtu=mtu, mac=mac, master=master),
            nlwire.nest(
                IFLA_LINKINFO,
                nlwire.text(IFLA_INFO_KIND, "veth"),
                nlwire.nest(IFLA_INFO_DATA, nlwire.nest(VETH_INFO_PEER, *peer)),
            ),
        )
    )


def change(
    link: int | str,
    *,
    name: str | None = None,
    up: bool | None = None,
    promisc: bool | None = None,
    allmulti: bool | None = None,
    alias: str | None = None,
    netns_fd: int | None = None,
    **common: Unpack[Common],
) -> bytes:
    """RTM_SETLINK; a new `name` needs the link's index. With a namespace, moved first."""
    flags = mask = 0
    for wanted, bit in ((up, IFF_UP), (promisc, IFF_PROMISC), (allmulti, IFF_ALLMULTI)):
        if wanted is not None:
            mask |= bit
            flags |= bit if wanted else 0
    parts = [_target(link, flags, mask), *_common(netns_fd=netns_fd, **common)]
    if name is not None:
        if isinstance(link, str):
            raise ValueError("a link is renamed by index: IFLA_IFNAME cannot say both names")
        parts.append(nlwire.text(IFLA_IFNAME, name))
    if alias is not None:
        # An empty string without the terminator removes the alias.
        parts.append(nlwire.attr(IFLA_IFALIAS, alias.encode()))
    return b"".join(parts)


def change_data(link: int | str, kind: str, data: Mapping[str, KindValue | None]) -> bytes:
    """RTM_NEWLINK that changes kind-specific attributes of a link that exists."""
    return _target(link) + nlwire.nest(
        IFLA_LINKINFO,
        nlwire.text(IFLA_INFO_KIND, kind),
        nlwire.nest(IFLA_INFO_DATA, *_encode_fields(KINDS[kind], kind, data)),
    )


def change_port(link: int | str, data: Mapping[str, KindValue | None]) -> bytes:
    """RTM_NEWLINK that changes bridge port attributes of a link that is a bridge's port."""
    return _target(link) + nlwire.nest(
        IFLA_LINKINFO,
        nlwire.text(IFLA_INFO_SLAVE_KIND, "bridge"),
        nlwire.nest(IFLA_INFO_SLAVE_DATA, *_encode_fields(PORT, "bridge port", data)),
    )


def delete(link: int | str) -> bytes:
    """RTM_DELLINK of one link."""
    return _target(link)


def delete_group(group: int) -> bytes:
    """RTM_DELLINK of every link in a group."""
    return _IFINFO.pack(_AF_UNSPEC, 0, 0, 0, 0) + nlwire.u32(IFLA_GROUP, group)


def parse(payload: bytes) -> Link:
    """The Link in an RTM_NEWLINK message."""
    _, _, index, flags, _ = _IFINFO.unpack_from(payload)
    found = nlwire.attributes(payload, _IFINFO.size)
    get = found.get
    kind = data = port = None
    info = get(IFLA_LINKINFO)
    if info is not None:
        kind, data, port = _parse_info(info)
    address = get(IFLA_ADDRESS, b"")
    peer_netnsid = get(IFLA_LINK_NETNSID)
    state = as_u8(get(IFLA_OPERSTATE, b"\0"))
    return Link(
        name=as_text(get(IFLA_IFNAME, b"")),
        index=index,
        # Tunnels show an IP address there, a tun device nothing.
        mac=Mac.from_bytes(address) if len(address) in (6, 8, 20) else None,
        mtu=as_u32(get(IFLA_MTU, b"")),
        kind=kind,
        up=bool(flags & IFF_UP),
        promisc=bool(flags & IFF_PROMISC),
        allmulti=bool(flags & IFF_ALLMULTI),
        loopback=bool(flags & IFF_LOOPBACK),
        master=as_u32(get(IFLA_MASTER, b"")),
        peer_index=as_u32(get(IFLA_LINK, b"")),
        peer_netnsid=None if peer_netnsid is None else nlwire.as_s32(peer_netnsid),
        alias=as_text(get(IFLA_IFALIAS, b"")),
        group=as_u32(get(IFLA_GROUP, b"")),
        txqlen=as_u32(get(IFLA_TXQLEN, b"")),
        operstate=OPERSTATES[state] if state < len(OPERSTATES) else "unknown",
        data=data,
        port=port,
    )


def _parse_info(
    info: bytes,
) -> tuple[str | None, dict[str, KindValue] | None, dict[str, KindValue] | None]:
    """Kind, its data and the bridge port data in an IFLA_LINKINFO."""
    found = nlwire.attributes(info)
    kind = as_text(found[IFLA_INFO_KIND]) if IFLA_INFO_KIND in found else None
    data = port = None
    if kind in _KIND_DECODERS and IFLA_INFO_DATA in found:
        data = _decode_fields(_KIND_DECODERS[kind], found[IFLA_INFO_DATA])
    if IFLA_INFO_SLAVE_DATA in found and found.get(IFLA_INFO_SLAVE_KIND) == b"bridge\0":
        port = _decode_fields(_PORT_DECODERS, found[IFLA_INFO_SLAVE_DATA])
    return kind, data, port


def _target(link: int | str, flags: int = 0, mask: int = 0) -> bytes:
    if isinstance(link, str):
        return _IFINFO.pack(_AF_UNSPEC, 0, 0, flags, mask) + nlwire.text(IFLA_IFNAME, link)
    return _IFINFO.pack(_AF_UNSPEC, 0, link, flags, mask)


def _common(
    *,
    mtu: int | None = None,
    mac: bytes | None = None,
    master: int | None = None,
    txqlen: int | None = None,
    group: int | None = None,
    netns_fd: int | None = None,
) -> list[bytes]:
    """Encode the attributes of `Common` and the namespace a link goes to."""
    parts = []
    if mtu is not None:
        parts.append(nlwire.u32(IFLA_MTU, mtu))
    if mac is not None:
        parts.append(nlwire.attr(IFLA_ADDRESS, mac))
    if master is not None:
        parts.append(nlwire.u32(IFLA_MASTER, master))
    if txqlen is not None:
        parts.append(nlwire.u32(IFLA_TXQLEN, txqlen))
    if group is not None:
        parts.append(nlwire.u32(IFLA_GROUP, group))
    if netns_fd is not None:
        parts.append(nlwire.u32(IFLA_NET_NS_FD, netns_fd))
    return parts


def _encode_fields(
    fields: Mapping[str, tuple[int, _Encode, _Decode]],
    what: str,
    values: Mapping[str, KindValue | None],
) -> list[bytes]:
    """Encode the values given; a None is one not given."""
    parts = []
    for name, value in values.items():
        if name not in fields:
            raise TypeError(f"a {what} has no attribute {name!r}")
        if value is not None:
            number, encode, _ = fields[name]
            parts.append(encode(number, value))
    return parts


def _decode_fields(
    decoders: Mapping[int, tuple[str, _Decode]], payload: bytes
) -> dict[str, KindValue]:
    values: dict[str, KindValue] = {}
    for kind, raw in nlwire.attributes(payload).items():
        if kind in decoders:
            name, decode = decoders[kind]
            values[name] = decode(raw)
    return values
