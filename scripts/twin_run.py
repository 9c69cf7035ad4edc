"""Compares two builds of the program call by call: twin_run.py OLD NEW [--calls 3000] [--seed 1] [--only NOUN]

Both builds serve an empty data directory each, under the same configuration. A seeded generator sends the same
calls to both: every operation of openapi.json, by every role, to objects that are there, foreign, missing or
malformed, with good and bad bodies, repeated and with conditions. Ids, secrets, cursors, digests and times differ
between two servers; an id of the old one is paired with the id at the same place of the new one when it is first
seen, and must meet that partner ever after. Everything else must be equal, byte by byte.

It exits with 1 if anything differs. Needs nothing beyond the standard library of Python 3.
"""

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
from collections import Counter, defaultdict

from twin.calls import World
from twin.masks import Pairs, flat_audit, flat_metrics, flat_stream
from twin.servers import ChatService, Feed, Side, configuration

DOCUMENT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "openapi.json")
# Bodies that are compared in another form than that of their bytes.
FLAT = {"getMetrics": flat_metrics, "listAuditRecords": flat_audit, "verifyStore": flat_audit}
EXAMPLES_MAX = 3
FEEDS = [("/v1/events", "client"), ("/v1/events", "ann"), ("/v1/events", "operator"),
         ("/v1/holds/events", "approver"), ("/v1/holds/events", "ann"), ("/v1/holds/events", "clerk")]


class Run:
    """Two servers, what is known of both, and how they differ so far."""

    def __init__(self, old, new, folder, seed, only):
        self.service = ChatService()
        config = configuration(self.service.port)
        self.old = Side(old, os.path.join(folder, "old"), config)
        self.new = Side(new, os.path.join(folder, "new"), config)
        self.pairs = Pairs(self.old, self.new)
        self.world = World(seed, json.load(open(DOCUMENT)), only)
        self.differences = defaultdict(list)
        self.counts = defaultdict(Counter)
        self.made = 0

    def begin(self):
        for role in self.old.keys:
            self.pairs.pair(self.old.keys[role], self.new.keys[role])
        self.world.keys.update(self.old.keys)
        for side in (self.old, self.new):
            side.start()
        self.feeds = [(path, role, *(Feed(side, path, side.keys[role]) for side in (self.old, self.new)))
                      for path, role in FEEDS]

    def differ(self, call, what, example):
        self.differences[(call.op, call.role, what)].append((self.made, call, example))

    def make(self, call):
        """Sends one call to both, compares, and gives the answer of the old one."""
        self.made += 1
        there = call.translated(self.pairs.translate)
        old, new = self.old.send(call), self.new.send(there)
        self.counts[call.op][old.status] += 1
        self.compare(call, old, new)
        self.world.learn(call, old)
        return old

    def compare(self, call, old, new):
        if old.status != new.status:
            said = f"{clip(old.body)} | {clip(new.body)}"
            self.differ(call, f"status {old.status} -> {new.status}", said)
        for name in sorted(old.headers.keys() | new.headers.keys()):
            one, other = old.headers.get(name), new.headers.get(name)
            if one is None or other is None:
                self.differ(call, f"header {name}: {presence(one)} -> {presence(other)}", one or other)
            elif found := self.pairs.difference(one, other):
                self.differ(call, f"header {name}", found[1])
        flat = FLAT.get(call.op, str) if old.status == 200 else str
        if "text/event-stream" in old.headers.get("content-type", ""):
            flat = flat_stream
        if found := self.pairs.difference(flat(old.body), flat(new.body)):
            self.differ(call, f"body at {found[0]}", found[1])

    def play(self, calls):
        """The random part. Flows that need two calls at once are made by the world as one step."""
        for call in self.world.beginning():
            self.make(call)
        while self.made < calls:
            step = self.world.step()
            if callable(step):
                step(self)
            else:
                self.make(step)

    def finish(self):
        """Reads everything that is there now, through every role that may, and compares the feeds."""
        for call in self.world.everything():
            self.make(call)
        for path, role, old, new in self.feeds:
            self.compare_feeds(path, role, old, new)
            self.resume_feeds(path, role, old, new)
        for call, count in self.world.session_feeds():
            there = call.translated(self.pairs.translate)
            sides = [Feed(side, one.path, side.keys[call.role], limit=count)
                     for side, one in ((self.old, call), (self.new, there))]
            self.counts[call.op][200] += 1
            self.compare_feeds(call.path, call.role, *sides, count)

    def compare_feeds(self, path, role, old, new, count=0):
        call = self.world.feed_call(path, role)
        one, other = old.read(count), new.read(max(count, old.count()))
        if len(one) < len(other):
            one = old.read(len(other))
        self.counts[call.op][old.status] += 1
        if old.status != new.status:
            self.differ(call, f"status {old.status} -> {new.status}", "")
        elif found := self.pairs.difference("\n".join(one), "\n".join(other)):
            self.differ(call, "events", found[1])

    def resume_feeds(self, path, role, old, new):
        """Opens a feed again in the middle: both must go on with the same events."""
        at = max(0, min(old.count(), new.count()) - 25)
        sides = []
        for side, feed in ((self.old, old), (self.new, new)):
            if ids := [line[4:] for line in feed.events[at].splitlines() if line.startswith("id: ")] if feed.events else []:
                count = feed.count() - at - 1
                sides.append(Feed(side, path, side.keys[role], limit=count, **{"Last-Event-ID": ids[0]}))
        if len(sides) == 2:
            self.compare_feeds(path, role, *sides, old.count() - at - 1)

    def end(self):
        """Stops both servers and has each check its data."""
        call = self.world.feed_call("check", "-")
        said = []
        for side in (self.old, self.new):
            side.stop()
            said.append(side.check())
        if said[0][0] or said[1][0] or said[0][1].splitlines()[1:] != said[1][1].splitlines()[1:]:
            self.differ(call, "statehold check", f"{said[0]} | {said[1]}")
        return said[0]


def presence(value):
    return "absent" if value is None else "present"


def clip(text, most=160):
    return text if len(text) <= most else text[:most] + "…"


def report(run, checked):
    operations = run.world.operations
    lacking = [op for op in operations if not any(200 <= status < 300 for status in run.counts[op])]
    # These answer everybody in the same way.
    open_to_all = {"getHealth", "getReadiness", "getApiDocument"}
    unrefused = [op for op in operations if op not in open_to_all and not any(
        status >= 400 for status in run.counts[op])]
    print(f"{'operation':24} {'2xx':>5} {'4xx':>5} {'5xx':>4}  statuses")
    for op in sorted(run.counts):
        counts = run.counts[op]
        sums = [sum(n for status, n in counts.items() if status // 100 == first) for first in (2, 4, 5)]
        print(f"{op:24} {sums[0]:5} {sums[1]:5} {sums[2]:4} ", *(f"{s}:{n}" for s, n in sorted(counts.items())))
    total = Counter()
    for counts in run.counts.values():
        total.update(counts)
    print("statuses:", *(f"{status}:{count}" for status, count in sorted(total.items())))
    codes = run.world.codes
    print(f"{len(codes)} problem codes:", *(f"{code}:{count}" for code, count in sorted(codes.items())))
    print("never answered well:", *(lacking or ["none"]))
    print("never refused:", *(unrefused or ["none"]))
    print("check:", checked)
    for (op, role, what), found in sorted(run.differences.items(), key=lambda one: one[1][0][0]):
        print(f"DIFFERS {op} as {role}: {what} ({len(found)} times)")
        for made, call, example in found[:EXAMPLES_MAX]:
            print(f"    call {made}: {call}\n        {clip(str(example), 400)}")
    count = sum(map(len, run.differences.values()))
    print(f"{run.made} calls, {len(operations)} operations, {len(run.pairs.there)} pairs, {count} differences")
    return 1 if count else 0


def main():
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("old")
    asked.add_argument("new")
    asked.add_argument("--calls", type=int, default=3000)
    asked.add_argument("--seed", type=int, default=1)
    asked.add_argument("--only", help="most calls are about this noun: sessions, requests, holds, state, chat, …")
    asked.add_argument("--keep", action="store_true", help="keep the folder with data and logs")
    asked = asked.parse_args()
    folder = tempfile.mkdtemp(prefix="twin-")
    run = Run(os.path.abspath(asked.old), os.path.abspath(asked.new), folder, asked.seed, asked.only)
    print(f"seed {asked.seed}, {asked.calls} calls, data in {folder}", flush=True)
    try:
        run.begin()
        run.play(asked.calls)
        run.finish()
        return report(run, run.end())
    finally:
        for side in (run.old, run.new):
            side.kill()
        if not asked.keep:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))
    sys.exit(main())
