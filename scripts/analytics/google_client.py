"""The library of the Conversational Analytics API against a server. Prints a line for each thing that works."""

import importlib
import json
import os
import time
import urllib.error
import urllib.request
import uuid

from google.api_core import exceptions
from google.oauth2.credentials import Credentials

URL = os.environ["STATEHOLD_URL"]
KEYS = {role: os.environ[f"{role.upper()}_KEY"] for role in ("client", "approver")}


def native(role, path, body=None, method=None):
    """A call of the native API, or one that Google's client cannot make."""
    headers = {"Authorization": f"Bearer {KEYS[role]}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(URL + path, data, headers, method=method), timeout=60) as answer:
        return json.loads(answer.read())


def refused(kind, call):
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


class Api:
    """One version of the API, with a place of its own."""

    def __init__(self, version):
        package = importlib.import_module(f"google.cloud.geminidataanalytics_{version}")
        self.types = package
        self.version, self.parent = version, f"projects/acme/locations/{version}"
        self.chats = package.DataChatServiceClient(transport=self.transport("data_chat_service", "DataChatService"))
        self.agents = package.DataAgentServiceClient(transport=self.transport("data_agent_service", "DataAgentService"))

    def transport(self, folder, name):
        rest = importlib.import_module(f"{self.types.__name__}.services.{folder}.transports.rest")
        credentials = Credentials(token=KEYS["client"])
        host = URL.removeprefix("http://")
        return getattr(rest, f"{name}RestTransport")(host=host, url_scheme="http", credentials=credentials)

    def agent(self, name):
        return f"{self.parent}/dataAgents/{name}"

    def say(self, *texts, parent=None, **context):
        """A chat call: what the system says, message by message."""
        messages = [text if isinstance(text, dict) else {"user_message": {"text": text}} for text in texts]
        request = {"parent": parent or self.parent, "messages": messages, **context}
        return list(self.chats.chat(request=request))

    def told(self, *texts, **context):
        """The text of the last message."""
        return "".join(self.say(*texts, **context)[-1].system_message.text.parts)

    def within(self, conversation):
        agent = {"data_agent": conversation.agents[0]}
        return {"conversation_reference": {"conversation": conversation.name, "data_agent_context": agent}}

    def conversation(self, agent="helper", **more):
        made = {"agents": [self.agent(agent)]}
        return self.chats.create_conversation(request={"parent": self.parent, "conversation": made, **more})


def conversations(api):
    made = {"agents": [api.agent("helper")], "labels": {"team": "a"}, "title": "First"}
    request = {"parent": api.parent, "conversation_id": "first", "conversation": made, "request_id": str(uuid.uuid4())}
    first = api.chats.create_conversation(request=request)
    assert first.name == f"{api.parent}/conversations/first" and first.title == "First", first
    assert first.labels == {"team": "a"} and first.create_time and first.agents == [api.agent("helper")]
    assert api.chats.create_conversation(request=request) == first, "a repeated request is one request"
    taken = request | {"request_id": str(uuid.uuid4())}
    error = refused(exceptions.Conflict, lambda: api.chats.create_conversation(request=taken))
    assert error.reason == "NAME_TAKEN", error.reason
    assert api.chats.get_conversation(name=first.name) == first

    others = [api.conversation().name for _ in range(4)]
    pages = api.chats.list_conversations(request={"parent": api.parent, "page_size": 2}).pages
    sizes = [len(page.conversations) for page in pages]
    assert sizes == [2, 2, 1], sizes
    listed = [one.name for one in api.chats.list_conversations(parent=api.parent)]
    assert sorted(listed) == sorted([first.name, *others])
    found = api.chats.list_conversations(request={"parent": api.parent, "filter": 'labels.team = "a"'})
    assert [one.name for one in found] == [first.name]

    changed = {"name": first.name, "title": "Second", "labels": {"team": "b"}}
    patched = api.chats.update_conversation(request={"conversation": changed, "update_mask": {"paths": ["title"]}})
    assert patched.title == "Second" and patched.labels == {"team": "a"}, patched
    patched = api.chats.update_conversation(request={"conversation": changed, "update_mask": {"paths": ["labels"]}})
    assert patched.labels == {"team": "b"}
    for name in (*others, first.name):
        api.chats.delete_conversation(name=name)
    error = refused(exceptions.NotFound, lambda: api.chats.get_conversation(name=first.name))
    assert error.domain == "statehold" and error.reason == "NOT_FOUND", error
    assert list(api.chats.list_conversations(parent=api.parent)) == []
    print(f"{api.version}: conversations")


def turns(api):
    conversation = api.conversation()
    context = api.within(conversation)
    for text in ("one", "two", "three"):
        assert api.told(text, **context) == f"You said: {text}"
    listed = list(api.chats.list_messages(request={"parent": conversation.name, "page_size": 2}))
    texts = [one.message.user_message.text or one.message.system_message.text.parts[0] for one in listed]
    assert texts == ["one", "You said: one", "two", "You said: two", "three", "You said: three"], texts
    assert all(one.message_id for one in listed)

    (question,) = api.say("which?", **context)
    words = question.system_message.text.parts[0]
    assert "Which Springfield?" in words and "hld_" in words, words
    assert api.told("Ohio", **context) == "Sunny in Ohio."

    words = api.told("pay", **context)
    (hold,) = [word.strip("()") for word in words.split() if word.startswith("(hld_")]
    assert api.told("approved", **context) == "You said: approved", "words never approve"
    digest = native("approver", f"/v1/holds/{hold}")["action"]["digest"]
    decided = native("approver", f"/v1/holds/{hold}/decision", {"decision": "approve", "digest": digest})
    for _ in range(200):
        if native("client", f"/v1/requests/{decided['request_id']}")["status"] == "completed":
            break
        time.sleep(0.05)
    answers = ["".join(one.system_message.text.parts) for one in api.say("thanks", **context)]
    assert answers == ["Paid.", "You said: thanks"], answers

    error = refused(exceptions.GoogleAPICallError, lambda: api.say("fail", **context))
    assert error.reason == "AGENT_TIMEOUT", error
    print(f"{api.version}: turns, a question, an approval and a failure in a conversation")


def stateless(api):
    nowhere = "projects/acme/locations/us"
    analyst = {"data_agent": f"{nowhere}/dataAgents/analyst"}
    earlier = {"system_message": {"text": {"parts": ["hi"], "text_type": "FINAL_RESPONSE"}}}
    thought = {"system_message": {"text": {"parts": ["hm"], "text_type": "THOUGHT"}}}
    told = api.told("hello", thought, earlier, "more", parent=nowhere, data_agent_context=analyst)
    assert told == "user: hello | assistant: hi | user: more", told

    tables = {"bq": {"table_references": [{"project_id": "p", "dataset_id": "d", "table_id": "t"}]}}
    inline = {"system_instruction": "Be brief.", "datasource_references": tables}
    told = api.told("sum?", parent=nowhere, inline_context=inline)
    assert told.startswith("system: Be brief.") and '"tableId":"t"' in told and told.endswith("user: sum?"), told
    managed = {"inline_context": inline, "conversation_id": "mine-1", "agent_id": "mine-a"}
    told = api.told("sum?", parent=nowhere, client_managed_resource_context=managed)
    assert told.startswith("system: Be brief."), told

    helper = {"data_agent": f"{nowhere}/dataAgents/helper"}
    error = refused(exceptions.BadRequest, lambda: api.say("x", parent=nowhere, data_agent_context=helper))
    assert error.reason == "AGENT_NEEDS_SESSION" and "conversationReference" in error.message, error
    print(f"{api.version}: contexts in which the caller keeps the conversation")


def data_agents(api):
    published = {"system_instruction": "Say it twice.", "datasource_references": {"bq": {}}}
    made = {"display_name": "Sales", "description": "Knows sales.",
            "data_analytics_agent": {"published_context": published}}
    request = {"parent": api.parent, "data_agent_id": "sales", "data_agent": made, "request_id": str(uuid.uuid4())}
    operation = api.agents.create_data_agent(request=request)
    sales = operation.result(timeout=30)
    assert sales.name == api.agent("sales") and sales.display_name == "Sales" and sales.create_time, sales
    assert operation.metadata.target == sales.name
    assert api.agents.create_data_agent(request=request).result(timeout=30) == sales
    error = refused(exceptions.Conflict, lambda: api.agents.create_data_agent(request=request | {"request_id": ""}))
    assert error.reason == "NAME_TAKEN", error
    assert api.agents.get_data_agent(name=sales.name) == sales

    names = ["analyst", "helper", "sales"]
    if api.version == "v1":
        other = request | {"data_agent_id": "other", "request_id": ""}
        assert api.agents.create_data_agent_sync(request=other).name == api.agent("other")
        names.append("other")
    listed = [one.name for one in api.agents.list_data_agents(request={"parent": api.parent, "page_size": 2})]
    assert sorted(listed) == sorted(api.agent(name) for name in names), listed
    accessible = list(api.agents.list_accessible_data_agents(parent=api.parent))
    assert sorted(one.name for one in accessible) == sorted(listed)
    own = api.agents.list_accessible_data_agents(request={"parent": api.parent, "creator_filter": "CREATOR_ONLY"})
    assert {one.name for one in own} == {api.agent(name) for name in names[2:]}

    assert api.told("hello", data_agent_context={"data_agent": sales.name}).startswith("system: Say it twice.")
    conversation = api.conversation("sales")
    assert conversation.agents == [sales.name]
    told = api.told("hello", **api.within(conversation))
    assert told.startswith("system: Say it twice.") and told.endswith("user: hello"), told
    told = api.told("more", **api.within(conversation))
    assert told.startswith("system: Say it twice.") and "user: hello" in told and told.endswith("user: more"), told

    changed = {"name": sales.name, "display_name": "Nothing",
               "data_analytics_agent": {"published_context": {"system_instruction": "Once."}}}
    mask = {"paths": ["data_analytics_agent.published_context"]}
    updated = api.agents.update_data_agent(request={"data_agent": changed, "update_mask": mask}).result(timeout=30)
    assert updated.display_name == "Sales", updated
    assert updated.data_analytics_agent.published_context.system_instruction == "Once."
    assert updated.data_analytics_agent.last_published_context.system_instruction == "Say it twice."

    helper = {"name": api.agent("helper"), "display_name": "x"}
    refused(exceptions.BadRequest, lambda: api.agents.update_data_agent(request={"data_agent": helper}))
    for name in names[2:]:
        api.agents.delete_data_agent(name=api.agent(name)).result(timeout=30)
        refused(exceptions.NotFound, lambda: api.agents.get_data_agent(name=api.agent(name)))
    print(f"{api.version}: data agents")


def raw(api):
    """What the library cannot send."""
    path = f"/{api.version}/{api.parent}:chat"
    body = {"messages": [{"userMessage": {"text": "x"}}], "inlineContext": {},
            "dataAgentContext": {"dataAgent": api.agent("analyst")}}
    error = refused(urllib.error.HTTPError, lambda: native("client", path, body))
    told = json.loads(error.read())["error"]
    assert (error.code, told["status"]) == (400, "INVALID_ARGUMENT"), told
    assert "oneof field 'context_provider' is already set" in told["message"], told
    del body["inlineContext"]
    (answer,) = native("client", path, body | {"clientIdEnum": "GOOGLE_ADK"})
    assert answer["systemMessage"]["text"] == {"parts": ["user: x"], "textType": "FINAL_RESPONSE"}, answer
    assert list(api.chats.list_conversations(parent=api.parent)), "the conversations of the other checks are there"
    print(f"{api.version}: two contexts are refused, unknown fields are not")


for version in ("v1", "v1beta"):
    one = Api(version)
    for check in (conversations, turns, stateless, data_agents, raw):
        check(one)
