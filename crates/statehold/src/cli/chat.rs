//! `statehold chat`: talking to an agent in the terminal.
//!
//! Each message is a turn over the chat surface that any OpenAI client uses. A turn that waits for a
//! person is waited for, also through a server that restarts; Ctrl-C stops waiting, and the turn stays.

mod input;
mod turn;

use std::time::Duration;

use clap::Args;
use http::Method;
use serde_json::{Value, json};

use super::answers::{elements, text};
use super::ask::can_ask;
use super::block_on;
use super::globals::Globals;
use super::items;
use super::output::{Output, Tone};
use super::printable::cell;
use super::resolve::{self, short};
use super::state::APP_DEFAULT;
use super::tree::{Extent, Tree};
use crate::client::{Client, with_query};
use crate::exit::{Exit, Failure, explain};
use input::{Lines, Said};
use turn::{End, Turn};

/// Who answers when nobody is named.
const AGENT_DEFAULT: &str = "coordinator";
/// For whom, when neither a flag nor the key says: the user of the tutorial.
const USER_DEFAULT: &str = "bob";

const HELP: &str = "\
With -m it says one thing and ends: 0 if it was answered, 1 if it failed, 8 with --no-wait if it
waits for a person, 9 if a person said no, 7 if --timeout is over. Without -m it reads lines, from a person or a pipe.";

const COMMANDS: &str = "\
/tree      what runs, what waits, and for whom
/hidden    what the agents did that the conversation does not show
/new       begin another conversation
/session   the id of this one
/quit      end; the conversation stays (statehold chat -s …)
Everything else is said to the agent. A plain message answers the only open question, and never
approves anything.";

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(super) struct Chat {
    /// The agent to talk to [default: coordinator, or the one of the session]
    agent: Option<String>,
    /// Go on with this session: its id, a part of it, or its name.
    #[arg(short, long, value_name = "SESSION")]
    session: Option<String>,
    /// Say this, print the answer, and end.
    #[arg(short, long, value_name = "TEXT")]
    message: Option<String>,
    /// For which user a new session is [default: the key's, or bob]
    #[arg(long, value_name = "USER", conflicts_with = "session")]
    user: Option<String>,
    /// Do not wait for people: end the turn where it waits for one.
    #[arg(long)]
    no_wait: bool,
    /// Print what the agents did after each turn. Needs `operator` and is audited.
    #[arg(long)]
    show_hidden: bool,
}

/// One conversation.
struct Talk<'a> {
    client: &'a Client,
    output: &'a Output,
    session: String,
    agent: String,
    user: String,
    waits: bool,
    shows_hidden: bool,
    /// The last item that was there before the turn.
    seen: u64,
}

impl Chat {
    pub(super) fn run(&self, globals: &Globals, output: &Output) -> anyhow::Result<Exit> {
        let client = globals.client(output)?;
        block_on(self.talk(&client, globals.timeout, output))?
    }

    async fn talk(
        &self,
        client: &Client,
        limit: Option<Duration>,
        output: &Output,
    ) -> anyhow::Result<Exit> {
        let mut talk = self.open(client, output).await?;
        talk.note_strangers().await;
        if let Some(message) = &self.message {
            let said = talk.say_once(message);
            let Some(limit) = limit else {
                return said.await;
            };
            // The limit is for all of it, not for one call.
            return match tokio::time::timeout(limit, said).await {
                Ok(ended) => ended,
                Err(_) => Err(too_late(&Self::session_hint(&talk.session)).into()),
            };
        }
        talk.greet();
        talk.converse(self).await
    }

    async fn open<'a>(&self, client: &'a Client, output: &'a Output) -> anyhow::Result<Talk<'a>> {
        let session = match &self.session {
            Some(typed) => {
                let id = resolve::session(client, typed).await?;
                client.get(&format!("/v1/sessions/{id}")).await?.body
            }
            None => self.begin(client).await?,
        };
        let own = text(&session, "agent");
        let agent = self.agent.as_deref().unwrap_or(own).to_owned();
        Ok(Talk {
            client,
            output,
            session: text(&session, "id").to_owned(),
            user: text(&session, "user").to_owned(),
            agent,
            waits: !self.no_wait,
            shows_hidden: self.show_hidden,
            seen: 0,
        })
    }

    /// A new session. Whose it is says the flag, the key, or the tutorial.
    async fn begin(&self, client: &Client) -> Result<Value, Failure> {
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
            // A key that is bound to nobody must name somebody.
            Err(failure) if self.user.is_none() && failure.status == Some(422) => {
                let body = body(Some(USER_DEFAULT));
                Ok(client.call(Method::POST, path, Some(&body)).await?.body)
            }
            Err(failure) => Err(failure),
        }
    }
}

fn too_late(hint: &str) -> Failure {
    Failure::new(
        Exit::TimedOut,
        "there is no answer in time; the turn goes on",
    )
    .hint(hint)
}

impl Talk<'_> {
    /// Says so if nobody is declared under the name: a worker may come, or never.
    async fn note_strangers(&self) {
        let Ok(answer) = self.client.get("/v1/agents").await else {
            return;
        };
        let agents = elements(&answer.body, "agents");
        let names: Vec<&str> = agents.iter().map(|agent| text(agent, "name")).collect();
        if !names.is_empty() && !names.contains(&self.agent.as_str()) {
            self.output.note(&format!(
                "{} is not declared: it is answered if a worker claims it. Declared: {}",
                cell(&self.agent),
                cell(&names.join(", "))
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
        self.output.note(&Tone::Dim.paint(&line));
    }

    /// Says one thing, for scripts.
    async fn say_once(&mut self, message: &str) -> anyhow::Result<Exit> {
        let (session, agent) = (self.session.clone(), self.agent.clone());
        let turn = Turn::new(self.client, self.output, &session, &agent, self.waits);
        let end = if self.output.json {
            let end = turn.quiet().take(message).await?;
            self.output.json(&end.report)?;
            end
        } else {
            let end = turn.take(message).await?;
            if self.shows_hidden {
                self.print_hidden().await?;
            }
            end
        };
        Ok(end.exit)
    }

    async fn converse(&mut self, chat: &Chat) -> anyhow::Result<Exit> {
        let is_person = can_ask();
        let mut lines = Lines::open();
        let mut last = Exit::Done;
        loop {
            let prompt = is_person.then(|| format!("{}> ", cell(&self.user)));
            let said = match lines.next(prompt.as_deref()).await? {
                Said::Line(line) => line,
                Said::Over => return Ok(if is_person { Exit::Done } else { last }),
                Said::Interrupted => return Ok(Exit::Interrupted),
            };
            match said.trim() {
                "" => {}
                "/quit" | "/exit" => return Ok(Exit::Done),
                "/help" => self.output.note(COMMANDS),
                "/session" => self.output.line(&cell(&self.session))?,
                "/new" => {
                    *self = chat.again().open(self.client, self.output).await?;
                    self.greet();
                }
                "/tree" => self.note_failure(self.print_tree().await)?,
                "/hidden" => {
                    let printed = self.print_hidden().await;
                    self.note_failure(printed)?;
                }
                word if word.starts_with('/') && !word.contains(' ') => {
                    self.output
                        .note(&format!("{} is no command; /help", cell(word)));
                }
                message => {
                    last = self.say(message).await?;
                    if self.shows_hidden {
                        let printed = self.print_hidden().await;
                        self.note_failure(printed)?;
                    }
                }
            }
        }
    }

    /// What goes wrong beside a turn does not end the conversation.
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

    /// One turn of a conversation. What goes wrong with it does not end the conversation.
    async fn say(&mut self, message: &str) -> anyhow::Result<Exit> {
        let (session, agent) = (self.session.clone(), self.agent.clone());
        let turn = Turn::new(self.client, self.output, &session, &agent, self.waits);
        let turn = turn.in_conversation();
        let taken = tokio::select! {
            taken = turn.take(message) => taken,
            _ = tokio::signal::ctrl_c() => {
                self.output.note("\nstopped waiting; the turn goes on without you: /tree");
                return Ok(Exit::Interrupted);
            }
        };
        match taken {
            Ok(End { exit, .. }) => Ok(exit),
            Err(error) if error.is::<Failure>() => {
                let (said, exit) = explain(&error, false);
                self.output.note(&said.unwrap_or_default());
                Ok(exit)
            }
            Err(error) => Err(error),
        }
    }

    async fn print_tree(&self) -> anyhow::Result<()> {
        let tree = Tree::load(self.client, &self.session).await?;
        for line in tree.lines(None, Extent::Everything, &self.output.times.at_present()) {
            self.output.line(&line)?;
        }
        Ok(())
    }

    /// What the agents did since the last time, in the order they did it.
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

impl Chat {
    fn session_hint(session: &str) -> String {
        format!("see what it waits for with: statehold tasks tree {session}")
    }

    /// The same, without the session that it began with.
    fn again(&self) -> Self {
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
