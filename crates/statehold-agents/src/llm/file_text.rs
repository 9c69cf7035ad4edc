//! Files of a message for readers that take only text: the address, the title and the type of each, and the text of
//! a file that is one, up to a limit.

use data_encoding::BASE64;
use statehold_engine::bodies::AttachmentBody;

/// Most bytes of the text of one file, and of the files of one message.
const FILE_TEXT_BYTES_MAX: usize = 64 * 1024;
const FILE_TEXTS_BYTES_MAX: usize = 256 * 1024;
/// Most bytes of a title or a type.
const LABEL_BYTES_MAX: usize = 256;
/// Types of files that are text, beside `text/…`, `…+json` and `…+xml`.
const TEXT_TYPES: [&str; 8] = [
    "application/csv",
    "application/javascript",
    "application/json",
    "application/jsonl",
    "application/sql",
    "application/toml",
    "application/xml",
    "application/yaml",
];

/// A text, and below it each file after a blank line.
pub(super) fn with_files(mut text: String, files: &[AttachmentBody]) -> String {
    let mut told = FileTexts::default();
    for file in files {
        if !text.is_empty() {
            text.push_str("\n\n");
        }
        text.push_str(&told.of(file));
    }
    text
}

/// Writes the files of one message, within the limit of a message.
pub(super) struct FileTexts {
    bytes_left: usize,
}

impl Default for FileTexts {
    fn default() -> Self {
        Self {
            bytes_left: FILE_TEXTS_BYTES_MAX,
        }
    }
}

impl FileTexts {
    /// A line about a file, and its text, if it is one that came with the message.
    pub(super) fn of(&mut self, file: &AttachmentBody) -> String {
        let line = line_about(file);
        let Some(FileText { text, is_whole }) = text_in(file, self.bytes_left) else {
            return line;
        };
        self.bytes_left -= text.len();
        let end = if is_whole {
            "[end of the file]"
        } else {
            "[the rest of the file is left out]"
        };
        format!("{line}\n{text}\n{end}")
    }
}

/// The address, or the title, with what else is known.
fn line_about(file: &AttachmentBody) -> String {
    let address = file.url.as_deref().or(file.reference_url.as_deref());
    let (title, kind) = (label(file.title.as_deref()), label(file.kind.as_deref()));
    let (name, rest) = match (address, title) {
        (Some(address), title) => (address, [title, kind]),
        (None, Some(title)) => (title, [None, kind]),
        (None, None) => ("a file without a name", [None, kind]),
    };
    let rest: Vec<&str> = rest.into_iter().flatten().collect();
    if rest.is_empty() {
        return format!("Attachment: {name}");
    }
    format!("Attachment: {name} ({})", rest.join(", "))
}

/// A title or a type, on one line.
fn label(text: Option<&str>) -> Option<&str> {
    let line = text?.lines().next()?.trim();
    let line = &line[..line.floor_char_boundary(LABEL_BYTES_MAX)];
    (!line.is_empty()).then_some(line)
}

struct FileText {
    text: String,
    is_whole: bool,
}

/// The beginning of the text of a file. None if it is no text, or did not come with the message.
fn text_in(file: &AttachmentBody, bytes_left: usize) -> Option<FileText> {
    let data = file.data.as_deref().filter(|data| !data.is_empty())?;
    is_text_type(file.kind.as_deref()?).then_some(())?;
    let bytes_max = FILE_TEXT_BYTES_MAX.min(bytes_left);
    // Some clients send the text itself.
    let (text, is_whole) = decoded(data, bytes_max).unwrap_or_else(|| {
        let end = data.floor_char_boundary(bytes_max);
        (data[..end].to_owned(), end == data.len())
    });
    let is_text = !text.chars().any(|c| c.is_control() && !c.is_whitespace());
    is_text.then_some(FileText { text, is_whole })
}

/// The beginning of data in base64, if it is that and text. With whether that is all.
fn decoded(data: &str, bytes_max: usize) -> Option<(String, bool)> {
    // Whole groups of four characters, one more than fits: to see whether something follows.
    let end = data.len().min((bytes_max / 3 + 2) * 4);
    let begin = data.get(..end)?;
    let mut bytes = BASE64.decode(begin.as_bytes()).ok()?;
    let is_whole = end == data.len() && bytes.len() <= bytes_max;
    bytes.truncate(bytes_max);
    let text = match String::from_utf8(bytes) {
        Ok(text) => text,
        // Only the last character may have been cut.
        Err(error) if !is_whole && error.utf8_error().error_len().is_none() => {
            let valid = error.utf8_error().valid_up_to();
            let mut bytes = error.into_bytes();
            bytes.truncate(valid);
            String::from_utf8(bytes).ok()?
        }
        Err(_) => return None,
    };
    let is_text = !text.chars().any(|c| c.is_control() && !c.is_whitespace());
    is_text.then_some((text, is_whole))
}

fn is_text_type(kind: &str) -> bool {
    let kind = kind.split(';').next().unwrap_or_default().trim();
    let kind = kind.to_ascii_lowercase();
    kind.starts_with("text/")
        || kind.ends_with("+json")
        || kind.ends_with("+xml")
        || TEXT_TYPES.contains(&kind.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(kind: &str, title: &str, data: &str) -> AttachmentBody {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        AttachmentBody {
            kind: some(kind),
            title: some(title),
            data: some(data),
            ..AttachmentBody::default()
        }
    }

    fn told(file: &AttachmentBody) -> String {
        FileTexts::default().of(file)
    }

    #[test]
    fn a_file_is_told_with_its_address_its_title_and_its_type() {
        let mut whole = file("text/csv", "Sales\nof May", "");
        whole.url = Some("https://files.test/a.csv".to_owned());
        assert_eq!(
            told(&whole),
            "Attachment: https://files.test/a.csv (Sales, text/csv)"
        );
        whole.url = None;
        whole.reference_url = Some("https://files.test/b".to_owned());
        assert_eq!(
            told(&whole),
            "Attachment: https://files.test/b (Sales, text/csv)"
        );
        assert_eq!(told(&file("", "a.pdf", "")), "Attachment: a.pdf");
        assert_eq!(
            told(&file("image/png", "", "AAAA")),
            "Attachment: a file without a name (image/png)"
        );
    }

    #[test]
    fn the_text_of_a_file_is_told_however_its_client_sent_it() {
        let expected = "Attachment: n.txt (text/plain)\nGrüße\n[end of the file]";
        let encoded = BASE64.encode("Grüße".as_bytes());
        assert_eq!(told(&file("text/plain", "n.txt", &encoded)), expected);
        assert_eq!(told(&file("text/plain", "n.txt", "Grüße")), expected);
        let json = told(&file("application/json; charset=utf-8", "n", "{\"a\": 1}"));
        assert!(json.ends_with("\n{\"a\": 1}\n[end of the file]"), "{json}");
        for other in [
            file("application/pdf", "n.pdf", &encoded),
            file("", "n", &encoded),
            file("text/plain", "n", "a\0b"),
        ] {
            assert_eq!(told(&other).lines().count(), 1, "{other:?}");
        }
    }

    #[test]
    fn long_texts_of_files_are_cut_between_characters_and_say_so() {
        let long = "ü".repeat(FILE_TEXT_BYTES_MAX);
        for data in [BASE64.encode(long.as_bytes()), long.clone()] {
            let file = file("text/plain", "n.txt", &data);
            let mut all = FileTexts::default();
            let mut most = 0;
            for _ in 0..8 {
                let told = all.of(&file);
                assert!(told.len() <= FILE_TEXT_BYTES_MAX + 128, "{}", told.len());
                assert!(told.ends_with("[the rest of the file is left out]"));
                most += told.len();
            }
            assert!(most <= FILE_TEXTS_BYTES_MAX + 8 * 128, "{most}");
            assert!(most > FILE_TEXTS_BYTES_MAX / 2, "{most}");
        }
        // A text that fits exactly is whole, one with a byte more is not.
        for (extra, is_whole) in [(0, true), (1, false)] {
            let text = "x".repeat(FILE_TEXT_BYTES_MAX + extra);
            let told = told(&file("text/plain", "n", &BASE64.encode(text.as_bytes())));
            assert_eq!(told.ends_with("[end of the file]"), is_whole, "{extra}");
        }
    }
}
