//! One delivery: resolves the name, checks the address, connects to exactly that address, sends, and
//! reads the status. No redirects, no proxies, no cookies, no connection reuse.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::guard::{AddressError, Guard, PushTarget};

/// Timeout for DNS lookup and connecting, and for the whole call.
const CONNECT_MAX: Duration = Duration::from_secs(5);
const CALL_MAX: Duration = Duration::from_secs(15);
/// Limits for reading the response.
const HEAD_BYTES_MAX: usize = 16 * 1024;
const BODY_BYTES_MAX: usize = 16 * 1024;
const BODY_TIME_MAX: Duration = Duration::from_secs(1);

/// A signed message.
pub(super) struct PushMessage {
    pub(super) id: String,
    pub(super) timestamp: String,
    pub(super) signature: String,
    pub(super) body: Vec<u8>,
}

/// Why a delivery failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum PushCallError {
    #[error(transparent)]
    Address(#[from] AddressError),
    #[error("it took too long")]
    Slow,
    #[error("the host cannot be reached")]
    Unreachable,
    #[error("the certificate of the host is not valid")]
    Certificate,
    #[error("the answer is not HTTP")]
    NotHttp,
    #[error("the answer was {0}")]
    Refused(StatusCode),
}

pub(super) struct PushClient {
    guard: Guard,
    tls: TlsConnector,
}

impl PushClient {
    pub(super) fn new(guard: Guard) -> Result<Self, rustls::Error> {
        Ok(Self {
            guard,
            tls: TlsConnector::from(Arc::new(crate::tls::config()?)),
        })
    }

    /// Delivers a message. Only a 2xx counts.
    pub(super) async fn post(&self, url: &str, message: PushMessage) -> Result<(), PushCallError> {
        let target = self.guard.parse(url)?;
        let call = async {
            let connect = tokio::time::timeout(CONNECT_MAX, connect(&target));
            let stream = connect.await.map_err(|_| PushCallError::Slow)??;
            if target.is_secret {
                let name = ServerName::try_from(target.host.clone());
                let name = name.map_err(|_| PushCallError::Certificate)?;
                let stream = self.tls.connect(name, stream).await;
                send(
                    stream.map_err(|_| PushCallError::Certificate)?,
                    &target,
                    message,
                )
                .await
            } else {
                send(stream, &target, message).await
            }
        };
        let status = tokio::time::timeout(CALL_MAX, call).await;
        let status = status.map_err(|_| PushCallError::Slow)??;
        if status.is_success() {
            Ok(())
        } else {
            Err(PushCallError::Refused(status))
        }
    }
}

/// Resolves the name and connects to a checked address. Resolving again could return another address.
async fn connect(target: &PushTarget) -> Result<TcpStream, PushCallError> {
    let found = tokio::net::lookup_host((target.host.as_str(), target.port)).await;
    let found: Vec<SocketAddr> = found.map_err(|_| PushCallError::Unreachable)?.collect();
    let mut refused = None;
    for address in found {
        match target.require_allowed(address.ip()) {
            Ok(()) => {
                if let Ok(stream) = TcpStream::connect(address).await {
                    return Ok(stream);
                }
            }
            Err(error) => refused = Some(error),
        }
    }
    Err(refused.map_or(PushCallError::Unreachable, PushCallError::Address))
}

async fn send<S>(
    stream: S,
    target: &PushTarget,
    message: PushMessage,
) -> Result<StatusCode, PushCallError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let handshake = http1::Builder::new()
        .max_buf_size(HEAD_BYTES_MAX)
        .handshake(TokioIo::new(stream))
        .await;
    let (mut sender, connection) = handshake.map_err(|_| PushCallError::NotHttp)?;
    let request = Request::post(&target.path)
        .header(header::HOST, &target.authority)
        .header(header::CONTENT_TYPE, "application/json")
        .header(
            header::USER_AGENT,
            concat!("statehold/", env!("CARGO_PKG_VERSION")),
        )
        .header(header::CONNECTION, "close")
        .header("webhook-id", message.id)
        .header("webhook-timestamp", message.timestamp)
        .header("webhook-signature", message.signature)
        .body(Full::new(Bytes::from(message.body)));
    let request = request.map_err(|_| PushCallError::Address(AddressError::Malformed))?;
    // The connection serves this message only.
    let mut connection = std::pin::pin!(connection);
    let mut answer = std::pin::pin!(sender.send_request(request));
    let mut is_open = true;
    let answer = tokio::select! {
        biased;
        answer = &mut answer => answer,
        ended = &mut connection => match ended {
            // The response may have been read before the connection closed.
            Ok(()) => {
                is_open = false;
                answer.await
            }
            Err(error) => Err(error),
        },
    };
    let answer = answer.map_err(|_| PushCallError::NotHttp)?;
    let status = answer.status();
    // Drain a short body, so that the receiver sees no reset. Its content is ignored.
    let rest = Limited::new(answer.into_body(), BODY_BYTES_MAX).collect();
    tokio::select! {
        _ = rest => {}
        _ = &mut connection, if is_open => {}
        () = tokio::time::sleep(BODY_TIME_MAX) => {}
    }
    Ok(status)
}
