//! Reads an answer while it arrives, as one JSON object or as a stream of events.

use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{self, StreamExt, TryStreamExt};

use super::envelope::Envelope;
use super::reply::{Assembly, Reply};
use crate::http::{Answer, CallError, Request};
use crate::sse::{self, EventError};

/// The most bytes of one event.
const EVENT_BYTES_MAX: usize = 1024 * 1024;

/// How long to keep reading after the answer is complete. Some services store an answer only at the end
/// of its stream, and drop it if the connection is closed earlier.
const AFTERWARDS_MAX: Duration = Duration::from_secs(5);

/// The end of a stream.
const DONE: &str = "[DONE]";

enum Form {
    Json,
    Events,
}

/// Reads an answer to its end and passes new text to `on_text`.
pub(crate) async fn read_answer(
    answer: &mut Answer<'_>,
    on_text: &mut (dyn FnMut(&str) + Send),
) -> Result<Reply, CallError> {
    let mut begun = Vec::new();
    let form = loop {
        if let Some(form) = form_of(&begun, answer.is_stream())? {
            break form;
        }
        match answer.piece().await? {
            Some(piece) => begun.extend_from_slice(&piece),
            None if answer.is_stream() => return Err(CallError::CutOff),
            None => return Err(CallError::Malformed("it is empty")),
        }
    };
    match form {
        Form::Json => read_whole(answer, begun, on_text).await,
        Form::Events => read_events(answer, begun, on_text).await,
    }
}

/// The form of an answer by its first bytes, because services send wrong content types. None if more
/// bytes are needed to decide.
fn form_of(begun: &[u8], is_stream: bool) -> Result<Option<Form>, CallError> {
    const MARK: &[u8] = "\u{feff}".as_bytes();
    const FIELDS: [&[u8]; 4] = [b":", b"data:", b"event:", b"id:"];
    let begun = begun.strip_prefix(MARK).unwrap_or(begun);
    let text = begun.trim_ascii_start();
    if text.is_empty() || (MARK.starts_with(text) && !MARK.eq(text)) {
        return Ok(None);
    }
    if text.starts_with(b"{") {
        return Ok(Some(Form::Json));
    }
    if is_stream || FIELDS.iter().any(|field| text.starts_with(field)) {
        return Ok(Some(Form::Events));
    }
    if FIELDS.iter().any(|field| field.starts_with(text)) {
        return Ok(None);
    }
    Err(CallError::Malformed(
        "it is neither a JSON object nor a stream of events",
    ))
}

async fn read_whole(
    answer: &mut Answer<'_>,
    begun: Vec<u8>,
    on_text: &mut (dyn FnMut(&str) + Send),
) -> Result<Reply, CallError> {
    let body = answer.rest(begun).await?;
    let body = std::str::from_utf8(&body).map_err(|_| CallError::Malformed("it is not UTF-8"))?;
    let envelope = parse(body.trim_start_matches('\u{feff}'))?;
    if let Some(error) = envelope.error {
        return Err(answer.request().error_in(error.get()));
    }
    let has_choice = envelope.choices.as_ref().is_some_and(|all| !all.is_empty());
    let is_short_form = envelope.content.is_some() || envelope.conversation_id.is_some();
    if !has_choice && !is_short_form {
        return Err(CallError::Malformed(
            "it has neither `choices` nor `content`",
        ));
    }
    let mut assembly = Assembly::default();
    assembly.take(envelope, on_text)?;
    assembly.into_reply()
}

async fn read_events(
    answer: &mut Answer<'_>,
    begun: Vec<u8>,
    on_text: &mut (dyn FnMut(&str) + Send),
) -> Result<Reply, CallError> {
    let request = answer.request();
    let mut deadline = answer.deadline();
    let mut assembly = Assembly::default();
    let begun = stream::iter([Ok(Bytes::from(begun))]);
    let rest = stream::unfold(&mut *answer, |answer| async move {
        Some((answer.piece().await.transpose()?, answer))
    });
    let mut events = sse::events(begun.chain(rest), EVENT_BYTES_MAX).boxed();
    loop {
        let event = match deadline.bound(events.try_next()).await {
            Ok(Ok(Some(event))) => event,
            Ok(Err(EventError::TooLong)) => {
                return Err(CallError::TooLarge("at most 1 MiB for one event"));
            }
            Ok(Err(EventError::NotText)) => {
                return Err(CallError::Malformed("it is not UTF-8"));
            }
            // A finish reason is enough: not every service sends the end marker.
            _ if assembly.is_finished() => return assembly.into_reply(),
            Ok(Ok(None)) => return Err(CallError::CutOff),
            Ok(Err(EventError::Body(error))) | Err(error) => return Err(error),
        };
        let Some(data) = event.data else {
            continue;
        };
        if data == DONE {
            break;
        }
        let was_finished = assembly.is_finished();
        let is_error = event.event.as_deref() == Some("error");
        take_event(request, &data, is_error, &mut assembly, on_text)?;
        if assembly.is_finished() && !was_finished {
            deadline = deadline.at_most(AFTERWARDS_MAX);
        }
    }
    drop(events);
    answer.hurry(AFTERWARDS_MAX);
    // Bytes after the end marker carry no meaning, nor do failures.
    while let Ok(Some(_)) = answer.piece().await {}
    assembly.into_reply()
}

fn take_event(
    request: &Request,
    data: &str,
    is_error: bool,
    assembly: &mut Assembly,
    on_text: &mut (dyn FnMut(&str) + Send),
) -> Result<(), CallError> {
    if data.is_empty() && !is_error {
        return Ok(());
    }
    match parse(data) {
        Ok(Envelope {
            error: Some(error), ..
        }) => Err(request.error_in(error.get())),
        _ if is_error => Err(request.error_in(data)),
        envelope => assembly.take(envelope?, on_text),
    }
}

fn parse(json: &str) -> Result<Envelope<'_>, CallError> {
    serde_json::from_str(json).map_err(|_| CallError::Malformed("it is not a chat completion"))
}
