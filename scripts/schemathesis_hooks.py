"""Leads generated calls to objects that exist: an id that nobody gave out only ever finds a 404.

Ids, fences and digests are picked up from answers and put into later calls. What was generated to be
wrong stays wrong. Waits are kept short.
"""

import random
import re
from collections import defaultdict, deque

import requests
import schemathesis

ID = re.compile(r'"((ses|tsk|req|hld|key)_[0-9a-f]{32})"')
KINDS = {"session_id": "ses", "task_id": "tsk", "request_id": "req", "hold_id": "hld"}
KINDS |= {"parent_request_id": "req", "key_id": "key"}
CALLS_PER_STOCK = 25

choice = random.Random(20261115)
known = defaultdict(lambda: deque(maxlen=12))
leased = deque(maxlen=12)
asked = deque(maxlen=12)
calls = 0


def note(answer):
    """Remembers what an answer names. A backup is no text."""
    try:
        said = answer.text
    except UnicodeDecodeError:
        return
    for text, kind in ID.findall(said):
        if text not in known[kind]:
            known[kind].append(text)
    try:
        body = answer.json()
    except ValueError:
        return
    if not isinstance(body, dict):
        return
    for found in [body, *body.get("requests", []), *body.get("holds", [])]:
        if not isinstance(found, dict) or not isinstance(found.get("id"), str):
            continue
        if found.get("status") == "running" and "fence" in found:
            leased.append((found["session_id"], found["id"], found["fence"]))
        if found.get("status") == "open" and isinstance(found.get("action"), dict):
            asked.append((found["request_id"], found["id"], found["action"]["digest"]))


def stock(base):
    """Makes fresh objects, because the calls close, cancel and delete what they find."""

    def post(path, body):
        answer = requests.post(base + path, json=body, timeout=10)
        answer.raise_for_status()
        note(answer)
        return answer.json()

    session = post("/v1/sessions", {"app": "fuzz", "user": "ada", "state": {"n": 1}})["id"]
    start = f"/v1/sessions/{session}/requests"
    turn = {"input": "hello", "agent": "a", "lease": {"ttl_seconds": 600}}
    asking = post(start, turn)
    action = {"tool": "pay", "args": {"sum": 1}, "args_schema": {"type": "object"}}
    hold = {"fence": asking["fence"], "kind": "approval", "title": "Pay?", "action": action}
    post(f"/v1/requests/{asking['id']}/holds", hold)
    post(start, {"input": "queued", "agent": "a"})
    for _ in range(3):
        working = post(start, turn)
    below = {"input": "x", "parent_request_id": working["id"], "parent_fence": working["fence"]}
    post(start, below)
    post(start, {**turn, "output": "done"})
    post("/v1/keys", {"roles": ["client"]})
    address = {"url": "https://worker.invalid/resume"}
    requests.put(f"{base}/v1/agents/a/resume_address", json=address, timeout=10).raise_for_status()


@schemathesis.hook
def before_call(context, case, kwargs):
    global calls
    if calls % CALLS_PER_STOCK == 0:
        stock(case.operation.base_url.rstrip("/"))
    calls += 1
    shorten_waits(case)
    if choice.random() < 0.1:
        return
    wrong = wrong_parts(case)
    if "path" not in wrong and isinstance(case.path_parameters, dict):
        lead(case.path_parameters)
        if "app" in case.path_parameters:
            case.path_parameters["app"] = "fuzz"
        if "agent" in case.path_parameters:
            case.path_parameters["agent"] = "a"
        # The list of deployments names an agent without a worker: each call to it would wait until its time is over.
        if case.path.endswith("/chat/completions") and "deployment" in case.path_parameters:
            case.path_parameters["deployment"] = "nobody"
        if "user" in case.path_parameters and choice.random() < 0.5:
            case.path_parameters["user"] = "ada"
    if "query" not in wrong and isinstance(case.query, dict):
        # A cursor or a filter that was made up finds nothing.
        for name in ("cursor", "user", "label", "q", "agent", "app"):
            if choice.random() < 0.8:
                case.query.pop(name, None)
        if "request_id" in case.query and leased and "path" not in wrong:
            case.path_parameters["session_id"], case.query["request_id"], _ = choice.choice(leased)
    if "header" not in wrong and case.headers is not None:
        if "Idempotency-Key" in case.headers and choice.random() < 0.8:
            case.headers["Idempotency-Key"] = f"key-{calls}"
        if "If-Match" in case.headers and choice.random() < 0.95:
            del case.headers["If-Match"]
    if "body" not in wrong and isinstance(case.body, dict):
        if case.path.endswith("/resume_address"):
            case.body["url"] = "https://worker.invalid/resume"
        lead_body(case, wrong)


def shorten_waits(case):
    for values, name in ((case.query, "wait"), (case.body, "wait_seconds")):
        if isinstance(values, dict) and name in values and str(values[name]).isdigit():
            if int(values[name]) <= 60:
                values[name] = 0


def wrong_parts(case):
    """The parts of a call that were generated to be refused."""
    components = case.meta.components.items() if case.meta else ()
    return {place.name.lower() for place, part in components if part.mode.is_negative}


def lead(values):
    for name, kind in KINDS.items():
        if name in values and known[kind]:
            values[name] = choice.choice(known[kind])


def lead_body(case, wrong):
    body = case.body
    path = case.path_parameters if case.path_parameters and "path" not in wrong else {}
    lead(body)
    if "fence" in body and leased:
        session, request, body["fence"] = choice.choice(leased)
        if "session_id" in path:
            path["session_id"], body["request_id"] = session, request
        else:
            path["request_id"] = request
    if "decision" in body and asked:
        request, hold, digest = choice.choice(asked)
        path.update({name: {"request_id": request, "hold_id": hold}[name] for name in path})
        if "hold_id" in body:
            body["hold_id"] = hold
        if choice.random() < 0.8:
            body["digest"] = digest
        if choice.random() < 0.8:
            body["decision"] = choice.choice(["approve", "edit", "reject", "respond"])
            body["content"] = "no"
            body.pop("args", None)
            if body["decision"] == "edit":
                body["args"] = {"sum": 2}
    if "parent_request_id" in body and leased:
        _, body["parent_request_id"], body["parent_fence"] = choice.choice(leased)
    for name in ("task_id", "parent_request_id", "parent_fence"):
        if choice.random() < 0.7:
            body.pop(name, None)
    for name, value in (("agent", "a"), ("user", "ada")):
        if name in body and choice.random() < 0.8:
            body[name] = value
    if case.method.upper() == "PATCH" and not body.get("set") and choice.random() < 0.7:
        if "state" in case.operation.path:
            body["set"] = {"k": len(body)}
        elif case.operation.path.endswith("{session_id}"):
            body["labels"] = {"k": "v"}
    if case.operation.path.endswith("/messages") and choice.random() < 0.7:
        # Roles and files that were made up fit no message.
        body["role"] = choice.choice(["user", "assistant"])
        body.pop("attachments", None)
    if case.operation.path.endswith("/items") and not body.get("items"):
        body["task_state"] = calls


@schemathesis.hook
def after_call(context, case, response):
    if 200 <= response.status_code < 300 and response.content:
        note(response)
