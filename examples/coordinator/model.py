"""A model that is no model: model.py PORT. It speaks chat completions and follows a script.

With a `response_format` it is asked to choose an agent; otherwise it writes the last words of a turn.
"""

import json
import re
import sys
import time

import service


def choose(messages):
    """What a router is answered. A real model reads the list of agents in the first message."""
    said = [message["content"] for message in messages if message["role"] == "user"]
    text, is_asked_again = said[-1], "cannot be read" in said[-1]
    if "Mumble" in text:
        return "Hm. Let me think."
    agent, instructions = "gpa", None
    if re.search(r"(?i)\busers?\b|\bwho lives\b", text):
        agent = "ums"
    elif "pilot" in text:
        agent = "pilot"
    elif (place := re.search(r"And in (\w+)", text)) and "weather" in " ".join(said[:-1]):
        instructions = f"The user asks for the weather in {place[1]}."
    elif is_asked_again:
        instructions = "The user mumbles."
    return json.dumps({"agent_name": agent, "additional_instructions": instructions})


def finish(messages):
    """The last words: what the agent has found, for whoever asked."""
    found, asked = re.fullmatch(r"## CONTEXT:\n(.*)\n---\n## USER_REQUEST:\n(.*)", messages[-1]["content"], re.DOTALL).groups()
    return f"{found} Anything else?", "slowly" in asked


class Model(service.Handler):
    def post(self, body):
        if "response_format" in body:
            message = {"role": "assistant", "content": choose(body["messages"])}
            return self.answer({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})
        self.stream(self.chunks(*finish(body["messages"])))

    def chunks(self, text, is_slow):
        for chunk in service.chunks_of(text):
            time.sleep(0.6 if is_slow else 0)
            yield chunk


if __name__ == "__main__":
    service.serve(Model, int(sys.argv[1]))
