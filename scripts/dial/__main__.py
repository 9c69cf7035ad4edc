"""Lets DIAL's libraries, and clients and applications as they are in DIAL, talk to the program: dial STATEHOLD [NAME…]

Prints what it has seen to work.
"""

import sys

import client_library
import conversation
import course
import downstream
import pauses
import request_keys
import rig
import transcript

CHECKS = {one.__name__: one.check for one in (
    client_library, downstream, transcript, conversation, request_keys, pauses, course)}

rig.play(*(CHECKS[name] for name in sys.argv[2:] or CHECKS))
