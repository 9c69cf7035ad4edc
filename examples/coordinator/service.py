"""The few lines that all of them serve HTTP with. Whatever they are sent is kept: GET /heard"""

import http.server
import json
import re
import socket
import threading


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    heard, lock = [], threading.Lock()

    def do_GET(self):
        if self.path == "/heard":
            return self.answer(self.heard)
        return self.get()

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0))).decode()
        kept = ("idempotency-key", "traceparent", "x-statehold-session", "x-statehold-origin-session")
        headers = {name: self.headers[name] for name in kept if name in self.headers}
        with self.lock:
            self.heard.append({"path": self.path, "headers": headers, "body": body})
        self.post(json.loads(body or "{}"))

    def get(self):
        self.answer({"detail": "Not found"}, 404)

    def answer(self, body, status=200):
        body = (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def stream(self, events):
        """Texts of JSON as server-sent events, and the end of them."""
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        try:
            for event in events:
                self.wfile.write(f"data: {event}\n\n".encode())
            self.wfile.write(b"data: [DONE]\n\n")
        except OSError:
            pass  # Whoever asked is gone.

    def hang_up(self):
        """Ends the connection without an answer."""
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, *_):
        pass


def chunks_of(text):
    """An answer word by word, as chat completions are streamed."""
    for word in re.findall(r"\S+\s*", text):
        yield json.dumps({"choices": [{"index": 0, "delta": {"content": word}}]})
    yield json.dumps({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})


def serve(handler, port):
    http.server.ThreadingHTTPServer(("127.0.0.1", port), handler).serve_forever()
