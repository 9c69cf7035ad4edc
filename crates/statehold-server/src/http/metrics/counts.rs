//! The metrics that are read when they are asked for: of the engine, the store and the process.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use statehold_agents::spec::AgentBook;
use statehold_core::name::Name;
use statehold_core::time::Timestamp;
use statehold_engine::api::operations::EngineCounts;
use statehold_engine::measures::{
    BUCKET_SECONDS, DurationCounts, EndedCounts, Peer, PeerCounts, other,
};

use super::process::ProcessNumbers;

/// The names that metrics tell apart. All others are `other`, so that callers cannot make new series.
#[derive(Debug)]
pub(super) struct Declared {
    agents: BTreeSet<Name>,
    models: BTreeSet<Name>,
    tool_servers: BTreeSet<Name>,
}

impl Declared {
    pub(super) fn new(book: &AgentBook, counts: &EngineCounts) -> Self {
        let agents = book.agents.keys().chain(&counts.policy_agents);
        Self {
            agents: agents.cloned().collect(),
            models: book.models.keys().cloned().collect(),
            tool_servers: book.tool_servers.keys().cloned().collect(),
        }
    }

    fn peer(&self, peer: Peer, name: &Name) -> Name {
        let known = match peer {
            Peer::Agent | Peer::Push => &self.agents,
            Peer::Model => &self.models,
            Peer::ToolServer => &self.tool_servers,
        };
        known.get(name).cloned().unwrap_or_else(other)
    }

    fn agent(&self, name: &Name) -> Name {
        self.peer(Peer::Agent, name)
    }
}

#[derive(Debug, Default)]
struct QueueNumbers {
    requests: u64,
    oldest: Option<Timestamp>,
}

/// One answer to `/metrics`.
#[derive(Debug)]
pub(super) struct Scrape {
    counts: EngineCounts,
    connections: u64,
    process: ProcessNumbers,
    queues: BTreeMap<Name, QueueNumbers>,
    ended: BTreeMap<Name, EndedCounts>,
    calls: BTreeMap<(Peer, Name), PeerCounts>,
}

impl Scrape {
    pub(super) fn new(counts: EngineCounts, declared: &Declared, connections: u64) -> Self {
        // Agents without a queued request count too: an alert must see the queue end.
        let known = declared.agents.iter();
        let mut queues: BTreeMap<Name, QueueNumbers> = known
            .filter(|_| counts.work.is_some())
            .map(|agent| (agent.clone(), QueueNumbers::default()))
            .collect();
        for queue in counts.work.iter().flat_map(|work| &work.queues) {
            let numbers = queues.entry(declared.agent(&queue.agent)).or_default();
            numbers.requests += queue.requests;
            let oldest = queue.oldest.map(|request| request.minted_at());
            numbers.oldest = numbers.oldest.into_iter().chain(oldest).min();
        }
        let mut ended: BTreeMap<Name, EndedCounts> = BTreeMap::new();
        for (agent, counts) in &counts.ended {
            let sum = ended.entry(declared.agent(agent)).or_default();
            sum.completed += counts.completed;
            sum.failed += counts.failed;
            sum.cancelled += counts.cancelled;
        }
        let mut calls: BTreeMap<(Peer, Name), PeerCounts> = BTreeMap::new();
        for ((peer, name), counts) in &counts.calls {
            let sum = calls
                .entry((*peer, declared.peer(*peer, name)))
                .or_default();
            *sum = PeerCounts {
                ok: sum.ok + counts.ok,
                refused: sum.refused + counts.refused,
                failed: sum.failed + counts.failed,
                cancelled: sum.cancelled + counts.cancelled,
                took: sum.took.plus(&counts.took),
            };
        }
        Self {
            process: ProcessNumbers::read(),
            counts,
            connections,
            queues,
            ended,
            calls,
        }
    }

    /// How long ago a time was, in seconds. 0 if there is none.
    fn age(&self, at: Option<Timestamp>) -> f64 {
        let micros = at.map_or(0, |at| self.counts.now.as_micros() - at.as_micros());
        #[expect(clippy::cast_precision_loss, reason = "an age needs no microseconds")]
        let seconds = micros.max(0) as f64 / 1e6;
        seconds
    }
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let writer = &mut MetricWriter(&mut encoder);
        self.write_server(writer)?;
        self.write_work(writer)?;
        self.write_calls(writer)?;
        self.write_store(writer)?;
        self.process.write(writer)
    }
}

impl Scrape {
    fn write_server(&self, writer: &mut MetricWriter<'_, '_>) -> fmt::Result {
        let counts = &self.counts;
        let help = "The version of the server";
        let mut build = writer.family("statehold_build", help, MetricType::Info)?;
        build.encode_info(&[("version", env!("CARGO_PKG_VERSION"))])?;
        let help = "Connections that are open";
        writer.gauge("statehold_connections_open", help, &self.connections)?;
        let help = "Sessions that are kept in memory";
        writer.gauge("statehold_sessions_hot", help, &(counts.hot as u64))?;
        let help = "Sessions that were found damaged: calls that need the damaged data are refused";
        let damaged = counts.damaged;
        writer.gauge(
            "statehold_sessions_damaged",
            help,
            &(damaged.sessions as u64),
        )?;
        let help = "Rows outside of sessions that were found damaged";
        writer.gauge("statehold_rows_damaged", help, &(damaged.rows as u64))?;
        let help = "Secrets that were redacted before something was stored, by rule";
        let mut redactions = writer.family("statehold_redactions", help, MetricType::Counter)?;
        for (rule, count) in &counts.redactions {
            let labels = [("rule", rule.as_str())];
            let mut one = redactions.encode_family(&labels)?;
            one.encode_counter::<NoLabelSet, _, u64>(count, None)?;
        }
        Ok(())
    }

    fn write_work(&self, writer: &mut MetricWriter<'_, '_>) -> fmt::Result {
        if let Some(work) = &self.counts.work {
            let help = "Holds that wait for a decision";
            writer.gauge("statehold_holds_open", help, &work.open_holds)?;
            let help = "How long the oldest open hold has waited; 0 without one";
            let oldest = self.age(work.oldest_hold.map(|hold| hold.minted_at()));
            writer.gauge("statehold_holds_oldest_age_seconds", help, &oldest)?;
        }
        let help = "Requests that wait for a worker, by agent";
        let mut depths = writer.family("statehold_queue_requests", help, MetricType::Gauge)?;
        for (agent, queue) in &self.queues {
            let labels = [("agent", agent.as_str())];
            depths
                .encode_family(&labels)?
                .encode_gauge(&queue.requests)?;
        }
        let help =
            "How long ago the oldest request that waits for a worker was started; 0 without one";
        let name = "statehold_queue_oldest_age_seconds";
        let mut ages = writer.family(name, help, MetricType::Gauge)?;
        for (agent, queue) in &self.queues {
            let labels = [("agent", agent.as_str())];
            let age = self.age(queue.oldest);
            ages.encode_family(&labels)?.encode_gauge(&age)?;
        }
        let help = "Requests that ended, by agent and outcome";
        let mut ended = writer.family("statehold_requests_ended", help, MetricType::Counter)?;
        for (agent, counts) in &self.ended {
            for (outcome, count) in [
                ("completed", counts.completed),
                ("failed", counts.failed),
                ("cancelled", counts.cancelled),
            ] {
                let labels = [("agent", agent.as_str()), ("outcome", outcome)];
                let mut one = ended.encode_family(&labels)?;
                one.encode_counter::<NoLabelSet, _, u64>(&count, None)?;
            }
        }
        let help = "Leases that ended without a heartbeat";
        let mut lapsed = writer.family("statehold_leases_lapsed", help, MetricType::Counter)?;
        lapsed.encode_counter::<NoLabelSet, _, u64>(&self.counts.leases_lapsed, None)
    }

    fn write_calls(&self, writer: &mut MetricWriter<'_, '_>) -> fmt::Result {
        let help = "Calls to agents, models, tool servers and addresses of workers, by outcome; each retry counts";
        let mut calls = writer.family("statehold_service_calls", help, MetricType::Counter)?;
        for ((peer, name), counts) in &self.calls {
            for (outcome, count) in [
                ("ok", counts.ok),
                ("refused", counts.refused),
                ("failed", counts.failed),
                ("cancelled", counts.cancelled),
            ] {
                let name = name.as_str();
                let labels = [("peer", peer.word()), ("name", name), ("outcome", outcome)];
                let mut one = calls.encode_family(&labels)?;
                one.encode_counter::<NoLabelSet, _, u64>(&count, None)?;
            }
        }
        let help = "How long these calls took, whatever their outcome";
        let name = "statehold_service_call_seconds";
        let mut took = writer.family(name, help, MetricType::Histogram)?;
        for ((peer, name), counts) in &self.calls {
            let labels = [("peer", peer.word()), ("name", name.as_str())];
            write_durations(&mut took.encode_family(&labels)?, &counts.took)?;
        }
        Ok(())
    }

    fn write_store(&self, writer: &mut MetricWriter<'_, '_>) -> fmt::Result {
        let store = &self.counts.store;
        let help = "From handing a commit to the store until it was durable";
        let name = "statehold_commit_seconds";
        let mut commits = writer.family(name, help, MetricType::Histogram)?;
        write_durations(&mut commits, &store.commits)?;
        let help = "Writing a group of commits until the disk confirmed it";
        let mut syncs = writer.family("statehold_sync_seconds", help, MetricType::Histogram)?;
        write_durations(&mut syncs, &store.syncs)?;
        let help = "The size of the data file";
        writer.gauge_if_known("statehold_database_bytes", help, store.database_bytes)?;
        let help = "The size of the write-ahead log";
        writer.gauge_if_known("statehold_wal_bytes", help, store.wal_bytes)?;
        let help = "Whether the last write found the disk full: 1 until a write fits again";
        writer.gauge("statehold_disk_full", help, &u64::from(self.counts.is_full))
    }
}

impl ProcessNumbers {
    /// Under the names that all clients of Prometheus give them.
    fn write(&self, writer: &mut MetricWriter<'_, '_>) -> fmt::Result {
        if let Some(seconds) = self.cpu_seconds {
            let help = "User and system CPU time of the process";
            let mut cpu = writer.family("process_cpu_seconds", help, MetricType::Counter)?;
            cpu.encode_counter::<NoLabelSet, _, u64>(&seconds, None)?;
        }
        let help = "Resident memory of the process";
        writer.gauge_if_known("process_resident_memory_bytes", help, self.resident_bytes)?;
        let help = "Virtual memory of the process";
        writer.gauge_if_known("process_virtual_memory_bytes", help, self.virtual_bytes)?;
        let help = "Open file descriptors";
        writer.gauge_if_known("process_open_fds", help, self.open_files)?;
        let help = "The most file descriptors that may be open";
        writer.gauge_if_known("process_max_fds", help, self.files_max)?;
        let help = "Threads of the process";
        writer.gauge_if_known("process_threads", help, self.threads)?;
        let help = "When the process was started, in seconds since 1970";
        writer.gauge_if_known("process_start_time_seconds", help, self.started_at)
    }
}

struct MetricWriter<'a, 'b>(&'a mut DescriptorEncoder<'b>);

impl MetricWriter<'_, '_> {
    fn family<'s>(
        &'s mut self,
        name: &'s str,
        help: &str,
        kind: MetricType,
    ) -> Result<MetricEncoder<'s>, fmt::Error> {
        // The encoder ends a help text with a full stop of its own in registries only.
        self.0.encode_descriptor(name, help, None, kind)
    }

    fn gauge(
        &mut self,
        name: &str,
        help: &str,
        value: &impl prometheus_client::encoding::EncodeGaugeValue,
    ) -> fmt::Result {
        self.family(name, help, MetricType::Gauge)?
            .encode_gauge(value)
    }

    fn gauge_if_known(
        &mut self,
        name: &str,
        help: &str,
        value: Option<impl prometheus_client::encoding::EncodeGaugeValue>,
    ) -> fmt::Result {
        value.map_or(Ok(()), |value| self.gauge(name, help, &value))
    }
}

fn write_durations(metric: &mut MetricEncoder<'_>, counts: &DurationCounts) -> fmt::Result {
    let bounds = BUCKET_SECONDS.into_iter().chain([f64::INFINITY]);
    let buckets: Vec<(f64, u64)> = bounds.zip(counts.buckets).collect();
    let seconds = counts.total.as_secs_f64();
    metric.encode_histogram::<NoLabelSet>(seconds, counts.count(), &buckets, None)
}
