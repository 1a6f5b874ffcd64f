# SPDX-License-Identifier: Apache-2.0
"""The set of addresses that finds its lowest gap."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from pycni.net.addrset import AddressSet

# Small integers, the borders of the bitmaps, and the size of IPv6 addresses.
values = st.one_of(
    st.integers(0, 40), st.integers(1000, 1050), st.integers(2**64 - 3, 2**64 + 1100)
)


@given(st.lists(st.tuples(st.booleans(), values)), values, values)
def test_it_answers_as_a_plain_set_does(
    steps: list[tuple[bool, int]], first: int, last: int
) -> None:
    """Whatever is added and discarded, membership, count and lowest gap are a set's."""
    tested, model = AddressSet(), set[int]()
    for adding, value in steps:
        if adding:
            tested.add(value)
            model.add(value)
        else:
            tested.discard(value)
            model.discard(value)

    gap = next((v for v in range(first, first + len(model) + 1) if v not in model), None)
    expected = gap if gap is not None and gap <= last else None

    assert expected == tested.first_absent(first, last)
    assert len([v for v in model if first <= v <= last]) == tested.count(first, last)
    assert all(v in tested for v in model)


def test_a_full_set_has_no_gap() -> None:
    """A /16 with every address taken is searched to its end, across bitmaps."""
    full = AddressSet()
    for value in range(65536):
        full.add(value)

    assert full.first_absent(0, 65535) is None
    assert 65536 == full.first_absent(0, 65536)
    assert 65536 == full.count(0, 2**32)
