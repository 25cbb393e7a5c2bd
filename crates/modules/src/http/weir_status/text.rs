//! What the text shows besides loops, pools and caches: servers, upstream servers, errors, stalls, slow requests.

use std::fmt::Write;

use serde_json::Value;

use crate::shared::observation::slowest::SlowRequest;
use crate::shared::status::{StatusView, requests, server, upstreams};

/// The rest of the text. Writing to a `String` cannot fail, so the results of `write!` are ignored.
pub(super) fn more(view: &StatusView) -> String {
    let mut out = String::new();
    servers(view, &mut out);
    groups(view, &mut out);
    certificates(&server::certificates(view), &mut out);
    slowest(&view.observed.slowest.list(), &mut out);
    errors(&mut out);
    stalls(&mut out);
    out
}

/// The elements of a list.
fn rows(list: &Value) -> &[Value] {
    list.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn word<'a>(row: &'a Value, name: &str) -> &'a str {
    row[name].as_str().unwrap_or_default()
}

fn servers(view: &StatusView, out: &mut String) {
    let _ = writeln!(
        out,
        "\n{:<8} {:<24} {:>10} {:>7} {:>10} {:>8} {:>8} {:>8} {:>6} {:>14} {:>14}",
        "", "server", "requests", "now", "2xx", "3xx", "4xx", "5xx", "cut", "received", "sent"
    );
    requests::each_server(view, |row| {
        let (kind, name, counts) = (row.kind, row.name, &row.counts);
        let [ok, redirects, faults, failures] = counts.responses.classes();
        let _ = writeln!(
            out,
            "{kind:<8} {name:<24} {:>10} {:>7} {ok:>10} {redirects:>8} {faults:>8} {failures:>8} {:>6} {:>14} {:>14}",
            counts.requests,
            counts.processing.unwrap_or_default(),
            row.cut,
            counts.received,
            counts.sent
        );
    });
}

fn groups(view: &StatusView, out: &mut String) {
    upstreams::each_group(view, |group| {
        let (engine, name) = (group.engine, &group.name);
        let _ = writeln!(
            out,
            "\n{:<26} {:<10} {:>10} {:>7} {:>7} {:>11}  upstream {name} ({engine})",
            "", "state", "requests", "active", "failed", "unavailable"
        );
        for peer in &group.counts.peers {
            let _ = writeln!(
                out,
                "{:<26} {:<10} {:>10} {:>7} {:>7} {:>11}",
                peer.name,
                peer.state,
                peer.given(),
                peer.active,
                peer.fails,
                peer.unavail
            );
        }
    });
}

fn certificates(list: &Value, out: &mut String) {
    let now = rt::wall_millis() / 1000;
    for (index, row) in rows(list).iter().enumerate() {
        if index == 0 {
            out.push_str("\ncertificates, days left\n");
        }
        let end = row["expires"].as_u64().unwrap_or_default();
        let days = end.cast_signed().saturating_sub(now.cast_signed()) / 86_400;
        let _ = writeln!(out, "{days:>6} {}", word(row, "server"));
    }
}

/// The slowest requests, with their ledgers.
fn slowest(slowest: &[SlowRequest], out: &mut String) {
    for (index, request) in slowest.iter().enumerate() {
        if index == 0 {
            out.push_str("\nslowest requests of the last minutes\n");
        }
        let mut ledger = Vec::new();
        request.ledger.write_field(&mut ledger);
        let (status, server) = (request.status, &request.server);
        let (method, path) = (&request.method, &request.path);
        let ledger = String::from_utf8_lossy(&ledger);
        let _ = writeln!(out, "{status} {method} {server}{path}  {ledger}");
    }
}

fn errors(out: &mut String) {
    let now = rt::wall_millis();
    for (index, group) in host::error_log::recent_errors().iter().enumerate() {
        if index == 0 {
            out.push_str("\nerrors, those of one kind together: level, how often, seconds ago\n");
        }
        let ago = now.saturating_sub(group.last_ms) / 1000;
        let (level, message) = (group.level.word(), &group.message);
        let _ = writeln!(out, "{level:<6} {:>8} {ago:>8}  {message}", group.count);
    }
}

fn stalls(out: &mut String) {
    let now = rt::wall_millis();
    for (index, stall) in rt::report::recent_stalls().iter().enumerate() {
        if index == 0 {
            out.push_str("\nstalls of loops: how long, seconds ago, what it was doing\n");
        }
        let ago = now.saturating_sub(stall.wall_ms) / 1000;
        let (name, late) = (&stall.loop_name, stall.late.as_millis());
        let what = match stall.frames.first() {
            Some(frame) => frame.clone(),
            None => stall.tasks.join(", "),
        };
        let _ = writeln!(out, "{name:<10} {late:>6} ms {ago:>8}  {what}");
        for frame in stall.frames.iter().skip(1) {
            let _ = writeln!(out, "{:>29}{frame}", "");
        }
    }
}
