"""The services of the example: services.py PORT. A data service, a model that follows a script, and a help desk.

They keep whatever they were sent: GET /heard
"""

import http.server
import json
import re
import sys
import threading

SALES = {"May": 3, "June": 5}


def query(messages):
    """The data service: words, and the values that it shares."""
    month = next((month for month in SALES if month in messages[-1]["content"]), "May")
    rows = {"month": month, "sold": SALES[month]}
    return f"{month} is queried.", {"temp:rows": rows, "last_query": f"sales of {month}"}


def write(messages):
    """The model: a tool call, or words."""
    prompt = dict(line.split(": ", 1) for line in messages[0]["content"].splitlines())
    if messages[-1]["role"] == "tool":
        return None, "It is saved."
    saved = re.search(r"Save the agent (\S+)", messages[-1]["content"])
    if saved:
        value = {"key": "user:agent_id", "value": saved[1]}
        return {"name": "put_state", "arguments": json.dumps(value)}, None
    rows, is_french = json.loads(prompt["Rows"]), prompt["Language"] == "French"
    words = "{sold} ventes en {month}." if is_french else "{sold} sold in {month}."
    return None, words.format(**rows) + (" (chart)" if prompt["Charts"] == "true" else "")


class Services(http.server.BaseHTTPRequestHandler):
    heard, conversations, lock = [], {}, threading.Lock()

    def do_GET(self):
        self.answer(self.heard if self.path == "/heard" else [])

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with self.lock:
            self.heard.append({"path": self.path, "body": body})
        if self.path == "/conversations":
            made = f"c-{len(self.conversations) + 1}"
            self.conversations[made] = []
            self.answer({"id": made, "title": body["title"], "messages": []})
        elif self.path.endswith("/chat"):
            said = self.conversations[self.path.split("/")[2]]
            said.append(body["message"]["content"])
            shared = re.search(r"\[shared context\]\n(.*)\n", said[-1])
            known = json.loads(shared[1]) if shared else {}
            asked = known.get("last_query", "nothing")
            self.answer({"content": f"Message {len(said)}. You asked for {asked}."})
        elif body["model"] == "data":
            text, shared = query(body["messages"])
            self.stream([{"content": text}, {"custom_content": {"shared_context": shared, "state": {}}}])
        else:
            function, text = write(body["messages"])
            call = {"index": 0, "id": "call_1", "type": "function", "function": function}
            self.stream([{"tool_calls": [call]} if function else {"content": text}])

    def answer(self, body):
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def stream(self, deltas):
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        for delta in [*deltas, {}]:
            choice = {"index": 0, "delta": delta, "finish_reason": None if delta else "stop"}
            self.wfile.write(f"data: {json.dumps({'choices': [choice]})}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Services).serve_forever()
