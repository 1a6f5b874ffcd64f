# SPDX-License-Identifier: Apache-2.0
"""The process protocol, on every way to execute a plugin.

Each test is named by its line of the conformance list; A0 is the common layer of the reference
plugins. `static` needs no kernel, so what is tested with it needs no privileges.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from pycni.model.version import SUPPORTED
from tests.conformance.conftest import on
from tests.faces import Face

STATIC: dict[str, Any] = {
    "cniVersion": "1.1.0",
    "name": "net",
    "type": "static",
    "ipam": {
        "type": "static",
        "addresses": [
            {"address": "10.1.0.5/16", "gateway": "10.1.0.1"},
            {"address": "fd00::5/64", "gateway": "fd00::1"},
        ],
        "routes": [{"dst": "0.0.0.0/0", "gw": "10.1.0.1", "mtu": 1400}, {"dst": "fd01::/64"}],
        "dns": {"nameservers": ["10.1.0.1"]},
    },
}


def static(**members: Any) -> dict[str, Any]:
    """A configuration of `static` with other members."""
    return {**STATIC, **members}


# -- environment -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "needed"),
    [
        ("ADD", ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"]),
        ("CHECK", ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"]),
        ("DEL", ["CNI_CONTAINERID", "CNI_IFNAME"]),
    ],
)
def test_R10a_R10b_P14_missing_variables_are_named_together(
    face: Face, command: str, needed: list[str]
) -> None:
    """Code 4, in the reference's order; an empty variable is a missing one."""
    missing: dict[str, None] = dict.fromkeys(needed)
    done = face("static", command, STATIC, **missing)
    assert (4, f"required env variables [{','.join(needed)}] missing") == done.error
    for name in needed:
        done = face("static", command, STATIC, **{name: ""})
        assert (4, f"required env variables [{name}] missing") == done.error


def test_R10c_R10e_gc_and_status_need_no_attachment(face: Face) -> None:
    """Their only variables are the command and the path."""
    nothing: dict[str, None] = dict.fromkeys(("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"))
    listed = static(**{"cni.dev/valid-attachments": []})
    assert (0, b"") == face("static", "GC", listed, **nothing)[:2]
    assert (0, b"") == face("static", "STATUS", STATIC, **nothing)[:2]


def test_R11_cni_path_is_not_required(face: Face) -> None:
    """Decision 3.7: the SPEC has it optional, and a built-in plugin needs none."""
    assert 0 == face("static", "ADD", STATIC, CNI_PATH=None).status


@pytest.mark.parametrize("command", ["add", "ADDD", "UPDATE", "\n"])
def test_R9_P14_an_unknown_command_is_code_4(face: Face, command: str) -> None:
    """The six verbs are in capitals."""
    assert (4, f"unknown CNI_COMMAND: {command}") == face("static", command, STATIC).error


@pytest.mark.parametrize("command", [None, ""])
def test_P14_without_a_command_the_plugin_says_what_it_is(face: Face, command: str | None) -> None:
    """Two lines on stderr, nothing on stdout, success; stdin is not even read."""
    done = face("static", command, STATIC)
    assert (0, b"") == done[:2]
    about, versions = done.stderr.decode().splitlines()
    assert about.startswith("CNI static plugin")
    assert f"CNI protocol versions supported: {', '.join(SUPPORTED)}" == versions


@pytest.mark.parametrize("bad", ["-c", "a/b", "..", "a b", "a\n", "é", ".x"])
@pytest.mark.parametrize("command", ["ADD", "CHECK", "DEL"])
def test_R8_L1_a_bad_container_id_is_code_4(face: Face, command: str, bad: str) -> None:
    """Whatever else is missing: it returns at once (P14), with the id in the details."""
    done = face("static", command, STATIC, CNI_CONTAINERID=bad, CNI_IFNAME=None)
    assert (4, "invalid characters in containerID") == done.error
    assert bad == done.document["details"]


@pytest.mark.parametrize(
    ("bad", "msg"),
    [
        ("a23456789012345x", "interface name is too long"),
        ("éééééééé", "interface name is too long"),
        (".", "interface name is . or .."),
        ("..", "interface name is . or .."),
        ("a/b", "interface name contains / or :"),
        ("a:b", "interface name contains / or :"),
        ("a b", "interface name contains whitespace characters"),
        ("a\u2003b", "interface name contains whitespace characters"),
        ("a\n", "interface name contains whitespace characters"),
    ],
)
def test_L3_a_bad_interface_name_is_code_4(face: Face, bad: str, msg: str) -> None:
    """At most 15 bytes, no path, no space as Unicode has it."""
    assert (4, msg) == face("static", "ADD", STATIC, CNI_IFNAME=bad).error


def test_P14_names_are_checked_only_where_they_are_required(face: Face) -> None:
    """A stray CNI_IFNAME does not disturb a GC."""
    listed = static(**{"cni.dev/valid-attachments": []})
    done = face("static", "GC", listed, CNI_IFNAME="a/b", CNI_CONTAINERID="../x")
    assert 0 == done.status


def test_A0_the_environment_comes_before_stdin(face: Face) -> None:
    """Order of faults: environment, JSON, name, version."""
    assert 4 == face("static", "ADD", b"{", CNI_IFNAME="a/b").error[0]
    assert 6 == face("static", "ADD", b"{").error[0]
    assert 7 == face("static", "ADD", {"cniVersion": "9.9.9", "name": ""}).error[0]
    assert 1 == face("static", "ADD", {"cniVersion": "9.9.9", "name": "n", "ipam": 1}).error[0]


# -- stdin -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stdin", "code"),
    [
        (b"", 6),
        (b"{", 6),
        (b"not JSON", 6),
        (b'{"name": "n"} {"name": "m"}', 6),
        (b'{"name": NaN}', 6),
        (b'{"name": "\xff"}', 6),
        (b'{"name": ' + b"[" * 20000 + b"]" * 20000 + b"}", 6),
        (b"[]", 7),
        (b"null", 7),
        (b'"text"', 7),
    ],
)
def test_A0_what_is_no_configuration_is_refused(face: Face, stdin: bytes, code: int) -> None:
    """Code 6 for what is not JSON, or not only JSON; nothing hangs, nothing is on stderr."""
    done = face("static", "ADD", stdin)
    assert code == done.error[0]
    assert b"Traceback" not in done.stderr


def test_A0_the_last_of_equal_keys_counts_whatever_its_case(face: Face) -> None:
    """As Go's encoding/json reads it (V9)."""
    text = b'{"NAME": "-", "cniversion": "9.9.9", "name": "n", "cniVersion": "1.0.0"}'
    assert {"cniVersion": "1.0.0"} == face("static", "ADD", text).document


@pytest.mark.parametrize("size", [1, 15])
def test_A0_a_large_configuration_passes(face: Face, size: int) -> None:
    """Up to the 16 MiB a request may have."""
    done = face("static", "ADD", static(padding="x" * (size << 20)))
    assert 0 == done.status, done.stdout


@on("alone", "compiled", "python")
def test_A0_a_huge_configuration_is_refused(face: Face) -> None:
    """More than that is code 6, told by the executable that reads it."""
    done = face("static", "ADD", b'"' + b"x" * (17 << 20) + b'"')
    assert (6, "the network configuration on stdin is larger than 16 MiB") == done.error


@pytest.mark.parametrize("command", ["ADD", "DEL", "CHECK", "GC", "STATUS"])
@pytest.mark.parametrize("name", ["", None, "a/b", "..", "-n", "n\n", "a b"])
def test_L2_a_missing_or_bad_network_name_is_code_7(
    face: Face, command: str, name: str | None
) -> None:
    """On every verb."""
    config = static(name=name)
    code, msg = face("static", command, config).error
    assert 7 == code
    assert ("invalid characters found in network name" if name else "missing network name") == msg


def test_L2_a_long_name_is_not_refused_by_the_protocol(face: Face) -> None:
    """There is no limit in the SPEC; a plugin that makes files of it has the file system's."""
    assert 0 == face("static", "ADD", static(name="n" * 300)).status


# -- versions --------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["0.5.0", "1.2.0", "1.0", "v1.0.0", "1.1.0-rc1", "2.0.0"])
def test_P12_an_unsupported_version_is_code_1(face: Face, version: str) -> None:
    """The text is compared, not the number; the details tell both sides."""
    done = face("static", "ADD", static(cniVersion=version))
    assert (1, "incompatible CNI versions") == done.error
    listed = " ".join(f'"{known}"' for known in SUPPORTED)
    assert f'config is "{version}", plugin supports [{listed}]' == done.document["details"]


@pytest.mark.parametrize("version", [None, ""])
def test_P13_a_missing_version_is_0_1_0(face: Face, version: str | None) -> None:
    """And so is the result's."""
    document = face("static", "ADD", static(cniVersion=version)).document
    assert ["cniVersion", "ip4", "ip6", "dns"] == list(document)
    assert "0.1.0" == document["cniVersion"]


@pytest.mark.parametrize(
    ("command", "floor"), [("CHECK", "0.4.0"), ("GC", "1.1.0"), ("STATUS", "1.1.0")]
)
def test_P14_a_verb_needs_a_configuration_that_has_it(face: Face, command: str, floor: str) -> None:
    """Code 1, for every version below the verb's first."""
    for version in SUPPORTED[: SUPPORTED.index(floor)]:
        done = face("static", command, static(cniVersion=version))
        assert (1, f"config version does not allow {command}") == done.error


def test_P10_version_echoes_what_was_asked(face: Face) -> None:
    """Decision 3.7: the input's version if there is one, else our own maximum; one line."""
    done = face("static", "VERSION", {"cniVersion": "0.4.0"})
    expected = {"cniVersion": "0.4.0", "supportedVersions": list(SUPPORTED)}
    assert json.dumps(expected, separators=(",", ":")).encode() + b"\n" == done.stdout
    for stdin in (b"", b"{}", b" \n"):
        assert "1.1.0" == face("static", "VERSION", stdin).document["cniVersion"]


def test_R10d_version_needs_the_command_alone(face: Face) -> None:
    """No other variable, and stray ones do not disturb."""
    names = ("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH")
    assert 0 == face("static", "VERSION", **dict.fromkeys(names)).status
    assert 0 == face("static", "VERSION", CNI_IFNAME="a/b", CNI_NETNS="dummy").status


# -- results ---------------------------------------------------------------------------------------

OLD = """{
    "cniVersion": "0.2.0",
    "ip4": {
        "ip": "10.1.0.5/16",
        "gateway": "10.1.0.1",
        "routes": [
            {
                "dst": "0.0.0.0/0",
                "gw": "10.1.0.1"
            }
        ]
    },
    "ip6": {
        "ip": "fd00::5/64",
        "gateway": "fd00::1",
        "routes": [
            {
                "dst": "fd01::/64"
            }
        ]
    },
    "dns": {
        "nameservers": [
            "10.1.0.1"
        ]
    }
}"""
MIDDLE = """{
    "cniVersion": "0.4.0",
    "ips": [
        {
            "version": "4",
            "address": "10.1.0.5/16",
            "gateway": "10.1.0.1"
        },
        {
            "version": "6",
            "address": "fd00::5/64",
            "gateway": "fd00::1"
        }
    ],
    "routes": [
        {
            "dst": "0.0.0.0/0",
            "gw": "10.1.0.1",
            "mtu": 1400
        },
        {
            "dst": "fd01::/64"
        }
    ],
    "dns": {
        "nameservers": [
            "10.1.0.1"
        ]
    }
}"""
NEW = """{
    "cniVersion": "1.1.0",
    "dns": {
        "nameservers": [
            "10.1.0.1"
        ]
    },
    "ips": [
        {
            "address": "10.1.0.5/16",
            "gateway": "10.1.0.1"
        },
        {
            "address": "fd00::5/64",
            "gateway": "fd00::1"
        }
    ],
    "routes": [
        {
            "dst": "0.0.0.0/0",
            "gw": "10.1.0.1",
            "mtu": 1400
        },
        {
            "dst": "fd01::/64"
        }
    ]
}"""
LAYOUTS = {
    "0.1.0": OLD.replace("0.2.0", "0.1.0"),
    "0.2.0": OLD,
    "0.3.0": MIDDLE.replace("0.4.0", "0.3.0"),
    "0.3.1": MIDDLE.replace("0.4.0", "0.3.1"),
    "0.4.0": MIDDLE,
    "1.0.0": NEW.replace("1.1.0", "1.0.0"),
    "1.1.0": NEW,
}


@pytest.mark.parametrize("version", SUPPORTED)
def test_P2_V1_V4_V5_a_result_has_the_layout_of_its_version(face: Face, version: str) -> None:
    """Byte for byte: four spaces, the order of the keys, no newline at the end."""
    done = face("static", "ADD", static(cniVersion=version))
    assert (0, LAYOUTS[version]) == (done.status, done.stdout.decode())


def test_V7_empty_dns_is_left_out_from_1_0_0_on(face: Face) -> None:
    """Before, it is an empty object."""
    for version, expected in (("1.1.0", False), ("1.0.0", False), ("0.4.0", True), ("0.2.0", True)):
        ipam = {"type": "static", "addresses": [{"address": "10.1.0.5/16"}]}
        document = face("static", "ADD", static(cniVersion=version, ipam=ipam)).document
        assert expected is ("dns" in document)
        assert not document.get("dns")


def test_V8_a_result_without_addresses_cannot_be_0_2_0(face: Face) -> None:
    """The error is Go's."""
    code, msg = face("static", "ADD", static(cniVersion="0.2.0", ipam={"type": "static"})).error
    assert "cannot convert: no valid IP addresses" in msg
    assert 0 != code


@pytest.mark.parametrize("command", ["DEL", "CHECK", "GC", "STATUS"])
def test_P7f_P8_P9_other_verbs_print_nothing(face: Face, command: str) -> None:
    """Success is an exit status of 0 and an empty stdout."""
    previous = {
        "cniVersion": "1.1.0",
        "ips": [
            {"address": "10.1.0.5/16", "gateway": "10.1.0.1"},
            {"address": "fd00::5/64", "gateway": "fd00::1"},
        ],
    }
    config = static(prevResult=previous, **{"cni.dev/valid-attachments": []})
    assert (0, b"", b"") == face("static", command, config)


def test_A0_html_characters_are_escaped_as_go_does(face: Face) -> None:
    """In results and in errors."""
    ipam = {"type": "static", "dns": {"domain": "<a&b>"}}
    done = face("static", "ADD", static(ipam=ipam))
    assert b'"domain": "\\u003ca\\u0026b\\u003e"' in done.stdout
    done = face("static", "<&>", STATIC)
    assert b"unknown CNI_COMMAND: \\u003c\\u0026\\u003e" in done.stdout


# -- errors ----------------------------------------------------------------------------------------


def test_P1_P2_E1_an_error_is_json_on_stdout_and_exit_status_1(face: Face) -> None:
    """Decision 3.7: stdout, whatever the overview says; E1: with the version when it is known."""
    done = face("static", "ADD", static(cniVersion="1.1.0", ipam={"type": "static", "routes": 1}))
    expected = (
        '{\n    "cniVersion": "1.1.0",\n    "code": 7,\n'
        '    "msg": "ipam.routes: expected array, got int"\n}'
    )
    assert (1, expected, b"") == (done.status, done.stdout.decode(), done.stderr)


def test_E1_details_are_left_out_when_there_are_none(face: Face) -> None:
    """And so is a version nobody knows yet."""
    document = face("static", "ADD", STATIC, CNI_IFNAME="..").document
    assert {"code", "msg"} == document.keys()


@on("in-process", "socket")
@pytest.mark.parametrize("command", ["ADD", "VERSION", None])
def test_an_executable_of_an_unknown_name_says_so(face: Face, command: str | None) -> None:
    """Code 7 with the plugins there are."""
    done = face("nonesuch", command, static(type="nonesuch"))
    assert 7 == done.error[0]
    assert 'failed to find plugin "nonesuch"' in done.error[1]
    assert "static" in done.document["details"]


@on("in-process", "socket", "compiled", "python")
def test_P16_a_bug_is_code_999(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an id of the traceback in the log, and never the traceback on stdout."""
    from pycni.plugins.static import Static

    def fail(*_: object) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(Static, "add", fail)
    code, msg = face("static", "ADD", STATIC).error
    assert 999 == code
    assert msg.startswith("internal error in ADD of plugin static (log id ")
    assert "secret" not in msg


# -- CNI_ARGS --------------------------------------------------------------------------------------


@pytest.mark.parametrize("args", ["IP", "IP=10.0.0.1/8;", "A=b=c", ";"])
def test_R12_malformed_cni_args_are_code_4(face: Face, args: str) -> None:
    """By a plugin that reads them."""
    code, msg = face("static", "ADD", STATIC, CNI_ARGS=args).error
    assert 4 == code
    assert "invalid pair" in msg


def test_L18_unknown_cni_args_need_ignore_unknown(face: Face) -> None:
    """As Kubernetes sends them."""
    code, msg = face("static", "ADD", STATIC, CNI_ARGS="K8S_POD=x").error
    assert (4, True) == (code, 'unknown args ["K8S_POD=x"]' in msg)
    for flag in ("1", "true"):
        args = f"IgnoreUnknown={flag};K8S_POD=x;IP=10.9.9.9/24"
        ips = face("static", "ADD", STATIC, CNI_ARGS=args).document["ips"]
        assert "10.9.9.9/24" in [ip["address"] for ip in ips]
