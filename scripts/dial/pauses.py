"""Turns that wait for people: here, and at another server that is called as a deployment."""

import http.client
import threading

from chat import Chat
from parts import Application, server_of
from rig import Server, say, until

FRONT = """
[agents.front]
kind = "router"
agents = ["office"]
otherwise = "office"

[agents.office]
kind = "openai"
base_url = "{url}/openai/v1"
model = "coordinator"
memory = "track"
credential_env = "OFFICE_KEY"

[agents.application]
kind = "dial"
base_url = "{url}"
deployment = "coordinator"
stages = "full"
sessions = "auto"
credential_env = "OFFICE_KEY"
"""


class Worker(threading.Thread):
    """The agent `helper`: it pays if a person approves, and asks where to."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.server, self.paid, self.is_over = server, [], threading.Event()
        self.start()

    def run(self):
        claim = {"agent": "helper", "wait_seconds": 10, "max": 1}
        while not self.is_over.is_set():
            try:
                for request in self.server.call("worker", "/v1/work/claim", claim)["requests"]:
                    self.work(request)
            except (OSError, http.client.HTTPException):
                self.is_over.wait(0.1)  # The server is killed on the way.

    def work(self, request):
        path, fence = f"/v1/requests/{request['id']}", request["fence"]
        pays, decided = "pay" in request["input"], request["decisions"]
        if not decided:
            hold = {"fence": fence, "kind": "question", "title": "Which city?"}
            if pays:
                action = {"tool": "pay_secretly", "args": {"sum": 4}}
                hold = {"fence": fence, "kind": "approval", "title": "Pay 4?", "action": action}
            self.server.call("worker", f"{path}/holds", hold)
            return self.server.call("worker", f"{path}/release", {"fence": fence})
        is_approved = decided[0]["status"] == "approved"
        if is_approved:
            self.paid.append(request["id"])
        output = ("Paid." if is_approved else "Not paid.") if pays else f"Sent to {decided[0]['decision']['content']}."
        self.server.call("worker", f"{path}/complete", {"fence": fence, "output": output})


def open_hold(server):
    (hold,) = server.call("approver", "/v1/holds?status=open")["holds"]
    return hold


def check_here():
    application = Application()
    server = server_of(application, "pauses")
    worker = Worker(server)
    for year, decision in ((2024, "approve"), (2026, "approve"), (2026, "reject")):
        chat = Chat(server.url, "coordinator", server.keys["client"], year)
        chat.say("Count")
        told, runs = chat.say("Please pay"), len(worker.paid)
        hold = open_hold(server)
        assert hold["id"] in told and "Pay 4?" in told, told
        stages = chat.messages[-1]["custom_content"]["stages"]
        waits = [stage for stage in stages if stage["name"].startswith("Waits for a person")]
        assert [(stage["status"], stage["content"]) for stage in waits] == [("completed", "helper: Pay 4?")], stages
        assert "pay_secretly" not in str(stages), "what waits is shown to those who decide"
        if decision == "approve":
            server.run("approvals", "approve", hold["id"], "--yes", role="approver")
        else:
            server.decide(hold, "reject", comment="too much")
        server.completed(hold["request_id"])
        said = chat.say("Hello")
        expected = "Paid." if decision == "approve" else "Not paid."
        assert said.startswith(expected) and said.endswith("You said: Hello"), said
        assert len(worker.paid) == runs + (decision == "approve")
        assert chat.say("Count") == "This is turn 2.", "the pause is in the same conversation"
    say("pauses: a turn that waits ends with a sentence and a stage, and goes on with the next message")

    chat = Chat(server.url, "coordinator", server.keys["client"])
    assert "Which city?" in chat.say("To which one?")
    assert chat.say("Berlin") == "Sent to Berlin."
    chat.say("To which one, again?")
    chat.change_settings("You are calm.")
    assert chat.say("Rome") == "Sent to Rome.", "the answer is found without a state"
    say("pauses: a question is answered by the next message, with and without a state")

    chat = Chat(server.url, "coordinator", server.keys["client"])
    chat.say("Please pay")
    hold, runs = open_hold(server), len(worker.paid)
    # The worker has let the request go; otherwise it would have it for as long as its lease lasts.
    until(lambda: "lease_until" not in server.call("worker", f"/v1/requests/{hold['request_id']}"))
    server.kill()
    server.start()
    server.approve(hold["id"])
    server.completed(hold["request_id"])
    assert chat.say("Hello").startswith("Paid.") and len(worker.paid) == runs + 1
    say("pauses: a pause outlives a kill -9, and the effect is had once")
    worker.is_over.set()
    server.stop()


def check_there():
    """The demo as an agent of another server: what it asks is asked here."""
    office = Server("office-there", dev=[], has_keys=True)
    key = office.keys["client"]
    front = Server("front", FRONT.format(url=office.url), dev=["--no-demo"], has_keys=True, OFFICE_KEY=key)
    chat = Chat(front.url, "front", front.keys["client"])
    assert chat.say("What's 2+2") == "2+2 is 4"
    told = chat.say("What's the weather in Springfield?")
    hold = open_hold(front)
    assert hold["id"] in told or "Which Springfield" in told, told
    assert "Springfield, IL" in (said := chat.say("Illinois")), said
    answered = front.call("approver", f"/v1/holds/{hold['id']}")
    assert answered["status"] == "answered", answered
    until(lambda: len(office.call("approver", "/v1/holds?status=answered")["holds"]) == 1)
    assert chat.say("What's 3+3") == "3+3 is 6"
    say("pauses: what another server asks is asked here, the answer is sent there once, and the conversation goes on")

    chat = Chat(front.url, "application", front.keys["client"])
    assert chat.say("What's 2+2") == "2+2 is 4"
    before = len(office.call("admin", "/v1/sessions?limit=50")["sessions"])
    assert "Sunny" in chat.say("What's the temperature in Rahway, NJ")
    after = len(office.call("admin", "/v1/sessions?limit=50")["sessions"])
    assert before == after, "it found its session by its own state"
    names = [stage["name"] for stage in chat.messages[-1]["custom_content"]["stages"]]
    assert "Call weather-agent Agent" in names, names
    say("pauses: the same demo as an application of DIAL finds its session by its state")
    front.stop()
    office.stop()


def check():
    check_here()
    check_there()
