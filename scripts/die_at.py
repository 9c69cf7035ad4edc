"""Runs a program until its Nth call, and dies of SIGKILL: die_at.py N before|after PROGRAM ARGUMENTS…"""

import os
import runpy
import signal
import sys
import urllib.request

at, when, sys.argv = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
calls, real = 0, urllib.request.urlopen


def urlopen(sent, **more):
    global calls
    calls += 1
    if calls == at and when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    answer = real(sent, **more)
    if calls == at:
        os.kill(os.getpid(), signal.SIGKILL)
    return answer


urllib.request.urlopen = urlopen
runpy.run_path(sys.argv[0], run_name="__main__")
