"""OpenAI's Agents SDK: runs, and streamed runs. agents_sdk.py URL"""

import asyncio
import sys
from collections import defaultdict

import agents
import openai

import link

agents.set_tracing_disabled(True)
TALKS = defaultdict(list)


async def run(mode, talk, text, model, key):
    client = openai.AsyncOpenAI(base_url=sys.argv[1], api_key=key)
    agent = agents.Agent(name="caller", model=agents.OpenAIChatCompletionsModel(model=model, openai_client=client))
    messages = [*TALKS[talk], {"role": "user", "content": text}]
    if mode == "stream":
        result = agents.Runner.run_streamed(agent, messages)
        async for _ in result.stream_events():
            pass
    else:
        result = await agents.Runner.run(agent, messages)
    TALKS[talk] = result.to_input_list()
    return result.final_output


link.serve(lambda **call: asyncio.run(run(**call)))
