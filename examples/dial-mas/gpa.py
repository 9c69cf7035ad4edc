"""A general purpose agent, made with DIAL's SDK: gpa.py PORT CORE TOOLS

It keeps nothing between two calls. CORE is where its model is: DIAL Core, or here the model itself. The calls of its
tools go out as `state`, and come back with the messages of later turns. It keeps what it was sent: GET /heard
"""

import json
import sys

import uvicorn
from aidial_client import AsyncDial
from aidial_sdk import DIALApp
from aidial_sdk.chat_completion import ChatCompletion, Request, Response, Role
from mcp import Client

PORT, CORE, TOOLS = int(sys.argv[1]), sys.argv[2], sys.argv[3]
PROMPT = "You are a general purpose agent. You have tools, and use them."
STEPS_MAX = 8
heard = []


def unpack(messages):
    """The conversation as the model gets it: the tool calls of each answer stand before it.

    An answer without a state was given by somebody else, or its state is lost: it is left out.
    """
    unpacked = []
    for message in messages:
        custom = message.custom_content
        if message.role == Role.ASSISTANT:
            if custom and custom.state:
                unpacked += custom.state["tool_call_history"]
                unpacked.append({"role": "assistant", "content": message.content})
            continue
        text = message.content
        if files := custom and custom.attachments:
            text += "\n\nAttached files URLs:\n" + "\n".join(file.url or file.reference_url for file in files)
        unpacked.append({"role": message.role.value, "content": text})
    return unpacked


async def think(core, tools, messages, choice):
    """One call of the model. Its words go into the answer, and the calls of tools that it wants come back."""
    offered = [{"type": "function", "function": {
        "name": tool.name, "description": tool.description, "parameters": tool.input_schema}} for tool in tools]
    calls = {}
    chunks = await core.chat.completions.create(
        deployment_name="gpt-4o", stream=True, tools=offered,
        messages=[{"role": "system", "content": PROMPT}, *messages])
    async for chunk in chunks:
        delta = chunk.choices[0].delta
        if delta.content:
            choice.append_content(delta.content)
        for piece in delta.tool_calls or []:
            call = calls.setdefault(piece.index, {"id": piece.id, "type": "function", "function": {
                "name": piece.function.name, "arguments": ""}})
            call["function"]["arguments"] += piece.function.arguments or ""
    return list(calls.values())


async def use(tools, call, choice):
    """Runs a tool in a stage of its own."""
    name, arguments = call["function"]["name"], call["function"]["arguments"]
    with choice.create_stage(name) as stage:
        stage.append_content(f"{arguments}\n\n")
        result = await tools.call_tool(name, json.loads(arguments))
        text = result.content[0].text
        stage.append_content(text)
        if name == "get_weather" and not result.is_error:
            choice.add_attachment(type="text/csv", title="Weather", data=text.replace(": ", ","))
    return {"role": "tool", "tool_call_id": call["id"], "content": text}


class Gpa(ChatCompletion):
    async def chat_completion(self, request: Request, response: Response):
        headers = {name: request.headers.get(name) for name in ("x-conversation-id", "traceparent")}
        heard.append({"key": request.api_key, "headers": headers, "body": await request.original_request.json()})
        history = []
        with response.create_single_choice() as choice:
            async with Client(TOOLS) as tools, AsyncDial(base_url=CORE, api_key=request.api_key) as core:
                offered = (await tools.list_tools()).tools
                for _ in range(STEPS_MAX):
                    messages = unpack(request.messages) + history
                    calls = await think(core, offered, messages, choice)
                    if not calls:
                        break
                    history.append({"role": "assistant", "content": None, "tool_calls": calls})
                    history += [await use(tools, call, choice) for call in calls]
            choice.set_state({"tool_call_history": history})


app = DIALApp(add_healthcheck=True)
app.add_chat_completion("general-purpose-agent", Gpa())
app.add_api_route("/heard", lambda: heard)

if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=PORT, log_level="warning")
