"""DIAL's own client against a server with the demo: answers, streams, lists, errors, state, files and a pause."""

import aidial_client
import httpx
from aidial_client import Dial
from aidial_client.types.chat import ChatCompletionChunk, ChatCompletionResponse

import wire
from rig import Server, refused, say

VERSION = "2024-10-21"


class Talk:
    """A conversation that a program holds with DIAL's client: its messages, and the states that came with them."""

    def __init__(self, dial, deployment, stream):
        self.dial, self.deployment, self.stream, self.messages = dial, deployment, stream, []

    def say(self, text, *attachments):
        custom = {"custom_content": {"attachments": list(attachments)}} if attachments else {}
        self.messages.append({"role": "user", "content": text, **custom})
        message = self.call()
        custom = message.get("custom_content") or {}
        self.messages.append({"role": "assistant", "content": message["content"]} | (
            {"custom_content": {"state": custom["state"]}} if custom.get("state") else {}))
        return message["content"]

    def call(self, **more):
        """One call, whole or streamed. Everything is what the client's own types say."""
        answer = self.dial.chat.completions.create(
            deployment_name=self.deployment, messages=self.messages, stream=self.stream, api_version=VERSION, **more)
        if not self.stream:
            assert isinstance(answer, ChatCompletionResponse), answer
            assert answer.choices[0].finish_reason == "stop" and answer.object == "chat.completion", answer
            self.last = answer
            return answer.choices[0].message.model_dump(exclude_none=True)
        chunks = list(answer)
        assert all(isinstance(chunk, ChatCompletionChunk) for chunk in chunks), chunks
        assert chunks[-1].choices[0].finish_reason == "stop", chunks[-1]
        self.last = chunks[-1]
        return wire.merged([chunk.model_dump(exclude_none=True) for chunk in chunks])["choices"][0]["delta"]


def check_answers(server):
    with Dial(base_url=server.url, api_key=server.keys["client"]) as dial:
        for stream in (False, True):
            talk = Talk(dial, "coordinator", stream)
            assert (said := talk.say("What's 2+2")) == "2+2 is 4", said
            assert talk.last.usage is None or talk.last.usage.total_tokens == 0, talk.last
            states = [message["custom_content"]["state"] for message in talk.messages if message["role"] == "assistant"]
            assert [list(state) for state in states] == [["statehold"]], states
            assert "Sunny" in talk.say("What's the temperature in Rahway, NJ")
            assert "Which Springfield" in talk.say("What's the weather in Springfield?")
            assert "Springfield, IL" in (said := talk.say("Illinois")), said
            assert (said := talk.say("What's the square root of 121?")) == "The square root of 121 is 11", said
            sizes = {len(str(one["custom_content"]["state"])) for one in talk.messages if one["role"] == "assistant"}
            assert max(sizes) < 400, sizes
            # All of it was one session, found by what the messages carry.
            talk.messages.append({"role": "user", "content": "List users"})
            talk.call()
        listed = server.call("admin", "/v1/sessions?user=anonymous&limit=50")["sessions"]
        assert len(listed) == 2, listed
    say("client: whole answers and streams of five turns, each in one session that the state in the messages names")


def check_lists(server):
    with Dial(base_url=server.url, api_key=server.keys["client"]) as dial:
        listed = {one.id: one for one in dial.deployments.list()}
        assert {"coordinator", "math-agent", "ums-agent"} <= set(listed), listed
        one = dial.deployments.get("coordinator")
        assert one.id == "coordinator" and one.description == listed["coordinator"].description, one
        unknown = refused(aidial_client.DialException, lambda: dial.deployments.get("nobody"))
        assert unknown.status_code == 404, unknown
    # Newer versions of Core send every deployment of an application to the same address.
    headers = {"Api-Key": server.keys["client"], "X-DIAL-DEPLOYMENT-ID": "coordinator"}
    body = {"messages": [wire.user("What's 2+2")], "stream": True}
    answer = wire.Answer(httpx.post(f"{server.url}/openai/v1/chat/completions", json=body, headers=headers, timeout=60))
    assert answer.message["content"] == "2+2 is 4" and list(answer.state) == ["statehold"], answer.text
    say("client: the list of deployments, one of them, one that does not exist, and one that a header names")


def check_errors(server):
    with Dial(base_url=server.url, api_key=server.keys["client"], max_retries=0) as dial:
        ask = [{"role": "user", "content": "hello"}]
        create = dial.chat.completions.create
        cases = [
            (404, "DeploymentNotFound", {"deployment_name": "nobody"}),
            (422, None, {"n": 2}),
            (422, None, {"messages": []}),
            (422, None, {"messages": [{"role": "assistant", "content": "It was me."}]}),
        ]
        for stream in (False, True):
            for status, code, changed in cases:
                call = {"deployment_name": "coordinator", "messages": ask, "stream": stream} | changed
                error = refused(aidial_client.DialException, lambda: create(**call))
                kind = "runtime_error" if status == 404 else "invalid_request_error"
                assert (error.status_code, error.type) == (status, kind) and error.message, (changed, error)
                assert code is None or error.code == code, error
    with Dial(base_url=server.url, api_key="shk_wrong", max_retries=0) as dial:
        error = refused(aidial_client.DialException, lambda: dial.chat.completions.create(
            deployment_name="coordinator", messages=ask, stream=False))
        assert error.status_code == 401, error
    with Dial(base_url=server.url, bearer_token=server.keys["client"]) as dial:
        assert dial.chat.completions.create(deployment_name="coordinator", messages=ask, stream=False).choices
    say("client: errors have DIAL's form and their own status; keys come as Api-Key or as a token")


def check_files(server):
    file = {"type": "text/csv", "title": "Rows", "url": "files/bucket/rows.csv"}
    data = {"type": "text/plain", "title": "Note", "data": "bm90ZQ=="}
    with Dial(base_url=server.url, api_key=server.keys["client"]) as dial:
        for stream in (False, True):
            talk = Talk(dial, "coordinator", stream)
            assert talk.say("What's 2+2", file, data) == "2+2 is 4"
            assert talk.say("What's 3+3") == "3+3 is 6"
    sessions = server.call("admin", "/v1/sessions?user=anonymous&limit=50")["sessions"]
    messages = server.call("client", f"/v1/sessions/{sessions[0]['id']}/messages")["messages"]
    kept = [one.get("url") or one.get("data") for message in messages for one in message.get("attachments", [])]
    assert kept == [file["url"], data["data"]], messages
    say("client: files of a message are kept with it")


def check_pause(server):
    with Dial(base_url=server.url, api_key=server.keys["client"]) as dial:
        for stream, user in ((False, 7), (True, 6)):
            talk = Talk(dial, "coordinator", stream)
            told = talk.say(f"Delete user {user}")
            (hold,) = [one for one in server.call("approver", "/v1/holds?status=open")["holds"] if one["id"] in told]
            stages = talk.messages[-1]
            assert "delete_user" not in str(stages.get("custom_content")), stages
            assert "not an approval" in talk.say("approved"), "words decide nothing"
            server.run("approvals", "approve", hold["id"], "--confirm", f"user {user}", role="approver")
            request = server.call("approver", f"/v1/holds/{hold['id']}")["request_id"]
            server.completed(request)
            said = talk.say("What's 2+2")
            assert f"Deleted user {user}" in said or "deleted" in said.lower(), said
            assert said.endswith("2+2 is 4"), said
    say("client: a turn that waits for a person, decided at the command line, goes on with the next message")


def check():
    server = Server("client", dev=[], has_keys=True)
    for part in (check_answers, check_lists, check_errors, check_files, check_pause):
        part(server)
    server.stop()
