//! DIAL Core as the authority for the users of its applications. Core calls an application with a key that it made
//! for this one request; Core itself says whose request it is.

use std::time::Duration;

use http::header::{HeaderName, HeaderValue};
use serde::Deserialize;
use statehold_engine::Credential;

use crate::http::{EndpointError, HttpPool, RetryBudget, ServiceRequest};

/// How long Core may take to answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The longest name of a user.
const USER_BYTES_MAX: usize = 200;
/// The longest answer about a key, in bytes.
const BUCKET_BYTES_MAX: usize = 64 * 1024;

/// Why the user behind a key could not be looked up.
#[derive(Debug, thiserror::Error)]
pub enum DialCoreError {
    /// The client cannot be built.
    #[error("the client of DIAL Core cannot be built: {0}")]
    Client(String),
    /// Core gave no answer that says whose key it is.
    #[error("DIAL Core does not say whose key this is: {0}")]
    NoAnswer(String),
}

/// A DIAL Core that vouches for its users.
#[derive(Debug, Clone)]
pub struct DialCore {
    base_url: String,
    /// The API key of this server under which calls of its users are made.
    key: Credential,
    pool: HttpPool,
}

/// The bucket of a key: that of its user, or of the application that a request was made for.
#[derive(Deserialize)]
struct BucketBody {
    bucket: String,
    /// `{bucket of the user}/appdata/{deployment}`, for keys of one request.
    appdata: Option<String>,
}

impl BucketBody {
    /// The bucket of the user: the same for all requests of one user, and of no other.
    fn user(&self) -> &str {
        let appdata = self.appdata.as_deref().unwrap_or_default();
        let user = appdata.split_once("/appdata/").map(|(user, _)| user);
        user.unwrap_or(&self.bucket)
    }
}

impl DialCore {
    /// A Core at an address.
    ///
    /// # Errors
    ///
    /// If TLS is not available.
    pub fn new(base_url: String, key: Credential) -> Result<Self, DialCoreError> {
        let pool = HttpPool::new().map_err(|error| DialCoreError::Client(error.to_string()))?;
        Ok(Self {
            base_url,
            key,
            pool,
        })
    }

    /// The API key of this server under which calls of its users are made.
    pub fn key(&self) -> &Credential {
        &self.key
    }

    /// The user whose request the credential in a header was made for. None if Core does not know it.
    ///
    /// # Errors
    ///
    /// If Core cannot be asked.
    pub async fn user_of(
        &self,
        header: &'static str,
        credential: &Credential,
    ) -> Result<Option<String>, DialCoreError> {
        match self.bucket_of(header, credential).await {
            Ok(bucket) => {
                let user = bucket.user();
                let is_usable = (1..=USER_BYTES_MAX).contains(&user.len());
                let no_user =
                    || DialCoreError::NoAnswer("its bucket has no usable name".to_owned());
                is_usable
                    .then(|| Some(format!("dial:{user}")))
                    .ok_or_else(no_user)
            }
            Err(EndpointError::Status { status, .. }) if matches!(status.as_u16(), 401 | 403) => {
                Ok(None)
            }
            Err(error) => Err(DialCoreError::NoAnswer(error.to_string())),
        }
    }

    async fn bucket_of(
        &self,
        header: &'static str,
        credential: &Credential,
    ) -> Result<BucketBody, EndpointError> {
        let Ok(mut value) = HeaderValue::from_str(credential.expose()) else {
            return Err(EndpointError::Malformed("the key fits into no header"));
        };
        value.set_sensitive(true);
        let header = HeaderName::from_static(header);
        let request = ServiceRequest::new(&self.base_url, &["v1", "bucket"], None)?;
        let request = request
            .with_headers(&[(header, value)])
            .accepting_stream(false);
        let deadline = RetryBudget::new(TIMEOUT, 0).deadline();
        let mut answer = self.pool.send(&request, deadline).await?;
        answer.limit_body(BUCKET_BYTES_MAX);
        let body = answer.rest(Vec::new()).await?;
        serde_json::from_slice(&body)
            .map_err(|_| EndpointError::Malformed("it is not the bucket of a key"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_of_one_request_stands_for_the_user_and_not_for_the_application() {
        let user = |json: &str| {
            let body: BucketBody = serde_json::from_str(json).expect("a bucket");
            body.user().to_owned()
        };
        let of_request = r#"{"bucket":"app1","appdata":"bob1/appdata/mas-coordinator"}"#;
        assert_eq!(user(of_request), "bob1");
        assert_eq!(user(r#"{"bucket":"bob1"}"#), "bob1");
        assert_eq!(user(r#"{"bucket":"bob1","appdata":null}"#), "bob1");
    }
}
