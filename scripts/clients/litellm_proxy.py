"""OpenAI's client before LiteLLM's proxy, which retries and has the key. litellm_proxy.py URL"""

import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

import link
import openai_python


# What callers of the proxy send.
MASTER_KEY = "sk-" + secrets.token_hex(32)


class Proxy:
    """The proxy. Its configuration has the keys, so it is started with the first call."""

    def __init__(self, url, key):
        # What callers ask it for, what it asks the server for, and the key.
        models = [("desk", "desk", key), ("nobody", "nobody", key), ("wrong key", "desk", "shk_wrong")]
        models = [{"model_name": name, "litellm_params": {"model": f"openai/{model}", "api_base": url, "api_key": key}}
                  for name, model, key in models]
        self.folder = tempfile.TemporaryDirectory()
        config = os.path.join(self.folder.name, "config.yaml")
        with open(config, "w") as file:
            json.dump({"model_list": models}, file)
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            port = found.getsockname()[1]
        program = os.path.join(os.path.dirname(sys.executable), "litellm")
        asked = [program, "--config", config, "--host", "127.0.0.1", "--port", str(port)]
        # Killed with this process.
        asked = ["setpriv", "--pdeathsig", "KILL", *asked]
        self.process = subprocess.Popen(asked, env=os.environ | {"LITELLM_MASTER_KEY": MASTER_KEY})
        self.url = f"http://127.0.0.1:{port}/v1"
        while not self.is_there(f"http://127.0.0.1:{port}/health/liveliness"):
            assert self.process.poll() is None, "the proxy has ended"
            time.sleep(0.2)

    def is_there(self, address):
        try:
            return urllib.request.urlopen(address, timeout=5).status == 200
        except OSError:
            return False


proxy = None


def ask(mode, talk, text, model, key):
    global proxy
    proxy = proxy or Proxy(sys.argv[1], key)
    name = "wrong key" if key == "shk_wrong" else model
    return openai_python.ask(mode, talk, text, name, MASTER_KEY, proxy.url)


link.serve(ask)
