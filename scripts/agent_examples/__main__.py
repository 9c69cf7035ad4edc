"""Runs the examples with agents: python agent_examples STATEHOLD [NAME…]. Prints what it has seen to work."""

import sys

import by_model
import coordinator
import mcp_tools
import nested
import postchain
import rig
import state_scopes
from rig import Server, example, lines, say


def check_starts():
    """Servers are started as the READMEs say, except for the port and the data."""
    count = 0
    for folder in ("coordinator", "dial-mas", "mcp_tools", "nested", "postchain", "state_scopes"):
        told = [line.split() for line in lines(example(folder, "README.md")) if line.startswith("statehold dev ")]
        assert told, folder
        for _, _, *flags in told:
            count += 1
            server = Server(f"start-{count}", dev=[flag for flag in flags if flag != "&"], cwd=example(folder))
            declared = {model.id for model in server.client.models.list()}
            assert declared & {"coordinator", "mas-coordinator", "assistant", "front-desk", "choir", "report"}, declared
            server.stop()
    say(f"the READMEs start {count} servers")


CHECKS = {one.__name__: one.check for one in (coordinator, by_model, mcp_tools, nested, postchain, state_scopes)}
CHECKS["starts"] = check_starts

rig.play(*(CHECKS[name] for name in sys.argv[2:] or CHECKS))
