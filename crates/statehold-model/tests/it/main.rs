//! The core against a second opinion, over random sequences of commands; and the examples of the
//! format pages.

mod formats;
mod sequences;
