# SPDX-License-Identifier: Apache-2.0
"""What a node remembers: its networks and its attachments, in one SQLite file.

Each change is one small transaction: the intent before the kernel is touched, the outcome after.
Attachments are written with `synchronous=NORMAL`: a killed process loses nothing, a power cut
loses the last moments, and with them went the namespaces and rules they speak of. Networks are an
operator's word and are synced (docs/decisions/0006-embedded-store.md).

`Store` is the port. It asks for little (get, put, delete, ordered listing, one compare-and-set),
so that a key-value service shared by many nodes can stand behind it too.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, Self

import msgspec

from pycni.errors import CniError, IOFailure
from pycni.log import Log
from pycni.model import jsonio
from pycni.net.hashes import sha256
from pycni.runtime.attachments import Attachment, AttachmentKey, State, StoredError
from pycni.runtime.errors import EtagMismatch, NodeBusy, StoreUnusable

log = Log(__name__)

SCHEMA = 1
APPLICATION_ID = 0x70796E69  # "pyni", so that nobody's other database is taken for ours
OPEN_TIMEOUT_S = 5.0  # for a predecessor that is just stopping


class StoredNetwork(msgspec.Struct, frozen=True, kw_only=True):
    """A network as its owner put it; `json` are the bytes as they came.

    `etag` stands for the content, `revision` grows with every change of any network.
    """

    name: str
    json: bytes
    source: str = ""
    etag: str = ""
    revision: int = 0
    created: float = 0.0
    updated: float = 0.0


def etag_of(json: bytes) -> str:
    """The etag of a network with this content."""
    return sha256(json).hexdigest()[:16]


class AttachmentFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which attachments to list; empty fields do not restrict."""

    network: str = ""
    container_id: str = ""
    ifname: str = ""
    states: frozenset[State] = frozenset()
    labels: dict[str, str] = {}


EVERYTHING = AttachmentFilter()


class Store(Protocol):
    """Durable and thread-safe."""

    def get_network(self, name: str) -> StoredNetwork | None:
        """The network, or None."""
        ...

    def list_networks(self) -> list[StoredNetwork]:
        """Every network, by name."""
        ...

    def put_network(self, network: StoredNetwork, *, etag: str | None = None) -> StoredNetwork:
        """Store it and return it with its etag and revision.

        With an `etag` only if that is the stored one, "" meaning there is none; EtagMismatch else.
        """
        ...

    def delete_network(self, name: str, *, etag: str | None = None) -> bool:
        """Delete it; return whether it was there. `etag` as in `put_network`."""
        ...

    def get_attachment(self, key: AttachmentKey) -> Attachment | None:
        """The attachment, or None."""
        ...

    def list_attachments(
        self,
        matching: AttachmentFilter = EVERYTHING,
        *,
        after: AttachmentKey | None = None,
        limit: int | None = None,
    ) -> list[Attachment]:
        """Attachments in the order of their keys, those behind `after`, at most `limit`."""
        ...

    def count_attachments(self, network: str) -> int:
        """How many attachments the network has, in any state."""
        ...

    def put_attachment(self, attachment: Attachment) -> None:
        """Store it, in place of one with the same key."""
        ...

    def delete_attachment(self, key: AttachmentKey) -> None:
        """Forget it; absent is fine."""
        ...

    def close(self) -> None:
        """Close it; nothing may be called afterwards."""
        ...


@contextlib.contextmanager
def unwritten(error: CniError | None = None) -> Iterator[None]:
    """Go on where the store cannot write, as on a full disk; `error` stays the one that is told."""
    try:
        yield
    except IOFailure as failure:
        log.error("not remembered: %s", failure)
        if error is not None:
            error.add_note(f"not remembered: {failure}")


TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
INSERT INTO meta VALUES ('revision', 0);
CREATE TABLE networks (
  name TEXT PRIMARY KEY, json BLOB NOT NULL, source TEXT NOT NULL, etag TEXT NOT NULL,
  revision INTEGER NOT NULL, created REAL NOT NULL, updated REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE attachments (
  network TEXT NOT NULL, container_id TEXT NOT NULL, ifname TEXT NOT NULL,
  state TEXT NOT NULL, netns TEXT NOT NULL, config BLOB NOT NULL, params BLOB NOT NULL,
  result BLOB, error BLOB, boot_id TEXT NOT NULL, created REAL NOT NULL, updated REAL NOT NULL,
  PRIMARY KEY (network, container_id, ifname)
) WITHOUT ROWID;
CREATE INDEX attachments_by_container ON attachments (container_id, ifname);
"""

KEY = "network, container_id, ifname"
NETWORK_COLUMNS = "name, json, source, etag, revision, created, updated"
ATTACHMENT_COLUMNS = (
    "network, container_id, ifname, state, netns, config, params, result, error, boot_id,"
    " created, updated"
)


# An update leaves the keys, and so the index, as they are; REPLACE would write both anew.
PUT_ATTACHMENT = (
    f"INSERT INTO attachments ({ATTACHMENT_COLUMNS}) VALUES (?,?,?,?,?,?,?,?,?,?,?,?)"
    f" ON CONFLICT ({KEY}) DO UPDATE SET "
    + ", ".join(
        f"{column} = excluded.{column}"
        for column in ATTACHMENT_COLUMNS.split(", ")
        if column not in KEY.split(", ")
    )
)


class _Params(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What of an attachment nobody searches by: one column."""

    netns_id: str = ""
    source: str = ""
    inline: bool = False
    network_etag: str = ""
    cni_args: tuple[tuple[str, str], ...] = ()
    capability_args: dict[str, msgspec.Raw] = {}
    labels: dict[str, str] = {}


class SqliteStore:
    """The embedded store: one file, one connection, one process at a time.

    The connection is shared by all threads under a lock: a transaction takes 0.02 ms, less than
    finding a connection of one's own. As nobody else writes, networks are also kept at hand, and
    the keys of attachments: an ADD asks for a network there is and an attachment there is not.
    """

    def __init__(self, connection: sqlite3.Connection, path: str) -> None:
        self._db = connection
        self._path = path
        self._lock = threading.Lock()
        self._networks = {network.name: network for network in self._read_networks()}
        self._keys = {AttachmentKey(*row) for row in self._query(f"SELECT {KEY} FROM attachments")}

    @classmethod
    def open(cls, path: str, *, timeout_s: float = OPEN_TIMEOUT_S) -> Self:
        """Open or create the file at `path`, private to its owner.

        Raises StoreUnusable when it is damaged or newer, NodeBusy when another process has it.
        """
        if path != ":memory:":
            _create_private(path)
        try:
            connection = sqlite3.connect(
                path, isolation_level=None, check_same_thread=False, timeout=timeout_s
            )
        except sqlite3.Error as exc:
            raise IOFailure(f"cannot open {path}: {exc}") from exc
        try:
            _prepare(connection, path)
            return cls(connection, path)
        except BaseException:
            connection.close()
            raise

    def close(self) -> None:
        """Write everything back into the one file and close it."""
        with self._lock:
            self._db.close()

    def get_network(self, name: str) -> StoredNetwork | None:
        """The network, or None."""
        return self._networks.get(name)

    def list_networks(self) -> list[StoredNetwork]:
        """Every network, by name."""
        with self._lock:
            return [self._networks[name] for name in sorted(self._networks)]

    def put_network(self, network: StoredNetwork, *, etag: str | None = None) -> StoredNetwork:
        """Store it and return it with its etag and revision; see `Store`."""
        with self._synced() as changes:
            self._expect_etag(network.name, etag)
            stored = msgspec.structs.replace(
                network, etag=etag_of(network.json), revision=self._next_revision()
            )
            self._db.execute(
                f"INSERT OR REPLACE INTO networks ({NETWORK_COLUMNS}) VALUES (?,?,?,?,?,?,?)",
                tuple(getattr(stored, name) for name in NETWORK_COLUMNS.split(", ")),
            )
            changes[stored.name] = stored
        return stored

    def delete_network(self, name: str, *, etag: str | None = None) -> bool:
        """Delete it; return whether it was there; see `Store`."""
        with self._synced() as changes:
            self._expect_etag(name, etag)
            found = self._db.execute("DELETE FROM networks WHERE name = ?", (name,)).rowcount > 0
            if found:
                self._next_revision()
            changes[name] = None
        return found

    def get_attachment(self, key: AttachmentKey) -> Attachment | None:
        """The attachment, or None."""
        if key not in self._keys:
            return None
        rows = self._query(
            f"SELECT {ATTACHMENT_COLUMNS} FROM attachments"
            " WHERE network = ? AND container_id = ? AND ifname = ?",
            (key.network, key.container_id, key.ifname),
        )
        return _attachment(rows[0]) if rows else None

    def list_attachments(
        self,
        matching: AttachmentFilter = EVERYTHING,
        *,
        after: AttachmentKey | None = None,
        limit: int | None = None,
    ) -> list[Attachment]:
        """Attachments in the order of their keys; see `Store`."""
        sql, values = _where(matching, after)
        # Labels are in the params column: rows they rule out must not count.
        counted = "" if matching.labels or limit is None else f" LIMIT {int(limit)}"
        rows = self._query(
            f"SELECT {ATTACHMENT_COLUMNS} FROM attachments{sql}"
            f" ORDER BY network, container_id, ifname{counted}",
            values,
        )
        found = (_attachment(row) for row in rows)
        labelled = [a for a in found if matching.labels.items() <= a.labels.items()]
        return labelled[:limit]

    def count_attachments(self, network: str) -> int:
        """How many attachments the network has; see `Store`."""
        rows = self._query("SELECT count(*) FROM attachments WHERE network = ?", (network,))
        return int(rows[0][0])

    def put_attachment(self, attachment: Attachment) -> None:
        """Store it, in place of one with the same key."""
        a = attachment
        params = _Params(
            netns_id=a.netns_id,
            source=a.source,
            inline=a.inline,
            network_etag=a.network_etag,
            cni_args=a.cni_args,
            capability_args=a.capability_args,
            labels=a.labels,
        )
        error = None if a.error is None else jsonio.encode(a.error)
        with self._lock, self._translated():
            self._keys.add(a.key)
            self._db.execute(
                PUT_ATTACHMENT,
                (
                    *(a.network, a.container_id, a.ifname, a.state.value, a.netns, a.config),
                    *(jsonio.encode(params), a.result, error),
                    *(a.boot_id, a.created, a.updated),
                ),
            )

    def delete_attachment(self, key: AttachmentKey) -> None:
        """Forget it; absent is fine."""
        with self._lock, self._translated():
            self._db.execute(
                "DELETE FROM attachments WHERE network = ? AND container_id = ? AND ifname = ?",
                (key.network, key.container_id, key.ifname),
            )
            self._keys.discard(key)

    def _read_networks(self) -> list[StoredNetwork]:
        rows = self._query(f"SELECT {NETWORK_COLUMNS} FROM networks")
        return [StoredNetwork(**_named(NETWORK_COLUMNS, row)) for row in rows]

    def _query(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self._lock, self._translated():
            return self._db.execute(sql, values).fetchall()

    def _expect_etag(self, name: str, etag: str | None) -> None:
        if etag is None:
            return
        row = self._db.execute("SELECT etag FROM networks WHERE name = ?", (name,)).fetchone()
        actual = row[0] if row else ""
        if actual != etag:
            raise EtagMismatch(name, expected=etag, actual=actual)

    def _next_revision(self) -> int:
        self._db.execute("UPDATE meta SET value = value + 1 WHERE key = 'revision'")
        row = self._db.execute("SELECT value FROM meta WHERE key = 'revision'").fetchone()
        return int(row[0])

    @contextlib.contextmanager
    def _synced(self) -> Iterator[dict[str, StoredNetwork | None]]:
        """One transaction that is on the disk when it ends; what it makes of the networks."""
        changes: dict[str, StoredNetwork | None] = {}
        with self._lock, self._translated():
            self._db.execute("PRAGMA synchronous=FULL")
            try:
                self._db.execute("BEGIN IMMEDIATE")
                try:
                    yield changes
                except BaseException:
                    self._db.execute("ROLLBACK")
                    raise
                self._db.execute("COMMIT")
                for name, network in changes.items():
                    self._networks.pop(name, None)
                    if network is not None:
                        self._networks[name] = network
            finally:
                self._db.execute("PRAGMA synchronous=NORMAL")

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as exc:
            raise IOFailure(f"store {self._path}: {exc}") from exc


def _create_private(path: str) -> None:
    """Make the file and its directory for their owner only; SQLite's side files follow the mode."""
    try:
        os.makedirs(os.path.dirname(path) or ".", mode=0o700, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.close(fd)
        os.chmod(path, 0o600)
    except OSError as exc:
        raise IOFailure(f"cannot create store {path}: {exc.strerror}") from exc


def _prepare(db: sqlite3.Connection, path: str) -> None:
    """Take the file for this process alone and bring it to our schema."""
    try:
        # Held until the connection is closed or the process dies, however it dies.
        db.execute("PRAGMA locking_mode=EXCLUSIVE")
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=NORMAL")
        db.execute("BEGIN IMMEDIATE")
        _migrate(db, path)
        db.execute("COMMIT")
        damage = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    except sqlite3.OperationalError as exc:
        if "locked" in str(exc):
            raise NodeBusy(path, "another process") from exc
        raise IOFailure(f"cannot open store {path}: {exc}") from exc
    except sqlite3.DatabaseError as exc:
        raise _damaged(path, str(exc)) from exc
    if damage != "ok":
        raise _damaged(path, damage)


def _migrate(db: sqlite3.Connection, path: str) -> None:
    (version,) = db.execute("PRAGMA user_version").fetchone()
    (owner,) = db.execute("PRAGMA application_id").fetchone()
    (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if tables and owner != APPLICATION_ID:
        raise StoreUnusable(path, "not a pycni store", hint="give another path")
    if version > SCHEMA:
        raise StoreUnusable(
            path,
            f"has schema {version}, this release knows {SCHEMA}",
            hint="run the release that wrote it, or a newer one",
        )
    if not tables:
        for statement in TABLES.split(";"):
            db.execute(statement)
        db.execute(f"PRAGMA user_version={SCHEMA}")
        db.execute(f"PRAGMA application_id={APPLICATION_ID}")


def _damaged(path: str, what: str) -> StoreUnusable:
    return StoreUnusable(
        path,
        f"damaged: {what}",
        hint="move the file away and start anew; then put the networks again and run gc",
    )


def _where(matching: AttachmentFilter, after: AttachmentKey | None) -> tuple[str, list[str]]:
    terms: list[str] = []
    values: list[str] = []
    for column in ("network", "container_id", "ifname"):
        if wanted := getattr(matching, column):
            terms.append(f"{column} = ?")
            values.append(wanted)
    if matching.states:
        terms.append(f"state IN ({','.join('?' * len(matching.states))})")
        values.extend(state.value for state in matching.states)
    if after is not None:
        terms.append("(network, container_id, ifname) > (?, ?, ?)")
        values.extend((after.network, after.container_id, after.ifname))
    return (" WHERE " + " AND ".join(terms) if terms else ""), values


def _named(columns: str, row: Sequence[Any]) -> Mapping[str, Any]:
    return dict(zip(columns.split(", "), row, strict=True))


_PARAMS = msgspec.json.Decoder(_Params)
_ERROR = msgspec.json.Decoder(StoredError)


def _attachment(row: tuple[Any, ...]) -> Attachment:
    network, container_id, ifname, state, netns, config, params, result, error, *rest = row
    boot_id, created, updated = rest
    more = _PARAMS.decode(params)
    return Attachment(
        network=network,
        container_id=container_id,
        ifname=ifname,
        state=State(state),
        netns=netns,
        netns_id=more.netns_id,
        config=config,
        source=more.source,
        inline=more.inline,
        network_etag=more.network_etag,
        cni_args=more.cni_args,
        capability_args=more.capability_args,
        labels=more.labels,
        result=result,
        error=None if error is None else _ERROR.decode(error),
        boot_id=boot_id,
        created=created,
        updated=updated,
    )
