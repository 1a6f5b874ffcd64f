# SPDX-License-Identifier: Apache-2.0
"""What a node is asked and what it answers, where that is more than an attachment."""

from __future__ import annotations

import msgspec

from pycni.errors import CniError
from pycni.model import request
from pycni.model.config import NetworkConfigList
from pycni.runtime.attachments import Attachment, AttachmentKey, AttachmentParams
from pycni.runtime.runtime import Step


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How much a node takes on, and how long a call without a deadline may take."""

    running: int = 32
    waiting: int = 1024
    call_timeout_s: float = 120.0


class Added(msgspec.Struct, frozen=True, kw_only=True):
    """What an add came to; `replayed`: it was there already, nothing ran."""

    attachment: Attachment
    replayed: bool = False
    steps: tuple[Step, ...] = ()


class Deleted(msgspec.Struct, frozen=True, kw_only=True):
    """What a delete came to; the chain ran whether the attachment `existed` or not."""

    existed: bool
    steps: tuple[Step, ...] = ()


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """Part of a list; an empty token says it is the last part."""

    attachments: tuple[Attachment, ...]
    next_page_token: str = ""


class Join(msgspec.Struct, frozen=True, kw_only=True):
    """One interface of an `attach_all`."""

    network: str | NetworkConfigList
    params: AttachmentParams


class GcTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A network to collect; without `valid`, what the node and its neighbours know is valid.

    With `labels`, `valid` speaks of attachments with these labels only: all others are valid.
    """

    network: str | NetworkConfigList
    valid: frozenset[request.Attachment] | None = None
    labels: dict[str, str] = {}

    def judges(self, attachment: Attachment) -> bool:
        """Whether `valid` says whether that attachment is valid."""
        return self.labels.items() <= attachment.labels.items()


class Collected(msgspec.Struct, frozen=True, kw_only=True):
    """What a GC did to one network; `skipped`: the plugins were not asked to collect."""

    network: str
    deleted: tuple[AttachmentKey, ...] = ()
    skipped: bool = False
    steps: tuple[Step, ...] = ()


class Recovered(msgspec.Struct, frozen=True, kw_only=True):
    """What `recover` found: debts paid, and debts that remain with the error of the attempt."""

    settled: tuple[AttachmentKey, ...] = ()
    failed: tuple[tuple[AttachmentKey, CniError], ...] = ()
