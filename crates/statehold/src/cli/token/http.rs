//! Manages keys through a running server.

use anyhow::Context;
use http::Method;
use serde::Deserialize;

use super::keys::{CreatedKey, KeyInfo, KeyRequest, KeyService};
use crate::client::{Client, encode};
use crate::exit::{Exit, Failure};

const UNKNOWN_FORM: &str = "the server's answer has an unknown format; use the same version for the program and the server";

#[derive(Debug)]
pub(super) struct HttpKeys {
    pub(super) client: Client,
}

impl KeyService for HttpKeys {
    async fn create(&self, new: &KeyRequest) -> anyhow::Result<CreatedKey> {
        let body = serde_json::to_value(new)?;
        let answer = self
            .client
            .call(Method::POST, "/v1/keys", Some(&body))
            .await?;
        CreatedKey::deserialize(answer.body).context(UNKNOWN_FORM)
    }

    async fn list(&self) -> anyhow::Result<Vec<KeyInfo>> {
        let mut answer = self.client.get("/v1/keys").await?;
        Vec::deserialize(answer.body["keys"].take()).context(UNKNOWN_FORM)
    }

    async fn revoke(&self, id: &str) -> anyhow::Result<()> {
        let path = format!("/v1/keys/{}", encode(id));
        match self.client.call(Method::DELETE, &path, None).await {
            Ok(_) => Ok(()),
            Err(failure) if failure.exit == Exit::NotFound => {
                let failure = Failure {
                    message: format!("there is no key {id}"),
                    ..failure
                };
                Err(failure.hint("see all with: statehold token list").into())
            }
            Err(failure) => Err(failure.into()),
        }
    }
}
