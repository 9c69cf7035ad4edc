//! Agents of the kind `analytics`: each context has its own settings and refuses the settings of other contexts.

use statehold_agents::spec::{AnalyticsSpec, DataContext, InlineData};
use statehold_engine::Credential;

use super::kinds::{AgentDeclaration, ContextWord, RETRIES, TIMEOUT_SECONDS};
use super::mistakes::ConfigReader;

impl ConfigReader<'_> {
    pub(super) fn analytics(
        &mut self,
        place: &str,
        declaration: &mut AgentDeclaration,
        credential: Option<Credential>,
    ) -> Option<AnalyticsSpec> {
        declaration.timeout_seconds.get_or_insert(TIMEOUT_SECONDS);
        declaration.retries.get_or_insert(RETRIES);
        let context = *declaration.context.get_or_insert_default();
        let base_url = self.base_url(place, declaration.base_url.as_ref(), "/projects");
        if base_url
            .as_ref()
            .is_some_and(|url| url.contains("/projects/"))
        {
            let what = "has the project and the location, which come from `parent`";
            let hint = "leave /projects and what follows out";
            self.add_mistake(format!("{place}.base_url"), what, hint);
        }
        let headers = self.headers(place, declaration.headers.as_ref());
        if declaration.parent.is_none() {
            let hint = "add parent = \"projects/PROJECT/locations/LOCATION\"";
            self.add_missing(format!("{place}.parent"), hint);
        }
        let context = self.data_context(place, declaration, context);
        let data_key = declaration.data_key.as_ref();
        if data_key.is_some() && data_key == declaration.output_key.as_ref() {
            let what = format!("is the same as `{place}.output_key`");
            let hint = "choose another key: the text of the answer is written under that one";
            self.add_mistake(format!("{place}.data_key"), &what, hint);
        }
        Some(AnalyticsSpec {
            base_url: base_url?,
            parent: declaration.parent.as_ref()?.text().to_owned(),
            context: context?,
            thinking: declaration.thinking,
            data_key: data_key.map(|key| key.key().clone()),
            credential,
            headers,
        })
    }

    /// The context with its settings. Records missing settings, and settings of other contexts.
    fn data_context(
        &mut self,
        place: &str,
        declaration: &AgentDeclaration,
        context: ContextWord,
    ) -> Option<DataContext> {
        match context {
            ContextWord::Conversation | ContextWord::Agent => {
                let inline = [
                    ("instructions", declaration.instructions.is_some()),
                    ("data_sources", declaration.data_sources.is_some()),
                ];
                for (setting, _) in inline.into_iter().filter(|(_, is_set)| *is_set) {
                    let hint = "leave it out: the data agent has its own; or set context = \"inline\" or \"client_managed\"";
                    self.add_unfit(place, setting, context, hint);
                }
                let Some(agent) = &declaration.data_agent else {
                    let hint = "add data_agent = \"…\", the id of the data agent or its whole name; or set context = \"inline\"";
                    self.add_missing(format!("{place}.data_agent"), hint);
                    return None;
                };
                let data_agent = agent.below(declaration.parent.as_ref()?);
                Some(if context == ContextWord::Conversation {
                    DataContext::Conversation { data_agent }
                } else {
                    DataContext::Agent { data_agent }
                })
            }
            ContextWord::Inline | ContextWord::ClientManaged => {
                if declaration.data_agent.is_some() {
                    let hint = "leave it out, or set context = \"agent\" or \"conversation\"";
                    self.add_unfit(place, "data_agent", context, hint);
                }
                let Some(sources) = &declaration.data_sources else {
                    let hint = "add data_sources = { bq = { tableReferences = [{ projectId = \"…\", datasetId = \"…\", tableId = \"…\" }] } }";
                    self.add_missing(format!("{place}.data_sources"), hint);
                    return None;
                };
                let data = InlineData {
                    instructions: declaration.instructions.clone().map(String::from),
                    data_sources: sources.json().clone(),
                };
                Some(if context == ContextWord::Inline {
                    DataContext::Inline(data)
                } else {
                    DataContext::ClientManaged(data)
                })
            }
        }
    }

    /// Records a setting that the context does not have.
    fn add_unfit(&mut self, place: &str, setting: &str, context: ContextWord, hint: &str) {
        let what = format!("is not for context = \"{}\"", context.word());
        self.add_mistake(format!("{place}.{setting}"), &what, hint);
    }
}
