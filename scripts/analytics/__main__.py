"""Lets Google's clients talk to the program: analytics STATEHOLD. Prints what they have seen to work.

The clients have packages of their own, so they run in a process of their own.
"""

import http.server
import json
import os
import subprocess
import threading

import rig
from rig import Server, say

CONFIG = """
[chat]
answerers = ["analyst"]

[agents.helper]
description = "Echoes, and asks."

[agents.analyst]
kind = "openai"
description = "Answers from what it is told."
base_url = "http://127.0.0.1:{port}/v1"
model = "any"
"""


class Analyst(http.server.BaseHTTPRequestHandler):
    """A service behind chat completions that repeats what it was told."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        said = [f"{message['role']}: {message['content']}" for message in body["messages"]]
        chunk = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "any",
                 "choices": [{"index": 0, "delta": {"role": "assistant", "content": " | ".join(said)},
                              "finish_reason": "stop"}]}
        data = f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


class Helper(threading.Thread):
    """The agent `helper`: it echoes, and asks if it is told to."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.server = server
        self.start()

    def run(self):
        claim = {"agent": "helper", "wait_seconds": 10, "max": 1}
        while True:
            try:
                for request in self.server.call("worker", "/v1/work/claim", claim)["requests"]:
                    self.work(request)
            except OSError:
                return

    def work(self, request):
        path, fence = f"/v1/requests/{request['id']}", request["fence"]
        said, decided = request["input"], request["decisions"]
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


def check():
    service = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Analyst)
    threading.Thread(target=service.serve_forever, daemon=True).start()
    server = Server("analytics", CONFIG.format(port=service.server_port))
    Helper(server)
    for script in ("google_client.py", "adk_tools.py"):
        asked = [os.environ["GOOGLE_PYTHON"], "-W", "ignore", os.path.join(rig.SCRIPTS, "analytics", script)]
        env = os.environ | {"STATEHOLD_URL": server.url, "CLIENT_KEY": server.keys["client"],
                            "APPROVER_KEY": server.keys["approver"]}
        done = subprocess.run(asked, env=env, capture_output=True, text=True, timeout=300)
        for line in done.stdout.splitlines():
            say(line)
        assert done.returncode == 0, (script, done.stderr)
    left = server.call("admin", "/v1/sessions?app=acme.us")["sessions"]
    assert left == [], "calls in which the caller keeps the conversation leave nothing"
    say("stateless calls left nothing")
    server.stop()


rig.play(check)
