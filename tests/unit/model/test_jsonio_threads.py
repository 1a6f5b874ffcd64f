# SPDX-License-Identifier: Apache-2.0
"""Reading JSON from several threads at once."""

from __future__ import annotations

import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import msgspec

from pycni.model import jsonio


def test_threads_that_meet_a_type_first_all_read_it_whole() -> None:
    """How a type's keys are folded is worked out once, and seen by nobody half done."""

    def read_new_type() -> bool:
        fields = [(f"Key{number}", int) for number in range(200)]
        kind = msgspec.defstruct("Fresh", fields)
        document = json.dumps({f"kEY{number}": number for number in range(200)}).encode()
        barrier = threading.Barrier(8)

        def read(_: int) -> int:
            barrier.wait()
            return int(getattr(jsonio.decode(document, kind), "Key199"))  # noqa: B009 - made above

        with ThreadPoolExecutor(8) as pool:
            return [199] * 8 == list(pool.map(read, range(8)))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        assert all([read_new_type() for _ in range(20)])
    finally:
        sys.setswitchinterval(interval)
