//! What clients ask for most, and what takes most time: sums over the last seconds.
//!
//! Sums are kept for each second apart, so that a second that has passed takes its requests with it. A table has at most
//! [`MAX_KEYS`] rows in a second; what comes beyond is added up under [`OTHER`]. So a scan of random paths costs the
//! reader no more memory than the ring.

use std::collections::{HashMap, VecDeque};
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use super::filter::RequestFilter;
use super::record::TailRecord;
use super::source::{self, RequestSource};
use super::{POLL, TailArguments, lines, report_news};
use crate::{json, terminal};

/// The most rows of a table in one second.
const MAX_KEYS: usize = 2000;
const OTHER: &str = "(other)";
/// The longest key that is kept.
const MAX_KEY: usize = 200;
/// Over how many seconds `weir top` adds up, if nothing else is said: on a screen, and to print.
pub(super) const SCREEN_SECONDS: u64 = 10;
const ONCE_SECONDS: u64 = 2;
/// How many rows of each table are printed.
const ONCE_ROWS: usize = 15;

/// What there is a table of.
pub(super) const TABLES: [&str; 4] = ["paths", "clients", "upstreams", "statuses"];

/// The sums of one row.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct RequestSums {
    /// How many requests there were.
    pub(super) count: u64,
    /// Responses with a status from 500 on.
    pub(super) failed: u64,
    /// How long all of them took together, ...
    pub(super) seconds: f64,
    /// ... and how long the longest one took.
    pub(super) longest: f64,
    /// What was sent.
    pub(super) bytes: f64,
}

impl RequestSums {
    fn add(&mut self, other: &RequestSums) {
        self.count += other.count;
        self.failed += other.failed;
        self.seconds += other.seconds;
        self.longest = self.longest.max(other.longest);
        self.bytes += other.bytes;
    }

    /// The mean time of a request, in milliseconds.
    pub(super) fn mean_ms(&self) -> f64 {
        self.seconds * 1000.0 / (self.count.max(1) as f64)
    }
}

/// The rows of a table in one second.
type SumTable = HashMap<String, RequestSums>;

/// The sums of the last seconds.
pub(super) struct RecentRequests {
    /// The tables of each second, the present one last.
    seconds: VecDeque<[SumTable; TABLES.len()]>,
    /// Over how many of them is added up.
    window: usize,
    /// When it began: at first there are fewer.
    began: Instant,
}

impl RecentRequests {
    /// Begins now.
    pub(super) fn new(seconds: u64) -> RecentRequests {
        RecentRequests {
            seconds: VecDeque::from([Default::default()]),
            window: usize::try_from(seconds).unwrap_or(1).clamp(1, 3600),
            began: rt::clock::read_clock(),
        }
    }

    /// Another second begins.
    pub(super) fn next_second(&mut self) {
        self.seconds.push_back(Default::default());
        while self.seconds.len() > self.window {
            self.seconds.pop_front();
        }
    }

    /// The time that the sums are of.
    pub(super) fn span(&self) -> Duration {
        rt::clock::elapsed(self.began).min(Duration::from_secs(self.window as u64))
    }

    /// Adds a request to all tables.
    pub(super) fn add(&mut self, record: &TailRecord) {
        let Some(tables) = self.seconds.back_mut() else {
            return;
        };
        let seconds = record.number("request_time");
        let sums = RequestSums {
            count: 1,
            failed: u64::from(record.number("status") >= 500.0),
            seconds,
            longest: seconds,
            bytes: record.number("bytes_sent"),
        };
        let uri = record.shown("request_uri");
        let path = uri.split('?').next().unwrap_or_default();
        let [paths, clients, upstreams, statuses] = tables;
        add_to(paths, format!("{}{path}", record.shown("host")), &sums);
        add_to(clients, record.shown("remote_addr"), &sums);
        add_to(statuses, record.shown("status"), &sums);
        // A request that was passed on twice counts for both servers, with the time that each took.
        for one in record.tries() {
            let number = |bytes: &[u8]| String::from_utf8_lossy(bytes).parse().unwrap_or(0.0);
            let seconds = number(one.response);
            let of_try = RequestSums {
                count: 1,
                failed: u64::from(number(one.status) >= 500.0),
                seconds,
                longest: seconds,
                bytes: 0.0,
            };
            let address = String::from_utf8_lossy(one.address);
            add_to(
                upstreams,
                base::text::visible_text(&address).into_owned(),
                &of_try,
            );
        }
    }

    /// The rows of a table, those with the highest rate or the most time first.
    pub(super) fn rows(&self, table: usize, by_time: bool) -> Vec<(String, RequestSums)> {
        let mut sums: HashMap<&str, RequestSums> = HashMap::new();
        for tables in &self.seconds {
            for (key, row) in &tables[table] {
                sums.entry(key).or_default().add(row);
            }
        }
        let mut rows: Vec<_> = sums
            .into_iter()
            .map(|(key, row)| (key.to_owned(), row))
            .collect();
        rows.sort_by(|(key, one), (other_key, other)| {
            let order = match by_time {
                true => other.seconds.total_cmp(&one.seconds),
                false => other.count.cmp(&one.count),
            };
            order.then_with(|| key.cmp(other_key))
        });
        rows
    }

    /// All requests.
    pub(super) fn total(&self) -> RequestSums {
        let mut total = RequestSums::default();
        for (_, row) in self.rows(TABLES.len() - 1, false) {
            total.add(&row);
        }
        total
    }
}

/// Adds to a row, or to the common one if the table is full.
fn add_to(table: &mut SumTable, mut key: String, sums: &RequestSums) {
    if key.len() > MAX_KEY {
        let end = (0..=MAX_KEY).rev().find(|at| key.is_char_boundary(*at));
        key.truncate(end.unwrap_or(0));
    }
    if table.len() >= MAX_KEYS && !table.contains_key(&key) {
        key = OTHER.to_owned();
    }
    table.entry(key).or_default().add(sums);
}

/// Collects for some seconds and prints the tables. Returns the exit code.
pub(super) fn print_once(
    source: &mut RequestSource,
    filter: Option<&RequestFilter>,
    arguments: &TailArguments,
) -> i32 {
    let seconds = arguments.seconds.unwrap_or(ONCE_SECONDS);
    let mut recent = RecentRequests::new(seconds);
    let end = rt::clock::read_clock() + Duration::from_secs(seconds);
    while rt::clock::read_clock() < end {
        source.read_all(&mut |record: &TailRecord| {
            if filter.is_none_or(|filter| filter.is_match(record)) {
                recent.add(record);
            }
        });
        report_news(source);
        source::pause(POLL);
    }
    let text = match arguments.json {
        true => as_json(&recent, arguments.by_time),
        false => as_text(&recent, arguments.by_time, ONCE_ROWS, usize::MAX),
    };
    terminal::print_text(format_args!("{text}"));
    0
}

/// The tables as text, with this number of rows each and lines of this width.
pub(super) fn as_text(recent: &RecentRequests, by_time: bool, rows: usize, width: usize) -> String {
    let seconds = recent.span().as_secs_f64().max(0.001);
    let total = recent.total();
    let mut out = format!(
        "{:.1} requests/s, mean {}, {} failed, over {seconds:.0} s\n",
        total.count as f64 / seconds,
        lines::millis(total.mean_ms()),
        total.failed,
    );
    for (table, name) in TABLES.iter().enumerate() {
        let all = recent.rows(table, by_time);
        if all.is_empty() {
            continue;
        }
        let head = format!(
            "\n{:>9} {:>7} {:>9} {:>9} {:>7}  {name}\n",
            "req/s", "time %", "mean", "longest", "failed"
        );
        out.push_str(&head);
        let time: f64 = all.iter().map(|(_, row)| row.seconds).sum();
        for (key, row) in all.iter().take(rows) {
            let line = format!(
                "{:>9.1} {:>7.1} {:>9} {:>9} {:>7}  {key}",
                row.count as f64 / seconds,
                if time > 0.0 {
                    row.seconds * 100.0 / time
                } else {
                    0.0
                },
                lines::millis(row.mean_ms()),
                lines::millis(row.longest * 1000.0),
                row.failed,
            );
            out.extend(line.chars().take(width));
            out.push('\n');
        }
    }
    out
}

/// The tables as JSON, with all rows: another program can sort them.
fn as_json(recent: &RecentRequests, by_time: bool) -> String {
    let seconds = recent.span().as_secs_f64();
    let mut out = format!(
        "{{\"seconds\": {seconds:.3}, \"requests\": {}",
        recent.total().count
    );
    for (table, name) in TABLES.iter().enumerate() {
        // Writing to a String cannot fail.
        let _ = write!(out, ", \"{name}\": [");
        for (index, (key, row)) in recent.rows(table, by_time).iter().enumerate() {
            let before = if index > 0 { ", {" } else { "{" };
            json::member(&mut out, "name", key, before);
            let _ = write!(
                out,
                ", \"requests\": {}, \"failed\": {}, \"seconds\": {:.3}, \"longest\": {:.3}, \"bytes\": {}}}",
                row.count, row.failed, row.seconds, row.longest, row.bytes
            );
        }
        out.push(']');
    }
    out.push_str("}\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(path: &str, seconds: &str, status: &str) -> TailRecord {
        let values = [
            ("host", "a"),
            ("request_uri", path),
            ("request_time", seconds),
            ("status", status),
            ("remote_addr", "::1"),
            ("bytes_sent", "100"),
            ("upstream_addr", "u:1, u:2"),
            ("upstream_status", "502, 200"),
        ];
        let values = values.map(|(name, value)| (name.to_owned(), value.into()));
        TailRecord {
            values: values.into(),
        }
    }

    #[test]
    fn rows_are_ordered_by_rate_or_by_time_and_leave_with_their_second() {
        let mut recent = RecentRequests::new(2);
        recent.add(&request("/often?x=1", "0.010", "200"));
        recent.add(&request("/often?x=2", "0.010", "200"));
        recent.add(&request("/slow", "2.000", "504"));
        let first = |recent: &RecentRequests, by_time| recent.rows(0, by_time)[0].0.clone();
        assert_eq!(first(&recent, false), "a/often");
        assert_eq!(first(&recent, true), "a/slow");
        assert_eq!(recent.rows(2, false).len(), 2);
        assert_eq!((recent.total().count, recent.total().failed), (3, 1));
        recent.next_second();
        assert_eq!(recent.total().count, 3);
        recent.next_second();
        assert_eq!(recent.total().count, 0);
        assert!(as_json(&recent, false).starts_with("{\"seconds\": "));
    }

    #[test]
    fn a_table_is_bounded() {
        let mut recent = RecentRequests::new(1);
        for number in 0..MAX_KEYS * 2 {
            recent.add(&request(&format!("/{number}"), "0", "404"));
        }
        let rows = recent.rows(0, false);
        assert_eq!(rows.len(), MAX_KEYS + 1);
        assert_eq!(rows[0].0, OTHER);
        recent.add(&request(&"\u{e4}".repeat(1000), "0", "404"));
    }
}
