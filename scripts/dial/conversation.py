"""DIAL Chat, as it was in 2024 and as it is: conversations that are regenerated, edited, shortened and doubled."""

import wire
from chat import Chat, Failure
from parts import Application, server_of
from rig import refused, say


def open_chat(server, year, **more):
    return Chat(server.url, "coordinator", server.keys["client"], year, **more)


def count(chat):
    return chat.say("Count")


def check_growing(server, year):
    chat = open_chat(server, year, **{"x-conversation-id": "conversations%2Fbucket%2Fone"})
    assert chat.say("Hello") == "You said: Hello"
    for turn in (1, 2, 3):
        assert count(chat) == f"This is turn {turn}."
        assert chat.say(f"Words {turn}") == f"You said: Words {turn}"
    return chat


def check_regenerate(server, year):
    chat = check_growing(server, year)
    chat.delete(6)
    assert count(chat) == "This is turn 4.", "a message less in between changes nothing"
    for _ in range(2):
        assert chat.regenerate() == "This is turn 4.", "another answer in place of the fourth is the fourth"
    assert count(chat) == "This is turn 5."
    first = open_chat(server, year)
    for _ in range(3):
        assert (count(first) if not first.messages else first.regenerate()) == "This is turn 1."
    say(f"chat {year}: an answer that is regenerated, also the first, goes on from before it")


def check_edit(server, year):
    chat = open_chat(server, year)
    for turn in (1, 2, 3, 4):
        assert count(chat) == f"This is turn {turn}."
    assert chat.edit(4, "Count again") == "This is turn 3.", chat.messages
    assert count(chat) == "This is turn 4."
    assert chat.edit(0, "Count anew") == "This is turn 1.", "an edited first message begins anew"
    assert count(chat) == "This is turn 2."
    say(f"chat {year}: an edited message goes on from before it")


def check_delete(server, year):
    chat = open_chat(server, year)
    for turn in (1, 2, 3):
        assert count(chat) == f"This is turn {turn}."
    chat.delete(4)
    assert count(chat) == "This is turn 3.", "the third is gone, and this one is the third"
    chat.delete(0)
    assert count(chat) == "This is turn 4.", "what is left of the conversation goes on"
    chat.delete(0)
    chat.delete(0)
    assert len(chat.messages) == 2 and count(chat) == "This is turn 5."
    say(f"chat {year}: messages that are deleted, from either end, take their turns along or leave the others")


def check_settings(server, year):
    chat = open_chat(server, year)
    for turn in (1, 2, 3):
        assert count(chat) == f"This is turn {turn}."
    chat.change_settings("You are a pirate.")
    assert count(chat) == "This is turn 4.", "the messages alone find the session"
    assert count(chat) == "This is turn 5."
    chat.change_settings("You are a parrot.")
    assert chat.regenerate() == "This is turn 5."
    chat.change_settings(None)
    assert chat.edit(2, "Count on") == "This is turn 2."
    say(f"chat {year}: changed settings take the states away, and the conversation goes on")


def check_windows(server, year):
    one = open_chat(server, year)
    assert count(one) == "This is turn 1."
    two = one.duplicate()
    assert count(one) == "This is turn 2."
    assert two.say("Hello") == "You said: Hello"
    assert count(two) == "This is turn 2.", "the second window knows one turn"
    assert count(one) == "This is turn 3."
    assert count(two) == "This is turn 3."
    say(f"chat {year}: two windows of one conversation go their own ways")


def check_broken(server, year):
    chat = open_chat(server, year)
    assert count(chat) == "This is turn 1."
    refused(Failure, lambda: chat.say(f"Break off {year}"))
    # The chat keeps the beginning of the answer, and the person says something else.
    assert count(chat) == "This is turn 2.", chat.messages
    error = refused(Failure, lambda: chat.say(f"Refuse this in {year}"))
    assert "canary" not in str(error)
    chat.messages.pop()
    assert count(chat) == "This is turn 3."
    say(f"chat {year}: after an answer that broke off, and after an error, the conversation goes on")


def check_stages_sent(server, year):
    """Clients that do send stages and files back are understood, whatever is left in them."""
    for status in ("completed", None):
        stages = [{"index": 0, "name": "Coordination Request", "status": status},
                  {"name": "child", "status": status, "parent_stage_index": 0, "unknown": 1}]
        history = [wire.user("Hello"), {"role": "assistant", "content": "You said: Hello", "custom_content": {
            "stages": stages, "attachments": [{"index": 0, "type": "text/csv", "title": "r", "url": "files/b/r.csv"}]},
            "unknown": {"deep": [1, 2]}}]
        answer = wire.post(server.url, "coordinator", [*history, wire.user("And now?")], key=server.keys["client"],
                           **{"unknown_parameter": {"a": 1}})
        assert answer.status == 200 and answer.message["content"] == "You said: And now?", answer.text
    say("chat: stages that are sent back, open ones too, files with an index and unknown members are no error")


def check():
    application = Application()
    server = server_of(application, "chat")
    for year in (2024, 2026):
        for part in (check_regenerate, check_edit, check_delete, check_settings, check_windows, check_broken):
            part(server, year)
    check_stages_sent(server, 2026)
    server.stop()
