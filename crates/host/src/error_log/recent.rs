//! The errors of the last hours, grouped: what a page shows of the error log.
//!
//! Lines of level `error` and above are told apart by their shape: the message without numbers and quoted texts, so that a
//! thousand files that are not there are one group. A group keeps one message, when it came first and last, and how often.
//! What follows the message in the log (client, request, host) is not kept: it may hold secrets, and it differs each time.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::SystemTime;

use base::sync::Mutex;

use super::LogLevel;

/// How many groups are kept; the one that was silent for longest makes room.
const GROUPS: usize = 50;

/// How much of a message is kept and compared, in bytes.
const KEPT: usize = 300;

/// Messages of one shape.
#[derive(Clone, Debug)]
pub struct ErrorGroup {
    /// The level of the last one.
    pub level: LogLevel,
    /// The last message.
    pub message: String,
    /// How many there were.
    pub count: u64,
    /// When the first one came, in milliseconds since 1970.
    pub first_ms: u64,
    /// When the last one came.
    pub last_ms: u64,
    shape: String,
}

/// Whether anybody asks.
static WANTED: AtomicBool = AtomicBool::new(false);

static RECENT: Mutex<Vec<ErrorGroup>> = Mutex::new(Vec::new());

/// Says whether messages are to be kept.
pub fn keep_recent_errors(wanted: bool) {
    WANTED.store(wanted, Relaxed);
}

/// The groups, the latest first.
pub fn recent_errors() -> Vec<ErrorGroup> {
    let mut groups = RECENT.lock().clone();
    groups.sort_by_key(|group| std::cmp::Reverse(group.last_ms));
    groups
}

/// Whether a line is to be kept.
#[inline]
pub(super) fn is_kept(level: LogLevel) -> bool {
    level <= LogLevel::Error && WANTED.load(Relaxed)
}

/// Keeps a message.
pub(super) fn keep(level: LogLevel, message: &[u8]) {
    let message = String::from_utf8_lossy(&message[..message.len().min(KEPT)]).into_owned();
    let shape = shape_of(&message);
    let wall = rt::wall().duration_since(SystemTime::UNIX_EPOCH);
    let now = wall.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(0));
    let mut groups = RECENT.lock();
    if let Some(group) = groups.iter_mut().find(|group| group.shape == shape) {
        group.count += 1;
        group.last_ms = now;
        group.level = level;
        group.message = message;
        return;
    }
    if groups.len() >= GROUPS
        && let Some(oldest) = (0..groups.len()).min_by_key(|index| groups[*index].last_ms)
    {
        groups.swap_remove(oldest);
    }
    groups.push(ErrorGroup {
        level,
        message,
        count: 1,
        first_ms: now,
        last_ms: now,
        shape,
    });
}

/// The message without what differs from case to case.
fn shape_of(message: &str) -> String {
    let mut shape = String::with_capacity(message.len());
    let mut signs = message.chars().peekable();
    while let Some(sign) = signs.next() {
        match sign {
            '"' => {
                shape.push('"');
                // To the end if the text was cut.
                for _ in signs.by_ref().take_while(|sign| *sign != '"') {}
            }
            '0'..='9' => {
                shape.push('#');
                while signs.next_if(char::is_ascii_digit).is_some() {}
            }
            _ => shape.push(sign),
        }
    }
    shape
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_one_shape_are_one_group() {
        let same = [
            "open() \"/a/1\" failed (2: No such file)",
            "open() \"/b \\ 22\" failed (13: No such file)",
        ];
        assert_eq!(shape_of(same[0]), shape_of(same[1]));
        assert_ne!(shape_of("connect() failed"), shape_of("recv() failed"));
        assert_eq!(shape_of("a \"b"), "a \"");
        for number in 0..3 * GROUPS {
            let letters: String = number
                .to_string()
                .bytes()
                .map(|b| char::from(b + 49))
                .collect();
            keep(LogLevel::Error, letters.as_bytes());
        }
        keep(LogLevel::Crit, b"last 1");
        keep(LogLevel::Crit, b"last 22");
        let groups = recent_errors();
        assert_eq!(groups.len(), GROUPS);
        let last = groups.iter().find(|group| group.shape == "last #");
        let last = last.expect("it was the last one");
        assert_eq!((last.count, last.message.as_str()), (2, "last 22"));
    }
}
