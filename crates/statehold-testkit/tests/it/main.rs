//! The core against a second opinion, over random sequences of commands.

mod sequences;
