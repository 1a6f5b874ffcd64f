# SPDX-License-Identifier: Apache-2.0
"""Keeps secrets of configurations out of logs and errors.

Plugins print what they were given when something goes wrong. Before such text goes anywhere,
every value that stands under a tell-tale key of the call's own configuration is masked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

MASK = "***"
SECRET_KEY = re.compile(
    r"pass(word|wd|phrase)?$|secret|token|credential|api_?key|private_?key|psk", re.IGNORECASE
)
# The same keys in JSON the plugin made itself, where the value is not one we know.
SECRET_PAIR = re.compile(
    r'("[^"]*(?:password|passwd|passphrase|secret|token|credential|api_?key|private_?key|psk)[^"]*"'
    r'\s*:\s*)"(?:[^"\\]|\\.)*"',
    re.IGNORECASE,
)
SHORTEST = 3  # masking every "a" of a text because some password is "a" hides the text instead


def redact(text: str, config: bytes) -> str:
    """`text` without the secrets of the JSON document `config`."""
    text = SECRET_PAIR.sub(rf'\1"{MASK}"', text)
    for secret in sorted(_secrets(config), key=len, reverse=True):
        text = text.replace(secret, MASK)
    return text


def _secrets(config: bytes) -> set[str]:
    try:
        document = msgspec.json.decode(config)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return set()
    return set(_below(document, secret=False))


def _below(value: Any, *, secret: bool) -> Iterator[str]:
    match value:
        case dict():
            for key, item in value.items():
                yield from _below(item, secret=secret or SECRET_KEY.search(key) is not None)
        case list():
            for item in value:
                yield from _below(item, secret=secret)
        case str() if secret and len(value) >= SHORTEST:
            yield value
