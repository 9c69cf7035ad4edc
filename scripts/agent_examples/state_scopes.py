"""Agents of every way to keep a conversation, with values of every scope between them."""

import json

from rig import Program, Server, example, say


class Sales:
    """The server and its services."""

    def __init__(self):
        self.services = Program("state_scopes", "services.py")
        url = f"http://127.0.0.1:{self.services.port}"
        self.server = Server(
            "scopes", open(example("state_scopes", "statehold.toml")).read(),
            STATEHOLD__MODELS__MAIN__BASE_URL=f"{url}/v1",
            STATEHOLD__AGENTS__DATA__BASE_URL=f"{url}/v1",
            STATEHOLD__AGENTS__HELPDESK__BASE_URL=url)

    def session(self, **state):
        body = {"app": "sales", "user": "ann", "agent": "report", "state": state}
        return self.server.call("client", "/v1/sessions", body)["id"]

    def ask(self, agent, text, session, stream=False):
        return self.server.chat(agent, text, session, stream)[0]

    def state(self, session):
        return self.server.call("client", f"/v1/sessions/{session}/state")["state"]

    def heard(self, model):
        return [one["body"] for one in self.services.heard() if one["body"].get("model") == model]


def check_user(sales):
    printed, readme = sales.server.play("state_scopes")
    assert printed in readme, printed
    first = sales.session(**{"user:language": "French"})
    for stream in (False, True):
        assert sales.ask("report", "How was May?", first, stream) == "3 ventes en May."
        assert sales.ask("report", "How was June?", sales.session(), stream) == "5 ventes en June."
    say("state_scopes: the language that a user prefers is in the prompt of every session")
    assert sales.ask("report", "Save the agent agt-7", first) == "It is saved."
    assert sales.state(sales.session())["user:agent_id"] == "agt-7"
    sales.ask("report", "How was May?", sales.session())
    told = sales.heard("data")[-1]["messages"][-1]["content"]
    assert '{"user:agent_id":"agt-7"}' in told, told
    say("state_scopes: an agent id that a model saved for its user is told to another agent in another session")


def check_app(sales):
    session = sales.session()
    for charts, answer in ((True, "3 ventes en May. (chart)"), (False, "3 ventes en May.")):
        sales.server.call("admin", "/v1/state/app/sales", {"set": {"charts": charts}}, "PATCH")
        assert sales.ask("report", "How was May?", session) == answer
    say("state_scopes: a feature flag of the app is switched for running sessions")


def check_session(sales):
    session, other = sales.session(), sales.session()
    sales.ask("report", "How was June?", session)
    for at in (1, 2):
        answer = sales.ask("helpdesk", "What did I ask?", session)
        assert answer == f"Message {at}. You asked for sales of June.", answer
    assert sales.ask("helpdesk", "What did I ask?", other) == "Message 1. You asked for nothing."
    assert sales.state(session)["last_answer"] == answer
    say("state_scopes: the last query of a stateless agent is told to a stateful one, in its session only")


def check_temp(sales):
    session = sales.session()
    for month, sold in (("May", 3), ("June", 5)):
        sales.ask("report", f"How was {month}?", session)
        prompt = sales.heard("writer")[-1]["messages"][0]
        rows = json.loads(prompt["content"].split("Rows: ")[1])
        assert prompt["role"] == "system" and rows == {"month": month, "sold": sold}, prompt
    assert "temp:rows" not in sales.state(session)
    trace = json.dumps(sales.server.call("admin", f"/v1/sessions/{session}/messages?view=trace"))
    assert "temp:rows" not in trace and "sold" not in trace and "last_query" in trace, trace
    say("state_scopes: rows that one phase parses are in the prompt of the next, and in no record")


def check_kill(sales):
    session = sales.session()
    assert sales.ask("report", "How was May?", session) == "3 ventes en May."
    before = sales.state(session)
    sales.server.kill()
    sales.server.start()
    assert sales.state(session) == before and before["last_query"] == "sales of May", before
    assert sales.ask("report", "How was June?", session) == "5 ventes en June."
    say("state_scopes: all values but those of the turn are there after a kill -9")


def check():
    sales = Sales()
    check_user(sales)
    check_app(sales)
    check_session(sales)
    check_temp(sales)
    check_kill(sales)
    sales.server.stop()
