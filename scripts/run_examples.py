"""Runs the examples against the program: run_examples.py STATEHOLD. Prints what it has seen to work."""

import base64
import hashlib
import http.server
import json
import os
import signal
import ssl
import subprocess
import threading
import time

import standardwebhooks

import rig
from rig import FOLDER, SCRIPTS, example, lines, refused, say, until


class Server(rig.Server):
    """One that logs everything, and whoever works for it."""

    def __init__(self, name, config="", **env):
        super().__init__(name, config, STATEHOLD__LOG__LEVEL="trace", **env)

    def ask(self, agent, text, **headers):
        """A new session of ann, and a request in it."""
        return self.call("client", f"/v1/sessions/{self.session(agent)}/requests", {"input": text}, **headers)

    def claim(self, agent, **more):
        """The one request that there is for an agent."""
        asked = {"agent": agent, "wait_seconds": 20, "lease_seconds": 5, **more}
        (request,) = self.call("worker", "/v1/work/claim", asked)["requests"]
        return request

    def work(self, request, what, **body):
        """A write under the fence of a request that was claimed."""
        body |= {"fence": request["fence"]}
        return self.call("worker", f"/v1/requests/{request['id']}/{what}", body)

    def hold_of(self, agent):
        """The open hold of an agent, as soon as there is one."""
        def find():
            holds = self.call("approver", f"/v1/holds?agent={agent}")["holds"]
            return holds and holds[0]
        return until(find)

    def answer_to(self, request):
        return until(lambda: self.ended(request))["output"]

    def ended(self, request):
        now = self.call("client", f"/v1/requests/{request['id']}?wait=5")
        return now if now["status"] in ("completed", "failed", "cancelled") else None


def check_worker(server):
    ledger = os.path.join(server.folder, "ledger")
    worker = server.example("worker", example("worker.py"), server.url, "payer", ledger)
    for decision, more, answer in [
        ("approve", {}, "Paid 40."),
        ("edit", {"args": {"amount": 4, "to": "bob"}}, "Paid 4."),
        ("reject", {"comment": "too much"}, "Paid 0."),
    ]:
        request = server.ask("payer", json.dumps({"amount": 40, "to": "bob"}))
        server.decide(server.hold_of("payer"), decision, **more)
        assert server.answer_to(request) == answer
    assert [line.split()[1] for line in lines(ledger)] == ["40", "4"], lines(ledger)
    worker.kill()
    assert len(lines(example("worker.py"))) < 40
    say("worker.py is asked to wait, and pays what was approved or edited, and nothing else")

    # Somebody who is asked while no process is there: worker and server are both killed.
    worker = server.example("worker", example("worker.py"), server.url, "payer", ledger)
    request = server.ask("payer", json.dumps({"amount": 7, "to": "eve"}))
    hold = server.hold_of("payer")
    worker.kill()
    server.kill()
    server.start()
    server.decide(hold)
    worker = server.example("worker", example("worker.py"), server.url, "payer", ledger)
    assert server.answer_to(request) == "Paid 7."
    assert len(lines(ledger)) == 3
    worker.kill()
    say("worker.py goes on after a kill -9 of the server and of itself")


def check_every_point(server):
    """Kills a worker before and after each of its calls. Another one goes on, and pays once."""
    cases = {}
    for at in range(1, 6):
        for when in ("before", "after"):
            agent = f"payer-{at}-{when}"
            ledger = os.path.join(server.folder, agent)
            request = server.ask(agent, json.dumps({"amount": at, "to": "bob"}))
            asked = [os.path.join(SCRIPTS, "die_at.py"), str(at), when, example("worker.py"), server.url, agent, ledger]
            cases[agent] = request, ledger, server.example("worker", *asked)
    started = []
    decided = set()
    for agent, (request, ledger, doomed) in cases.items():
        if int(agent.split("-")[1]) > 3 or agent.endswith("3-after"):
            server.decide(server.hold_of(agent))
            decided.add(agent)
    for agent, (request, ledger, doomed) in cases.items():
        assert doomed.wait(30) == -signal.SIGKILL, agent
        started.append(server.example("worker", example("worker.py"), server.url, agent, ledger))
    for agent, (request, ledger, _) in cases.items():
        if agent not in decided:
            server.decide(server.hold_of(agent))
    for agent, (request, ledger, _) in cases.items():
        assert server.answer_to(request) == f"Paid {agent.split('-')[1]}.", agent
        assert len(lines(ledger)) == 1, (agent, lines(ledger))
    for worker in started:
        worker.kill()
    say(f"worker.py killed at {len(cases)} points: each payment was made once")


def check_three_agents(server):
    ledger = os.path.join(server.folder, "three-ledger")
    def middle():
        return server.example("worker", example("three_agents/delegate.py"), server.url, "middle", "leaf")
    workers = [
        server.example("worker", example("worker.py"), server.url, "leaf", ledger),
        middle(),
        server.example("worker", example("three_agents/delegate.py"), server.url, "orchestrator", "middle"),
    ]
    client = server.example("client", example("three_agents/client.py"), server.url, json.dumps({"amount": 9, "to": "bob"}))
    session, request = client.stdout.readline().split()
    hold = server.hold_of("leaf")

    def all_are_paused():
        now = server.call("client", f"/v1/sessions/{session}")
        assert now["status"] == "paused", now
        asks = server.call("client", f"/v1/requests/{request}")
        assert asks["status"] == "waiting", asks
        tasks, agents = server.call("client", f"/v1/sessions/{session}/tree")["tasks"], []
        while tasks:
            (task,) = tasks
            agents.append(task["agent"])
            assert task["status"] == "paused", task
            shown = server.call("admin", f"/v1/tasks/{task['id']}")
            below = [hold["id"] for hold in shown["pending"]]
            assert below == [hold["id"]], (task["agent"], below)
            tasks = task["requests"][0]["tasks"]
        assert agents == ["orchestrator", "middle", "leaf"], agents

    all_are_paused()
    say("three agents: the pause of the leaf pauses every agent above it, with the leaf's hold")
    workers[1].kill()
    server.kill()
    server.start()
    all_are_paused()
    say("three agents: the pause is the same after a kill -9 of the server and of the middle agent")
    approver = server.example("approver", example("three_agents/approver.py"), server.url, hold["id"], "approve")
    assert "approved" in approver.communicate(timeout=30)[0]
    workers.append(middle())
    answer, _ = client.communicate(timeout=60)
    assert answer.strip() == "orchestrator: middle: Paid 9.", answer
    assert len(lines(ledger)) == 1
    tree = server.call("client", f"/v1/sessions/{session}/tree")
    assert tree["tasks"][0]["status"] == "idle", tree
    for worker in workers:
        worker.kill()
    say("three agents: one decision by a fourth process, and the answer arrives at the client")


def secrets_in(server, secrets):
    """Which secrets, or digests of them, are in what a server wrote or answered."""
    texts = list(server.heard)
    for folder, _, names in os.walk(server.folder):
        texts += [open(os.path.join(folder, name), "rb").read() for name in names]
    forms = [form for secret in secrets for form in forms_of(secret.encode())]
    return [form for form in forms if any(form in text for text in texts)]


def forms_of(secret):
    digest = hashlib.sha256(secret).digest()
    plain = [secret, digest]
    return plain + [form for one in plain for form in (one.hex().encode(), base64.b64encode(one).rstrip(b"="))]


def check_credentials():
    """Sends canaries as credentials and looks for them everywhere but in the answers to claims."""
    canaries = {name: f"canary-{name}-{os.urandom(12).hex()}" for name in ("root", "child", "dead", "again")}
    service = f"canary-service-{os.urandom(12).hex()}"
    server = Server("credentials", '[agents.ums]\ncredential_env = "UMS_TOKEN"\n', UMS_TOKEN=service)
    def carry(name):
        return {"x-statehold-credential": canaries[name]}

    # The caller's credential reaches the worker, also that of a child, and only with the claim.
    root = server.ask("ums", "do it", **carry("root"))
    repeat = f"/v1/sessions/{root['session_id']}/requests"
    claimed = server.claim("ums")
    assert claimed["credential"] == {"value": canaries["root"], "source": "caller"}, claimed
    assert "credential_lost" not in claimed
    below = {"agent": "child", "input": "x", "parent_request_id": root["id"], "parent_fence": claimed["fence"]}
    keyed = carry("child") | {"Idempotency-Key": "child-1"}
    first = server.call("worker", repeat, below, **keyed)
    keyed = carry("again") | {"Idempotency-Key": "child-1"}
    assert server.call("worker", repeat, below, **keyed) == first, "another credential is the same call"
    child = server.claim("child")
    assert child["credential"]["value"] == canaries["child"], child
    server.work(claimed, "release")

    # At the first pause of the root all of them are gone; the agent's own stands in where there is one.
    ask = {"kind": "approval", "title": "?", "action": {"tool": "t", "args": {}, "idempotent": True}}
    server.work(child, "holds", **ask)
    server.work(child, "release")
    for role in ("client", "admin"):
        for path in (f"/v1/sessions/{root['session_id']}", f"/v1/requests/{root['id']}", f"{repeat[:-9]}/tree"):
            server.call(role, path)
    server.decide(server.hold_of("child"))
    child = server.claim("child")
    assert child["credential_lost"] and "credential" not in child, child
    server.work(child, "complete", output="done")
    claimed = server.claim("ums")
    assert claimed["credential_lost"] and claimed["credential"] == {"value": service, "source": "service"}, claimed
    server.work(claimed, "complete", output="done")
    server.ask("ums", "without")
    claimed = server.claim("ums")
    assert "credential" not in claimed and "credential_lost" not in claimed, claimed
    server.work(claimed, "fail", error="no credential")

    # A kill -9 loses them, and the worker is told.
    dead = server.ask("other", "x", **carry("dead"))
    server.kill()
    assert secrets_in(server, [*canaries.values(), service]) == [], "in the data, the log or an answer"
    server.start()
    claimed = server.claim("other")
    assert claimed["id"] == dead["id"] and claimed["credential_lost"] and "credential" not in claimed, claimed
    server.work(claimed, "complete", output="done")

    for wrong in ("x" * 8193, "caf\xe9", "tab\there"):
        told = server.refused("client", repeat, {"input": "x"}, **{"x-statehold-credential": wrong})
        assert told["code"] == "bad_header" and not any(wrong in str(value) for value in told.values()), told
    for path in (f"{repeat[:-9]}/records", f"{repeat[:-9]}/messages?view=trace", "/v1/audit/records"):
        server.call("admin", path)
    server.stop()
    backup = os.path.join(server.folder, "backup")
    server.run("backup", "--data", server.data, backup)
    assert os.path.getsize(backup) > 10_000
    with open(os.path.join(server.folder, "chain"), "w") as chain:
        chain.write(server.run("check", "--data", server.data, "--print-chain", root["session_id"]))
    assert len(server.heard) > 20 and os.path.getsize(server.log) > 2_000
    server_heard, server.heard = server.heard, []
    assert secrets_in(server, ["default"]) != [], "what is not secret is found on the disk"
    assert secrets_in(server, ["do it"]) == [], "what was said is encrypted on the disk"
    server.heard = server_heard
    assert secrets_in(server, [*canaries.values(), service]) == [], "in the data, the backup, the log or an answer"
    say("credentials reach the worker by claim, are gone after a pause and a kill -9, and are nowhere else")


class Receiver:
    """A worker that is called. It answers as it is told, and keeps what came."""

    def __init__(self, status=200):
        self.status, self.got = status, []
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                status = receiver.status
                receiver.got.append((self.path, dict(self.headers.items()), body))
                self.send_response(status)
                self.send_header("location", f"http://127.0.0.1:{receiver.port}/elsewhere")
                self.end_headers()
                try:
                    self.wfile.write(b"x" * 10_000_000)
                except OSError:
                    pass  # Nobody reads as much as that.

            def log_message(self, *_):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.http.server_address[1]
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def use_tls(self, folder):
        """From now on with a certificate that is its own root, for `localhost`."""
        self.certificate, key = os.path.join(folder, "cert.pem"), os.path.join(folder, "key.pem")
        names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
        make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names]
        make += ["-addext", "basicConstraints=critical,CA:FALSE", "-keyout", key, "-out", self.certificate]
        subprocess.run(make, check=True, capture_output=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, key)
        self.http.socket = context.wrap_socket(self.http.socket, server_side=True)

    def wait_for(self, count):
        return until(lambda: len(self.got) >= count and self.got)


def check_tls():
    receiver = Receiver()
    receiver.use_tls(FOLDER)
    allow = f'[push]\nallow = ["localhost:{receiver.port}"]\n'
    for name, root, is_trusted in (("trusting", receiver.certificate, True), ("wary", "/dev/null", False)):
        server = Server(name, allow, SSL_CERT_FILE=root)
        url = f"https://localhost:{receiver.port}/resume"
        secret = server.call("worker", "/v1/agents/pusher/resume_address", {"url": url}, "PUT")["secret"]
        server.ask("pusher", "x")
        server.work(server.claim("pusher"), "release")
        if is_trusted:
            (_, headers, body), *_ = receiver.wait_for(1)
            assert standardwebhooks.Webhook(secret).verify(body, headers)["decisions"] == []
        else:
            until(lambda: any("certificate of the host is not valid" in line for line in lines(server.log)))
            assert len(receiver.got) == 1
        server.stop()
    say("push: arrives over TLS where the certificate holds, and nowhere else")


def check_push():
    receiver = Receiver()
    elsewhere = Receiver()
    server = Server("push", f'[push]\nallow = ["127.0.0.1:{receiver.port}", "localhost:{receiver.port}"]\n')
    at = "/v1/agents/pusher/resume_address"
    url = f"http://127.0.0.1:{receiver.port}/resume"
    made = server.call("worker", at, {"url": url}, "PUT")
    webhook = standardwebhooks.Webhook(made["secret"])
    shown = server.call("admin", at)
    assert shown["url"] == url and "secret" not in shown, shown
    assert server.refused("client", at)["code"] == "forbidden"
    assert server.refused("approver", at, {"url": url}, "PUT")["code"] == "forbidden"

    def held(agent="pusher", **more):
        request = server.ask(agent, "x")
        claimed = server.claim(agent, request_id=request["id"], **more)
        ask = {"kind": "approval", "title": "?", "action": {"tool": "t", "args": {"n": 1}}}
        return request, claimed, server.work(claimed, "holds", **ask)

    # A decision for a worker that left: signed, with what it may run, once it is answered with 2xx.
    request, claimed, hold = held()
    server.work(claimed, "release")
    assert receiver.got == []
    server.decide(hold)
    ((path, headers, body),) = receiver.wait_for(1)
    message = webhook.verify(body, headers)
    assert path == "/resume" and message["type"] == "request.resumable", message
    assert message["request_id"] == request["id"] and message["fence"] == 1 and message["status"] == "queued"
    assert message["decisions"][0]["id"] == hold["id"] and message["decisions"][0]["action"]["args"] == {"n": 1}
    assert message["execution_keys"] == [hold["execution_key"]], message
    forged = body.replace(b'"fence":1', b'"fence":9')
    refused(standardwebhooks.WebhookVerificationError, lambda: webhook.verify(forged, headers))
    claimed = server.claim("pusher", request_id=request["id"])
    assert claimed["fence"] == 2 and claimed["decisions"][0]["id"] == hold["id"]
    item = {"kind": "tool_result", "call_id": hold["execution_key"], "result": 1}
    server.work(claimed, "complete", output="done", items=[item])
    say("push: a decision arrives at the address, and a library that nobody here wrote verifies it")

    # A worker that stayed hears of it too, under its own fence.
    request, claimed, hold = held(lease_seconds=60)
    server.decide(hold)
    message = webhook.verify(*reversed(receiver.wait_for(2)[1][1:]))
    assert (message["status"], message["fence"]) == ("running", claimed["fence"]), message
    item["call_id"] = hold["execution_key"]
    server.work(claimed, "complete", output="done", items=[item])

    # Refusals and redirects are tried again, also by the next process, under the same id.
    receiver.status = 307
    request, claimed, hold = held()
    server.work(claimed, "release")
    server.decide(hold)
    receiver.wait_for(4)
    server.kill()
    count = len(receiver.got)
    server.start()
    receiver.wait_for(count + 1)
    last = len(receiver.got)
    receiver.status = 204
    receiver.wait_for(last + 1)
    ids = {headers["webhook-id"] for _, headers, _ in receiver.got[2:]}
    assert len(ids) == 1, ids
    assert all(path == "/resume" for path, _, _ in receiver.got), "no redirect was followed"
    for _, headers, body in receiver.got:
        webhook.verify(body, headers)
    time.sleep(1.5)
    assert len(receiver.got) <= last + 2, "it is quiet after a 2xx"
    say("push: goes on after a kill -9 until a 2xx, with the same id, and follows no redirect")

    # What is claimed is not pushed any more; nor is anything after the address is gone.
    receiver.status = 500
    request, claimed, hold = held()
    server.work(claimed, "release")
    count = len(receiver.got)
    server.decide(hold)
    receiver.wait_for(count + 1)
    claimed = server.claim("pusher", request_id=request["id"], lease_seconds=60)
    time.sleep(2)
    count = len(receiver.got)
    time.sleep(3)
    assert len(receiver.got) == count, "it was claimed"
    again = server.call("worker", at, {"url": url}, "PUT")["secret"]
    assert again != made["secret"], "a new address has a new secret"
    server.call("worker", at, method="DELETE")
    assert server.refused("worker", at)["code"] == "not_found"
    say("push: ends with a claim, and with the address")

    # Nobody reaches other networks through the server: what the text tells is refused at once,
    for host in ("127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "169.254.169.254", "10.0.0.1", "192.168.0.1"):
        for scheme in ("http", "https"):
            told = server.refused("worker", at, {"url": f"{scheme}://{host}:{elsewhere.port}/"}, "PUT")
            assert told["code"] == "address_refused", told
    for wrong in ("file:///etc/passwd", "gopher://x/", "https://a@b/", "x", f"http://127.0.0.1:{elsewhere.port}/"):
        assert server.refused("worker", at, {"url": wrong}, "PUT")["code"] == "address_refused", wrong
    # and what only a look-up tells, in the moment of connecting.
    for number, host in enumerate(("localhost", "2130706433", "0x7f000001", "0177.0.0.1", "127.1")):
        agent = f"sneaky-{number}"
        server.call("worker", f"/v1/agents/{agent}/resume_address", {"url": f"https://{host}:{elsewhere.port}/"}, "PUT")
        _, claimed, hold = held(agent)
        server.work(claimed, "release")
        server.decide(hold)
        until(lambda: any(agent in line and "not a public one" in line for line in lines(server.log)))
    assert elsewhere.got == []
    say("push: private addresses are refused in every spelling, also those that only a look-up tells")

    secrets = [made["secret"], made["secret"].removeprefix("whsec_"), again]
    server.stop()
    backup = os.path.join(server.folder, "backup")
    server.run("backup", "--data", server.data, backup)
    server.heard = [heard for heard in server.heard if b'"secret"' not in heard]
    found = secrets_in(server, secrets)
    raw = base64.b64decode(made["secret"].removeprefix("whsec_"))
    assert found == [] and not any(raw in open(os.path.join(where, name), "rb").read()
                                   for where, _, names in os.walk(server.folder) for name in names), found
    say("push: the secret is shown once, and is not in the data, the backup or the log")


def check_workers():
    server = Server("examples")
    check_worker(server)
    check_every_point(server)
    check_three_agents(server)
    server.stop()
    say("statehold check finds nothing wrong with what all of this wrote")


rig.play(check_workers, check_credentials, check_push, check_tls)
