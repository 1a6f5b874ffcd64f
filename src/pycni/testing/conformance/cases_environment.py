# SPDX-License-Identifier: Apache-2.0
"""Cases about the environment of an execution: what must be there, and what names may be."""

from __future__ import annotations

from pycni.testing.conformance.probe import Probe
from pycni.testing.conformance.table import case

ADD_NEEDS = ("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME")
DEL_NEEDS = ("CNI_CONTAINERID", "CNI_IFNAME")
BAD_IDS = ("-c", "a/b", "..", "../../c", "a b", "a\n", "é", ".x", "/")
LONG = "a23456789012345x"
BAD_IFNAMES = {
    LONG: "interface name is too long",
    "éééééééé": "interface name is too long",
    "x" * 300: "interface name is too long",
    ".": "interface name is . or ..",
    "..": "interface name is . or ..",
    "a/b": "interface name contains / or :",
    "a:b": "interface name contains / or :",
    "a b": "interface name contains whitespace characters",
    "a\u2003b": "interface name contains whitespace characters",
    "a\n": "interface name contains whitespace characters",
}


def expect_missing(probe: Probe, verb: str, needed: tuple[str, ...]) -> None:
    """Code 4 for all of them missing and for each one; an empty variable is a missing one."""
    absent: dict[str, str | None] = dict.fromkeys(needed)
    text = "required env variables [{}] missing"
    reply = probe.call(verb, probe.config(), **absent)
    reply.expect_error(4, mentions=needed, msg=text.format(",".join(needed)))
    for name in needed:
        for value in (None, ""):
            reply = probe.call(verb, probe.config(), **{name: value})
            reply.expect_error(4, mentions=(name,), msg=text.format(name))


@case("R10a-add-variables", "ADD without its variables is error 4 and names those that miss")
def add_variables(probe: Probe) -> None:
    """Empty ones too."""
    expect_missing(probe, "ADD", ADD_NEEDS)


@case("R10a-check-variables", "CHECK without its variables is error 4 and names those that miss")
def check_variables(probe: Probe) -> None:
    """Empty ones too."""
    probe.need("CHECK")
    expect_missing(probe, "CHECK", ADD_NEEDS)


@case("R10b-del-variables", "DEL without its variables is error 4 and names those that miss")
def del_variables(probe: Probe) -> None:
    """CNI_NETNS is not one of them: see P6."""
    expect_missing(probe, "DEL", DEL_NEEDS)


@case("R9-unknown-command", "a CNI_COMMAND that is none of the six is error 4")
def unknown_command(probe: Probe) -> None:
    """Commands are in capitals."""
    for command in ("add", "ADDD", "UPDATE", "\n", "../ADD"):
        reply = probe.call(command, probe.config())
        reply.expect_error(4, msg=f"unknown CNI_COMMAND: {command}")


@case("P14-no-command", "without CNI_COMMAND the plugin prints nothing on stdout but an error 4")
def no_command(probe: Probe) -> None:
    """The reference says on stderr what it is and which versions it supports, and succeeds."""
    for command in (None, ""):
        reply = probe.call(command)
        if probe.strict or reply.outcome.status == 0:
            reply.expect_silence()
        else:
            reply.expect_error(4)
        if probe.strict:
            lines = reply.outcome.stderr.decode("utf-8", "replace").splitlines()
            versions = f"CNI protocol versions supported: {', '.join(probe.subject.versions)}"
            about = f"CNI {probe.subject.name} plugin"
            if len(lines) != 2 or not lines[0].startswith(about) or lines[1] != versions:
                raise reply.fail(f"two lines on stderr: {about!r} and more, and {versions!r}")


def expect_bad_id(probe: Probe, verb: str) -> None:
    """With the id in the details, whatever else is missing."""
    for bad in BAD_IDS:
        reply = probe.call(verb, probe.config(), CNI_CONTAINERID=bad)
        reply.expect_error(4, msg="invalid characters in containerID", details=bad)
        if probe.strict:
            reply = probe.call(verb, probe.config(), CNI_CONTAINERID=bad, CNI_IFNAME=None)
            reply.expect_error(4, msg="invalid characters in containerID", details=bad)


@case("R8-add-container-id", "ADD refuses a bad CNI_CONTAINERID (error 4): newline, `..`, slash")
def add_container_id(probe: Probe) -> None:
    """It starts alphanumeric and goes on with those, `_`, `.` and `-`."""
    expect_bad_id(probe, "ADD")


@case("R8-del-container-id", "DEL refuses a bad CNI_CONTAINERID (error 4)")
def del_container_id(probe: Probe) -> None:
    """As ADD does: what DEL removes may be a file of that name."""
    expect_bad_id(probe, "DEL")


@case("R8-check-container-id", "CHECK refuses a bad CNI_CONTAINERID (error 4)")
def check_container_id(probe: Probe) -> None:
    """As ADD does."""
    probe.need("CHECK")
    expect_bad_id(probe, "CHECK")


def expect_bad_ifname(probe: Probe, verb: str) -> None:
    """At most 15 bytes, no path, no space as Unicode has it."""
    for bad, msg in BAD_IFNAMES.items():
        probe.call(verb, probe.config(), CNI_IFNAME=bad).expect_error(4, msg=msg)


@case("L3-add-ifname", "ADD refuses a CNI_IFNAME that is no interface name (error 4)")
def add_ifname(probe: Probe) -> None:
    """Longer than 15 bytes, `.`, `..`, a slash, a colon, white space."""
    expect_bad_ifname(probe, "ADD")


@case("L3-del-ifname", "DEL refuses a CNI_IFNAME that is no interface name (error 4)")
def del_ifname(probe: Probe) -> None:
    """As ADD does."""
    expect_bad_ifname(probe, "DEL")


@case("L3-check-ifname", "CHECK refuses a CNI_IFNAME that is no interface name (error 4)")
def check_ifname(probe: Probe) -> None:
    """As ADD does."""
    probe.need("CHECK")
    expect_bad_ifname(probe, "CHECK")


@case("L1-long-container-id", "a CNI_CONTAINERID of 300 characters gets an answer", acts=True)
def long_container_id(probe: Probe) -> None:
    """The specification has no limit; a plugin that makes files of it has the file system's."""
    with probe.container("c" * 300) as container:
        container.call("ADD").expect_answer()
        container.call("DEL").expect_answer()


@case("R10c-gc-variables", "GC needs CNI_COMMAND and CNI_PATH only, and prints nothing", acts=True)
def gc_variables(probe: Probe) -> None:
    """What stands in the others does not matter."""
    probe.need("GC")
    config = probe.config(**{"cni.dev/valid-attachments": []})
    nothing: dict[str, str | None] = dict.fromkeys(ADD_NEEDS)
    probe.call("GC", config, **nothing).expect_silence()
    stray = {"CNI_IFNAME": "a/b", "CNI_CONTAINERID": "../x"}
    probe.call("GC", config, **stray).expect_silence()


@case("R10e-status-variables", "STATUS needs CNI_COMMAND only, and prints nothing", acts=True)
def status_variables(probe: Probe) -> None:
    """CNI_PATH is given, because a delegate may be needed."""
    probe.need("STATUS")
    nothing: dict[str, str | None] = dict.fromkeys(ADD_NEEDS)
    probe.call("STATUS", probe.config(), **nothing).expect_silence()
