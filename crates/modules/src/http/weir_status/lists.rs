//! The elements of the lists in the JSON of `weir_status`: loops, pools, caches, compressed copies, spans.

use std::fmt::Write;

use host::engine::ZoneRegistry;
use http::cache::CacheZone;
use rt::pool::PoolHandle;

use super::LoopStatus;
use crate::shared::compressed_copies::CompressedCopies;
use crate::shared::span_counters::SpanCounters;

/// The compressed copies as JSON, written by hand as everything here: it is flat, and the only free texts of the page are
/// names and paths.
pub(super) fn copies_json(copies: &CompressedCopies) -> String {
    let totals = copies.totals();
    let mut out = format!(
        "{{\"copies\":{},\"bytes\":{},\"max_bytes\":{},\"fills\":{}",
        totals.copies, totals.held, totals.limit, totals.fills
    );
    for (name, value) in copies.counters.all() {
        let _ = write!(out, ",\"{name}\":{value}");
    }
    out.push('}');
    out
}

/// An event loop as JSON.
pub(super) fn loop_json(
    LoopStatus {
        index,
        counted,
        late_ms,
        stats,
    }: &LoopStatus,
) -> String {
    let counters = &counted.counters;
    let mut out = format!(
        "{{\"loop\":{index},\"accepted\":{},\"handled\":{},\"requests\":{},\"active\":{},\"reading\":{},\"writing\":{},\
         \"waiting\":{},\"in_turn_ms\":{late_ms}",
        counters.accepted.get(),
        counters.handled.get(),
        counters.requests.get(),
        counters.active.get(),
        counters.reading.get(),
        counters.writing.get(),
        counters.waiting.get(),
    );
    if let Some(stats) = stats {
        let times: Vec<String> = stats.turn_times.iter().map(u64::to_string).collect();
        let _ = write!(
            out,
            ",\"tasks\":{},\"turns\":{},\"polls\":{},\"panics\":{},\"slow_turns\":{},\"busy_us\":{},\"turn_times_log2_us\":[{}]",
            stats.tasks,
            stats.turns,
            stats.polls,
            stats.panics,
            stats.slow_turns,
            stats.busy.as_micros(),
            times.join(",")
        );
    }
    out.push('}');
    out
}

/// A thread pool as JSON.
pub(super) fn pool_json(pool: &PoolHandle) -> String {
    let stats = pool.stats();
    let name = json_string(pool.name());
    format!(
        "{{\"pool\":{name},\"threads\":{},\"running\":{},\"queued\":{},\"waiting\":{},\"done\":{}}}",
        stats.threads, stats.running, stats.queued, stats.waiting, stats.done
    )
}

/// A cache as JSON.
pub(super) fn cache_json(cache: &CacheZone) -> String {
    let mut out = format!(
        "{{\"cache\":{},\"path\":{}",
        json_string(&cache.name().to_string()),
        json_string(&cache.path().to_string_lossy())
    );
    if let (Some(stats), Some(found)) = (cache.stats(), cache.found_at_open()) {
        let _ = write!(
            out,
            ",\"objects\":{},\"bytes\":{},\"segments\":{},\"index_bytes\":{},\"memory_bytes\":{},\"memory_hits\":{},\
             \"stored\":{},\"written_bytes\":{},\"evicted\":{},\"reclaimed\":{},\"fills\":{},\"found\":{},\"opened_ms\":{}",
            stats.objects,
            stats.size,
            stats.segments,
            stats.index_memory,
            stats.memory,
            stats.memory_hits,
            stats.stored,
            stats.written,
            stats.evicted,
            stats.reclaimed,
            stats.fills,
            found.objects,
            found.took.as_millis()
        );
    }
    if let Some(trouble) = cache.last_error() {
        let _ = write!(out, ",\"trouble\":{}", json_string(&trouble));
    }
    out.push('}');
    out
}

/// Quotes a text as a JSON string: the names of pools come from the configuration.
pub(super) fn json_string(text: &str) -> String {
    let mut out = String::from("\"");
    for sign in text.chars() {
        match sign {
            '"' | '\\' => out.extend(['\\', sign]),
            // RFC 8259, section 7: control characters must be escaped. Everything else may stay, because the output
            // is UTF-8.
            '\0'..='\x1f' => {
                let _ = write!(out, "\\u{:04x}", u32::from(sign));
            }
            _ => out.push(sign),
        }
    }
    out.push('"');
    out
}

/// What became of spans as JSON; `None` if none were ever exported.
pub(super) fn spans_json(zones: &ZoneRegistry) -> Option<String> {
    let totals = SpanCounters::existing(zones)?.totals();
    let members = totals.map(|(name, count)| format!("\"{name}\":{count}"));
    Some(format!("{{{}}}", members.join(",")))
}
