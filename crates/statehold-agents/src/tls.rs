//! TLS configuration of all clients: rustls with ring, and the root certificates of the operating
//! system.

use std::sync::Arc;

use rustls::{ClientConfig, RootCertStore};

/// Trusts the root certificates of the operating system, or those in `SSL_CERT_FILE`.
pub(crate) fn config() -> Result<ClientConfig, rustls::Error> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        tracing::warn!("this machine has no root certificates: https addresses cannot be called");
    }
    config_trusting(roots)
}

/// Names the crypto provider, so that no client depends on the process-wide default.
pub(crate) fn config_trusting(roots: RootCertStore) -> Result<ClientConfig, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(config)
}
