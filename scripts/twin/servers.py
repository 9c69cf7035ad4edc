"""One server of a twin run, its feeds, and the model service that both servers ask."""

import http.client
import json
import os
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CONFIGURATION = """
[push]
allow = ["127.0.0.1:{port}"]

[models.main]
base_url = "http://127.0.0.1:{port}/v1"
model = "fake"
retries = 0

[agents.clerk]
description = "Pays."
decide_by = "other"
[agents.clerk.tools.pay]
approval = "always"
risk = "high"
effect = "write"
redact = ["/card", "/to/*/pin"]
[agents.clerk.tools.wire]
approval = "always"
decide_by = "role:treasurer"
quorum = 2
comment_required = true
expires_in_seconds = 3600
[agents.clerk.tools.refund]
approval = "never"
approval_if = {{ properties = {{ amount = {{ minimum = 100 }} }}, required = ["amount"] }}
[agents.clerk.tools.look]
approval = "never"
effect = "read"
idempotent = true

[agents.scribe]
description = "Writes."
sessions = "auto"
[agents.scribe.tools.mail]
decide_by = "user"
redact_rules = ["secret", "email", "card"]

# Only flows speak to it, so what its worker claims is theirs.
[agents.desk]
sessions = "auto"
[agents.desk.tools.mail]
redact_rules = ["secret", "email", "card"]

[agents.echo]
kind = "openai"
description = "Repeats."
base_url = "http://127.0.0.1:{port}/v1"
model = "fake"
retries = 0

[agents.memo]
kind = "openai"
sessions = "auto"
base_url = "http://127.0.0.1:{port}/v1"
model = "fake"
retries = 0

[agents.brain]
kind = "llm"
model = "main"
prompt = "You answer."

[agents.front]
kind = "router"
agents = ["echo", "brain"]
rules = [{{ pattern = "think", agent = "brain" }}]
otherwise = "echo"
"""
ROLES = {
    "client": ["--role", "client"], "ann": ["--role", "client", "--user", "ann"],
    "bob": ["--role", "client", "--user", "bob"], "worker": ["--role", "worker"],
    "clerk": ["--role", "worker", "--agent", "clerk"], "approver": ["--role", "approver"],
    "carol": ["--role", "approver", "--user", "carol"], "operator": ["--role", "operator"],
    "admin": ["--role", "admin"], "both": ["--role", "client", "--role", "worker"]}
PATIENCE_SECONDS = 30


def configuration(port):
    return CONFIGURATION.format(port=port)


class Answer:
    """A whole answer. The date and the length of a body differ between two servers and count for nothing."""

    def __init__(self, status, headers, body):
        self.status, self.body = status, body
        self.headers = {name.lower(): value for name, value in headers}
        self.headers.pop("date", None)
        if "content-length" in self.headers:
            self.headers["content-length"] = "some" if body else "0"

    def json(self):
        try:
            return json.loads(self.body)
        except ValueError:
            return None


class Side:
    """One build of the program on a directory of its own, with a key for each role."""

    def __init__(self, program, folder, config):
        self.program, self.folder = program, folder
        os.mkdir(folder)
        self.data, self.log, self.config = [os.path.join(folder, name) for name in ("data", "log", "statehold.toml")]
        with open(self.config, "w") as file:
            file.write(config)
        self.process, self.line, self.place, self.keys = None, None, "", {}
        self.run("config", "validate", "--config", self.config)
        for role, flags in ROLES.items():
            made = self.run("token", "create", "--name", role, "--data", self.data, *flags)
            self.keys[role] = made.strip()

    def run(self, *asked):
        done = subprocess.run([self.program, *asked], capture_output=True, text=True, timeout=PATIENCE_SECONDS)
        assert done.returncode == 0, (asked, done.stdout, done.stderr)
        return done.stdout

    def start(self):
        asked = ["serve", "--listen", "127.0.0.1:0", "--config", self.config, "--data", self.data]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen([self.program, *asked], stdout=log, stderr=log, cwd=self.folder)
        end = time.monotonic() + PATIENCE_SECONDS
        run_file = os.path.join(self.data, "statehold.run")
        while not os.path.exists(run_file):
            assert self.process.poll() is None and time.monotonic() < end, open(self.log).read()
            time.sleep(0.02)
        self.place = json.load(open(run_file))["url"].split("//")[1]
        while self.plain("GET", "/readyz", {}, None).status != 200:
            assert time.monotonic() < end
            time.sleep(0.02)

    def plain(self, method, path, headers, body):
        line = http.client.HTTPConnection(self.place, timeout=PATIENCE_SECONDS)
        try:
            return exchange(line, method, path, headers, body)
        finally:
            line.close()

    def send(self, call):
        """One call on the connection that is kept, or on a new one if the server has closed that."""
        for line in (self.line, None):
            if line is None:
                line = self.line = http.client.HTTPConnection(self.place, timeout=PATIENCE_SECONDS)
            try:
                return exchange(line, call.method, call.path, call.headers, call.body)
            except (http.client.RemoteDisconnected, ConnectionError, http.client.BadStatusLine):
                line.close()
        raise AssertionError(f"{self.place} answers nothing to {call}; see {self.log}")

    def begin(self, call):
        """The beginning of an answer that may never end: all of a refusal, and the headers of a feed."""
        line = http.client.HTTPConnection(self.place, timeout=PATIENCE_SECONDS)
        try:
            line.request(call.method, call.path, headers=call.headers)
            answer = line.getresponse()
            text = "" if answer.status == 200 else answer.read().decode("utf-8", "replace")
            return Answer(answer.status, answer.getheaders(), text)
        finally:
            line.close()

    def stop(self):
        if self.line:
            self.line.close()
        self.process.terminate()
        assert self.process.wait(PATIENCE_SECONDS) == 0, f"it did not end well; see {self.log}"

    def check(self):
        done = subprocess.run([self.program, "check", "--data", self.data], capture_output=True, text=True,
                              timeout=PATIENCE_SECONDS)
        return done.returncode, done.stdout.strip().replace(self.data, "DATA")

    def kill(self):
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def exchange(line, method, path, headers, body):
    line.putrequest(method, path, skip_accept_encoding=True)
    body = None if body is None else body.encode("utf-8", "surrogatepass")
    for name, value in headers.items():
        line.putheader(name, value.encode())
    if body is not None:
        line.putheader("Content-Length", str(len(body)))
    line.endheaders(body)
    answer = line.getresponse()
    try:
        text = answer.read().decode("utf-8", "replace")
    except http.client.IncompleteRead as broken:
        text = broken.partial.decode("utf-8", "replace") + "\nbroken off"
    return Answer(answer.status, answer.getheaders(), text)


class Feed:
    """An open feed, read by a thread of its own; with a limit, until so many events have come."""

    def __init__(self, side, path, key, limit=None, **headers):
        self.events, self.status, self.limit, self.cursor = [], 0, limit, None
        self.line = http.client.HTTPConnection(side.place, timeout=PATIENCE_SECONDS)
        self.line.request("GET", path, headers={"Authorization": f"Bearer {key}", **headers})
        self.answer = self.line.getresponse()
        self.status = self.answer.status
        self.thread = threading.Thread(target=self.follow, daemon=True)
        self.thread.start()

    def follow(self):
        block = []
        try:
            for line in self.answer:
                line = line.decode().rstrip("\n")
                if line and not line.startswith(":") and not line.startswith("retry"):
                    block.append(line)
                elif not line and block:
                    # Words of drafts come when they come; the record after them has all of it.
                    if "event: delta" not in block:
                        self.events.append("\n".join(block))
                    block = []
                if self.limit and len(self.events) >= self.limit:
                    return
        except (OSError, http.client.HTTPException, ValueError, AttributeError):
            return

    def count(self):
        return len(self.events)

    def read(self, count, quiet_seconds=0.6):
        """What came so far, when there are so many or no more are coming."""
        end, seen, last = time.monotonic() + 15, -1, time.monotonic()
        while time.monotonic() < end and self.thread.is_alive():
            if len(self.events) != seen:
                seen, last = len(self.events), time.monotonic()
            patience = quiet_seconds if not count or seen >= count else 5
            if time.monotonic() - last > patience:
                break
            time.sleep(0.01)
        return list(self.events)


class ChatService:
    """A model that repeats what it is told, and fails when it is told to. Both servers ask the same one."""

    def __init__(self):
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Chat)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


class Chat(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        return

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if not self.path.endswith("/chat/completions"):
            return self.answer(204, "")
        asked = json.loads(body)
        said = [one for one in asked["messages"] if one["role"] == "user"][-1:]
        content = said[0]["content"] if said else ""
        if not isinstance(content, str):
            content = "".join(part.get("text", "") for part in content)
        if "boom" in content:
            return self.answer(500, json.dumps({"error": {"message": "boom", "type": "server_error"}}))
        text = f"heard {len(asked['messages'])}: {content}"
        usage = {"prompt_tokens": len(content), "completion_tokens": 3, "total_tokens": len(content) + 3}
        base = {"id": "fake-1", "created": 1700000000, "model": "fake"}
        if not asked.get("stream"):
            choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
            return self.answer(200, json.dumps(
                {**base, "object": "chat.completion", "choices": [choice], "usage": usage}))
        pieces = [{"role": "assistant", "content": ""}, {"content": text[:5]}, {"content": text[5:]}]
        chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in pieces]
        chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": usage})
        lines = [json.dumps({**base, "object": "chat.completion.chunk", **chunk}) for chunk in chunks]
        self.answer(200, "".join(f"data: {line}\n\n" for line in [*lines, "[DONE]"]), "text/event-stream")

    def answer(self, status, text, kind="application/json"):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())
