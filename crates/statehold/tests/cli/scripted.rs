//! A server that answers from a script, in order, and records its calls. It speaks plain HTTP or TLS.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// A certificate for 127.0.0.1 that signs itself, and its key, for tests alone. Made with:
/// `openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 36500
/// -keyout key.pem -out certificate.pem -subj "/CN=statehold test"
/// -addext basicConstraints=critical,CA:FALSE -addext subjectAltName=IP:127.0.0.1,DNS:localhost`
pub(crate) const CERTIFICATE: &str = include_str!("tls/certificate.pem");
const KEY: &str = include_str!("tls/key.pem");

/// One answer.
#[derive(Clone)]
pub(crate) struct Answer {
    status: u16,
    kind: &'static str,
    /// Where a redirect leads.
    location: Option<String>,
    body: String,
}

pub(crate) fn json(status: u16, body: &str) -> Answer {
    let kind = if status < 400 {
        "application/json"
    } else {
        "application/problem+json"
    };
    Answer {
        status,
        kind,
        location: None,
        body: body.to_owned(),
    }
}

/// Events, after which the connection is cut.
pub(crate) fn events(body: &str) -> Answer {
    Answer {
        status: 200,
        kind: "text/event-stream",
        location: None,
        body: body.to_owned(),
    }
}

/// A redirect to another address.
pub(crate) fn redirect(location: &str) -> Answer {
    Answer {
        status: 307,
        kind: "text/plain",
        location: Some(location.to_owned()),
        body: String::new(),
    }
}

/// No answer: the connection ends after the call was read.
pub(crate) fn cut() -> Answer {
    Answer {
        status: 0,
        kind: "",
        location: None,
        body: String::new(),
    }
}

/// A request that the server received.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    /// Method and path.
    pub(crate) line: String,
    /// All headers, in lower case.
    pub(crate) headers: String,
    pub(crate) body: String,
}

pub(crate) struct Scripted {
    pub(crate) url: String,
    calls: Arc<Mutex<Vec<Call>>>,
}

impl Scripted {
    /// Starts the server. The port is closed after the last answer.
    pub(crate) fn start(script: Vec<Answer>) -> Self {
        Self::serve("http", script, |stream, calls, answer| {
            calls.push(read(&stream));
            write(stream, answer);
        })
    }

    /// The same over TLS, with [`CERTIFICATE`]. A client that does not trust it uses up one answer of the script.
    pub(crate) fn start_tls(script: Vec<Answer>) -> Self {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("ring has them")
            .with_no_client_auth()
            .with_single_cert(
                vec![
                    CertificateDer::from_pem_slice(CERTIFICATE.as_bytes()).expect("a certificate"),
                ],
                PrivateKeyDer::from_pem_slice(KEY.as_bytes()).expect("a key"),
            );
        let config = Arc::new(config.expect("the key fits"));
        Self::serve("https", script, move |mut stream, calls, answer| {
            let mut tls = ServerConnection::new(Arc::clone(&config)).expect("a connection");
            while tls.is_handshaking() {
                if tls.complete_io(&mut stream).is_err() {
                    return;
                }
            }
            let mut stream = StreamOwned::new(tls, stream);
            calls.push(read(&mut stream));
            write(&mut stream, answer);
            stream.conn.send_close_notify();
            stream.flush().expect("it is read");
        })
    }

    fn serve(
        scheme: &str,
        script: Vec<Answer>,
        play: impl Fn(TcpStream, &mut Vec<Call>, &Answer) + Send + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let calls = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&calls);
        std::thread::spawn(move || {
            let mut script = VecDeque::from(script);
            while let Some(answer) = script.pop_front() {
                let (stream, _) = listener.accept().expect("a connection");
                let mut calls = told.lock().unwrap_or_else(PoisonError::into_inner);
                play(stream, &mut calls, &answer);
            }
        });
        Self {
            url: format!("{scheme}://{address}"),
            calls,
        }
    }

    pub(crate) fn calls(&self) -> Vec<Call> {
        let calls = self.calls.lock();
        calls.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Method and path of every call so far.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.calls().into_iter().map(|call| call.line).collect()
    }
}

/// Reads one call.
pub(crate) fn read(stream: impl Read) -> Call {
    let mut reader = BufReader::new(stream);
    let mut next_line = || {
        let mut line = String::new();
        reader.read_line(&mut line).expect("a line");
        line.trim_end().to_owned()
    };
    let line = next_line();
    let line = line.trim_end_matches(" HTTP/1.1").to_owned();
    let mut headers = String::new();
    loop {
        let header = next_line();
        if header.is_empty() {
            break;
        }
        headers.push_str(&header.to_ascii_lowercase());
        headers.push('\n');
    }
    let length = headers
        .lines()
        .find_map(|header| header.strip_prefix("content-length: "))
        .map_or(0, |length| length.parse().expect("a number"));
    let mut body = vec![0; length];
    reader.read_exact(&mut body).expect("the whole body");
    Call {
        line,
        headers,
        body: String::from_utf8(body).expect("text"),
    }
}

fn write(mut stream: impl Write, answer: &Answer) {
    let Answer {
        status, kind, body, ..
    } = answer;
    if *status == 0 {
        return;
    }
    let location = answer.location.as_ref();
    let location = location.map_or_else(String::new, |to| format!("location: {to}\r\n"));
    let text = format!(
        "HTTP/1.1 {status} Scripted\r\ncontent-type: {kind}\r\n{location}connection: close\r\n\r\n{body}"
    );
    stream.write_all(text.as_bytes()).expect("it is read");
}
