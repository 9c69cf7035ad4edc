//! Making one call: until there is an answer, or nothing more can be done to get one.
//!
//! A call that was begun by an earlier run may have done its work then. That it cannot be made now says
//! nothing about that, so it is never told as one that was not made.

use std::sync::Arc;
use std::time::Duration;

use statehold_core::ids::HoldId;
use statehold_core::record::Event;
use statehold_engine::kept::Raw;

use super::{Open, Toolbox, is_meant};
use crate::gateway::traceparent;
use crate::mcp::{CallMeta, NoAnswer, Tool, ToolError, ToolReply};
use crate::runner::run::Run;
use crate::tool_policy::ToolRules;
use crate::turn::TurnError;
use crate::words::raw;

/// How long we wait before a tool that gave no answer is called again, at first. It doubles.
const PAUSE_FIRST: Duration = Duration::from_millis(200);
/// How many records are read at a time.
const PAGE: usize = 200;

/// The tools of an agent as they were just listed, or why they are not.
pub(super) type Listing = Result<Arc<Vec<Tool>>, ToolError>;

/// A call that may be made.
pub(super) struct Released {
    /// What it is made with.
    pub(super) arguments: Raw,
    /// What the model is told beside the result.
    pub(super) note: Option<String>,
    /// The approval that let it run, and the record of it. None if nobody had to approve it.
    pub(super) approved: Option<(HoldId, u64)>,
    /// Whether somebody was asked what became of it: it was begun then, whatever they said.
    pub(super) was_asked_about: bool,
}

/// What came of a call that was made.
pub(super) enum Came {
    Result(Raw),
    Nothing(NoAnswer),
}

/// Why an attempt to make a call came to nothing.
enum Miss {
    /// The tools could not be listed, so it was not made.
    NotListed(ToolError),
    /// The tool is not among them, so it was not made.
    Gone,
    Failed(ToolError),
}

impl Miss {
    fn may_have_run(&self) -> bool {
        match self {
            Self::NotListed(_) | Self::Gone => false,
            Self::Failed(error) => error.may_have_run(),
        }
    }

    fn no_answer(&self) -> Option<NoAnswer> {
        match self {
            Self::NotListed(_) | Self::Gone => None,
            Self::Failed(error) => error.no_answer(),
        }
    }

    /// What the model is told.
    fn told(self) -> Raw {
        let may_have_run = self.may_have_run();
        let error = match self {
            Self::NotListed(error) => error.before_the_call().to_string(),
            Self::Gone => "there is no such tool any more; nothing was called".to_owned(),
            Self::Failed(error) => error.to_string(),
        };
        failed(error, may_have_run)
    }

    /// What the model is told of a call that was begun before.
    fn told_of_begun(self) -> Raw {
        let error = match self {
            Self::NotListed(error) | Self::Failed(error) => error.after_a_call().to_string(),
            Self::Gone => "there is no such tool any more; it may have done its work".to_owned(),
        };
        failed(error, true)
    }
}

fn failed(mut error: String, may_have_run: bool) -> Raw {
    if may_have_run {
        error.push_str("; find out before calling it again");
    }
    raw(&serde_json::json!({"error": error}))
}

fn result_of(reply: &ToolReply) -> Raw {
    if reply.is_error {
        raw(&serde_json::json!({"error": reply.content}))
    } else {
        raw(&reply.content)
    }
}

impl Run {
    /// Calls a tool. If it gives no answer and honours keys, it is called again under the same one.
    pub(super) async fn run_tool(
        &self,
        one: &Open<'_>,
        released: &Released,
        listing: &Listing,
        toolbox: &Toolbox,
    ) -> Result<Came, TurnError> {
        let mut listing = listing.clone();
        let mut again = if one.call.idempotent {
            self.spec.retries
        } else {
            0
        };
        let mut pause = PAUSE_FIRST;
        let mut only_reads = one.wish.only_reads;
        // Why nobody knows what became of it, and what the model is told if nobody is asked.
        let mut unanswered: Option<(NoAnswer, Raw)> = None;
        loop {
            let tool = found(&listing, one);
            let is_found = tool.is_ok();
            let miss = match tool {
                Ok(tool) => {
                    only_reads = tool.only_reads;
                    match self
                        .call_once(one, tool, &released.arguments, toolbox)
                        .await
                    {
                        Ok(reply) => return Ok(Came::Result(result_of(&reply))),
                        Err(error) => Miss::Failed(error),
                    }
                }
                Err(miss) => miss,
            };
            unanswered = match (miss.no_answer(), unanswered) {
                (Some(why), _) => Some((why, miss.told())),
                (None, _) if miss.may_have_run() => return Ok(Came::Result(miss.told())),
                // Nothing came of this one, so what became of the one before is as unknown as it was.
                (None, Some(known)) => Some(known),
                (None, None) if self.was_begun_before(one, released).await? => {
                    Some((NoAnswer::Lost, miss.told_of_begun()))
                }
                (None, None) => return Ok(Came::Result(miss.told())),
            };
            if again == 0 {
                break;
            }
            again -= 1;
            tokio::time::sleep(pause).await;
            pause = pause.saturating_mul(2);
            if !is_found {
                listing = toolbox.list().await;
            }
        }
        Ok(match unanswered {
            Some((why, _)) if self.asks_about(one, only_reads) => Came::Nothing(why),
            Some((_, told)) => Came::Result(told),
            None => Came::Result(raw(&())),
        })
    }

    async fn call_once(
        &self,
        one: &Open<'_>,
        tool: &Tool,
        arguments: &Raw,
        toolbox: &Toolbox,
    ) -> Result<ToolReply, ToolError> {
        let arguments = serde_json::from_str(arguments.get()).unwrap_or_default();
        let meta = CallMeta {
            session: self.place.session.to_string(),
            task: self.place.task.to_string(),
            request: self.place.request.to_string(),
            traceparent: Some(traceparent(self.place)),
        };
        let key = one.call.id.to_string();
        toolbox.servers.call(tool, &arguments, &key, &meta).await
    }

    /// Whether people find out what became of a call that gave no answer. If not, the model is told.
    fn asks_about(&self, one: &Open<'_>, only_reads: bool) -> bool {
        let (policies, agent) = (self.engine.policies(), &self.spec.name);
        let rules = ToolRules::of(&policies, agent, &one.wish.server, &one.wish.original);
        let effective = rules.effective.or_read(only_reads);
        self.runner.asks_people && effective.asks_without_answer()
    }

    /// Whether an earlier run may have made a call. What people approved had not begun when they did.
    ///
    /// The state of a call says only that it was started, not by whom first. The records do. They are read
    /// where a call cannot be made, and nowhere else.
    async fn was_begun_before(
        &self,
        one: &Open<'_>,
        released: &Released,
    ) -> Result<bool, TurnError> {
        if one.is_new {
            return Ok(false);
        }
        let Some((decision, decided_by)) = released.approved.filter(|_| !released.was_asked_about)
        else {
            return Ok(true);
        };
        let (session, ours) = (self.place.session, self.place.fenced());
        let mut is_begun = false;
        let mut after = decided_by.saturating_sub(1);
        loop {
            let page = self.engine.feed(&self.caller, session, after, PAGE).await?;
            let Some(last) = page.last() else {
                // It was decided while this run had the request.
                return Ok(false);
            };
            after = last.stored.record.content.seq;
            let records = page.iter().map(|entry| &entry.stored.record.content);
            for event in records.flat_map(|content| &content.events) {
                match event {
                    Event::HoldDecided {
                        hold, to_worker, ..
                    } if *hold == decision => is_begun |= *to_worker,
                    Event::RequestLeased { request, fence, .. } if *request == ours.request => {
                        if *fence >= ours.fence {
                            return Ok(is_begun);
                        }
                        is_begun = true;
                    }
                    _ => {}
                }
            }
        }
    }
}

/// The tool that a call is meant for.
fn found<'l>(listing: &'l Listing, one: &Open<'_>) -> Result<&'l Tool, Miss> {
    let tools = listing
        .as_ref()
        .map_err(|error| Miss::NotListed(error.clone()))?;
    let mut tools = tools.iter();
    let tool = tools.find(|tool| is_meant(tool, one.wish));
    tool.ok_or(Miss::Gone)
}
