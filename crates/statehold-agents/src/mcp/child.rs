//! A tool server that is a program of this machine, and lives as long as the connection to it.

use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};

use process_wrap::tokio::CommandWrap;
use rmcp::transport::TokioChildProcess;
use statehold_core::name::Name;
use statehold_engine::Credential;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;

/// How much is kept of what a program last said to people.
const SAID_BYTES_MAX: usize = 4 * 1024;
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
/// What a variable with a secret is called, also among those above.
const SECRETS: [&str; 5] = ["TOKEN", "SECRET", "KEY", "PASSWORD", "CREDENTIAL"];

/// The end of what a program wrote to its standard error.
#[derive(Clone, Default)]
pub(super) struct Said(Arc<Mutex<Vec<u8>>>);

impl Said {
    /// The last line with something on it, which is the reason in most languages.
    pub(super) fn last_line(&self) -> Option<String> {
        let said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let said = String::from_utf8_lossy(&said);
        let last = said.lines().rev().find(|line| !line.trim().is_empty())?;
        Some(last.to_owned())
    }

    fn push(&self, bytes: &[u8]) {
        let mut said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        said.extend_from_slice(bytes);
        let surplus = said.len().saturating_sub(SAID_BYTES_MAX);
        said.drain(..surplus);
    }
}

/// Starts a program. It gets a process group of its own: the end of it is the end of whatever it
/// started, and an interrupt at the terminal reaches this server first.
pub(super) fn start(
    server: &Name,
    program: &str,
    arguments: &[String],
    environment: &[(String, Credential)],
) -> std::io::Result<(TokioChildProcess, Said)> {
    let mut command = Command::new(program);
    command.args(arguments).kill_on_drop(true).env_clear();
    let told = std::env::vars_os().filter(|(name, _)| is_for_programs(&name.to_string_lossy()));
    command.envs(told);
    let declared = environment.iter();
    command.envs(declared.map(|(name, value)| (name, value.expose())));
    #[cfg_attr(not(unix), expect(unused_mut, reason = "groups are of Unix"))]
    let mut command = CommandWrap::from(command);
    #[cfg(unix)]
    command.wrap(process_wrap::tokio::ProcessGroup::leader());
    let (child, errors) = TokioChildProcess::builder(command)
        .stderr(Stdio::piped())
        .spawn()?;
    let said = Said::default();
    if let Some(errors) = errors {
        tokio::spawn(listen(server.clone(), errors, said.clone()));
    }
    Ok((child, said))
}

fn is_for_programs(name: &str) -> bool {
    let upper = name.to_uppercase();
    let is_secret = SECRETS.iter().any(|word| upper.contains(word));
    let is_needed = VARIABLES.contains(&name)
        || BEGINNINGS.iter().any(|begin| name.starts_with(begin))
        || name.ends_with(END)
        || name.ends_with(&END.to_lowercase());
    is_needed && !is_secret
}

/// Reads until the program ends: one that is not read from would stop at a full pipe.
async fn listen(server: Name, mut errors: impl AsyncRead + Unpin, said: Said) {
    let mut buffer = vec![0; SAID_BYTES_MAX];
    while let Ok(length @ 1..) = errors.read(&mut buffer).await {
        let bytes = &buffer[..length];
        tracing::debug!(%server, said = %String::from_utf8_lossy(bytes), "a tool server");
        said.push(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
