//! What a request records about its upstream exchanges, for `$upstream_…` and the error log.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bstr::BString;
use host::error_log::ContextWriter;
use net::upstream::UpstreamPeer;
use proto::fields::Fields;
use proto::message::ResponseHead;

/// All exchanges of a request.
#[derive(Default)]
pub struct UpstreamRecord {
    /// The tries in order. An entry without a server separates those before and after an internal redirect.
    pub tries: Vec<UpstreamTry>,
    /// The head of the latest response.
    pub head: Arc<ResponseHead>,
    /// The trailers of the latest response.
    pub trailers: Fields,
    /// `http://` and the like, for the error log; empty until a server has been chosen.
    pub scheme: &'static str,
    /// An internal redirect has left the location whose exchanges these were, and none has begun since.
    pub is_left: bool,
    /// The requested path, for the error log.
    pub target: Vec<u8>,
    /// The cache status; `None` if there is no cache.
    pub cache: Option<crate::cache::UpstreamCacheStatus>,
    /// The age in seconds of what the cache served.
    pub cache_age_s: Option<u32>,
    /// Why the response was not stored, or not looked for; empty if there is nothing to explain.
    pub cache_reason: String,
}

/// One try.
#[derive(Clone, Debug, Default)]
pub struct UpstreamTry {
    /// When it began; `None` for what separates two exchanges.
    pub began: Option<Instant>,
    /// It was made by a fetch for the cache, which has it in a record of its own.
    pub is_of_fetch: bool,
    /// The server, or the group if no server could be used.
    pub peer: Option<PeerName>,
    /// The status of the response, or of the failure; 0: none.
    pub status: u16,
    /// The time until the connection was established.
    pub connect_time: Option<Duration>,
    /// The time until the head of the response had arrived.
    pub header_time: Option<Duration>,
    /// The time until the try was over.
    pub response_time: Option<Duration>,
    /// The body is still being passed to the client. Variables that are evaluated before the client's head is written
    /// must not see a response time.
    pub is_in_progress: bool,
    /// The number of bytes after the response head, including the framing of the body (chunks, records).
    pub response_length: u64,
    /// All bytes received.
    pub bytes_received: u64,
    /// All bytes sent.
    pub bytes_sent: u64,
}

/// What `$upstream_addr` shows.
#[derive(Clone, Debug)]
pub enum PeerName {
    /// The server that was tried.
    Peer(Arc<UpstreamPeer>),
    /// The group, if none of its servers could be used.
    Group(BString),
}

impl PeerName {
    /// The text for logs and variables.
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            PeerName::Peer(peer) => peer.name(),
            PeerName::Group(name) => name,
        }
    }
}

/// The number of unused records that a loop keeps. More than this are released.
const MOST_SPARE: usize = 64;

rt::local! {
    /// An empty head.
    static NO_HEAD: Arc<ResponseHead> = Arc::default();
    // Boxed, because a record travels in the box that it is returned in.
    #[allow(clippy::vec_box)]
    static SPARE: RefCell<Vec<Box<UpstreamRecord>>> = const { RefCell::new(Vec::new()) };
}

/// A record from the spare ones, or a new one.
fn take_record() -> Box<UpstreamRecord> {
    SPARE.with_borrow_mut(Vec::pop).unwrap_or_default()
}

/// Returns a record to the spare ones.
fn give_record(mut record: Box<UpstreamRecord>) {
    record.clear();
    // A thread that is ending has released its spare records already.
    let _ended = SPARE.try_with(|all| {
        if let Ok(mut all) = all.try_borrow_mut()
            && all.len() < MOST_SPARE
        {
            all.push(record);
        }
    });
}

/// The place of a request's record, if it has one. Its memory is reused by the next request that needs one.
#[derive(Default)]
pub struct RecordSlot(Option<Box<UpstreamRecord>>);

impl RecordSlot {
    /// The record, if there has been an exchange.
    pub fn get(&self) -> Option<&UpstreamRecord> {
        self.0.as_deref()
    }

    /// The record, made now if there is none: every exchange sees to that before its first try.
    pub fn get_or_make(&mut self) -> &mut UpstreamRecord {
        self.0.get_or_insert_with(take_record)
    }

    /// The target of an earlier exchange does not count any more.
    pub(super) fn forget_target(&mut self) {
        if let Some(record) = &mut self.0 {
            record.target.clear();
        }
    }

    /// An internal redirect leaves the location whose exchanges these were.
    pub(crate) fn leave_location(&mut self) {
        if let Some(record) = &mut self.0 {
            record.is_left = true;
        }
    }

    /// A location passes the request on.
    pub(crate) fn enter_location(&mut self) {
        if let Some(record) = &mut self.0 {
            record.is_left = false;
        }
    }

    /// Takes over the record of an exchange that ran on another request.
    pub(crate) fn absorb_record(&mut self, mut other: RecordSlot) {
        let Some(before) = &self.0 else {
            self.0 = other.0.take();
            return;
        };
        if let Some(record) = &mut other.0 {
            let mut tries = before.tries.clone();
            if !tries.is_empty() {
                tries.push(UpstreamTry::default());
            }
            tries.append(&mut record.tries);
            record.tries = tries;
        }
        std::mem::swap(self, &mut other);
    }
}

impl Drop for RecordSlot {
    fn drop(&mut self) {
        if let Some(record) = self.0.take() {
            give_record(record);
        }
    }
}

impl UpstreamRecord {
    /// Clears everything, and keeps the memory.
    fn clear(&mut self) {
        self.tries.clear();
        self.trailers.clear();
        self.target.clear();
        self.scheme = "";
        self.is_left = false;
        self.cache = None;
        self.cache_age_s = None;
        self.cache_reason.clear();
        // A head that a stored response shares must not be changed. What replaces it is shared as well: the next response
        // mostly comes from the cache, too.
        match Arc::get_mut(&mut self.head) {
            Some(head) => head.clear(),
            None => self.head = NO_HEAD.try_with(Arc::clone).unwrap_or_default(),
        }
    }

    /// Notes a reason why the cache does less than it could: the rule, and where it stands if the configuration has it.
    pub fn add_cache_reason(&mut self, rule: &str, place: Option<&str>) {
        let reason = &mut self.cache_reason;
        // A request may be decided on more than once; the same reason counts once.
        if reason.contains(rule) {
            return;
        }
        if !reason.is_empty() {
            reason.push_str(", ");
        }
        reason.push_str(rule);
        if let Some(place) = place {
            reason.extend([" (", place, ")"]);
        }
    }

    /// Takes the head out, empty and with its memory, so that it can be filled while the request is borrowed.
    pub(super) fn take_head(&mut self) -> ResponseHead {
        match Arc::get_mut(&mut self.head) {
            Some(head) => {
                head.clear();
                std::mem::take(head)
            }
            None => ResponseHead::default(),
        }
    }

    /// Puts a head back.
    pub(super) fn set_head(&mut self, new: ResponseHead) {
        match Arc::get_mut(&mut self.head) {
            Some(head) => *head = new,
            None => self.head = Arc::new(new),
        }
    }

    /// Starts an exchange. The tries of earlier ones remain.
    pub fn begin_exchange(&mut self) {
        // The separator between the exchanges before and after an internal redirect.
        if !self.tries.is_empty() {
            self.tries.push(UpstreamTry::default());
        }
        match Arc::get_mut(&mut self.head) {
            Some(head) => head.clear(),
            None => self.head = Arc::default(),
        }
        self.trailers.clear();
        self.scheme = "";
        self.is_left = false;
    }

    /// Starts a try.
    pub fn begin_try(&mut self) {
        self.tries.push(UpstreamTry {
            began: Some(rt::now()),
            ..UpstreamTry::default()
        });
    }

    /// The current try.
    pub fn current_try(&mut self) -> &mut UpstreamTry {
        if self.tries.is_empty() {
            self.begin_try();
        }
        self.tries
            .last_mut()
            .expect("one was pushed just now if there was none")
    }

    /// Appends the upstream's part of an error log line.
    pub fn describe(&self, out: &mut ContextWriter<'_>) {
        let peer = self.tries.last().and_then(|last| last.peer.as_ref());
        let Some(peer) = peer.filter(|_| !self.scheme.is_empty()) else {
            return;
        };
        let name = peer.as_bytes();
        // nginx separates a socket's path from the request's path by a colon.
        let colon = match name.starts_with(b"unix:") && !self.target.is_empty() {
            true => &b":"[..],
            false => b"",
        };
        let url = [self.scheme.as_bytes(), name, colon, &self.target].concat();
        out.quoted("upstream", &url);
    }
}

impl UpstreamTry {
    /// Sets the time until the try was over, unless that is already set.
    pub fn set_response_time(&mut self, took: Duration) {
        self.response_time.get_or_insert(took);
    }
}
