"""Opens a Statehold data file with libSQL and Turso and compares what they read with SQLite."""

import os
import shutil
import sqlite3
import sys
import tempfile

import libsql
import turso

QUERIES = [
    "SELECT count(*) FROM log",
    "SELECT count(*), max(revision) FROM session",
    "SELECT hex(id), tenant, app, agent, revision, hex(head) FROM session ORDER BY pk",
    "SELECT status, closed, deleted, ttl_mode, ttl_ms, expires_at FROM session ORDER BY pk",
    "SELECT session, seq, length(record), length(bodies) FROM log ORDER BY id",
    "SELECT session, key, version, hex(value) FROM state ORDER BY session, key",
    "SELECT hex(id), hex(body) FROM ended_request ORDER BY id",
    "SELECT pk, hex(id), hex(request), tenant, hex(body) FROM closed_hold ORDER BY pk",
    "SELECT hex(id), hex(body) FROM open_task WHERE session = 1",
    "SELECT session.tenant, count(*) FROM live_request JOIN session ON session.pk = session"
    " GROUP BY session.tenant",
]


def read(connect, path):
    # Each reader gets a copy: a file must not be shared between engines while they run.
    with tempfile.TemporaryDirectory() as folder:
        copy = os.path.join(folder, "copy.db")
        shutil.copyfile(path, copy)
        connection = connect(copy)
        rows = [[tuple(row) for row in connection.execute(sql).fetchall()] for sql in QUERIES]
        connection.close()
        return rows


path = sys.argv[1]
expected = read(sqlite3.connect, path)
assert expected[0][0][0] > 300, expected[0]
for name, connect in [("libsql", libsql.connect), ("turso", turso.connect)]:
    found = read(connect, path)
    for sql, ours, theirs in zip(QUERIES, expected, found):
        assert ours == theirs, f"{name} reads something else: {sql}\n{ours}\n{theirs}"
    print(f"{name} reads {expected[0][0][0]} records and everything beside them like SQLite")
