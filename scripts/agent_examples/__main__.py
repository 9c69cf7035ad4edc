"""Runs the examples with agents: python agent_examples STATEHOLD [NAME…]. Prints what it has seen to work."""

import os
import sys
import tempfile

import coordinator
import mcp_tools
import nested
from rig import SAID, STARTED, Server, end_all

CHECKS = {"coordinator": coordinator.check, "mcp_tools": mcp_tools.check, "nested": nested.check}

with tempfile.TemporaryDirectory() as folder:
    try:
        for name in sys.argv[2:] or CHECKS:
            CHECKS[name](os.path.abspath(sys.argv[1]), folder)
        print(f"{len(SAID)} passed, 0 failed")
    except BaseException:
        for server in [one for one in STARTED if isinstance(one, Server)][-1:]:
            print(server.log, *open(server.log).read().splitlines()[-15:], sep="\n  ")
        raise
    finally:
        end_all()
