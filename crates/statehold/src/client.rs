//! A client of the native API, as small as the command line needs.
//!
//! JSON both ways over `http://` or `https://`, one connection per call. A refusal of the server becomes
//! a [`Failure`] with its exit code. The key goes to the named server and to no other: redirects are not
//! followed, and proxies of the environment are not used.

mod address;
mod download;
mod events;
mod feed;
mod mcp;
mod problem;

use std::time::Duration;

use anyhow::Context;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{Method, StatusCode};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::{RequestBuilder, Response};
use serde_json::Value;
use statehold_agents::outbound;
use tokio::time::timeout;

use crate::exit::{Exit, Failure};

pub(crate) use address::ServerAddress;
pub(crate) use events::EventStream;
pub(crate) use feed::{Feed, FeedStep};

const JSON: &str = "application/json";
/// The most bytes of one answer.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// The longest wait for a connection, after which the server counts as unreachable.
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// A server, and the key to call it with.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    address: ServerAddress,
    http: reqwest::Client,
    timeout: Duration,
    has_token: bool,
}

/// A successful answer. The body is null if it is empty.
#[derive(Debug)]
pub(crate) struct ApiAnswer {
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
}

impl Client {
    /// A client that calls with a token, if there is one.
    ///
    /// # Errors
    ///
    /// If the token cannot be sent in a header, or TLS cannot be set up.
    pub(crate) fn new(
        address: ServerAddress,
        token: Option<&str>,
        timeout: Duration,
    ) -> Result<Self, Failure> {
        let mut headers = HeaderMap::new();
        if let Some(token) = token {
            let value = HeaderValue::from_str(&format!("Bearer {token}"));
            let mut value =
                value.map_err(|_| Failure::usage("the token has characters that no token has"))?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        let builder = if address.is_https() {
            outbound::client_builder()
        } else {
            outbound::client_builder_without_roots()
        };
        let failed = |why: String| {
            Failure::new(
                Exit::Failed,
                format!("the HTTP client cannot be made: {why}"),
            )
        };
        let http = builder
            .map_err(|error| failed(error.to_string()))?
            .default_headers(headers)
            .connect_timeout(CONNECT_MAX.min(timeout))
            // A server that closes a kept connection at the moment of a call makes that call look
            // lost, and a lost call may have run.
            .pool_max_idle_per_host(0)
            .build()
            .map_err(|error| failed(error.to_string()))?;
        Ok(Self {
            address,
            http,
            timeout,
            has_token: token.is_some(),
        })
    }

    pub(crate) fn address(&self) -> &ServerAddress {
        &self.address
    }

    /// The same client with another timeout.
    pub(crate) fn within(&self, timeout: Duration) -> Self {
        Self {
            timeout,
            ..self.clone()
        }
    }

    pub(crate) async fn get(&self, path: &str) -> Result<ApiAnswer, Failure> {
        self.call(Method::GET, path, None).await
    }

    /// Checks that a server answers. An answer that is not JSON counts, with a body of null.
    pub(crate) async fn probe(&self, path: &str) -> Result<ApiAnswer, Failure> {
        let (head, bytes) = self.exchange(Method::GET, path, None, None).await?;
        Ok(ApiAnswer {
            headers: head.headers().clone(),
            body: serde_json::from_slice(&bytes).unwrap_or_default(),
        })
    }

    /// Makes one call and reads the whole answer.
    ///
    /// # Errors
    ///
    /// If no server answers, not in time, with a refusal, or with a body that is not JSON.
    pub(crate) async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<ApiAnswer, Failure> {
        self.answer(method, path, body, None).await
    }

    /// Posts under an idempotency key: the same call under the same key gets the same answer.
    ///
    /// # Errors
    ///
    /// As [`Client::call`]. If the answer was lost, the call may be made again under the same key.
    pub(crate) async fn post_once(
        &self,
        path: &str,
        body: &Value,
        key: &str,
    ) -> Result<ApiAnswer, Failure> {
        self.answer(Method::POST, path, Some(body), Some(key)).await
    }

    async fn answer(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        key: Option<&str>,
    ) -> Result<ApiAnswer, Failure> {
        let (head, bytes) = self.exchange(method, path, body, key).await?;
        Ok(ApiAnswer {
            body: self.parse(head.status(), &bytes)?,
            headers: head.headers().clone(),
        })
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        key: Option<&str>,
    ) -> Result<(Response, Vec<u8>), Failure> {
        let mut request = self.request(method, path)?.header(ACCEPT, JSON);
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        if let Some(body) = body {
            request = request.header(CONTENT_TYPE, JSON).body(body.to_string());
        }
        self.in_time(async {
            let mut response = self.open(request).await?;
            let bytes = self.read(&mut response).await?;
            Ok((response, bytes))
        })
        .await
    }

    fn request(&self, method: Method, path: &str) -> Result<RequestBuilder, Failure> {
        Ok(self.http.request(method, self.address.join(path)?))
    }

    async fn in_time<T>(
        &self,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        match timeout(self.timeout, work).await {
            Ok(outcome) => outcome,
            Err(_) => Err(self.too_slow()),
        }
    }

    /// Sends a request and waits for the head of a successful answer.
    async fn open(&self, request: RequestBuilder) -> Result<Response, Failure> {
        let response = request.send().await;
        let mut response = response.map_err(|error| self.failed(&error))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let bytes = self.read(&mut response).await?;
        let failure = problem::failure(&self.address, status, &bytes);
        if status == StatusCode::UNAUTHORIZED && self.has_token {
            let message = "the server does not take this key: it is unknown, revoked or expired";
            let hint = "admins see all keys with: statehold token list";
            return Err(Failure {
                message: message.to_owned(),
                hint: Some(hint.to_owned()),
                ..failure
            });
        }
        Err(failure)
    }

    async fn read(&self, response: &mut Response) -> Result<Vec<u8>, Failure> {
        let body = outbound::read_body(response, ANSWER_BYTES_MAX).await;
        let body = body.map_err(|error| self.failed(&error))?;
        body.ok_or_else(|| self.broken("the answer is longer than 64 MiB"))
    }

    fn parse(&self, status: StatusCode, bytes: &[u8]) -> Result<Value, Failure> {
        if bytes.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(bytes).map_err(|_| {
            let status = status.as_u16();
            let message = format!(
                "{} answered {status} with something that is not JSON",
                self.address
            );
            Failure::new(Exit::Failed, message).hint("is this a Statehold server? check --url")
        })
    }

    fn failed(&self, error: &reqwest::Error) -> Failure {
        let why = outbound::root_cause(error);
        if error.is_builder() {
            return Failure::usage(format!("{} cannot be called: {why}", self.address));
        }
        if !error.is_connect() {
            return self.broken(&why);
        }
        if outbound::speaks_no_tls(error) {
            let message = format!("the server at {} speaks plain HTTP, not TLS", self.address);
            let hint = "begin the address with http:// (--url / STATEHOLD_URL), or put a proxy with TLS \
                        in front of the server";
            return self.unreachable(message, hint, &why);
        }
        if outbound::is_tls_failure(error) {
            let message = format!("no trusted TLS connection to {}: {why}", self.address);
            let hint =
                "trust its certificate on this machine, or name a file with it in SSL_CERT_FILE";
            return self.unreachable(message, hint, &why);
        }
        // A server that does not run refuses connections. Other causes are worth a word.
        let cause = if why.contains("refused") {
            String::new()
        } else {
            format!(": {why}")
        };
        let message = format!("no Statehold server answers at {}{cause}", self.address);
        let hint = "start one with: statehold dev        or point elsewhere: --url / STATEHOLD_URL";
        self.unreachable(message, hint, &why)
    }

    fn broken(&self, why: &str) -> Failure {
        let message = format!("the connection to {} broke before the answer", self.address);
        let hint = "the call may have been carried out; look before you repeat it";
        self.unreachable(message, hint, why)
    }

    fn unreachable(&self, message: String, hint: &str, why: &str) -> Failure {
        let mut failure = Failure::new(Exit::Unreachable, message).hint(hint);
        failure.details =
            Box::new(serde_json::json!({ "url": self.address.to_string(), "reason": why }));
        failure
    }

    fn too_slow(&self) -> Failure {
        let seconds = self.timeout.as_secs_f64();
        let message = format!("{} did not answer within {seconds} s", self.address);
        Failure::new(Exit::TimedOut, message).hint("wait longer with: --timeout 2m")
    }
}

/// All characters but those that have no meaning in any part of an address.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// A text as one segment of a path or one value of a query.
pub(crate) fn encode(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}

/// A fresh idempotency key: the same for all attempts of one call.
pub(crate) fn random_key(prefix: &str) -> anyhow::Result<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).context("no random numbers for an idempotency key")?;
    Ok(format!("{prefix}-{:032x}", u128::from_be_bytes(bytes)))
}

/// A path with the parameters that have a value, after those that it has.
pub(crate) fn with_query(path: &str, parameters: &[(&str, Option<String>)]) -> String {
    let mut whole = path.to_owned();
    let given = parameters
        .iter()
        .filter_map(|(name, value)| value.as_ref().map(|value| (name, value)));
    for (name, value) in given {
        whole.push(if whole.contains('?') { '&' } else { '?' });
        whole.push_str(name);
        whole.push('=');
        whole.push_str(&encode(value));
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_has_what_was_given_and_nothing_can_break_out_of_it() {
        let parameters = [
            ("app", Some("a&b=c/#%".to_owned())),
            ("user", None),
            ("q", Some("grün 7".to_owned())),
        ];
        assert_eq!(
            with_query("/v1/sessions", &parameters),
            "/v1/sessions?app=a%26b%3Dc%2F%23%25&q=gr%C3%BCn%207"
        );
        assert_eq!(with_query("/x", &[("a", None)]), "/x");
    }

    #[test]
    fn a_token_with_a_line_break_is_refused() {
        let address: ServerAddress = "http://127.0.0.1:1".parse().expect("an address");
        let client = Client::new(address, Some("a\r\nb: c"), CONNECT_MAX);
        assert_eq!(client.expect_err("not a token").exit, Exit::Usage);
    }
}
