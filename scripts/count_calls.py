"""Opens each feed, has a chat, and counts what a server has answered: every operation of its document must have
answered well at least once, or the calls were not worth much."""

import json
import re
import sys
import threading
import urllib.request

CALL = re.compile(r'statehold_calls_total\{method="(\w+)",route="([^"]+)",status="(\d)\d\d"\} (\d+)')


def get(url):
    return urllib.request.urlopen(url, timeout=10)


def follow(url):
    """A feed says at once that it is there."""
    with get(url) as feed:
        assert feed.headers["content-type"] == "text/event-stream", feed.headers
        assert feed.readline() == b"retry: 1000\n"


def post(path, body, **headers):
    headers |= {"Content-Type": "application/json"}
    sent = urllib.request.Request(url + path, json.dumps(body).encode(), headers)
    return json.load(urllib.request.urlopen(sent, timeout=60))


def chat(path):
    """A chat waits for its agent, so it needs one that answers."""
    session = post("/v1/sessions", {"app": "fuzz", "user": "ada", "agent": "chatty"})["id"]

    def work():
        claimed = post("/v1/work/claim", {"agent": "chatty", "wait_seconds": 30})["requests"][0]
        answer = {"fence": claimed["fence"], "output": "hi"}
        post(f"/v1/requests/{claimed['id']}/complete", answer)

    threading.Thread(target=work).start()
    said = {"model": "chatty", "messages": [{"role": "user", "content": "hello"}]}
    answer = post(path, said, **{"x-statehold-session": session})
    assert answer["choices"][0]["message"]["content"] == "hi", answer


url = sys.argv[1]
follow(f"{url}/v1/events")
follow(f"{url}/v1/holds/events")
session = json.load(get(f"{url}/v1/sessions?limit=1"))["sessions"][0]["id"]
follow(f"{url}/v1/sessions/{session}/events?after=0")

chat("/v1/chat/completions")
chat("/openai/v1/chat/completions")

# The one agent that the check declares. Generated calls never guess its name.
for path in ("/v1/agents/checker", "/v1/models/checker", "/openai/v1/models/checker"):
    get(f"{url}{path}").read()

document = json.load(get(f"{url}/openapi.json"))
missing = {(method.upper(), path) for path, item in document["paths"].items() for method in item}
operations, calls = len(missing), 0
for method, route, status, count in CALL.findall(get(f"{url}/metrics").read().decode()):
    calls += int(count)
    if status == "2":
        missing.discard((method, route))
    assert status != "5", f"{method} {route} failed"
if missing:
    sys.exit(f"never answered well: {sorted(missing)}")
print(f"{calls} calls to {operations} operations; each answered well at least once")
