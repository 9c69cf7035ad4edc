//! Agents in other processes, called over HTTP: their requests, the stored replies, and their faults.

mod analytics;
mod analytics_conversation;
mod briefing;
mod commits;
mod context;
mod conversation;
mod dial;
mod dial_stages;
mod faults;
mod long_answers;
mod lost;
mod memory;
mod pause;
mod restore;
#[path = "../runner/rig.rs"]
#[allow(dead_code, reason = "another program uses the rest of it")]
mod rig;
mod scopes;
mod sizes;
mod track;
mod world;
mod written_once;
