"""A model that is no model: model.py PORT. It speaks chat completions and follows a script.

It keeps whatever it was sent: GET /heard
"""

import http.server
import json
import re
import sys
import time


def think(messages, tools):
    """A tool call, or words."""
    last, asked = messages[-1], [m for m in messages if m["role"] == "user"][-1]["content"]
    reader = next((tool for tool in tools if tool != "delete_file"), None)
    if last["role"] == "tool":
        called = [m for m in messages if m["role"] == "assistant"][-1]["tool_calls"][0]["function"]
        if called["name"] not in tools:
            return {"name": reader, "arguments": called["arguments"]}, None  # It has another name now.
        if called["name"] == "delete_file":
            return None, last["content"]
        return None, f"Based on the file: it has {len(last['content'].splitlines())} lines."
    file, wanted = re.search(r"Attachment: (\S+)", asked), "delete_file" if "Delete" in asked else reader
    if file and re.search("Extract|Delete", asked):
        return {"name": wanted, "arguments": json.dumps({"url": file[1]})}, None
    if "before" in asked:
        return None, f"I have read {sum(m['role'] == 'tool' for m in messages)} files before."
    return None, "I look after files."


class Model(http.server.BaseHTTPRequestHandler):
    heard = []

    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(self.heard).encode())

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.heard.append(body)
        messages, tools = body["messages"], [tool["function"]["name"] for tool in body.get("tools", [])]
        function, text = think(messages, tools)
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        if function:
            call = {"index": 0, "id": f"call_{len(messages)}", "type": "function", "function": function}
            self.chunk({"tool_calls": [call]}, "tool_calls")
        else:
            is_slow = any("slowly" in str(m["content"]) for m in messages[-3:])
            for word in re.findall(r"\S+\s*", text):
                time.sleep(0.5 if is_slow else 0)
                self.chunk({"content": word})
            self.chunk({}, "stop")
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        self.event(json.dumps({"choices": [], "usage": usage}))
        self.event("[DONE]")

    def chunk(self, delta, finish_reason=None):
        self.event(json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}))

    def event(self, data):
        try:
            self.wfile.write(f"data: {data}\n\n".encode())
        except OSError:
            pass  # Whoever asked is gone.

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Model).serve_forever()
