//! The task that sends the commands of all loops to Redis, and gives them the replies.
//!
//! ```text
//! any loop ── ask ──▶ queue ─┐                          ┌─ reply ──▶ the caller
//! any loop ── ask ──▶ queue ─┴─▶ one batch ──▶ Redis ───┴─ reply ──▶ the caller
//! ```
//!
//! What waits when a batch comes back is the next batch, so that a slow Redis gets larger batches instead of a longer
//! queue. While Redis is away, commands fail at once; nothing is sent twice, because whether a lost command was run is not
//! known. Attempts to come back are made at intervals that double, to [`PAUSE_MAX`].

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::task::{Poll, Waker};
use std::time::Duration;

use base::sync::Mutex;
use bstr::BString;
use host::error_log::{LogLevel, Logger};
use rt::sync::remote_oneshot::{self, RemoteReceiver, RemoteSender};

use super::connection::{RedisCommand, RedisConnection, redirected_to};
use super::locate::{ask_elsewhere, connect_to_master};
use super::reply::RedisReply;
use super::settings::{RedisServer, RedisSettings};
use crate::resolver::Resolver;

/// Commands that may wait. With more, new ones fail: their callers have something else to do in that case.
const QUEUE_MAX: usize = 16 * 1024;

/// Commands in one batch.
const BATCH_MAX: usize = 512;

/// The shortest pause between attempts to connect.
const PAUSE_MIN: Duration = Duration::from_millis(50);

/// The longest one.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// How long the connection may be without a command before it is asked whether it still works.
const IDLE: Duration = Duration::from_secs(1);

/// Why there is no reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedisFault {
    /// It cannot be reached, or does not answer. A command that was on its way may have been run.
    Away(String),
    /// It has refused the command.
    Refused(String),
    /// Too many commands wait.
    Busy,
}

impl fmt::Display for RedisFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RedisFault::Away(why) => write!(f, "Redis is away ({why})"),
            RedisFault::Refused(why) => write!(f, "Redis has refused it ({why})"),
            RedisFault::Busy => f.write_str("too many commands wait for Redis"),
        }
    }
}

/// A reply that has not arrived yet.
pub type PendingReply = RemoteReceiver<Result<RedisReply, RedisFault>>;

/// The Redis of a cluster, for all loops.
pub struct RedisClient {
    settings: RedisSettings,
    queue: Mutex<CommandQueue>,
    is_there: AtomicBool,
    /// Where a Redis Cluster has sent us.
    redirected: Mutex<Option<RedisServer>>,
    /// Commands that were answered.
    pub commands: AtomicU64,
    /// Commands that were not, or that Redis has refused.
    pub failures: AtomicU64,
    /// How long the last batch took, in microseconds.
    pub latency_us: AtomicU64,
    /// How often Redis went away.
    pub losses: AtomicU64,
}

#[derive(Default)]
struct CommandQueue {
    waiting: VecDeque<PendingCommand>,
    /// The task, while it waits for commands.
    waker: Option<Waker>,
}

struct PendingCommand {
    command: RedisCommand,
    answer: RemoteSender<Result<RedisReply, RedisFault>>,
}

impl RedisClient {
    /// A client that is not connected yet.
    pub fn new(settings: RedisSettings) -> RedisClient {
        RedisClient {
            settings,
            queue: Mutex::default(),
            is_there: AtomicBool::new(false),
            redirected: Mutex::default(),
            commands: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            latency_us: AtomicU64::new(0),
            losses: AtomicU64::new(0),
        }
    }

    /// What is configured.
    pub fn settings(&self) -> &RedisSettings {
        &self.settings
    }

    /// Whether commands can be sent.
    pub fn is_there(&self) -> bool {
        self.is_there.load(Relaxed)
    }

    /// Sends a command and waits for its reply; an error reply is [`RedisFault::Refused`]. Must be called on a loop.
    pub async fn ask(&self, command: RedisCommand) -> Result<RedisReply, RedisFault> {
        let reply = self.begin(command)?;
        let lost = |_| Err(RedisFault::Away("the connection has ended".to_owned()));
        reply.await.unwrap_or_else(lost)
    }

    /// Sends a command; the reply need not be waited for.
    pub fn begin(&self, command: RedisCommand) -> Result<PendingReply, RedisFault> {
        let refused = |fault| {
            self.failures.fetch_add(1, Relaxed);
            Err(fault)
        };
        if !self.is_there() {
            return refused(RedisFault::Away("there is no connection".to_owned()));
        }
        let (answer, reply) = remote_oneshot::channel();
        let waker = {
            let mut queue = self.queue.lock();
            if queue.waiting.len() >= QUEUE_MAX {
                return refused(RedisFault::Busy);
            }
            queue.waiting.push_back(PendingCommand { command, answer });
            queue.waker.take()
        };
        // Outside the lock: it may run the task at once.
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(reply)
    }

    /// Opens a further connection, for commands that wait.
    pub async fn connect(&self, resolver: &Arc<Resolver>) -> Result<RedisConnection, RedisFault> {
        let redirected = self.redirected.lock().clone();
        let connected = connect_to_master(&self.settings, resolver, redirected.as_ref()).await;
        if connected.is_err() {
            // The cluster may have another master by now: any of the named servers knows it.
            *self.redirected.lock() = None;
        }
        connected
    }

    /// The reply to a command, from the server that a Redis Cluster has named for it if it did so.
    pub async fn follow_ask(
        &self,
        reply: RedisReply,
        command: &RedisCommand,
        resolver: &Arc<Resolver>,
    ) -> RedisReply {
        let RedisReply::Error(error) = &reply else {
            return reply;
        };
        let Some(server) = server_in(error, "ASK") else {
            return reply;
        };
        let asked = ask_elsewhere(&self.settings, resolver, &server, command).await;
        // Without an answer there, it is as if the slot were not ready: who asked tries again.
        asked.unwrap_or_else(|fault| RedisReply::Error(format!("TRYAGAIN {fault}")))
    }

    /// Notes what an error reply says about the connection. Whether another one is needed.
    pub fn note_error(&self, error: &str) -> bool {
        if let Some(server) = server_in(error, "MOVED") {
            *self.redirected.lock() = Some(server);
            return true;
        }
        // A master that has become a replica, or one that is not ready.
        [
            "READONLY",
            "LOADING",
            "MASTERDOWN",
            "CLUSTERDOWN",
            "TRYAGAIN",
            "NOAUTH",
        ]
        .iter()
        .any(|word| error.starts_with(word))
    }

    /// Keeps the connection and serves the queue, for as long as it is polled. On one loop.
    pub async fn run(self: Arc<Self>, name: BString, resolver: Arc<Resolver>, log: Logger) {
        // Tells the callers if this task ends, at a reload.
        let _end = EndOfClient(Arc::clone(&self));
        let mut pause = PAUSE_MIN;
        let mut is_known_away = false;
        loop {
            let ended = match self.connect(&resolver).await {
                Ok(mut connection) => {
                    self.is_there.store(true, Relaxed);
                    if std::mem::take(&mut is_known_away) {
                        log.log_plain(
                            LogLevel::Notice,
                            format_args!("Redis of cluster \"{name}\" is back"),
                        );
                    }
                    let ended = self.serve(&mut connection, &resolver, &mut pause).await;
                    self.losses.fetch_add(1, Relaxed);
                    ended
                }
                Err(fault) => fault,
            };
            self.give_up();
            if !is_known_away {
                is_known_away = true;
                log.log_plain(
                    LogLevel::Warn,
                    format_args!("cluster \"{name}\": {ended}; what needs it goes on without"),
                );
            }
            rt::sleep(with_jitter(pause)).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Sends batches until the connection is of no use any more.
    async fn serve(
        &self,
        connection: &mut RedisConnection,
        resolver: &Arc<Resolver>,
        pause: &mut Duration,
    ) -> RedisFault {
        loop {
            let batch = rt::timeout(IDLE, self.next_batch()).await;
            let batch = batch.unwrap_or_default();
            let mut commands: Vec<RedisCommand> = batch
                .iter()
                .map(|pending| pending.command.clone())
                .collect();
            if commands.is_empty() {
                commands.push(RedisCommand::new("PING"));
            }
            let begun = rt::clock::read_clock();
            let replies = match connection.exchange(&commands, self.settings.timeout).await {
                Ok(replies) => replies,
                Err(fault) => {
                    self.failures.fetch_add(batch.len() as u64, Relaxed);
                    answer_all(batch, &fault);
                    return fault;
                }
            };
            let took = u64::try_from(rt::clock::elapsed(begun).as_micros()).unwrap_or(u64::MAX);
            self.latency_us.store(took, Relaxed);
            // It works: the next failure is tried again soon.
            *pause = PAUSE_MIN;
            let mut ended = match &replies[..] {
                // Of a question that nobody waits for.
                [RedisReply::Error(why)] if batch.is_empty() => Some(RedisFault::Away(why.clone())),
                _ => None,
            };
            for (pending, reply) in batch.into_iter().zip(replies) {
                let reply = self.follow_ask(reply, &pending.command, resolver).await;
                let reply = self.judge(reply, &mut ended);
                // An error means that the caller does not wait any more.
                let _ = pending.answer.send(reply);
            }
            if let Some(fault) = ended {
                return fault;
            }
        }
    }

    fn judge(
        &self,
        reply: RedisReply,
        ended: &mut Option<RedisFault>,
    ) -> Result<RedisReply, RedisFault> {
        let RedisReply::Error(why) = reply else {
            self.commands.fetch_add(1, Relaxed);
            return Ok(reply);
        };
        self.failures.fetch_add(1, Relaxed);
        if self.note_error(&why) {
            let fault = RedisFault::Away(why);
            *ended = Some(fault.clone());
            return Err(fault);
        }
        Err(RedisFault::Refused(why))
    }

    async fn next_batch(&self) -> Vec<PendingCommand> {
        poll_fn(|context| {
            let mut queue = self.queue.lock();
            if queue.waiting.is_empty() {
                queue.waker = Some(context.waker().clone());
                return Poll::Pending;
            }
            let count = queue.waiting.len().min(BATCH_MAX);
            Poll::Ready(queue.waiting.drain(..count).collect())
        })
        .await
    }

    /// Fails what waits.
    fn give_up(&self) {
        self.is_there.store(false, Relaxed);
        let waiting = std::mem::take(&mut self.queue.lock().waiting);
        self.failures.fetch_add(waiting.len() as u64, Relaxed);
        answer_all(
            waiting,
            &RedisFault::Away("the connection was lost".to_owned()),
        );
    }
}

/// The server in a redirect with this word.
fn server_in(error: &str, word: &str) -> Option<RedisServer> {
    let (host, port) = redirected_to(error, word)?;
    Some(RedisServer {
        host: BString::from(host),
        port,
    })
}

fn answer_all(pending: impl IntoIterator<Item = PendingCommand>, fault: &RedisFault) {
    for one in pending {
        // An error means that the caller does not wait any more.
        let _ = one.answer.send(Err(fault.clone()));
    }
}

/// Fails what waits when the task is dropped.
struct EndOfClient(Arc<RedisClient>);

impl Drop for EndOfClient {
    fn drop(&mut self) {
        self.0.give_up();
    }
}

/// The pause, and up to a quarter more, so that the members do not come back at the same moment.
fn with_jitter(pause: Duration) -> Duration {
    let chance = rt::random::number().unwrap_or(0) % 256;
    pause + pause / 4 * u32::try_from(chance).unwrap_or(0) / 256
}
