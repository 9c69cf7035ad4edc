//! Parses messages to `ums-agent`.

use serde_json::Value;

use crate::demo::words::{bare, strip, strip_prefixes, words};

/// The longest name of a user, in bytes.
const NAME_BYTES_MAX: usize = 80;

const COURTESIES: [&str; 8] = [
    "please",
    "now",
    "then",
    "and",
    "ok",
    "can you",
    "could you",
    "i want you to",
];

const ORDINALS: [&str; 12] = [
    "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth",
    "eleventh", "twelfth",
];

/// A parsed message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum UserOrder {
    List,
    Create(String),
    Delete(UserTarget),
    Unknown,
}

/// The user to delete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum UserTarget {
    Id(u64),
    Named(String),
    Placed(ListPosition),
}

/// A position in a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ListPosition {
    /// Counted from the beginning; the first is 0.
    Nth(usize),
    Last,
}

impl ListPosition {
    /// The element at this position.
    pub(super) fn of(self, list: &[Value]) -> Option<&Value> {
        match self {
            Self::Nth(index) => list.get(index),
            Self::Last => list.last(),
        }
    }

    /// For people.
    pub(super) fn words(self) -> String {
        match self {
            Self::Nth(index) => ORDINALS.get(index).map_or_else(
                || format!("number {}", index + 1),
                |word| (*word).to_owned(),
            ),
            Self::Last => "last".to_owned(),
        }
    }
}

/// Parses a message.
pub(super) fn parse_order(text: &str) -> UserOrder {
    let text = strip_prefixes(bare(text), &COURTESIES);
    let first = |verbs: &[&str]| verbs.iter().find_map(|verb| strip(text, verb));
    if let Some(rest) = first(&["delete", "remove"]) {
        return parse_target(rest).map_or(UserOrder::Unknown, UserOrder::Delete);
    }
    if let Some(rest) = first(&["create", "add", "make", "new"]) {
        return parse_new_name(rest).map_or(UserOrder::Unknown, UserOrder::Create);
    }
    let said = words(text);
    let is_about_users = said.iter().any(|word| word == "users" || word == "user");
    let asks = [
        "list", "show", "who", "which", "what", "how", "all", "users",
    ];
    let is_question = said
        .first()
        .is_some_and(|word| asks.contains(&word.as_str()));
    if is_about_users && is_question {
        UserOrder::List
    } else {
        UserOrder::Unknown
    }
}

/// Parses the name in `a user called NAME`.
fn parse_new_name(rest: &str) -> Option<String> {
    let rest = strip_prefixes(rest, &["a", "an", "new", "the"]);
    let name = strip(rest, "user")?;
    let name = strip_prefixes(name, &["called", "named", "with the name", "with name"]);
    let name = name.trim_matches(['"', '\'', '“', '”', ' ']);
    let is_name = !name.is_empty()
        && name.len() <= NAME_BYTES_MAX
        && name.chars().any(char::is_alphanumeric)
        && !name.chars().any(char::is_control);
    is_name.then(|| name.to_owned())
}

fn parse_target(rest: &str) -> Option<UserTarget> {
    let rest = strip(rest, "the").unwrap_or(rest);
    let said = words(rest);
    let said: Vec<&str> = said.iter().map(String::as_str).collect();
    if let [place, ..] = said.as_slice()
        && let Some(place) = parse_position(place)
        && matches!(
            said[1..],
            [] | ["user" | "one"] | ["user", "of" | "in" | "on", ..]
        )
    {
        return Some(UserTarget::Placed(place));
    }
    let named = strip(rest, "user").or_else(|| strip(rest, "users"));
    let after = strip_prefixes(
        named.unwrap_or(rest),
        &[
            "number",
            "no",
            "with id",
            "with the id",
            "id",
            "called",
            "named",
        ],
    );
    let number = after.trim_start_matches('#').trim();
    if let Ok(id) = number.parse() {
        return Some(UserTarget::Id(id));
    }
    // A name counts only after the word "user": "delete everything" names no user.
    let name = named.map(|_| after.trim_matches(['"', '\'', '“', '”', ' ']));
    let name = name.filter(|name| !name.is_empty() && name.len() <= NAME_BYTES_MAX);
    name.map(|name| UserTarget::Named(name.to_owned()))
}

/// Parses `first` to `twelfth`, `1st` and the like, `last`.
fn parse_position(word: &str) -> Option<ListPosition> {
    if word == "last" {
        return Some(ListPosition::Last);
    }
    if let Some(index) = ORDINALS.iter().position(|ordinal| *ordinal == word) {
        return Some(ListPosition::Nth(index));
    }
    let digits = word.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let is_ordinal = matches!(&word[digits.len()..], "st" | "nd" | "rd" | "th");
    let number: usize = digits.parse().ok().filter(|_| is_ordinal)?;
    Some(ListPosition::Nth(number.checked_sub(1)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, meant: &UserOrder) {
        assert_eq!(parse_order(text), *meant, "{text}");
    }

    #[test]
    fn lists_are_asked_for_in_many_ways() {
        for text in [
            "List users",
            "list all users, please",
            "Please show the users",
            "Who are the users?",
            "users",
            "How many users are there?",
        ] {
            check(text, &UserOrder::List);
        }
        check("Hello", &UserOrder::Unknown);
    }

    #[test]
    fn names_of_new_users_are_taken_as_they_are_written() {
        let jean = UserOrder::Create("Jean Bartik".to_owned());
        check("Create user Jean Bartik", &jean);
        check("add a new user called \"Jean Bartik\"", &jean);
        check("Could you create a user named Jean Bartik?", &jean);
        check("create user", &UserOrder::Unknown);
        check("create user !!", &UserOrder::Unknown);
        check(
            &format!("create user {}", "x".repeat(81)),
            &UserOrder::Unknown,
        );
    }

    #[test]
    fn who_is_to_be_deleted_is_a_number_a_name_or_a_place() {
        let seven = UserOrder::Delete(UserTarget::Id(7));
        check("Delete user 7", &seven);
        check("delete user #7.", &seven);
        check("Please remove the user with id 7", &seven);
        check("delete 7", &seven);
        let first = UserOrder::Delete(UserTarget::Placed(ListPosition::Nth(0)));
        check("Delete the first user", &first);
        check("Delete first user", &first);
        check("delete the 1st one", &first);
        check("delete the first user of the list", &first);
        check(
            "remove the last user",
            &UserOrder::Delete(UserTarget::Placed(ListPosition::Last)),
        );
        let ada = UserOrder::Delete(UserTarget::Named("Ada Lovelace".to_owned()));
        check("Delete user Ada Lovelace", &ada);
        check("delete everything", &UserOrder::Unknown);
        check("delete the 0th user", &UserOrder::Unknown);
        check("delete user", &UserOrder::Unknown);
    }
}
