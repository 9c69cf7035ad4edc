"""A coordinator inside a coordinator, and a pause at the bottom."""

import os

from rig import Server, example, lines, say


def drawn(server, session):
    return server.run("tasks", "tree", session, "--all", role="admin")


def agents_in(tree):
    """Each task with its status, from the top down."""
    words = [line.split() for line in tree.splitlines()]
    found = []
    for line in words:
        for at, word in enumerate(line[:-2]):
            if word.startswith("T") and word[1:].isdigit():
                found.append((line[at + 1], line[at + 2]))
    return found


def check():
    server = Server("nested", open(example("nested", "statehold.toml")).read())
    ledger = os.path.join(server.folder, "ledger")
    server.example("worker", example("nested", "cashier.py"), server.url, ledger)

    def paid():
        return [line.split(maxsplit=1)[1] for line in lines(ledger)]

    names = ["front-desk", "office", "cashier"]

    told, where = server.chat("front-desk", "Please pay 40 to bob", "new")
    (hold,) = where["holds"]
    assert where["status"] == "paused" and where["via"] == names[1:], where
    assert "Pay 40 to bob?" in told and f"({hold['id']})" in told, told
    assert "action" not in hold and paid() == []
    tree = drawn(server, where["session"])
    assert agents_in(tree) == [(name, "paused") for name in names], tree
    assert hold["alias"] in tree and 'pay(amount=40, to="bob")' in tree, tree
    say("nested: what the cashier waits for is told at the top, two coordinators above, with its own alias")

    server.kill()
    server.start()
    assert agents_in(drawn(server, where["session"])) == [(name, "paused") for name in names]
    server.run("approvals", "approve", hold["alias"], "--yes", role="approver")
    server.completed(where["request"])
    assert paid() == ["40 to bob"], paid()
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
    assert paid() == ["40 to bob", "7 to eve"]
    say("nested: a stream waits through the pause and goes on with the answer")
    server.stop()
