"""DIAL Chat, as far as deployments notice: how it puts answers together, and how it sends messages back."""

import copy
import json

import httpx

SENT_BACK = {2024: lambda message: sent_in_2024(message), 2026: lambda message: sent_now(message)}


def sent_in_2024(message):
    """A state goes back, files of answers and stages do not. An answer without a state is its text."""
    custom, kept = message.get("custom_content") or {}, {}
    if message["role"] == "assistant" and custom.get("state"):
        kept = {"state": custom["state"]}
    if message["role"] == "user" and custom.get("attachments"):
        kept = {"attachments": custom["attachments"]}
    return {"role": message["role"], "content": message["content"]} | ({"custom_content": kept} if kept else {})


def sent_now(message):
    """Everything goes back, except for stages and the chosen configuration."""
    custom = {name: value for name, value in (message.get("custom_content") or {}).items()
              if name not in ("stages", "configuration_value")}
    return {"role": message["role"], "content": message["content"]} | ({"custom_content": custom} if custom else {})


class Failure(Exception):
    """An error as the chat shows it."""


class Chat:
    """A window with one conversation."""

    def __init__(self, url, deployment, key="any", year=2026, prompt=None, **headers):
        self.url, self.deployment, self.key, self.year = url, deployment, key, year
        self.prompt, self.headers, self.messages = prompt, headers, []

    def say(self, text, *attachments):
        """Sends a message, and gives the answer."""
        message = {"role": "user", "content": text}
        if attachments:
            message["custom_content"] = {"attachments": list(attachments)}
        self.messages.append(message)
        return self.send()

    def regenerate(self):
        """Asks for another answer in place of the last one."""
        assert self.messages.pop()["role"] == "assistant"
        return self.send()

    def edit(self, number, text):
        """Says something else in place of a message. What came after it is gone."""
        assert self.messages[number]["role"] == "user"
        self.messages[number:] = [self.messages[number] | {"content": text}]
        return self.send()

    def delete(self, number):
        """Deletes a message of the user, and the answer to it."""
        is_answered = self.messages[number + 1 : number + 2]
        del self.messages[number : number + 1 + len(is_answered)]

    def change_settings(self, prompt):
        """Applying changed settings takes the states of all messages away."""
        self.prompt = prompt
        for message in self.messages:
            message.get("custom_content", {}).pop("state", None)

    def duplicate(self):
        """A second window with the same conversation."""
        return copy.deepcopy(self)

    def send(self):
        """Sends the conversation. The answer becomes its last message as it comes, as far as it comes."""
        system = [{"role": "system", "content": self.prompt}] if self.prompt else []
        body = {"messages": [*system, *(SENT_BACK[self.year](message) for message in self.messages)], "stream": True}
        if self.year == 2024:
            body |= {"temperature": 1}
        headers = {"Api-Key": self.key, **self.headers}
        answer = {"role": "assistant", "content": ""}
        self.messages.append(answer)
        path = f"{self.url}/openai/deployments/{self.deployment}/chat/completions?api-version=2024-02-01"
        with httpx.stream("POST", path, json=body, headers=headers, timeout=60) as response:
            if response.status_code != 200:
                error = json.loads(response.read())["error"]
                raise Failure(error.get("display_message") or error["message"])
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    self.take(answer, json.loads(line[6:]))
        return answer["content"]

    @staticmethod
    def take(answer, chunk):
        """One chunk, put together as the chat does it: not by the rules of DIAL's libraries."""
        if error := chunk.get("error"):
            raise Failure(error.get("display_message") or error["message"])
        for choice in chunk["choices"]:
            delta = choice["delta"]
            answer["content"] += delta.get("content") or ""
            if custom := delta.get("custom_content"):
                kept = answer.setdefault("custom_content", {})
                kept.setdefault("attachments", []).extend(custom.get("attachments") or [])
                for stage in custom.get("stages") or []:
                    stages = kept.setdefault("stages", [])
                    known = next((one for one in stages if one["index"] == stage["index"]), None)
                    if known is None:
                        stages.append(dict(stage))
                        continue
                    for name in ("name", "content"):
                        if stage.get(name):
                            known[name] = (known.get(name) or "") + stage[name]
                    known.setdefault("attachments", []).extend(stage.get("attachments") or [])
                    if stage.get("status"):
                        known["status"] = stage["status"]
                if custom.get("state"):
                    kept["state"] = custom["state"]
