//! The load generator `wrk`, and what it reports.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use xtask::shell;

/// The percentiles that are asked of every run: enough for a curve with three nines.
pub(crate) const PERCENTILES: &[f64] = &[
    0.0, 5.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 97.5, 99.0, 99.5, 99.75, 99.9, 99.95, 99.99,
];

/// wrk calls this when it is done. It counts in microseconds.
const DONE: &str = "
done = function(summary, latency, requests)
    for _, mark in ipairs({MARKS}) do
        io.write(string.format(\"percentile %s %d\\n\", mark, latency:percentile(mark)))
    end
end
";

/// One run of wrk, to be started.
#[derive(Debug, Default)]
pub(crate) struct Load {
    pub(crate) cpus: Option<String>,
    pub(crate) connections: u32,
    pub(crate) seconds: u32,
    pub(crate) url: String,
    /// Lua that chooses the requests.
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
    /// Percentile and milliseconds.
    pub(crate) percentiles: Vec<(f64, f64)>,
    /// Everything that was no complete answer with a status below 400.
    pub(crate) failures: f64,
}

impl Load {
    fn command(&self, script: Option<&Path>) -> Command {
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
        if let Some(script) = script {
            words.extend(["-s".into(), script.to_string_lossy().into_owned()]);
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
        let marks: Vec<String> = PERCENTILES.iter().map(f64::to_string).collect();
        let own = self.script.as_deref().unwrap_or_default();
        let text = own.to_owned() + &DONE.replace("MARKS", &marks.join(", "));
        let script = Script::write(&text)?;
        let limit = Duration::from_secs(u64::from(self.seconds) + 60);
        shell::output(&mut self.command(Some(&script.0)), limit).map(|text| Report::parse(&text))
    }

    /// Starts in the background, for load whose figures nobody reads.
    pub(crate) fn start(&self) -> Result<Background, String> {
        let script = self.script.as_deref().map(Script::write).transpose()?;
        let child = self
            .command(script.as_ref().map(|script| script.0.as_path()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        child
            .map(|child| Background {
                child,
                _script: script,
            })
            .map_err(|error| format!("wrk: {error}"))
    }
}

/// A wrk of ours that ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Background {
    child: std::process::Child,
    _script: Option<Script>,
}

/// A script of ours, gone when this is dropped.
#[derive(Debug)]
struct Script(PathBuf);

impl Script {
    fn write(text: &str) -> Result<Self, String> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Relaxed);
        let name = format!("wrk-{}-{number}.lua", std::process::id());
        let script = Self(crate::scratch().join(name));
        fs::write(&script.0, text).map_err(|error| format!("{}: {error}", script.0.display()))?;
        Ok(script)
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        // A script that stays lies where Cargo builds.
        let _ = fs::remove_file(&self.0);
    }
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
                ["percentile", mark, micros] => {
                    report
                        .percentiles
                        .push((number(mark), number(micros) / 1e3));
                }
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
        let text = "Running 1s test\n    Latency     1.50ms  250.00us   9.00ms   90.00%\n  Latency Distribution\n     50%  106.00us\n     99%    1.20s\n  1234 requests in 1.10s, 1.83MB read\n  Socket errors: connect 0, read 2, write 1, timeout 0\n  Non-2xx or 3xx responses: 7\nRequests/sec:  11000.50\npercentile 99.9 1500\n";
        let report = Report::parse(text);
        assert_eq!((report.p50, report.p99), (0.106, 1_200.0));
        assert_eq!(report.percentiles, [(99.9, 1.5)]);
        assert_eq!((report.mean, report.deviation), (1.5, 0.25));
        assert_eq!(
            (report.requests, report.per_second, report.failures),
            (1_234.0, 11_000.5, 10.0)
        );
    }
}
