# SPDX-License-Identifier: Apache-2.0
"""CNI for Python: a node service that owns container networking."""

from __future__ import annotations

__version__ = "0.1.0"
