//! The server as rmcp calls it: each method finds the caller, and calls one function of this surface.

use http::request::Parts;
use rmcp::ErrorData;
use rmcp::handler::server::ServerHandler;
use rmcp::model::{
    CacheScope, CallToolRequestParams, CallToolResponse, CompleteRequestMethod,
    CompleteRequestParams, CompleteResult, Extensions, Implementation, ListPromptsRequestMethod,
    ListPromptsResult, ListResourceTemplatesResult, ListResourcesResult, ListToolsResult,
    PaginatedRequestParams, ProtocolVersion, ReadResourceRequestParams, ReadResourceResponse,
    ServerCapabilities, ServerConfig, SubscribeRequestParams, SubscriptionFilter, Tool,
    UnsubscribeRequestParams,
};
#[cfg(feature = "conformance")]
use rmcp::model::{GetPromptRequestMethod, GetPromptRequestParams, GetPromptResponse};
use rmcp::service::{NotificationContext, RequestContext, RoleServer, SubscriptionContext};

use super::declared::{TOKEN_TOOL, TOOLS};
use super::errors::{call_error, resource_error};
#[cfg(feature = "conformance")]
use super::fixtures::{self, Fixtures};
use super::subscription::{LegacySubscriptions, Listened, Subscriber};
use super::{ClientLeft, resource, tool};
use crate::http::call::CallContext;
use crate::http::problem::Code;

const INSTRUCTIONS: &str = "Statehold keeps the conversations of agents. Read conversation://{session_id}/history, \
    subscribe to it, and read ?after={rev} when it has changed. Writes take an idempotency_key: repeat a call whose \
    answer you did not get with the same key.";

/// One request of a client of the newer era, or one session of the older.
#[derive(Clone)]
pub(super) struct Handler {
    listened: Listened,
    subscriptions: LegacySubscriptions,
    #[cfg(feature = "conformance")]
    fixtures: Option<Fixtures>,
}

impl Handler {
    pub(super) fn new(listened: Listened) -> Self {
        Self {
            listened,
            subscriptions: LegacySubscriptions::default(),
            #[cfg(feature = "conformance")]
            fixtures: None,
        }
    }

    /// The subscriptions of the legacy session that begins with this request.
    pub(super) fn subscriptions(&self) -> LegacySubscriptions {
        self.subscriptions.clone()
    }

    /// Adds fixtures, if the server has them.
    #[cfg(feature = "conformance")]
    pub(super) fn with_fixtures(self, call: &CallContext) -> Self {
        let fixtures = Fixtures::of(call);
        Self { fixtures, ..self }
    }
}

/// Does work that ends when the client goes away. What a command has begun to commit is committed.
async fn while_present<T>(
    extensions: &Extensions,
    work: impl Future<Output = Result<T, ErrorData>>,
) -> Result<T, ErrorData> {
    let parts: Option<&Parts> = extensions.get();
    let left = parts.and_then(|parts| parts.extensions.get::<ClientLeft>());
    let Some(ClientLeft(left)) = left else {
        return work.await;
    };
    tokio::select! {
        done = work => done,
        () = left.cancelled() => Err(ErrorData::internal_error("the client has gone away", None)),
    }
}

/// The call behind a request: its caller was authenticated before rmcp saw it.
fn call_of(extensions: &Extensions) -> Result<&CallContext, ErrorData> {
    let parts: Option<&Parts> = extensions.get();
    let context = parts.and_then(|parts| parts.extensions.get::<CallContext>());
    context.ok_or_else(|| ErrorData::internal_error("the request has no caller", None))
}

impl ServerHandler for Handler {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder()
            .enable_resources()
            .enable_resources_subscribe()
            .enable_tools()
            .build();
        let name = Implementation::new("statehold", env!("CARGO_PKG_VERSION"));
        #[cfg(feature = "conformance")]
        let capabilities = match &self.fixtures {
            Some(_) => Fixtures::extended(capabilities),
            None => capabilities,
        };
        let mut info = ServerConfig::new(capabilities);
        info.server_info = name;
        info.instructions = Some(INSTRUCTIONS.to_owned());
        info
    }

    async fn list_resources(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let call = call_of(&context.extensions)?;
        let cursor = request.and_then(|page| page.cursor);
        #[cfg(feature = "conformance")]
        if self.fixtures.is_some() && cursor.is_none() {
            let mut page = resource::list(call, cursor).await?;
            fixtures::prepend(&mut page.resources);
            return Ok(page);
        }
        while_present(&context.extensions, resource::list(call, cursor)).await
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        #[cfg(feature = "conformance")]
        if self.fixtures.is_some() {
            let mut page = resource::templates();
            page.resource_templates.push(fixtures::template());
            return Ok(page);
        }
        Ok(resource::templates())
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let call = call_of(&context.extensions)?;
        #[cfg(feature = "conformance")]
        if self.fixtures.is_some()
            && let Some(read) = fixtures::read_resource(&request.uri)
        {
            return Ok(read.into());
        }
        let read = while_present(&context.extensions, resource::read(call, &request.uri));
        Ok(read.await?.into())
    }

    fn accepted_subscription_filter(
        &self,
        requested: &SubscriptionFilter,
    ) -> Option<SubscriptionFilter> {
        let accepted = self.listened.accepted(requested);
        #[cfg(feature = "conformance")]
        if self.fixtures.is_some() {
            return Some(Fixtures::accepted(requested, accepted));
        }
        Some(accepted)
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        let call = call_of(&context.request_context().extensions)?.clone();
        #[cfg(feature = "conformance")]
        if let Some(fixtures) = self.fixtures.clone() {
            let announce = fixtures.announce(context.sink().clone());
            return tokio::select! {
                ended = self.listened.tell(&call, context) => ended,
                () = announce => Ok(()),
            };
        }
        self.listened.tell(&call, context).await
    }

    async fn subscribe(
        &self,
        request: SubscribeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        #[cfg(feature = "conformance")]
        if self.fixtures.is_some() && request.uri == fixtures::WATCHED {
            return Ok(());
        }
        let subscriber = Subscriber::of(call_of(&context.extensions)?);
        self.subscriptions.connect(context.peer.clone());
        let uri = request.uri;
        let added = self.subscriptions.add(&subscriber, uri.clone(), None).await;
        added.map_err(|problem| {
            if problem.code == Code::TooMany.text() {
                call_error(&problem)
            } else {
                resource_error(&problem, &uri)
            }
        })
    }

    async fn on_initialized(&self, context: NotificationContext<RoleServer>) {
        self.subscriptions.connect(context.peer);
    }

    async fn unsubscribe(
        &self,
        request: UnsubscribeRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.subscriptions.remove(&request.uri);
        Ok(())
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let call = call_of(&context.extensions)?;
        let mut tools = TOOLS.clone();
        if call.caller.only_session.is_some() {
            tools.retain(|tool| tool.name == TOKEN_TOOL);
        }
        let mut result = ListToolsResult::with_all_items(tools);
        #[cfg(feature = "conformance")]
        if self.fixtures.is_some() {
            result.tools.extend_from_slice(fixtures::tools());
        }
        result.ttl_ms = Some(60_000);
        result.cache_scope = Some(CacheScope::Private);
        Ok(result)
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        #[cfg(feature = "conformance")]
        if self.fixtures.is_some()
            && let Some(tool) = fixtures::tool(name)
        {
            return Some(tool);
        }
        TOOLS.iter().find(|tool| tool.name == name).cloned()
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let call = call_of(&context.extensions)?;
        #[cfg(feature = "conformance")]
        if let Some(fixtures) = &self.fixtures
            && let Some(done) = fixtures.call_tool(call, &request, &context).await
        {
            return done;
        }
        let name = request.name.clone();
        let work = Box::pin(tool::call(call, &context, request));
        let is_modern = context
            .protocol_version()
            .is_some_and(|version| version >= ProtocolVersion::V_2026_07_28);
        // An older client that lost its connection may come back for the answer.
        let done = if is_modern {
            let work = async { Ok(work.await) };
            while_present(&context.extensions, work).await?
        } else {
            work.await
        };
        done.ok_or_else(|| ErrorData::invalid_params(format!("there is no tool `{name}`"), None))
    }

    async fn list_prompts(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        #[cfg(feature = "conformance")]
        if self.fixtures.is_some() {
            return Ok(fixtures::prompts());
        }
        Err(ErrorData::method_not_found::<ListPromptsRequestMethod>())
    }

    #[cfg(feature = "conformance")]
    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        if self.fixtures.is_none() {
            return Err(ErrorData::method_not_found::<GetPromptRequestMethod>());
        }
        let call = call_of(&context.extensions)?;
        let unknown = || ErrorData::invalid_params("there is no such prompt", None);
        fixtures::prompt(call, &request, &context).ok_or_else(unknown)?
    }

    async fn complete(
        &self,
        request: CompleteRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        #[cfg(feature = "conformance")]
        if self.fixtures.is_some() {
            return Ok(fixtures::completion(&request));
        }
        drop(request);
        Err(ErrorData::method_not_found::<CompleteRequestMethod>())
    }

    #[cfg(feature = "conformance")]
    #[expect(deprecated, reason = "clients of the older era set the level of logs")]
    async fn set_level(
        &self,
        request: rmcp::model::SetLevelRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        match &self.fixtures {
            Some(fixtures) if context.meta.protocol_version().is_none() => {
                fixtures.set_level(&request.level);
                Ok(())
            }
            _ => Err(ErrorData::method_not_found::<
                rmcp::model::SetLevelRequestMethod,
            >()),
        }
    }
}
