//! Requests: at a member, in its fetch, at the members that it asks.

use std::collections::VecDeque;

use super::super::journal_position::{EntryKnowledge, JournalPosition};
use super::super::member_verdict::{
    AskedWork, FillSource, MemberQuestion, MemberVerdict, judge_member, may_wait_for,
};
use super::super::membership::{ClusterRoute, RouteStep};
use super::super::peer_token::hash_of_key;
use super::{
    BUDGET_MS, PlantedBug, SimAnswer, SimAsk, SimCluster, SimEvent, SimFill, SimWaiter, address,
};

impl SimCluster {
    /// The oldest version that a request that begins now may get.
    pub(super) fn least_version(&self, node: usize, key: u64) -> u32 {
        let asked = &self.nodes[node];
        let named = self.named.get(&(node, key)).copied().unwrap_or(0);
        let read = self.journaled.iter().filter(|(_, at_ms, of, _)| {
            *of == key && *at_ms <= asked.current_ms && asked.has_session
        });
        read.map(|(.., version)| *version).fold(named, u32::max)
    }

    pub(super) fn stored(&self, node: usize, key: u64) -> Option<u32> {
        let node = &self.nodes[node];
        let (version, born) = node.objects.get(&key)?;
        (*born > node.hidden).then_some(*version)
    }

    /// The oldest version of a hit: what was stored before the last start is as new as the journal was then.
    pub(super) fn least_of_hit(&self, node: usize, key: u64) -> u32 {
        let asked = &self.nodes[node];
        let (at, sequence) = asked.started;
        let is_older = asked
            .objects
            .get(&key)
            .is_some_and(|(_, born)| *born <= sequence);
        let known = self
            .journaled
            .iter()
            .filter(|(_, at_ms, of, _)| is_older && *of == key && *at_ms <= at);
        known.map(|(.., version)| *version).fold(0, u32::max)
    }

    pub(super) fn joinable(&self, node: usize, key: u64) -> Option<u64> {
        let token = *self.nodes[node].running.get(&key)?;
        let fill = self.fills.get(&token)?;
        (!fill.is_purged && fill.born > self.nodes[node].hidden).then_some(token)
    }

    pub(super) fn client(&mut self, node: usize, key: u64) {
        if !self.nodes[node].is_up {
            return;
        }
        let least = self.least_version(node, key);
        if let Some(version) = self.stored(node, key) {
            let least = least.max(self.least_of_hit(node, key));
            return self.answer_client((node, key), version, least);
        }
        match self.joinable(node, key) {
            Some(token) => self.wait_for(token, SimWaiter::Client(least)),
            None => {
                let route = self.route(node, key);
                self.start_fill(
                    node,
                    key,
                    (route.steps.into(), route.epoch),
                    SimWaiter::Client(least),
                );
            }
        }
    }

    pub(super) fn answer_client(&mut self, (node, key): (usize, u64), version: u32, least: u32) {
        self.answers += 1;
        if version < least {
            self.break_rule(format!(
                "member {node} answers version {version} of key {key} instead of {least}"
            ));
        }
    }

    pub(super) fn wait_for(&mut self, token: u64, waiter: SimWaiter) {
        if let Some(fill) = self.fills.get_mut(&token) {
            fill.waiting.push(waiter);
        }
    }

    pub(super) fn route(&self, node: usize, key: u64) -> ClusterRoute {
        let hash = hash_of_key(&key.to_be_bytes());
        self.nodes[node].state.view().route_of(&hash, self.now())
    }

    pub(super) fn start_fill(
        &mut self,
        node: usize,
        key: u64,
        (left, epoch): (VecDeque<RouteStep>, u64),
        waiter: SimWaiter,
    ) {
        let token = self.number();
        let asking = &mut self.nodes[node];
        // Without a position, nothing could be said of how new an answer has to be.
        let left = match asking.applied.last() {
            Some(_) => left,
            None => VecDeque::new(),
        };
        asking.sequence += 1;
        asking.running.insert(key, token);
        let fill = SimFill {
            node,
            key,
            born: asking.sequence,
            source: match left.front() {
                None => FillSource::Origin,
                Some(step) if step.only_stored => FillSource::StoredElsewhere,
                Some(_) => FillSource::OtherMember,
            },
            asks_stored: false,
            left,
            hop: 1,
            epoch,
            claim: asking.applied.last(),
            ask: 0,
            asked: 0,
            is_purged: false,
            waiting: vec![waiter],
        };
        self.fills.insert(token, fill);
        self.try_next(token);
    }

    pub(super) fn try_next(&mut self, token: u64) {
        let number = self.number();
        let Some(fill) = self.fills.get_mut(&token) else {
            return;
        };
        fill.ask = number;
        while let Some(step) = fill.left.pop_front() {
            if !step.member.answers() {
                continue;
            }
            fill.asked += 1;
            fill.asks_stored = step.only_stored;
            let to = usize::from(step.member.address.port() - 7_000);
            let ask = SimAsk {
                token,
                number,
                from: fill.node,
                key: fill.key,
                hop: fill.hop,
                epoch: fill.epoch,
                only_stored: step.only_stored,
                claim: fill.claim,
            };
            let asked = fill.asked;
            if asked > 4 {
                self.break_rule(format!("{asked} members are asked for one fetch"));
            }
            return self.soon(
                1,
                15,
                SimEvent::Ask {
                    to,
                    ask,
                    waited_ms: 0,
                },
            );
        }
        fill.source = FillSource::Origin;
        self.soon(2, 40, SimEvent::OriginHandles { token });
    }

    /// A question or its answer is lost: the heartbeat shows that after a while. A member that is only slow is waited for.
    pub(super) fn lose(&mut self, token: u64, ask: u64) {
        let at = self.now_ms + BUDGET_MS;
        self.at(at, SimEvent::AskLost { token, ask });
    }

    /// Whether an asked member has read as much of the journal as the asker.
    pub(super) fn knowledge(&self, node: usize, claim: JournalPosition) -> EntryKnowledge {
        let applied = &self.nodes[node].applied;
        match self.bug {
            PlantedBug::ClaimIgnored => EntryKnowledge::Applied,
            PlantedBug::NumberOnly => {
                match applied.last().is_some_and(|last| last.id >= claim.id) {
                    true => EntryKnowledge::Applied,
                    false => EntryKnowledge::Awaited,
                }
            }
            _ => applied.knowledge_of(claim),
        }
    }

    pub(super) fn asked(&mut self, to: usize, ask: SimAsk, waited_ms: u64) {
        if !self.is_linked(ask.from, to) {
            return self.lose(ask.token, ask.number);
        }
        match ask.claim.map(|claim| self.knowledge(to, claim)) {
            Some(EntryKnowledge::Awaited) if waited_ms < BUDGET_MS / 2 => {
                let at = self.now_ms + 10;
                return self.at(
                    at,
                    SimEvent::Ask {
                        to,
                        ask,
                        waited_ms: waited_ms + 10,
                    },
                );
            }
            Some(EntryKnowledge::Awaited | EntryKnowledge::Unknown) => {
                return self.reply(to, &ask, SimAnswer::Nothing);
            }
            Some(EntryKnowledge::Applied) | None => {}
        }
        let route = self.route(to, ask.key);
        let running = self.joinable(to, ask.key);
        let work = match (self.stored(to, ask.key), running) {
            (Some(version), _) => return self.reply(to, &ask, SimAnswer::Stored(version)),
            (None, Some(token)) => {
                let fill = self.fills.get(&token);
                let may_wait = fill.is_none_or(|fill| may_wait_for(fill.source, ask.only_stored));
                match may_wait || self.bug == PlantedBug::WaitsForWaiting {
                    true => AskedWork::Serve,
                    false => AskedWork::Join,
                }
            }
            (None, None) => AskedWork::Fetch,
        };
        let owner = route.owner.as_ref().map(|owner| owner.address);
        let question = MemberQuestion {
            hop: ask.hop,
            only_stored: ask.only_stored,
            is_same_view: ask.epoch == route.epoch,
            is_of_another: owner.is_some_and(|owner| owner != address(ask.from)),
        };
        let waiter = SimWaiter::Member {
            asker: ask.from,
            token: ask.token,
            ask: ask.number,
        };
        match (judge_member(question, work), running, owner) {
            (MemberVerdict::Answer, Some(token), _) => self.wait_for(token, waiter),
            (MemberVerdict::Answer, None, _) => {
                let mut steps = route.steps;
                steps.retain(|step| step.only_stored && step.member.address != address(ask.from));
                self.start_fill(to, ask.key, (steps.into(), route.epoch), waiter);
            }
            (MemberVerdict::AskOwner, _, Some(owner)) => {
                self.reply(to, &ask, SimAnswer::AskOwner(owner));
            }
            (MemberVerdict::AskOwner | MemberVerdict::Nothing | MemberVerdict::Private, ..) => {
                self.reply(to, &ask, SimAnswer::Nothing);
            }
        }
    }

    pub(super) fn reply(&mut self, from: usize, ask: &SimAsk, answer: SimAnswer) {
        let (token, number, to) = (ask.token, ask.number, ask.from);
        self.soon(
            1,
            15,
            SimEvent::Reply {
                token,
                ask: number,
                from,
                to,
                answer,
            },
        );
    }

    pub(super) fn replied(&mut self, token: u64, ask: u64, from: usize, answer: SimAnswer) {
        let Some(fill) = self.fills.get_mut(&token).filter(|fill| fill.ask == ask) else {
            return;
        };
        match answer {
            SimAnswer::Stored(version) => return self.fill_ends(token, version),
            SimAnswer::AskOwner(other) if fill.hop == 1 && !fill.asks_stored => {
                let view = self.nodes[fill.node].state.view();
                // One that is gone by this view: who has named it is asked to do it itself.
                let asked = address(from);
                let next = match view.live_member(other) {
                    None => view.live_member(asked),
                    live => live.filter(|member| !view.is_own(member)),
                };
                if let Some(member) = next {
                    fill.hop = 2;
                    fill.left
                        .retain(|step| step.member.address != member.address);
                    fill.left.push_front(RouteStep {
                        member: std::sync::Arc::clone(member),
                        only_stored: false,
                    });
                }
            }
            SimAnswer::AskOwner(_) | SimAnswer::Nothing => {}
        }
        self.try_next(token);
    }

    pub(super) fn fill_ends(&mut self, token: u64, version: u32) {
        let Some(fill) = self.fills.remove(&token) else {
            return;
        };
        let node = &mut self.nodes[fill.node];
        if node.running.get(&fill.key) == Some(&token) {
            node.running.remove(&fill.key);
        }
        if !fill.is_purged {
            node.objects.insert(fill.key, (version, fill.born));
        }
        for waiter in fill.waiting {
            match waiter {
                SimWaiter::Client(least) => {
                    self.answer_client((fill.node, fill.key), version, least)
                }
                SimWaiter::Member { asker, token, ask } => {
                    let answer = SimAnswer::Stored(version);
                    let from = fill.node;
                    self.soon(
                        1,
                        15,
                        SimEvent::Reply {
                            token,
                            ask,
                            from,
                            to: asker,
                            answer,
                        },
                    );
                }
            }
        }
    }
}
