//! A decision begun with a key. It asks what the commands ask: the whole hold with its digest is on the screen first,
//! and nothing is decided without a confirmation or words.

use super::keys::WatchKey;
use crate::cli::approvals::decide::{
    ApproveArgs, DecisionArgs, DismissArgs, RejectArgs, print_before_decision,
};
use crate::cli::approvals::edit::EditArgs;
use crate::cli::approvals::fetch;
use crate::cli::approvals::respond::RespondArgs;
use crate::cli::ask;
use crate::cli::output::CliOutput;
use crate::cli::{for_terminal, output};
use crate::client::Client;
use crate::exit::explain;

/// Asks for a decision and sends it. An error is printed; the person goes on with other holds.
pub(super) async fn decide(
    key: WatchKey,
    hold: &str,
    client: &Client,
    output: &CliOutput,
) -> anyhow::Result<()> {
    output::write("", "\n")?;
    if let Err(error) = send(key, hold, client, output).await
        && let (Some(said), _) = explain(&error, false)
    {
        anstream::eprintln!("{}", for_terminal(&said));
    }
    ask::ask_line("\nEnter goes back to the list. ")?;
    Ok(())
}

async fn send(
    key: WatchKey,
    hold: &str,
    client: &Client,
    output: &CliOutput,
) -> anyhow::Result<()> {
    let common = DecisionArgs::of(hold);
    match key {
        WatchKey::Approve => ApproveArgs::of(common).run(client, output).await?,
        WatchKey::Edit => EditArgs::of(common).run(client, output).await?,
        WatchKey::Answer => RespondArgs::of(common).run(client, output).await?,
        WatchKey::Dismiss => DismissArgs::of(common).run(client, output).await?,
        WatchKey::Reject => {
            let shown = fetch(client, hold).await?;
            print_before_decision(&shown, None, output);
            let why = ask::ask_line("Why not? The agent reads it (Enter alone rejects nothing): ")?;
            let why = why.map(|why| why.trim().to_owned()).unwrap_or_default();
            if why.is_empty() {
                output.note("nothing was decided");
                return Ok(());
            }
            let common = DecisionArgs {
                comment: Some(why),
                ..common
            };
            RejectArgs::of(common).send(client, &shown, output).await?
        }
        WatchKey::Next | WatchKey::Previous | WatchKey::Quit => return Ok(()),
    };
    Ok(())
}
