# SPDX-License-Identifier: Apache-2.0
"""The process protocol, on every way to execute a plugin.

Each test is named by its line of the conformance list; A0 is the common layer of the reference
plugins. `static` needs no kernel, so what is tested with it needs no privileges.
"""

from __future__ import annotations

import json
from pathlib import Path
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


def test_R11_cni_path_is_not_required(face: Face) -> None:
    """Decision 3.7: the SPEC has it optional, and a built-in plugin needs none."""
    assert 0 == face("static", "ADD", STATIC, CNI_PATH=None).status


# -- stdin -----------------------------------------------------------------------------------------


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


def test_L2_a_long_name_is_not_refused_by_the_protocol(face: Face) -> None:
    """There is no limit in the SPEC; a plugin that makes files of it has the file system's."""
    assert 0 == face("static", "ADD", static(name="n" * 300)).status


# -- versions --------------------------------------------------------------------------------------


def test_P10_version_echoes_what_was_asked(face: Face) -> None:
    """Decision 3.7: the input's version if there is one, else our own maximum; one line."""
    done = face("static", "VERSION", {"cniVersion": "0.4.0"})
    expected = {"cniVersion": "0.4.0", "supportedVersions": list(SUPPORTED)}
    assert json.dumps(expected, separators=(",", ":")).encode() + b"\n" == done.stdout
    for stdin in (b"", b"{}", b" \n"):
        assert "1.1.0" == face("static", "VERSION", stdin).document["cniVersion"]


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


# -- an address plugin's verbs ---------------------------------------------------------------------


def leasing(directory: Path, name: str = "net", **members: Any) -> dict[str, Any]:
    """A configuration of host-local with one address to give."""
    ipam = {"type": "host-local", "subnet": "10.9.0.0/30", "dataDir": str(directory)}
    return {"cniVersion": "1.1.0", "name": name, "type": "host-local", "ipam": ipam, **members}


def test_P8b_status_is_50_when_every_address_is_given(face: Face, tmp_path: Path) -> None:
    """As ADD would say, and until one is given back."""
    config = leasing(tmp_path)
    assert 0 == face("host-local", "STATUS", config).status
    assert 0 == face("host-local", "ADD", config).status
    assert 50 == face("host-local", "STATUS", config).error[0]
    assert 0 == face("host-local", "DEL", config).status
    assert 0 == face("host-local", "STATUS", config).status


def test_P9d_gc_touches_its_own_network_only(face: Face, tmp_path: Path) -> None:
    """It needs no namespace, says nothing, and another network's lease stays."""
    for name in ("one", "two"):
        assert 0 == face("host-local", "ADD", leasing(tmp_path, name)).status
    valid = {"cni.dev/valid-attachments": []}
    done = face("host-local", "GC", leasing(tmp_path, "one", **valid), CNI_NETNS=None)
    assert (0, b"") == (done.status, done.stdout)
    leases = [path.parent.name for path in tmp_path.glob("*/10.*")]
    assert ["two"] == leases


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
