# SPDX-License-Identifier: Apache-2.0
"""The plugin type `pycni`: a whole network of the node in one execution.

Another runtime's configuration list holds `{"type": "pycni", "network": "dbnet"}` and nothing else;
the chain, its leases and its results are the node's business, and the runtime pays for one process
instead of one for each plugin. The runtime keeps its own cache of the result, so ours has none.
"""

from __future__ import annotations

import contextlib

import msgspec

from pycni.errors import InvalidConfig, InvalidEnvironment, InvalidNetns, NotAvailable
from pycni.model.deadline import Deadline
from pycni.model.names import NetworkName
from pycni.model.request import Request
from pycni.model.result import Result
from pycni.plugins.sdk import Call, Config, Plugin
from pycni.runtime.attachments import RUNTIME_LABEL, AttachmentKey, AttachmentParams, namespace_id
from pycni.runtime.confdir import REFERENCE_TYPE
from pycni.runtime.dispatch import dispatch
from pycni.runtime.errors import NetworkNotFound
from pycni.runtime.node import Node
from pycni.runtime.outcomes import GcTarget

TYPE = REFERENCE_TYPE

# What CONVENTIONS.md lists: a runtime hands over what the plugin declares, and the node passes on
# what the network's own plugins declare.
CAPABILITIES = (
    "portMappings",
    "ipRanges",
    "bandwidth",
    "dns",
    "ips",
    "mac",
    "infinibandGUID",
    "deviceID",
    "aliases",
    "cgroupPath",
)


class NetworkReference(Config, frozen=True, kw_only=True):
    """The configuration: `name` is the runtime's network, `network` the node's."""

    network: NetworkName
    runtimeConfig: dict[str, msgspec.Raw] = msgspec.field(default_factory=dict)


class WholeNetwork(Plugin[NetworkReference], type=TYPE, config=NetworkReference):
    """Each verb is the node's verb on the network that is referred to."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def add(self, call: Call[NetworkReference]) -> Result:
        """Attach the container; the same ADD again returns the same result."""
        if call.prev_result is not None:
            raise InvalidConfig(
                "prevResult: a whole network cannot follow another plugin",
                hint=f'make "{TYPE}" the first plugin of the list',
            )
        added = self._node.add(call.config.network, _params(call), deadline=call.deadline)
        return Result.parse(added.attachment.result or b"null")

    def delete(self, call: Call[NetworkReference]) -> None:
        """Detach it; without the network and without a memory of the ADD nothing is there."""
        with contextlib.suppress(NetworkNotFound):
            self._node.delete(call.config.network, _params(call, strict=False))

    def check(self, call: Call[NetworkReference]) -> None:
        """Raise unless the attachment is as ADD left it, in the namespace it was made in."""
        key = AttachmentKey(call.config.network, call.container_id, call.ifname)
        made_in = self._node.get(key).netns_id
        there = namespace_id(call.request.netns, call.request.netns_fd)
        if made_in and there != made_in:
            raise InvalidNetns(f"{call.request.netns} is not the namespace of {key}")
        self._node.check(key, deadline=call.deadline)

    def gc(self, call: Call[NetworkReference]) -> None:
        """Collect what this runtime attached and does not list; others' is not its to judge."""
        target = GcTarget(
            network=call.config.network, valid=call.valid_attachments, labels=_labels(call)
        )
        with contextlib.suppress(NetworkNotFound):
            self._node.gc([target], deadline=call.deadline)

    def status(self, call: Call[NetworkReference]) -> None:
        """Raise what the first plugin of the network that is not well says."""
        network = self._node.networks.find(call.config.network)
        if network is None:
            raise NotAvailable(
                f'there is no network "{call.config.network}"', hint="pycni network put FILE"
            )
        self._node.runtime.status(network.config, deadline=call.deadline)


def run(node: Node, request: Request) -> bytes:
    """Answer one execution of the type with the node's networks."""
    return dispatch(
        WholeNetwork(node),
        request,
        host=node.runtime.executors.in_process.host,
        delegate=node.runtime.executors.delegate,
        deadline=Deadline(node.limits.call_timeout_s),
    )


def _params(call: Call[NetworkReference], *, strict: bool = True) -> AttachmentParams:
    return AttachmentParams(
        container_id=call.container_id,
        ifname=call.ifname,
        netns=call.request.netns,
        netns_fd=call.request.netns_fd,
        netns_override=call.request.netns_override,
        cni_args=_pairs(call.request.args, strict=strict),
        capability_args=call.config.runtimeConfig,
        labels=_labels(call),
    )


def _labels(call: Call[NetworkReference]) -> dict[str, str]:
    return {RUNTIME_LABEL: call.config.name}


def _pairs(args: str, *, strict: bool) -> tuple[tuple[str, str], ...]:
    """CNI_ARGS in their order; a DEL overlooks what is no pair."""
    pairs = []
    for text in args.split(";") if args else ():
        key, equals, value = text.partition("=")
        if key and equals:
            pairs.append((key, value))
        elif strict:
            raise InvalidEnvironment(f'CNI_ARGS: invalid pair "{text}"')
    return tuple(pairs)
