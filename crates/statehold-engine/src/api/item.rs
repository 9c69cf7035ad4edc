//! Items: how callers write them and see them.

mod input;
mod view;
pub(crate) mod write;

pub use input::{ItemInput, MessageInput};
pub use view::{ItemRef, ItemView, MessageView};
