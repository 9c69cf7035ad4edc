"""What the checks start: the applications made with DIAL's SDK, and servers in front of them."""

import json
import os
import sys
import urllib.request

import rig
from rig import Server

HERE = os.path.dirname(os.path.abspath(__file__))
KINDS = """
[agents.coordinator]
kind = "router"
agents = ["counter", "app", "helper"]
rules = [{{ pattern = "Count", agent = "counter" }}, {{ pattern = "pay|which", agent = "helper" }}]
otherwise = "app"

[agents.app]
kind = "dial"
description = "Does what it is told."
base_url = "{url}"
credential_env = "APPLICATION_KEY"
deployment = "strict"
stages = "full"

[agents.counter]
kind = "dial"
description = "Counts."
base_url = "{url}"
credential_env = "APPLICATION_KEY"
deployment = "strict"
stages = "full"
sessions = "auto"

[agents.names]
kind = "dial"
base_url = "{url}"
credential_env = "APPLICATION_KEY"
deployment = "strict"

[agents.none]
kind = "dial"
base_url = "{url}"
credential_env = "APPLICATION_KEY"
deployment = "strict"
stages = "none"

[agents.sharing]
kind = "router"
agents = ["writer", "reader"]
rules = [{{ pattern = "for the writer", agent = "writer" }}]
otherwise = "reader"

[agents.writer]
kind = "dial"
base_url = "{url}"
credential_env = "APPLICATION_KEY"
deployment = "strict"
export = ["place"]

[agents.reader]
kind = "dial"
base_url = "{url}"
credential_env = "APPLICATION_KEY"
deployment = "strict"
import = ["place"]

[agents.helper]
description = "Pays, if a person approves, and asks."
"""


class Application:
    """The applications of `agent.py`, in a process of their own."""

    def __init__(self):
        self.port = rig.free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        with open(os.path.join(rig.FOLDER, f"agent-{self.port}.log"), "wb") as log:
            asked = [sys.executable, os.path.join(HERE, "agent.py"), str(self.port)]
            self.process = rig.start(*asked, stdout=log, stderr=log)
        rig.until(self.is_there)

    def is_there(self):
        assert self.process.poll() is None, "the application has ended"
        try:
            return urllib.request.urlopen(f"{self.url}/health", timeout=5).status == 200
        except OSError:
            return False

    def heard(self):
        return json.load(urllib.request.urlopen(f"{self.url}/heard", timeout=30))

    def go_on(self):
        urllib.request.urlopen(f"{self.url}/go-on", b"", timeout=30).read()


def server_of(application, name, more="", **options):
    """A development server with keys, whose agents are those applications."""
    return Server(name, KINDS.format(url=application.url) + more, dev=["--no-demo"], has_keys=True,
                  APPLICATION_KEY="key-of-the-application", **options)


def plain(message):
    """A message as a client sends it back: an answer with its state, and without the rest."""
    state = message.get("custom_content", {}).get("state")
    return {"role": "assistant", "content": message.get("content", "")} | (
        {"custom_content": {"state": state}} if state else {})
