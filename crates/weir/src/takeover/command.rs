//! The arguments of `weir takeover`, `weir shadow` and `weir canary`, and the reports of the first two.
//!
//! The words of a report are for people who decide whether to go on: what differs comes first, in how many requests, and three of
//! them to try by hand. The JSON object has the same content, and an `error` in place of messages.

use std::fmt::Write as _;
use std::path::PathBuf;

use lexopt::prelude::*;

use super::compare::DifferenceGroups;
use crate::command_hints::unexpected;
use crate::commands;
use crate::json;

/// The arguments of `weir takeover`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TakeoverArguments {
    /// Compare only.
    pub(super) dry_run: bool,
    /// Return to nginx.
    pub(super) undo: bool,
    /// Do not ask.
    pub(super) yes: bool,
    /// How many requests are compared at most; with 0 there is no copy either.
    pub(super) requests: usize,
    /// How many of them per second at most, so that the battery is no attack on the application.
    pub(super) rate: u32,
    pub(super) process: Option<u32>,
    pub(super) json: bool,
}

/// The arguments of `weir shadow`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ShadowArguments {
    /// Of ten thousand requests.
    pub(super) share: u32,
    pub(super) rate: u32,
    /// When to end: after this many comparisons, after this time, or when told to.
    pub(super) requests: Option<u64>,
    pub(super) seconds: Option<u64>,
    /// The log to follow; `None`: those that the configuration names.
    pub(super) log: Option<PathBuf>,
    pub(super) process: Option<u32>,
    pub(super) json: bool,
}

/// The arguments of `weir canary`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CanaryArguments {
    /// The shares of new connections, one after the other, in hundredths of a percent.
    pub(super) shares: Vec<u32>,
    /// How long each share lasts.
    pub(super) seconds: u64,
    /// How many percentage points more errors than nginx has are too many, in hundredths.
    pub(super) more_errors: u32,
    pub(super) process: Option<u32>,
    pub(super) json: bool,
}

/// Reads the arguments after `takeover`.
pub(crate) fn parse(mut parser: lexopt::Parser) -> Result<TakeoverArguments, String> {
    let mut takeover = TakeoverArguments {
        dry_run: false,
        undo: false,
        yes: false,
        requests: 200,
        rate: 100,
        process: None,
        json: false,
    };
    while let Some(argument) = parser.next().map_err(|error| error.to_string())? {
        match argument {
            Long("dry-run") => takeover.dry_run = true,
            Long("undo") => takeover.undo = true,
            Long("yes") => takeover.yes = true,
            Long("requests") => takeover.requests = number(&mut parser, "requests", 0)?,
            Long("rate") => takeover.rate = number(&mut parser, "rate", 1)?,
            Long("process") => takeover.process = Some(number(&mut parser, "process", 1)?),
            Long("json") => takeover.json = true,
            other => return Err(unexpected(&commands::TAKEOVER, other)),
        }
    }
    Ok(takeover)
}

/// Reads the arguments after `shadow`.
pub(crate) fn parse_shadow(mut parser: lexopt::Parser) -> Result<ShadowArguments, String> {
    // A tenth of the requests, and not more of them per second than a server notices.
    let mut shadow = ShadowArguments {
        share: 1000,
        rate: 20,
        requests: None,
        seconds: None,
        log: None,
        process: None,
        json: false,
    };
    while let Some(argument) = parser.next().map_err(|error| error.to_string())? {
        match argument {
            Long("share") => shadow.share = share(&text(&mut parser)?)?,
            Long("rate") => shadow.rate = number(&mut parser, "rate", 1)?,
            Long("requests") => shadow.requests = Some(number(&mut parser, "requests", 1)?),
            Long("time") => shadow.seconds = Some(number(&mut parser, "time", 1)?),
            Long("log") => shadow.log = Some(text(&mut parser)?.into()),
            Long("process") => shadow.process = Some(number(&mut parser, "process", 1)?),
            Long("json") => shadow.json = true,
            other => return Err(unexpected(&commands::SHADOW, other)),
        }
    }
    Ok(shadow)
}

/// Reads the arguments after `canary`.
pub(crate) fn parse_canary(mut parser: lexopt::Parser) -> Result<CanaryArguments, String> {
    let mut canary = CanaryArguments {
        shares: vec![100, 500, 2500],
        seconds: 300,
        more_errors: 100,
        process: None,
        json: false,
    };
    while let Some(argument) = parser.next().map_err(|error| error.to_string())? {
        match argument {
            Long("share") => {
                let shares = text(&mut parser)?;
                let shares: Result<Vec<u32>, String> = shares.split(',').map(share).collect();
                canary.shares = shares?;
            }
            Long("time") => canary.seconds = number(&mut parser, "time", 1)?,
            Long("max-errors") => canary.more_errors = share(&text(&mut parser)?)?,
            Long("process") => canary.process = Some(number(&mut parser, "process", 1)?),
            Long("json") => canary.json = true,
            other => return Err(unexpected(&commands::CANARY, other)),
        }
    }
    Ok(canary)
}

/// A share in hundredths of a percent, so that choosing needs no fractions: at most 10,000.
fn share(text: &str) -> Result<u32, String> {
    let percent: Option<f64> = text.trim().trim_end_matches('%').parse().ok();
    let percent = percent.filter(|percent| (0.01..=100.0).contains(percent));
    let percent = percent.ok_or_else(|| format!("\"{text}\" is no share (0.01 to 100)"))?;
    Ok((percent * 100.0).round() as u32)
}

/// The value of an option, as text.
fn text(parser: &mut lexopt::Parser) -> Result<String, String> {
    let text = parser.value().map_err(|error| error.to_string())?;
    Ok(text.to_string_lossy().into_owned())
}

/// A number of at least `least`.
fn number<N: std::str::FromStr + PartialOrd + From<u8>>(
    parser: &mut lexopt::Parser,
    option: &str,
    least: u8,
) -> Result<N, String> {
    let text = text(parser)?;
    let number = text.parse().ok().filter(|number| *number >= N::from(least));
    number.ok_or_else(|| format!("\"{text}\" is no number for --{option}"))
}

/// What was found, and what was done.
#[derive(Debug, Default)]
pub(super) struct TakeoverReport {
    /// Why nothing was replaced.
    pub(super) error: Option<String>,
    /// The running server: its process, and its version.
    pub(super) server: Option<(u32, String)>,
    /// The findings of `weir check`.
    pub(super) findings: usize,
    /// How many requests were compared.
    pub(super) requests: u64,
    pub(super) groups: DifferenceGroups,
    /// Listening addresses without a comparison.
    pub(super) uncompared: usize,
    /// The new server, and how long its start took, in milliseconds.
    pub(super) replaced: Option<(u32, u128)>,
}

impl TakeoverReport {
    /// The comparison for people.
    pub(super) fn comparison_text(&self) -> String {
        let mut out = String::new();
        let differing = self.groups.list.len();
        let _ = match differing {
            0 => writeln!(
                out,
                "{} requests to both servers: no difference",
                self.requests
            ),
            1 => writeln!(
                out,
                "{} requests to both servers: 1 kind of difference",
                self.requests
            ),
            _ => writeln!(
                out,
                "{} requests to both servers: {differing} kinds of differences",
                self.requests
            ),
        };
        for group in &self.groups.list {
            let difference = &group.difference;
            let _ = writeln!(
                out,
                "\n  {} × {}: {}",
                group.count, difference.aspect, difference.what
            );
            for example in &group.examples {
                let _ = writeln!(out, "      {example}");
            }
        }
        if self.uncompared > 0 {
            let _ = writeln!(
                out,
                "not compared: {} listening addresses of stream or mail",
                self.uncompared
            );
        }
        out
    }

    /// The whole report as JSON. The format is part of the interface: programs read it.
    pub(super) fn json(&self) -> String {
        let mut out = String::from("{\n  ");
        match &self.error {
            Some(error) => json::member(&mut out, "error", error, ""),
            None => out.push_str("\"error\": null"),
        }
        if let Some((process, version)) = &self.server {
            let _ = write!(out, ",\n  \"server\": {{\"process\": {process}");
            json::member(&mut out, "version", version, ", ");
            out.push('}');
        }
        let _ = write!(
            out,
            ",\n  \"findings\": {},\n  \"requests\": {},\n  \"not_compared\": {},\n  \"differences\": [",
            self.findings, self.requests, self.uncompared
        );
        for (index, group) in self.groups.list.iter().enumerate() {
            out.push_str(if index == 0 { "\n    {" } else { ",\n    {" });
            json::member(&mut out, "aspect", group.difference.aspect, "");
            json::member(&mut out, "what", &group.difference.what, ", ");
            let _ = write!(out, ", \"count\": {}, \"examples\": [", group.count);
            for (index, example) in group.examples.iter().enumerate() {
                out.push_str(if index == 0 { "" } else { ", " });
                json::string(&mut out, example);
            }
            out.push_str("]}");
        }
        out.push_str("],\n  \"replaced\": ");
        match self.replaced {
            Some((process, milliseconds)) => {
                let _ = write!(
                    out,
                    "{{\"process\": {process}, \"milliseconds\": {milliseconds}}}"
                );
            }
            None => out.push_str("null"),
        }
        out.push_str("\n}");
        out
    }
}
