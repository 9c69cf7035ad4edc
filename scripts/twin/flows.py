"""Steps of several calls: a chat that waits while its worker works, an action from its question to its result."""

import threading



def turn(run, ask, work):
    """Sends a chat to both servers, has `work` done meanwhile, and compares what the chat was answered."""
    there = ask.translated(run.pairs.translate)
    answers = {}

    def send(name, side, call):
        try:
            answers[name] = side.plain(call.method, call.path, call.headers, call.body)
        except OSError:
            return

    threads = [threading.Thread(target=send, args=one) for one in (("old", run.old, ask), ("new", run.new, there))]
    for thread in threads:
        thread.start()
    work()
    for thread in threads:
        thread.join(60)
    if "old" not in answers or "new" not in answers:
        run.differ(ask, f"no answer: {sorted(answers)} came", "")
        return None
    run.made += 1
    run.counts[ask.op][answers["old"].status] += 1
    run.compare(ask, answers["old"], answers["new"])
    run.world.learn(ask, answers["old"])
    return answers["old"]


def begin(run, stream):
    """A session with a worker, and the chat that speaks to it. Work that was left over is claimed before."""
    world = run.world
    left = {"agent": "desk", "lease_seconds": 600, "max": 100}
    run.make(world.plain("claimRequests", "worker", body=left))
    made = run.make(world.plain("createSession", "ann", body={"app": "demo", "agent": "desk"})).json() or {}
    body = {"model": "desk", "messages": [{"role": "user", "content": world.fresh("please")}]}
    if stream:
        body["stream"] = True
    call = world.plain("createChatCompletion", "ann", body=body)
    call.headers["x-statehold-session"] = made.get("id", "new")
    return call


def claimed(run, call):
    """The request that the chat has started, once it is there."""
    body = {"agent": "desk", "lease_seconds": 600, "wait_seconds": 10, "max": 100}
    found = (run.make(run.world.plain("claimRequests", "worker", body=body)).json() or {}).get("requests", [])
    session = call.headers["x-statehold-session"]
    return next((one for one in found if one["session_id"] == session), None)


def post(run, op, role, request, **body):
    at = {"request_id": request["id"]}
    return run.make(run.world.plain(op, role, at, {"fence": request["fence"], **body}))


def answered(run, stream=False):
    """A worker answers, and the same words are said once more."""
    call = begin(run, stream)

    def work():
        if request := claimed(run, call):
            post(run, "appendItems", "worker", request, items=[{"kind": "step", "data": {"usage": {"total_tokens": 2}}}])
            post(run, "completeRequest", "worker", request, output="here you are")

    turn(run, call, work)


def asked(run, stream=False):
    """A worker asks a question; the chat is told, answers it with plain words, and gets its answer."""
    call = begin(run, stream)
    kept = []

    def work():
        if request := claimed(run, call):
            kept.append(request)
            post(run, "openHold", "worker", request, kind="question", title="Which one?", decide_by="user")

    turn(run, call, work)
    if not kept:
        return
    call = run.world.plain("createChatCompletion", "ann", body={
        "model": "desk", "messages": [{"role": "user", "content": "the blue one"}], "stream": stream})
    call.headers["x-statehold-session"] = kept[0]["session_id"]

    def goes_on():
        found = {}
        for _ in range(200):
            found = run.old.plain(*read_of(run, kept[0])).json() or {}
            there = run.new.plain(*read_of(run, kept[0], run.pairs.translate)).json() or {}
            if found.get("status") != "held" and there.get("status") != "held":
                break
        post(run, "completeRequest", "worker", kept[0], output="blue it is")

    turn(run, call, goes_on)


def read_of(run, request, translate=str):
    call = run.world.plain("getRequest", "worker", {"request_id": request["id"]}, query={"wait": 0}).translated(translate)
    return call.method, call.path, call.headers, call.body


def approved(run):
    """A worker asks for an approval; the chat is told that it waits; a person approves; the answer comes later."""
    call = begin(run, False)
    kept = []

    def work():
        if request := claimed(run, call):
            args = {"password": "hunter2", "to": "a@b.example"}
            hold = post(run, "openHold", "worker", request, kind="approval", title="Send?", decide_by="other",
                        action={"tool": "mail", "args": args}).json()
            kept.extend([request, hold])

    turn(run, call, work)
    if len(kept) < 2 or not kept[1] or "action" not in kept[1]:
        return
    request, hold = kept
    run.make(run.world.plain("getHold", "approver", {"hold_id": hold["id"]}))
    run.make(run.world.plain("getHold", "ann", {"hold_id": hold["id"]}))
    decision = {"decision": "edit", "digest": hold["action"]["digest"],
                "args": {"password": "[redacted:secret-key-name]", "to": "c@d.example"}}
    for role in ("approver", "approver", "carol"):
        run.make(run.world.plain("decideHold", role, {"hold_id": hold["id"]}, decision))
    run.make(run.world.plain("getRequest", "worker", {"request_id": request["id"]}))
    post(run, "appendItems", "worker", request, items=[
        {"kind": "tool_result", "call_id": hold.get("execution_key", "x"), "result": "sent"}])
    post(run, "completeRequest", "worker", request, output="sent")
    again = run.world.plain("createChatCompletion", "ann", body={"model": "echo", "messages": [{"role": "user", "content": "and?"}]})
    again.headers["x-statehold-session"] = request["session_id"]
    run.make(again)


def served(run):
    """A plain request to an agent that the server runs, read when it has ended."""
    world = run.world
    made = run.make(world.plain("createSession", "ann", body={"app": "demo", "agent": "echo"})).json() or {}
    at = {"session_id": made.get("id", "none")}
    text = world.pick(["hello", "boom", "think"])
    asked = run.make(world.plain("startRequest", "ann", at, {"input": text, "agent": world.pick(["echo", "front"])})).json() or {}
    if "id" in asked:
        run.make(world.plain("getRequest", "ann", {"request_id": asked["id"]}, query={"wait": 20}))


def gated(run):
    """An action that people decide about in every way, twice and by several, until its worker has the result."""
    world = run.world
    session = world.pick([one for one, known in world.sessions.items() if known["open"]])
    begun = {"agent": "clerk", "input": "pay", "lease": {"ttl_seconds": 600}}
    request = run.make(world.plain("startRequest", "clerk", {"session_id": session}, begun)).json() or {}
    if request.get("status") != "running":
        return
    tool = world.pick(["pay", "wire", "free"])
    args = {"card": "4111111111111111", "amount": 5, "password": "hunter2", "to": [{"pin": "1234"}]}
    action = {"tool": tool, "args": args, "args_schema": {"type": "object"}}
    hold = post(run, "openHold", "clerk", request, kind="approval", title="Pay?", action=action).json() or {}
    if "action" not in hold:
        return
    word = world.pick(["approve", "approve", "edit", "reject", "respond"])
    decision = {"decision": word, "comment": "seen"}
    if word in ("approve", "edit"):
        decision["digest"] = hold["action"]["digest"]
    if word == "edit":
        decision["args"] = {"card": "[redacted:path]", "amount": 6, "password": "[redacted:secret-key-name]", "to": [{"pin": "9"}]}
    if word == "respond":
        decision["content"] = {"paid": "by hand"}
    for role in ("approver", "client", "operator", "clerk", "tina"):
        run.make(world.plain("getHold", role, {"hold_id": hold["id"]}))
    key = world.fresh("decision")
    by_request = world.chance(0.4)
    for role in world.pick([("tina", "tina", "tom", "approver"), ("approver", "carol", "tom"), ("tom", "tina", "tina")]):
        at = {"request_id": request["id"]} if by_request else {"hold_id": hold["id"]}
        call = world.plain("decideRequestHold" if by_request else "decideHold", role, at, decision)
        call.headers["Idempotency-Key"] = key
        world.kept.append(call)
        run.make(call)
    if world.chance(0.4):
        post(run, "releaseLease", "clerk", request)
        claim = {"agent": "clerk", "lease_seconds": 600, "request_id": request["id"]}
        found = run.make(world.plain("claimRequests", "worker", body=claim)).json() or {}
        request = (found.get("requests") or [request])[0]
    outcome = {"reject": "refused", "respond": "answered"}.get(word, "ran")
    by = world.requests.get(request["id"], {}).get("holder") or "clerk"
    post(run, "appendItems", by, request, items=[
        {"kind": "tool_result", "call_id": hold["execution_key"], "result": 1, "outcome": outcome}])
    for role in ("approver", "operator", "client", "worker"):
        run.make(world.plain("getHold", role, {"hold_id": hold["id"]}))
        run.make(world.plain("getTask", role, {"task_id": request["task_id"]}))


def ended(run):
    """Every way in which a request, a task and a session can end, each made twice."""
    world = run.world
    role = world.pick(["ann", "bob"])
    made = run.make(world.plain("createSession", role, body={"app": "demo", "agent": "clerk"})).json() or {}
    at = {"session_id": made.get("id", "none")}
    for end in ("cancelRequest", "closeTask", "cancelTask"):
        asked = run.make(world.plain("startRequest", role, at, {"input": "x"})).json() or {}
        if "id" not in asked:
            return
        if end == "closeTask":
            run.make(world.plain("cancelRequest", role, {"request_id": asked["id"]}, {}))
        ids = {"request_id": asked["id"], "task_id": asked["task_id"]}
        twice(run, world.plain(end, role, ids, {}))
    end = world.pick(["closeSession", "deleteSession"])
    twice(run, world.plain(end, role, at, {"cancel_live": True} if end == "closeSession" else None))


def twice(run, call):
    call.headers["Idempotency-Key"] = run.world.fresh("twice")
    run.world.kept.append(call)
    run.make(call)
    run.make(call)


def feeds(run):
    """Who is refused a feed, and how. One that begins is closed again."""
    world = run.world
    session = world.pick([*world.sessions, world.odd_id("ses")])
    role = world.pick([*world.keys, "none", "garbage"])
    for op, path in (("followSessions", "/v1/events"), ("followHolds", "/v1/holds/events"),
                     ("followSession", f"/v1/sessions/{session}/events" + world.pick(["", "?after=0", "?after=x"]))):
        call = world.feed_call(path, role)
        if role in world.keys:
            call.headers["Authorization"] = f"Bearer {world.keys[role]}"
        if world.chance(0.3):
            call.headers["Last-Event-ID"] = world.pick(["x", "3", "99999999999999999999"])
        there = call.translated(run.pairs.translate)
        old, new = run.old.begin(call), run.new.begin(there)
        run.made += 1
        run.counts[op][old.status] += 1
        run.compare(call, old, new)
        world.learn(call, old)


FLOWS = [gated, gated, gated, gated, ended, feeds, answered, lambda run: answered(run, True), asked, lambda run: asked(run, True), approved, served]
