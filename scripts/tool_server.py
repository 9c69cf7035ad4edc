"""A tool server made with the package that most tool servers are made with."""

import asyncio
import json
import os
import sys

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from pydantic import BaseModel

server = MCPServer("tools")
arrived: list[asyncio.Event] = []


@server.tool()
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@server.tool()
def meta(ctx: Context) -> str:
    """Says what came with the call."""
    return json.dumps(dict(ctx.request_context.meta or {}), default=str)


@server.tool()
def fail() -> str:
    """Goes wrong."""
    raise ValueError("no such file")


@server.tool()
async def meet(others: int) -> str:
    """Answers once so many calls are under way."""
    everybody = asyncio.Event()
    arrived.append(everybody)
    if len(arrived) == others:
        for event in arrived:
            event.set()
    await everybody.wait()
    return "met"


@server.tool()
async def retire(ctx: Context) -> str:
    """Removes a tool and says so."""
    server.remove_tool("fail")
    await ctx.session.send_tool_list_changed()
    return "done"


class Place(BaseModel):
    place: str


@server.tool()
async def book(nights: int, ctx: Context) -> str:
    """Asks a person for a place, while the call is under way."""
    asked = await ctx.elicit(f"Where, for {nights} nights?", Place)
    return f"{nights} {asked.data.place}" if asked.action == "accept" else f"{nights} {asked.action}"


@server.tool()
def leave() -> str:
    """Ends the program without an answer."""
    os._exit(3)


if len(sys.argv) > 1:
    server.run("streamable-http", port=int(sys.argv[1]))
else:
    server.run("stdio")
