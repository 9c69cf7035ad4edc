//! `statehold status`: prints whether a server runs, and where.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use super::block_on;
use super::globals::{DEFAULT_URL, GlobalArgs};
use super::output::{CliOutput, TableCell, TextTable, TextTone};
use crate::client::Client;
use crate::config::{ConfigEnvironment, layers};
use crate::data_directory;
use crate::exit::{Exit, Failure};
use crate::run_file::RunFile;

#[derive(Debug, Args)]
pub(super) struct StatusArgs {
    /// Print one form for scripts: lines for a shell, a JSON document, or the process id.
    #[arg(short, long = "output", value_name = "FORM")]
    output: Option<StatusForm>,
    /// The data directory of the server [default: as configured].
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum StatusForm {
    Env,
    Json,
    Pid,
}

/// Facts about a server.
#[derive(Debug)]
struct ServerStatus {
    url: String,
    /// Why the server is not ready, if it answers and is not.
    unready: Option<String>,
    version: Option<String>,
    run: Option<RunFile>,
    data: PathBuf,
}

impl StatusArgs {
    pub(super) fn run(&self, globals: &GlobalArgs, output: &CliOutput) -> anyhow::Result<Exit> {
        let data = self.data_directory()?;
        let run = data_directory::server(&data)?;
        if self.output == Some(StatusForm::Pid) {
            let Some(run) = run else {
                let message = format!("no server has {} open", data.display());
                return Err(Failure::new(Exit::Unreachable, message)
                    .hint("name another data directory with: --data DIR")
                    .into());
            };
            output.line(&run.pid.to_string())?;
            return Ok(Exit::Done);
        }
        let named = globals.named_url();
        let url = named
            .as_deref()
            .or(run.as_ref().map(|run| run.url.as_str()))
            .unwrap_or(DEFAULT_URL);
        let client = globals.client_of(url, output)?;
        let url = client.address().to_string();
        // The run file describes the server that answered only if the addresses match.
        let run = run.filter(|run| named.is_none() || run.url.trim_end_matches('/') == url);
        let found = block_on(ask(&client, run, data))??;
        match self.output {
            Some(StatusForm::Env) => print_env(&url, globals, output)?,
            None | Some(StatusForm::Pid) if !output.json => output.table(&found.table(output))?,
            _ => output.json(&found.to_json()).map(drop)?,
        }
        if let Some(why) = found.unready {
            output.note(&format!(
                "The server is not ready: {}",
                super::printable(&why)
            ));
            return Ok(Exit::Failed);
        }
        Ok(Exit::Done)
    }

    fn data_directory(&self) -> anyhow::Result<PathBuf> {
        if let Some(data) = &self.data {
            return Ok(data.clone());
        }
        let (config, _) = layers(&ConfigEnvironment::of_process(), None)?.finish()?;
        Ok(config.store.data)
    }
}

async fn ask(
    client: &Client,
    run: Option<RunFile>,
    data: PathBuf,
) -> Result<ServerStatus, Failure> {
    let health = client.probe("/healthz").await?;
    let unready = match client.probe("/readyz").await {
        Ok(_) => None,
        Err(failure) if failure.status.is_some() => Some(failure.message),
        Err(failure) => return Err(failure),
    };
    Ok(ServerStatus {
        url: client.address().to_string(),
        unready,
        version: health.body["version"].as_str().map(str::to_owned),
        run,
        data,
    })
}

impl ServerStatus {
    fn to_json(&self) -> Value {
        let mut found = json!({ "url": self.url, "ready": self.unready.is_none() });
        if let Some(version) = &self.version {
            found["version"] = version.as_str().into();
        }
        if let Some(run) = &self.run {
            found["pid"] = run.pid.into();
            found["started_at"] = run.started_at.as_str().into();
            found["data"] = self.data.display().to_string().into();
        }
        found
    }

    fn table(&self, output: &CliOutput) -> TextTable {
        let status = match self.unready {
            None => TableCell::new("ready").tone(TextTone::Good),
            Some(_) => TableCell::new("not ready").tone(TextTone::Bad),
        };
        let mut facts = vec![
            ("url", TableCell::new(&self.url)),
            ("status", status),
            ("version", TableCell::optional(self.version.as_ref())),
        ];
        if let Some(run) = &self.run {
            let started = output.times.show(&run.started_at);
            facts.push(("pid", TableCell::new(run.pid.to_string())));
            facts.push(("started", TableCell::new(started)));
            facts.push(("data", TableCell::new(self.data.display().to_string())));
        }
        TextTable::facts(facts, TextTone::Dim)
    }
}

fn print_env(url: &str, globals: &GlobalArgs, output: &CliOutput) -> anyhow::Result<()> {
    output.line(&format!("export STATEHOLD_URL={}", quote(url)))?;
    if let Some(token) = globals.token(&CliOutput {
        quiet: true,
        ..output.clone()
    })? {
        output.line(&format!("export STATEHOLD_TOKEN={}", quote(&token)))?;
    }
    Ok(())
}

/// Quotes a text as one word of a POSIX shell.
fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_a_text_can_leave_its_quotes() {
        assert_eq!(quote("http://a:1"), "'http://a:1'");
        assert_eq!(quote("a'; rm -rf /'"), "'a'\\''; rm -rf /'\\'''");
        assert_eq!(quote("$(x) `y`"), "'$(x) `y`'");
    }
}
