//! Backups of a running server, as a download.

use std::fs::File;
use std::io::{self, Read};

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use http::{HeaderValue, header};
use statehold_engine::api;
use statehold_engine::api::backup::Backup;
use statehold_engine::api::request::EmptyInput;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Answer;
use crate::http::body::Payload;
use crate::http::call::{App, CallContext};

/// How much of the file is in memory at a time.
const PIECE_BYTES: usize = 256 * 1024;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(make))
}

/// A data file that `statehold restore` takes.
#[derive(ToSchema)]
#[schema(value_type = String, format = Binary)]
#[expect(dead_code, reason = "it only describes the answer")]
struct BackupFile(Vec<u8>);

/// Make a backup of everything that is stored.
///
/// It is made while calls go on, and is without the key files. Needs `admin`.
#[utoipa::path(
    post, path = "/v1/backup", tag = "operations",
    operation_id = "createBackup", request_body = EmptyInput,
    responses((status = 200, body = BackupFile, content_type = "application/octet-stream"))
)]
async fn make(context: CallContext, _body: Payload<EmptyInput>) -> Answer {
    let share = context.app.shares.take_stream(&context.caller)?;
    let making = api::backup::make(context.engine(), &context.caller);
    let backup = context.while_valid(making).await?;
    let length = HeaderValue::from(backup.bytes);
    let download = Download {
        context,
        backup,
        _share: share,
    };
    let mut response = Response::new(Body::from_stream(stream::unfold(
        Some(download),
        |download| async { Download::next(download?).await },
    )));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_LENGTH, length);
    let kind = HeaderValue::from_static("application/octet-stream");
    headers.insert(header::CONTENT_TYPE, kind);
    Ok(response)
}

/// A backup on its way to the caller.
struct Download {
    context: CallContext,
    backup: Backup,
    _share: statehold_engine::Share,
}

impl Download {
    /// The next piece. A download that cannot go on ends with an error, so that the caller sees that it is not whole.
    async fn next(self) -> Option<(io::Result<Bytes>, Option<Self>)> {
        if !self.context.api_key.is_valid() {
            return Some((Err(io::Error::other("the key has ended")), None));
        }
        let read = tokio::task::spawn_blocking(move || {
            let piece = read_piece(&self.backup.file);
            (piece, self)
        });
        match read.await {
            Ok((Ok(piece), _)) if piece.is_empty() => None,
            Ok((Ok(piece), download)) => Some((Ok(piece), Some(download))),
            Ok((Err(error), _)) => Some((Err(error), None)),
            Err(error) => Some((Err(io::Error::other(error)), None)),
        }
    }
}

fn read_piece(mut file: &File) -> io::Result<Bytes> {
    let mut piece = vec![0; PIECE_BYTES];
    let length = file.read(&mut piece)?;
    piece.truncate(length);
    Ok(piece.into())
}
