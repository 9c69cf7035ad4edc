"""How the checks talk to a client in a process of its own: a call per line of JSON, an answer per line."""

import json
import os
import sys


def status_of(error):
    """The HTTP status of an error, or of the one that it came from."""
    while error:
        status = getattr(error, "status_code", None)
        if status:
            return int(status)
        error = error.__cause__ or error.__context__
    return None


def serve(ask):
    """Calls `ask(mode, talk, text, model, key)` for every line. It gives the text of the answer, and remembers
    each talk in the way of its library: every talk has one entry more after an answer, and none after an error."""
    answers = os.fdopen(os.dup(1), "w")
    # Some libraries print.
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            said = {"text": ask(**json.loads(line))}
        except Exception as error:
            said = {"error": type(error).__name__, "status": status_of(error), "message": str(error)[:500]}
        print(json.dumps(said), file=answers, flush=True)
