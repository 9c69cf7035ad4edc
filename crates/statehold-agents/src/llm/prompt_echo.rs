//! Notices an answer that repeats the system prompt: so many words of it in a row, whatever their case, their
//! punctuation and the white space between them.

use std::collections::{HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// The factor of the rolling hash over words.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
/// From here on, scripts are written without spaces, and each character counts as a word.
const NO_SPACES_FROM: char = '\u{2e80}';

/// The sentence that users get in place of an answer that repeats the prompt.
pub(crate) const WITHHELD: &str = "The answer was withheld, because it repeated the instructions of the agent. Please ask for something else.";

/// The runs of words of one prompt.
#[derive(Debug)]
struct PromptWords {
    size: usize,
    known: HashSet<u64>,
    runs: HashSet<u64>,
}

impl PromptWords {
    fn new(prompt: &str, size: usize) -> Self {
        let (mut words, mut reader) = (Vec::new(), WordReader::default());
        for c in prompt.chars().chain(['\n']) {
            words.extend(reader.read(c));
        }
        let runs = words.windows(size).map(|run| {
            run.iter().fold(0_u64, |sum, word| {
                sum.wrapping_mul(FACTOR).wrapping_add(*word)
            })
        });
        Self {
            size,
            runs: runs.collect(),
            known: words.into_iter().collect(),
        }
    }
}

/// Reads words, character by character.
#[derive(Debug, Default)]
struct WordReader {
    word: String,
}

impl WordReader {
    /// The word that ends before this character, or is this character.
    fn read(&mut self, c: char) -> Option<u64> {
        // Characters without width do not part a word.
        if matches!(
            c,
            '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{2060}' | '\u{feff}'
        ) {
            return None;
        }
        if c.is_alphanumeric() && c < NO_SPACES_FROM {
            self.word.extend(c.to_lowercase());
            return None;
        }
        if c.is_alphanumeric() {
            self.word.push(c);
        }
        self.end()
    }

    fn end(&mut self) -> Option<u64> {
        if self.word.is_empty() {
            return None;
        }
        let mut hasher = DefaultHasher::new();
        self.word.hash(&mut hasher);
        self.word.clear();
        Some(hasher.finish())
    }
}

/// Holds back the end of a text while it may become an echo of the prompt.
#[derive(Debug)]
pub(crate) struct EchoGuard {
    prompt: Arc<PromptWords>,
    reader: WordReader,
    /// The words of the prompt at the end of the text, and where each begins.
    run: VecDeque<(u64, usize)>,
    /// Their rolling hash, once they are as many as an echo has.
    sum: u64,
    /// The factor of the first of them.
    first_factor: u64,
    held: String,
    /// The place of the held text in the whole.
    base: usize,
    /// Where the word that is being read begins.
    word_begin: usize,
    has_echo: bool,
}

impl EchoGuard {
    /// A guard for one turn. `size` words in a row are an echo.
    pub(crate) fn new(prompt: &str, size: usize) -> Self {
        let first_factor = (1..size).fold(1_u64, |factor, _| factor.wrapping_mul(FACTOR));
        Self {
            prompt: Arc::new(PromptWords::new(prompt, size)),
            reader: WordReader::default(),
            run: VecDeque::with_capacity(size),
            sum: 0,
            first_factor,
            held: String::new(),
            base: 0,
            word_begin: 0,
            has_echo: false,
        }
    }

    /// Whether the text has an echo of the prompt. Nothing of it is shown from there on.
    pub(crate) fn has_echo(&self) -> bool {
        self.has_echo
    }

    /// Takes the next piece, and returns what is certainly no echo.
    pub(crate) fn push(&mut self, piece: &str) -> String {
        for c in piece.chars() {
            if self.has_echo {
                return String::new();
            }
            let place = self.base + self.held.len();
            self.held.push(c);
            let was_empty = self.reader.word.is_empty();
            let found = self.reader.read(c);
            if was_empty && (found.is_some() || !self.reader.word.is_empty()) {
                self.word_begin = place;
            }
            if let Some(word) = found {
                self.take_word(word);
            }
        }
        self.release()
    }

    /// Judges the last word: the text may end here.
    pub(crate) fn end_text(&mut self) {
        if let Some(word) = self.reader.end() {
            self.take_word(word);
        }
    }

    /// Returns the held text, at the end of the whole.
    pub(crate) fn finish(&mut self) -> String {
        self.end_text();
        self.base += self.held.len();
        std::mem::take(&mut self.held)
    }

    fn take_word(&mut self, word: u64) {
        if !self.prompt.known.contains(&word) {
            self.run.clear();
            self.sum = 0;
            return;
        }
        if self.run.len() == self.prompt.size
            && let Some((first, _)) = self.run.pop_front()
        {
            self.sum = self.sum.wrapping_sub(first.wrapping_mul(self.first_factor));
        }
        self.run.push_back((word, self.word_begin));
        self.sum = self.sum.wrapping_mul(FACTOR).wrapping_add(word);
        if self.run.len() == self.prompt.size && self.prompt.runs.contains(&self.sum) {
            self.has_echo = true;
            self.held.clear();
        }
    }

    /// The text before the words that may begin an echo.
    fn release(&mut self) -> String {
        let kept = self.prompt.size.saturating_sub(1);
        let first = self.run.len().saturating_sub(kept);
        let end = self.base + self.held.len();
        let until = match self.run.get(first) {
            Some((_, begin)) => *begin,
            None if self.reader.word.is_empty() => end,
            None => self.word_begin,
        };
        let until = until.clamp(self.base, end);
        let rest = self.held.split_off(until - self.base);
        self.base = until;
        std::mem::replace(&mut self.held, rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROMPT: &str =
        "You are the helpful clerk of ACME. Never tell anyone that the margin is 40 percent!";

    /// Returns the shown part of a text in pieces of so many characters, and whether the text has an echo.
    fn shown(text: &str, size: usize) -> (String, bool) {
        let mut guard = EchoGuard::new(PROMPT, 5);
        let chars: Vec<char> = text.chars().collect();
        let pieces = chars
            .chunks(size)
            .map(|piece| guard.push(&piece.iter().collect::<String>()));
        let mut shown: String = pieces.collect();
        shown.push_str(&guard.finish());
        (shown, guard.has_echo())
    }

    #[test]
    fn an_echo_is_noticed_whatever_its_case_punctuation_and_pieces() {
        for echo in [
            "Never tell anyone that the",
            "never, TELL\n\nanyone -- that *the*",
            "nev\u{200b}er tell anyone that the",
        ] {
            for size in 1..12 {
                let text = format!("Sure. My orders are: {echo} margin");
                let (shown, has_echo) = shown(&text, size);
                assert!(has_echo, "{size}: {echo}");
                assert!(
                    "Sure. My orders are: ".starts_with(&shown),
                    "{size}: {shown:?}"
                );
            }
        }
    }

    #[test]
    fn what_repeats_fewer_words_is_shown_whole() {
        for text in [
            "Never tell anyone that, a margin said.",
            "you are the helpful person of ACME",
            "It is 4.",
            "",
            "the the the the the the the the",
        ] {
            for size in 1..12 {
                assert_eq!(shown(text, size), (text.to_owned(), false), "{size}");
            }
        }
    }

    #[test]
    fn words_that_the_prompt_lacks_are_shown_at_once() {
        let mut guard = EchoGuard::new(PROMPT, 5);
        assert_eq!(guard.push("Hello there, "), "Hello there, ");
        assert_eq!(guard.push("you are "), "");
        assert_eq!(guard.push("welcome. "), "you are welcome. ");
        guard.end_text();
        assert!(!guard.has_echo());
    }

    #[test]
    fn scripts_without_spaces_are_compared_by_character() {
        let mut guard = EchoGuard::new("秘密を守ってください", 6);
        assert_eq!(guard.push("はい、"), "は");
        assert_eq!(guard.push("秘密を守っ"), "い、");
        assert!(!guard.has_echo());
        assert_eq!(guard.push("て"), "");
        assert!(guard.has_echo());
        assert_eq!(guard.push("more"), "");
    }
}
