//! Whether the path to a client's new address has been validated (RFC 9000, section 8.2).
//!
//! quinn-proto validates it, limits what is sent there, and returns to the former address if no proof comes; but it
//! does not tell. A client's address decides who may do what, so a client must not be believed one that it cannot
//! receive at: the challenges that leave and the responses that arrive are looked at here, in the packets, as long as
//! there is something to prove.

use std::sync::atomic::{AtomicBool, Ordering};

use base::sync::Mutex;

use super::frames::{FoundFrame, PacketCursor};

/// How many challenges of one path are remembered: one is sent for each loss of the one before.
const CHALLENGES: usize = 8;

/// How many frames of a kind are noted of one datagram.
const NOTED: usize = 4;

/// What the packet keys of a connection show.
#[derive(Default)]
pub(super) struct PathProof {
    /// An atomic, because packet keys have to be `Sync`; one thread uses it.
    is_watching: AtomicBool,
    notes: Mutex<PathNotes>,
}

#[derive(Default)]
struct PathNotes {
    sent: Vec<u64>,
    received: Vec<u64>,
    /// The challenges that went to the new address.
    expected: Vec<u64>,
}

impl PathProof {
    #[inline]
    pub(super) fn is_watching(&self) -> bool {
        self.is_watching.load(Ordering::Relaxed)
    }

    /// A new path has to be proved.
    pub(super) fn begin(&self) {
        *self.notes.lock() = PathNotes::default();
        self.is_watching.store(true, Ordering::Relaxed);
    }

    /// There is nothing to prove any more.
    pub(super) fn end(&self) {
        self.is_watching.store(false, Ordering::Relaxed);
    }

    /// Notes the challenges in a packet that is about to leave.
    pub(super) fn note_sent(&self, payload: &[u8]) {
        let notes = &mut *self.notes.lock();
        note(payload, &mut notes.sent, |frame| match frame {
            FoundFrame::Challenge(token) => Some(token),
            FoundFrame::Response(_) | FoundFrame::Crypto(..) | FoundFrame::Close => None,
        });
    }

    /// Notes the responses in a packet that has arrived.
    pub(super) fn note_received(&self, payload: &[u8]) {
        let notes = &mut *self.notes.lock();
        note(payload, &mut notes.received, |frame| match frame {
            FoundFrame::Response(token) => Some(token),
            FoundFrame::Challenge(_) | FoundFrame::Crypto(..) | FoundFrame::Close => None,
        });
    }

    /// Says where the packets since the last call have gone: to the new address or elsewhere.
    pub(super) fn sent_to_new(&self, new: bool) {
        let notes = &mut *self.notes.lock();
        let sent = notes.sent.drain(..);
        match new {
            true => notes.expected.extend(sent),
            false => drop(sent),
        }
        let surplus = notes.expected.len().saturating_sub(CHALLENGES);
        notes.expected.drain(..surplus);
    }

    /// Whether a packet since the last call has proved the new address; `new`: it came from there.
    pub(super) fn is_proved(&self, new: bool) -> bool {
        let notes = &mut *self.notes.lock();
        let mut received = notes.received.drain(..);
        let proved = received.any(|token| notes.expected.contains(&token));
        new && proved
    }
}

fn note(payload: &[u8], out: &mut Vec<u64>, wanted: impl Fn(FoundFrame<'_>) -> Option<u64>) {
    let mut cursor = PacketCursor(payload);
    while let Some(frame) = cursor.next_found() {
        if let Some(token) = wanted(frame)
            && out.len() < NOTED
        {
            out.push(token);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, token: u64) -> Vec<u8> {
        [&[kind][..], &token.to_be_bytes()].concat()
    }

    #[test]
    fn only_an_answer_from_the_new_address_to_a_challenge_sent_there_counts() {
        let proof = PathProof::default();
        proof.begin();
        proof.note_sent(&frame(0x1a, 7));
        proof.sent_to_new(true);
        proof.note_sent(&frame(0x1a, 8));
        proof.sent_to_new(false);
        for (token, new, proved) in [
            (8, true, false),
            (7, false, false),
            (9, true, false),
            (7, true, true),
        ] {
            proof.note_received(&frame(0x1b, token));
            assert_eq!(proof.is_proved(new), proved, "{token}");
        }
    }
}
