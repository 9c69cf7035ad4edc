//! Attacks that servers of this kind have fallen to, and the defence that each of them meets here. The
//! number in a name is that of the list which the design keeps.

mod approvals;
mod bodies;
mod foreign;
mod identity;
mod limits;
mod planting;
mod tampering;
