//! Checks of the network: exposure, port, and the server that answers.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::time::Duration;

use jiff::Timestamp;
use jiff::fmt::rfc2822;

use super::DoctorFinding;
use crate::cli::globals::GlobalArgs;
use crate::cli::output::CliOutput;
use crate::client::{ApiAnswer, Client};
use crate::config::Config;
use crate::data_directory;
use crate::exit::Exit;

/// The timeout of the health check.
const PATIENCE: Duration = Duration::from_secs(3);
const CLOCK_SECONDS_APART_MAX: i64 = 5;

pub(super) async fn findings(
    config: &Config,
    looks_here: bool,
    globals: &GlobalArgs,
    output: &CliOutput,
) -> anyhow::Result<Vec<DoctorFinding>> {
    let listen = config.server.listen;
    let mut findings = Vec::new();
    if looks_here {
        findings.push(reach(listen, config.auth.required));
    }
    // Check the named server; without one, the server that has the data open, or else the one that this
    // configuration would start.
    let serving = data_directory::server(&config.store.data).ok().flatten();
    let (client, is_named) = match (globals.named_url(), serving) {
        (Some(url), _) => (globals.client_of(&url, output)?, true),
        (None, Some(run)) => (globals.client_of(&run.url, output)?, true),
        (None, None) => (globals.client_of(&local_url(listen), output)?, false),
    };
    let client = client.within(PATIENCE);
    match client.probe("/healthz").await {
        Ok(answer) => {
            findings.extend(judge_server(&client, &answer));
            findings.extend(damage(&client).await);
        }
        Err(failure) if is_named => findings.push(DoctorFinding::bad(
            "server",
            failure.message,
            "start one with: statehold dev, or name another with: --url",
        )),
        Err(failure) => findings.push(port(listen, failure.exit)),
    }
    Ok(findings)
}

/// The damage that the server has met.
async fn damage(client: &Client) -> Vec<DoctorFinding> {
    let Ok(answer) = client.probe("/readyz").await else {
        return Vec::new();
    };
    let found = |check, field: &str, what: &str| {
        let count = answer.body[field].as_u64()?;
        Some(DoctorFinding::bad(
            check,
            format!("{count} damaged: {what}"),
            "the log of the server names the places, and so does: statehold check --data DIR; then restore a \
             backup",
        ))
    };
    let sessions = "calls that need the damaged data are refused; the others go on";
    let rows = "keys and other rows outside of sessions; damaged keys are refused";
    let sessions = found("sessions", "damaged_sessions", sessions);
    let rows = found("rows", "damaged_rows", rows);
    sessions.into_iter().chain(rows).collect()
}

/// Whether callers on other machines could connect without a key.
fn reach(listen: SocketAddr, is_key_required: bool) -> DoctorFinding {
    match (listen.ip().is_loopback(), is_key_required) {
        (true, _) => DoctorFinding::good("reach", format!("{listen} is for this machine only")),
        (false, true) => DoctorFinding::warning(
            "reach",
            format!("{listen} can be reached from other machines; keys are required"),
            "keys travel unencrypted here: put a TLS proxy in front",
        ),
        (false, false) => DoctorFinding::bad(
            "reach",
            format!("{listen} can be reached from other machines, and no key is required"),
            "set auth.required = true, or listen on 127.0.0.1",
        ),
    }
}

/// The URL at which this machine reaches a listener.
fn local_url(listen: SocketAddr) -> String {
    let ip = match listen.ip() {
        ip if !ip.is_unspecified() => ip,
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    format!("http://{}", SocketAddr::new(ip, listen.port()))
}

fn judge_server(client: &Client, answer: &ApiAnswer) -> Vec<DoctorFinding> {
    let ours = env!("CARGO_PKG_VERSION");
    let at = client.address();
    let mut findings = vec![match answer.body["version"].as_str() {
        Some(version) if version == ours => {
            DoctorFinding::good("server", format!("{at} answers, version {version}"))
        }
        Some(version) => DoctorFinding::warning(
            "server",
            format!("{at} has version {version}, this program has {ours}"),
            "use the program and the server of one version",
        ),
        None => DoctorFinding::warning(
            "server",
            format!("{at} answers, but not as a Statehold server does"),
            "another program may listen there; check with: statehold status",
        ),
    }];
    if !at.is_loopback() {
        findings.extend(judge_clock(answer));
    }
    findings
}

/// Compares the local clock with the clock of the server.
fn judge_clock(answer: &ApiAnswer) -> Option<DoctorFinding> {
    let date = answer.headers.get(http::header::DATE)?.to_str().ok()?;
    let theirs = rfc2822::parse(date).ok()?.timestamp();
    let apart = (Timestamp::now().as_second() - theirs.as_second()).abs();
    (apart > CLOCK_SECONDS_APART_MAX).then(|| {
        DoctorFinding::warning(
            "clock",
            format!("the clocks of the server and of this machine are {apart} s apart"),
            "check both with: timedatectl status",
        )
    })
}

/// No Statehold server answers: checks whether the port is free.
fn port(listen: SocketAddr, why: Exit) -> DoctorFinding {
    let name = "port";
    match TcpListener::bind(listen) {
        Ok(_) => DoctorFinding::good(name, format!("{listen} is free; no server runs there")),
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            let silent = if why == Exit::TimedOut {
                "and does not answer"
            } else {
                "that is not Statehold"
            };
            DoctorFinding::bad(
                name,
                format!("{listen} is in use by something {silent}"),
                format!(
                    "find the process with: ss -ltnp 'sport = :{}'",
                    listen.port()
                ),
            )
        }
        Err(error) if error.kind() == ErrorKind::PermissionDenied => DoctorFinding::bad(
            name,
            format!("{listen} may not be used by this user"),
            "choose a port above 1023 in server.listen",
        ),
        Err(error) => DoctorFinding::bad(
            name,
            format!("{listen} cannot be used: {error}"),
            "choose another address in server.listen",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::FindingLevel;
    use super::*;

    fn address(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn only_an_open_door_is_a_problem() {
        let level = |listen, is_key_required| reach(address(listen), is_key_required).level;
        assert_eq!(level("127.0.0.1:7717", false), FindingLevel::Good);
        assert_eq!(level("[::1]:7717", true), FindingLevel::Good);
        assert_eq!(level("0.0.0.0:7717", true), FindingLevel::Warning);
        assert_eq!(level("0.0.0.0:7717", false), FindingLevel::Bad);
    }

    #[test]
    fn a_server_for_all_addresses_is_asked_on_loopback() {
        assert_eq!(local_url(address("0.0.0.0:1")), "http://127.0.0.1:1");
        assert_eq!(local_url(address("[::]:1")), "http://[::1]:1");
        assert_eq!(local_url(address("10.0.0.1:1")), "http://10.0.0.1:1");
    }

    #[test]
    fn a_port_of_somebody_else_is_a_problem() {
        let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let listen = taken.local_addr().expect("an address");
        assert_eq!(port(listen, Exit::Failed).level, FindingLevel::Bad);
        drop(taken);
        assert_eq!(port(listen, Exit::Unreachable).level, FindingLevel::Good);
    }
}
