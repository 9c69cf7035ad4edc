//! Helpers for parsing messages.

/// A message without surrounding spaces and final punctuation.
pub(super) fn bare(text: &str) -> &str {
    text.trim()
        .trim_end_matches(['?', '.', '!', '=', ',', ' '])
        .trim()
}

/// Strips leading phrases, as often as they occur.
pub(super) fn strip_prefixes<'t>(text: &'t str, prefixes: &[&str]) -> &'t str {
    let mut rest = text.trim_start();
    while let Some(shorter) = prefixes.iter().find_map(|prefix| strip(rest, prefix)) {
        rest = shorter;
    }
    rest
}

/// Strips one leading word or phrase, ignoring case. A longer word that begins like it stays.
pub(super) fn strip<'t>(text: &'t str, prefix: &str) -> Option<&'t str> {
    let (head, rest) = text.split_at_checked(prefix.len())?;
    let is_whole = rest.is_empty() || rest.starts_with([' ', ',', ':']);
    let is_it = is_whole && head.eq_ignore_ascii_case(prefix);
    is_it.then(|| rest.trim_start_matches([' ', ',', ':']))
}

/// The words of a text in lower case, without punctuation.
pub(super) fn words(text: &str) -> Vec<String> {
    text.split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
        .collect()
}

/// Whether `phrase` occurs as consecutive words.
pub(super) fn has_phrase(words: &[String], phrase: &[String]) -> bool {
    !phrase.is_empty() && words.windows(phrase.len()).any(|part| part == phrase)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_words_are_stripped() {
        let prefixes = ["now", "what's"];
        assert_eq!(strip_prefixes("Now, what's new", &prefixes), "new");
        assert_eq!(strip_prefixes("nowhere", &prefixes), "nowhere");
        assert_eq!(strip_prefixes("ünow", &prefixes), "ünow");
        assert_eq!(bare("  2+2 = ?!"), "2+2");
    }

    #[test]
    fn phrases_are_found_as_words_and_not_as_letters() {
        let text = words("What's the weather in New York, NY?");
        assert!(has_phrase(&text, &words("new york")));
        assert!(!has_phrase(&text, &words("ew york")));
        assert!(!has_phrase(&text, &words("")));
    }
}
