"""DIAL Core, as far as applications notice: it calls them with keys of one request, and says whose request it is.

Applications call it with those keys in turn: other deployments, and `interceptor`, which is the next one in the chain.
"""

import http.client
import http.server
import json
import re
import secrets
import threading
import urllib.parse

TIMEOUT_SECONDS = 60
CALL = re.compile(r"/openai/deployments/([^/?]+)/chat/completions")


class Caller:
    """What a key stands for: a user, or one request of an application in the name of a user."""

    def __init__(self, user, application=None, chain=()):
        self.user, self.application, self.chain = user, application, chain


class Core:
    def __init__(self):
        self.deployments, self.interceptors, self.users = {}, {}, {}
        self.minted, self.living, self.calls, self.expired, self.lock = [], {}, [], [], threading.Lock()
        core = self

        class Handler(CoreHandler):
            pass

        Handler.core = core
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def caller(self, key):
        if user := self.users.get(key):
            return Caller(user)
        with self.lock:
            if key in self.minted and key not in self.living:
                self.expired.append(key)
            return self.living.get(key)

    def next_of(self, caller, name):
        """The deployment that a call goes to, and what is left of its chain."""
        if name == "interceptor":
            assert caller.application, "only applications call the next one of a chain"
            return caller.chain[0], caller.chain[1:]
        first, *rest = [*self.interceptors.get(name, []), name]
        return first, rest

    def mint(self, caller, name, chain):
        key = secrets.token_hex(16)
        with self.lock:
            self.minted.append(key)
            self.living[key] = Caller(caller.user, name, chain)
        return key

    def forget(self, key):
        with self.lock:
            del self.living[key]


class CoreHandler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        caller = self.core.caller(self.headers.get("api-key"))
        if self.path != "/v1/bucket" or caller is None:
            return self.refuse(401 if caller is None else 404)
        if caller.application is None:
            return self.answer({"bucket": f"bucket-{caller.user}"})
        appdata = f"bucket-{caller.user}/appdata/{caller.application}"
        self.answer({"bucket": f"bucket-{caller.application}", "appdata": appdata})

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        key = self.headers.get("api-key")
        caller = self.core.caller(key)
        if caller is None:
            return self.refuse(401)
        (asked,) = CALL.match(self.path).groups()
        name, chain = self.core.next_of(caller, asked)
        base = self.core.deployments.get(name)
        if base is None:
            return self.refuse(404)
        minted = self.core.mint(caller, name, chain)
        call = {"user": caller.user, "from": caller.application, "to": name, "key": key, "minted": minted,
                "body": json.loads(body)}
        self.core.calls.append(call)
        try:
            self.forward(base, call, body)
        finally:
            self.core.forget(minted)

    def forward(self, base, call, body):
        """Passes the call on, and the answer back as it comes. The credentials of the caller stay here."""
        url = urllib.parse.urlsplit(base)
        passed = ("x-conversation-id", "traceparent", "x-statehold-session")
        headers = {one: self.headers[one] for one in passed if one in self.headers}
        headers |= {"Content-Type": "application/json", "Api-Key": call["minted"]}
        headers["X-DIAL-DEPLOYMENT-ID"] = call["to"]
        connection = http.client.HTTPConnection(url.hostname, url.port, timeout=TIMEOUT_SECONDS)
        try:
            query = urllib.parse.urlsplit(self.path).query
            connection.request("POST", f"{url.path}?{query}", body, headers)
            answer = connection.getresponse()
            call["status"] = answer.status
            self.send_response(answer.status)
            self.send_header("content-type", answer.getheader("content-type", "application/json"))
            self.send_header("connection", "close")
            self.end_headers()
            self.close_connection = True
            while piece := answer.read1(65536):
                self.wfile.write(piece)
        finally:
            connection.close()

    def refuse(self, status):
        self.answer({"error": {"message": "refused by Core", "code": str(status)}}, status)

    def answer(self, body, status=200):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass
