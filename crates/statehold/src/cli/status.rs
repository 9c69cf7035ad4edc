//! `statehold status`: does a server run, and where?

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use super::block_on;
use super::globals::{DEFAULT_URL, Globals};
use super::output::{Cell, Output, Table, Tone};
use crate::client::Client;
use crate::config::{Surroundings, layers};
use crate::data_directory;
use crate::exit::{Exit, Failure};
use crate::run_file::RunFile;

#[derive(Debug, Args)]
pub(super) struct Status {
    /// Print one form for scripts: lines for a shell, a JSON document, or the process id.
    #[arg(short, long = "output", value_name = "FORM")]
    output: Option<Form>,
    /// The data directory whose server is meant [default: as configured].
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Form {
    Env,
    Json,
    Pid,
}

/// What is known about a server.
#[derive(Debug)]
struct Found {
    url: String,
    /// What keeps it from working, if it answers and is not ready.
    unready: Option<String>,
    version: Option<String>,
    run: Option<RunFile>,
    data: PathBuf,
}

impl Status {
    pub(super) fn run(&self, globals: &Globals, output: &Output) -> anyhow::Result<Exit> {
        let data = self.data_directory()?;
        let run = data_directory::server(&data)?;
        if self.output == Some(Form::Pid) {
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
        // The run file is about the server that was asked only if it says the same address.
        let run = run.filter(|run| named.is_none() || run.url.trim_end_matches('/') == url);
        let found = block_on(ask(&client, run, data))??;
        match self.output {
            Some(Form::Env) => print_env(&url, globals, output)?,
            Some(Form::Json) => output.json(&found.to_json())?,
            None if output.json => output.json(&found.to_json())?,
            Some(Form::Pid) | None => output.table(&found.table(output))?,
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
        let (config, _) = layers(&Surroundings::of_process(), None)?.finish()?;
        Ok(config.store.data)
    }
}

async fn ask(client: &Client, run: Option<RunFile>, data: PathBuf) -> Result<Found, Failure> {
    let health = client.probe("/healthz").await?;
    let unready = match client.probe("/readyz").await {
        Ok(_) => None,
        Err(failure) if failure.status.is_some() => Some(failure.message),
        Err(failure) => return Err(failure),
    };
    Ok(Found {
        url: client.address().to_string(),
        unready,
        version: health.body["version"].as_str().map(str::to_owned),
        run,
        data,
    })
}

impl Found {
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

    fn table(&self, output: &Output) -> Table {
        let mut table = Table::new(&[]);
        let mut row = |name: &str, value: Cell| {
            table.row(vec![Cell::new(name).tone(Tone::Dim), value]);
        };
        row("url", Cell::new(&self.url));
        row(
            "status",
            match self.unready {
                None => Cell::new("ready").tone(Tone::Good),
                Some(_) => Cell::new("not ready").tone(Tone::Bad),
            },
        );
        row("version", Cell::optional(self.version.as_ref()));
        if let Some(run) = &self.run {
            row("pid", Cell::new(run.pid.to_string()));
            row("started", Cell::new(output.times.show(&run.started_at)));
            row("data", Cell::new(self.data.display().to_string()));
        }
        table
    }
}

fn print_env(url: &str, globals: &Globals, output: &Output) -> anyhow::Result<()> {
    output.line(&format!("export STATEHOLD_URL={}", quote(url)))?;
    if let Some(token) = globals.token(&Output {
        quiet: true,
        ..output.clone()
    })? {
        output.line(&format!("export STATEHOLD_TOKEN={}", quote(&token)))?;
    }
    Ok(())
}

/// A text as one word of a POSIX shell.
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
