# SPDX-License-Identifier: Apache-2.0
"""The members of `extra` as messages, and back; typed plugin configurations likewise.

A member whose "@type" is registered is a message of that type. Any other one survives as it came:
JSON inside an OpaqueJson, binary as {"@type": URL, "@value": BASE64}.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable

from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet
from msgspec import Raw

from pycni.errors import CniError, InvalidConfig
from pycni.model import jsonio
from pycni.model.config import typed_config
from pycni.service import type_json
from pycni.service.pb.cni.v2alpha1 import config_pb2
from pycni.service.types import URL, Types
from pycni.service.wire import text

TYPE, VALUE = "@type", "@value"
OPAQUE = config_pb2.OpaqueJson.DESCRIPTOR.full_name


class Extras:
    """Reads and writes `extra` and typed configurations with the types a node knows."""

    def __init__(self, types: Types) -> None:
        self._types = types

    # -- JSON to messages --------------------------------------------------------------------------

    def view(self, extra: Raw | None, *, where: str, strict: bool) -> list[AnyMessage]:
        """The members of the JSON value `extra`; none if it is no list, so somebody else's key.

        `strict` raises InvalidConfig (7) with the path for a member that its registered type does
        not allow; otherwise such a one is shown as it is.
        """
        if extra is None or not bytes(extra).startswith(b"["):
            return []
        members = jsonio.decode(extra, list[Raw], where=where)
        return [
            self._view_member(bytes(member), f"{where}[{index}]", strict)
            for index, member in enumerate(members)
        ]

    def _view_member(self, member: bytes, where: str, strict: bool) -> AnyMessage:
        document = jsonio.loads(member, where=where)
        url = document.get(TYPE) if isinstance(document, dict) else None
        if not isinstance(url, str):
            return _opaque("", member)
        url = text(url)
        kind = self._types.find(url)
        try:
            if document.keys() == {TYPE, VALUE}:
                found = AnyMessage(type_url=url, value=_base64(document[VALUE], f"{where}.{VALUE}"))
                self._parse(found, where)
                return found
            if kind is None:
                return _opaque(url, member)
            message = kind()
            type_json.fill(message, document, where=where, skipped=(TYPE,))
            return _pack(url, message)
        except CniError as error:
            if strict and kind is not None:
                error.field = ""  # it is in the JSON
                raise
            return _opaque(url, member)

    def view_config(self, plugin_type: str, document: jsonio.Buffer) -> AnyMessage | None:
        """The typed configuration of a built-in plugin's JSON object; None if there is none."""
        kind = self._types.find(typed_config(plugin_type))
        if kind is None:
            return None
        message = kind()
        try:
            type_json.fill(message, jsonio.loads(document), strict=False)
        except CniError:
            return None  # the plugin will say what is wrong
        return _pack(URL + typed_config(plugin_type), message)

    def agrees(self, config: AnyMessage, document: jsonio.Buffer, *, where: str) -> bool:
        """Whether a typed configuration says what the JSON object beside it says."""
        given = self._get(config, where)
        message = type(given)()
        try:
            type_json.fill(message, jsonio.loads(document), strict=False)
        except CniError:
            return False
        return message == given

    # -- messages to JSON --------------------------------------------------------------------------

    def render(self, extra: Iterable[AnyMessage], *, where: str) -> bytes:
        """The members as a JSON list, the same bytes for the same messages."""
        members = [
            self._render_member(member, f"{where}[{index}]") for index, member in enumerate(extra)
        ]
        return b"[" + b",".join(members) + b"]"

    def _render_member(self, member: AnyMessage, where: str) -> bytes:
        if not member.type_url:
            raise _fault(f"{where}.type_url", "missing")
        if member.type_url.rpartition("/")[2] == OPAQUE:
            return _render_opaque(member, where)
        head = {TYPE: jsonio.encode(member.type_url)}
        message = self._parse(member, where)
        # What a newer definition has more than ours would be lost in JSON.
        if message is None or _has_unknown(message):
            value = jsonio.encode(base64.b64encode(member.value).decode())
            return jsonio.join_object({**head, VALUE: value})
        return jsonio.join_object({**head, **type_json.render_members(message, where=where)})

    def render_config(
        self, plugin_type: str, config: AnyMessage, *, reserved: Iterable[str], where: str
    ) -> dict[str, bytes]:
        """The keys of a typed configuration; `reserved` ones are not its to give."""
        message = self._get(config, where)
        name = message.DESCRIPTOR.full_name
        wanted = typed_config(plugin_type)
        if name != wanted and self._types.find(wanted) is not None:
            raise _fault(where, f'plugin "{plugin_type}" is configured by {wanted}, not by {name}')
        if _has_unknown(message):
            raise _fault(where, f"it has fields that are unknown to the {name} known here")
        members = type_json.render_members(message, where=where)
        for key in reserved:
            if key in members:
                raise _fault(where, f'{name} has a key "{key}", which is given beside it')
        return members

    def _get(self, config: AnyMessage, where: str) -> Message:
        message = self._parse(config, where)
        if message is None:
            raise _fault(
                where,
                f'type "{config.type_url}" is not registered',
                hint="register it with Node.RegisterTypes, or give the parameters as json",
            )
        return message

    def _parse(self, packed: AnyMessage, where: str) -> Message | None:
        """The message inside, None if its type is not registered; raise InvalidConfig (7)."""
        kind = self._types.find(packed.type_url)
        if kind is None:
            return None
        message = kind()
        try:
            message.ParseFromString(packed.value)
        except DecodeError as exc:
            name = message.DESCRIPTOR.full_name
            raise _fault(f"{where}.value", f"not a {name}") from exc
        if not message.IsInitialized():
            raise _fault(f"{where}.value", "required fields are missing")
        return message


def _pack(url: str, message: Message) -> AnyMessage:
    return AnyMessage(type_url=url, value=message.SerializePartialToString(deterministic=True))


def _opaque(url: str, member: bytes) -> AnyMessage:
    return _pack(URL + OPAQUE, config_pb2.OpaqueJson(type_url=url, json=member))


def _render_opaque(member: AnyMessage, where: str) -> bytes:
    opaque = config_pb2.OpaqueJson()
    try:
        opaque.ParseFromString(member.value)
    except DecodeError as exc:
        raise _fault(f"{where}.value", f"not a {OPAQUE}") from exc
    document = jsonio.loads(opaque.json, where=f"{where}.json")
    named = document.get(TYPE, "") if isinstance(document, dict) else ""
    if opaque.type_url not in ("", named):
        raise _fault(f"{where}.type_url", f'differs from "{TYPE}" in the JSON beside it')
    return opaque.json


def _base64(value: object, where: str) -> bytes:
    try:
        return base64.b64decode(value if isinstance(value, str) else "?", validate=True)
    except (binascii.Error, ValueError) as exc:
        raise _fault(where, "not base64") from exc


def _has_unknown(message: Message) -> bool:
    """Whether the message, or one in it, came with fields that its definition does not have."""
    if len(UnknownFieldSet(message)):
        return True
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if field.message_type.GetOptions().map_entry:
            if field.message_type.fields_by_name["value"].message_type is None:
                continue
            inner = list(value.values())
        else:
            inner = list(value) if field.is_repeated else [value]
        if any(map(_has_unknown, inner)):
            return True
    return False


def _fault(where: str, what: str, *, hint: str = "") -> InvalidConfig:
    """A fault in the message itself: its path begins the text, and stands in `field` as well."""
    error = InvalidConfig(f"{where}: {what}", hint=hint)
    error.field = where
    return error
