//! Sends spans to a collector: OTLP over HTTP, as JSON. A collector that does not answer costs spans, and never a call.

use std::time::Duration;

use serde_json::{Value, json};
use statehold_engine::Credential;
use statehold_engine::measures::WarnLimit;
use statehold_engine::trace::{Span, TraceContext};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::http::{EndpointError, HttpPool, RetryBudget, ServiceRequest};

/// How many spans one call has at most.
const BATCH_MAX: usize = 256;
/// How long the first span of a batch waits for others.
const BATCH_WAIT: Duration = Duration::from_secs(1);
/// The timeout of a call, and of the last one when the server stops.
const CALL_MAX: Duration = Duration::from_secs(10);
const LAST_CALL_MAX: Duration = Duration::from_secs(2);

/// Where spans go.
#[derive(Debug)]
pub struct Collector {
    /// The whole address, for example `http://127.0.0.1:4318/v1/traces`.
    pub url: String,
    /// Bearer credential.
    pub credential: Option<Credential>,
}

/// Why no spans can be sent.
#[derive(Debug, thiserror::Error)]
#[error("the client of the trace collector cannot be made: {0}")]
pub struct TraceClientError(String);

/// Sends spans until `stop` is cancelled, then those that have arrived by then.
///
/// # Errors
///
/// If there can be no HTTP client.
pub async fn export(
    mut spans: mpsc::Receiver<Span>,
    collector: Collector,
    stop: CancellationToken,
) -> Result<(), TraceClientError> {
    let http = HttpPool::new().map_err(|error| TraceClientError(error.to_string()))?;
    let mut warnings = WarnLimit::default();
    let mut batch = Vec::with_capacity(BATCH_MAX);
    loop {
        let is_last = stop
            .run_until_cancelled(fill(&mut spans, &mut batch))
            .await
            .is_none();
        while batch.len() < BATCH_MAX
            && let Ok(span) = spans.try_recv()
        {
            batch.push(span);
        }
        if !batch.is_empty() {
            let limit = if is_last { LAST_CALL_MAX } else { CALL_MAX };
            if let Err(error) = send(&http, &collector, &batch, limit).await
                && let Some(failures) = warnings.next(std::time::Instant::now())
            {
                // The errors of services name the setting of services.
                let reason = error.log_text().replace("`base_url`", "`traces.otlp_url`");
                let lost = batch.len();
                tracing::warn!(
                    failures,
                    lost,
                    reason,
                    "spans cannot be sent to the collector"
                );
            }
            batch.clear();
        }
        if is_last {
            return Ok(());
        }
    }
}

/// Waits for spans: until a batch is full, or its first span has waited long enough.
async fn fill(spans: &mut mpsc::Receiver<Span>, batch: &mut Vec<Span>) {
    if spans.recv_many(batch, BATCH_MAX).await == 0 {
        // No span can come any more: the server stops.
        return std::future::pending().await;
    }
    let more = async {
        while batch.len() < BATCH_MAX {
            let room = BATCH_MAX - batch.len();
            if spans.recv_many(batch, room).await == 0 {
                return;
            }
        }
    };
    drop(tokio::time::timeout(BATCH_WAIT, more).await);
}

async fn send(
    http: &HttpPool,
    collector: &Collector,
    spans: &[Span],
    limit: Duration,
) -> Result<(), EndpointError> {
    let request = ServiceRequest::new(&collector.url, &[], collector.credential.as_ref())?;
    let request = request.with_json(&document(spans));
    let deadline = RetryBudget::new(limit, 0).deadline();
    let mut answer = http.send(&request, deadline).await?;
    answer.read_trailing().await;
    Ok(())
}

/// The body of a call: `ExportTraceServiceRequest`.
fn document(spans: &[Span]) -> Value {
    let spans: Vec<Value> = spans.iter().map(span_json).collect();
    let resource = [
        attribute("service.name", "statehold"),
        attribute("service.version", env!("CARGO_PKG_VERSION")),
    ];
    json!({"resourceSpans": [{
        "resource": {"attributes": resource},
        "scopeSpans": [{"scope": {"name": "statehold"}, "spans": spans}],
    }]})
}

fn span_json(span: &Span) -> Value {
    let TraceContext {
        trace, span: id, ..
    } = span.context;
    let began_at = u128::try_from(span.began_at.as_micros()).unwrap_or(0) * 1_000;
    let attributes = span.attributes.iter();
    let attributes: Vec<Value> = attributes
        .map(|(key, value)| attribute(key, value))
        .collect();
    let mut json = json!({
        "traceId": format!("{trace:032x}"),
        "spanId": format!("{id:016x}"),
        "name": span.name,
        "kind": span.kind as u8,
        "startTimeUnixNano": began_at.to_string(),
        "endTimeUnixNano": (began_at + span.took.as_nanos()).to_string(),
        "attributes": attributes,
    });
    if let Some(parent) = span.parent {
        json["parentSpanId"] = format!("{parent:016x}").into();
    }
    if span.is_error {
        json["status"] = json!({"code": 2});
    }
    json
}

fn attribute(key: &str, value: &str) -> Value {
    json!({"key": key, "value": {"stringValue": value}})
}
