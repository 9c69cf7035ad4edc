//! The command line as it is parsed: global options are shown and taken only where they mean something.

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Command, CommandFactory, FromArgMatches};

use super::Cli;

/// The options that name a server and a key.
const OF_SERVERS: [&str; 4] = ["url", "token", "token_file", "timeout"];
/// The options for lists and times.
const OF_LISTS: [&str; 3] = ["iso", "utc", "no_headers"];

/// Commands that call no server, or that bring their own. `backup` calls one if it is told to.
const WITHOUT_SERVER: [&str; 9] = [
    "check",
    "completions",
    "config",
    "debug-log",
    "demo",
    "dev",
    "man-pages",
    "restore",
    "serve",
];
/// Commands that print no lists and no times.
const WITHOUT_LISTS: [&str; 8] = [
    "check",
    "completions",
    "demo",
    "dev",
    "man-pages",
    "mcp",
    "restore",
    "serve",
];

/// The command line with its commands and options.
pub(super) fn command() -> Command {
    let mut command = Cli::command();
    let globals: Vec<_> = command.get_arguments().cloned().collect();
    let names: Vec<String> = command
        .get_subcommands()
        .map(|sub| sub.get_name().to_owned())
        .collect();
    for name in names {
        let meaningless: Vec<&str> = meaningless(&name).collect();
        let hidden = globals
            .iter()
            .filter(|arg| meaningless.contains(&arg.get_id().as_str()));
        // An option of its own takes the place of the global one.
        let hidden: Vec<_> = hidden.map(|arg| arg.clone().hide(true)).collect();
        command = command.mut_subcommand(name, |sub| sub.args(hidden));
    }
    command
}

/// The global options that mean nothing to a command.
fn meaningless(name: &str) -> impl Iterator<Item = &'static str> {
    let of_servers = WITHOUT_SERVER.contains(&name).then_some(OF_SERVERS);
    let of_lists = WITHOUT_LISTS.contains(&name).then_some(OF_LISTS);
    let of_servers = of_servers.into_iter().flatten();
    of_servers.chain(of_lists.into_iter().flatten())
}

/// Parses the arguments of this process.
///
/// # Errors
///
/// If they are wrong, or help was asked for.
pub(crate) fn parse() -> Result<Cli, clap::Error> {
    let mut command = command();
    let matches = command.try_get_matches_from_mut(std::env::args_os())?;
    if let Some((name, option)) = meaningless_option(&matches) {
        let option = option.replace('_', "-");
        let message = format!("--{option} means nothing to `statehold {name}`");
        return Err(command.error(ErrorKind::UnknownArgument, message));
    }
    Cli::from_arg_matches(&matches)
}

fn meaningless_option(matches: &ArgMatches) -> Option<(&str, &'static str)> {
    let (name, sub) = matches.subcommand()?;
    let mut given = meaningless(name)
        .filter(|option| sub.value_source(option) == Some(ValueSource::CommandLine));
    Some((name, given.next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_flags_want_the_same_name() {
        command().debug_assert();
    }

    #[test]
    fn help_shows_an_option_where_it_means_something() {
        let help = |names: &[&str]| {
            let mut command = command();
            command.build();
            let found = names
                .iter()
                .try_fold(&command, |command, name| command.find_subcommand(name));
            found
                .expect("a command")
                .clone()
                .render_long_help()
                .to_string()
        };
        for (names, options) in [
            (&["sessions", "list"][..], [true, true]),
            (&["config", "show"], [false, true]),
            (&["completions"], [false, false]),
            (&["serve"], [false, false]),
        ] {
            let help = help(names);
            assert_eq!(
                ["--url", "--iso"].map(|option| help.contains(option)),
                options,
                "{help}"
            );
            assert!(help.contains("--color"), "{help}");
        }
    }

    #[test]
    fn every_command_has_a_man_page_with_its_options() {
        let folder = tempfile::tempdir().expect("a folder");
        clap_mangen::generate_to(command(), folder.path()).expect("pages");
        let mut command = command();
        command.build();
        let mut open = vec![command];
        while let Some(command) = open.pop() {
            open.extend(
                command
                    .get_subcommands()
                    .filter(|sub| !sub.is_hide_set())
                    .cloned(),
            );
            let name = command.get_display_name().unwrap_or(command.get_name());
            if name.contains("help") {
                continue;
            }
            let path = folder.path().join(format!("{name}.1"));
            let page = std::fs::read_to_string(&path).expect(name);
            assert!(
                command.get_about().is_some(),
                "{name} says nothing about itself"
            );
            for option in command
                .get_arguments()
                .filter(|option| !option.is_hide_set())
            {
                let Some(long) = option.get_long() else {
                    continue;
                };
                let long = format!("\\-\\-{}", long.replace('-', "\\-"));
                assert!(page.contains(&long), "{name} lacks {long}");
                let help = option.get_help();
                assert!(help.is_some(), "{name} does not explain {long}");
            }
        }
    }
}
