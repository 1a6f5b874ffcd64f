# SPDX-License-Identifier: Apache-2.0
"""A node: its networks, its attachments, and the order in which calls may touch them.

This is what the service and an in-process command line both call. `Runtime` knows how a chain is
run; `Node` adds memory (an attachment is written down before the kernel is touched and after),
locks (`runtime.locks` has their order), and the repair of what a crash interrupted.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Sequence

import msgspec

from pycni.errors import CniError, InvalidConfig, InvalidNetns, doing
from pycni.log import Log
from pycni.model import jsonio, request
from pycni.model.config import NetworkConfigList
from pycni.model.deadline import Deadline
from pycni.model.names import ContainerId, NetworkName
from pycni.model.request import Request, Verb
from pycni.runtime.attachments import (
    Attachment,
    AttachmentKey,
    AttachmentParams,
    State,
    StoredError,
    namespace_id,
    parse_page_token,
)
from pycni.runtime.dispatch import fold, text_field
from pycni.runtime.errors import AttachmentConflict, AttachmentNotFound, name_holders, raise_all
from pycni.runtime.events import EventLog, Kind, about
from pycni.runtime.libcni_cache import LibcniCache
from pycni.runtime.locks import Admission, SharedLocks
from pycni.runtime.nesting import Nesting
from pycni.runtime.networks import Network, Networks, NetworkSource, parse_network
from pycni.runtime.outcomes import (
    Added,
    Collected,
    Deleted,
    GcTarget,
    Join,
    Limits,
    Page,
    Recovered,
)
from pycni.runtime.readiness import Readiness
from pycni.runtime.runtime import Outcome, Runtime
from pycni.runtime.store import EVERYTHING, AttachmentFilter, Store, unwritten

log = Log(__name__)

PAGE_SIZE = 500
DEFAULT_LIMITS = Limits()
UNSETTLED = frozenset({State.ADDING, State.DELETING, State.FAILED})


def no_neighbours(network: str) -> Collection[request.Attachment]:
    """Nobody else attaches containers to our networks."""
    return ()


class Node:
    """Everything one machine does for its containers' networks; safe to call from any thread.

    `neighbours` tells the attachments that other runtimes hold on a network (libcni's cache), so
    that a GC without a list of valid attachments leaves them alone. With a `cache` results are
    kept there too, for libcni's callers to find; theirs are found by a DEL or CHECK here.
    """

    def __init__(
        self,
        store: Store,
        runtime: Runtime,
        *,
        source: NetworkSource | None = None,
        events: EventLog | None = None,
        limits: Limits = DEFAULT_LIMITS,
        boot_id: str = "",
        neighbours: Callable[[str], Collection[request.Attachment]] = no_neighbours,
        cache: LibcniCache | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._cache = cache
        self.store = store
        self.runtime = runtime
        self.limits = limits
        self.boot_id = boot_id
        self.events = events or EventLog(clock=clock)
        self._neighbours = neighbours
        self._clock = clock
        self._admission = Admission(running=limits.running, waiting=limits.waiting)
        self._networks = SharedLocks("network")
        self._containers = SharedLocks("container")
        self._nesting = Nesting()
        self.networks = Networks(
            store,
            runtime,
            source=source,
            events=self.events,
            locks=self._networks,
            retire=lambda network: runtime.retire(network, neighbours(network.name)),
            clock=clock,
        )
        self.readiness = Readiness(runtime, events=self.events, clock=clock)
        self._held = contextlib.ExitStack()

    def on_close(self, release: Callable[[], object]) -> None:
        """Have `close` call `release`, last registered first, after all of its own."""
        self._held.callback(release)

    def close(self) -> None:
        """End the watches and close the store; no call may be running."""
        self.events.close()
        self.store.close()
        self._held.close()

    # -- one attachment ----------------------------------------------------------------------------

    def add(
        self,
        network: str | NetworkConfigList,
        params: AttachmentParams,
        *,
        cleanup_on_failure: bool | None = None,
        replace: bool = False,
        validate_only: bool = False,
        deadline: Deadline | None = None,
    ) -> Added:
        """Attach a container to a network, or tell what an equal call came to before.

        An attachment that is not READY is deleted first, as is a READY one with `replace`: the
        SPEC has no second ADD without a DEL (R7).
        """
        params.check_names()
        deadline = deadline or Deadline(self.limits.call_timeout_s)
        with (
            _untouched(),
            self._working([_name_of(network)], params.container_id, deadline),
        ):
            return self._add(network, params, cleanup_on_failure, replace, validate_only, deadline)

    def delete(
        self,
        network: str | NetworkConfigList,
        params: AttachmentParams,
        *,
        continue_on_error: bool | None = None,
        deadline: Deadline | None = None,
    ) -> Deleted:
        """Detach a container, with the configuration and the result of its ADD if it is known.

        `deadline` limits the wait for other calls; a DEL that has begun runs to its end.
        """
        params.check_names()
        deadline = deadline or Deadline(self.limits.call_timeout_s)
        with self._working([_name_of(network)], params.container_id, deadline):
            key = params.key(_name_of(network))
            present = self.store.get_attachment(key) or self._adopt(network, key)
            if present is None:
                config = self.networks.resolve(network).config
                outcome = self.runtime.delete(config, params, continue_on_error=continue_on_error)
                if self._cache is not None:  # a file that nobody can read is of no use
                    self._cache.remove(*msgspec.structs.astuple(key))
                return Deleted(existed=False, steps=outcome.steps)
            outcome = self._detach(
                present,
                netns=params.netns,
                netns_fd=params.netns_fd,
                continue_on_error=continue_on_error,
            )
            return Deleted(existed=True, steps=outcome.steps)

    def check(self, key: AttachmentKey, *, deadline: Deadline | None = None) -> Outcome:
        """Raise unless the attachment is as ADD left it."""
        deadline = deadline or Deadline(self.limits.call_timeout_s)
        with self._working([key.network], key.container_id, deadline):
            present = self.store.get_attachment(key) or self._adopt(key.network, key)
            if present is None:
                raise AttachmentNotFound(key)
            if self._is_debt(present):
                earlier = "; it is of an earlier boot" if present.boot_id != self.boot_id else ""
                raise AttachmentNotFound(key, f"its state is {present.state}{earlier}")
            if present.netns_id and namespace_id(present.netns) != present.netns_id:
                raise InvalidNetns(
                    f"{present.netns} is not the namespace of {key} any more",
                    hint="the container is gone or was restarted; delete the attachment",
                )
            return self.runtime.check(
                parse_network(present.config, present.source),
                present.params(present.netns),
                prev_result=present.result,
                deadline=deadline,
            )

    def get(self, key: AttachmentKey) -> Attachment:
        """The attachment; raise AttachmentNotFound."""
        present = self.store.get_attachment(key)
        if present is None:
            raise AttachmentNotFound(key)
        return present

    def list(
        self,
        matching: AttachmentFilter = EVERYTHING,
        *,
        page_size: int = PAGE_SIZE,
        page_token: str = "",
    ) -> Page:
        """Attachments in the order of their keys, a page at a time."""
        size = min(page_size, PAGE_SIZE) or PAGE_SIZE
        found = self.store.list_attachments(
            matching, after=parse_page_token(page_token), limit=size + 1
        )
        more = len(found) > size
        token = "/".join(msgspec.structs.astuple(found[size - 1].key)) if more else ""
        return Page(attachments=tuple(found[:size]), next_page_token=token)

    # -- several -----------------------------------------------------------------------------------

    def attach_all(
        self, container_id: str, joins: Sequence[Join], *, deadline: Deadline | None = None
    ) -> tuple[Added, ...]:
        """Attach one container to several networks in order, or to none."""
        deadline = deadline or Deadline(self.limits.call_timeout_s)
        for join in joins:
            join.params.check_names()
            if join.params.container_id != container_id:
                raise InvalidConfig("attach_all: every interface must be of the same container")
        added: list[Added] = []
        names = [_name_of(join.network) for join in joins]
        with _untouched(), self._working(names, container_id, deadline):
            try:
                for join in joins:
                    added.append(self._add(join.network, join.params, None, False, False, deadline))
            except CniError as error:
                failed = joins[len(added)]
                error.network, error.ifname = _name_of(failed.network), failed.params.ifname
                self._take_back(added, error)
                raise
        return tuple(added)

    def detach_all(
        self, container_id: str, *, netns: str = "", deadline: Deadline | None = None
    ) -> tuple[AttachmentKey, ...]:
        """Detach a container from everything, last attached first, past failures."""
        ContainerId.parse(container_id)
        deadline = deadline or Deadline(self.limits.call_timeout_s)
        matching = AttachmentFilter(container_id=container_id)
        names = sorted({a.network for a in self.store.list_attachments(matching)})
        detached: list[AttachmentKey] = []
        errors: list[CniError] = []
        with self._working(names, container_id, deadline):
            present = [a for a in self.store.list_attachments(matching) if a.network in names]
            for attachment in sorted(present, key=lambda a: a.created, reverse=True):
                try:
                    self._detach(attachment, netns=netns)
                    detached.append(attachment.key)
                except CniError as error:
                    errors.append(error)
        raise_all("DEL", errors)
        return tuple(detached)

    def gc(
        self,
        targets: Sequence[GcTarget] | None = None,
        *,
        validate_only: bool = False,
        deadline: Deadline | None = None,
    ) -> tuple[Collected, ...]:
        """Remove what belongs to no valid attachment, network by network, past failures.

        Attachments of the node that are not valid are deleted first; then the plugins collect, but
        on a network of the conf directory only by a list given.
        """
        deadline = deadline or Deadline(self.limits.call_timeout_s)
        if targets is None:
            targets = [GcTarget(network=name) for name in self._known_networks()]
        collected: list[Collected] = []
        errors: list[CniError] = []
        for target in targets:
            name = _name_of(target.network)
            try:
                with self._collecting(name, deadline):
                    collected.append(self._gc(target, name, validate_only, deadline))
            except CniError as error:
                for one in getattr(error, "errors", [error]):
                    one.network = name
                    errors.append(one)
        raise_all("GC", errors)
        return tuple(collected)

    def recover(self, *, deadline: Deadline | None = None) -> Recovered:
        """Finish or roll back what a crash or a reboot interrupted; call it once after opening.

        Other calls may already be running. What cannot be settled stays FAILED.
        """
        deadline = deadline or Deadline()
        settled: list[AttachmentKey] = []
        failed: list[tuple[AttachmentKey, CniError]] = []
        for listed in self.store.list_attachments():
            if not self._is_debt(listed):
                continue
            key = listed.key
            try:
                with self._working([key.network], key.container_id, deadline):
                    # Again, under the lock: nobody works on it now, so what it says is left over.
                    present = self.store.get_attachment(key)
                    if present is not None and self._is_debt(present):
                        self._detach(present)
                        settled.append(key)
            except CniError as error:
                log.warning("%s could not be settled: %s", key, error)
                failed.append((key, error))
        return Recovered(settled=tuple(settled), failed=tuple(failed))

    def run_plugin(
        self, plugin_type: str, call: Request, deadline: Deadline | None = None
    ) -> bytes:
        """Run one verb of one plugin for a caller that runs the chain itself (an exec'd shim).

        Nothing is remembered: that caller keeps its own results. The locks are the same.
        """
        deadline = deadline or Deadline(self.limits.call_timeout_s)
        plugin = self.runtime.executors.get_own(plugin_type)
        network = text_field(fold(jsonio.decode_raw_object(call.config)), "name")
        # A DEL that has begun runs to its end, whoever still waits for it.
        limit = Deadline(self.runtime.plugin_timeout_s) if call.verb is Verb.DEL else deadline
        with contextlib.ExitStack() as held:
            if call.verb is Verb.STATUS or self._nesting.covers(
                call.parent, network, call.container_id
            ):
                pass  # needs no lock, or has them: the call it is part of holds them
            elif call.verb is Verb.GC:
                held.enter_context(self._collecting(network, deadline))
            else:
                held.enter_context(self._working([network], call.container_id, deadline))
            return plugin.run(plugin_type, call, limit)

    def plugin_versions(self, plugin_type: str) -> tuple[str, ...]:
        """The versions of a plugin that `run_plugin` runs."""
        return self.runtime.executors.get_own(plugin_type).versions(plugin_type)

    # -- steps; the locks are held -----------------------------------------------------------------

    def _add(
        self,
        network: str | NetworkConfigList,
        params: AttachmentParams,
        cleanup_on_failure: bool | None,
        replace: bool,
        validate_only: bool,
        deadline: Deadline,
    ) -> Added:
        key = params.key(_name_of(network))
        present = self.store.get_attachment(key)
        if present is not None and not self._is_debt(present) and not replace:
            inline = None if isinstance(network, str) else network.resolved
            difference = present.find_difference(params, inline)
            if difference:
                raise AttachmentConflict(key, difference)
            return Added(attachment=present, replayed=True)
        resolved = self.networks.resolve(network)
        self.runtime.validate_params(resolved.config, params)
        attachment = self._begin(resolved, params, inline=not isinstance(network, str))
        if validate_only:
            return Added(attachment=attachment)
        if present is not None:
            with doing(f"deleting the {present.state} {key} that was there before"):
                self._detach(present, netns=params.netns, netns_fd=params.netns_fd)
        return self._attach(resolved.config, attachment, params, cleanup_on_failure, deadline)

    def _take_back(self, added: Sequence[Added], error: CniError) -> None:
        """Detach what an `attach_all` has attached; failures become notes on its error."""
        for done in reversed(added):
            if done.replayed:
                continue
            try:
                self._detach(done.attachment)
            except CniError as failure:
                error.add_note(f"detach {done.attachment.key}: {failure}")
                error.residue = "UNKNOWN"

    def _begin(self, network: Network, params: AttachmentParams, *, inline: bool) -> Attachment:
        now = self._clock()
        return Attachment(
            network=network.name,
            container_id=params.container_id,
            ifname=params.ifname,
            netns=params.netns,
            netns_id=namespace_id(params.netns, params.netns_fd),
            state=State.ADDING,
            config=network.config.resolved,
            source=network.source,
            inline=inline,
            network_etag=network.etag,
            cni_args=params.cni_args,
            capability_args=params.capability_args,
            labels=params.labels,
            boot_id=self.boot_id,
            created=now,
            updated=now,
        )

    def _attach(
        self,
        config: NetworkConfigList,
        attachment: Attachment,
        params: AttachmentParams,
        cleanup_on_failure: bool | None,
        deadline: Deadline,
    ) -> Added:
        self._save(attachment)
        try:
            outcome = self.runtime.add(
                config,
                params,
                deadline=deadline,
                cleanup_on_failure=cleanup_on_failure,
                validated=True,
            )
        except CniError as error:
            name_holders(error, lambda: (each.key for each in self.store.list_attachments()))
            with unwritten(error):
                if error.residue == "NONE":
                    self._forget(attachment)
                else:
                    self._fail(attachment, error)
            raise
        ready = msgspec.structs.replace(attachment, state=State.READY, result=outcome.result)
        try:
            ready = self._save(ready)
        except CniError as error:
            # What cannot be remembered cannot be undone later: undo it now.
            with doing("deleting the attachment that could not be stored"):
                self.runtime.delete(config, params, prev_result=outcome.result)
            error.residue = "NONE"
            raise
        if self._cache is not None:
            self._cache.remember(ready)
        return Added(attachment=ready, steps=outcome.steps)

    def _adopt(self, network: str | NetworkConfigList, key: AttachmentKey) -> Attachment | None:
        """An attachment that another runtime made, if libcni's cache knows enough of it."""
        if self._cache is None:
            return None
        known = self.networks.find(network) if isinstance(network, str) else None
        given = network if isinstance(network, NetworkConfigList) else known and known.config
        return self._cache.adopt(key, given or None, boot_id=self.boot_id)

    def _detach(
        self,
        attachment: Attachment,
        *,
        netns: str = "",
        netns_fd: int | None = None,
        continue_on_error: bool | None = None,
    ) -> Outcome:
        """DEL with what ADD used; forget the attachment, or keep it as FAILED and raise."""
        config = parse_network(attachment.config, attachment.source)
        params = attachment.params_for_delete(netns, netns_fd, boot_id=self.boot_id)
        with unwritten():  # nobody has to stay for a full disk
            self._save(msgspec.structs.replace(attachment, state=State.DELETING))
        try:
            outcome = self.runtime.delete(
                config, params, prev_result=attachment.result, continue_on_error=continue_on_error
            )
        except CniError as error:
            error.residue = "UNKNOWN"
            for one in (error, *getattr(error, "errors", ())):
                one.network, one.container_id, one.ifname = msgspec.structs.astuple(attachment.key)
            with unwritten(error):
                self._fail(attachment, error)
            raise
        with doing("forgetting it: all of it is deleted; free space and delete it again"):
            self._forget(attachment)
        return outcome

    def _gc(
        self, target: GcTarget, name: str, validate_only: bool, deadline: Deadline
    ) -> Collected:
        present = self.store.list_attachments(AttachmentFilter(network=name))
        config = self._gc_config(target, name, present)
        if config.disableGC:  # no DEL of stale attachments either (libcni L12)
            return Collected(network=name, skipped=True)
        # Other runtimes read the conf directory too, and may hold attachments on its networks that
        # nobody here knows of. Garbage is better than cutting off their containers.
        shared = target.valid is None and bool(config.source)
        valid = self._valid(target, name, present)
        stale = [attachment for attachment in present if attachment.entry not in valid]
        if validate_only:
            return Collected(network=name, deleted=tuple(a.key for a in stale), skipped=shared)
        errors: list[CniError] = []
        deleted: list[AttachmentKey] = []
        for attachment in stale:
            try:
                with self._containers.alone(attachment.container_id, deadline):
                    self._detach(attachment)
                deleted.append(attachment.key)
            except CniError as error:
                errors.append(error)
        outcome = Outcome(skipped=True)
        try:
            if not shared:
                outcome = self.runtime.gc(config, valid, deadline=deadline)
        except CniError as error:
            errors.extend(getattr(error, "errors", [error]))
        raise_all("GC", errors)
        return Collected(
            network=name, deleted=tuple(deleted), skipped=outcome.skipped, steps=outcome.steps
        )

    def _valid(
        self, target: GcTarget, name: str, present: Sequence[Attachment]
    ) -> frozenset[request.Attachment]:
        """What is valid on a network: what the caller says, of what he may judge, and others'."""
        if target.valid is not None and not target.labels:
            return target.valid
        # The neighbours' cache holds our own as well, stale ones among them.
        strangers = frozenset(self._neighbours(name)) - {a.entry for a in present}
        if target.valid is None:
            return strangers.union(
                a.entry for a in present if a.state in (State.ADDING, State.READY)
            )
        return target.valid | strangers | {a.entry for a in present if not target.judges(a)}

    def _gc_config(
        self, target: GcTarget, name: str, present: Sequence[Attachment]
    ) -> NetworkConfigList:
        """The network as it is now; of a deleted one, as its latest attachment knows it."""
        if present and isinstance(target.network, str) and self.networks.find(name) is None:
            latest = max(present, key=lambda attachment: attachment.created)
            return parse_network(latest.config, latest.source)
        return self.networks.resolve(target.network).config

    def _known_networks(self) -> Sequence[str]:
        names = {network.name for network in self.networks.list()}
        return sorted(names.union(a.network for a in self.store.list_attachments()))

    def _is_debt(self, attachment: Attachment) -> bool:
        return attachment.state in UNSETTLED or attachment.boot_id != self.boot_id

    def _save(self, attachment: Attachment) -> Attachment:
        stamped = msgspec.structs.replace(attachment, updated=self._clock())
        self.store.put_attachment(stamped)
        self.events.publish(about(stamped))
        return stamped

    def _fail(self, attachment: Attachment, error: CniError) -> None:
        stored = StoredError.of(error)
        self._save(msgspec.structs.replace(attachment, state=State.FAILED, error=stored))

    def _forget(self, attachment: Attachment) -> None:
        self.store.delete_attachment(attachment.key)
        if self._cache is not None:
            self._cache.forget(attachment)
        gone = msgspec.structs.replace(
            about(attachment), kind=Kind.ATTACHMENT_GONE, state=None, detail=None
        )
        self.events.publish(gone)

    @contextlib.contextmanager
    def _working(
        self, networks: Collection[str], container_id: str, deadline: Deadline
    ) -> Iterator[None]:
        """Hold a place in the queue, the networks with other readers, the container alone."""
        with contextlib.ExitStack() as held:
            held.enter_context(self._admission.enter(deadline))
            for name in sorted(set(networks)):
                held.enter_context(self._networks.shared(name, deadline))
            held.enter_context(self._containers.alone(container_id, deadline))
            held.enter_context(self._nesting.holding(networks, container_id))
            yield

    @contextlib.contextmanager
    def _collecting(self, network: str, deadline: Deadline) -> Iterator[None]:
        """Hold a place in the queue and the network alone, as GC must (SPEC R5)."""
        with (
            self._admission.enter(deadline),
            self._networks.alone(network, deadline),
            self._nesting.holding([network], None),
        ):
            yield


@contextlib.contextmanager
def _untouched() -> Iterator[None]:
    """Say on a passing error that nothing is left, unless who raised it knows better."""
    try:
        yield
    except CniError as error:
        error.residue = error.residue or "NONE"
        raise


def _name_of(network: str | NetworkConfigList) -> str:
    return NetworkName.parse(network if isinstance(network, str) else network.name)
