"""Prints how long a development server takes from its start to its first answer: first_answer.py STATEHOLD

The median of several starts on empty data, with the demo.
"""

import http.client
import statistics
import subprocess
import tempfile
import time

import rig


def milliseconds(program):
    with tempfile.TemporaryDirectory() as folder:
        port = rig.free_port()
        begin = time.monotonic()
        server = subprocess.Popen(
            [program, "dev", "--no-open", "--port", str(port)], cwd=folder,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            while True:
                assert server.poll() is None, "the server has ended"
                try:
                    calls = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
                    calls.request("GET", "/v1/sessions")
                    assert calls.getresponse().status == 200
                    return (time.monotonic() - begin) * 1000
                except OSError:
                    time.sleep(0.001)
        finally:
            server.kill()
            server.wait()


print(f"{statistics.median(milliseconds(rig.PROGRAM) for _ in range(5)):.0f} ms")
