# SPDX-License-Identifier: Apache-2.0
"""Names: what is refused, with which code and which words (conformance L1-L3, L5)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycni.errors import CniError, InvalidConfig, InvalidEnvironment, UnknownContainer
from pycni.model.names import ContainerId, FilePath, IfName, Mac, NetworkName, PluginType

NAMES = (ContainerId, NetworkName, IfName, PluginType, FilePath, Mac)


@pytest.mark.parametrize("kind", [ContainerId, NetworkName])
@pytest.mark.parametrize("text", ["a", "0", "a.b_c-D9", "x" * 300])
def test_an_identifier_is_alphanumeric_first(kind: type[ContainerId], text: str) -> None:
    """SPEC: alphanumeric, then alphanumerics, underscores, dots and hyphens."""
    assert text == kind.parse(text)
    assert isinstance(kind.parse(text), kind)


BAD_IDENTIFIERS = [".a", "-a", "_a", "a/b", "a b", "a\n", "é", "a\0", "..", "\udcff"]


@pytest.mark.parametrize("text", BAD_IDENTIFIERS)
def test_a_bad_container_id_is_code_4(text: str) -> None:
    """L1: the id is in the details."""
    with pytest.raises(InvalidEnvironment) as caught:
        ContainerId.parse(text)
    assert ("invalid characters in containerID", text) == (caught.value.msg, caught.value.details)


def test_an_empty_container_id_is_code_3() -> None:
    """L1: as libcni has it."""
    with pytest.raises(UnknownContainer, match=r"^missing containerID$"):
        ContainerId.parse("")


@pytest.mark.parametrize("text", BAD_IDENTIFIERS)
def test_a_bad_network_name_is_code_7(text: str) -> None:
    """L2: the name is in the details."""
    with pytest.raises(InvalidConfig) as caught:
        NetworkName.parse(text)
    expected = ("invalid characters found in network name", text)
    assert expected == (caught.value.msg, caught.value.details)


def test_an_empty_network_name_is_code_7() -> None:
    """L2: the words are the reference's."""
    with pytest.raises(InvalidConfig, match=r"^missing network name$"):
        NetworkName.parse("")


@pytest.mark.parametrize("text", ["lo", "eth0.100", "a" * 15, "é" * 7, "br-\x1c", "..."])
def test_an_interface_name_is_what_the_kernel_takes(text: str) -> None:
    """L3: any 15 bytes but the few characters listed below."""
    assert text == IfName.parse(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "interface name is empty"),
        ("a" * 16, "interface name is too long"),
        ("é" * 8, "interface name is too long"),
        (".", "interface name is . or .."),
        ("..", "interface name is . or .."),
        ("a/b", "interface name contains / or :"),
        ("eth0:1", "interface name contains / or :"),
        ("a\0b", "interface name contains a NUL byte"),
        ("eth%d", "interface name contains %, for which the kernel puts a number"),
        ("a b", "interface name contains whitespace characters"),
        ("a\n", "interface name contains whitespace characters"),
        ("a\u2003", "interface name contains whitespace characters"),
        ("a\x85", "interface name contains whitespace characters"),
        ("a\udcff", "interface name is not valid UTF-8"),
    ],
)
def test_a_bad_interface_name_is_code_4(text: str, words: str) -> None:
    """L3: every fault has its own words."""
    with pytest.raises(InvalidEnvironment) as caught:
        IfName.parse(text)
    assert words == caught.value.msg


def test_a_plugin_type_is_a_file_name() -> None:
    """L5: no separators, so a joined path stays in its directory."""
    assert PluginType.parse("host-local") == "host-local"
    with pytest.raises(InvalidConfig, match=r"^no plugin name provided$"):
        PluginType.parse("")


@pytest.mark.parametrize("text", ["../x", "a/b", "a\\b", ".", "..", "a\0"])
def test_a_path_is_not_a_plugin_type(text: str) -> None:
    """L5: the words are the reference's."""
    with pytest.raises(InvalidConfig) as caught:
        PluginType.parse(text)
    assert f"invalid plugin name: {text}" == caught.value.msg


def test_a_path_has_no_nul_byte() -> None:
    """The kernel would read half of it, and Python refuses it with a ValueError."""
    assert FilePath.parse("/run/x") == "/run/x"
    with pytest.raises(InvalidConfig, match=r"^a path contains a NUL byte$"):
        FilePath.parse("/run\0/x")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("02:00:00:00:00:01", True),
        ("00:00:00:00:00:00", False),
        ("01:00:5e:00:00:01", False),
        ("ff:ff:ff:ff:ff:ff", False),
        ("01:00:00:00:00:00:00:01", True),  # groups are told by the first bit of Ethernet only
        ("00:00:00:00:00:00:00:00", False),
    ],
)
def test_a_mac_may_be_of_one_host(text: str, expected: bool) -> None:
    """Zero and a group's are addresses, and nobody's."""
    assert expected is Mac.parse(text).is_of_host


@pytest.mark.parametrize("text", ["AA:bb:cc:dd:ee:0f", "aa-bb-cc-dd-ee-0f", "aabb.ccdd.ee0f"])
def test_a_mac_is_kept_in_lower_case_with_colons(text: str) -> None:
    """All three spellings Go reads give one."""
    mac = Mac.parse(text)
    assert mac == "aa:bb:cc:dd:ee:0f"
    assert mac.packed == b"\xaa\xbb\xcc\xdd\xee\x0f"


@pytest.mark.parametrize("size", [6, 8, 20])
def test_a_mac_survives_its_bytes(size: int) -> None:
    """Ethernet, EUI-64 and InfiniBand addresses."""
    packed = bytes(range(size))
    assert packed == Mac.from_bytes(packed).packed
    assert Mac.from_bytes(packed) == Mac.parse(packed.hex(":"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "aa",
        "aa:bb",
        "aa:bb:cc:dd:ee",
        "aa:bb:cc:dd:ee:fg",
        "aa:bb-cc:dd:ee:ff",
        "aabb:ccdd:eeff",
        "aa:bb:cc:dd:ee:ff\n",
        "aa:bb:cc:dd:ee:ff:00",
        "a:b:c:d:e:f",
        "aabb.ccdd",
    ],
)
def test_anything_else_is_not_a_mac(text: str) -> None:
    """The error names the text."""
    with pytest.raises(InvalidConfig) as caught:
        Mac.parse(text)
    assert f'not a MAC address: "{text}"' == caught.value.msg


@given(st.text())
def test_a_name_is_returned_as_it_is_or_refused_with_a_cni_error(text: str) -> None:
    """No input escapes as another exception, and none is altered but a MAC's spelling."""
    for kind in NAMES:
        try:
            name = kind.parse(text)
        except CniError:
            continue
        assert kind is Mac or name == text
        assert kind.parse(name) == name
