//! Where requests come from: the ring of each server that the pid file names, now and later.
//!
//! During an upgrade two servers serve, and both are read until the old one has ended. A server that has ended is waited
//! for: like `tail -F`, the command goes on when it is started again.

use std::path::Path;
use std::time::Duration;

use host::request_ring::{RingReader, RingRefusal};

use super::ServerPlace;
use super::record::TailRecord;

/// After how many rounds it is looked for other servers, and said that this reader is still there.
const LOOK_EVERY: u32 = 16;
/// The most records that are taken from a ring at a time.
const BATCH: usize = 4096;

/// The servers that are read.
pub(super) struct RequestSource {
    /// Where the number of the present one stands.
    place: ServerPlace,
    /// One, mostly; two during an upgrade; none while it is restarted.
    servers: Vec<ReadServer>,
    /// Rounds since it was looked for others.
    rounds: u32,
    /// What the user should know.
    news: Vec<String>,
    /// Memory for a record.
    record: Vec<u8>,
}

/// A server and its ring.
struct ReadServer {
    number: u32,
    reader: RingReader,
}

impl RequestSource {
    /// Connects to the server. The error has its number, if there is one.
    pub(super) fn connect(place: ServerPlace) -> Result<RequestSource, (Option<u32>, RingRefusal)> {
        let number = number_of(&place).filter(|number| is_alive(*number));
        let number = number.ok_or((None, RingRefusal::NoServer))?;
        let reader = RingReader::connect(number).map_err(|refusal| (Some(number), refusal))?;
        Ok(RequestSource {
            place,
            servers: vec![ReadServer { number, reader }],
            rounds: 0,
            news: Vec::new(),
            record: Vec::new(),
        })
    }

    /// Takes what has come, oldest first for each server.
    pub(super) fn read_all(&mut self, take: &mut dyn FnMut(&TailRecord)) {
        for server in &mut self.servers {
            for _ in 0..BATCH {
                if !server.reader.read_record(&mut self.record) {
                    break;
                }
                take(&TailRecord::parse(&self.record));
            }
            match server.reader.take_lost() {
                0 => {}
                lost => self.news.push(format!(
                    "{lost} requests were not seen: there were more than this command could read"
                )),
            }
        }
        self.rounds += 1;
        if self.rounds >= LOOK_EVERY {
            self.rounds = 0;
            self.look_for_servers();
        }
    }

    /// What the user should know since this was last asked.
    pub(super) fn take_news(&mut self) -> Vec<String> {
        std::mem::take(&mut self.news)
    }

    /// Says that this reader is still there, forgets servers that have ended, and finds those that have begun.
    fn look_for_servers(&mut self) {
        for server in &self.servers {
            if server.reader.renew() {
                let text = "requests were not seen: this command has not run for a while";
                self.news.push(text.to_owned());
            }
        }
        let before = self.servers.len();
        self.servers.retain(|server| is_alive(server.number));
        let number = number_of(&self.place).filter(|number| is_alive(*number));
        let is_known = |number: u32| self.servers.iter().any(|server| server.number == number);
        if let Some(number) = number.filter(|number| !is_known(*number))
            // It may have been started a moment ago, and not listen yet: the next round tries again.
            && let Ok(reader) = RingReader::connect(number)
        {
            self.servers.push(ReadServer { number, reader });
            self.news
                .push(format!("reading the requests of process {number}"));
        }
        if self.servers.is_empty() && before > 0 {
            self.news
                .push("the server has ended, waiting for the next one".to_owned());
        }
    }
}

/// The number of the server's master now.
fn number_of(place: &ServerPlace) -> Option<u32> {
    match place {
        ServerPlace::Number(number) => Some(*number),
        ServerPlace::PidFile(path) => std::fs::read_to_string(path).ok()?.trim().parse().ok(),
    }
}

/// Whether there is such a process. It may be another one by now, but then it has no ring.
fn is_alive(number: u32) -> bool {
    number > 0 && Path::new(&format!("/proc/{number}")).exists()
}

/// Waits.
pub(super) fn pause(time: Duration) {
    // Without descriptors it is a sleep, which a signal ends.
    let _ = host::process::wait_readable(&[], Some(time));
}
