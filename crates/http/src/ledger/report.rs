//! A ledger as a list of columns, for whatever shows it.

use std::time::Duration;

use base::text::write_seconds;

use super::{LedgerPhase, PHASES, micros};
use crate::ledger::{CacheTier, ConnectionUse, FillRole};
use crate::request::Request;

/// A column that is not empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReportedColumn {
    /// Its name.
    pub name: &'static str,
    /// The time that went there.
    pub time: Duration,
}

/// What a ledger says at one moment.
#[derive(Clone, Debug)]
pub struct LedgerReport {
    /// From the first byte of the request until its response had been sent, or until now.
    pub total: Duration,
    /// The columns that are not empty, in the order of a request's way.
    pub columns: Vec<ReportedColumn>,
    /// Who ended it, and in which phase.
    pub termination: [u8; 2],
    /// What is to be said in words: the part in a fill, where the cache had it, how the upstream server was reached.
    pub words: [Option<&'static str>; 3],
}

/// The phases in the order of a request's way.
const ORDER: [LedgerPhase; PHASES] = [
    LedgerPhase::Head,
    LedgerPhase::Loop,
    LedgerPhase::Limit,
    LedgerPhase::Auth,
    LedgerPhase::Upload,
    LedgerPhase::Script,
    LedgerPhase::Lookup,
    LedgerPhase::Fill,
    LedgerPhase::Disk,
    LedgerPhase::Resolve,
    LedgerPhase::Queue,
    LedgerPhase::Connect,
    LedgerPhase::UpstreamTls,
    LedgerPhase::Member,
    LedgerPhase::FirstByte,
    LedgerPhase::Body,
    LedgerPhase::Client,
    LedgerPhase::Work,
];

impl LedgerReport {
    /// What the ledger of a request says now.
    pub fn of_request(request: &Request) -> LedgerReport {
        let ledger = &request.ledger;
        let connection = [("accept", accept_time(request)), ("tls", tls_time(request))];
        let columns = ORDER
            .iter()
            .map(|phase| (phase.name(), ledger.spent_in(*phase)));
        let columns = connection
            .into_iter()
            .map(|(name, time)| (name, time.unwrap_or_default()))
            .chain(columns)
            .filter(|(_, time)| *time >= Duration::from_micros(1))
            .map(|(name, time)| ReportedColumn { name, time })
            .collect();
        LedgerReport {
            total: ledger.total(),
            columns,
            termination: ledger.termination(),
            words: [
                ledger.role.map(FillRole::word),
                ledger.tier.map(CacheTier::word),
                ledger.connection.map(ConnectionUse::word),
            ],
        }
    }

    /// Appends it as the log field: `--/15.204/connect=2.100/first_byte=12.900/new`. Times are in milliseconds.
    pub fn write_field(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.termination);
        out.push(b'/');
        // Microseconds as thousandths.
        write_seconds(micros(self.total), out);
        for column in &self.columns {
            out.push(b'/');
            out.extend_from_slice(column.name.as_bytes());
            out.push(b'=');
            write_seconds(micros(column.time), out);
        }
        for word in self.words.iter().flatten() {
            out.push(b'/');
            out.extend_from_slice(word.as_bytes());
        }
    }

    /// Appends it as the value of `Server-Timing` (W3C Server Timing, section 3).
    pub fn write_server_timing(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"total;dur=");
        write_seconds(micros(self.total), out);
        for column in &self.columns {
            out.extend_from_slice(b", ");
            out.extend_from_slice(column.name.as_bytes());
            out.extend_from_slice(b";dur=");
            write_seconds(micros(column.time), out);
        }
        for (name, word) in ["fill_role", "cache_tier", "connection"]
            .iter()
            .zip(self.words)
        {
            if let Some(word) = word {
                out.extend_from_slice(b", ");
                out.extend_from_slice(name.as_bytes());
                out.extend_from_slice(b";desc=");
                out.extend_from_slice(word.as_bytes());
            }
        }
    }
}

impl FillRole {
    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            FillRole::Leader => "leader",
            FillRole::Follower => "follower",
        }
    }
}

impl CacheTier {
    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            CacheTier::Memory => "memory",
            CacheTier::Disk => "disk",
            CacheTier::Fill => "fill",
        }
    }
}

impl ConnectionUse {
    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            ConnectionUse::New => "new",
            ConnectionUse::Reused => "reused",
        }
    }
}

/// Whether the request is the first one of its connection, which alone has the times of the connection.
fn is_first(request: &Request) -> bool {
    request.head.number == 1 && !request.is_subrequest()
}

/// From accepting the connection to the first byte of its first request, without TLS.
pub(super) fn accept_time(request: &Request) -> Option<Duration> {
    let since = request
        .times
        .started
        .checked_duration_since(request.client.accepted)?;
    let tls = request.client.handshake_time.get();
    is_first(request).then(|| since.saturating_sub(tls))
}

/// The handshake of the connection.
pub(super) fn tls_time(request: &Request) -> Option<Duration> {
    let has_tls = is_first(request) && request.client.tls().is_some();
    has_tls.then(|| request.client.handshake_time.get())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_phase_is_reported_once() {
        for phase in ORDER {
            assert_eq!(ORDER.iter().filter(|other| **other == phase).count(), 1);
        }
    }

    #[test]
    fn a_report_is_a_field_and_a_header() {
        let report = LedgerReport {
            total: Duration::from_micros(15_204),
            columns: vec![ReportedColumn {
                name: "connect",
                time: Duration::from_micros(2_100),
            }],
            termination: *b"SC",
            words: [None, Some("memory"), None],
        };
        let mut out = Vec::new();
        report.write_field(&mut out);
        assert_eq!(out, b"SC/15.204/connect=2.100/memory");
        out.clear();
        report.write_server_timing(&mut out);
        assert_eq!(
            out,
            b"total;dur=15.204, connect;dur=2.100, cache_tier;desc=memory"
        );
    }
}
