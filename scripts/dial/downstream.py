"""Applications made with DIAL's SDK behind agents of kind `dial`. The SDK refuses what it does not know."""

import json
import threading

import wire
from parts import Application, plain, server_of
from rig import say

FILE = {"type": "text/csv", "title": "Rows", "url": "files/bucket/rows.csv"}


def ask(server, deployment, text, stream=True, history=(), *files, **more):
    return wire.post(server.url, deployment, [*history, wire.user(text, *files)], key=server.keys["client"],
                     stream=stream, **more)


def shown(stage):
    return {name: value for name, value in stage.items() if name not in ("index", "parent_stage_index")}


def check_request(application, server):
    """What the SDK takes from us: nothing that it does not know, and what applications need."""
    parts = [{"type": "text", "text": "Parts"}, {"type": "image_url", "image_url": {"url": "https://files.test/p.png"}}]
    sent = {"x-conversation-id": "my%20conversation"}
    for stream in (False, True):
        answer = ask(server, "app", "Hello", stream, (), FILE, temperature=0.5, max_tokens=100, headers=sent,
                     custom_fields={"configuration": {"tone": "calm"}})
        assert answer.status == 200 and answer.message["content"] == "You said: Hello", answer.text
        heard = application.heard()[-1]
        assert (heard["deployment"], heard["key"], heard["token"]) == ("strict", "key-of-the-application", None), heard
        assert heard["headers"]["x-conversation-id"] == "my%20conversation", heard["headers"]
        assert heard["headers"]["traceparent"], heard["headers"]
        (message,) = heard["body"]["messages"]
        assert message["custom_content"]["attachments"] == [FILE], message
        answer = wire.post(server.url, "app", [{"role": "user", "content": parts}], key=server.keys["client"], stream=stream)
        assert answer.status == 200, answer.text
        assert application.heard()[-1]["body"]["messages"][0]["content"] == parts
    say("downstream: the SDK accepts our requests with files, parts, headers and parameters, and refuses what it does not know")


def check_stages(application, server):
    """Stages in stages, names that come late, failures, and stages that are left open."""
    for stream in (False, True):
        for order in ("Stages", "Fail a step"):
            direct = wire.post(application.url, "strict", [wire.user(order)], stream=stream)
            through = ask(server, "coordinator", order, stream)
            own = [one for one in through.stages if one.get("name") in ("Coordination Request", "Call app Agent")]
            assert len(own) == 2 and all(one["status"] == "completed" for one in own), through.stages
            assert len(through.stages) == len(direct.stages) + 2, (direct.stages, through.stages)
            call = through.stages.index(own[1])
            names = {one["name"]: number for number, one in enumerate(through.stages)}
            for stage in direct.stages:
                found = through.stages[names[stage["name"]]]
                assert shown(found) == shown(stage), (stage, found)
                parent = stage.get("parent_stage_index")
                parent = call if parent is None else names[direct.stages[parent]["name"]]
                assert found["parent_stage_index"] == parent, (through.stages, stage)
            assert through.message["content"] == direct.message["content"]
    say("downstream: stages are mirrored below the stage of the call: names that come late, files, both ends, their order")

    for stream in (False, True):
        answer = ask(server, "app", "Leave open", stream)
        assert [(one["name"], one["status"]) for one in answer.stages] == [
            ("forgotten", "completed"), ("below it", "completed")], answer.stages
        answer = ask(server, "app", "Odd chunks", stream)
        first, *others = answer.stages
        file = {"type": "text/plain", "title": "file", "data": "d"} | ({"index": 0} if stream else {})
        told = {"name": "all at once", "status": "completed", "content": "begun, ended", "attachments": [file]}
        assert shown(first) == told, first
        assert [shown(one) for one in others] == [{"name": "a gap", "status": "completed"}], others
        assert answer.message["content"] == "One chunk.", answer.message
    say("downstream: stages that are left open are closed, and chunks that say several things lose none of them")

    for stream in (False, True):
        answer = ask(server, "names", "Stages", stream)
        assert [shown(one) for one in answer.stages] == [
            {"name": name, "status": status} for name, status in
            [("outer", "completed"), ("named later", "completed"), ("inner", "completed"), ("deepest", "failed")]], answer.stages
        assert ask(server, "none", "Stages", stream).stages == []
    say("downstream: `stages` shows everything, names, or nothing")


def check_files(application, server):
    direct = wire.post(application.url, "strict", [wire.user("Files")], stream=False)
    for stream in (False, True):
        for deployment in ("app", "coordinator"):
            through = ask(server, deployment, "Files", stream, (), FILE)
            files = [{name: value for name, value in file.items() if name != "index"}
                     for file in through.message["custom_content"]["attachments"]]
            assert files == direct.message["custom_content"]["attachments"], files
            assert through.message["content"] == f"Got: {FILE['url']}.", through.message
    say("downstream: files go to the application and come back, with addresses, data and sources")


def check_state(application, server):
    """The state of an application comes back to it as it was, and no client sees it."""
    for deployment in ("counter", "coordinator"):
        for stream in (False, True):
            history = []
            for turn in (1, 2, 3):
                answer = ask(server, deployment, "Count", stream, history)
                assert answer.message["content"] == f"This is turn {turn}.", answer.text
                assert list(answer.state) == ["statehold"], answer.state
                assert "canary" not in answer.text and "turns" not in answer.text, answer.text
                body = application.heard()[-1]["body"]
                states = [one["custom_content"]["state"] for one in body["messages"] if one["role"] == "assistant"]
                assert [state["turns"] for state in states] == list(range(1, turn)), states
                for number, state in enumerate(states, 1):
                    kept = [{"index": 3, "role": "tool", "content": f"canary-5f0c {one}"} for one in range(number)]
                    assert state == {"turns": number, "index": 5, "is_gpa": False, "list": kept,
                                     "text": "ä\u2028\\u0041"}, state
                history += [wire.user("Count"), plain(answer.message)]
    say("downstream: an application gets its state back exactly, also `index` in it; clients carry a reference")

    for stream in (False, True):
        forged = {"role": "assistant", "content": "This is turn 99.", "custom_content": {"state": {"turns": 99}}}
        answer = ask(server, "counter", "Count", stream, [wire.user("Count"), forged])
        assert answer.message["content"] == "This is turn 1.", answer.text
    say("downstream: a state that a client made up reaches nobody")

    for stream in (False, True):
        answer = ask(server, "app", "No words", stream)
        assert answer.status == 200 and not answer.message.get("content"), answer.text
    say("downstream: an answer without words is one")


def check_shared(application, server):
    """What an application tells others is in its state. What it is told stands before its message."""
    history = []
    for text, expected in (
        ("Remember for the writer: Paris", "I was told nothing."), ("Remember for the reader: Oslo", 'I was told {"place":"Paris"}.'),
        ("Remember for the writer: Rome", None), ("Remember for the reader: Bonn", 'I was told {"place":"Rome"}.'),
    ):
        answer = ask(server, "sharing", text, True, history)
        assert expected is None or answer.message["content"] == expected, answer.text
        assert "shared_context" not in answer.text, answer.text
        history += [wire.user(text), plain(answer.message)]
    say("downstream: an agent that imports is told what another one exported in its state")


def check_errors(application, server):
    """Errors before the first byte have a status, errors after it an event; both end well."""
    for deployment in ("app", "coordinator"):
        for text, status in (("Refuse", None), ("Crash", None), ("Busy", 429)):
            for stream in (False, True):
                answer = ask(server, deployment, f"{text} {deployment} {stream}", stream)
                error = answer.json["error"] if not answer.is_stream else json.loads(answer.events[-2])["error"]
                assert error["message"] and error["type"] and error["code"], error
                assert "canary" not in answer.text, answer.text
                if not answer.is_stream:
                    assert answer.status == (status or 500), (text, answer.status, answer.text)
                if text == "Busy" and not answer.is_stream:
                    assert answer.headers["retry-after"] == "7", answer.headers
        for order in ("Break off", "Two states"):
            for stream in (False, True):
                answer = ask(server, deployment, f"{order} {deployment} {stream}", stream)
                if not stream:
                    assert answer.status == 500 and answer.json["error"]["message"], answer.text
                    continue
                *chunks, failed, done = answer.events
                assert answer.status == 200 and done == "[DONE]", answer.text
                assert list(json.loads(failed)) == ["error"], failed
                stages = wire.merged([json.loads(chunk) for chunk in chunks])["choices"][0]["delta"]
                for stage in stages.get("custom_content", {}).get("stages", []):
                    assert stage["status"], stage
                    if stage["name"] in ("half done", "Call app Agent"):
                        assert stage["status"] == "failed", stage
    say("downstream: errors come as DIAL's: a status before the first byte, one event and the end after it; stages are closed as failed")


def check_slow(application, server):
    """Words arrive while the application still works."""
    import httpx
    body = {"messages": [wire.user("Slowly")], "stream": True}
    url = f"{server.url}/openai/deployments/app/chat/completions"
    said = []
    with httpx.stream("POST", url, json=body, headers={"Api-Key": server.keys["client"]}, timeout=60) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                said.append(json.loads(line[6:])["choices"][0]["delta"].get("content") or "")
                if "".join(said) == "First. ":
                    application.go_on()
    assert "".join(said) == "First. Last.", said
    say("downstream: words arrive before the application has ended")


def check_at_once(application, server):
    """Many streams with stages at once: every stage is closed, and none is in another answer."""
    answers = {}

    def one(number):
        answers[number] = ask(server, "coordinator", "Stages", headers={"x-statehold-user": f"user-{number}"})

    threads = [threading.Thread(target=one, args=[number]) for number in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(answers) == 24
    for answer in answers.values():
        names = sorted(stage["name"] for stage in answer.stages)
        assert names == sorted(["Coordination Request", "Call app Agent", "outer", "named later", "inner", "deepest"]), names
        assert all(stage["status"] for stage in answer.stages), answer.stages
    say("downstream: 24 streams at once have their own stages, all of them closed")


def check():
    application = Application()
    server = server_of(application, "downstream")
    for part in (check_request, check_stages, check_files, check_state, check_shared, check_errors, check_slow, check_at_once):
        part(application, server)
    server.stop()
