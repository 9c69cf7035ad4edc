//! A phase of a `PostChain` in Rust, in one file to copy: an MCP server that reads the conversation from Statehold
//! as an MCP client, through a cache. It replaces the phase `experience` of `examples/postchain`:
//!
//! ```text
//! cargo run --package statehold-testkit --example postchain_phase -- 9001 experience.db
//! ```

use std::collections::{BTreeMap, HashMap};
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use reqwest::redirect::Policy;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ErrorData,
    ListToolsResult, PaginatedRequestParams, ProtocolVersion, ReadResourceRequestParams,
    ResourceContents, ServerCapabilities, ServerConfig, Tool, ToolAnnotations,
};
use rmcp::service::{ClientLifecycleMode, RequestContext, serve_client_with_lifecycle};
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::{
    StreamableHttpClientTransport, StreamableHttpServerConfig, StreamableHttpService,
};
use rmcp::{RoleServer, ServerHandler};
use rusqlite::{Connection, OptionalExtension, TransactionBehavior};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::OnceCell;

const TOOL: &str = "get_enriched_context";
const CACHE_BYTES_MAX: usize = 16 << 20;
/// Bounds how long text that Statehold erased stays in the memory of this process.
const CACHE_TTL: Duration = Duration::from_mins(10);
const READ_MAX: Duration = Duration::from_secs(30);
/// A web of two pages.
const PAGES: [(&str, &str); 2] = [
    ("Lisbon", "Lisbon has 22 degrees in May."),
    ("Porto", "Porto has 20 degrees in May."),
];

#[tokio::main]
async fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [port, file] = args.as_slice() else {
        bail!("usage: postchain_phase PORT FILE");
    };
    // The HTTP client has no cryptography of its own.
    let tls = rustls::crypto::ring::default_provider().install_default();
    ensure!(tls.is_ok(), "a cryptography provider is installed already");
    // Idle connections would break when Statehold restarts.
    let http = reqwest::Client::builder().pool_max_idle_per_host(0);
    let phase = Phase {
        http: http.no_proxy().redirect(Policy::none()).build()?,
        cache: Arc::default(),
        store: Arc::new(LocalStore::open(file)?),
    };
    // Without MCP sessions, Statehold can call again after a restart of this process.
    let config = StreamableHttpServerConfig::default().with_legacy_session_mode(false);
    let sessions = Arc::new(NeverSessionManager::default());
    let service = StreamableHttpService::new(move || Ok(phase.clone()), sessions, config);
    let app = axum::Router::new().route_service("/experience/mcp", service);
    let listener = TcpListener::bind(("127.0.0.1", port.parse()?)).await?;
    Ok(axum::serve(listener, app).await?)
}

#[derive(Clone)]
struct Phase {
    /// One for all reads: loading the root certificates takes a while.
    http: reqwest::Client,
    cache: Arc<Cache>,
    store: Arc<LocalStore>,
}

/// The metadata of a call. The call says which Statehold to ask, so let nothing but Statehold call the phase.
#[derive(Deserialize)]
struct CallMeta {
    #[serde(rename = "statehold/mcp_url")]
    mcp_url: String,
    #[serde(rename = "statehold/read_token")]
    read_token: String,
    #[serde(rename = "statehold/session")]
    session: String,
}

#[derive(Debug, Deserialize)]
struct History {
    rev: u64,
    messages: Vec<Message>,
    #[serde(skip)]
    bytes: usize,
}

#[derive(Debug, Deserialize)]
struct Message {
    role: String,
    content: Value,
    seq: u64,
}

/// The messages of users that name each place, by their numbers, in the format of `phases.py`.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Index {
    last: u64,
    places: BTreeMap<String, Vec<u64>>,
}

impl Index {
    /// Adds the messages that are new.
    fn add(&mut self, history: &History) {
        let messages = history.messages.iter().filter(|one| one.role == "user");
        if messages.clone().all(|one| one.seq != self.last) {
            *self = Self::default(); // A rewind took out the last indexed message.
        }
        let last = self.last;
        for message in messages.filter(|one| one.seq > last) {
            let text = message.content.as_str().unwrap_or_default();
            for (place, _) in PAGES.iter().filter(|(place, _)| text.contains(place)) {
                let seqs = self.places.entry((*place).to_owned()).or_default();
                seqs.push(message.seq);
            }
            self.last = message.seq;
        }
    }
}

impl Phase {
    /// What the past and the web know about the places of the conversation.
    async fn enriched_context(&self, input: &str, uri: &str, meta: CallMeta) -> Result<String> {
        let (history, store) = (self.history(&meta, uri).await?, self.store.clone());
        let update = move || store.update(&meta.session, |index: &mut Index| index.add(&history));
        // A write waits for the disk, and must not stop other calls meanwhile.
        let index = tokio::task::spawn_blocking(update).await??;
        let is_named = |place: &str| index.places.contains_key(place) || input.contains(place);
        let pages = PAGES.into_iter().filter(|(place, _)| is_named(place));
        let mut pages: Vec<&str> = pages.map(|(_, page)| page).collect();
        if pages.is_empty() {
            pages.push("Nothing is known yet.");
        }
        Ok(pages.join("\n"))
    }

    /// The conversation at an address. Only pinned addresses are cached, because their messages never change.
    async fn history(&self, meta: &CallMeta, uri: &str) -> Result<Arc<History>> {
        let path = format!("conversation://{}/history", meta.session);
        let (address, query) = uri.split_once('?').unwrap_or((uri, ""));
        // Checked before the cache, which looks at no token.
        ensure!(address == path, "{uri} is of another conversation");
        let value = |name| {
            let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
            pairs.find_map(|(known, value)| (known == name).then_some(value))
        };
        let (Some(revision), Some(_)) = (value("rev"), value("turn")) else {
            return Ok(Arc::new(self.fetch(meta, uri).await?));
        };
        let revision: u64 = revision.parse().context("reading the revision")?;
        let key = (meta.mcp_url.clone(), uri.to_owned(), revision);
        let fetch = async {
            let history = self.fetch(meta, uri).await?;
            ensure!(history.rev == revision, "{uri} has another revision");
            Ok(history)
        };
        self.cache.get_or_fetch(&key, fetch).await
    }

    /// Reads an address from Statehold, in one connection that is closed afterwards.
    async fn fetch(&self, meta: &CallMeta, uri: &str) -> Result<History> {
        let config = StreamableHttpClientTransportConfig::with_uri(meta.mcp_url.as_str())
            .auth_header(meta.read_token.as_str());
        let transport = StreamableHttpClientTransport::with_client(self.http.clone(), config);
        let lifecycle = ClientLifecycleMode::Discover {
            preferred_versions: vec![ProtocolVersion::LATEST],
        };
        let reading = async {
            let mut statehold = serve_client_with_lifecycle((), transport, lifecycle).await?;
            let params = ReadResourceRequestParams::new(uri);
            let read = statehold.read_resource(params).await;
            statehold.close().await?;
            anyhow::Ok(read?.contents.pop())
        };
        let reading = Box::pin(tokio::time::timeout(READ_MAX, reading)).await;
        let content = reading.context("reading the conversation")??;
        let Some(ResourceContents::TextResourceContents { text, .. }) = content else {
            bail!("{uri} has no text");
        };
        let mut history: History = serde_json::from_str(&text)?;
        history.bytes = text.len();
        Ok(history)
    }
}

impl ServerHandler for Phase {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let schema = rmcp::object!({
            "type": "object",
            "properties": {"input": {"type": "string"}, "conversation_history_uri": {"type": "string"}},
            "required": ["input", "conversation_history_uri"],
        });
        // A call that was cut off may be repeated: the index of a session has each message once.
        let hints = ToolAnnotations::new().read_only(true).idempotent(true);
        let about = "Experience: what the past and the web know about the conversation.";
        let tool = Tool::new(TOOL, about, schema).with_annotations(hints);
        Ok(ListToolsResult::with_all_items(vec![tool]))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        if request.name != TOOL {
            return Err(ErrorData::invalid_params("unknown tool", None));
        }
        let arguments = Value::Object(request.arguments.unwrap_or_default());
        let text = |name: &str| arguments[name].as_str().unwrap_or_default();
        let meta = serde_json::to_value(&context.meta).and_then(serde_json::from_value);
        let meta = meta.map_err(|error| ErrorData::invalid_params(error.to_string(), None))?;
        let answer = self.enriched_context(text("input"), text("conversation_history_uri"), meta);
        let result = match answer.await {
            Ok(text) => CallToolResult::success(vec![ContentBlock::text(text)]),
            Err(error) => CallToolResult::error(vec![ContentBlock::text(format!("{error:#}"))]),
        };
        let Cache { hits, misses, .. } = self.cache.as_ref();
        println!("cache: {hits:?} hits, {misses:?} misses");
        Ok(result.into())
    }
}

/// The addresses of Statehold and of the conversation, and the revision. The token differs from call to call.
type Key = (String, String, u64);

/// An LRU cache with a TTL, a limit in bytes, and one fetch for all concurrent callers of a key.
#[derive(Default)]
struct Cache {
    entries: Mutex<HashMap<Key, Entry>>,
    hits: AtomicU64,
    misses: AtomicU64,
}

#[derive(Default)]
struct Entry {
    value: Arc<OnceCell<Arc<History>>>,
    used_at: Option<Instant>,
    /// None while the value is fetched.
    expires_at: Option<Instant>,
    bytes: usize,
}

impl Cache {
    /// The cached history, or the result of `fetch`. If a fetch fails or its caller is cancelled, nothing is
    /// cached, and the next waiting caller fetches.
    async fn get_or_fetch<F>(&self, key: &Key, fetch: F) -> Result<Arc<History>>
    where
        F: Future<Output = Result<History>>,
    {
        let value = self.entry(key);
        if let Some(found) = value.get() {
            self.hits.fetch_add(1, Ordering::Relaxed);
            return Ok(found.clone());
        }
        let fill = || async {
            self.misses.fetch_add(1, Ordering::Relaxed);
            let history = Arc::new(fetch.await?);
            self.settle(key, history.bytes);
            Ok(history)
        };
        value.get_or_try_init(fill).await.cloned()
    }

    fn entry(&self, key: &Key) -> Arc<OnceCell<Arc<History>>> {
        let now = Instant::now();
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        // Drop expired values, and fetches without a waiting caller.
        entries.retain(|_, entry| match entry.expires_at {
            Some(expires_at) => now < expires_at,
            None => Arc::strong_count(&entry.value) > 1,
        });
        let entry = entries.entry(key.clone()).or_default();
        entry.used_at = Some(now);
        entry.value.clone()
    }

    /// Starts the TTL of a fetched value, and evicts the least recently used ones.
    fn settle(&self, key: &Key, bytes: usize) {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if bytes > CACHE_BYTES_MAX {
            entries.remove(key);
        } else if let Some(entry) = entries.get_mut(key) {
            entry.expires_at = Some(Instant::now() + CACHE_TTL);
            entry.bytes = bytes;
        }
        while entries.values().map(|entry| entry.bytes).sum::<usize>() > CACHE_BYTES_MAX {
            let settled = entries.iter().filter(|(_, entry)| entry.bytes > 0);
            let oldest = settled.min_by_key(|(_, entry)| entry.used_at);
            let Some(oldest) = oldest.map(|(key, _)| key.clone()) else {
                return;
            };
            entries.remove(&oldest);
        }
    }
}

/// Durable JSON values in a SQLite file, in the format of `local_store.py`. A write that returned survives a kill -9.
struct LocalStore(Mutex<Connection>);

impl LocalStore {
    fn open(path: &str) -> Result<Self> {
        let mut options = OpenOptions::new();
        options.create(true).append(true).mode(0o600).open(path)?;
        let connection = Connection::open(path)?;
        connection.execute_batch(
            "PRAGMA journal_mode = TRUNCATE; PRAGMA synchronous = FULL;
             CREATE TABLE IF NOT EXISTS value (key TEXT PRIMARY KEY, body TEXT NOT NULL)",
        )?;
        Ok(Self(Mutex::new(connection)))
    }

    /// Changes a value in one transaction, from its default if there is none, and returns it.
    fn update<V>(&self, key: &str, change: impl FnOnce(&mut V)) -> Result<V>
    where
        V: Default + Serialize + DeserializeOwned,
    {
        let mut connection = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let select = "SELECT body FROM value WHERE key = ?";
        let found = transaction.query_one(select, [key], |row| row.get::<_, String>(0));
        let found = found.optional()?;
        let mut value: V =
            found.map_or_else(|| Ok(V::default()), |body| serde_json::from_str(&body))?;
        change(&mut value);
        let row = [key, &serde_json::to_string(&value)?];
        transaction.execute("INSERT OR REPLACE INTO value VALUES (?, ?)", row)?;
        transaction.commit()?;
        Ok(value)
    }
}
