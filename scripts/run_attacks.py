"""Tries to reach objects of others: run_attacks.py STATEHOLD

Every operation of openapi.json is called by every role, on an object of its own, a foreign one and one that is
missing. The calls are built from the document: each id in a path, a query, a header or a body is one that the
attack chooses, so a new operation is attacked without a change here. The routes of ADK and of the Conversational
Analytics API, which the document does not have, are listed here. Five things fail:

- a success on a foreign object, unless `MAY_REACH` says that the role reaches it;
- an answer that tells a foreign object from a missing one, to a role that may not see the foreign one;
- any text of the foreign user in such an answer;
- a missing role that is reported only when the object exists;
- a status that the document does not have for the operation.

An operation that never succeeded fails too: its calls were malformed, and prove nothing.
"""

import itertools
import json
import os
import re
import urllib.error
import urllib.request
from collections import Counter
from urllib.parse import quote

import rig
from rig import Server, say

DOCUMENT = json.load(open(os.path.join(rig.SCRIPTS, "..", "openapi.json")))
CANARY = "c4n4ry"
NUMBERS = itertools.count()
ID = re.compile(r"\b(ses|req|tsk|hld|itm|usr|key)_[0-9a-f]{32}\b")
OPERATIONS = {operation["operationId"]: (method.upper(), path, operation)
              for path, item in DOCUMENT["paths"].items() for method, operation in item.items()}
BODY = {"requestBody": {"content": {"application/json": {"schema": {}}}}}
ADK = "/apps/demo/users/{user}/sessions"
ANALYTICS = "/v1/projects/p/locations/l"
OTHERS = {
    "adk_create": ("POST", ADK, BODY),
    "adk_list": ("GET", ADK, {}),
    "adk_list_all": ("GET", "/apps/demo/sessions", {}),
    "adk_read": ("GET", ADK + "/{name}", {}),
    "adk_patch": ("PATCH", ADK + "/{name}", BODY),
    "adk_append": ("POST", ADK + "/{name}/events", BODY),
    "adk_delete": ("DELETE", ADK + "/{name}", {}),
    "adk_user_state": ("GET", "/apps/demo/users/{user}/state", {}),
    "analytics_conversations": ("GET", ANALYTICS + "/conversations", {}),
    "analytics_create": ("POST", ANALYTICS + "/conversations", BODY),
    "analytics_read": ("GET", ANALYTICS + "/conversations/{conversation}", {}),
    "analytics_rename": ("PATCH", ANALYTICS + "/conversations/{conversation}?updateMask=labels", BODY),
    "analytics_messages": ("GET", ANALYTICS + "/conversations/{conversation}/messages", {}),
    "analytics_delete": ("DELETE", ANALYTICS + "/conversations/{conversation}", {}),
    "analytics_chat": ("POST", ANALYTICS + ":chat", BODY),
    "analytics_agent": ("GET", ANALYTICS + "/dataAgents/{agent}", {}),
    "analytics_agents": ("GET", ANALYTICS + "/dataAgents", {}),
}
OPERATIONS |= OTHERS
# What every caller may ask, without a key.
PUBLIC = {"getHealth", "getReadiness", "getApiDocument"}
# What every key may see: agents of the configuration.
DECLARED = {"analytics_agent", "getDialDeployment", "getDialConfiguration", "rateDialAnswer"}
READS = {"getSession", "listMessages", "getSessionTree", "getRequest", "getTask", "getSessionState",
         "followSession", "getHold", "getUserState", "getSessionMetadata"}
RUNS = {"appendItems", "completeRequest", "failRequest", "extendLease", "releaseLease", "openHold"}
MANAGES = {"updateSession", "closeSession", "deleteSession", "closeTask", "updateSessionState", "updateUserState",
           "annotateMessage", "updateSessionMetadata"}
APPENDS = {"appendMessage"}
MAKES_TOKENS = {"createReadToken"}
CANCELS = {"cancelRequest", "cancelTask"}
DECIDES = {"decideHold", "decideRequestHold"}
HISTORY = {"listRecords", "getSessionDiff", "forkSession", "rewindSession"}
ADK_READS = {"adk_list", "adk_read", "adk_user_state"}
ADK_WRITES = {"adk_create", "adk_patch", "adk_append", "adk_delete"}
CHATS = {"createChatCompletion", "createChatCompletionAlias", "createDialChatCompletion", "sendChatMessage"}
# The operations by which a role reaches the sessions, requests, tasks and holds of every user.
MAY_REACH = {
    "client": (READS | MANAGES | CANCELS | DECIDES | CHATS | ADK_READS | ADK_WRITES | APPENDS | MAKES_TOKENS
               | {"startRequest"}),
    "worker": READS | RUNS | CANCELS | ADK_READS | APPENDS | {"claimRequests", "getRequestMemory",
                                                    "startRequest", "updateSessionState", "adk_append", "adk_patch"},
    "approver": DECIDES | {"getHold"},
    "operator": READS | CANCELS | HISTORY | ADK_READS | MAKES_TOKENS,
    "admin": (READS | CANCELS | MANAGES | HISTORY | ADK_READS | ADK_WRITES | APPENDS | MAKES_TOKENS
              | {"revokeKey", "eraseUser"}),
}
# Operations that succeed without an effect on an object that is foreign or missing.
SILENT = {"adk_list", "adk_delete"}
# Roles that may see every session: an answer may tell them that an object exists.
SEES_ALL = {"client", "worker", "operator", "admin"}
ROLES = ["nobody", "forger", "ann", "clerk", "treasurer", "client", "worker", "approver", "operator", "admin"]


def resolve(schema):
    while "$ref" in schema:
        path, schema = schema["$ref"].split("/")[1:], DOCUMENT
        for name in path:
            schema = schema[name]
    return schema


def id_kind(schema):
    """The kind of object that a schema names by its id."""
    for one in [schema, *schema.get("oneOf", [])]:
        name = one.get("$ref", "").rsplit("/", 1)[-1]
        if name.endswith("Id"):
            return name
    return None


class Scene:
    """Objects of one user: a session, one request at work, one held, one that has ended, with a canary in each text."""

    def __init__(self, server, user, agent, canary):
        self.user, self.agent, self.server = user, agent, server
        text = f"{canary} of {user}"
        name = f"{text} {next(NUMBERS)}"
        body = {"app": "demo", "user": user, "agent": agent, "name": name, "state": {"note": text}}
        self.session = self.call("maker", "/v1/sessions", body)["id"]
        self.busy = self.claimed(text)
        self.held = self.claimed(text)
        ended = self.claimed(text)
        self.queued = self.started(text)
        self.task_idle = ended["task_id"]
        self.act(ended, "complete", {"output": text})
        pay = {"tool": "pay", "args": {"to": text}}
        self.hold = self.act(self.held, "holds", {"kind": "approval", "title": text, "action": pay})
        self.digest = self.hold["action"]["digest"]
        body = {"set": {"user:note": text}}
        self.call("maker", f"/v1/state/user/demo/{user}", body, method="PATCH")
        body = {"url": "https://workers.example.com/resume"}
        self.call(agent, f"/v1/agents/{agent}/resume_address", body, method="PUT")
        self.key = self.call("admin", "/v1/keys", {"name": text, "roles": ["client"], "user": user})["id"]
        self.name, self.conversation = quote(name), f"conversation-{next(NUMBERS)}"
        body = {"app": "p.l", "user": user, "agent": agent, "name": self.conversation, "labels": {"note": text}}
        self.call("maker", "/v1/sessions", body)

    def call(self, role, path, body, **more):
        try:
            return self.server.call(role, path, body, **more)
        except urllib.error.HTTPError as refused:
            raise AssertionError(f"{role} {path}: {refused.read().decode()}") from refused

    def started(self, text):
        return self.call("maker", f"/v1/sessions/{self.session}/requests", {"input": text})

    def claimed(self, text):
        asked = {"agent": self.agent, "request_id": self.started(text)["id"]}
        return self.call(self.agent, "/v1/work/claim", asked)["requests"][0]

    def act(self, request, what, body):
        path = f"/v1/requests/{request['id']}/{what}"
        return self.call(self.agent, path, {"fence": request["fence"], **body})

    def ids(self, op):
        """The objects that suit an operation."""
        request = {"decideRequestHold": self.held, "claimRequests": self.queued}.get(op, self.busy)
        task = self.task_idle if op == "closeTask" else self.busy["task_id"]
        return {"SessionId": self.session, "RequestId": request["id"], "TaskId": task, "HoldId": self.hold["id"],
                "KeyId": self.key, "fence": self.busy["fence"], "digest": self.digest, "user": self.user,
                "agent": self.agent, "name": self.name, "conversation": self.conversation}


MISSING = {"SessionId": "ses_", "RequestId": "req_", "TaskId": "tsk_", "HoldId": "hld_", "KeyId": "key_"}
MISSING = {kind: prefix + "0192f0c1a2b37c4d8e9f0a1b2c3d4e5f" for kind, prefix in MISSING.items()}
MISSING |= {"user": "nobody-at-all", "name": "no-such-name", "conversation": "no-such-conversation"}
# Bodies that a generator cannot guess. The rest comes from the schema.
BODIES = {
    "annotateMessage": lambda ids: {"annotations": {"colour": "red"}},
    "updateSessionMetadata": lambda ids: {"metadata": {"colour": "red"}},
    "startRequest": lambda ids: {"input": "hello"},
    "appendItems": lambda ids: {"fence": ids["fence"], "items": [{"kind": "note", "data": 1}]},
    "completeRequest": lambda ids: {"fence": ids["fence"], "output": "done"},
    "openHold": lambda ids: {"fence": ids["fence"], "kind": "question", "title": "which?"},
    "decideHold": lambda ids: {"decision": "approve", "digest": ids["digest"]},
    "decideRequestHold": lambda ids: {"decision": "approve", "digest": ids["digest"]},
    "claimRequests": lambda ids: {"agent": ids["agent"], "request_id": ids["RequestId"]},
    "updateSessionState": lambda ids: {"set": {"colour": "red"}},
    "updateUserState": lambda ids: {"set": {"user:colour": "red"}},
    "updateAppState": lambda ids: {"set": {"app:colour": "red"}},
    "updateSession": lambda ids: {"labels": {"colour": "red"}},
    "createSession": lambda ids: {"app": "demo", "user": ids["user"]},
    "createKey": lambda ids: {"roles": ["client"], "name": "made"},
    "setResumeAddress": lambda ids: {"url": "https://workers.example.com/resume"},
    "closeSession": lambda ids: {"cancel_live": True},
    "adk_create": lambda ids: {"state": {"colour": "red"}},
    "adk_patch": lambda ids: {"stateDelta": {"colour": "red"}},
    "adk_append": lambda ids: {"event": {"author": "user", "content": {"role": "user", "parts": [{"text": "hi"}]}}},
    "analytics_create": lambda ids: {"agents": [f"projects/p/locations/l/dataAgents/{ids['agent']}"]},
    "analytics_rename": lambda ids: {"labels": {"colour": "red"}},
    "analytics_chat": lambda ids: {
        "messages": [{"userMessage": {"text": "hi"}}],
        "conversationReference": {
            "conversation": f"projects/p/locations/l/conversations/{ids['conversation']}",
            "dataAgentContext": {"dataAgent": f"projects/p/locations/l/dataAgents/{ids['agent']}"}}},
    "createChatCompletion": lambda ids: {"model": ids["agent"], "stream": True,
                                         "messages": [{"role": "user", "content": "hi"}]},
    "createChatCompletionAlias": lambda ids: {"model": ids["agent"], "stream": True,
                                              "messages": [{"role": "user", "content": "hi"}]},
    "createDialChatCompletion": lambda ids: {"stream": True, "messages": [{"role": "user", "content": "hi"}]},
    "rateDialAnswer": lambda ids: {"responseId": "1", "rate": True},
    "sendChatMessage": lambda ids: {"message": "hi", "stream": True,
                                    "context": {"conversation": {"id": ids["SessionId"]}}},
}
# Other ways to name an object than those that the operation needs: each is attacked too.
VARIANTS = {
    "startRequest": {
        "leased": lambda ids: {"input": "hello", "lease": {"ttl_seconds": 60}},
        "leased as clerk": lambda ids: {"input": "hello", "agent": "clerk", "lease": {"ttl_seconds": 60}},
        "below": lambda ids: {"input": "hello", "agent": "clerk", "parent_request_id": ids["RequestId"],
                              "parent_fence": ids["fence"]},
    },
    "updateSessionState": {"under a fence": lambda ids: {"set": {"colour": "red"}, "request_id": ids["RequestId"],
                                                  "fence": ids["fence"]}},
}


def sample(schema, ids):
    """A value that a schema allows, with as little in it as possible."""
    if kind := id_kind(schema):
        return ids.get(kind)
    schema = resolve(schema)
    if "const" in schema or "enum" in schema:
        return schema.get("const", schema.get("enum", [None])[0])
    for choice in schema.get("oneOf", []) + schema.get("anyOf", []):
        return sample(choice, ids)
    kind = schema.get("type", "string")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        properties = schema.get("properties", {})
        return {name: ids["fence"] if name == "fence" else sample(properties[name], ids)
                for name in schema.get("required", [])}
    return {"array": [], "integer": schema.get("minimum", 1), "boolean": False, "number": 1}.get(kind, "x")


class Attack:
    def __init__(self, server):
        self.server, self.calls, self.found, self.succeeded, self.statuses = server, 0, [], set(), Counter()
        self.scenes = {}

    def send(self, role, op, ids, make_body=None):
        """One call. Gives status and text; of a feed, the beginning."""
        method, path, operation = OPERATIONS[op]
        headers, query = {}, []
        if op in OTHERS:
            path = re.sub(r"{(\w+)}", lambda found: ids[found[1]], path)
        for parameter in map(resolve, operation.get("parameters", [])):
            name, where, kind = parameter["name"], parameter["in"], id_kind(parameter["schema"])
            if where == "path":
                value = ids.get(kind) or {"app": "demo", "user": ids["user"], "seq": "1"}.get(name, ids["agent"])
                path = path.replace("{" + name + "}", value)
            elif where == "query" and kind and (op != "getSessionState" or role == ids["agent"]):
                query.append(f"{name}={ids[kind]}")
            elif name == "x-statehold-session":
                headers[name] = ids["SessionId"]
            elif name == "x-statehold-wait":
                headers[name] = "0"
        if role in self.server.keys:
            headers["Authorization"] = f"Bearer {self.server.keys[role]}"
        elif role == "forger":
            headers["Authorization"] = "Bearer shk_" + "0" * 43
        body = None
        if "requestBody" in operation:
            content = operation["requestBody"]["content"]["application/json"]
            make_body = make_body or BODIES.get(op)
            value = make_body(ids) if make_body else sample(content["schema"], ids)
            body, headers["Content-Type"] = json.dumps(value).encode(), "application/json"
        url = self.server.url + path + ("?" + "&".join(query) if query else "")
        asked = urllib.request.Request(url, body, headers, method=method)
        self.calls += 1
        try:
            with urllib.request.urlopen(asked, timeout=10) as answer:
                is_feed = op == "analytics_chat" or answer.headers.get_content_type() == "text/event-stream"
                return answer.status, beginning(answer) if is_feed else answer.read().decode(errors="replace")
        except urllib.error.HTTPError as refused:
            return refused.code, refused.read().decode()

    def attack(self, role, op, variant=None, make_body=None):
        name = f"{op} ({variant})" if variant else op
        own, foreign = self.scene("ann", "clerk", "own"), self.scene("bob", "scribe", CANARY)
        absent = foreign.ids(op) | MISSING
        answers = {"own": self.send(role, op, own.ids(op), make_body),
                   "foreign": self.send(role, op, foreign.ids(op), make_body),
                   "missing": self.send(role, op, absent, make_body)}
        for which, (status, text) in answers.items():
            self.statuses[status // 100] += 1
            if op not in OTHERS and not {str(status), f"{status // 100}XX"} & OPERATIONS[op][2]["responses"].keys():
                self.fail(role, name, f"{which}: {status} is not in the document")
            if status >= 500:
                self.fail(role, name, f"{which}: {status} {text[:200]}")
            if status < 300:
                self.succeeded.add(op)
                if OPERATIONS[op][0] != "GET":
                    self.scenes.clear()
        codes = {code(op, status, text) for status, text in answers.values() if status >= 400}
        if "forbidden" in codes and len(codes) > 1:
            self.fail(role, name, f"asks for the object before the role: {answers}")
        reaches = op in MAY_REACH.get(role, ()) or op in PUBLIC | DECLARED
        sees = role in SEES_ALL or role == "approver" and "Hold" in op
        if not sees:
            for which, (_, answer) in answers.items():
                if CANARY in answer:
                    self.fail(role, name, f"{which}: shows a foreign text: {answer[:300]}")
        if not names_objects(op):
            return
        told_apart = masked(answers["foreign"], foreign) != masked(answers["missing"], foreign)
        if answers["foreign"][0] < 300 and not reaches and (told_apart or op not in SILENT):
            self.fail(role, name, f"reaches a foreign object: {answers['foreign']}")
        if op == "adk_delete" and not reaches:
            self.server.call("maker", f"/v1/sessions/{foreign.session}")
        if not sees and told_apart:
            self.fail(role, name, f"tells foreign from missing: {answers['foreign']} and {answers['missing']}")

    def scene(self, user, agent, canary):
        """The objects of a user; new ones, if a call has changed the last."""
        if user not in self.scenes:
            self.scenes[user] = Scene(self.server, user, agent, canary)
        return self.scenes[user]

    def fail(self, role, name, what):
        self.found.append(f"{role} {name}: {what}")


def beginning(feed):
    """The events that a feed has at once. The first line of a comment says that there are no more."""
    text = ""
    feed.fp.raw._sock.settimeout(0.3)
    try:
        while line := feed.readline():
            text += line.decode()
    except OSError:
        pass
    return text


def names_objects(op):
    """Whether a call of the operation names an object of somebody."""
    _, path, operation = OPERATIONS[op]
    parameters = [resolve(one) for one in operation.get("parameters", [])]
    in_parameters = any(id_kind(one["schema"]) or one["name"] == "user" and one["in"] == "path"
                        for one in parameters if one["in"] in ("path", "header"))
    return in_parameters or op in ("claimRequests", *CHATS) or op in OTHERS and "{" in path


def code(op, status, text):
    """The code of a refusal, of the API or of a chat."""
    if op in OTHERS:
        return "forbidden" if status == 403 else str(status)
    refusal = json.loads(text)
    return refusal.get("code") or refusal["error"]["code"]


def masked(answer, scene):
    """An answer without the ids and names that the call itself said."""
    status, text = answer
    for said in [scene.user, scene.conversation, scene.name, *MISSING.values()]:
        text = text.replace(said, "SAID")
    return status, ID.sub("ID", text)


def check():
    server = Server("attacks", '[agents.clerk]\ndescription = "files"\n[agents.scribe]\ndescription = "writes"\n')
    make = lambda name, **more: server.keys.update(
        {name: server.call("admin", "/v1/keys", {"name": name, **more})["key"]})
    make("operator", roles=["operator"])
    make("ann", roles=["client"], user="ann")
    make("clerk", roles=["worker"], agents=["clerk"])
    make("scribe", roles=["worker"], agents=["scribe"])
    make("treasurer", roles=["treasurer"])
    make("maker", roles=["client", "worker", "operator"])
    attack = Attack(server)
    for op in sorted(OPERATIONS):
        for role in ROLES:
            attack.attack(role, op)
            for variant, body in VARIANTS.get(op, {}).items():
                attack.attack(role, op, variant, body)
    assert not attack.found, "\n" + "\n".join(attack.found)
    never = set(OPERATIONS) - attack.succeeded
    assert not never, f"never succeeded: {sorted(never)}"
    server.stop()
    counts = ", ".join(f"{count} times {status}xx" for status, count in sorted(attack.statuses.items()))
    say(f"{attack.calls} calls to {len(OPERATIONS)} operations by {len(ROLES)} roles ({counts}): "
        "no foreign object was reached, shown, or told from a missing one")


rig.play(check)
