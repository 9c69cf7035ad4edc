//! Prometheus metrics. Labels are routes, methods, statuses and declared names, never text from a caller.

mod classic;
mod counts;
mod process;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use http::HeaderMap;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use statehold_agents::spec::AgentBook;
use statehold_engine::api::operations::EngineCounts;
use statehold_engine::measures::BUCKET_SECONDS;

use counts::{Declared, Scrape};

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

/// The metrics of one server.
#[derive(Clone)]
pub struct Metrics {
    registry: Arc<Registry>,
    calls: Family<CallLabels, Counter<u64, AtomicU64>>,
    seconds: Family<RouteLabels, Histogram>,
    connections: Arc<AtomicUsize>,
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

fn histogram() -> Histogram {
    Histogram::new(BUCKET_SECONDS)
}

/// A text format of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MetricsFormat {
    OpenMetrics,
    /// The text format of Prometheus before `OpenMetrics`.
    Classic,
}

impl MetricsFormat {
    /// The format that the caller prefers; `OpenMetrics` unless `Accept` ranks `text/plain` higher.
    pub(crate) fn accepted(headers: &HeaderMap) -> Self {
        let (mut open_metrics, mut classic) = (0.0, 0.0);
        let accepted = headers.get_all(http::header::ACCEPT).iter();
        let accepted = accepted.filter_map(|value| value.to_str().ok());
        for range in accepted.flat_map(|value| value.split(',')) {
            let mut parts = range.split(';').map(str::trim);
            let kind = parts.next().unwrap_or_default();
            let quality = parts.find_map(|part| part.strip_prefix("q="));
            let quality: f64 = quality.map_or(1.0, |text| text.parse().unwrap_or(0.0));
            let best = match kind {
                "application/openmetrics-text" => &mut open_metrics,
                "text/plain" => &mut classic,
                _ => continue,
            };
            *best = f64::max(*best, quality);
        }
        if classic > open_metrics {
            Self::Classic
        } else {
            Self::OpenMetrics
        }
    }

    pub(crate) const fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Classic => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

impl Metrics {
    /// Metrics that start at zero. The accept loop counts `connections`.
    pub fn new(connections: Arc<AtomicUsize>) -> Self {
        let mut registry = Registry::with_prefix("statehold");
        let calls = Family::default();
        let seconds = Family::new_with_constructor(histogram as fn() -> Histogram);
        registry.register("calls", "Calls that were answered", calls.clone());
        registry.register(
            "call_seconds",
            "How long calls took until the first byte of the answer",
            seconds.clone(),
        );
        Self {
            registry: Arc::new(registry),
            calls,
            seconds,
            connections,
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

    /// All metrics in a text format. Names that `book` and the policies do not have share a label.
    pub(crate) fn render(
        &self,
        counts: EngineCounts,
        book: &AgentBook,
        format: MetricsFormat,
    ) -> String {
        let declared = Declared::new(book, &counts);
        let connections = self.connections.load(Ordering::Relaxed);
        let scrape = Scrape::new(counts, &declared, connections as u64);
        let mut scraped = Registry::default();
        scraped.register_collector(Box::new(scrape));
        let mut text = String::new();
        let written = encode_registry(&mut text, &self.registry)
            .and_then(|()| encode_registry(&mut text, &scraped))
            .and_then(|()| encode_eof(&mut text));
        // Writing to a string does not fail; half an answer would read as numbers that are gone.
        if written.is_err() {
            return String::new();
        }
        match format {
            MetricsFormat::OpenMetrics => text,
            MetricsFormat::Classic => classic::of_open_metrics(&text),
        }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use http::header::ACCEPT;

    use super::*;

    #[test]
    fn the_format_is_the_one_that_the_caller_prefers() {
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,\
                          application/openmetrics-text;version=0.0.1;q=0.4,\
                          text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        for (accept, expected) in [
            ("*/*", MetricsFormat::OpenMetrics),
            ("text/html", MetricsFormat::OpenMetrics),
            ("text/plain", MetricsFormat::Classic),
            ("text/plain; version=0.0.4", MetricsFormat::Classic),
            ("text/plain;q=x", MetricsFormat::OpenMetrics),
            (prometheus, MetricsFormat::OpenMetrics),
            (
                "application/openmetrics-text;q=0.1, text/plain;q=0.9",
                MetricsFormat::Classic,
            ),
        ] {
            let accepted = [(ACCEPT, HeaderValue::from_static(accept))];
            let headers = accepted.into_iter().collect();
            assert_eq!(MetricsFormat::accepted(&headers), expected, "{accept}");
        }
        let none = MetricsFormat::accepted(&HeaderMap::new());
        assert_eq!(none, MetricsFormat::OpenMetrics);
    }
}
