"""A server as operators see it: metrics that Prometheus scrapes, alerts and a dashboard that have their metrics,
readiness with reasons, and a warning a minute for what fails."""

import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import urllib.error
import urllib.parse
import urllib.request

import rig
from rig import refused, say, start, until

PROMETHEUS = sys.argv[2]
DOCS = os.path.join(rig.SCRIPTS, "..", "docs", "operations")
CLASSIC = {"Accept": "text/plain;version=0.0.4"}
TOKEN = "ghp_" + "a1B2" * 9
CONFIG = """
[models.absent]
base_url = "http://127.0.0.1:9/v1"
model = "none"
retries = 0

[agents.writer]
kind = "llm"
model = "absent"
prompt = "You write."

[agents.gone]
kind = "openai"
base_url = "http://127.0.0.1:9/v1"
model = "none"
retries = 0

[agents.clerk]
kind = "worker"
"""


def metrics(server, **headers):
    sent = urllib.request.Request(server.url + "/metrics", headers=headers)
    with urllib.request.urlopen(sent, timeout=10) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def samples(text):
    """The value of each sample, by its name and labels."""
    found = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    return {sample: float(value) for sample, value in found}


def formats(server):
    kind, text = metrics(server)
    assert kind.startswith("application/openmetrics-text; version=1.0.0"), kind
    assert text.endswith("# EOF\n")
    kind, classic = metrics(server, **CLASSIC)
    assert kind == "text/plain; version=0.0.4; charset=utf-8", kind
    assert set(samples(classic)) == set(samples(metrics(server)[1])), "both formats have the same samples"
    done = subprocess.run(
        [f"{PROMETHEUS}/promtool", "check", "metrics"], input=classic, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0 and not done.stdout + done.stderr, done.stdout + done.stderr
    say("both text formats have the same samples, and promtool has nothing to say about them")


def expressions():
    """Every expression of the alerts and the dashboard."""
    rules = open(os.path.join(DOCS, "alerts.yaml")).read()
    parts = re.split(r"^ +expr: ", rules, flags=re.MULTILINE)[1:]
    alerts = [re.split(r"^ +(?:for|labels):", part, flags=re.MULTILINE)[0].removeprefix("|").strip() for part in parts]
    dashboard = json.load(open(os.path.join(DOCS, "grafana-dashboard.json")))
    shown = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    assert len(alerts) >= 10 and len(shown) >= 20
    known = {"$__rate_interval": "1m", "$instance": ".*"}
    for name, value in known.items():
        shown = [expression.replace(name, value) for expression in shown]
    return alerts + shown


def documents(server):
    """Each metric that a document for operators names is there."""
    there = {sample.split("{")[0] for sample in samples(metrics(server)[1])}
    named = {name for text in expressions() for name in re.findall(r"\b(?:statehold|process)_[a-z_]+", text)}
    assert not named - there, f"there is no metric {sorted(named - there)}"
    table = open(os.path.join(DOCS, "..", "operations.md")).read()
    described = set(re.findall(r"^\| `((?:statehold|process)_[a-z_]+)` \|", table, re.MULTILINE))
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in there}
    assert described == families, f"the table and the metrics differ in {sorted(described ^ families)}"
    say(f"{len(named)} metrics of the alerts and the dashboard are there, and the documentation has all {len(families)}")


def scraped(server):
    """Prometheus itself scrapes the server, and evaluates every expression."""
    folder, port = os.path.join(rig.FOLDER, "prometheus"), rig.free_port()
    os.mkdir(folder)
    config = {
        "global": {"scrape_interval": "1s"},
        "rule_files": [os.path.realpath(os.path.join(DOCS, "alerts.yaml"))],
        "scrape_configs": [{"job_name": "statehold", "static_configs": [{"targets": [server.url[7:]]}]}],
    }
    # JSON is YAML.
    path = os.path.join(folder, "prometheus.yml")
    json.dump(config, open(path, "w"))
    address = f"http://127.0.0.1:{port}"
    log = open(os.path.join(folder, "log"), "w")
    start(f"{PROMETHEUS}/prometheus", f"--config.file={path}", f"--storage.tsdb.path={folder}/data",
          f"--web.listen-address={address[7:]}", stdout=log, stderr=log)

    def ask(expression):
        query = urllib.parse.urlencode({"query": expression})
        try:
            with urllib.request.urlopen(f"{address}/api/v1/query?{query}", timeout=10) as answer:
                return json.load(answer)["data"]["result"]
        except urllib.error.HTTPError as error:
            # It answers before it is ready.
            if error.code == 503:
                return None
            raise AssertionError(f"{expression}: {error.read().decode()}")
        except OSError:
            return None

    until(lambda: ask('up{job="statehold"} == 1'))
    found = until(lambda: ask("statehold_holds_open"))
    assert found[0]["value"][1] == "1", found
    for expression in expressions():
        assert ask(expression) is not None, expression
    say("Prometheus scrapes the server and evaluates every expression of the alerts and the dashboard")


def numbers(server):
    """What waits is counted, under declared names."""
    for agent in ("clerk", "clerk", "stranger-7", "asker"):
        server.call("client", f"/v1/sessions/{server.session(agent)}/requests", {"input": f"My token is {TOKEN}"})
    [claimed] = server.call("worker", "/v1/work/claim", {"agent": "asker", "lease_seconds": 60})["requests"]
    asked = {"fence": claimed["fence"], "kind": "approval", "title": "Pay 4?", "action": {"tool": "pay", "args": {}}}
    server.call("worker", f"/v1/requests/{claimed['id']}/holds", asked)
    there = samples(metrics(server)[1])
    assert there["statehold_holds_open"] == 1 and there["statehold_holds_oldest_age_seconds"] < 60, there
    assert there['statehold_queue_requests{agent="clerk"}'] == 2
    assert there['statehold_queue_requests{agent="other"}'] == 1, "a name that no file declares is no label"
    assert there['statehold_queue_requests{agent="gone"}'] == 0
    assert not [sample for sample in there if "stranger" in sample or "asker" in sample], there
    # A lease that nobody extends lapses, and its request waits again.
    [claimed] = server.call("worker", "/v1/work/claim", {"agent": "stranger-7", "lease_seconds": 1})["requests"]
    server.call("worker", "/v1/dev/clock", {"step_seconds": 60})
    there = samples(metrics(server)[1])
    assert there["statehold_leases_lapsed_total"] == 1, there
    assert 60 <= there['statehold_queue_oldest_age_seconds{agent="other"}'] < 120, there
    assert there["statehold_commit_seconds_count"] >= there["statehold_sync_seconds_count"] > 0
    assert there["statehold_database_bytes"] > 0 and there["statehold_wal_bytes"] > 0
    say("open holds, queues, lapsed leases, commits and files are counted, and names that nobody declared are `other`")


def failures(server):
    """Each service that fails is counted call by call, and warned about once."""
    for agent in ("gone", "writer"):
        for _ in range(3):
            error = refused(Exception, lambda: server.chat(agent, "Hello", None))
            assert "cannot be reached" in str(error), error
    there = samples(metrics(server)[1])
    for peer, name in (("agent", "gone"), ("model", "absent")):
        labels = f'peer="{peer}",name="{name}"'
        assert there[f'statehold_service_calls_total{{{labels},outcome="failed"}}'] == 3, there
        assert there[f"statehold_service_call_seconds_count{{{labels}}}"] == 3
    for agent in ("gone", "writer"):
        assert there[f'statehold_requests_ended_total{{agent="{agent}",outcome="failed"}}'] == 3
    warned = [line for line in rig.lines(server.log) if "WARN" in line and "fail" in line]
    assert len(warned) == 3, warned
    for words in ("agent=gone", "agent=writer", "name=absent"):
        assert any(words in line for line in warned), (words, warned)
    say("each failed call is counted, and each failing agent and model is warned about once")


def readiness(server):
    ready = server.call("client", "/readyz")
    assert ready["status"] == "ok" and set(ready["checks"]) == {"running", "store", "disk", "data"}, ready
    assert all(check == {"status": "ok"} for check in ready["checks"].values()), ready
    say("readiness names its checks")


def command(server, role, *asked):
    """The command line at a running server, and how it ended."""
    env = os.environ | {"STATEHOLD_URL": server.url, "STATEHOLD_TOKEN": server.keys[role], "NO_COLOR": "1"}
    return subprocess.run([rig.PROGRAM, *asked], env=env, capture_output=True, text=True, timeout=120)


def backups():
    """A backup of a server under load is one moment, and restores; only admins get one."""
    server = rig.Server("backed-up")
    made, stop = [], threading.Event()

    def work():
        while not stop.is_set():
            made.append(server.session("clerk"))

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    until(lambda: len(made) > 50)
    before, path = len(made), os.path.join(rig.FOLDER, "copy.db")
    done = command(server, "admin", "--json", "backup", path)
    after = len(made) + len(workers)
    stop.set()
    for worker in workers:
        worker.join()
    assert done.returncode == 0, done
    report = json.loads(done.stdout)
    assert before <= report["sessions"] <= after, (before, report, after)
    assert report["bytes"] == os.path.getsize(path) and os.stat(path).st_mode & 0o777 == 0o600
    assert command(server, "admin", "backup", path).returncode == 1, "the file exists"
    other = os.path.join(rig.FOLDER, "other.db")
    for role in ("client", "worker", "approver"):
        assert command(server, role, "backup", other).returncode == 4, role
    left = [name for folder in (rig.FOLDER, server.data) for name in os.listdir(folder) if "other" in name or "back" in name]
    assert left == ["backed-up"], left
    noted = command(server, "admin", "audit", "list")
    assert "backup_made" in noted.stdout, noted
    server.stop()
    restored = os.path.join(rig.FOLDER, "restored")
    os.mkdir(restored, 0o700)
    for name in ("key-ring", "user-keys"):
        shutil.copy(os.path.join(server.data, name), restored)
    server.run("restore", path, "--data", restored)
    checked = server.run("check", "--data", restored)
    assert f"{report['sessions']} sessions" in checked and " 0 without a key" in checked, checked
    whole = server.run("--json", "backup", "--data", server.data, other)
    assert json.loads(whole)["unverified_payloads"] == 0, "the keys are beside the data"
    say("a backup of a server under load restores as it was at one moment, for admins only, and leaves nothing behind")


class Loopback(http.server.BaseHTTPRequestHandler):
    """A collector of traces, a model, and a tool server in one."""

    spans, seen, credential = [], {}, None

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/v1/traces":
            Loopback.credential = self.headers["Authorization"]
            for resource in body["resourceSpans"]:
                named = {one["key"]: one["value"]["stringValue"] for one in resource["resource"]["attributes"]}
                assert named["service.name"] == "statehold", named
                for scope in resource["scopeSpans"]:
                    self.spans.extend(scope["spans"])
            self.answer({})
        elif self.path == "/model/chat/completions":
            message = {"role": "assistant", "content": "Done."}
            if body["messages"][-1]["role"] != "tool":
                call = {"name": body["tools"][0]["function"]["name"], "arguments": "{}"}
                message = {"role": "assistant", "tool_calls": [{"id": "c1", "type": "function", "function": call}]}
            self.answer({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})
        elif "id" not in body:
            self.answer(None, 202)
        elif body["method"] == "initialize":
            server = {"name": "tools", "version": "1"}
            version = body["params"]["protocolVersion"]
            self.result(body, {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": server})
        elif body["method"] == "tools/list":
            self.result(body, {"tools": [{"name": "look", "inputSchema": {"type": "object"}}]})
        else:
            Loopback.seen = body["params"]["_meta"]
            self.result(body, {"content": [{"type": "text", "text": "seen"}]})

    def do_GET(self):
        self.answer({}, 405)

    def result(self, call, result):
        self.answer({"jsonrpc": "2.0", "id": call["id"], "result": result})

    def answer(self, body, status=200):
        text = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


def traces():
    """One trace goes from a chat call through coordinator, agent, model and tool, and has nothing of what was said."""
    loopback = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Loopback)
    threading.Thread(target=loopback.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{loopback.server_port}"
    config = f"""
[traces]
otlp_url = "{url}/v1/traces"
credential_env = "COLLECTOR"

[models.thinker]
base_url = "{url}/model"
model = "m"

[tool_servers.eyes]
url = "{url}/mcp"

[agents.desk]
kind = "router"
agents = ["clerk"]
rules = [{{ pattern = ".", agent = "clerk" }}]

[agents.clerk]
kind = "llm"
description = "Looks at things."
model = "thinker"
prompt = "You look at things."
tool_servers = ["eyes"]
"""
    server = rig.Server("traced", config, COLLECTOR="collector-credential")
    trace, caller = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    said, _ = server.chat("desk", "The word is xylophone.", None, traceparent=f"00-{trace}-{caller}-01")
    assert said == "Done.", said
    server.call("client", "/readyz")
    server.stop()
    assert Loopback.credential == "Bearer collector-credential"
    spans = [span for span in Loopback.spans if span["traceId"] == trace]
    below = lambda span: [one for one in spans if one.get("parentSpanId") == span]

    def only(parent, name):
        [found] = [one for one in below(parent) if one["name"] == name]
        assert int(found["endTimeUnixNano"]) >= int(found["startTimeUnixNano"]) > 1.7e18
        assert found.get("status") is None, found
        return found["spanId"]

    call = only(caller, "POST /openai/v1/chat/completions")
    desk = only(call, "turn")
    clerk = only(desk, "turn")
    assert len([one for one in below(clerk) if one["name"] == "chat thinker"]) == 2, below(clerk)
    only(clerk, "execute_tool eyes")
    assert len(spans) == 6, spans
    assert Loopback.seen["traceparent"] == f"00-{trace}-{clerk}-01", Loopback.seen
    everything = json.dumps(Loopback.spans)
    secrets = [*server.keys.values(), "xylophone", "Done.", "ann", "You look", "collector-credential", "readyz"]
    assert not [word for word in secrets if f'"{word}' in everything or word in everything and len(word) > 4]
    say("one trace goes from a chat call through coordinator, agent, model and tool, without what was said")


def check():
    server = rig.Server("operations", CONFIG, dev=["--no-demo", "--clock-control"])
    readiness(server)
    numbers(server)
    failures(server)
    formats(server)
    documents(server)
    scraped(server)
    server.stop()
    backups()
    traces()


rig.play(check)
