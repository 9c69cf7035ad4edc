"""Lets clients of several libraries talk to the server: python clients STATEHOLD [NAME…]

Each client runs in a process of its own, with nothing but its growing list of messages, and plays the same
scenario in each of its modes. It prints a table, and what went wrong.
"""

import json
import os
import select
import shutil
import subprocess
import sys
import threading
import time

import rig
import upstream
from rig import Server, until

HERE = os.path.dirname(os.path.abspath(__file__))
PYTHON, OLDER_PYTHON, NODE = [os.environ[name] for name in ("CLIENTS_PYTHON", "OLDER_PYTHON", "CLIENTS_NODE")]
# Each program, its name in the table, what runs it, and its modes.
CLIENTS = [
    ("openai_python.py", "openai-python", PYTHON, ["whole", "stream", "raw"]),
    ("openai_node.mjs", "openai-node", NODE, ["whole", "stream", "raw"]),
    ("langchain_python.py", "LangChain", PYTHON, ["whole", "stream", "graph", "graph stream"]),
    ("ai_sdk.mjs", "Vercel AI SDK", NODE, ["generateText", "stream"]),
    ("agents_sdk.py", "OpenAI Agents SDK", PYTHON, ["whole", "stream"]),
    ("pydantic_ai_python.py", "pydantic-ai", PYTHON, ["whole", "stream"]),
    ("litellm_python.py", "LiteLLM", OLDER_PYTHON, ["whole", "stream", "router"]),
    ("litellm_proxy.py", "LiteLLM proxy", OLDER_PYTHON, ["whole"]),
    ("llama_index_python.py", "LlamaIndex", OLDER_PYTHON, ["whole", "stream"]),
]
# Those that make a failed call again by themselves.
RETRYING = {"Vercel AI SDK, generateText", "LiteLLM, router", "LiteLLM proxy, whole", "LlamaIndex, whole"}
CONFIG = """
[models.main]
base_url = "http://127.0.0.1:{model}/v1"
model = "scripted"
retries = 0

[tool_servers.books]
url = "http://127.0.0.1:{tools}/mcp"

[agents.desk]
kind = "router"
agents = ["assistant", "weather"]
rules = [{{ pattern = "weather", agent = "weather" }}]
otherwise = "assistant"

[agents.weather]
description = "Asks for the place."

[agents.assistant]
kind = "llm"
model = "main"
prompt = "You keep the books."
tool_servers = ["books"]
[agents.assistant.tools.pay]
approval = "always"
effect = "write"
[agents.assistant.tools.write_down]
approval = "never"
effect = "write"
"""
PATIENCE_SECONDS = 90
# More attempts than any failure here lasts.
ATTEMPTS = 4


class Client:
    """A client in a process of its own. It has one call under way at a time."""

    def __init__(self, program, runs, url):
        path = beside_packages(program) if runs == NODE else os.path.join(HERE, program)
        env = os.environ | {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "NO_PROXY": "127.0.0.1"}
        with open(os.path.join(rig.FOLDER, f"{program}.log"), "wb") as log:
            self.process = rig.start(
                runs, path, f"{url}/openai/v1", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=env)
        self.lock = threading.Lock()

    def call(self, **call):
        with self.lock:
            self.process.stdin.write(json.dumps(call).encode() + b"\n")
            self.process.stdin.flush()
            assert select.select([self.process.stdout], [], [], PATIENCE_SECONDS)[0], f"no answer to {call}"
            line = self.process.stdout.readline()
        assert line, "the client has ended"
        return json.loads(line)


def beside_packages(program):
    """A copy of a program of Node, which looks for packages from where it lies."""
    folder = os.path.join(rig.FOLDER, "node")
    if not os.path.exists(folder):
        os.mkdir(folder)
        os.symlink(os.environ["CLIENTS_MODULES"], os.path.join(folder, "node_modules"))
        shutil.copy(os.path.join(HERE, "link.mjs"), folder)
    return shutil.copy(os.path.join(HERE, program), folder)


class Row:
    """A client in one of its modes: what it does, and what came of it."""

    def __init__(self, server, client, name, mode):
        self.server, self.client, self.mode = server, client, mode
        self.name = f"{name}, {mode}"
        self.user = self.name.lower().replace(", ", ".").replace(" ", "-")
        made = server.call("admin", "/v1/keys", {"name": self.user, "roles": ["client"], "user": self.user})
        self.key, self.results, self.wrong = made["key"], {}, []

    def call(self, text, talk="talk", model="desk", key=None):
        return self.client.call(
            mode=self.mode, talk=f"{self.user} {talk}", text=text, model=model, key=key or self.key)

    def ask(self, text, talk="talk"):
        said = self.call(text, talk)
        assert "text" in said, (text, said)
        return said["text"]

    def insist(self, text, talk):
        """Asks until there is an answer, as people do, and as some clients do by themselves."""
        for _ in range(ATTEMPTS):
            said = self.call(text, talk)
            if "text" in said:
                return said["text"]
        raise AssertionError((text, said))

    def sessions(self):
        listed = self.server.call("admin", f"/v1/sessions?user={self.user}&limit=50")["sessions"]
        return [session["id"] for session in listed]

    def rows(self, tool):
        return upstream.ROWS.count((tool, self.name))

    def play(self, *cases):
        for case in cases:
            title = case.__doc__
            try:
                case(self)
                self.results[title] = "ok"
            except Exception as error:
                self.results[title] = "WRONG"
                self.wrong.append(f"{self.name}: {title}: {type(error).__name__} {error}")


def memory(row):
    "memory"
    row.ask("I am Ada.")
    assert (said := row.ask("Who am I?")) == "You are Ada.", said
    assert len(row.sessions()) == 1, "one talk, one session"


def question(row):
    "question"
    said = row.ask("What is the weather in Springfield?")
    assert "Which Springfield?" in said, said
    assert (said := row.ask("Illinois")) == "It is sunny in Illinois.", said


def pause(row):
    "pause"
    said = row.ask(f"Pay 40 to {row.name}")
    assert "waits for a decision" in said and row.rows("pay") == 0, said


def approval(row):
    "approval"
    [session] = row.sessions()
    holds = row.server.call("approver", "/v1/holds?limit=200")["holds"]
    [hold] = [hold for hold in holds if hold["session_id"] == session]
    row.server.decide(row.server.call("approver", f"/v1/holds/{hold['id']}"))
    until(lambda: row.server.call("admin", f"/v1/sessions/{session}")["status"] == "idle")
    said = row.ask("Thank you")
    assert said == f"Paid 40 to {row.name}.\n\nYou are welcome.", said
    assert (said := row.ask("Who am I?")) == "You are Ada.", said
    assert row.sessions() == [session] and row.rows("pay") == 1, "one talk, one session, one payment"


def unknown_model(row):
    "no model"
    said = row.call("Hello", "no model", model="nobody")
    assert said.get("status") == 404, said


def wrong_key(row):
    "wrong key"
    said = row.call("Hello", "wrong key", key="shk_wrong")
    assert said.get("status") == 401, said


def busy(row):
    "429"
    said = row.call(f"Be busy for {row.name}", "busy")
    assert said.get("status") == 429, said
    text = f"Be busy once for {row.name}"
    assert row.insist(text, "busy once") == "Noted."
    assert upstream.CALLS[text, "user"] == 2, upstream.CALLS[text, "user"]


def cut_stream(row):
    "cut"
    text = f"Tell a story to {row.name}"
    said = row.call(text, "cut")
    assert said.get("text") in (None, upstream.STORY), said
    assert row.insist(text, "cut") == upstream.STORY
    assert row.ask("Thank you", "cut") == "You are welcome."


def one_row(row):
    "one row"
    text = f"Write down {row.name}"
    said = row.call(text, "write")
    assert row.name not in RETRYING or "text" in said, said
    if "text" not in said:
        said = {"text": row.insist(text, "write")}
    assert said["text"] == "One line is written.", said
    assert row.rows("write_down") == 1, f"{row.rows('write_down')} rows"
    assert upstream.CALLS[text, "tool"] == upstream.DEATHS + 1, upstream.CALLS[text, "tool"]


BEFORE, AFTER = [memory, question, pause], [approval, unknown_model, wrong_key, busy, cut_stream, one_row]


def play_all(rows, cases):
    """All at once: clients wait for most of the time."""
    threads = [threading.Thread(target=row.play, args=cases) for row in rows]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def check():
    began = time.monotonic()
    server = Server("clients", CONFIG.format(model=upstream.model(), tools=upstream.tools()))
    is_over = threading.Event()
    worker = threading.Thread(target=upstream.ask_where, args=[server, is_over])
    worker.start()
    try:
        rows = []
        for program, name, runs, modes in CLIENTS:
            if name in (sys.argv[2:] or [name]):
                client = Client(program, runs, server.url)
                rows += [Row(server, client, name, mode) for mode in modes]
        assert rows, "no such client"
        play_all(rows, BEFORE)
        server.kill()
        server.start()
        play_all(rows, AFTER)
    finally:
        is_over.set()
        worker.join()
    print_table(rows)
    wrong = [line for row in rows for line in row.wrong]
    assert not wrong, "\n".join(["", *wrong])
    server.stop()
    rig.say(f"{len(rows)} clients and modes in {time.monotonic() - began:.0f} s")


def print_table(rows):
    titles = [case.__doc__ for case in BEFORE + AFTER]
    print(f"{'':28}", *(f"{title:9}" for title in titles))
    for row in rows:
        print(f"{row.name:28}", *(f"{row.results[title]:9}" for title in titles))


rig.play(check)
