"""Lets ADK's sessions, events and states live in the program: adk STATEHOLD. Prints what was seen to work.

ADK has packages of its own, so the contract runs in a process of its own, with a key of each kind.
"""

import os
import subprocess

import rig
from rig import Server, say


def check():
    server = Server("adk")
    for name, roles in {"adk": ("client", "worker", "admin"), "agent": ("client", "worker"),
                        "decider": ("client", "approver")}.items():
        asked = [word for role in roles for word in ("--role", role)]
        server.keys[name] = server.run("token", "create", "--name", name, *asked, role="admin").strip()
    keys = {f"{name.upper()}_KEY": key for name, key in server.keys.items()}
    env = os.environ | {"STATEHOLD_URL": server.url} | keys
    asked = [os.environ["GOOGLE_PYTHON"], "-W", "ignore", os.path.join(rig.SCRIPTS, "adk", "contract.py")]
    done = subprocess.run(asked, env=env, capture_output=True, text=True, timeout=300)
    for line in done.stdout.splitlines():
        say(line)
    assert done.returncode == 0, done.stderr
    server.stop()


rig.play(check)
