"""Lets OpenAI's client talk to the program: run_openai.py STATEHOLD. Prints what it has seen to work."""

import socket
import threading
import time

import httpx2 as httpx
import openai

import rig
from rig import Server, read, refused, say, until


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
                for request in self.server.call("worker", "/v1/work/claim", claim)["requests"]:
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
            return self.server.call("worker", f"{path}/fail", {"fence": fence, "error": error})
        if said in ("pay", "which?") and not decided:
            hold = {"fence": fence, "kind": "question", "title": "Which Springfield?"}
            if said == "pay":
                action = {"tool": "pay", "args": {"sum": 4}}
                hold = {"fence": fence, "kind": "approval", "title": "Pay 4?", "action": action}
            self.server.call("worker", f"{path}/holds", hold)
            return self.server.call("worker", f"{path}/release", {"fence": fence})
        output = f"You said: {said}"
        if decided:
            output = "Paid." if said == "pay" else f"Sunny in {decided[0]['decision']['content']}."
        return self.server.call("worker", f"{path}/complete", {"fence": fence, "output": output})


class Losing(httpx.BaseTransport):
    """Sends a call and loses the connection before the answer, as often as it is told. Then the agent goes on."""

    def __init__(self, times, go_on):
        self.times, self.go_on, self.inner = times, go_on, httpx.HTTPTransport()

    def handle_request(self, request):
        if self.times == 0:
            threading.Timer(0.5, self.go_on.set).start()
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


def check():
    server = Server("helper", '[agents.helper]\ndescription = "Echoes."\n', dev=["--no-demo"])
    worker, client = Worker(server), server.client
    create = client.chat.completions.create

    assert [(model.id, model.object) for model in client.models.list()] == [("helper", "model")]
    say("the list of models")

    session = {"conversation": server.session("helper")}
    answer = create(model="helper", messages=user("hello"), extra_body=session)
    assert answer.choices[0].message.content == "You said: hello"
    assert answer.choices[0].finish_reason == "stop" and answer.usage.total_tokens == 0
    assert answer.statehold["status"] == "completed"
    assert answer.statehold["session"] == session["conversation"]
    system = [{"role": "system", "content": "Ignore everything."}]
    answer = create(model="helper", messages=system + user("again"), extra_body={"conversation": {"id": session["conversation"]}})
    assert answer.choices[0].message.content == "You said: again"
    say("whole answers in a conversation")

    raw = client.chat.completions.with_raw_response.create(model="helper", messages=user("raw"), extra_body=session)
    assert raw.headers["x-statehold-session"] == session["conversation"]
    assert raw.headers["x-statehold-request"] == raw.parse().statehold["request"]
    say("ids in headers")

    stream = create(model="helper", messages=user("grüße"), stream=True, stream_options={"include_usage": True}, extra_body=session)
    text, chunks = read(stream)
    assert text == "You said: grüße"
    assert chunks[-1].choices == [] and chunks[-1].usage.total_tokens == 0
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-2].statehold["status"] == "completed"
    with client.chat.completions.stream(model="helper", messages=user("helper of the client"), extra_body=session) as events:
        assert events.get_final_completion().choices[0].message.content == "You said: helper of the client"
    say("streams")

    wrong = [
        (openai.NotFoundError, "agent_unknown", {"model": "gpt-4o"}),
        (openai.NotFoundError, "not_found", {"extra_body": {"conversation": "ses_x"}}),
        (openai.UnprocessableEntityError, "parameter_not_supported", {"n": 2}),
        (openai.UnprocessableEntityError, "tools_not_supported", {"tools": [{"type": "function", "function": {"name": "f"}}]}),
        (openai.UnprocessableEntityError, "invalid_body", {"messages": []}),
    ]
    for kind, code, changes in wrong:
        call = {"model": "helper", "messages": user("x"), "extra_body": session} | changes
        error = refused(kind, lambda: create(**call))
        assert error.code == code and error.body["message"] and str(error), (error.code, code)
    assert refused(openai.NotFoundError, lambda: client.models.retrieve("nobody")).code == "agent_unknown"
    say("errors of the client's own classes")

    before, insist = len(worker.heard), client.with_options(max_retries=2).chat.completions.create
    error = refused(openai.InternalServerError, lambda: insist(model="helper", messages=user("fail"), extra_body=session))
    assert error.code == "agent_timeout" and error.status_code == 502, error
    error = refused(openai.APIError, lambda: read(insist(model="helper", messages=user("fail"), stream=True, extra_body=session)))
    assert error.code == "agent_timeout", error
    assert len(worker.heard) == before + 2, "a failed turn is not made again by the client"
    say("failed turns")

    session = {"conversation": server.session("helper")}
    told = create(model="helper", messages=user("pay"), extra_body=session)
    (hold,) = told.statehold["holds"]
    assert told.statehold["status"] == "paused" and hold["alias"] == "R1.h1"
    content = told.choices[0].message.content
    assert f"({hold['id']})\n\nIt would call pay with" in content, content
    assert f"statehold approvals approve {hold['id']}" in content, content
    text, chunks = read(create(model="helper", messages=user("approved"), stream=True, extra_body=session))
    hint = f"(Messages here decide nothing; helper still waits for a decision: Pay 4? ({hold['id']}))"
    assert text == f"{hint}\n\nYou said: approved", text
    assert server.call("client", f"/v1/holds/{hold['id']}")["status"] == "open", "words never approve"
    server.approve(hold["id"])
    server.completed(told.statehold["request"])
    answer = create(model="helper", messages=user("thanks"), extra_body=session)
    assert answer.choices[0].message.content == "Paid.\n\nYou said: thanks"
    assert answer.statehold["earlier"] == [{"request": told.statehold["request"], "content": "Paid."}]
    say("a pause, its decision, and the answer with the next call")

    wait = {"extra_body": session, "extra_headers": {"x-statehold-wait": "60"}}
    stream = create(model="helper", messages=user("pay"), stream=True, **wait)
    pieces = []
    for chunk in stream:
        pieces.append(chunk.choices[0].delta.content or "")
        status = getattr(chunk, "statehold", None) or {}
        if status.get("status") == "paused":
            server.approve(status["holds"][0]["id"])
    assert "".join(pieces) == "Paid.", pieces
    say("a stream that waits through a pause")

    for streaming in (False, True):
        told = create(model="helper", messages=user("which?"), extra_body=session)
        assert "Which Springfield?" in told.choices[0].message.content
        answer = create(model="helper", messages=user("Ohio"), stream=streaming, extra_body=session)
        text = read(answer)[0] if streaming else answer.choices[0].message.content
        assert text == "Sunny in Ohio.", text
    say("a question that a plain message answers")

    for streaming in (False, True):
        session = {"conversation": server.session("helper")}
        before, worker.go_on = len(worker.heard), threading.Event()
        transport = Losing(2, worker.go_on)
        losing = client.with_options(http_client=httpx.Client(transport=transport), max_retries=2)
        answer = losing.chat.completions.create(model="helper", messages=user("slow"), stream=streaming, extra_body=session)
        text = read(answer)[0] if streaming else answer.choices[0].message.content
        assert text == "You said: slow", text
        assert transport.times == 0 and len(worker.heard) == before + 1, "one turn"
    say("a connection that is lost twice: the client's own retries find their turn")

    session = {"conversation": server.session("helper")}
    before, worker.go_on = len(worker.heard), threading.Event()
    stream = create(model="helper", messages=user("slow"), stream=True, extra_body=session)
    request = stream.response.headers["x-statehold-request"]
    next(iter(stream))
    stream.close()
    worker.go_on.set()
    server.completed(request)
    raw = client.chat.completions.with_raw_response.create(model="helper", messages=user("slow"), extra_body=session)
    assert raw.parse().choices[0].message.content == "You said: slow"
    assert raw.headers["idempotency-replayed"] == "true" and len(worker.heard) == before + 1
    raw = client.chat.completions.with_raw_response.create(model="helper", messages=user("slow"), extra_body=session)
    assert "idempotency-replayed" not in raw.headers and len(worker.heard) == before + 2
    say("an answer that nobody heard is given once")
    server.stop()


# What is said in the two dialogues that the demo knows, and what is answered.
SUMS_AND_WEATHER = [
    ("What's 2+2", "2+2 is 4"),
    ("What's the temperature in Rahway, NJ", "Sunny, 72"),
    ("What's the square root of 121?", "The square root of 121 is 11"),
]


def check_demo():
    server = Server("demo", dev=[])
    assert "coordinator" in {model.id for model in server.client.models.list()}
    printed, _ = server.play("..")
    assert printed == "2+2 is 4\n", printed
    say("the Python of the README")

    for streaming, carries in [(False, "session"), (True, "session"), (False, "messages"), (True, "messages")]:
        history = []

        def ask(text, session):
            """Says something in a session. A client that carries messages only names none, and sends them all."""
            if session == "new":
                history.clear()
            if carries == "session":
                answer, where = server.chat("coordinator", text, session, streaming)
            else:
                answer, where = server.chat("coordinator", text, None, streaming, history)
                assert session in ("new", where["session"]), (text, session, where)
            history.extend([{"role": "user", "content": text}, {"role": "assistant", "content": answer}])
            return answer, where["session"]

        session = "new"
        for text, expected in SUMS_AND_WEATHER:
            answer, session = ask(text, session)
            assert answer == expected, (text, answer)
        agents = {}
        for root in server.call("client", f"/v1/sessions/{session}/tree")["tasks"]:
            assert root["agent"] == "coordinator" and len(root["requests"]) == 3
            for request in root["requests"]:
                for task in request["tasks"]:
                    agents.setdefault((task["agent"], task["id"]), []).extend(task["requests"])
        counts = sorted((agent, len(requests)) for (agent, _), requests in agents.items())
        assert counts == [("math-agent", 2), ("weather-agent", 1)], counts
        answer, session = ask("Calculate fibonacci(10)", "new")
        assert "55" in answer, answer
        answer, session = ask("Now calculate fibonacci(20)", session)
        assert "6765" in answer and "55" in answer, answer
        answer, session = ask("List users", "new")
        answer, session = ask("What's the weather in Paris?", session)
        assert "64" in answer, answer
        answer, session = ask("Delete the first user", session)
        assert "waits for a decision" in answer, answer
        holds = server.call("client", "/v1/holds")["holds"]
        [hold] = [hold for hold in holds if hold["session_id"] == session]
        server.decide(hold)
        until(lambda: server.call("client", f"/v1/sessions/{session}")["status"] == "idle")
        answer, session = ask("What's 2+2", session)
        assert "was deleted" in answer and answer.endswith("2+2 is 4"), answer
        answer, session = ask("What's the weather in Springfield?", session)
        assert "Which Springfield" in answer, answer
        answer, session = ask("Springfield, IL", session)
        answer, session = ask("What's 2+2", session)
        assert answer == "2+2 is 4", answer
        say(f"the dialogues of the demo, {'streamed' if streaming else 'whole'}, with a client that carries {carries}")
    server.stop()


rig.play(check, check_demo)
