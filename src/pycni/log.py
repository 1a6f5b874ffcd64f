# SPDX-License-Identifier: Apache-2.0
"""Loggers for modules that a plugin without a service loads: `logging` comes with the first line.

Most executions say nothing, and importing it would be 5 ms of their 30.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from logging import getLogger as Log
else:

    class Log:
        """The standard library's logger of that name, looked up when it is used."""

        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, attribute: str) -> Any:
            import logging

            return getattr(logging.getLogger(self._name), attribute)


__all__ = ["Log"]
