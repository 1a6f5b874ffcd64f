# SPDX-License-Identifier: Apache-2.0
"""What a node refuses, beyond what a plugin can: each class carries the facts a caller acts on.

InvalidConfig (7)
├── PluginNotFound          plugin_type, path
├── NetworkNotFound         name
├── NetworkReadOnly         name, source: defined by a file, edit that
├── NetworkInUse            name, attachments
├── EtagMismatch            name, expected, actual
└── AttachmentConflict      attachment, difference: same key, other parameters
UnknownContainer (3)
└── AttachmentNotFound      attachment
TryAgain (11)
├── Overloaded              running, waiting: the queue in front of the node is full
├── LockTimeout             what: somebody else still works on it
└── NodeBusy                path: another process owns the state directory
CniError (999)
├── PluginFailed            a plugin broke the protocol: no readable error, killed, no result
├── ChainFailed             errors: several plugins of a chain failed
└── StoreUnusable           path: the store is damaged or of a newer release
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from pycni.errors import CniError, InvalidConfig, TryAgain, UnknownContainer
from pycni.model.request import Verb
from pycni.net.owner import Owner

if TYPE_CHECKING:
    from pycni.runtime.attachments import AttachmentKey

LISTED = 10  # more names than this in one message help nobody


class PluginNotFound(InvalidConfig):
    """No built-in and no executable in the plugin path has that type."""

    def __init__(self, plugin_type: str, path: Sequence[str], builtin: Sequence[str]) -> None:
        super().__init__(
            f'failed to find plugin "{plugin_type}" in path [{" ".join(path)}]',
            f"built in are: {', '.join(builtin)}" if builtin else "no plugins are built in",
        )
        self.plugin_type = plugin_type
        self.path = tuple(path)


class NetworkNotFound(InvalidConfig):
    """The node has no network of that name."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f'no net configuration with name "{name}"',
            hint="put the network first, or send its configuration with the call",
        )
        self.name = name


class NetworkReadOnly(InvalidConfig):
    """The network comes from a file and is changed there."""

    def __init__(self, name: str, source: str) -> None:
        super().__init__(
            f'network "{name}" is defined by {source}', hint="edit or remove that file"
        )
        self.name = name
        self.source = source


class NetworkInUse(InvalidConfig):
    """The network still has attachments."""

    def __init__(self, name: str, attachments: Sequence[AttachmentKey]) -> None:
        listed = ", ".join(f"{key.container_id}/{key.ifname}" for key in attachments[:LISTED])
        more = f" and {len(attachments) - LISTED} more" if len(attachments) > LISTED else ""
        super().__init__(
            f'network "{name}" has {len(attachments)} attachments',
            listed + more,
            hint="delete the attachments first, or force the deletion",
        )
        self.name = name
        self.attachments = tuple(attachments)


class EtagMismatch(InvalidConfig):
    """The network was changed since the caller read it."""

    def __init__(self, name: str, *, expected: str, actual: str) -> None:
        super().__init__(
            f'network "{name}" has changed',
            f"etag given {expected!r}, stored {actual!r}",
            hint="read the network again and repeat the change",
        )
        self.name = name
        self.expected = expected
        self.actual = actual


class AttachmentConflict(InvalidConfig):
    """The attachment exists with other parameters (SPEC: no second ADD without a DEL)."""

    def __init__(self, attachment: AttachmentKey, difference: str) -> None:
        super().__init__(
            f"{attachment} exists with other parameters", difference, hint="delete it first"
        )
        self.attachment = attachment
        self.difference = difference


class AttachmentNotFound(UnknownContainer):
    """The node has no such attachment in a state the call needs."""

    def __init__(self, attachment: AttachmentKey, details: str = "") -> None:
        super().__init__(f"{attachment} does not exist", details)
        self.attachment = attachment


class Overloaded(TryAgain):
    """More calls wait than the node accepts."""

    def __init__(self, *, running: int, waiting: int) -> None:
        super().__init__(f"too many calls: {running} running, {waiting} waiting")
        self.running = running
        self.waiting = waiting


class LockTimeout(TryAgain):
    """Another call held `what` until this one's deadline."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is busy with another call")
        self.what = what


class NodeBusy(TryAgain):
    """Another process owns the state directory."""

    def __init__(self, path: str, owner: str) -> None:
        super().__init__(
            f"{path} is in use by {owner}", hint="one process at a time may own a state directory"
        )
        self.path = path


class PluginFailed(CniError):
    """A plugin broke the protocol: it died, or what it printed cannot be read."""


class ChainFailed(CniError):
    """Several failures of one call, each with its place in `details` and in `errors`."""

    def __init__(self, verb: str, errors: Sequence[CniError]) -> None:
        super().__init__(
            f"{len(errors)} failures of {verb}", "; ".join(_placed(error) for error in errors)
        )
        self.errors = tuple(errors)
        self.verb = verb if verb in Verb.__members__ else None
        self.wire_code = errors[0].wire_code  # the first decides, as at a chain that stops there


def _placed(error: CniError) -> str:
    if error.plugin_index is None:
        return str(error)
    return f"plugins[{error.plugin_index}] {error.plugin_type}: {error}"


def raise_all(verb: str, errors: Sequence[CniError]) -> None:
    """Raise what failed, if anything did: a single error as it is, several as one."""
    match errors:
        case []:
            return
        case [only]:
            raise only
        case _:
            raise ChainFailed(verb, errors) from ExceptionGroup(f"failures of {verb}", errors)


def name_holders(error: CniError, known: Callable[[], Iterable[AttachmentKey]]) -> None:
    """Note on `error` which of the known attachments the tags in its details stand for."""
    details = error.details
    for key in known() if "cni:" in details else ():
        if (tag := Owner(key.network, key.container_id, key.ifname).tag) in details:
            error.add_note(f"{tag} is attachment {key}")


class StoreUnusable(CniError):
    """The store cannot be opened: damaged, or written by a newer release."""

    def __init__(self, path: str, reason: str, *, hint: str) -> None:
        super().__init__(f"store {path}: {reason}", hint=hint)
        self.path = path
