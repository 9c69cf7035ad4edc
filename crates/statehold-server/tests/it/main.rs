//! The native API over real sockets: what it does, and what nobody gets it to do.

mod adk;
mod attacks;
mod chat;
mod console;
mod cuts;
mod deciding;
mod dial;
mod document;
mod encrypted;
mod erasing;
mod hidden;
mod input;
mod mcp;
mod redacted;
mod rest;
mod rig;
mod sealed;
mod storms;
