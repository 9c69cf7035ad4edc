"""OpenAI's client for Python: whole answers, streams, and raw answers. openai_python.py URL"""

import sys
from collections import defaultdict

import openai

import link

TALKS = defaultdict(list)


def ask(mode, talk, text, model, key, url=sys.argv[1]):
    client = openai.OpenAI(base_url=url, api_key=key)
    call = {"model": model, "messages": [*TALKS[talk], {"role": "user", "content": text}]}
    if mode == "stream":
        with client.chat.completions.create(stream=True, **call) as stream:
            said = "".join(choice.delta.content or "" for chunk in stream for choice in chunk.choices)
    elif mode == "raw":
        answer = client.chat.completions.with_raw_response.create(**call)
        assert answer.headers["x-statehold-session"], "an answer names its session"
        said = answer.parse().choices[0].message.content
    else:
        said = client.chat.completions.create(**call).choices[0].message.content
    TALKS[talk] += [call["messages"][-1], {"role": "assistant", "content": said}]
    return said


if __name__ == "__main__":
    link.serve(ask)
