"""Lets OpenAI's client talk to the program: run_openai.py STATEHOLD. Prints what it has seen to work."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

import httpx2 as httpx
import openai

PROGRAM = os.path.abspath(sys.argv[1])
SAID = []


def until(ask, seconds=30):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := ask():
            return found
        time.sleep(0.05)
    raise AssertionError("it never came to be")


def seen(what):
    SAID.append(what)
    print(f"ok: {what}")


class Server:
    def __init__(self, folder, *flags):
        self.data = os.path.join(folder, "data")
        self.log = os.path.join(folder, "server.log")
        asked = [PROGRAM, "dev", "--port", "0", "--no-open", "--data", self.data, *flags]
        self.process = subprocess.Popen(asked, stdout=open(self.log, "wb"), stderr=subprocess.STDOUT)
        run_file = os.path.join(self.data, "statehold.run")
        self.url = until(lambda: os.path.exists(run_file) and json.load(open(run_file))["url"])
        until(self.answers)

    def answers(self):
        try:
            return urllib.request.urlopen(f"{self.url}/healthz", timeout=5).status == 200
        except OSError:
            assert self.process.poll() is None, open(self.log).read()[-2000:]
            return False

    def call(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        sent = urllib.request.Request(self.url + path, data, headers, method=method)
        with urllib.request.urlopen(sent, timeout=90) as answer:
            return json.load(answer)

    def session(self):
        return self.call("POST", "/v1/sessions", {"app": "check", "user": "ann", "agent": "helper"})["id"]


class Worker(threading.Thread):
    """The agent `helper`: it echoes, asks, waits and fails as it is told."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.server, self.heard, self.go_on = server, [], threading.Event()
        self.start()

    def run(self):
        claim = {"agent": "helper", "wait_seconds": 10, "max": 1}
        while True:
            try:
                for request in self.server.call("POST", "/v1/work/claim", claim)["requests"]:
                    threading.Thread(target=self.work, args=[request], daemon=True).start()
            except OSError:
                return

    def work(self, request):
        path, fence = f"/v1/requests/{request['id']}", request["fence"]
        said, decided = request["input"], request["decisions"]
        if not decided:
            self.heard.append(said)
        if said == "slow":
            assert self.go_on.wait(60)
        if said == "fail":
            error = {"code": "agent_timeout", "message": "after 60 s"}
            return self.server.call("POST", f"{path}/fail", {"fence": fence, "error": error})
        if said in ("pay", "which?") and not decided:
            hold = {"fence": fence, "kind": "question", "title": "Which Springfield?"}
            if said == "pay":
                action = {"tool": "pay", "args": {"sum": 4}}
                hold = {"fence": fence, "kind": "approval", "title": "Pay 4?", "action": action}
            self.server.call("POST", f"{path}/holds", hold)
            return self.server.call("POST", f"{path}/release", {"fence": fence})
        output = f"You said: {said}"
        if decided:
            output = "Paid." if said == "pay" else f"Sunny in {decided[0]['decision']['content']}."
        return self.server.call("POST", f"{path}/complete", {"fence": fence, "output": output})


class Losing(httpx.BaseTransport):
    """Sends a call and loses the connection before the answer, as often as it is told."""

    def __init__(self, times):
        self.times, self.inner = times, httpx.HTTPTransport()

    def handle_request(self, request):
        if self.times == 0:
            return self.inner.handle_request(request)
        self.times -= 1
        body = request.read()
        lines = [f"{request.method} {request.url.raw_path.decode()} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in request.headers.items()]
        with socket.create_connection((request.url.host, request.url.port)) as connection:
            connection.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
            time.sleep(0.5)
        raise httpx.ReadError("the connection is gone", request=request)


def user(text):
    return [{"role": "user", "content": text}]


def text_of(stream):
    chunks = list(stream)
    pieces = [c.choices[0].delta.content or "" for c in chunks if c.choices]
    return "".join(pieces), chunks


def check(server, worker):
    client = openai.OpenAI(base_url=f"{server.url}/openai/v1", api_key="not-needed", timeout=60)
    create = client.chat.completions.create

    assert all(model.object == "model" for model in client.models.list())
    seen("the list of models")

    session = {"conversation": server.session()}
    answer = create(model="helper", messages=user("hello"), extra_body=session)
    assert answer.choices[0].message.content == "You said: hello"
    assert answer.choices[0].finish_reason == "stop" and answer.usage.total_tokens == 0
    assert answer.statehold["status"] == "completed"
    assert answer.statehold["session"] == session["conversation"]
    system = [{"role": "system", "content": "Ignore everything."}]
    answer = create(model="helper", messages=system + user("again"), extra_body={"conversation": {"id": session["conversation"]}})
    assert answer.choices[0].message.content == "You said: again"
    seen("whole answers in a conversation")

    raw = client.chat.completions.with_raw_response.create(model="helper", messages=user("raw"), extra_body=session)
    assert raw.headers["x-statehold-session"] == session["conversation"]
    assert raw.headers["x-statehold-request"] == raw.parse().statehold["request"]
    seen("ids in headers")

    stream = create(model="helper", messages=user("grüße"), stream=True, stream_options={"include_usage": True}, extra_body=session)
    text, chunks = text_of(stream)
    assert text == "You said: grüße"
    assert chunks[-1].choices == [] and chunks[-1].usage.total_tokens == 0
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-2].statehold["status"] == "completed"
    with client.chat.completions.stream(model="helper", messages=user("helper of the client"), extra_body=session) as events:
        assert events.get_final_completion().choices[0].message.content == "You said: helper of the client"
    seen("streams")

    wrong = [
        (openai.NotFoundError, "agent_unknown", {"model": "gpt-4o"}),
        (openai.NotFoundError, "not_found", {"extra_body": {"conversation": "ses_x"}}),
        (openai.UnprocessableEntityError, "parameter_not_supported", {"n": 2}),
        (openai.UnprocessableEntityError, "tools_not_supported", {"tools": [{"type": "function", "function": {"name": "f"}}]}),
        (openai.UnprocessableEntityError, "invalid_body", {"messages": []}),
    ]
    for kind, code, changes in wrong:
        call = {"model": "helper", "messages": user("x"), "extra_body": session} | changes
        try:
            create(**call)
        except kind as error:
            assert error.code == code, (error.code, code)
            assert error.body["message"] and str(error)
        else:
            raise AssertionError(f"{code} was expected")
    try:
        client.models.retrieve("nobody")
    except openai.NotFoundError as error:
        assert error.code == "agent_unknown"
    seen("errors of the client's own classes")

    before = len(worker.heard)
    try:
        create(model="helper", messages=user("fail"), extra_body=session)
    except openai.InternalServerError as error:
        assert error.code == "agent_timeout" and error.status_code == 502, error
    try:
        text_of(create(model="helper", messages=user("fail"), stream=True, extra_body=session))
    except openai.APIError as error:
        assert error.code == "agent_timeout", error
    assert len(worker.heard) == before + 2, "a failed turn is not made again by the client"
    seen("failed turns")

    session = {"conversation": server.session()}
    told = create(model="helper", messages=user("pay"), extra_body=session)
    (hold,) = told.statehold["holds"]
    assert told.statehold["status"] == "paused" and hold["alias"] == "R1.h1"
    assert "statehold approvals approve R1.h1" in told.choices[0].message.content
    text, chunks = text_of(create(model="helper", messages=user("approved"), stream=True, extra_body=session))
    assert text == "You said: approved"
    shown = server.call("GET", f"/v1/holds/{hold['id']}")
    assert shown["status"] == "open", "words never approve"
    approve = {"decision": "approve", "digest": shown["action"]["digest"]}
    server.call("POST", f"/v1/holds/{hold['id']}/decision", approve)
    until(lambda: server.call("GET", f"/v1/requests/{told.statehold['request']}")["status"] == "completed")
    answer = create(model="helper", messages=user("thanks"), extra_body=session)
    assert answer.choices[0].message.content == "Paid.\n\nYou said: thanks"
    assert answer.statehold["earlier"] == [{"request": told.statehold["request"], "content": "Paid."}]
    seen("a pause, its decision, and the answer with the next call")

    wait = {"extra_body": session, "extra_headers": {"x-statehold-wait": "60"}}
    stream = create(model="helper", messages=user("pay"), stream=True, **wait)
    pieces = []
    for chunk in stream:
        pieces.append(chunk.choices[0].delta.content or "")
        status = getattr(chunk, "statehold", None) or {}
        if status.get("status") == "paused":
            hold = status["holds"][0]
            shown = server.call("GET", f"/v1/holds/{hold['id']}")
            approve = {"decision": "approve", "digest": shown["action"]["digest"]}
            server.call("POST", f"/v1/holds/{hold['id']}/decision", approve)
    assert "".join(pieces) == "Paid.", pieces
    seen("a stream that waits through a pause")

    for streaming in (False, True):
        told = create(model="helper", messages=user("which?"), extra_body=session)
        assert "Which Springfield?" in told.choices[0].message.content
        answer = create(model="helper", messages=user("Ohio"), stream=streaming, extra_body=session)
        text = text_of(answer)[0] if streaming else answer.choices[0].message.content
        assert text == "Sunny in Ohio.", text
    seen("a question that a plain message answers")

    for streaming in (False, True):
        session = {"conversation": server.session()}
        before, worker.go_on = len(worker.heard), threading.Event()
        losing = client.with_options(http_client=httpx.Client(transport=Losing(2)), max_retries=2)
        threading.Timer(2, worker.go_on.set).start()
        answer = losing.chat.completions.create(model="helper", messages=user("slow"), stream=streaming, extra_body=session)
        text = text_of(answer)[0] if streaming else answer.choices[0].message.content
        assert text == "You said: slow", text
        assert len(worker.heard) == before + 1, "one turn"
    seen("a connection that is lost twice: the client's own retries find their turn")

    session = {"conversation": server.session()}
    before, worker.go_on = len(worker.heard), threading.Event()
    stream = create(model="helper", messages=user("slow"), stream=True, extra_body=session)
    request = stream.response.headers["x-statehold-request"]
    next(iter(stream))
    stream.close()
    worker.go_on.set()
    until(lambda: server.call("GET", f"/v1/requests/{request}")["status"] == "completed")
    raw = client.chat.completions.with_raw_response.create(model="helper", messages=user("slow"), extra_body=session)
    assert raw.parse().choices[0].message.content == "You said: slow"
    assert raw.headers["idempotency-replayed"] == "true" and len(worker.heard) == before + 1
    raw = client.chat.completions.with_raw_response.create(model="helper", messages=user("slow"), extra_body=session)
    assert "idempotency-replayed" not in raw.headers and len(worker.heard) == before + 2
    seen("an answer that nobody heard is given once")


# What is said in the two dialogues that the demo knows, and what is answered.
SUMS_AND_WEATHER = [
    ("What's 2+2", "2+2 is 4"),
    ("What's the temperature in Rahway, NJ", "Sunny, 72"),
    ("What's the square root of 121?", "The square root of 121 is 11"),
]


def check_demo(server):
    client = openai.OpenAI(base_url=f"{server.url}/openai/v1", api_key="not-needed", timeout=60)
    assert "coordinator" in {model.id for model in client.models.list()}

    def say(text, session, streaming):
        headers = {"x-statehold-session": session}
        raw = client.chat.completions.with_raw_response.create(
            model="coordinator", messages=user(text), stream=streaming, extra_headers=headers)
        parsed = raw.parse()
        answer = text_of(parsed)[0] if streaming else parsed.choices[0].message.content
        return answer, raw.headers["x-statehold-session"]

    for streaming in (False, True):
        session = "new"
        for text, expected in SUMS_AND_WEATHER:
            answer, session = say(text, session, streaming)
            assert answer == expected, (text, answer)
        agents = {}
        for root in server.call("GET", f"/v1/sessions/{session}/tree")["tasks"]:
            assert root["agent"] == "coordinator" and len(root["requests"]) == 3
            for request in root["requests"]:
                for task in request["tasks"]:
                    agents.setdefault((task["agent"], task["id"]), []).extend(task["requests"])
        counts = sorted((agent, len(requests)) for (agent, _), requests in agents.items())
        assert counts == [("math-agent", 2), ("weather-agent", 1)], counts
        answer, session = say("Calculate fibonacci(10)", "new", streaming)
        assert "55" in answer, answer
        answer, session = say("Now calculate fibonacci(20)", session, streaming)
        assert "6765" in answer and "55" in answer, answer
        answer, session = say("List users", "new", streaming)
        answer, session = say("What's the weather in Paris?", session, streaming)
        assert "64" in answer, answer
        answer, session = say("Delete the first user", session, streaming)
        assert "waits for a decision" in answer, answer
        holds = server.call("GET", "/v1/holds")["holds"]
        [hold] = [hold for hold in holds if hold["session_id"] == session]
        decided = {"decision": "approve", "digest": hold["action"]["digest"]}
        server.call("POST", f"/v1/holds/{hold['id']}/decision", decided)
        until(lambda: server.call("GET", f"/v1/sessions/{session}")["status"] == "idle")
        answer, session = say("What's 2+2", session, streaming)
        assert "was deleted" in answer and answer.endswith("2+2 is 4"), answer
        seen(f"the dialogues of the demo, {'streamed' if streaming else 'whole'}")


for flags, checks in ((["--no-demo"], lambda server: check(server, Worker(server))), ([], check_demo)):
    with tempfile.TemporaryDirectory() as folder:
        server = Server(folder, *flags)
        try:
            checks(server)
        finally:
            server.process.terminate()
            server.process.wait(30)
print(f"{len(SAID)} passed, 0 failed")
