//! Shared state of the handlers, and the extractors: caller, idempotency key, path and query.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{FromRequestParts, RawPathParams};
use futures_util::future::BoxFuture;
use http::request::Parts;
use http::{Extensions, HeaderMap, Method};
use serde::de::DeserializeOwned;
use statehold_agents::dial_core::DialCore;
use statehold_agents::push::Guard;
use statehold_agents::scratch::Scratch;
use statehold_agents::spec::AgentBook;
use statehold_core::name::Name;
use statehold_engine::api::caller::{self, KeyWatch};
use statehold_engine::api::turn::DeliveryLog;
use statehold_engine::{
    AnswerMemory, Call, Caller, Credential, Engine, EngineError, IdempotencyKey, KEY_PREFIX,
    OffsetClock, PageLimit, Shares, Swap,
};

use crate::chat::FailedCalls;
use crate::http::body::{BodyOwner, PARSERS_MAX};
use crate::http::core_lookups::CoreLookups;
use crate::http::dial_caller::DialUser;
use crate::http::metrics::Metrics;
use crate::http::problem::{Code, Problem};
use crate::http::read_token;
use crate::http::seal::Sealer;
use crate::http::shares::{CallSlot, RateLimit, ServerShares};
use crate::mcp::LegacySessions;
use crate::reload::Reload;
use crate::ums::UmsOptions;

/// The payloads of a page, unless one entry has more.
const PAGE_BYTES_MAX: u64 = 1024 * 1024;
/// How long a call waits for the memory of its answer.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(30);

/// How a server behaves towards its callers.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// Whether every call needs a key. False only on a development server on loopback.
    pub keys_required: bool,
    /// The largest body, in bytes.
    pub body_bytes_max: usize,
    /// How long a body may take to arrive.
    pub body_timeout: Duration,
    /// How many calls of all callers may be in progress at once. One key may have a fourth of them, and
    /// operators have a reserve.
    pub calls_max: usize,
    /// How many feeds, streams and long waits may be open at once, shared in the same way.
    pub streams_max: usize,
    /// How many bytes the bodies that are read or in use may take, shared in the same way. They count twice: as
    /// they came, and as the call has them. Small bodies do not count.
    pub request_bytes_max: usize,
    /// How many bytes the answers that wait to be sent may take, shared in the same way. Small answers do not
    /// count.
    pub answer_bytes_max: usize,
    /// How often one key may call. None means no limit.
    pub rate: Option<RateLimit>,
    /// The clock of the engine, if callers may move it. Only development servers set it, on request.
    pub clock: Option<Arc<OffsetClock>>,
    /// Which addresses decisions may be pushed to.
    pub push_guard: Guard,
    /// The declared agents; a reload replaces them.
    pub agents: Swap<AgentBook>,
    /// Declared agents that run contexts which callers bring along. The first is the default.
    pub answerers: Vec<Name>,
    /// How conversations are served.
    pub ums: UmsOptions,
    /// In-memory engines for stateless chat calls. Without them, stateless calls are refused.
    pub scratch: Option<Arc<Scratch>>,
    /// The DIAL Core that vouches for callers on the surface of DIAL.
    pub dial_core: Option<DialCore>,
    /// Whether the console is served.
    pub console: bool,
    /// The address under which people reach this server. None for the one that a call names.
    pub public_url: Option<String>,
    /// Reloads the configuration. Without it, the server refuses to reload.
    pub reload: Option<Arc<dyn Reload>>,
    /// Whether MCP has the tools, prompts and resources of its conformance suite.
    #[cfg(feature = "conformance")]
    pub mcp_fixtures: bool,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            keys_required: true,
            body_bytes_max: 8 * 1024 * 1024,
            body_timeout: Duration::from_secs(30),
            calls_max: 8_192,
            streams_max: 4_096,
            request_bytes_max: 256 * 1024 * 1024,
            answer_bytes_max: 64 * 1024 * 1024,
            rate: None,
            clock: None,
            push_guard: Guard::default(),
            agents: Swap::default(),
            answerers: Vec::new(),
            ums: UmsOptions::default(),
            scratch: None,
            dial_core: None,
            console: true,
            public_url: None,
            reload: None,
            #[cfg(feature = "conformance")]
            mcp_fixtures: false,
        }
    }
}

/// Shared state of all handlers; cheap to clone.
#[derive(Clone)]
pub(crate) struct App(Arc<AppState>);

pub(crate) struct AppState {
    pub(crate) engine: Engine,
    pub(crate) sealer: Sealer,
    pub(crate) options: ServerOptions,
    pub(crate) metrics: Metrics,
    pub(crate) shares: ServerShares,
    /// The tenant of calls without a key.
    tenant: Name,
    /// Answers still owed to chat clients, and holds they have seen.
    pub(crate) deliveries: Arc<DeliveryLog>,
    /// Sessions of MCP clients of the older era.
    pub(crate) mcp_sessions: LegacySessions,
    /// Changes of lists that MCP fixtures announce.
    #[cfg(feature = "conformance")]
    pub(crate) mcp_lists: crate::mcp::ListChanges,
    /// Turns without a session that failed a short time ago.
    pub(crate) failed_calls: FailedCalls,
    /// Bounds the questions to DIAL Core about callers.
    pub(crate) core_lookups: CoreLookups,
    /// Bounds how many long bodies are parsed at once.
    pub(crate) body_parsers: Shares,
}

impl std::ops::Deref for App {
    type Target = AppState;

    fn deref(&self) -> &AppState {
        &self.0
    }
}

impl App {
    pub(crate) fn new(
        engine: Engine,
        sealer: Sealer,
        options: ServerOptions,
        metrics: Metrics,
    ) -> Self {
        let deliveries = Arc::new(DeliveryLog::new(engine.now()));
        Self(Arc::new(AppState {
            engine,
            sealer,
            shares: ServerShares::new(&options),
            options,
            metrics,
            tenant: "default".parse().expect("a fixed name is a name"),
            deliveries,
            mcp_sessions: LegacySessions::default(),
            #[cfg(feature = "conformance")]
            mcp_lists: crate::mcp::ListChanges::default(),
            failed_calls: FailedCalls::default(),
            core_lookups: CoreLookups::default(),
            body_parsers: Shares::of_turns(PARSERS_MAX),
        }))
    }

    /// Authenticates the caller. Also returns the key of the call.
    pub(crate) async fn authenticate(&self, parts: &Parts) -> Result<(Caller, KeyWatch), Problem> {
        let headers = &parts.headers;
        if let Some(DialUser(user)) = parts.extensions.get() {
            return self.caller_of_dial_user(user).await;
        }
        let secret = credential(headers)?;
        if let Some(text) = secret.filter(|secret| read_token::is_token(secret)) {
            return self.holder_of_token(text).await;
        }
        let ours = secret.filter(|secret| secret.starts_with(KEY_PREFIX));
        let (caller, key) = match ours {
            Some(secret) => self.holder_of_key(&parts.extensions, secret).await?,
            // OpenAI clients always send some key; a development server ignores foreign ones.
            None if !self.options.keys_required => {
                require_loopback_host(headers)?;
                caller::local(&self.engine, &self.tenant)
            }
            None => return Err(unauthenticated()),
        };
        let Some(user) = text(headers, "x-statehold-user")? else {
            return Ok((caller, key));
        };
        let caller = caller::act_for(&self.engine, &caller, user).await?;
        Ok((caller, key))
    }

    /// The caller for whom DIAL Core vouches: the configured key, acting for the user.
    async fn caller_of_dial_user(&self, user: &str) -> Result<(Caller, KeyWatch), Problem> {
        let core = self.options.dial_core.as_ref();
        let secret = core.ok_or_else(unauthenticated)?.key().expose();
        let found = caller::authenticate(&self.engine, secret).await?;
        let (caller, key) = found.ok_or_else(|| {
            tracing::error!("the key in `dial.key_env` is unknown, revoked or expired; make one with: statehold token create --role client");
            unauthenticated()
        })?;
        let caller = caller::act_for(&self.engine, &caller, user).await?;
        Ok((caller, key))
    }
}

impl AppState {
    /// The caller with this API key. An address that tries many unknown ones is refused.
    pub(crate) async fn holder_of_key(
        &self,
        connection: &Extensions,
        secret: &str,
    ) -> Result<(Caller, KeyWatch), Problem> {
        if !caller::is_known(&self.engine, secret) {
            self.shares.require_no_stranger(connection)?;
        }
        if let Some(found) = caller::authenticate(&self.engine, secret).await? {
            return Ok(found);
        }
        self.shares.count_stranger(connection)?;
        Err(unauthenticated())
    }

    async fn holder_of_token(&self, text: &str) -> Result<(Caller, KeyWatch), Problem> {
        let token = read_token::opened(&self.sealer, text).ok_or_else(unauthenticated)?;
        let found = caller::with_read_token(&self.engine, &token).await?;
        found.ok_or_else(unauthenticated)
    }
}

pub(crate) fn unauthenticated() -> Problem {
    Problem::new(
        Code::Unauthenticated,
        "send a valid key as `Authorization: Bearer shk_…`; make one with: statehold token create",
    )
}

/// The credential of a call. Two different credentials are ambiguous and refused.
fn credential(headers: &HeaderMap) -> Result<Option<&str>, Problem> {
    let bearer = text(headers, "authorization")?.map(without_scheme);
    let api_key = text(headers, "api-key")?;
    match (bearer, api_key) {
        (Some(bearer), Some(key)) if bearer != key => Err(Problem::new(
            Code::BadHeader,
            "`Authorization` and `Api-Key` differ; send one of them",
        )),
        (Some(one), _) | (None, Some(one)) => Ok(Some(one)),
        (None, None) => Ok(None),
    }
}

/// The value of `Authorization` without the scheme `Bearer`.
fn without_scheme(value: &str) -> &str {
    match value.split_at_checked(7) {
        Some((scheme, secret)) if scheme.eq_ignore_ascii_case("bearer ") => secret.trim(),
        _ => value,
    }
}

/// Whether a header has a key or a read token of this server, in whatever scheme and spelling. One begins where a word
/// does: within a token of somebody else the same characters come by chance.
pub(crate) fn is_own_key(value: &str) -> bool {
    let is_of_word = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
    (0..value.len()).any(|at| {
        let before = at.checked_sub(1).map(|before| value.as_bytes()[before]);
        let begins_word = before.is_none_or(|byte| !is_of_word(&byte));
        let rest = value.get(at..).filter(|_| begins_word);
        rest.is_some_and(|rest| rest.starts_with(KEY_PREFIX) || read_token::is_token(rest))
    })
}

/// A header as text. A repeated header is refused.
pub(crate) fn text<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, Problem> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    let problem = |what: &str| Problem::new(Code::BadHeader, format!("`{name}` {what}"));
    if values.next().is_some() {
        return Err(problem("stands there twice"));
    }
    let text = std::str::from_utf8(value.as_bytes()).map_err(|_| problem("is not UTF-8"))?;
    Ok(Some(text))
}

/// Without keys, serve only programs on this machine. The check of `Host` and `Origin` stops DNS
/// rebinding and pages of other sites.
fn require_loopback_host(headers: &HeaderMap) -> Result<(), Problem> {
    let foreign = || {
        Problem::new(
            Code::ForeignHost,
            "without a key this server answers only on localhost; call http://127.0.0.1",
        )
    };
    if let Some(host) = text(headers, "host")?
        && !is_loopback(host)
    {
        return Err(foreign());
    }
    match text(headers, "origin")? {
        None => Ok(()),
        Some(origin) => {
            let host = origin.split_once("://").map(|(_, host)| host);
            if host.is_some_and(is_loopback) {
                Ok(())
            } else {
                Err(foreign())
            }
        }
    }
}

/// Refuses writes from pages of other sites, even with a valid key. Programs other than browsers send no
/// `Origin`. Calls without a key have passed `require_loopback_host` already.
pub(crate) fn require_own_origin(headers: &HeaderMap) -> Result<(), Problem> {
    let Some(origin) = text(headers, "origin")? else {
        return Ok(());
    };
    let foreign = || {
        Problem::new(
            Code::ForeignOrigin,
            "a page of another site sent this; serve the page from this host, or call from its backend",
        )
    };
    let from = origin.split_once("://").map(|(_, host)| split_port(host));
    let to = text(headers, "host")?.map(split_port);
    match (from, to) {
        // A proxy may leave out the port that it listens on.
        (Some((from, port)), Some((to, own)))
            if from.eq_ignore_ascii_case(to) && (port == own || own.is_none()) =>
        {
            Ok(())
        }
        _ => Err(foreign()),
    }
}

/// A host and its port, if it names one.
fn split_port(host: &str) -> (&str, Option<&str>) {
    match host.rsplit_once(':') {
        Some((name, port)) if port.parse::<u16>().is_ok() => (name, Some(port)),
        _ => (host, None),
    }
}

fn is_loopback(host: &str) -> bool {
    // A name with a colon left after its port is no loopback name.
    let (name, _) = split_port(host);
    name == "[::1]"
        || name.eq_ignore_ascii_case("localhost")
        || name
            .parse::<std::net::Ipv4Addr>()
            .is_ok_and(|ip| ip.is_loopback())
}

/// A call: its server, its caller, the ids in its path, its idempotency key and preconditions.
#[derive(Clone)]
pub(crate) struct CallContext {
    pub(crate) app: App,
    pub(crate) caller: Caller,
    pub(crate) api_key: KeyWatch,
    pub(crate) if_revision: Option<u64>,
    pub(crate) slot: CallSlot,
    idempotency_key: Option<String>,
    method: Method,
    target: String,
    path: BTreeMap<String, String>,
}

impl CallContext {
    pub(crate) fn engine(&self) -> &Engine {
        &self.app.engine
    }

    /// An id or name in the path. A malformed one gets 404, like an unknown one.
    pub(crate) fn id<T: FromStr>(&self, name: &str) -> Result<T, Problem> {
        let parsed = self.path_text(name).parse();
        parsed.map_err(|_| Problem::not_found())
    }

    /// The path of the call, without its query.
    pub(crate) fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or_default()
    }

    pub(crate) fn path_text(&self, name: &str) -> &str {
        self.path.get(name).map_or("", String::as_str)
    }

    /// Runs `work`, and fails with 401 if the API key is revoked or expires meanwhile.
    pub(crate) async fn while_valid<T, E>(
        &self,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, Problem>
    where
        Problem: From<E>,
    {
        tokio::select! {
            biased;
            () = self.api_key.revoked() => Err(unauthenticated()),
            done = work => {
                if !self.api_key.is_valid() {
                    return Err(unauthenticated());
                }
                Ok(done?)
            }
        }
    }

    /// Reads a page of at most `entries`, in the memory for answers. An entry that is too long for a page gets a
    /// page of its own.
    pub(crate) async fn read_page<T, F>(
        &self,
        entries: usize,
        read: impl Fn(PageLimit) -> F,
    ) -> Result<T, Problem>
    where
        F: Future<Output = Result<T, EngineError>>,
    {
        let mut bytes = PAGE_BYTES_MAX;
        loop {
            self.take_answer(bytes).await?;
            match read(PageLimit { entries, bytes }).await {
                Err(EngineError::PageTooSmall { bytes: needed }) if needed > bytes => {
                    bytes = needed;
                }
                page => return Ok(page?),
            }
        }
    }

    /// Takes the memory for an answer with so many bytes of payloads, before they are read. The connection gives
    /// it back when the answer is sent.
    pub(crate) async fn take_answer(&self, payload_bytes: u64) -> Result<(), Problem> {
        self.while_valid(self.line_up_for_answer(payload_bytes))
            .await
    }

    async fn line_up_for_answer(&self, payload_bytes: u64) -> Result<(), EngineError> {
        // A call that waits holds nothing, so that it cannot hold up others.
        self.slot.hold_answer(None);
        let shares = &self.app.shares;
        let share = shares.line_up_for_answer(&self.caller, payload_bytes);
        let share = tokio::time::timeout(ANSWER_WAIT_MAX, share).await;
        let share = share.ok().and_then(Result::ok);
        let share = share.ok_or(EngineError::TooMany(
            "too many long answers wait to be sent; read those of this key, or try again",
        ))?;
        self.slot.hold_answer(Some(share));
        Ok(())
    }

    /// The call for the engine. The idempotency key covers `body`.
    pub(crate) fn call(&self, body: &[u8]) -> Call {
        Call {
            caller: self.caller.clone(),
            key: self.key_of("", &[body]),
            if_revision: self.if_revision,
        }
    }

    /// The call for a decision, and its decision key. The hold stores that key, so it outlives the 24 hours
    /// of an idempotency key.
    pub(crate) fn decision(&self) -> (Call, Option<&str>) {
        let call = Call {
            caller: self.caller.clone(),
            key: None,
            if_revision: self.if_revision,
        };
        (call, self.key_text())
    }

    /// The key for one of several commands of a call, distinguished by `step`. It covers the method, the
    /// path and `parts`.
    pub(crate) fn key_of(&self, step: &str, parts: &[&[u8]]) -> Option<IdempotencyKey> {
        let key = self.idempotency_key.as_deref()?;
        let call = [self.method.as_str().as_bytes(), self.target.as_bytes()];
        let parts: Vec<&[u8]> = call.into_iter().chain(parts.iter().copied()).collect();
        Some(IdempotencyKey::new(
            &self.caller.tenant,
            self.caller.principal,
            &format!("{key}{step}"),
            &parts,
        ))
    }

    /// The idempotency key as the caller sent it.
    pub(crate) fn key_text(&self) -> Option<&str> {
        self.idempotency_key.as_deref()
    }
}

/// Use cases that read payloads take their memory through this port.
impl AnswerMemory for CallContext {
    fn take(&self, bytes: u64) -> BoxFuture<'_, Result<(), EngineError>> {
        Box::pin(self.line_up_for_answer(bytes))
    }
}

impl FromRequestParts<App> for CallContext {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let found = app.authenticate(parts).await?;
        Self::begin(parts, app, found).await
    }
}

impl CallContext {
    /// The call of a caller who is known already.
    pub(crate) async fn begin(
        parts: &mut Parts,
        app: &App,
        (caller, api_key): (Caller, KeyWatch),
    ) -> Result<Self, Problem> {
        let slot: Option<&CallSlot> = parts.extensions.get();
        app.shares.begin_call(&caller, slot)?;
        let slot = slot.cloned().unwrap_or_default();
        if !parts.method.is_safe() && api_key.has_key() {
            require_own_origin(&parts.headers)?;
        }
        parts.extensions.insert(BodyOwner {
            caller: caller.clone(),
            api_key: api_key.clone(),
            slot: slot.clone(),
        });
        let key = text(&parts.headers, "idempotency-key")?.map(str::to_owned);
        if let Some(key) = &key {
            let is_plain =
                (1..=255).contains(&key.len()) && key.bytes().all(|b| b.is_ascii_graphic());
            if !is_plain {
                return Err(Problem::new(
                    Code::BadHeader,
                    "`Idempotency-Key` is 1 to 255 visible ASCII characters",
                ));
            }
        }
        let path = RawPathParams::from_request_parts(parts, app).await;
        let path = path.map_err(|_| Problem::not_found())?;
        let path = path.iter();
        let target = parts.uri.path_and_query();
        Ok(Self {
            app: app.clone(),
            caller,
            api_key,
            if_revision: if_match(&parts.headers)?,
            slot,
            idempotency_key: key,
            method: parts.method.clone(),
            target: target.map_or_else(String::new, ToString::to_string),
            path: path
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
        })
    }
}

/// A credential that the caller passes to the worker. No idempotency key covers it, and no error
/// message contains it.
pub(crate) struct CallerCredential(pub(crate) Option<Credential>);

impl FromRequestParts<App> for CallerCredential {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Problem> {
        let Some(value) = text(&parts.headers, "x-statehold-credential")? else {
            return Ok(Self(None));
        };
        let is_plain = value.bytes().all(|b| b.is_ascii_graphic() || b == b' ');
        let credential = Credential::new(value.to_owned()).filter(|_| is_plain);
        credential.map(|one| Self(Some(one))).ok_or_else(|| {
            Problem::new(
                Code::BadHeader,
                "`x-statehold-credential` is 1 to 8192 visible ASCII characters",
            )
        })
    }
}

fn if_match(headers: &HeaderMap) -> Result<Option<u64>, Problem> {
    let Some(text) = text(headers, "if-match")? else {
        return Ok(None);
    };
    if text == "*" {
        return Ok(None);
    }
    let revision = text
        .strip_prefix('"')
        .and_then(|text| text.strip_suffix('"'))
        .and_then(|text| text.parse().ok());
    revision.map(Some).ok_or_else(|| {
        Problem::new(
            Code::BadHeader,
            "`If-Match` is one revision in quotes, as `ETag` gave it: \"12\"",
        )
    })
}

/// A query, parsed strictly: unknown parameters are refused.
pub(crate) struct Params<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequestParts<App> for Params<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Problem> {
        if parts.uri.query().is_some_and(|query| query.contains("%00")) {
            return Err(Problem::new(Code::BadQuery, "the query contains a NUL"));
        }
        let query = axum::extract::Query::<T>::try_from_uri(&parts.uri);
        match query {
            Ok(axum::extract::Query(value)) => Ok(Self(value)),
            Err(error) => Err(Problem::new(Code::BadQuery, query_detail(&error))),
        }
    }
}

fn query_detail(error: &axum::extract::rejection::QueryRejection) -> String {
    let mut detail = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        detail = inner.to_string();
        source = inner.source();
    }
    detail
}

#[cfg(test)]
mod tests {
    use http::{HeaderValue, header};

    use super::*;

    fn with_authorization(value: &'static str) -> HeaderMap {
        let value = HeaderValue::from_bytes(value.as_bytes()).expect("these are header values");
        HeaderMap::from_iter([(header::AUTHORIZATION, value)])
    }

    #[test]
    fn the_scheme_of_a_credential_is_removed_in_any_spelling() {
        for value in ["Bearer shk_1", "bearer shk_1", "BEARER  shk_1 ", "shk_1"] {
            let headers = with_authorization(value);
            let found = credential(&headers).ok().flatten();
            assert_eq!(found, Some("shk_1"), "{value}");
        }
    }

    #[test]
    fn a_key_of_this_server_begins_with_its_prefix_and_a_token_that_contains_it_is_foreign() {
        for value in [
            "shk_1",
            "Bearer shk_1",
            "bearer  shk_1",
            "Basic shk_1",
            "Bearer\tshk_1",
            "Bearer: \"shk_1\"",
            "Bearer Bearer shk_1",
            "Bearer x,Bearer shk_1",
        ] {
            assert!(is_own_key(value), "{value}");
        }
        for value in [
            "Bearer eyJhbGciOi.eyJzdWIiOi.AAshk_1",
            "Bearer x.shk_1",
            "sk-shk_",
        ] {
            assert!(!is_own_key(value), "{value}");
        }
    }

    #[test]
    fn a_credential_with_a_letter_across_the_end_of_the_scheme_is_just_another_one() {
        let headers = with_authorization("bearer\u{e9} x");
        let found = credential(&headers).ok().flatten();
        assert_eq!(found, Some("bearer\u{e9} x"));
    }
}
