//! Texts of other services, cleaned for people.

use statehold_core::name::is_deceptive;

/// Removes control and bidirectional characters, and truncates.
pub(crate) fn clean_text(text: &str, bytes_max: usize) -> String {
    let is_hidden = |c: char| c != '\n' && is_deceptive(c);
    let mut clean_text = String::new();
    for c in text.chars().filter(|c| !is_hidden(*c)) {
        if clean_text.len() + c.len_utf8() + '…'.len_utf8() > bytes_max {
            clean_text.push('…');
            break;
        }
        clean_text.push(c);
    }
    clean_text
}
