//! The beginning of a page: what was measured and found, and what the codes of the goals mean.
//!
//! The sentences are fixed and the figures come from the run, so that a later run cannot contradict its own introduction.

use std::fmt::Write as _;

use super::plot::escaped;
use super::{Report, Table, number};

/// A measurement that the opening shows.
struct Finding {
    section: &'static str,
    /// How the title of its table begins.
    table: &'static str,
    row: &'static str,
    words: &'static str,
}

/// What the server was built for first, then its price.
const FINDINGS: &[Finding] = &[
    Finding {
        section: "disk",
        table: "50 clients",
        row: "hot requests/s under cold load",
        words: "Requests per second for a file in memory, while 200 clients read files from a slow disk",
    },
    Finding {
        section: "disk",
        table: "50 clients",
        row: "p99 under cold load, ms",
        words: "The slowest hundredth of these requests, in milliseconds",
    },
    Finding {
        section: "coalesce",
        table: "Requests at the origin",
        row: "the first client leaves before the head (0.3 s + 0.5 s)",
        words: "Requests at the origin when 20 clients want the same uncached object, and the first disconnects",
    },
    Finding {
        section: "coalesce",
        table: "The slowest waiter",
        row: "100 clients at once, 100 ms",
        words: "100 clients want the same uncached object, for which the origin needs 0.1 s: the last one has it after, in seconds",
    },
    Finding {
        section: "connections",
        table: "30 reloads",
        row: "failed on a kept connection",
        words: "Failed requests on keep-alive connections during 30 reloads",
    },
    Finding {
        section: "connections",
        table: "10 upgrades",
        row: "failed on a kept connection",
        words: "The same during 10 upgrades of the binary",
    },
    Finding {
        section: "restart",
        table: "A start",
        row: "whole index after a clean end, ms",
        words: "A start with a million cached objects (nginx: 23,000): the index is complete after, in milliseconds",
    },
    Finding {
        section: "micro",
        table: "CPU time",
        row: "return-64",
        words: "CPU time of the smallest response, in microseconds",
    },
    Finding {
        section: "micro",
        table: "CPU time",
        row: "1k",
        words: "CPU time of a file of 1 KB",
    },
    Finding {
        section: "micro",
        table: "CPU time",
        row: "tls-1k",
        words: "CPU time of a file of 1 KB over TLS",
    },
    Finding {
        section: "proxy",
        table: "CPU time",
        row: "1 KB",
        words: "CPU time of a proxied request",
    },
    Finding {
        section: "hits",
        table: "CPU time",
        row: "1k",
        words: "CPU time of a cache hit of 1 KB",
    },
];

/// What the codes in front of the rows mean.
const CODES: &[(&str, &str)] = &[
    (
        "P1",
        "a file in memory is served while others are read from a slow disk (b: the price of thread pools when all is in memory; c: a full queue; d: three disks, one of them degraded)",
    ),
    ("P2", "how connections spread over event loops"),
    ("P3", "bursts of clients for a slow PHP page"),
    ("P4", "the smallest response: <code>return 200</code>"),
    ("P5", "static files of 1 KB to 4 MB"),
    ("P6", "a proxied request of 1 KB"),
    ("P7", "a connection for each request"),
    ("P8", "a cache hit"),
    ("P9", "TLS handshakes, small responses over TLS and HTTP/2"),
    (
        "C1–C8",
        "many clients for one uncached object: cacheable, slow, private, the first client disconnects, the origin breaks off, an origin of 7 s, 100 clients, 1,000 clients",
    ),
    (
        "E2",
        "clients that request the same uncached objects in turn",
    ),
    (
        "R1–R4",
        "connections across reloads, a stuck loop, upgrades of the binary, <code>kill -9</code>",
    ),
    ("S4", "a good client while others attack over HTTP/2"),
];

/// The opening of a page.
pub(super) fn html(report: &Report) -> String {
    let mut text = String::from(
        "<h2>What was measured, and what was found</h2>\n<p>Weir, nginx and others with the same task, on the same machine, in turn. \
         The first rows are what Weir is built for: an event loop that never waits for a disk, one request to the origin however many \
         clients wait, and connections that outlive reloads and upgrades. The others are what a request costs.</p>\n<table>\n",
    );
    for finding in FINDINGS {
        if let Some(figures) = figures(report, finding) {
            let _ = writeln!(text, "<tr><td>{}<td>{figures}", finding.words);
        }
    }
    let _ = writeln!(
        text,
        "</table>\n{}<details><summary>What the codes mean</summary><dl>",
        cpu_time(report)
    );
    for (code, meaning) in CODES {
        let _ = writeln!(text, "<dt><b>{code}</b><dd>{meaning}");
    }
    text + "</dl></details>\n"
}

/// Which kinds of requests cost Weir less than nginx, as much, and more.
fn cpu_time(report: &Report) -> String {
    let mut kinds = [Vec::new(), Vec::new(), Vec::new()];
    let tables = report.sections.iter().flat_map(|section| &section.tables);
    for table in tables.filter(|table| table.title.starts_with("CPU time")) {
        let ratio = |row| table.ratio(row, table.ours()?);
        for (row, ratio) in table.rows.iter().filter_map(|row| Some((row, ratio(row)?))) {
            let kind = match ratio.middle {
                less if less < 0.95 => 0,
                more if more > 1.05 => 2,
                _ => 1,
            };
            let name = format!("{} {}", row.score, row.name);
            kinds[kind].push(format!("{} ({:.2})", escaped(name.trim()), ratio.middle));
        }
    }
    let [less, level, more] = kinds.map(|names| match names.is_empty() {
        true => "nothing".to_owned(),
        false => names.join(", "),
    });
    format!(
        "<p>CPU time as a part of nginx's: <b>less</b> for {less}; <b>within 5 %</b> for {level}; <b>more</b> for {more}.</p>\n"
    )
}

/// The figures of all contenders, Weir's first.
fn figures(report: &Report, finding: &Finding) -> Option<String> {
    let section = report
        .sections
        .iter()
        .find(|section| section.id == finding.section)?;
    let is_meant = |table: &&Table| table.title.starts_with(finding.table);
    let table = section.tables.iter().find(is_meant)?;
    let row = table.rows.iter().find(|row| row.name == finding.row)?;
    let ours = table.ours()?;
    let mut shown = Vec::new();
    let order = std::iter::once(ours).chain((0..row.cells.len()).filter(|at| *at != ours));
    for at in order {
        let (name, cell) = (table.contenders.get(at)?, row.cells.get(at)?);
        let Some(value) = cell.middle() else { continue };
        let figure = format!("{} {}", escaped(name), number(value));
        shown.push(match at == ours {
            true => format!("<b>{figure}</b>"),
            false => figure,
        });
    }
    Some(shown.join(" · "))
}
