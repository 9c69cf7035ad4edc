//! Reads a response as it arrives, as one JSON body or as an event stream.

use std::time::Duration;

use super::envelope::ReplyEnvelope;
use super::reply::{AssembledReply, ReplyAssembly};
use crate::http::{EndpointError, ServiceResponse};
use crate::sse;

/// How long to keep reading after the answer is complete. Some services store the conversation only
/// after the last event, and not if the client has disconnected.
const TRAILING_MAX: Duration = Duration::from_secs(5);

/// Last event of a stream.
const DONE: &str = "[DONE]";

enum BodyForm {
    Json,
    Events,
}

/// Reads a response to its end. Passes new text to `on_text`.
pub(crate) async fn read_answer(
    answer: &mut ServiceResponse<'_>,
    on_text: &mut (dyn FnMut(&str) + Send),
) -> Result<AssembledReply, EndpointError> {
    let mut head = Vec::new();
    let form = loop {
        if let Some(form) = detect_form(&head, answer.is_stream())? {
            break form;
        }
        match answer.next_chunk().await? {
            Some(chunk) => head.extend_from_slice(&chunk),
            None if answer.is_stream() => return Err(EndpointError::CutOff),
            None => return Err(EndpointError::Malformed("it is empty")),
        }
    };
    match form {
        BodyForm::Json => read_whole(answer, head, on_text).await,
        BodyForm::Events => read_events(answer, &head, on_text).await,
    }
}

/// Detects the form from the first bytes, because the content type is not reliable. None if more bytes
/// are needed.
fn detect_form(head: &[u8], is_stream: bool) -> Result<Option<BodyForm>, EndpointError> {
    const MARK: &[u8] = "\u{feff}".as_bytes();
    const FIELDS: [&[u8]; 4] = [b":", b"data:", b"event:", b"id:"];
    let head = head.strip_prefix(MARK).unwrap_or(head);
    let text = head.trim_ascii_start();
    if text.is_empty() || (MARK.starts_with(text) && !MARK.eq(text)) {
        return Ok(None);
    }
    if text.starts_with(b"{") {
        return Ok(Some(BodyForm::Json));
    }
    if is_stream || FIELDS.iter().any(|field| text.starts_with(field)) {
        return Ok(Some(BodyForm::Events));
    }
    if FIELDS.iter().any(|field| field.starts_with(text)) {
        return Ok(None);
    }
    Err(EndpointError::Malformed(
        "it is neither a JSON object nor a stream of events",
    ))
}

async fn read_whole(
    answer: &mut ServiceResponse<'_>,
    head: Vec<u8>,
    on_text: &mut (dyn FnMut(&str) + Send),
) -> Result<AssembledReply, EndpointError> {
    let body = answer.rest(head).await?;
    let body =
        std::str::from_utf8(&body).map_err(|_| EndpointError::Malformed("it is not UTF-8"))?;
    let envelope = parse(body.trim_start_matches('\u{feff}'))?;
    if let Some(error) = envelope.error {
        return Err(answer.embedded_error(error.get()));
    }
    let has_choice = envelope.choices.as_ref().is_some_and(|all| !all.is_empty());
    let is_short_form = envelope.content.is_some() || envelope.conversation_id.is_some();
    if !has_choice && !is_short_form {
        return Err(EndpointError::Malformed(
            "it has neither `choices` nor `content`",
        ));
    }
    let mut assembly = ReplyAssembly::default();
    assembly.add(envelope, on_text)?;
    assembly.into_reply()
}

async fn read_events(
    answer: &mut ServiceResponse<'_>,
    head: &[u8],
    on_text: &mut (dyn FnMut(&str) + Send),
) -> Result<AssembledReply, EndpointError> {
    let mut parser = sse::Parser::default();
    let mut assembly = ReplyAssembly::default();
    parser.push(head);
    loop {
        while let Some(event) = parser.next()? {
            if event.data == DONE {
                answer.shorten_deadline(TRAILING_MAX);
                // The answer is complete, so ignore the rest, errors included.
                while let Ok(Some(_)) = answer.next_chunk().await {}
                return assembly.into_reply();
            }
            let was_finished = assembly.is_finished();
            add_event(answer, &event, &mut assembly, on_text)?;
            if assembly.is_finished() && !was_finished {
                answer.shorten_deadline(TRAILING_MAX);
            }
        }
        match answer.next_chunk().await {
            Ok(Some(chunk)) => parser.push(&chunk),
            // A finish reason completes the answer; some services send no `[DONE]`.
            Ok(None) | Err(_) if assembly.is_finished() => return assembly.into_reply(),
            Ok(None) => return Err(EndpointError::CutOff),
            Err(error) => return Err(error),
        }
    }
}

fn add_event(
    answer: &ServiceResponse<'_>,
    event: &sse::Event,
    assembly: &mut ReplyAssembly,
    on_text: &mut (dyn FnMut(&str) + Send),
) -> Result<(), EndpointError> {
    let is_error = event.kind == "error";
    if event.data.is_empty() && !is_error {
        return Ok(());
    }
    match parse(&event.data) {
        Ok(ReplyEnvelope {
            error: Some(error), ..
        }) => Err(answer.embedded_error(error.get())),
        _ if is_error => Err(answer.embedded_error(&event.data)),
        envelope => assembly.add(envelope?, on_text),
    }
}

fn parse(json: &str) -> Result<ReplyEnvelope<'_>, EndpointError> {
    serde_json::from_str(json).map_err(|_| EndpointError::Malformed("it is not a chat completion"))
}

impl From<sse::Fault> for EndpointError {
    fn from(fault: sse::Fault) -> Self {
        match fault {
            sse::Fault::TooLong => Self::TooLarge("at most 1 MiB for one event"),
            sse::Fault::NotText => Self::Malformed("it is not UTF-8"),
        }
    }
}
