//! The agent behind everything that is measured: it answers every chat call at once, with the same words.

use std::convert::Infallible;
use std::path::Path;

use anyhow::Result;
use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::json;

use super::serve::serve;

/// What every answer begins with.
pub(crate) const FIRST_WORD: &str = "Certainly";
/// How many bytes an answer has.
pub(crate) const ANSWER_BYTES: usize = 400;
/// In how many pieces it comes if it is streamed.
pub(crate) const PIECES: usize = 8;

type Body = BoxBody<Bytes, Infallible>;

/// Answers until it is killed.
pub(crate) fn run(data: &Path) -> Result<()> {
    serve_answers(data, whole(), pieces())
}

/// Streams the same pieces to every call, until it is killed.
pub(crate) fn serve_pieces(data: &Path, pieces: Vec<Bytes>) -> Result<()> {
    serve_answers(data, Bytes::new(), pieces)
}

fn serve_answers(data: &Path, whole: Bytes, pieces: Vec<Bytes>) -> Result<()> {
    serve(data, move |stream| {
        let (whole, pieces) = (whole.clone(), pieces.clone());
        async move {
            let service = service_fn(move |request| answer(request, whole.clone(), pieces.clone()));
            http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await?;
            Ok(())
        }
    })
}

async fn answer(
    request: Request<Incoming>,
    whole: Bytes,
    pieces: Vec<Bytes>,
) -> Result<Response<Body>, hyper::Error> {
    let asked = request.into_body().collect().await?.to_bytes();
    // Nobody here writes it with a blank.
    let is_streamed = contains(&asked, br#""stream":true"#);
    let (kind, body) = if is_streamed {
        let frames = pieces.into_iter().map(|piece| Ok(Frame::data(piece)));
        let body = StreamBody::new(Frames(frames.collect::<Vec<_>>().into_iter()));
        ("text/event-stream", body.boxed())
    } else {
        ("application/json", Full::new(whole).boxed())
    };
    let response = Response::builder().header("content-type", kind);
    Ok(response
        .body(body)
        .expect("a fixed header makes a response"))
}

pub(crate) fn contains(bytes: &[u8], what: &[u8]) -> bool {
    bytes.windows(what.len()).any(|window| window == what)
}

/// The text of every answer.
pub(crate) fn text() -> String {
    let mut text = FIRST_WORD.to_owned();
    while text.len() < ANSWER_BYTES {
        text.push_str(", and there is more to be said about it");
    }
    text.truncate(ANSWER_BYTES);
    text
}

fn whole() -> Bytes {
    let message = json!({ "role": "assistant", "content": text() });
    let usage = json!({ "prompt_tokens": 50, "completion_tokens": 100, "total_tokens": 150 });
    let body = json!({
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "agent",
        "choices": [{ "index": 0, "message": message, "finish_reason": "stop" }], "usage": usage,
    });
    body.to_string().into()
}

fn pieces() -> Vec<Bytes> {
    let chunk = |delta: serde_json::Value, finish: Option<&str>| {
        let body = json!({
            "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "agent",
            "choices": [{ "index": 0, "delta": delta, "finish_reason": finish }],
        });
        Bytes::from(format!("data: {body}\n\n"))
    };
    let text = text();
    let mut pieces = vec![chunk(json!({ "role": "assistant", "content": "" }), None)];
    let size = ANSWER_BYTES.div_ceil(PIECES);
    for at in (0..text.len()).step_by(size) {
        let piece = &text[at..(at + size).min(text.len())];
        pieces.push(chunk(json!({ "content": piece }), None));
    }
    pieces.push(chunk(json!({}), Some("stop")));
    pieces.push(Bytes::from_static(b"data: [DONE]\n\n"));
    pieces
}

/// Frames that are all there already.
struct Frames(std::vec::IntoIter<Result<Frame<Bytes>, Infallible>>);

impl futures_util::Stream for Frames {
    type Item = Result<Frame<Bytes>, Infallible>;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        std::task::Poll::Ready(self.0.next())
    }
}
