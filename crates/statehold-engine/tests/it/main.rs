//! The engine over a store whose commits wait at a gate, with a clock that stands still.

mod audit;
mod auto_claim;
mod both;
mod confined;
mod continued;
mod credentials;
mod damage;
mod due;
mod feed;
mod gated;
mod idempotency;
mod inbox;
mod merge;
mod order;
mod repeats;
mod rig;
mod session_time;
mod shares;
mod tail;
mod timers;
