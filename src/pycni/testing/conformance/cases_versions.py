# SPDX-License-Identifier: Apache-2.0
"""Cases about versions: VERSION, the gates of verbs, results in the layout of each."""

from __future__ import annotations

import json

from pycni.errors import CniError
from pycni.model.version import DEFAULT, GATES, SUPPORTED, parse_version
from pycni.testing.conformance.probe import NotApplicable, Probe
from pycni.testing.conformance.table import case

UNKNOWN_VERSIONS = ("9.9.9", "0.5.0", "2.0.0", "1.0", "v1.0.0", "1.1.0-rc1", "x")
INCOMPATIBLE = "incompatible CNI versions"


@case("P10-version", "VERSION prints {cniVersion, supportedVersions} and nothing else")
def version(probe: Probe) -> None:
    """The cniVersion that was asked for, or the plugin's own."""
    asked = probe.subject.version
    reply = probe.call("VERSION", {"cniVersion": asked})
    expected = 'exit status 0 and {"cniVersion": "…", "supportedVersions": ["…"]} on stdout'
    reply.expect_success()
    try:
        document = json.loads(reply.outcome.stdout)
        supported = document["supportedVersions"]
        known = [parse_version(text) for text in (*supported, document["cniVersion"])]
    except (ValueError, TypeError, KeyError, AttributeError, CniError):
        raise reply.fail(expected) from None
    if not supported or len(set(supported)) < len(supported) or len(known) < 2:
        raise reply.fail(f"{expected}, each version once")
    if document["cniVersion"] not in (asked, *supported):
        raise reply.fail(f'"cniVersion": "{asked}", or one of the supported versions')


@case("R10d-version-variables", "VERSION needs CNI_COMMAND only; others do not disturb it")
def version_variables(probe: Probe) -> None:
    """A runtime may leave anything else in them."""
    config = {"cniVersion": probe.subject.version}
    names = ("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH")
    probe.call("VERSION", config, **dict.fromkeys(names)).expect_success()
    probe.call("VERSION", config, CNI_IFNAME="a/b", CNI_NETNS="dummy").expect_success()


@case("P12-unknown-version", "a cniVersion the plugin does not support is error 1")
def unknown_version(probe: Probe) -> None:
    """The text is compared, not the number."""
    supported = " ".join(f'"{known}"' for known in probe.subject.versions)
    for text in UNKNOWN_VERSIONS:
        details = f'config is "{text}", plugin supports [{supported}]'
        for verb in ("ADD", "DEL"):
            reply = probe.call(verb, probe.config(text))
            reply.expect_error(1, msg=INCOMPATIBLE, details=details)


def gate(verb: str) -> None:
    """A row: the verb came with a version, and configurations of older ones do not have it."""
    floor = GATES[next(known for known in GATES if known == verb)]

    @case(f"P14-{verb.lower()}-gate", f"{verb} with a configuration before {floor} is error 1")
    def run(probe: Probe) -> None:
        probe.need(verb)
        for old in SUPPORTED[: SUPPORTED.index(floor)]:
            msg = f"config version does not allow {verb}"
            probe.call(verb, probe.config(old)).expect_error(1, msg=msg)


for gated in ("CHECK", "GC", "STATUS"):
    gate(gated)


@case("P13-no-version", "a missing or empty cniVersion is 0.1.0", acts=True)
def no_version(probe: Probe) -> None:
    """A result of that version, or error 1 where it is not supported."""
    for empty in (None, ""):
        with probe.container() as container:
            members = {"cniVersion": empty}
            reply = container.call("ADD", DEFAULT, members)
            if DEFAULT in probe.subject.versions:
                reply.expect_result(DEFAULT)
            else:
                reply.expect_error(1, msg=INCOMPATIBLE)
            container.call("DEL", DEFAULT, members)


def result(text: str) -> None:
    """A row: ADD's result is in the version of its configuration."""

    @case(f"V5-result-{text}", f"ADD with {text} prints one result in that layout", acts=True)
    def run(probe: Probe) -> None:
        if text not in probe.subject.versions:
            raise NotApplicable(f"the plugin does not support {text}")
        with probe.container() as container:
            container.call("ADD", text).expect_result(text)
            container.call("DEL", text).expect_silence()


for supported_version in SUPPORTED:
    result(supported_version)
