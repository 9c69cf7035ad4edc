//! The server is killed at every step of a turn, each time that the turn comes there, before the step is
//! recorded and after. Another process goes on: what is recorded is not done again, what may have run is
//! not run again silently, and the client's next try gets the one answer.

mod stories;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use statehold_agents::runner::StepKind;
use statehold_fakes::conversations::Conversations;
use statehold_fakes::tools::{self, ToolCall};
use statehold_fakes::{FakeService, ScriptedResponse, SeenRequest, chat};
use tokio::sync::Semaphore;

use stories::{Death, STORIES, Story, TOOLS, expected, expected_holds};

use crate::stage::{Ask, Stage, program, until};

/// How many stories are told at once.
const LANES: usize = 3;
const MOMENTS: [&str; 2] = ["before", "after"];

/// How often what was called.
type Counts = BTreeMap<String, usize>;

/// What a call is counted as. None for what may be repeated at will: lists of tools and the like.
fn name_of(seen: &SeenRequest) -> Option<String> {
    let role = seen.path.split('/').nth(1)?;
    Some(match role {
        "model" => format!("model {}", results(seen)),
        "tools" | "finder" => ToolCall::of(seen)?.tool,
        "ums" if seen.path.ends_with("/chat") => "ums say".to_owned(),
        "ums" if seen.method == hyper::Method::GET => "ums find".to_owned(),
        "ums" => "ums begin".to_owned(),
        role => role.to_owned(),
    })
}

/// How many results of tools the model was shown.
fn results(seen: &SeenRequest) -> usize {
    let body = seen.json();
    let messages = body["messages"].as_array().into_iter().flatten();
    messages.filter(|message| message["role"] == "tool").count()
}

fn play(seen: &SeenRequest, conversations: &Conversations) -> ScriptedResponse {
    let said = seen.said();
    // A later phase is told more: what agents share, and the answers of the earlier phases.
    let story = STORIES.iter().find(|story| said.contains(story.asked));
    let answer = story.map_or("I do not know.", |story| story.answer);
    match seen.path.split('/').nth(1) {
        Some("chooser") => {
            let agent = story.map_or("gpa", |story| story.agent);
            let chosen = json!({"agent_name": agent, "additional_instructions": null});
            chat::says(seen, &chosen.to_string())
        }
        Some("model") => match TOOLS.get(results(seen)) {
            Some((tool, _)) => chat::wants(tool, &json!({"what": tool})),
            None => chat::says(seen, answer),
        },
        Some("tools") => {
            let tools = TOOLS.map(|(name, honours_keys)| {
                json!({
                    "name": name,
                    "inputSchema": {"type": "object"},
                    "annotations": {"idempotentHint": honours_keys},
                })
            });
            match ToolCall::of(seen) {
                Some(call) => tools::result(seen, &json!(format!("{} is done", call.tool))),
                None => tools::handshake(seen, &tools),
            }
        }
        Some("finder") => match ToolCall::of(seen) {
            Some(_) => tools::result(seen, &json!(found(seen))),
            None => tools::handshake(seen, &[finder()]),
        },
        Some("ums") => conversations
            .begin_or_list(seen)
            .unwrap_or_else(|| chat::says(seen, answer)),
        _ => chat::says(seen, answer),
    }
}

/// The tool that is an agent.
fn finder() -> Value {
    json!({"name": "find", "inputSchema": {"type": "object", "properties": {"input": {"type": "string"}}}})
}

/// The answer of that tool, which gets the message as an argument.
fn found(seen: &SeenRequest) -> &'static str {
    let asked = ToolCall::of(seen).map(|call| call.args["input"].clone());
    let story = STORIES
        .iter()
        .find(|story| asked.as_ref().is_some_and(|asked| asked == story.asked));
    story.map_or("I do not know.", |story| story.answer)
}

fn config(at: &str) -> String {
    format!(
        r#"
        [models.chooser]
        base_url = "{at}/chooser/v1"
        model = "chooser"
        [models.main]
        base_url = "{at}/model/v1"
        model = "main"
        [tool_servers.tools]
        url = "{at}/tools/mcp"
        trust_hints = true
        [agents.coordinator]
        kind = "router"
        agents = ["gpa", "ums", "assistant", "line", "lookup"]
        route_by = "model"
        model = "chooser"
        [agents.line]
        kind = "pipeline"
        phases = [{{ agent = "parse" }}, {{ agent = "write" }}]
        [agents.parse]
        kind = "openai"
        base_url = "{at}/parse/v1"
        model = "parse"
        output_key = "temp:parsed"
        [agents.write]
        kind = "openai"
        base_url = "{at}/write/v1"
        model = "write"
        import = ["temp:parsed"]
        [agents.gpa]
        kind = "openai"
        base_url = "{at}/gpa/v1"
        model = "gpa"
        [agents.ums]
        kind = "conversations"
        base_url = "{at}/ums"
        [tool_servers.finder]
        url = "{at}/finder/mcp"
        [agents.lookup]
        kind = "mcp"
        tool_server = "finder"
        tool = "find"
        [agents.lookup.tools.find]
        idempotent = true
        [agents.assistant]
        kind = "llm"
        model = "main"
        prompt = "You do what you are told."
        tool_servers = ["tools"]
        [agents.assistant.tools.pay]
        approval = "always"
        [agents.assistant.tools.wipe]
        approval = "always"
        "#
    )
}

/// One telling of a story.
struct Telling {
    story: &'static Story,
    death: Option<Death>,
    has_died: bool,
    stage: Stage,
    played: FakeService,
    /// What people were asked and decided, and by which hold. They are not asked twice.
    decided: Vec<(String, String)>,
}

impl Telling {
    async fn begin(story: &'static Story, death: Option<Death>) -> Result<Self> {
        let conversations = Conversations::default();
        let played = FakeService::start(move |seen| play(seen, &conversations)).await;
        let place = death.map(|death| death.to_string());
        let stage = Stage::start(&config(&played.url("")), place.as_deref()).await?;
        Ok(Self {
            story,
            death,
            has_died: death.is_none(),
            stage,
            played,
            decided: Vec::new(),
        })
    }

    fn counts(&self) -> Counts {
        let mut counts = Counts::new();
        for name in self.played.seen().iter().filter_map(name_of) {
            *counts.entry(name).or_default() += 1;
        }
        counts
    }

    /// The server has died. Another goes on with the turn, although nobody asks it to.
    async fn start_again(&mut self) -> Result<()> {
        ensure!(!self.has_died, "it died where nobody told it to");
        self.has_died = true;
        self.stage.has_died().await?;
        self.stage.start_again(None).await?;
        let stage = &self.stage;
        until("the turn goes on by itself", || async move {
            let (_, status, _) = root(stage).await?;
            Ok(matches!(status.as_str(), "idle" | "paused").then_some(()))
        })
        .await
    }

    /// Talks until the answer is there, as a client does that knows nothing of servers that die.
    async fn talk(&mut self, ask: &Ask<'_>) -> Result<String> {
        loop {
            let told = match ask.send(self.stage.address()).await {
                Ok(told) => told,
                Err(_) if !self.has_died => {
                    self.start_again().await?;
                    continue;
                }
                Err(error) => return Err(error),
            };
            ensure!(told.status == 200 && told.code.is_none(), "{told:?}");
            if !told.is_paused() {
                ensure!(told.turn["status"] == "completed", "{told:?}");
                return Ok(told.text);
            }
            for hold in told.turn["holds"].as_array().into_iter().flatten() {
                let decided = self.decide(hold["id"].as_str().context("an id")?).await;
                match decided {
                    Ok(()) => {}
                    Err(_) if !self.has_died => {
                        self.start_again().await?;
                        break;
                    }
                    Err(error) => return Err(error),
                }
            }
        }
    }

    /// Decides as a person does who looks at what happened.
    async fn decide(&mut self, hold: &str) -> Result<()> {
        let shown = self.stage.get(&format!("/v1/holds/{hold}")).await?;
        if shown["status"] != "open" {
            return Ok(());
        }
        let (kind, tool) = (text(&shown["kind"]), text(&shown["action"]["tool"]));
        let has_run = self.counts().contains_key(&tool);
        let body = match (kind.as_str(), has_run) {
            ("approval", _) => json!({"decision": "approve", "digest": shown["action"]["digest"]}),
            ("reconcile", false) => match shown["action"]["digest"].as_str() {
                Some(digest) => json!({"decision": "approve", "digest": digest}),
                None => json!({"decision": "approve"}),
            },
            ("reconcile", true) => {
                json!({"decision": "respond", "content": {"outcome": "ran", "result": "done"}})
            }
            _ => anyhow::bail!("nobody expects {shown}"),
        };
        // An answer that was lost is given again, to the same hold.
        let what = (format!("{kind} {tool}"), hold.to_owned());
        if !self.decided.contains(&what) {
            self.decided.push(what);
        }
        let path = format!("/v1/holds/{hold}/decision");
        self.stage.post(&path, hold, &body).await?;
        Ok(())
    }

    /// Everything that is said about it is so.
    async fn check(&self) -> Result<()> {
        let (story, death) = (self.story, self.death);
        let counts = self.counts();
        let right = expected(story, death);
        let is_right = right.contains(&counts);
        ensure!(is_right, "called: {counts:?}, and not one of {right:?}");
        let right = expected_holds(story, death);
        let asked: Vec<&str> = self.decided.iter().map(|(what, _)| what.as_str()).collect();
        let is_right = right.iter().any(|right| asked == *right);
        ensure!(is_right, "asked: {asked:?}, and not one of {right:?}");
        let mut keys: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for seen in self.played.seen() {
            let key = seen.header("idempotency-key");
            let said = key.filter(|_| seen.path.ends_with("/chat"));
            let said = said.map(|key| ("ums say".to_owned(), key.to_owned()));
            let called = ToolCall::of(&seen).map(|call| (call.tool, call.key));
            for (what, key) in said.into_iter().chain(called) {
                keys.entry(what).or_default().insert(key);
            }
        }
        let mut keys_of_each = keys.values();
        // A value in memory is there when the next phase is first asked, unless that was killed with the server.
        let parsed = format!(r#"{{"temp:parsed":"{}"}}"#, story.answer);
        let seen = self.played.seen();
        let mut told = seen.iter().filter(|seen| seen.path.starts_with("/write/"));
        let was_asked_again = death.is_some_and(|death| death.time > 1 || death.moment == "after");
        if let Some(first) = told.next() {
            ensure!(
                was_asked_again || first.said().contains(&parsed),
                "{}",
                first.said()
            );
        }
        let is_one = keys_of_each.all(|keys| keys.len() == 1 && !keys.contains(""));
        ensure!(is_one, "a call has one key: {keys:?}");
        let (session, ..) = root(&self.stage).await?;
        let said = self.stage.transcript(&session).await?;
        let right = [("user", story.asked), ("assistant", story.answer)];
        let right = right.map(|(role, text)| (role.to_owned(), text.to_owned()));
        ensure!(said == right, "said: {said:?}");
        self.check_trace(&self.stage.trace(&session).await?)?;
        let tree = self.stage.tree(&session).await?;
        let agents: Vec<&str> = tree.requests.iter().map(|one| one.0.as_str()).collect();
        let right = [&["coordinator", story.agent], story.below].concat();
        ensure!(agents == right, "{tree:?}");
        let is_over = tree.requests.iter().all(|one| one.1 == "completed");
        let is_idle = tree.tasks.iter().all(|task| task.1 == "idle");
        ensure!(is_over && is_idle, "{tree:?}");
        Ok(())
    }

    /// Each step, call, result and message is recorded once.
    fn check_trace(&self, trace: &[Value]) -> Result<()> {
        let mut recorded = Counts::new();
        for item in trace {
            let kind = text(&item["kind"]);
            let what = match kind.as_str() {
                "step" => text(&item["name"]),
                "message" => format!("{} of {}", text(&item["role"]), text(&item["task_id"])),
                kind => kind.to_owned(),
            };
            *recorded.entry(what).or_default() += 1;
        }
        for (kind, times) in self.story.steps {
            // The others are no items: a hold, a request, and the end of one.
            let is_item = !matches!(kind, StepKind::Hold | StepKind::Child | StepKind::Answer);
            let found = recorded.get(kind.word()).copied().unwrap_or_default();
            ensure!(!is_item || found == *times, "{kind:?}: {recorded:?}");
        }
        let said: Vec<usize> = recorded
            .iter()
            .filter(|(what, _)| what.contains(" of "))
            .map(|(_, times)| *times)
            .collect();
        let right = vec![1; 4 + 2 * self.story.below.len()];
        ensure!(said == right, "{recorded:?}");
        Ok(())
    }
}

/// The only session there is, the status of its only root task, and the id of the only request of that.
async fn root(stage: &Stage) -> Result<(String, String, String)> {
    let sessions = stage.get("/v1/sessions").await?;
    let sessions = sessions["sessions"].as_array().context("sessions")?;
    ensure!(sessions.len() == 1, "one session: {sessions:?}");
    let session = text(&sessions[0]["id"]);
    let tree = stage.tree(&session).await?;
    let mut roots = tree.requests.iter().filter(|one| one.0 == "coordinator");
    let (.., id) = roots.next().context("a turn")?.clone();
    ensure!(roots.next().is_none(), "one turn: {tree:?}");
    let (_, status) = tree.tasks.first().context("a task")?.clone();
    Ok((session, status, id))
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Tells one story with one death, and gives how many calls were made in it.
async fn tell(story: &'static Story, death: Option<Death>, stream: bool) -> Result<usize> {
    let mut telling = Telling::begin(story, death).await?;
    // Half of the clients say by a key which call is the same, the others by their words.
    let has_key = death.is_none_or(|death| death.moment == "before");
    let session = if has_key {
        "new".to_owned()
    } else {
        telling.stage.session().await?
    };
    let ask = Ask {
        agent: "coordinator",
        session: &session,
        text: story.asked,
        stream,
        key: has_key.then_some("the-turn"),
    };
    let answer = telling.talk(&ask).await?;
    ensure!(answer == story.answer, "answered: {answer}");
    if !telling.has_died {
        // The answer was out before the process was dead.
        telling.start_again().await?;
    }
    if has_key {
        let again = ask.send(telling.stage.address()).await?;
        ensure!(again.text == story.answer, "{again:?}");
        let (.., request) = root(&telling.stage).await?;
        ensure!(again.turn["request"] == request, "{again:?}");
    }
    telling.check().await?;
    let calls = telling.counts().values().sum();
    telling.stage.end().await?;
    Ok(calls)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_server_that_is_killed_at_any_step_goes_on_from_there() {
    // Built before anything is timed.
    tokio::task::spawn_blocking(program)
        .await
        .expect("it builds");
    let mut tellings: Vec<(&'static Story, Option<Death>)> = Vec::new();
    let mut covered = BTreeSet::new();
    for story in &STORIES {
        tellings.push((story, None));
        for &(kind, times) in story.steps {
            for (moment, time) in MOMENTS
                .into_iter()
                .flat_map(|moment| (1..=times).map(move |time| (moment, time)))
            {
                covered.insert((kind.word(), moment));
                tellings.push((story, Some(Death { kind, moment, time })));
            }
        }
    }
    let points: BTreeSet<(&str, &str)> = StepKind::ALL
        .into_iter()
        .flat_map(|kind| MOMENTS.map(|moment| (kind.word(), moment)))
        .collect();
    assert_eq!(covered, points, "every place where it can die has a story");
    let lanes = Arc::new(Semaphore::new(LANES));
    let mut told = tokio::task::JoinSet::new();
    let total = tellings.len();
    for (at, (story, death)) in tellings.into_iter().enumerate() {
        let lanes = Arc::clone(&lanes);
        told.spawn(async move {
            let _lane = lanes.acquire_owned().await?;
            let telling = tell(story, death, at % 2 == 0).await;
            let place = death.map_or_else(|| "nowhere".to_owned(), |death| death.to_string());
            telling.with_context(|| format!("{}, killed at {place}", story.agent))
        });
    }
    let (mut calls, mut failures) = (0, Vec::new());
    while let Some(telling) = told.join_next().await {
        match telling.expect("it does not panic") {
            Ok(made) => calls += made,
            Err(error) => failures.push(format!("{error:#}")),
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
    println!(
        "steps: {} places ({} kinds, before and after), {} kills, {calls} calls, none with a recorded \
         result made again",
        points.len(),
        StepKind::ALL.len(),
        total - STORIES.len(),
    );
}

#[test]
fn a_server_that_is_to_die_at_no_step_says_which_there_are() {
    let directory = tempfile::tempdir().expect("a directory");
    let said = std::process::Command::new(program())
        .args(["dev", "--port", "0", "--no-open", "--memory"])
        .current_dir(directory.path())
        .env("STATEHOLD_DIE_AT", "modul:before")
        .output()
        .expect("it runs");
    assert_eq!(said.status.code(), Some(2));
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    for kind in StepKind::ALL {
        assert!(said.contains(kind.word()), "{said}");
    }
}
