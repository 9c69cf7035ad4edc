"""What all checks of the examples with agents use: servers that can be killed, programs beside them,
and OpenAI's client."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import openai

EXAMPLES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "examples")
STARTED, SAID = [], []


def say(what):
    SAID.append(what)
    print("ok  ", what, flush=True)


def until(find, seconds=40):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := find():
            return found
        time.sleep(0.05)
    raise AssertionError("waited in vain")


def fetch(url, body=None, key=None):
    headers = {"Content-Type": "application/json"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    data = None if body is None else json.dumps(body).encode()
    sent = urllib.request.Request(url, data, headers)
    with urllib.request.urlopen(sent, timeout=90) as answer:
        return json.load(answer)


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


class Program:
    """A program of an example, as its README starts it, except for the port."""

    def __init__(self, folder, name, *arguments, **env):
        self.folder, self.name = os.path.join(EXAMPLES, folder), name
        self.arguments, self.env = [str(one) for one in arguments], env
        self.port = free_port()
        STARTED.append(self)
        self.start()

    def start(self, *others):
        asked = [sys.executable, self.name, str(self.port), *(others or self.arguments)]
        self.process = subprocess.Popen(asked, cwd=self.folder, env=os.environ | self.env)
        until(self.is_there)

    def is_there(self):
        assert self.process.poll() is None, f"{self.name} has ended"
        with socket.socket() as tried:
            return tried.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self):
        self.process.kill()
        self.process.wait()

    def heard(self):
        """Everything it was sent."""
        return fetch(f"http://127.0.0.1:{self.port}/heard")


class Server:
    """The real program with keys, on the configuration of an example. Its address stays when it is
    killed."""

    def __init__(self, program, folder, example, **env):
        self.program, self.folder, self.env = program, folder, env
        os.mkdir(folder)
        self.data, self.log = os.path.join(folder, "data"), os.path.join(folder, "server.log")
        self.config = os.path.join(EXAMPLES, example, "statehold.toml")
        self.run("config", "validate", "--config", self.config)
        self.keys = {role: self.make_key(role) for role in ("client", "worker", "approver", "admin")}
        self.port = free_port()
        STARTED.append(self)
        self.start()
        self.client = openai.OpenAI(base_url=f"{self.url}/openai/v1", api_key=self.keys["client"], timeout=60, max_retries=6)

    def run(self, *asked, key=None):
        """The command line. With a key, as a client of the running server."""
        env = os.environ | self.env
        if key:
            env |= {"STATEHOLD_URL": self.url, "STATEHOLD_TOKEN": self.keys[key], "NO_COLOR": "1"}
        done = subprocess.run([self.program, *asked], env=env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, (asked, done.stdout, done.stderr)
        return done.stdout

    def make_key(self, role):
        return self.run("token", "create", "--role", role, "--name", role, "--data", self.data).strip()

    def start(self):
        asked = ["serve", "--data", self.data, "--listen", f"127.0.0.1:{self.port}", "--config", self.config]
        log = open(self.log, "ab")
        self.process = subprocess.Popen([self.program, *asked], stdout=log, stderr=log, env=os.environ | self.env)
        self.url = f"http://127.0.0.1:{self.port}"
        until(self.answers)

    def answers(self):
        try:
            return urllib.request.urlopen(f"{self.url}/healthz", timeout=5).status == 200
        except OSError:
            assert self.process.poll() is None, open(self.log).read()[-2000:]
            return False

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self):
        """Ends it in order, and looks at what it leaves behind."""
        self.process.terminate()
        assert self.process.wait(30) == 0
        self.run("check", "--data", self.data)

    def call(self, role, path, body=None):
        return fetch(self.url + path, body, self.keys[role])

    def chat(self, model, text, session, stream=False, history=(), **headers):
        """One chat call: what was said, and what else the answer says."""
        said = self.client.chat.completions.create(
            model=model, messages=[*history, {"role": "user", "content": text}], stream=stream,
            extra_headers={"x-statehold-session": session} | headers if session else headers)
        if not stream:
            return said.choices[0].message.content, said.statehold
        pieces, last = [], None
        for chunk in said:
            pieces += [choice.delta.content or "" for choice in chunk.choices]
            last = getattr(chunk, "statehold", None) or last
        return "".join(pieces), last

    def play(self, example):
        """The Python of a README, at this server. Gives what it prints, and what the README says."""
        text = open(os.path.join(EXAMPLES, example, "README.md")).read()
        code, rest = text.split("```python\n")[1].split("```\n", 1)
        code = code.replace("http://127.0.0.1:7717", self.url).replace('"any"', repr(self.keys["client"]))
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout, rest

    def approve(self, hold_id):
        hold = self.call("approver", f"/v1/holds/{hold_id}")
        body = {"decision": "approve", "digest": hold["action"]["digest"]}
        return self.call("approver", f"/v1/holds/{hold_id}/decision", body)


def end_all():
    for one in STARTED:
        one.process.kill()
        one.process.wait()
