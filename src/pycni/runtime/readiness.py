# SPDX-License-Identifier: Apache-2.0
"""Whether networks can serve ADD, remembered for a while because runtimes poll every few seconds.

STATUS never gates another verb (SPEC R22): nothing here is looked at by ADD.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import msgspec

from pycni.errors import CniError
from pycni.model.deadline import Deadline
from pycni.runtime.events import Event, EventLog, Kind
from pycni.runtime.networks import Network
from pycni.runtime.runtime import Condition, Runtime

MAX_AGE_S = 5.0
PLUGINS_S = 10.0
REMEMBERED = 1024


class PluginReadiness(msgspec.Struct, frozen=True, kw_only=True):
    """What one plugin says of itself, and since when it has said so."""

    plugin_type: str
    plugin_index: int
    error: CniError | None = None
    since: float

    @property
    def ready(self) -> bool:
        """Whether the plugin can serve ADD."""
        return self.error is None


class NetworkReadiness(msgspec.Struct, frozen=True, kw_only=True):
    """What the plugins of a network say, when they were asked, since when the sum holds."""

    name: str
    ready: bool
    plugins: tuple[PluginReadiness, ...]
    last_checked: float
    since: float


class Readiness:
    """Asks plugins for their STATUS, at most once per `max_age_s` for each network."""

    def __init__(
        self,
        runtime: Runtime,
        *,
        events: EventLog | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`events` are told when a network's readiness changes."""
        self._runtime = runtime
        self._events = events
        self._clock = clock
        self._known: dict[tuple[str, str], NetworkReadiness] = {}
        self._lock = threading.Lock()

    def get(
        self, network: Network, *, max_age_s: float = MAX_AGE_S, deadline: Deadline | None = None
    ) -> NetworkReadiness:
        """An answer not older than `max_age_s`; 0 asks the plugins now.

        Plugins that do not answer within `PLUGINS_S` are not ready. A caller who has less time
        learns nothing of them by that: TryAgain (11), and nothing is remembered.
        """
        key = network.name, network.etag
        with self._lock:
            before = self._known.get(key)
        now = self._clock()
        if before is not None and now - before.last_checked < max_age_s:
            return before
        conditions = self._ask(network, deadline)
        answer = _compare(network.name, conditions, before, now)
        with self._lock:
            self._known[key] = answer
            while len(self._known) > REMEMBERED:
                del self._known[next(iter(self._known))]
        if self._events is not None and before is not None and before.ready != answer.ready:
            self._events.publish(
                Event(kind=Kind.NETWORK_READINESS, network=network.name, detail=answer)
            )
        return answer

    def _ask(self, network: Network, deadline: Deadline | None) -> tuple[Condition, ...]:
        caller = deadline or Deadline()
        left = caller.remaining_s()
        hurried = left is not None and left < PLUGINS_S
        limit = Deadline(left if hurried else PLUGINS_S)
        forget = caller.on_cancel(limit.cancel)
        try:
            conditions = self._runtime.conditions(network.config, deadline=limit)
        finally:
            forget()
        if limit.cancelled or (hurried and limit.expired):
            limit.check(f'STATUS of network "{network.name}"')
        return conditions


def _compare(
    name: str, conditions: tuple[Condition, ...], before: NetworkReadiness | None, now: float
) -> NetworkReadiness:
    """The new answer, its times carried over from the one before where nothing has changed."""
    earlier = {} if before is None else {p.plugin_index: p for p in before.plugins}
    plugins = []
    for condition in conditions:
        was = earlier.get(condition.plugin_index)
        same = was is not None and _code(was.error) == _code(condition.error)
        plugins.append(
            PluginReadiness(
                plugin_type=condition.plugin_type,
                plugin_index=condition.plugin_index,
                error=condition.error,
                since=was.since if was is not None and same else now,
            )
        )
    ready = all(plugin.ready for plugin in plugins)
    return NetworkReadiness(
        name=name,
        ready=ready,
        plugins=tuple(plugins),
        last_checked=now,
        since=before.since if before is not None and before.ready == ready else now,
    )


def _code(error: CniError | None) -> int | None:
    return None if error is None else error.wire_code
