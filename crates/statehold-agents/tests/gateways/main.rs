//! Agents in other processes, called over HTTP: what they are told, what is kept of what they say, and
//! what becomes of a turn in which they do not do what they should.

mod commits;
mod context;
mod conversation;
mod faults;
mod lost;
mod pause;
mod restore;
#[path = "../runner/rig.rs"]
#[allow(dead_code, reason = "another program uses the rest of it")]
mod rig;
mod server;
mod track;
mod world;
