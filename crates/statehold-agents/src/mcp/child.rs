//! A tool server that is a program of this machine. It lives as long as the connection to it, and whatever
//! it started lives no longer than itself.

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
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{ChildStdin, ChildStdout, Command};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::http::clip;
use crate::secrets::is_named_secret;
use crate::spec::ToolServerSpec;

/// The longest line that is shown of what a program says to people. Any secret fits into it: of half a
/// secret nobody would know that it is one.
const LINE_BYTES_MAX: usize = 16 * 1024;
/// How long a program that is left may take to end by itself.
const LEAVE_MAX: Duration = Duration::from_secs(3);
/// How long what a program said before its end may take to arrive.
const HEAR_OUT: Duration = Duration::from_secs(1);
/// What every program is told of the environment of this server: what programs need to run. Everything
/// else may be a secret, of this server or of another agent, and is told only where it is declared.
const VARIABLES: [&str; 9] = [
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
const BEGINNINGS: [&str; 4] = ["LC_", "PYTHON", "NODE", "SSL_CERT_"];
/// In either case, as programs have it.
const END: &str = "_PROXY";

/// The last line that a program wrote to its standard error, which is the reason in most languages. Secrets
/// are not in it.
#[derive(Clone, Default)]
pub(super) struct Said(Arc<Mutex<Option<String>>>);

impl Said {
    pub(super) fn last_line(&self) -> Option<String> {
        self.lock().clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Goes with a question. Says whether it was given to the program: what never was has done nothing.
#[derive(Debug, Clone, Default)]
pub(super) struct Sent(Arc<AtomicBool>);

impl Sent {
    pub(super) fn is_sent(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// The life of a program, for everybody who has to do with it.
#[derive(Clone, Default)]
pub(super) struct Life {
    /// It says nothing any more.
    silent: CancellationToken,
    /// It must end now, with all that it started.
    end: CancellationToken,
    /// All of that has ended.
    gone: CancellationToken,
}

impl Life {
    /// Whether nothing will be answered any more.
    pub(super) fn is_over(&self) -> bool {
        let ends = [&self.silent, &self.end, &self.gone];
        ends.iter().any(|end| end.is_cancelled())
    }

    /// Waits until the program says nothing any more: what it said before its end is heard out, unless
    /// somebody else has its standard output and keeps silent.
    pub(super) async fn until_silent(&self) {
        let gone = async {
            self.gone.cancelled().await;
            tokio::time::sleep(HEAR_OUT).await;
        };
        tokio::select! {
            () = self.silent.cancelled() => {}
            () = gone => {}
        }
    }

    /// Ends the program and all that it started, and waits until it has ended.
    pub(super) async fn kill(&self) {
        self.end.cancel();
        self.gone.cancelled().await;
    }
}

/// The messages to a program and from it. Without them, the program ends.
pub(super) struct Program {
    lines: AsyncRwTransport<RoleClient, ChildStdout, ChildStdin>,
    life: Life,
    _end: DropGuard,
}

impl Transport<RoleClient> for Program {
    type Error = io::Error;

    fn send(
        &mut self,
        message: ClientJsonRpcMessage,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static {
        if let ClientJsonRpcMessage::Request(request) = &message
            && let Some(sent) = request.request.extensions().get::<Sent>()
        {
            sent.0.store(true, Ordering::SeqCst);
        }
        self.lines.send(message)
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        let received = self.lines.receive().await;
        if received.is_none() {
            self.life.silent.cancel();
        }
        received
    }

    /// Lets the program end by itself, but not for ever: one that does not read does not even let us close
    /// what it should read from.
    async fn close(&mut self) -> io::Result<()> {
        self.life.silent.cancel();
        let leave = async {
            self.lines.close().await?;
            self.life.gone.cancelled().await;
            Ok(())
        };
        let left = tokio::time::timeout(LEAVE_MAX, leave).await;
        self.life.kill().await;
        left.unwrap_or(Ok(()))
    }
}

/// A program and all that it started: one group of processes.
struct Group {
    child: Box<dyn ChildWrapper>,
    /// Whether the program was waited for and the group killed. The number of the group may be another's then.
    is_over: bool,
}

impl Group {
    /// Waits for the end of the program, or for the order to end it. Either way, what it started ends too.
    async fn keep(mut self, life: Life) {
        let _gone = life.gone.clone().drop_guard();
        tokio::select! {
            // Only for the program itself: as the first process of a container, this server would inherit what
            // it started, and wait for that too.
            ended = self.child.inner_mut().wait() => drop(ended),
            () = life.end.cancelled() => {}
        }
        // Right behind the wait: while there are members, nobody else gets the number of the group.
        self.kill();
        drop(self.child.wait().await);
        self.is_over = true;
    }

    /// A group without members is none, and that is as good.
    fn kill(&mut self) {
        drop(self.child.start_kill());
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if !self.is_over {
            self.kill();
        }
    }
}

/// Starts a program. It gets a process group of its own: the end of it is the end of whatever it
/// started, and an interrupt at the terminal reaches this server first.
pub(super) fn start(
    spec: &Arc<ToolServerSpec>,
    program: &str,
    arguments: &[String],
    environment: &[(String, Credential)],
) -> io::Result<(Program, Life, Said)> {
    let mut command = Command::new(program);
    command.args(arguments).kill_on_drop(true).env_clear();
    let told = std::env::vars_os().filter(|(name, _)| is_for_programs(&name.to_string_lossy()));
    command.envs(told);
    let declared = environment.iter();
    command.envs(declared.map(|(name, value)| (name, value.expose())));
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
    let said = Said::default();
    if let Some(errors) = child.stderr().take() {
        tokio::spawn(listen(spec.clone(), errors, said.clone()));
    }
    let life = Life::default();
    let group = Group {
        child,
        is_over: false,
    };
    tokio::spawn(group.keep(life.clone()));
    let program = Program {
        lines: AsyncRwTransport::new(stdout, stdin),
        life: life.clone(),
        _end: life.end.clone().drop_guard(),
    };
    Ok((program, life, said))
}

fn is_for_programs(name: &str) -> bool {
    let is_needed = VARIABLES.contains(&name)
        || BEGINNINGS.iter().any(|begin| name.starts_with(begin))
        || name.ends_with(END)
        || name.ends_with(&END.to_lowercase());
    is_needed && !is_named_secret(name)
}

/// Reads until the program ends: one that is not read from would stop at a full pipe.
async fn listen(spec: Arc<ToolServerSpec>, errors: impl AsyncRead + Unpin, said: Said) {
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
            hear(&spec, &line, is_long, &said);
            line.clear();
            is_long = false;
        }
    }
    hear(&spec, &line, is_long, &said);
}

/// One line, for the log of this server.
fn hear(spec: &ToolServerSpec, line: &[u8], is_long: bool, said: &Said) {
    let line = if is_long {
        "(a line that is too long to be shown)".to_owned()
    } else {
        clip(&String::from_utf8_lossy(line), spec.secrets())
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

    /// A log of what programs said.
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<String>>>);

    impl Visit for Log {
        fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}

        fn record_str(&mut self, field: &Field, value: &str) {
            if field.name() == "said" {
                let mut lines = self.0.lock().expect("no test has failed");
                lines.push(value.to_owned());
            }
        }
    }

    impl tracing::Subscriber for Log {
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
    async fn what_a_program_says_is_logged_line_by_line_without_secrets() {
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
            },
            timeout: Duration::from_secs(1),
        };
        let endless = "x".repeat(LINE_BYTES_MAX + 1);
        let errors = format!(
            "hello\x1b[2J\r\nwith hunter2-hunter2\n\n{endless}\nkey:\nabcdefgh\nTraceback\nbad hunter2-hunter2 "
        );
        let (log, said) = (Log::default(), Said::default());
        let guard = tracing::subscriber::set_default(log.clone());
        listen(Arc::new(spec), errors.as_bytes(), said.clone()).await;
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
    fn a_program_is_told_what_it_needs_and_nothing_else() {
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
            assert!(is_for_programs(needed), "{needed}");
        }
        for other in [
            "OPENAI_API_KEY",
            "STATEHOLD__AGENTS__GPA",
            "NODE_AUTH_TOKEN",
            "AWS_SECRET_ACCESS_KEY",
            "MY_PATH",
            "",
        ] {
            assert!(!is_for_programs(other), "{other}");
        }
    }
}
