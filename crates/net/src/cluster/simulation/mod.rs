//! A cluster in simulated time: members, routes, questions among them, journals. What is decided is decided by the code of
//! the folder above; simulated are the clock, the network, Redis, the origin and what the members have stored. Everything
//! that happens follows from a seed, so that a failure can be repeated: `run(seed, PlantedBug::None)`.
//!
//! ```text
//! mod        the clock, the events, the seeds and what must hold at their end
//! requests   clients, fetches, questions to members
//! journal    Redis, its readers, purges
//! faults     what goes wrong
//! ```
//!
//! What must hold besides is asserted where it happens: `SimCluster::answer_client`.

mod faults;
mod journal;
mod requests;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::journal_position::{AppliedEntries, JournalEntry, JournalPosition, JournalReader};
use super::member_verdict::FillSource;
use super::membership::{ClusterState, MemberUse, RouteStep};

/// How long everything happens, in milliseconds; afterwards only what has begun goes on.
const HAPPENS_MS: u64 = 4_000;
/// When reading ends.
const ENDS_MS: u64 = 9_000;
const BUDGET_MS: u64 = 300;
const KEYS: u64 = 6;
/// How many entries the journal keeps.
const JOURNAL_LENGTH: usize = 20;

/// A mistake that is put in, to see that it is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PlantedBug {
    None,
    /// A member answers although the asker has read more of the journal.
    ClaimIgnored,
    /// Entries are compared by their numbers only.
    NumberOnly,
    /// What was stored is served after a start, before the journal has been read.
    NotHidden,
    /// A member that waits for another one is waited for.
    WaitsForWaiting,
    /// After a crash, what a member was named for is not known to it.
    ForgetsClaim,
}

/// What happens besides requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scenario {
    /// Nothing: the origin is asked once for a key.
    Calm,
    /// Half of the members do not know of one: twice at most.
    TwoViews,
    /// Views change all the time; no purges.
    Flapping,
    /// Everything, purges too.
    Faults,
    /// Members are overloaded with fetches, and the next in order is asked: twice at most.
    Overload,
}

struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        super::rendezvous::score(self.0, 0)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to - from)
    }
}

#[derive(Clone, Debug)]
enum SimEvent {
    Client {
        node: usize,
        key: u64,
    },
    Ask {
        to: usize,
        ask: SimAsk,
        waited_ms: u64,
    },
    Reply {
        token: u64,
        ask: u64,
        from: usize,
        to: usize,
        answer: SimAnswer,
    },
    /// The asker notices that there will be no answer.
    AskLost {
        token: u64,
        ask: u64,
    },
    OriginHandles {
        token: u64,
    },
    OriginReplies {
        token: u64,
        version: u32,
    },
    Read {
        node: usize,
        life: u32,
    },
    ReadReply {
        node: usize,
        life: u32,
        entries: Vec<JournalEntry>,
        is_end: bool,
        sent_ms: u64,
    },
    Purge {
        node: usize,
        key: u64,
    },
    /// The position comes to the disk, and the purges before it.
    Keep {
        node: usize,
    },
    /// A member has many fetches in progress by another one's view, or has them no more.
    Busy {
        node: usize,
        other: usize,
        is_busy: bool,
    },
    AskApplied {
        node: usize,
        key: u64,
        version: u32,
        position: JournalPosition,
    },
    Crash {
        node: usize,
    },
    Restart {
        node: usize,
    },
    Link {
        from: usize,
        to: usize,
        works: bool,
    },
    RedisLink {
        node: usize,
        works: bool,
    },
    Redis {
        works: bool,
        loses: usize,
    },
    Note {
        node: usize,
        other: usize,
        answers: bool,
    },
}

#[derive(Clone, Debug)]
struct SimAsk {
    token: u64,
    number: u64,
    from: usize,
    key: u64,
    hop: u8,
    epoch: u64,
    only_stored: bool,
    claim: Option<JournalPosition>,
}

#[derive(Clone, Copy, Debug)]
enum SimAnswer {
    Stored(u32),
    AskOwner(SocketAddr),
    Nothing,
}

enum SimWaiter {
    /// With the oldest version that it may get.
    Client(u32),
    Member {
        asker: usize,
        token: u64,
        ask: u64,
    },
}

struct SimFill {
    node: usize,
    key: u64,
    born: u64,
    left: VecDeque<RouteStep>,
    hop: u8,
    epoch: u64,
    claim: Option<JournalPosition>,
    /// The question that is under way.
    ask: u64,
    asked: u32,
    source: FillSource,
    /// What is asked at the moment wants no fetch.
    asks_stored: bool,
    is_purged: bool,
    waiting: Vec<SimWaiter>,
}

struct SimNode {
    state: ClusterState,
    is_up: bool,
    life: u32,
    redis_link: bool,
    has_session: bool,
    reader: JournalReader,
    applied: AppliedEntries,
    objects: BTreeMap<u64, (u32, u64)>,
    running: BTreeMap<u64, u64>,
    sequence: u64,
    hidden: u64,
    hidden_ms: u64,
    /// As of when everything in the journal has been applied.
    current_ms: u64,
    /// The position on the disk, the last one that others were told of, and what is still on the disk though it was purged.
    kept: Option<JournalPosition>,
    claimed: Option<JournalPosition>,
    unpurged: Vec<(u64, (u32, u64))>,
    /// Fetches in progress at others, of no key in particular.
    busy: BTreeMap<usize, Vec<MemberUse>>,
    /// When it was started last, and what was born before.
    started: (u64, u64),
}

struct SimCluster {
    bug: PlantedBug,
    dice: Dice,
    base: Instant,
    now_ms: u64,
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    events: HashMap<u64, SimEvent>,
    next: u64,
    nodes: Vec<SimNode>,
    fills: BTreeMap<u64, SimFill>,
    links: Vec<bool>,
    redis_works: bool,
    journal: Vec<JournalEntry>,
    /// Purges that the journal has, or had before it was trimmed: when, of which key, to which version.
    journaled: Vec<(JournalPosition, u64, u64, u32)>,
    named: BTreeMap<(usize, u64), u32>,
    origin: Vec<u32>,
    fetches: Vec<u32>,
    answers: u64,
    broken: Option<String>,
}

fn address(node: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], 7_000 + u16::try_from(node).unwrap_or(0)))
}

impl SimCluster {
    fn new(seed: u64, count: usize, bug: PlantedBug) -> SimCluster {
        let base = rt::clock::read_clock();
        let node = |own| {
            let state = ClusterState::default();
            let all: Vec<SocketAddr> = (0..count).map(address).collect();
            state.set_members(&all, Some(address(own)), base);
            SimNode {
                state,
                is_up: true,
                life: 0,
                redis_link: true,
                has_session: false,
                reader: JournalReader::default(),
                applied: AppliedEntries::default(),
                objects: BTreeMap::new(),
                running: BTreeMap::new(),
                sequence: 0,
                hidden: 0,
                hidden_ms: 0,
                current_ms: 0,
                kept: None,
                claimed: None,
                unpurged: Vec::new(),
                busy: BTreeMap::new(),
                started: (0, 0),
            }
        };
        SimCluster {
            bug,
            dice: Dice(seed),
            base,
            now_ms: 1,
            queue: BinaryHeap::new(),
            events: HashMap::new(),
            next: 0,
            nodes: (0..count).map(node).collect(),
            fills: BTreeMap::new(),
            links: vec![true; count * count],
            redis_works: true,
            journal: Vec::new(),
            journaled: Vec::new(),
            named: BTreeMap::new(),
            origin: vec![0; KEYS as usize],
            fetches: vec![0; KEYS as usize],
            answers: 0,
            broken: None,
        }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn at(&mut self, at_ms: u64, event: SimEvent) {
        let number = self.number();
        self.events.insert(number, event);
        self.queue.push(Reverse((at_ms, number)));
    }

    fn soon(&mut self, from: u64, to: u64, event: SimEvent) {
        let at = self.now_ms + self.dice.between(from, to);
        self.at(at, event);
    }

    fn now(&self) -> Instant {
        self.base + Duration::from_millis(self.now_ms)
    }

    fn is_linked(&self, from: usize, to: usize) -> bool {
        self.links[from * self.nodes.len() + to] && self.nodes[to].is_up
    }

    fn reaches_redis(&self, node: usize) -> bool {
        self.redis_works && self.nodes[node].redis_link && self.nodes[node].is_up
    }

    fn break_rule(&mut self, what: String) {
        let now = self.now_ms;
        self.broken
            .get_or_insert_with(|| format!("at {now} ms: {what}"));
    }

    /// Runs until nothing happens any more.
    fn run(&mut self) {
        let mut steps = 0;
        while let Some(Reverse((at_ms, number))) = self.queue.pop() {
            self.now_ms = at_ms;
            if let Some(event) = self.events.remove(&number) {
                self.happen(event);
            }
            steps += 1;
            if self.broken.is_some() || steps > 200_000 {
                break;
            }
        }
        if steps > 200_000 {
            self.break_rule("it does not end".to_owned());
        }
    }

    fn happen(&mut self, event: SimEvent) {
        match event {
            SimEvent::Client { node, key } => self.client(node, key),
            SimEvent::Ask { to, ask, waited_ms } => self.asked(to, ask, waited_ms),
            SimEvent::Reply {
                token,
                ask,
                from,
                to,
                answer,
            } => match self.is_linked(from, to) {
                true => self.replied(token, ask, from, answer),
                false => self.lose(token, ask),
            },
            SimEvent::AskLost { token, ask } => {
                if self.fills.get(&token).is_some_and(|fill| fill.ask == ask) {
                    self.try_next(token);
                }
            }
            SimEvent::OriginHandles { token } => {
                if let Some(key) = self.fills.get(&token).map(|fill| fill.key) {
                    self.fetches[key as usize] += 1;
                    let version = self.origin[key as usize];
                    self.soon(2, 40, SimEvent::OriginReplies { token, version });
                }
            }
            SimEvent::OriginReplies { token, version } => self.fill_ends(token, version),
            SimEvent::Read { node, life } => self.read(node, life),
            SimEvent::ReadReply {
                node,
                life,
                entries,
                is_end,
                sent_ms,
            } => {
                self.read_replied((node, life), entries, is_end, sent_ms);
            }
            SimEvent::Keep { node } => self.keep(node),
            SimEvent::Purge { node, key } => self.purge(node, key),
            SimEvent::AskApplied {
                node,
                key,
                version,
                position,
            } => {
                self.ask_applied(node, key, version, position);
            }
            other => self.fault(other),
        }
    }
}

/// Runs a seed; what is broken, if anything.
fn run(seed: u64, bug: PlantedBug) -> Result<u64, String> {
    let mut cluster = SimCluster::new(seed, 3 + (seed % 3) as usize, bug);
    let scenario = match seed % 6 {
        0 => Scenario::Calm,
        1 => Scenario::TwoViews,
        2 => Scenario::Flapping,
        3 => Scenario::Overload,
        _ => Scenario::Faults,
    };
    let count = cluster.nodes.len() as u64;
    if scenario == Scenario::TwoViews {
        // The last one is not known to the first half.
        for node in 0..cluster.nodes.len() / 2 {
            let other = cluster.nodes.len() - 1;
            cluster.fault(SimEvent::Note {
                node,
                other,
                answers: false,
            });
        }
    }
    for node in 0..cluster.nodes.len() {
        cluster.soon(1, 50, SimEvent::Read { node, life: 0 });
        cluster.soon(50, 1_000, SimEvent::Keep { node });
    }
    for _ in 0..150 {
        let (node, key) = (cluster.dice.below(count) as usize, cluster.dice.below(KEYS));
        // All have begun to read: who has no position yet drops what it has.
        let at = cluster.dice.between(300, HAPPENS_MS + 1_000);
        cluster.at(at, SimEvent::Client { node, key });
    }
    for _ in 0..12 {
        cluster.plan_fault(scenario);
    }
    if scenario == Scenario::Faults {
        for _ in 0..30 {
            let (node, key) = (cluster.dice.below(count) as usize, cluster.dice.below(KEYS));
            let at = cluster.dice.between(1, HAPPENS_MS);
            cluster.at(at, SimEvent::Purge { node, key });
        }
    }
    cluster.run();
    if let Some(broken) = cluster.broken {
        return Err(format!("seed {seed}, {scenario:?}: {broken}"));
    }
    if let Some(fill) = cluster.fills.values().next() {
        return Err(format!(
            "seed {seed}, {scenario:?}: member {} waits for ever",
            fill.node
        ));
    }
    let most = match scenario {
        Scenario::Calm => 1,
        Scenario::TwoViews | Scenario::Overload => 2,
        // Each member keeps what it has fetched.
        Scenario::Flapping => cluster.nodes.len() as u32,
        Scenario::Faults => u32::MAX,
    };
    match cluster.fetches.iter().find(|fetches| **fetches > most) {
        Some(fetches) => Err(format!(
            "seed {seed}, {scenario:?}: {fetches} fetches of a key"
        )),
        None => Ok(cluster.answers),
    }
}

#[test]
fn no_seed_breaks_a_promise() {
    let mut answers = 0;
    for seed in 0..10_000 {
        answers += run(seed, PlantedBug::None).unwrap_or_else(|broken| panic!("{broken}"));
    }
    assert!(
        answers > 1_000_000,
        "{answers} answers are too few to show anything"
    );
}

#[test]
fn mistakes_that_are_put_in_are_found() {
    let bugs = [
        PlantedBug::ClaimIgnored,
        PlantedBug::NumberOnly,
        PlantedBug::NotHidden,
        PlantedBug::WaitsForWaiting,
        PlantedBug::ForgetsClaim,
    ];
    for bug in bugs {
        let found = (0..10_000).find_map(|seed| run(seed, bug).err());
        println!("{bug:?}: {found:?}");
        assert!(found.is_some(), "{bug:?} is not found");
    }
}
