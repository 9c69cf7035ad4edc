//! The memory that the answers of agents and models take, from their first bytes to the end of the turn that asked.
//! Each user has a share, and the users of one API key have one together: over it, a turn of that user fails, and
//! nobody else's does.

use std::sync::Arc;

use statehold_core::ids::RequestId;
use statehold_core::session::Owner;

use crate::engine::Engine;
use crate::locks::Lock;
use crate::shares::{Holder, Share, Shares};

/// The bytes of all turns.
const ALL_BYTES_MAX: usize = 256 * 1024 * 1024;

/// Answers of so many bytes in one turn take nothing.
const FREE_BYTES: usize = 64 * 1024;

/// Turns take their share in steps, so that most pieces do not ask for more.
const SHARE_STEP: usize = 16 * 1024;

/// The memory of all turns of a process. Clones share it.
#[derive(Debug, Clone)]
pub struct TurnMemories(Shares);

impl Default for TurnMemories {
    fn default() -> Self {
        Self::new(ALL_BYTES_MAX)
    }
}

impl TurnMemories {
    /// Memory of so many bytes.
    pub fn new(bytes_max: usize) -> Self {
        Self(Shares::new(bytes_max))
    }

    /// The memory of one turn. It takes nothing yet.
    fn of(&self, holder: Holder) -> TurnMemory {
        let share = self.0.none_for(holder);
        TurnMemory(Arc::new(Lock::new(TurnBytes { received: 0, share })))
    }
}

impl Engine {
    /// The memory of the turn of a request, for the owner of its session.
    pub fn turn_memory(&self, owner: &Owner, request: RequestId) -> TurnMemory {
        let holder = self.inner().starters.holder_of(owner.user, request);
        self.inner().options.turn_memories.of(holder)
    }
}

/// The memory of one turn. It is given back with the last clone.
#[derive(Debug, Clone)]
pub struct TurnMemory(Arc<Lock<TurnBytes>>);

#[derive(Debug)]
struct TurnBytes {
    received: usize,
    share: Share,
}

/// The turns of a user have all the memory that one user may have, or all turns have all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the answers that are being written take all the memory for them")]
pub struct TurnMemoryFull;

impl TurnMemory {
    /// Takes memory for so many bytes of an answer. They count twice: as they came, and as the turn passes them on.
    ///
    /// # Errors
    ///
    /// [`TurnMemoryFull`]. Nothing has changed then.
    pub fn take(&self, bytes: usize) -> Result<(), TurnMemoryFull> {
        let mut turn = self.0.lock();
        let received = turn.received.saturating_add(bytes);
        let counted = if received <= FREE_BYTES {
            0
        } else {
            received.saturating_mul(2)
        };
        if counted > turn.share.units() {
            let stepped = counted.checked_next_multiple_of(SHARE_STEP);
            let taken = turn.share.resize(stepped.unwrap_or(counted));
            taken.map_err(|_| TurnMemoryFull)?;
        }
        turn.received = received;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use statehold_core::ids::UserId;
    use uuid::Uuid;

    use super::*;

    const MIB: usize = 1024 * 1024;

    fn user(user: u128) -> Holder {
        Holder::of_user(UserId::from_uuid(Uuid::from_u128(user)))
    }

    #[test]
    fn the_turns_of_one_user_share_a_fourth_of_the_memory_and_others_have_theirs() {
        let all = TurnMemories::new(64 * MIB);
        let turns: Vec<TurnMemory> = (0..8).map(|_| all.of(user(1))).collect();
        // Each byte counts twice, and the user may have 16 MiB.
        let taken = turns.iter().filter(|turn| turn.take(2 * MIB).is_ok());
        assert_eq!(taken.count(), 4);
        assert_eq!(turns[0].take(1), Err(TurnMemoryFull), "not a byte more");
        assert_eq!(turns[7].take(FREE_BYTES), Ok(()), "a short answer is free");
        assert_eq!(all.of(user(2)).take(8 * MIB), Ok(()), "another user");

        let mut turns = turns.into_iter();
        let (first, held) = (turns.next().expect("a turn"), turns.next());
        let kept = first.clone();
        drop(first);
        let next = all.of(user(1));
        assert_eq!(next.take(2 * MIB), Err(TurnMemoryFull), "it is still held");
        drop(kept);
        assert_eq!(next.take(2 * MIB), Ok(()));
        drop(held);
    }

    #[test]
    fn a_turn_takes_memory_as_its_answer_grows() {
        let all = TurnMemories::new(4 * MIB);
        let turn = all.of(user(1));
        let pieces = (0..4_096).take_while(|_| turn.take(1024).is_ok()).count();
        assert_eq!(pieces, 512, "half of the share of a user");
    }
}
