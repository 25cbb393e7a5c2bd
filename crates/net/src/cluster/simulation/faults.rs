//! What goes wrong: members crash and come back, links are cut, Redis loses entries, views differ.

use super::super::journal_position::{AppliedEntries, JournalPosition, JournalReader};
use super::{HAPPENS_MS, PlantedBug, Scenario, SimCluster, SimEvent, SimFill, SimWaiter, address};

/// More than an owner may have in progress before the next one is asked.
const BUSY: usize = 300;

impl SimCluster {
    pub(super) fn fault(&mut self, event: SimEvent) {
        match event {
            SimEvent::Crash { node } if self.nodes[node].is_up => self.crash(node),
            SimEvent::Restart { node } => self.restart(node),
            SimEvent::Link { from, to, works } => {
                let count = self.nodes.len();
                self.links[from * count + to] = works;
                self.links[to * count + from] = works;
            }
            SimEvent::RedisLink { node, works } => {
                self.nodes[node].redis_link = works;
                self.nodes[node].has_session &= works;
            }
            SimEvent::Redis { works, loses } => {
                self.redis_works = works;
                self.nodes
                    .iter_mut()
                    .for_each(|node| node.has_session = false);
                let left = self.journal.len().saturating_sub(loses);
                let lost: Vec<JournalPosition> = self
                    .journal
                    .drain(left..)
                    .map(|entry| entry.position)
                    .collect();
                self.journaled
                    .retain(|(position, ..)| !lost.contains(position));
            }
            SimEvent::Note {
                node,
                other,
                answers,
            } => {
                let now = self.now();
                let state = &self.nodes[node].state;
                let view = state.view();
                if let Some(member) = view
                    .members
                    .iter()
                    .find(|one| one.address == address(other))
                {
                    state.note(member, answers, now);
                }
            }
            SimEvent::Busy {
                node,
                other,
                is_busy,
            } => {
                let view = self.nodes[node].state.view();
                let member = view
                    .members
                    .iter()
                    .find(|one| one.address == address(other));
                let uses = member.filter(|_| is_busy).into_iter();
                let uses = uses.flat_map(|member| (0..BUSY).map(|_| member.begin_use()));
                let uses: Vec<_> = uses.collect();
                self.nodes[node].busy.insert(other, uses);
            }
            _ => {}
        }
    }

    fn crash(&mut self, node: usize) {
        let crashed = &mut self.nodes[node];
        crashed.is_up = false;
        crashed.life += 1;
        crashed.running.clear();
        // What was purged since the position was kept is on the disk again.
        for (key, object) in std::mem::take(&mut crashed.unpurged) {
            crashed.objects.entry(key).or_insert(object);
        }
        let gone: Vec<SimFill> = self
            .fills
            .extract_if(.., |_, fill| fill.node == node)
            .map(|(_, fill)| fill)
            .collect();
        for waiter in gone.into_iter().flat_map(|fill| fill.waiting) {
            if let SimWaiter::Member { token, ask, .. } = waiter {
                self.lose(token, ask);
            }
        }
        self.soon(50, 1_500, SimEvent::Restart { node });
    }

    /// What was stored is there, what was in progress is not. The position is the one that was kept.
    pub(super) fn restart(&mut self, node: usize) {
        let is_hidden = self.bug != PlantedBug::NotHidden;
        let forgets = self.bug == PlantedBug::ForgetsClaim;
        let now_ms = self.now_ms;
        let back = &mut self.nodes[node];
        back.is_up = true;
        back.has_session = false;
        let claimed = back.claimed.filter(|_| !forgets && back.kept.is_some());
        back.reader = JournalReader::new(back.kept, claimed);
        back.applied = AppliedEntries::default();
        back.applied.resume(&[], back.reader.claim());
        back.sequence += 1;
        back.started = (now_ms, back.sequence);
        if is_hidden {
            back.hidden = back.sequence;
            back.hidden_ms = now_ms;
        }
        let life = back.life;
        self.soon(5, 40, SimEvent::Read { node, life });
    }

    /// Plans what goes wrong, and when it is mended.
    pub(super) fn plan_fault(&mut self, scenario: Scenario) {
        let count = self.nodes.len() as u64;
        let at = self.dice.between(1, HAPPENS_MS);
        let end = at + self.dice.between(50, 1_500);
        let node = self.dice.below(count) as usize;
        let other = self.dice.below(count) as usize;
        let kind = match scenario {
            Scenario::Calm | Scenario::TwoViews => return,
            Scenario::Flapping => 0,
            Scenario::Overload => 5,
            Scenario::Faults => self.dice.below(7),
        };
        let loses = match self.dice.below(8) {
            0 => usize::MAX,
            few => few as usize / 2,
        };
        let note = |answers| SimEvent::Note {
            node,
            other,
            answers,
        };
        let link = |works| SimEvent::Link {
            from: node,
            to: other,
            works,
        };
        let redis_link = |works| SimEvent::RedisLink { node, works };
        let redis = |works| SimEvent::Redis {
            works,
            loses: if works { 0 } else { loses },
        };
        let busy = |is_busy| SimEvent::Busy {
            node,
            other,
            is_busy,
        };
        let (begins, ends) = match kind {
            0 if node != other => (note(false), note(true)),
            1 => return self.at(at, SimEvent::Crash { node }),
            2 if node != other => (link(false), link(true)),
            3 => (redis_link(false), redis_link(true)),
            4 => (redis(false), redis(true)),
            5 if node != other => (busy(true), busy(false)),
            _ => return,
        };
        self.at(at, begins);
        self.at(end, ends);
    }
}
