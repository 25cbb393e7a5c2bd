//! What the text shows besides loops, pools and caches: servers, upstream servers, errors, stalls, slow requests.

use std::fmt::Write;

use serde_json::Value;

use crate::shared::observation::slowest::SlowRequest;
use crate::shared::status::{StatusView, requests, server, upstreams};

/// The rest of the text. Writing to a `String` cannot fail, so the results of `write!` are ignored.
pub(super) fn more(view: &StatusView) -> String {
    let mut out = String::new();
    servers(&requests::page_servers(view), &mut out);
    groups(&upstreams::page_groups(view), &mut out);
    certificates(&server::certificates(view), &mut out);
    slowest(&view.observed.slowest.list(), &mut out);
    errors(&mut out);
    stalls(&mut out);
    out
}

/// A number, as a text that can be aligned.
fn number(row: &Value, name: &str) -> String {
    row[name].to_string()
}

/// The elements of a list.
fn rows(list: &Value) -> &[Value] {
    list.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn word<'a>(row: &'a Value, name: &str) -> &'a str {
    row[name].as_str().unwrap_or_default()
}

fn servers(list: &Value, out: &mut String) {
    let _ = writeln!(
        out,
        "\n{:<8} {:<24} {:>10} {:>7} {:>10} {:>8} {:>8} {:>8} {:>6} {:>14} {:>14}",
        "", "server", "requests", "now", "2xx", "3xx", "4xx", "5xx", "cut", "received", "sent"
    );
    for row in rows(list) {
        let (kind, name, classes) = (word(row, "kind"), word(row, "name"), &row["responses"]);
        let _ = writeln!(
            out,
            "{kind:<8} {name:<24} {:>10} {:>7} {:>10} {:>8} {:>8} {:>8} {:>6} {:>14} {:>14}",
            number(row, "requests"),
            number(row, "processing"),
            number(classes, "2xx"),
            number(classes, "3xx"),
            number(classes, "4xx"),
            number(classes, "5xx"),
            number(row, "cut"),
            number(row, "received"),
            number(row, "sent")
        );
    }
}

fn groups(list: &Value, out: &mut String) {
    for group in rows(list) {
        let (engine, name) = (word(group, "engine"), word(group, "name"));
        let _ = writeln!(
            out,
            "\n{:<26} {:<10} {:>10} {:>7} {:>7} {:>11}  upstream {name} ({engine})",
            "", "state", "requests", "active", "failed", "unavailable"
        );
        for peer in rows(&group["peers"]) {
            let requests = match peer.get("requests") {
                Some(_) => number(peer, "requests"),
                None => number(peer, "connections"),
            };
            let _ = writeln!(
                out,
                "{:<26} {:<10} {:>10} {:>7} {:>7} {:>11}",
                word(peer, "name"),
                word(peer, "state"),
                requests,
                number(peer, "active"),
                number(peer, "fails"),
                number(peer, "unavail")
            );
        }
    }
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
