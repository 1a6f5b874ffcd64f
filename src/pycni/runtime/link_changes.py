# SPDX-License-Identifier: Apache-2.0
"""Links and addresses of attachments as the kernel changes them, on the node's event log.

One netlink socket hears of the host and of every container's namespace. It is open while somebody
watches attachments and for a while after, so that who reconnects misses nothing; who comes back
later is told so. Only what differs from what is known is an event: the kernel repeats itself.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from pycni.errors import CniError
from pycni.kernel.side import Side
from pycni.kernel.types import Address, Link
from pycni.model.result import Result
from pycni.net.owner import Owner
from pycni.runtime.attachments import Attachment, AttachmentKey, State, namespace_id
from pycni.runtime.events import AddressChange, Event, EventLog, Kind, LinkChange
from pycni.runtime.node import Node
from pycni.runtime.store import AttachmentFilter

if TYPE_CHECKING:
    from pycni.kernel.types import Event as KernelEvent

log = logging.getLogger(__name__)

LINGER_S = 60.0
POLL_S = 0.5
RUNNING = ("up", "unknown")  # what loopback and tunnels say for want of a carrier

Place = tuple[int | None, int]  # the id of a namespace, None for the host's, and a link's index


class _Tracked:
    """One link of an attachment and what is known of it."""

    def __init__(self, key: AttachmentKey, sandbox: str, link: LinkChange) -> None:
        self.key = key
        self.sandbox = sandbox
        self.link = link
        self.addresses: set[str] = set()


class LinkChanges:
    """Listens while it is `watched`; `stop` it before the node is closed."""

    def __init__(self, node: Node, *, linger_s: float = LINGER_S) -> None:
        self._node = node
        self._linger_s = linger_s
        self._lock = threading.Lock()
        self._watchers = 0
        self._deserted = 0.0  # since when there have been none
        self._stopped = False
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Listen for the duration of the block; on systems without netlink do nothing."""
        with self._lock:
            self._watchers += 1
            if self._thread is None and os.name == "posix" and not self._stopped:
                self._thread = threading.Thread(target=self._run, name="links", daemon=True)
                self._thread.start()
        try:
            yield
        finally:
            with self._lock:
                self._watchers -= 1
                self._deserted = time.monotonic()

    def stop(self) -> None:
        """End it; a second call does nothing."""
        with self._lock:
            self._stopped = True
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        try:
            _Listener(self._node).listen(self._is_done)
        except CniError as error:
            log.warning("changes of links are not watched: %s", error)
            with self._lock:
                self._leave("the kernel cannot be listened to")

    def _is_done(self) -> bool:
        with self._lock:
            deserted = not self._watchers and time.monotonic() - self._deserted > self._linger_s
            if deserted and not self._stopped:
                self._leave("links were not watched for a while, as nobody asked for it")
            return deserted or self._stopped

    def _leave(self, why: str) -> None:
        """Say so before another thread may begin."""
        self._node.events.publish(Event(kind=Kind.LINKS_LOST, message=why))
        self._thread = None


class _Listener:
    """What one thread knows while it listens."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._events: EventLog = node.events
        self._host = node.runtime.executors.in_process.host
        self._tracked: dict[Place, _Tracked] = {}
        self._places: dict[AttachmentKey, list[Place]] = {}

    def listen(self, is_done: Callable[[], bool]) -> None:
        from pycni.kernel.monitor import Monitor  # netlink is not everywhere

        with Monitor(self._host.netns, ("link", "address"), everywhere=True) as monitor:
            news = self._events.watch()
            self._track_all()
            while not is_done():
                changes = monitor.read(POLL_S)
                while (event := news.get(0)) is not None:
                    self._follow(event)
                for change in changes:
                    self._tell(change)

    # -- whose links they are ----------------------------------------------------------------------

    def _follow(self, event: Event) -> None:
        """Keep up with the attachments there are."""
        match event.kind:
            case Kind.LOST:
                self._track_all()
            case Kind.ATTACHMENT | Kind.ATTACHMENT_GONE:
                self._forget(AttachmentKey(event.network, event.container_id, event.ifname))
                if event.state is State.READY and isinstance(event.detail, Attachment):
                    self._track(event.detail)

    def _track_all(self) -> None:
        self._tracked.clear()
        self._places.clear()
        ready = AttachmentFilter(states=frozenset({State.READY}))
        for attachment in self._node.store.list_attachments(ready):
            self._track(attachment)

    def _forget(self, key: AttachmentKey) -> None:
        for place in self._places.pop(key, ()):
            self._tracked.pop(place, None)

    def _track(self, attachment: Attachment) -> None:
        """Find the attachment's links; one that cannot be found is not spoken of."""
        if attachment.result is None:
            return
        try:
            interfaces = Result.parse(attachment.result).interfaces
            inside = {i.name for i in interfaces if i.sandbox}
            outside = {i.name for i in interfaces if not i.sandbox}
            self._track_inside(attachment, inside)
            self._track_outside(attachment.key, outside)
        except CniError as error:
            log.debug("the links of %s are not watched: %s", attachment.key, error)

    def _track_inside(self, attachment: Attachment, names: set[str]) -> None:
        path = attachment.netns
        if not names or not path or namespace_id(path) != attachment.netns_id:
            return
        with Side.open(path) as container:
            assert container.netns is not None
            number = self._host.rtnl.namespace_id(container.netns)
            if number is None:
                return  # nothing leads there from the host, so nothing is heard from it
            for link in container.links.list():
                if link.name in names:
                    found = self._add(attachment.key, number, link, path)
                    addresses = container.addresses.list(index=link.index)
                    found.addresses = {str(a.address) for a in addresses if not a.tentative}

    def _track_outside(self, key: AttachmentKey, names: set[str]) -> None:
        tag = Owner(key.network, key.container_id, key.ifname).tag
        for name in names:
            link = self._host.links.find(name)
            if link is not None and link.alias == tag:  # a bridge is everybody's
                self._add(key, None, link, "")

    def _add(self, key: AttachmentKey, number: int | None, link: Link, sandbox: str) -> _Tracked:
        place = number, link.index
        found = self._tracked[place] = _Tracked(key, sandbox, _state(link, sandbox, removed=False))
        self._places.setdefault(key, []).append(place)
        return found

    # -- what happens to them ----------------------------------------------------------------------

    def _tell(self, change: KernelEvent) -> None:
        match change.subject:
            case None:
                why = "the kernel reported more changes than could be read"
                self._events.publish(Event(kind=Kind.LINKS_LOST, message=why))
                self._track_all()
            case Link() as link:
                found = self._tracked.get((change.nsid, link.index))
                if found is None:
                    return
                state = _state(link, found.sandbox, removed=change.removed)
                if state != found.link:
                    found.link = state
                    self._publish(Kind.LINK, found.key, state)
            case Address() as address:
                found = self._tracked.get((change.nsid, address.index))
                text = str(address.address)
                # An address that is still tentative cannot be used: it comes when it can.
                if found is None or (not change.removed and address.tentative):
                    return
                if change.removed == (text in found.addresses):
                    found.addresses ^= {text}
                    detail = AddressChange(
                        name=found.link.name,
                        sandbox=found.sandbox,
                        address=text,
                        removed=change.removed,
                    )
                    self._publish(Kind.ADDRESS, found.key, detail)

    def _publish(self, kind: Kind, key: AttachmentKey, detail: object) -> None:
        self._events.publish(
            Event(
                kind=kind,
                network=key.network,
                container_id=key.container_id,
                ifname=key.ifname,
                detail=detail,
            )
        )


def _state(link: Link, sandbox: str, *, removed: bool) -> LinkChange:
    return LinkChange(
        name=link.name,
        sandbox=sandbox,
        removed=removed,
        running=link.operstate in RUNNING and link.up and not removed,
        up=link.up and not removed,
        mtu=link.mtu,
    )
