//! Where a run took place: the machine, the programs, the commit.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

/// What absolute numbers depend on.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Machine {
    /// The day, as in `2026-11-21`.
    pub(crate) date: String,
    /// The commit that Weir was built from; empty without sources.
    pub(crate) commit: String,
    pub(crate) processor: String,
    pub(crate) cores: usize,
    pub(crate) memory_mb: u64,
    pub(crate) kernel: String,
    /// Programs and what they say of themselves.
    pub(crate) programs: BTreeMap<String, String>,
}

impl Machine {
    /// Reads it from the system.
    pub(crate) fn here(weir: &Path, nginx: &Path) -> Self {
        let line = |file: &str, start: &str| {
            let text = fs::read_to_string(file).unwrap_or_default();
            let line = text.lines().find(|line| line.starts_with(start));
            let value = line.and_then(|line| line.split_once(':'));
            value.map_or(String::new(), |(_, value)| value.trim().to_owned())
        };
        let memory = line("/proc/meminfo", "MemTotal");
        let kilobytes: u64 = memory.trim_end_matches(" kB").parse().unwrap_or_default();
        Self {
            date: said("date", &["+%F"]),
            commit: said("git", &["log", "-1", "--format=%h %s"]),
            processor: line("/proc/cpuinfo", "model name"),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_mb: kilobytes / 1024,
            kernel: said("uname", &["-sr"]),
            programs: programs(weir, nginx),
        }
    }
}

/// How the kernel's TCP decides how much is under way, by its name for it: with `bbr` a server's CPU time for large
/// responses over loopback is several times that with `reno`.
pub(crate) fn congestion_control() -> String {
    let text = fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control");
    text.unwrap_or_default().trim().to_owned()
}

fn programs(weir: &Path, nginx: &Path) -> BTreeMap<String, String> {
    let (weir, nginx) = (weir.to_string_lossy(), nginx.to_string_lossy());
    let asked: [(&str, &str, &[&str]); 8] = [
        ("Weir", &weir, &["-v"]),
        ("nginx", &nginx, &["-v"]),
        ("HAProxy", "haproxy", &["-v"]),
        ("Varnish", "varnishd", &["-V"]),
        ("Apache", "apache2", &["-v"]),
        ("h2o", "h2o", &["--version"]),
        ("PHP", "php", &["-v"]),
        ("wrk", "wrk", &["-v"]),
    ];
    let versions = asked.into_iter().map(|(name, program, arguments)| {
        let version = match said(program, arguments) {
            nothing if nothing.is_empty() => "not here".to_owned(),
            version => version,
        };
        (name.to_owned(), version)
    });
    versions.collect()
}

/// The first line that a program says, on either stream; empty when there is no such program.
fn said(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output();
    let Ok(output) = output else {
        return String::new();
    };
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    let line = text.lines().find(|line| !line.trim().is_empty());
    line.unwrap_or_default().trim().to_owned()
}

/// The number of tasks that wanted to run in the last minute.
pub(crate) fn load_average() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let first = text.split_whitespace().next();
    first.and_then(|word| word.parse().ok()).unwrap_or_default()
}
