//! `statehold chat`: talks to an agent in the terminal.
//!
//! Each message is one turn over the chat API that any OpenAI client uses. The command waits while
//! a turn waits for a person, also across a restart of the server. Ctrl-C stops waiting; the turn
//! stays.

mod input;
mod turn;

use std::time::Duration;

use clap::Args;
use http::Method;
use serde_json::{Value, json};

use super::answers::{elements, text};
use super::ask::can_ask;
use super::block_on;
use super::globals::GlobalArgs;
use super::items;
use super::output::{CliOutput, TextTone};
use super::printable::cell;
use super::resolve::{self, short};
use super::state::APP_DEFAULT;
use super::tree::{SessionTree, TreeExtent};
use crate::client::{Client, with_query};
use crate::exit::{Exit, Failure, explain};
use input::{InputEvent, InputLines};
use turn::{ChatTurn, TurnEnd};

/// The agent if the user names none.
const AGENT_DEFAULT: &str = "coordinator";
/// The user if neither a flag nor the key names one: the user of the tutorial.
const USER_DEFAULT: &str = "bob";

const HELP: &str = "\
With -m the command sends one message and ends with 0 if it was answered, 1 if it failed, 7 if
--timeout has passed, 8 with --no-wait if the turn waits for a person, and 9 if a person refused.
Without -m it reads one message per line, from a terminal or a pipe. Without --timeout a turn may take
as long as it needs.";

const COMMANDS: &str = "\
/tree      draw the tasks, their requests, and their open holds
/hidden    print the hidden items: tool calls, and messages between agents
/new       start a new session
/session   print the id of this session
/quit      end; the session is kept (statehold chat -s …)
Everything else is sent to the agent. A plain message answers the only open question, and never
approves anything.";

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(super) struct ChatArgs {
    /// The agent to talk to [default: coordinator, or the one of the session]
    agent: Option<String>,
    /// Continue this session: its id, a part of it, or its name.
    #[arg(short, long, value_name = "SESSION")]
    session: Option<String>,
    /// Send one message, print the answer, and end.
    #[arg(short, long, value_name = "TEXT")]
    message: Option<String>,
    /// The user of a new session [default: the user of the key, or bob]
    #[arg(long, value_name = "USER", conflicts_with = "session")]
    user: Option<String>,
    /// Do not wait for people: end a turn that needs a decision.
    #[arg(long)]
    no_wait: bool,
    /// Print the hidden items of each turn. Needs `operator` and is audited.
    #[arg(long)]
    show_hidden: bool,
}

/// One conversation in one session.
struct ChatConversation<'a> {
    client: &'a Client,
    output: &'a CliOutput,
    session: String,
    agent: String,
    user: String,
    waits: bool,
    shows_hidden: bool,
    /// The longest time that one turn is waited for.
    limit: Option<Duration>,
    /// The number of the last item that was printed or skipped.
    seen: u64,
}

impl ChatArgs {
    pub(super) fn run(&self, globals: &GlobalArgs, output: &CliOutput) -> anyhow::Result<Exit> {
        let client = globals.client(output)?;
        block_on(self.talk(&client, globals.timeout, output))?
    }

    async fn talk(
        &self,
        client: &Client,
        limit: Option<Duration>,
        output: &CliOutput,
    ) -> anyhow::Result<Exit> {
        let mut talk = self.open(client, output).await?;
        talk.limit = limit;
        talk.warn_if_undeclared().await;
        if let Some(message) = &self.message {
            return talk.take_single_turn(message).await;
        }
        talk.greet();
        talk.converse(self).await
    }

    async fn open<'a>(
        &self,
        client: &'a Client,
        output: &'a CliOutput,
    ) -> anyhow::Result<ChatConversation<'a>> {
        let session = match &self.session {
            Some(typed) => {
                let id = resolve::session(client, typed).await?;
                client.get(&format!("/v1/sessions/{id}")).await?.body
            }
            None => self.create_session(client).await?,
        };
        let own = text(&session, "agent");
        let agent = self.agent.as_deref().unwrap_or(own).to_owned();
        Ok(ChatConversation {
            client,
            output,
            session: text(&session, "id").to_owned(),
            user: text(&session, "user").to_owned(),
            agent,
            waits: !self.no_wait,
            shows_hidden: self.show_hidden,
            limit: None,
            seen: 0,
        })
    }

    /// Creates a session. Its user comes from the flag, the key, or the tutorial.
    async fn create_session(&self, client: &Client) -> Result<Value, Failure> {
        let agent = self.agent.as_deref().unwrap_or(AGENT_DEFAULT);
        let body = |user: Option<&str>| {
            let mut body = json!({ "app": APP_DEFAULT, "agent": agent });
            if let Some(user) = user {
                body["user"] = json!(user);
            }
            body
        };
        let path = "/v1/sessions";
        let first = client
            .call(Method::POST, path, Some(&body(self.user.as_deref())))
            .await;
        match first {
            Ok(answer) => Ok(answer.body),
            // A key without a user of its own must name one.
            Err(failure) if self.user.is_none() && failure.status == Some(422) => {
                let body = body(Some(USER_DEFAULT));
                Ok(client.call(Method::POST, path, Some(&body)).await?.body)
            }
            Err(failure) => Err(failure),
        }
    }
}

impl ChatConversation<'_> {
    /// Warns if the agent is not declared: a worker may claim its requests, or never.
    async fn warn_if_undeclared(&self) {
        let Ok(answer) = self.client.get("/v1/agents").await else {
            return;
        };
        let agents = elements(&answer.body, "agents");
        let names: Vec<&str> = agents.iter().map(|agent| text(agent, "name")).collect();
        if !names.is_empty() && !names.contains(&self.agent.as_str()) {
            let distance = |name: &&str| strsim::damerau_levenshtein(name, &self.agent);
            let near = names.iter().copied().min_by_key(distance);
            let near = near.filter(|name| distance(name) <= 2);
            let near = near.map_or_else(String::new, |near| format!(" Did you mean {near}?"));
            self.output.note(&format!(
                "{} is not declared: only a worker that claims its requests can answer. Declared: {}.{}",
                cell(&self.agent),
                cell(&names.join(", ")),
                cell(&near)
            ));
        }
    }

    fn greet(&self) {
        let line = format!(
            "session {}   as {}   agent {}   /help for commands",
            cell(&short(&self.session)),
            cell(&self.user),
            cell(&self.agent)
        );
        self.output.note(&TextTone::Dim.paint(&line));
    }

    /// Sends one message, for scripts.
    async fn take_single_turn(&mut self, message: &str) -> anyhow::Result<Exit> {
        let (session, agent) = (self.session.clone(), self.agent.clone());
        let turn = ChatTurn::new(self.client, self.output, &session, &agent, self.waits);
        let end = if self.output.json {
            let end = self.in_time(turn.quiet().take(message)).await?;
            self.output.json(&end.report)?;
            end
        } else {
            let end = self.in_time(turn.take(message)).await?;
            if self.shows_hidden {
                self.print_hidden().await?;
            }
            end
        };
        Ok(end.exit)
    }

    /// Runs a turn within the time limit.
    async fn in_time(
        &self,
        turn: impl Future<Output = anyhow::Result<TurnEnd>>,
    ) -> anyhow::Result<TurnEnd> {
        let Some(limit) = self.limit else {
            return turn.await;
        };
        let late = "the timeout passed without an answer; the turn continues";
        let hint = format!(
            "see what it waits for with: statehold tasks tree {}",
            self.session
        );
        let taken = tokio::time::timeout(limit, turn).await;
        taken.map_err(|_| Failure::new(Exit::TimedOut, late).hint(hint))?
    }

    async fn converse(&mut self, chat: &ChatArgs) -> anyhow::Result<Exit> {
        let is_person = can_ask();
        let mut lines = InputLines::open();
        let mut last = Exit::Done;
        loop {
            let prompt = is_person.then(|| format!("{}> ", cell(&self.user)));
            let said = match lines.next(prompt.as_deref()).await? {
                InputEvent::Line(line) => line,
                InputEvent::Over => return Ok(if is_person { Exit::Done } else { last }),
                InputEvent::Interrupted => return Ok(Exit::Interrupted),
            };
            match said.trim() {
                "" => {}
                "/quit" | "/exit" => return Ok(Exit::Done),
                "/help" => self.output.note(COMMANDS),
                "/session" => self.output.line(&cell(&self.session))?,
                "/new" => {
                    let limit = self.limit;
                    *self = chat
                        .without_session()
                        .open(self.client, self.output)
                        .await?;
                    self.limit = limit;
                    self.greet();
                }
                "/tree" => self.note_failure(self.print_tree().await)?,
                "/hidden" => {
                    let printed = self.print_hidden().await;
                    self.note_failure(printed)?;
                }
                word if word.starts_with('/') && !word.contains(' ') => {
                    self.output.note(&format!(
                        "unknown command {}; list the commands with /help",
                        cell(word)
                    ));
                }
                message => {
                    last = self.take_turn(message).await?;
                    if self.shows_hidden {
                        let printed = self.print_hidden().await;
                        self.note_failure(printed)?;
                    }
                }
            }
        }
    }

    /// Prints an error of a side command and continues the conversation.
    fn note_failure(&self, printed: anyhow::Result<()>) -> anyhow::Result<()> {
        match printed {
            Err(error) if error.is::<Failure>() => {
                let (said, _) = explain(&error, false);
                self.output.note(&said.unwrap_or_default());
                Ok(())
            }
            other => other,
        }
    }

    /// Runs one turn. An error is printed and does not end the conversation.
    async fn take_turn(&mut self, message: &str) -> anyhow::Result<Exit> {
        let (session, agent) = (self.session.clone(), self.agent.clone());
        let turn = ChatTurn::new(self.client, self.output, &session, &agent, self.waits);
        let turn = turn.in_conversation();
        let taken = tokio::select! {
            taken = self.in_time(turn.take(message)) => taken,
            _ = tokio::signal::ctrl_c() => {
                self.output.note("\nstopped waiting; the turn continues: /tree");
                return Ok(Exit::Interrupted);
            }
        };
        match taken {
            Ok(TurnEnd { exit, .. }) => Ok(exit),
            Err(error) if error.is::<Failure>() => {
                let (said, exit) = explain(&error, false);
                self.output.note(&said.unwrap_or_default());
                Ok(exit)
            }
            Err(error) => Err(error),
        }
    }

    async fn print_tree(&self) -> anyhow::Result<()> {
        let tree = SessionTree::load(self.client, &self.session).await?;
        let output = CliOutput {
            times: self.output.times.at_present(),
            ..self.output.clone()
        };
        for line in tree.lines(None, TreeExtent::Everything, &output) {
            self.output.line(&line)?;
        }
        Ok(())
    }

    /// Prints the hidden items since the last call, oldest first.
    async fn print_hidden(&mut self) -> anyhow::Result<()> {
        let parameters = [
            ("view", Some("trace".to_owned())),
            ("limit", Some("100".to_owned())),
        ];
        let path = with_query(
            &format!("/v1/sessions/{}/messages", self.session),
            &parameters,
        );
        let answer = self.client.get(&path).await?.body;
        for item in elements(&answer, "messages") {
            let seq = item["seq"].as_u64().unwrap_or(0);
            if seq > self.seen && item["visibility"] == "hidden" {
                self.output.line(&items::for_people(item, self.output))?;
            }
            self.seen = self.seen.max(seq);
        }
        Ok(())
    }
}

impl ChatArgs {
    /// The same arguments, without the session and the message.
    fn without_session(&self) -> Self {
        Self {
            agent: self.agent.clone(),
            session: None,
            message: None,
            user: self.user.clone(),
            no_wait: self.no_wait,
            show_hidden: self.show_hidden,
        }
    }
}
