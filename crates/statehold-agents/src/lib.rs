//! Who is called: whatever Statehold sends to agents in other processes, and nothing of what they send
//! by themselves. It keeps HTTP clients out of the engine.

pub mod push;
