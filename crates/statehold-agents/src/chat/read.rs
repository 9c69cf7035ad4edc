//! Reads an answer as it comes, whichever form the service chose for it.

use std::time::Duration;

use super::envelope::Envelope;
use super::reply::{Assembly, Reply};
use crate::http::{Answer, CallError};
use crate::sse;

/// How long we listen after the answer is complete. Some services keep what was said only after the
/// last word of a stream, and do not if nobody listens any more.
const AFTERWARDS_MAX: Duration = Duration::from_secs(5);

/// The end of a stream.
const DONE: &str = "[DONE]";

enum Form {
    Json,
    Events,
}

/// Reads an answer to its end. New text goes to `on_text`.
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
        Form::Events => read_events(answer, &begun, on_text).await,
    }
}

/// What an answer is, by how it begins: services do not always call it what it is. None if too little
/// has come.
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
        return Err(answer.error_in(error.get()));
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
    begun: &[u8],
    on_text: &mut (dyn FnMut(&str) + Send),
) -> Result<Reply, CallError> {
    let mut parser = sse::Parser::default();
    let mut assembly = Assembly::default();
    parser.push(begun);
    loop {
        while let Some(event) = parser.next()? {
            if event.data == DONE {
                answer.hurry(AFTERWARDS_MAX);
                // What comes now means nothing, also if it goes wrong.
                while let Ok(Some(_)) = answer.piece().await {}
                return assembly.into_reply();
            }
            let was_finished = assembly.is_finished();
            take_event(answer, &event, &mut assembly, on_text)?;
            if assembly.is_finished() && !was_finished {
                answer.hurry(AFTERWARDS_MAX);
            }
        }
        match answer.piece().await {
            Ok(Some(piece)) => parser.push(&piece),
            // The reason of the end is enough; not everybody says that nothing more comes.
            Ok(None) | Err(_) if assembly.is_finished() => return assembly.into_reply(),
            Ok(None) => return Err(CallError::CutOff),
            Err(error) => return Err(error),
        }
    }
}

fn take_event(
    answer: &Answer<'_>,
    event: &sse::Event,
    assembly: &mut Assembly,
    on_text: &mut (dyn FnMut(&str) + Send),
) -> Result<(), CallError> {
    let is_error = event.kind == "error";
    if event.data.is_empty() && !is_error {
        return Ok(());
    }
    match parse(&event.data) {
        Ok(Envelope {
            error: Some(error), ..
        }) => Err(answer.error_in(error.get())),
        _ if is_error => Err(answer.error_in(&event.data)),
        envelope => assembly.take(envelope?, on_text),
    }
}

fn parse(json: &str) -> Result<Envelope<'_>, CallError> {
    serde_json::from_str(json).map_err(|_| CallError::Malformed("it is not a chat completion"))
}

impl From<sse::Fault> for CallError {
    fn from(fault: sse::Fault) -> Self {
        match fault {
            sse::Fault::TooLong => Self::TooLarge("at most 1 MiB for one event"),
            sse::Fault::NotText => Self::Malformed("it is not UTF-8"),
        }
    }
}
