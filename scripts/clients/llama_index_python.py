"""LlamaIndex's OpenAILike: chats, and streamed chats. llama_index_python.py URL"""

import sys
from collections import defaultdict

from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike

import link

TALKS = defaultdict(list)


def ask(mode, talk, text, model, key):
    llm = OpenAILike(model=model, api_base=sys.argv[1], api_key=key, is_chat_model=True)
    messages = [*TALKS[talk], ChatMessage(role="user", content=text)]
    if mode == "stream":
        said = "".join(chunk.delta or "" for chunk in llm.stream_chat(messages))
    else:
        said = llm.chat(messages).message.content
    TALKS[talk] += [messages[-1], ChatMessage(role="assistant", content=said)]
    return said


link.serve(ask)
