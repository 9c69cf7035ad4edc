//! A server that answers from a script, in order, and remembers what it was asked.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

/// One answer.
#[derive(Clone)]
pub(crate) struct Answer {
    status: u16,
    kind: &'static str,
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
        body: body.to_owned(),
    }
}

/// Events, after which the connection is cut.
pub(crate) fn events(body: &str) -> Answer {
    Answer {
        status: 200,
        kind: "text/event-stream",
        body: body.to_owned(),
    }
}

/// No answer: the connection ends after the call was read.
pub(crate) fn cut() -> Answer {
    Answer {
        status: 0,
        kind: "",
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
    /// Starts the server. It stops listening at the end of the script.
    pub(crate) fn start(script: Vec<Answer>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let calls = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&calls);
        std::thread::spawn(move || {
            let mut script = VecDeque::from(script);
            while let Some(answer) = script.pop_front() {
                let (stream, _) = listener.accept().expect("a connection");
                let call = read(&stream);
                told.lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(call);
                write(stream, &answer);
            }
        });
        Self {
            url: format!("http://{address}"),
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
pub(crate) fn read(stream: &TcpStream) -> Call {
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

fn write(mut stream: TcpStream, answer: &Answer) {
    let Answer { status, kind, body } = answer;
    if *status == 0 {
        return;
    }
    let text = format!(
        "HTTP/1.1 {status} Scripted\r\ncontent-type: {kind}\r\nconnection: close\r\n\r\n{body}"
    );
    stream.write_all(text.as_bytes()).expect("it is read");
}
