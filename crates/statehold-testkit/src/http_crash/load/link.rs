//! A connection that is opened again, and the calls over it.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use hyper::Method;

use crate::http::{Answer, HttpClient};
use crate::http_crash::log::Call;

/// A restart takes far less.
const UNREACHABLE_MAX: Duration = Duration::from_secs(40);

/// A way to the server of a data directory, whichever process that is.
#[derive(Debug)]
pub(in crate::http_crash) struct Link {
    data: PathBuf,
    client: Option<HttpClient>,
}

impl Link {
    pub(in crate::http_crash) fn new(data: &Path) -> Self {
        Self {
            data: data.to_owned(),
            client: None,
        }
    }

    /// Makes a call once. Nothing means that the connection was lost.
    pub(in crate::http_crash) async fn once(
        &mut self,
        call: &Call,
        key: Option<&str>,
    ) -> Result<Option<Answer>> {
        let client = self.connected().await?;
        let method = Method::from_bytes(call.method.as_bytes())?;
        let revision = call.if_match.map(|revision| format!("\"{revision}\""));
        let mut headers = Vec::new();
        headers.extend(key.map(|key| ("idempotency-key", key)));
        headers.extend(revision.as_deref().map(|revision| ("if-match", revision)));
        let answer = client
            .call(method, &call.path, &headers, call.body.clone())
            .await;
        if answer.is_err() {
            self.client = None;
        }
        Ok(answer.ok())
    }

    /// Makes a call with its key until it is answered. Says how often that was.
    pub(in crate::http_crash) async fn until_answered(
        &mut self,
        call: &Call,
        key: Option<&str>,
    ) -> Result<(Answer, u64)> {
        for attempts in 1..=200 {
            if let Some(answer) = self.once(call, key).await? {
                return Ok((answer, attempts));
            }
        }
        bail!("no answer to {} {} in 200 attempts", call.method, call.path)
    }

    /// Reads, as often as it takes.
    pub(in crate::http_crash) async fn get(&mut self, path: &str) -> Result<Answer> {
        let call = Call {
            method: "GET".to_owned(),
            path: path.to_owned(),
            body: String::new(),
            if_match: None,
        };
        Ok(self.until_answered(&call, None).await?.0)
    }

    async fn connected(&mut self) -> Result<&mut HttpClient> {
        let began = Instant::now();
        while self.client.is_none() {
            if let Some(address) = super::address(&self.data) {
                // The file may be that of a server that was killed: ask again.
                self.client = HttpClient::connect(address).await.ok();
            }
            if self.client.is_none() {
                if began.elapsed() > UNREACHABLE_MAX {
                    bail!("no server for {UNREACHABLE_MAX:?}");
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        self.client.as_mut().context("just connected")
    }
}
