//! The settings and reads that every HTTP client on reqwest shares, of the server and of the command
//! line.

use std::error::Error;

use reqwest::{ClientBuilder, Response};
use rustls::RootCertStore;

/// A client for `http://` and `https://` addresses that trusts the roots of the operating system.
///
/// It follows no redirect, which could carry a credential to another host, and uses no proxy of the
/// environment, which could read one. It never retries: callers decide which calls are safe to retry.
///
/// # Errors
///
/// If rustls refuses the settings.
pub fn client_builder() -> Result<ClientBuilder, rustls::Error> {
    Ok(builder(crate::tls::config()?))
}

/// The same for `http://` addresses alone, without the time to load the roots.
///
/// # Errors
///
/// If rustls refuses the settings.
pub fn client_builder_without_roots() -> Result<ClientBuilder, rustls::Error> {
    Ok(builder(
        crate::tls::config_trusting(RootCertStore::empty())?,
    ))
}

fn builder(tls: rustls::ClientConfig) -> ClientBuilder {
    reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        .http1_only()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .referer(false)
        .retry(reqwest::retry::never())
        .user_agent(concat!("statehold/", env!("CARGO_PKG_VERSION")))
}

/// Reads a body to its end. None if it is longer than `bytes_max`.
///
/// # Errors
///
/// If the connection breaks.
pub async fn read_body(
    response: &mut Response,
    bytes_max: usize,
) -> Result<Option<Vec<u8>>, reqwest::Error> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        if body.len() + chunk.len() > bytes_max {
            return Ok(None);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(Some(body))
}

/// Whether a connection failed in TLS: an untrusted certificate, or a host that speaks no TLS.
pub fn is_tls_failure(error: &reqwest::Error) -> bool {
    causes(error).any(<dyn Error + 'static>::is::<rustls::Error>)
}

/// Whether the host answered the TLS handshake with something else, as a plain HTTP server does.
pub fn speaks_no_tls(error: &reqwest::Error) -> bool {
    let mut tls = causes(error).filter_map(|cause| cause.downcast_ref::<rustls::Error>());
    tls.any(|error| matches!(error, rustls::Error::InvalidMessage(_)))
}

/// The innermost cause of an error, without the address that was called.
pub fn root_cause(error: &reqwest::Error) -> String {
    causes(error)
        .last()
        .map_or_else(|| error.to_string(), ToString::to_string)
}

/// The causes of an error, outermost first.
pub(crate) fn causes(error: &reqwest::Error) -> impl Iterator<Item = &(dyn Error + 'static)> {
    std::iter::successors(error.source(), |&cause| {
        match cause.downcast_ref::<std::io::Error>() {
            // An I/O error does not give the TLS error inside it as its source.
            Some(error) => error.get_ref().map(|inner| inner as &(dyn Error + 'static)),
            None => cause.source(),
        }
    })
}
