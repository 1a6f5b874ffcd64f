#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""pool: an IPAM plugin that hands out the addresses of a subnet, lowest first.

    "ipam": {"type": "pool", "subnet": "10.22.0.0/16", "routes": [{"dst": "0.0.0.0/0"}]}

The leases are in a SQLite database, so an execution, a daemon and the service itself can take
turns with the same ones.
"""

from __future__ import annotations

import ipaddress
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import ClassVar

from pycni.sdk import (
    IPAM,
    Call,
    CniError,
    Config,
    InvalidConfig,
    IPConfig,
    NotAvailable,
    Plugin,
    Result,
    Route,
    TryAgain,
    notify,
    run,
)


class PoolIPAM(IPAM, frozen=True, kw_only=True):
    """The `ipam` key; the gateway is the first address of the subnet."""

    subnet: str
    routes: tuple[Route, ...] = ()
    database: str = "/var/lib/cni/pool.db"


class PoolConfig(Config, frozen=True, kw_only=True):
    """A network whose IPAM plugin is pool."""

    ipam: PoolIPAM


class Full(CniError, code=100):
    """Every address of the subnet is taken."""


class Pool(Plugin[PoolConfig], type="pool", config=PoolConfig):
    """Addresses from one subnet per network."""

    def add(self, call: Call[PoolConfig]) -> Result:
        """Take the lowest free address, or the one the attachment has already."""
        subnet = parse_subnet(call.config.ipam.subnet)
        with leases(call.config.ipam.database) as table:
            address = table.find(call) or table.take(call, subnet)
        return Result(
            cniVersion=call.config.cniVersion,
            ips=(
                IPConfig(
                    address=ipaddress.ip_interface(f"{address}/{subnet.prefixlen}"),
                    gateway=subnet[1],
                ),
            ),
            routes=call.config.ipam.routes,
        )

    def delete(self, call: Call[PoolConfig]) -> None:
        """Give the address back."""
        with leases(call.config.ipam.database) as table:
            table.release(call.config.name, call.container_id, call.ifname)

    def check(self, call: Call[PoolConfig]) -> None:
        """Raise unless the attachment still has an address."""
        with leases(call.config.ipam.database) as table:
            if table.find(call) is None:
                raise CniError(f"{call.container_id}/{call.ifname} has no address in the pool")

    def gc(self, call: Call[PoolConfig]) -> None:
        """Give back the addresses of attachments that are no more."""
        valid = {(one.container_id, one.ifname) for one in call.valid_attachments or ()}
        with leases(call.config.ipam.database) as table:
            for owner in table.owners(call.config.name):
                if owner not in valid:
                    table.release(call.config.name, *owner)

    def status(self, call: Call[PoolConfig]) -> None:
        """Raise NotAvailable (50) if no address is free."""
        subnet = parse_subnet(call.config.ipam.subnet)
        with leases(call.config.ipam.database) as table:
            if table.lowest(call.config.name, subnet) is None:
                raise NotAvailable(f"no address of {subnet} is free")

    def validate(self, config: PoolConfig) -> None:
        """Raise for a subnet that is none, or has no address to give."""
        parse_subnet(config.ipam.subnet)


def parse_subnet(text: str) -> ipaddress.IPv4Network:
    """The subnet; raise InvalidConfig (7) with the path of the fault."""
    try:
        subnet = ipaddress.IPv4Network(text)
    except ValueError as exc:
        raise InvalidConfig(f"ipam.subnet: {exc}") from exc
    if subnet.prefixlen > 30:
        raise InvalidConfig(f"ipam.subnet: {subnet} has no address for a container")
    return subnet


class Leases:
    """The table of one transaction."""

    SCHEMA: ClassVar = (
        "CREATE TABLE IF NOT EXISTS lease (network TEXT, address INTEGER, container TEXT, "
        "ifname TEXT, PRIMARY KEY (network, address), UNIQUE (network, container, ifname))"
    )

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def find(self, call: Call[PoolConfig]) -> ipaddress.IPv4Address | None:
        """The address the attachment has."""
        row = self._connection.execute(
            "SELECT address FROM lease WHERE network = ? AND container = ? AND ifname = ?",
            (call.config.name, call.container_id, call.ifname),
        ).fetchone()
        return None if row is None else ipaddress.IPv4Address(row[0])

    def take(self, call: Call[PoolConfig], subnet: ipaddress.IPv4Network) -> ipaddress.IPv4Address:
        """Give the lowest free address to the attachment."""
        address = self.lowest(call.config.name, subnet)
        if address is None:
            notify("pool-full", f"no address of {subnet} is free", network=call.config.name)
            raise Full(f"no address of {subnet} is free")
        self._connection.execute(
            "INSERT INTO lease VALUES (?, ?, ?, ?)",
            (call.config.name, int(address), call.container_id, call.ifname),
        )
        return address

    def lowest(self, network: str, subnet: ipaddress.IPv4Network) -> ipaddress.IPv4Address | None:
        """The lowest free address behind the gateway's."""
        rows = self._connection.execute("SELECT address FROM lease WHERE network = ?", (network,))
        taken = {address for (address,) in rows}
        hosts = islice(subnet.hosts(), 1, None)
        return next((host for host in hosts if int(host) not in taken), None)

    def owners(self, network: str) -> list[tuple[str, str]]:
        """The attachments that have an address."""
        return self._connection.execute(
            "SELECT container, ifname FROM lease WHERE network = ?", (network,)
        ).fetchall()

    def release(self, network: str, container_id: str, ifname: str) -> None:
        """Give an attachment's address back; it need not have one."""
        self._connection.execute(
            "DELETE FROM lease WHERE network = ? AND container = ? AND ifname = ?",
            (network, container_id, ifname),
        )


@contextmanager
def leases(database: str) -> Iterator[Leases]:
    """One transaction on the leases, alone; raise TryAgain (11) if others do not let us."""
    try:
        Path(database).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with closing(sqlite3.connect(database, timeout=10, isolation_level=None)) as connection:
            connection.execute(Leases.SCHEMA)
            connection.execute("BEGIN IMMEDIATE")
            yield Leases(connection)
            connection.execute("COMMIT")
    except (OSError, sqlite3.OperationalError) as exc:
        raise TryAgain(f"cannot use {database}: {exc}") from exc


if __name__ == "__main__":
    run(Pool)
