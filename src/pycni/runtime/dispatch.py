# SPDX-License-Identifier: Apache-2.0
"""From a request's bytes to a built-in plugin's verb and back: what every call checks, in order.

The order is that of the reference implementation, after the environment (SPEC conformance P14):
decode (6), name (7), version gate (1), typed configuration (7), and the netns guard (8), which
runs before the verb acts and not after it. Only then is the kernel touched.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import msgspec

from pycni.errors import (
    CniError,
    DecodeFailure,
    IncompatibleVersion,
    InvalidConfig,
    InvalidNetns,
)
from pycni.kernel.side import Side
from pycni.log import Log
from pycni.model import jsonio
from pycni.model.deadline import Deadline
from pycni.model.names import NetworkName
from pycni.model.request import Attachment, Request, Verb
from pycni.model.result import Result
from pycni.model.version import GATES, SUPPORTED, at_least
from pycni.plugins.sdk import Call, Config, Container, Delegate, Plugin

log = Log(__name__)

# SPEC main calls the key valid-attachments; the tag spec-v1.1.0 and libcni < 1.3 attachments
# (containernetworking/cni #1101). Both are sent, either is read.
VALID_ATTACHMENTS = ("cni.dev/valid-attachments", "cni.dev/attachments")

# Results of one family share a layout, so any of its versions may stand in prevResult.
FAMILIES = (("0.1.0", "0.2.0"), ("0.3.0", "0.3.1", "0.4.0"), ("1.0.0", "1.1.0"))

NULL = b"null"
UNDO_TIMEOUT_S = 60.0
CHAINED_VERBS = (Verb.ADD, Verb.DEL, Verb.CHECK)


class InternalError(CniError, code=999):
    """A bug: the traceback is in the log under `log_id`."""

    def __init__(self, what: str, log_id: str) -> None:
        super().__init__(
            f"internal error in {what} (log id {log_id})",
            hint="the log of the service has the traceback under this id",
        )
        self.log_id = log_id


def dispatch(
    plugin: Plugin[Any],
    request: Request,
    *,
    host: Side,
    delegate: Delegate,
    deadline: Deadline,
    container: Container | None = None,
) -> bytes:
    """Run one verb of `plugin`; return the result JSON on ADD and nothing on the other verbs.

    `container` is one that other calls use too.
    """
    config_version: str | None = None
    try:
        fields = fold(jsonio.decode_raw_object(request.config))
        NetworkName.parse(text_field(fields, "name"))
        config_version = text_field(fields, "cniVersion") or "0.1.0"
        check_version(request.verb, config_version, plugin.versions)
        config = parse_config(plugin, request.config)
        prev_result = _parse_prev_result(request.verb, fields, config_version)
        valid = parse_valid_attachments(fields) if request.verb is Verb.GC else None
        if request.verb is Verb.GC and valid is None:
            # Absent is not empty: without the list nothing can be told to be stale.
            log.warning("GC without %s: nothing removed", VALID_ATTACHMENTS[0])
            return b""
        guard_netns(request, host)
        call: Call[Any] = Call(
            config,
            request,
            prev_result=prev_result,
            valid_attachments=valid,
            host=host,
            delegate=delegate,
            deadline=deadline,
            container=container,
        )
        try:
            return _run(plugin, call, config_version)
        finally:
            call.close()
    except CniError as error:
        error.cni_version = error.cni_version or config_version
        raise
    except Exception as exc:  # the skel boundary: a bug in a plugin becomes code 999
        raise internal_error(exc, f"{request.verb} of plugin {plugin.type}") from exc


def check_version(verb: Verb, config_version: str, supported: tuple[str, ...]) -> None:
    """Raise IncompatibleVersion (1) unless `verb` may run for a config of that version."""
    known = config_version in SUPPORTED
    if known and not at_least(config_version, GATES[verb]):
        raise IncompatibleVersion(f"config version does not allow {verb}")
    # Exact text match, as in the reference: "1.0" is not "1.0.0".
    if not known or config_version not in supported:
        names = " ".join(f'"{version}"' for version in supported)
        raise IncompatibleVersion(
            "incompatible CNI versions",
            f'config is "{config_version}", plugin supports [{names}]',
        )


def parse_config(plugin: Plugin[Any], config: bytes) -> Config:
    """The plugin's typed configuration; raise InvalidConfig (7) naming the path of the fault."""
    typed: Config = jsonio.decode(config, plugin.config)
    return typed if typed.cniVersion else msgspec.structs.replace(typed, cniVersion="0.1.0")


def parse_prev_result(raw: jsonio.Buffer, config_version: str) -> Result:
    """The result of the chain so far, which must be of the configuration's version family."""
    family = next((f for f in FAMILIES if config_version in f), (config_version,))
    try:
        result = Result.parse(raw, default_version=config_version, where="prevResult")
    except DecodeFailure as exc:
        # Here the result is part of the configuration, and that is what is wrong.
        raise InvalidConfig(exc.msg) from exc
    except IncompatibleVersion:
        version = text_field(fold(jsonio.decode_raw_object(raw)), "cniVersion")
    else:
        version = result.cniVersion
        if version in family:
            return result
    raise InvalidConfig(
        f"prevResult: result type supports [{' '.join(family)}] "
        f'but unmarshalled CNIVersion is "{version}"'
    )


def parse_valid_attachments(fields: Mapping[str, msgspec.Raw]) -> frozenset[Attachment] | None:
    """The attachments a GC must keep; None when the (folded) fields have neither key."""
    for key in VALID_ATTACHMENTS:
        raw = fields.get(key)
        if raw is not None:
            if bytes(raw) == NULL:  # Go's empty slice: a runtime without attachments
                return frozenset()
            return frozenset(jsonio.decode(raw, list[Attachment], where=key))
    return None


def guard_netns(request: Request, host: Side) -> None:
    """Raise InvalidNetns (8) if CNI_NETNS is the namespace the plugin itself works from.

    The reference tests this after the verb has acted (plugins #714: a recycled PID path set the
    host's lo down). A path that cannot be opened is left to the verb.
    """
    if request.verb not in CHAINED_VERBS or request.netns_override:
        return
    if os.name != "posix" or (not request.netns and request.netns_fd is None):
        return  # a Windows namespace has an id and no path, and no plugin runs in one
    try:
        fd = request.netns_fd
        found = os.stat(request.netns) if fd is None else os.fstat(fd)
    except (OSError, ValueError):
        return
    if (found.st_dev, found.st_ino) == host.identity:
        raise InvalidNetns("plugin's netns and netns from CNI_NETNS should not be the same")


def internal_error(exc: BaseException, what: str) -> InternalError:
    """Log the traceback of `exc` under a fresh id and return the error that names only the id."""
    log_id = os.urandom(4).hex()
    log.error("internal error in %s (log id %s)", what, log_id, exc_info=exc)
    return InternalError(what, log_id)


def fold(fields: Mapping[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
    """`fields` with folded keys; the last of equal ones wins, as Go decodes them."""
    return {jsonio.fold_key(key): value for key, value in fields.items()}


def text_field(fields: Mapping[str, msgspec.Raw], key: str) -> str:
    """The text under `key` of folded fields; "" when absent or null."""
    raw = fields.get(key.lower())
    value = None if raw is None else jsonio.loads(raw)
    if isinstance(value, str):
        return value
    return "" if value is None else jsonio.convert(value, str, where=key)


def _parse_prev_result(
    verb: Verb, fields: Mapping[str, msgspec.Raw], config_version: str
) -> Result | None:
    raw = fields.get("prevresult")
    if verb not in CHAINED_VERBS or raw is None or bytes(raw) == NULL:
        return None
    try:
        return parse_prev_result(raw, config_version)
    except CniError:
        if verb is not Verb.DEL:
            raise
        # SPEC P6: DEL is best effort; a result nobody can read is as good as none (libcni #1171).
        log.warning("DEL: unusable prevResult ignored", exc_info=True)
        return None


def _run(plugin: Plugin[Any], call: Call[Any], config_version: str) -> bytes:
    match call.verb:
        case Verb.ADD:
            call.deadline.check(f"ADD of plugin {plugin.type}")
            return _add(plugin, call, config_version)
        case Verb.DEL:
            plugin.delete(call)
        case Verb.CHECK:
            plugin.check(call)
        case Verb.GC:
            plugin.gc(call)
        case Verb.STATUS:
            plugin.status(call)
        case _:
            raise AssertionError(f"{call.verb} is answered before a plugin is called")
    return b""


def _add(plugin: Plugin[Any], call: Call[Any], config_version: str) -> bytes:
    result = plugin.add(call)
    try:
        return result.encode(config_version)
    except CniError as error:
        # The reference leaves the interface behind when the result cannot be written in the
        # configuration's version (layer 2 with 0.2.0); an ADD that fails leaves nothing here.
        undo: Call[Any] = Call(
            call.config,
            msgspec.structs.replace(call.request, verb=Verb.DEL),
            prev_result=result,
            valid_attachments=None,
            host=call.host,
            delegate=call.delegate,
            deadline=Deadline(UNDO_TIMEOUT_S),
        )
        try:
            plugin.delete(undo)
        except CniError as failure:
            error.add_note(f"DEL failed too: {failure}")
        finally:
            undo.close()
        raise
