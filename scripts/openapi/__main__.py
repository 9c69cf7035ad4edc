"""Judges openapi.json: openapi STATEHOLD MODULES, with the folder of the packages of Node

A linter reads it, and the program says again what its examples say (`UPDATE=1` writes them anew). Two generators make
a client from it, in Python and in TypeScript. Each client plays a whole approval with the program, and both are
thrown away after.
"""

import json
import os
import shutil
import subprocess
import sys

import examples
import rig
from rig import Server, say

HERE = os.path.dirname(os.path.abspath(__file__))
DOCUMENT = os.path.join(HERE, "..", "..", "openapi.json")
MODULES = os.path.abspath(sys.argv[2])
# The linter tells its makers about each run, unless it is told not to, and asks for newer versions of itself.
QUIET = {"REDOCLY_TELEMETRY": "off", "REDOCLY_SUPPRESS_UPDATE_NOTICE": "true", "NO_COLOR": "1"}


def run(*asked, **options):
    """A program of the packages. Gives what it prints."""
    env = os.environ | QUIET | options.pop("env", {})
    done = subprocess.run(asked, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300,
                          **options)
    assert done.returncode == 0, (asked, done.stdout)
    return done.stdout


def of_node(name):
    return os.path.join(MODULES, ".bin", name)


def folder(name, *files):
    """A new folder, with files of this one."""
    made = os.path.join(rig.FOLDER, name)
    os.mkdir(made)
    for file in files:
        shutil.copy(os.path.join(HERE, file), made)
    return made


def lint():
    asked = [of_node("redocly"), "lint", DOCUMENT, "--config", os.path.join(HERE, "redocly.yaml"), "--format", "json"]
    done = subprocess.run(asked, env=os.environ | QUIET, capture_output=True, text=True, timeout=300)
    found = json.loads(done.stdout)
    assert done.returncode == 0 and not found["problems"], done.stdout
    say("the linter finds neither errors nor warnings")


def python_client(server):
    """Everything in one folder, so that the play finds the client beside it."""
    work = folder("python", "approve.py", "python_client.yaml")
    said = run("openapi-python-client", "generate", "--path", DOCUMENT, "--meta", "none", "--fail-on-warning",
               "--config", "python_client.yaml", "--output-path", "statehold_client", cwd=work)
    assert "WARNING" not in said, said
    run(os.path.join(os.path.dirname(shutil.which("openapi-python-client")), "python"), "approve.py", *caller(server),
        cwd=work, env={"PYTHONPATH": work})
    say("a client in Python starts, pauses, decides, resumes and completes a request, and knows each refusal")


def typescript_client(server):
    work = folder("typescript", "approve.ts", "openapi-ts.config.mjs", "package.json", "tsconfig.json")
    shutil.copy(DOCUMENT, work)
    os.symlink(MODULES, os.path.join(work, "node_modules"))
    run(of_node("openapi-ts"), "--no-log-file", cwd=work)
    run(of_node("tsc"), cwd=work)
    run("node", os.path.join("built", "approve.js"), *caller(server), cwd=work)
    say("a client in TypeScript does the same, and its types fit each call and each answer")


def caller(server):
    return [server.url, *(server.keys[role] for role in ("client", "worker", "approver"))]


def check():
    lint()
    examples.check(json.load(open(DOCUMENT)))
    server = Server("openapi", '[agents.payer]\ndescription = "Pays invoices."\n')
    python_client(server)
    typescript_client(server)
    server.stop()


rig.play(check)
