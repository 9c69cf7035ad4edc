//! Compares the messages of a call with what its client was told in a session.

use statehold_core::ids::RequestId;
use statehold_core::request::RequestOutcome;

use super::client_transcript::{ClientTranscript, ClientTurn};
use super::message::{CarriedMessage, plain};
use super::{CONTINUED_MS, Coverage, EXCHANGES_MAX, Fit, LOOKED_UP_MAX, Recall, is_open};
use crate::api::turn::search::is_answered_by;
use crate::bodies::{DecisionBody, parse, text_of};
use crate::error::EngineError;

/// Among how many of the newest turns of a session the answers are that a client may not have heard.
const UNHEARD_MAX: usize = 8;

impl ClientTranscript<'_> {
    /// Whether the client may know this text as the answer of a turn. None is no answer at all.
    async fn may_be_answer(
        &mut self,
        turn: usize,
        text: Option<&str>,
    ) -> Result<bool, EngineError> {
        let Recall { engine, log, .. } = self.recall;
        let ClientTurn { last, answer, .. } = &self.turns[turn];
        let (request, answer) = (*last, answer.as_deref());
        if let (Some(answer), Some(text)) = (answer, text)
            && ends_with_paragraph(text, answer)
        {
            return Ok(true);
        }
        let text = text.unwrap_or_default();
        let begins_answer = answer.is_some_and(|answer| answer.starts_with(text));
        let detail = self.detail(request).await?;
        let outcome = detail.request.ended().map(|ended| ended.outcome);
        let is_older = detail.started_at().is_none_or(|at| log.predates(at));
        if outcome == Some(RequestOutcome::Completed) {
            if !log.has_sent(request) && (begins_answer || log.has_part(request, text)) {
                return Ok(true);
            }
        } else {
            // The whole answer is not known yet, or will never be.
            let drafted = || {
                let draft = engine.follow_draft(request).take();
                draft.is_some_and(|draft| plain(&draft.text).starts_with(text))
            };
            if text.is_empty() || log.has_part(request, text) || outcome.is_none() && drafted() {
                return Ok(true);
            }
        }
        let pauses = self.pauses_of(turn).await?;
        if pauses.iter().any(|pause| has_pause(text, pause)) {
            return Ok(true);
        }
        // A client of an earlier process may have a part of the answer that this one does not know. A turn that
        // paused is known by the words of its pause.
        let may_be_part =
            is_older && pauses.is_empty() && outcome != Some(RequestOutcome::Completed);
        self.is_guess |= may_be_part;
        Ok(may_be_part)
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

    /// The turn whose question a message of the user answered, the newest first.
    async fn answered_turn(
        &mut self,
        message: &CarriedMessage,
    ) -> Result<Option<usize>, EngineError> {
        for turn in (0..self.turns.len()).rev() {
            if self.is_answer(turn, message).await? {
                return Ok(Some(turn));
            }
        }
        Ok(None)
    }

    /// Whether the messages after the input of a turn, up to the next input, are about that turn, or answers to
    /// questions of other turns.
    pub(super) async fn follows(
        &mut self,
        turn: usize,
        messages: &[CarriedMessage],
    ) -> Result<bool, EngineError> {
        let (mut has_answer, mut turn) = (false, turn);
        for (at, message) in messages.iter().enumerate() {
            let fits = if message.is_users {
                let next = messages.get(at + 1);
                if self.is_answer(turn, message).await? {
                    true
                } else if let Some(answered) = self.answered_turn(message).await? {
                    turn = answered;
                    true
                } else {
                    // A message without an answer may never have reached this server.
                    next.is_none_or(|next| next.is_users)
                }
            } else {
                has_answer = true;
                self.may_be_answer(turn, Some(&message.text)).await?
            };
            if !fits {
                return Ok(false);
            }
        }
        Ok(has_answer || self.may_be_answer(turn, None).await?)
    }

    /// How much of the conversation before a turn the messages before its input are. None if something else was
    /// said there. A client may have cut off the beginning, and left out turns that failed.
    pub(super) async fn precedes(
        &mut self,
        turn: usize,
        mut messages: &[CarriedMessage],
    ) -> Result<Option<Coverage>, EngineError> {
        let first = turn.saturating_sub(EXCHANGES_MAX);
        for turn in (first..turn).rev() {
            if messages.is_empty() {
                return Ok(Some(Coverage::End));
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
                let is_end = begins_here && self.follows(turn, messages).await?;
                return Ok(is_end.then_some(Coverage::End));
            }
        }
        if first > 0 || !self.is_whole {
            return Ok(Some(Coverage::End));
        }
        let context = self.turns.first().map_or(&[][..], |turn| &turn.context);
        let is_same = |(one, other): (&CarriedMessage, &CarriedMessage)| {
            one.is_users == other.is_users && one.text == other.text
        };
        let mut pairs = messages.iter().rev().zip(context.iter().rev());
        let fits = messages.len() <= context.len() && pairs.all(is_same);
        let coverage = if messages.len() == context.len() {
            Coverage::Whole
        } else {
            Coverage::End
        };
        Ok(fits.then_some(coverage))
    }

    /// Compares the turns after the last one that the client knows. Turns that had started at the revision `known` were
    /// told to the client before: a turn that waits for a person may end after later ones.
    pub(super) async fn fit_after(&mut self, turn: usize, known: u64) -> Result<Fit, EngineError> {
        for later in turn + 1..self.turns.len() {
            if self.turns[later].answer.is_none() && self.has_failed(later).await? {
                continue;
            }
            let detail = self.detail(self.turns[later].request).await?;
            let started_by = detail.request.started_by();
            if started_by <= known {
                continue;
            }
            return Ok(Fit::Past(started_by.saturating_sub(1)));
        }
        Ok(Fit::Head {
            answered: self.answered_by(turn),
            unheard: self.unheard().await?,
        })
    }

    /// The turns that an earlier process showed as paused, whose answer is in none of the messages of the client.
    async fn unheard(&mut self) -> Result<Vec<RequestId>, EngineError> {
        let Recall {
            log, conversation, ..
        } = self.recall;
        let older = self.turns.iter().map(|turn| log.predates(turn.started_at));
        let older: Vec<usize> = (0..)
            .zip(older)
            .filter(|(_, it)| *it)
            .map(|(at, _)| at)
            .collect();
        let mut unheard = Vec::new();
        for turn in older.into_iter().rev().take(UNHEARD_MAX) {
            let Some(answer) = self.turns[turn].answer.clone() else {
                continue;
            };
            let last = self.turns[turn].last;
            if log.has_sent(last) || self.pauses_of(turn).await?.is_empty() {
                continue;
            }
            let ended = self.detail(last).await?.request.ended();
            let is_older = ended.is_some_and(|ended| log.predates(ended.ended_at));
            let mut carried = conversation.earlier.iter();
            let is_told =
                carried.any(|message| !message.is_users && has_paragraphs(&message.text, &answer));
            if is_older && !is_told {
                unheard.push(self.turns[turn].request);
            }
        }
        Ok(unheard)
    }

    /// Whether a turn is live, owes its answer, or failed a short time ago, and no other turn began since it ended.
    pub(super) async fn is_unanswered(&mut self, turn: usize) -> Result<bool, EngineError> {
        let Recall { engine, log, .. } = self.recall;
        let (session, now) = (self.session, engine.now());
        let newest = self.turns[self.turns.len() - 1].last;
        let newest_start = self.detail(newest).await?.request.started_by();
        let detail = self.detail(self.turns[turn].last).await?;
        let Some(end) = detail.request.ended() else {
            return Ok(true);
        };
        let may_continue =
            end.outcome == RequestOutcome::Failed && end.ended_at.plus_ms(CONTINUED_MS) >= now;
        // A turn that ended before another began is owed to no client.
        Ok(end.ended_by >= newest_start && (may_continue || is_open(log, session, detail)))
    }

    /// The request whose answer the client has, if it carries the whole of the answer of a turn.
    fn answered_by(&self, turn: usize) -> Option<RequestId> {
        let turn = &self.turns[turn];
        let last = self.recall.conversation.earlier.last();
        let carried = last
            .filter(|message| !message.is_users)
            .zip(turn.answer.as_ref());
        carried
            .filter(|(message, answer)| ends_with_paragraph(&message.text, answer))
            .map(|_| turn.last)
    }
}

/// Whether a text is an answer, by itself or after other paragraphs: answers of earlier turns, or a draft that
/// was not the answer.
fn ends_with_paragraph(text: &str, answer: &str) -> bool {
    let before = text.strip_suffix(answer);
    before.is_some_and(|before| before.is_empty() || before.ends_with("\n\n"))
}

/// Whether a text has an answer in it, by itself or between other paragraphs.
fn has_paragraphs(text: &str, answer: &str) -> bool {
    text.match_indices(answer).any(|(at, _)| {
        let (before, after) = (&text[..at], &text[at + answer.len()..]);
        (before.is_empty() || before.ends_with("\n\n"))
            && (after.is_empty() || after.starts_with("\n\n"))
    })
}

/// Whether a text begins with the words about a pause, by themselves or after other paragraphs.
fn has_pause(text: &str, pause: &str) -> bool {
    text.starts_with(pause) || text.contains(&format!("\n\n{pause}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_counts_after_the_answers_of_earlier_turns() {
        assert!(ends_with_paragraph("It is 4.", "It is 4."));
        assert!(ends_with_paragraph("Done.\n\nIt is 4.", "It is 4."));
        assert!(!ends_with_paragraph("I say: It is 4.", "It is 4."));
        assert!(!ends_with_paragraph("It is 4. ", "It is 4."));
        assert!(ends_with_paragraph("", ""));
        assert!(!ends_with_paragraph("something", ""));
    }

    #[test]
    fn an_answer_is_found_between_other_paragraphs() {
        assert!(has_paragraphs("It is 4.", "It is 4."));
        assert!(has_paragraphs("Done.\n\nIt is 4.\n\nAnd 5.", "It is 4."));
        assert!(!has_paragraphs("It is 4. And 5.", "It is 4."));
        assert!(!has_paragraphs("It is 4.x\n\nIt is 4.y", "It is 4."));
    }

    #[test]
    fn the_words_of_a_pause_count_at_the_beginning_of_a_paragraph() {
        let pause = "ums waits for a decision (R1.h1): Delete 7?";
        assert!(has_pause(&format!("{pause}\nDecide with: …"), pause));
        assert!(has_pause(&format!("Done.\n\n{pause}"), pause));
        assert!(!has_pause(
            "ums waits for a decision (R2.h1): Delete 7?",
            pause
        ));
    }
}
