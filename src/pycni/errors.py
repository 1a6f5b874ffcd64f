# SPDX-License-Identifier: Apache-2.0
"""Every error a caller of pycni can see, with its CNI code on the class.

    CniError                      999
    ├── IncompatibleVersion         1   the config's cniVersion is not supported
    ├── UnsupportedField            2   a field or value this plugin cannot honour
    ├── UnknownContainer            3   nothing to clean up
    ├── InvalidEnvironment          4   CNI_* variables missing or malformed
    ├── IOFailure                   5   reading or writing failed
    ├── DecodeFailure               6   not JSON, or not the JSON expected
    ├── InvalidConfig               7   the network configuration is wrong
    ├── InvalidNetns                8   CNI_NETNS is not a usable namespace
    ├── TryAgain                   11   transient; retry later
    ├── NotAvailable               50   STATUS: ADD cannot be served
    ├── LimitedConnectivity        51   STATUS: existing containers suffer too
    └── KernelError               999   the kernel refused an operation
        ├── AlreadyExists           LinkExists is one
        ├── NotFound                LinkNotFound and NamespaceGone are two
        ├── Unsupported
        ├── Exhausted
        └── Busy                   11

Codes are those of SPEC section 5 "Error"; 8 and 999 are libcni's. Plugins declare their own
codes (>= 100) beside the plugin with ``class Foo(CniError, code=100)``.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import ClassVar


class CniError(Exception):
    """An error a CNI caller receives: `code`, one-line `msg`, longer `details`.

    `hint` says what to do next; it is rendered at the end of `details`. The runtime fills
    `verb`, `plugin_type`, `plugin_index` and `residue` while the error passes through a chain.
    """

    code: ClassVar[int] = 999
    _by_code: ClassVar[dict[int, type[CniError]]] = {}

    def __init__(self, msg: str, details: str = "", *, hint: str = "") -> None:
        super().__init__(msg)
        self.msg = msg
        self._details = details
        self.hint = hint
        self.verb: str | None = None
        self.plugin_type: str | None = None
        self.plugin_index: int | None = None
        self.residue: str | None = None
        self.cni_version: str | None = None
        # Whom it concerns, where that is known, and the wrong field of an API request.
        self.network = ""
        self.container_id = ""
        self.ifname = ""
        self.field = ""
        # Of an error off the wire that sums up several: each of them.
        self.causes: tuple[CniError, ...] = ()
        # Of an error that came as a JSON document, from an executable or off the wire: that.
        self.document = b""
        # Set on internal errors: where the log has the traceback.
        self.log_id: str | None = None
        self.wire_code: int = type(self).code

    def __init_subclass__(cls, *, code: int | None = None) -> None:
        """Register the class for `code`, the first class to claim a code being its default."""
        super().__init_subclass__()
        if code is not None:
            cls.code = code
            CniError._by_code.setdefault(code, cls)

    @property
    def details(self) -> str:
        """Details, then the notes gathered by `doing`, then the hint; may be empty."""
        notes = getattr(self, "__notes__", [])
        return "; ".join(part for part in (self._details, *notes, self.hint) if part)

    @classmethod
    def from_wire(cls, code: int, msg: str, details: str = "") -> CniError:
        """Rebuild the class that owns `code`; an unowned code keeps its number."""
        error = cls._by_code.get(code, CniError)(msg, details)
        error.wire_code = code
        return error

    def __str__(self) -> str:
        return f"{self.msg}: {self.details}" if self.details else self.msg


# First come, first served: 999 off the wire is the plain class, no subclass that takes an errno.
CniError._by_code[CniError.code] = CniError


class IncompatibleVersion(CniError, code=1):
    """The configuration's cniVersion is not one the plugin supports."""


class UnsupportedField(CniError, code=2):
    """A configuration field or value that cannot be honoured; msg names key and value."""


class UnknownContainer(CniError, code=3):
    """The container does not exist; the runtime need not clean anything up."""


class InvalidEnvironment(CniError, code=4):
    """A CNI_* variable is missing or malformed; msg names the variables."""


class IOFailure(CniError, code=5):
    """Reading or writing a file, pipe or socket failed."""


class DecodeFailure(CniError, code=6):
    """The content is not JSON, or not the JSON document expected."""


class InvalidConfig(CniError, code=7):
    """The network configuration is wrong; msg starts with the JSON path of the fault."""


class InvalidNetns(CniError, code=8):
    """The network namespace is not usable, or is the plugin's own."""


class TryAgain(CniError, code=11):
    """A transient condition; the same call may succeed later."""


class NotAvailable(CniError, code=50):
    """STATUS: the plugin cannot serve ADD requests."""


class LimitedConnectivity(CniError, code=51):
    """STATUS: ADD cannot be served and existing containers may have limited connectivity."""


class KernelError(CniError, code=999):
    """The kernel refused `op` on `target`; carries errno and the extended ack's text."""

    def __init__(
        self, op: str, target: str, errno: int, extack: str = "", *, hint: str = ""
    ) -> None:
        reason = os.strerror(errno) if errno else "failed"
        super().__init__(f"{op} {target}: {extack or reason}", hint=hint)
        self.op = op
        self.target = target
        self.errno = errno
        self.extack = extack


class AlreadyExists(KernelError):
    """An equal object (address, route, rule, qdisc, …) exists already."""


class NotFound(KernelError):
    """No such object; what removes things treats this as done."""


class LinkExists(AlreadyExists):
    """A link of that name (or index) exists already."""


class LinkNotFound(NotFound):
    """No link of that name or index in the namespace."""


class NamespaceGone(NotFound):
    """The network namespace path does not exist any more; DEL treats this as done."""


class Unsupported(KernelError):
    """The kernel lacks the feature (module or option not available)."""


class Exhausted(KernelError):
    """The kernel has a fixed number of such objects, and all are taken."""


class Busy(KernelError, code=11):
    """The kernel object is in use; the same call may succeed later."""


@contextlib.contextmanager
def doing(what: str) -> Iterator[None]:
    """Add "while `what`" to any error that passes through."""
    try:
        yield
    except Exception as exc:
        exc.add_note(f"while {what}")
        raise
