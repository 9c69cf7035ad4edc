//! A client of the native API, as small as the command line needs.
//!
//! HTTP/1.1 without TLS, one connection per call, JSON both ways. What the server refuses becomes a
//! [`Failure`] with the exit code that belongs to it. Nothing is sent anywhere but to the server
//! that was named, and redirects are not followed.

mod address;
mod feed;
mod problem;
mod sse;
mod stream;

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::http::response::Parts;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::exit::{Exit, Failure};

pub(crate) use address::Address;
pub(crate) use feed::{Feed, FeedStep};
pub(crate) use stream::EventStream;

/// The most bytes of one answer.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// The longest wait for a connection: what has not answered by then is not there.
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// A server, and who calls it.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    address: Address,
    authorization: Option<HeaderValue>,
    timeout: Duration,
}

/// What a server answered. The body is null if there was none.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
}

impl Client {
    /// A client that calls with a token, if there is one.
    ///
    /// # Errors
    ///
    /// If the token cannot be sent in a header.
    pub(crate) fn new(
        address: Address,
        token: Option<&str>,
        timeout: Duration,
    ) -> Result<Self, Failure> {
        let authorization = token
            .map(|token| {
                let value = HeaderValue::from_str(&format!("Bearer {token}"));
                let mut value = value
                    .map_err(|_| Failure::usage("the token has characters that no token has"))?;
                value.set_sensitive(true);
                Ok(value)
            })
            .transpose()?;
        Ok(Self {
            address,
            authorization,
            timeout,
        })
    }

    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// The same client with another patience.
    pub(crate) fn within(&self, timeout: Duration) -> Self {
        Self {
            timeout,
            ..self.clone()
        }
    }

    pub(crate) async fn get(&self, path: &str) -> Result<Answer, Failure> {
        self.call(Method::GET, path, None).await
    }

    /// Asks whether somebody is there. An answer that is not JSON counts, with a body of null.
    pub(crate) async fn probe(&self, path: &str) -> Result<Answer, Failure> {
        let (head, bytes) = self.exchange(Method::GET, path, None, None).await?;
        Ok(Answer {
            headers: head.headers,
            body: serde_json::from_slice(&bytes).unwrap_or_default(),
        })
    }

    /// Makes one call and reads the whole answer.
    ///
    /// # Errors
    ///
    /// If nobody answers, not in time, with a refusal, or with something that is not JSON.
    pub(crate) async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Answer, Failure> {
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
    ) -> Result<Answer, Failure> {
        self.answer(Method::POST, path, Some(body), Some(key)).await
    }

    async fn answer(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        key: Option<&str>,
    ) -> Result<Answer, Failure> {
        let (head, bytes) = self.exchange(method, path, body, key).await?;
        Ok(Answer {
            body: self.parse(head.status, &bytes)?,
            headers: head.headers,
        })
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        key: Option<&str>,
    ) -> Result<(Parts, Bytes), Failure> {
        let mut request = self
            .request(method, path)
            .header(header::ACCEPT, "application/json");
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        if body.is_some() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        let body = body.map(Value::to_string).unwrap_or_default();
        let request = request.body(Full::new(Bytes::from(body)));
        let whole = async {
            let (head, body) = self.send(request).await?.into_parts();
            let bytes = self.read(body).await?;
            if head.status.is_success() {
                Ok((head, bytes))
            } else {
                Err(problem::failure(&self.address, head.status, &bytes))
            }
        };
        match timeout(self.timeout, whole).await {
            Ok(answer) => answer,
            Err(_) => Err(self.too_slow()),
        }
    }

    fn request(&self, method: Method, path: &str) -> hyper::http::request::Builder {
        let mut request = Request::builder()
            .method(method)
            .uri(self.address.path(path))
            .header(header::HOST, self.address.host_header())
            .header(
                header::USER_AGENT,
                concat!("statehold/", env!("CARGO_PKG_VERSION")),
            );
        if let Some(value) = &self.authorization {
            request = request.header(header::AUTHORIZATION, value);
        }
        request
    }

    /// Connects, sends, and waits for the head of the answer.
    async fn send(
        &self,
        request: Result<Request<Full<Bytes>>, hyper::http::Error>,
    ) -> Result<Response<Incoming>, Failure> {
        let request = request.map_err(|error| {
            Failure::usage(format!("this cannot be asked of {}: {error}", self.address))
        })?;
        let connect = TcpStream::connect(self.address.host_and_port());
        let stream = match timeout(CONNECT_MAX.min(self.timeout), connect).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return Err(self.unreachable(&error.to_string())),
            Err(_) => return Err(self.unreachable("no answer to the connection")),
        };
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) =
            handshake.map_err(|error| self.unreachable(&error.to_string()))?;
        // It ends with the connection; what goes wrong on it is seen by the one who waits below.
        drop(tokio::spawn(connection));
        let response = sender.send_request(request).await;
        response.map_err(|error| self.broken(&error.to_string()))
    }

    async fn read(&self, body: Incoming) -> Result<Bytes, Failure> {
        let whole = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
        let whole = whole.map_err(|error| self.broken(&error.to_string()))?;
        Ok(whole.to_bytes())
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

    fn unreachable(&self, why: &str) -> Failure {
        let message = format!("no Statehold server answers at {}", self.address);
        let hint = "start one with: statehold dev        or point elsewhere: --url / STATEHOLD_URL";
        let mut failure = Failure::new(Exit::Unreachable, message).hint(hint);
        failure.details =
            Box::new(serde_json::json!({ "url": self.address.to_string(), "reason": why }));
        failure
    }

    fn broken(&self, why: &str) -> Failure {
        let message = format!("the connection to {} broke before the answer", self.address);
        let mut failure = Failure::new(Exit::Unreachable, message)
            .hint("the call may have been carried out; look before you repeat it");
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

/// A text as one segment of a path or one value of a query.
pub(crate) fn encode(text: &str) -> String {
    use std::fmt::Write;
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            encoded.push(char::from(byte));
        } else {
            write!(encoded, "%{byte:02X}").expect("a string takes everything");
        }
    }
    encoded
}

/// A path with the parameters that are there.
pub(crate) fn with_query(path: &str, parameters: &[(&str, Option<String>)]) -> String {
    let mut whole = path.to_owned();
    let given = parameters
        .iter()
        .filter_map(|(name, value)| value.as_ref().map(|value| (name, value)));
    for (index, (name, value)) in given.enumerate() {
        whole.push(if index == 0 { '?' } else { '&' });
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
        let address: Address = "http://127.0.0.1:1".parse().expect("an address");
        let client = Client::new(address, Some("a\r\nb: c"), CONNECT_MAX);
        assert_eq!(client.expect_err("not a token").exit, Exit::Usage);
    }
}
