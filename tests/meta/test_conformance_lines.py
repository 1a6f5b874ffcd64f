# SPDX-License-Identifier: Apache-2.0
"""Every line of the conformance list has a test or a case of the table that names it."""

from __future__ import annotations

import re

import pytest

from tests.meta.source import ROOT

# How many lines each letter has; those that are several rules apiece have letters of their own.
LINES = {"C": 16, "R": 25, "Q": 9, "P": 16, "V": 9, "E": 3, "D": 6, "L": 20}
PARTS = {"R10": "abcde", "P5": "ab", "P7": "abcdef", "P8": "abcd", "P9": "abcd"}
NUMBERS = [
    f"{letter}{number}{part}"
    for letter, count in LINES.items()
    for number in range(1, count + 1)
    for part in PARTS.get(f"{letter}{number}", ("",))
]
PLACES = (
    *(ROOT / "tests").rglob("test_*.py"),
    *(ROOT / "src/pycni/testing/conformance").glob("cases_*.py"),
)


@pytest.fixture(scope="module")
def named() -> set[str]:
    """The numbers in names of tests, in their docstrings and in names of cases."""
    found: set[str] = set()
    for path in PLACES:
        if path.name == "test_conformance_lines.py":
            continue
        text = path.read_text()
        for name in re.findall(r"def test_(\w+)", text):
            found.update(name.split("_"))
        for said in re.findall(r'@case\(\s*"(\w+)|"""([^"]+)"""', text):
            found.update(re.findall(r"\w+", " ".join(said)))
    return found


def test_every_line_of_the_conformance_list_is_tested(named: set[str]) -> None:
    """By its number: who adds a line adds a test."""
    assert [] == [number for number in NUMBERS if number not in named]
