//! Downloads: answers that are too long for the memory.

use std::io;
use std::time::Duration;

use http::Method;
use http::header::CONTENT_TYPE;
use serde_json::Value;
use tokio::time::timeout;

use super::{Client, JSON};
use crate::exit::{Exit, Failure};

/// How long a server may take before the first byte: it copies its data first.
const PREPARATION_MAX: Duration = Duration::from_hours(1);

impl Client {
    /// Posts, and gives the pieces of the answer to `take`. The timeout is for each piece.
    ///
    /// # Errors
    ///
    /// If no server answers, with a refusal, or not to the end, or if `take` fails.
    pub(crate) async fn download(
        &self,
        path: &str,
        body: &Value,
        mut take: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<(), Failure> {
        let request = self.request(Method::POST, path)?;
        let request = request.header(CONTENT_TYPE, JSON).body(body.to_string());
        let prepared = timeout(PREPARATION_MAX.max(self.timeout), self.open(request)).await;
        let mut response = prepared.map_err(|_| self.too_slow())??;
        loop {
            let piece = timeout(self.timeout, response.chunk()).await;
            let piece = piece.map_err(|_| self.too_slow())?;
            let Some(piece) = piece.map_err(|error| self.failed(&error))? else {
                return Ok(());
            };
            take(&piece).map_err(|error| {
                Failure::new(Exit::Failed, format!("the file cannot be written: {error}"))
            })?;
        }
    }
}
