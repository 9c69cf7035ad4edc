//! Agents of the kind `mcp`: a tool on a declared tool server.

use statehold_agents::spec::McpSpec;

use super::keys::TOOL_SERVERS;
use super::kinds::{AgentDeclaration, RETRIES};
use super::mistakes::ConfigReader;
use super::values::NonEmptyText;

const INPUT_ARGUMENT: &str = "input";
const HISTORY_ARGUMENT: &str = "conversation_history_uri";

impl ConfigReader<'_> {
    pub(super) fn mcp_agent(
        &mut self,
        place: &str,
        declaration: &mut AgentDeclaration,
    ) -> Option<McpSpec> {
        declaration.retries.get_or_insert(RETRIES);
        let history = *declaration.history.get_or_insert_default();
        let input = argument_name(&mut declaration.input_argument, INPUT_ARGUMENT);
        let address = argument_name(&mut declaration.history_argument, HISTORY_ARGUMENT);
        if let Some(server) = &declaration.tool_server {
            let known = self.config.tool_servers.keys();
            let named = std::slice::from_ref(server);
            let key = format!("{place}.tool_server");
            self.require_known(&key, named, &known, "tool server", TOOL_SERVERS);
        } else {
            let hint = "add tool_server = \"…\", the name of a [tool_servers.NAME]";
            self.add_missing(format!("{place}.tool_server"), hint);
        }
        if declaration.tool.is_none() {
            let hint = "add tool = \"…\", the name of the tool on its server";
            self.add_missing(format!("{place}.tool"), hint);
        }
        if input == address {
            let what = format!("is `{address}`, which is also `{place}.input_argument`");
            let hint = "name the argument of the tool that takes the address of the conversation";
            self.add_mistake(format!("{place}.history_argument"), &what, hint);
        }
        let arguments = declaration.arguments.as_ref();
        let arguments = arguments.map(|table| table.members().clone());
        let arguments = arguments.unwrap_or_default();
        for name in [&input, &address] {
            if arguments.contains_key(name) {
                let what = format!("has `{name}`, which the server fills in");
                let hint = "take it out, or choose another input_argument or history_argument";
                self.add_mistake(format!("{place}.arguments"), &what, hint);
            }
        }
        Some(McpSpec {
            tool_server: declaration.tool_server.clone()?,
            tool: declaration.tool.clone()?.into(),
            input_argument: input,
            history_argument: address,
            history,
            arguments,
        })
    }
}

/// The name of an argument. Writing the default explicitly does not change the digest of the agent.
fn argument_name(declared: &mut Option<NonEmptyText>, default: &str) -> String {
    declared.take_if(|name| name.text() == default);
    declared
        .as_ref()
        .map_or(default, NonEmptyText::text)
        .to_owned()
}
