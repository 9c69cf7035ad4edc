#!/usr/bin/env python3
"""A worker that asks a person before it pays, and pays once: worker.py URL AGENT LEDGER

It keeps nothing in mind. Each claim says how far the request is, so the worker may be killed at any
point and any other goes on. STATEHOLD_TOKEN is a key with the role `worker`; `dev` needs none."""
import json, os, sys, time, urllib.request
(url, agent, ledger), token = sys.argv[1:], os.getenv("STATEHOLD_TOKEN", "")

def call(path, **body):
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    sent = urllib.request.Request(url + path, json.dumps(body).encode(), headers)
    return json.load(urllib.request.urlopen(sent, timeout=90))

def pay(args, key):
    """The tool. It is told the execution key, and what has been paid under a key is paid."""
    if not os.path.exists(ledger) or key not in open(ledger).read():
        open(ledger, "a").write(f"{key} {args['amount']} to {args['to']}\n")
    return {"paid": args["amount"]}

def work(request):
    at, fence = f"/v1/requests/{request['id']}", request["fence"]
    if not request["decisions"]:  # New. Record the call and ask, in one commit; then leave.
        action = {"tool": "pay", "args": json.loads(request["input"]), "idempotent": True}
        call(f"{at}/holds", fence=fence, kind="approval", title="Pay?", action=action)
        return call(f"{at}/release", fence=fence)
    (hold,), (to_do,) = request["decisions"], request["calls"]  # Decided, but not answered yet.
    is_approved = to_do["state"] == "started"  # Else people refused it, or answered themselves.
    args = hold["decision"].get("args") or hold["action"]["args"]  # A person may have edited them.
    result = pay(args, to_do["id"]) if is_approved else {"paid": 0}
    item = {"kind": "tool_result", "call_id": to_do["id"], "result": result}
    item["outcome"] = "ran" if is_approved else to_do["state"]
    call(f"{at}/complete", fence=fence, output=f"Paid {result['paid']}.", items=[item])

while True:
    try:
        claimed = call("/v1/work/claim", agent=agent, wait_seconds=30, lease_seconds=5)
        for request in claimed["requests"]: work(request)
    except OSError as problem:  # The server is away, or another worker took over.
        print(problem, file=sys.stderr), time.sleep(1)
