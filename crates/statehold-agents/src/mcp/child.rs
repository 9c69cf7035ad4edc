//! Tool servers that run as local programs. A program lives as long as its connection, and the
//! processes it starts end with it.

use std::borrow::Cow;
use std::io;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use process_wrap::tokio::{ChildWrapper, CommandWrap};
use rmcp::RoleClient;
use rmcp::model::{ClientJsonRpcMessage, GetExtensions, ServerJsonRpcMessage};
use rmcp::transport::Transport;
use rmcp::transport::async_rw::AsyncRwTransport;
use statehold_engine::Credential;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader, DuplexStream};
use tokio::process::{ChildStdin, Command};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::http::ANSWER_BYTES_MAX;
use super::listing::mark_task_tools;
use crate::http::redact_and_clip;
use crate::secrets::is_named_secret;
use crate::spec::{PROGRAM_MARK, ToolServerSpec};

/// Longest stderr line that is logged. Long enough for any secret, because redaction cannot recognise
/// half a secret.
const LINE_BYTES_MAX: usize = 16 * 1024;
/// How much output of a program waits for its reader.
const OUTPUT_BUFFER_BYTES: usize = 64 * 1024;
/// How long a program may take to exit by itself.
const EXIT_MAX: Duration = Duration::from_secs(3);
/// How long to wait for the last output of a program that has exited.
const OUTPUT_GRACE: Duration = Duration::from_secs(1);
/// Environment variables that every program inherits. All others may be secrets of this server or
/// another agent, so a program gets them only if they are declared.
const INHERITED: [&str; 9] = [
    "PATH",
    "HOME",
    "LANG",
    "TZ",
    "TMPDIR",
    "USER",
    "LOGNAME",
    "SHELL",
    "VIRTUAL_ENV",
];
const PREFIXES: [&str; 4] = ["LC_", "PYTHON", "NODE", "SSL_CERT_"];
/// Suffix, in upper or lower case.
const SUFFIX: &str = "_PROXY";

/// Last stderr line of a program, with secrets redacted. In most languages it states the cause of a
/// failure.
#[derive(Clone, Default)]
pub(super) struct StderrTail(Arc<Mutex<Option<String>>>);

impl StderrTail {
    pub(super) fn last_line(&self) -> Option<String> {
        self.lock().clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Attached to a request. Records whether the request was written to the program: an unwritten one had
/// no effect.
#[derive(Debug, Clone, Default)]
pub(super) struct SentFlag(Arc<AtomicBool>);

impl SentFlag {
    pub(super) fn is_sent(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// Lifecycle of a program, shared by its tasks.
#[derive(Clone, Default)]
pub(super) struct ProgramLifecycle {
    /// Its output has ended.
    silent: CancellationToken,
    /// It must exit now, with all its child processes.
    end: CancellationToken,
    /// It has exited, with all its child processes.
    gone: CancellationToken,
}

impl ProgramLifecycle {
    /// Whether no further answer can arrive.
    pub(super) fn is_ended(&self) -> bool {
        let ends = [&self.silent, &self.end, &self.gone];
        ends.iter().any(|end| end.is_cancelled())
    }

    /// Waits until no further output can arrive. After an exit, waits briefly for buffered output, in
    /// case another process keeps the pipe open.
    pub(super) async fn wait_for_end_of_output(&self) {
        let gone = async {
            self.gone.cancelled().await;
            tokio::time::sleep(OUTPUT_GRACE).await;
        };
        tokio::select! {
            () = self.silent.cancelled() => {}
            () = gone => {}
        }
    }

    /// Kills the program and its child processes, and waits until they have exited.
    pub(super) async fn kill(&self) {
        self.end.cancel();
        self.gone.cancelled().await;
    }
}

/// Message transport of a program. Dropping it ends the program.
pub(super) struct ProgramTransport {
    lines: AsyncRwTransport<RoleClient, DuplexStream, ChildStdin>,
    lifecycle: ProgramLifecycle,
    _end: DropGuard,
}

impl Transport<RoleClient> for ProgramTransport {
    type Error = io::Error;

    fn send(
        &mut self,
        message: ClientJsonRpcMessage,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static {
        if let ClientJsonRpcMessage::Request(request) = &message
            && let Some(sent) = request.request.extensions().get::<SentFlag>()
        {
            sent.0.store(true, Ordering::SeqCst);
        }
        self.lines.send(message)
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        let received = self.lines.receive().await;
        if received.is_none() {
            self.lifecycle.silent.cancel();
        }
        received
    }

    /// Lets the program exit by itself, with a timeout: a program that does not read its input even
    /// blocks the closing of the pipe.
    async fn close(&mut self) -> io::Result<()> {
        self.lifecycle.silent.cancel();
        let leave = async {
            self.lines.close().await?;
            self.lifecycle.gone.cancelled().await;
            Ok(())
        };
        let left = tokio::time::timeout(EXIT_MAX, leave).await;
        self.lifecycle.kill().await;
        left.unwrap_or(Ok(()))
    }
}

/// Process group of a program and its child processes.
struct ProgramGroup {
    child: Box<dyn ChildWrapper>,
    /// Whether the group has been killed and reaped. Its id may be reused afterwards.
    is_ended: bool,
}

impl ProgramGroup {
    /// Waits until the program exits or must be ended, then kills its child processes.
    async fn supervise(mut self, lifecycle: ProgramLifecycle) {
        let _gone = lifecycle.gone.clone().drop_guard();
        tokio::select! {
            // Wait for the program only. If this server is process 1 of a container, it inherits
            // orphans and would wait for them too.
            ended = self.child.inner_mut().wait() => drop(ended),
            () = lifecycle.end.cancelled() => {}
        }
        // Kill right after the wait: the group id cannot be reused while the group has members.
        self.kill();
        drop(self.child.wait().await);
        self.is_ended = true;
    }

    /// Ignores errors: a group without members is already gone.
    fn kill(&mut self) {
        drop(self.child.start_kill());
    }
}

impl Drop for ProgramGroup {
    fn drop(&mut self) {
        if !self.is_ended {
            self.kill();
        }
    }
}

/// The environment variables of a program besides the basic ones.
pub(super) struct Variables<'a> {
    pub(super) declared: &'a [(String, Credential)],
    /// Says which server started the program.
    pub(super) mark: Option<&'a str>,
}

/// Starts a program in its own process group. Killing the group ends its child processes, and a
/// terminal interrupt reaches only this server.
pub(super) fn start(
    spec: &Arc<ToolServerSpec>,
    program: &str,
    arguments: &[String],
    variables: &Variables<'_>,
) -> io::Result<(ProgramTransport, ProgramLifecycle, StderrTail)> {
    let mut command = Command::new(program);
    command.args(arguments).kill_on_drop(true).env_clear();
    let told = std::env::vars_os()
        .filter(|(name, value)| is_inherited(&name.to_string_lossy(), &value.to_string_lossy()));
    command.envs(told);
    let declared = variables.declared.iter();
    command.envs(declared.map(|(name, value)| (name, value.expose())));
    command.envs(variables.mark.map(|mark| (PROGRAM_MARK, mark)));
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut command = CommandWrap::from(command);
    #[cfg(unix)]
    command.wrap(process_wrap::tokio::ProcessGroup::leader());
    let mut child = command.spawn()?;
    let missing = || io::Error::other("a program without standard streams");
    let stdin = child.stdin().take().ok_or_else(missing)?;
    let stdout = child.stdout().take().ok_or_else(missing)?;
    let said = StderrTail::default();
    if let Some(errors) = child.stderr().take() {
        tokio::spawn(log_stderr(spec.clone(), errors, said.clone()));
    }
    let lifecycle = ProgramLifecycle::default();
    let group = ProgramGroup {
        child,
        is_ended: false,
    };
    tokio::spawn(group.supervise(lifecycle.clone()));
    let (output, marked) = tokio::io::duplex(OUTPUT_BUFFER_BYTES);
    let end = lifecycle.end.clone();
    tokio::spawn(async move {
        tokio::select! {
            () = end.cancelled() => {}
            () = forward_lines(stdout, output) => {}
        }
    });
    let program = ProgramTransport {
        lines: AsyncRwTransport::new(marked, stdin),
        lifecycle: lifecycle.clone(),
        _end: lifecycle.end.clone().drop_guard(),
    };
    Ok((program, lifecycle, said))
}

/// Passes the output of a program on, and marks tools that run only as tasks.
async fn forward_lines(output: impl AsyncRead + Unpin, mut to: DuplexStream) {
    let (mut output, mut line) = (BufReader::new(output), Vec::new());
    loop {
        line.clear();
        // A longer line is passed on in pieces.
        let mut limited = (&mut output).take(ANSWER_BYTES_MAX as u64);
        if !matches!(limited.read_until(b'\n', &mut line).await, Ok(1..)) {
            return;
        }
        let written = match std::str::from_utf8(&line) {
            Ok(text) => match mark_task_tools(text) {
                Cow::Borrowed(text) => to.write_all(text.as_bytes()).await,
                Cow::Owned(text) => to.write_all(format!("{text}\n").as_bytes()).await,
            },
            Err(_) => to.write_all(&line).await,
        };
        if written.is_err() {
            return;
        }
    }
}

/// Whether a program inherits a variable of the server. The address of a proxy may contain a password.
fn is_inherited(name: &str, value: &str) -> bool {
    let is_proxy = name.ends_with(SUFFIX) || name.ends_with(&SUFFIX.to_lowercase());
    let is_needed = INHERITED.contains(&name)
        || PREFIXES.iter().any(|begin| name.starts_with(begin))
        || is_proxy && !value.contains('@');
    is_needed && !is_named_secret(name)
}

/// Reads stderr until the program exits. Unread output would block the program on a full pipe.
async fn log_stderr(spec: Arc<ToolServerSpec>, errors: impl AsyncRead + Unpin, said: StderrTail) {
    let mut errors = BufReader::new(errors);
    let (mut line, mut is_long) = (Vec::new(), false);
    while let Ok(bytes @ [_, ..]) = errors.fill_buf().await {
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let (part, taken) = (
            end.unwrap_or(bytes.len()),
            end.map_or(bytes.len(), |at| at + 1),
        );
        is_long |= line.len() + part > LINE_BYTES_MAX;
        if !is_long {
            line.extend_from_slice(&bytes[..part]);
        }
        errors.consume(taken);
        if end.is_some() {
            log_line(&spec, &line, is_long, &said);
            line.clear();
            is_long = false;
        }
    }
    log_line(&spec, &line, is_long, &said);
}

/// Logs one line.
fn log_line(spec: &ToolServerSpec, line: &[u8], is_long: bool, said: &StderrTail) {
    let line = if is_long {
        "(a line that is too long to be shown)".to_owned()
    } else {
        redact_and_clip(&String::from_utf8_lossy(line), spec.secrets())
    };
    if !line.is_empty() {
        tracing::debug!(server = %spec.name, said = line, "a tool server");
        *said.lock() = Some(line);
    }
}

#[cfg(test)]
mod tests {
    use tracing::field::{Field, Visit};
    use tracing::span;

    use super::*;
    use crate::spec::ToolTransport;

    /// Captures the logged lines.
    #[derive(Clone, Default)]
    struct CapturedLog(Arc<Mutex<Vec<String>>>);

    impl Visit for CapturedLog {
        fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}

        fn record_str(&mut self, field: &Field, value: &str) {
            if field.name() == "said" {
                let mut lines = self.0.lock().expect("no test has failed");
                lines.push(value.to_owned());
            }
        }
    }

    impl tracing::Subscriber for CapturedLog {
        fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }

        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

        fn event(&self, event: &tracing::Event<'_>) {
            event.record(&mut self.clone());
        }

        fn enter(&self, _: &span::Id) {}

        fn exit(&self, _: &span::Id) {}
    }

    #[tokio::test]
    async fn stderr_is_logged_line_by_line_without_secrets() {
        let value = |text: &str| Credential::new(text.to_owned()).expect("a value");
        let environment = vec![
            ("TOKEN".to_owned(), value("hunter2-hunter2")),
            ("KEY".to_owned(), value("-----BEGIN-----\nabcdefgh\n")),
        ];
        let spec = ToolServerSpec {
            name: "notes".parse().expect("a name"),
            trust_hints: false,
            transport: ToolTransport::Command {
                program: "notes".to_owned(),
                arguments: Vec::new(),
                environment,
                mark: None,
            },
            timeout: Duration::from_secs(1),
        };
        let endless = "x".repeat(LINE_BYTES_MAX + 1);
        let errors = format!(
            "hello\x1b[2J\r\nwith hunter2-hunter2\n\n{endless}\nkey:\nabcdefgh\nTraceback\nbad hunter2-hunter2 "
        );
        let (log, said) = (CapturedLog::default(), StderrTail::default());
        let guard = tracing::subscriber::set_default(log.clone());
        log_stderr(Arc::new(spec), errors.as_bytes(), said.clone()).await;
        drop(guard);

        let lines = log.0.lock().expect("no test has failed").clone();
        let expected = [
            "hello [2J",
            "with …",
            "(a line that is too long to be shown)",
            "key:",
            "…",
            "Traceback",
            "bad …",
        ];
        assert_eq!(lines, expected);
        assert_eq!(said.last_line().as_deref(), Some("bad …"));
    }

    #[test]
    fn a_program_inherits_only_the_basic_variables() {
        for needed in [
            "PATH",
            "HOME",
            "LC_ALL",
            "PYTHONPATH",
            "NODE_EXTRA_CA_CERTS",
            "SSL_CERT_FILE",
            "HTTPS_PROXY",
            "no_proxy",
        ] {
            assert!(is_inherited(needed, "proxy.example:3128"), "{needed}");
        }
        for other in [
            "OPENAI_API_KEY",
            "STATEHOLD__AGENTS__GPA",
            "NODE_AUTH_TOKEN",
            "AWS_SECRET_ACCESS_KEY",
            "MY_PATH",
            "",
        ] {
            assert!(!is_inherited(other, "a value"), "{other}");
        }
    }

    #[test]
    fn a_proxy_with_a_password_is_not_passed_on() {
        for name in ["HTTPS_PROXY", "http_proxy", "ALL_PROXY"] {
            assert!(is_inherited(name, "http://proxy.example:3128"));
            assert!(!is_inherited(name, "http://ann:hunter2@proxy.example:3128"));
        }
    }
}
