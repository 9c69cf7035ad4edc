//! One turn: what is said, the answer as it comes, the wait for a person, and coming back to a server
//! that was gone.

use std::io::Write;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::time::sleep;
use unicode_width::UnicodeWidthStr;

use crate::cli::answers::{elements, text};
use crate::cli::output::{Output, Tone};
use crate::cli::printable::{cell, printable};
use crate::client::Client;
use crate::exit::{Exit, Failure, LostReader};

const PATH: &str = "/openai/v1/chat/completions";
/// How long a turn may wait for a person before the stream is opened anew.
const WAIT_SECONDS: u64 = 3_600;
/// How long a server that is gone is waited for before the next try: twice as long each time.
const RETRY_MIN: Duration = Duration::from_millis(250);
const RETRY_MAX: Duration = Duration::from_secs(5);
/// How long a script waits for a server that does not come back. A person can press Ctrl-C.
const GONE_MAX: Duration = Duration::from_mins(2);
/// Where the end of a line says who answered.
const ABOUT_COLUMN: usize = 64;

/// How a turn ended.
pub(super) struct End {
    pub(super) exit: Exit,
    /// All of it, for programs.
    pub(super) report: Value,
}

/// One turn.
pub(super) struct Turn<'a> {
    client: &'a Client,
    output: &'a Output,
    session: &'a str,
    agent: &'a str,
    waits: bool,
    is_quiet: bool,
    /// Whether whoever asked can answer a question by a message.
    is_conversation: bool,
    begun: Instant,
    /// What was said so far, on this stream and before it broke.
    printed: String,
    /// The holds that were told, decided ones too.
    holds: Vec<Value>,
    /// What the last chunk told about the turn.
    about: Value,
}

/// How a stream ended.
enum Over {
    /// The answer is whole.
    Answered,
    /// It waits for a person whom nobody waits for.
    Paused,
    /// The connection is gone.
    Lost,
}

impl<'a> Turn<'a> {
    pub(super) fn new(
        client: &'a Client,
        output: &'a Output,
        session: &'a str,
        agent: &'a str,
        waits: bool,
    ) -> Self {
        Self {
            client,
            output,
            session,
            agent,
            waits,
            is_quiet: false,
            is_conversation: false,
            begun: Instant::now(),
            printed: String::new(),
            holds: Vec::new(),
            about: Value::Null,
        }
    }

    /// Prints nothing: only the report counts.
    pub(super) fn quiet(mut self) -> Self {
        self.is_quiet = true;
        self
    }

    /// Whoever asked goes on talking: a question is theirs to answer.
    pub(super) fn in_conversation(mut self) -> Self {
        self.is_conversation = true;
        self
    }

    /// Takes the turn, and prints it as it goes.
    ///
    /// # Errors
    ///
    /// If the server refuses it, or cannot be reached at first.
    pub(super) async fn take(mut self, message: &str) -> anyhow::Result<End> {
        let body = json!({
            "model": self.agent,
            "messages": [{ "role": "user", "content": message }],
            "stream": true,
        });
        // Whatever is lost on the way, all tries are one turn.
        let key = turn_key()?;
        let mut headers = vec![
            ("x-statehold-session", self.session.to_owned()),
            ("idempotency-key", key),
        ];
        if self.waits {
            headers.push(("x-statehold-wait", WAIT_SECONDS.to_string()));
        }
        let mut was_there = false;
        let mut lost: Option<(Instant, Duration)> = None;
        let over = loop {
            match self.client.post_stream(PATH, &body, &headers).await {
                Ok(mut stream) => {
                    was_there = true;
                    let is_back = lost.take().is_some();
                    match self.follow(&mut stream, is_back).await? {
                        Over::Lost => {}
                        // The stream has waited as long as one may: on with the next.
                        Over::Paused if self.waits && !self.is_theirs() => continue,
                        over => break over,
                    }
                }
                Err(failure) if was_there && is_passing(&failure) => {
                    let is_over = lost.is_some_and(|(since, _)| since.elapsed() > GONE_MAX);
                    if is_over && !self.is_conversation {
                        return Err(failure.into());
                    }
                }
                Err(failure) => return Err(failure.into()),
            }
            let (since, pause) = lost.unwrap_or_else(|| {
                self.output.note("connection lost, retrying…");
                (Instant::now(), RETRY_MIN)
            });
            sleep(pause).await;
            lost = Some((since, (pause * 2).min(RETRY_MAX)));
        };
        self.end(&over).await
    }

    /// Reads one stream. What was printed from an earlier one is not printed again.
    async fn follow(
        &mut self,
        stream: &mut crate::client::EventStream,
        is_back: bool,
    ) -> anyhow::Result<Over> {
        if is_back && self.holds.is_empty() {
            self.output.note("reconnected");
        }
        let mut told_back = !is_back;
        let mut heard = String::new();
        loop {
            let Ok(Some(data)) = stream.next().await else {
                return Ok(Over::Lost);
            };
            if data == "[DONE]" {
                let is_paused = text(&self.about, "status") == "paused";
                return Ok(if is_paused {
                    Over::Paused
                } else {
                    Over::Answered
                });
            }
            let chunk: Value = serde_json::from_str(&data)?;
            if let Some(error) = chunk.get("error") {
                if text(error, "code") == "stopping" {
                    return Ok(Over::Lost);
                }
                return Err(failed(error).into());
            }
            if let Some(about) = chunk.get("statehold") {
                self.about = about.clone();
                if text(about, "status") == "paused" && self.waits {
                    self.pause(elements(about, "holds"), !told_back);
                    told_back = true;
                    if self.is_theirs() {
                        return Ok(Over::Paused);
                    }
                }
            }
            let piece = chunk["choices"][0]["delta"]["content"].as_str();
            heard.push_str(piece.unwrap_or_default());
            self.print(&heard)?;
        }
    }

    /// Prints what was heard on this stream, as far as it was not printed before.
    fn print(&mut self, heard: &str) -> anyhow::Result<()> {
        if self.printed.starts_with(heard) {
            return Ok(());
        }
        let new = match heard.strip_prefix(self.printed.as_str()) {
            Some(new) => new.to_owned(),
            // After a break it is worded otherwise: that one counts, from a new paragraph on.
            None => format!("\n\n{heard}"),
        };
        let is_first = self.printed.is_empty();
        heard.clone_into(&mut self.printed);
        if self.is_quiet {
            return Ok(());
        }
        let mut shown = printable(&new);
        if is_first && self.output.is_terminal {
            let name = format!("{}> ", cell(self.agent));
            shown.insert_str(0, &Tone::Strong.paint(&name));
        }
        write(&shown)
    }

    /// Says what the turn waits for, once for each hold.
    fn pause(&mut self, holds: &[Value], is_back: bool) {
        let known = |hold: &Value| self.holds.iter().any(|known| known["id"] == hold["id"]);
        let new: Vec<Value> = holds.iter().filter(|hold| !known(hold)).cloned().collect();
        if is_back {
            let aliases: Vec<&str> = holds.iter().map(|hold| text(hold, "alias")).collect();
            let aliases = cell(&aliases.join(", "));
            self.output
                .note(&format!("reconnected; still waiting for {aliases}"));
        }
        for hold in &new {
            self.output.note(&self.notice(hold));
        }
        let is_theirs = self.is_conversation && new.iter().all(is_question);
        if !new.is_empty() && !is_theirs {
            let note = "(waiting; Ctrl-C stops waiting, the task stays paused)";
            self.output.note(&format!("   {}", Tone::Dim.paint(note)));
        }
        self.holds.extend(new);
    }

    fn notice(&self, hold: &Value) -> String {
        let (alias, title) = (cell(text(hold, "alias")), cell(text(hold, "title")));
        if is_question(hold) {
            let message = hold["message"].as_str().map(printable);
            let message = message.map_or_else(String::new, |message| format!("\n   {message}"));
            let how = if self.is_conversation {
                "type the answer".to_owned()
            } else {
                format!("answer with: statehold approvals respond {alias} \"…\"")
            };
            return format!("⏸ {title}{message}\n   hold {alias}; {how}");
        }
        let chain = hold["chain"].as_str().map(cell).unwrap_or_default();
        let expires = hold["expires_at"].as_str();
        let expires = expires.map_or_else(String::new, |at| {
            format!(", expires {}", self.output.times.at_present().show(at))
        });
        let verb = match text(hold, "kind") {
            "approval" => "approve",
            // To approve one that asks whether something ran is to run it again: look at it first.
            _ => "show",
        };
        format!(
            "⏸ This needs a person: {title}\n   {chain}       hold {alias}{expires}\n   decide in another \
             terminal:  statehold approvals {verb} {alias}"
        )
    }

    /// Whether all that is waited for now is an answer of whoever types.
    fn is_theirs(&self) -> bool {
        let open = elements(&self.about, "holds");
        self.is_conversation && !open.is_empty() && open.iter().all(is_question)
    }

    async fn end(self, over: &Over) -> anyhow::Result<End> {
        let ms = self.begun.elapsed().as_millis();
        if !self.is_quiet {
            self.print_end(over, ms)?;
        }
        let refused = match over {
            Over::Answered => self.was_refused().await,
            Over::Paused | Over::Lost => false,
        };
        let exit = match over {
            Over::Paused | Over::Lost => Exit::Paused,
            Over::Answered if refused => Exit::Refused,
            Over::Answered => Exit::Done,
        };
        let mut report = json!({ "content": self.printed, "ms": ms });
        if let (Value::Object(report), Value::Object(about)) = (&mut report, &self.about) {
            report.extend(about.clone());
        }
        Ok(End { exit, report })
    }

    fn print_end(&self, over: &Over, ms: u128) -> anyhow::Result<()> {
        if self.printed.is_empty() {
            return Ok(());
        }
        let via: Vec<&str> = elements(&self.about, "via")
            .iter()
            .filter_map(Value::as_str)
            .collect();
        let is_answer = matches!(over, Over::Answered) && self.output.is_terminal;
        let about = match via.as_slice() {
            _ if !is_answer || self.output.quiet => String::new(),
            [] => format!("{ms} ms"),
            via => format!("via {} · {ms} ms", cell(&via.join(", "))),
        };
        let last = self.printed.lines().last().unwrap_or_default();
        let used = last.width() + self.agent.width() + 2;
        let gap = " ".repeat(ABOUT_COLUMN.saturating_sub(used).max(3));
        if about.is_empty() {
            write("\n")
        } else {
            write(&format!("{gap}{}\n", Tone::Dim.paint(&about)))
        }
    }

    /// Whether the last word of a person on this turn was no.
    async fn was_refused(&self) -> bool {
        let Some(hold) = self.holds.last() else {
            return false;
        };
        let path = format!("/v1/holds/{}", text(hold, "id"));
        let Ok(answer) = self.client.get(&path).await else {
            return false;
        };
        let status = text(&answer.body, "status");
        matches!(status, "rejected" | "expired" | "cancelled")
    }
}

fn is_question(hold: &Value) -> bool {
    text(hold, "kind") == "question"
}

/// Whether trying again can help.
fn is_passing(failure: &Failure) -> bool {
    failure.exit == Exit::Unreachable || matches!(failure.status, Some(429 | 502 | 503))
}

/// What went wrong in the middle of a stream.
fn failed(error: &Value) -> Failure {
    let code = text(error, "code");
    let exit = match code {
        "unauthenticated" | "forbidden" => Exit::NotAllowed,
        "not_found" => Exit::NotFound,
        "session_closed" | "session_expired" => Exit::Conflict,
        _ => Exit::Failed,
    };
    let message = text(error, "message").to_owned();
    let mut failure = Failure::new(exit, message).hint("the conversation stays; say it again");
    failure.code = Some(code.to_owned());
    failure
}

/// Names a turn over all of its tries.
fn turn_key() -> anyhow::Result<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| anyhow::anyhow!("no random numbers: {error}"))?;
    Ok(format!("chat-{:032x}", u128::from_le_bytes(bytes)))
}

fn write(shown: &str) -> anyhow::Result<()> {
    let mut out = anstream::stdout().lock();
    out.write_all(shown.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|error| LostReader(error).into())
}
