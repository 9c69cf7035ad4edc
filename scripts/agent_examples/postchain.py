"""A pipeline of phases that read the conversation from Statehold: the example, under kills and under load."""

import collections
import concurrent.futures
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import urllib.request

from rig import FOLDER, PROGRAM, Program, Server, example, free_port, lines, say, start, until

PIPELINES = 64
TOOLS = ["respond", "get_enriched_context", "find_goal", "record_connections", "choose_context", "give_answer"]
QUESTION, ANSWER = "I want to visit Porto.", "Goal: visit Porto.\nPorto has 20 degrees in May."

# phases.py with a log of its calls and reads: logged_phases.py PORT [TOOL]. It kills itself between the work of TOOL
# and the answer.
LOGGED_PHASES = '''
import hashlib
import json
import os
import signal
import sys

sys.path.insert(0, os.getcwd())
import phase_cache
import phases

port, deadly = int(sys.argv[1]), sys.argv[2:]
log = open(os.environ["PHASE_LOG"], "a", buffering=1)
addresses = {}  # Of each turn: the pinned addresses that its phases have read.
read, call_tool = phase_cache.Statehold.read, phases.Phase.call_tool


def note(**fields):
    log.write(json.dumps(fields) + "\\n")


async def logged_read(self, uri):
    """Reads the earlier addresses of the turn again, too, with the token of this phase."""
    found = await read(self, uri)
    query = phase_cache.query_of(uri)
    if "rev" in query and "after" not in query:
        known = addresses.setdefault(query["turn"], [])
        note(uri=uri, request=self.request, digest=hashlib.sha256(found[0].encode()).hexdigest())
        for earlier in known:
            text, _ = await read(self, earlier)
            note(uri=earlier, request=self.request, digest=hashlib.sha256(text.encode()).hexdigest())
        known.append(uri)
    return found


async def logged_call(self, name, arguments, context=None):
    meta = dict(context.request_context.meta)
    has_token = meta.get("statehold/read_token", "").startswith("sht_")
    note(tool=name, session=meta["statehold/session"], key=meta["statehold/execution_key"], has_token=has_token)
    result = await call_tool(self, name, arguments, context)
    if name in deadly:
        os.kill(os.getpid(), signal.SIGKILL)
    return result


phase_cache.Statehold.read, phases.Phase.call_tool = logged_read, logged_call
phases.serve(port, list(phases.PHASES))
'''


class Choir:
    """The server and its phases."""

    # The tools of the phases that log their calls.
    over_http = [tool for tool in TOOLS if tool != "find_goal"]

    def __init__(self):
        self.data, self.log = os.path.join(FOLDER, "phases"), os.path.join(FOLDER, "phases.log")
        os.mkdir(self.data)
        os.environ |= {"PHASE_DATA": self.data, "PHASE_LOG": self.log}
        program = os.path.join(FOLDER, "logged_phases.py")
        with open(program, "w") as file:
            file.write(LOGGED_PHASES)
        self.phases = Program("postchain", program)
        self.server = Server(
            "choir", open(example("postchain", "statehold.toml")).read(), cwd=example("postchain"),
            STATEHOLD__LOG__LEVEL="debug",
            # The phase on standard input and output is started as `python3`.
            PATH=os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"],
            **phase_urls(self.phases.port))

    def answer(self, text, session, **more):
        return self.server.chat("choir", text, session, **more)[0]

    def ask(self, session):
        """A request of two cycles, without waiting for its answer."""
        asked = {"input": f"{QUESTION} Think again."}
        return self.server.call("client", f"/v1/sessions/{session}/requests", asked)["id"]

    def notes(self):
        return [json.loads(line) for line in lines(self.log)]

    def calls(self, session):
        """The tools that the phases over HTTP were called with, in order, and the execution key of each."""
        return [(one["tool"], one["key"]) for one in self.notes() if one.get("session") == session]

    def observations(self, session):
        with sqlite3.connect(os.path.join(self.data, "observation.db")) as store:
            return [json.loads(body) for body, in store.execute(
                "SELECT body FROM event WHERE stream = ? ORDER BY id", (session,))]

    def transcript(self, session):
        return self.server.call("client", f"/v1/sessions/{session}/messages")

    def trace(self, session):
        page = self.server.call("admin", f"/v1/sessions/{session}/messages?view=trace&limit=200")
        assert not page.get("next_cursor")
        return page["messages"]

    def sessions(self):
        found, cursor = [], ""
        while cursor is not None:
            page = self.server.call("admin", f"/v1/sessions?limit=200{cursor}")
            found += [one["id"] for one in page["sessions"]]
            cursor = f"&cursor={page['next_cursor']}" if page.get("next_cursor") else None
        return found


def phase_urls(port, *names):
    names = names or ("action", "experience", "observation", "understanding", "yield")
    return {f"STATEHOLD__TOOL_SERVERS__{name.upper()}__URL": f"http://127.0.0.1:{port}/{name}/mcp" for name in names}


def check_readme(choir, how=""):
    printed, rest = choir.server.play("postchain")
    told = rest.split("```\n")[1]
    assert printed.strip() == told.strip(), printed
    say(f"postchain: {how}two messages print what the README says, the second after a second cycle")


def start_tests():
    tests = os.path.abspath(example("postchain", "test_phase_cache.py"))
    return start(sys.executable, tests, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=FOLDER)


def check_tests(tests):
    printed = tests.communicate(timeout=60)[0]
    assert tests.returncode == 0, printed
    say(f"postchain: the tests of its cache and its store: {printed.splitlines()[-1]}")


def check_hidden(choir):
    session = choir.server.session("choir")
    for stream in (False, True):
        assert choir.answer(QUESTION, session, stream=stream) == ANSWER
    told = [(one["role"], one["content"]) for one in choir.transcript(session)["messages"]]
    assert told == [("user", QUESTION), ("assistant", ANSWER)] * 2, told
    for shown in (json.dumps(choir.transcript(session)), feed(choir.server, session)):
        assert json.dumps(ANSWER) in shown
        for hidden in ("First response to", "observations, now", "Keep: ", "conversation://", *TOOLS):
            assert hidden not in shown, (hidden, shown)
    trace = json.dumps(choir.trace(session))
    assert "First response to" in trace and "Keep: intention" in trace
    say("postchain: users see two answers, and no answer of a phase, neither in the transcript nor in the feed")


def feed(server, session):
    """The feed of a session, from its first record."""
    revision = server.call("client", f"/v1/sessions/{session}")["revision"]
    headers = {"Authorization": f"Bearer {server.keys['client']}", "Last-Event-ID": "0"}
    sent, told = urllib.request.Request(f"{server.url}/v1/sessions/{session}/events", headers=headers), ""
    with urllib.request.urlopen(sent, timeout=30) as events:
        while f"id: {revision}\n" not in told:
            told += events.readline().decode()
        return told + events.readline().decode() + events.readline().decode()


def check_kills(choir):
    """The observation is the one effect: the fourth of the calls and the tenth."""
    points = [f"{step}:{when}:4" for step in ("prepare", "tool_call", "tool_result") for when in ("before", "after")]
    points += ["tool_result:before:3", "answer:after:5", "tool_result:before:10"]
    for point in points:
        session, request = ask_doomed(choir, point)
        choir.server.completed(request)
        step, when, at = point.split(":")
        # The work of this call was lost before it was recorded.
        check_turn(choir, session, TOOLS[(int(at) - 1) % 6] if (step, when) == ("tool_result", "before") else None)
    say(f"postchain: killed at {len(points)} points, a turn completes, and each phase has one effect per cycle")

    session = choir.server.session("choir")
    choir.phases.kill()
    choir.phases.start("record_connections")
    request = choir.ask(session)
    assert choir.phases.process.wait(30) == -signal.SIGKILL
    choir.phases.start()
    choir.server.completed(request)
    check_turn(choir, session, "record_connections")
    say("postchain: a call whose phase was killed after its work is made again, and nothing is recorded twice")


def ask_doomed(choir, point):
    """Asks a server that kills itself at a step, and starts it again: the session and the request."""
    server = choir.server
    server.kill()
    server.env["STATEHOLD_DIE_AT"] = point
    server.start()
    session = server.session("choir")
    request = choir.ask(session)
    assert server.process.wait(30) == -signal.SIGKILL, point
    del server.env["STATEHOLD_DIE_AT"]
    server.start()
    return session, request


def check_turn(choir, session, repeated=None):
    """A turn of two cycles has the effects of one without kills, and only a call that was cut off was repeated."""
    (_, answer) = choir.transcript(session)["messages"]
    assert answer["content"] == f"{ANSWER}\n2 observations, now of: Porto.", answer
    assert choir.observations(session) == [["Porto"]] * 2
    results = [one["name"] for one in choir.trace(session) if one["kind"] == "tool_result"]
    assert results == TOOLS * 2, results
    calls = choir.calls(session)
    assert len(set(calls)) == 2 * len(choir.over_http), calls
    expected = collections.Counter(2 * choir.over_http + [tool for tool in choir.over_http if tool == repeated])
    assert collections.Counter(tool for tool, _ in calls) == expected, (repeated, calls)


def check_crowd(choir):
    """Each pipeline asks twice, so that a stale copy of the first turn would be noticed."""
    words = [f"{chr(97 + at % 26)}{at}x" for at in range(PIPELINES)]
    sessions = [choir.server.session("choir") for _ in words]

    def ask(word, session):
        for wish in (f"first-{word}", f"second-{word}"):
            answer = choir.answer(f"I want to see {wish}.", session)
            assert answer == f"Goal: see {wish}.\nNothing is known yet.", (wish, answer)

    with concurrent.futures.ThreadPoolExecutor(PIPELINES) as pool:
        list(pool.map(ask, words, sessions))
    for word, session in zip(words, sessions):
        trace = json.dumps(choir.trace(session))
        seen = set(re.findall(r"(?:first|second)-(\w+)", trace))
        assert seen == {word}, (word, seen)
        assert set(re.findall(r"ses_\w+", trace)) == {session}
        assert choir.observations(session) == [[], []]
    say(f"postchain: {PIPELINES} pipelines at once, twice each, and every trace has its own word and no other")


def check_pinned(choir):
    digests, readers = collections.defaultdict(list), collections.defaultdict(set)
    for note in choir.notes():
        if uri := note.get("uri"):
            digests[uri].append(note["digest"])
            readers[uri].add(note["request"])
    again = {uri: found for uri, found in digests.items() if len(found) > 1}
    assert len(again) > PIPELINES and max(map(len, readers.values())) > 2, len(again)
    wrong = [uri for uri, found in again.items() if len(set(found)) > 1]
    assert not wrong, wrong
    reads = sum(map(len, again.values()))
    say(f"postchain: {len(again)} pinned addresses were read {reads} times, and each had the same bytes every time")


def check_rust(choir):
    """The phase in Rust instead of the one in Python, on the file of the latter."""
    port, beside = free_port(), os.path.join(choir.data, "rust.log")
    program = os.path.join(os.path.dirname(PROGRAM), "examples", "postchain_phase")
    with open(beside, "ab") as log:
        phase = start(program, str(port), os.path.join(choir.data, "experience.db"), stdout=log, stderr=log)
    until(lambda: is_open(port))
    choir.server.env |= phase_urls(port, "experience")
    choir.over_http = [tool for tool in choir.over_http if tool != "get_enriched_context"]
    session, request = ask_doomed(choir, "tool_result:before:2")
    choir.server.completed(request)
    check_turn(choir, session)
    # The call that was made again was answered from the cache, and the second cycle is another revision.
    assert lines(beside) == [f"cache: {hits} hits, {misses} misses" for hits, misses in ((0, 1), (1, 1), (1, 2))]
    check_readme(choir, "with a phase in Rust ")
    phase.kill()


def is_open(port):
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


def check_tokens(choir):
    given = sum(note.get("has_token", False) for note in choir.notes())
    assert given > 2 * PIPELINES, given
    traces = [choir.trace(session) for session in choir.sessions()]
    assert json.dumps(traces).count("conversation_history_uri") > given, "the calls are recorded"
    choir.server.stop()
    files = [choir.log, choir.server.log]
    files += [os.path.join(folder, name) for root in (choir.server.data, choir.data)
              for folder, _, names in os.walk(root) for name in names]
    told = [json.dumps(traces).encode(), *choir.server.heard, *(open(path, "rb").read() for path in files)]
    assert not any(b"sht_" in one for one in told)
    say(f"postchain: none of {given} tokens is in a file, an answer, the log or a trace")


def check():
    choir = Choir()
    check_readme(choir)
    tests = start_tests()
    check_hidden(choir)
    check_kills(choir)
    check_tests(tests)
    check_crowd(choir)
    check_rust(choir)
    check_pinned(choir)
    check_tokens(choir)
