//! What is spoken: HTTP, the native API, feeds. Turns wire types into engine commands and results into
//! wire types, and never touches a store.

pub mod accept;
pub mod json;
pub mod seal;
