//! Files of a chat message.

use serde::{Deserialize, Serialize};
use statehold_engine::bodies::AttachmentBody;
use utoipa::ToSchema;

/// A file beside the content of a message. Other fields are ignored.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = ChatMessageFile)]
pub(crate) struct AttachmentIn {
    /// The media type.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    kind: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    title: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    url: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reference_type: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reference_url: Option<String>,
    /// The bytes, as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    data: Option<String>,
}

impl AttachmentIn {
    pub(crate) fn to_file(&self) -> AttachmentBody {
        let file = self.clone();
        AttachmentBody {
            kind: file.kind,
            title: file.title,
            url: file.url,
            reference_type: file.reference_type,
            reference_url: file.reference_url,
            data: file.data,
        }
    }
}

/// An image behind an address.
#[derive(Debug, Deserialize)]
pub(crate) struct ImageIn {
    url: String,
    /// How closely a model should look at it.
    pub(crate) detail: Option<String>,
}

/// A file with its data.
#[derive(Debug, Deserialize)]
pub(crate) struct FileIn {
    filename: Option<String>,
    file_data: Option<String>,
}

impl ImageIn {
    pub(crate) fn into_file(self) -> AttachmentBody {
        match inline(&self.url) {
            Some((kind, data)) => AttachmentBody {
                kind: Some(kind.to_owned()).filter(|kind| !kind.is_empty()),
                data: Some(data.to_owned()),
                ..AttachmentBody::default()
            },
            None => linked(self.url, None),
        }
    }
}

/// A file behind an address.
fn linked(url: String, title: Option<String>) -> AttachmentBody {
    AttachmentBody {
        title,
        url: Some(url),
        ..AttachmentBody::default()
    }
}

impl FileIn {
    /// The file, or the mistake in it.
    pub(crate) fn into_file(self) -> Result<AttachmentBody, &'static str> {
        let Some(sent) = self.file_data else {
            return Err("has a `file` without `file_data`; send its data");
        };
        let (kind, data) = match inline(&sent) {
            Some((kind, data)) => (Some(kind).filter(|kind| !kind.is_empty()), data),
            None if sent.starts_with("data:") => return Ok(linked(sent, self.filename)),
            None => (None, sent.as_str()),
        };
        if !is_base64(data) {
            return Err(
                "has a `file` whose `file_data` is not base64; send its bytes in base64, as they are \
                 or as `data:TYPE;base64,…`",
            );
        }
        let known = self.filename.as_deref().and_then(kind_of);
        Ok(AttachmentBody {
            kind: kind.or(known).map(str::to_owned),
            data: Some(data.to_owned()),
            title: self.filename,
            ..AttachmentBody::default()
        })
    }
}

/// The type and the bytes of an address that holds them.
fn inline(url: &str) -> Option<(&str, &str)> {
    url.strip_prefix("data:")?.split_once(";base64,")
}

/// Whether a text is bytes in base64, padded or not.
fn is_base64(text: &str) -> bool {
    let bare = text.trim_end_matches('=');
    let padding = text.len() - bare.len();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'+' || byte == b'/';
    let is_whole = match padding {
        0 => bare.len() % 4 != 1,
        1 | 2 => text.len().is_multiple_of(4),
        _ => false,
    };
    !bare.is_empty() && is_whole && bare.bytes().all(is_plain)
}

/// The media type that the name of a file tells.
fn kind_of(name: &str) -> Option<&'static str> {
    let (_, ending) = name.rsplit_once('.')?;
    Some(match ending.to_ascii_lowercase().as_str() {
        "pdf" => "application/pdf",
        "json" => "application/json",
        "xml" => "application/xml",
        "zip" => "application/zip",
        "doc" => "application/msword",
        "docx" => "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
        "xls" => "application/vnd.ms-excel",
        "xlsx" => "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
        "ppt" => "application/vnd.ms-powerpoint",
        "pptx" => "application/vnd.openxmlformats-officedocument.presentationml.presentation",
        "txt" | "log" => "text/plain",
        "md" => "text/markdown",
        "csv" => "text/csv",
        "htm" | "html" => "text/html",
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "webp" => "image/webp",
        "svg" => "image/svg+xml",
        "mp3" => "audio/mpeg",
        "wav" => "audio/wav",
        "mp4" => "video/mp4",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: Option<&str>, data: &str) -> Result<AttachmentBody, &'static str> {
        let sent = FileIn {
            filename: name.map(str::to_owned),
            file_data: Some(data.to_owned()),
        };
        sent.into_file()
    }

    #[test]
    fn data_without_an_address_is_the_bytes() {
        let kept = |name, data| {
            let file = file(name, data).expect("a file");
            assert_eq!(file.url, None);
            (file.kind, file.data)
        };
        let data = || Some("JVBERg==".to_owned());
        let pdf = Some("application/pdf".to_owned());
        assert_eq!(kept(Some("a.PDF"), "JVBERg=="), (pdf.clone(), data()));
        assert_eq!(kept(Some("a.unknown"), "JVBERg=="), (None, data()));
        assert_eq!(kept(None, "JVBERg=="), (None, data()));
        let sent = "data:application/pdf;base64,JVBERg==";
        assert_eq!(kept(Some("a.txt"), sent), (pdf, data()));
        let sent = "data:;base64,JVBERg==";
        let text = Some("text/plain".to_owned());
        assert_eq!(kept(Some("a.txt"), sent), (text, data()));
    }

    #[test]
    fn what_is_no_base64_is_no_file() {
        for data in [
            "",
            "====",
            "A",
            "AAAAA",
            "AA=",
            "A===",
            "AA=A",
            "AA AA",
            "AA-_",
            "https://x.test/a.pdf",
            "data:text/plain;base64,not base64",
        ] {
            assert!(file(Some("a.txt"), data).is_err(), "{data}");
        }
        for data in ["AA", "AAA", "AAAA", "AA==", "AAA=", "+/+/"] {
            assert!(file(None, data).is_ok(), "{data}");
        }
    }
}
