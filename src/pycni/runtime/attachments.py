# SPDX-License-Identifier: Apache-2.0
"""One interface of one container on one network: what was asked, what came of it, where it stands.

    (absent) ──add──▶ ADDING ──ok──▶ READY ──del──▶ DELETING ──ok──▶ (absent)
                        │                              │
                        └──failed, not undone──▶ FAILED ◀──failed──┘

FAILED is a debt: something may be left in the kernel, and DEL is owed until it succeeds. It
survives restarts. An ADD that failed and was undone completely leaves no attachment.
"""

from __future__ import annotations

import enum
import os
from typing import Self

import msgspec

from pycni.errors import CniError, InvalidConfig, InvalidEnvironment
from pycni.model import jsonio, request
from pycni.model.names import ContainerId, IfName

# The label of an attachment that another runtime made through a network of its own, whose name is
# the value. That runtime keeps libcni's cache itself, and its GC judges no other attachments.
RUNTIME_LABEL = "pycni.runtime-network"


class State(enum.StrEnum):
    """Where an attachment stands; see the drawing above."""

    ADDING = "ADDING"
    READY = "READY"
    FAILED = "FAILED"
    DELETING = "DELETING"


class AttachmentKey(msgspec.Struct, frozen=True, order=True):
    """What identifies an attachment on a node (SPEC R7)."""

    network: str
    container_id: str
    ifname: str

    def __str__(self) -> str:
        return f"attachment {self.network}/{self.container_id}/{self.ifname}"


class AttachmentParams(msgspec.Struct, frozen=True, kw_only=True):
    """What a runtime gives for one attachment; the same for ADD, CHECK and DEL.

    `netns_fd` is an open handle on `netns` where the caller sent one; it belongs to the caller.
    `labels` are the client's own and reach no plugin.
    """

    container_id: str
    ifname: str
    netns: str = ""
    cni_args: tuple[tuple[str, str], ...] = ()
    capability_args: dict[str, msgspec.Raw] = {}
    labels: dict[str, str] = {}
    netns_fd: int | None = None
    netns_override: bool = False

    def check_names(self) -> None:
        """Raise 3 or 4 unless the names are fit for paths and the kernel (SPEC R8, L3)."""
        ContainerId.parse(self.container_id)
        IfName.parse(self.ifname)
        if "\0" in self.netns:
            raise InvalidEnvironment("CNI_NETNS contains a NUL byte")
        for key, value in self.cni_args:
            if not key or any(char in key for char in "=;\0") or any(c in value for c in ";\0"):
                raise InvalidEnvironment(f'CNI_ARGS: invalid pair "{key}={value}"')

    @property
    def args(self) -> str:
        """CNI_ARGS as the environment carries them, in the order given (SPEC R12)."""
        return ";".join(f"{key}={value}" for key, value in self.cni_args)

    def key(self, network: str) -> AttachmentKey:
        """The identity of this attachment on `network`."""
        return AttachmentKey(network, self.container_id, self.ifname)


class Attachment(msgspec.Struct, frozen=True, kw_only=True):
    """An attachment as the store keeps it.

    `config` is the list as it was resolved at ADD: CHECK and DEL use it even after the network
    was edited or deleted (SPEC C16). `netns_id` tells a namespace from a later one at the same
    path. `inline` says the caller sent the configuration instead of a network's name; otherwise
    `network_etag` is the network's at the time.
    """

    network: str
    container_id: str
    ifname: str
    netns: str = ""
    netns_id: str = ""
    state: State
    config: bytes
    source: str = ""
    inline: bool = False
    network_etag: str = ""
    cni_args: tuple[tuple[str, str], ...] = ()
    capability_args: dict[str, msgspec.Raw] = {}
    labels: dict[str, str] = {}
    result: bytes | None = None
    error: StoredError | None = None
    boot_id: str = ""
    created: float = 0.0
    updated: float = 0.0

    @property
    def key(self) -> AttachmentKey:
        """The identity of this attachment."""
        return AttachmentKey(self.network, self.container_id, self.ifname)

    def params(self, netns: str) -> AttachmentParams:
        """The parameters of its ADD, with the namespace at `netns`."""
        return AttachmentParams(
            container_id=self.container_id,
            ifname=self.ifname,
            netns=netns,
            cni_args=self.cni_args,
            capability_args=self.capability_args,
            labels=self.labels,
        )

    def find_difference(self, params: AttachmentParams, inline: bytes | None) -> str:
        """What an ADD with `params` asks for that this one did not; "" if it is the same call.

        `inline` is the configuration the caller sent, None if it named the network. Two calls by
        name are the same even if the network was edited in between.
        """
        there = namespace_id(params.netns, params.netns_fd)
        differences = {
            "netns": (
                there != self.netns_id if there and self.netns_id else params.netns != self.netns
            ),
            "cni_args": params.cni_args != self.cni_args,
            "capability_args": _documents(params.capability_args)
            != _documents(self.capability_args),
            "labels": params.labels != self.labels,
            "network configuration": inline is not None and inline != self.config,
        }
        found = [what for what, different in differences.items() if different]
        return f"different: {', '.join(found)}" if found else ""

    def params_for_delete(
        self, netns: str, netns_fd: int | None, *, boot_id: str
    ) -> AttachmentParams:
        """The parameters of ADD, with a path that still leads to ADD's namespace, or with none.

        Paths are reused (/proc/PID/ns/net after the process): a DEL must not work in a namespace
        that is another container's by now (plugins #714). After a reboot every one is.
        """
        known = self.netns_id
        if self.boot_id != boot_id:
            return self.params("")
        if netns_fd is not None and known in ("", namespace_id("", netns_fd)):
            params = self.params(netns or self.netns)
            return msgspec.structs.replace(params, netns_fd=netns_fd)
        for path in (netns, self.netns):
            if path and known in ("", namespace_id(path)):
                return self.params(path)
        return self.params("")

    @property
    def entry(self) -> request.Attachment:
        """This attachment as a list of valid ones has it."""
        return request.Attachment(
            container_id=ContainerId(self.container_id), ifname=IfName(self.ifname)
        )


class StoredError(msgspec.Struct, frozen=True, kw_only=True):
    """Why an attachment is FAILED, as `List` and `Get` tell it."""

    code: int
    msg: str
    details: str = ""
    verb: str = ""
    plugin_type: str = ""
    plugin_index: int | None = None

    @classmethod
    def of(cls, error: CniError) -> Self:
        """What of `error` outlives it."""
        return cls(
            code=error.wire_code,
            msg=error.msg,
            details=error.details,
            verb=error.verb or "",
            plugin_type=error.plugin_type or "",
            plugin_index=error.plugin_index,
        )


def namespace_id(path: str, fd: int | None = None) -> str:
    """What tells the namespace at `path`, or open as `fd`, from others; "" if there is none."""
    if not path and fd is None:
        return ""
    try:
        found = os.stat(path) if fd is None else os.fstat(fd)
    except (OSError, ValueError):
        return ""
    return f"{found.st_dev}:{found.st_ino}"


def _documents(arguments: dict[str, msgspec.Raw]) -> dict[str, object]:
    return {name: jsonio.loads(raw) for name, raw in arguments.items()}


def parse_page_token(token: str) -> AttachmentKey | None:
    """The key behind which a list goes on; raise InvalidConfig unless the token is one of ours."""
    if not token:
        return None
    parts = token.split("/", 2)
    if len(parts) != 3:
        raise InvalidConfig(f"page_token: not one this service gave: {token!r}")
    return AttachmentKey(*parts)
