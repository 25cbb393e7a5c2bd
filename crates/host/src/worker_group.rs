//! The worker processes of one server as they see each other (`worker_groups`).
//!
//! The master makes the [`GroupLinks`] before it forks; each worker becomes a [`GroupMember`]. Two things connect
//! them. A *board* of shared counters says how many connections each group has, so that a loop can pass a new one on
//! to a group with fewer. And each group has an *inbox*, a socket into which the others write packets:
//!
//! ```text
//! kind u8 | group of the sender u8 | number u64 | topic length u8, topic | rest: body
//! kind: 'C' a connection (with its descriptor; topic: the engine, body: the address that accepted it)
//!       'R' the same, returned by a group whose loops are all late
//!       'M' an idle connection that moves (body: what its engine knows of it)
//!       'T' tells something   'Q' asks, under this number   'A' answers this number
//! ```
//!
//! A packet is one message of the kernel, so several senders cannot mix theirs. The master keeps the inboxes open: of
//! what was sent to a group that has crashed, it passes connections on to another one, and the process that takes its
//! place reads the rest. Nothing here ever waits for another group: a packet for which there is no room is not sent, and
//! the sender goes on without.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use base::sync::Mutex;
use rt::sync::remote_oneshot::{self, RemoteReceiver, RemoteSender};
use rt::system::SharedCounters;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

/// The most groups that a server can have.
pub const MAX_GROUPS: usize = 64;

/// How many connections more than another group's loops a loop may have before it passes new ones on. As between the
/// loops of one process, a [`SLACK_SHARE`]th of what those have is added.
const SLACK: usize = 2;
/// The divisor of the relative part of [`SLACK`].
const SLACK_SHARE: usize = 32;

/// Groups may exceed the mean by this part and [`SLACK`] connections before idle ones are moved.
const BALANCE_SHARE: usize = 20;

/// The longest packet.
const MAX_PACKET: usize = 64 * 1024;

/// How much of an answer is in one packet.
const ANSWER_PIECE: usize = 32 * 1024;

/// The longest answer. The metrics of ten thousand servers have some 40 MB.
const MAX_ANSWER: usize = 256 * 1024 * 1024;
/// The part of a packet before its topic.
const HEAD: usize = 11;
/// How long an answer may take: another group may be short of processor time, and the client is waiting.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);
/// How many packets of a dead process the master looks at: more than an inbox holds by default.
const MAX_RESCUED: usize = 1024;
/// How long a thread that may wait does so for room in an inbox.
const ROOM_TIMEOUT: Duration = Duration::from_secs(5);
/// Questions without an answer so far; beyond that, none is asked.
const MAX_QUESTIONS: usize = 256;

/// The counters of a group on the board: one cache line each, so that groups do not slow each other down.
const ROW: usize = 8;
const CONNECTIONS: usize = 0;
const UNDER_WAY: usize = 1;
const LOOPS: usize = 2;
const GENERATION: usize = 3;

/// Which of the worker processes this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerGroup {
    /// Its number, from 0.
    pub index: usize,
    /// How many there are.
    pub count: usize,
}

impl WorkerGroup {
    /// The only one.
    pub const ALONE: WorkerGroup = WorkerGroup { index: 0, count: 1 };

    /// The numbers of its loops, of this number in all groups. Each group has one at least.
    pub fn loops(self, all: usize) -> Range<usize> {
        let all = all.max(self.count);
        let begin = |index: usize| index * all / self.count.max(1);
        begin(self.index)..begin(self.index + 1)
    }

    /// This group's part of a limit that the configuration gives for the server, rounded up.
    pub fn part_of(self, limit: u64) -> u64 {
        limit.div_ceil(self.count.max(1) as u64)
    }
}

/// What connects the groups, in the master.
pub struct GroupLinks {
    board: Arc<SharedCounters>,
    /// The reading ends, by group.
    inboxes: Vec<Arc<OwnedFd>>,
    /// The writing ends, by group.
    outboxes: Vec<Arc<OwnedFd>>,
}

impl GroupLinks {
    /// The links of this number of groups.
    pub fn new(count: usize) -> io::Result<GroupLinks> {
        let board = Arc::new(SharedCounters::new(count * ROW)?);
        let (mut inboxes, mut outboxes) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let (inbox, outbox) = rustix::net::socketpair(
                AddressFamily::UNIX,
                SocketType::SEQPACKET,
                SocketFlags::CLOEXEC,
                None,
            )?;
            inboxes.push(Arc::new(inbox));
            outboxes.push(Arc::new(outbox));
        }
        Ok(GroupLinks {
            board,
            inboxes,
            outboxes,
        })
    }

    /// The process of this group has ended: its connections are gone, and nothing is to be passed to it until another
    /// one serves. Connections that were on their way to it go to a group that serves; what else was sent to it is left
    /// for the next process.
    pub fn forget_process(&self, group: usize) {
        for counter in row(&self.board, group) {
            counter.store(0, Relaxed);
        }
        let Some(inbox) = self.inboxes.get(group) else {
            return;
        };
        let mut left = Vec::new();
        let mut bytes = vec![0; MAX_PACKET];
        // Bounded: a group that goes on sending must not keep the master here.
        for _ in 0..MAX_RESCUED {
            let received = receive_packet(inbox, &mut bytes, RecvFlags::DONTWAIT);
            let Ok((length, descriptor)) = received else {
                break;
            };
            let packet = &mut bytes[..length];
            if let (Some(kind), Some(descriptor)) = (packet.first_mut(), &descriptor) {
                // It has nowhere else to go.
                if *kind == ArrivalKind::New.code() {
                    *kind = ArrivalKind::Returned.code();
                }
                if self.send_to_any(packet, descriptor.as_fd()) {
                    continue;
                }
            }
            left.push((packet.to_vec(), descriptor));
        }
        for (packet, descriptor) in left {
            let descriptor = descriptor.as_ref().map(|descriptor| descriptor.as_fd());
            // There was room for it a moment ago.
            let _ = send_packet(&self.outboxes[group], &packet, descriptor);
        }
    }

    /// Sends a connection to a group that serves.
    fn send_to_any(&self, packet: &[u8], descriptor: BorrowedFd<'_>) -> bool {
        let serves = |group: &usize| row(&self.board, *group)[LOOPS].load(Relaxed) > 0;
        let Some(group) = (0..self.outboxes.len()).find(serves) else {
            return false;
        };
        let under_way = &row(&self.board, group)[UNDER_WAY];
        under_way.fetch_add(1, Relaxed);
        let sent = send_packet(&self.outboxes[group], packet, Some(descriptor));
        if !sent {
            take_one(under_way);
        }
        sent
    }

    /// The links as the process of one group holds them, after the fork.
    pub fn join(&self, place: WorkerGroup) -> GroupMember {
        let links = self.inboxes.get(place.index).map(|inbox| MemberLinks {
            board: Arc::clone(&self.board),
            inbox: Arc::clone(inbox),
            outboxes: self.outboxes.clone(),
        });
        GroupMember {
            place,
            links,
            ..GroupMember::alone()
        }
    }
}

/// The counters of a group on the board.
fn row(board: &SharedCounters, group: usize) -> &[AtomicU64] {
    board
        .all()
        .get(group * ROW..(group + 1) * ROW)
        .unwrap_or_default()
}

/// This process as one of the groups.
pub struct GroupMember {
    place: WorkerGroup,
    /// `None` if it is alone.
    links: Option<MemberLinks>,
    /// What it does with messages, by topic.
    topics: Mutex<BTreeMap<&'static str, TopicHandler>>,
    /// Who waits for the answer to which question.
    questions: Mutex<OpenQuestions>,
    /// What has come of answers that are longer than a packet.
    parts: Mutex<HashMap<(u64, usize), Vec<u8>>>,
    next_question: AtomicU64,
    /// Whether the inbox is being read.
    reads: AtomicBool,
    /// Takes in connections that other groups have accepted.
    arrival: Mutex<Option<ArrivalHandler>>,
}

/// The ends that a group holds.
struct MemberLinks {
    board: Arc<SharedCounters>,
    inbox: Arc<OwnedFd>,
    outboxes: Vec<Arc<OwnedFd>>,
}

/// Who waits for an answer, by the question's number and the group that is asked.
type OpenQuestions = BTreeMap<(u64, usize), RemoteSender<Vec<u8>>>;

/// What a group does with a message, on a thread of its own. The result answers a question.
type TopicHandler = Arc<dyn Fn(&[u8]) -> Option<Vec<u8>> + Send + Sync>;

/// Takes a connection in.
type ArrivalHandler = Arc<dyn Fn(GroupArrival<'_>) -> Result<(), OwnedFd> + Send + Sync>;

/// A connection that another group has accepted.
pub struct GroupArrival<'a> {
    /// Why it comes.
    pub kind: ArrivalKind,
    /// The kind of its engine; empty if it is idle.
    pub engine: &'a [u8],
    /// The address that accepted it, or what the engine knows of an idle one.
    pub body: &'a [u8],
    /// The connection.
    pub descriptor: OwnedFd,
}

/// Why a connection comes from another group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArrivalKind {
    /// It was just accepted, and this group has fewer.
    New,
    /// This group has accepted it, and the other one has no room for it: it has nowhere else to go.
    Returned,
    /// It is idle, and this group has fewer.
    Idle,
}

impl ArrivalKind {
    fn code(self) -> u8 {
        match self {
            ArrivalKind::New => b'C',
            ArrivalKind::Returned => b'R',
            ArrivalKind::Idle => b'M',
        }
    }
}

impl GroupMember {
    /// A process without others.
    pub fn alone() -> GroupMember {
        GroupMember {
            place: WorkerGroup::ALONE,
            links: None,
            topics: Mutex::default(),
            questions: Mutex::default(),
            parts: Mutex::default(),
            next_question: AtomicU64::new(1),
            reads: AtomicBool::new(false),
            arrival: Mutex::default(),
        }
    }

    /// Which of the groups this is.
    pub fn place(&self) -> WorkerGroup {
        self.place
    }

    /// Whether there are others.
    pub fn has_siblings(&self) -> bool {
        self.links.is_some()
    }

    /// Begins to read what other groups send; does nothing if it has begun. Until then it stays in the inbox, also
    /// what was sent to a process that has died.
    pub fn start(self: &Arc<Self>) -> io::Result<()> {
        let Some(links) = self
            .links
            .as_ref()
            .filter(|_| !self.reads.swap(true, Relaxed))
        else {
            return Ok(());
        };
        let (member, inbox) = (Arc::clone(self), Arc::clone(&links.inbox));
        std::thread::Builder::new()
            .name("worker group".to_owned())
            .spawn(move || member.read_inbox(&inbox))?;
        Ok(())
    }

    // -- connections --

    /// Sets what is done with connections that other groups have accepted. One that would have to wait here comes back
    /// as the error, and is returned to its group.
    pub fn on_arrival(
        &self,
        take: impl Fn(GroupArrival<'_>) -> Result<(), OwnedFd> + Send + Sync + 'static,
    ) {
        *self.arrival.lock() = Some(Arc::new(take));
    }

    /// Tells the others that this process serves the configuration with this number on `loops` loops; with none, it
    /// takes no more connections.
    pub fn publish(&self, loops: usize, generation: u64) {
        let Some(links) = &self.links else { return };
        let own = row(&links.board, self.place.index);
        own[GENERATION].store(generation, Relaxed);
        own[LOOPS].store(loops as u64, Relaxed);
    }

    /// Counts a connection that a loop of this process has begun to serve.
    pub fn count_opened(&self) {
        if let Some(links) = &self.links {
            row(&links.board, self.place.index)[CONNECTIONS].fetch_add(1, Relaxed);
        }
    }

    /// Counts the end of a connection.
    pub fn count_closed(&self) {
        if let Some(links) = &self.links {
            take_one(&row(&links.board, self.place.index)[CONNECTIONS]);
        }
    }

    /// The group that should have the next connection in place of a loop of this one that has `own` connections.
    pub fn less_loaded_than(&self, own: usize) -> Option<usize> {
        let links = self.links.as_ref()?;
        let generation = row(&links.board, self.place.index)[GENERATION].load(Relaxed);
        let others = (0..self.place.count).filter(|group| *group != self.place.index);
        let loads = others.filter_map(|group| {
            let counters = row(&links.board, group);
            let number = |which: usize| counters[which].load(Relaxed) as usize;
            // With another configuration it may not know the address. With no loops it is not there.
            let is_like_this = counters[GENERATION].load(Relaxed) == generation;
            let loops = Some(number(LOOPS)).filter(|loops| *loops > 0 && is_like_this)?;
            Some(((number(CONNECTIONS) + number(UNDER_WAY)) / loops, group))
        });
        let (fewest, group) = loads.min()?;
        (own > fewest + SLACK + fewest / SLACK_SHARE).then_some(group)
    }

    /// Passes a connection that was just accepted on to another group. `false` if it could not be sent.
    pub fn give(&self, group: usize, engine: &str, address: &str, socket: BorrowedFd<'_>) -> bool {
        let what = (engine.as_bytes(), address.as_bytes());
        self.send_connection(ArrivalKind::New, group, what, socket)
    }

    /// Moves an idle connection to another group, with what its engine knows of it. `false` if it could not be sent.
    pub fn give_idle(&self, group: usize, body: &[u8], socket: BorrowedFd<'_>) -> bool {
        self.send_connection(ArrivalKind::Idle, group, (b"", body), socket)
    }

    /// How many connections this group has beyond its share, and which group has the fewest; `None` if the difference
    /// is not worth it.
    pub fn surplus(&self) -> Option<(usize, usize)> {
        let links = self.links.as_ref()?;
        let generation = row(&links.board, self.place.index)[GENERATION].load(Relaxed);
        let group = |group: usize| {
            let counters = row(&links.board, group);
            let number = |which: usize| counters[which].load(Relaxed) as usize;
            let is_like_this = counters[GENERATION].load(Relaxed) == generation;
            let loops = Some(number(LOOPS)).filter(|loops| *loops > 0 && is_like_this)?;
            Some((number(CONNECTIONS) + number(UNDER_WAY), loops, group))
        };
        // Read once each: a group, this one too, may end at any moment.
        let all: Vec<_> = (0..self.place.count).filter_map(group).collect();
        let (own, own_loops, _) = *all
            .iter()
            .find(|(_, _, group)| *group == self.place.index)?;
        let connections: usize = all.iter().map(|(connections, _, _)| connections).sum();
        let loops: usize = all.iter().map(|(_, loops, _)| loops).sum();
        let mean = connections / loops;
        let means = all
            .iter()
            .map(|(connections, loops, group)| (connections / loops, *group));
        let (fewest, lightest) = means.min()?;
        let slack = SLACK + mean / BALANCE_SHARE;
        let is_heavy = own / own_loops > mean + slack && own / own_loops > fewest + slack;
        is_heavy.then(|| (own - mean * own_loops, lightest))
    }

    // -- messages --

    /// Sets what is done with messages of a topic. On a thread of its own, so it may lock, but not wait.
    pub fn on_message(
        &self,
        topic: &'static str,
        handle: impl Fn(&[u8]) -> Option<Vec<u8>> + Send + Sync + 'static,
    ) {
        self.topics.lock().insert(topic, Arc::new(handle));
    }

    /// Tells all other groups something. `false` if one of them could not be told.
    pub fn tell(&self, topic: &str, body: &[u8]) -> bool {
        let Some(links) = &self.links else {
            return true;
        };
        let others = (0..self.place.count).filter(|group| *group != self.place.index);
        let mut told = true;
        for group in others {
            told &= links.send(group, self.packet(b'T', 0, topic.as_bytes(), body), None);
        }
        told
    }

    /// The same for a thread that may wait for groups whose inboxes are full, a few seconds for each.
    pub fn tell_patiently(&self, topic: &str, body: &[u8]) {
        let Some(links) = &self.links else { return };
        for group in (0..self.place.count).filter(|group| *group != self.place.index) {
            links.wait_for_room(group);
            // A group that has read nothing in this time is stuck; its master cannot help it either.
            let _ = links.send(group, self.packet(b'T', 0, topic.as_bytes(), body), None);
        }
    }

    /// Asks all other groups; one [`GroupAnswer`] each.
    pub fn ask(&self, topic: &str, body: &[u8]) -> Vec<GroupAnswer> {
        let Some(links) = &self.links else {
            return Vec::new();
        };
        let number = self.next_question.fetch_add(1, Relaxed);
        let others = (0..self.place.count).filter(|group| *group != self.place.index);
        let ask = |group: usize| {
            // A group that does not serve would not answer in time.
            let is_there = row(&links.board, group)[LOOPS].load(Relaxed) > 0;
            let answer = is_there.then(|| self.await_answer(number, group)).flatten();
            let sent = answer.is_some()
                && links.send(
                    group,
                    self.packet(b'Q', number, topic.as_bytes(), body),
                    None,
                );
            let answer = answer.filter(|_| sent);
            GroupAnswer { group, answer }
        };
        others.map(ask).collect()
    }

    /// Notes that a caller waits for an answer; `None` if too many do.
    fn await_answer(&self, number: u64, group: usize) -> Option<RemoteReceiver<Vec<u8>>> {
        let mut questions = self.questions.lock();
        // Those whose askers have given up.
        questions.retain(|_, asker| !asker.is_closed());
        self.parts
            .lock()
            .retain(|question, _| questions.contains_key(question));
        if questions.len() >= MAX_QUESTIONS {
            return None;
        }
        let (sender, receiver) = remote_oneshot::channel();
        questions.insert((number, group), sender);
        Some(receiver)
    }

    /// A packet of this group.
    fn packet(&self, kind: u8, number: u64, topic: &[u8], body: &[u8]) -> Vec<u8> {
        let mut packet = vec![kind, self.place.index as u8];
        packet.extend_from_slice(&number.to_le_bytes());
        packet.push(u8::try_from(topic.len()).unwrap_or(u8::MAX));
        packet.extend_from_slice(&topic[..topic.len().min(usize::from(u8::MAX))]);
        packet.extend_from_slice(body);
        packet
    }

    /// The body of the thread: reads until the socket fails.
    fn read_inbox(&self, inbox: &OwnedFd) {
        let mut bytes = vec![0; MAX_PACKET];
        while let Ok((length, descriptor)) = receive_packet(inbox, &mut bytes, RecvFlags::empty()) {
            // Every process that could write is gone.
            if length == 0 && descriptor.is_none() {
                return;
            }
            // `None`: damaged, or of another release. There is nobody to tell.
            let _ = self.take_packet(&bytes[..length], descriptor);
        }
    }

    /// Does what a packet says.
    fn take_packet(&self, packet: &[u8], descriptor: Option<OwnedFd>) -> Option<()> {
        let (head, rest) = packet.split_at_checked(HEAD)?;
        let group = usize::from(head[1]);
        let number = u64::from_le_bytes(head[2..10].try_into().ok()?);
        let (topic, body) = rest.split_at_checked(usize::from(head[10]))?;
        let links = self.links.as_ref()?;
        match head[0] {
            code @ (b'C' | b'R' | b'M') => {
                let kind = match code {
                    b'C' => ArrivalKind::New,
                    b'R' => ArrivalKind::Returned,
                    _ => ArrivalKind::Idle,
                };
                let take = self.arrival.lock().clone();
                if let (Some(take), Some(descriptor)) = (take, descriptor) {
                    let arrival = GroupArrival {
                        kind,
                        engine: topic,
                        body,
                        descriptor,
                    };
                    self.take_in(&take, group, arrival);
                }
                // Only now: the loop that has it counts it by now, or it is closed.
                take_one(&row(&links.board, self.place.index)[UNDER_WAY]);
            }
            b'T' | b'Q' => {
                let handler = {
                    let topics = self.topics.lock();
                    topics.get(std::str::from_utf8(topic).ok()?).cloned()
                };
                let answer = handler.and_then(|handle| handle(body)).unwrap_or_default();
                if head[0] == b'Q' {
                    self.send_answer(links, group, number, &answer);
                }
            }
            // A part of an answer that is too long for a packet. Only of one that is waited for.
            b'P' => {
                let is_asked = self.questions.lock().contains_key(&(number, group));
                let mut parts = self.parts.lock();
                let part = parts.entry((number, group)).or_default();
                match is_asked && part.len() + body.len() <= MAX_ANSWER {
                    true => part.extend_from_slice(body),
                    false => drop(parts.remove(&(number, group))),
                }
            }
            b'A' => {
                let before = self.parts.lock().remove(&(number, group));
                let asker = self.questions.lock().remove(&(number, group))?;
                let mut answer = before.unwrap_or_default();
                answer.extend_from_slice(body);
                // The asker may have given up.
                let _ = asker.send(answer);
            }
            _ => {}
        }
        Some(())
    }
}

impl GroupMember {
    /// Sends an answer, in as many packets as it takes.
    fn send_answer(&self, links: &MemberLinks, group: usize, number: u64, answer: &[u8]) {
        let mut pieces = answer.chunks(ANSWER_PIECE).peekable();
        while let Some(piece) = pieces.next_if(|piece| piece.len() == ANSWER_PIECE) {
            links.wait_for_room(group);
            if !links.send(group, self.packet(b'P', number, b"", piece), None) {
                // It is missed in time: half an answer would be a wrong one.
                return;
            }
        }
        let last = pieces.next().unwrap_or_default();
        if answer.len() >= ANSWER_PIECE {
            links.wait_for_room(group);
        }
        // One that cannot be sent is missed in time.
        let _ = links.send(group, self.packet(b'A', number, b"", last), None);
    }

    /// Takes a connection in, or returns it to its group if it would have to wait here.
    fn take_in(&self, take: &ArrivalHandler, group: usize, arrival: GroupArrival<'_>) {
        let (engine, body) = (arrival.engine, arrival.body);
        let Err(descriptor) = take(arrival) else {
            return;
        };
        let kind = ArrivalKind::Returned;
        if !self.send_connection(kind, group, (engine, body), descriptor.as_fd()) {
            // It waits here after all. What is not taken now is closed.
            let _ = take(GroupArrival {
                kind,
                engine,
                body,
                descriptor,
            });
        }
    }

    /// Sends a connection to another group.
    fn send_connection(
        &self,
        kind: ArrivalKind,
        group: usize,
        (engine, body): (&[u8], &[u8]),
        socket: BorrowedFd<'_>,
    ) -> bool {
        let Some(links) = &self.links else {
            return false;
        };
        // Counted before it is sent: it is uncounted when it has arrived, and that may be at once.
        let Some(under_way) = row(&links.board, group).get(UNDER_WAY) else {
            return false;
        };
        under_way.fetch_add(1, Relaxed);
        let packet = self.packet(kind.code(), 0, engine, body);
        let sent = links.send(group, packet, Some(socket));
        if !sent {
            take_one(under_way);
        }
        sent
    }
}

impl MemberLinks {
    /// Waits until a packet can be sent to a group, but not for ever.
    fn wait_for_room(&self, group: usize) {
        let Some(outbox) = self.outboxes.get(group) else {
            return;
        };
        let mut wanted = [PollFd::new(outbox, PollFlags::OUT)];
        let timeout = Timespec::try_from(ROOM_TIMEOUT).ok();
        // The attempt to send shows what came of it.
        let _ = rustix::event::poll(&mut wanted, timeout.as_ref());
    }

    /// Sends a packet, if there is room for it.
    fn send(&self, group: usize, packet: Vec<u8>, descriptor: Option<BorrowedFd<'_>>) -> bool {
        let outbox = self.outboxes.get(group);
        outbox.is_some_and(|outbox| send_packet(outbox, &packet, descriptor))
    }
}

/// Sends a packet, if there is room for it.
fn send_packet(outbox: &OwnedFd, packet: &[u8], descriptor: Option<BorrowedFd<'_>>) -> bool {
    if packet.len() > MAX_PACKET {
        return false;
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors: Vec<BorrowedFd<'_>> = descriptor.into_iter().collect();
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return false;
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(outbox, &[IoSlice::new(packet)], &mut control, flags).is_ok()
}

/// One group's answer to a question.
pub struct GroupAnswer {
    /// The group.
    pub group: usize,
    answer: Option<RemoteReceiver<Vec<u8>>>,
}

impl GroupAnswer {
    /// Waits for it; `None` if the group does not serve, or answers too late.
    pub async fn wait(self) -> Option<Vec<u8>> {
        rt::timeout(ANSWER_TIMEOUT, self.answer?).await.ok()?.ok()
    }
}

/// Subtracts one, but not from zero: the master may have cleared the counter.
fn take_one(counter: &AtomicU64) {
    // An error says that it was zero.
    let _ = counter.fetch_update(Relaxed, Relaxed, |count| count.checked_sub(1));
}

/// Receives a packet; `flags` say whether to wait for it.
fn receive_packet(
    socket: &OwnedFd,
    bytes: &mut [u8],
    flags: RecvFlags,
) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let mut slices = [IoSliceMut::new(bytes)];
        let flags = flags | RecvFlags::CMSG_CLOEXEC;
        match rustix::net::recvmsg(socket.as_fd(), &mut slices, &mut control, flags) {
            Err(rustix::io::Errno::INTR) => {}
            other => break other?,
        }
    };
    let mut descriptor = None;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut rights) = message {
            descriptor = rights.next();
        }
    }
    Ok((received.bytes, descriptor))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    fn members(count: usize) -> (GroupLinks, Vec<Arc<GroupMember>>) {
        let links = GroupLinks::new(count).expect("sockets");
        let join = |index| Arc::new(links.join(WorkerGroup { index, count }));
        let members: Vec<_> = (0..count).map(join).collect();
        for member in &members {
            member.start().expect("a thread");
        }
        (links, members)
    }

    #[test]
    fn loops_are_divided_evenly_and_each_once() {
        for count in 1..=MAX_GROUPS {
            for all in 1..=70 {
                let groups = (0..count).map(|index| WorkerGroup { index, count });
                let ranges: Vec<_> = groups.map(|group| group.loops(all)).collect();
                assert_eq!(ranges[0].start, 0);
                assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start));
                assert_eq!(ranges[count - 1].end, all.max(count));
                let sizes = ranges.iter().map(Range::len);
                let (least, most) = (sizes.clone().min(), sizes.max());
                assert!(least >= Some(1) && most.expect("one") - least.expect("one") <= 1);
            }
        }
        assert_eq!(WorkerGroup { index: 0, count: 2 }.part_of(3), 2);
    }

    #[test]
    fn a_group_with_more_finds_one_with_fewer() {
        let (links, members) = members(3);
        for member in &members {
            member.publish(2, 1);
        }
        for _ in 0..8 {
            members[0].count_opened();
            members[1].count_opened();
        }
        assert_eq!(members[0].less_loaded_than(4), Some(2));
        assert_eq!(
            members[0].less_loaded_than(2),
            None,
            "small differences stay"
        );
        members[2].publish(2, 2);
        assert_eq!(
            members[0].less_loaded_than(4),
            None,
            "it has another configuration"
        );
        members[0].count_closed();
        links.forget_process(1);
        assert_eq!(members[0].less_loaded_than(4), None, "it is not there");
        members[1].publish(2, 1);
        assert_eq!(members[0].less_loaded_than(4), Some(1));
        members[1].count_closed();
        assert_eq!(
            members[0].less_loaded_than(4),
            Some(1),
            "no counter falls below zero"
        );
        assert_eq!(members[0].surplus(), None, "7 to 0 on four loops");
        for _ in 0..5 {
            members[0].count_opened();
        }
        assert_eq!(members[0].surplus(), Some((6, 1)), "12 to 0: half of them");
        assert_eq!(members[1].surplus(), None);
    }

    #[test]
    fn a_connection_arrives() {
        let (_links, members) = members(2);
        let (taken, arrived) = mpsc::sync_channel(1);
        let here = taken.clone();
        members[1].on_arrival(move |arrival| {
            let _ = here.send((arrival.engine.to_vec(), arrival.body.to_vec()));
            Ok(())
        });
        let file = std::fs::File::open("/dev/null").expect("always there");
        assert!(members[0].give(1, "http", "127.0.0.1:80", file.as_fd()));
        let (engine, address) = arrived.recv().expect("it arrives");
        assert_eq!((&*engine, &*address), (&b"http"[..], &b"127.0.0.1:80"[..]));
        // A group that is late returns it, and then it stays where it is.
        members[1].on_arrival(|arrival| Err(arrival.descriptor));
        members[0].on_arrival(move |arrival| {
            assert_eq!(arrival.kind, ArrivalKind::Returned);
            let _ = taken.send((arrival.engine.to_vec(), b"returned".to_vec()));
            Ok(())
        });
        assert!(members[0].give(1, "http", "127.0.0.1:80", file.as_fd()));
        assert_eq!(arrived.recv().expect("it is returned").1, b"returned");
    }

    #[test]
    fn what_was_sent_to_a_dead_process_is_not_lost() {
        let links = GroupLinks::new(2).expect("sockets");
        let join = |index| Arc::new(links.join(WorkerGroup { index, count: 2 }));
        // The second one has died: nothing reads its inbox.
        let (living, dead) = (join(0), join(1));
        living.publish(1, 1);
        dead.publish(1, 1);
        let (taken, arrived) = mpsc::sync_channel(2);
        living.on_arrival(move |arrival| {
            let _ = taken.send(arrival.kind);
            Ok(())
        });
        living.start().expect("a thread");
        let file = std::fs::File::open("/dev/null").expect("always there");
        assert!(living.tell("purge", b"all"));
        assert!(living.give(1, "http", "127.0.0.1:80", file.as_fd()));
        links.forget_process(1);
        assert_eq!(
            arrived.recv().expect("it comes back"),
            ArrivalKind::Returned
        );
        let next = join(1);
        let (told, heard) = mpsc::sync_channel(1);
        next.on_message("purge", move |body| {
            let _ = told.send(body.to_vec());
            None
        });
        next.start().expect("a thread");
        assert_eq!(heard.recv().expect("it waited"), b"all");
    }

    #[test]
    fn all_others_are_told_and_asked() {
        let (_links, members) = members(3);
        let (told, heard) = mpsc::sync_channel(8);
        for (index, member) in members.iter().enumerate() {
            member.publish(1, 1);
            let told = told.clone();
            member.on_message("sum", move |body| {
                let _ = told.send((index, body.to_vec()));
                Some(vec![index as u8])
            });
        }
        assert!(members[0].tell("sum", b"x"));
        let mut groups: Vec<_> = (0..2).map(|_| heard.recv().expect("told").0).collect();
        groups.sort_unstable();
        assert_eq!(groups, [1, 2]);
        members[2].publish(0, 1);
        let (asker, answers) = (Arc::clone(&members[0]), mpsc::sync_channel(2));
        let event_loop = rt::EventLoop::new(rt::LoopOptions::default()).expect("an eventfd");
        let to = answers.0;
        let done = event_loop.run(|| async move {
            for answer in asker.ask("sum", b"") {
                let _ = to.send((answer.group, answer.wait().await));
            }
        });
        done.expect("it ran");
        let got: Vec<_> = answers.1.iter().collect();
        assert_eq!(got, [(1, Some(vec![1])), (2, None)], "2 does not serve");
    }
}
