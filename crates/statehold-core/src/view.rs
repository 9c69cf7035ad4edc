//! Views: the fields that each kind of reader may see. One function builds each.

use crate::item::{PlacedItem, Visibility};
use crate::mutant::{self, Mutant};

/// The fields that a reader may see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum View {
    /// The session's user and their programs: the transcript.
    Client,
    /// The agent of one task: all of its own history.
    Agent(crate::ids::TaskId),
    /// Operators with the `trace` right: everything, including items that a rewind removed.
    Trace,
}

impl View {
    /// Whether this view shows an item.
    pub fn shows(self, item: &PlacedItem) -> bool {
        match self {
            Self::Client => {
                let is_shown = item.item.visibility == Visibility::Visible
                    || mutant::is_on(Mutant::LeakHidden);
                is_shown && item.is_root && !item.rewound
            }
            Self::Agent(task) => item.task == task && !item.rewound,
            Self::Trace => true,
        }
    }
}
