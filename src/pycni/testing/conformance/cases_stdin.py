# SPDX-License-Identifier: Apache-2.0
"""Cases about stdin: what is no configuration, what is a strange one, and names in it."""

from __future__ import annotations

import json

from pycni.testing.conformance.probe import Probe
from pycni.testing.conformance.table import case

ALL_VERBS = ("ADD", "DEL", "CHECK", "GC", "STATUS")
BAD_NAMES = ("", None, "a/b", "..", "../../n", "-n", "n\n", "a b", "é")
DEPTH = 20000
MIB = 1 << 20


def refuse(words: str, rule: str, stdin: bytes, *codes: int) -> None:
    """A row for one thing that is no configuration."""

    @case(f"A0-stdin-{words}", rule)
    def run(probe: Probe) -> None:
        for verb in probe.verbs("ADD", "DEL"):
            probe.call(verb, stdin).expect_error(*codes)


# 6 is "cannot decode", 7 "invalid configuration": what is JSON but no object can be either.
refuse("empty", "empty stdin is error 6", b"", 6)
refuse("cut-short", "JSON that is cut short is error 6", b'{"cniVersion": "1.0.0", "name": "n', 6)
refuse("no-json", "text that is not JSON is error 6", b"name: n\n", 6)
refuse("two-documents", "two JSON documents are error 6", b'{"name": "n"} {"name": "m"}', 6)
refuse("nan", "NaN, which is not JSON, is error 6", b'{"name": "n", "mtu": NaN}', 6)
refuse("non-utf-8", "a name that is not UTF-8 is refused", b'{"name": "\xff"}', 6, 7)
refuse("nul", "a name with a NUL is refused", b'{"name": "n\\u0000"}', 6, 7)
refuse(
    "deep",
    f"{DEPTH} nested arrays are refused, not a crash",
    b'{"name": "n", "deep": ' + b"[" * DEPTH + b"]" * DEPTH + b"}",
    6,
    7,
)
refuse("deep-open", f"{DEPTH} opened arrays are refused, not a crash", b"[" * DEPTH, 6, 7)
refuse("array", "an array is refused", b"[]", 6, 7)
refuse("null", "null is refused", b"null", 6, 7)
refuse("string", "a string is refused", b'"text"', 6, 7)
refuse(
    "name-number", "a name that is a number is refused", b'{"cniVersion": "1.0.0", "name": 5}', 6, 7
)
refuse(
    "version-number",
    "a cniVersion that is a number is refused",
    b'{"cniVersion": 1, "name": "n"}',
    1,
    6,
    7,
)


@case("A0-stdin-huge", "20 MiB that are no configuration are refused, not a hang")
def huge(probe: Probe) -> None:
    """Read or not: a plugin that stops reading must still answer."""
    probe.call("ADD", b'"' + b"x" * (20 * MIB)).expect_error()


@case("A0-stdin-large", "a configuration of 1 MiB is read to its end", acts=True)
def large(probe: Probe) -> None:
    """White space in front of what counts; DEL of what is not there needs no more."""
    stdin = b" " * MIB + json.dumps(probe.config()).encode()
    probe.call("DEL", stdin, CNI_NETNS=None).expect_silence()
    stdin = b" " * MIB + json.dumps(probe.config(cniVersion="9.9.9")).encode()
    probe.call("DEL", stdin, CNI_NETNS=None).expect_error(1)


@case("V9-duplicate-keys", "of equal keys the last one counts")
def duplicate_keys(probe: Probe) -> None:
    """Two readers of one configuration that take different ones are a security hole."""
    config = json.dumps(probe.config())
    stdin = f'{config[:-1]}, "name": "../x"}}'.encode()
    probe.call("ADD", stdin).expect_error(7)
    version = f'{config[:-1]}, "cniVersion": "9.9.9"}}'.encode()
    probe.call("ADD", version).expect_error(1)


@case("V9-folded-keys", "keys match whatever their case, the last one counts", strict=True)
def folded_keys(probe: Probe) -> None:
    """As Go's encoding/json reads them."""
    config = json.dumps(probe.config())
    stdin = f'{config[:-1]}, "NAME": "../x"}}'.encode()
    probe.call("ADD", stdin).expect_error(7)
    version = f'{config[:-1]}, "cniversion": "9.9.9"}}'.encode()
    probe.call("ADD", version).expect_error(1)


@case("L2-network-name", "every verb refuses a missing or bad network name (error 7)")
def network_name(probe: Probe) -> None:
    """Newline, `..`, slash: files are called by it."""
    for verb in probe.verbs(*ALL_VERBS):
        for name in BAD_NAMES:
            text = "invalid characters found in network name" if name else "missing network name"
            reply = probe.call(verb, probe.config(name=name))
            reply.expect_error(7, msg=text, details=name or "")


@case("L2-long-network-name", "a network name of 300 characters gets an answer", acts=True)
def long_network_name(probe: Probe) -> None:
    """As L1-long-container-id."""
    with probe.container() as container:
        members = {"name": "n" * 300}
        container.call("ADD", members=members).expect_answer()
        container.call("DEL", members=members).expect_answer()


@case("A0-order", "faults are told in the order environment, JSON, name, version", strict=True)
def order(probe: Probe) -> None:
    """Of several, the first one."""
    probe.call("ADD", b"{", CNI_IFNAME="a/b").expect_error(4)
    probe.call("ADD", {"cniVersion": "9.9.9", "name": ""}).expect_error(7)
    probe.call("ADD", {"cniVersion": "9.9.9", "name": "n", "ipam": 1}).expect_error(1)


@case("C12-unknown-keys", "unknown keys are accepted, or refused with error 2", acts=True)
def unknown_keys(probe: Probe) -> None:
    """And so is `capabilities`, which some runtimes hand on (Q4)."""
    extra = {"x-conformance": {"n": [1.5, 12345678901234567890]}, "capabilities": {"mac": True}}
    with probe.container() as container:
        reply = container.call("ADD", members=extra)
        if reply.outcome.status == 0:
            reply.expect_result(probe.subject.version)
        else:
            reply.expect_error(2)
