//! Errors of a chat call, with what was known of its turn by then: whoever gets one goes on from there.

use axum::response::{IntoResponse, Response};
use http::{HeaderName, HeaderValue};
use statehold_core::ids::{RequestId, SessionId, TaskId};

use super::errors::{in_their_words, never_again};
use super::told::Receipt;
use super::turn::Place;
use crate::http::problem::Problem;

/// What is known of the turn that a call is about.
#[derive(Default)]
pub(crate) struct Known {
    session: Option<SessionId>,
    turn: Option<(TaskId, RequestId)>,
    /// The session, if the same call made again would make another.
    only_here: Option<SessionId>,
    /// What counts as told when the error has arrived.
    receipt: Option<Receipt>,
}

impl Known {
    /// A session was made for the call.
    pub(crate) fn made(&mut self, session: SessionId, has_key: bool) {
        self.session = Some(session);
        self.only_here = (!has_key).then_some(session);
    }

    /// The turn was found or begun, and stays when the call is over.
    pub(crate) fn found(&mut self, place: &Place) {
        self.session = Some(place.session);
        self.turn = Some((place.task, place.request));
    }

    /// The error is how the turn ended.
    pub(crate) fn ends_with(&mut self, receipt: Receipt) {
        self.receipt = Some(receipt);
    }

    /// The session, if the same call made again would make another.
    pub(crate) fn only_here(&self) -> Option<SessionId> {
        self.only_here
    }
}

/// Says where to go on after a problem, where the client cannot know it.
pub(crate) fn with_session(mut problem: Problem, only_here: Option<SessionId>) -> Problem {
    if let Some(session) = only_here {
        let hint = format!(
            "; to go on in the session of this call, send `x-statehold-session: {session}`"
        );
        problem.detail.push_str(&hint);
    }
    problem
}

/// An error, with what is known.
pub(crate) struct Refusal {
    problem: Box<Problem>,
    known: Known,
}

impl Refusal {
    pub(crate) fn new(problem: Problem, known: Known) -> Self {
        // Whoever has no right any more is told nothing.
        let known = match problem.status {
            401 => Known::default(),
            _ => known,
        };
        Self {
            problem: Box::new(with_session(problem, known.only_here)),
            known,
        }
    }
}

impl From<Problem> for Refusal {
    fn from(problem: Problem) -> Self {
        Self::new(problem, Known::default())
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let Self { problem, known } = self;
        let mut response = in_their_words(problem.into_response(), known.receipt);
        let headers = response.headers_mut();
        if known.only_here.is_some() {
            never_again(headers);
        }
        let (task, request) = known.turn.unzip();
        let ids = [
            ("session", known.session.map(|id| id.to_string())),
            ("task", task.map(|id| id.to_string())),
            ("request", request.map(|id| id.to_string())),
        ];
        for (name, id) in ids {
            let name = HeaderName::try_from(format!("x-statehold-{name}"));
            let value = id.and_then(|id| HeaderValue::try_from(id).ok());
            if let (Ok(name), Some(value)) = (name, value) {
                headers.insert(name, value);
            }
        }
        response
    }
}
