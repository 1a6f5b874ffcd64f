# SPDX-License-Identifier: Apache-2.0
"""Links: find, create, change and remove network interfaces."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from pycni.errors import Exhausted, KernelError, LinkExists, LinkNotFound
from pycni.kernel import tuntap
from pycni.kernel.netns import Netns
from pycni.kernel.nlsocket import Failures, Mutation, Target
from pycni.kernel.nlwire import NLM_F_CREATE, NLM_F_EXCL
from pycni.kernel.nlwire import link as wire
from pycni.kernel.types import KindValue, Link
from pycni.model.names import Mac

if TYPE_CHECKING:
    from pycni.kernel.rtnl import Rtnl

# A bridge has all the ports it can have. Linux has this errno, other systems do not name it.
EXFULL = 54

_FAILURES: Failures = {
    errno.EEXIST: LinkExists,
    errno.ENODEV: LinkNotFound,
    EXFULL: Exhausted,
}
# "Operation not supported" there means: not a bridge port.
_PORT_FAILURES: Failures = {errno.EOPNOTSUPP: KernelError, **_FAILURES}


class Links:
    """The links of one namespace. Where a `link` is asked for, its index or its name will do."""

    __slots__ = ("_rtnl",)

    def __init__(self, rtnl: Rtnl) -> None:
        self._rtnl = rtnl

    def find(self, name: str) -> Link | None:
        """The link of that name, or None."""
        try:
            return self.get(name)
        except LinkNotFound:
            return None

    def find_index(self, index: int) -> Link | None:
        """The link with that index, or None."""
        try:
            return self.get(index)
        except LinkNotFound:
            return None

    def get(self, link: str | int) -> Link:
        """The link of that name or index; LinkNotFound."""
        body = wire.find(link)
        return wire.parse(self._rtnl.query(wire.RTM_GETLINK, body, "find link", link, _FAILURES))

    def list(
        self, kind: str | None = None, master: int | None = None, group: int | None = None
    ) -> list[Link]:
        """All links, or those of a kind, with a master, in a group."""
        payloads = self._rtnl.dump(
            wire.RTM_GETLINK, wire.dump(kind=kind, master=master), "list", "links", _FAILURES
        )
        # The kernel filters by kind and master, but not when the kind's module is not loaded.
        return [
            link
            for link in map(wire.parse, payloads)
            if (kind is None or link.kind == kind)
            and (master is None or link.master == master)
            and (group is None or link.group == group)
        ]

    def add(
        self,
        name: str,
        kind: str,
        *,
        mtu: int | None = None,
        mac: Mac | None = None,
        index: int | None = None,
        up: bool = False,
        master: int | None = None,
        group: int | None = None,
        txqlen: int | None = None,
        link: int | None = None,
        netns: Netns | None = None,
        alias: str | None = None,
        **kind_data: KindValue | None,
    ) -> None:
        """Create a link; `link` is the parent of a macvlan, ipvlan or vlan.

        With `netns` the link is born there, its parent is looked up here. `kind_data` are the
        kind's own attributes (`nlwire.link.KINDS`): bridge vlan_filtering; macvlan mode,
        bcqueuelen; ipvlan mode; vlan id; vrf table. Either all of it happens or nothing.
        An `alias` costs a send of its own unless `index` (free, chosen by the caller) is given.
        """
        if alias is not None and netns is not None:
            raise ValueError("an alias is set in the namespace the link lives in")
        body = wire.create(
            name,
            kind,
            mtu=mtu,
            mac=None if mac is None else mac.packed,
            index=index,
            up=up,
            master=master,
            group=group,
            txqlen=txqlen,
            link=link,
            netns_fd=None if netns is None else netns.fd,
            data=kind_data,
        )
        self._create(name, index, f"add {kind}", body, alias)

    def add_veth(
        self,
        host: str,
        container: str,
        *,
        container_netns: Netns,
        mtu: int | None = None,
        host_mac: Mac | None = None,
        container_mac: Mac | None = None,
        host_index: int | None = None,
        container_index: int | None = None,
        master: int | None = None,
        host_up: bool = True,
        alias: str | None = None,
    ) -> None:
        """Create a veth pair: `host` here, `container` in its own namespace and down.

        `alias` and `master` are the host end's. Either all of it happens or nothing. LinkExists
        does not say which of the two names was taken. With `host_index` and `container_index`
        (free, chosen by the caller) further messages can follow in the same batch.
        """
        body = wire.create_veth(
            host,
            peer_name=container,
            peer_netns_fd=container_netns.fd,
            index=host_index,
            peer_index=container_index,
            up=host_up,
            mtu=mtu,
            mac=None if host_mac is None else host_mac.packed,
            peer_mac=None if container_mac is None else container_mac.packed,
            master=master,
        )
        self._create(host, host_index, "add veth", body, alias)

    def add_tap(
        self,
        name: str,
        *,
        owner: int | None = None,
        group: int | None = None,
        multi_queue: bool = False,
        vnet_hdr: bool = True,
    ) -> None:
        """Make a tap device, at once even in a batch; see `tuntap.add_tap`."""
        tuntap.add_tap(
            self._rtnl.namespace,
            name,
            owner=owner,
            group=group,
            multi_queue=multi_queue,
            vnet_hdr=vnet_hdr,
        )

    def set(
        self,
        link: int | str,
        *,
        name: str | None = None,
        up: bool | None = None,
        mtu: int | None = None,
        mac: Mac | None = None,
        master: int | None = None,
        alias: str | None = None,
        promisc: bool | None = None,
        allmulti: bool | None = None,
        txqlen: int | None = None,
        group: int | None = None,
        netns: Netns | None = None,
    ) -> None:
        """Change what is given, in one message; `master=0` releases, `alias=""` removes.

        The kernel goes through the attributes in its own order and stops at the first it
        refuses, without undoing those before. With `netns` the link moves first (and takes
        `name` there, so a name taken here is no trouble).
        """
        body = wire.change(
            link,
            name=name,
            up=up,
            promisc=promisc,
            allmulti=allmulti,
            alias=alias,
            netns_fd=None if netns is None else netns.fd,
            mtu=mtu,
            mac=None if mac is None else mac.packed,
            master=master,
            txqlen=txqlen,
            group=group,
        )
        self._rtnl.mutate(Mutation(wire.RTM_SETLINK, 0, body, "change link", link, _FAILURES))

    def set_data(self, link: int | str, kind: str, **kind_data: KindValue | None) -> None:
        """Change attributes of the link's kind, as `add` takes them."""
        body = wire.change_data(link, kind, kind_data)
        self._rtnl.mutate(Mutation(wire.RTM_NEWLINK, 0, body, f"change {kind}", link, _FAILURES))

    def set_port(
        self,
        link: int | str,
        *,
        hairpin: bool | None = None,
        isolated: bool | None = None,
        learning: bool | None = None,
        locked: bool | None = None,
    ) -> None:
        """Change what a bridge does with the link, which is one of its ports.

        A `locked` port lets nothing in (Linux 5.18; earlier ones ignore the word).
        """
        data: dict[str, KindValue | None] = {
            "hairpin": hairpin,
            "isolated": isolated,
            "learning": learning,
            "locked": locked,
        }
        body = wire.change_port(link, data)
        op = "change bridge port"
        self._rtnl.mutate(Mutation(wire.RTM_NEWLINK, 0, body, op, link, _PORT_FAILURES))

    def remove(self, link: int | str) -> None:
        """Delete the link and wait until it is gone; LinkNotFound. A veth takes its peer along."""
        self._rtnl.mutate(_removal(link))

    def remove_group(self, group: int) -> None:
        """Delete every link in the group with one wait for all; LinkNotFound when there is none."""
        body = wire.delete_group(group)
        target = f"link group {group}"
        self._rtnl.mutate(Mutation(wire.RTM_DELLINK, 0, body, "remove", target, _FAILURES))

    def _create(
        self, name: str, index: int | None, op: str, body: bytes, alias: str | None
    ) -> None:
        flags = NLM_F_CREATE | NLM_F_EXCL
        created = Mutation(wire.RTM_NEWLINK, flags, body, op, name, _FAILURES)
        if alias is None:
            self._rtnl.mutate(created)
            return
        # The kernel does not look at IFLA_IFALIAS when it creates a link: a second message. It
        # rides along only if it can name the link by index, because behind a refused creation
        # the name belongs to somebody else's link.
        named = Mutation(
            wire.RTM_SETLINK,
            0,
            wire.change(index or name, alias=alias),
            "set alias of",
            name,
            _FAILURES,
        )
        if index is not None:
            refused, unnamed = self._rtnl.apply(created, named)
            if refused is not None:
                raise refused
        elif self._rtnl.batching:
            raise ValueError("in a batch, a link with an alias needs an index of the caller's")
        else:
            self._rtnl.mutate(created)
            (unnamed,) = self._rtnl.apply(named)
        if unnamed is not None:
            self._undo(name, unnamed)
            raise unnamed

    def _undo(self, name: str, why: KernelError) -> None:
        try:
            self._rtnl.mutate(_removal(name))
        except KernelError as exc:
            why.add_note(f"and then: {exc.msg}")


def _removal(link: Target) -> Mutation:
    return Mutation(wire.RTM_DELLINK, 0, wire.delete(link), "remove link", link, _FAILURES)
