//! `statehold doctor`: finds problems and suggests fixes. Changes nothing.

mod data;
mod disk;
mod mounts;
mod network;

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use serde_json::json;

use super::globals::GlobalArgs;
use super::hints::{fitted, typed};
use super::output::{CliOutput, TextTone, plural, wrapped};
use super::printable::cell;
use super::{CONFIG_HELP, block_on};
use crate::config::{ConfigEnvironment, layers};
use crate::exit::Exit;

/// The columns before the text of a finding: its mark and the name of the check.
const INDENT: usize = 15;

#[derive(Debug, Args)]
pub(super) struct DoctorArgs {
    /// The data directory to check [default: as configured].
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    #[arg(long, value_name = "FILE", help = CONFIG_HELP)]
    config: Option<PathBuf>,
}

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum FindingLevel {
    Good,
    Warning,
    Bad,
}

/// The result of one check.
#[derive(Debug, Serialize)]
struct DoctorFinding {
    check: &'static str,
    level: FindingLevel,
    message: String,
    /// A command that fixes the problem, or other advice.
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

impl DoctorFinding {
    fn good(check: &'static str, message: impl Into<String>) -> Self {
        Self {
            check,
            level: FindingLevel::Good,
            message: message.into(),
            hint: None,
        }
    }

    fn warning(check: &'static str, message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self {
            check,
            level: FindingLevel::Warning,
            message: message.into(),
            hint: Some(hint.into()),
        }
    }

    fn bad(check: &'static str, message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self {
            level: FindingLevel::Bad,
            ..Self::warning(check, message, hint)
        }
    }
}

impl DoctorArgs {
    pub(super) fn run(&self, globals: &GlobalArgs, output: &CliOutput) -> anyhow::Result<Exit> {
        let mut layers = layers(&ConfigEnvironment::of_process(), self.config.as_deref())?;
        let data = self.data.as_ref().map(|data| data.to_string_lossy());
        layers.set_flag("store.data", "--data", data.as_deref())?;
        let (mut config, _) = layers.finish()?;
        if let Some(data) = &self.data {
            config.store.data.clone_from(data);
        }
        let mut findings = Vec::new();
        // A server that was named may be on another machine: what is here says nothing about it.
        let is_named = globals.named_url().is_some();
        let looks_here = !is_named || self.data.is_some() || self.config.is_some();
        if looks_here {
            let is_named = self.data.is_some();
            findings.extend(data::findings(&config.store.data, is_named));
            findings.extend(disk::findings(&config.store.data));
        }
        let asked = network::findings(&config, looks_here, globals, output);
        findings.extend(block_on(asked)??);
        report(&findings, output)
    }
}

fn report(findings: &[DoctorFinding], output: &CliOutput) -> anyhow::Result<Exit> {
    let count = |level| {
        findings
            .iter()
            .filter(|finding| finding.level == level)
            .count()
    };
    let (problems, warnings) = (count(FindingLevel::Bad), count(FindingLevel::Warning));
    if output.json {
        output.json(&json!({ "checks": findings, "problems": problems, "warnings": warnings }))?;
    } else {
        for finding in findings {
            if output.quiet && finding.level == FindingLevel::Good {
                continue;
            }
            let (mark, tone) = match finding.level {
                FindingLevel::Good => ("✓", TextTone::Good),
                FindingLevel::Warning => ("⚠", TextTone::Warning),
                FindingLevel::Bad => ("✗", TextTone::Bad),
            };
            let mark = tone.paint(mark);
            let columns = output.fit().unwrap_or(usize::MAX);
            let room = columns.saturating_sub(INDENT).max(1);
            let message = wrapped(&cell(&finding.message), room);
            for (at, line) in message.iter().enumerate() {
                let (mark, check) = if at == 0 {
                    (mark.as_str(), finding.check)
                } else {
                    (" ", "")
                };
                output.line(&format!("{mark} {check:<12} {line}"))?;
            }
            if let Some(hint) = finding.hint.as_deref().map(cell) {
                for line in fitted(&typed(&hint), room) {
                    output.line(&format!("{:INDENT$}{line}", ""))?;
                }
            }
        }
        output.note(&format!(
            "{}, {}",
            plural(problems, "problem"),
            plural(warnings, "warning")
        ));
    }
    Ok(if problems == 0 {
        Exit::Done
    } else {
        Exit::ProblemsFound
    })
}
