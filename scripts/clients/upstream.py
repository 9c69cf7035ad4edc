"""The services behind the server: a model that follows a script and fails as it is told, tools with a ledger,
and a worker that asks. All run in this process, so that a check can count what reached them."""

import http.server
import json
import re
import socket
import threading
import time
from collections import Counter

import rig
from mcp.server import MCPServer

STORY = "Once upon a time a server kept everything that it was told."
# How often the model dies after the tool of one message.
DEATHS = 2

CALLS, ROWS = Counter(), []


def tools():
    """Starts tools that write a row for each call, and gives their port."""
    server, port = MCPServer("books", log_level="ERROR"), rig.free_port()

    @server.tool()
    def pay(amount: int, to: str) -> str:
        """Pays an amount."""
        ROWS.append(("pay", to))
        return f"Paid {amount} to {to}."

    @server.tool()
    def write_down(text: str) -> str:
        """Writes a line into the book."""
        ROWS.append(("write_down", text))
        return "One line is written."

    threading.Thread(target=server.run, args=["streamable-http"], kwargs={"port": port}, daemon=True).start()
    return port


def call_of(name, **args):
    function = {"name": name, "arguments": json.dumps(args)}
    return {"tool_calls": [{"index": 0, "id": f"call_{name}", "type": "function", "function": function}]}


def think(messages):
    """The next message of the model: a status with which it refuses, or a delta, and whether it is cut off."""
    users = [message["content"] for message in messages if message["role"] == "user"]
    asked, last = users[-1], messages[-1]
    CALLS[asked, last["role"]] += 1
    count = CALLS[asked, last["role"]]
    if last["role"] == "tool":
        if asked.startswith("Write") and count <= DEATHS:
            return 500, None, False
        return 200, {"content": last["content"]}, False
    if found := re.match(r"Pay (\d+) to (.+)", asked):
        return 200, call_of("pay", amount=int(found[1]), to=found[2]), False
    if found := re.match("Write down (.+)", asked):
        return 200, call_of("write_down", text=found[1]), False
    if asked.startswith("Be busy") and (count == 1 or "once" not in asked):
        return 429, None, False
    if asked.startswith("Tell a story"):
        return 200, {"content": STORY}, count == 1
    if asked == "Who am I?":
        names = [found[1] for text in users if (found := re.match(r"I am (\w+)", text))]
        return 200, {"content": f"You are {names[0]}." if names else "I do not know you."}, False
    return 200, {"content": "You are welcome." if asked == "Thank you" else "Noted."}, False


class Model(http.server.BaseHTTPRequestHandler):
    """Chat completions, streamed, as agents of kind `llm` ask for them."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        status, delta, is_cut = think(body["messages"])
        self.send_response(status)
        self.send_header("content-type", "text/event-stream" if status == 200 else "application/json")
        if status == 429:
            self.send_header("retry-after", "1")
        self.end_headers()
        if status != 200:
            self.wfile.write(json.dumps({"error": {"message": "not now", "type": "server_error"}}).encode())
            return
        pieces = [delta]
        if "content" in delta:
            pieces = [{"content": word} for word in re.findall(r"\S+\s*", delta["content"])]
        for piece in pieces[:len(pieces) // 2 if is_cut else None]:
            self.chunk(piece, None)
        if is_cut:
            # The words before the cut reach the client first, as they do with a model that takes its time.
            time.sleep(0.3)
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self.chunk({}, "tool_calls" if "tool_calls" in delta else "stop")
        self.wfile.write(b"data: [DONE]\n\n")

    def chunk(self, delta, reason):
        said = {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}
        self.wfile.write(f"data: {json.dumps(said)}\n\n".encode())
        self.wfile.flush()

    def log_message(self, *_):
        pass


def model():
    """Starts the model, and gives its port."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_address[1]


def ask_where(server, is_over):
    """The worker behind the agent `weather`: asks for the place, also while the server comes and goes."""
    while not is_over.is_set():
        try:
            claim = {"agent": "weather", "wait_seconds": 5, "max": 8}
            for request in server.call("worker", "/v1/work/claim", claim)["requests"]:
                path, fence = f"/v1/requests/{request['id']}", {"fence": request["fence"]}
                if decided := request["decisions"]:
                    output = f"It is sunny in {decided[0]['decision']['content']}."
                    server.call("worker", f"{path}/complete", fence | {"output": output})
                else:
                    hold = {"kind": "question", "title": "Which Springfield?"}
                    server.call("worker", f"{path}/holds", fence | hold)
                    server.call("worker", f"{path}/release", fence)
        except OSError:
            is_over.wait(0.2)
