# SPDX-License-Identifier: Apache-2.0
"""What changes on a node without a call: files of the conf directory, and readiness.

One thread looks once a second at the times of the files, which costs a stat each, and publishes
what is different. While somebody watches networks it also asks their plugins for STATUS.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

from pycni.errors import CniError
from pycni.log import Log
from pycni.runtime.confdir import Fault
from pycni.runtime.events import Event, Kind
from pycni.runtime.node import Node

log = Log(__name__)

POLL_S = 1.0
STATUS_S = 10.0


class News:
    """Publishes on the node's event log; start it once, stop it before the node is closed."""

    def __init__(self, node: Node, *, poll_s: float = POLL_S, status_s: float = STATUS_S) -> None:
        self._node = node
        self._poll_s = poll_s
        self._status_s = status_s
        self._etags: dict[str, str] = {}
        self._faults: dict[str, Fault] = {}
        self._watchers = 0
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Take what is there now as known, and look for changes from now on."""
        with contextlib.suppress(CniError):  # what cannot be listed now is news when it can be
            self._look(publish=False)
        self._thread = threading.Thread(target=self._run, name="news", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End it; a second call does nothing."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """While somebody wants to hear of readiness."""
        with self._lock:
            self._watchers += 1
        try:
            yield
        finally:
            with self._lock:
                self._watchers -= 1

    def _run(self) -> None:
        asked = time.monotonic()
        while not self._stopped.wait(self._poll_s):
            try:
                self._look(publish=True)
                if self._watchers and time.monotonic() - asked >= self._status_s:
                    self._ask()
                    asked = time.monotonic()
            except CniError as error:  # the directory cannot be listed: it may be again
                log.warning("looking for changes of networks: %s", error)

    def _look(self, *, publish: bool) -> None:
        networks = {n.name: n.etag for n in self._node.networks.list() if n.source}
        faults = {fault.path: fault for fault in self._node.networks.faults()}
        if publish:
            self._publish(networks, faults)
        self._etags, self._faults = networks, faults

    def _publish(self, networks: dict[str, str], faults: dict[str, Fault]) -> None:
        events = self._node.events
        for name in self._etags.keys() - networks.keys():
            if self._node.networks.find_stored(name) is None:
                events.publish(Event(kind=Kind.NETWORK_DELETED, network=name))
        for name, etag in networks.items():
            if self._etags.get(name) != etag:
                events.publish(Event(kind=Kind.NETWORK_PUT, network=name, etag=etag))
        for path in self._faults.keys() - faults.keys():
            events.publish(Event(kind=Kind.SOURCE_MENDED, message=path))
        for path, fault in faults.items():
            known = self._faults.get(path)
            if known is None or known.error.msg != fault.error.msg:
                events.publish(Event(kind=Kind.SOURCE_BROKEN, network=fault.name, detail=fault))

    def _ask(self) -> None:
        for network in self._node.networks.list():
            if self._stopped.is_set():
                return
            self._node.readiness.get(network, max_age_s=self._status_s / 2)
