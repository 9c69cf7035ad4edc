//! Bodies that know whether they arrived, as far as a server can know: the last byte is handed over when
//! everything before it has left and the client was still there.

use std::convert::Infallible;

use axum::body::Body;
use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use tokio::sync::mpsc;

use super::seats::Seat;
use super::told::Receipt;

/// A piece of a stream, with what counts as told when it has left.
pub(crate) struct Piece {
    pub(crate) bytes: Bytes,
    pub(crate) receipt: Option<Receipt>,
}

/// A whole body. The length is known before it begins.
pub(crate) fn whole(bytes: Vec<u8>, receipt: Option<Receipt>) -> Body {
    let bytes = Bytes::from(bytes);
    let pieces = stream::iter([Piece { bytes, receipt }]);
    Body::from_stream(with_receipts(pieces))
}

/// A body that is written piece by piece, until the writer is gone.
pub(crate) fn streamed(pieces: mpsc::Receiver<Piece>, seat: Seat) -> Body {
    let pieces = stream::unfold((pieces, seat), |(mut pieces, seat)| async {
        let piece = pieces.recv().await?;
        Some((piece, (pieces, seat)))
    });
    Body::from_stream(with_receipts(pieces))
}

/// Hands out pieces. The last byte of one with a receipt follows when the rest has left: a client that has
/// it all has been noted as told, and one that is gone has not.
fn with_receipts(
    pieces: impl Stream<Item = Piece> + Send + 'static,
) -> impl Stream<Item = Result<Bytes, Infallible>> + Send {
    let begin = (Box::pin(pieces), None);
    stream::unfold(begin, |(mut pieces, held_back)| async {
        if let Some((last, receipt)) = held_back {
            // While this waits its turn, the connection writes out what it has, and ends with this body
            // if the client is gone.
            tokio::task::yield_now().await;
            Receipt::confirm(receipt);
            return Some((Ok(last), (pieces, None)));
        }
        let Piece { mut bytes, receipt } = pieces.next().await?;
        let held_back = receipt.map(|receipt| {
            let last = bytes.split_off(bytes.len().saturating_sub(1));
            (last, receipt)
        });
        Some((Ok(bytes), (pieces, held_back)))
    })
}
