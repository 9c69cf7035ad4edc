//! Small helps for reading what people type.

/// A message without what stands around it: spaces, and the signs at its end.
pub(super) fn bare(text: &str) -> &str {
    text.trim()
        .trim_end_matches(['?', '.', '!', '=', ',', ' '])
        .trim()
}

/// A text without the first words that only lead up to it, as many as there are.
pub(super) fn strip_prefixes<'t>(text: &'t str, prefixes: &[&str]) -> &'t str {
    let mut rest = text.trim_start();
    while let Some(shorter) = prefixes.iter().find_map(|prefix| strip(rest, prefix)) {
        rest = shorter;
    }
    rest
}

/// A text without a first word or phrase, whatever the case. A word that only begins like it stays.
pub(super) fn strip<'t>(text: &'t str, prefix: &str) -> Option<&'t str> {
    let (head, rest) = text.split_at_checked(prefix.len())?;
    let is_whole = rest.is_empty() || rest.starts_with([' ', ',', ':']);
    let is_it = is_whole && head.eq_ignore_ascii_case(prefix);
    is_it.then(|| rest.trim_start_matches([' ', ',', ':']))
}

/// The words of a text in lower case: letters and digits, nothing between them.
pub(super) fn words(text: &str) -> Vec<String> {
    text.split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
        .collect()
}

/// Whether some words stand next to each other among others.
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
