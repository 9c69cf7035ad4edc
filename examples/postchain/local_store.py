"""Durable data of a phase server, in one SQLite file: copy this file into yours. It needs the package libsql."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import libsql

V = TypeVar("V")


@dataclass(frozen=True)
class Event:
    id: int
    at: float  # Seconds since 1970.
    body: Any


class LocalStore:
    """Durable JSON values and an event log in one SQLite file.

    A write that returned is on the disk and survives a kill -9. A write that was cancelled or killed is there in whole
    or not at all. Several processes on one machine may use one file: a call waits up to `lock_seconds` for the others.
    Ids of events grow in the order of their commits, so a reader that asks for the events after the last id that it saw
    misses none. The log keeps the newest `events_max` events.

    The journal is not a WAL: libsql 0.1.11 has SQLite 3.45.1, which can lose commits if several connections use one.
    The package holds Python's interpreter lock while it works. So this class waits for locks itself, in its thread; a
    write still stops the event loop for as long as the disk takes, a few milliseconds.
    """

    SCHEMA = (
        "CREATE TABLE IF NOT EXISTS value (key TEXT PRIMARY KEY, body TEXT NOT NULL)",
        "CREATE TABLE IF NOT EXISTS event (id INTEGER PRIMARY KEY, stream TEXT NOT NULL, at REAL NOT NULL,"
        " once TEXT UNIQUE, body TEXT NOT NULL)",
        "CREATE INDEX IF NOT EXISTS event_by_stream ON event (stream, id)",
    )

    def __init__(self, path: str, *, events_max: int = 100_000, lock_seconds: float = 5) -> None:
        self._path, self._events_max, self._lock_seconds = path, events_max, lock_seconds
        self._connection: Any = None  # Opened by the first call, in the one thread that uses it.
        self._thread = ThreadPoolExecutor(max_workers=1)

    async def get(self, key: str, default: Any = None) -> Any:
        rows = await self._run("BEGIN", lambda sql: sql("SELECT body FROM value WHERE key = ?", (key,)).fetchall())
        return json.loads(rows[0][0]) if rows else default

    async def put(self, key: str, value: Any) -> None:
        row = key, json.dumps(value)
        await self._run("BEGIN IMMEDIATE", lambda sql: sql("INSERT OR REPLACE INTO value VALUES (?, ?)", row))

    async def delete(self, key: str) -> None:
        await self._run("BEGIN IMMEDIATE", lambda sql: sql("DELETE FROM value WHERE key = ?", (key,)))

    async def append(self, stream: str, body: Any, *, once: str | None = None) -> int:
        """Appends an event and returns its id. With `once`, a repeat appends nothing and returns the first id."""
        row = stream, time.time(), once, json.dumps(body)

        def work(sql: Any) -> int:
            if once is not None and (found := sql("SELECT id FROM event WHERE once = ?", (once,)).fetchall()):
                return int(found[0][0])
            made: int = sql("INSERT INTO event (stream, at, once, body) VALUES (?, ?, ?, ?)", row).lastrowid
            sql("DELETE FROM event WHERE id <= ?", (made - self._events_max,))
            return made
        return await self._run("BEGIN IMMEDIATE", work)

    async def events(self, stream: str, *, after: int = 0, limit: int = 100) -> list[Event]:
        """The events of a stream after an id, oldest first, at most 1,000."""
        query = "SELECT id, at, body FROM event WHERE stream = ? AND id > ? ORDER BY id LIMIT ?"
        asked = stream, after, max(0, min(limit, 1000))
        rows = await self._run("BEGIN", lambda sql: sql(query, asked).fetchall())
        return [Event(id, at, json.loads(body)) for id, at, body in rows]

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        self._thread.shutdown()

    async def _run(self, begin: str, work: Callable[[Any], V]) -> V:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._retry, begin, work)

    def _retry(self, begin: str, work: Callable[[Any], V]) -> V:
        end = time.monotonic() + self._lock_seconds
        while True:
            try:
                return self._transaction(begin, work)
            except ValueError as error:  # The package has no type of its own for a locked file.
                if "database is locked" not in str(error) or time.monotonic() >= end:
                    raise
            time.sleep(0.005)

    def _transaction(self, begin: str, work: Callable[[Any], V]) -> V:
        connection = self._connection or self._open()
        connection.execute(begin)
        try:
            result = work(connection.execute)
            connection.execute("COMMIT")
            return result
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def _open(self) -> Any:
        with contextlib.suppress(FileExistsError):
            os.close(os.open(self._path, os.O_CREAT | os.O_EXCL, 0o600))
        made = libsql.connect(self._path, timeout=0, isolation_level=None)
        made.execute("PRAGMA journal_mode = TRUNCATE").fetchall()
        for statement in ("PRAGMA synchronous = FULL", "BEGIN IMMEDIATE", *self.SCHEMA, "COMMIT"):
            made.execute(statement)
        self._connection = made
        return made

    def _close(self) -> None:
        if self._connection:
            self._connection.close()
        self._connection = None
