//! A wire: what is between the two sockets of a simulated connection.
//!
//! Both sockets are real, and unix, so that the kernel does at once and always in the same way what a program asks of them.
//! Each is one end of a pair; the other ends are here. Bytes are taken in at one end and delivered at the other, in pieces
//! and after a time that chance gives. The end of a stream is carried like a byte. A wire may be cut or fall silent.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};

use super::{chance, count_fault, note};

/// A step of one wire: its number, and whether bytes go from the server to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WireStep {
    pub(super) wire: u64,
    pub(super) direction: usize,
    pub(super) takes_in: bool,
}

/// What chance has decided about a wire.
#[derive(Clone, Copy, Debug)]
pub(super) struct WirePlan {
    /// The shortest and the longest way of a piece, in nanoseconds.
    pub(super) way: (u64, u64),
    /// The most bytes that are taken in at a time, ...
    pub(super) piece: usize,
    /// ... and the most that are under way.
    pub(super) window: usize,
    /// The number of bytes in this direction after which it breaks.
    pub(super) breaks: Option<(usize, u64, WireBreak)>,
}

/// How a wire breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WireBreak {
    /// Both sides get a reset.
    Reset,
    /// Nothing comes through in this direction any more.
    Silence,
}

#[derive(Default)]
struct WirePipe {
    pieces: VecDeque<(u64, Vec<u8>)>,
    under_way: usize,
    last_due: u64,
    taken_in: u64,
    is_silent: bool,
    /// The source has ended; when that arrives.
    end_due: Option<u64>,
    has_ended: bool,
}

/// One wire: the client's side is 0, the server's is 1.
pub(super) struct Wire {
    pub(super) number: u64,
    pub(super) ends: [OwnedFd; 2],
    /// The server's port.
    pub(super) port: u16,
    is_encrypted: bool,
    /// The sockets that the program has, by inode, once they are known.
    pub(super) sockets: [Option<u64>; 2],
    pub(super) plan: WirePlan,
    pipes: [WirePipe; 2],
}

/// After this number of bytes in one direction, pieces are at most as long as this.
const SMALL_PIECES: u64 = 2_000;
const BODY_PIECE: usize = 32 * 1024;

/// What becomes of a wire after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WireFate {
    Lives,
    /// Both directions have ended.
    Finished,
    /// This side gets a reset; the other one is gone.
    ResetOf(usize),
    ResetOfBoth,
}

impl Wire {
    pub(super) fn new(
        number: u64,
        ends: [OwnedFd; 2],
        (port, is_encrypted): (u16, bool),
        plan: WirePlan,
    ) -> Wire {
        Wire {
            number,
            ends,
            port,
            is_encrypted,
            sockets: [None, None],
            plan,
            pipes: Default::default(),
        }
    }

    fn may_take_in(&self, direction: usize) -> bool {
        let pipe = &self.pipes[direction];
        pipe.end_due.is_none() && !pipe.is_silent && pipe.under_way < self.plan.window
    }

    fn is_due(&self, direction: usize, now: u64) -> bool {
        let pipe = &self.pipes[direction];
        match pipe.pieces.front() {
            Some((due, _)) => *due <= now,
            None => !pipe.has_ended && pipe.end_due.is_some_and(|due| due <= now),
        }
    }

    fn next_due(&self, direction: usize) -> Option<u64> {
        let pipe = &self.pipes[direction];
        let end = pipe.end_due.filter(|_| !pipe.has_ended);
        pipe.pieces.front().map(|(due, _)| *due).or(end)
    }

    /// What is to be asked of the two ends.
    pub(super) fn wanted(&self, now: u64) -> [PollFlags; 2] {
        let mut wanted = [PollFlags::empty(); 2];
        for direction in 0..2 {
            if self.may_take_in(direction) {
                wanted[direction] |= PollFlags::IN | PollFlags::RDHUP;
            }
            if self.is_due(direction, now) {
                wanted[1 - direction] |= PollFlags::OUT;
            }
        }
        wanted
    }

    /// The steps that are possible if the ends are in this state, and when there will be another.
    pub(super) fn steps(
        &self,
        now: u64,
        found: [PollFlags; 2],
        push: &mut impl FnMut(WireStep),
    ) -> Option<u64> {
        let broken = PollFlags::HUP | PollFlags::ERR;
        let mut next = None;
        for direction in 0..2 {
            let step = |takes_in| WireStep {
                wire: self.number,
                direction,
                takes_in,
            };
            let readable = PollFlags::IN | PollFlags::RDHUP | broken;
            // What fell silent is read by no one, and goes when both sides have gone.
            let is_over = self.pipes[direction].is_silent
                && found.iter().all(|end| end.contains(PollFlags::HUP));
            if is_over || self.may_take_in(direction) && found[direction].intersects(readable) {
                push(step(true));
            }
            if self.is_due(direction, now) {
                if found[1 - direction].intersects(PollFlags::OUT | broken) {
                    push(step(false));
                }
            } else if let Some(due) = self.next_due(direction) {
                next = Some(next.map_or(due, |next: u64| next.min(due)));
            }
        }
        next
    }

    /// Takes bytes in at one end.
    pub(super) fn take_in(&mut self, direction: usize, now: u64) -> WireFate {
        if self.pipes[direction].is_silent {
            return WireFate::Finished;
        }
        // Heads come in small pieces; bodies in large ones, or a run would consist of nothing else.
        let piece = match self.pipes[direction].taken_in < SMALL_PIECES {
            true => self.plan.piece,
            false => self.plan.piece.max(BODY_PIECE),
        };
        let most = 1 + (chance::number() % piece as u64) as usize;
        let mut bytes = vec![0; most];
        let read = rustix::net::recv(&self.ends[direction], &mut bytes[..], RecvFlags::DONTWAIT);
        let (shortest, longest) = self.plan.way;
        let way = shortest + chance::number() % (longest - shortest + 1);
        let number = self.number;
        let is_encrypted = self.is_encrypted;
        let pipe = &mut self.pipes[direction];
        let due = (now + way).max(pipe.last_due);
        match read {
            Ok((_, 0)) => {
                note(|| format!("wire {number} {} ends", name(direction)));
                pipe.end_due = Some(due);
            }
            Ok((_, n)) => {
                bytes.truncate(n);
                pipe.last_due = due;
                pipe.under_way += n;
                pipe.taken_in += n as u64;
                note(|| match is_encrypted {
                    true => format!("wire {number} {} takes {n}", name(direction)),
                    false => format!(
                        "wire {number} {} takes {n}, {:016x}",
                        name(direction),
                        hash(&bytes)
                    ),
                });
                pipe.pieces.push_back((due, bytes));
                return self.break_if_planned(direction);
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => {
                note(|| format!("wire {number} {} is reset by its sender", name(direction)));
                return WireFate::ResetOf(1 - direction);
            }
        }
        WireFate::Lives
    }

    fn break_if_planned(&mut self, direction: usize) -> WireFate {
        let Some((planned, after, how)) = self.plan.breaks else {
            return WireFate::Lives;
        };
        let pipe = &mut self.pipes[direction];
        if planned != direction || pipe.taken_in < after {
            return WireFate::Lives;
        }
        let number = self.number;
        note(|| format!("wire {number} breaks: {how:?}"));
        match how {
            WireBreak::Reset => {
                count_fault("reset");
                WireFate::ResetOfBoth
            }
            WireBreak::Silence => {
                count_fault("silence");
                pipe.is_silent = true;
                WireFate::Lives
            }
        }
    }

    /// Delivers what is due at the other end.
    pub(super) fn deliver(&mut self, direction: usize) -> WireFate {
        let number = self.number;
        let pipe = &mut self.pipes[direction];
        let target = &self.ends[1 - direction];
        let Some((_, piece)) = pipe.pieces.front_mut() else {
            note(|| format!("wire {number} {} delivers the end", name(direction)));
            pipe.has_ended = true;
            // The other side may be gone already.
            let _ = rustix::net::shutdown(target, Shutdown::Write);
            return match self.pipes[1 - direction].has_ended {
                true => WireFate::Finished,
                false => WireFate::Lives,
            };
        };
        match rustix::net::send(target, piece, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(n) => {
                if n < piece.len() {
                    count_fault("receiver's buffer full");
                }
                note(|| format!("wire {number} {} delivers {n}", name(direction)));
                pipe.under_way -= n;
                piece.drain(..n);
                if piece.is_empty() {
                    pipe.pieces.pop_front();
                }
                WireFate::Lives
            }
            Err(Errno::AGAIN | Errno::INTR) => WireFate::Lives,
            Err(_) => {
                note(|| format!("wire {number} {} finds nobody", name(direction)));
                WireFate::ResetOf(direction)
            }
        }
    }
}

fn name(direction: usize) -> &'static str {
    ["up", "down"][direction]
}

pub(super) fn hash(bytes: &[u8]) -> u64 {
    let fold = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, fold)
}

/// Which of these descriptors are readable now.
pub(super) fn poll_readable<'a>(descriptors: impl Iterator<Item = &'a OwnedFd>) -> Vec<bool> {
    let mut polled: Vec<PollFd<'_>> = descriptors
        .map(|descriptor| PollFd::from_borrowed_fd(descriptor.as_fd(), PollFlags::IN))
        .collect();
    poll_now(&mut polled);
    polled.iter().map(|one| !one.revents().is_empty()).collect()
}

/// Asks the kernel without waiting.
pub(super) fn poll_now(polled: &mut [PollFd<'_>]) {
    let now = rustix::event::Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    loop {
        match rustix::event::poll(polled, Some(&now)) {
            Err(Errno::INTR) => {}
            asked => {
                debug_assert!(asked.is_ok());
                return;
            }
        }
    }
}
