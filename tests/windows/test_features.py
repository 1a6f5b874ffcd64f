# SPDX-License-Identifier: Apache-2.0
"""What each version of the service can do, and which schema a sandbox gets."""

from __future__ import annotations

import pytest

from pycni.errors import InvalidConfig, InvalidNetns
from pycni.windows import errors
from pycni.windows.features import RANGES, Feature, Features
from pycni.windows.sandbox import Sandbox, choose_api, endpoint_name
from pycni.windows.schemas import Version
from tests.windows.drive import Node

GUID = "5f0ad2b4-1c3e-4f7a-9d21-6b8e7c0a9f13"


def features(major: int, minor: int) -> Features:
    return Features(Version(Major=major, Minor=minor))


class Known:
    """A service of a known version."""

    def __init__(self, major: int, minor: int) -> None:
        self.features = features(major, minor)


@pytest.mark.parametrize(
    ("version", "has"),
    [
        ((9, 2), False),
        ((9, 3), True),
        ((9, 9), True),
        ((10, 0), False),
        ((10, 1), False),
        ((10, 2), True),
        ((13, 2), True),
    ],
)
def test_backported_features_have_gaps(version: tuple[int, int], has: bool) -> None:
    """DSR came with 9.3 and 10.2, so 10.0 lacks what 9.3 has."""
    assert has == features(*version).has(Feature.DSR)


def test_every_feature_has_a_range() -> None:
    """And a service too old to tell has none of them."""
    assert set(Feature) == set(RANGES)
    assert not any(features(0, 0).has(feature) for feature in Feature)


def test_a_missing_feature_is_named() -> None:
    """With the words hcsshim uses."""
    text = r"platform does not support feature Direct Server Return \(DSR\)"
    with pytest.raises(errors.HnsUnsupported, match=text) as caught:
        features(9, 2).expect(Feature.DSR)
    assert "version 9.2" in caught.value.hint


def test_the_version_is_asked_once(node: Node) -> None:
    """It does not change while the service runs."""
    service = node.service
    assert service.hns.features is service.hns.features
    assert 1 == node.functions().count("HNSCall")


def test_a_service_too_old_to_tell_has_no_features(node: Node) -> None:
    """Before 1803 the question itself fails."""
    node.simulator.version = (6, 0)
    assert (0, 0) == (
        node.service.hns.features.version.Major,
        node.service.hns.features.version.Minor,
    )


@pytest.mark.parametrize(
    ("configured", "netns", "version", "expected"),
    [
        (None, GUID, (13, 2), 2),
        (None, GUID, (9, 1), 1),
        (None, "", (13, 2), 2),
        (None, "", (7, 0), 1),
        (None, "none", (13, 2), 1),
        (None, "container:abc", (13, 2), 1),
        (0, GUID, (13, 2), 2),
        (2, GUID, (7, 0), 2),
        (1, "none", (13, 2), 1),
        (1, "", (13, 2), 1),
    ],
)
def test_the_schema_follows_the_sandbox_unless_configured(
    configured: int | None, netns: str, version: tuple[int, int], expected: int
) -> None:
    """Azure's rule; an empty CNI_NETNS (DEL) prefers schema 2, which sees both."""
    assert expected == choose_api(configured, Sandbox(netns, "c1"), Known(*version))


@pytest.mark.parametrize("configured", [3, -1])
def test_other_schemas_do_not_exist(configured: int) -> None:
    """Code 7 with the value."""
    with pytest.raises(InvalidConfig, match=f"apiVersion: expected 1 or 2, got {configured}"):
        choose_api(configured, Sandbox(GUID, "c1"), Known(13, 2))


@pytest.mark.parametrize(
    ("netns", "ident", "shares"),
    [
        ("", "c1", False),
        ("none", "c1", False),
        ("container:pause", "pause", True),
        (GUID, "c1", False),
    ],
)
def test_the_sandbox_that_owns_the_endpoint(netns: str, ident: str, shares: bool) -> None:
    """The other container's when the network is shared; CNI_IFNAME takes no part."""
    sandbox = Sandbox(netns, "c1")
    assert (ident, shares) == (sandbox.ident, sandbox.shares)
    assert f"{ident}_cbr0" == endpoint_name(sandbox.ident, "cbr0")


@pytest.mark.parametrize("netns", ["none", "/var/run/netns/x", "0" * 8])
def test_only_a_guid_is_a_namespace(netns: str) -> None:
    """Anything else is code 8 for schema 2."""
    with pytest.raises(InvalidNetns, match="not the id of a host compute namespace"):
        Sandbox(netns, "c1").get_namespace()
