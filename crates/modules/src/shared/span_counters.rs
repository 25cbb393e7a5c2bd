//! What became of spans, for metrics and status pages.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use host::engine::ZoneRegistry;

/// The name under which the counters are kept over reloads.
const ZONE: &str = "otel";

/// The spans of this process.
#[derive(Debug, Default)]
pub(crate) struct SpanCounters {
    /// A collector has taken them.
    pub(crate) exported: AtomicU64,
    /// There was no room for them, because the collector is away or too slow.
    pub(crate) dropped: AtomicU64,
    /// The collector has refused them.
    pub(crate) rejected: AtomicU64,
}

impl SpanCounters {
    /// Those of a process, made if there are none.
    pub(crate) fn of(zones: &ZoneRegistry) -> Arc<SpanCounters> {
        zones.get_or_create(ZONE, SpanCounters::default)
    }

    /// Those of a process that has ever exported spans.
    pub(crate) fn existing(zones: &ZoneRegistry) -> Option<Arc<SpanCounters>> {
        zones.get(ZONE)
    }

    /// The numbers, with their names.
    pub(crate) fn totals(&self) -> [(&'static str, u64); 3] {
        [
            ("exported", self.exported.load(Relaxed)),
            ("dropped", self.dropped.load(Relaxed)),
            ("rejected", self.rejected.load(Relaxed)),
        ]
    }
}
