"""The examples of openapi.json, as a server answers them: one story of an invoice that a person approves.

`check` plays the story and compares what was sent and answered with `examples.json`: the same fields, with the same
kinds of values. `UPDATE=1` writes the file. Secrets and sealed texts are cut out.
"""

import json
import os
import re
import threading
import urllib.request

from rig import Server, say

HERE = os.path.dirname(os.path.abspath(__file__))
RECORDED = os.path.join(HERE, "..", "..", "crates", "statehold-server", "src", "openapi", "examples.json")
CONFIG = """
[agents.payer]
description = "Pays invoices."
[agents.payer.tools.pay]
approval = "always"

[agents.clerk]
description = "Answers questions about orders."
"""
# Keys, tokens, cursors, places in feeds and states of answers, none of which an example needs.
SECRET = re.compile(r'(?:shk_|whsec_)[\w+/=-]{20,}|(?<=^id: )[\w-]{30,}$|(?<="ref":")[^"]+', re.M)
SEALED = ("token", "next_cursor", "ref")
CUT = "[redacted:secret]"
# The lines that show the form of the metrics.
METRICS = ("# HELP statehold_calls ", "# TYPE statehold_calls ",
           'statehold_calls_total{method="POST",route="/v1/sessions",')


class Recorder:
    """Calls operations by their ids, and keeps the first body and answer of each schema."""

    def __init__(self, server, document):
        self.server, self.examples = server, {}
        self.operations = {operation["operationId"]: (method.upper(), path, operation)
                           for path, item in document["paths"].items() for method, operation in item.items()}

    def open(self, role, op, body=None, query="", headers=(), **ids):
        method, path, _ = self.operations[op]
        path = re.sub(r"{(\w+)}", lambda found: str(ids[found[1]]), path)
        headers = {"Content-Type": "application/json", **dict(headers)}
        headers["Authorization"] = f"Bearer {self.server.keys[role]}"
        data = None if body is None else json.dumps(body).encode()
        return urllib.request.urlopen(
            urllib.request.Request(self.server.url + path + query, data, headers, method=method), timeout=60)

    def call(self, role, op, body=None, special=False, **more):
        """One call. With `special` its answer is an example of the operation, not of the schema."""
        with self.open(role, op, body, **more) as answer:
            text = answer.read()
        operation = self.operations[op][2]
        if body is not None:
            self.keep(schema(operation["requestBody"]), op, body)
        if text:
            value = json.loads(text)
            self.keep(None if special else schema(operation["responses"][str(answer.status)]), op, value)
            return value

    def keep(self, schema, op, value):
        self.examples.setdefault(schema or op, value)

    def read(self, role, op, *args, **more):
        """A call whose answer is a text."""
        with self.open(role, op, *args, **more) as answer:
            self.examples[f"{op}Text"] = answer.read().decode()

    def follow(self, role, op, act=lambda: None, **more):
        """A feed: what it says of an act, or of what was before."""
        with self.open(role, op, **more) as feed:
            text = "".join(feed.readline().decode() for _ in range(3))
            act()
            while not text.endswith("\n\n") or "data: " not in text:
                text += feed.readline().decode()
        self.examples[f"{op}Text"] = text


def schema(body):
    """The name of the schema of a body or an answer."""
    return body["content"]["application/json"]["schema"].get("$ref", "").rsplit("/", 1)[-1]


def play(recorder):
    """The story. It names each operation that has a body or an answer of its own."""
    call = recorder.call
    body = {"app": "shop", "user": "ann", "agent": "payer", "name": "Invoices of October", "labels": {"team": "books"}}
    session = {"session_id": call("client", "createSession", body)["id"]}
    call("client", "listSessions", query="?app=shop&limit=1")
    call("client", "updateSession", {"labels": {"team": "finance"}}, special=True, **session)
    values = {"set": {"currency": "EUR", "user:language": "de"}, "if_versions": {"currency": 0}}
    call("client", "updateSessionState", values, **session)
    call("client", "getSessionState", **session)
    ann = {"app": "shop", "user": "ann"}
    call("admin", "updateAppState", {"set": {"app:tax_rate": "0.19"}}, special=True, app="shop")
    call("admin", "getAppState", special=True, app="shop")
    call("client", "updateUserState", {"set": {"user:language": "de"}}, special=True, **ann)
    call("client", "getUserState", special=True, **ann)
    pay_invoice(recorder, session)
    call("client", "updateSessionMetadata", {"metadata": {"intents": ["payment"]}}, special=True, **session)
    call("client", "getSessionMetadata", **session)
    call("client", "appendMessage", {"role": "user", "content": "The receipt came by mail."}, **session)
    call("operator", "getSessionDiff", query="?from=2&to=3", **session)
    call("operator", "listRecords", query="?limit=1", **session)
    call("operator", "createReadToken", {"ttl_seconds": 600}, **session)
    call("operator", "forkSession", {"at": 4}, special=True, **session)
    end_requests(recorder, session)
    call("operator", "rewindSession", {"to": 2}, special=True, **session)
    call("client", "closeSession", {"cancel_live": True}, special=True, **session)
    chat(recorder)
    operate(recorder)


def pay_invoice(recorder, session):
    call, follow = recorder.call, recorder.follow
    body = {"input": "Pay invoice 17.", "agent": "payer", "lease": {"ttl_seconds": 60, "worker": "payer-1"}}
    begun = call("worker", "startRequest", body, **session)
    request, fence = {"request_id": begun["id"]}, begun["fence"]
    found = [{"kind": "tool_call", "name": "find_invoice", "call_id": "c1", "arguments": {"number": 17}},
             {"kind": "tool_result", "call_id": "c1", "result": {"amount": "120.00"}}]
    call("worker", "appendItems", {"fence": fence, "items": found}, **request)
    call("worker", "extendLease", {"fence": fence}, **request)
    action = {"tool": "pay", "args": {"invoice": 17, "amount": "120.00"}, "risk": "medium"}
    asked = {"fence": fence, "kind": "approval", "title": "Pay invoice 17?", "message": "It is due tomorrow.",
             "action": action, "expires_in_seconds": 86400}
    hold = {"hold_id": call("worker", "openHold", asked, special=True, **request)["id"]}
    released = call("worker", "releaseLease", {"fence": fence}, special=True, **request)
    call("approver", "listHolds")
    call("approver", "countHolds")
    digest = call("approver", "getHold", **hold)["action"]["digest"]
    call("client", "getSession", special=True, **session)
    call("client", "getSessionTree", **session)
    call("client", "getRequest", special=True, **request)
    follow("operator", "followSession", query="?after=6", **session)
    decision = {"decision": "approve", "digest": digest, "comment": "Checked."}
    follow("approver", "followHolds", lambda: call("approver", "decideHold", decision, **hold))
    asked = {"agent": "payer", "request_id": released["id"], "wait_seconds": 30, "worker": "payer-2"}
    (claimed,) = call("worker", "claimRequests", asked)["requests"]
    call("worker", "getTask", query="?view=agent", task_id=claimed["task_id"])
    key = claimed["decisions"][0]["execution_key"]
    receipt = {"kind": "tool_result", "call_id": key, "result": {"receipt": "R-2041"}}
    done = {"fence": claimed["fence"], "output": "Invoice 17 is paid.", "items": [receipt],
            "task_state": {"paid": [17]}}
    follow("operator", "followSessions", lambda: call("worker", "completeRequest", done, special=True, **request))
    said = call("client", "listMessages", **session)["messages"]
    call("client", "annotateMessage", {"annotations": {"rating": "good"}}, seq=said[-1]["seq"], **session)


def end_requests(recorder, session):
    """The other ends of a request and of a task."""
    call = recorder.call

    def start(text):
        body = {"input": text, "agent": "payer", "lease": {"ttl_seconds": 60}}
        begun = call("worker", "startRequest", body, **session)
        return {"request_id": begun["id"]}, {"task_id": begun["task_id"]}, begun["fence"]

    request, _, fence = start("Which invoices are open?")
    call("worker", "getRequestMemory", **request)
    error = {"code": "books_closed", "message": "The books are closed today."}
    call("worker", "failRequest", {"fence": fence, "error": error}, special=True, **request)
    request, task, fence = start("Try again.")
    call("worker", "openHold", {"fence": fence, "kind": "question", "title": "Which month?"}, special=True, **request)
    call("approver", "decideRequestHold", {"decision": "respond", "content": "October"}, **request)
    call("client", "cancelRequest", {}, special=True, **request)
    call("client", "closeTask", {}, **task)
    _, task, _ = start("And November?")
    call("client", "cancelTask", {}, special=True, **task)


def chat(recorder):
    server = recorder.server
    session = server.session("clerk")

    def answer():
        asked = {"agent": "clerk", "wait_seconds": 30}
        (claimed,) = server.call("worker", "/v1/work/claim", asked)["requests"]
        done = {"fence": claimed["fence"], "output": "It was sent on Monday."}
        server.call("worker", f"/v1/requests/{claimed['id']}/complete", done)

    completion = {"model": "clerk", "messages": [{"role": "user", "content": "Where is order 17?"}]}
    message = {"message": "Where is order 17?", "context": {"conversation": {"id": session}}}
    headers = {"x-statehold-session": session}
    for op, body, more in (("createChatCompletion", completion, {"headers": headers}),
                           ("createDialChatCompletion", completion, {"headers": headers, "deployment": "clerk"}),
                           ("sendChatMessage", message, {})):
        for make, body in ((recorder.call, body), (recorder.read, {**body, "stream": True})):
            worker = threading.Thread(target=answer)
            worker.start()
            make("client", op, body, **more)
            worker.join()
    recorder.call("client", "listDialDeployments")
    recorder.call("client", "getDialDeployment", deployment="clerk")
    recorder.call("client", "getDialConfiguration", deployment="clerk")
    recorder.call("client", "rateDialAnswer", {"responseId": "1", "rate": True}, deployment="clerk")


def operate(recorder):
    call = recorder.call
    call("admin", "createKey", {"name": "books of the shop", "roles": ["worker"], "agents": ["payer"], "owner": "ann"})
    call("admin", "listKeys", query="?limit=1")
    call("admin", "listKeyRing")
    call("admin", "rotateKeyRing", special=True)
    call("admin", "reloadConfiguration", {})
    call("approver", "listAgents")
    call("approver", "getAgent", agent="payer")
    call("admin", "setResumeAddress", {"url": "https://workers.example.com/resume"}, agent="payer")
    call("admin", "getResumeAddress", special=True, agent="payer")
    call("operator", "listAuditRecords", query="?limit=1&after=4")
    call("operator", "verifyStore", {})
    call("client", "getHealth")
    call("client", "getReadiness", special=True)
    call("client", "listModels")
    call("client", "getModel", model="clerk")
    recorder.read("operator", "getMetrics")
    call("admin", "eraseUser", user="ann")


def clean(value, name=""):
    """A value without secrets."""
    if isinstance(value, dict):
        return {name: clean(one, name) for name, one in value.items()}
    if isinstance(value, list):
        return [clean(one) for one in value]
    if not isinstance(value, str):
        return value
    return CUT if name in SEALED else SECRET.sub(CUT, value)


def shape(value):
    """The fields of a value and the kinds of their values; of a text the beginnings of its lines."""
    if isinstance(value, dict):
        return {name: shape(one) for name, one in value.items()}
    if isinstance(value, list):
        return [shape(one) for one in value]
    if isinstance(value, str) and "\n" in value:
        return [line.split(":")[0] for line in value.splitlines() if not line.startswith("#")]
    return type(value).__name__


def check(document):
    server = Server("examples", CONFIG)
    server.keys["operator"] = server.call("admin", "/v1/keys", {"name": "operator", "roles": ["operator"]})["key"]
    recorder = Recorder(server, document)
    play(recorder)
    found = clean(recorder.examples)
    found["getApiDocument"] = {"openapi": document["openapi"], "info": {
        "title": document["info"]["title"], "version": document["info"]["version"]}}
    metrics = [line for line in found["getMetricsText"].splitlines() if line.startswith(METRICS)]
    found["getMetricsText"] = "\n".join([*metrics, "# EOF", ""])
    found = dict(sorted(found.items(), key=lambda one: one[0].lower()))
    if os.environ.get("UPDATE"):
        with open(RECORDED, "w") as file:
            json.dump(found, file, indent=2, ensure_ascii=False)
            file.write("\n")
    recorded = json.load(open(RECORDED))
    for name in sorted(found.keys() | recorded.keys()):
        now, then = shape(found.get(name)), shape(recorded.get(name))
        assert now == then, f"the example {name} is out of date, write all with UPDATE=1: {now} is not {then}"
    server.stop()
    say(f"{len(found)} examples are what the server says")
