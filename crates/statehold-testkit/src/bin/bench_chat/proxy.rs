//! A plain reverse proxy: it hands calls and answers through as they come, and keeps nothing. Each
//! connection of a client has one of its own to the agent.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context, Result};
use hyper::body::Incoming;
use hyper::client::conn::http1::handshake;
use hyper::header::{HOST, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::Mutex;

use super::serve::serve;

/// Hands through until it is killed.
pub(crate) fn run(data: &Path, agent: &str) -> Result<()> {
    let agent: SocketAddr = agent.parse().context("the address of the agent")?;
    serve(data, move |stream| hand_through(stream, agent))
}

async fn hand_through(stream: TcpStream, agent: SocketAddr) -> Result<()> {
    let upstream = TcpStream::connect(agent).await?;
    upstream.set_nodelay(true)?;
    let (sender, connection) = handshake(TokioIo::new(upstream)).await?;
    // An error of the connection also reaches whoever waits for an answer on it.
    tokio::spawn(async move { connection.await.unwrap_or_default() });
    let sender = Mutex::new(sender);
    let host = HeaderValue::from_str(&agent.to_string())?;
    let service = service_fn(|mut request: hyper::Request<Incoming>| {
        let (sender, host) = (&sender, host.clone());
        async move {
            request.headers_mut().insert(HOST, host);
            let mut sender = sender.lock().await;
            sender.ready().await?;
            sender.send_request(request).await
        }
    });
    http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await?;
    Ok(())
}
