"""Reads, follows and writes conversations with the Python package for MCP: mcp STATEHOLD. Prints what was seen to work.

Every check runs in both eras of the protocol: with sessions that begin with `initialize`, and without.
"""

import asyncio
import contextlib
import json
import urllib.error
import urllib.request
import warnings

import httpx2
import mcp
import mcp.types as types
from mcp.client.streamable_http import streamable_http_client

import rig
from rig import Server, say

# Older clients subscribe in the older way.
warnings.simplefilter("ignore", mcp.MCPDeprecationWarning)
MODERN, LEGACY = "2026-07-28", "legacy"
CANARY = "canary-8d1f"


@contextlib.asynccontextmanager
async def client(server, key, era, heard=None, **more):
    """A client with a key. What it is notified of goes to `heard`."""
    async def hear(message):
        if heard is not None and isinstance(message, types.ResourceUpdatedNotification):
            heard.append(str(message.params.uri))

    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with httpx2.AsyncClient(headers=headers, timeout=30) as http:
        transport = streamable_http_client(f"{server.url}/mcp", http_client=http)
        async with mcp.Client(transport, mode=era, message_handler=hear, cache=None, **more) as made:
            yield made


async def document(made, uri):
    """A resource as it is sent, and as JSON."""
    read = await made.read_resource(uri)
    assert len(read.contents) == 1 and read.contents[0].mime_type == "application/json", read
    return read, json.loads(read.contents[0].text)


async def tool(made, name, **arguments):
    done = await made.call_tool(name, arguments)
    assert not done.is_error, done
    return done.structured_content


async def error_of(call):
    try:
        await call
    except mcp.MCPError as error:
        return error.error
    raise AssertionError("no error")


def history_of(session):
    return f"conversation://{session}/history"


async def writes(server, era):
    """A conversation is written by tools and read as a resource."""
    async with client(server, server.keys["client"], era) as made:
        names = {one.name for one in (await made.list_tools()).tools}
        assert {"open_session", "append_message", "start_task", "open_hold", "decide_hold", "list_holds", "get_state",
                "put_state"} <= names, names
        session = (await tool(made, "open_session", app="demo", user="ann", idempotency_key=f"open-{era}"))["id"]
        again = (await tool(made, "open_session", app="demo", user="ann", idempotency_key=f"open-{era}"))["id"]
        assert again == session
        for role, content in ("user", "What is 2+2?"), ("assistant", "4"):
            said = {"session_id": session, "role": role, "content": content, "idempotency_key": f"{era}-{role}"}
            first = await tool(made, "append_message", **said)
            assert await tool(made, "append_message", **said) == first, "a repeat is the same message"
        read, found = await document(made, history_of(session))
        assert [(one["role"], one["content"]) for one in found["messages"]] == [("user", "What is 2+2?"), ("assistant", "4")]
        assert all(one["created_at"] for one in found["messages"])
        assert read.contents[0].meta["statehold/revision"] == found["rev"] == 3, read
        if era == MODERN:
            assert (read.ttl_ms, read.cache_scope) == (0, "private"), read
        fixed, _ = await document(made, f"{history_of(session)}?rev=3")
        await tool(made, "append_message", session_id=session, role="user", content="And 3+3?")
        same, _ = await document(made, f"{history_of(session)}?rev=3")
        assert fixed.contents == same.contents, "a revision is the same for ever"
        _, tail = await document(made, f"{history_of(session)}?after=3")
        assert [one["content"] for one in tail["messages"]] == ["And 3+3?"], tail
        _, none = await document(made, f"{history_of(session)}?after=4")
        assert none["messages"] == [] and none["rev"] == 4
        written = await tool(made, "put_state", session_id=session, key="intents", value=["sums"], if_version=0)
        assert written["versions"] == {"intents": 5}, written
        refused = await made.call_tool("put_state", {"session_id": session, "key": "intents", "value": 1, "if_version": 0})
        assert refused.is_error and refused.structured_content["code"] == "version_conflict", refused
        assert (await tool(made, "get_state", session_id=session, keys="intents"))["state"] == {"intents": ["sums"]}
        _, state = await document(made, f"conversation://{session}/state")
        assert state["state"]["intents"] == ["sums"]
        first = found["messages"][0]["seq"]
        await tool(made, "annotate", session_id=session, seq=first, annotations={"mood": "calm"})
        await tool(made, "annotate", session_id=session, annotations={"intents": ["sums"]}, idempotency_key=f"{era}-a")
        _, marked = await document(made, history_of(session))
        assert marked["messages"][0]["annotations"] == {"mood": "calm"}, marked
        assert marked["metadata"] == {"intents": ["sums"]}, marked
        same, _ = await document(made, f"{history_of(session)}?rev=3")
        assert fixed.contents == same.contents, "a revision is the same for ever"
        # Clients check results against the schema of the tool.
        assert (await tool(made, "get_state", session_id=session, keys="intents"))["state"] == {"intents": ["sums"]}
        await tool(made, "get_state", session_id=session)
        listed = [str(one.uri) for one in (await made.list_resources()).resources]
        assert history_of(session) in listed, listed
        templates = [one.uri_template for one in (await made.list_resource_templates()).resource_templates]
        assert "conversation://{session_id}/history{?rev,after}" in templates, templates
        error = await error_of(made.read_resource("conversation://current-history"))
        assert "needs a token of one session" in error.message, error
    return session


async def rights(server, era, session):
    """Nothing hidden and nothing foreign is ever in a resource; a token reads one conversation and does nothing else."""
    request = server.call("client", f"/v1/sessions/{session}/requests", {"agent": "math", "input": "Add them up"})
    claimed = server.call("worker", "/v1/work/claim", {"agent": "math", "request_id": request["id"]})["requests"][0]
    server.call("worker", f"/v1/requests/{request['id']}/complete", {
        "fence": claimed["fence"], "output": "10", "task_state": {"note": CANARY},
        "items": [{"kind": "tool_call", "name": CANARY, "call_id": "c1", "arguments": {"secret": CANARY}},
                  {"kind": "tool_result", "call_id": "c1", "result": CANARY}]})
    parts = [history_of(session), f"conversation://{session}/state", f"conversation://{session}/tasks",
             f"conversation://{session}/tasks/{request['task_id']}", f"conversation://{session}/holds"]
    missing = "conversation://ses_01977777777770008000000000000001"
    foreign = server.keys[f"bob-{era}"] if f"bob-{era}" in server.keys else None
    if foreign is None:
        foreign = server.run("token", "create", "--role", "client", "--user", "bob", role="admin").strip()
    token = server.call("client", f"/v1/sessions/{session}/tokens", {})["token"]
    async with client(server, server.keys["client"], era) as made:
        for uri in parts:
            read, _ = await document(made, uri)
            assert CANARY not in read.contents[0].text, uri
        refused = await error_of(made.read_resource(f"conversation://{session}/trace"))
        assert "operator" in refused.message, refused
    async with client(server, server.keys["admin"], era) as made:
        read, _ = await document(made, f"conversation://{session}/trace")
        assert CANARY in read.contents[0].text, "an operator sees everything"
    async with client(server, foreign, era) as made:
        assert not (await made.list_resources()).resources
        for uri in parts[:-1]:
            wrong = await error_of(made.read_resource(uri))
            same = await error_of(made.read_resource(uri.replace(f"conversation://{session}", missing)))
            assert (wrong.code, wrong.message) == (same.code, same.message), (wrong, same)
    async with client(server, token, era) as made:
        listed = [str(one.uri) for one in (await made.list_resources()).resources]
        assert listed == ["conversation://current-history", history_of(session)], listed
        read, plain = await document(made, "conversation://current-history")
        assert plain[0] == {"role": "user", "content": "What is 2+2?"} and CANARY not in read.contents[0].text, plain
        assert read.contents[0].meta["statehold/revision"], read
        for name, arguments in {"append_message": {"session_id": session, "role": "user", "content": "x"},
                                "put_state": {"session_id": session, "key": "a", "value": 1},
                                "open_session": {"app": "demo", "user": "ann"}, "list_holds": {},
                                "start_task": {"session_id": session, "input": "x"}}.items():
            done = await made.call_tool(name, arguments)
            assert done.is_error and done.structured_content["code"] == "forbidden", (name, done)
        for uri in (f"conversation://{session}/trace", f"{missing}/history"):
            await error_of(made.read_resource(uri))
    for method, path in ("GET", "/v1/sessions"), ("GET", "/v1/holds"), ("POST", f"/v1/sessions/{session}/tokens"):
        sent = urllib.request.Request(server.url + path, b"{}" if method == "POST" else None,
                                      {"Authorization": f"Bearer {token}", "Content-Type": "application/json"})
        refused = rig.refused(urllib.error.HTTPError, lambda sent=sent: urllib.request.urlopen(sent, timeout=30))
        assert refused.code == 403, (path, refused.code)


async def waits(find, seconds=20):
    for _ in range(seconds * 20):
        if find():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("waited in vain")


async def follows(server, era, session):
    """A subscriber hears of a change after its commit, and of nothing that it may not read."""
    uris = [history_of(session), f"conversation://{session}/state"]
    foreign = server.call("client", "/v1/sessions", {"app": "demo", "user": "eve"})["id"]
    token = server.call("client", f"/v1/sessions/{session}/tokens", {})["token"]
    heard = []
    async with client(server, token, era, heard) as made:
        async with contextlib.AsyncExitStack() as stack:
            if era == MODERN:
                asked = [*uris, history_of(foreign)]
                listened = await stack.enter_async_context(made.listen(resource_subscriptions=asked))
                assert listened.honored.resource_subscriptions == uris, listened.honored

                async def hear():
                    async for event in listened:
                        heard.append(event.uri)
                following = asyncio.ensure_future(hear())
                stack.callback(following.cancel)
            else:
                for uri in uris:
                    await made.subscribe_resource(uri)
                await error_of(made.subscribe_resource(history_of(foreign)))
            append = lambda: server.call("client", f"/v1/sessions/{session}/messages", {"role": "user", "content": "News"})
            append()
            await waits(lambda: uris[0] in heard)
            assert uris[1] not in heard, heard
            server.call("client", f"/v1/sessions/{session}/state", {"set": {"n": 1}}, method="PATCH")
            await waits(lambda: uris[1] in heard)
            server.call("client", f"/v1/sessions/{foreign}/messages", {"role": "user", "content": "Hidden"})
            for _ in range(20):
                append()
            before = heard.count(uris[0])
            await waits(lambda: heard.count(uris[0]) > before or before > 1)
            assert heard.count(uris[0]) <= 21 and set(heard) == set(uris), heard


async def asks(server, era, session):
    """The person behind a client is asked for what a request waits for, and the request goes on with the answer."""
    agent = "shop" if era == MODERN else "store"
    session = server.call("client", "/v1/sessions", {"app": "demo", "user": "ann", "agent": agent})["id"]
    seen, replies = [], ["cancel", "answer"]

    async def elicit(context, params):
        seen.append(params)
        reply = replies.pop(0)
        if reply == "cancel":
            return types.ElicitResult(action="cancel")
        return types.ElicitResult(action="accept", content={"answer": "Berlin"})

    async def work():
        """A worker that asks where to, and sends it there."""
        claim = {"agent": agent, "wait_seconds": 20}
        claimed = (await asyncio.to_thread(server.call, "worker", "/v1/work/claim", claim))["requests"][0]
        path, fence = f"/v1/requests/{claimed['id']}", claimed["fence"]
        hold = {"fence": fence, "kind": "question", "title": "Where to?", "message": "We deliver in Europe."}
        hold = await asyncio.to_thread(server.call, "worker", f"{path}/holds", hold)
        told = await asyncio.to_thread(rig.until, lambda: (
            found := server.call("worker", path)["holds"][0])["status"] == "answered" and found)
        done = {"fence": fence, "output": f"Sent to {told['decision']['content']}"}
        await asyncio.to_thread(server.call, "worker", f"{path}/complete", done)

    bound = server.run("token", "create", "--role", "client", "--user", "ann", role="admin").strip()
    worker = asyncio.ensure_future(work())
    async with client(server, bound, era, elicitation_callback=elicit) as made:
        started = {"session_id": session, "input": "Buy a book", "wait_seconds": 20 if era == MODERN else 2, "idempotency_key": f"buy-{era}"}
        done = await made.call_tool("start_task", started)
        # The person closed the form: nothing was decided, and the client asks again later.
        assert done.structured_content["status"] == "held", done
        done = await made.call_tool("get_request", {"request_id": done.structured_content["id"], "wait_seconds": 20})
        assert not done.is_error and done.structured_content["output"] == "Sent to Berlin", done
        assert len(seen) == 2 and "Where to?" in seen[0].message and "We deliver in Europe." in seen[0].message, seen
    await worker
    found = server.call("client", f"/v1/sessions/{session}/messages")["messages"]
    assert [one["content"] for one in found] == ["Buy a book", "Sent to Berlin"], found


async def seals(server, era, session):
    """A state that was changed, or belongs to somebody else, decides nothing."""
    session = server.call("client", "/v1/sessions", {"app": "demo", "user": "ann", "agent": "sealed"})["id"]
    request = server.call("client", f"/v1/sessions/{session}/requests", {"input": "Go"})
    claimed = server.call("worker", "/v1/work/claim", {"agent": "sealed"})["requests"][0]
    hold = server.call("worker", f"/v1/requests/{request['id']}/holds",
                       {"fence": claimed["fence"], "kind": "question", "title": "Sure?"})
    keys = [server.run("token", "create", "--role", "client", "--user", user, role="admin").strip()
            for user in ("ann", "eve")]

    async def elicit(context, params):
        raise AssertionError("driven by hand")

    async with client(server, keys[0], MODERN, elicitation_callback=elicit) as made, \
            client(server, keys[1], MODERN, elicitation_callback=elicit) as foreign:
        arguments = {"request_id": request["id"]}
        asked = await made.session.call_tool("get_request", arguments, allow_input_required=True)
        assert set(asked.input_requests) == {hold["id"]} and asked.request_state, asked
        answer = {hold["id"]: types.ElicitResult(action="accept", content={"answer": "yes"})}
        state = asked.request_state
        for who, used in (made, state[:-2] + "AA"), (foreign, state), (made, "x"):
            refused = await who.session.call_tool("get_request", arguments, input_responses=answer, request_state=used,
                                                  allow_input_required=True)
            assert refused.is_error, refused
        assert server.call("client", f"/v1/holds/{hold['id']}")["status"] == "open"
        for _ in range(2):
            done = await made.session.call_tool("get_request", arguments, input_responses=answer, request_state=state,
                                                allow_input_required=True)
            assert not done.is_error and done.structured_content["status"] == "running", done
        other = {hold["id"]: types.ElicitResult(action="accept", content={"answer": "no"})}
        late = await made.session.call_tool("get_request", arguments, input_responses=other, request_state=state,
                                            allow_input_required=True)
        assert late.is_error and late.structured_content["code"] == "hold_decided", late


async def restarts(server, era, session):
    """A client goes on with a server that was killed and started again."""
    async with client(server, server.keys["client"], era) as made:
        _, before = await document(made, history_of(session))
        server.kill()
        server.start()
        _, after = await document(made, history_of(session))
        assert before == after
        if era == LEGACY:
            await made.subscribe_resource(history_of(session))


async def ends(server, era, session):
    """A key that is revoked hears nothing more."""
    key = server.run("token", "create", "--role", "client", "--name", f"brief-{era}", role="admin").strip()
    listed = server.call("admin", "/v1/keys")["keys"]
    key_id = next(one["id"] for one in listed if one.get("name") == f"brief-{era}")
    sent = urllib.request.Request(f"{server.url}/v1/sessions/{session}/tokens", b"{}",
                                  {"Authorization": f"Bearer {key}", "Content-Type": "application/json"})
    token = json.load(urllib.request.urlopen(sent, timeout=30))["token"]
    server.call("admin", f"/v1/keys/{key_id}", method="DELETE")
    sent = urllib.request.Request(f"{server.url}/v1/sessions/{session}/messages",
                                  headers={"Authorization": f"Bearer {token}"})
    refused = rig.refused(urllib.error.HTTPError, lambda: urllib.request.urlopen(sent, timeout=30))
    assert refused.code == 401, refused.code


async def pipes(server, era, session):
    """A program that starts its servers reads one session through standard input and output."""
    env = {"STATEHOLD_URL": server.url, "STATEHOLD_TOKEN": server.keys["client"]}
    heard = []

    async def hear(message):
        if isinstance(message, types.ResourceUpdatedNotification):
            heard.append(str(message.params.uri))

    for bound in (["--session", session], []):
        started = mcp.StdioServerParameters(command=rig.PROGRAM, args=["mcp", *bound], env=env)
        async with mcp.Client(started, mode=era, message_handler=hear, cache=None) as made:
            _, found = await document(made, history_of(session))
            assert found["messages"], found
            if not bound:
                await tool(made, "append_message", session_id=session, role="user", content="Through a pipe – äöü")
                await error_of(made.read_resource("conversation://nothing/\u00e4"))
                continue
            _, plain = await document(made, "conversation://current-history")
            assert len(plain) == len(found["messages"])
            done = await made.call_tool("append_message", {"session_id": session, "role": "user", "content": "x"})
            assert done.is_error, done
            if era == LEGACY:
                await made.subscribe_resource(history_of(session))
                server.call("client", f"/v1/sessions/{session}/messages", {"role": "user", "content": "News"})
                await waits(lambda: heard)
            else:
                async with made.listen(resource_subscriptions=[history_of(session)]) as listened:
                    server.call("client", f"/v1/sessions/{session}/messages", {"role": "user", "content": "News"})
                    assert (await anext(aiter(listened))).uri == history_of(session)


def check():
    server = Server("mcp")
    for era in MODERN, LEGACY:
        session = asyncio.run(writes(server, era))
        say(f"{era}: {writes.__doc__.lower().rstrip('.')}")
        for part in rights, follows, asks, pipes, restarts, ends:
            asyncio.run(part(server, era, session))
            say(f"{era}: {part.__doc__.lower().rstrip('.')}")
    asyncio.run(seals(server, MODERN, None))
    say(seals.__doc__.lower().rstrip("."))
    server.stop()


rig.play(check)
