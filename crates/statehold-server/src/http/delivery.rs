//! Bodies of chat answers that confirm their delivery, as far as a server can know of it: the last byte
//! is handed over when all bytes before it have left and the client is still connected.

use std::convert::Infallible;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use http::{HeaderValue, header};
use statehold_engine::Share;
use statehold_engine::api::json::to_body;
use statehold_engine::api::turn::DeliveryReceipt;
use tokio::sync::{mpsc, oneshot};

use super::problem::Problem;

/// A piece of a body, with the receipt to confirm when the piece has left.
pub(crate) struct BodyPiece {
    pub(crate) bytes: Bytes,
    pub(crate) receipt: Option<DeliveryReceipt>,
    /// Dropped when the client has taken the piece, and the connection asks for the next.
    pub(crate) taken: Option<oneshot::Sender<()>>,
}

/// A whole body, of known length.
pub(crate) fn whole(bytes: Vec<u8>, receipt: Option<DeliveryReceipt>) -> Body {
    let bytes = Bytes::from(bytes);
    let taken = None;
    let pieces = stream::iter([BodyPiece {
        bytes,
        receipt,
        taken,
    }]);
    Body::from_stream(with_receipts(pieces))
}

/// An answer in JSON, of known length.
pub(crate) fn json(bytes: Vec<u8>, receipt: Option<DeliveryReceipt>) -> Response {
    let length = HeaderValue::from(bytes.len());
    let mut response = Response::new(whole(bytes, receipt));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_LENGTH, length);
    let json = HeaderValue::from_static("application/json");
    headers.insert(header::CONTENT_TYPE, json);
    response
}

/// The answer to a call that failed. The receipt is confirmed when it has been delivered.
pub(crate) fn with_receipt(mut response: Response, receipt: Option<DeliveryReceipt>) -> Response {
    if let Some(problem) = response.extensions().get::<Problem>()
        && receipt.is_some()
    {
        let body = to_body(problem);
        *response.body_mut() = whole(body, receipt);
    }
    response
}

/// A body that is written piece by piece, until the writer closes the channel.
pub(crate) fn streamed(pieces: mpsc::Receiver<BodyPiece>, share: Share) -> Body {
    let begin = (pieces, share, None);
    let pieces = stream::unfold(begin, |(mut pieces, share, before)| async {
        drop(before);
        let mut piece = pieces.recv().await?;
        let taken = piece.taken.take();
        Some((piece, (pieces, share, taken)))
    });
    Body::from_stream(with_receipts(pieces))
}

/// Hands out pieces. The last byte of a piece with a receipt follows when the rest has left: the receipt of
/// a client that has the whole piece is confirmed, that of a client that disconnected is not.
fn with_receipts(
    pieces: impl Stream<Item = BodyPiece> + Send + 'static,
) -> impl Stream<Item = Result<Bytes, Infallible>> + Send {
    let begin = (Box::pin(pieces), None);
    stream::unfold(begin, |(mut pieces, held_back)| async {
        if let Some((last, receipt)) = held_back {
            // While this task yields, the connection flushes its buffer, and drops this body if the client
            // has disconnected.
            tokio::task::yield_now().await;
            DeliveryReceipt::confirm(receipt);
            return Some((Ok(last), (pieces, None)));
        }
        let BodyPiece {
            mut bytes, receipt, ..
        } = pieces.next().await?;
        let held_back = receipt.map(|receipt| {
            let last = bytes.split_off(bytes.len().saturating_sub(1));
            (last, receipt)
        });
        Some((Ok(bytes), (pieces, held_back)))
    })
}
