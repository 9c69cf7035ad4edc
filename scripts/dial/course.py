"""The course system of the first seed, in `examples/dial-mas`: a coordinator, an agent without memory, and one with it."""

import json
import re

from chat import Chat, Failure
from rig import Program, Server, example, lines, refused, say

FOLDER_OF_EXAMPLE, COORDINATOR = "dial-mas", "mas-coordinator"
UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
SECRET = "station 4711"


class Course:
    """The programs of the example, as its README starts them, except for the ports."""

    def __init__(self, name, change=lambda text: text):
        self.model, self.writer = Program(FOLDER_OF_EXAMPLE, "model.py"), Program(FOLDER_OF_EXAMPLE, "model.py")
        self.tools = Program(FOLDER_OF_EXAMPLE, "tools.py")
        core, tools = f"http://127.0.0.1:{self.model.port}", f"http://127.0.0.1:{self.tools.port}/mcp"
        self.gpa = Program(FOLDER_OF_EXAMPLE, "gpa.py", core, tools)
        self.ums = Program(FOLDER_OF_EXAMPLE, "ums.py")
        config = change(open(example(FOLDER_OF_EXAMPLE, "statehold.toml")).read())
        for port, program in ((8052, self.gpa), (8042, self.ums), (9000, self.writer)):
            config = config.replace(f"127.0.0.1:{port}", f"127.0.0.1:{program.port}")
        self.server = Server(name, config, dev=["--no-demo"])

    def chat(self, year=2026):
        return Chat(self.server.url, COORDINATOR, year=year)

    def told_to_gpa(self, since=0):
        """The messages of each call of the agent without memory."""
        return [one["body"]["messages"] for one in self.gpa.heard()[since:]]

    def told_to_ums(self, since=0):
        """What was said in each conversation of the other agent, and how many were begun."""
        heard = self.ums.heard()[since:]
        said = [(one["path"].split("/")[2], one["body"]["message"]["content"])
                for one in heard if one["path"].endswith("/chat")]
        return said, sum(one["path"] == "/conversations" for one in heard)


def texts(messages):
    return [message["content"] for message in messages]


def states_of(chat):
    return [message["custom_content"]["state"] for message in chat.messages if message["role"] == "assistant"]


def check_readme(course):
    printed, rest = course.server.play(FOLDER_OF_EXAMPLE)
    assert printed in rest, printed
    say("course: the README's conversation is as printed")


def check_regenerate(course, year):
    """The first mixed conversation: an answer is asked for again."""
    chat, gpa, ums = course.chat(year), len(course.gpa.heard()), len(course.ums.heard())
    assert chat.say("List users").startswith("Users: ")
    assert chat.say("Calculate 2+2") == "The result is 4."
    assert re.fullmatch(r"The first user is \w+\.", chat.say("Who is the first of the users?"))
    assert chat.say("Now calculate 3+3") == "The result is 6."
    assert chat.say("Add both results") == "The result is 10."
    for _ in range(2):
        # The sum would be 20 if the first answer counted.
        assert chat.regenerate() == "The result is 10.", chat.messages
    said, begun = course.told_to_ums(ums)
    assert begun == 1 and len({conversation for conversation, _ in said}) == 1, said
    assert [text for _, text in said] == ["List users", "Who is the first of the users?"], said
    calls = course.told_to_gpa(gpa)
    own = ["Calculate 2+2", "The result is 4.", "Now calculate 3+3", "The result is 6.", "Add both results"]
    assert [texts(call) for call in calls] == [own[:1], own[:3], own, own, own], calls
    stages = [stage["name"] for stage in chat.messages[-1]["custom_content"]["stages"]]
    assert stages == ["Coordination Request", "Call general-purpose-agent Agent", "calculate"], stages


def check_edit(course, year):
    """The second: a message is edited, and the conversation turns to another agent."""
    chat, ums = course.chat(year), len(course.ums.heard())
    assert chat.say("What is the weather in Paris?") == "It is sunny in Paris."
    (file,) = chat.messages[-1]["custom_content"]["attachments"]
    assert file["title"] == "Weather" and "index" in file, file
    assert chat.say("Calculate fibonacci(10)") == "The result is 55."
    assert chat.edit(2, "List all users").startswith("Users: ")
    assert chat.edit(2, "Now calculate fibonacci(20)") == "The result is 6765."
    messages = course.told_to_gpa()[-1]
    assert texts(messages) == ["What is the weather in Paris?", "It is sunny in Paris.", "Now calculate fibonacci(20)"], messages
    state = messages[1]["custom_content"]["state"]
    assert [entry["role"] for entry in state["tool_call_history"]] == ["assistant", "tool"], state
    assert SECRET in state["tool_call_history"][1]["content"], state
    said, begun = course.told_to_ums(ums)
    assert begun == 1 and [text for _, text in said] == ["List all users"], "it hears nothing of the other agent"


def check_delete(course, year):
    """The third: messages are deleted, and what stays goes on."""
    chat, ums = course.chat(year), len(course.ums.heard())
    listed = chat.say("List users")
    first = re.match(r"Users: (\w+)", listed)[1]
    assert chat.say("Calculate 5+5") == "The result is 10."
    assert chat.say("Delete the first user") == f"{first} is deleted."
    chat.delete(2)
    assert first not in chat.say("List the users again")
    assert chat.say("Now calculate 6+6") == "The result is 12."
    chat.delete(0)
    assert chat.say("Calculate 1+1") == "The result is 2."
    (conversation,) = {conversation for conversation, _ in course.told_to_ums(ums)[0]}
    assert re.fullmatch(UUID, conversation), conversation


def check_mixed(course):
    for year in (2024, 2026):
        for part in (check_regenerate, check_edit, check_delete):
            part(course, year)
        say(f"course: three mixed conversations in the chat of {year}, with an answer regenerated, a message edited, one deleted")


def gpa_state_persistence(course, is_plain):
    """The seed's first test. What its second turn knows of the first, it knows from the state that was restored."""
    chat = course.chat()
    chat.say("Calculate 2+2")
    (state,) = states_of(chat)
    if is_plain:
        assert state["is_gpa"] is True
        calls = state["gpa_messages"]["tool_call_history"]
        assert calls[0]["tool_calls"][0]["function"]["name"] == "calculate" and calls[1]["content"] == "4", calls
    else:
        assert list(state) == ["statehold"] and "calculate" not in json.dumps(state), state
    assert chat.say("Now add 4 to what was calculated, and to nothing else") == "The result is 4."
    restored = course.told_to_gpa()[-1][1]["custom_content"]["state"]
    assert restored["tool_call_history"][1]["content"] == "4", restored
    assert list(restored) == ["tool_call_history"], "in the form that the agent gave it"


def ums_conversation_reuse(course, is_plain):
    """The seed's second test. The conversation is the same in every turn, and the state says so in every answer."""
    chat, ums = course.chat(), len(course.ums.heard())
    chat.say("List users")
    chat.say("Delete the first user")
    said, begun = course.told_to_ums(ums)
    (conversation,) = {conversation for conversation, _ in said}
    assert begun == 1 and len(said) == 2, said
    if is_plain:
        assert states_of(chat) == [{"ums_conversation_id": conversation}] * 2, states_of(chat)
    else:
        assert conversation not in json.dumps(states_of(chat))
    # The first answer is deleted. The seed's coordinator had the id in the first answer alone, and would begin anew.
    chat.delete(0)
    chat.say("List users")
    said, begun = course.told_to_ums(ums)
    assert begun == 1 and {one for one, _ in said} == {conversation}, said


def check_seed_tests(sealed, plain):
    for course, is_plain in ((sealed, False), (plain, True)):
        gpa_state_persistence(course, is_plain)
        ums_conversation_reuse(course, is_plain)
    say("course: test_gpa_state_persistence and test_ums_conversation_reuse of the seed, sealed and plain")


def check_plain(course):
    """Plain states are read, and never believed against what the server has recorded."""
    chat = course.chat()
    chat.say("Calculate 2+2")
    chat.say("List users")
    kept = chat.messages[1]["custom_content"]["state"]["gpa_messages"]["tool_call_history"]
    kept[1]["content"] = "1000"
    assert chat.say("Add what you have, and 0") == "The result is 4.", "the server knows better than the client"
    assert any("plain" in line for line in lines(course.server.log)), "the start says that states are plain"
    say("course: a plain state that a client changed is not believed")


def check_canary(course, years=(2024, 2026)):
    """Results of tools and prompts of agents are in nothing that a client gets, unless stages show them."""
    heard = b"".join(course.server.heard)
    for year in years:
        chat = course.chat(year)
        assert chat.say("What is the weather in Oslo?") == "It is sunny in Oslo."
        custom = chat.messages[-1]["custom_content"]
        assert SECRET not in json.dumps([custom["state"], custom.get("stages")]), custom
    assert b"You are a general purpose agent" not in heard
    say("course: with names of stages alone, what tools said is in no stage and no state")


def check_by_model(course):
    """The lines that are comments in the configuration: a model chooses, and a model writes the last words."""
    chat = course.chat()
    assert chat.say("Calculate 2+2") == "The result is 4. Anything else?"
    assert chat.say("List users").endswith(" Anything else?")
    assert chat.say("Now add the results") == "The result is 4. Anything else?"
    (request, call, *below) = chat.messages[-1]["custom_content"]["stages"]
    assert request["name"] == "Coordination Request" and "general-purpose-agent" in request.get("content", ""), request
    say("course: the same with a model that chooses and writes")

    # The agent has done its work when the last words fail. A coordinator that forgets this has it done again.
    asked = len(course.gpa.heard())
    course.server.stop()
    with open(course.server.config) as file:
        config = file.read().replace('route_by = "model"', 'otherwise = "general-purpose-agent"')
    with open(course.server.config, "w") as file:
        file.write(config)
    course.writer.kill()
    course.server.start()
    chat = course.chat()
    refused(Failure, lambda: chat.say("Calculate 7+7"))
    assert len(course.gpa.heard()) == asked + 1
    course.writer.start()
    assert chat.regenerate() == "The result is 14. Anything else?", chat.messages
    assert len(course.gpa.heard()) == asked + 1, "the agent is not asked again"
    assert chat.say("Now add the results") == "The result is 14. Anything else?"
    say("course: if the last words fail, the agent's work is kept, and asking again asks only for the words")


def by_model(text):
    """The configuration with its last comments as lines, in place of the rules."""
    kept = [line for line in text.splitlines() if not line.startswith(("rules =", "otherwise ="))]
    settings = [line[1:] for line in kept if re.match(r"#(route_by|answer_by|model) =", line)][:3]
    at = kept.index("[agents.mas-coordinator]") + 1
    model = kept[kept.index("#[models.main]"):]
    kept[at:at] = settings
    return "\n".join([*kept, *(line[1:] for line in model)]) + "\n"


def setting(line):
    return lambda text: text.replace("[agents.mas-coordinator]\n", f"[agents.mas-coordinator]\n{line}\n")


def check():
    sealed = Course("course")
    check_readme(sealed)
    check_mixed(sealed)
    plain = Course("course-plain", setting('state_format = "plain"'))
    check_seed_tests(sealed, plain)
    check_plain(plain)
    plain.server.stop()
    sealed.server.stop()
    hidden = Course("course-names", lambda text: text.replace('stages = "full"', 'stages = "names"'))
    check_canary(hidden)
    hidden.server.stop()
    modelled = Course("course-model", by_model)
    check_by_model(modelled)
    modelled.server.stop()
