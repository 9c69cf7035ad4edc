"""Somebody who decides: approver.py URL HOLD approve|reject

An approval names the digest of the action that was seen. If the server shows another action in the
meantime, the approval does not count.
"""

import sys

from client import call


def decide(url, hold_id, decision):
    hold = call("GET", f"{url}/v1/holds/{hold_id}")
    action = hold["action"]
    print(f"{hold['agent']} asks: {hold['title']} {action['tool']} {action['args']}")
    words = {"decision": decision, "digest": action["digest"]}
    decided = call("POST", f"{url}/v1/holds/{hold_id}/decision", words, key=f"mine-{hold_id}")
    print(decided["status"])


if __name__ == "__main__":
    decide(*sys.argv[1:])
