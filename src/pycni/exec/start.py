# SPDX-License-Identifier: Apache-2.0
"""Where an executable begins when no service listens: before anything large is imported.

What an interpreter loads is most of the time such an execution takes. So the shims give it neither
`site` nor a garbage collector's pauses, and each module is imported by those who need it.
"""

from __future__ import annotations

import gc
import sys
from typing import NoReturn


def main(plugin: str) -> NoReturn:
    """Run one call of the built-in plugin by the environment and stdin, and exit."""
    gc.disable()  # the process is over before there is anything to collect
    # msgspec imports it where it is installed (grpcio brings it along), which takes 7 ms, and does
    # without it just as well.
    sys.modules["typing_extensions"] = None  # type: ignore[assignment]  # None: not to be found
    from pycni.exec import skel

    del sys.modules["typing_extensions"]
    skel.main(plugin)
