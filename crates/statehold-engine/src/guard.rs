//! Who may do and see what, and for how long: rights, read access, policies of tools, redaction, lifetimes, sealed
//! arguments, schemas of answers, credentials.

pub(crate) mod access;
pub(crate) mod authorise;
pub(crate) mod credentials;
pub(crate) mod lifetimes;
pub mod policy;
pub(crate) mod redact;
pub(crate) mod rights;
pub(crate) mod schema;
pub(crate) mod sealed;
pub(crate) mod state_rules;
