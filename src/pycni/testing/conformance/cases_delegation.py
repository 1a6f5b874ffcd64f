# SPDX-License-Identifier: Apache-2.0
"""Cases about delegates: an IPAM plugin of ours that notes how the plugin runs it."""

from __future__ import annotations

import json
from typing import Final, TypedDict

from pycni.testing.conformance.probe import NotApplicable, Probe
from pycni.testing.conformance.samples import IPAM
from pycni.testing.conformance.table import case


class Refusal(TypedDict):
    """An error object."""

    code: int
    msg: str


REFUSAL: Final[Refusal] = {"code": 142, "msg": "conformance refuses"}


def need_delegate(probe: Probe) -> None:
    """The case is about plugins that have another one assign addresses."""
    if not probe.subject.sample.delegates:
        raise NotApplicable(f"its configuration names no IPAM plugin (`ipam.type`: {IPAM})")
    probe.place.ipam.forget()


@case("D1-delegate-missing", "ADD is an error when the delegate is not in CNI_PATH", acts=True)
def delegate_missing(probe: Probe) -> None:
    """And not a success without addresses."""
    need_delegate(probe)
    with probe.container() as container:
        members = {"ipam": {"type": "conformance-nonesuch"}}
        container.call("ADD", members=members).expect_error(mentions=("conformance-nonesuch",))


@case("D2-delegate-request", "a delegate gets the environment and the whole stdin", acts=True)
def delegate_request(probe: Probe) -> None:
    """Only CNI_COMMAND may differ."""
    need_delegate(probe)
    with probe.container() as container:
        reply = container.call("ADD", CNI_ARGS="IgnoreUnknown=1;A=b")
        result = reply.expect_result(probe.subject.version)
        if "10.88.0.9/24" not in [str(ip.address) for ip in result.ips]:
            raise reply.fail("the delegate's address 10.88.0.9/24 in the result")
        if probe.place.ipam.asked() != ["ADD"]:
            raise reply.fail("one ADD of the delegate", f"it got {probe.place.ipam.asked()}")
        sent, given = reply.exchange, probe.place.ipam.env(1)
        differing = [name for name, value in sent.env.items() if given.get(name) != value]
        if differing:
            raise reply.fail("the delegate to get the same variables", f"these differ: {differing}")
        if probe.place.ipam.stdin(1) != json.loads(sent.stdin):
            raise reply.fail("the delegate to get the same stdin", str(probe.place.ipam.stdin(1)))


@case("D3-delegate-stderr", "what a delegate says on stderr is passed on, on stderr", acts=True)
def delegate_stderr(probe: Probe) -> None:
    """Whether its ADD succeeds or fails, and never on stdout."""
    need_delegate(probe)
    said = "conformance speaking"
    probe.place.ipam.write("say", f"{said}\n")
    try:
        with probe.container() as container:
            reply = container.call("ADD")
            reply.expect_result(probe.subject.version)
            container.call("DEL")
            probe.place.ipam.write("fail-ADD", REFUSAL)
            failed = container.call("ADD")
            failed.expect_error()
            probe.place.ipam.relent("ADD")
            for one in (reply, failed):
                if said.encode() not in one.outcome.stderr:
                    raise one.fail(f"{said!r} on stderr")
    finally:
        probe.place.ipam.write("say", "")
        probe.place.ipam.relent("ADD")


@case("D4-delegate-verbs", "DEL and CHECK are forwarded to the delegate", acts=True)
def delegate_verbs(probe: Probe) -> None:
    """GC and STATUS too, where the plugin has them (P8c, P9c)."""
    need_delegate(probe)
    with probe.container() as container:
        container.call("ADD").expect_success()
        for verb in probe.verbs("CHECK", "DEL", "STATUS", "GC"):
            reply = container.call(verb, members=gc_members(verb))
            reply.expect_silence()
            if probe.place.ipam.asked()[-1:] != [verb]:
                asked = probe.place.ipam.asked()
                raise reply.fail(f"{verb} of the delegate", f"it got {asked}")


def gc_members(verb: str) -> dict[str, object]:
    """What a configuration for GC has besides."""
    return {"cni.dev/valid-attachments": []} if verb == "GC" else {}


@case("D4-delegate-fails", "an error of the delegate is the plugin's", acts=True)
def delegate_fails(probe: Probe) -> None:
    """Code and message, on every verb."""
    need_delegate(probe)
    for verb in probe.verbs("ADD", "DEL", "CHECK", "STATUS", "GC"):
        with probe.container() as container:
            if verb == "CHECK":
                container.call("ADD").expect_success()
            probe.place.ipam.write(f"fail-{verb}", REFUSAL)
            try:
                reply = container.call(verb, members=gc_members(verb))
                reply.expect_error(REFUSAL["code"], mentions=(REFUSAL["msg"],))
            finally:
                probe.place.ipam.relent(verb)


@case("D5-delegate-undone", "after a delegate's failed ADD the plugin calls its DEL", acts=True)
def delegate_undone(probe: Probe) -> None:
    """It may have kept an address; and no interface stays."""
    need_delegate(probe)
    probe.place.ipam.write("fail-ADD", REFUSAL)
    try:
        with probe.container() as container:
            reply = container.call("ADD")
            reply.expect_error(REFUSAL["code"])
            asked = probe.place.ipam.asked()
            if asked[:2] != ["ADD", "DEL"]:
                raise reply.fail("ADD and then DEL of the delegate", f"it got {asked}")
            if container.find_link():
                raise reply.fail(f"no interface {container.ifname}", "it is there")
    finally:
        probe.place.ipam.relent("ADD")
