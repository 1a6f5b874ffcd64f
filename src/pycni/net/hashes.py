# SPDX-License-Identifier: Apache-2.0
"""SHA-2 for names and tags, without OpenSSL.

`hashlib` loads it: 3 ms of a plugin without a service, for hashes that are no secrets. Python has
its own, for builds without OpenSSL, which `random` takes for the same reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hashlib import sha256, sha512
else:
    try:
        from _sha2 import sha256, sha512
    except ImportError:
        try:  # before Python 3.12
            from _sha256 import sha256
            from _sha512 import sha512
        except ImportError:
            from hashlib import sha256, sha512

__all__ = ["sha256", "sha512"]
