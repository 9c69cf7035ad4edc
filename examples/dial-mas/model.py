"""A model that is no model: model.py PORT. It is a deployment of DIAL, and follows a script.

With tools it is the model of the general purpose agent. With a `response_format` it is asked to choose an agent, and
otherwise it writes the last words of a turn: for the coordinator, if that does not choose by rules.
It keeps what it was sent: GET /heard
"""

import http.server
import json
import re
import sys


def call(name, **arguments):
    return {"name": name, "arguments": json.dumps(arguments)}, None


def use_tools(messages):
    """The call of a tool, or words."""
    results = [message["content"] for message in messages if message["role"] == "tool"]
    asked = [message["content"] for message in messages if message["role"] == "user"][-1]
    if messages[-1]["role"] == "tool":
        if place := re.match(r"(\w+): sunny", results[-1]):
            return None, f"It is sunny in {place[1]}."
        return None, f"The result is {results[-1]}."
    if sum_asked := re.search(r"(?i)calculate ([\w+*()-]+)", asked):
        return call("calculate", expression=sum_asked[1])
    if place := re.search(r"weather in (\w+)", asked):
        return call("get_weather", city=place[1])
    numbers = [result for result in results if result.isdigit()]
    if "add" in asked.lower() and numbers:
        # Only the results of earlier turns say which numbers: the text of the answers is not looked at.
        return call("calculate", expression="+".join(numbers))
    return None, "Ask me to calculate something, or for the weather in a city."


def choose(messages):
    """What a router is answered. A real model reads the list of agents in the first message."""
    is_about_users = re.search(r"(?i)\busers?\b", messages[-1]["content"])
    agent = "ums-agent" if is_about_users else "general-purpose-agent"
    return json.dumps({"agent_name": agent, "additional_instructions": None})


def finish(messages):
    """The last words: what the agent has found, for the person who asked."""
    (found,) = re.match(r"## CONTEXT:\n(.*)\n---\n## USER_REQUEST:\n", messages[-1]["content"], re.DOTALL).groups()
    return f"{found} Anything else?"


class Model(http.server.BaseHTTPRequestHandler):
    heard = []

    def do_GET(self):
        self.answer("application/json", json.dumps(self.heard))

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.heard.append({"key": self.headers.get("api-key"), "body": body})
        function, text = None, None
        if "tools" in body:
            function, text = use_tools(body["messages"])
        elif "response_format" in body:
            text = choose(body["messages"])
        else:
            text = finish(body["messages"])
        self.chat(body, function, text)

    def chat(self, body, function, text):
        head = {"id": "chat-1", "created": 1, "model": body["model"]}
        message, reason = {"role": "assistant", "content": text}, "stop"
        if function:
            number = f"call_{len(body['messages'])}"
            message["tool_calls"] = [{"index": 0, "id": number, "type": "function", "function": function}]
            reason = "tool_calls"
        if not body.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": reason}
            answer = {**head, "object": "chat.completion", "choices": [choice]}
            return self.answer("application/json", json.dumps(answer))
        deltas = [message]
        if text:
            deltas = [{"role": "assistant"}, *({"content": word} for word in re.findall(r"\S+\s*", text))]
        choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
        choices.append({"index": 0, "delta": {}, "finish_reason": reason})
        chunks = [json.dumps({**head, "object": "chat.completion.chunk", "choices": [one]}) for one in choices]
        self.answer("text/event-stream", "".join(f"data: {data}\n\n" for data in [*chunks, "[DONE]"]))

    def answer(self, kind, text):
        data = text.encode()
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Model).serve_forever()
