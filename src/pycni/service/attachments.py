# SPDX-License-Identifier: Apache-2.0
"""The Attachments service: containers on networks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import grpc
from google.protobuf import duration_pb2

from pycni.errors import InvalidEnvironment
from pycni.model import request as model
from pycni.model.deadline import Deadline
from pycni.model.names import ContainerId, IfName
from pycni.runtime.attachments import Attachment, AttachmentKey, State, parse_page_token
from pycni.runtime.link_changes import LinkChanges
from pycni.runtime.networks import parse_network
from pycni.runtime.node import Node
from pycni.runtime.outcomes import Added, GcTarget, Join
from pycni.runtime.runtime import Step
from pycni.runtime.store import AttachmentFilter
from pycni.service import params, views, watches, wire
from pycni.service.configs import Configs
from pycni.service.pb.cni.v2alpha1 import (
    attachments_pb2,
    attachments_pb2_grpc,
    config_pb2,
    error_pb2,
)


class AttachmentsService(attachments_pb2_grpc.AttachmentsServicer):
    """Answers for the node's attachments; see attachments.proto for what each call promises."""

    def __init__(self, node: Node, configs: Configs, links: LinkChanges) -> None:
        self._node = node
        self._configs = configs
        self._links = links

    def Add(
        self, request: attachments_pb2.AddRequest, context: grpc.ServicerContext
    ) -> attachments_pb2.AddResponse:
        """Attach; the caller's deadline or departure stops it and starts the clean-up."""
        cleanup = request.cleanup_on_failure if request.HasField("cleanup_on_failure") else None
        with params.concerning(_ref_key(request), request, residue="NONE"):
            added = self._node.add(
                self._configs.parse_ref(request.network),
                params.parse_params(request),
                cleanup_on_failure=cleanup,
                replace=request.replace,
                validate_only=request.validate_only,
                deadline=self._deadline(context),
            )
        return _added(added)

    def Del(
        self, request: attachments_pb2.DelRequest, context: grpc.ServicerContext
    ) -> attachments_pb2.DelResponse:
        """Detach; runs to its end even if the caller goes away."""
        with params.concerning(_ref_key(request), request):
            deleted = self._node.delete(
                self._ref_for_delete(request.network),
                params.parse_params(request),
                continue_on_error=not request.stop_on_error,
            )
        return attachments_pb2.DelResponse(existed=deleted.existed, steps=_steps(deleted.steps))

    def Check(
        self, request: attachments_pb2.CheckRequest, context: grpc.ServicerContext
    ) -> attachments_pb2.CheckResponse:
        """Verify that an attachment is as its Add left it."""
        key = _key(request)
        with params.concerning(key):
            outcome = self._node.check(key, deadline=self._deadline(context))
        return attachments_pb2.CheckResponse(skipped=outcome.skipped, steps=_steps(outcome.steps))

    def List(
        self, request: attachments_pb2.ListAttachmentsRequest, context: grpc.ServicerContext
    ) -> attachments_pb2.ListAttachmentsResponse:
        """Attachments that match all filters, a page at a time."""
        with params.field("page_token"):
            parse_page_token(request.page_token)
        matching = AttachmentFilter(
            network=request.network,
            container_id=request.container_id,
            states=frozenset(map(_state, request.states)),
            labels=dict(request.labels),
        )
        page = self._node.list(matching, page_size=request.page_size, page_token=request.page_token)
        full = request.view == attachments_pb2.ATTACHMENT_VIEW_FULL
        return attachments_pb2.ListAttachmentsResponse(
            attachments=[
                views.attachment_message(attachment, self._config(attachment) if full else None)
                for attachment in page.attachments
            ],
            next_page_token=page.next_page_token,
        )

    def Get(
        self, request: attachments_pb2.GetAttachmentRequest, context: grpc.ServicerContext
    ) -> attachments_pb2.Attachment:
        """One attachment with its configuration."""
        key = _key(request)
        with params.concerning(key):
            attachment = self._node.get(key)
        return views.attachment_message(attachment, self._config(attachment))

    def Gc(
        self, request: attachments_pb2.GcRequest, context: grpc.ServicerContext
    ) -> attachments_pb2.GcResponse:
        """Remove what belongs to no valid attachment."""
        targets = [
            self._gc_target(target, f"networks[{index}]")
            for index, target in enumerate(request.networks)
        ] or None
        _expect_each_once(targets or ())
        collected = self._node.gc(
            targets, validate_only=request.validate_only, deadline=self._deadline(context)
        )
        return attachments_pb2.GcResponse(
            networks=[
                attachments_pb2.GcResult(
                    network=one.network,
                    deleted=[views.key_message(key) for key in one.deleted],
                    skipped=one.skipped,
                    steps=_steps(one.steps),
                )
                for one in collected
            ]
        )

    def AttachAll(
        self, request: attachments_pb2.AttachAllRequest, context: grpc.ServicerContext
    ) -> attachments_pb2.AttachAllResponse:
        """All interfaces of one container, or none."""
        joins = []
        with params.field("container_id"):
            ContainerId.parse(request.container_id)
        for index, interface in enumerate(request.interfaces):
            where = f"interfaces[{index}]."
            key = _ref_key(interface, container_id=request.container_id)
            with params.concerning(key, interface, where=where, residue="NONE"):
                network = self._configs.parse_ref(interface.network, where=f"{where}network")
                given = params.parse_params(
                    interface,
                    container_id=request.container_id,
                    netns=request.netns,
                    where=where,
                )
                joins.append(Join(network=network, params=given))
        with params.concerning(AttachmentKey("", request.container_id, "")):
            deadline = self._deadline(context)
            added = self._node.attach_all(request.container_id, joins, deadline=deadline)
        return attachments_pb2.AttachAllResponse(interfaces=[_added(one) for one in added])

    def DetachAll(
        self, request: attachments_pb2.DetachAllRequest, context: grpc.ServicerContext
    ) -> attachments_pb2.DetachAllResponse:
        """Everything of one container, last attached first."""
        with params.concerning(AttachmentKey("", request.container_id, "")):
            with params.field("container_id"):
                ContainerId.parse(request.container_id)
            detached = self._node.detach_all(request.container_id, netns=request.netns)
        return attachments_pb2.DetachAllResponse(
            detached=[views.key_message(key) for key in detached]
        )

    def Watch(
        self, request: attachments_pb2.WatchAttachmentsRequest, context: grpc.ServicerContext
    ) -> Iterator[attachments_pb2.AttachmentEvent]:
        """Transitions of attachments, changes of their links and addresses, plugins' notices."""
        with self._links.watched():
            yield from watches.watch_attachments(self._node, request, context)

    def _config(self, attachment: Attachment) -> config_pb2.NetworkConfig:
        return self._configs.view(parse_network(attachment.config, attachment.source))

    def _gc_target(self, target: attachments_pb2.GcNetwork, where: str) -> GcTarget:
        valid: frozenset[model.Attachment] | None = None
        if target.HasField("valid_attachments"):  # absent is not empty
            listed = set()
            for index, one in enumerate(target.valid_attachments.attachments):
                with params.field(f"{where}.valid_attachments.attachments[{index}]"):
                    container_id = ContainerId.parse(one.container_id)
                    listed.add(model.Attachment(container_id, IfName.parse(one.ifname)))
            valid = frozenset(listed)
        network = self._configs.parse_ref(target.network, where=f"{where}.network")
        return GcTarget(network=network, valid=valid)

    def _ref_for_delete(self, ref: config_pb2.NetworkRef) -> Any:
        """A known attachment needs only the name, so a broken inline configuration will do."""
        inline = ref.WhichOneof("ref") == "inline"
        if inline and ref.inline.name and not ref.inline.json and not ref.inline.plugins:
            return ref.inline.name
        return self._configs.parse_ref(ref)

    def _deadline(self, context: grpc.ServicerContext) -> Deadline:
        """The caller's deadline, at most the node's own, ended by the caller's departure."""
        # A call without a deadline has infinite time left.
        deadline = Deadline(min(self._node.limits.call_timeout_s, context.time_remaining()))
        if not context.add_callback(deadline.cancel):
            deadline.cancel()
        return deadline


def _expect_each_once(targets: Sequence[GcTarget]) -> None:
    """Raise InvalidEnvironment (4) for a network with two lists: each would undo the other's."""
    seen = set()
    for index, target in enumerate(targets):
        ref = target.network
        name = ref if isinstance(ref, str) else ref.name
        if name in seen:
            with params.field(f"networks[{index}]"):
                raise InvalidEnvironment(
                    f'network "{name}" is there twice',
                    hint="give all its valid attachments in one list",
                )
        seen.add(name)


def _ref_key(request: Any, *, container_id: str = "") -> AttachmentKey:
    """The attachment a request is about, as far as it says so."""
    network = request.network.name or request.network.inline.name
    container_id = container_id or getattr(request, "container_id", "")
    return AttachmentKey(network, container_id, request.ifname)


def _key(request: Any) -> AttachmentKey:
    return AttachmentKey(request.network, request.container_id, request.ifname)


def _state(value: int) -> State:
    names = attachments_pb2.AttachmentState.items()
    name = next((name for name, number in names if number == value), str(value))
    try:
        return State(name.removeprefix("ATTACHMENT_STATE_"))
    except ValueError:
        error = InvalidEnvironment(f"states: {name} is not a state to filter by")
        error.field = "states"
        raise error from None


def _added(added: Added) -> attachments_pb2.AddResponse:
    return attachments_pb2.AddResponse(
        attachment=views.attachment_message(added.attachment),
        replayed=added.replayed,
        steps=_steps(added.steps),
    )


def _steps(steps: Sequence[Step]) -> list[attachments_pb2.PluginStep]:
    return [_step(step) for step in steps]


_VERBS = {verb: error_pb2.Verb.Value(f"VERB_{verb}") for verb in model.Verb}
_EXECUTORS = {
    "builtin": attachments_pb2.EXECUTOR_KIND_BUILTIN,
    "exec": attachments_pb2.EXECUTOR_KIND_EXEC,
    "daemon": attachments_pb2.EXECUTOR_KIND_DAEMON,
}


def _duration(seconds: float) -> duration_pb2.Duration:
    whole = int(seconds)
    return duration_pb2.Duration(seconds=whole, nanos=int((seconds - whole) * 1e9))


def _step(step: Step) -> attachments_pb2.PluginStep:
    message = attachments_pb2.PluginStep(
        plugin_type=step.plugin_type,
        plugin_index=step.plugin_index,
        verb=_VERBS[step.verb],
        executor=_EXECUTORS.get(step.executor, attachments_pb2.EXECUTOR_KIND_UNSPECIFIED),
        duration=_duration(step.duration_s),
    )
    if step.error is not None:
        message.error.CopyFrom(wire.error_message(step.error))
    return message
