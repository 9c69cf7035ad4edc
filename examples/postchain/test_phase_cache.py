"""Tests of phase_cache.py and local_store.py without a server: python3 test_phase_cache.py

Prints one line per check, and exits with 1 if one fails.
"""

import asyncio
import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import traceback

from local_store import Event, LocalStore
from phase_cache import Cache, Conversation, Histories, History, query_of, session_of

ONE, TWO = "conversation://ses_1/history", "conversation://ses_2/history"
CURRENT = "conversation://current-history"


class FakeStatehold:
    """A source with sessions in memory. As at Statehold, a token reads one session, and the answers of one turn."""

    def __init__(self, session, sessions, url="http://statehold.test/mcp", turn=None):
        self.session, self.sessions, self.url, self.turn = session, sessions, url, turn
        self.request = f"phase of {turn}"
        self.reads, self.gate, self.error, self.queues = [], None, None, []

    def say(self, *texts):
        """Each message is one commit."""
        messages = self.sessions[self.session]
        for text in texts:
            messages.append({"role": "user", "content": text, "seq": len(messages) + 1})
        for queue in self.queues:
            queue.put_nowait(None)

    async def read(self, uri):
        self.reads.append(uri)
        query, messages = query_of(uri), list(self.sessions[self.session])
        if self.gate:
            await self.gate.wait()
        if self.error:
            raise self.error
        if session_of(uri) is None:
            return json.dumps([{"role": one["role"], "content": one["content"]} for one in messages]), len(messages)
        rev = int(query.get("rev", len(messages)))
        after = int(query.get("after", 0))
        document = {"rev": rev, "messages": messages[after:rev]}
        if after > rev:  # A rewind took out messages that the reader has.
            document |= {"messages": messages, "reset": True}
        turn = query.get("turn", self.turn)
        if turn and "after" not in query:
            answer = {"role": "assistant", "name": "action", "content": f"answer in {turn}", "seq": rev + 0.5}
            document["messages"] = [*document["messages"], answer]
        return json.dumps(document), rev

    @contextlib.asynccontextmanager
    async def listen(self, uri):
        queue = asyncio.Queue()
        self.queues.append(queue)

        async def changes():
            while (await queue.get()) != "broken":
                yield uri
        yield changes()


def open_conversation(histories, *texts, session="ses_1", sessions=None, **more):
    source = FakeStatehold(session, {session: []} if sessions is None else sessions, **more)
    source.say(*texts)
    return source, Conversation(histories, source, session)


def texts(history):
    return [one.text for one in history.messages]


async def settle():
    """Lets every task that can run do so."""
    for _ in range(20):
        await asyncio.sleep(0)


async def raised(kind, awaitable):
    try:
        await awaitable
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def counting(result, gate=None):
    """A function to compute `result`, and the list of its calls."""
    calls = []

    async def compute():
        calls.append(result)
        if gate:
            await gate.wait()
        if isinstance(result, Exception):
            raise result
        return result
    return compute, calls


def make_cache(**more):
    return Cache(**{"bytes_max": 100, "ttl": 10, "size_of": len} | more)


async def sixty_four_concurrent_readers_cause_one_fetch():
    source, conversation = open_conversation(Histories(), "Hello")
    source.gate = asyncio.Event()
    readers = [asyncio.ensure_future(conversation.history(f"{ONE}?rev=1")) for _ in range(64)]
    await settle()
    source.gate.set()
    found = await asyncio.gather(*readers)
    assert len(source.reads) == 1 and all(one is found[0] for one in found), source.reads
    assert texts(await conversation.history(f"{ONE}?rev=1")) == ["Hello"] and len(source.reads) == 1
    cache = conversation.histories.cache
    assert (cache.hits, cache.misses, cache.joined) == (1, 1, 63), vars(cache)


async def a_failed_fetch_is_not_cached_and_each_waiter_tries_once_more():
    cache, gate = make_cache(), asyncio.Event()
    fails, failed = counting(ConnectionError("down"), gate)
    works, worked = counting("value")
    first = asyncio.ensure_future(cache.get_or_compute("key", fails))
    await settle()
    others = [asyncio.ensure_future(cache.get_or_compute("key", works)) for _ in range(8)]
    await settle()
    gate.set()
    await raised(ConnectionError, first)
    assert await asyncio.gather(*others) == ["value"] * 8
    assert (len(failed), len(worked)) == (1, 1)
    # If the second fetch fails too, all get the error, after two fetches and not after nine.
    cache.drop("key")
    gate.clear()
    fails, failed = counting(ConnectionError("down"), gate)
    readers = [asyncio.ensure_future(cache.get_or_compute("key", fails)) for _ in range(9)]
    await settle()
    gate.set()
    errors = await asyncio.gather(*readers, return_exceptions=True)
    assert all(isinstance(one, ConnectionError) for one in errors) and len(failed) == 2, failed
    assert await cache.get_or_compute("key", works) == "value"


async def a_cancelled_waiter_cancels_no_other():
    cache, gate = make_cache(), asyncio.Event()
    compute, calls = counting("value", gate)
    readers = [asyncio.ensure_future(cache.get_or_compute("key", compute)) for _ in range(3)]
    await settle()
    readers[0].cancel()  # The one that began the fetch.
    await settle()
    gate.set()
    assert await asyncio.gather(*readers[1:]) == ["value"] * 2 and len(calls) == 1
    assert readers[0].cancelled() and cache.get("key") == "value"


async def the_last_cancelled_waiter_ends_the_fetch():
    cache, ended = make_cache(), []

    async def hangs():
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.1)  # Closing a connection takes a while.
            ended.append(True)
    readers = [asyncio.ensure_future(cache.get_or_compute("key", hangs)) for _ in range(2)]
    await settle()
    for reader in readers:
        reader.cancel()
    await asyncio.gather(*readers, return_exceptions=True)
    works, _ = counting("value")
    assert await cache.get_or_compute("key", works) == "value" and not ended, "a new reader does not join the old fetch"
    await asyncio.sleep(0.2)
    assert ended and cache.get("key") == "value"


async def a_value_ends_with_its_ttl():
    clock = Clock()
    cache = make_cache(clock=clock)
    compute, calls = counting("value")
    await cache.get_or_compute("key", compute)
    clock.now = 9.9
    await cache.get_or_compute("key", compute)
    assert len(calls) == 1
    clock.now = 10
    await cache.get_or_compute("key", compute)
    assert len(calls) == 2 and cache.bytes == 5
    clock.now = 15
    cache.put("key", "longer", keep_ttl=True)
    clock.now = 19.9
    assert cache.get("key") == "longer"
    clock.now = 20
    assert cache.get("key") is None and cache.bytes == 0
    cache.put("key", "value", keep_ttl=True)
    assert cache.get("key") is None, "the value to replace is gone"


async def the_least_recently_used_value_is_evicted_first():
    cache = make_cache()
    for key in "abc":
        cache.put(key, key * 30)
    cache.get("a")
    cache.put("d", "d" * 30)
    assert [key for key in "abcd" if cache.get(key)] == ["a", "c", "d"] and cache.bytes == 90
    cache.put("a", "a" * 100)
    assert [key for key in "abcd" if cache.get(key)] == ["a"] and cache.bytes == 100
    cache.put("huge", "x" * 101)
    assert cache.get("huge") is None and cache.get("a"), "a value over the limit evicts nothing"
    cache.put("a", "x" * 101)
    assert cache.get("a") is None and cache.bytes == 0, "and leaves no old value behind"


async def a_value_that_is_dropped_in_flight_is_not_cached():
    cache, gate = make_cache(), asyncio.Event()
    old, _ = counting("old", gate)
    reader = asyncio.ensure_future(cache.get_or_compute("key", old))
    await asyncio.sleep(0)
    cache.drop("key")
    new, _ = counting("new")
    assert await cache.get_or_compute("key", new) == "new"
    gate.set()
    assert await reader == "old" and cache.get("key") == "new"


async def the_cache_of_the_seed_is_stale_and_ours_is_not():
    seed = {}

    async def seed_history(source, uri):
        if uri not in seed:
            seed[uri] = texts(History.of_json((await source.read(uri))[0]))
        return seed[uri]

    source, conversation = open_conversation(Histories(), "First")
    assert await seed_history(source, ONE) == texts(await conversation.history(ONE)) == ["First"]
    source.say("Second")
    assert await seed_history(source, ONE) == ["First"], "the trap"
    assert texts(await conversation.history(ONE)) == ["First", "Second"]


async def current_history_is_never_cached():
    histories, sessions = Histories(), {"ses_1": [], "ses_2": []}
    one, first = open_conversation(histories, "Of one", session="ses_1", sessions=sessions)
    two, second = open_conversation(histories, "Of two", session="ses_2", sessions=sessions)
    for _ in range(2):
        assert texts(await first.history(CURRENT)) == ["Of one"]
        assert texts(await second.history(CURRENT)) == ["Of two"]
    assert len(one.reads) == len(two.reads) == 2 and histories.cache.bytes == 0


async def two_turns_at_one_revision_are_two_entries():
    source, conversation = open_conversation(Histories(), "Hello")
    for turn in ("req_a", "req_b", "req_a"):
        history = await conversation.history(f"{ONE}?rev=1&turn={turn}")
        assert history.phase_answers == {"action": f"answer in {turn}"}, history
    assert len(source.reads) == 2


async def an_address_without_a_turn_is_not_shared_between_turns():
    histories, sessions = Histories(), {"ses_1": []}
    for uri in (f"{ONE}?rev=1", ONE):
        for turn in ("req_a", "req_b", "req_a"):
            _, conversation = open_conversation(histories, turn=turn, sessions=sessions)
            sessions["ses_1"] = [{"role": "user", "content": "Hello", "seq": 1}]
            history = await conversation.history(uri)
            assert history.phase_answers == {"action": f"answer in {turn}"}, history


async def the_answers_of_a_turn_are_told_from_those_of_earlier_turns():
    messages = [("user", None, "req_a"), ("assistant", "yield", "req_a2"), ("user", None, "req_b"),
                ("assistant", "action", "req_b2"), ("user", None, "req_c"), ("assistant", "yield", "req_b3")]
    messages = [{"role": role, "name": name, "request_id": request, "content": request, "seq": seq}
                for seq, (role, name, request) in enumerate(messages)]
    text = json.dumps({"rev": 9, "messages": messages})
    assert History.of_json(text, turn="req_b").phase_answers == {"action": "req_b2", "yield": "req_b3"}
    assert History.of_json(text).phase_answers == {"yield": "req_b3"}, "without a turn, those after the last message"


async def an_answer_that_is_shown_late_comes_to_its_place():
    def part(rev, *seqs):
        messages = [{"role": "user", "content": seq, "seq": seq} for seq in seqs]
        return History.of_json(json.dumps({"rev": rev, "messages": messages}))
    joined = part(5, 1, 2, 5).with_tail(part(7, 3, 7))
    assert texts(joined) == ["1", "2", "3", "5", "7"] and joined.rev == 7


async def an_address_of_another_session_is_refused_before_the_cache():
    histories, sessions = Histories(), {"ses_1": [], "ses_2": []}
    _, second = open_conversation(histories, "Secret", session="ses_2", sessions=sessions)
    await second.history(f"{TWO}?rev=1")
    _, first = open_conversation(histories, session="ses_1", sessions=sessions)
    for uri in (TWO, f"{TWO}?rev=1"):
        await raised(PermissionError, first.history(uri))
    # The answers of another Statehold are separate entries.
    _, forged = open_conversation(histories, "Forged", session="ses_2", url="http://evil.test/mcp")
    assert texts(await forged.history(f"{TWO}?rev=1")) == ["Forged"]
    assert texts(await second.history(f"{TWO}?rev=1")) == ["Secret"]


async def an_answer_of_another_revision_is_not_cached():
    source, conversation = open_conversation(Histories(), "Hello")

    async def wrong(uri):
        return json.dumps({"rev": 2, "messages": []}), 2
    right, source.read = source.read, wrong
    await raised(ValueError, conversation.history(f"{ONE}?rev=1"))
    source.read = right
    assert texts(await conversation.history(f"{ONE}?rev=1")) == ["Hello"]


async def a_live_read_fetches_the_tail():
    source, conversation = open_conversation(Histories(), "a", "b")
    await conversation.history(ONE)
    source.say("c")
    assert texts(await conversation.history(ONE)) == ["a", "b", "c"]
    assert texts(await conversation.history(ONE)) == ["a", "b", "c"]
    assert source.reads == [ONE, f"{ONE}?after=2", f"{ONE}?after=3"], source.reads
    assert conversation.histories.tails == 2
    del source.sessions["ses_1"][1:]  # A rewind.
    history = await conversation.history(ONE)
    assert texts(history) == ["a"] and history.rev == 1, history


async def a_tail_that_leaves_a_gap_replaces_the_copy():
    history = History.of_json('{"rev": 1, "messages": [{"role": "user", "content": "a"}]}')
    gap = {"rev": 9, "after": 1, "messages": [{"role": "user", "content": "i"}], "earlier": f"{ONE}?rev=9&before=9"}
    joined = history.with_tail(History.of_json(json.dumps(gap)))
    assert texts(joined) == ["i"] and joined.earlier == gap["earlier"]


async def a_live_copy_is_read_in_whole_when_its_ttl_ends():
    clock = Clock()
    source, conversation = open_conversation(Histories(ttl=10, clock=clock), "a")
    for clock.now in (0, 6, 12):
        await conversation.history(ONE)
    assert source.reads == [ONE, f"{ONE}?after=1", ONE], source.reads


async def waiting_live_readers_share_a_read_that_began_after_they_asked():
    source, conversation = open_conversation(Histories(), "a")
    source.gate = asyncio.Event()
    early = asyncio.ensure_future(conversation.history(ONE))
    await settle()
    source.say("b")  # The read in flight does not have it.
    late = [asyncio.ensure_future(conversation.history(ONE)) for _ in range(8)]
    await settle()
    source.gate.set()
    assert texts(await early) == ["a"]
    assert all(texts(one) == ["a", "b"] for one in await asyncio.gather(*late))
    assert len(source.reads) == 2, source.reads


async def a_failed_or_cancelled_live_read_leaves_the_others_alone():
    source, conversation = open_conversation(Histories(), "a")
    source.gate = asyncio.Event()
    readers = [asyncio.ensure_future(conversation.history(ONE)) for _ in range(3)]
    await settle()
    readers[0].cancel()
    await settle()
    source.gate.set()
    assert [texts(one) for one in await asyncio.gather(*readers[1:])] == [["a"]] * 2
    source.error = ConnectionError("down")
    await raised(ConnectionError, conversation.history(ONE))
    source.error = None
    assert texts(await conversation.history(ONE)) == ["a"]


async def inside_a_subscription_a_copy_is_served_until_a_change():
    source, conversation = open_conversation(Histories(), "a")
    await conversation.history(ONE)
    async with conversation.subscribed(ONE):
        for _ in range(3):
            assert texts(await conversation.history(ONE)) == ["a"]
        assert len(source.reads) == 2, "one read once the subscription is open, then none"
        source.say("b")
        await settle()
        for _ in range(3):
            assert texts(await conversation.history(ONE)) == ["a", "b"]
        assert len(source.reads) == 3, source.reads
        # A change that is reported while a read is in flight counts: the read may not have it.
        source.say("c")
        await settle()
        source.gate = asyncio.Event()
        reader = asyncio.ensure_future(conversation.history(ONE))
        await settle()
        source.say("d")
        await settle()
        source.gate.set()
        assert texts(await reader) == ["a", "b", "c"]
        assert texts(await conversation.history(ONE)) == ["a", "b", "c", "d"]
        source.queues[0].put_nowait("broken")
        await settle()
        source.queues.clear()
        source.say("e")  # Not reported.
        assert texts(await conversation.history(ONE)) == ["a", "b", "c", "d", "e"], "a broken stream: ask again"
    before = len(source.reads)
    await conversation.history(ONE)
    assert len(source.reads) == before + 1


async def a_read_that_began_before_a_subscription_is_not_served_inside():
    source, conversation = open_conversation(Histories(), "a")
    source.gate = asyncio.Event()
    reader = asyncio.ensure_future(conversation.history(ONE))
    await settle()
    source.say("b")  # Before the subscription, so it is not reported.
    async with conversation.subscribed(ONE):
        source.gate.set()
        assert texts(await reader) == ["a"]
        assert texts(await conversation.history(ONE)) == ["a", "b"]


async def values_and_events_are_kept(folder):
    store = LocalStore(f"{folder}/kept.db", events_max=5)
    assert await store.get("a") is None and await store.get("a", 7) == 7
    await store.put("a", {"text": "äöü\0", "n": [1, None]})
    await store.put("b", None)
    assert await store.get("a") == {"text": "äöü\0", "n": [1, None]} and await store.get("b", 7) is None
    await store.delete("a")
    assert await store.get("a") is None
    first = await store.append("one", "x", once="key-1")
    assert await store.append("one", "y", once="key-1") == first, "a repeat under the same key"
    await store.append("two", "z")
    await store.append("one", "w")
    assert [one.body for one in await store.events("one")] == ["x", "w"]
    assert [one.body for one in await store.events("one", after=first)] == ["w"]
    assert isinstance((await store.events("one", limit=1))[0], Event) and await store.events("one", limit=-1) == []
    for number in range(5):
        await store.append("one", number)
    assert [one.body for one in await store.events("one")] == [0, 1, 2, 3, 4], "the newest five"
    await store.close()
    assert os.stat(f"{folder}/kept.db").st_mode & 0o777 == 0o600
    again = LocalStore(f"{folder}/kept.db")
    assert len(await again.events("one")) == 5
    await again.close()
    with sqlite3.connect(f"{folder}/kept.db") as plain:
        assert plain.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert plain.execute("PRAGMA journal_mode").fetchall() == [("delete",)], "and it is no WAL"


async def write_for_ever(path, name):
    """What the child processes below do: each write is reported once it has returned."""
    store = LocalStore(path, lock_seconds=30)
    number = 0
    while True:
        number += 1
        await store.put(name, number)
        await store.append("log", [name, number], once=f"{name}-{number}")
        print(number, flush=True)
        if name == "exits" and number == 40:
            os._exit(9)


async def acknowledged_writes_survive_the_death_of_their_process(folder):
    path = f"{folder}/killed.db"
    names = ["exits", "killed", "also-killed"]
    children = {name: subprocess.Popen([sys.executable, __file__, "write", path, name],
                                       stdout=subprocess.PIPE, text=True) for name in names}
    told = {name: [] for name in names}
    for name in names:
        for line in children[name].stdout:
            told[name].append(int(line))
            if len(told[name]) == 40:
                break
    for name in names[1:]:
        children[name].kill()
    for name, child in children.items():
        told[name] += [int(line) for line in child.communicate()[0].split()]
        assert child.returncode == (9 if name == "exits" else -signal.SIGKILL)
    store, found, after = LocalStore(path), {name: [] for name in names}, 0
    while page := await store.events("log", after=after, limit=50):
        for event in page:
            found[event.body[0]].append(event.body[1])
        assert len(page) <= 50 and all(one.id > after for one in page)
        after = page[-1].id
    for name in names:
        last = max(told[name])
        assert found[name] in (list(range(1, last + 1)), list(range(1, last + 2))), (name, last, found[name][-3:])
        assert last <= await store.get(name) <= len(found[name]) + 1
    await store.put("after", 1)
    await store.close()
    with sqlite3.connect(path) as plain:
        assert plain.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


async def a_locked_file_is_waited_for_without_stopping_the_event_loop(folder):
    path = f"{folder}/locked.db"
    store = LocalStore(path, lock_seconds=0.5)
    await store.put("a", 1)
    # In a process of its own: locks of one process on a file do not exclude each other.
    other = subprocess.Popen([sys.executable, __file__, "lock", path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    other.stdout.readline()
    ticks, write = [time.monotonic()], asyncio.ensure_future(store.put("a", 2))
    while not write.done():
        await asyncio.sleep(0.01)
        ticks.append(time.monotonic())
    assert "locked" in str(await raised(ValueError, write)) and ticks[-1] - ticks[0] >= 0.5
    assert max(b - a for a, b in zip(ticks, ticks[1:])) < 0.25, "the event loop stood still"
    assert await store.get("a") == 1, "reading works meanwhile"
    write = asyncio.ensure_future(store.put("a", 3))
    await asyncio.sleep(0.05)
    other.communicate(b"\n")
    await write
    assert await store.get("a") == 3
    await store.close()


def lock(path):
    """Holds the lock for writers until a line arrives."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    print("locked", flush=True)
    sys.stdin.readline()


CHECKS = [
    sixty_four_concurrent_readers_cause_one_fetch,
    a_failed_fetch_is_not_cached_and_each_waiter_tries_once_more,
    a_cancelled_waiter_cancels_no_other,
    the_last_cancelled_waiter_ends_the_fetch,
    a_value_ends_with_its_ttl,
    the_least_recently_used_value_is_evicted_first,
    a_value_that_is_dropped_in_flight_is_not_cached,
    the_cache_of_the_seed_is_stale_and_ours_is_not,
    current_history_is_never_cached,
    two_turns_at_one_revision_are_two_entries,
    an_address_without_a_turn_is_not_shared_between_turns,
    the_answers_of_a_turn_are_told_from_those_of_earlier_turns,
    an_answer_that_is_shown_late_comes_to_its_place,
    an_address_of_another_session_is_refused_before_the_cache,
    an_answer_of_another_revision_is_not_cached,
    a_live_read_fetches_the_tail,
    a_tail_that_leaves_a_gap_replaces_the_copy,
    a_live_copy_is_read_in_whole_when_its_ttl_ends,
    waiting_live_readers_share_a_read_that_began_after_they_asked,
    a_failed_or_cancelled_live_read_leaves_the_others_alone,
    inside_a_subscription_a_copy_is_served_until_a_change,
    a_read_that_began_before_a_subscription_is_not_served_inside,
    values_and_events_are_kept,
    acknowledged_writes_survive_the_death_of_their_process,
    a_locked_file_is_waited_for_without_stopping_the_event_loop,
]


def main():
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for check in CHECKS:
            name = check.__name__.replace("_", " ")
            arguments = [folder] if check.__code__.co_argcount else []
            try:
                asyncio.run(asyncio.wait_for(check(*arguments), 120))
                print("ok  ", name, flush=True)
            except Exception:
                failed += 1
                print("FAIL", name, flush=True)
                traceback.print_exc()
    print(f"{len(CHECKS) - failed} passed, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["write"]:
        asyncio.run(write_for_ever(*sys.argv[2:]))
    elif sys.argv[1:2] == ["lock"]:
        lock(*sys.argv[2:])
    else:
        main()
