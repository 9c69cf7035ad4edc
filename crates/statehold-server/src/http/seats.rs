//! Seats for calls that stay open: streams, and calls that wait long for a decision.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use statehold_core::principal::Principal;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::http::problem::{Code, Problem};

/// One key takes at most this part of all seats: a fourth.
const SHARE: usize = 4;

type Taken = Arc<Mutex<HashMap<Principal, usize>>>;

fn lock(taken: &Taken) -> MutexGuard<'_, HashMap<Principal, usize>> {
    taken.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The seats, which chats share with feeds.
#[derive(Debug)]
pub(crate) struct Seats {
    all: Arc<Semaphore>,
    each_max: usize,
    taken: Taken,
}

/// A seat, which is free again when this is dropped.
#[derive(Debug)]
pub(crate) struct Seat {
    _permit: OwnedSemaphorePermit,
    counted: Option<(Taken, Principal)>,
}

impl Seats {
    pub(crate) fn new(all: Arc<Semaphore>, max: usize) -> Self {
        Self {
            all,
            each_max: (max / SHARE).max(1),
            taken: Taken::default(),
        }
    }

    /// Takes a seat for a key. The developer may take all of them.
    pub(crate) fn take(&self, who: Principal) -> Result<Seat, Problem> {
        let permit = self.all.clone().try_acquire_owned();
        let permit = permit.map_err(|_| {
            let detail = "too many streams are open; ask without `stream`, or again in a moment";
            Problem::new(Code::TooMany, detail)
        })?;
        let counted = match who {
            Principal::Local => None,
            who => Some(self.count(who)?),
        };
        Ok(Seat {
            _permit: permit,
            counted,
        })
    }

    fn count(&self, who: Principal) -> Result<(Taken, Principal), Problem> {
        let mut taken = lock(&self.taken);
        let own = taken.entry(who).or_default();
        if *own >= self.each_max {
            let detail = format!(
                "this key has {own} streams and long waits open, as many as one key may; close one, or \
                 ask without `stream` and with `x-statehold-wait` of at most 60"
            );
            return Err(Problem::new(Code::TooMany, detail));
        }
        *own += 1;
        Ok((Arc::clone(&self.taken), who))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let Some((taken, who)) = &self.counted else {
            return;
        };
        let mut taken = lock(taken);
        if let Some(own) = taken.get_mut(who) {
            *own -= 1;
            if *own == 0 {
                taken.remove(who);
            }
        }
    }
}
