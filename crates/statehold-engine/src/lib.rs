//! What happens: every session has one order of commands, decided on its newest state and answered
//! only when they are durable.
