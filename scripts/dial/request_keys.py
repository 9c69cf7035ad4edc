"""DIAL Core in front of the server and behind it: whose request a call is, and keys that nothing is left of."""

import os

import wire
from chat import Chat
from core import Core
from parts import Application, plain
from rig import Program, Server, say

CONFIG = """
[dial]
core_url = "{core}"
key_env = "DIAL_KEY"

[agents.mas-coordinator]
kind = "router"
agents = ["agent", "users"]
rules = [{{ pattern = "users", agent = "users" }}]
otherwise = "agent"

[agents.agent]
kind = "dial"
base_url = "{core}"
deployment = "strict"
stages = "full"

[agents.users]
kind = "conversations"
base_url = "http://127.0.0.1:{users}"

[agents.state-keeper]
kind = "dial"
base_url = "{core}"
deployment = "interceptor"
stages = "full"
sessions = "auto"
"""


def deployment(url, name):
    return f"{url}/openai/deployments/{name}/chat/completions"


class Office:
    """Core, the server as an application of it, and an application that the server calls through Core."""

    def __init__(self):
        self.core, self.application, self.users = Core(), Application(), Program("dial-mas", "ums.py")
        self.core.users |= {"key-of-ann": "ann", "key-of-bob": "bob"}
        # A server that runs for itself makes the key under which Core's users are served.
        config = CONFIG.format(core=self.core.url, users=self.users.port)
        maker = Server("office", config, dev=["--no-demo"], has_keys=True, DIAL_KEY="shk_none")
        maker.stop()
        maker.dev, maker.env = None, {"DIAL_KEY": maker.keys["client"]}
        maker.start()
        self.server = maker
        self.core.deployments |= {
            "mas-coordinator": deployment(maker.url, "mas-coordinator"),
            "state-keeper": deployment(maker.url, "state-keeper"),
            "strict": deployment(self.application.url, "strict"),
            "kept": deployment(self.application.url, "strict")}
        self.core.interceptors["kept"] = ["state-keeper"]

    def files(self):
        """Every byte that the server has written: its data and its logs."""
        for folder, _, names in os.walk(self.server.folder):
            for name in names:
                with open(os.path.join(folder, name), "rb") as file:
                    yield name, file.read()


def check_users(office):
    for year in (2024, 2026):
        ann, bob = [Chat(office.core.url, "mas-coordinator", f"key-of-{name}", year) for name in ("ann", "bob")]
        for turn in (1, 2):
            for chat in (ann, bob):
                assert (said := chat.say("Count")) == f"This is turn {turn}.", said
    listed = office.server.call("admin", "/v1/sessions?limit=50")["sessions"]
    users = sorted(session["user"] for session in listed)
    assert users == ["dial:bucket-ann"] * 2 + ["dial:bucket-bob"] * 2, users
    # A state of somebody else opens nothing, and breaks nothing.
    stolen = [wire.user("Count"), plain(ann.messages[1]), wire.user("Count")]
    answer = wire.post(office.core.url, "mas-coordinator", stolen, key="key-of-bob")
    sessions = {one["id"] for one in listed if one["user"] == "dial:bucket-ann"}
    changed = office.server.call("admin", "/v1/sessions?limit=50")["sessions"]
    assert answer.status == 200, answer.text
    before = {one["id"]: one["revision"] for one in listed}
    assert all(one["revision"] == before[one["id"]] for one in changed if one["id"] in sessions), changed
    for headers in ({"x-statehold-user": "ann"}, {"Authorization": f"Bearer {office.server.keys['admin']}"}):
        key = office.core.mint(office.core.caller("key-of-bob"), "mas-coordinator", [])
        named = wire.post(office.server.url, "mas-coordinator", [wire.user("Hello")], key=key, headers=headers)
        assert named.status == 200, named.text
        office.core.forget(key)
        session = office.server.call("admin", f"/v1/sessions/{named.headers['x-statehold-session']}")
        assert session["user"] == "dial:bucket-bob", session
    say("core: Core says whose request it is; nobody else's state opens anything, and nobody names another user")


def check_nested(office):
    calls = len(office.core.calls)
    chat = Chat(office.core.url, "mas-coordinator", "key-of-ann", **{"x-conversation-id": "conversations%2Fann%2F1"})
    assert chat.say("Hello") == "You said: Hello"
    first, nested = office.core.calls[calls:]
    assert (first["to"], nested["to"]) == ("mas-coordinator", "strict")
    assert nested["key"] == first["minted"] and nested["from"] == "mas-coordinator" and nested["user"] == "ann", nested
    heard = office.application.heard()[-1]
    assert heard["key"] == nested["minted"], heard
    assert heard["headers"]["x-conversation-id"] == "conversations%2Fann%2F1", heard["headers"]
    assert heard["token"] is None, heard
    assert chat.say("List the users").startswith("Users: ")
    assert [one["keys"] for one in office.users.heard()] == [[], []], office.users.heard()
    say("core: the key of a request goes on to the applications of that request, unchanged, and to no other service")


def check_refused(office):
    for key in ("0" * 32, office.core.minted[0]):
        office.core.expired.clear()
        answer = wire.post(office.server.url, "mas-coordinator", [wire.user("Hello")], key=key)
        assert answer.status == 401 and answer.json["error"]["message"], answer.text
    assert not {call["status"] for call in office.core.calls} & {429, 502, 503, 504}, office.core.calls
    say("core: a key that Core does not know, or knows no more, is refused")
    office.core.expired.clear()


def check_interceptor(office):
    """The server in front of an agent that knows nothing of it: its state stays here, and it gets it back."""
    for year in (2024, 2026):
        chat = Chat(office.core.url, "kept", "key-of-ann", year)
        for turn in (1, 2, 3):
            calls = len(office.core.calls)
            assert (said := chat.say("Count")) == f"This is turn {turn}.", said
            assert [call["to"] for call in office.core.calls[calls:]] == ["state-keeper", "kept"], office.core.calls[calls:]
            custom = chat.messages[-1]["custom_content"]
            assert list(custom["state"]) == ["statehold"], custom
            assert "canary" not in str(chat.messages), chat.messages
        assert chat.regenerate() == "This is turn 3."
        assert chat.edit(2, "Count this") == "This is turn 2."
        states = [one["custom_content"]["state"]["turns"] for one in office.application.heard()[-1]["body"]["messages"]
                  if one["role"] == "assistant"]
        assert states == [1], states
    say("core: as an interceptor the server takes the state of an unchanged agent off the wire, and gives it back")


def check_gone(office):
    office.server.stop()
    assert len(office.core.minted) > 20 and not office.core.living, office.core.living
    assert not office.core.expired, "no key was used after its request"
    looked = 0
    for name, content in office.files():
        looked += len(content)
        for key in office.core.minted:
            assert key.encode() not in content, name
    assert looked > 100_000, looked
    say(f"core: nothing is left of {len(office.core.minted)} keys in {looked // 1024} KiB of data and logs")


def check():
    office = Office()
    for part in (check_users, check_nested, check_refused, check_interceptor, check_gone):
        part(office)
