//! Compares the messages of a call with what its client was told in a session.

use statehold_core::request::RequestOutcome;

use super::message::{CarriedMessage, plain};
use super::told::ToldSession;
use super::{EXCHANGES_MAX, Fit, LOOKED_UP_MAX, Recall, is_open};
use crate::api::turn::pause_text::hold_summary;
use crate::api::turn::search::is_answered_by;
use crate::bodies::{DecisionBody, parse, text_of};
use crate::error::EngineError;

impl ToldSession<'_> {
    /// Whether the client may know this text as the answer of a turn. None is no answer at all.
    async fn is_told(&mut self, turn: usize, text: Option<&str>) -> Result<bool, EngineError> {
        let answer = self.turns[turn].answer.clone();
        if let (Some(answer), Some(text)) = (&answer, text)
            && ends_with(text, answer)
        {
            return Ok(true);
        }
        let Recall { engine, log, .. } = self.recall;
        let request = self.turns[turn].last;
        let detail = self.detail(request).await?;
        let text = text.unwrap_or_default();
        let outcome = detail.request.ended().map(|ended| ended.outcome);
        let is_part = if outcome == Some(RequestOutcome::Completed) {
            let is_part = || answer.is_some_and(|answer| answer.starts_with(text));
            !log.has_sent(request) && (is_part() || log.has_part(request, text))
        } else {
            // The whole answer is not known yet, or will never be. A client of an earlier process may have a
            // part of it that this one does not know.
            let is_older = detail.started_at().is_none_or(|at| log.predates(at));
            let drafted = || {
                let draft = engine.follow_draft(request).take();
                draft.is_some_and(|draft| plain(&draft.text).starts_with(text))
            };
            let is_drafted = || outcome.is_none() && drafted();
            text.is_empty() || is_older || log.has_part(request, text) || is_drafted()
        };
        if is_part {
            return Ok(true);
        }
        let holds = self.holds_of(turn).await?;
        let mut pauses = holds.iter().map(|hold| plain(&hold_summary(hold)));
        Ok(pauses.any(|pause| begins_with(text, &pause)))
    }

    /// Whether a message of the user answered a question of a turn.
    async fn is_answer(
        &mut self,
        turn: usize,
        message: &CarriedMessage,
    ) -> Result<bool, EngineError> {
        let caller = self.recall.caller;
        let holds = self.holds_of(turn).await?;
        let mut answers = holds.iter().filter(|hold| is_answered_by(hold, caller));
        Ok(answers.any(|hold| {
            let answer: DecisionBody = parse(hold.decision_body.as_deref());
            let text = answer.content.as_deref().map(text_of).unwrap_or_default();
            *message == CarriedMessage::by_user(&text, &[])
        }))
    }

    /// Whether the messages after the input of a turn, up to the next input, are about that turn.
    pub(super) async fn follows(
        &mut self,
        turn: usize,
        messages: &[CarriedMessage],
    ) -> Result<bool, EngineError> {
        let mut has_answer = false;
        for (at, message) in messages.iter().enumerate() {
            let fits = if message.is_users {
                // A message without an answer may never have reached this server.
                let next = messages.get(at + 1);
                next.is_none_or(|next| next.is_users) || self.is_answer(turn, message).await?
            } else {
                has_answer = true;
                self.is_told(turn, Some(&message.text)).await?
            };
            if !fits {
                return Ok(false);
            }
        }
        Ok(has_answer || self.is_told(turn, None).await?)
    }

    /// Whether the messages before the input of a turn are what was said before it. A client may have cut off
    /// the beginning, and left out turns that failed.
    pub(super) async fn precedes(
        &mut self,
        turn: usize,
        mut messages: &[CarriedMessage],
    ) -> Result<bool, EngineError> {
        let first = turn.saturating_sub(EXCHANGES_MAX);
        for turn in (first..turn).rev() {
            if messages.is_empty() {
                return Ok(true);
            }
            let users = (0..messages.len())
                .rev()
                .filter(|at| messages[*at].is_users);
            let mut found = None;
            for at in users.take(LOOKED_UP_MAX) {
                if messages[at] == self.turns[turn].input
                    && self.follows(turn, &messages[at + 1..]).await?
                {
                    found = Some(at);
                    break;
                }
            }
            if let Some(at) = found {
                messages = &messages[..at];
            } else if !self.has_failed(turn).await? {
                // The client begins in the middle of this turn, or had another conversation.
                let begins_here = !messages.iter().any(|message| message.is_users);
                return Ok(begins_here && self.follows(turn, messages).await?);
            }
        }
        if first > 0 || !self.is_whole {
            return Ok(true);
        }
        let context = self.turns.first().map_or(&[][..], |turn| &turn.context);
        let is_same = |(one, other): (&CarriedMessage, &CarriedMessage)| {
            one.is_users == other.is_users && one.text == other.text
        };
        let mut pairs = messages.iter().rev().zip(context.iter().rev());
        Ok(messages.len() <= context.len() && pairs.all(is_same))
    }

    /// Compares the turns after the last one that the client knows with its new message.
    pub(super) async fn fit_after(
        &mut self,
        turn: usize,
        message: &CarriedMessage,
    ) -> Result<Fit, EngineError> {
        let mut gone_on = None;
        for later in turn + 1..self.turns.len() {
            if self.turns[later].answer.is_none() && self.has_failed(later).await? {
                continue;
            }
            gone_on = gone_on.or(Some(later));
            if self.turns[later].input != *message {
                continue;
            }
            let (session, log) = (self.session, self.recall.log);
            let detail = self.detail(self.turns[later].last).await?;
            if !is_open(log, session, detail) {
                continue;
            }
            let ended = detail.request.ended().map(|ended| ended.ended_by);
            let newest = self.turns[self.turns.len() - 1].last;
            let newest_start = self.detail(newest).await?.request.started_by();
            // A turn that ended before another began is owed to no client.
            if ended.is_none_or(|ended| ended >= newest_start) {
                return Ok(Fit::Repeat);
            }
        }
        let Some(later) = gone_on else {
            self.note_carried_answer(turn);
            return Ok(Fit::Head);
        };
        let detail = self.detail(self.turns[later].request).await?;
        Ok(Fit::Past(detail.request.started_by().saturating_sub(1)))
    }

    /// Notes that the client has the answer of a turn, if it carries the whole of it. An earlier process may have
    /// delivered it.
    fn note_carried_answer(&self, turn: usize) {
        let turn = &self.turns[turn];
        let last = self.recall.conversation.earlier.last();
        let carried = last
            .filter(|message| !message.is_users)
            .zip(turn.answer.as_ref());
        if carried.is_some_and(|(message, answer)| ends_with(&message.text, answer)) {
            self.recall.log.note_sent(self.session, turn.last);
        }
    }
}

/// Whether a text is an answer, by itself or after other paragraphs: answers of earlier turns, or a draft that
/// was not the answer.
fn ends_with(text: &str, answer: &str) -> bool {
    let before = text.strip_suffix(answer);
    before.is_some_and(|before| before.is_empty() || before.ends_with("\n\n"))
}

/// Whether a text begins with the words about a pause, by themselves or after other paragraphs.
fn begins_with(text: &str, pause: &str) -> bool {
    text.starts_with(pause) || text.contains(&format!("\n\n{pause}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_counts_after_the_answers_of_earlier_turns() {
        assert!(ends_with("It is 4.", "It is 4."));
        assert!(ends_with("Done.\n\nIt is 4.", "It is 4."));
        assert!(!ends_with("I say: It is 4.", "It is 4."));
        assert!(!ends_with("It is 4. ", "It is 4."));
        assert!(ends_with("", ""));
        assert!(!ends_with("something", ""));
    }

    #[test]
    fn the_words_of_a_pause_count_at_the_beginning_of_a_paragraph() {
        let pause = "ums waits for a decision (R1.h1): Delete 7?";
        assert!(begins_with(&format!("{pause}\nDecide at …"), pause));
        assert!(begins_with(&format!("Done.\n\n{pause}"), pause));
        assert!(!begins_with(
            "ums waits for a decision (R2.h1): Delete 7?",
            pause
        ));
    }
}
