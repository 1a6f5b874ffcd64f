# SPDX-License-Identifier: Apache-2.0
"""Versions: L17 of the conformance list, the verb gates, and C14's selection."""

from __future__ import annotations

import pytest

from pycni.errors import IncompatibleVersion
from pycni.model.request import Verb
from pycni.model.version import CURRENT, GATES, SUPPORTED, at_least, parse_version, select_version


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("", (0, 1, 0)), ("1", (1, 0, 0)), ("0.4", (0, 4, 0)), ("1.1.0", (1, 1, 0))],
)
def test_a_version_is_one_to_three_dotted_integers(text: str, numbers: tuple[int, ...]) -> None:
    """L17: missing parts are zero and the empty version is 0.1.0."""
    assert numbers == parse_version(text)


@pytest.mark.parametrize(
    "text", ["abc", "1.", ".1", "1.2.3.4", "1.0.0-rc1", "-1", "+1", "1.0\n", "٣"]
)
def test_anything_else_is_not_a_version(text: str) -> None:
    """L17: the error names the text."""
    with pytest.raises(IncompatibleVersion) as caught:
        parse_version(text)
    assert f'not a version: "{text}"' == caught.value.msg


def test_versions_compare_as_numbers() -> None:
    """0.10.0 is newer than 0.9.0, which is not so for texts."""
    assert at_least("0.10.0", "0.9.0")
    assert at_least("1.0", "1.0.0")
    assert not at_least("", "0.2.0")


def test_the_gates_are_those_of_the_spec() -> None:
    """CHECK came with 0.4.0, GC and STATUS with 1.1.0."""
    expected = {"ADD": "0.1.0", "DEL": "0.1.0", "CHECK": "0.4.0", "GC": "1.1.0", "STATUS": "1.1.0"}
    assert {**expected, "VERSION": "0.1.0"} == {str(verb): GATES[verb] for verb in Verb}


def test_the_current_version_is_the_newest_supported() -> None:
    """The tuple is in ascending order."""
    assert sorted(SUPPORTED, key=parse_version) == list(SUPPORTED)
    assert SUPPORTED[-1] == CURRENT


@pytest.mark.parametrize(
    ("own", "others", "selected"),
    [
        ("", (), "0.1.0"),
        ("0.4.0", (), "0.4.0"),
        ("9.0.0", (), "9.0.0"),
        ("0.4.0", ("0.3.1", "1.1.0", "1.0.0"), "1.1.0"),
        ("1.0.0", ("0.4.0",), "1.0.0"),
        ("0.4.0", ("1.1.0", "9.0.0", "0.5.0"), "1.1.0"),
        ("9.0.0", ("1.0",), "1.0.0"),
        ("9.0.0", ("8.0.0",), "9.0.0"),
        ("", ("8.0.0",), "0.1.0"),
    ],
)
def test_the_highest_spoken_version_is_selected(
    own: str, others: tuple[str, ...], selected: str
) -> None:
    """C14: among cniVersion and cniVersions; without the latter cniVersion stands."""
    assert selected == select_version(own, others)


def test_a_malformed_entry_is_an_error_even_beside_good_ones() -> None:
    """C14: no entry is skipped for being malformed."""
    with pytest.raises(IncompatibleVersion, match="not a version"):
        select_version("1.0.0", ("1.1.0", "x"))
