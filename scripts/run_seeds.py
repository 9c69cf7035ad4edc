"""Plays the dialogues of the seeds with a client that carries nothing but messages: run_seeds.py STATEHOLD

Two talks of 30 turns each, turn by turn, with whole answers and with streams, on a development server without
and with keys. The server is killed twice: while a person has not decided yet, and while a turn runs.
"""

import threading
import time

import httpx2 as httpx
import openai

import rig
from rig import Server, say, until

# What is said, and what is answered: all of it, or a part of it after an `…`.
DIALOGUE = [
    ("What's 2+2", "2+2 is 4"),
    ("What's the temperature in Rahway, NJ", "Sunny, 72"),
    ("What's the square root of 121?", "The square root of 121 is 11"),
    ("Calculate fibonacci(10)", "…55"),
    ("Now calculate fibonacci(20)", "…6765"),
    ("List users", "…{users} users:"),
    ("What's the weather in Paris?", "Cloudy, 64"),
    ("Delete the {place} user", "…waits for a decision"),
    ("What's the weather in Springfield?", "…Which Springfield"),
    ("Springfield, IL", "Springfield, IL: Sunny, 75"),
]
ROUNDS, USERS = 3, 12
# The rounds in which the server is killed: after a question to a person, and during this turn.
KILLED_IN_PAUSE, KILLED_IN_TURN = 1, (2, "Now calculate fibonacci(20)")


class Talk:
    """A window: it knows what was said in it, and no session."""

    def __init__(self, server, is_streamed, place):
        self.server, self.is_streamed, self.place = server, is_streamed, place
        self.history, self.session, self.kills = [], None, 0

    def turn(self, number, text, expected):
        text, expected = text.format(place=self.place), expected.format(users=USERS - deleted(self.server))
        killer = None
        if (number, text) == KILLED_IN_TURN and self.place == "first":
            killer = threading.Thread(target=self.kill, args=[0.02])
            killer.start()
        answer, where = self.ask(text)
        if killer:
            killer.join()
        is_right = expected[1:] in answer if expected[0] == "…" else answer == expected
        assert is_right, (number, text, answer)
        self.session = self.session or where["session"]
        assert where["session"] == self.session, (number, text, "another session")
        self.history += [{"role": "user", "content": text}, {"role": "assistant", "content": answer}]
        if where["status"] == "paused" and where["holds"][0]["kind"] == "approval":
            if number == KILLED_IN_PAUSE and self.place == "last":
                self.kill()
            self.server.approve(where["holds"][0]["id"])
            until(lambda: self.server.call("client", f"/v1/sessions/{self.session}")["status"] == "idle")
        elif text.startswith("What's the weather in Springfield"):
            assert "was deleted" in answer, (number, text, answer)

    def ask(self, text):
        """A connection that is lost is made again, with the same messages."""
        end = time.monotonic() + 60
        while True:
            try:
                return self.server.chat("coordinator", text, None, self.is_streamed, self.history)
            except (openai.APIConnectionError, httpx.TransportError):
                assert time.monotonic() < end, text
                time.sleep(0.1)

    def kill(self, after_seconds=0):
        time.sleep(after_seconds)
        self.server.kill()
        self.server.start()
        self.kills += 1


def deleted(server):
    """How often a user was deleted."""
    return server.call("admin", "/v1/state/app/default")["state"].get("app:demo.delete_runs", 0)


def check(is_streamed, has_keys):
    name = f"{'streamed' if is_streamed else 'whole'}, {'with keys' if has_keys else 'without keys'}"
    config = "[auth]\nrequired = true\n" if has_keys else ""
    server = Server(name.replace(", ", "-").replace(" ", "-"), config, dev=[], has_keys=has_keys)
    if has_keys:
        made = server.call("admin", "/v1/keys", {"name": "ann", "roles": ["client"], "user": "ann"})
        server.keys["client"] = made["key"]
        server.client = server.client.with_options(api_key=made["key"])
    talks = [Talk(server, is_streamed, place) for place in ("first", "last")]
    steps = len(DIALOGUE)
    for at in range(ROUNDS * steps):
        # The second window begins elsewhere, so that both differ from the first message on.
        for talk, turn in zip(talks, (at, at + 3)):
            talk.turn(at // steps, *DIALOGUE[turn % steps])
    assert sum(talk.kills for talk in talks) == 2, "two kills"
    assert talks[0].session != talks[1].session
    for talk in talks:
        read = server.call("client", f"/v1/sessions/{talk.session}/messages?limit=200")["messages"]
        kept = [message["content"] for message in read if message["role"] == "user"]
        # The answer to a question is a decision and no message.
        said = [message["content"] for message in talk.history if message["role"] == "user"]
        assert kept == [text for text in said if text != "Springfield, IL"], kept
    assert deleted(server) == len(talks) * ROUNDS, deleted(server)
    server.stop()
    say(f"the dialogues of the seeds in 2 windows of {ROUNDS * steps} turns, killed twice, {name}")


rig.play(*(lambda stream=stream, keys=keys: check(stream, keys) for stream in (False, True) for keys in (False, True)))
