//! From what a person typed to the session that is meant.

use statehold_core::ids::SessionId;

use super::list::{PAGE_MAX, Pages};
use crate::client::Client;
use crate::exit::{Exit, Failure};

/// How many candidates an error names.
const SHOWN_MAX: usize = 10;

/// The whole id of the session that a text means: the id itself, or a prefix of it that only one
/// session of those that the caller sees has.
///
/// # Errors
///
/// With exit code 3 if no session has the prefix, with 2 if several have.
pub(in crate::cli) async fn resolve(client: &Client, text: &str) -> Result<String, Failure> {
    if text.parse::<SessionId>().is_ok() {
        return Ok(text.to_owned());
    }
    let prefix = prefix(text)?;
    let mut found = Vec::new();
    let mut pages = Pages::new(Vec::new());
    while found.len() <= SHOWN_MAX
        && let Some(page) = pages.next(client, PAGE_MAX).await?
    {
        let ids = page.iter().filter_map(|session| session["id"].as_str());
        found.extend(ids.filter(|id| id.starts_with(&prefix)).map(str::to_owned));
    }
    pick(text, found)
}

/// What an id that is meant by a text begins with.
fn prefix(text: &str) -> Result<String, Failure> {
    let digits = text.strip_prefix("ses_").unwrap_or(text);
    let is_prefix = !digits.is_empty()
        && digits.len() <= 32
        && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_prefix {
        Ok(format!("ses_{}", digits.to_ascii_lowercase()))
    } else {
        Err(
            Failure::usage(format!("`{text}` is not the id of a session")).hint(
                "an id looks like ses_0198…; its beginning is enough. See: statehold sessions list",
            ),
        )
    }
}

fn pick(text: &str, mut found: Vec<String>) -> Result<String, Failure> {
    found.sort_unstable();
    found.dedup();
    match found.len() {
        0 => Err(
            Failure::new(Exit::NotFound, format!("no session begins with `{text}`"))
                .hint("see what this key can see with: statehold sessions list"),
        ),
        1 => Ok(found.swap_remove(0)),
        count => {
            let more = if count > SHOWN_MAX { "\n…" } else { "" };
            found.truncate(SHOWN_MAX);
            let mut failure =
                Failure::usage(format!("more than one session begins with `{text}`")).hint(
                    format!("type more of the one you mean:\n{}{more}", found.join("\n")),
                );
            failure.details = Box::new(serde_json::json!({ "candidates": found }));
            Err(failure)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_may_leave_out_the_kind_and_the_case() {
        assert_eq!(prefix("ses_0a").expect("a prefix"), "ses_0a");
        assert_eq!(prefix("0A").expect("a prefix"), "ses_0a");
        for text in ["", "ses_", "tsk_0a", "weekly report", "../x"] {
            assert_eq!(prefix(text).expect_err("no prefix").exit, Exit::Usage);
        }
    }

    #[test]
    fn one_session_is_meant_or_the_error_says_which_could_be() {
        let ids = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect();
        assert_eq!(pick("a", ids(&["ses_a1"])).expect("one"), "ses_a1");
        // A list that changes while it is read may tell one session twice.
        assert_eq!(
            pick("a", ids(&["ses_a1", "ses_a1"])).expect("one"),
            "ses_a1"
        );
        assert_eq!(pick("a", ids(&[])).expect_err("none").exit, Exit::NotFound);
        let several = pick("a", ids(&["ses_a2", "ses_a1"])).expect_err("two");
        assert_eq!(several.exit, Exit::Usage);
        assert!(several.hint.expect("a hint").contains("ses_a1\nses_a2"));
        let many = (0..30).map(|n| format!("ses_a{n:02}")).collect();
        let hint = pick("a", many).expect_err("many").hint.expect("a hint");
        assert_eq!(hint.lines().count(), SHOWN_MAX + 2);
    }
}
