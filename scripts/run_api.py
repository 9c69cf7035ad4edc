"""Calls every operation of openapi.json with generated data, right and wrong: run_api.py STATEHOLD

No answer may be a fault of the server or differ from the document. Every operation must have answered well at
least once, or the calls were not worth much.
"""

import os
import re
import subprocess
import sys
import threading
import urllib.request

import rig
from rig import SCRIPTS, Server, say

CALL = re.compile(r'statehold_calls_total\{method="(\w+)",route="([^"]+)",status="(\d)\d\d"\} (\d+)')
CHECKS = [
    "not_a_server_error", "status_code_conformance", "content_type_conformance", "response_headers_conformance",
    "response_schema_conformance", "negative_data_rejection", "unsupported_method", "allow_header_conformance"]
OPTIONS = {
    # Feeds never end: they are opened once each below. Without keys there is no authentication to test.
    "exclude-path-regex": "/events$", "checks": ",".join(CHECKS), "phases": "examples,coverage,fuzzing",
    "max-examples": 60, "seed": 20261115, "generation-database": "none", "request-timeout": 30, "warnings": "off"}


def generate(server):
    """It leaves notes where it runs, so it runs in a temporary directory."""
    program = os.path.join(os.path.dirname(sys.executable), "schemathesis")
    asked = [program, "run", f"{server.url}/openapi.json", "--no-color"]
    asked += [f"--{name}={value}" for name, value in OPTIONS.items()]
    env = os.environ | {"SCHEMATHESIS_HOOKS": "schemathesis_hooks", "PYTHONPATH": SCRIPTS}
    done = subprocess.run(asked, env=env, cwd=server.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout


def follow(url):
    """A feed says at once that it is there."""
    with urllib.request.urlopen(url, timeout=10) as feed:
        assert feed.headers["content-type"] == "text/event-stream", feed.headers
        assert feed.readline() == b"retry: 1000\n"


def chat(server, path):
    """A chat waits for its agent, so it needs one that answers."""
    session = server.session("chatty")

    def work():
        asked = {"agent": "chatty", "wait_seconds": 30}
        (claimed,) = server.call("worker", "/v1/work/claim", asked)["requests"]
        server.call("worker", f"/v1/requests/{claimed['id']}/complete", {"fence": claimed["fence"], "output": "hi"})

    threading.Thread(target=work).start()
    if path == "/v1/chat":
        said = {"message": "hello", "context": {"conversation": {"id": session}}}
        message = server.call("client", path, said)["message"]
    else:
        said = {"model": "chatty", "messages": [{"role": "user", "content": "hello"}]}
        message = server.call("client", path, said, **{"x-statehold-session": session})["choices"][0]["message"]
    assert message["content"] == "hi", message


def check():
    server = Server("api", '[agents.checker]\ndescription = "checks"\n', dev=["--no-demo"])
    generate(server)
    session = server.call("client", "/v1/sessions?limit=1")["sessions"][0]["id"]
    for feed in ("/v1/events", "/v1/holds/events", f"/v1/sessions/{session}/events?after=0"):
        follow(server.url + feed)
    for base in ("/v1", "/openai/v1"):
        chat(server, f"{base}/chat/completions")
        server.call("client", f"{base}/models/checker")
    chat(server, "/v1/chat")
    chat(server, "/openai/deployments/chatty/chat/completions")
    server.call("client", "/openai/deployments/checker")
    server.call("client", "/openai/deployments/checker/configuration")
    server.call("client", "/openai/deployments/checker/rate", {"responseId": "1", "rate": True})
    # The one agent that is declared. Generated calls never guess its name.
    server.call("client", "/v1/agents/checker")

    document = server.call("client", "/openapi.json")
    missing = {(method.upper(), path) for path, item in document["paths"].items() for method in item}
    operations, calls = len(missing), 0
    metrics = urllib.request.urlopen(f"{server.url}/metrics", timeout=10).read().decode()
    for method, route, status, count in CALL.findall(metrics):
        calls += int(count)
        assert status != "5", f"{method} {route} failed"
        if status == "2":
            missing.discard((method, route))
    assert not missing, f"never answered well: {sorted(missing)}"
    server.stop()
    say(f"{calls} calls to {operations} operations; each answered well at least once, and the log verifies")


rig.play(check)
