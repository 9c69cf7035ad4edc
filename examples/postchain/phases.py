"""The six phases of a PostChain, each an MCP server: phases.py PORT [PHASE…], or phases.py stdio PHASE.

With a port, each phase is served at http://127.0.0.1:PORT/PHASE/mcp; without names, all six are. Local data is in the
current folder, or in the one that PHASE_DATA names. No phase asks a model: put your call where a phase makes its text.
"""

import asyncio
import contextlib
import os
import re
import sys

import uvicorn
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.types import ToolAnnotations
from starlette.applications import Starlette

from local_store import LocalStore
from phase_cache import Cache, Conversation, Histories, History

PAGES = {"Lisbon": "Lisbon has 22 degrees in May.", "Porto": "Porto has 20 degrees in May."}  # A web of two pages.


def places_in(text):
    return [place for place in PAGES if place in text]


class Phase(MCPServer):
    """An MCP server with one tool, its cache and its local data."""

    def __init__(self, name, tool):
        super().__init__(name, log_level="WARNING")
        # A call may be repeated under its execution key: five phases only read, observation records once per key.
        hints = ToolAnnotations(readOnlyHint=name != "observation", idempotentHint=True)
        self.add_tool(getattr(self, tool), annotations=hints)
        self.histories = Histories(bytes_max=16 << 20, ttl=600)
        self.store = LocalStore(os.path.join(os.environ.get("PHASE_DATA", "."), f"{name}.db"))

    def call_of(self, ctx):
        """The call's metadata, and the conversation that it may read."""
        meta = dict(ctx.request_context.meta or {})
        return meta, Conversation.of_call(meta, self.histories)


class ActionServer(Phase):
    def __init__(self):
        super().__init__("action", "respond")

    def respond(self, input: str) -> str:
        """Action: a first response to the message alone."""
        return f"First response to: {input.splitlines()[0]}"


class ExperienceServer(Phase):
    def __init__(self):
        super().__init__("experience", "get_enriched_context")
        self.pages = Cache(bytes_max=1 << 20, ttl=300, size_of=len)

    async def get_enriched_context(self, input: str, conversation_history_uri: str, ctx: Context) -> str:
        """Experience: what the past and the web know about the places of the conversation."""
        _, conversation = self.call_of(ctx)
        history = await conversation.history(conversation_history_uri)
        index = await self.index(conversation.session, history)
        places = sorted({*index["places"], *places_in(input)})
        pages = [await self.pages.get_or_compute(place, lambda place=place: self.search(place)) for place in places]
        return "\n".join(pages) or "Nothing is known yet."

    async def index(self, session, history):
        """Which messages name which places. Indexes new messages only, also after a restart of this server."""
        empty = {"last": 0, "places": {}}
        index = await self.store.get(session, empty)
        messages = [one for one in history.messages if one.role == "user"]
        if index["last"] not in {0, *(one.seq for one in messages)}:
            index = empty  # A rewind took out the last indexed message.
        new = [one for one in messages if one.seq > index["last"]]
        for message in new:
            for place in places_in(message.text):
                index["places"].setdefault(place, []).append(message.seq)
        if new:
            await self.store.put(session, index | {"last": new[-1].seq})
        return index

    async def search(self, place):
        await asyncio.sleep(0.05)  # A web search would be here.
        return PAGES[place]


class IntentionServer(Phase):
    def __init__(self):
        super().__init__("intention", "find_goal")

    def find_goal(self, ctx: Context) -> str:
        """Intention: what the user wants. The history comes inside the call, for a phase that has no network."""
        history = History.of_meta(ctx.request_context.meta)
        wishes = [found[1] for one in history.messages if one.role == "user"
                  for found in re.finditer(r"I want to ([^.?!]+)", one.text)]
        return f"Goal: {wishes[-1]}." if wishes else "Goal: an answer."


class ObservationServer(Phase):
    def __init__(self):
        super().__init__("observation", "record_connections")

    async def record_connections(self, conversation_history_uri: str, ctx: Context) -> str:
        """Observation: records what this turn is connected with, for later turns."""
        meta, conversation = self.call_of(ctx)
        history = await conversation.history(conversation_history_uri)
        places = sorted({place for one in history.messages for place in places_in(one.text)})
        # A repeat of this call has the same key, and records nothing.
        await self.store.append(conversation.session, places, once=meta["statehold/execution_key"])
        events = await self.store.events(conversation.session)
        return f"{len(events)} observations, now of: {', '.join(places) or 'nothing'}."


class UnderstandingServer(Phase):
    def __init__(self):
        super().__init__("understanding", "choose_context")

    async def choose_context(self, conversation_history_uri: str, ctx: Context) -> str:
        """Understanding: decides which answers of the earlier phases to keep, and which to release."""
        _, conversation = self.call_of(ctx)
        answers = (await conversation.history(conversation_history_uri)).phase_answers
        wanted = ["intention", "experience"] + ["observation"] * ("yield" in answers)  # More in the second cycle.
        kept = [phase for phase in wanted if phase in answers]
        released = [phase for phase in answers if phase not in (*kept, "yield", "understanding")]
        return f"Keep: {', '.join(kept)}\nRelease: {', '.join(released)}"


class YieldServer(Phase):
    def __init__(self):
        super().__init__("yield", "give_answer")

    async def give_answer(self, input: str, conversation_history_uri: str, ctx: Context) -> str:
        """Yield: the final answer, or another cycle, once, if the message asks for a second thought."""
        _, conversation = self.call_of(ctx)
        answers = (await conversation.history(conversation_history_uri)).phase_answers
        kept = re.search(r"^Keep: (.*)", answers.get("understanding", "Keep: action"))[1].split(", ")
        answer = "\n".join(answers[phase] for phase in kept if phase in answers) or "No answer."
        if "think again" in input.lower() and "yield" not in answers:
            return f"{answer}\nNEXT: action"
        return answer


PHASES = {"action": ActionServer, "experience": ExperienceServer, "intention": IntentionServer,
          "observation": ObservationServer, "understanding": UnderstandingServer, "yield": YieldServer}


def serve(port, names):
    """Serves each phase under a path of its own."""
    apps = [PHASES[name]().streamable_http_app(streamable_http_path=f"/{name}/mcp") for name in names]

    @contextlib.asynccontextmanager
    async def lifespan(_):
        async with contextlib.AsyncExitStack() as stack:
            for app in apps:
                await stack.enter_async_context(app.router.lifespan_context(app))
            yield

    routes = [route for app in apps for route in app.routes]
    uvicorn.run(Starlette(routes=routes, lifespan=lifespan), host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    where, *names = sys.argv[1:]
    if where == "stdio":
        PHASES[names[0]]().run("stdio")
    else:
        serve(int(where), names or list(PHASES))
