//! Carrying out a plan: open the data, listen, say what is served, stop cleanly.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use anyhow::Context;
use statehold_agents::push::{self, Guard};
use statehold_agents::runner::StepHook;
use statehold_core::name::Name;
use statehold_engine::{Engine, OffsetClock};
use statehold_server::accept::{AcceptOptions, serve};
use statehold_server::{Metrics, Reload, ServerOptions};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing_subscriber::EnvFilter;

use super::reload::{Hangups, MakePlan, Standing, Start};
use super::{PlannedStorage, ServePlan};
use crate::cli::output::Output;
use crate::cli::printable;
use crate::config::{Config, Log, LogFormat, Mistakes, Surroundings, declared};
use crate::demo::{self, Demo, DemoOptions};
use crate::exit::{Exit, Failure};
use crate::run_file::{self, RunFile};
use crate::wire;

/// How many files the server keeps for itself: the store with its readers, keys, sockets, the log.
const OWN_FILES_MAX: u64 = 128;

/// Files that are the server's own, and that `--reset` removes.
const OWN_FILES: [&str; 7] = [
    "statehold.db",
    "statehold.db-wal",
    "statehold.db-shm",
    "user-keys",
    "hold-keys",
    "statehold.run",
    "statehold.run.new",
];

/// Runs a server until it is told to stop. Its plan is made again whenever its configuration is read again.
///
/// # Errors
///
/// If it cannot start, or should not: beyond loopback without keys.
pub(crate) fn run(
    make_plan: impl Fn(&Surroundings) -> anyhow::Result<ServePlan> + Send + Sync + 'static,
    output: &Output,
) -> anyhow::Result<Exit> {
    let begun = Instant::now();
    let plan = &make_plan(&Surroundings::of_process())?;
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
    output: &Output,
    begun: Instant,
) -> anyhow::Result<Exit> {
    let hangups = Hangups::listen()?;
    let config = &plan.config;
    let on_step = on_step()?;
    let data = &config.store.data;
    let around = Surroundings::of_process();
    let declared = declared(config, &plan.explained, &around);
    let declared = declared.map_err(Mistakes::into_failure)?;
    let on_disk = matches!(plan.storage, PlannedStorage::Disk { .. });
    if plan.storage == (PlannedStorage::Disk { reset: true }) {
        reset(data)?;
    }
    let was_unclean = on_disk && run_file::read(data).unwrap_or(None).is_some();
    let offset = plan.clock_offset_seconds;
    let moved = offset.map(|seconds| Arc::new(OffsetClock::new(seconds)));
    let clock = wire::clock(moved.as_ref());
    let demo = Arc::new(Demo::beside(&config.agents, plan.has_demo));
    let standing = Standing::new(config.clone(), declared, &demo);
    let (policies, readers) = (standing.policies.clone(), config.store.readers.get());
    let parts = if on_disk {
        wire::on_disk(data, readers, Arc::clone(&clock), policies).await?
    } else {
        wire::in_memory(Arc::clone(&clock), policies).await?
    };
    let engine = parts.engine;
    engine.set_service_credentials(standing.credentials.clone());
    let tenant: Name = "default".parse().context("the tenant has a name")?;
    demo::revoke_keys(&engine, &tenant).await?;
    let has_keys = engine.has_keys().await?;
    require_keys(plan, has_keys)?;
    let listener = TcpListener::bind(config.server.listen)
        .await
        .with_context(|| format!("cannot listen on {}", config.server.listen))?;
    let url = format!("http://{}", listener.local_addr()?);
    if on_disk {
        write_run_file(data, &url)?;
    }
    let start = Start {
        plan: make_plan,
        started: plan.explained.clone(),
        file: around.found_file(),
        demo: Arc::clone(&demo),
        clock,
        engine: engine.clone(),
        tenant: tenant.clone(),
    };
    let reloader = Arc::new(start.begin(standing, on_step).await?);
    let connections_open = Arc::new(AtomicUsize::new(0));
    let guard = push_guard(config)?;
    let options = ServerOptions {
        push_guard: guard.clone(),
        keys_required: config.auth.required,
        body_bytes_max: config.limits.body_bytes_max.get(),
        clock: moved,
        agents: reloader.agents(),
        scratch: Some(reloader.scratch()),
        reload: Some(Arc::clone(&reloader) as Arc<dyn Reload>),
        ..ServerOptions::default()
    };
    let accept = AcceptOptions {
        connections_max: connections_max(config.server.connections_max.get().into())?,
        head_read_timeout: Duration::from_secs(config.server.header_timeout_seconds.get()),
        grace: Duration::from_secs(config.server.shutdown_seconds),
        connections_open: Arc::clone(&connections_open),
        ..AcceptOptions::default()
    };
    let metrics = Metrics::new(connections_open);
    let router = statehold_server::router(engine.clone(), parts.sealer, options, metrics);
    let playing = play(&demo, config, &engine, &tenant, &url).await?;
    let greeting = Greeting {
        url: &url,
        demo: &demo,
        was_unclean,
        has_keys,
        begun,
    };
    greet(plan, output, &greeting);
    let stop = CancellationToken::new();
    engine.load_addresses().await?;
    let background = TaskTracker::new();
    background.spawn(push_decisions(engine.clone(), guard, stop.clone()));
    let gone = CancellationToken::new();
    background.spawn(Arc::clone(&reloader).follow(hangups, gone.clone(), stop.clone()));
    let serving = serve(listener, router, accept, stop.clone());
    let is_clean = until_asked(serving, &engine, (&stop, &gone), output).await;
    if !is_clean {
        return Ok(Exit::Interrupted);
    }
    stop.cancel();
    playing.stop().await;
    reloader.stop().await;
    background.close();
    background.wait().await;
    engine.shut_down().await;
    if on_disk {
        run_file::remove(data)?;
    }
    Ok(Exit::Done)
}

async fn push_decisions(engine: Engine, guard: Guard, stop: CancellationToken) {
    let write_body = Arc::new(statehold_server::pushed_body);
    if let Err(error) = push::run(engine, guard, write_body, stop).await {
        tracing::error!(%error, "nothing is pushed: TLS cannot be used");
    }
}

fn write_run_file(data: &Path, url: &str) -> anyhow::Result<()> {
    let run = RunFile {
        pid: std::process::id(),
        url: url.to_owned(),
        started_at: jiff::Timestamp::now().to_string(),
    };
    run_file::write(data, &run)
}

/// Serves until somebody asks this process to stop, and what was begun is finished. False if it is not,
/// because they asked again.
async fn until_asked(
    serving: impl Future<Output = ()>,
    engine: &Engine,
    (stop, gone): (&CancellationToken, &CancellationToken),
    output: &Output,
) -> bool {
    tokio::pin!(serving);
    tokio::select! {
        () = &mut serving => return true,
        () = asked_to_stop() => {}
        () = gone.cancelled() => {}
    }
    output.note("Stopping: finishing what was begun. Ctrl-C again stops at once.");
    // Feeds and long polls end by themselves, so that the rest can finish.
    engine.begin_stop();
    stop.cancel();
    tokio::select! {
        () = &mut serving => true,
        () = asked_to_stop() => false,
    }
}

/// What is done at each step of a turn: nothing, unless a test says otherwise.
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

/// Whoever can be reached from elsewhere lets in only those with a key.
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
    Err(Failure::usage(format!("nobody may listen on {listen} without keys")).hint(&hint))
}

/// Which addresses decisions may be pushed to.
pub(in crate::cli) fn push_guard(config: &Config) -> Result<Guard, Failure> {
    if config.auth.required {
        Guard::new(&config.push.allow).map_err(|text| {
            Failure::usage(format!("`push.allow` has {text:?}, which is no host:port"))
        })
    } else {
        // A development server calls whoever is on this machine.
        Ok(Guard::open())
    }
}

/// Starts the demo agents on their own server.
async fn play(
    demo: &Demo,
    config: &Config,
    engine: &Engine,
    tenant: &Name,
    url: &str,
) -> anyhow::Result<demo::Playing> {
    let options = DemoOptions {
        url: url.to_owned(),
        has_coordinator: true,
        seeds: !config.auth.required,
    };
    demo::spawn(demo, engine, tenant, &options).await
}

/// What a server says about itself when it starts, beside its plan.
struct Greeting<'a> {
    url: &'a str,
    demo: &'a Demo,
    was_unclean: bool,
    has_keys: bool,
    begun: Instant,
}

/// Says what is served, and only that.
fn greet(plan: &ServePlan, output: &Output, greeting: &Greeting<'_>) {
    let config = &plan.config;
    let url = greeting.url;
    let mode = if config.auth.required {
        "every call needs a key"
    } else {
        "dev mode, loopback only, calls need no key"
    };
    output.note(&format!(
        "  Statehold {}    {mode}",
        env!("CARGO_PKG_VERSION")
    ));
    output.note(&format!(
        "  API        {url}/v1        schema {url}/openapi.json"
    ));
    output.note(&format!("  OpenAI     {url}/openai/v1"));
    output.note(&format!(
        "  Health     {url}/healthz   metrics {url}/metrics"
    ));
    let data = printable(&config.store.data.display().to_string());
    match plan.storage {
        PlannedStorage::Memory => {
            output.note("  Data       in memory: gone when the server stops");
        }
        PlannedStorage::Disk { .. } if config.auth.required => {
            output.note(&format!("  Data       {data}"));
        }
        PlannedStorage::Disk { .. } => output.note(&format!(
            "  Data       {data}  (kept; --memory for throw-away, --reset to start over)"
        )),
    }
    if plan.clock_offset_seconds.is_some() {
        output.note(&format!(
            "  Clock      can be moved: POST {url}/v1/dev/clock {{\"step_seconds\": 3600}}"
        ));
    }
    let agents = greeting.demo.agents().iter();
    let names: Vec<&str> = agents.map(|agent| agent.name.as_str()).collect();
    if !names.is_empty() {
        let names = names.join(", ");
        output.note(&format!(
            "  Agents     {names}   (embedded demo, rules not a model)"
        ));
    }
    if greeting.was_unclean {
        output.note("  Recovered  from an unclean stop; everything acknowledged is there");
    }
    if config.auth.required && !greeting.has_keys {
        output.note(&format!(
            "  Keys       none yet: stop, then: statehold token create --role admin --data {data}"
        ));
    }
    let next = if names.is_empty() {
        "statehold sessions list"
    } else {
        "statehold chat"
    };
    let ms = greeting.begun.elapsed().as_millis();
    output.note(&format!(
        "  Ready in {ms} ms. Try:  {next}        Stop: Ctrl-C"
    ));
}

/// Resolves when somebody asks this process to stop.
async fn asked_to_stop() {
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

/// Removes what a server wrote, and nothing else.
fn reset(data: &Path) -> anyhow::Result<()> {
    use crate::data_directory::{Holder, holder};
    if holder(data)? != Holder::Nobody {
        let message = format!("{} is in use; stop its server first", data.display());
        return Err(Failure::usage(message).into());
    }
    for name in OWN_FILES {
        let path = data.join(name);
        if let Err(error) = std::fs::remove_file(&path)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            let place = format!("{} cannot be removed", path.display());
            return Err(error).context(place);
        }
    }
    Ok(())
}

fn start_log(log: &Log) -> anyhow::Result<()> {
    let filter = log_filter(log)?;
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        // There is nobody to tell that nobody can be told anything: a terminal that is gone.
        .log_internal_errors(false)
        .with_writer(std::io::stderr);
    let started = match log.format {
        LogFormat::Text => lines.with_ansi(false).try_init(),
        LogFormat::Json => lines.json().try_init(),
    };
    started.map_err(|error| anyhow::anyhow!("the log cannot be started: {error}"))
}

/// Which lines are written.
pub(in crate::cli) fn log_filter(log: &Log) -> anyhow::Result<EnvFilter> {
    let mut level = log.level.clone();
    if !level.contains("rmcp") {
        // It writes words of tool servers, at every connection.
        level.push_str(",rmcp=off");
    }
    EnvFilter::try_new(level).with_context(|| {
        let message = format!(
            "`log.level` is {:?}, which is no level or filter",
            log.level
        );
        Failure::usage(message).hint("use error, warn, info, debug or trace")
    })
}

/// As many connections as are asked for, but not so many that there is no file left for the data: a
/// client that is one too many hears so, and a write that finds no file fails.
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

/// Every connection is a file; the usual limit is far below what a server is asked for.
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
