//! Bodies that know whether they arrived, as far as a server can know: the last byte is handed over when
//! everything before it has left and the client was still there.

use std::convert::Infallible;

use axum::body::Body;
use bytes::Bytes;
use futures_util::stream;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::told::Receipt;

/// A piece of a stream, with what counts as told when it has left.
pub(crate) struct Piece {
    pub(crate) bytes: Bytes,
    pub(crate) receipt: Option<Receipt>,
}

/// A whole body. The length is known before it begins.
pub(crate) fn whole(bytes: Vec<u8>, receipt: Option<Receipt>) -> Body {
    let mut head = Bytes::from(bytes);
    let tail = head.split_off(head.len().saturating_sub(1));
    let state = (Some(head), Some((tail, receipt)));
    Body::from_stream(stream::unfold(state, |(head, tail)| async move {
        if let Some(head) = head {
            return Some((Ok::<_, Infallible>(head), (None, tail)));
        }
        let (tail, receipt) = tail?;
        settle(receipt).await;
        Some((Ok(tail), (None, None)))
    }))
}

/// A body that is written piece by piece, until the writer is gone.
pub(crate) fn streamed(pieces: mpsc::Receiver<Piece>, permit: OwnedSemaphorePermit) -> Body {
    let state = (pieces, None, permit);
    Body::from_stream(stream::unfold(
        state,
        |(mut pieces, receipt, permit)| async {
            settle(receipt).await;
            let piece = pieces.recv().await?;
            let bytes = Ok::<_, Infallible>(piece.bytes);
            Some((bytes, (pieces, piece.receipt, permit)))
        },
    ))
}

/// Confirms that what was handed over before has left. While this waits its turn, the connection writes
/// out what it has, and ends with this body if the client is gone.
async fn settle(receipt: Option<Receipt>) {
    if let Some(receipt) = receipt {
        tokio::task::yield_now().await;
        receipt.confirm();
    }
}
