//! A ring of records in memory that other processes can read: what `weir tail` shows.
//!
//! The master makes it, and its workers inherit it; a reader gets the descriptor from the master over a socket, if it is
//! root or the server's own user ([`RequestRing::pass_to`]). Writers never wait for a reader and know none: they look at
//! one word, which readers set to a time in the near future again and again. A reader that has died or sleeps ends by
//! doing nothing. A reader that is slower than the ring misses records, and sees how many.
//!
//! ```text
//! word 0  readers    monotonic milliseconds until which a reader is there; 0: none
//! word 1  next       the number of the next record
//! word 2  layout     MAGIC and the version; a reader of another version goes away
//! word 3…7           zero
//! then SLOTS slots of SLOT_WORDS words: record n is in slot n % SLOTS
//!         stamp      2n + 1 while record n is being written, 2n + 2 when it is there
//!         length     of the record in bytes, and 32 bits of its hash above
//!         bytes      SLOT_BYTES
//! ```
//!
//! Loops of several processes write at the same time: each takes a number, and the slot is its own until the ring has
//! gone round. A writer that sleeps for so long, or dies, leaves a slot whose stamp or hash is wrong: readers skip it.
//! The memory is sealed, so that no reader can shorten it under its writers; what is in it is never believed, on either
//! side.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rt::system::SharedCounters;

use crate::abstract_socket;
use crate::channel::Channel;

/// The longest record.
pub const SLOT_BYTES: usize = (SLOT_WORDS - 2) * 8;
const SLOT_WORDS: usize = 512;
const SLOTS: usize = 4096;
const HEAD_WORDS: usize = 8;
const WORDS: usize = HEAD_WORDS + SLOTS * SLOT_WORDS;

const READERS: usize = 0;
const NEXT: usize = 1;
const LAYOUT: usize = 2;
/// `weirtail` without its vowels, and the version of the layout.
const MAGIC: u64 = 0x7765_7274_6c00_0001;

/// How long a reader counts as one after it has said so.
pub const LEASE: Duration = Duration::from_secs(2);
/// How long the master may take to answer: it may be reading a large configuration.
const ANSWER_TIME: Duration = Duration::from_secs(10);
/// How long a record may be under way before a reader skips it.
const WRITE_TIME: Duration = Duration::from_millis(100);

/// The kinds of the master's answers to a reader.
const RING: u8 = 1;
/// The body is the user to whom the server belongs.
const REFUSED: u8 = 2;

/// The ring as the server holds it.
pub struct RequestRing {
    words: SharedCounters,
    file: OwnedFd,
}

static INSTALLED: OnceLock<RequestRing> = OnceLock::new();
/// The first word of the installed ring. Beside it, because each request looks at it.
static READERS_WORD: OnceLock<&'static AtomicU64> = OnceLock::new();

/// Makes the ring of this process and of those that it forks. Fails where memory cannot be shared by descriptors.
pub fn install() -> io::Result<&'static RequestRing> {
    if let Some(ring) = INSTALLED.get() {
        return Ok(ring);
    }
    let (words, file) = SharedCounters::with_file("weir-requests", WORDS)?;
    words.all()[LAYOUT].store(MAGIC, Ordering::Relaxed);
    let ring = INSTALLED.get_or_init(|| RequestRing { words, file });
    READERS_WORD.get_or_init(|| &ring.words.all()[READERS]);
    Ok(ring)
}

/// Whether there is a reader: a load or two.
#[inline]
pub fn is_read() -> bool {
    READERS_WORD
        .get()
        .is_some_and(|word| word.load(Ordering::Relaxed) != 0)
}

/// Writes a record, unless nobody reads any more. Of a longer one the end is missing.
pub fn write_record(record: &[u8]) {
    let Some(ring) = INSTALLED.get() else { return };
    let readers = &ring.words.all()[READERS];
    let until = readers.load(Ordering::Relaxed);
    if until < rt::clock::machine_millis() {
        // The last one has left. It fails if another one has come.
        let _ = readers.compare_exchange(until, 0, Ordering::Relaxed, Ordering::Relaxed);
        return;
    }
    let number = ring.words.all()[NEXT].fetch_add(1, Ordering::Relaxed);
    let slot = slot(&ring.words, number);
    let record = &record[..record.len().min(SLOT_BYTES)];
    slot[0].store(writing(number), Ordering::Relaxed);
    // A reader that sees one of the bytes below sees the stamp, too.
    std::sync::atomic::fence(Ordering::Release);
    slot[1].store(length_word(record), Ordering::Relaxed);
    for (word, bytes) in slot[2..].iter().zip(record.chunks(8)) {
        let mut whole = [0; 8];
        whole[..bytes.len()].copy_from_slice(bytes);
        word.store(u64::from_le_bytes(whole), Ordering::Relaxed);
    }
    slot[0].store(written(number), Ordering::Release);
}

const fn writing(number: u64) -> u64 {
    number.wrapping_mul(2).wrapping_add(1)
}

const fn written(number: u64) -> u64 {
    number.wrapping_mul(2).wrapping_add(2)
}

fn slot(words: &SharedCounters, number: u64) -> &[AtomicU64] {
    let index = (number % SLOTS as u64) as usize;
    &words.all()[HEAD_WORDS + index * SLOT_WORDS..][..SLOT_WORDS]
}

fn length_word(record: &[u8]) -> u64 {
    u64::from(base::hash::crc32(record)) << 32 | record.len() as u64
}

impl RequestRing {
    /// Answers a process that has connected to [`listen`]'s socket: with the ring, or with nothing if it is another
    /// user's. An error means that it has gone.
    pub fn pass_to(&self, connection: OwnedFd, user: u32) -> io::Result<()> {
        let own = rt::system::user_id();
        let channel = Channel::from_accepted(connection)?;
        match user == 0 || user == own {
            true => channel.send_enclosed(RING, b"", self.file.as_fd()),
            false => channel.send(REFUSED, &own.to_le_bytes(), &[]),
        }
    }
}

/// Where readers connect; the number is the master's. `None` where abstract sockets do not exist.
pub fn listen() -> Option<OwnedFd> {
    abstract_socket::listen(&socket_name(std::process::id())).ok()
}

/// Answers all that have connected.
pub fn answer_readers(socket: &OwnedFd) {
    while let Ok((connection, user)) = abstract_socket::accept(socket) {
        if let Some(ring) = INSTALLED.get() {
            // A reader that is gone does not want to know.
            let _ = ring.pass_to(connection, user);
        }
    }
}

fn socket_name(master: u32) -> String {
    format!("weir requests {master}")
}

/// Why a ring cannot be read.
#[derive(Debug)]
pub enum RingRefusal {
    /// No process with this number listens, or it has no ring.
    NoServer,
    /// It belongs to this user.
    OtherUser(u32),
    /// It is of another version.
    OtherVersion,
    /// The system.
    Failed(io::Error),
}

impl From<io::Error> for RingRefusal {
    fn from(error: io::Error) -> RingRefusal {
        RingRefusal::Failed(error)
    }
}

/// The ring as a reader sees it. Dropping it leaves it.
pub struct RingReader {
    words: SharedCounters,
    /// The number of the next record to read.
    next: u64,
    /// Since when that has been under way, in machine milliseconds.
    awaited_ms: Option<u64>,
    /// How many records could not be read.
    lost: u64,
}

impl RingReader {
    /// Connects to the server whose master has this number. Records that begin from now on are read.
    pub fn connect(master: u32) -> Result<RingReader, RingRefusal> {
        let connected = abstract_socket::connect(&socket_name(master));
        let (socket, process) = connected.map_err(|_| RingRefusal::NoServer)?;
        // Any process can take the name, but not the number of the process that listens.
        if process != master {
            return Err(RingRefusal::NoServer);
        }
        let ready = crate::process::wait_readable(&[socket.as_fd()], Some(ANSWER_TIME))?;
        if !ready[0] {
            return Err(RingRefusal::NoServer);
        }
        let file = receive(socket)?;
        RingReader::of_file(file.as_fd())
    }

    fn of_file(file: BorrowedFd<'_>) -> Result<RingReader, RingRefusal> {
        let words = SharedCounters::of_file(file, WORDS).map_err(|_| RingRefusal::OtherVersion)?;
        if words.all()[LAYOUT].load(Ordering::Relaxed) != MAGIC {
            return Err(RingRefusal::OtherVersion);
        }
        let mut reader = RingReader {
            words,
            next: 0,
            awaited_ms: None,
            lost: 0,
        };
        reader.renew();
        reader.next = reader.words.all()[NEXT].load(Ordering::Relaxed);
        Ok(reader)
    }

    /// Says that there is a reader for another [`LEASE`]. To be called several times in that time. Whether nobody did
    /// meanwhile, because this was called too late: what was not written then is not even counted.
    pub fn renew(&self) -> bool {
        let now = rt::clock::machine_millis();
        let until = now + LEASE.as_millis() as u64;
        self.words.all()[READERS].fetch_max(until, Ordering::Relaxed) < now
    }

    /// How many records have been lost since this was last asked.
    pub fn take_lost(&mut self) -> u64 {
        std::mem::take(&mut self.lost)
    }

    /// The next record, if there is one.
    pub fn read_record(&mut self, record: &mut Vec<u8>) -> bool {
        loop {
            let end = self.words.all()[NEXT].load(Ordering::Acquire);
            if self.next >= end {
                return false;
            }
            // A slot may be written again at any moment once the ring has gone round: the oldest ones are given up.
            let oldest = end.saturating_sub(SLOTS as u64 - SLOTS as u64 / 16);
            if self.next < oldest {
                self.lost += oldest - self.next;
                (self.next, self.awaited_ms) = (oldest, None);
            }
            match self.read_slot(record) {
                SlotState::There => {
                    (self.next, self.awaited_ms) = (self.next + 1, None);
                    return true;
                }
                SlotState::UnderWay if !self.has_waited() => return false,
                SlotState::UnderWay | SlotState::Damaged => {
                    self.lost += 1;
                    (self.next, self.awaited_ms) = (self.next + 1, None);
                }
            }
        }
    }

    /// Whether the writer of the next record has had its time.
    fn has_waited(&mut self) -> bool {
        let now = rt::clock::machine_millis();
        let since = *self.awaited_ms.get_or_insert(now);
        now.saturating_sub(since) >= WRITE_TIME.as_millis() as u64
    }

    fn read_slot(&self, record: &mut Vec<u8>) -> SlotState {
        let slot = slot(&self.words, self.next);
        let stamp = slot[0].load(Ordering::Acquire);
        if stamp != written(self.next) {
            return match stamp > written(self.next) {
                true => SlotState::Damaged,
                false => SlotState::UnderWay,
            };
        }
        let word = slot[1].load(Ordering::Relaxed);
        let length = ((word & 0xffff_ffff) as usize).min(SLOT_BYTES);
        record.clear();
        for word in &slot[2..2 + length.div_ceil(8)] {
            record.extend_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
        record.truncate(length);
        match length_word(record) == word {
            true => SlotState::There,
            false => SlotState::Damaged,
        }
    }
}

/// What is in a slot.
enum SlotState {
    There,
    UnderWay,
    Damaged,
}

/// The master's answer.
fn receive(socket: OwnedFd) -> Result<OwnedFd, RingRefusal> {
    let message = Channel::from_accepted(socket)?.receive()?;
    let Some(message) = message else {
        return Err(RingRefusal::NoServer);
    };
    if message.kind == REFUSED {
        let user = message
            .body
            .first_chunk()
            .map_or(0, |user| u32::from_le_bytes(*user));
        return Err(RingRefusal::OtherUser(user));
    }
    let file = message.descriptors.into_iter().next();
    file.filter(|_| message.kind == RING)
        .ok_or(RingRefusal::OtherVersion)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_in_order_and_a_slow_reader_sees_what_it_missed() {
        let ring = install().expect("memory can be shared");
        write_record(b"nobody reads this");
        let mut reader = RingReader::of_file(ring.file.as_fd()).expect("it is ours");
        assert!(is_read());
        let mut record = Vec::new();
        assert!(!reader.read_record(&mut record));
        write_record(b"first");
        write_record(&[b'x'; SLOT_BYTES + 1]);
        assert!(reader.read_record(&mut record) && record == b"first");
        assert!(reader.read_record(&mut record) && record.len() == SLOT_BYTES);
        for number in 0..SLOTS + 10 {
            write_record(number.to_string().as_bytes());
        }
        assert!(reader.read_record(&mut record));
        let first: usize = String::from_utf8_lossy(&record).parse().expect("a number");
        assert_eq!(reader.take_lost(), first as u64);
        assert!(first > 10);
        while reader.read_record(&mut record) {}
        reader.take_lost();
        // A writer that has died in the middle of a record.
        let number = ring.words.all()[NEXT].fetch_add(1, Ordering::Relaxed);
        slot(&ring.words, number)[0].store(writing(number), Ordering::Relaxed);
        write_record(b"after it");
        while record != b"after it" {
            reader.read_record(&mut record);
        }
        assert_eq!(reader.take_lost(), 1);
        // The last reader has left.
        ring.words.all()[READERS].store(1, Ordering::Relaxed);
        write_record(b"late");
        assert!(!is_read());
    }
}
