//! What a person types, line by line, while everything else goes on.

use std::io::{BufRead, Write};

use tokio::sync::mpsc;

/// What came.
pub(super) enum Said {
    Line(String),
    /// The input is over.
    Over,
    /// Somebody pressed Ctrl-C.
    Interrupted,
}

/// Lines of standard input. Read by a thread of its own: it cannot be made to stop, and must not keep
/// the program from ending.
pub(super) struct Lines {
    ask: std::sync::mpsc::Sender<()>,
    lines: mpsc::Receiver<std::io::Result<Option<String>>>,
}

impl Lines {
    pub(super) fn open() -> Self {
        let (ask, asked) = std::sync::mpsc::channel::<()>();
        let (tell, lines) = mpsc::channel(1);
        std::thread::spawn(move || {
            while asked.recv().is_ok() {
                let mut line = String::new();
                let read = std::io::stdin().lock().read_line(&mut line);
                let read = read.map(|bytes| (bytes > 0).then_some(line));
                if tell.blocking_send(read).is_err() {
                    return;
                }
            }
        });
        Self { ask, lines }
    }

    /// The next line, after a prompt if somebody sits there.
    pub(super) async fn next(&mut self, prompt: Option<&str>) -> anyhow::Result<Said> {
        if let Some(prompt) = prompt {
            let mut out = anstream::stderr().lock();
            write!(out, "{prompt}")?;
            out.flush()?;
        }
        if self.ask.send(()).is_err() {
            return Ok(Said::Over);
        }
        tokio::select! {
            line = self.lines.recv() => match line {
                Some(Ok(Some(line))) => {
                    Ok(Said::Line(line.trim_end_matches(['\n', '\r']).to_owned()))
                }
                Some(Ok(None)) | None => Ok(Said::Over),
                Some(Err(error)) => Err(error.into()),
            },
            _ = tokio::signal::ctrl_c() => Ok(Said::Interrupted),
        }
    }
}
