"""A service with conversations and a chat agent without memory, behind one coordinator."""

import json
import threading
import time

import httpx2 as httpx
import openai

from rig import Program, Server, example, lines, say, until


def start(name, *ums, config="statehold.toml", **env):
    gpa, ums = Program("coordinator", "gpa.py"), Program("coordinator", "ums.py", *ums)
    server = Server(
        name, open(example("coordinator", config)).read(),
        STATEHOLD__AGENTS__GPA__BASE_URL=f"http://127.0.0.1:{gpa.port}/v1",
        STATEHOLD__AGENTS__UMS__BASE_URL=f"http://127.0.0.1:{ums.port}", **env)
    return server, gpa, ums


def asked_of(gpa):
    """The texts of each call of the chat agent."""
    return [[m["content"] for m in json.loads(one["body"])["messages"]] for one in gpa.heard()]


def said_to(ums):
    """The texts that each conversation of the service was sent, and how many were begun."""
    heard = ums.heard()
    said = [json.loads(one["body"])["message"]["content"] for one in heard if one["path"].endswith("/chat")]
    return said, sum(one["path"] == "/conversations" for one in heard)


def check_mixed():
    server, gpa, ums = start("mixed")
    printed, readme = server.play("coordinator")
    assert printed in readme, printed
    for stream in (False, True):
        sent, (said_before, begun_before) = len(gpa.heard()), said_to(ums)
        answer, where = server.chat("coordinator", "List all users", "new", stream)
        session = where["session"]
        assert (answer, where["via"]) == ("Users: Ada, Grace, Blaise, Enrico.", ["ums"]), (answer, where)
        for text, expected in [
            ("What is the weather in Paris?", "It is sunny in Paris."),
            ("The first user, please", "You mean Ada."),
            ("And the weather in Rome?", "It is sunny in Rome."),
            ("What have you looked up?", "I looked up Paris and Rome."),
            ("Who lives there?", "In Rome: Enrico."),
        ]:
            answer, where = server.chat("coordinator", text, session, stream)
            assert answer == expected, (text, answer)
        calls, (said, begun) = asked_of(gpa)[sent:], said_to(ums)
        paris = ["What is the weather in Paris?", "It is sunny in Paris."]
        rome = ["And the weather in Rome?", "It is sunny in Rome."]
        assert calls == [paris[:1], [*paris, rome[0]], [*paris, *rome, "What have you looked up?"]], calls
        block = '[shared context]\n{"last_mentioned_location":"%s"}\n[/shared context]\n\n%s'
        own = ["List all users", block % ("Paris", "The first user, please"), block % ("Rome", "Who lives there?")]
        assert said[len(said_before):] == own, said
        assert begun == begun_before + 1
        heard = gpa.heard()[sent:]
        for one in heard:
            assert one["headers"]["x-statehold-session"] == session and "traceparent" in one["headers"]
    say("coordinator: UMS, GPA, UMS in one session, streamed and not: each agent saw exactly its own exchanges")

    # What the agent wrote in its first answer, it reads in the calls after it.
    history = [
        {"role": "assistant", "content": "", "tool_calls": [
            {"id": "call_0", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}]},
        {"role": "tool", "tool_call_id": "call_0", "content": "Paris: sunny, 21.50"},
    ]
    written = json.dumps({"tool_call_history": history, "shared_context": {"last_mentioned_location": "Paris"}})
    written = written[:-1] + ', "precision": 1.50}'
    for one in heard[1:]:
        assert written in one["body"], one["body"]
    say("coordinator: the state of the chat agent came back byte for byte")

    gpa.kill()
    gpa.start("forecast")
    text, where = server.chat("coordinator", "And the weather in Oslo?", session)
    assert text == "It is sunny in Oslo.", text
    text, where = server.chat("coordinator", "What have you looked up?", session, stream=True)
    assert text == "I looked up Paris and Rome and Oslo.", text
    assert '"name": "get_weather"' in gpa.heard()[-1]["body"] and '"name": "forecast"' in gpa.heard()[-1]["body"]
    say("coordinator: a tool that is renamed between two turns breaks nothing")
    check_context(server, session, ums)
    server.stop()


def check_context(server, session, ums):
    server.chat("coordinator", "What is the weather in Paris?", session)
    answer, _ = server.chat("coordinator", "Who lives there?", session)
    assert answer == "In Paris: Blaise.", answer
    # The same without the line that imports it.
    declared = lines(server.config)
    kept = [line for line in declared if not line.startswith("import")]
    assert len(kept) == len(declared) - 1
    with open(server.config, "w") as file:
        file.write("\n".join(kept))
    server.stop()
    server.start()
    answer, _ = server.chat("coordinator", "Who lives in that city?", session)
    assert answer == "Where?" and said_to(ums)[0][-1] == "Who lives in that city?", answer
    say("coordinator: the user agent is told last_mentioned_location = Paris, and without `import` it is not")


def check_once():
    for name, arguments in (("two at once", []), ("a lost answer", ["lose-first"])):
        server, gpa, ums = start(name.replace(" ", "-"), *arguments)
        _, where = server.chat("coordinator", "hello", "new")
        session, answers = where["session"], {}

        def ask(text):
            answers[text] = server.chat("coordinator", text, session)[0]

        texts = ["List all users", "Which users are there?"] if not arguments else ["List all users"]
        threads = [threading.Thread(target=ask, args=[text]) for text in texts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert answers == {text: "Users: Ada, Grace, Blaise, Enrico." for text in texts}, answers
        said, begun = said_to(ums)
        assert sorted(said) == sorted(texts) and begun == 1, (said, begun)
        server.stop()
        say(f"coordinator: the conversation is begun once, also with {name}")


def check_kill():
    server, gpa, ums = start("killed")
    _, where = server.chat("coordinator", "List all users", "new")
    session = where["session"]
    server.chat("coordinator", "What is the weather in Paris?", session)
    story = "Once upon a time there was a server that was killed in the middle of a sentence."
    for stream in (False, True):
        calls, said = len(gpa.heard()), said_to(ums)
        told = []

        def ask():
            try:
                told.append(server.chat("coordinator", "Tell me a story", session, stream, retries=6))
            except (openai.APIError, httpx.TransportError):
                told.append(None)

        asking = threading.Thread(target=ask)
        asking.start()
        until(lambda: len(gpa.heard()) > calls)
        time.sleep(0.6)  # A few words are out.
        server.kill()
        server.start()
        asking.join(60)
        if stream:
            # For a whole answer the client asks again by itself; a stream that broke off it reports.
            assert told == [None], told
            told = [server.chat("coordinator", "Tell me a story", session, stream)]
        ((text, where),) = told
        assert text == story, text
        again = gpa.heard()[calls:]
        for one in again:
            # Each attempt is a span of its own.
            one["headers"].pop("traceparent")
        assert len(again) == 2 and again[0] == again[1], "the call that was lost is made again as it was, and no other"
        assert said_to(ums) == said
        now = server.call("client", f"/v1/sessions/{session}/messages")["messages"]
        assert sum(message["content"] == story for message in now) == 1 + stream, now
    server.stop()
    say("coordinator: after a kill -9 in the middle of an answer, the client's retry gets the one answer")


def check():
    check_mixed()
    check_once()
    check_kill()
