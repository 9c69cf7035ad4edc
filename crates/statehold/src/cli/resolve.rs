//! From what a person typed to the one thing that is meant.
//!
//! Everything has a whole id, and every place takes it. Shorter: a part of the id that nothing else
//! has, the name of a session, an alias (`T4`, `R8`, `R8.h1`) that is used once among everything the
//! caller may see, or `SESSION/ALIAS`. Nothing is guessed: what could mean two things is an error
//! that names both, also if one of them is long over. A command that acts must not act on another
//! thing tomorrow because the first is gone.

mod spelling;

use std::collections::BTreeMap;

use serde_json::Value;

use super::answers::{PAGE_MAX, Pages, elements, text};
use crate::client::{Client, with_query};
use crate::exit::{Exit, Failure};
use spelling::{Part, alias};

pub(super) use spelling::{Kind, short};

/// How many candidates an error names.
const SHOWN_MAX: usize = 10;
/// How many sessions are looked through for an alias or a part of an id.
const SESSIONS_MAX: usize = 500;
/// How many decided holds are looked through, the newest first.
const DECIDED_MAX: usize = 1_000;
/// The most requests of a tree that a server gives at once.
const TREE_MAX: &str = "1000";

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) kind: Kind,
    pub(super) id: String,
}

/// Something that could be meant.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    id: String,
    /// How to type it so that nothing else is meant.
    exact: String,
    about: String,
}

/// The whole id of the session that a text means: its id, a part of it, or its name.
///
/// # Errors
///
/// With exit code 3 if there is none, with 2 if there are several.
pub(super) async fn session(client: &Client, typed: &str) -> Result<String, Failure> {
    let part = Part::parse(typed).filter(|part| part.kind.is_none_or(|kind| kind == Kind::Session));
    if let Some((_, id)) = part.as_ref().and_then(Part::whole) {
        return Ok(id);
    }
    if typed.is_empty() {
        return Err(not_an_id(typed, &[Kind::Session]));
    }
    // What cannot be an id can only be a name, and the server can look for that.
    let query = part.is_none().then(|| typed.to_owned());
    let mut pages = Pages::sessions(vec![("q", query)]);
    let mut found = Vec::new();
    while found.len() <= SHOWN_MAX
        && let Some(page) = pages.next(client, PAGE_MAX).await?
    {
        let meant = page.iter().filter(|session| {
            let by_id = |part: &Part| part.matches(Kind::Session, text(session, "id"));
            part.as_ref().is_some_and(by_id) || session["name"] == typed
        });
        found.extend(meant.map(session_candidate));
    }
    pick(typed, "session", found)
}

/// The whole id of the hold that a text means.
///
/// # Errors
///
/// With exit code 3 if there is none, with 2 if there are several.
pub(super) async fn hold(client: &Client, typed: &str) -> Result<String, Failure> {
    let found = thing(client, typed, &[Kind::Hold]).await?;
    Ok(found.id)
}

/// The task, request, hold or session that a text means, of those kinds that make sense.
///
/// # Errors
///
/// With exit code 3 if there is none, with 2 if there are several.
pub(super) async fn thing(client: &Client, typed: &str, kinds: &[Kind]) -> Result<Found, Failure> {
    let (within, name) = match typed.rsplit_once('/') {
        Some((session, name)) => (Some(session), name),
        None => (None, typed),
    };
    let part = Part::parse(name);
    if let Some((kind, id)) = part.as_ref().and_then(Part::whole) {
        return if kinds.contains(&kind) {
            Ok(Found { kind, id })
        } else {
            Err(not_an_id(typed, kinds))
        };
    }
    let alias = alias(name).filter(|(kind, _)| kinds.contains(kind));
    let part = part.filter(|part| part.kind.is_none_or(|kind| kinds.contains(&kind)));
    let wanted = match (alias, part) {
        (Some((kind, alias)), _) => Wanted::Alias(kind, alias),
        (None, Some(part)) => Wanted::Part(part, name.to_owned()),
        (None, None) if within.is_none() && kinds.contains(&Kind::Session) => {
            let id = session(client, typed).await?;
            let kind = Kind::Session;
            return Ok(Found { kind, id });
        }
        (None, None) => return Err(not_an_id(typed, kinds)),
    };
    let found = search(client, within, &wanted, kinds).await?;
    let words = words(kinds);
    let id = pick(typed, &words, found)?;
    let kind = [Kind::Session, Kind::Task, Kind::Request, Kind::Hold]
        .into_iter()
        .find(|kind| id.starts_with(kind.prefix()));
    match kind {
        Some(kind) => Ok(Found { kind, id }),
        None => Err(Failure::new(
            Exit::Failed,
            format!("the server named `{id}`, which this version does not know"),
        )),
    }
}

/// How holds are called so that only they are meant: by their alias if nothing else has it.
#[derive(Debug, Default)]
pub(super) struct HoldNames {
    /// How often each alias is used.
    counts: BTreeMap<String, usize>,
}

impl HoldNames {
    /// Looks at every hold that an alias is looked for in.
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
            within_session(session, alias)
        }
    }
}

/// An alias together with its session, as short as it can be typed.
pub(super) fn within_session(session: &str, alias: &str) -> String {
    let short = short(session);
    match short.split_once('…') {
        Some((_, end)) => format!("…{end}/{alias}"),
        None => format!("{short}/{alias}"),
    }
}

/// What is looked for.
#[derive(Debug)]
enum Wanted {
    Alias(Kind, String),
    /// A part of an id, which may also be the name of a session.
    Part(Part, String),
}

impl Wanted {
    fn is(&self, kind: Kind, id: &str, alias: &str) -> bool {
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

    fn may_be(&self, kind: Kind) -> bool {
        match self {
            Self::Alias(wanted, _) => *wanted == kind,
            Self::Part(part, _) => part.kind.is_none_or(|wanted| wanted == kind),
        }
    }
}

async fn search(
    client: &Client,
    within: Option<&str>,
    wanted: &Wanted,
    kinds: &[Kind],
) -> Result<Vec<Candidate>, Failure> {
    let may_be = |kind: Kind| kinds.contains(&kind) && wanted.may_be(kind);
    if let Some(typed) = within {
        let session = match session(client, typed).await {
            Ok(session) => session,
            // Who decides may see holds without seeing sessions: then the holds say which.
            Err(failure) if failure.exit == Exit::NotAllowed && may_be(Kind::Hold) => {
                let holds = visible_holds(client).await?;
                let part = Part::parse(typed).ok_or(failure)?;
                let meant = holds.iter().filter(|hold| {
                    part.matches(Kind::Session, text(hold, "session_id"))
                        && wanted.is(Kind::Hold, text(hold, "id"), text(hold, "alias"))
                });
                return Ok(meant.map(hold_candidate).collect());
            }
            Err(failure) => return Err(failure),
        };
        return in_session(client, &session, wanted, kinds).await;
    }
    let mut found = Vec::new();
    if may_be(Kind::Hold) {
        let holds = visible_holds(client).await?;
        let meant = holds
            .iter()
            .filter(|hold| wanted.is(Kind::Hold, text(hold, "id"), text(hold, "alias")));
        found.extend(meant.map(hold_candidate));
    }
    if ![Kind::Session, Kind::Task, Kind::Request]
        .into_iter()
        .any(may_be)
    {
        return Ok(found);
    }
    let mut pages = Pages::sessions(Vec::new());
    let mut seen = 0;
    while found.len() <= SHOWN_MAX
        && let Some(page) = pages.next(client, PAGE_MAX).await?
    {
        for session in &page {
            let id = text(session, "id");
            let name = wanted.name();
            let is_named = name.is_some() && name == session["name"].as_str();
            if may_be(Kind::Session) && (wanted.is(Kind::Session, id, "") || is_named) {
                found.push(session_candidate(session));
            }
            if may_be(Kind::Task) || may_be(Kind::Request) {
                seen += 1;
                if seen > SESSIONS_MAX {
                    return Err(too_many_sessions());
                }
                let kinds: Vec<Kind> = kinds
                    .iter()
                    .copied()
                    .filter(|kind| *kind != Kind::Hold)
                    .collect();
                found.extend(in_session(client, id, wanted, &kinds).await?);
            }
            if found.len() > SHOWN_MAX {
                break;
            }
        }
    }
    Ok(found)
}

/// Looks through the whole tree of a session.
async fn in_session(
    client: &Client,
    session: &str,
    wanted: &Wanted,
    kinds: &[Kind],
) -> Result<Vec<Candidate>, Failure> {
    let mut found = Vec::new();
    let mut before = None;
    loop {
        let parameters = [
            ("before", before.take()),
            ("limit", Some(TREE_MAX.to_owned())),
        ];
        let path = with_query(&format!("/v1/sessions/{session}/tree"), &parameters);
        let tree = client.get(&path).await?.body;
        let mut look = |kind: Kind, node: &Value, about: String| {
            let (id, alias) = (text(node, "id"), text(node, "alias"));
            if kinds.contains(&kind) && wanted.is(kind, id, alias) {
                found.push(Candidate {
                    id: id.to_owned(),
                    exact: within_session(session, alias),
                    about,
                });
            }
        };
        walk(elements(&tree, "tasks"), &mut look);
        match tree["before"].as_u64() {
            Some(revision) if found.is_empty() => before = Some(revision.to_string()),
            _ => break,
        }
    }
    Ok(found)
}

fn walk(tasks: &[Value], look: &mut impl FnMut(Kind, &Value, String)) {
    for task in tasks {
        let agent = text(task, "agent");
        look(
            Kind::Task,
            task,
            format!("{agent}, {}", text(task, "status")),
        );
        for request in elements(task, "requests") {
            look(
                Kind::Request,
                request,
                format!("{agent}, {}", text(request, "status")),
            );
            for hold in elements(request, "holds") {
                look(Kind::Hold, hold, text(hold, "status").to_owned());
            }
            walk(elements(request, "tasks"), look);
        }
    }
}

/// Every open hold that the caller may see, and the newest of those that were decided.
async fn visible_holds(client: &Client) -> Result<Vec<Value>, Failure> {
    let mut holds = Pages::holds(Vec::new()).take(client, usize::MAX).await?;
    let decided = vec![("status", Some("decided".to_owned()))];
    holds.extend(Pages::holds(decided).take(client, DECIDED_MAX).await?);
    Ok(holds)
}

fn hold_candidate(hold: &Value) -> Candidate {
    let alias = text(hold, "alias");
    Candidate {
        id: text(hold, "id").to_owned(),
        exact: within_session(text(hold, "session_id"), alias),
        about: format!("{}, {}", text(hold, "status"), text(hold, "title")),
    }
}

fn session_candidate(session: &Value) -> Candidate {
    let id = text(session, "id");
    let name = session["name"].as_str().unwrap_or("no name");
    Candidate {
        id: id.to_owned(),
        exact: id.to_owned(),
        about: format!("{name}, {}", text(session, "user")),
    }
}

fn words(kinds: &[Kind]) -> String {
    let words: Vec<&str> = kinds.iter().map(|kind| kind.word()).collect();
    words.join(" or ")
}

fn example(kind: Kind) -> &'static str {
    match kind {
        Kind::Session => "a session is named by ses_0198…, a beginning of that, or its name",
        Kind::Task => "a task is named by T4, SESSION/T4 or tsk_0198…",
        Kind::Request => "a request is named by R8, SESSION/R8 or req_0198…",
        Kind::Hold => "a hold is named by R8.h1, SESSION/R8.h1 or hld_0198…",
    }
}

fn list_command(what: &str) -> &'static str {
    if what == "hold" {
        "see what this key can see with: statehold approvals list"
    } else {
        "see what this key can see with: statehold sessions list"
    }
}

fn not_an_id(typed: &str, kinds: &[Kind]) -> Failure {
    let hints: Vec<&str> = kinds.iter().copied().map(example).collect();
    Failure::usage(format!("`{typed}` is not the name of a {}", words(kinds)))
        .hint(hints.join("\n"))
}

fn too_many_sessions() -> Failure {
    Failure::usage(format!(
        "there are more than {SESSIONS_MAX} sessions, too many to look through"
    ))
    .hint("say which session is meant: SESSION/T4, or type the whole id")
}

fn pick(typed: &str, what: &str, mut found: Vec<Candidate>) -> Result<String, Failure> {
    found.sort_unstable();
    // A list that changes while it is read may tell one thing twice.
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
            let mut failure = Failure::usage(format!("`{typed}` is more than one {what}")).hint(
                format!("type the one you mean:\n{}{more}", lines.join("\n")),
            );
            failure.details = Box::new(details);
            Err(failure)
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn candidates(ids: &[&str]) -> Vec<Candidate> {
        let one = |id: &&str| Candidate {
            id: (*id).to_owned(),
            exact: (*id).to_owned(),
            about: "a".to_owned(),
        };
        ids.iter().map(one).collect()
    }

    #[test]
    fn one_thing_is_meant_or_the_error_says_which_could_be() {
        let pick = |ids: &[&str]| pick("a", "session", candidates(ids));
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
        assert_eq!(names.name("R2.h1", session), "…a1b2c3/R2.h1");
    }

    #[test]
    fn a_tree_is_looked_through_at_every_depth() {
        let tree = json!([{ "id": "tsk_1", "alias": "T1", "requests": [{ "id": "req_1", "alias": "R1", "holds": [],
            "tasks": [{ "id": "tsk_2", "alias": "T2", "requests": [{ "id": "req_2", "alias": "R2", "holds": [{ "id": "hld_1", "alias": "R2.h1" }], "tasks": [] }] }] }] }]);
        let mut seen = Vec::new();
        walk(tree.as_array().expect("a list"), &mut |kind, node, _| {
            seen.push((kind, text(node, "alias").to_owned()));
        });
        let aliases: Vec<&str> = seen.iter().map(|(_, alias)| alias.as_str()).collect();
        assert_eq!(aliases, ["T1", "R1", "T2", "R2", "R2.h1"]);
    }
}
