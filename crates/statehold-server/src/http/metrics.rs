//! Prometheus metrics. Labels are routes, methods and statuses, never text from a caller.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};

use prometheus_client::encoding::{EncodeLabelSet, text::encode};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use statehold_engine::api::operations::EngineCounts;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    method: String,
    route: String,
    status: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RouteLabels {
    method: String,
    route: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RuleLabels {
    rule: String,
}

/// The metrics of one server.
#[derive(Clone)]
pub struct Metrics {
    registry: Arc<Registry>,
    calls: Family<CallLabels, Counter<u64, AtomicU64>>,
    seconds: Family<RouteLabels, Histogram>,
    connections: Arc<AtomicUsize>,
    connections_open: Gauge<i64, AtomicI64>,
    sessions_hot: Gauge<i64, AtomicI64>,
    sessions_damaged: Gauge<i64, AtomicI64>,
    rows_damaged: Gauge<i64, AtomicI64>,
    redactions: Family<RuleLabels, Counter<u64, AtomicU64>>,
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

fn histogram() -> Histogram {
    let buckets = [
        0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0,
    ];
    Histogram::new(buckets)
}

impl Metrics {
    /// Metrics that start at zero. The accept loop counts `connections`.
    pub fn new(connections: Arc<AtomicUsize>) -> Self {
        let mut registry = Registry::with_prefix("statehold");
        let calls = Family::default();
        let seconds = Family::new_with_constructor(histogram as fn() -> Histogram);
        let connections_open = Gauge::default();
        let (sessions_hot, sessions_damaged) = (Gauge::default(), Gauge::default());
        let rows_damaged = Gauge::default();
        registry.register("calls", "Calls that were answered", calls.clone());
        registry.register(
            "call_seconds",
            "How long calls took until the first byte of the answer",
            seconds.clone(),
        );
        registry.register(
            "connections_open",
            "Connections that are open",
            connections_open.clone(),
        );
        registry.register(
            "sessions_hot",
            "Sessions that are kept in memory",
            sessions_hot.clone(),
        );
        registry.register(
            "sessions_damaged",
            "Sessions that were found damaged",
            sessions_damaged.clone(),
        );
        registry.register(
            "rows_damaged",
            "Rows outside of sessions that were found damaged",
            rows_damaged.clone(),
        );
        let redactions = Family::default();
        registry.register(
            "redactions",
            "Secrets that were redacted before something was stored, by rule",
            redactions.clone(),
        );
        Self {
            registry: Arc::new(registry),
            calls,
            seconds,
            connections,
            connections_open,
            sessions_hot,
            sessions_damaged,
            rows_damaged,
            redactions,
        }
    }

    /// Records one answer.
    pub(crate) fn note(&self, method: &str, route: &str, status: u16, seconds: f64) {
        let (method, route) = (method.to_owned(), route.to_owned());
        let label = RouteLabels {
            method: method.clone(),
            route: route.clone(),
        };
        self.seconds.get_or_create(&label).observe(seconds);
        let label = CallLabels {
            method,
            route,
            status,
        };
        self.calls.get_or_create(&label).inc();
    }

    /// All metrics in the `OpenMetrics` text format.
    pub(crate) fn render(&self, counts: &EngineCounts) -> String {
        let as_i64 = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.connections_open
            .set(as_i64(self.connections.load(Ordering::Relaxed)));
        self.sessions_hot.set(as_i64(counts.hot));
        self.sessions_damaged.set(as_i64(counts.damaged.sessions));
        self.rows_damaged.set(as_i64(counts.damaged.rows));
        for (rule, count) in &counts.redactions {
            let label = RuleLabels { rule: rule.clone() };
            let counter = self.redactions.get_or_create(&label);
            counter.inner().store(*count, Ordering::Relaxed);
        }
        let mut text = String::new();
        match encode(&mut text, &self.registry) {
            Ok(()) => text,
            Err(_) => String::new(),
        }
    }
}
