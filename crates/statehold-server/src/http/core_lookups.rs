//! Questions to DIAL Core about the keys of calls. They are asked before a call has a caller, so no
//! share of a caller bounds them: there are so many at once, so many of one network, and each has a
//! deadline.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use http::Extensions;
use statehold_engine::Lock;
use tokio::sync::Semaphore;

use crate::http::problem::{Code, Problem};
use crate::http::shares::network_of;

/// How many callers Core is asked about at once.
const AT_ONCE_MAX: usize = 64;
/// How many calls of one network may wait for Core's answer. All calls through Core come from the
/// address of Core.
const OF_NETWORK_MAX: usize = 1_024;
/// How long a call waits until Core has said whose it is, the time in line included.
const DEADLINE: Duration = Duration::from_secs(10);

/// The questions in progress, and those in line.
#[derive(Debug)]
pub(crate) struct CoreLookups {
    permits: Semaphore,
    of_networks: Lock<HashMap<IpAddr, usize>>,
}

impl Default for CoreLookups {
    fn default() -> Self {
        Self {
            permits: Semaphore::new(AT_ONCE_MAX),
            of_networks: Lock::default(),
        }
    }
}

impl CoreLookups {
    /// Asks Core about the caller of a connection. Refuses the call if too many of its network wait
    /// already, or if there is no answer in time.
    pub(crate) async fn ask<T>(
        &self,
        connection: &Extensions,
        question: impl Future<Output = T>,
    ) -> Result<T, Problem> {
        let _waiting = network_of(connection)
            .map(|network| self.line_up(network))
            .transpose()?;
        let asked = async {
            let _permit = self.permits.acquire().await;
            question.await
        };
        let answer = tokio::time::timeout(DEADLINE, asked).await;
        answer.map_err(|_| {
            tracing::warn!("DIAL Core does not say in time whose calls there are");
            unavailable()
        })
    }

    fn line_up(&self, network: IpAddr) -> Result<WaitingLookup<'_>, Problem> {
        let mut of_networks = self.of_networks.lock();
        let waiting = of_networks.entry(network).or_default();
        if *waiting >= OF_NETWORK_MAX {
            let detail = "too many calls of this address wait until DIAL Core says whose they are; try again in a \
                          moment";
            return Err(Problem::new(Code::TooMany, detail));
        }
        *waiting += 1;
        Ok(WaitingLookup {
            lookups: self,
            network,
        })
    }
}

/// The problem of a call whose caller Core does not name.
pub(crate) fn unavailable() -> Problem {
    let detail = "the key of the call cannot be checked at the moment; try again";
    Problem::new(Code::Internal, detail)
}

/// A call that waits for Core, counted for its network until this is dropped.
#[derive(Debug)]
struct WaitingLookup<'a> {
    lookups: &'a CoreLookups,
    network: IpAddr,
}

impl Drop for WaitingLookup<'_> {
    fn drop(&mut self) {
        let mut of_networks = self.lookups.of_networks.lock();
        if let Some(waiting) = of_networks.get_mut(&self.network) {
            *waiting -= 1;
            if *waiting == 0 {
                of_networks.remove(&self.network);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::net::SocketAddr;

    use axum::extract::ConnectInfo;
    use futures_util::FutureExt as _;
    use tokio::time::Instant;

    use super::*;

    fn from(address: &str) -> Extensions {
        let mut connection = Extensions::new();
        let peer: IpAddr = address.parse().expect("an address");
        connection.insert(ConnectInfo(SocketAddr::from((peer, 1))));
        connection
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_behind_many_that_core_leaves_without_an_answer_waits_no_longer_than_they() {
        let lookups = CoreLookups::default();
        let core = from("192.0.2.1");
        let begun = Instant::now();
        let hanging = (0..=4 * AT_ONCE_MAX).map(|_| lookups.ask(&core, pending::<()>()));
        let answers = futures_util::future::join_all(hanging).await;
        let codes = answers
            .into_iter()
            .map(|answer| answer.expect_err("no answer").code);
        assert!(codes.into_iter().all(|code| code == Code::Internal.text()));
        assert_eq!(begun.elapsed(), DEADLINE);
        assert!(lookups.ask(&core, async {}).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn the_calls_of_one_network_that_wait_for_core_are_bounded_and_refuse_no_other() {
        let lookups = CoreLookups::default();
        let (one, other) = (from("192.0.2.1"), from("192.0.2.2"));
        let mut waiting: Vec<_> = (0..OF_NETWORK_MAX)
            .map(|_| Box::pin(lookups.ask(&one, pending::<()>())))
            .collect();
        assert!(waiting.iter_mut().all(|call| call.now_or_never().is_none()));
        let refused = lookups.ask(&one, pending::<()>()).await;
        assert_eq!(refused.expect_err("refused").code, Code::TooMany.text());
        let mut third = Box::pin(lookups.ask(&other, async {}));
        assert!((&mut third).now_or_never().is_none(), "it is in line");
        drop(waiting);
        assert!(third.await.is_ok());
        assert!(lookups.ask(&one, async {}).await.is_ok());
    }
}
