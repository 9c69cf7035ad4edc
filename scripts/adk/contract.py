"""The contract of ADK's session services, in our own words, against a server. Prints a line for each rule that holds.

The names in brackets are those of the tests in ADK's repository that state the same rule. Beside them are the rules
that ADK's own services break under concurrency, and the native API's view of the same sessions.
"""

import asyncio
import inspect
import itertools
import json
import os
import time

import httpx
from google.adk.agents.base_agent import BaseAgent
from google.adk.errors._stale_session_error import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.runners import Runner
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.tools.tool_confirmation import ToolConfirmation
from google.genai import types
from service import StateholdSessionService

URL = os.environ["STATEHOLD_URL"]
SERVICE = StateholdSessionService(URL, os.environ["ADK_KEY"])
APPS = (f"app_{number}" for number in itertools.count(1))
RULES = []
NOW = time.time()


def rule(sentence):
    def keep(check):
        RULES.append((sentence, check))
        return check
    return keep


def said(text="hi", author="user", **more):
    role = "user" if author == "user" else "model"
    content = types.Content(role=role, parts=[types.Part(text=text)])
    return Event(author=author, invocation_id="e-1", content=content, **more)


def wrote(**delta):
    """An event with a state delta. A double underscore stands for the colon of a prefix."""
    delta = {key.replace("__", ":"): value for key, value in delta.items()}
    return Event(author="user", invocation_id="e-1", actions=EventActions(state_delta=delta))


class Place:
    """An app of its own, with one user unless another is named."""

    def __init__(self, app):
        self.app = app

    def create(self, user="ann", **more):
        return SERVICE.create_session(app_name=self.app, user_id=user, **more)

    def get(self, session_id, user="ann", **config):
        config = GetSessionConfig(**config) if config else None
        return SERVICE.get_session(app_name=self.app, user_id=user, session_id=session_id, config=config)

    async def list(self, user="ann"):
        return (await SERVICE.list_sessions(app_name=self.app, user_id=user)).sessions

    def delete(self, session_id, user="ann"):
        return SERVICE.delete_session(app_name=self.app, user_id=user, session_id=session_id)

    def user_state(self, user="ann"):
        return SERVICE.get_user_state(app_name=self.app, user_id=user)


async def raises(kind, awaited):
    try:
        await awaited
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


# Sessions.

@rule("an unknown session is None [get_empty_session]")
async def _(at):
    assert await at.get("123") is None


@rule("a session is read as it was created, until it is deleted [create_get_session]")
async def _(at):
    made = await at.create(state={"key": "value"})
    assert (made.app_name, made.user_id, made.state, made.events) == (at.app, "ann", {"key": "value"}, [])
    assert made.id and NOW - 60 < made.last_update_time <= time.time()
    assert await at.get(made.id) == made
    await at.delete(made.id)
    assert await at.get(made.id) is None
    await at.delete(made.id)


@rule("a list has the sessions of a user with their state, without events [create_and_list_sessions]")
async def _(at):
    for n in range(5):
        session = await at.create(session_id=f"s{n}", state={"n": n})
        await SERVICE.append_event(session, said())
    await at.create("bob", session_id="s0")
    found = await at.list()
    assert {session.id: session.state for session in found} == {f"s{n}": {"n": n} for n in range(5)}
    assert all(session.events == [] for session in found)


@rule("a list without a user has the sessions of all users [list_sessions_all_users]")
async def _(at):
    for user in ("ann", "bob"):
        await at.create(user, session_id="s1", state={"whose": user})
    found = await at.list(None)
    assert sorted((each.user_id, each.state["whose"]) for each in found) == [("ann", "ann"), ("bob", "bob")]


@rule("a list ends with the session that was changed last [list_sessions_ordered_by_last_update_time]")
async def _(at):
    made = [await at.create(session_id=f"s{n}") for n in range(3)]
    assert [each.id for each in await at.list()] == ["s0", "s1", "s2"]
    await SERVICE.append_event(made[0], said())
    assert [each.id for each in await at.list()] == ["s1", "s2", "s0"]


@rule("the same id for two users is two sessions [get_session_respects_user_id]")
async def _(at):
    await SERVICE.append_event(await at.create(session_id="s1"), said())
    await at.create("bob", session_id="s1")
    assert (await at.get("s1", "bob")).events == [] and len((await at.get("s1")).events) == 1


@rule("an id is taken once [create_session_with_existing_id_raises_error]")
async def _(at):
    await at.create(session_id="s1", state={"first": True})
    error = await raises(AlreadyExistsError, at.create(session_id="s1", state={"app:x": 1}))
    assert str(error) == "Session already exists: s1"
    assert (await at.get("s1")).state == {"first": True}


@rule("space around an id does not count; a blank one is made up [padded_session_id_reads_and_deletes]")
async def _(at):
    made = await at.create(session_id="  s1 ")
    assert made.id == "s1"
    assert (await at.get("s1")).id == (await at.get(" s1  ")).id == "s1"
    assert (await at.create(session_id="   ")).id.strip()
    await at.delete(" s1 ")
    assert await at.get("s1") is None


# State.

@rule("app state is shared by all users of the app [app_state_is_shared_by_all_users_of_app]")
async def _(at):
    session = await at.create(state={"app:k1": "v1"})
    await SERVICE.append_event(session, wrote(app__k2="v2"))
    assert (await at.create("bob")).state == {"app:k1": "v1", "app:k2": "v2"}
    assert (await at.get(session.id)).state == {"app:k1": "v1", "app:k2": "v2"}


@rule("user state is shared by the sessions of the user alone [user_state_is_shared_only_by_user_sessions]")
async def _(at):
    session = await at.create(state={"user:k1": "v1"})
    await SERVICE.append_event(session, wrote(user__k2="v2"))
    assert (await at.create()).state == {"user:k1": "v1", "user:k2": "v2"}
    assert (await at.create("bob")).state == {}


@rule("session state is shared with nobody [session_state_is_not_shared]")
async def _(at):
    session = await at.create(state={"k1": "v1"})
    await SERVICE.append_event(session, wrote(k2="v2"))
    assert (await at.get(session.id)).state == {"k1": "v1", "k2": "v2"}
    assert (await at.create()).state == {}


@rule("user and app state outlive every session")
async def _(at):
    session = await at.create(state={"user:u": 1, "app:a": 2, "own": 3})
    await at.delete(session.id)
    assert (await at.create()).state == {"user:u": 1, "app:a": 2}


@rule("an object replaces the stored one, in each scope [dict_valued_state_delta_replaces_stored_value, app variant]")
async def _(at):
    first = {"a": 1, "b": {"c": 2}}
    session = await at.create(state={"d": first, "app:d": first, "user:d": first})
    await SERVICE.append_event(session, wrote(d={"b": 3}, app__d={"b": 4}, user__d={"b": 5}))
    assert (await at.get(session.id)).state == {"d": {"b": 3}, "app:d": {"b": 4}, "user:d": {"b": 5}}


@rule("null is a value like any other [none_valued_state_delta_is_stored_not_dropped, user variant]")
async def _(at):
    session = await at.create(state={"k": 1, "user:k": 1, "first": None})
    await SERVICE.append_event(session, wrote(k=None, user__k=None, app__k=None))
    loaded = await at.get(session.id)
    assert loaded.state == {"k": None, "user:k": None, "app:k": None, "first": None}
    assert loaded.events[0].actions.state_delta == {"k": None, "user:k": None, "app:k": None}
    assert await at.user_state() == {"k": None}


@rule("types survive other writes [boolean_state_survives_unrelated_state_delta]")
async def _(at):
    values = {"yes": True, "no": False, "one": 1, "float": 1.0, "text": "true", "deep": [{"x": None}]}
    session = await at.create(state=values)
    await SERVICE.append_event(session, wrote(other="x"))
    state = (await at.get(session.id)).state
    assert {key: (type(value), value) for key, value in state.items() if key != "other"} == {
        key: (type(value), value) for key, value in values.items()}


@rule("numbers of any size come back digit by digit, in state and in events")
async def _(at):
    values = {"big": 2**200 + 1, "small": -(2**70), "float": 0.1 + 0.2, "tiny": 5e-324, "exact": 2**53 + 1}
    session = await at.create(state=values)
    await SERVICE.append_event(session, wrote(**values, app__big=2**100))
    loaded = await at.get(session.id)
    assert loaded.state == values | {"app:big": 2**100}
    assert loaded.events[0].actions.state_delta == values | {"app:big": 2**100}
    raw = await SERVICE.send("GET", f"/apps/{at.app}/users/ann/sessions/{session.id}")
    assert str(2**200 + 1) in raw.text and "0.30000000000000004" in raw.text


@rule("an unknown prefix is part of a key")
async def _(at):
    session = await at.create(state={"tmp:x": 1, "App:y": 2, "a:b:c": 3})
    await SERVICE.append_event(session, wrote(tmp__x=4))
    assert (await at.get(session.id)).state == {"tmp:x": 4, "App:y": 2, "a:b:c": 3}


@rule("temp state is in no stored state and no stored event [temp_state_is_not_persisted_in_state_or_events]")
async def _(at):
    session = await at.create(state={"temp:first": 1})
    assert session.state == {}
    stored = await SERVICE.append_event(session, wrote(temp__k="v1", sk="v2"))
    loaded = await at.get(session.id)
    assert loaded.state == {"sk": "v2"} and loaded.events[0].actions.state_delta == {"sk": "v2"}
    assert stored.actions.state_delta == {"sk": "v2"}
    # The server drops them by itself, too.
    raw = {"id": "x", "author": "user", "timestamp": 1.5, "actions": {"stateDelta": {"temp:t": 1, "z": 2}}, "new": [1]}
    answer = await SERVICE.send("POST", f"/apps/{at.app}/users/ann/sessions/{session.id}/events", {"event": raw})
    raw["actions"]["stateDelta"] = {"z": 2}
    assert answer.json()["event"] == raw and "temp:" not in (await at.get(session.id)).model_dump_json()


@rule("temp state is seen by later events of the same copy [temp_state_visible_across_sequential_events]")
async def _(at):
    session = await at.create()
    await SERVICE.append_event(session, wrote(temp__k="v"))
    await SERVICE.append_event(session, wrote(other=1))
    assert session.state == {"temp:k": "v", "other": 1}
    assert (await at.get(session.id)).state == {"other": 1}


# The state of a user, without a session [get_user_state_*].

@rule("the state of an unknown user is empty")
async def _(at):
    assert await at.user_state() == {} and await at.user_state("nobody ever") == {}


@rule("user state has keys without prefix, and only those of the user")
async def _(at):
    session = await at.create(state={"app:a": 1, "own": 2})
    await SERVICE.append_event(session, wrote(user__profile={"name": "Ann"}, session_key=1))
    assert await at.user_state() == {"profile": {"name": "Ann"}}
    assert await at.user_state("bob") == {}
    assert await SERVICE.get_user_state(app_name=f"{at.app}_other", user_id="ann") == {}


@rule("user state is that of the latest write, and is there before the next session")
async def _(at):
    session = await at.create(state={"user:counter": 0})
    for n in (1, 2):
        await SERVICE.append_event(session, wrote(user__counter=n))
    await at.delete(session.id)
    assert await at.user_state() == {"counter": 2}


# Events.

@rule("bytes come back as bytes [append_event_bytes]")
async def _(at):
    session = await at.create()
    content = types.Content(role="user", parts=[types.Part.from_bytes(data=bytes(range(256)), mime_type="image/png")])
    grounding = types.GroundingMetadata(search_entry_point=types.SearchEntryPoint(sdk_blob=b"\x00\xffblob"))
    event = Event(author="user", content=content, grounding_metadata=grounding)
    await SERVICE.append_event(session, event)
    assert session.events[0].content == content
    loaded = (await at.get(session.id)).events[0]
    assert (loaded.content, loaded.grounding_metadata) == (content, grounding)


@rule("every field of an event comes back [append_event_complete]")
async def _(at):
    session = await at.create()
    event = said(
        "text", turn_complete=True, partial=False, long_running_tool_ids={"t1", "t2"}, error_code="code",
        error_message="message", interrupted=True, branch="root.child", custom_metadata={"k": {"v": [1, None]}},
        actions=EventActions(artifact_delta={"file": 0}, transfer_to_agent="agent", escalate=True),
        grounding_metadata=types.GroundingMetadata(web_search_queries=["query"]),
        usage_metadata=types.GenerateContentResponseUsageMetadata(prompt_token_count=1, total_token_count=2),
        citation_metadata=types.CitationMetadata(),
        input_transcription=types.Transcription(text="in", finished=True),
        output_transcription=types.Transcription(text="out", finished=True))
    await SERVICE.append_event(session, event)
    assert await at.get(session.id) == session


@rule("requested confirmations come back [append_event_with_requested_tool_confirmations]")
async def _(at):
    session = await at.create()
    asked = {"fc-1": ToolConfirmation(hint="sure?", payload={"sum": 4})}
    await SERVICE.append_event(session, Event(author="a", actions=EventActions(requested_tool_confirmations=asked)))
    loaded = await at.get(session.id)
    assert loaded == session and loaded.events[0].actions.requested_tool_confirmations == asked


@rule("fields that nobody knows yet come back")
async def _(at):
    session = await at.create()
    raw = {"id": "e1", "author": "a", "timestamp": 1.0, "invented": {"by": ["next", "year"], "n": 2**90}}
    path = f"/apps/{at.app}/users/ann/sessions/{session.id}"
    (await SERVICE.send("POST", f"{path}/events", {"event": raw})).raise_for_status()
    assert (await SERVICE.send("GET", path)).json()["events"] == [raw]


@rule("the time of a session is that of its last event [session_last_update_time_updates_on_event]")
async def _(at):
    session = await at.create()
    then = session.last_update_time + 10
    await SERVICE.append_event(session, said(timestamp=then))
    assert abs(session.last_update_time - then) < 1e-6
    assert abs((await at.get(session.id)).last_update_time - then) < 1e-6


@rule("the newest events, and those after a time [get_session_with_config]")
async def _(at):
    session = await at.create()
    for n in range(1, 6):
        await SERVICE.append_event(session, Event(author="user", timestamp=n))

    async def times(**config):
        return [event.timestamp for event in (await at.get(session.id, **config)).events]
    assert await times() == [1, 2, 3, 4, 5]
    assert await times(num_recent_events=3) == [3, 4, 5] and await times(num_recent_events=0) == []
    assert await times(after_timestamp=4.0) == [4, 5] and await times(after_timestamp=50) == []
    assert await times(after_timestamp=4.0, num_recent_events=3) == [4, 5]
    answer = await SERVICE.send("GET", f"/apps/{at.app}/users/ann/sessions/{session.id}?num_recent_events=-1")
    assert answer.status_code == 422 and answer.json()["detail"][0]["loc"][0] == "query"


@rule("a partial event is stored nowhere [partial_events_are_not_persisted]")
async def _(at):
    session = await at.create()
    await SERVICE.append_event(session, Event(author="user", partial=True))
    path = f"/apps/{at.app}/users/ann/sessions/{session.id}/events"
    (await SERVICE.send("POST", path, {"event": {"author": "user", "partial": True}})).raise_for_status()
    assert session.events == [] and (await at.get(session.id)).events == []


@rule("an event of a deleted or unknown session has no place")
async def _(at):
    session = await at.create()
    await at.delete(session.id)
    await raises(SessionNotFoundError, SERVICE.append_event(session, said()))


@rule("a value that is not JSON becomes text, and the event is kept")
async def _(at):
    session = await at.create()
    await SERVICE.append_event(session, wrote(call=print, fine=1))
    assert (await at.get(session.id)).state == {"call": str(print), "fine": 1}


# Revisions, not times: where ADK's own services accept a stale write.

@rule("a stale copy is refused, and nothing of it is written")
async def _(at):
    stale = await at.create()
    fresh = await at.get(stale.id)
    await SERVICE.append_event(fresh, wrote(a=1))
    error = await raises(StaleSessionError, SERVICE.append_event(stale, wrote(b=2, user__b=2, app__b=2)))
    assert "has been modified in storage since it was loaded" in str(error)
    loaded = await at.get(stale.id)
    assert loaded.state == {"a": 1} and len(loaded.events) == 1 and await at.user_state() == {}
    await SERVICE.append_event(fresh, wrote(c=3))
    await SERVICE.append_event(await at.get(stale.id), wrote(b=2))


@rule("equal times: the second stale writer is refused all the same")
async def _(at):
    session = await at.create()
    copies = [await at.get(session.id) for _ in range(3)]
    await SERVICE.append_event(copies[0], said(timestamp=session.last_update_time))
    for stale in copies[1:]:
        await raises(StaleSessionError, SERVICE.append_event(stale, said(timestamp=session.last_update_time)))


@rule("clocks that differ: an event from the future or the past makes no stale copy fresh")
async def _(at):
    for skew in (-3600, 3600):
        session = await at.create()
        stale = await at.get(session.id)
        await SERVICE.append_event(session, said(timestamp=time.time() + skew))
        for mine in (-7200, 0, 7200):
            await raises(StaleSessionError, SERVICE.append_event(stale, said(timestamp=time.time() + mine)))


@rule("the time of a session never goes back, and its revision does not follow it")
async def _(at):
    session = await at.create()
    begun, stale = session.last_update_time, await at.get(session.id)
    await SERVICE.append_event(session, said(timestamp=1.0))
    assert session.last_update_time == begun == (await at.get(session.id)).last_update_time
    await raises(StaleSessionError, SERVICE.append_event(stale, said()))
    later = begun + 50
    await SERVICE.append_event(session, said(timestamp=later))
    await SERVICE.append_event(session, said(timestamp=begun + 1))
    assert (await at.get(session.id)).last_update_time == later


@rule("events come back in the order of appending, whatever their times")
async def _(at):
    session = await at.create()
    for n, then in enumerate((50, 10, 90, 10)):
        await SERVICE.append_event(session, said(str(n), timestamp=then))
    loaded = await at.get(session.id)
    assert [event.content.parts[0].text for event in loaded.events] == list("0123")
    assert loaded == session


@rule("an event again is no event, also from a copy that lost its answer; another under its id is a conflict")
async def _(at):
    session = await at.create()
    event = wrote(n=1)
    lost = await at.get(session.id)
    await SERVICE.append_event(session, event)
    await SERVICE.append_event(lost, event.model_copy(deep=True))
    assert lost._storage_update_marker == session._storage_update_marker
    await SERVICE.append_event(session, said())
    await SERVICE.append_event(session, event.model_copy(deep=True))
    assert len((await at.get(session.id)).events) == 2
    other = event.model_copy(deep=True, update={"author": "mallory"})
    fresh = await at.get(session.id)
    body = {"event": other.model_dump(mode="json", by_alias=True, exclude_none=True)}
    path = f"/apps/{at.app}/users/ann/sessions/{session.id}/events"
    answer = await SERVICE.send("POST", path, body)
    assert answer.status_code == 409 and answer.headers["x-statehold-error"] == "event_taken", answer.text
    assert await at.get(session.id) == fresh


@rule("of two stale copies at once exactly one wins, in 8 rounds")
async def _(at):
    session = await at.create()
    for n in range(8):
        one, two = [await at.get(session.id) for _ in range(2)]
        ends = await asyncio.gather(
            SERVICE.append_event(one, wrote(winner=f"one {n}")), SERVICE.append_event(two, wrote(winner=f"two {n}")),
            return_exceptions=True)
        refused = [end for end in ends if isinstance(end, StaleSessionError)]
        assert len(refused) == 1 and len([end for end in ends if isinstance(end, Event)]) == 1, ends
        loaded = await at.get(session.id)
        assert len(loaded.events) == n + 1
        assert loaded.state["winner"] == loaded.events[-1].actions.state_delta["winner"]


@rule("one event sent eight times at once is stored once")
async def _(at):
    session = await at.create()
    event = wrote(n=1)
    copies = [await at.get(session.id) for _ in range(8)]
    await asyncio.gather(*(SERVICE.append_event(copy, event.model_copy(deep=True)) for copy in copies))
    assert len((await at.get(session.id)).events) == 1


@rule("a copy without a marker is taken as current; one whose time has drifted counts by its marker")
async def _(at):
    session = await at.create()
    session.last_update_time -= 1e-7
    await SERVICE.append_event(session, said())
    session._storage_update_marker = None
    await SERVICE.append_event(session, said())
    assert len((await at.get(session.id)).events) == 2


@rule("the same session, user and app state made by eight calls at once")
async def _(at):
    ends = await asyncio.gather(
        *(at.create(session_id="s", state={"app:a": 1, "user:u": 1}) for _ in range(8)), return_exceptions=True)
    assert sum(isinstance(end, AlreadyExistsError) for end in ends) == 7, ends
    made = await asyncio.gather(*(at.create("new", state={"app:b": 1, "user:u": n}) for n in range(8)))
    assert len({session.id for session in made}) == 8
    assert (await at.create()).state == {"app:a": 1, "app:b": 1, "user:u": 1}


# ADK's runner, and other readers of the same sessions.

class Echo(BaseAgent):
    async def _run_async_impl(self, ctx):
        text = ctx.user_content.parts[0].text
        content = types.Content(role="model", parts=[types.Part(text=f"You said: {text}")])
        delta = {"turns": ctx.session.state.get("turns", 0) + 1, "temp:t": 1}
        yield Event(author=self.name, invocation_id=ctx.invocation_id, content=content,
                    actions=EventActions(state_delta=delta))


@rule("ADK's runner keeps its turns here, and the native API shows them as messages")
async def _(at):
    runner = Runner(app_name=at.app, agent=Echo(name="echo"), session_service=SERVICE)
    session = await at.create()
    for text in ("one", "two"):
        message = types.Content(role="user", parts=[types.Part(text=text)])
        async for _ in runner.run_async(user_id="ann", session_id=session.id, new_message=message):
            pass
    loaded = await at.get(session.id)
    assert [event.author for event in loaded.events] == ["user", "echo"] * 2 and loaded.state == {"turns": 2}
    answer = await SERVICE.send("GET", f"/apps/{at.app}/users/ann/sessions/{session.id}")
    native = answer.headers["x-statehold-session"]
    messages = (await SERVICE.send("GET", f"/v1/sessions/{native}/messages")).json()["messages"]
    assert [(each["role"], each["content"]) for each in messages] == [
        ("user", "one"), ("assistant", "You said: one"), ("user", "two"), ("assistant", "You said: two")]
    trace = (await SERVICE.send("GET", f"/v1/sessions/{native}/messages?view=trace")).json()["messages"]
    stored = [item["data"]["id"] for item in trace if "data" in item]
    assert stored == [event.id for event in loaded.events]


@rule("ADK's rewind gives back the values that a session began with")
async def _(at):
    runner = Runner(app_name=at.app, agent=Echo(name="echo"), session_service=SERVICE)
    session = await at.create(state={"turns": 7, "kept": "yes"})
    invocations = []
    for text in ("one", "two"):
        message = types.Content(role="user", parts=[types.Part(text=text)])
        async for event in runner.run_async(user_id="ann", session_id=session.id, new_message=message):
            invocations.append(event.invocation_id)
    for target, turns in ((invocations[1], 8), (invocations[0], 7)):
        await runner.rewind_async(user_id="ann", session_id=session.id, rewind_before_invocation_id=target)
        loaded = await at.get(session.id)
        assert loaded.state == {"turns": turns, "kept": "yes"}
        assert loaded.events[-1].actions.state_delta.get("turns") == turns


async def held(at, session_id):
    """A session in which a call waits for an approval, its native id and the hold."""
    await at.create(session_id=session_id)
    agent = StateholdSessionService(URL, os.environ["AGENT_KEY"])
    answer = await agent.send("GET", f"/apps/{at.app}/users/ann/sessions/{session_id}")
    native = answer.headers["x-statehold-session"]
    start = {"input": "pay", "lease": {"ttl_seconds": 60}}
    request = (await agent.send("POST", f"/v1/sessions/{native}/requests", start)).json()
    hold = {"fence": request["fence"], "kind": "approval", "title": "Pay 4?", "message": "To Bob.",
            "action": {"tool": "pay", "args": {"sum": 4}}}
    return agent, native, (await agent.send("POST", f"/v1/requests/{request['id']}/holds", hold)).json()


def confirms(hold_id, response):
    reply = types.FunctionResponse(id=hold_id, name="adk_request_confirmation", response=response)
    return Event(author="user", content=types.Content(role="user", parts=[types.Part(function_response=reply)]))


@rule("an open approval is a request for confirmation, which an entitled person answers with an event")
async def _(at):
    decider = StateholdSessionService(URL, os.environ["DECIDER_KEY"])
    for name, is_confirmed, is_text, status in (
            ("s1", True, False, "approved"), ("s2", False, False, "rejected"), ("s3", True, True, "approved")):
        _, _, hold = await held(at, name)
        loaded = await decider.get_session(app_name=at.app, user_id="ann", session_id=name)
        asked = loaded.events[-1]
        assert asked.long_running_tool_ids == {hold["id"]}
        call = asked.get_function_calls()[0]
        assert (call.id, call.name) == (hold["id"], "adk_request_confirmation")
        assert call.args["originalFunctionCall"]["name"] == "pay", call.args
        assert call.args["originalFunctionCall"]["args"] == {"sum": 4}
        shown = call.args["toolConfirmation"]
        assert (shown["hint"], shown["confirmed"]) == ("To Bob.", False)
        assert ToolConfirmation.model_validate(shown).payload["digest"] == hold["action"]["digest"]
        response = shown | {"confirmed": is_confirmed}
        reply = confirms(hold["id"], {"response": json.dumps(response)} if is_text else response)
        await decider.append_event(loaded, reply)
        decided = (await SERVICE.send("GET", f"/v1/holds/{hold['id']}")).json()
        assert decided["status"] == status
        # Both are in the history now, and a repeat decides nothing again.
        again = await decider.get_session(app_name=at.app, user_id="ann", session_id=name)
        assert [event.id for event in again.events][-2:] == [hold["id"], reply.id]
        await decider.append_event(again, reply.model_copy(deep=True))
        assert len((await decider.get_session(app_name=at.app, user_id="ann", session_id=name)).events) == 3


@rule("text approves nothing, nor does a response of those who may not decide or about another action")
async def _(at):
    agent, native, hold = await held(at, "s1")
    loaded = await agent.get_session(app_name=at.app, user_id="ann", session_id="s1")
    await agent.append_event(loaded, said("yes, approved"))
    path = f"/apps/{at.app}/users/ann/sessions/s1/events"

    async def refused(service, event, status, path=path):
        body = {"event": event.model_dump(mode="json", by_alias=True, exclude_none=True)}
        answer = await service.send("POST", path, body)
        assert answer.status_code == status, answer.text
    decider = StateholdSessionService(URL, os.environ["DECIDER_KEY"])
    yes = {"confirmed": True}
    await refused(agent, confirms(hold["id"], yes), 403)
    await refused(decider, confirms(hold["id"], {"maybe": True}), 422)
    await refused(decider, confirms(hold["id"], yes), 422)
    await refused(decider, confirms(hold["id"], yes | {"payload": {"digest": "sha256:" + "0" * 64}}), 409)
    mixed = confirms(hold["id"], yes)
    mixed.content.parts.append(types.Part(text="and more"))
    await refused(decider, mixed, 422)
    await at.create(session_id="s2")
    await refused(decider, confirms(hold["id"], yes), 404, path.replace("s1", "s2"))
    assert (await SERVICE.send("GET", f"/v1/holds/{hold['id']}")).json()["status"] == "open"
    assert len((await at.get("s1")).events) == 3
    # A confirmation that ADK itself asked for is an event like any other.
    await SERVICE.append_event(await at.get("s2"), confirms("adk-123", yes))


@rule("a client keeps its own events; of a worker's it reads what was said")
async def _(at):
    session = await at.create(session_id="s1")
    call = types.Part(function_call=types.FunctionCall(name="secret_tool", args={"key": "hidden"}))
    content = types.Content(role="model", parts=[types.Part(text="done"), call])
    await SERVICE.append_event(session, said("question"))
    await SERVICE.append_event(session, Event(author="echo", content=content))
    await SERVICE.append_event(session, wrote(k=1))
    client = StateholdSessionService(URL, os.environ["CLIENT_KEY"])
    path = f"/apps/{at.app}/users/ann/sessions/s1"
    answer = await client.send("GET", path)
    assert "secret_tool" not in answer.text and answer.json()["state"] == {"k": 1}
    texts = [event["content"]["parts"] for event in answer.json()["events"]]
    assert texts == [[{"text": "question"}], [{"text": "done"}]]
    patched = await client.send("PATCH", path, {"stateDelta": {"k": 2, "user:u": 3, "temp:t": 4}})
    assert patched.json()["state"] == {"k": 2, "user:u": 3, "temp:t": 4}
    refused = await client.send("PATCH", path, {"stateDelta": {"app:a": 1}})
    assert refused.status_code == 403 and "admin" in refused.json()["detail"]
    loaded = await at.get("s1")
    assert loaded.state == {"k": 2, "user:u": 3}
    assert loaded.events[-1].invocation_id.startswith("p-")
    assert loaded.events[-1].actions.state_delta == {"k": 2, "user:u": 3}
    own = await client.create_session(app_name=at.app, user_id="ann", session_id="own")
    for event in (said("mine"), Event(author="echo", content=content), wrote(k=5)):
        await client.append_event(own, event)
    assert await client.get_session(app_name=at.app, user_id="ann", session_id="own") == own


async def main():
    for (sentence, check), app in zip(RULES, APPS):
        try:
            await check(Place(app))
        except BaseException:
            print(f"FAILED {sentence} (line {inspect.getsourcelines(check)[1]})", flush=True)
            raise
        print(sentence, flush=True)


assert len(RULES) > 35
asyncio.run(main())
