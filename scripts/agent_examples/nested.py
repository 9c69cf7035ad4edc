"""A coordinator inside a coordinator, and a pause at the bottom."""

import os
import subprocess
import sys

from rig import EXAMPLES, STARTED, Server, say, until


class Cashier:
    def __init__(self, server):
        self.ledger = os.path.join(server.folder, "ledger")
        asked = [sys.executable, "cashier.py", server.url, self.ledger]
        env = os.environ | {"STATEHOLD_TOKEN": server.keys["worker"]}
        folder = os.path.join(EXAMPLES, "nested")
        self.process = subprocess.Popen(asked, cwd=folder, env=env, stderr=open(server.log, "ab"))
        STARTED.append(self)

    def paid(self):
        return [line.split(maxsplit=1)[1] for line in open(self.ledger)] if os.path.exists(self.ledger) else []


def drawn(server, session):
    return server.run("tasks", "tree", session, "--all", key="admin")


def agents_in(tree):
    """Each task with its status, from the top down."""
    words = [line.split() for line in tree.splitlines()]
    found = []
    for line in words:
        for at, word in enumerate(line[:-2]):
            if word.startswith("T") and word[1:].isdigit():
                found.append((line[at + 1], line[at + 2]))
    return found


def check(program, folder):
    server = Server(program, os.path.join(folder, "nested"), "nested")
    cashier = Cashier(server)
    names = ["front-desk", "office", "cashier"]

    told, where = server.chat("front-desk", "Please pay 40 to bob", "new")
    (hold,) = where["holds"]
    assert where["status"] == "paused" and where["via"] == names[1:], where
    assert "Pay 40 to bob?" in told and f"statehold approvals approve {hold['alias']}" in told, told
    assert "action" not in hold and cashier.paid() == []
    tree = drawn(server, where["session"])
    assert agents_in(tree) == [(name, "paused") for name in names], tree
    assert hold["alias"] in tree and 'pay(amount=40, to="bob")' in tree, tree
    say("nested: what the cashier waits for is told at the top, two coordinators above, with its own alias")

    server.kill()
    server.start()
    assert agents_in(drawn(server, where["session"])) == [(name, "paused") for name in names]
    server.run("approvals", "approve", hold["alias"], "--yes", key="approver")
    until(lambda: server.call("client", f"/v1/requests/{where['request']}")["status"] == "completed")
    assert cashier.paid() == ["40 to bob\n"], cashier.paid()
    answer, later = server.chat("front-desk", "Please pay 40 to bob", where["session"])
    assert answer == "Paid 40 to bob." and later["request"] == where["request"], (answer, later)
    assert agents_in(drawn(server, where["session"])) == [(name, "idle") for name in names]
    say("nested: decided with the command line after a kill -9, paid once, and the answer came back up")

    stream = server.client.chat.completions.create(
        model="front-desk", messages=[{"role": "user", "content": "Now pay 7 to eve"}], stream=True,
        extra_headers={"x-statehold-session": where["session"], "x-statehold-wait": "60"})
    pieces, statuses = [], []
    for chunk in stream:
        pieces += [choice.delta.content or "" for choice in chunk.choices]
        if status := getattr(chunk, "statehold", None):
            statuses.append(status["status"])
            for hold in status["holds"]:
                assert server.approve(hold["id"])["status"] == "approved"
    assert ("".join(pieces), statuses) == ("Paid 7 to eve.", ["paused", "completed"]), (pieces, statuses)
    assert cashier.paid() == ["40 to bob\n", "7 to eve\n"]
    say("nested: a stream waits through the pause and goes on with the answer")
    cashier.process.kill()
    server.stop()
