//! Chats with the real binary, whose agents, models and tools are played here: it is killed at every step
//! of a turn, talks to many at once, and meets agents that do everything wrong.

mod crowd;
mod faults;
mod reload;
mod retries;
mod stage;
mod steps;
