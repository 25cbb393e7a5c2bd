//! The slowest requests of the last minutes, with their ledgers.
//!
//! Two periods are kept, so that a page that is opened right after the change of period is not empty. Every loop asks with
//! a bound of its own first: the lock is taken for requests that may get into the list, and for no others.

use std::time::{Duration, Instant};

use base::sync::Mutex;
use http::Request;
use http::ledger::LedgerReport;

/// How many are kept.
const KEPT: usize = 32;

/// For how long the slowest ones are collected. Those of the period before are shown, too.
const PERIOD: Duration = Duration::from_secs(300);

/// Faster ones are not slow, in microseconds.
const FLOOR_US: u64 = 1_000;

/// How much of a path is kept, in bytes.
const PATH_KEPT: usize = 200;

/// The slowest requests of this process: the present period's and those of the one before.
#[derive(Default)]
pub(crate) struct SlowestRequests(Mutex<SlowestPeriods>);

#[derive(Default)]
struct SlowestPeriods {
    began: Option<Instant>,
    present: Vec<SlowRequest>,
    before: Vec<SlowRequest>,
}

/// One slow request. It has no arguments and no fields, which may be secrets.
#[derive(Clone, Debug)]
pub(crate) struct SlowRequest {
    /// The name of its server.
    pub(crate) server: String,
    /// The method.
    pub(crate) method: String,
    /// The path, or the beginning of a long one.
    pub(crate) path: String,
    /// The status of its response.
    pub(crate) status: u16,
    /// Its ledger.
    pub(crate) ledger: LedgerReport,
}

impl SlowestRequests {
    /// Keeps a request if it is one of the slowest. Returns from which time on, in microseconds, the loop need ask
    /// again.
    pub(super) fn offer(&self, request: &Request, took: Duration) -> u64 {
        let us = took.as_micros() as u64;
        if us < FLOOR_US {
            return FLOOR_US;
        }
        let mut kept = self.0.lock();
        let now = rt::now();
        if kept
            .began
            .is_none_or(|began| now.saturating_duration_since(began) >= PERIOD)
        {
            kept.began = Some(now);
            kept.before = std::mem::take(&mut kept.present);
        }
        let place = kept
            .present
            .partition_point(|other| other.ledger.total >= took);
        if place < KEPT {
            kept.present.insert(place, SlowRequest::of(request));
            kept.present.truncate(KEPT);
        }
        // While the list is full only a slower one can get in. The bound is a loop's own and rises to that of the list;
        // half of it is asked, so that the next period does not miss what is slow then.
        match kept.present.get(KEPT - 1) {
            Some(last) => (last.ledger.total.as_micros() as u64 / 2).max(FLOOR_US),
            None => FLOOR_US,
        }
    }

    /// The slowest ones, the slowest first.
    pub(crate) fn list(&self) -> Vec<SlowRequest> {
        let kept = self.0.lock();
        let mut all: Vec<_> = kept.present.iter().chain(&kept.before).cloned().collect();
        all.sort_by_key(|request| std::cmp::Reverse(request.ledger.total));
        all.truncate(KEPT);
        all
    }
}

impl SlowRequest {
    fn of(request: &Request) -> SlowRequest {
        let line = request.head.wire.request_line();
        let method = line.split(|byte| *byte == b' ').next().unwrap_or_default();
        let path = &request.uri.path;
        let path = &path[..path.len().min(PATH_KEPT)];
        SlowRequest {
            server: request.site.server(request.server).name.to_string(),
            method: printable(&method[..method.len().min(16)]),
            path: printable(path),
            status: request.out.status,
            ledger: LedgerReport::of_request(request),
        }
    }
}

/// A client's text without what could control a terminal.
fn printable(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    text.chars()
        .map(|sign| if sign.is_control() { '?' } else { sign })
        .collect()
}
