//! Errors of a chat call, with the ids of its turn, from which the client can continue.

use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderValue};
use statehold_core::ids::{RequestId, SessionId, TaskId};
use statehold_engine::api::turn::{DeliveryReceipt, TurnHandle};

use super::ChatSurface;
use crate::http::problem::Problem;
use crate::native::AnswerHeaders;

/// The turn of a call that may fail, as far as it has been found.
#[derive(Default)]
pub(crate) struct TurnContext {
    session: Option<SessionId>,
    turn: Option<(TaskId, RequestId)>,
    /// The session, if a repeat of the call would create another one.
    pub(crate) only_here: Option<SessionId>,
    /// The receipt to confirm when the error, which is the end of the turn, has been delivered.
    pub(crate) receipt: Option<DeliveryReceipt>,
}

/// The `x-should-retry: false` of errors after which a client must not repeat the call by itself.
pub(crate) fn forbid_retry(headers: &mut HeaderMap) {
    headers.insert("x-should-retry", HeaderValue::from_static("false"));
}

impl TurnContext {
    /// Notes the session of the call, and whether a repeat finds it again.
    pub(crate) fn made(&mut self, session: Option<SessionId>, is_found_again: bool) {
        self.session = session;
        self.only_here = session.filter(|_| !is_found_again);
    }

    /// Notes a turn whose session outlives the call.
    pub(crate) fn found(&mut self, turn: &TurnHandle) {
        self.session = Some(turn.session);
        self.turn = Some((turn.task, turn.request));
    }
}

/// Adds the session to a problem, if the client cannot know it otherwise.
pub(crate) fn with_session(
    mut problem: Problem,
    only_here: Option<SessionId>,
    surface: &ChatSurface,
) -> Problem {
    if let Some(session) = only_here {
        let place = surface.session;
        let hint = format!("; to go on in the session of this call, send `{place}: {session}`");
        problem.detail.push_str(&hint);
    }
    problem
}

impl TurnContext {
    /// The answer to a call that failed. `translate` writes the body of the error in the form of the surface; it
    /// confirms the receipt when the body has been delivered.
    pub(crate) fn refuse(
        self,
        problem: Problem,
        surface: &ChatSurface,
        translate: impl FnOnce(Response, Option<DeliveryReceipt>) -> Response,
    ) -> Response {
        // A caller whose key was revoked learns nothing of the turn.
        let known = match problem.status {
            401 => Self::default(),
            _ => self,
        };
        let problem = with_session(problem, known.only_here, surface);
        let mut response = translate(problem.into_response(), known.receipt);
        let headers = response.headers_mut();
        if known.only_here.is_some() {
            forbid_retry(headers);
        }
        let (task, request) = known.turn.unzip();
        let ids = AnswerHeaders {
            session: known.session,
            task,
            request,
            ..AnswerHeaders::default()
        };
        ids.write(headers);
        response
    }
}
