//! The promises about idempotency keys, judged from the answers that callers got and from the log.
//!
//! The judge is a second opinion: it keeps a short list of what each key stands for, and knows nothing
//! of how the engine and the store keep answers.

use std::collections::BTreeMap;

use statehold_core::time::Timestamp;

/// How long a key stands for its call.
const KEPT_MS: u64 = 24 * 3_600 * 1_000;

/// How many keys callers use.
pub(super) const KEYS: u8 = 3;

/// A call: the key it is made under, and what it asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KeyedCall {
    pub(super) key: u8,
    pub(super) session: u8,
    pub(super) body: CallBody,
}

/// The body of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallBody {
    Plain,
    Other,
    /// The core refuses it, always.
    Refused,
}

/// The end of a call, as its caller sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum HeardAnswer {
    Done {
        revision: u64,
        body: Vec<u8>,
        replayed: bool,
    },
    /// The key stands for another call.
    Reused,
    /// The core refused the command.
    Refused,
    /// The disk was full.
    Full,
    /// The caller went away, or the server did.
    Nothing,
}

/// A record that a call left in the log.
#[derive(Debug, Clone, Copy)]
pub(super) struct LoggedCall {
    pub(super) ask: KeyedCall,
    pub(super) revision: u64,
}

/// A promise to callers that use a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum KeyPromise {
    /// A call that is answered took effect once, however often it was made.
    OneEffect,
    /// Every repetition gets the bytes of the first answer.
    SameAnswer,
    /// Another call under the same key is refused.
    OneCall,
    /// A key is free until a call under it took effect, and again when its time is over.
    FreeKey,
}

impl KeyPromise {
    pub(super) const ALL: [Self; 4] = [
        Self::OneEffect,
        Self::SameAnswer,
        Self::OneCall,
        Self::FreeKey,
    ];
}

/// A broken promise, with the key and the step that broke it.
pub(super) type Broken = (KeyPromise, String);

/// The call that a key stands for.
#[derive(Debug, Clone)]
struct KnownCall {
    ask: KeyedCall,
    revision: u64,
    /// The bytes of the answer, once a caller has heard them.
    body: Option<Vec<u8>>,
    expires_at: Timestamp,
    /// Whether the process has crashed since.
    is_recovered: bool,
}

/// The call that each key stands for, and how often each interesting case was met.
#[derive(Debug, Default)]
pub(super) struct KeyJudge {
    known: BTreeMap<u8, KnownCall>,
    /// Why a key is free although it was used.
    freed: BTreeMap<u8, &'static str>,
    pub(super) cases: BTreeMap<&'static str, u64>,
}

impl KeyJudge {
    /// Takes note of a crash.
    pub(super) fn crashed(&mut self) {
        for known in self.known.values_mut() {
            known.is_recovered = true;
        }
    }

    /// Judges calls that were under way together at one time.
    ///
    /// # Errors
    ///
    /// The first promise that is broken.
    pub(super) fn judge(
        &mut self,
        now: Timestamp,
        heard: &[(KeyedCall, HeardAnswer)],
        effects: &[LoggedCall],
    ) -> Result<(), Broken> {
        for key in 0..KEYS {
            let heard: Vec<_> = heard.iter().filter(|(ask, _)| ask.key == key).collect();
            let effects: Vec<_> = effects.iter().filter(|one| one.ask.key == key).collect();
            let judged = self.judge_key(now, key, &heard, &effects);
            judged.map_err(|promise| (promise, format!("key {key}: {heard:?}, {effects:?}")))?;
        }
        Ok(())
    }

    fn judge_key(
        &mut self,
        now: Timestamp,
        key: u8,
        heard: &[&(KeyedCall, HeardAnswer)],
        effects: &[&LoggedCall],
    ) -> Result<(), KeyPromise> {
        if self
            .known
            .get(&key)
            .is_some_and(|known| known.expires_at <= now)
        {
            self.known.remove(&key);
            self.freed.insert(key, "a key is used again after a day");
        }
        let is_new = !self.known.contains_key(&key);
        let known = match (self.known.remove(&key), effects) {
            (Some(known), []) => known,
            (None, [effect]) => {
                if let Some(case) = self.freed.remove(&key) {
                    self.count(case);
                }
                KnownCall {
                    ask: effect.ask,
                    revision: effect.revision,
                    body: None,
                    expires_at: now.plus_ms(KEPT_MS),
                    is_recovered: false,
                }
            }
            (None, []) => return self.judge_free(key, heard),
            (Some(_), [_, ..]) | (None, [_, _, ..]) => return Err(KeyPromise::OneEffect),
        };
        let known = self.judge_taken(known, is_new, heard)?;
        self.known.insert(key, known);
        Ok(())
    }

    /// No call under the key has taken effect.
    fn judge_free(
        &mut self,
        key: u8,
        heard: &[&(KeyedCall, HeardAnswer)],
    ) -> Result<(), KeyPromise> {
        for (ask, heard) in heard {
            match heard {
                HeardAnswer::Done {
                    replayed: false, ..
                } => return Err(KeyPromise::OneEffect),
                HeardAnswer::Done { replayed: true, .. } | HeardAnswer::Reused => {
                    return Err(KeyPromise::FreeKey);
                }
                HeardAnswer::Refused if ask.body != CallBody::Refused => {
                    return Err(KeyPromise::FreeKey);
                }
                HeardAnswer::Refused => {
                    self.freed
                        .insert(key, "a key is used again after a refusal");
                }
                HeardAnswer::Full => {
                    self.freed
                        .insert(key, "a key is used again after a full disk");
                }
                HeardAnswer::Nothing => {
                    self.freed
                        .insert(key, "a key is used again after a lost call");
                }
            }
        }
        Ok(())
    }

    /// A call under the key has taken effect: just now if `is_new`, by one of those that are heard.
    fn judge_taken(
        &mut self,
        mut known: KnownCall,
        is_new: bool,
        heard: &[&(KeyedCall, HeardAnswer)],
    ) -> Result<KnownCall, KeyPromise> {
        let mut is_first = is_new;
        for (ask, heard) in heard {
            let is_same = *ask == known.ask;
            match heard {
                HeardAnswer::Done { .. } if !is_same => return Err(KeyPromise::OneCall),
                HeardAnswer::Done {
                    revision,
                    body,
                    replayed,
                } => {
                    if !replayed && !std::mem::take(&mut is_first) {
                        return Err(KeyPromise::SameAnswer);
                    }
                    let told = known.body.get_or_insert_with(|| {
                        if *replayed && !is_new {
                            *self
                                .cases
                                .entry("the first answer was not heard")
                                .or_default() += 1;
                        }
                        body.clone()
                    });
                    if told != body || *revision != known.revision {
                        return Err(KeyPromise::SameAnswer);
                    }
                    match (*replayed, is_new, known.is_recovered) {
                        (false, ..) => self.count("a call is answered"),
                        (true, true, _) => self.count("a duplicate waits for the first"),
                        (true, false, false) => self.count("a call is repeated"),
                        (true, false, true) => self.count("a call is repeated after a crash"),
                    }
                }
                HeardAnswer::Reused if is_same => return Err(KeyPromise::SameAnswer),
                HeardAnswer::Reused => self.count("another call comes under a key"),
                // It came before the call that took effect.
                HeardAnswer::Refused if is_new && ask.body == CallBody::Refused => {}
                HeardAnswer::Refused if is_same => return Err(KeyPromise::SameAnswer),
                HeardAnswer::Refused => return Err(KeyPromise::OneCall),
                // The disk was full for one call, and the next under the key found room.
                HeardAnswer::Full if is_new => {}
                HeardAnswer::Full => return Err(KeyPromise::SameAnswer),
                HeardAnswer::Nothing => {}
            }
        }
        Ok(known)
    }

    fn count(&mut self, case: &'static str) {
        *self.cases.entry(case).or_default() += 1;
    }
}
