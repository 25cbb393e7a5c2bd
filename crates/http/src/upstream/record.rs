//! What a request remembers of its upstream exchanges, for `$upstream_…` and the error log.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bstr::BString;
use net::upstream::Peer;
use proto::fields::Fields;
use proto::message::ResponseHead;

/// All exchanges of a request.
#[derive(Default)]
pub struct Record {
    /// The tries, in order. Between those before and after an internal redirect stands one without a peer.
    pub tries: Vec<Try>,
    /// The head of the last response.
    pub head: Arc<ResponseHead>,
    /// Fields after the content of the last response.
    pub trailers: Fields,
    /// `http://` and the like, for the error log; empty before a peer was chosen.
    pub scheme: &'static str,
    /// The path that is asked for, for the error log.
    pub target: Vec<u8>,
    /// What the cache said; `None` where there is none.
    pub cache: Option<crate::cache::Status>,
    /// How old what the cache served is, in seconds.
    pub cache_age_s: Option<u32>,
}

/// One try.
#[derive(Clone, Debug, Default)]
pub struct Try {
    /// Where it went.
    pub peer: Option<PeerName>,
    /// The status of the response, or the one that stands for the failure; 0: none.
    pub status: u16,
    /// Until the connection stood.
    pub connect_time: Option<Duration>,
    /// Until the head of the response was there.
    pub header_time: Option<Duration>,
    /// Until it was over.
    pub response_time: Option<Duration>,
    /// The body is being passed to the client: its time is not known yet, for variables that are read before the client's
    /// header is made.
    pub lasts: bool,
    /// Bytes that came after the response's head, as they came: with chunks, records and what else frames content.
    pub response_length: u64,
    /// Bytes received.
    pub bytes_received: u64,
    /// Bytes sent.
    pub bytes_sent: u64,
}

/// What a try went to.
#[derive(Clone, Debug)]
pub enum PeerName {
    /// A peer.
    Peer(Arc<Peer>),
    /// A group of which no peer could be used.
    Group(BString),
}

impl PeerName {
    /// The text.
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            PeerName::Peer(peer) => peer.name(),
            PeerName::Group(name) => name,
        }
    }
}

/// Records that a loop keeps for those that come; more than this are given back to the system.
const MOST_SPARE: usize = 64;

rt::local! {
    // Boxes, because a record travels in the box that it will be given back in.
    #[allow(clippy::vec_box)]
    static SPARE: RefCell<Vec<Box<Record>>> = const { RefCell::new(Vec::new()) };
}

fn take_record() -> Box<Record> {
    SPARE.with_borrow_mut(Vec::pop).unwrap_or_default()
}

fn give_record(mut record: Box<Record>) {
    record.clear();
    // A thread that ends has no use for it any more.
    let _ended = SPARE.try_with(|all| {
        if let Ok(mut all) = all.try_borrow_mut()
            && all.len() < MOST_SPARE
        {
            all.push(record);
        }
    });
}

/// Where a request keeps its record, if it has one. The memory goes to the next request that needs one.
#[derive(Default)]
pub struct Slot(Option<Box<Record>>);

impl Slot {
    /// The record, if there was an exchange.
    pub fn get(&self) -> Option<&Record> {
        self.0.as_deref()
    }

    /// The record, made now if there is none: every exchange sees to that before its first try.
    pub fn get_or_make(&mut self) -> &mut Record {
        self.0.get_or_insert_with(take_record)
    }

    /// Takes over the record of an exchange that was another request's so far.
    pub(crate) fn absorb(&mut self, mut other: Slot) {
        let Some(before) = &self.0 else {
            self.0 = other.0.take();
            return;
        };
        if let Some(record) = &mut other.0 {
            let mut tries = before.tries.clone();
            if !tries.is_empty() {
                tries.push(Try::default());
            }
            tries.append(&mut record.tries);
            record.tries = tries;
        }
        std::mem::swap(self, &mut other);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(record) = self.0.take() {
            give_record(record);
        }
    }
}

impl Record {
    /// Forgets everything and keeps the memory.
    fn clear(&mut self) {
        self.tries.clear();
        self.trailers.clear();
        self.target.clear();
        self.scheme = "";
        self.cache = None;
        self.cache_age_s = None;
        match Arc::get_mut(&mut self.head) {
            Some(head) => head.clear(),
            None => self.head = Arc::default(),
        }
    }

    /// Takes the head out to be filled, empty and with the memory it had.
    pub(super) fn take_head(&mut self) -> ResponseHead {
        match Arc::get_mut(&mut self.head) {
            Some(head) => {
                head.clear();
                std::mem::take(head)
            }
            None => ResponseHead::default(),
        }
    }

    /// Puts a head in.
    pub(super) fn set_head(&mut self, new: ResponseHead) {
        match Arc::get_mut(&mut self.head) {
            Some(head) => *head = new,
            None => self.head = Arc::new(new),
        }
    }

    /// Begins an exchange; tries of an earlier one stay.
    pub fn begin(&mut self) {
        if !self.tries.is_empty() {
            self.tries.push(Try::default());
        }
        match Arc::get_mut(&mut self.head) {
            Some(head) => head.clear(),
            None => self.head = Arc::default(),
        }
        self.trailers.clear();
        self.scheme = "";
    }

    /// Begins a try.
    pub fn begin_try(&mut self) {
        self.tries.push(Try::default());
    }

    /// The present try.
    pub fn current(&mut self) -> &mut Try {
        if self.tries.is_empty() {
            self.begin_try();
        }
        self.tries
            .last_mut()
            .expect("one was pushed just now if there was none")
    }

    /// Appends what the error log shows of the upstream.
    pub fn describe(&self, out: &mut Vec<u8>) {
        let peer = self.tries.last().and_then(|last| last.peer.as_ref());
        let Some(peer) = peer.filter(|_| !self.scheme.is_empty()) else {
            return;
        };
        out.extend_from_slice(b", upstream: \"");
        out.extend_from_slice(self.scheme.as_bytes());
        let name = peer.as_bytes();
        out.extend_from_slice(name);
        if name.starts_with(b"unix:") && !self.target.is_empty() {
            out.push(b':');
        }
        out.extend_from_slice(&self.target);
        out.push(b'"');
    }
}

impl Try {
    /// Sets the time at which it is over, if that was not set before.
    pub fn end(&mut self, began: Instant) {
        self.response_time
            .get_or_insert_with(|| rt::now().saturating_duration_since(began));
    }
}
