"""Plays clients of a service that keeps conversations against the program: run_ums.py STATEHOLD

The clients do what such clients are known to do: they look for words anywhere in a line, close the connection at the
last event, send the same call again, and know nothing of sessions.
"""

import json
import threading
import time

import httpx2 as httpx

import rig
from rig import Server, say, until

# Words that such clients look for in a line, and a character that ends one for them.
AWKWARD = "not [DONE] yet, no conversation_id here,\u2028next"


class Worker(threading.Thread):
    """The agent `helper`: it counts the messages of a session, and waits where it is told."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.server, self.go_on, self.said, self.running, self.most = server, threading.Event(), {}, 0, 0
        self.lock = threading.Lock()
        self.start()

    def run(self):
        claim = {"agent": "helper", "wait_seconds": 5, "max": 8}
        while True:
            try:
                for request in self.server.call("worker", "/v1/work/claim", claim)["requests"]:
                    threading.Thread(target=self.work, args=[request], daemon=True).start()
            except OSError:
                if self.server.is_over:
                    return
                time.sleep(0.05)

    def work(self, request):
        with self.lock:
            said = self.said.setdefault(request["session_id"], [])
            said.append(request["input"])
            self.running += 1
            self.most = max(self.most, self.running)
        if request["input"] == "slow":
            assert self.go_on.wait(60)
        output = AWKWARD if request["input"] == "awkward" else f"{request['input']}: answer {len(said)}"
        with self.lock:
            self.running -= 1
        done = {"fence": request["fence"], "output": output}
        self.server.call("worker", f"/v1/requests/{request['id']}/complete", done)


class Gateway:
    """A client with one conversation, which reads its stream line by line."""

    def __init__(self, server, **headers):
        key = {"Authorization": f"Bearer {server.keys['client']}"} if server.keys else {}
        self.http = httpx.Client(base_url=f"{server.url}/ums", headers=key | headers, timeout=60)
        created = self.http.post("/conversations", json={"title": "A conversation"})
        created.raise_for_status()
        self.id = created.json()["id"]

    def say(self, text):
        body, content = {"message": {"role": "user", "content": text}, "stream": True}, ""
        with self.http.stream("POST", f"/conversations/{self.id}/chat", json=body) as answer:
            answer.raise_for_status()
            for line in answer.iter_lines():
                if "[DONE]" in line:
                    break
                if line.startswith("data: "):
                    data = json.loads(line[6:])
                    if "conversation_id" in line:
                        assert data == {"conversation_id": self.id}, data
                        continue
                    if data.get("choices"):
                        content += data["choices"][0].get("delta", {}).get("content") or ""
        return content

    def messages(self):
        read = self.http.get(f"/conversations/{self.id}").json()
        return [(message["role"], message["content"]) for message in read["messages"]]


def start(name, has_keys=True, **env):
    server = Server(
        name, '[ums]\nagent = "helper"\n\n[agents.helper]\ndescription = "Counts."\n', dev=["--no-demo"],
        has_keys=has_keys, **env)
    server.is_over = False
    return server, Worker(server)


def check_clients():
    for has_keys in (False, True):
        server, worker = start(f"keys-{has_keys}", has_keys)
        headers = {"x-statehold-user": "ann"} if has_keys else {}
        gateway = Gateway(server, **headers)
        assert gateway.say("one") == "one: answer 1"
        # The client has closed the connection at the last event, and nothing is lost by that.
        assert gateway.messages() == [("user", "one"), ("assistant", "one: answer 1")]
        assert gateway.say("awkward") == AWKWARD
        whole = gateway.http.post(
            f"/conversations/{gateway.id}/chat", json={"message": {"role": "user", "content": "two"}, "stream": False})
        assert whole.json()["content"] == "two: answer 3" and whole.json()["conversation_id"] == gateway.id
        bare = gateway.http.post("/conversations")
        assert bare.status_code == 200 and bare.json()["messages"] == []
        listed = gateway.http.get("/conversations").json()
        assert {one["id"]: one["message_count"] for one in listed} == {gateway.id: 6, bare.json()["id"]: 0}
        gone = gateway.http.delete(f"/conversations/{bare.json()['id']}")
        assert gone.json() == {"message": "Conversation deleted successfully"}
        assert gateway.http.get(f"/conversations/{bare.json()['id']}").json()["detail"] == "Conversation not found"
        say(f"conversations: created, listed, read and deleted, whole and streamed, {'with' if has_keys else 'without'} a key")
        if not has_keys:
            server.is_over = True
            server.stop()
    return server, worker


def check_races_and_kills():
    server, worker = check_clients()
    gateway = Gateway(server, **{"x-statehold-user": "ann"})
    answers, worker.most = [], 0
    calls = [threading.Thread(target=lambda n=n: answers.append(gateway.say(f"m{n}"))) for n in range(12)]
    for call in calls:
        call.start()
    for call in calls:
        call.join()
    assert sorted(int(answer.rsplit(" ", 1)[1]) for answer in answers) == list(range(1, 13)), answers
    assert worker.most == 1, "one turn at a time"
    roles = [role for role, _ in gateway.messages()]
    assert roles == ["user", "assistant"] * 12, roles
    say("conversations: twelve messages at once are twelve turns, one after the other, and none is lost")

    # The same call again: while it is answered, and after the server was killed in the middle of it.
    first = []
    waiting = threading.Thread(target=lambda: first.append(again(gateway, "slow")))
    waiting.start()
    until(lambda: "slow" in worker.said.get(gateway.id, []))
    server.kill()
    waiting.join()
    server.start()
    gateway.http.base_url = f"{server.url}/ums"
    worker.go_on.set()
    assert first == [None], first
    answer = until(lambda: again(gateway, "slow"))
    assert answer.startswith("slow: answer"), answer
    assert [text for role, text in gateway.messages() if role == "user"].count("slow") == 1
    say("conversations: a message whose server was killed is said once, and answered to the client that sends it again")
    server.is_over = True
    server.stop()


def again(gateway, text):
    """The answer, or None if the server was not there or went away."""
    try:
        return gateway.say(text)
    except httpx.HTTPError:
        return None


def check_upstream():
    """A server whose agent is behind a service that keeps conversations, which is another server."""
    theirs, _ = start("theirs")
    key = theirs.keys["client"]
    ours = Server(
        "ours", f'[agents.ums]\nkind = "conversations"\nbase_url = "{theirs.url}/ums"\ncredential_env = "THEIRS"\n'
        'brief_on_loss = true\n', dev=["--no-demo"], THEIRS=key)
    # A bound user is nobody's choice there: the key says who it is.
    answer, where = ours.chat("ums", "hello", "new")
    assert answer == "hello: answer 1", answer
    session = where["session"]
    assert ours.chat("ums", "more", session, stream=True)[0] == "more: answer 2"
    theirs.kill()
    theirs.start()
    assert ours.chat("ums", "after", session)[0].startswith("after: answer"), "the conversation outlives its server"
    http = httpx.Client(base_url=f"{theirs.url}/ums", headers={"Authorization": f"Bearer {key}"}, timeout=60)
    [there] = http.get("/conversations").json()
    assert there["title"].startswith(f"Statehold {session} ums"), there
    http.delete(f"/conversations/{there['id']}").raise_for_status()
    answer, where = ours.chat("ums", "still there?", session)
    assert answer.startswith("The service that keeps this conversation had lost it."), answer
    assert "[earlier conversation]" in answer and "hello: answer 1" in answer, "it was told what was said before"
    say("conversations: another server is the service of an agent, through a crash there and a lost conversation")
    theirs.is_over = True
    ours.stop()
    theirs.stop()


if __name__ == "__main__":
    rig.play(check_races_and_kills, check_upstream)
