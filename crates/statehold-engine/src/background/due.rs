//! The walk of the timers along the deadlines that have passed.
//!
//! The store lists a lease as due although heartbeats have extended it, and the deadlines of damaged sessions. The
//! walk steps over them page by page. It reads a bounded number of rows per run, and the next run goes on where one
//! was cut off, so that no number of deadlines that cannot be settled hides the others.

use std::collections::HashMap;

use statehold_core::ids::UserId;
use statehold_core::time::Timestamp;
use statehold_store::{Due, DueKind, DuePlace};

use crate::engine::Engine;
use crate::error::EngineError;
use crate::locks::Lock;

/// The maximum number of deadlines settled per run.
pub(super) const DUE_MAX: usize = 1_024;
/// How many rows of a kind one read of the store has at most.
const PAGE: usize = 4_096;
/// How many pages one run reads at most.
const PAGES_MAX: usize = 16;

/// The place where the last run was cut off.
#[derive(Debug)]
pub(crate) struct DueWalk<P = DuePlace> {
    place: Lock<Option<P>>,
}

impl<P> Default for DueWalk<P> {
    fn default() -> Self {
        Self {
            place: Lock::default(),
        }
    }
}

impl<P: Copy> DueWalk<P> {
    /// The deadlines to settle in one run, a fair share for every user: at most `DUE_MAX`.
    async fn next<R>(
        &self,
        read: impl Fn(Option<P>) -> R,
        can_settle: impl Fn(&[Due]) -> Vec<bool>,
    ) -> Result<Vec<Due>, EngineError>
    where
        R: Future<Output = Result<(Vec<Due>, Option<P>), EngineError>>,
    {
        let mut place = *self.place.lock();
        let mut found = Vec::new();
        for _ in 0..PAGES_MAX {
            let (due, next) = read(place).await?;
            let wanted = can_settle(&due);
            let wanted = due.into_iter().zip(wanted);
            found.extend(wanted.filter_map(|(due, is_wanted)| is_wanted.then_some(due)));
            place = next;
            if place.is_none() {
                break;
            }
        }
        *self.place.lock() = place;
        Ok(share(found, DUE_MAX))
    }
}

impl Engine {
    /// The deadlines that have passed and can be settled.
    pub(super) async fn due(&self, now: Timestamp) -> Result<Vec<Due>, EngineError> {
        let inner = self.inner();
        let read = |after| async move {
            let page = inner.store.due(now, after, PAGE).await?;
            Ok((page.due, page.next))
        };
        let can_settle = |page: &[Due]| {
            let damage = inner.store.damage();
            let heartbeats = inner.heartbeats.lock();
            let is_extended = |due: &Due| match due.kind {
                DueKind::Lease(request) => heartbeats.get(&request).is_some_and(|end| *end > now),
                DueKind::Hold(_) | DueKind::Session | DueKind::Hidden => false,
            };
            let can_settle = |due: &Due| !is_extended(due) && !damage.is_unusable(due.session);
            page.iter().map(can_settle).collect()
        };
        inner.due_walk.next(read, can_settle).await
    }
}

/// Keeps `limit` deadlines, so that every user gets a share: first the earliest of each user, then the
/// second of each, and so on.
fn share(due: Vec<Due>, limit: usize) -> Vec<Due> {
    let mut counts: HashMap<UserId, usize> = HashMap::new();
    let ranked = due.into_iter().map(|due| {
        let count = counts.entry(due.user).or_default();
        *count += 1;
        (*count, due)
    });
    let mut ranked: Vec<(usize, Due)> = ranked.collect();
    ranked.sort_by_key(|(rank, due)| (*rank, due.at));
    ranked.truncate(limit);
    ranked.into_iter().map(|(_, due)| due).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use statehold_core::ids::SessionId;
    use uuid::Uuid;

    use super::*;

    /// Deadlines in the order of their times, each of a session and a user.
    struct List {
        users: Vec<u128>,
        pages_read: AtomicUsize,
    }

    impl List {
        fn of(users: impl IntoIterator<Item = u128>) -> Self {
            Self {
                users: users.into_iter().collect(),
                pages_read: AtomicUsize::new(0),
            }
        }

        fn page(&self, after: Option<usize>) -> (Vec<Due>, Option<usize>) {
            self.pages_read.fetch_add(1, Ordering::Relaxed);
            let begin = after.unwrap_or(0);
            let end = (begin + PAGE).min(self.users.len());
            let due = (begin..end).map(|at| Due {
                session: SessionId::from_uuid(Uuid::from_u128(at as u128)),
                tenant: "north".parse().expect("a name"),
                user: UserId::from_uuid(Uuid::from_u128(self.users[at])),
                at: Timestamp::from_micros(i64::try_from(at).expect("a short list")),
                kind: DueKind::Session,
            });
            (due.collect(), (end < self.users.len()).then_some(end))
        }

        async fn run(
            &self,
            walk: &DueWalk<usize>,
            can_settle: impl Fn(usize) -> bool,
        ) -> Vec<usize> {
            let place = |due: &Due| usize::try_from(due.at.as_micros()).expect("a short list");
            let read = |after| async move { Ok(self.page(after)) };
            let can_settle = |page: &[Due]| page.iter().map(|due| can_settle(place(due))).collect();
            let found = walk.next(read, can_settle).await.expect("it reads");
            found.iter().map(place).collect()
        }
    }

    #[tokio::test]
    async fn deadlines_that_cannot_be_settled_hide_no_other_and_do_not_lengthen_a_run() {
        let count = 5 * PAGES_MAX * PAGE / 2;
        let (list, walk) = (List::of((0..count).map(|_| 1)), DueWalk::default());
        let (end, mut runs, mut found) = (count - 1, 0, Vec::new());
        while found.is_empty() {
            found = list.run(&walk, |at| at == end).await;
            runs += 1;
            let read = list.pages_read.swap(0, Ordering::Relaxed);
            assert!(read <= PAGES_MAX, "{read} pages in one run");
        }
        assert_eq!((found, runs), (vec![end], 3));
        let again = list.run(&walk, |at| at == 0).await;
        assert_eq!(again, [0], "the next run begins with the earliest again");
    }

    #[tokio::test]
    async fn a_user_with_many_deadlines_leaves_room_for_others() {
        let users = (0..3 * DUE_MAX).map(|_| 1).chain([2, 3, 2]);
        let (list, walk) = (List::of(users), DueWalk::default());
        let found = list.run(&walk, |_| true).await;
        let first = 3 * DUE_MAX;
        assert_eq!(found[..5], [0, first, first + 1, 1, first + 2]);
        assert_eq!(found.len(), DUE_MAX);
    }
}
