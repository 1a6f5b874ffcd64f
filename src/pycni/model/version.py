# SPDX-License-Identifier: Apache-2.0
"""CNI protocol versions: which exist, how they compare, what each verb needs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from pycni.errors import IncompatibleVersion
from pycni.model.request import Verb

SUPPORTED: tuple[str, ...] = ("0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
CURRENT = "1.1.0"
DEFAULT = "0.1.0"  # what a document without cniVersion speaks

# The lowest config version that allows the verb.
GATES: dict[Verb, str] = {
    Verb.ADD: "0.1.0",
    Verb.DEL: "0.1.0",
    Verb.CHECK: "0.4.0",
    Verb.GC: "1.1.0",
    Verb.STATUS: "1.1.0",
    Verb.VERSION: "0.1.0",
}

_DOTTED = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9}){0,2}")


@lru_cache(maxsize=256)
def parse_version(text: str) -> tuple[int, int, int]:
    """Return major, minor, micro of one to three dotted integers; "" is 0.1.0 (L17)."""
    text = text or DEFAULT
    if _DOTTED.fullmatch(text) is None:
        raise IncompatibleVersion(f'not a version: "{text}"')
    major, minor, micro, *_ = [*map(int, text.split(".")), 0, 0]
    return major, minor, micro


def at_least(text: str, floor: str) -> bool:
    """Whether version `text` is `floor` or newer."""
    return parse_version(text) >= parse_version(floor)


_BY_NUMBER = {parse_version(text): text for text in SUPPORTED}


def select_version(cniVersion: str, cniVersions: Iterable[str] = ()) -> str:
    """Return the highest version we speak among `cniVersion` and `cniVersions`.

    Without `cniVersions` the answer is `cniVersion` itself, even one nobody speaks: the plugin
    refuses it with code 1, which names both sides (libcni does the same).
    """
    own = parse_version(cniVersion)
    others = [parse_version(text) for text in cniVersions]
    spoken = [number for number in (own, *others) if number in _BY_NUMBER]
    if others and spoken:
        return _BY_NUMBER[max(spoken)]
    return cniVersion or DEFAULT
