//! Reads standard input line by line without blocking the runtime.

use std::io::{BufRead, Write};

use tokio::sync::mpsc;

/// One event of the input.
pub(super) enum InputEvent {
    Line(String),
    /// The end of the input.
    Over,
    /// The user pressed Ctrl-C.
    Interrupted,
}

/// Lines of standard input. A thread of its own reads them, because a blocked read cannot be
/// cancelled and must not keep the program from ending.
pub(super) struct InputLines {
    ask: std::sync::mpsc::Sender<()>,
    lines: mpsc::Receiver<std::io::Result<Option<String>>>,
}

impl InputLines {
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

    /// The next line, after a prompt if a person types.
    pub(super) async fn next(&mut self, prompt: Option<&str>) -> anyhow::Result<InputEvent> {
        if let Some(prompt) = prompt {
            let mut out = anstream::stderr().lock();
            write!(out, "{prompt}")?;
            out.flush()?;
        }
        if self.ask.send(()).is_err() {
            return Ok(InputEvent::Over);
        }
        tokio::select! {
            line = self.lines.recv() => match line {
                Some(Ok(Some(line))) => {
                    Ok(InputEvent::Line(line.trim_end_matches(['\n', '\r']).to_owned()))
                }
                Some(Ok(None)) | None => Ok(InputEvent::Over),
                Some(Err(error)) => Err(error.into()),
            },
            _ = tokio::signal::ctrl_c() => Ok(InputEvent::Interrupted),
        }
    }
}
