"""pydantic-ai: runs, and streamed runs. pydantic_ai_python.py URL"""

import asyncio
import sys

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

import link

TALKS = {}


async def run(mode, talk, text, model, key):
    agent = Agent(OpenAIChatModel(model, provider=OpenAIProvider(base_url=sys.argv[1], api_key=key)))
    if mode == "stream":
        async with agent.run_stream(text, message_history=TALKS.get(talk)) as result:
            said = await result.get_output()
    else:
        result = await agent.run(text, message_history=TALKS.get(talk))
        said = result.output
    TALKS[talk] = result.all_messages()
    return said


link.serve(lambda **call: asyncio.run(run(**call)))
