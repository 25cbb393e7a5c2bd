//! Which members answer: each is asked at short intervals, on a connection of its own.
//!
//! A member counts as gone when nothing has come from it for `budget`, or at once if it refuses connections. It counts as
//! back after two answers in a row, so that one that only twitches takes no keys. The intervals are a quarter of the
//! budget: a late answer is not a lost member.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use host::error_log::{LogLevel, Logger};
use http::cluster::age_of_member;
use net::Transport;
use net::cluster::{Cluster, ClusterMember};

use crate::shared::member_request::{self, MemberRequest};

/// The answers in a row after which a member is back.
const PASSES: u32 = 2;

/// The path of the question. It is answered before a server looks at it, and shows in logs.
const PATH: &[u8] = b"/.weir-cluster";

/// Watches the members of a cluster, as they come and go.
pub(super) fn watch_members(cluster: &Arc<Cluster>, log: Logger) -> rt::JoinHandle<()> {
    let cluster = Arc::clone(cluster);
    rt::spawn_handle("cluster members", async move {
        let mut watched: HashMap<SocketAddr, (Arc<ClusterMember>, rt::JoinHandle<()>)> =
            HashMap::new();
        loop {
            let Some((settings, state)) = cluster.running() else {
                return;
            };
            state.beat(settings.budget, rt::monotonic_millis(), rt::now());
            let view = state.view();
            watched.retain(|_, (known, _)| {
                view.members.iter().any(|member| Arc::ptr_eq(member, known))
            });
            for member in view.members.iter().filter(|member| !view.is_own(member)) {
                watched.entry(member.address).or_insert_with(|| {
                    let watch = MemberWatch {
                        cluster: Arc::clone(&cluster),
                        member: Arc::clone(member),
                        log: log.clone(),
                        last: rt::now(),
                        passes: 0,
                        was_late: false,
                    };
                    let task = rt::spawn_handle("cluster member", watch.run());
                    (Arc::clone(member), task.abort_on_drop())
                });
            }
            rt::sleep(settings.budget / 4).await;
        }
    })
}

/// What is known of one member.
struct MemberWatch {
    cluster: Arc<Cluster>,
    member: Arc<ClusterMember>,
    log: Logger,
    /// When it last answered.
    last: Instant,
    passes: u32,
    /// This process was late itself, and nothing has come from the member since.
    was_late: bool,
}

/// How a question ended.
enum PingEnd {
    Answered,
    /// There is nobody at the address.
    Refused,
    /// The connection ended, or what came was no answer; why, if that is known.
    Failed(Option<String>),
}

impl MemberWatch {
    async fn run(mut self) {
        let Some(settings) = self.cluster.settings() else {
            return;
        };
        let budget = settings.budget;
        let interval = budget / 4;
        let mut connection = None;
        loop {
            let end = match self.member.answers() {
                true => self.last + budget,
                false => rt::now() + budget,
            };
            let left = end.saturating_duration_since(rt::now());
            let asked = rt::timeout(left, self.ask(&mut connection, budget)).await;
            match asked {
                Ok(PingEnd::Answered) => self.note_answer(),
                Ok(PingEnd::Refused) => {
                    connection = None;
                    self.note_silence("refuses connections");
                }
                // A member that is reloaded closes its connections: the next question opens another one.
                Ok(PingEnd::Failed(why)) => {
                    connection = None;
                    self.passes = 0;
                    if rt::now() >= self.last + budget {
                        let why = why.map_or(String::new(), |why| format!(": {why}"));
                        self.note_silence(&format!("gives no valid answer{why}"));
                    }
                }
                // This process itself did not run: nothing is known of the member. To take it for gone would make this
                // server fetch what the other one has. Once only: where everything is late, silence must still end.
                Err(_) if !self.was_late && rt::now().saturating_duration_since(end) > interval => {
                    connection = None;
                    self.was_late = true;
                    self.last = rt::now();
                    continue;
                }
                // It is late with the answer and not with content: a machine that is short of processors does one
                // thing after the other.
                Err(_) if self.member.silence() < budget => {
                    connection = None;
                    let heard = rt::now().checked_sub(self.member.silence());
                    self.last = heard.unwrap_or(self.last);
                    continue;
                }
                Err(_) => {
                    connection = None;
                    self.note_silence("is silent");
                }
            }
            rt::sleep(interval).await;
        }
    }

    fn note_answer(&mut self) {
        self.last = rt::now();
        self.was_late = false;
        self.passes = self.passes.saturating_add(1);
        if self.passes >= PASSES {
            self.note(true, "answers again");
        }
    }

    fn note_silence(&mut self, why: &str) {
        self.passes = 0;
        self.note(false, why);
    }

    /// Notes the state, and logs it if it is new.
    fn note(&self, answers: bool, why: &str) {
        let Some(state) = self.cluster.state() else {
            return;
        };
        if state.note(&self.member, answers, rt::now()) {
            let level = if answers {
                LogLevel::Notice
            } else {
                LogLevel::Warn
            };
            self.log.log_plain(
                level,
                format_args!(
                    "member {} of cluster \"{}\" {why}",
                    self.member.name,
                    self.cluster.name()
                ),
            );
        }
    }

    async fn ask(&self, connection: &mut Option<Transport>, budget: Duration) -> PingEnd {
        // What the connection was closed for does not count before a new one has failed as well.
        if let Some(stream) = connection
            && self.ask_on(stream).await
        {
            return PingEnd::Answered;
        }
        let stream = match member_request::connect(&self.cluster, &self.member, budget).await {
            Ok(stream) => stream,
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => return PingEnd::Refused,
            Err(error) => return PingEnd::Failed(Some(error.to_string())),
        };
        let answered = self.ask_on(&stream).await;
        *connection = answered.then_some(stream);
        match answered {
            true => PingEnd::Answered,
            false => PingEnd::Failed(None),
        }
    }

    /// Asks on a connection; whether there was an answer.
    async fn ask_on(&self, stream: &Transport) -> bool {
        let question = MemberRequest {
            method: "GET",
            host: self.member.name.as_bytes(),
            target: PATH,
            lines: b"",
            hop: 0,
            signed: [0; 16],
        };
        let request = question.to_bytes(&self.cluster);
        let answer = member_request::ask_on(stream, &request).await;
        let Some(answer) = answer.filter(|answer| answer.status == 204) else {
            return false;
        };
        if let Some(age_ms) = age_of_member(&answer.fields) {
            let age = Duration::from_millis(age_ms);
            self.member.note_age(age, rt::now());
        }
        true
    }
}
