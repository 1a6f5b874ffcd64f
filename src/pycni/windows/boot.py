# SPDX-License-Identifier: Apache-2.0
"""Which boot of Windows this is."""

from __future__ import annotations

import sys

_KEY = r"SYSTEM\CurrentControlSet\Control\Session Manager\Memory Management\PrefetchParameters"


def read_boot_id() -> str:
    """The number of this boot, which Windows counts up; empty where it does not."""
    if sys.platform == "win32":
        import winreg

        try:
            with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, _KEY) as key:
                number, _kind = winreg.QueryValueEx(key, "BootId")
        except OSError:
            return ""
        return f"windows-{number}"
    return ""
