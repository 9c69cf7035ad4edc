//! Data agents: the declared agents, and those that the caller has saved.

use serde::Serialize;
use serde_json::{Map, Value, json};
use statehold_core::digest::Digest;
use statehold_core::name::Name;
use statehold_engine::api::json::{Time, raw_bytes, to_body};
use statehold_engine::api::saved_agent::{self, CallId, SavedAgents, SavedBy};
use uuid::Uuid;

use super::chat::is_word;
use super::place::{Place, clip, is_new_id};
use super::query::{Paging, Query, UpdateMask};
use super::require_client;
use crate::chat::ANONYMOUS;
use crate::http::call::CallContext;
use crate::http::problem::{Code, Problem};
use crate::native::Cursor;

/// Fields of a data agent that clients do not write.
const OUTPUT_ONLY: [&str; 5] = [
    "name",
    "createTime",
    "updateTime",
    "deleteTime",
    "purgeTime",
];
/// The longest texts of a data agent, in characters.
const TEXTS: [(&str, usize); 2] = [("displayName", 256), ("description", 1_024)];

/// A data agent that a call names.
pub(super) enum DataAgent {
    /// An agent of the configuration.
    Declared(Name),
    /// A saved one: a context that an answerer runs.
    Saved(SavedAgent),
}

pub(super) struct SavedAgent(Map<String, Value>);

impl SavedAgent {
    /// The context of a version: the published one, unless the call asks for the staging one.
    pub(super) fn context(&self, version: Option<&Value>) -> Result<&Map<String, Value>, Problem> {
        let name = if is_word(version, "STAGING", 1) {
            "stagingContext"
        } else {
            "publishedContext"
        };
        let agent = self.0.get("dataAnalyticsAgent");
        let context = agent.and_then(|agent| agent[name].as_object());
        context.ok_or_else(|| {
            let detail = format!("the data agent has no `{name}`; set `dataAnalyticsAgent.{name}`");
            Problem::invalid(detail)
        })
    }
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct DataAgentsOut {
    data_agents: Vec<Map<String, Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_page_token: Option<String>,
}

fn by(place: &Place) -> SavedBy<'_> {
    SavedBy {
        app: &place.app,
        user: ANONYMOUS,
    }
}

fn is_declared(context: &CallContext, id: &str) -> Option<Name> {
    let book = context.app.options.agents.get();
    let found = book.agents.keys().find(|name| name.as_str() == id);
    found.cloned()
}

async fn saved(context: &CallContext, place: &Place) -> Result<SavedAgents, Problem> {
    let agents = saved_agent::read(context.engine(), &context.caller, by(place));
    Ok(agents.await?)
}

/// Finds a data agent that the caller may use. Those of other users look like missing ones.
pub(super) async fn find_agent(
    context: &CallContext,
    place: &Place,
    id: &str,
) -> Result<DataAgent, Problem> {
    if let Some(name) = is_declared(context, id) {
        return Ok(DataAgent::Declared(name));
    }
    let saved = saved(context, place).await?;
    let found = saved
        .get(id)
        .and_then(|agent| serde_json::from_str(agent.get()).ok());
    found
        .map(|agent| DataAgent::Saved(SavedAgent(agent)))
        .ok_or_else(|| {
            let detail = format!(
                "there is no data agent `{}`, or this key may not see it",
                clip(id)
            );
            Problem::new(Code::NotFound, detail)
        })
}

/// A data agent as clients see it. Of a declared agent, neither prompt nor address is shown.
pub(super) async fn read(
    context: &CallContext,
    place: &Place,
    id: &str,
) -> Result<Map<String, Value>, Problem> {
    Ok(match find_agent(context, place, id).await? {
        DataAgent::Declared(name) => declared_out(context, place, &name),
        DataAgent::Saved(SavedAgent(agent)) => saved_out(place, id, agent),
    })
}

fn declared_out(context: &CallContext, place: &Place, name: &Name) -> Map<String, Value> {
    let book = context.app.options.agents.get();
    let description = book.agent(name).and_then(|spec| spec.description.clone());
    let since = Time::from(context.app.deliveries.since()).to_string();
    let mut out = Map::new();
    out.insert(
        "name".to_owned(),
        place.name("dataAgents", name.as_str()).into(),
    );
    out.insert("displayName".to_owned(), name.as_str().into());
    if let Some(description) = description {
        out.insert("description".to_owned(), description.into());
    }
    out.insert("createTime".to_owned(), since.clone().into());
    out.insert("updateTime".to_owned(), since.into());
    let published = json!({"publishedContext": {}});
    out.insert("dataAnalyticsAgent".to_owned(), published);
    out
}

fn saved_out(place: &Place, id: &str, mut agent: Map<String, Value>) -> Map<String, Value> {
    agent.insert("name".to_owned(), place.name("dataAgents", id).into());
    agent
}

/// A page of data agents by id: the declared ones, then the saved ones.
pub(super) async fn list(
    context: &CallContext,
    place: &Place,
    query: &Query,
) -> Result<DataAgentsOut, Problem> {
    let creator = query.text("creatorFilter").map(Value::from);
    let (by_caller, by_others) = match &creator {
        Some(creator) if is_number_or_word(creator, "CREATOR_ONLY", 2) => (true, false),
        Some(creator) if is_number_or_word(creator, "NOT_CREATOR_ONLY", 3) => (false, true),
        _ => (true, true),
    };
    let Paging { size, token } = query.paging()?;
    let filter = format!("{} {by_caller} {by_others}", place.app);
    let cursor = Cursor::of(context, "analytics.agents", &filter);
    let after: Option<(bool, String)> = cursor.open(token)?;
    let mut all: Vec<(bool, String)> = Vec::new();
    let saved = saved(context, place).await?;
    if by_others {
        let book = context.app.options.agents.get();
        all.extend(book.agents.keys().map(|name| (false, name.to_string())));
    }
    if by_caller {
        all.extend(saved.keys().map(|id| (true, id.clone())));
    }
    let mut rest = all.into_iter().filter(|place| after.as_ref() < Some(place));
    let page: Vec<(bool, String)> = rest.by_ref().take(size).collect();
    let next = rest.next().and_then(|_| page.last());
    let next_page_token = next.map(|last| cursor.seal(last));
    let shown = page.iter().filter_map(|(is_saved, id)| {
        if *is_saved {
            let agent = serde_json::from_str(saved.get(id)?.get()).ok()?;
            return Some(saved_out(place, id, agent));
        }
        Some(declared_out(context, place, &id.parse().ok()?))
    });
    Ok(DataAgentsOut {
        data_agents: shown.collect(),
        next_page_token,
    })
}

/// Whether a parameter of a query has a value of an enumeration.
fn is_number_or_word(value: &Value, word: &str, number: u64) -> bool {
    let text = value.as_str().unwrap_or_default();
    text == word || text.parse() == Ok(number)
}

/// The id of a call that may be repeated.
fn call_id(context: &CallContext, query: &Query, body: &[u8]) -> Result<Option<CallId>, Problem> {
    let call = Digest::sha256(&[context.path().as_bytes(), b" ", body].concat());
    let id = query.request_id()?;
    Ok(id.map(|id| CallId { id, call }))
}

/// An id that no data agent has.
fn fresh_id() -> Result<String, Problem> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|_| Problem::new(Code::Internal, "the system has no random numbers"))?;
    Ok(format!("agent-{}", Uuid::from_bytes(bytes)))
}

/// Saves a data agent. Returns its id.
pub(super) async fn create(
    context: &CallContext,
    place: &Place,
    (query, mut sent, body): (&Query, Map<String, Value>, &[u8]),
) -> Result<String, Problem> {
    require_client(context)?;
    let id = match query.text("dataAgentId") {
        Some(id) => id.to_owned(),
        // The same call again has the same id.
        None => match query.request_id()? {
            Some(request) => format!("agent-{request}"),
            None => fresh_id()?,
        },
    };
    if !is_new_id(&id) {
        let detail = format!(
            "`dataAgentId` is a lower-case letter and up to 62 letters, digits and hyphens, not `{}`",
            clip(&id)
        );
        return Err(Problem::new(Code::BadQuery, detail));
    }
    let taken = || {
        let detail = format!("there is a data agent `{id}` already; choose another id");
        Problem::new(Code::NameTaken, detail)
    };
    require_fields(&sent)?;
    for field in OUTPUT_ONLY {
        sent.remove(field);
    }
    let now = Time::from(context.engine().now()).to_string();
    sent.insert("createTime".to_owned(), now.clone().into());
    sent.insert("updateTime".to_owned(), now.into());
    let agent = raw_bytes(&to_body(&sent));
    let call = call_id(context, query, body)?;
    let is_declared = is_declared(context, &id).is_some();
    let edit = |agents: &mut SavedAgents| {
        if is_declared || agents.contains_key(&id) {
            return Err(taken());
        }
        agents.insert(id.clone(), agent.clone());
        Ok(())
    };
    change(context, place, call.as_ref(), edit).await?;
    Ok(id)
}

pub(super) async fn patch(
    context: &CallContext,
    place: &Place,
    id: &str,
    (query, sent, body): (&Query, Map<String, Value>, &[u8]),
) -> Result<(), Problem> {
    require_client(context)?;
    require_changeable(context, id)?;
    require_fields(&sent)?;
    let mask = UpdateMask::of(query);
    let now = Time::from(context.engine().now()).to_string();
    let call = call_id(context, query, body)?;
    let edit = |agents: &mut SavedAgents| {
        let there = agents.get(id).ok_or_else(Problem::not_found)?;
        let mut agent: Map<String, Value> = serde_json::from_str(there.get()).unwrap_or_default();
        update(&mut agent, &sent, &mask);
        agent.insert("updateTime".to_owned(), now.clone().into());
        agents.insert(id.to_owned(), raw_bytes(&to_body(&agent)));
        Ok(())
    };
    change(context, place, call.as_ref(), edit).await
}

pub(super) async fn delete(
    context: &CallContext,
    place: &Place,
    id: &str,
    query: &Query,
) -> Result<(), Problem> {
    require_client(context)?;
    require_changeable(context, id)?;
    let call = call_id(context, query, b"")?;
    let edit = |agents: &mut SavedAgents| {
        let gone = agents.remove(id);
        gone.map(drop).ok_or_else(Problem::not_found)
    };
    change(context, place, call.as_ref(), edit).await
}

async fn change(
    context: &CallContext,
    place: &Place,
    call: Option<&CallId>,
    edit: impl Fn(&mut SavedAgents) -> Result<(), Problem>,
) -> Result<(), Problem> {
    let (engine, caller) = (context.engine(), &context.caller);
    saved_agent::change(engine, caller, by(place), call, edit).await?;
    Ok(())
}

/// Changes the fields of a mask: what was sent, or nothing. Without a mask, every field that was sent.
fn update(agent: &mut Map<String, Value>, sent: &Map<String, Value>, mask: &UpdateMask) {
    const AGENT: &str = "dataAnalyticsAgent";
    let published = |agent: &Map<String, Value>| {
        let agent = agent.get(AGENT)?;
        agent.get("publishedContext").cloned()
    };
    let before = published(agent);
    let all: Vec<String> = sent.keys().cloned().collect();
    for path in mask.paths().unwrap_or(&all) {
        let steps: Vec<&str> = path.split('.').collect();
        if !OUTPUT_ONLY.contains(&steps[0]) {
            set(agent, sent, &steps);
        }
    }
    let has_changed = published(agent) != before;
    let before = before.filter(|_| has_changed);
    if let (Some(before), Some(agent)) = (before, agent.get_mut(AGENT)) {
        agent["lastPublishedContext"] = before;
    }
}

/// Copies the value at a path, or removes it where nothing was sent.
fn set(to: &mut Map<String, Value>, from: &Map<String, Value>, path: &[&str]) {
    let [first, rest @ ..] = path else { return };
    let sent = from.get(*first);
    if rest.is_empty() {
        match sent {
            Some(sent) => to.insert((*first).to_owned(), sent.clone()),
            None => to.remove(*first),
        };
        return;
    }
    let inner = to.entry(*first).or_insert_with(|| json!({}));
    if !inner.is_object() {
        *inner = json!({});
    }
    let empty = Map::new();
    let sent = sent.and_then(Value::as_object).unwrap_or(&empty);
    if let Some(inner) = inner.as_object_mut() {
        set(inner, sent, rest);
    }
}

fn require_changeable(context: &CallContext, id: &str) -> Result<(), Problem> {
    match is_declared(context, id) {
        None => Ok(()),
        Some(name) => {
            let detail =
                format!("`{name}` is declared in the configuration of the server; change it there");
            Err(Problem::invalid(detail).with("path", "name"))
        }
    }
}

fn require_fields(sent: &Map<String, Value>) -> Result<(), Problem> {
    for (field, most) in TEXTS {
        let fits = match sent.get(field) {
            None | Some(Value::Null) => true,
            Some(Value::String(text)) => text.chars().count() <= most,
            Some(_) => false,
        };
        if !fits {
            let detail = format!("`{field}` is a text of at most {most} characters");
            return Err(Problem::invalid(detail).with("path", field));
        }
    }
    match sent.get("dataAnalyticsAgent") {
        None | Some(Value::Object(_)) => Ok(()),
        Some(_) => {
            let detail = "`dataAnalyticsAgent` is an object with `publishedContext`";
            Err(Problem::invalid(detail).with("path", "dataAnalyticsAgent"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(value: Value) -> Map<String, Value> {
        serde_json::from_value(value).expect("an object")
    }

    #[test]
    fn a_mask_changes_its_fields_and_keeps_the_context_before() {
        let uri = "/x?updateMask=dataAnalyticsAgent.publishedContext,description";
        let query = Query::of(&uri.parse().expect("an address")).expect("a query");
        let mut agent = map(json!({
            "displayName": "sales", "description": "old",
            "dataAnalyticsAgent": {"publishedContext": {"systemInstruction": "1"}, "stagingContext": {"a": 1}},
        }));
        let sent = map(json!({
            "displayName": "other",
            "dataAnalyticsAgent": {"publishedContext": {"systemInstruction": "2"}},
        }));
        update(&mut agent, &sent, &UpdateMask::of(&query));
        let expected = json!({
            "displayName": "sales",
            "dataAnalyticsAgent": {
                "publishedContext": {"systemInstruction": "2"},
                "stagingContext": {"a": 1},
                "lastPublishedContext": {"systemInstruction": "1"},
            },
        });
        assert_eq!(Value::Object(agent), expected);
    }
}
