//! Agents of the kind `dial`.

use statehold_agents::spec::{ChatMemory, DialSpec};
use statehold_engine::Credential;

use super::kinds::{AgentDeclaration, RETRIES, TIMEOUT_SECONDS};
use super::mistakes::ConfigReader;

impl ConfigReader<'_> {
    pub(super) fn dial(
        &mut self,
        place: &str,
        declaration: &mut AgentDeclaration,
        credential: Option<Credential>,
    ) -> Option<DialSpec> {
        declaration.timeout_seconds.get_or_insert(TIMEOUT_SECONDS);
        declaration.retries.get_or_insert(RETRIES);
        if *declaration.memory.get_or_insert_default() == ChatMemory::Track {
            let what = "is `track`, and applications of DIAL store nothing";
            let hint = "leave it out; for another Statehold, use kind = \"openai\"";
            self.add_mistake(format!("{place}.memory"), what, hint);
        }
        let base_url = self.base_url(place, declaration.base_url.as_ref(), "/openai/deployments");
        if declaration.deployment.is_none() {
            let hint = "add deployment = \"…\", the name of the application in DIAL";
            self.add_missing(format!("{place}.deployment"), hint);
        }
        let headers = self.headers(place, declaration.headers.as_ref());
        Some(DialSpec {
            base_url: base_url?,
            deployment: declaration.deployment.as_ref()?.text().to_owned(),
            credential,
            headers,
        })
    }
}
