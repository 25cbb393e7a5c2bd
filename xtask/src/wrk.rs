//! The load generator `wrk`, and what it reports.

use std::process::{Command, Stdio};
use std::time::Duration;

use crate::shell;

/// One run of wrk, to be started.
#[derive(Debug, Default)]
pub(crate) struct Load {
    pub(crate) cpus: Option<String>,
    pub(crate) connections: u32,
    pub(crate) seconds: u32,
    pub(crate) url: String,
    /// A Lua script that chooses the requests.
    pub(crate) script: Option<String>,
    pub(crate) new_connection_each: bool,
}

/// What wrk reported.
#[derive(Debug, Clone, Default)]
pub(crate) struct Report {
    pub(crate) requests: f64,
    pub(crate) per_second: f64,
    /// Latencies in milliseconds.
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) mean: f64,
    pub(crate) deviation: f64,
    /// Everything that was no complete answer with a status below 400.
    pub(crate) failures: f64,
}

impl Load {
    fn command(&self) -> Command {
        let mut words: Vec<String> = match &self.cpus {
            Some(cpus) => vec!["taskset".into(), "-c".into(), cpus.clone(), "wrk".into()],
            None => vec!["wrk".into()],
        };
        words.extend([
            "-t1".into(),
            format!("-c{}", self.connections),
            format!("-d{}s", self.seconds),
        ]);
        words.extend(["--latency".into(), "--timeout".into(), "120s".into()]);
        if let Some(script) = &self.script {
            words.extend(["-s".into(), script.clone()]);
        }
        if self.new_connection_each {
            words.extend(["-H".into(), "Connection: close".into()]);
        }
        words.push(self.url.clone());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        command
    }

    /// Runs to the end and reads the report.
    pub(crate) fn run(&self) -> Result<Report, String> {
        let limit = Duration::from_secs(u64::from(self.seconds) + 60);
        shell::output(&mut self.command(), limit).map(|text| Report::parse(&text))
    }

    /// Starts in the background, for load whose figures nobody reads.
    pub(crate) fn start(&self) -> Result<Background, String> {
        let child = self
            .command()
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        child
            .map(|child| Background { child })
            .map_err(|error| format!("wrk: {error}"))
    }
}

/// A wrk of ours that ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Background {
    child: std::process::Child,
}

impl Drop for Background {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Report {
    fn parse(text: &str) -> Self {
        let mut report = Self::default();
        for line in text.lines().map(str::trim) {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words.as_slice() {
                ["50%", value] => report.p50 = milliseconds(value),
                ["Latency", mean, deviation, ..]
                    if mean.starts_with(|c: char| c.is_ascii_digit()) =>
                {
                    report.mean = milliseconds(mean);
                    report.deviation = milliseconds(deviation);
                }
                ["99%", value] => report.p99 = milliseconds(value),
                [count, "requests", "in", ..] => report.requests = number(count),
                ["Requests/sec:", value] => report.per_second = number(value),
                ["Non-2xx", .., value] => report.failures += number(value),
                ["Socket", "errors:", rest @ ..] => {
                    report.failures += rest
                        .iter()
                        .map(|word| number(word.trim_end_matches(',')))
                        .sum::<f64>()
                }
                _ => {}
            }
        }
        report
    }
}

/// A number, 0 for a word that is none: used where words and numbers alternate.
fn number(word: &str) -> f64 {
    word.parse().unwrap_or(0.0)
}

/// `1.20us`, `3.4ms`, `2.10s`, `1.05m` in milliseconds.
fn milliseconds(word: &str) -> f64 {
    let end = word.find(|c: char| c.is_alphabetic()).unwrap_or(word.len());
    let factor = match &word[end..] {
        "us" => 0.001,
        "s" => 1_000.0,
        "m" => 60_000.0,
        "h" => 3_600_000.0,
        _ => 1.0,
    };
    number(&word[..end]) * factor
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_read() {
        let text = "Running 1s test\n    Latency     1.50ms  250.00us   9.00ms   90.00%\n  Latency Distribution\n     50%  106.00us\n     99%    1.20s\n  1234 requests in 1.10s, 1.83MB read\n  Socket errors: connect 0, read 2, write 1, timeout 0\n  Non-2xx or 3xx responses: 7\nRequests/sec:  11000.50\n";
        let report = Report::parse(text);
        assert_eq!((report.p50, report.p99), (0.106, 1_200.0));
        assert_eq!((report.mean, report.deviation), (1.5, 0.25));
        assert_eq!(
            (report.requests, report.per_second, report.failures),
            (1_234.0, 11_000.5, 10.0)
        );
    }
}
