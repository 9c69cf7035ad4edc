"""The agents of the coordinator, chosen by a model that answers with JSON. A model also writes the last words."""

import json
import threading
import time

import openai

import coordinator
from rig import Program, example, read, refused, say, until


class Office:
    """The server, its model and its agents."""

    def __init__(self):
        self.model = Program("coordinator", "model.py")
        url = f"http://127.0.0.1:{self.model.port}/v1"
        self.server, self.gpa, self.ums = coordinator.start(
            "by-model", config="by_model.toml", STATEHOLD__MODELS__MAIN__BASE_URL=url)

    def ask(self, text, session="new", stream=False, **more):
        return self.server.chat("coordinator", text, session, stream, **more)

    def thought(self, since=0):
        """What the model was asked: the bodies of its calls."""
        return [json.loads(one["body"]) for one in self.model.heard()[since:]]

    def heard(self):
        """How often each was asked."""
        return [len(one.heard()) for one in (self.model, self.gpa, self.ums)]


def check_chosen(office):
    printed, readme = office.server.play("coordinator")
    assert printed in readme, printed
    for stream in (False, True):
        before, (sent, *_) = len(office.gpa.heard()), office.heard()
        answer, where = office.ask("What is the weather in Paris?", stream=stream)
        assert (answer, where["via"]) == ("It is sunny in Paris. Anything else?", ["gpa"]), (answer, where)
        answer, where = office.ask("And in Rome?", where["session"], stream)
        assert (answer, where["via"]) == ("It is sunny in Rome. Anything else?", ["gpa"]), (answer, where)
        told = coordinator.asked_of(office.gpa)[before:]
        rome = "And in Rome?\n\nThe user asks for the weather in Rome."
        assert told == [["What is the weather in Paris?"], ["What is the weather in Paris?", "It is sunny in Paris.", rome]], told
        answer, where = office.ask("Who lives there?", where["session"], stream)
        assert (answer, where["via"]) == ("In Rome: Enrico. Anything else?", ["ums"]), (answer, where)

        chosen, finished = office.thought(sent)[2:4]
        form = chosen["response_format"]["json_schema"]
        assert chosen["response_format"]["type"] == "json_schema" and form["name"] == "response" and form["strict"], form
        assert form["schema"]["properties"]["agent_name"] == {"type": "string", "enum": ["gpa", "ums"]}, form
        assert form["schema"]["required"] == ["agent_name", "additional_instructions"], form
        (prompt, *said), last = chosen["messages"], finished["messages"][-1]
        assert prompt["role"] == "system" and "- gpa: Knows the weather, and tells stories." in prompt["content"], prompt
        # What the router itself was asked and has answered, not what its agents were told.
        assert [one["content"] for one in said] == [
            "What is the weather in Paris?", "It is sunny in Paris. Anything else?", "And in Rome?"], said
        assert last["content"] == "## CONTEXT:\nIt is sunny in Rome.\n---\n## USER_REQUEST:\nAnd in Rome?", last
        shown = office.server.call("client", f"/v1/sessions/{where['session']}/messages")["messages"]
        assert "The user asks" not in json.dumps(shown) and len(shown) == 6, shown
    say("by_model: a JSON decision of a model, with instructions, and last words of a model, streamed and not")

    create = office.server.client.chat.completions.create
    slowly = [{"role": "user", "content": "List all users slowly"}]
    text, chunks = read(create(model="coordinator", messages=slowly, stream=True))
    pieces = [choice.delta.content for chunk in chunks for choice in chunk.choices if choice.delta.content]
    assert text == "Users: Ada, Grace, Blaise, Enrico. Anything else?" and len(pieces) > 1, pieces
    say("by_model: the last words are streamed while they are written, and what the agent said is not")


def check_unknown(office):
    readme = open(example("coordinator", "README.md")).read()
    _, where = office.ask("What is the weather in Paris?")
    for stream in (False, True):
        thought, *asked = office.heard()
        error = refused(openai.APIError, lambda: office.ask("Ask the pilot", where["session"], stream, retries=2))
        assert error.code == "no_route" and (stream or error.status_code == 502), error
        # Clients are told that it failed, and whoever looks after agents is told why.
        (task,) = office.server.call("client", f"/v1/sessions/{where['session']}/tree")["tasks"]
        failed = office.server.call("admin", f"/v1/requests/{task['requests'][-1]['id']}")
        assert failed["status"] == "failed" and failed["error"]["code"] == "agent_unknown", failed
        assert failed["error"]["message"] in readme, failed
        assert office.heard() == [thought + 1, *asked], "nobody is asked in its place, and nothing is tried again"
        answer, _ = office.ask("And in Rome?", where["session"], stream)
        assert answer == "It is sunny in Rome. Anything else?", answer
    say("by_model: an agent that is not there is an error that says so, and the session goes on")

    thought = len(office.model.heard())
    office.ask("Mumble", where["session"])
    first, second, _ = office.thought(thought)
    assert second["messages"][: len(first["messages"])] == first["messages"], second
    assert second["messages"][-2]["content"] == "Hm. Let me think.", second
    assert office.gpa.heard()[-1]["body"].count("The user mumbles.") == 1
    say("by_model: an answer that is no decision is asked for once more")


def check_kill(office):
    """The decision and the agent's answer are recorded; the model is killed off in the middle of its last words."""
    server = office.server
    _, where = office.ask("List all users")
    before, told = office.heard(), []
    text = "What is the weather in Oslo? Tell me slowly"
    asking = threading.Thread(target=lambda: told.append(office.ask(text, where["session"], retries=6)))
    asking.start()
    until(lambda: office.heard()[0] == before[0] + 2)
    time.sleep(0.5)  # A few words are out.
    server.kill()
    server.start()
    asking.join(60)
    ((answer, _),) = told
    assert answer == "It is sunny in Oslo. Anything else?", answer
    calls = office.thought(before[0])
    assert ["response_format" in call for call in calls] == [True, False, False] and calls[1] == calls[2], calls
    assert office.heard() == [before[0] + 3, before[1] + 1, before[2]], "the agent was asked once"
    say("by_model: after a kill -9 in the last words, neither the choice nor the agent's answer is made again")


def check():
    office = Office()
    check_chosen(office)
    check_unknown(office)
    check_kill(office)
    office.server.stop()
