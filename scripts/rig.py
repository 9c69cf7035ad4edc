"""What all checks share: servers that can be killed, programs beside them, and what was seen to work.

Every check is run with the program as its first argument. It fails with the end of the last server's log.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

import openai

SCRIPTS = os.path.dirname(os.path.abspath(__file__))
EXAMPLES = os.path.join(SCRIPTS, "..", "examples")
PROGRAM = os.path.abspath(sys.argv[1])
TEMPORARY = tempfile.TemporaryDirectory()
FOLDER = TEMPORARY.name
STARTED, SERVERS, SAID = [], [], []


def play(*checks):
    """Runs checks, counts what they say, and ends what they have started."""
    try:
        for check in checks:
            check()
        print(f"{len(SAID)} passed, 0 failed")
    except BaseException:
        for path in (SERVERS[-1].log, SERVERS[-1].beside) if SERVERS else ():
            print(path, *lines(path)[-15:], sep="\n  ", flush=True)
        raise
    finally:
        for process in STARTED:
            process.kill()
            process.wait()


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


def refused(kind, call):
    """The error of a kind that a call ends with. None at all is one, too."""
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


def example(*names):
    return os.path.join(EXAMPLES, *names)


def lines(path):
    return open(path).read().splitlines() if os.path.exists(path) else []


def start(*asked, **options):
    process = subprocess.Popen(asked, **options)
    STARTED.append(process)
    return process


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


class Program:
    """A program of an example that listens, as its README starts it, except for the port."""

    def __init__(self, folder, name, *arguments):
        self.folder, self.name, self.arguments = example(folder), name, arguments
        self.port = free_port()
        self.start()

    def start(self, *others):
        asked = [self.name, str(self.port), *(others or self.arguments)]
        self.process = start(sys.executable, *asked, cwd=self.folder)
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
        return json.load(urllib.request.urlopen(f"http://127.0.0.1:{self.port}/heard", timeout=30))


class Server:
    """The program with a key for each role, on a directory of its own. Its address stays when it is killed.
    With `dev`, which are flags, it is a development server, with keys only if it is told so. It may be told where
    to run."""

    def __init__(self, name, config="", dev=None, has_keys=None, cwd=None, **env):
        self.folder = os.path.join(FOLDER, name)
        os.mkdir(self.folder)
        self.data, self.log, self.beside, self.config = [
            os.path.join(self.folder, name) for name in ("data", "server.log", "beside.log", "statehold.toml")]
        with open(self.config, "w") as file:
            file.write(config)
        self.dev, self.cwd, self.env, self.port, self.heard, self.keys = dev, cwd, env, 0, [], {}
        self.run("config", "validate", "--config", self.config)
        has_keys = dev is None if has_keys is None else has_keys
        for role in ("client", "worker", "approver", "admin") if has_keys else ():
            made = self.run("token", "create", "--role", role, "--name", role, "--data", self.data)
            self.keys[role] = made.strip()
        SERVERS.append(self)
        self.start()

    def run(self, *asked, role=None):
        """The command line. With a role, as a client of the running server."""
        env = os.environ | self.env
        if role:
            env |= {"STATEHOLD_URL": self.url, "STATEHOLD_TOKEN": self.keys[role], "NO_COLOR": "1"}
        done = subprocess.run([PROGRAM, *asked], env=env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, (asked, done.stdout, done.stderr)
        return done.stdout

    def start(self):
        self.run_file = os.path.join(self.data, "statehold.run")
        if os.path.exists(self.run_file):
            os.remove(self.run_file)
        mode = ["serve", "--listen", f"127.0.0.1:{self.port}"]
        if self.dev is not None:
            mode = ["dev", "--no-open", "--port", str(self.port), *self.dev]
        if not self.cwd:
            mode += ["--config", self.config]
        with open(self.log, "ab") as log:
            env = os.environ | self.env
            self.process = start(PROGRAM, *mode, "--data", self.data, stdout=log, stderr=log, cwd=self.cwd, env=env)
        self.url = until(self.address)
        self.port = self.url.rsplit(":", 1)[1]
        self.client = openai.OpenAI(
            base_url=f"{self.url}/openai/v1", api_key=self.keys.get("client", "any"), timeout=60, max_retries=0)

    def address(self):
        """Where it is, as soon as it is ready."""
        assert self.process.poll() is None, "the server has ended"
        try:
            url = json.load(open(self.run_file))["url"]
            return urllib.request.urlopen(f"{url}/readyz", timeout=5).status == 200 and url
        except OSError:
            return None

    def kill(self):
        assert self.process.poll() is None, "the server has ended before it was killed"
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self):
        """Ends it in order, and looks at what it leaves behind."""
        self.process.terminate()
        assert self.process.wait(30) == 0, "it did not end well"
        self.run("check", "--data", self.data)

    def call(self, role, path, body=None, method=None, **headers):
        headers |= {"Content-Type": "application/json"}
        if role in self.keys:
            headers["Authorization"] = f"Bearer {self.keys[role]}"
        data = None if body is None else json.dumps(body).encode()
        sent = urllib.request.Request(self.url + path, data, headers, method=method)
        with urllib.request.urlopen(sent, timeout=90) as answer:
            text = answer.read()
            self.note(path, answer, text)
            return json.loads(text) if text else None

    def note(self, path, answer, text):
        """Remembers what was answered, except to claims: those alone may carry credentials."""
        if path != "/v1/work/claim":
            self.heard.append(str(answer.headers).encode() + text)

    def refused(self, role, path, body=None, method=None, **headers):
        problem = refused(urllib.error.HTTPError, lambda: self.call(role, path, body, method, **headers))
        text = problem.read()
        self.note(path, problem, text)
        return json.loads(text)

    def session(self, agent, **more):
        """A new session of ann."""
        return self.call("client", "/v1/sessions", {"app": "demo", "user": "ann", "agent": agent, **more})["id"]

    def decide(self, hold, decision="approve", **more):
        body = {"decision": decision, **more}
        if "action" in hold and decision in ("approve", "edit"):
            body["digest"] = hold["action"]["digest"]
        return self.call("approver", f"/v1/holds/{hold['id']}/decision", body)

    def approve(self, hold_id):
        return self.decide(self.call("approver", f"/v1/holds/{hold_id}"))

    def completed(self, request_id):
        return until(lambda: self.call("client", f"/v1/requests/{request_id}")["status"] == "completed")

    def chat(self, model, text, session, stream=False, history=(), retries=0, **headers):
        """One chat call: what was said, and what else the answer says."""
        client = self.client.with_options(max_retries=retries)
        said = client.chat.completions.create(
            model=model, messages=[*history, {"role": "user", "content": text}], stream=stream,
            extra_headers={"x-statehold-session": session} | headers if session else headers)
        if not stream:
            return said.choices[0].message.content, said.statehold
        text, chunks = read(said)
        return text, [chunk.statehold for chunk in chunks if getattr(chunk, "statehold", None)][-1]

    def example(self, role, *asked):
        """One of the examples, as a process of its own."""
        env = os.environ | {"STATEHOLD_TOKEN": self.keys[role]}
        with open(self.beside, "ab") as errors:
            return start(sys.executable, *asked, stdout=subprocess.PIPE, stderr=errors, text=True, env=env)

    def play(self, folder):
        """The Python of a README, at this server. Gives what it prints, and what the README says."""
        text = open(example(folder, "README.md")).read()
        code, rest = text.split("```python\n")[1].split("```\n", 1)
        code = code.replace("http://127.0.0.1:7717", self.url).replace('"any"', repr(self.client.api_key))
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout, rest


def read(stream):
    """The text of a stream, and its chunks."""
    chunks = list(stream)
    pieces = [choice.delta.content or "" for chunk in chunks for choice in chunk.choices]
    return "".join(pieces), chunks
