"""The few lines that every process here calls the server with, and the client among them.

    client.py URL TEXT    asks the orchestrator, and prints its answer
"""

import json
import os
import sys
import time
import urllib.request


def call(method, url, body=None, key=None):
    """One call. With an idempotency key it may be made again: it is done once."""
    headers = {"Content-Type": "application/json"}
    headers["Authorization"] = "Bearer " + os.getenv("STATEHOLD_TOKEN", "")
    if key:
        headers["Idempotency-Key"] = key
    data = None if body is None else json.dumps(body).encode()
    sent = urllib.request.Request(url, data, headers, method=method)
    with urllib.request.urlopen(sent, timeout=90) as answer:
        return json.load(answer)


def ask(url, text):
    session = {"app": "demo", "user": "ann", "agent": "orchestrator"}
    session = call("POST", f"{url}/v1/sessions", session)
    request = call("POST", f"{url}/v1/sessions/{session['id']}/requests", {"input": text})
    print(session["id"], request["id"], flush=True)
    while request["status"] not in ("completed", "failed", "cancelled"):
        try:  # An answer may take days; each call waits a minute at most.
            request = call("GET", f"{url}/v1/requests/{request['id']}?wait=60")
        except OSError:
            time.sleep(1)  # The server is away. What it has acknowledged is still there.
    print(request.get("output", request["status"]))


if __name__ == "__main__":
    ask(*sys.argv[1:])
