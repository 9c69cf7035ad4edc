"""The same application, asked directly and through the server: byte for byte the same, but for ids and times."""

import json
import re

import wire
from parts import Application, server_of
from rig import say

ORDERS = ["Transcript", "Fail a step", "Files", "Usage", "Hello there", "Stages"]
# Words between its stages may come later: stages and words each keep their order, and libraries put them together.
MIXED = {"Stages"}
# A chunk with words and nothing else.
WORDS = re.compile(r'({"choices":\[{"index":0,"finish_reason":null,"delta":{"content":)(".*")(}}\],"usage":null.*)')


def as_compared(answer):
    """The events with ids and times masked, and without the state: through the server it is a reference. Words that follow
    each other may come in one piece or in several, a stage without a name has an empty one, and `statistics` are those
    of the agent and not of its models."""
    kept = [wire.masked(event) for event in answer.events if '"delta":{"custom_content":{"state":' not in event]
    assert len(answer.events) - len(kept) <= 1, answer.events
    compared = []
    for event in kept:
        event = re.sub(r',"statistics":{.*?}(?=,"id":)', "", event).replace('"name":null', '"name":""')
        words = WORDS.fullmatch(event)
        before = WORDS.fullmatch(compared[-1]) if compared else None
        if words and before:
            event = before[1] + json.dumps(json.loads(before[2]) + json.loads(words[2])) + before[3]
            compared.pop()
        compared.append(event)
    return compared


def check_streams(application, server):
    for order in ORDERS:
        messages = [wire.user(order)]
        direct = wire.post(application.url, "strict", messages)
        through = wire.post(server.url, "app", messages, key=server.keys["client"])
        assert (direct.status, through.status) == (200, 200), through.text
        assert direct.headers["content-type"] == through.headers["content-type"], through.headers
        expected, found = as_compared(direct), as_compared(through)
        if order in MIXED:
            assert direct.message["content"] == through.message["content"], through.text
            expected, found = [[event for event in one if not WORDS.fullmatch(event)] for one in (expected, found)]
        assert found == expected, (order, "\n".join(["", *expected, "---", *found]))
    say(f"transcript: {len(ORDERS)} streams of an application are the same bytes through the server")


def check_whole(application, server):
    for order in ORDERS:
        messages = [wire.user(order)]
        direct = wire.post(application.url, "strict", messages, stream=False)
        through = wire.post(server.url, "app", messages, key=server.keys["client"], stream=False)
        expected, found = json.loads(wire.masked(direct.text)), json.loads(wire.masked(through.text))
        for answer in (expected, found):
            answer.pop("statistics", None)
            answer["choices"][0]["message"].get("custom_content", {}).pop("state", None)
        assert found == expected, (order, expected, found)
    say(f"transcript: {len(ORDERS)} whole answers of an application are the same through the server")


def check():
    application = Application()
    server = server_of(application, "transcript")
    check_streams(application, server)
    check_whole(application, server)
    server.stop()
