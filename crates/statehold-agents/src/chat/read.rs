//! Reads a response as it arrives, as one JSON body or as an event stream.

use bytes::Bytes;
use futures_util::stream::{self, StreamExt, TryStreamExt};

use super::ReplySink;
use super::envelope::ReplyEnvelope;
use super::reply::{ChatReply, ReplyAssembly};
use crate::http::{EndpointError, ServiceRequest, ServiceResponse, TRAILING_MAX};
use crate::sse::{self, EventError};
use crate::turn_memory;

/// The most bytes of one event.
const EVENT_BYTES_MAX: usize = 1024 * 1024;
/// How deep objects and lists nest at most: as deep as in calls to the server.
const NESTING_MAX: usize = 64;

/// Last event of a stream.
const DONE: &str = "[DONE]";

enum BodyForm {
    Json,
    Events,
}

/// Reads a response to its end. Passes its parts on.
pub(crate) async fn read_answer(
    answer: &mut ServiceResponse<'_>,
    sink: &mut dyn ReplySink,
) -> Result<ChatReply, EndpointError> {
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
    let mut reply = match form {
        BodyForm::Json => read_whole(answer, head, sink).await,
        BodyForm::Events => read_events(answer, head, sink).await,
    }?;
    reply.headers = answer.headers().clone();
    Ok(reply)
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

/// Whether objects and lists of JSON nest deeper. States of agents are stored and shown unread, and readers of JSON give
/// up on deep ones.
fn nests_deeper_than(json: &str, depth_max: usize) -> bool {
    let (mut depth, mut is_text, mut is_escaped) = (0_usize, false, false);
    json.bytes().any(|byte| {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_text => is_escaped = true,
            b'"' => is_text = !is_text,
            b'{' | b'[' if !is_text => depth += 1,
            b'}' | b']' if !is_text => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth > depth_max
    })
}

async fn read_whole(
    answer: &mut ServiceResponse<'_>,
    head: Vec<u8>,
    sink: &mut dyn ReplySink,
) -> Result<ChatReply, EndpointError> {
    turn_memory::take(head.len())?;
    let body = answer.rest(head).await?;
    let body =
        std::str::from_utf8(&body).map_err(|_| EndpointError::Malformed("it is not UTF-8"))?;
    let envelope = parse(body.trim_start_matches('\u{feff}'))?;
    if let Some(error) = envelope.error {
        return Err(answer.request().embedded_error(error.get()));
    }
    let has_choice = envelope.choices.as_ref().is_some_and(|all| !all.is_empty());
    let is_short_form = envelope.content.is_some() || envelope.conversation_id.is_some();
    if !has_choice && !is_short_form {
        return Err(EndpointError::Malformed(
            "it has neither `choices` nor `content`",
        ));
    }
    let mut assembly = ReplyAssembly::default();
    assembly.add(envelope, sink)?;
    assembly.into_reply()
}

async fn read_events(
    answer: &mut ServiceResponse<'_>,
    head: Vec<u8>,
    sink: &mut dyn ReplySink,
) -> Result<ChatReply, EndpointError> {
    let request = answer.request();
    let mut deadline = answer.deadline();
    let mut assembly = ReplyAssembly::default();
    let head = stream::iter([Ok(Bytes::from(head))]);
    let rest = stream::unfold(&mut *answer, |answer| async move {
        Some((answer.next_chunk().await.transpose()?, answer))
    });
    let mut events = sse::events(head.chain(rest), EVENT_BYTES_MAX).boxed();
    loop {
        let event = match deadline.bound(events.try_next()).await {
            Ok(Ok(Some(event))) => event,
            Ok(Err(EventError::TooLong)) => {
                return Err(EndpointError::TooLarge("at most 1 MiB for one event"));
            }
            Ok(Err(EventError::NotText)) => {
                return Err(EndpointError::Malformed("it is not UTF-8"));
            }
            // A finish reason completes the answer; some services send no `[DONE]`.
            _ if assembly.is_finished() => return assembly.into_reply(),
            Ok(Ok(None)) => return Err(EndpointError::CutOff),
            Ok(Err(EventError::Body(error))) | Err(error) => return Err(error),
        };
        let Some(data) = event.data else {
            continue;
        };
        if data == DONE {
            break;
        }
        let (was_finished, bytes) = (assembly.is_finished(), assembly.bytes());
        let is_error = event.event.as_deref() == Some("error");
        add_event(request, &data, is_error, &mut assembly, sink)?;
        turn_memory::take(assembly.bytes() - bytes)?;
        if assembly.is_finished() && !was_finished {
            deadline = deadline.at_most(TRAILING_MAX);
        }
    }
    drop(events);
    answer.read_trailing().await;
    assembly.into_reply()
}

fn add_event(
    request: &ServiceRequest,
    data: &str,
    is_error: bool,
    assembly: &mut ReplyAssembly,
    sink: &mut dyn ReplySink,
) -> Result<(), EndpointError> {
    if data.is_empty() && !is_error {
        return Ok(());
    }
    match parse(data) {
        Ok(ReplyEnvelope {
            error: Some(error), ..
        }) => Err(request.embedded_error(error.get())),
        _ if is_error => Err(request.embedded_error(data)),
        envelope => assembly.add(envelope?, sink),
    }
}

fn parse(json: &str) -> Result<ReplyEnvelope<'_>, EndpointError> {
    if nests_deeper_than(json, NESTING_MAX) {
        return Err(EndpointError::TooLarge("at most 64 levels of JSON"));
    }
    serde_json::from_str(json).map_err(|_| EndpointError::Malformed("it is not a chat completion"))
}
