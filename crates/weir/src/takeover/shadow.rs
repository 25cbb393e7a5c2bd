//! `weir shadow`: requests of clients, repeated to the running nginx and to a copy of the server beside it.
//!
//! They are read from the access log while nginx writes it, so that nginx needs no change and clients notice nothing: nothing is
//! in their way. What a log does not have (cookies, bodies, most header fields) is not repeated, and neither is what could
//! change something: only GET and HEAD are sent.
//!
//! The running server is asked again, too, rather than its logged status taken: that was the answer to a client with cookies and
//! conditions of its own.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use base::ByteSlice as _;
use conf::DirectiveNode;
use host::process;
use rt::clock::read_clock;

use super::access_log::{AccessLogs, LoggedRequest};
use super::client::ComparedRequest;
use super::command::{ShadowArguments, TakeoverReport};
use super::compare::ShownValues;
use super::comparison::Comparison;
use super::copy_process::RunningCopy;
use super::private_copy::{ListenPlace, listen_places, named};
use super::running::{self, ServerKind};
use super::{DIFFERENT, PreparedTakeover, block_signals, time_since};
use crate::terminal;

/// How often the logs are looked at.
const INTERVAL: Duration = Duration::from_millis(50);

/// The share of all requests.
const ALL: u32 = 10_000;

/// How many of the command's own requests may be missing in the log before the oldest are forgotten.
const MAX_OWN: usize = 10_000;

/// Compares until it is told to end. Returns the exit code.
pub(crate) fn run(arguments: &ShadowArguments) -> i32 {
    let mut report = TakeoverReport::default();
    let result = follow(arguments, &mut report);
    let code = match &result {
        Ok(()) if report.groups.list.is_empty() => 0,
        Ok(()) => DIFFERENT,
        Err(error) => {
            if !arguments.json {
                terminal::report_line(format_args!("weir: {error}"));
            }
            report.error = Some(error.clone());
            1
        }
    };
    if arguments.json {
        terminal::print_line(format_args!("{}", report.json()));
    } else if result.is_ok() {
        terminal::print_text(format_args!("{}", report.comparison_text()));
    }
    code
}

/// Follows the logs until the end that the arguments name, and fills in the report.
fn follow(arguments: &ShadowArguments, report: &mut TakeoverReport) -> Result<(), String> {
    let server = running::find(arguments.process)?;
    report.server = Some((server.master, server.version.clone()));
    if server.kind == ServerKind::Weir {
        return Err(format!("process {} is Weir already", server.master));
    }
    let prepared = PreparedTakeover::new(&server)?;
    let sites = LoggedSites::new(prepared.nodes());
    let mut logs = match &arguments.log {
        Some(path) => AccessLogs::one(path, prepared.nodes()),
        None => AccessLogs::all(prepared.nodes(), &prepared.startup.paths),
    }?;
    let signals = block_signals()?;
    let copy = RunningCopy::start(prepared.copy_settings(&server)?, prepared.nodes(), None)?;
    let mut comparison = Comparison::new(&copy, ShownValues::None);
    if !arguments.json {
        terminal::report_line(format_args!(
            "following {}; Ctrl-C ends and reports",
            logs.names().join(", ")
        ));
    }
    let started = read_clock();
    let mut sampler = RequestSampler::new(arguments);
    loop {
        for logged in logs.read_new() {
            let is_over = arguments
                .requests
                .is_some_and(|most| comparison.count >= most);
            if is_over || !sampler.takes(&logged) {
                continue;
            }
            if let Some(request) = sites.request(&logged) {
                let asked = comparison.ask_both(&request);
                sampler.remember_own(&logged, asked);
            }
        }
        let is_late = arguments
            .seconds
            .is_some_and(|seconds| time_since(started) >= Duration::from_secs(seconds));
        let is_done = arguments
            .requests
            .is_some_and(|most| comparison.count >= most);
        let is_ended = signals.read_signal().is_ok_and(|signal| signal.is_some());
        if is_late || is_done || is_ended {
            break;
        }
        if !std::path::Path::new(&format!("/proc/{}", server.master)).exists() {
            return Err(format!("{} has ended", server.version));
        }
        // A failure only makes the pause shorter.
        let _ = process::wait_readable(&[std::os::fd::AsFd::as_fd(&signals)], Some(INTERVAL));
    }
    report.requests = comparison.count;
    report.groups = comparison.finish();
    Ok(())
}

/// Which requests are repeated: a share of the safe ones, not more per second than allowed, and never the command's own.
struct RequestSampler {
    /// Of ten thousand.
    share: u32,
    /// What the requests so far have added up to; a request is taken at each ten thousand.
    due: u32,
    /// Requests per second, at most. What is above that is left out, not put off: old requests would be compared with new pages.
    rate: u32,
    /// The second that is counted, and its requests.
    second: (Instant, u32),
    /// Requests that this command has sent to the running server, which will appear in the log.
    own: HashMap<(String, String), usize>,
}

impl RequestSampler {
    /// A sampler for these arguments.
    fn new(arguments: &ShadowArguments) -> RequestSampler {
        RequestSampler {
            share: arguments.share,
            // The first request is taken.
            due: ALL,
            rate: arguments.rate,
            second: (read_clock(), 0),
            own: HashMap::new(),
        }
    }

    /// Whether a request is repeated.
    fn takes(&mut self, logged: &LoggedRequest) -> bool {
        let key = (logged.method.clone(), logged.target.clone());
        if let Some(count) = self.own.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                self.own.remove(&key);
            }
            return false;
        }
        if !matches!(logged.method.as_str(), "GET" | "HEAD") || !logged.target.starts_with('/') {
            return false;
        }
        self.due += self.share;
        if self.due < ALL {
            return false;
        }
        self.due -= ALL;
        if time_since(self.second.0) >= Duration::from_secs(1) {
            self.second = (read_clock(), 0);
        }
        self.second.1 += 1;
        self.second.1 <= self.rate
    }

    /// Remembers that the running server was asked this often.
    fn remember_own(&mut self, logged: &LoggedRequest, times: usize) {
        if times == 0 {
            return;
        }
        if self.own.len() >= MAX_OWN {
            // A log without these lines: a location may not be logged at all.
            self.own.clear();
        }
        let key = (logged.method.clone(), logged.target.clone());
        *self.own.entry(key).or_default() += times;
    }
}

/// The servers of the configuration, to which requests of a log belong.
struct LoggedSites {
    /// In the order of the configuration, which a log's own number refers to.
    list: Vec<LoggedSite>,
}

/// A server of `http`, as far as a log can refer to it.
struct LoggedSite {
    /// Its names in lower case. Masks and patterns are not tried: a log has names that clients sent, and most of them are exact.
    names: Vec<String>,
    places: Vec<ListenPlace>,
}

impl LoggedSites {
    /// The servers of a configuration.
    fn new(nodes: &[DirectiveNode]) -> LoggedSites {
        let servers = named(nodes, "http").flat_map(|http| named(http.block.nodes(), "server"));
        let list = servers.map(|server| {
            let inside = server.block.nodes();
            let names = named(inside, "server_name").flat_map(|node| node.args.iter());
            let names = names.map(|word| word.text.to_str_lossy().to_ascii_lowercase());
            LoggedSite {
                names: names.collect(),
                places: listen_places(inside),
            }
        });
        LoggedSites {
            list: list.collect(),
        }
    }

    /// The request to repeat, if its server is known.
    fn request(&self, logged: &LoggedRequest) -> Option<ComparedRequest> {
        let host = logged.host.as_deref().filter(|host| !host.is_empty());
        let name = host.map(|host| host.split(':').next().unwrap_or(host).to_ascii_lowercase());
        // First by name: a log that several servers write says nothing about which of them it was.
        let named_site = name
            .as_ref()
            .and_then(|name| self.list.iter().find(|site| site.names.contains(name)));
        // Without a host in the log, or with an unknown one: the server that writes this log.
        let site = named_site.or_else(|| self.list.get(logged.server))?;
        let first_name = site
            .names
            .iter()
            .find(|name| name.contains('.') && !name.contains(['*', '~', '$']));
        let fits = |place: &&ListenPlace| {
            let by_port = logged.port.as_ref().is_none_or(|port| {
                place
                    .key
                    .address
                    .rsplit_once(':')
                    .is_some_and(|(_, known)| known == port)
            });
            by_port && logged.is_tls.is_none_or(|is_tls| is_tls == place.is_tls)
        };
        let place = site
            .places
            .iter()
            .find(fits)
            .or_else(|| site.places.first())?;
        let fallback = || first_name.map_or("localhost", String::as_str).to_owned();
        Some(ComparedRequest {
            listen: place.key.clone(),
            is_tls: place.is_tls,
            is_proxied: place.is_proxied,
            host: host.map_or_else(fallback, ToOwned::to_owned),
            method: logged.method.clone(),
            target: logged.target.clone(),
            line: String::new(),
        })
    }
}
