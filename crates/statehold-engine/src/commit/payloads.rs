//! The payloads of a command. Records name them only by keyed digest. Secrets in them are redacted here, before they
//! are digested: whatever is stored has come through one of these functions.

use std::sync::Arc;

use serde_json::value::RawValue;
use statehold_core::digest::{BodyRef, Digest, PayloadKey};
use statehold_core::name::Name;
use statehold_core::record::Record;
use statehold_core::redact::{Redacted, Redactor};
use statehold_core::scope::{Scope, StateKey};
use statehold_store::StoredRecord;

use super::idempotency::digest;
use crate::bodies::{AttachmentBody, HoldBody, ItemBody, PartBody, Raw, Redaction, to_bytes};
use crate::guard::policy::Policies;
use crate::guard::redact::{Pattern, RedactionCounts, redact_stored};

/// Members of an item that name something, or tell about its parts: they are never redacted.
const KEPT_IN_ITEM: [&str; 5] = ["/name", "/call_id", "/event", "/parts", "/redactions"];
/// The members of steps and notes that hold the opaque state of an agent elsewhere.
const AGENT_STATE: [&str; 2] = ["/data/state", "/data/result/state"];
/// Members of a hold that name something, describe an answer, or were redacted before, by the policy of the tool.
const KEPT_IN_HOLD: [&str; 9] = [
    "/action/args",
    "/action/args_schema",
    "/action/call_id",
    "/action/digest",
    "/action/redactions",
    "/action/sealed",
    "/action/tool",
    "/group_id",
    "/response_schema",
];
/// Members of a decision that were redacted before, by the policy of the tool.
const KEPT_IN_DECISION: [&str; 3] = ["/args", "/redactions", "/sealed"];

/// How the payloads of one agent are redacted.
#[derive(Debug, Clone)]
pub(crate) struct StoredRedaction {
    pub(crate) policies: Arc<Policies>,
    pub(crate) agent: Name,
    pub(crate) counts: Arc<RedactionCounts>,
}

impl StoredRedaction {
    fn redactor(&self) -> Option<&Redactor> {
        self.policies.redaction.of(&self.agent)
    }

    /// Whether the arguments of a tool are redacted: the policy of the tool may say that it has no secrets.
    fn redacts_arguments_of(&self, tool: &str) -> bool {
        let policy = self.policies.of(&self.agent, tool);
        policy.rules().patterns.contains(&Pattern::Secret)
    }
}

/// Payloads by their name in the record.
#[derive(Debug, Clone)]
pub struct Payloads {
    user: PayloadKey,
    tenant: PayloadKey,
    redaction: Option<StoredRedaction>,
    /// A command has only a few payloads, so a linear search is faster than a map.
    bodies: Vec<(BodyRef, Vec<u8>)>,
}

impl Payloads {
    pub(crate) fn new(user: PayloadKey, tenant: PayloadKey) -> Self {
        Self {
            user,
            tenant,
            redaction: None,
            bodies: Vec::with_capacity(8),
        }
    }

    /// For commands that carry no payloads.
    pub fn none() -> Self {
        let none = PayloadKey::from_bytes([0; 32]);
        Self::new(none.clone(), none)
    }

    /// The payloads of a stored record that are not erased.
    pub(crate) fn of_stored(stored: &StoredRecord) -> Self {
        let named = stored.record.bodies();
        let bodies = named.into_iter().zip(&stored.bodies);
        Self {
            bodies: bodies
                .filter_map(|(name, body)| Some((name, body.clone()?)))
                .collect(),
            ..Self::none()
        }
    }

    /// From here on, payloads are redacted like this before they are digested.
    pub(crate) fn redact_by(&mut self, redaction: StoredRedaction) {
        self.redaction = Some(redaction);
    }

    /// JSON as it would be stored.
    pub(crate) fn shown(&self, json: &Raw) -> Raw {
        let redacted = self.redacted(json.get().as_bytes(), |redactor, json| {
            redactor.json(json, &[])
        });
        let shown = redacted.and_then(|redacted| RawValue::from_string(redacted.text).ok());
        shown.unwrap_or_else(|| json.clone())
    }

    /// Adds JSON or a text of the user.
    pub fn put(&mut self, payload: Vec<u8>) -> BodyRef {
        self.put_except(payload, &[])
    }

    /// Adds JSON of the user.
    pub(crate) fn put_json(&mut self, json: &RawValue) -> BodyRef {
        self.put(json.get().as_bytes().to_vec())
    }

    /// Adds a payload as it is: what names something, and what only an agent reads, as the agent wrote it.
    pub(crate) fn put_opaque(&mut self, payload: Vec<u8>) -> BodyRef {
        let name = BodyRef::of(&self.user, &payload);
        self.bodies.push((name, payload));
        name
    }

    /// Adds the body of an item, with a list of what was redacted in it.
    pub fn put_item(&mut self, body: &ItemBody) -> BodyRef {
        self.put_item_except(body, &[])
    }

    /// Adds the body of a step or a note of a hosted agent. The state of an agent elsewhere stays as that wrote it.
    pub(crate) fn put_own_item(&mut self, body: &ItemBody) -> BodyRef {
        self.put_item_except(body, &AGENT_STATE)
    }

    fn put_item_except(&mut self, body: &ItemBody, kept: &[&'static str]) -> BodyRef {
        let mut kept = [&KEPT_IN_ITEM, kept].concat();
        let tool = body.name.as_ref().filter(|_| body.arguments.is_some());
        if let (Some(tool), Some(redaction)) = (tool, &self.redaction)
            && !redaction.redacts_arguments_of(tool)
        {
            kept.push("/arguments");
        }
        let bytes = to_bytes(body);
        let Some(redacted) = self.redacted(&bytes, |redactor, json| redactor.json(json, &kept))
        else {
            return self.put_opaque(bytes);
        };
        let mut shown: ItemBody = serde_json::from_str(&redacted.text)
            .expect("a body keeps its form, because placeholders are texts");
        if !body.parts.is_empty() {
            self.redact_parts(body, &mut shown);
        }
        shown
            .redactions
            .extend(redacted.findings.into_iter().map(Redaction::from));
        self.put_opaque(to_bytes(&shown))
    }

    /// Redacts the texts of a message that came as parts one by one, because the parts know their lengths.
    fn redact_parts(&self, body: &ItemBody, shown: &mut ItemBody) {
        let content = body.content.as_ref();
        let content: Option<String> =
            content.and_then(|content| serde_json::from_str(content.get()).ok());
        let (Some(content), Some(redaction)) = (content, &self.redaction) else {
            return;
        };
        let Some(redactor) = redaction.redactor() else {
            return;
        };
        let (mut at, mut texts) = (0, Vec::new());
        for part in &mut shown.parts {
            let PartBody::Text(length) = part else {
                continue;
            };
            let text = content.get(at..at + *length).unwrap_or_default();
            // A line feed separates texts.
            at += *length + 1;
            let text = redactor
                .text(text)
                .map_or_else(|| text.to_owned(), |redacted| redacted.text);
            *length = text.len();
            texts.push(text);
        }
        let mut whole = texts.join("\n");
        if let Some(redacted) = redactor.text(&whole) {
            // A secret that begins in one part and ends in another: the texts become one part.
            whole = redacted.text;
            let mut is_first = true;
            shown.parts.retain_mut(|part| match part {
                PartBody::Text(length) => {
                    *length = whole.len();
                    std::mem::take(&mut is_first)
                }
                _ => true,
            });
        }
        let content = serde_json::value::to_raw_value(&whole);
        shown.content = Some(content.expect("a text is JSON"));
    }

    /// Adds a file. Its bytes stay as they are.
    pub fn put_file(&mut self, file: &AttachmentBody) -> BodyRef {
        self.put_except(to_bytes(file), &["/data"])
    }

    /// Adds the body of a hold.
    pub(crate) fn put_hold(&mut self, body: &HoldBody) -> BodyRef {
        self.put_except(to_bytes(body), &KEPT_IN_HOLD)
    }

    /// Adds the words of a decision.
    pub(crate) fn put_decision(&mut self, words: Vec<u8>) -> BodyRef {
        self.put_except(words, &KEPT_IN_DECISION)
    }

    /// Adds a value of state. `app:` values are digested with the tenant's key.
    pub(crate) fn put_value(&mut self, key: &StateKey, value: Vec<u8>) -> BodyRef {
        let name = key.as_str().rsplit(':').next().unwrap_or_default();
        let redacted = self.redacted(&value, |redactor, json| redactor.value_of(name, json));
        let value = redacted.map_or(value, |redacted| redacted.text.into_bytes());
        match key.scope() {
            Scope::App => self.put_app(value),
            Scope::User | Scope::Session | Scope::Temp => self.put_opaque(value),
        }
    }

    /// Adds an `app:` value that is redacted, digested with the tenant's key.
    pub(crate) fn put_app(&mut self, payload: Vec<u8>) -> BodyRef {
        let name = BodyRef::of(&self.tenant, &payload);
        self.bodies.push((name, payload));
        name
    }

    fn put_except(&mut self, payload: Vec<u8>, kept: &[&str]) -> BodyRef {
        let redacted = self.redacted(&payload, |redactor, json| redactor.json(json, kept));
        let payload = redacted.map_or(payload, |redacted| redacted.text.into_bytes());
        self.put_opaque(payload)
    }

    /// The payload without its secrets. None if it has none, or if nothing is redacted here.
    pub(crate) fn redacted(
        &self,
        payload: &[u8],
        redact: impl FnOnce(&Redactor, &str) -> Option<Redacted>,
    ) -> Option<Redacted> {
        let redaction = self.redaction.as_ref()?;
        let redactor = redaction.redactor()?;
        let text = std::str::from_utf8(payload).ok()?;
        redact_stored(text.len(), &redaction.counts, || redact(redactor, text))
    }

    /// A digest over parts under the key of the user.
    pub(crate) fn keyed_digest(&self, parts: &[&[u8]]) -> Digest {
        Digest::keyed(&self.user, digest(parts).as_bytes())
    }

    /// A payload by its name.
    pub fn get(&self, name: &BodyRef) -> Option<&[u8]> {
        let mut bodies = self.bodies.iter();
        bodies
            .find(|(known, _)| known == name)
            .map(|(_, body)| body.as_slice())
    }

    /// A record with its payloads.
    pub(crate) fn stored(&self, record: &Record) -> StoredRecord {
        StoredRecord {
            record: record.clone(),
            bodies: self.of(record).into_iter().map(Some).collect(),
        }
    }

    /// The payloads of a record, in its order.
    pub(crate) fn of(&self, record: &Record) -> Vec<Vec<u8>> {
        let named = record.bodies();
        let found = named.iter().map(|name| {
            let body = self.get(name);
            body.expect("a record names only what came with its command")
                .to_vec()
        });
        found.collect()
    }
}
