//! The same without a runtime: a blocking client of one connection for threads and small processes,
//! and one that outlives the server it calls.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::RunFile;

/// Longer than any long poll.
const READ_TIMEOUT: Duration = Duration::from_secs(90);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A whole answer.
#[derive(Clone, PartialEq, Eq)]
pub struct PlainAnswer {
    /// The status code.
    pub status: u16,
    /// The head as it came.
    pub head: String,
    /// The body, byte for byte.
    pub body: Vec<u8>,
}

impl fmt::Debug for PlainAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.status, String::from_utf8_lossy(&self.body))
    }
}

impl PlainAnswer {
    /// The body as JSON; null if it is none.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    /// The code of a refusal.
    pub fn code(&self) -> String {
        let code = self.json()["code"].as_str().map(str::to_owned);
        code.unwrap_or_default()
    }

    /// The body, if the call was carried out.
    ///
    /// # Errors
    ///
    /// What the server said instead.
    pub fn done(&self) -> Result<Value> {
        if (200..300).contains(&self.status) {
            Ok(self.json())
        } else {
            bail!(
                "answered {}: {}",
                self.status,
                String::from_utf8_lossy(&self.body)
            )
        }
    }
}

/// One connection, opened when it is needed.
#[derive(Debug)]
pub struct PlainClient {
    address: SocketAddr,
    key: Option<String>,
    stream: Option<TcpStream>,
}

impl PlainClient {
    /// Calls go to `address`, with a key if there is one.
    pub fn new(address: SocketAddr, key: Option<&str>) -> Self {
        Self {
            address,
            key: key.map(str::to_owned),
            stream: None,
        }
    }

    /// Opens the connection before the first call.
    ///
    /// # Errors
    ///
    /// If nobody listens.
    pub fn connect(&mut self) -> io::Result<()> {
        if self.stream.is_none() {
            let stream = TcpStream::connect_timeout(&self.address, CONNECT_TIMEOUT)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(READ_TIMEOUT))?;
            self.stream = Some(stream);
        }
        Ok(())
    }

    /// Sends a call and reads its answer.
    ///
    /// # Errors
    ///
    /// If the connection was lost: whether the call was carried out is unknown then.
    pub fn call(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> io::Result<PlainAnswer> {
        self.connect()?;
        let mut head = vec![
            format!("{method} {path} HTTP/1.1"),
            format!("host: {}", self.address),
            format!("content-length: {}", body.len()),
        ];
        let key = self.key.as_ref();
        head.extend(key.map(|key| format!("authorization: Bearer {key}")));
        head.extend(
            headers
                .iter()
                .map(|(name, value)| format!("{name}: {value}")),
        );
        if !body.is_empty() {
            head.push("content-type: application/json".to_owned());
        }
        let head = format!("{}\r\n\r\n{body}", head.join("\r\n"));
        let answer = self.exchange(head.as_bytes());
        if answer.is_err() {
            self.stream = None;
        }
        answer
    }

    fn exchange(&mut self, request: &[u8]) -> io::Result<PlainAnswer> {
        let closed = || io::Error::from(io::ErrorKind::UnexpectedEof);
        let stream = self.stream.as_mut().ok_or_else(closed)?;
        stream.write_all(request)?;
        let mut bytes = Vec::with_capacity(4_096);
        let mut piece = [0; 16_384];
        let mut read_more = |bytes: &mut Vec<u8>| {
            let count = stream.read(&mut piece)?;
            bytes.extend_from_slice(&piece[..count]);
            if count == 0 { Err(closed()) } else { Ok(()) }
        };
        let end = loop {
            if let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            read_more(&mut bytes)?;
        };
        let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
        let odd = || io::Error::from(io::ErrorKind::InvalidData);
        let status = head.split(' ').nth(1).and_then(|text| text.parse().ok());
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            let is_length = name.eq_ignore_ascii_case("content-length");
            is_length.then(|| value.trim().parse::<usize>().ok())?
        });
        let length = length.unwrap_or(0);
        while bytes.len() < end + length {
            read_more(&mut bytes)?;
        }
        Ok(PlainAnswer {
            status: status.ok_or_else(odd)?,
            head,
            body: bytes[end..end + length].to_vec(),
        })
    }
}

/// A client of whichever server runs on a data directory just now: calls whose answer is lost are made
/// again, so whatever changes something needs an idempotency key.
#[derive(Debug)]
pub struct Patient {
    data: PathBuf,
    key: Option<String>,
    client: Option<PlainClient>,
}

impl Patient {
    /// How long a server may be away.
    const AWAY_MAX: Duration = Duration::from_secs(30);

    /// Calls go to the server of `data`.
    pub fn new(data: &Path, key: Option<&str>) -> Self {
        Self {
            data: data.to_owned(),
            key: key.map(str::to_owned),
            client: None,
        }
    }

    /// Sends a call until it is answered.
    ///
    /// # Errors
    ///
    /// If no server answers for long.
    pub fn call(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Result<PlainAnswer> {
        let began = Instant::now();
        loop {
            if self.client.is_none() {
                let address = RunFile::read(&self.data).and_then(|run| run.address());
                let key = self.key.as_deref();
                self.client = address.map(|address| PlainClient::new(address, key));
            }
            let answer = self
                .client
                .as_mut()
                .map(|client| client.call(method, path, headers, body));
            match answer {
                Some(Ok(answer)) if answer.status != 503 => return Ok(answer),
                _ => self.client = None,
            }
            if began.elapsed() > Self::AWAY_MAX {
                bail!("nobody answers {method} {path}");
            }
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }

    /// Reads something.
    ///
    /// # Errors
    ///
    /// If no server answers for long, or it refuses.
    pub fn get(&mut self, path: &str) -> Result<Value> {
        let answer = self.call("GET", path, &[], "")?;
        answer.done().with_context(|| format!("GET {path}"))
    }

    /// Changes something once, under a key.
    ///
    /// # Errors
    ///
    /// If no server answers for long.
    pub fn post(&mut self, path: &str, key: &str, body: &Value) -> Result<PlainAnswer> {
        let headers = [("idempotency-key", key)];
        self.call("POST", path, &headers, &body.to_string())
    }
}
