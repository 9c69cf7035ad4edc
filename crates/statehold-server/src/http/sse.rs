//! Server-sent events: their bytes, and the headers of a stream of them.

use http::{HeaderMap, HeaderValue, header};

/// A comment that keeps an idle connection open.
pub(crate) const KEEP_ALIVE: &[u8] = b": still here\n\n";

/// Writes one event. An event without an id does not move the reader's position.
pub(crate) fn push_event(out: &mut Vec<u8>, event: Option<&str>, id: Option<&str>, data: &[u8]) {
    for (name, value) in [("id", id), ("event", event)] {
        if let Some(value) = value {
            out.extend_from_slice(format!("{name}: {value}\n").as_bytes());
        }
    }
    out.extend_from_slice(b"data: ");
    // A line break would end the event; between JSON tokens a space means the same.
    out.extend(data.iter().map(|byte| match byte {
        b'\n' | b'\r' => b' ',
        other => *other,
    }));
    out.extend_from_slice(b"\n\n");
}

/// Adds the headers of a stream, also the one that stops a proxy from buffering it.
pub(crate) fn set_headers(headers: &mut HeaderMap) {
    let kind = HeaderValue::from_static("text/event-stream");
    headers.insert(header::CONTENT_TYPE, kind);
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
}
