"""A worker that passes what it is asked on to another agent: delegate.py URL AGENT NEXT

The orchestrator and the middle agent are this program. Nothing in it is about pauses: when an agent
below waits for a person, this request waits too, and so does everything above it.
"""

import sys
import time

from client import call


def work(url, next_agent, request):
    at, fence = f"{url}/v1/requests/{request['id']}", request["fence"]
    if not request["child_results"]:
        child = {"agent": next_agent, "input": request["input"]}
        child |= {"parent_request_id": request["id"], "parent_fence": fence}
        call("POST", f"{url}/v1/sessions/{request['session_id']}/requests", child)
        # The answer comes with a later claim, perhaps to another process.
        call("POST", f"{at}/release", {"fence": fence})
        return
    child = request["child_results"][0]
    if child["status"] == "completed":
        output = f"{request['agent']}: {child['output']}"
        call("POST", f"{at}/complete", {"fence": fence, "output": output})
    else:
        call("POST", f"{at}/fail", {"fence": fence, "error": f"{child['agent']} {child['status']}"})


def main(url, agent, next_agent):
    while True:
        try:
            ask = {"agent": agent, "wait_seconds": 30, "lease_seconds": 5}
            for request in call("POST", f"{url}/v1/work/claim", ask)["requests"]:
                work(url, next_agent, request)
        except OSError as problem:  # The server is away, or another worker took over.
            print(problem, file=sys.stderr)
            time.sleep(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
