//! Runs a plan: opens the data, listens, prints the banner, stops cleanly.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use anyhow::Context;
use statehold_agents::dial_core::DialCore;
use statehold_agents::push::{self, Guard};
use statehold_agents::runner::{ConversationReader, StepHook};
use statehold_agents::traces::{self, Collector, TraceClientError};
use statehold_core::name::Name;
use statehold_engine::api::operations;
use statehold_engine::policy::Policies;
use statehold_engine::trace::{Span, Traces};
use statehold_engine::{Caller, Clock, Credential, Engine, OffsetClock, debug_log};
use statehold_server::accept::{AcceptOptions, serve};
use statehold_server::read_token;
use statehold_server::seal::Sealer;
use statehold_server::{Metrics, RateLimit, Reload, ServerOptions};
use statehold_store::sqlite::create_directory;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::Receiver;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::log::start_log;
use super::reload::{ActiveConfig, ConfigReloader, HangupSignals, MakePlan, ReloadContext};
use super::{PlannedStorage, ServePlan};
use crate::cli::globals::DEFAULT_URL;
use crate::cli::output::{CliOutput, plural};
use crate::cli::printable;
use crate::config::{
    Config, ConfigEnvironment, ConfigMistakes, ServerConfig, WholeUrl, declare_agents,
};
use crate::demo::{self, EmbeddedDemo};
use crate::exit::{Exit, Failure};
use crate::leftover_programs;
use crate::run_file::{self, RunFile};
use crate::wire::{self, EngineParts};

/// File descriptors reserved for the server itself: the store and its readers, keys, sockets, the
/// log.
const OWN_FILES_MAX: u64 = 128;

/// The server's own files, which `--reset` removes.
const OWN_FILES: [&str; 8] = [
    "statehold.db",
    "statehold.db-wal",
    "statehold.db-shm",
    "key-ring",
    "user-keys",
    "hold-keys",
    "statehold.run",
    "statehold.run.new",
];

/// Runs a server until it is stopped. Every reload builds the plan again.
///
/// # Errors
///
/// If the server cannot start, or must not: beyond loopback without keys.
pub(crate) fn run(
    make_plan: impl Fn(&ConfigEnvironment) -> anyhow::Result<ServePlan> + Send + Sync + 'static,
    output: &CliOutput,
) -> anyhow::Result<Exit> {
    let begun = Instant::now();
    let plan = &make_plan(&ConfigEnvironment::of_process())?;
    start_log(&plan.config.log)?;
    raise_file_limit();
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?
        .block_on(run_server(plan, Arc::new(make_plan), output, begun))
}

async fn run_server(
    plan: &ServePlan,
    make_plan: MakePlan,
    output: &CliOutput,
    begun: Instant,
) -> anyhow::Result<Exit> {
    let hangups = HangupSignals::listen()?;
    let config = &plan.config;
    let on_step = on_step()?;
    let data = &config.store.data;
    let environment = ConfigEnvironment::of_process();
    let declared = declare_agents(config, &plan.explained, &environment);
    let mut declared = declared.map_err(ConfigMistakes::into_failure)?;
    let dial_core = open_dial_core(declared.dial_core.take())?;
    let collector = declared.traces.take();
    let (traces, spans) = collector.as_ref().map(|_| Traces::new()).unzip();
    let on_disk = matches!(plan.storage, PlannedStorage::Disk { .. });
    if plan.storage == (PlannedStorage::Disk { reset: true }) {
        remove_own_files(data)?;
    }
    let was_unclean = on_disk && run_file::read(data).unwrap_or(None).is_some();
    let offset = plan.clock_offset_seconds;
    let moved = offset.map(|seconds| Arc::new(OffsetClock::new(seconds)));
    let clock = wire::clock(moved.as_ref());
    let demo = Arc::new(EmbeddedDemo::new(&config.agents, plan.has_demo));
    let mark = program_mark(data, on_disk);
    let active = ActiveConfig::new(config.clone(), declared, &demo, mark.as_deref());
    let policies = active.policies.clone();
    let parts = open_engine(plan, Arc::clone(&clock), (policies, traces)).await?;
    let EngineParts {
        engine,
        sealer,
        debug_log,
    } = parts;
    engine.set_service_credentials(active.credentials.clone());
    let tenant: Name = "default".parse().context("the tenant has a name")?;
    demo::revoke_keys(&engine, &tenant).await?;
    let has_keys = engine.has_keys().await?;
    require_keys(plan, has_keys)?;
    let (listener, url) = listen(config.server.listen).await?;
    if on_disk {
        end_leftover_programs(mark.as_deref(), was_unclean);
        write_run_file(data, &url)?;
    }
    let context = ReloadContext {
        plan: make_plan,
        started: plan.explained.clone(),
        file: environment.found_file(),
        demo: Arc::clone(&demo),
        mark,
        clock,
        engine: engine.clone(),
        tenant: tenant.clone(),
        conversation_reader: conversation_reader(config, &listener, sealer.clone())?,
        debug_log,
    };
    let reloader = Arc::new(context.start_agents(active, on_step).await?);
    let connections_open = Arc::new(AtomicUsize::new(0));
    let guard = push_guard(config)?;
    let connections_max = connections_max(config.server.connections_max.get().into())?;
    let options = ServerOptions {
        calls_max: connections_max,
        push_guard: guard.clone(),
        clock: moved,
        dial_core,
        ..server_options(config, &reloader)
    };
    let accept = accept_options(&config.server, connections_max, &connections_open);
    let metrics = Metrics::new(connections_open);
    let router = statehold_server::router(engine.clone(), sealer, options, metrics);
    let seeds = !config.auth.required;
    let running_demo = demo::spawn(&demo, &engine, &tenant, (&url, seeds)).await?;
    let banner = StartBanner {
        url: &url,
        demo: &demo,
        was_unclean,
        open_holds: count_open_holds(&engine, &tenant, was_unclean).await,
        has_keys,
        begun,
    };
    print_banner(plan, output, &banner);
    let stop = CancellationToken::new();
    engine.load_addresses().await?;
    let background = TaskTracker::new();
    background.spawn(push_decisions(engine.clone(), guard, stop.clone()));
    let export = TraceExport::start(collector, spans);
    let gone = CancellationToken::new();
    background.spawn(Arc::clone(&reloader).follow(hangups, gone.clone(), stop.clone()));
    let serving = serve(listener, router, accept, stop.clone());
    let is_clean = serve_until_stopped(serving, &engine, (&stop, &gone), output).await;
    if !is_clean {
        return Ok(Exit::Interrupted);
    }
    stop.cancel();
    running_demo.stop().await;
    reloader.stop().await;
    background.close();
    background.wait().await;
    engine.shut_down().await;
    // Last of all, for the spans of what ended now.
    export.end().await?;
    if on_disk {
        run_file::remove(data)?;
    }
    Ok(Exit::Done)
}

/// The client of the DIAL Core that vouches for callers, if there is one.
fn open_dial_core(named: Option<(String, Credential)>) -> anyhow::Result<Option<DialCore>> {
    let core = named.map(|(url, key)| DialCore::new(url, key));
    Ok(core.transpose()?)
}

/// Listens at an address, and names it.
async fn listen(address: SocketAddr) -> anyhow::Result<(TcpListener, String)> {
    let listener = TcpListener::bind(address).await.map_err(|error| {
        let is_taken = error.kind() == std::io::ErrorKind::AddrInUse;
        let failure = Failure::new(Exit::Failed, format!("cannot listen on {address}"));
        anyhow::Error::new(error).context(if is_taken {
            failure.hint("choose another port: dev --port 7718, or serve --listen 127.0.0.1:7718")
        } else {
            failure
        })
    })?;
    let url = format!("http://{}", listener.local_addr()?);
    Ok((listener, url))
}

/// The export of traces beside a server, if there is a collector.
struct TraceExport {
    stop: CancellationToken,
    task: Option<JoinHandle<Result<(), TraceClientError>>>,
}

impl TraceExport {
    fn start(collector: Option<Collector>, spans: Option<Receiver<Span>>) -> Self {
        let stop = CancellationToken::new();
        let task = collector.zip(spans);
        let task = task.map(|(to, spans)| tokio::spawn(traces::export(spans, to, stop.clone())));
        Self { stop, task }
    }

    /// Sends what is left.
    async fn end(self) -> anyhow::Result<()> {
        self.stop.cancel();
        match self.task {
            Some(task) => Ok(task.await??),
            None => Ok(()),
        }
    }
}

/// Opens the engine of a plan, and its debug log.
async fn open_engine(
    plan: &ServePlan,
    clock: Arc<dyn Clock>,
    policies: (Policies, Option<Arc<Traces>>),
) -> anyhow::Result<EngineParts> {
    let config = &plan.config;
    match plan.storage {
        PlannedStorage::Disk { .. } => {
            let debug_log = config.debug_log.limits();
            wire::on_disk(&config.store, debug_log, clock, policies).await
        }
        PlannedStorage::Memory => wire::in_memory(clock, policies).await,
    }
}

/// The options that come from the configuration and from the agents.
fn server_options(config: &Config, reloader: &Arc<ConfigReloader>) -> ServerOptions {
    ServerOptions {
        keys_required: config.auth.required,
        agents: reloader.agents(),
        answerers: config.chat.answerers.clone(),
        scratch: Some(reloader.scratch()),
        console: config.console.enabled,
        public_url: config.server.public_url.as_ref().map(WholeUrl::base),
        reload: Some(Arc::clone(reloader) as Arc<dyn Reload>),
        ..limited(config)
    }
}

/// Where tools that are agents read conversations, and how their tokens are sealed.
fn conversation_reader(
    config: &Config,
    listener: &TcpListener,
    sealer: Sealer,
) -> anyhow::Result<ConversationReader> {
    let url = if let Some(url) = &config.server.url {
        url.base()
    } else {
        let mut address = listener.local_addr()?;
        if address.ip().is_unspecified() {
            address.set_ip(match address.ip() {
                IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
                IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
            });
        }
        format!("http://{address}")
    };
    Ok(ConversationReader {
        mcp_url: format!("{url}{}", statehold_server::MCP_PATH),
        seal: Arc::new(move |token| read_token::sealed(&sealer, token)),
    })
}

/// The mark of the programs that a server with data on disk starts.
fn program_mark(data: &Path, on_disk: bool) -> Option<String> {
    // If this fails, the store fails for the same reason and says so.
    let is_there = on_disk && create_directory(data).is_ok();
    is_there.then(|| leftover_programs::mark(data)).flatten()
}

/// After a server was killed, its programs may still run. The store is locked, so they serve no server.
fn end_leftover_programs(mark: Option<&str>, was_unclean: bool) {
    if let Some(mark) = mark.filter(|_| was_unclean) {
        leftover_programs::end_all(mark);
    }
}

fn accept_options(
    config: &ServerConfig,
    connections_max: usize,
    connections_open: &Arc<AtomicUsize>,
) -> AcceptOptions {
    AcceptOptions {
        connections_max,
        head_read_timeout: Duration::from_secs(config.header_timeout_seconds.get()),
        grace: Duration::from_secs(config.shutdown_seconds),
        connections_open: Arc::clone(connections_open),
        ..AcceptOptions::default()
    }
}

/// The limits of a server, and how it serves conversations.
fn limited(config: &Config) -> ServerOptions {
    let limits = &config.limits;
    let calls_per_second = NonZeroU32::new(limits.calls_per_second);
    ServerOptions {
        body_bytes_max: limits.body_bytes_max.get(),
        request_bytes_max: limits.request_bytes_max.get(),
        answer_bytes_max: limits.answer_bytes_max.get(),
        rate: calls_per_second.map(|calls_per_second| RateLimit {
            calls_per_second,
            burst: limits.calls_burst,
        }),
        ums: config.ums.options(),
        ..ServerOptions::default()
    }
}

async fn push_decisions(engine: Engine, guard: Guard, stop: CancellationToken) {
    let write_body = Arc::new(statehold_server::pushed_body);
    if let Err(error) = push::run(engine, guard, write_body, stop).await {
        tracing::error!(%error, "decisions are not pushed: TLS is not available");
    }
}

fn write_run_file(data: &Path, url: &str) -> anyhow::Result<()> {
    let run = RunFile {
        pid: std::process::id(),
        url: url.to_owned(),
        started_at: jiff::Timestamp::now().to_string(),
    };
    match run_file::write(data, &run) {
        // Reads work with a full disk too, and the file only informs people.
        Err(error) if is_full(&error) => {
            tracing::warn!("the disk is full: {error:#}; reads work, and writes are refused");
            Ok(())
        }
        written => written,
    }
}

fn is_full(error: &anyhow::Error) -> bool {
    let mut kinds = error.chain().filter_map(|cause| {
        let of_json = cause.downcast_ref::<serde_json::Error>();
        let kind = of_json.and_then(serde_json::Error::io_error_kind);
        kind.or_else(|| Some(cause.downcast_ref::<std::io::Error>()?.kind()))
    });
    kinds.any(|kind| kind == std::io::ErrorKind::StorageFull)
}

/// Serves until this process is asked to stop and running calls have finished. Returns false if a
/// second signal cut them off.
async fn serve_until_stopped(
    serving: impl Future<Output = ()>,
    engine: &Engine,
    (stop, gone): (&CancellationToken, &CancellationToken),
    output: &CliOutput,
) -> bool {
    tokio::pin!(serving);
    tokio::select! {
        () = &mut serving => return true,
        () = wait_for_stop_signal() => {}
        () = gone.cancelled() => {}
    }
    output.note("Stopping: running calls finish first. Press Ctrl-C again to stop at once.");
    // End feeds and long polls, so that the remaining calls can finish.
    engine.begin_stop();
    stop.cancel();
    tokio::select! {
        () = &mut serving => true,
        () = wait_for_stop_signal() => false,
    }
}

/// The hook at each step of a turn: nothing, unless a crash test sets one.
#[cfg(debug_assertions)]
fn on_step() -> Result<StepHook, Failure> {
    super::die_at::on_step()
}

#[cfg(not(debug_assertions))]
#[expect(
    clippy::unnecessary_wraps,
    reason = "builds for tests may be told something wrong"
)]
fn on_step() -> Result<StepHook, Failure> {
    Ok(Arc::new(|_, _| ()))
}

/// Refuses to listen beyond loopback without keys.
fn require_keys(plan: &ServePlan, has_keys: bool) -> Result<(), Failure> {
    let config = &plan.config;
    if !plan.listens_beyond_loopback() || config.auth.required && has_keys {
        return Ok(());
    }
    let listen = config.server.listen;
    let hint = format!(
        "make a key first with: statehold token create --role admin --data {}",
        config.store.data.display()
    );
    Err(Failure::usage(format!("a server without keys must not listen on {listen}")).hint(&hint))
}

/// The addresses that decisions may be pushed to.
pub(in crate::cli) fn push_guard(config: &Config) -> Result<Guard, Failure> {
    if config.auth.required {
        Guard::new(&config.push.allow).map_err(|text| {
            Failure::usage(format!("`push.allow` has {text:?}, which is not host:port"))
        })
    } else {
        // A development server may call any address on this machine.
        Ok(Guard::open())
    }
}

/// Facts for the start banner, besides the plan.
struct StartBanner<'a> {
    url: &'a str,
    demo: &'a EmbeddedDemo,
    was_unclean: bool,
    /// Counted after an unclean stop only.
    open_holds: usize,
    has_keys: bool,
    begun: Instant,
}

/// The open holds of a tenant after an unclean stop; none if the store does not answer.
async fn count_open_holds(engine: &Engine, tenant: &Name, was_unclean: bool) -> usize {
    if !was_unclean {
        return 0;
    }
    let counts = operations::counts(engine, &Caller::local(tenant.clone())).await;
    let work = counts.ok().and_then(|counts| counts.work);
    work.map_or(0, |work| {
        usize::try_from(work.open_holds).unwrap_or(usize::MAX)
    })
}

/// Prints the start banner: only what this server really serves.
fn print_banner(plan: &ServePlan, output: &CliOutput, banner: &StartBanner<'_>) {
    let config = &plan.config;
    let url = banner.url;
    let mode = if config.auth.required {
        "every call needs a key"
    } else {
        "dev mode, loopback only, calls need no key"
    };
    output.note(&format!(
        "  Statehold {}    {mode}",
        env!("CARGO_PKG_VERSION")
    ));
    let row = |name: &str, text: &str| output.note(&format!("  {name:<10} {text}"));
    row("API", &format!("{url}/v1"));
    row("Schema", &format!("{url}/openapi.json"));
    row("OpenAI", &format!("{url}/openai/v1"));
    row("MCP", &format!("{url}{}", statehold_server::MCP_PATH));
    if config.console.enabled {
        row(
            "Console",
            &format!("{url}{}", statehold_server::CONSOLE_PATH),
        );
    }
    row("Health", &format!("{url}/healthz"));
    row("Metrics", &format!("{url}/metrics"));
    let data = printable(&config.store.data.display().to_string());
    match plan.storage {
        PlannedStorage::Memory => row("Data", "in memory: gone when the server stops"),
        PlannedStorage::Disk { .. } if config.auth.required => row("Data", &data),
        PlannedStorage::Disk { .. } => {
            let ways = "(kept; --memory keeps none, --reset starts over)";
            row("Data", &format!("{data}  {ways}"));
        }
    }
    if config.debug_log.enabled {
        let what = match plan.storage {
            PlannedStorage::Memory => "not kept: the data is in memory".to_owned(),
            PlannedStorage::Disk { .. } => format!("on: statehold debug-log show --data {data}"),
        };
        row("Debug log", &what);
    }
    if plan.clock_offset_seconds.is_some() {
        let call = format!("POST {url}/v1/dev/clock {{\"step_seconds\": 3600}}");
        row("Clock", &format!("can be moved: {call}"));
    }
    let agents = banner.demo.agents().iter();
    let names: Vec<&str> = agents.map(|agent| agent.name.as_str()).collect();
    if !names.is_empty() {
        let names = names.join(", ");
        row("Agents", &format!("{names} (rules, no model)"));
    }
    let declared = config.agents.keys().map(Name::as_str);
    let declared: Vec<&str> = declared.filter(|name| !names.contains(name)).collect();
    if !declared.is_empty() {
        let row_name = if names.is_empty() { "Agents" } else { "" };
        row(row_name, &format!("{} (declared)", declared.join(", ")));
    }
    if banner.was_unclean {
        let what = "from an unclean stop; all acknowledged writes are there";
        row("Recovered", what);
        if banner.open_holds > 0 {
            let count = plural(banner.open_holds, "hold");
            row("", &format!("{count} open: statehold approvals list"));
        }
    }
    if config.auth.required && !banner.has_keys {
        let command = format!("statehold token create --role admin --data {data}");
        row("Keys", &format!("none yet: stop, then: {command}"));
    }
    let next = match (names.as_slice(), declared.as_slice()) {
        ([], []) => "statehold sessions list".to_owned(),
        ([], [only]) => format!("statehold chat {only}"),
        ([], all) if !all.contains(&"coordinator") => format!("statehold chat {}", all[0]),
        _ => "statehold chat".to_owned(),
    };
    let at = if url == DEFAULT_URL {
        String::new()
    } else {
        format!(" --url {url}")
    };
    let ms = banner.begun.elapsed().as_millis();
    let stop = if at.is_empty() {
        "        Stop: Ctrl-C"
    } else {
        "\n  Stop: Ctrl-C"
    };
    output.note(&format!("  Ready in {ms} ms. Try:  {next}{at}{stop}"));
}

/// Resolves when this process is asked to stop.
async fn wait_for_stop_signal() {
    let Ok(mut terminate) = signal(SignalKind::terminate()) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        interrupted = tokio::signal::ctrl_c() => {
            if interrupted.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}

/// Removes the server's own files, and nothing else.
fn remove_own_files(data: &Path) -> anyhow::Result<()> {
    use crate::data_directory::{DirectoryHolder, holder, remove_existing};
    if holder(data)? != DirectoryHolder::Free {
        let message = format!("{} is in use; stop its server first", data.display());
        return Err(Failure::usage(message).into());
    }
    for name in OWN_FILES {
        remove_existing(&data.join(name))?;
    }
    for file in debug_log::file_paths(data).unwrap_or_default() {
        remove_existing(&file)?;
    }
    Ok(())
}

/// Limits connections so that file descriptors remain for the data: a refused client can retry, but
/// a write without a file descriptor fails.
fn connections_max(asked: u64) -> anyhow::Result<usize> {
    use rustix::process::{Resource, getrlimit};
    let files = getrlimit(Resource::Nofile).current;
    let most = files.map_or(u64::MAX, |files| files.saturating_sub(OWN_FILES_MAX).max(1));
    if asked > most {
        tracing::warn!(
            asked,
            most,
            "fewer connections: the limit of open files is low"
        );
    }
    Ok(usize::try_from(asked.min(most))?)
}

/// Raises the limit of open files: every connection is one, and the usual limit is too low for a
/// server.
fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let wanted = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, wanted) {
        tracing::warn!(%error, "the limit of open files stays as it is");
    }
}
