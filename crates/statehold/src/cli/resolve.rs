//! Resolves names that people type to ids.
//!
//! Every command accepts a whole id. Shorter forms: a part of the id that matches nothing else, the
//! name of a session, an alias (`T4`, `R8`, `R8.h1`) that is unique among everything the caller may
//! see, or `SESSION/ALIAS`. The client never guesses: an ambiguous name is an error that lists the
//! candidates, also if some of them have long ended. Otherwise the same command could act on
//! another object tomorrow, once the first is gone.

mod spelling;

use std::collections::BTreeMap;

use serde_json::Value;

use super::answers::{ListPages, PAGE_MAX, elements, text};
use crate::client::{Client, with_query};
use crate::exit::{Exit, Failure};
use spelling::{IdPart, alias};

pub(super) use spelling::{IdKind, short};

/// How many candidates an error lists.
const SHOWN_MAX: usize = 10;
/// How many sessions are searched for an alias or a part of an id.
const SESSIONS_MAX: usize = 500;
/// How many decided holds are searched, the newest first.
const DECIDED_MAX: usize = 1_000;
/// The most requests of a tree that the server returns at once.
const TREE_MAX: &str = "1000";

/// An id and its kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ResolvedId {
    pub(super) kind: IdKind,
    pub(super) id: String,
}

/// An object that the name could mean.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct IdCandidate {
    id: String,
    /// An unambiguous name for it.
    exact: String,
    about: String,
}

/// Resolves a session by its id, a part of it, or its name.
///
/// # Errors
///
/// With exit code 3 if there is none, with 2 if there are several.
pub(super) async fn session(client: &Client, typed: &str) -> Result<String, Failure> {
    let part =
        IdPart::parse(typed).filter(|part| part.kind.is_none_or(|kind| kind == IdKind::Session));
    if let Some((_, id)) = part.as_ref().and_then(IdPart::whole) {
        return Ok(id);
    }
    if typed.is_empty() {
        return Err(not_an_id(typed, &[IdKind::Session]));
    }
    // A text that cannot be an id must be a name, which the server can search for.
    let query = part.is_none().then(|| typed.to_owned());
    let mut pages = ListPages::sessions(vec![("q", query)]);
    let mut found = Vec::new();
    while found.len() <= SHOWN_MAX
        && let Some(page) = pages.next(client, PAGE_MAX).await?
    {
        let meant = page.iter().filter(|session| {
            let by_id = |part: &IdPart| part.matches(IdKind::Session, text(session, "id"));
            part.as_ref().is_some_and(by_id) || session["name"] == typed
        });
        found.extend(meant.map(session_candidate));
    }
    pick_one(typed, "session", found)
}

/// Resolves a hold.
///
/// # Errors
///
/// With exit code 3 if there is none, with 2 if there are several.
pub(super) async fn hold(client: &Client, typed: &str) -> Result<String, Failure> {
    let name = typed.rsplit_once('/').map_or(typed, |(_, name)| name);
    if let Some((IdKind::Request, _)) = alias(name) {
        let failure = Failure::usage(format!(
            "`{typed}` is not the name of a hold: it names a request"
        ));
        return Err(failure.hint(format!(
            "its first hold is {typed}.h1; see all with: statehold approvals list"
        )));
    }
    let found = one_of(client, typed, &[IdKind::Hold]).await?;
    Ok(found.id)
}

/// Resolves a task, request, hold or session, limited to the given kinds.
///
/// # Errors
///
/// With exit code 3 if there is none, with 2 if there are several.
pub(super) async fn one_of(
    client: &Client,
    typed: &str,
    kinds: &[IdKind],
) -> Result<ResolvedId, Failure> {
    let (within, name) = match typed.rsplit_once('/') {
        Some((session, name)) => (Some(session), name),
        None => (None, typed),
    };
    let part = IdPart::parse(name);
    if let Some((kind, id)) = part.as_ref().and_then(IdPart::whole) {
        return if kinds.contains(&kind) {
            Ok(ResolvedId { kind, id })
        } else {
            Err(not_an_id(typed, kinds))
        };
    }
    let alias = alias(name).filter(|(kind, _)| kinds.contains(kind));
    let part = part.filter(|part| part.kind.is_none_or(|kind| kinds.contains(&kind)));
    let wanted = match (alias, part) {
        (Some((kind, alias)), _) => IdQuery::Alias(kind, alias),
        (None, Some(part)) => IdQuery::Part(part, name.to_owned()),
        (None, None) if within.is_none() && kinds.contains(&IdKind::Session) => {
            let id = session(client, typed).await?;
            let kind = IdKind::Session;
            return Ok(ResolvedId { kind, id });
        }
        (None, None) => return Err(not_an_id(typed, kinds)),
    };
    let found = find_candidates(client, within, &wanted, kinds).await?;
    let words = kind_words(kinds);
    let id = pick_one(typed, &words, found)?;
    let kind = [IdKind::Session, IdKind::Task, IdKind::Request, IdKind::Hold]
        .into_iter()
        .find(|kind| id.starts_with(kind.prefix()));
    match kind {
        Some(kind) => Ok(ResolvedId { kind, id }),
        None => Err(Failure::new(
            Exit::Failed,
            format!("the server named `{id}`, which this version does not know"),
        )),
    }
}

/// The shortest unambiguous names of holds: the alias alone if it is unique.
#[derive(Debug, Default)]
pub(super) struct HoldNames {
    /// How often each alias occurs.
    counts: BTreeMap<String, usize>,
}

impl HoldNames {
    /// Loads every hold that an alias could mean.
    pub(super) async fn load(client: &Client) -> Result<Self, Failure> {
        Ok(Self::of(&visible_holds(client).await?))
    }

    fn of(holds: &[Value]) -> Self {
        let mut counts = BTreeMap::new();
        for hold in holds {
            *counts.entry(text(hold, "alias").to_owned()).or_default() += 1;
        }
        Self { counts }
    }

    pub(super) fn name(&self, alias: &str, session: &str) -> String {
        if self.counts.get(alias).is_none_or(|count| *count <= 1) {
            alias.to_owned()
        } else {
            format!("{session}/{alias}")
        }
    }
}

/// An alias qualified with its session, as short as possible.
pub(super) fn qualified_alias(session: &str, alias: &str) -> String {
    let short = short(session);
    match short.split_once('…') {
        Some((_, end)) => format!("…{end}/{alias}"),
        None => format!("{short}/{alias}"),
    }
}

/// A name for a hold that means this one later too, as long as it can be typed: `a1b2c3/R8.h1`.
pub(super) fn exact_name(session: &str, alias: &str) -> String {
    let short = short(session);
    match short.split_once('…') {
        Some((_, end)) => format!("{end}/{alias}"),
        None => format!("{short}/{alias}"),
    }
}

/// A parsed name to search for.
#[derive(Debug)]
enum IdQuery {
    Alias(IdKind, String),
    /// A part of an id, which may also be the name of a session.
    Part(IdPart, String),
}

impl IdQuery {
    fn is(&self, kind: IdKind, id: &str, alias: &str) -> bool {
        match self {
            Self::Alias(wanted, name) => *wanted == kind && name == alias,
            Self::Part(part, _) => part.matches(kind, id),
        }
    }

    fn name(&self) -> Option<&str> {
        match self {
            Self::Alias(..) => None,
            Self::Part(_, name) => Some(name),
        }
    }

    fn may_be(&self, kind: IdKind) -> bool {
        match self {
            Self::Alias(wanted, _) => *wanted == kind,
            Self::Part(part, _) => part.kind.is_none_or(|wanted| wanted == kind),
        }
    }
}

async fn find_candidates(
    client: &Client,
    within: Option<&str>,
    wanted: &IdQuery,
    kinds: &[IdKind],
) -> Result<Vec<IdCandidate>, Failure> {
    let may_be = |kind: IdKind| kinds.contains(&kind) && wanted.may_be(kind);
    if let Some(typed) = within {
        // Holds are listed at once; a part of a session's id is looked for in all sessions.
        if kinds == [IdKind::Hold]
            && let Some(part) = IdPart::parse(typed)
        {
            let found = holds_in(client, &part, wanted).await?;
            if !found.is_empty() {
                return Ok(found);
            }
        }
        let found = match session(client, typed).await {
            Ok(session) => find_in_session(client, &session, wanted, kinds).await,
            Err(failure) => Err(failure),
        };
        return match found {
            // A key may see holds without seeing sessions: then match the session id of the holds.
            Err(failure) if failure.exit == Exit::NotAllowed && may_be(IdKind::Hold) => {
                let part = IdPart::parse(typed).ok_or(failure)?;
                holds_in(client, &part, wanted).await
            }
            found => found,
        };
    }
    let mut found = Vec::new();
    if may_be(IdKind::Hold) {
        let holds = visible_holds(client).await?;
        let meant = holds
            .iter()
            .filter(|hold| wanted.is(IdKind::Hold, text(hold, "id"), text(hold, "alias")));
        found.extend(meant.map(hold_candidate));
    }
    if ![IdKind::Session, IdKind::Task, IdKind::Request]
        .into_iter()
        .any(may_be)
    {
        return Ok(found);
    }
    let mut pages = ListPages::sessions(Vec::new());
    let mut seen = 0;
    while found.len() <= SHOWN_MAX
        && let Some(page) = pages.next(client, PAGE_MAX).await?
    {
        for session in &page {
            let id = text(session, "id");
            let name = wanted.name();
            let is_named = name.is_some() && name == session["name"].as_str();
            if may_be(IdKind::Session) && (wanted.is(IdKind::Session, id, "") || is_named) {
                found.push(session_candidate(session));
            }
            if may_be(IdKind::Task) || may_be(IdKind::Request) {
                seen += 1;
                if seen > SESSIONS_MAX {
                    return Err(too_many_sessions());
                }
                let kinds: Vec<IdKind> = kinds
                    .iter()
                    .copied()
                    .filter(|kind| *kind != IdKind::Hold)
                    .collect();
                found.extend(find_in_session(client, id, wanted, &kinds).await?);
            }
            if found.len() > SHOWN_MAX {
                break;
            }
        }
    }
    Ok(found)
}

/// Searches the whole tree of a session.
async fn find_in_session(
    client: &Client,
    session: &str,
    wanted: &IdQuery,
    kinds: &[IdKind],
) -> Result<Vec<IdCandidate>, Failure> {
    let mut found = Vec::new();
    let mut before = None;
    loop {
        let parameters = [
            ("before", before.take()),
            ("limit", Some(TREE_MAX.to_owned())),
        ];
        let path = with_query(&format!("/v1/sessions/{session}/tree"), &parameters);
        let tree = client.get(&path).await?.body;
        let mut look = |kind: IdKind, node: &Value, about: String| {
            let (id, alias) = (text(node, "id"), text(node, "alias"));
            if kinds.contains(&kind) && wanted.is(kind, id, alias) {
                found.push(IdCandidate {
                    id: id.to_owned(),
                    exact: qualified_alias(session, alias),
                    about,
                });
            }
        };
        visit_tree(elements(&tree, "tasks"), &mut look);
        match tree["before"].as_u64() {
            Some(revision) if found.is_empty() => before = Some(revision.to_string()),
            _ => break,
        }
    }
    Ok(found)
}

fn visit_tree(tasks: &[Value], look: &mut impl FnMut(IdKind, &Value, String)) {
    for task in tasks {
        let agent = text(task, "agent");
        look(
            IdKind::Task,
            task,
            format!("{agent}, {}", text(task, "status")),
        );
        for request in elements(task, "requests") {
            look(
                IdKind::Request,
                request,
                format!("{agent}, {}", text(request, "status")),
            );
            for hold in elements(request, "holds") {
                look(IdKind::Hold, hold, text(hold, "status").to_owned());
            }
            visit_tree(elements(request, "tasks"), look);
        }
    }
}

/// The holds with a name in the sessions whose id has a part.
async fn holds_in(
    client: &Client,
    session: &IdPart,
    wanted: &IdQuery,
) -> Result<Vec<IdCandidate>, Failure> {
    let holds = visible_holds(client).await?;
    let meant = holds.iter().filter(|hold| {
        session.matches(IdKind::Session, text(hold, "session_id"))
            && wanted.is(IdKind::Hold, text(hold, "id"), text(hold, "alias"))
    });
    Ok(meant.map(hold_candidate).collect())
}

/// Every open hold that the caller may see, and the newest decided holds.
async fn visible_holds(client: &Client) -> Result<Vec<Value>, Failure> {
    let mut holds = ListPages::holds(Vec::new())
        .take(client, usize::MAX)
        .await?;
    let decided = vec![("status", Some("decided".to_owned()))];
    holds.extend(ListPages::holds(decided).take(client, DECIDED_MAX).await?);
    Ok(holds)
}

fn hold_candidate(hold: &Value) -> IdCandidate {
    let alias = text(hold, "alias");
    IdCandidate {
        id: text(hold, "id").to_owned(),
        exact: exact_name(text(hold, "session_id"), alias),
        about: format!("{}, {}", text(hold, "status"), text(hold, "title")),
    }
}

fn session_candidate(session: &Value) -> IdCandidate {
    let id = text(session, "id");
    let name = session["name"].as_str().unwrap_or("no name");
    IdCandidate {
        id: id.to_owned(),
        exact: id.to_owned(),
        about: format!("{name}, {}", text(session, "user")),
    }
}

fn kind_words(kinds: &[IdKind]) -> String {
    let words: Vec<&str> = kinds.iter().map(|kind| kind.word()).collect();
    words.join(" or ")
}

fn example(kind: IdKind) -> &'static str {
    match kind {
        IdKind::Session => "a session is named by ses_0198…, a beginning of that, or its name",
        IdKind::Task => "a task is named by T4, SESSION/T4 or tsk_0198…",
        IdKind::Request => "a request is named by R8, SESSION/R8 or req_0198…",
        IdKind::Hold => "a hold is named by R8.h1, SESSION/R8.h1 or hld_0198…",
    }
}

fn list_command(what: &str) -> &'static str {
    if what == "hold" {
        "see what this key can see with: statehold approvals list"
    } else {
        "see what this key can see with: statehold sessions list"
    }
}

fn not_an_id(typed: &str, kinds: &[IdKind]) -> Failure {
    let hints: Vec<&str> = kinds.iter().copied().map(example).collect();
    Failure::usage(format!(
        "`{typed}` is not the name of a {}",
        kind_words(kinds)
    ))
    .hint(hints.join("\n"))
}

fn too_many_sessions() -> Failure {
    Failure::usage(format!(
        "there are more than {SESSIONS_MAX} sessions, too many to search"
    ))
    .hint("name the session too: SESSION/T4, or type the whole id")
}

fn pick_one(typed: &str, what: &str, mut found: Vec<IdCandidate>) -> Result<String, Failure> {
    found.sort_unstable();
    // A list that changes while it is read may contain an object twice.
    found.dedup_by(|a, b| a.id == b.id);
    match found.len() {
        0 => Err(
            Failure::new(Exit::NotFound, format!("there is no {what} `{typed}`"))
                .hint(list_command(what)),
        ),
        1 => Ok(found.swap_remove(0).id),
        count => {
            let more = if count > SHOWN_MAX { "\n…" } else { "" };
            found.truncate(SHOWN_MAX);
            let lines: Vec<String> = found
                .iter()
                .map(|one| format!("{}   {}", one.exact, one.about.replace('\n', " ")))
                .collect();
            let ids: Vec<&str> = found.iter().map(|one| one.id.as_str()).collect();
            let details = serde_json::json!({ "candidates": ids });
            let mut failure = Failure::usage(format!("`{typed}` matches more than one {what}"))
                .hint(format!(
                    "type the one you mean:\n{}{more}",
                    lines.join("\n")
                ));
            failure.details = Box::new(details);
            Err(failure)
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn candidates(ids: &[&str]) -> Vec<IdCandidate> {
        let one = |id: &&str| IdCandidate {
            id: (*id).to_owned(),
            exact: (*id).to_owned(),
            about: "a".to_owned(),
        };
        ids.iter().map(one).collect()
    }

    #[test]
    fn one_thing_is_meant_or_the_error_says_which_could_be() {
        let pick = |ids: &[&str]| pick_one("a", "session", candidates(ids));
        assert_eq!(pick(&["ses_a1"]).expect("one"), "ses_a1");
        assert_eq!(pick(&["ses_a1", "ses_a1"]).expect("one"), "ses_a1");
        assert_eq!(pick(&[]).expect_err("none").exit, Exit::NotFound);
        let several = pick(&["ses_a2", "ses_a1"]).expect_err("two");
        assert_eq!(several.exit, Exit::Usage);
        assert!(several.hint.expect("a hint").contains("ses_a1   a\nses_a2"));
        let many: Vec<String> = (0..30).map(|n| format!("ses_a{n:02}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let hint = pick(&many).expect_err("many").hint.expect("a hint");
        assert_eq!(hint.lines().count(), SHOWN_MAX + 2);
    }

    #[test]
    fn an_alias_alone_is_enough_only_while_nothing_else_has_it() {
        let hold = |alias: &str| json!({ "alias": alias });
        let names = HoldNames::of(&[hold("R2.h1"), hold("R2.h1"), hold("R3.h1")]);
        let session = "ses_0198a000000070008000000000a1b2c3";
        assert_eq!(names.name("R3.h1", session), "R3.h1");
        assert_eq!(
            names.name("R2.h1", session),
            "ses_0198a000000070008000000000a1b2c3/R2.h1"
        );
    }

    #[test]
    fn a_tree_is_looked_through_at_every_depth() {
        let tree = json!([{ "id": "tsk_1", "alias": "T1", "requests": [{ "id": "req_1", "alias": "R1", "holds": [],
            "tasks": [{ "id": "tsk_2", "alias": "T2", "requests": [{ "id": "req_2", "alias": "R2", "holds": [{ "id": "hld_1", "alias": "R2.h1" }], "tasks": [] }] }] }] }]);
        let mut seen = Vec::new();
        visit_tree(tree.as_array().expect("a list"), &mut |kind, node, _| {
            seen.push((kind, text(node, "alias").to_owned()));
        });
        let aliases: Vec<&str> = seen.iter().map(|(_, alias)| alias.as_str()).collect();
        assert_eq!(aliases, ["T1", "R1", "T2", "R2", "R2.h1"]);
    }
}
