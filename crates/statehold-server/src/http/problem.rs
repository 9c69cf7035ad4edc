//! Errors as clients see them: `application/problem+json` with a stable code and a page per code.

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use serde::Serialize;
use serde_json::{Map, Value, json};
use statehold_core::command::Rejection;
use statehold_core::hold::WhyNot;
use statehold_engine::EngineError;
use statehold_engine::api::hold::DecideRefusal;
use utoipa::ToSchema;

use crate::http::json::{JsonError, ParseError};

/// Declares every code with its status and title, in one table.
macro_rules! codes {
    ($($name:ident = $status:literal $text:literal $title:literal;)*) => {
        /// The error code of a problem, for programs.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[expect(missing_docs, reason = "each has a title and a page")]
        pub enum Code { $($name,)* }

        impl Code {
            /// Every code, in the order of the table.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The code as clients see it. It never changes.
            pub fn text(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// A short title for people.
            pub fn title(self) -> &'static str {
                match self { $(Self::$name => $title,)* }
            }

            /// The HTTP status of an answer with this code.
            pub fn status(self) -> u16 {
                match self { $(Self::$name => $status,)* }
            }
        }
    };
}

codes! {
    BadJson = 400 "bad_json" "Invalid JSON";
    BadHeader = 400 "bad_header" "Invalid header";
    BadQuery = 400 "bad_query" "Invalid query";
    BadCursor = 400 "bad_cursor" "Invalid cursor";
    OneContext = 400 "one_context" "Exactly one context required";
    Unauthenticated = 401 "unauthenticated" "Missing or invalid key";
    Forbidden = 403 "forbidden" "Missing role";
    WrongUser = 403 "wrong_user" "The key acts for another user";
    WrongAgent = 403 "wrong_agent" "The key does not allow this agent";
    MayNotDecide = 403 "may_not_decide" "The caller may not decide this hold";
    ForeignHost = 403 "foreign_host" "Host not allowed";
    ForeignOrigin = 403 "foreign_origin" "Cross-origin request refused";
    NotFound = 404 "not_found" "Not found";
    AgentUnknown = 404 "agent_unknown" "Unknown agent";
    MethodNotAllowed = 405 "method_not_allowed" "Method not allowed";
    BodyTimeout = 408 "body_timeout" "Timeout while reading the body";
    NameTaken = 409 "name_taken" "Name already in use";
    UserErased = 409 "user_erased" "The user is being erased";
    EventTaken = 409 "event_taken" "Event id already in use";
    AgentBusy = 409 "agent_busy" "The agent waits for a person in this conversation";
    SessionClosed = 409 "session_closed" "The session is closed";
    RequestsLive = 409 "requests_live" "The session has live requests";
    TaskFinal = 409 "task_final" "The task has ended";
    TaskBusy = 409 "task_busy" "The task has a live request";
    RequestEnded = 409 "request_ended" "The request has ended";
    NotClaimable = 409 "not_claimable" "The request cannot be claimed";
    NotLeased = 409 "not_leased" "The request is not leased";
    StaleFence = 409 "stale_fence" "Stale fence";
    NotLeaseHolder = 409 "not_lease_holder" "The lease belongs to another principal";
    ChildrenLive = 409 "children_live" "The request has live child requests";
    HoldsOpen = 409 "holds_open" "The request has open holds";
    HoldDecided = 409 "hold_decided" "The hold is already decided";
    AlreadyVoted = 409 "already_voted" "This person has already approved";
    DigestMismatch = 409 "digest_mismatch" "Digest of another action";
    SeveralHolds = 409 "several_holds" "The request has several holds";
    CallNotReleased = 409 "call_not_released" "The tool call was not approved";
    VersionConflict = 409 "version_conflict" "State version conflict";
    NotReloadable = 409 "not_reloadable" "No configuration to reload";
    HoldExpired = 410 "hold_expired" "The hold has expired";
    SessionExpired = 410 "session_expired" "The session has expired";
    RevisionMismatch = 412 "revision_mismatch" "Revision mismatch";
    BodyTooLarge = 413 "body_too_large" "Body too large";
    TooManyValues = 413 "too_many_values" "Too many JSON values";
    UnsupportedMedia = 415 "unsupported_media_type" "Unsupported media type";
    InvalidBody = 422 "invalid_body" "Invalid body";
    KeyReused = 422 "key_reused" "Idempotency key already used for another call";
    UserNeeded = 422 "user_needed" "User required";
    LeaseNeeded = 422 "lease_needed" "Lease required";
    TaskElsewhere = 422 "task_elsewhere" "The task belongs to another agent or parent";
    CallUnknown = 422 "call_unknown" "Unknown tool call";
    DecisionNotOffered = 422 "decision_not_offered" "Decision not offered";
    DigestMissing = 422 "digest_missing" "Digest missing";
    AnswerMissing = 422 "answer_missing" "Decision without content";
    EditImpossible = 422 "edit_impossible" "The action cannot be edited";
    InvalidArgs = 422 "invalid_args" "Invalid tool arguments";
    InvalidContent = 422 "invalid_content" "Invalid answer content";
    InvalidState = 422 "invalid_state" "State does not fit its schema";
    CommentNeeded = 422 "comment_needed" "Comment required";
    PolicyStricter = 422 "policy_stricter" "The policy is stricter";
    ApprovalNeeded = 422 "approval_needed" "Approval required";
    HoldMalformed = 422 "hold_malformed" "Invalid hold";
    ItemMalformed = 422 "item_malformed" "Invalid item";
    BadConfiguration = 422 "bad_configuration" "Invalid configuration";
    AddressRefused = 422 "address_refused" "Address not allowed";
    BadStateKey = 422 "bad_state_key" "Invalid state key";
    MergeRefused = 422 "merge_refused" "The value cannot be merged";
    EmptyPatch = 422 "empty_patch" "Nothing to change";
    LimitReached = 422 "limit_reached" "Limit reached";
    StateTooLarge = 422 "state_too_large" "State too large";
    AgentNeedsSession = 422 "agent_needs_session" "The agent requires a session";
    NoAnswerer = 422 "no_answerer" "No answerer configured";
    ApprovalNeedsSession = 422 "approval_needs_session" "An approval requires a session";
    CallerHistoryUntrusted = 422 "caller_history_untrusted" "The agent does not trust its callers";
    ToolsNotSupported = 422 "tools_not_supported" "Tools not supported";
    ParameterNotSupported = 422 "parameter_not_supported" "Parameter not supported";
    TooMany = 429 "too_many" "Too many concurrent calls";
    RateLimited = 429 "rate_limited" "Too many calls in a short time";
    AnswerMemoryFull = 429 "answer_memory_full" "Too many long answers at once";
    AgentRateLimited = 429 "agent_rate_limited" "The agent limits its calls";
    Internal = 500 "internal" "Internal error";
    DataDamaged = 500 "data_damaged" "Stored data is damaged";
    RequestFailed = 500 "request_failed" "The request failed";
    RequestCancelled = 500 "request_cancelled" "The request was cancelled";
    AgentError = 502 "agent_error" "The agent returned an error";
    AgentUnreachable = 502 "agent_unreachable" "Agent unreachable";
    AgentTimeout = 502 "agent_timeout" "Agent timeout";
    AgentCutOff = 502 "agent_cut_off" "The agent's answer was cut off";
    AgentMalformed = 502 "agent_malformed" "Invalid answer from the agent";
    AgentTooLarge = 502 "agent_too_large" "The agent's answer is too large";
    ConversationLost = 502 "conversation_lost" "The agent lost the conversation";
    NoRoute = 502 "no_route" "The router chose an unknown agent";
    Stopping = 503 "stopping" "The server is stopping";
    DiskFull = 507 "disk_full" "Disk full";
}

/// The field of a problem that says when to call again. The header `Retry-After` has the same number.
pub(crate) const RETRY_AFTER_SECONDS: &str = "retry_after_seconds";

/// An error, as `application/problem+json`.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Problem {
    /// `urn:statehold:error:` and the code; `docs/errors/` has a page for each code.
    #[serde(rename = "type")]
    pub page: String,
    /// A short title, always the same for a code.
    pub title: &'static str,
    /// The HTTP status of the answer.
    pub status: u16,
    /// The error of this call and what to do next, for people.
    pub detail: String,
    /// The error code, for programs. Codes do not change their meaning.
    pub code: &'static str,
    /// Further fields, as the page of the code lists them.
    #[serde(flatten)]
    #[schema(ignore)]
    pub more: Box<Map<String, Value>>,
}

impl Problem {
    /// A problem with its detail.
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self {
            page: format!("urn:statehold:error:{}", code.text()),
            title: code.title(),
            status: code.status(),
            detail: detail.into(),
            code: code.text(),
            more: Box::default(),
        }
    }

    /// Adds a field.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.more.insert(name.to_owned(), value.into());
        self
    }

    /// The same answer for a missing object and for one that the caller may not see.
    pub fn not_found() -> Self {
        Self::new(
            Code::NotFound,
            "there is no such object, or this key may not see it",
        )
    }

    /// A body of the wrong shape.
    pub fn invalid(detail: impl Into<String>) -> Self {
        Self::new(Code::InvalidBody, detail)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let mut response = (status, body).into_response();
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if matches!(
            status,
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS
        ) {
            let seconds = self.more.get(RETRY_AFTER_SECONDS).and_then(Value::as_u64);
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds.unwrap_or(1)));
        }
        // The OpenAI-compatible paths translate the problem into their own error shape.
        response.extensions_mut().insert(self);
        response
    }
}

impl From<ParseError> for Problem {
    fn from(error: ParseError) -> Self {
        match &error {
            ParseError::Json(inner @ JsonError::InexactNumber { .. }) => {
                Self::invalid(error.to_string()).with("offset", inner.offset())
            }
            ParseError::Json(JsonError::TooManyValues { values_max, .. }) => {
                Self::new(Code::TooManyValues, error.to_string()).with("max", *values_max)
            }
            ParseError::Json(inner) => {
                Self::new(Code::BadJson, error.to_string()).with("offset", inner.offset())
            }
            ParseError::NotAnObject { .. } => Self::invalid(error.to_string()),
            ParseError::Shape { path, .. } => {
                let path = path.clone();
                Self::invalid(error.to_string()).with("path", path)
            }
        }
    }
}

impl From<EngineError> for Problem {
    fn from(error: EngineError) -> Self {
        let detail = error.to_string();
        let problem = |code| Self::new(code, detail.as_str());
        match error {
            EngineError::NotFound => Self::not_found(),
            EngineError::Forbidden { needs } => {
                let needs = needs.first().map(|role| role.name());
                problem(Code::Forbidden).with("needs", needs)
            }
            EngineError::KeyEnded => problem(Code::Unauthenticated),
            EngineError::UserErased => problem(Code::UserErased),
            EngineError::WrongUser => problem(Code::WrongUser),
            EngineError::UserNeeded => problem(Code::UserNeeded),
            EngineError::WrongAgent { .. }
            | EngineError::WrongSessionAgent
            | EngineError::MayNotCall { .. } => problem(Code::WrongAgent),
            EngineError::RevisionMismatch { expected, current } => problem(Code::RevisionMismatch)
                .with("expected", expected)
                .with("current", current),
            EngineError::Rejected(rejection) => Self::from(rejection),
            EngineError::DecidedBefore {
                rejection,
                decision,
            } => match decision {
                Some(decision) => Self::from(rejection)
                    .with("decided_by", decision.by.as_str())
                    .with("decision", json!(decision)),
                None => Self::from(rejection),
            },
            EngineError::SeveralHolds { holds } => {
                problem(Code::SeveralHolds).with("holds", json!(holds))
            }
            EngineError::EventTaken { id } => problem(Code::EventTaken).with("event_id", id),
            EngineError::NameTaken { session } => {
                problem(Code::NameTaken).with("session_id", session.to_string())
            }
            EngineError::VersionConflict {
                key,
                expected,
                found,
            } => Self::version_conflict(&detail, key.as_str(), expected, found),
            EngineError::Merge { key, .. } => problem(Code::MergeRefused).with("key", key.as_str()),
            EngineError::NotJson => problem(Code::MergeRefused),
            EngineError::BadStateKey { key, .. } => match key {
                Some(key) => problem(Code::BadStateKey).with("key", key),
                None => problem(Code::BadStateKey),
            },
            EngineError::InvalidInput { path, .. } => problem(Code::InvalidBody).with("path", path),
            EngineError::ItemMalformed { path, .. } => {
                problem(Code::ItemMalformed).with("path", path)
            }
            EngineError::UnknownCall { call_id } => {
                problem(Code::CallUnknown).with("call_id", call_id)
            }
            EngineError::NothingToAppend => problem(Code::EmptyPatch),
            EngineError::Invalid(_) => problem(Code::InvalidBody),
            EngineError::KeyReused => problem(Code::KeyReused),
            EngineError::CommentNeeded => problem(Code::CommentNeeded),
            EngineError::InvalidField { path, .. } => problem(Code::InvalidBody).with("path", path),
            EngineError::HoldMalformed { path, .. } => {
                problem(Code::HoldMalformed).with("path", path)
            }
            EngineError::InvalidArgs(errors) => {
                problem(Code::InvalidArgs).with("errors", json!(errors))
            }
            EngineError::InvalidContent(errors) => {
                problem(Code::InvalidContent).with("errors", json!(errors))
            }
            EngineError::StateInvalid { key, errors } => problem(Code::InvalidState)
                .with("key", key.as_str())
                .with("errors", json!(errors)),
            EngineError::PolicyStricter { field, policy } => problem(Code::PolicyStricter)
                .with("field", field)
                .with("policy", policy),
            EngineError::ApprovalNeeded { tool } => {
                problem(Code::ApprovalNeeded).with("tool", tool)
            }
            EngineError::AddressRefused(_) => problem(Code::AddressRefused).with("path", "url"),
            EngineError::FeedAhead { current } => problem(Code::BadHeader).with("current", current),
            EngineError::UnknownRevision { current, .. } => {
                problem(Code::BadQuery).with("current", current)
            }
            EngineError::ForkTooDeep => problem(Code::LimitReached).with("limit", "forks of forks"),
            EngineError::TooMany(_) => problem(Code::TooMany),
            EngineError::Full
            | EngineError::Stopping
            | EngineError::TurnInterrupted
            | EngineError::Damaged(_)
            | EngineError::PageTooSmall { .. }
            | EngineError::Store(_) => Self::of_failure(&error, detail),
        }
    }
}

impl Problem {
    /// A failure of the server itself, which its log tells more about.
    fn of_failure(error: &EngineError, detail: String) -> Self {
        match error {
            EngineError::Full => {
                tracing::warn!("the disk is full: a write was refused");
                Self::new(Code::DiskFull, detail)
            }
            EngineError::Stopping | EngineError::TurnInterrupted => {
                Self::new(Code::Stopping, detail)
            }
            EngineError::Damaged(source) => {
                tracing::error!(causes = causes_of(source), "stored data is damaged");
                Self::new(Code::DataDamaged, detail)
            }
            EngineError::PageTooSmall { bytes } => {
                tracing::error!(bytes, "an entry was longer than its page");
                Self::new(Code::Internal, "the server has a bug here")
            }
            error => {
                tracing::error!(causes = causes_of(error), "the store failed");
                let detail = "the store failed; see the log of the server";
                Self::new(Code::Internal, detail)
            }
        }
    }
}

/// An error with its causes. They go to the log, never to the caller: they may reveal internals.
fn causes_of(error: &dyn std::error::Error) -> String {
    let mut causes = error.to_string();
    let mut inner = error.source();
    while let Some(cause) = inner {
        causes = format!("{causes}: {cause}");
        inner = cause.source();
    }
    causes
}

impl Problem {
    fn version_conflict(detail: &str, key: &str, expected: u64, found: u64) -> Self {
        Self::new(Code::VersionConflict, detail)
            .with("key", key)
            .with("expected", expected)
            .with("current", found)
    }
}

impl From<Rejection> for Problem {
    fn from(rejection: Rejection) -> Self {
        let problem = Self::new(code_of(&rejection), rejection.to_string());
        match rejection {
            Rejection::NotFound => Self::not_found(),
            Rejection::RequestsLive { live } | Rejection::ChildrenLive { live } => {
                problem.with("live", live)
            }
            Rejection::TaskBusy { task, request } => problem
                .with("task_id", task.to_string())
                .with("request_id", request.to_string()),
            Rejection::TaskFinal { task } | Rejection::TaskElsewhere { task } => {
                problem.with("task_id", task.to_string())
            }
            Rejection::RequestEnded { request, outcome } => problem
                .with("request_id", request.to_string())
                .with("outcome", json!(outcome)),
            Rejection::NotClaimable { request, status } => problem
                .with("request_id", request.to_string())
                .with("request_status", json!(status)),
            Rejection::StaleFence { current, .. } => problem.with("current", current),
            Rejection::HoldsOpen { open } => problem.with("open", open),
            Rejection::HoldDecided { hold, decision } => problem
                .with("hold_id", hold.to_string())
                .with("hold_status", json!(decision.status))
                .with("decided_by", decision.by.to_string()),
            Rejection::HoldExpired { hold } => problem.with("hold_id", hold.to_string()),
            Rejection::MayNotDecide { why } => {
                let problem = problem.with("why", json!(DecideRefusal::from(&why)));
                match why {
                    WhyNot::NeedsRole(role) => problem.with("role", role.to_string()),
                    _ => problem,
                }
            }
            Rejection::DecisionNotOffered { allowed, .. } => {
                problem.with("allowed", json!(allowed))
            }
            Rejection::VersionConflict {
                key,
                expected,
                found,
            } => Self::version_conflict(&problem.detail, key.as_str(), expected, found),
            Rejection::StateTooLarge { bytes, max } => {
                problem.with("bytes", bytes).with("max", max)
            }
            Rejection::Limit { limit, max } => problem.with("limit", limit).with("max", max),
            Rejection::NotInThePast { current, .. } => {
                problem.with("path", "to").with("current", current)
            }
            _ => problem,
        }
    }
}

fn code_of(rejection: &Rejection) -> Code {
    match rejection {
        Rejection::NotFound => Code::NotFound,
        Rejection::SessionExists => Code::NameTaken,
        Rejection::SessionClosed => Code::SessionClosed,
        Rejection::SessionExpired => Code::SessionExpired,
        Rejection::RequestsLive { .. } => Code::RequestsLive,
        Rejection::TaskFinal { .. } => Code::TaskFinal,
        Rejection::TaskBusy { .. } => Code::TaskBusy,
        Rejection::TaskElsewhere { .. } => Code::TaskElsewhere,
        Rejection::RequestEnded { .. } => Code::RequestEnded,
        Rejection::NotClaimable { .. } | Rejection::LeaseLive { .. } => Code::NotClaimable,
        Rejection::NotLeased { .. } => Code::NotLeased,
        Rejection::StaleFence { .. } => Code::StaleFence,
        Rejection::NotLeaseHolder => Code::NotLeaseHolder,
        Rejection::LeaseNeeded => Code::LeaseNeeded,
        Rejection::ChildrenLive { .. } => Code::ChildrenLive,
        Rejection::HoldsOpen { .. } => Code::HoldsOpen,
        Rejection::HoldExists { .. } | Rejection::HoldMalformed(_) => Code::HoldMalformed,
        Rejection::HoldDecided { .. } => Code::HoldDecided,
        Rejection::HoldExpired { .. } => Code::HoldExpired,
        Rejection::MayNotDecide { .. } => Code::MayNotDecide,
        Rejection::AlreadyVoted => Code::AlreadyVoted,
        Rejection::DecisionNotOffered { .. } => Code::DecisionNotOffered,
        Rejection::DigestMismatch { .. } => Code::DigestMismatch,
        Rejection::DigestMissing => Code::DigestMissing,
        Rejection::AnswerMissing => Code::AnswerMissing,
        Rejection::EditImpossible => Code::EditImpossible,
        Rejection::ItemMalformed(_) => Code::ItemMalformed,
        Rejection::CallUnknown { .. } => Code::CallUnknown,
        Rejection::CallNotReleased { .. } => Code::CallNotReleased,
        Rejection::VersionConflict { .. } => Code::VersionConflict,
        Rejection::TempKey { .. }
        | Rejection::VersionWithoutWrite { .. }
        | Rejection::DuplicateKey { .. }
        | Rejection::MergeOfSessionKey { .. } => Code::BadStateKey,
        Rejection::EmptyPatch => Code::EmptyPatch,
        Rejection::StateTooLarge { .. } => Code::StateTooLarge,
        Rejection::Limit { .. } => Code::LimitReached,
        // The last two are of commands that only timers send.
        Rejection::NotInThePast { .. }
        | Rejection::SessionNotExpired
        | Rejection::HiddenNotDue
        | Rejection::NotExpired { .. } => Code::InvalidBody,
    }
}
