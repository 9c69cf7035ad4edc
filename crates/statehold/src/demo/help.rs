//! The help texts of the demo.

use std::sync::LazyLock;

use regex::Regex;

use super::words::words;

/// Explains the demo to a user whose message matched nothing.
pub(super) const TEXT: &str = "This is a demo: its agents follow rules and use no model. Try \
    \"What's 2+2\", \"What's the square root of 121?\", \"Calculate fibonacci(10)\", \
    \"What's the weather in Paris?\", \"What's the weather in Springfield?\", \"List users\", \
    \"Create user Jean Bartik\" or \"Delete user 7\", which waits for a person.";

/// Messages that look like a decision, as a pattern for the rules of the coordinator.
pub(super) const DECISION_PATTERN: &str = r"(?i)^\W*(yes( please)?|y|ok(ay)?|(i )?approved?( it| by me)?|go ahead|do it|(i )?confirm(ed)?|allow( it)?|accept(ed)?|no|reject(ed)?|den(y|ied))\W*$";

/// The answer to a message that looks like a decision. It decides nothing.
pub(super) fn on_typed_decision(text: &str) -> Option<String> {
    static DECISION: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(DECISION_PATTERN).expect("a fixed pattern is one"));
    let said = words(text).join(" ");
    DECISION.is_match(&said).then(|| {
        format!(
            "A message never decides anything: typing \"{said}\" is not an approval. What waits for a \
             person is listed by: statehold approvals list; decide it by its name, for example: \
             statehold approvals approve R8.h1 (or reject)"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DECISIONS: [&str; 25] = [
        "yes",
        "yes please",
        "y",
        "ok",
        "okay",
        "approve",
        "approved",
        "approve it",
        "i approve",
        "i approve it",
        "approved by me",
        "go ahead",
        "do it",
        "confirm",
        "confirmed",
        "i confirm",
        "allow",
        "allow it",
        "accept",
        "accepted",
        "no",
        "reject",
        "rejected",
        "deny",
        "denied",
    ];

    #[test]
    fn typing_is_never_an_approval_and_the_rule_catches_the_same_messages() {
        let pattern = regex::Regex::new(DECISION_PATTERN).expect("it is one");
        for text in DECISIONS {
            let said = on_typed_decision(text).expect(text);
            assert!(said.contains("not an approval"), "{said}");
            assert!(pattern.is_match(text), "{text}");
        }
        for text in ["Approved!", " YES. ", "\"approve it\""] {
            assert!(on_typed_decision(text).is_some(), "{text}");
            assert!(pattern.is_match(text), "{text}");
        }
        for text in [
            "",
            "no users?",
            "approve of 2+2",
            "yesterday",
            "Delete user 7",
        ] {
            assert_eq!(on_typed_decision(text), None, "{text}");
            assert!(!pattern.is_match(text), "{text}");
        }
    }
}
