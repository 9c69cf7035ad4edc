//! Executes one call: retries until there is an answer or no attempt is left.
//!
//! An earlier run may have executed the call already. A failed retry says nothing about the first
//! attempt; never report the call as not executed.

use std::sync::Arc;
use std::time::Duration;

use statehold_core::ids::HoldId;
use statehold_core::record::Event;
use statehold_engine::PageLimit;
use statehold_engine::bodies::Raw;

use super::question::CallQuestions;
use super::state::{STATE_SERVER, StateCallResult};
use super::{PendingCall, Toolbox, is_chosen_tool};
use crate::mcp::{CallMeta, McpTool, NoAnswer, ToolError, ToolList, ToolReply};
use crate::message::raw;
use crate::runner::run::AgentRun;
use crate::tool_policy::ToolRules;
use crate::turn::TurnError;

/// Delay before the first retry of a tool that did not answer. Doubles with each retry.
const FIRST_RETRY_DELAY: Duration = Duration::from_millis(200);
/// Page size for reading records.
const RECORDS_PER_PAGE: PageLimit = PageLimit::entries(200);

/// A call that may be executed.
pub(super) struct ReleasedCall {
    pub(super) arguments: Raw,
    /// Text for the model in addition to the result.
    pub(super) note: Option<String>,
    /// The approval that released it, and the revision of its record. None if it needed no approval.
    pub(super) approved: Option<(HoldId, u64)>,
    /// Whether a reconcile hold was opened for it. If so, an earlier run had started it.
    pub(super) was_asked_about: bool,
}

/// Result of an executed call.
pub(super) enum ToolRunResult {
    Result(Raw),
    /// A state tool ran.
    State(StateCallResult),
    Nothing(NoAnswer),
    /// It asked a person, and is made again when they have answered.
    WaitsForPerson,
}

/// Why an attempt failed.
enum AttemptFailure {
    /// The tools could not be listed, so the tool was not called.
    NotListed(ToolError),
    /// The tool is no longer listed, so it was not called.
    Gone,
    Failed(ToolError),
}

impl AttemptFailure {
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

    /// Error text for the model.
    fn error_text(self) -> Raw {
        let may_have_run = self.may_have_run();
        let error = match self {
            Self::NotListed(error) => error.before_the_call().to_string(),
            Self::Gone => "this tool no longer exists; nothing was called".to_owned(),
            Self::Failed(error) => error.to_string(),
        };
        failed(error, may_have_run)
    }

    /// Error text for the model, if an earlier run had started the call.
    fn error_text_of_started(self) -> Raw {
        let error = match self {
            Self::NotListed(error) | Self::Failed(error) => error.after_a_call().to_string(),
            Self::Gone => "this tool no longer exists; the call may have run".to_owned(),
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

impl AgentRun {
    /// Calls a tool. If it does not answer and is idempotent, retries with the same execution key.
    pub(super) async fn execute_call(
        &self,
        one: &PendingCall<'_>,
        released: &ReleasedCall,
        listing: &Arc<ToolList>,
        toolbox: &Toolbox,
    ) -> Result<ToolRunResult, TurnError> {
        if one.requested.server == STATE_SERVER {
            let (tool, arguments) = (&one.requested.original, &released.arguments);
            let called = self.call_state_tool(tool, arguments, &toolbox.state);
            return called.await.map(ToolRunResult::State);
        }
        let mut listing = Arc::clone(listing);
        let mut retries_left = if one.call.idempotent {
            self.spec.retries
        } else {
            0
        };
        // A model may choose what to do without a tool; an agent that is a tool cannot.
        let mut connects_left = if toolbox.is_agent {
            self.spec.retries
        } else {
            0
        };
        let mut delay = FIRST_RETRY_DELAY;
        let mut only_reads = one.requested.only_reads;
        let questions = CallQuestions::new(self, one);
        // Why the outcome is unknown, and the text for the model if no hold is opened.
        let mut unanswered: Option<(NoAnswer, Raw)> = None;
        loop {
            let tool = find_tool(&listing, one);
            let is_found = tool.is_ok();
            let failure = match tool {
                Ok(tool) => {
                    only_reads = tool.only_reads;
                    let meta = self.call_meta(&toolbox.conversation).await?;
                    match self
                        .call_once(
                            one,
                            tool,
                            (&released.arguments, &meta),
                            (toolbox, &questions),
                        )
                        .await
                    {
                        Ok(reply) => {
                            questions.settled().await?;
                            return Ok(ToolRunResult::Result(result_of(&reply)));
                        }
                        Err(error) if error.waits_for_person() => {
                            return match questions.take_failure() {
                                Some(failure) => Err(failure),
                                None => Ok(ToolRunResult::WaitsForPerson),
                            };
                        }
                        Err(error) => AttemptFailure::Failed(error),
                    }
                }
                Err(failure) => failure,
            };
            unanswered = match (failure.no_answer(), unanswered) {
                (Some(why), _) => Some((why, failure.error_text())),
                (None, _) if failure.may_have_run() => {
                    return Ok(ToolRunResult::Result(failure.error_text()));
                }
                // This attempt did not reach the tool, so the outcome of the earlier attempt is still
                // unknown.
                (None, Some(known)) => Some(known),
                (None, None) if self.was_started_before(one, released).await? => {
                    Some((NoAnswer::Lost, failure.error_text_of_started()))
                }
                (None, None) if connects_left == 0 => {
                    return Ok(ToolRunResult::Result(failure.error_text()));
                }
                // It was certainly not called.
                (None, None) => None,
            };
            let attempts_left = match unanswered {
                Some(_) => &mut retries_left,
                None => &mut connects_left,
            };
            if *attempts_left == 0 {
                break;
            }
            *attempts_left -= 1;
            tokio::time::sleep(delay).await;
            delay = delay.saturating_mul(2);
            if !is_found {
                listing = Arc::new(toolbox.list().await);
            }
        }
        Ok(match unanswered {
            Some((why, _)) if self.opens_reconcile_hold(one, only_reads) => {
                ToolRunResult::Nothing(why)
            }
            Some((_, error_text)) => ToolRunResult::Result(error_text),
            None => ToolRunResult::Result(raw(&())),
        })
    }

    async fn call_once(
        &self,
        one: &PendingCall<'_>,
        tool: &McpTool,
        (arguments, meta): (&Raw, &CallMeta),
        (toolbox, questions): (&Toolbox, &CallQuestions<'_>),
    ) -> Result<ToolReply, ToolError> {
        let arguments = serde_json::from_str(arguments.get()).unwrap_or_default();
        let key = one.call.id.to_string();
        let sent = (key.as_str(), meta);
        toolbox
            .servers
            .call(tool, &arguments, sent, questions)
            .await
    }

    /// Whether to open a reconcile hold for a call without an answer. If not, the model gets the error.
    fn opens_reconcile_hold(&self, one: &PendingCall<'_>, only_reads: bool) -> bool {
        let (policies, agent) = (self.engine.policies(), &self.spec.name);
        let rules = ToolRules::of(
            &policies,
            agent,
            &one.requested.server,
            &one.requested.original,
        );
        let effective = rules.effective.or_read(only_reads);
        self.generation.asks_people && effective.asks_without_answer()
    }

    /// Whether an earlier run may have executed the call. At the time of its approval, the call had not
    /// started.
    ///
    /// The state of a call says that it was started, but not in which lease. The records do. They are
    /// read only if a call cannot be executed.
    async fn was_started_before(
        &self,
        one: &PendingCall<'_>,
        released: &ReleasedCall,
    ) -> Result<bool, TurnError> {
        if one.is_new {
            return Ok(false);
        }
        let Some((decision, decided_by)) = released.approved.filter(|_| !released.was_asked_about)
        else {
            return Ok(true);
        };
        let ours = self.request.ids;
        let mut is_started = false;
        let mut after = decided_by.saturating_sub(1);
        loop {
            let page = self
                .engine
                .chain(
                    &self.generation.caller,
                    ours.session,
                    after,
                    RECORDS_PER_PAGE,
                )
                .await?;
            let Some(last) = page.last() else {
                // The approval was decided under the lease of this run.
                return Ok(false);
            };
            after = last.content.seq;
            for event in page.iter().flat_map(|record| &record.content.events) {
                match event {
                    Event::HoldDecided {
                        hold, to_worker, ..
                    } if *hold == decision => is_started |= *to_worker,
                    Event::RequestLeased { request, fence, .. } if *request == ours.request => {
                        if *fence >= ours.fence {
                            return Ok(is_started);
                        }
                        is_started = true;
                    }
                    _ => {}
                }
            }
        }
    }
}

/// Finds the tool that the model chose.
fn find_tool<'l>(
    listing: &'l ToolList,
    one: &PendingCall<'_>,
) -> Result<&'l McpTool, AttemptFailure> {
    let mut tools = listing.tools.iter();
    if let Some(tool) = tools.find(|tool| is_chosen_tool(tool, one.requested)) {
        return Ok(tool);
    }
    let mut missing = listing.missing.iter();
    let missing = missing.find(|(server, _)| server.as_str() == one.requested.server);
    Err(match missing {
        Some((_, error)) => AttemptFailure::NotListed(error.clone()),
        None => AttemptFailure::Gone,
    })
}
