//! A small HTTP/1.1 client for tests and benchmarks: one connection that is kept open, whole answers,
//! and a reader of server-sent events. It follows no redirects, keeps no pool and speaks no TLS.

mod dev_server;
mod plain;
mod process;
mod sse;

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{HeaderMap, Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;

pub use self::dev_server::DevServer;
pub use self::plain::{Patient, PlainAnswer, PlainClient};
pub use self::process::{RunFile, ServerProcess, built_program, signal, told_seed};
pub use self::sse::SseReader;

/// Nothing that the tests ask for takes longer, long polls included.
const CALL_TIMEOUT: Duration = Duration::from_secs(90);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// One open connection to a server.
#[derive(Debug)]
pub struct HttpClient {
    address: SocketAddr,
    sender: SendRequest<Full<Bytes>>,
    driver: JoinHandle<()>,
}

/// A whole answer.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// The headers.
    pub headers: HeaderMap,
    /// The body, byte for byte.
    pub body: Bytes,
}

impl Answer {
    /// A header as text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The revision in the `ETag`.
    pub fn revision(&self) -> Option<u64> {
        self.header("etag")?.trim_matches('"').parse().ok()
    }

    /// The body as JSON.
    ///
    /// # Errors
    ///
    /// If it is not JSON.
    pub fn json(&self) -> Result<Value> {
        serde_json::from_slice(&self.body).with_context(|| {
            let text = String::from_utf8_lossy(&self.body);
            format!("an answer with status {} is not JSON: {text}", self.status)
        })
    }

    /// Whether the call was carried out.
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }
}

impl HttpClient {
    /// Opens a connection.
    ///
    /// # Errors
    ///
    /// If nobody listens there.
    pub async fn connect(address: SocketAddr) -> Result<Self> {
        let (sender, driver) = open(address).await?;
        Ok(Self {
            address,
            sender,
            driver,
        })
    }

    /// Where this connection goes.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sends a call and waits for the whole answer. A body is sent as JSON.
    ///
    /// # Errors
    ///
    /// If the connection was lost before the answer was complete: whether the call was carried out is
    /// unknown then, and this client is of no more use. A status code is never an error.
    pub async fn call(
        &mut self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Result<Answer> {
        let request = request(self.address, method, path, headers, body.into())?;
        let exchange = async {
            self.sender.ready().await?;
            let response = self.sender.send_request(request).await?;
            collect(response).await
        };
        timeout(CALL_TIMEOUT, exchange)
            .await
            .map_err(|_| anyhow!("no answer to {path} within {CALL_TIMEOUT:?}"))?
    }

    /// Sends a GET.
    ///
    /// # Errors
    ///
    /// As [`HttpClient::call`].
    pub async fn get(&mut self, path: &str) -> Result<Answer> {
        self.call(Method::GET, path, &[], Bytes::new()).await
    }

    /// Sends a POST with a JSON body.
    ///
    /// # Errors
    ///
    /// As [`HttpClient::call`].
    pub async fn post(&mut self, path: &str, body: &Value) -> Result<Answer> {
        self.call(Method::POST, path, &[], body.to_string()).await
    }
}

impl Drop for HttpClient {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

async fn collect(response: Response<Incoming>) -> Result<Answer> {
    let (parts, body) = response.into_parts();
    let body = body.collect().await.context("reading the answer")?;
    Ok(Answer {
        status: parts.status.as_u16(),
        headers: parts.headers,
        body: body.to_bytes(),
    })
}

async fn open(address: SocketAddr) -> Result<(SendRequest<Full<Bytes>>, JoinHandle<()>)> {
    let stream = timeout(CONNECT_TIMEOUT, TcpStream::connect(address))
        .await
        .map_err(|_| anyhow!("{address} did not accept within {CONNECT_TIMEOUT:?}"))?
        .with_context(|| format!("connecting to {address}"))?;
    stream.set_nodelay(true)?;
    let (sender, connection) = handshake(TokioIo::new(stream)).await?;
    // An error of the connection also reaches whoever waits for an answer on it.
    let driver = tokio::spawn(async move { connection.await.unwrap_or_default() });
    Ok((sender, driver))
}

fn request(
    address: SocketAddr,
    method: Method,
    path: &str,
    headers: &[(&str, &str)],
    body: Bytes,
) -> Result<Request<Full<Bytes>>> {
    let mut request = Request::builder().method(method).uri(path);
    request = request.header("host", address.to_string());
    if !body.is_empty() {
        request = request.header("content-type", "application/json");
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request
        .body(Full::new(body))
        .with_context(|| format!("a request for {path} cannot be made"))
}

#[cfg(test)]
mod tests;
