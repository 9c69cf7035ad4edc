"""Which calls a twin run makes: a small model of what is there, and a seeded author of calls to it.

The world knows the ids of the old server alone. It learns them from answers, so most calls reach something that
is there and do what they say; the rest is wrong in one way or in several at once.
"""

import copy
import json
import random
from collections import Counter, defaultdict, deque
from urllib.parse import quote

from .flows import FLOWS

USERS = ["ann", "bob", "carl"]
APPS = ["demo", "shop"]
WORKERS = ["clerk", "scribe", "stray"]
SERVED = ["echo", "memo", "brain", "front"]
STRANGERS = ["none", "garbage", "foreign"]
MERGES = ["replace", "keep_first", "add", "append", "union", "patch"]
LONG = 600  # Seconds. Nothing may lapse during a run: the two servers would not see it between the same calls.
KEPT_MAX = 150


class Call:
    """One call, as the old server gets it."""

    def __init__(self, op, role, method, path, headers, body):
        self.op, self.role, self.method, self.path, self.headers, self.body = op, role, method, path, headers, body

    def translated(self, translate):
        headers = {name: translate(value) for name, value in self.headers.items()}
        body = None if self.body is None else translate(self.body)
        return Call(self.op, self.role, self.method, translate(self.path), headers, body)

    def __str__(self):
        extra = {name: value for name, value in self.headers.items()
                 if name not in ("Authorization", "Content-Type", "Host")}
        body = self.body if self.body is None or len(self.body) < 300 else self.body[:300] + "…"
        return f"{self.method} {self.path} {extra or ''} {body or ''}"


class World:
    def __init__(self, seed, document, only):
        self.random, self.keys, self.codes = random.Random(seed), {}, Counter()
        self.paths, nouns = {}, {}
        for path, item in document["paths"].items():
            for method, operation in item.items():
                self.paths[operation["operationId"]] = (method.upper(), path)
                nouns[operation["operationId"]] = operation["tags"]
        self.operations = sorted(self.paths)
        self.sessions, self.requests, self.holds, self.tasks, self.made_keys = {}, {}, {}, {}, []
        self.items = defaultdict(list)
        self.cursors, self.kept, self.number = deque(maxlen=30), deque(maxlen=KEPT_MAX), 0
        self.is_guest = False
        self.chat_sessions, self.said = [], deque(maxlen=20)
        self.makers = [(op, weight, maker) for op, weight, maker in MAKERS]
        missing = set(self.operations) - {op for op, _, _ in MAKERS}
        missing -= {"followSessions", "followHolds", "followSession"}
        assert not missing, f"nothing calls {sorted(missing)}"
        if only:
            chosen = [one for one in self.makers if only in nouns[one[0]]]
            assert chosen, f"no operation is about {only}"
            others = sum(weight for _, weight, _ in self.makers)
            share = sum(weight for _, weight, _ in chosen)
            self.makers = [(op, weight * (3 * others / share if only in nouns[op] else 1), maker)
                           for op, weight, maker in self.makers]

    # What the author chooses from.

    def chance(self, share):
        return self.random.random() < share

    def pick(self, values):
        values = list(values)
        return self.random.choice(values) if values else None

    def fresh(self, word):
        self.number += 1
        return f"{word}-{self.number}"

    def hex(self, digits):
        return f"{self.random.getrandbits(4 * digits):0{digits}x}"

    def odd_id(self, kind):
        """An id of nothing: missing, of another kind, or none at all."""
        others = [*self.sessions, *self.requests, *self.holds, *self.tasks]
        wrong = self.pick([one for one in others if not one.startswith(kind)]) or "x"
        shapes = [f"{kind}_0192{self.hex(8)}7{self.hex(3)}8{self.hex(15)}", wrong, "nonsense", f"{kind}_12", f"{kind}_",
                  kind + "_" + "z" * 32, "x" * 300, "%00", "a%2Fb"]
        return self.random.choices(shapes, [8, 5, 1, 1, 1, 1, 1, 1, 1])[0]

    def some(self, kind, good, known):
        """An id out of `good`, sometimes any that is known, sometimes an odd one."""
        roll = self.random.random()
        if roll < 0.82 and good:
            return self.pick(good)
        if roll < 0.93 and known:
            return self.pick(known)
        return self.odd_id(kind)

    def role(self, *right):
        """Mostly one that may, else any."""
        self.is_guest = not self.chance(0.8)
        return self.pick([*self.keys, *STRANGERS] if self.is_guest else right)

    # How a call comes about.

    def call(self, op, role, values=(), body=None, query=None, **headers):
        method, path = self.paths[op]
        for name, value in dict(values).items():
            path = path.replace("{" + name + "}", str(value))
        if query:
            asked = [f"{name}={quote(str(value), safe='')}" for name, value in query.items() if value is not None]
            path += "?" + "&".join(asked) if asked else ""
        made = {}
        if role in self.keys:
            name = "Api-Key" if self.chance(0.05) else "Authorization"
            made[name] = self.keys[role] if name == "Api-Key" else f"Bearer {self.keys[role]}"
        elif role == "garbage":
            made["Authorization"] = "Bearer shk_nonsense"
        elif role == "foreign":
            made["Authorization"] = "Bearer sk-of-others"
        text = None
        if body is not None:
            made["Content-Type"] = "application/json"
            text = json.dumps(body, ensure_ascii=False)
            # Both wrongs at once show which of them is looked at first.
            if self.chance(0.45 if self.is_guest else 0.14):
                text = self.spoilt(body)
                if self.chance(0.04):
                    made["Content-Type"] = "text/plain"
        elif method in ("POST", "PATCH", "PUT"):
            text = ""
        made |= {name.replace("_", "-"): value for name, value in headers.items() if value is not None}
        if method != "GET":
            self.condition(op, role, made, path)
        elif self.chance(0.02):
            made["Idempotency-Key"] = "on-a-read"
        if role in self.keys and self.chance(0.03):
            made["x-statehold-user"] = self.pick([*USERS, "dora", "", "bad\tname"])
        call = Call(op, role, method, path, made, text)
        if "Idempotency-Key" in made:
            self.kept.append(call)
        return call

    def condition(self, op, role, made, path):
        """Keys and revisions."""
        roll = self.random.random()
        if roll < 0.45:
            made["Idempotency-Key"] = self.fresh("key")
        elif roll < 0.46:
            made["Idempotency-Key"] = self.pick(["", "two words", "é", "x" * 256])
        session = next((one for one in self.sessions if one in path), None)
        if session is None:
            request = next((one for one in self.requests if one in path), None)
            session = self.requests[request]["session"] if request else None
        roll = self.random.random()
        if roll < 0.06 and session:
            made["If-Match"] = f'"{self.sessions.get(session, {}).get("revision", 1)}"'
        elif roll < 0.09:
            made["If-Match"] = self.pick(['"1"', '"999"', "*", "1", '"x"', '""'])

    def spoilt(self, body):
        """A body that is wrong in one place, or no JSON object at all."""
        roll = self.random.random()
        if roll < 0.12:
            return self.pick(["", "{", "[]", '"text"', "null", '{"a":1,"a":1}', "\ufeff{}", '{"a":"\\ud800"}', "7"])
        body = copy.deepcopy(body)
        if roll < 0.24:
            body[self.pick(["surplus", "Id", "fence_"])] = 1
            return json.dumps(body)
        places = list(places_of(body))
        if not places:
            return '{"surplus":{}}'
        inside, name = self.pick(places)
        value = inside[name]
        if roll < 0.45:
            del inside[name]
        elif roll < 0.7 and isinstance(value, str):
            inside[name] = self.pick(["", "x" * 300, "x" * 20_000, " edge ", "a\u0000b", "\u200bhidden", "a:b", "b a d"])
        elif roll < 0.7 and isinstance(value, dict):
            value[self.pick(["surplus", "", "x" * 600, "temp:x", "odd:x"])] = 1
        else:
            inside[name] = self.pick([None, True, -1, "word", 1.5, [], {}, [1], {"a": 1}, 9007199254740993, "\u00e9"])
        return json.dumps(body)

    def step(self):
        """The next call, or a flow of several."""
        if self.kept and self.chance(0.12):
            return self.repeated()
        if self.chance(0.03):
            return self.pick(FLOWS)
        live = [one for one in self.requests.values() if one["status"] == "running"]
        if len(self.sessions) < 4 or self.chance(0.01):
            return create(self)
        if len(live) < 3 and self.chance(0.5):
            return self.pick([start, claim])(self)
        for _ in range(20):
            _, _, maker = self.random.choices(self.makers, [weight for _, weight, _ in self.makers])[0]
            if call := maker(self):
                return call
        return create(self)

    def repeated(self):
        """A call that was made before: as it was, by someone else, with another body, at another place."""
        call = copy.copy(self.pick(self.kept))
        call.headers = dict(call.headers)
        roll = self.random.random()
        if roll < 0.62:
            return call
        if roll < 0.74 and call.body:
            call.body = self.pick([call.body + " ", call.body.replace("1", "2", 1), "{}"])
        elif roll < 0.86:
            call.role = self.pick([*self.keys, *STRANGERS])
            call.headers.pop("Api-Key", None)
            call.headers["Authorization"] = f"Bearer {self.keys.get(call.role, 'shk_nonsense')}"
        elif roll < 0.93 and call.op not in ("createChatCompletion", "createChatCompletionAlias"):
            call.path += "?again=1"
        else:
            call.headers["If-Match"] = '"1"'
        return call

    # What answers tell.

    def learn(self, call, answer):
        body = answer.json()
        if not isinstance(body, dict):
            body = {}
        if answer.status >= 400:
            code = body.get("code") or (body.get("error") or {}).get("code") or "none"
            self.codes[str(code)] += 1
            return
        session, etag = answer.headers.get("x-statehold-session"), answer.headers.get("etag")
        if session in self.sessions and etag:
            self.sessions[session]["revision"] = etag.strip('"')
        if cursor := body.get("next_cursor"):
            self.cursors.append((call, cursor))
        if call.op == "createSession":
            known = {"user": body["user"], "agent": body["agent"], "app": body["app"], "open": True, "revision": "1"}
            self.sessions.setdefault(body["id"], known)
        elif call.op == "deleteSession" or call.op == "closeSession":
            for one in self.sessions:
                if one in call.path:
                    self.sessions[one]["open"] = False
        elif call.op == "createKey":
            self.made_keys.append(body["id"])
            if name := getattr(call, "promised", None):
                self.keys[name] = body["key"]
        elif call.op.startswith("createChatCompletion") and session and session not in self.sessions:
            self.sessions[session] = {"user": "?", "agent": "echo", "app": "default", "open": True, "revision": "1"}
            self.chat_sessions.append(session)
        elif call.op == "appendItems":
            request = next((one for one in self.requests if one in call.path), None)
            self.items[request] += [one["id"] for one in body.get("items", [])]
        elif call.op == "openHold" or call.op == "getHold":
            self.learn_hold(body)
        elif call.op in ("decideHold", "decideRequestHold"):
            self.holds.setdefault(body["id"], {})["status"] = body["status"]
            if body["request_id"] in self.requests:
                self.requests[body["request_id"]]["status"] = body["request_status"]
        elif call.op == "claimRequests":
            for one in body["requests"]:
                self.learn_request(one, call.role)
        elif "session_id" in body and "alias" in body and str(body["id"]).startswith("req_"):
            self.learn_request(body, call.role)

    def learn_hold(self, hold):
        known = self.holds.setdefault(hold["id"], {})
        action = hold.get("action") or {}
        known |= {"status": hold["status"], "kind": hold["kind"], "request": hold["request_id"],
                  "session": hold["session_id"], "allowed": hold["allowed"]}
        if action:
            known |= {"digest": action["digest"], "tool": action["tool"]}
            known["args"] = known.get("args") or action["args"]
        if hold["request_id"] in self.requests and hold["status"] == "open":
            self.requests[hold["request_id"]]["status"] = "held"

    def learn_request(self, one, role):
        known = self.requests.setdefault(one["id"], {"fence": 0, "holder": None})
        known |= {"session": one["session_id"], "agent": one["agent"], "task": one["task_id"], "status": one["status"]}
        if one.get("fence", 0) > known["fence"]:
            known |= {"fence": one["fence"], "holder": role}
        if known["fence"] and one["status"] == "queued":
            known["holder"] = None
        self.tasks[one["task_id"]] = {"session": one["session_id"], "agent": one["agent"]}
        for call in one.get("calls") or []:
            self.items[one["id"]].append(call["id"])
        for hold in one.get("decisions") or []:
            self.learn_hold(hold)

    # The beginning and the end.

    def beginning(self):
        """Keys that the command line does not make, and a few objects to begin with."""
        for name, roles, user in (("tina", ["approver", "treasurer"], "tina"), ("tom", ["approver", "treasurer"], "tom")):
            call = self.plain("createKey", "admin", body={"name": name, "roles": roles, "user": user})
            call.promised = name
            yield call
        for user in USERS:
            for agent in ("clerk", "scribe"):
                yield self.plain("createSession", "client", body={"app": "demo", "user": user, "agent": agent})

    def plain(self, op, role, values=(), body=None, query=None):
        """A call that is right in everything."""
        method, path = self.paths[op]
        for name, value in dict(values).items():
            path = path.replace("{" + name + "}", value)
        if query:
            path += "?" + "&".join(f"{name}={value}" for name, value in query.items())
        headers = {"Authorization": f"Bearer {self.keys[role]}"} if role in self.keys else {}
        if body is not None:
            headers["Content-Type"] = "application/json"
        return Call(op, role, method, path, headers, None if body is None else json.dumps(body))

    def sweep(self):
        """What is rarely called: once as it should be, and once without a key."""
        address = {"url": "https://w.invalid/resume"}
        for op, values, body in (
                ("listModels", {}, None), ("listModelsAlias", {}, None), ("getModel", {"model": "echo"}, None),
                ("getModelAlias", {"model": "echo"}, None), ("listAgents", {}, None), ("getAgent", {"agent": "front"}, None),
                ("setResumeAddress", {"agent": "stray"}, address), ("getResumeAddress", {"agent": "stray"}, None),
                ("deleteResumeAddress", {"agent": "stray"}, None), ("reloadConfiguration", {}, {}), ("countHolds", {}, None),
                ("getHealth", {}, None), ("getReadiness", {}, None), ("getApiDocument", {}, None),
                ("verifyStore", {}, {})):
            for role in ("admin", "none"):
                yield self.plain(op, role, values, body)

    def everything(self):
        """Reads of all that is there, by everybody who may see some of it."""
        yield from self.sweep()
        for session in self.sessions:
            at = {"session_id": session}
            yield self.plain("getSession", "client", at)
            for after in (0, 200, 400):
                if int(self.sessions[session]["revision"]) >= after:
                    yield self.plain("listRecords", "operator", at, query={"after": after, "limit": 200})
            yield self.plain("listMessages", "client", at, query={"limit": 200})
            yield self.plain("listMessages", "operator", at, query={"limit": 200, "view": "trace"})
            yield self.plain("getSessionTree", "operator", at, query={"limit": 1000})
            yield self.plain("getSessionState", "operator", at)
        for task in self.tasks:
            yield self.plain("getTask", "worker", {"task_id": task}, query={"limit": 200})
            yield self.plain("getTask", "operator", {"task_id": task}, query={"limit": 200, "view": "trace"})
        for request in self.requests:
            for role in ("operator", "worker"):
                yield self.plain("getRequest", role, {"request_id": request})
            yield self.plain("getRequestMemory", "worker", {"request_id": request})
        for hold in self.holds:
            for role in ("operator", "approver", "client", "worker"):
                yield self.plain("getHold", role, {"hold_id": hold})
        for role in self.keys:
            yield self.plain("countHolds", role)
            for status in ("open", "decided"):
                yield self.plain("listHolds", role, query={"status": status, "limit": 200})
            yield self.plain("listSessions", role, query={"limit": 200})
        for app in APPS:
            yield self.plain("getAppState", "admin", {"app": app})
            for user in USERS:
                yield self.plain("getUserState", "client", {"app": app, "user": user})
        yield self.plain("listKeys", "admin")
        yield self.plain("listAuditRecords", "admin", query={"limit": 1000})
        yield self.plain("verifyStore", "admin", body={})
        yield self.plain("getMetrics", "operator")

    def session_feeds(self):
        """The whole feed of sessions, with how many events it has."""
        for session, known in list(self.sessions.items())[:40]:
            if known["open"]:
                call = self.plain("followSession", "operator", {"session_id": session}, query={"after": 0})
                yield call, int(known["revision"])

    def feed_call(self, path, role):
        op = {"/v1/events": "followSessions", "/v1/holds/events": "followHolds", "check": "check"}.get(path, "followSession")
        return Call(op, role, "GET", path, {}, None)


def places_of(value):
    """Every member of a JSON value, as the container and the name in it."""
    names = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for name in names:
        yield value, name
        yield from places_of(value[name])


# The authors of single calls. Each gives a call, or None if there is nothing to call about.


def owner_role(world, session):
    user = world.sessions.get(session, {}).get("user")
    return world.role("client", user if user in world.keys else "client")


def open_sessions(world):
    return [one for one, known in world.sessions.items() if known["open"]]


def session_of(world):
    return world.some("ses", open_sessions(world), world.sessions)


def value_of(world):
    return world.pick([1, 2, "text", "é", None, True, [1, 2], ["a"], {"a": 1}, {"b": {"c": None}}, 1.5, ""])


def patch_of(world, prefixes):
    key = world.pick(prefixes) + world.pick(["n", "list", "map", "word", "x.y"])
    patch = {"set": {key: value_of(world)}}
    if world.chance(0.6):
        merge = world.pick(MERGES)
        fitting = {"add": 2, "append": [1], "union": ["a", "b"], "patch": {"a": None, "z": 1}}
        patch["set"][key] = fitting.get(merge, patch["set"][key])
        patch["merge"] = {key: merge}
    if world.chance(0.2):
        patch["delete"] = [world.pick(prefixes) + world.pick(["list", "gone"])]
    if world.chance(0.12):
        patch["if_versions"] = {key: world.pick([0, 1, 2, 7])}
    return patch


def create(world):
    role = world.role("client", "client", "ann", "bob")
    body = {"app": world.pick(APPS)}
    if role in ("client", "both") or world.chance(0.2):
        body["user"] = role if role in USERS and world.chance(0.8) else world.pick(USERS)
    if world.chance(0.8):
        body["agent"] = world.pick([*WORKERS, "clerk", "echo", "statehold.x"])
    if world.chance(0.3):
        body["name"] = world.pick(["first", "second", world.fresh("name")])
    if world.chance(0.3):
        body["labels"] = {"team": world.pick(["a", "b"]), "é": "ü"}
    if world.chance(0.3):
        body["state"] = {"n": 1, world.pick(["user:n", "app:n", "list", "temp:n"]): [1]}
    if world.chance(0.2):
        body |= {"ttl_seconds": 86_400, "ttl_mode": world.pick(["sliding", "fixed"])}
    return world.call("createSession", role, body=body)


def list_sessions(world):
    query = {}
    for name, values in (("app", [*APPS, "b a d"]), ("user", [*USERS, "nobody"]), ("label", ["team", "team:a", "x:y"]),
                         ("status", ["idle", "running", "paused", "closed", "odd"]), ("q", ["first", "TEAM", "é"]),
                         ("limit", [1, 2, 3, 200, 0, 201, "x"])):
        if world.chance(0.25):
            query[name] = world.pick(values)
    return world.call("listSessions", world.role("client", "ann", "operator", "admin"), query=query)


def next_page(world):
    if not world.cursors:
        return None
    call, cursor = world.pick(world.cursors)
    call = copy.copy(call)
    path, _, query = call.path.partition("?")
    rest = [one for one in query.split("&") if one and not one.startswith("cursor=")]
    if world.chance(0.1):
        cursor = world.pick(["x", cursor[:-1], cursor + "A"])
    if world.chance(0.1):
        rest.append("limit=5")
    if world.chance(0.1):
        call.role = world.pick(world.keys)
        call.headers = {"Authorization": f"Bearer {world.keys[call.role]}"}
    call.path = path + "?" + "&".join([*rest, f"cursor={cursor}"])
    return call


def read_session(world):
    session = session_of(world)
    return world.call("getSession", owner_role(world, session), {"session_id": session})


def patch_session(world):
    session, body = session_of(world), {}
    if world.chance(0.4):
        body["name"] = world.pick(["first", "third", None, world.fresh("name")])
    if world.chance(0.6):
        body["labels"] = {world.pick(["team", "place"]): world.pick(["a", "c", None])}
    if world.chance(0.2):
        body |= world.pick([{"ttl_seconds": 7_200}, {"ttl_seconds": None}, {"ttl_seconds": 9_000, "ttl_mode": "fixed"},
                            {"ttl_mode": "fixed"}])
    return world.call("updateSession", owner_role(world, session), {"session_id": session}, body)


def close_session(world):
    if len(open_sessions(world)) < 6:
        return None
    session = session_of(world)
    body = world.pick([{}, {"cancel_live": True}, {"cancel_live": False}])
    return world.call("closeSession", owner_role(world, session), {"session_id": session}, body)


def delete_session(world):
    if len(open_sessions(world)) < 6:
        return None
    session = session_of(world)
    return world.call("deleteSession", owner_role(world, session), {"session_id": session})


def messages(world):
    session = session_of(world)
    query = {"limit": world.pick([None, 1, 2, 200, 0]), "view": world.pick([None, None, "client", "trace", "odd"])}
    role = world.role("operator") if query["view"] == "trace" else owner_role(world, session)
    return world.call("listMessages", role, {"session_id": session}, query=query)


def tree(world):
    session = session_of(world)
    query = {"limit": world.pick([None, None, 1, 3, 0]), "before": world.pick([None, None, 3, 10, "x"])}
    return world.call("getSessionTree", owner_role(world, session), {"session_id": session}, query=query)


def records(world):
    query = {"limit": world.pick([None, 1, 5, 1000, 1001]), "after": world.pick([None, 0, 3, 10**17])}
    role = world.role("operator", "admin")
    return world.call("listRecords", role, {"session_id": session_of(world)}, query=query)


def items_of(world, request):
    """Items of a worker: words, notes, calls of every policy, results of calls."""
    items = []
    for _ in range(world.random.randint(1, 3)):
        roll = world.random.random()
        call = world.fresh("call")
        if roll < 0.25:
            item = {"kind": "message", "content": world.pick(["hello", "é", [{"type": "text", "text": "part"}]])}
            item |= world.pick([{}, {"visibility": "hidden"}, {"role": "user"}, {"role": "user", "visibility": "hidden"},
                                {"attachments": [{"url": "https://x.example/a", "type": "image/png"}]},
                                {"annotations": {"a": 1}, "data": {"secret": 1}}])
        elif roll < 0.35:
            item = {"kind": world.pick(["note", "step"]), "data": {"usage": {"total_tokens": 3}}}
        elif roll < 0.65:
            tool = world.pick(["pay", "refund", "look", "mail", "free"])
            args = {"card": "4111111111111111", "amount": world.pick([5, 500]), "password": "hunter2", "to": "a@b.example"}
            item = {"kind": "tool_call", "name": tool, "call_id": call, "arguments": args}
            item |= world.pick([{}, {"gated": True}, {"idempotent": True}, {"gated": True}])
        else:
            named = world.pick(world.items[request]) if world.items[request] and world.chance(0.8) else call
            item = {"kind": "tool_result", "call_id": named, "result": world.pick(["ok", {"n": 1}, None])}
            item |= world.pick([{}, {}, {"outcome": "refused"}, {"outcome": "answered"}])
        items.append(item)
    return items


def start(world):
    session = session_of(world)
    agent = world.pick([*WORKERS, "clerk", "clerk"])
    body = {"agent": agent, "input": world.pick(["do it", {"content": "do it", "annotations": {"a": 1}}, "é"])}
    roll = world.random.random()
    role = owner_role(world, session)
    if roll < 0.35:
        body["lease"] = {"ttl_seconds": LONG} | world.pick([{}, {"worker": "w1"}])
        role = world.role("worker", "both", "clerk" if agent == "clerk" else "worker")
        if world.chance(0.4):
            body["items"] = items_of(world, None)
        if world.chance(0.3):
            body["state"] = patch_of(world, ["", "user:", "app:"])
        if world.chance(0.35):
            body["output"] = world.pick(["done", {"content": [{"type": "text", "text": "done"}]}])
    elif roll < 0.6:
        parents = [(id, one) for id, one in world.requests.items() if one["status"] == "running" and one["holder"]]
        if parents:
            parent, known = world.pick(parents)
            body |= {"parent_request_id": parent, "parent_fence": known["fence"] + world.chance(0.1)}
            session, role = known["session"], world.role(known["holder"])
            if world.chance(0.3):
                body["lease"] = {"ttl_seconds": LONG}
    if world.chance(0.12) and world.tasks:
        body["task_id"] = world.pick([one for one, known in world.tasks.items() if known["session"] == session] or
                                     world.tasks)
    if world.chance(0.15):
        body["close_on"] = world.pick(["never", "reply", "failure"])
    if world.chance(0.1):
        body.pop("agent")
        if world.sessions.get(session, {}).get("agent") in SERVED:
            body["agent"] = "clerk"
    secret = world.pick([None] * 6 + ["token-of-ann", "x" * 9000, "bad\ttoken"])
    return world.call("startRequest", role, {"session_id": session}, body, x_statehold_credential=secret)


def claim(world):
    queued = [(id, one) for id, one in world.requests.items() if one["status"] == "queued"]
    agent = world.pick([one["agent"] for _, one in queued if one["agent"] not in SERVED] or WORKERS)
    body = {"agent": agent, "lease_seconds": LONG}
    if world.chance(0.3):
        body["max"] = world.pick([1, 3, 100, 101])
    if world.chance(0.3) and world.requests:
        body["request_id"] = world.pick([id for id, one in queued if one["agent"] == agent] or world.requests)
    if world.chance(0.1):
        body["wait_seconds"] = world.pick([0, 61])
    if world.chance(0.1):
        body["worker"] = world.pick(["w1", "w" * 300])
    return world.call("claimRequests", world.role("worker", "worker", "both", "clerk" if agent == "clerk" else "worker"),
                      body=body)


def leased(world):
    """A request with its fence and a role that may write under it."""
    held = [one for one, known in world.requests.items() if known["holder"] and known["status"] in ("running", "held", "waiting")]
    running = [one for one in held if world.requests[one]["status"] == "running"]
    request = world.some("req", running or held, held or world.requests)
    known = world.requests.get(request, {"fence": 1, "holder": "worker"})
    fence = known["fence"] if world.chance(0.94) else known["fence"] + world.pick([-1, 1, 5])
    role = world.role(known["holder"] or "worker")
    return {"request_id": request}, {"fence": max(fence, 0)}, role


def append(world):
    at, body, role = leased(world)
    if world.chance(0.85):
        body["items"] = items_of(world, at["request_id"])
    if world.chance(0.3):
        body["state"] = patch_of(world, ["", "user:", "app:"])
    if world.chance(0.2):
        body["task_state"] = {"step": world.number}
    return world.call("appendItems", role, at, body)


def complete(world):
    at, body, role = leased(world)
    body["output"] = world.pick(["done", {"content": "done", "attachments": [{"data": "aGk=", "title": "t"}]}])
    if world.chance(0.2):
        body["items"] = items_of(world, at["request_id"])
    if world.chance(0.2):
        body["state"] = patch_of(world, ["", "user:"])
    if world.chance(0.2):
        body |= {"task_state": [1], "close_task": world.chance(0.5)}
    if world.chance(0.4):
        body["cancel_children"] = True
    return world.call("completeRequest", role, at, body)


def fail(world):
    at, body, role = leased(world)
    body |= {"error": world.pick(["broke", {"code": "x", "message": "broke"}])} | world.pick([{}, {"cancel_children": True}])
    return world.call("failRequest", role, at, body)


def heartbeat(world):
    at, body, role = leased(world)
    return world.call("extendLease", role, at, body)


def release(world):
    at, body, role = leased(world)
    return world.call("releaseLease", role, at, body)


def cancel(world):
    live = [one for one, known in world.requests.items() if known["status"] in ("queued", "running", "held", "waiting")]
    request = world.some("req", live if len(live) > 3 else [], world.requests)
    session = world.requests.get(request, {}).get("session")
    role = world.pick([owner_role(world, session), world.role("operator")])
    return world.call("cancelRequest", role, {"request_id": request}, {})


def read_request(world):
    request = world.some("req", world.requests, world.requests)
    session = world.requests.get(request, {}).get("session")
    query = {"wait": world.pick([None, None, 0, 61, "x"]), "until": world.pick([None, None, "final", "changed", "odd"])}
    if world.chance(0.1):
        query |= {"after": world.pick([1, 10**17, "x"]), "wait": 0}
    role = world.pick([owner_role(world, session), world.role("worker", "clerk", "operator")])
    return world.call("getRequest", role, {"request_id": request}, query=query)


def read_memory(world):
    request = world.some("req", world.requests, world.requests)
    query = {"limit": world.pick([None, 1, 200, 0, "x"]), "cursor": world.pick([None, None, None, "x"])}
    return world.call("getRequestMemory", world.role("worker", "clerk", "operator"), {"request_id": request}, query=query)


def read_task(world):
    task = world.some("tsk", world.tasks, world.tasks)
    session = world.tasks.get(task, {}).get("session")
    query = {"view": world.pick([None, None, "client", "agent", "trace"]), "limit": world.pick([None, 1, 2, 200, 201])}
    role = world.pick([owner_role(world, session), world.role("worker", "clerk", "operator", "both")])
    return world.call("getTask", role, {"task_id": task}, query=query)


def end_task(world, op):
    if len(world.tasks) < 4:
        return None
    task = world.some("tsk", world.tasks, world.tasks)
    session = world.tasks.get(task, {}).get("session")
    return world.call(op, world.pick([owner_role(world, session), world.role("operator")]), {"task_id": task}, {})


def open_hold(world):
    at, body, role = leased(world)
    kind = world.pick(["approval"] * 6 + ["question", "question", "form", "link", "credential"])
    body |= {"kind": kind, "title": world.pick(["Pay?", "é?"])}
    if kind == "approval":
        tool = world.pick(["pay", "pay", "wire", "refund", "mail", "free", "look"])
        args = {"card": "4111111111111111", "amount": world.pick([5, 500]), "password": "hunter2",
                "to": [{"pin": "1234", "name": "a@b.example"}]}
        action = {"tool": tool, "args": args}
        if world.chance(0.4):
            action["args_schema"] = {"type": "object", "properties": {"amount": {"maximum": 1000}}}
        if world.chance(0.4):
            action |= world.pick([{"risk": "low"}, {"risk": "high", "effect": "destructive"}, {"idempotent": True}])
        if world.chance(0.25):
            action["call_id"] = call = world.fresh("call")
            if world.chance(0.6):
                body["items"] = [{"kind": "tool_call", "name": tool, "call_id": call, "gated": True, "arguments": args}]
        elif world.chance(0.15) and world.items[at["request_id"]]:
            action["call_id"] = world.pick(world.items[at["request_id"]])
        body["action"] = action
        if world.chance(0.2):
            body["quorum"] = world.pick([1, 2])
    if kind == "form" or kind == "question" and world.chance(0.3):
        body["response_schema"] = world.pick([{"type": "object", "required": ["n"]}, {"enum": ["yes", "no"]}, {"$ref": "x"}])
    if kind == "link":
        body["url"] = world.pick(["https://x.example/go", "ftp://x.example"])
    if world.chance(0.3):
        body |= {"message": "Please look.", "reasons": [{"id": "r1", "title": "Because"}]}
    if world.chance(0.3):
        body |= {"expires_in_seconds": world.pick([550, 7_200]), "on_expiry": world.pick(["reject", "dismiss", "fail"])}
    if world.chance(0.4):
        body["decide_by"] = world.pick(["other", "user", "role:treasurer", "role:"])
    if world.chance(0.2):
        body["group_id"] = world.pick(["g1", "g" * 65])
    if world.chance(0.15):
        body["allowed"] = world.pick([["approve", "reject"], ["respond"], []])
    return world.call("openHold", role, at, body)


def decision_of(world, known):
    kind = known.get("kind", "approval")
    fitting = {"approval": ["approve", "approve", "edit", "edit", "reject", "respond"], "link": ["approve", "reject", "dismiss"]}
    word = world.pick(fitting.get(kind, ["respond", "respond", "reject", "dismiss"])) if world.chance(0.85) else world.pick(
        ["approve", "edit", "reject", "respond", "dismiss", "shrug"])
    body = {"decision": word}
    if word in ("approve", "edit") and known.get("digest"):
        body["digest"] = world.pick(["", "sha256:"]) * known["digest"].startswith("sha256") + known["digest"].replace(
            "sha256:", "") if world.chance(0.9) else "0" * 64
    if word == "edit":
        shown = known.get("args")
        args = (shown if isinstance(shown, dict) else {}) | {"amount": world.pick([7, 5000]), "card": world.pick(["[redacted:path]", "5500"])}
        if world.chance(0.6):
            args |= {"password": "[redacted:secret-key-name]", "to": [{"pin": "[redacted:path]", "name": "b"}]}
        body["args"] = args
    if word == "respond":
        body["content"] = world.pick(["yes", "text", {"n": 1}, {"outcome": "ran", "result": 1}, 7])
    if world.chance(0.35) or word == "reject" and world.chance(0.6):
        body["comment"] = "seen"
    if world.chance(0.1):
        body["reason"] = world.pick(["r1", "r9"])
    return body


def decider(world, known):
    return world.role("approver", "approver", "carol", "tina", "tom", "client", "ann")


def decide(world):
    open_holds = [one for one, known in world.holds.items() if known.get("status") == "open"]
    hold = world.some("hld", open_holds if world.chance(0.8) else world.holds, world.holds)
    known = world.holds.get(hold, {})
    return world.call("decideHold", decider(world, known), {"hold_id": hold}, decision_of(world, known))


def resume(world):
    open_holds = [one for one, known in world.holds.items() if known.get("status") == "open" and known.get("request")]
    hold = world.pick(open_holds or world.holds)
    known = world.holds.get(hold, {})
    request = known.get("request") or world.odd_id("req")
    body = decision_of(world, known)
    if world.chance(0.6):
        body["hold_id"] = hold or world.odd_id("hld")
    if world.chance(0.1):
        request = world.pick(world.requests) or request
    return world.call("decideRequestHold", decider(world, known), {"request_id": request}, body)


def list_holds(world):
    query = {}
    for name, values in (("status", ["open", "decided", "approved", "odd"]), ("agent", [*WORKERS, "b a d"]),
                         ("kind", ["approval", "question", "odd"]), ("risk", ["high", "low", "odd"]),
                         ("user", [*USERS, "nobody"]), ("group_id", ["g1"]), ("order", ["urgency", "oldest", "newest", "odd"]),
                         ("limit", [1, 2, 200, 0]), ("session_id", [*world.sessions, "nonsense"])):
        if world.chance(0.18):
            query[name] = world.pick(values)
    return world.call("listHolds", world.pick([*world.keys, *STRANGERS]), query=query)


def read_hold(world):
    hold = world.some("hld", world.holds, world.holds)
    return world.call("getHold", world.pick([*world.keys, *STRANGERS]), {"hold_id": hold})


def read_state(world):
    session, query = session_of(world), {}
    role = owner_role(world, session)
    if world.chance(0.35):
        at, _, role = leased(world)
        query["request_id"] = at["request_id"]
        session = world.requests.get(at["request_id"], {}).get("session", session)
    return world.call("getSessionState", role, {"session_id": session}, query=query)


def patch_state(world):
    roll, session = world.random.random(), session_of(world)
    if roll < 0.5:
        prefixes = ["", "", "user:"] if world.chance(0.85) else ["app:", "temp:", "odd:", "User:"]
        return world.call("updateSessionState", owner_role(world, session), {"session_id": session}, patch_of(world, prefixes))
    if roll < 0.65:
        return world.call("updateSessionState", world.role("admin"), {"session_id": session}, patch_of(world, ["app:", "", "user:"]))
    at, body, role = leased(world)
    session = world.requests.get(at["request_id"], {}).get("session", session)
    prefixes = world.pick([["temp:"], ["temp:"], ["", "user:"], ["app:"], ["temp:", ""]])
    body |= patch_of(world, prefixes) | at
    return world.call("updateSessionState", role, {"session_id": session}, body)


def patch_app(world):
    at = {"app": world.pick([*APPS, *APPS, "b%20d"])}
    return world.call("updateAppState", world.role("admin"), at, patch_of(world, ["", "app:"]))


def patch_user(world):
    user = world.pick(USERS)
    at = {"app": world.pick(APPS), "user": world.pick([user, user, user, "nobody"])}
    role = world.role("client", "admin", user if user in world.keys else "client")
    return world.call("updateUserState", role, at, patch_of(world, ["", "user:"] if world.chance(0.9) else ["app:"]))


def read_app(world):
    return world.call("getAppState", world.pick([*world.keys, *STRANGERS]), {"app": world.pick([*APPS, "none", "b%20d"])})


def read_user(world):
    at = {"app": world.pick(APPS), "user": world.pick([*USERS, "nobody"])}
    return world.call("getUserState", world.role("client", "ann", "admin"), at)


def create_key(world):
    body = {"roles": world.pick([["client"], ["worker"], ["approver", "x"], [], ["b a d"]])}
    body |= world.pick([{}, {"name": "k"}, {"user": "ann"}, {"agents": ["clerk"]}, {"expires_in_seconds": 86_400}])
    return world.call("createKey", world.role("admin"), body=body)


def revoke_key(world):
    key = world.some("key", world.made_keys[2:], world.made_keys[2:])
    return world.call("revokeKey", world.role("admin"), {"key_id": key})


def audit(world):
    query = world.pick([{}, {"after": 0, "limit": 1000}, {"limit": 2}, {"limit": 1001}, {"after": "x"}])
    return world.call("listAuditRecords", world.role("operator", "admin"), query=query)


def verify(world):
    return world.call("verifyStore", world.role("operator", "admin"), body={})


def reload(world):
    return world.call("reloadConfiguration", world.role("admin"), body={})


def set_address(world):
    at = {"agent": world.pick(["clerk", "scribe", "stray", "b%20d"])}
    url = world.pick(["https://w.invalid/resume", "https://w.invalid/one", "https://w.invalid/two", "http://w.invalid", "https://u:p@w.invalid", "x"])
    return world.call("setResumeAddress", world.role("worker", "admin", "clerk"), at, {"url": url})


def address(world, op):
    return world.call(op, world.role("worker", "admin", "clerk"), {"agent": world.pick(["clerk", "clerk", "stray", "b%20d"])})


def simple(op, values=None):
    def make(world):
        role = world.pick([*world.keys, *STRANGERS]) if world.chance(0.4) else world.role("client", "ann", "admin")
        return world.call(op, role, {name: world.pick(found) for name, found in (values or {}).items()})

    return make


def chat(op):
    def make(world):
        """A chat with an agent that the server runs itself."""
        body = {"model": world.pick([*SERVED, *SERVED, "nope", "clerk"]), "messages": []}
        headers = {}
        known = [one for one in world.chat_sessions if world.sessions[one]["open"]]
        roll = world.random.random()
        if roll < 0.3:
            headers["x_statehold_session"] = "new"
        elif roll < 0.65 and known:
            headers["x_statehold_session"] = world.pick(known)
        elif roll < 0.7 and known:
            body["conversation"] = world.pick(known)
        elif roll < 0.75:
            headers["x_statehold_session"] = world.odd_id("ses")
        if body["model"] == "clerk":
            headers, _ = {}, body.pop("conversation", None)
        if world.chance(0.3) and "x_statehold_session" not in headers:
            body["messages"] += [{"role": "system", "content": "be"}, {"role": "user", "content": "a"},
                                 {"role": "assistant", "content": "b"}]
        text = world.pick(["hello", "think", "boom", world.fresh("word"), [{"type": "text", "text": "part"}]])
        if world.said and world.chance(0.25):
            text = world.pick(world.said)
        world.said.append(text)
        body["messages"].append({"role": "user", "content": text})
        if world.chance(0.35):
            body |= {"stream": True} | world.pick([{}, {"stream_options": {"include_usage": True}}])
        body |= world.pick([{}, {}, {}, {"n": 2}, {"temperature": 0.5}, {"user": "ann"}, {"tools": []}, {"logprobs": True}])
        if world.chance(0.1):
            headers["x_statehold_app"] = world.pick(["shop", "b a d"])
        if world.chance(0.1):
            headers["x_statehold_wait"] = world.pick(["1", "x"])
        return world.call(op, world.role("client", "client", "ann", "both"), body=body, **headers)

    return make


MAKERS = [
    ("createSession", 5, create), ("listSessions", 6, list_sessions), ("listSessions", 4, next_page),
    ("getSession", 3, read_session), ("updateSession", 6, patch_session), ("closeSession", 1.2, close_session),
    ("deleteSession", 0.9, delete_session), ("listMessages", 5, messages), ("getSessionTree", 4, tree),
    ("listRecords", 4, records), ("startRequest", 14, start), ("claimRequests", 12, claim),
    ("appendItems", 14, append), ("completeRequest", 5, complete), ("failRequest", 2, fail),
    ("extendLease", 3, heartbeat), ("releaseLease", 2, release), ("cancelRequest", 2, cancel),
    ("getRequest", 6, read_request), ("getRequestMemory", 4, read_memory), ("getTask", 5, read_task),
    ("closeTask", 2, lambda world: end_task(world, "closeTask")),
    ("cancelTask", 1, lambda world: end_task(world, "cancelTask")),
    ("openHold", 14, open_hold), ("decideHold", 14, decide), ("decideRequestHold", 6, resume), ("listHolds", 7, list_holds),
    ("getHold", 4, read_hold), ("countHolds", 2, simple("countHolds")), ("getSessionState", 5, read_state),
    ("updateSessionState", 12, patch_state), ("updateAppState", 4, patch_app), ("updateUserState", 5, patch_user),
    ("getAppState", 2, read_app), ("getUserState", 2, read_user), ("createKey", 4, create_key),
    ("listKeys", 1.5, simple("listKeys")), ("revokeKey", 1.5, revoke_key), ("listAuditRecords", 2, audit),
    ("verifyStore", 1, verify), ("reloadConfiguration", 1, reload), ("setResumeAddress", 3, set_address),
    ("getResumeAddress", 2, lambda world: address(world, "getResumeAddress")),
    ("deleteResumeAddress", 2, lambda world: address(world, "deleteResumeAddress")), ("listAgents", 1, simple("listAgents")),
    ("getAgent", 1.5, simple("getAgent", {"agent": ["clerk", "front", "brain", "echo", "nope"]})),
    ("createChatCompletion", 7, chat("createChatCompletion")), ("listModels", 1.5, simple("listModels")),
    ("createChatCompletionAlias", 3, chat("createChatCompletionAlias")),
    ("listModelsAlias", 1.5, simple("listModelsAlias")), ("getModel", 1.5, simple("getModel", {"model": ["echo", "clerk", "nope"]})),
    ("getModelAlias", 1.5, simple("getModelAlias", {"model": ["memo", "nope"]})),
    ("getHealth", 0.3, simple("getHealth")), ("getReadiness", 0.3, simple("getReadiness")),
    ("getMetrics", 0.7, simple("getMetrics")), ("getApiDocument", 0.3, simple("getApiDocument")),
]
