"""The agent at the bottom: cashier.py URL LEDGER. It pays what a person has approved.

Nothing in it is about the agents above. STATEHOLD_TOKEN is a key with the role `worker`; `dev` needs
none.
"""

import json
import os
import re
import sys
import time
import urllib.request

URL, LEDGER = sys.argv[1:]


def call(path, **body):
    headers = {"Authorization": f"Bearer {os.getenv('STATEHOLD_TOKEN', '')}", "Content-Type": "application/json"}
    sent = urllib.request.Request(URL + path, json.dumps(body).encode(), headers)
    return json.load(urllib.request.urlopen(sent, timeout=90))


def pay(args, key):
    """The tool. What has been paid under a key is paid."""
    if not os.path.exists(LEDGER) or key not in open(LEDGER).read():
        open(LEDGER, "a").write(f"{key} {args['amount']} to {args['to']}\n")


def work(request):
    at, fence = f"/v1/requests/{request['id']}", request["fence"]
    wish = re.search(r"pay (\d+) to (\w+)", request["input"], re.IGNORECASE)
    if not wish:
        return call(f"{at}/complete", fence=fence, output="Say: pay 40 to bob.")
    if not request["decisions"]:
        action = {"tool": "pay", "args": {"amount": int(wish[1]), "to": wish[2]}}
        call(f"{at}/holds", fence=fence, kind="approval", title=f"Pay {wish[1]} to {wish[2]}?", action=action)
        return call(f"{at}/release", fence=fence)
    (hold,), (to_do,) = request["decisions"], request["calls"]
    args, is_approved = hold["decision"].get("args") or hold["action"]["args"], to_do["state"] == "started"
    if is_approved:
        pay(args, to_do["id"])
    item = {"kind": "tool_result", "call_id": to_do["id"], "result": {"paid": is_approved}}
    item["outcome"] = "ran" if is_approved else to_do["state"]
    output = f"Paid {args['amount']} to {args['to']}." if is_approved else "Nothing was paid."
    return call(f"{at}/complete", fence=fence, output=output, items=[item])


while True:
    try:
        for claimed in call("/v1/work/claim", agent="cashier", wait_seconds=30, lease_seconds=5)["requests"]:
            work(claimed)
    except OSError as problem:  # The server is away, or another worker took over.
        print(problem, file=sys.stderr)
        time.sleep(1)
