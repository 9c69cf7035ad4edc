"""LiteLLM as a library: completions, streams, and its router, which retries. litellm_python.py URL"""

import sys
from collections import defaultdict

import litellm

import link

TALKS = defaultdict(list)


def ask(mode, talk, text, model, key):
    messages = [*TALKS[talk], {"role": "user", "content": text}]
    where = {"model": f"openai/{model}", "api_base": sys.argv[1], "api_key": key}
    if mode == "router":
        router = litellm.Router([{"model_name": model, "litellm_params": where}])
        said = router.completion(model, messages).choices[0].message.content
    elif mode == "stream":
        stream = litellm.completion(messages=messages, stream=True, **where)
        said = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    else:
        said = litellm.completion(messages=messages, **where).choices[0].message.content
    TALKS[talk] += [messages[-1], {"role": "assistant", "content": said}]
    return said


link.serve(ask)
