//! The journal: Redis, its readers, purges, and who is named for one.

use super::super::journal_position::{
    EntryKnowledge, JournalContent, JournalEntry, JournalFacts, JournalId, JournalPosition,
    JournalStep,
};
use super::{ENDS_MS, JOURNAL_LENGTH, PlantedBug, SimCluster, SimEvent};

impl SimCluster {
    pub(super) fn write(&mut self, content: JournalContent) -> JournalPosition {
        let last = self
            .journal
            .last()
            .map_or(JournalId::ZERO, |entry| entry.position.id);
        let mut id = JournalId::new(self.now_ms, 0);
        if id <= last {
            id = JournalId::new(last.millis(), self.next);
        }
        let writer = self.dice.next().to_string();
        let entry = JournalEntry::new(id, writer.as_bytes(), content.as_bytes());
        let position = entry.position;
        self.journal.push(entry);
        let surplus = self.journal.len().saturating_sub(JOURNAL_LENGTH);
        self.journal.drain(..surplus);
        position
    }

    pub(super) fn read(&mut self, node: usize, life: u32) {
        if self.nodes[node].life != life || self.now_ms > ENDS_MS {
            return;
        }
        if !self.reaches_redis(node) {
            self.nodes[node].has_session = false;
            return self.soon(10, 60, SimEvent::Read { node, life });
        }
        if !self.nodes[node].has_session {
            let reader = &self.nodes[node].reader;
            let at = |known: Option<JournalPosition>| {
                let mut positions = self.journal.iter().map(|entry| entry.position);
                positions.find(|one| known.is_some_and(|known| known.id == one.id))
            };
            let facts = JournalFacts {
                at_position: at(reader.position()),
                at_claim: at(reader.claim()),
                first: self.journal.first().cloned(),
                last: self.journal.last().map(|entry| entry.position),
            };
            let reading = &mut self.nodes[node];
            let steps = reading.reader.resume(&facts);
            let position = reading.reader.claim();
            reading.applied.resume(&steps, position);
            reading.has_session = true;
            reading.current_ms = 0;
            self.do_steps(node, steps);
        }
        let behind = self.nodes[node].reader.reads_behind();
        let unread = self
            .journal
            .iter()
            .filter(|entry| entry.position.id > behind);
        let entries: Vec<JournalEntry> = unread.take(8).cloned().collect();
        let (is_end, sent_ms) = (entries.len() < 8, self.now_ms);
        self.soon(
            1,
            25,
            SimEvent::ReadReply {
                node,
                life,
                entries,
                is_end,
                sent_ms,
            },
        );
    }

    pub(super) fn read_replied(
        &mut self,
        (node, life): (usize, u32),
        entries: Vec<JournalEntry>,
        is_end: bool,
        sent_ms: u64,
    ) {
        if self.nodes[node].life != life {
            return;
        }
        if self.nodes[node].has_session && self.reaches_redis(node) {
            let (steps, read) = self.nodes[node].reader.take(entries);
            self.do_steps(node, steps);
            let reading = &mut self.nodes[node];
            reading.applied.note(read.into_iter());
            if is_end {
                reading.current_ms = sent_ms;
                if reading.hidden_ms <= sent_ms {
                    reading.hidden = 0;
                }
            }
        }
        self.soon(1, 30, SimEvent::Read { node, life });
    }

    pub(super) fn do_steps(&mut self, node: usize, steps: Vec<JournalStep>) {
        for step in steps {
            match step {
                JournalStep::Purge(purge) => {
                    let key = purge
                        .get(2..10)
                        .and_then(|key| key.try_into().ok())
                        .map_or(0, u64::from_be_bytes);
                    let reading = &mut self.nodes[node];
                    let gone = reading.objects.remove_entry(&key);
                    reading.unpurged.extend(gone);
                    self.stop_storing(node, Some(key));
                }
                JournalStep::DropAll(_) | JournalStep::StaleAll(_) => {
                    let reading = &mut self.nodes[node];
                    let gone = std::mem::take(&mut reading.objects);
                    reading.unpurged.extend(gone);
                    self.stop_storing(node, None);
                }
                JournalStep::Append(content) => {
                    self.write(content);
                }
            }
        }
    }

    /// The position comes to the disk, with all purges before it.
    pub(super) fn keep(&mut self, node: usize) {
        let keeping = &mut self.nodes[node];
        let position = keeping.reader.position_to_keep();
        if keeping.is_up && position.is_some() {
            (keeping.kept, keeping.claimed) = (position, position);
            keeping.unpurged.clear();
        }
        if self.now_ms < ENDS_MS {
            self.soon(100, 1_000, SimEvent::Keep { node });
        }
    }

    pub(super) fn stop_storing(&mut self, node: usize, key: Option<u64>) {
        for fill in self.fills.values_mut() {
            fill.is_purged |= fill.node == node && key.is_none_or(|key| key == fill.key);
        }
    }

    pub(super) fn purge(&mut self, node: usize, key: u64) {
        if !self.reaches_redis(node) {
            return;
        }
        self.origin[key as usize] += 1;
        let version = self.origin[key as usize];
        let purge = [&b"hk"[..], &key.to_be_bytes()].concat();
        let position = self.write(JournalContent::Purge(purge));
        self.journaled.push((position, self.now_ms, key, version));
        for other in 0..self.nodes.len() {
            self.soon(
                5,
                80,
                SimEvent::AskApplied {
                    node: other,
                    key,
                    version,
                    position,
                },
            );
        }
    }

    pub(super) fn ask_applied(
        &mut self,
        node: usize,
        key: u64,
        version: u32,
        position: JournalPosition,
    ) {
        if !self.nodes[node].is_up {
            return;
        }
        let knowledge = match self.bug {
            PlantedBug::NumberOnly => self.knowledge(node, position),
            _ => self.nodes[node].applied.knowledge_of(position),
        };
        if knowledge == EntryKnowledge::Applied {
            let named = self.named.entry((node, key)).or_default();
            *named = version.max(*named);
            // It is on the disk before the answer.
            let asked = &mut self.nodes[node];
            asked.claimed = asked.applied.last();
        } else if knowledge == EntryKnowledge::Awaited && self.now_ms < ENDS_MS {
            self.soon(
                5,
                40,
                SimEvent::AskApplied {
                    node,
                    key,
                    version,
                    position,
                },
            );
        }
    }
}
