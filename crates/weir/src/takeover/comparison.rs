//! Requests to both servers: what differs, and whether a server that has just taken over does worse than the one before.
//!
//! Requests go one after the other. A second one at the same time would save time, but then limits of connections and rates, and
//! caches that collapse requests, would answer by chance.

use std::time::Duration;

use host::signal::SignalReader;
use rt::clock::read_clock;

use super::client::{BatteryClient, ComparedRequest, ServerPlace, ServerResponse};
use super::compare::{self, DifferenceGroups, ShownValues};
use super::copy_process::RunningCopy;
use super::{PreparedTakeover, battery, time_since};

/// How many addresses are asked for a page before nginx is told to exit.
const MAX_PROBES: usize = 10;

/// A page of each address, as the old server has it. The new one must not do worse before the old one is told to exit.
pub(super) struct Probes {
    /// Asks once before the replacement and once after it.
    client: BatteryClient,
    list: Vec<(ServerPlace, ComparedRequest, u16)>,
}

impl Probes {
    /// Asks the running server.
    pub(super) fn new(prepared: &PreparedTakeover) -> Result<Probes, String> {
        let client = BatteryClient::new();
        let mut list: Vec<(ServerPlace, ComparedRequest, u16)> = Vec::new();
        let requests =
            battery::requests(prepared.nodes(), &prepared.startup.paths.prefix, usize::MAX);
        for request in requests
            .into_iter()
            .filter(|request| request.method == "GET")
        {
            let Some(place) = ServerPlace::of(&request.listen) else {
                continue;
            };
            if list.len() >= MAX_PROBES || list.iter().any(|(known, _, _)| *known == place) {
                continue;
            }
            let status = client.ask(&place, &request).status;
            list.push((place, request, status));
        }
        if !list.is_empty() && list.iter().all(|(_, _, status)| *status == 0) {
            return Err("the running server does not answer on any of its addresses".to_owned());
        }
        Ok(Probes { client, list })
    }

    /// Asks again: the error is the first page that became worse.
    pub(super) fn check(&self) -> Result<(), String> {
        for (place, request, before) in &self.list {
            let now = self.client.ask(place, request);
            let is_bad = now.status == 0 || now.status >= 500;
            let was_bad = *before == 0 || *before >= 500;
            if is_bad && !was_bad {
                return Err(format!(
                    "the new server answers {} with {}, where the old one had {before}",
                    request.shown(),
                    now.status
                ));
            }
        }
        Ok(())
    }
}

impl Probes {
    /// Asks the running server and a copy for the page with this number, counted round and round, and returns how long each took, in
    /// milliseconds. `None`: there is no page that worked.
    pub(super) fn time_both(&self, number: usize, copy: &RunningCopy) -> Option<(f64, f64)> {
        let mut working = self.list.iter().filter_map(|(place, request, status)| {
            let own = copy.copy.addresses.get(&request.listen)?;
            let works = *status != 0 && *status < 500;
            works.then_some((place, ServerPlace::Tcp(*own), request))
        });
        let count = working.clone().count();
        let (theirs, own, request) = working.nth(number.checked_rem(count)?)?;
        let time = |place: &ServerPlace| {
            let started = read_clock();
            let response = self.client.ask(place, request);
            (response.status != 0).then(|| time_since(started).as_secs_f64() * 1000.0)
        };
        // In turn: an application may answer the second one from a cache.
        let times = match number.is_multiple_of(2) {
            true => (time(&own), time(theirs)),
            false => {
                let theirs = time(theirs);
                (time(&own), theirs)
            }
        };
        times.0.zip(times.1)
    }
}

/// Sends requests to both servers, and collects what differs.
pub(super) struct Comparison<'c> {
    /// Weir, on private ports.
    copy: &'c RunningCopy,
    client: BatteryClient,
    ports: Vec<(String, String)>,
    /// What the report may show of header fields.
    values: ShownValues,
    groups: DifferenceGroups,
    /// How many requests were compared.
    pub(super) count: u64,
}

impl<'c> Comparison<'c> {
    /// Begins a comparison of the running server with a copy.
    pub(super) fn new(copy: &'c RunningCopy, values: ShownValues) -> Comparison<'c> {
        Comparison {
            ports: compare::port_texts(&copy.copy),
            copy,
            client: BatteryClient::new(),
            values,
            groups: DifferenceGroups::default(),
            count: 0,
        }
    }

    /// Compares one request. Returns how many times the running server was asked: not at all if it has no such address.
    pub(super) fn ask_both(&mut self, request: &ComparedRequest) -> usize {
        let ours = self.copy.copy.addresses.get(&request.listen).copied();
        let Some((theirs, ours)) = ServerPlace::of(&request.listen).zip(ours) else {
            return 0;
        };
        self.count += 1;
        // The running server first: if a request fills a cache or wakes an application up, nobody's site is slower than it was.
        let first = self.client.ask(&theirs, request);
        let own = self.client.ask(&ServerPlace::Tcp(ours), request);
        let found = self.differences(&first, &own);
        if found.is_empty() {
            return 1;
        }
        // What changes by itself is no difference.
        let second = self.client.ask(&theirs, request);
        let found = compare::without_own_changes(found, &first, &second);
        let shown = match self.values {
            ShownValues::All => request.shown(),
            ShownValues::None => compare::shown_without_query(request),
        };
        self.groups.add(found, &shown);
        2
    }

    /// What two responses to the same request differ in, the private ports of the copy taken for the public ones.
    fn differences(
        &self,
        theirs: &ServerResponse,
        ours: &ServerResponse,
    ) -> Vec<compare::ResponseDifference> {
        compare::differences(theirs, ours, &self.ports, self.values)
    }

    /// What was found, the most frequent first.
    pub(super) fn finish(mut self) -> DifferenceGroups {
        self.groups.sort();
        self.groups
    }
}

/// Sends the battery, not faster than allowed.
pub(super) fn compare_all(
    comparison: &mut Comparison<'_>,
    requests: &[ComparedRequest],
    rate: u32,
    signals: &SignalReader,
) -> Result<(), String> {
    // By the time that each request is due, not by pauses: slow responses must not make the battery longer than it has to be.
    let pause = Duration::from_secs(1) / rate;
    let started = read_clock();
    for (sent, request) in (0_u32..).zip(requests) {
        if signals.read_signal().is_ok_and(|signal| signal.is_some()) {
            return Err("interrupted".to_owned());
        }
        let due = pause * sent;
        std::thread::sleep(due.saturating_sub(time_since(started)));
        comparison.ask_both(request);
    }
    Ok(())
}
