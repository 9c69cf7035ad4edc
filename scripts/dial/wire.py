"""DIAL without a library: calls as bytes, how chunks are put together, and what two equal answers may differ in."""

import json
import re

import httpx


class Answer:
    """An answer as it came. A stream has its events, each a line of data."""

    def __init__(self, response):
        self.status, self.headers, self.text = response.status_code, response.headers, response.text
        self.is_stream = self.headers.get("content-type", "").startswith("text/event-stream")

    @property
    def json(self):
        return json.loads(self.text)

    @property
    def events(self):
        """The data of each event. Anything else that is no comment is an error."""
        assert self.is_stream, self.text
        found = []
        for block in self.text.split("\n\n"):
            lines = [line for line in block.split("\n") if line and not line.startswith(":")]
            assert len(lines) <= 1 and all(line.startswith("data: ") for line in lines), block
            found += [line[6:] for line in lines]
        return found

    @property
    def chunks(self):
        *chunks, last = self.events
        assert last == "[DONE]", last
        return [json.loads(chunk) for chunk in chunks]

    @property
    def message(self):
        """The message of the one choice, whole or put together."""
        choice = (merged(self.chunks) if self.is_stream else self.json)["choices"][0]
        return choice["delta" if self.is_stream else "message"]

    @property
    def stages(self):
        return self.message.get("custom_content", {}).get("stages", [])

    @property
    def state(self):
        """The state as it was sent: nothing in it is put together."""
        if not self.is_stream:
            return self.message.get("custom_content", {}).get("state")
        return next(iter(states_in(self.chunks)), None)


def post(url, deployment, messages, key="any", stream=True, headers=None, **body):
    """One call of a deployment."""
    body = {"messages": messages, "stream": stream, **body}
    path = f"{url}/openai/deployments/{deployment}/chat/completions?api-version=2024-10-21"
    return Answer(httpx.post(path, json=body, headers={"Api-Key": key, **(headers or {})}, timeout=60))


def user(text, *attachments):
    custom = {"custom_content": {"attachments": list(attachments)}} if attachments else {}
    return {"role": "user", "content": text, **custom}


def merge(target, source):
    """Puts two pieces of an answer together, as DIAL's libraries do."""
    if source is None:
        return target
    if target is None:
        target = {} if isinstance(source, dict) else [] if isinstance(source, list) else None
        return source if target is None else merge(target, source)
    if isinstance(source, dict):
        return target | {name: merge(target.get(name), value) for name, value in source.items()}
    if isinstance(source, list):
        if not all(isinstance(one, dict) and isinstance(one.get("index"), int) for one in source):
            return target + source
        for one in source:
            target = target + [{"index": index} for index in range(len(target), one["index"] + 1)]
            target[one["index"]] = merge(target[one["index"]], one)
        return target
    assert type(target) is type(source), (target, source)
    return target + source if isinstance(source, str) else source


def states_in(chunks):
    customs = [choice["delta"].get("custom_content") or {} for chunk in chunks for choice in chunk["choices"]]
    return [custom["state"] for custom in customs if custom.get("state") is not None]


def merged(chunks):
    """The answer that chunks add up to. What is not in a choice is replaced, and a state comes once."""
    assert len(states_in(chunks)) <= 1, states_in(chunks)
    whole = {}
    for chunk in chunks:
        scalars = {name: value for name, value in chunk.items() if not isinstance(value, (dict, list))}
        rest = {name: value for name, value in chunk.items() if name not in scalars}
        whole = merge(whole | {name: value for name, value in scalars.items() if value is not None}, rest)
    return whole


def masked(event):
    """An event without its id and its time."""
    event = re.sub(r'"id":"[^"]*"', '"id":"ID"', event)
    return re.sub(r'"created":\d+', '"created":0', event)
