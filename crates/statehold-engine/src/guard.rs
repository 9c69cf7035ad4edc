//! Who may do and see what: rights, read access, policies of tools, redaction, sealed arguments, schemas of
//! answers, credentials.

pub(crate) mod access;
pub(crate) mod authorise;
pub(crate) mod credentials;
pub mod policy;
pub(crate) mod redact;
pub(crate) mod rights;
pub(crate) mod schema;
pub(crate) mod sealed;
pub(crate) mod state_rules;
