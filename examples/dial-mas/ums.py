"""A service that looks after users, and keeps conversations: ums.py PORT

    POST   /conversations {"title"}                 begins one
    GET    /conversations, /conversations/{id}      shows them
    DELETE /conversations/{id}                      removes one
    POST   /conversations/{id}/chat {"message"}     says something in it

It keeps what it was sent: GET /heard
"""

import datetime
import http.server
import json
import re
import sys
import threading
import uuid


def now():
    return datetime.datetime.now(datetime.UTC).isoformat()


class Ums(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    conversations, users, heard, lock = {}, ["Ada", "Grace", "Blaise", "Enrico"], [], threading.Lock()

    def do_GET(self):
        if self.path == "/heard":
            return self.answer(self.heard)
        if self.path == "/health":
            return self.answer({"status": "healthy", "conversation_manager_initialized": True})
        if self.path == "/conversations":
            newest = sorted(self.conversations.values(), key=lambda one: one["updated_at"], reverse=True)
            heads = [{name: one[name] for name in ("id", "title", "created_at", "updated_at")} for one in newest]
            counts = [{"message_count": len(one["messages"])} for one in newest]
            return self.answer([head | count for head, count in zip(heads, counts)])
        one = self.find()
        return self.answer(one) if one else self.not_found()

    def do_DELETE(self):
        if self.find() is None:
            return self.not_found()
        del self.conversations[self.path.split("/")[2]]
        self.answer({"message": "Conversation deleted successfully"})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or "null")
        with self.lock:
            keys = [self.headers[name] for name in ("api-key", "authorization") if name in self.headers]
            self.heard.append({"path": self.path, "keys": keys, "body": body})
            if self.path == "/conversations":
                at = now()
                one = {"id": str(uuid.uuid4()), "title": (body or {}).get("title") or "New conversation",
                       "messages": [], "created_at": at, "updated_at": at}
                self.conversations[one["id"]] = one
                return self.answer(one)
            one = self.find()
            if one is None:
                return self.not_found()
            answer = self.reply(body["message"]["content"], one["messages"])
            one["messages"] += [body["message"], {"role": "assistant", "content": answer}]
            one["updated_at"] = now()
        if body.get("stream", True):
            return self.stream(one["id"], answer)
        self.answer({"content": answer, "conversation_id": one["id"]})

    def reply(self, text, before):
        """`first` is the first of the users that were listed in this conversation."""
        told = [message["content"] for message in before] + [text]
        listed = re.findall(r"Users: (\w+)", "\n".join(told))
        text = text.rsplit("[/earlier conversation]", 1)[-1]
        if re.search(r"(?i)first", text):
            if not listed:
                return "The first of which users?"
            name = listed[-1]
            if "delete" not in text.lower():
                return f"The first user is {name}."
            if name in self.users:
                self.users.remove(name)
            return f"{name} is deleted."
        return f"Users: {', '.join(self.users)}."

    def find(self):
        parts = self.path.split("/")
        return self.conversations.get(parts[2]) if len(parts) > 2 else None

    def not_found(self):
        self.answer({"detail": "Conversation not found"}, 404)

    def stream(self, conversation, text):
        choices = [{"delta": {"content": word}, "index": 0, "finish_reason": None} for word in re.findall(r"\S+\s*", text)]
        choices.append({"delta": {}, "index": 0, "finish_reason": "stop"})
        events = [{"conversation_id": conversation}, *({"choices": [choice]} for choice in choices)]
        data = [*(json.dumps(event) for event in events), "[DONE]"]
        self.send("text/event-stream", "".join(f"data: {line}\n\n" for line in data), 200)

    def answer(self, body, status=200):
        self.send("application/json", json.dumps(body), status)

    def send(self, kind, text, status):
        data = text.encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Ums).serve_forever()
