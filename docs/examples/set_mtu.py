#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""set-mtu: a meta plugin, which stands behind any other in the chain and sets the MTU."""

from pycni.sdk import Call, CniError, Config, Plugin, Result, run


class Mtu(Config, frozen=True, kw_only=True):
    mtu: int


class SetMtu(Plugin[Mtu], type="set-mtu", config=Mtu):
    def add(self, call: Call[Mtu]) -> Result:
        result = call.get_prev_result()
        call.container.links.set(call.ifname, mtu=call.config.mtu)
        return result

    def check(self, call: Call[Mtu]) -> None:
        mtu = call.container.links.get(call.ifname).mtu
        if mtu != call.config.mtu:
            raise CniError(f"{call.ifname} has MTU {mtu}, not {call.config.mtu}")


if __name__ == "__main__":
    run(SetMtu)
