//! An agent in this process that notes when a call has arrived, so that both ends of the way are seen by
//! one clock.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use anyhow::{Context, Result};

const ANSWER: &str = r#"{"id":"c1","object":"chat.completion","created":1,"model":"agent","choices":[{"index":0,"message":{"role":"assistant","content":"Yes."},"finish_reason":"stop"}]}"#;

/// A call that has arrived.
#[derive(Debug)]
pub(crate) struct Arrival {
    /// When its last byte was there.
    pub(crate) at: Instant,
    pub(crate) body: Vec<u8>,
}

/// Listens, and answers every call at once.
pub(crate) fn listen() -> Result<(SocketAddr, Receiver<Arrival>)> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let address = listener.local_addr()?;
    let (arrived, arrivals) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let arrived = arrived.clone();
            std::thread::spawn(move || {
                // Whoever calls hears of an error by itself.
                serve(stream, &arrived).unwrap_or_default();
            });
        }
    });
    Ok((address, arrivals))
}

fn serve(stream: TcpStream, arrived: &Sender<Arrival>) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut writing = stream.try_clone()?;
    let mut reading = BufReader::with_capacity(256 * 1024, stream);
    loop {
        let mut length = None;
        loop {
            let mut line = String::new();
            if reading.read_line(&mut line)? == 0 {
                return Ok(());
            }
            let line = line.trim_end();
            if line.is_empty() {
                break;
            }
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().ok();
            }
        }
        let mut body = vec![0; length.context("a call without a length")?];
        reading.read_exact(&mut body)?;
        let at = Instant::now();
        arrived.send(Arrival { at, body })?;
        write!(
            writing,
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{ANSWER}",
            ANSWER.len()
        )?;
    }
}
