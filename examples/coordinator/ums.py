"""A service that keeps conversations: ums.py PORT [lose-first]

    POST /conversations {"title"}                    begins one
    GET  /conversations                              all of them, the newest first
    POST /conversations/{id}/chat {"message", …}     says something in it

With `lose-first` the answer to the first creation is lost: the conversation is there, and whoever
began it does not know.
"""

import json
import re
import sys
import time

import service

USERS = {"Ada": "London", "Grace": "New York", "Blaise": "Paris", "Enrico": "Rome"}


class Ums(service.Handler):
    conversations, loses = {}, False

    def get(self):
        if self.path == "/conversations":
            return self.answer([
                {name: one[name] for name in ("id", "title", "created_at")} for one in reversed(self.conversations.values())
            ])
        if one := self.conversations.get(self.path.rsplit("/", 1)[1]):
            return self.answer(one)
        return self.answer({"detail": "Conversation not found"}, 404)

    def post(self, body):
        if self.path == "/conversations":
            with self.lock:
                number = len(self.conversations) + 1
                one = {"id": f"c/{number} é", "title": body["title"], "created_at": time.time(), "messages": []}
                self.conversations[one["id"]] = one
                is_lost, Ums.loses = self.loses, False
            return self.hang_up() if is_lost else self.answer(one, 201)
        (number,) = re.fullmatch(r"/conversations/c%2F(\d+)%20%C3%A9/chat", self.path).groups()
        one = self.conversations[f"c/{number} é"]
        with self.lock:
            answer = reply(body["message"]["content"], one["messages"])
            one["messages"] += [body["message"], {"role": "assistant", "content": answer}]
        self.stream([json.dumps({"conversation_id": one["id"]}), *service.chunks_of(answer)])


def reply(text, before):
    """What it is told of other agents stands in a marked block before the message."""
    told = re.match(r"\[shared context\]\n(.*)\n\[/shared context\]\n\n", text)
    told = json.loads(told[1]) if told else {}
    if "who lives" in text.lower():
        city = told.get("last_mentioned_location")
        return f"In {city}: {', '.join(n for n, c in USERS.items() if c == city)}." if city else "Where?"
    if "first" in text:
        listed = next((m["content"] for m in reversed(before) if m["content"].startswith("Users:")), "")
        return f"You mean {listed[7:].split(',')[0]}." if listed else "The first of what?"
    return f"Users: {', '.join(USERS)}."


if __name__ == "__main__":
    Ums.loses = "lose-first" in sys.argv[2:]
    service.serve(Ums, int(sys.argv[1]))
