"""A chat agent that remembers nothing: gpa.py PORT [NAME_OF_ITS_WEATHER_TOOL]

It speaks chat completions. What it must know the next time it hands out in `custom_content.state`, and
gets back with its own answers: here the calls of its tool, which no user sees.
"""

import json
import re
import sys
import time

import service

STORY = "Once upon a time there was a server that was killed in the middle of a sentence.".split(" ")
TOOL = "get_weather"


def history_in(messages):
    """The tool calls of earlier turns: the last answer has all of them."""
    states = [(m.get("custom_content") or {}).get("state") for m in messages if m["role"] == "assistant"]
    return states[-1]["tool_call_history"] if states and states[-1] else []


def think(messages):
    """The pieces of an answer, and the state that goes with it."""
    text, history, state = messages[-1]["content"], history_in(messages), {}
    if asked := re.search(r"weather in (\w+)", text):
        city, call = asked[1], f"call_{len(history)}"
        function = {"name": TOOL, "arguments": json.dumps({"city": city})}
        calls = [{"id": call, "type": "function", "function": function}]
        result = {"role": "tool", "tool_call_id": call, "content": f"{city}: sunny, 21.50"}
        history = [*history, {"role": "assistant", "content": "", "tool_calls": calls}, result]
        state["shared_context"] = {"last_mentioned_location": city}
        pieces = ["It is sunny ", f"in {city}."]
    elif "looked up" in text:
        found = [m["content"].split(":")[0] for m in history if m["role"] == "tool"]
        pieces = ["I looked up ", " and ".join(found) or "nothing", "."]
    elif "story" in text:
        pieces = [*(word + " " for word in STORY[:-1]), STORY[-1]]
    else:
        pieces = ["Ask me for ", "the weather in a city."]
    return pieces, {"tool_call_history": history, **state}, "story" in text


class Gpa(service.Handler):
    def post(self, body):
        pieces, state, is_slow = think(body["messages"])
        # Spaces and the last zero are as they are: the agent gets back what it wrote, byte for byte.
        state = json.dumps(state)[:-1] + ', "precision": 1.50}'
        if not body.get("stream"):
            message = json.dumps({"role": "assistant", "content": "".join(pieces)})[:-1]
            message += f', "custom_content": {{"state": {state}}}}}'
            return self.answer(f'{{"choices": [{{"index": 0, "message": {message}, "finish_reason": "stop"}}]}}')
        self.stream(self.chunks(pieces, state, is_slow))

    def chunks(self, pieces, state, is_slow):
        stage = {"index": 0, "name": TOOL, "status": "completed"}
        yield json.dumps({"choices": [{"index": 0, "delta": {"custom_content": {"stages": [stage]}}}]})
        for piece in pieces:
            if is_slow:
                time.sleep(0.5)
            yield json.dumps({"choices": [{"index": 0, "delta": {"content": piece}}]})
        yield f'{{"choices": [{{"index": 0, "delta": {{"custom_content": {{"state": {state}}}}}}}]}}'
        yield json.dumps({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})


if __name__ == "__main__":
    TOOL = sys.argv[2] if len(sys.argv) > 2 else TOOL
    service.serve(Gpa, int(sys.argv[1]))
