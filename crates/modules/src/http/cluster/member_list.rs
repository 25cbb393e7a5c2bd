//! `discover redis=name`: the members are those that have entered themselves in a list in Redis, and do so again before their
//! entry expires.
//!
//! The list is a sorted set of addresses; the score is when an entry expires, by the clock of Redis. One script enters this
//! server, removes what has expired and gives the rest, so that all members see the same. Whether a member answers is found out
//! by the members themselves, much sooner; the list says who is to be asked. While Redis is away the list stays as it was.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bstr::{BString, ByteSlice};
use conf::{Diagnostic, DirectiveLine, parse};
use host::error_log::{LogLevel, Logger};
use net::cluster::MemberList;
use net::redis::{RedisClient, RedisCommand, elements_of, text_of};

use super::MemberKeeper;

/// When an entry expires if the line does not say so.
const EXPIRES: Duration = Duration::from_secs(30);

/// Shorter would expire while a busy Redis thinks.
const EXPIRES_MIN: Duration = Duration::from_secs(3);

/// How often a list is read and an entry renewed, as a part of the time for which it is valid.
const RENEWALS: u32 = 6;

/// The first rounds come at this interval: members that start together find each other soon.
const SOON: Duration = Duration::from_millis(200);
const SOON_ROUNDS: u32 = 20;

/// The longest list that is believed: a client of Redis that can write must not make this server watch any number of addresses.
const MEMBERS_MAX: usize = 10_000;

/// Enters a member, removes those that have expired, and gives the rest: in one step, so that no two members remove each
/// other. The list itself ends when nobody has renewed it for twice the time, so that a cluster that is gone leaves nothing.
const SCRIPT: &str = "local t = redis.call('TIME') \
     local now = t[1] * 1000 + math.floor(t[2] / 1000) \
     if ARGV[1] ~= '' then redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[1]) end \
     redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now) \
     redis.call('PEXPIRE', KEYS[1], ARGV[2] * 2) \
     return redis.call('ZRANGE', KEYS[1], 0, -1)";

/// Reads `redis=name [expires=time]` of a `discover` line.
pub(super) fn read_list(line: &DirectiveLine, name: &[u8]) -> Result<MemberList, Diagnostic> {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-".contains(byte);
    if name.is_empty() || !name.iter().all(is_plain) {
        return Err(line.invalid_parameter(0));
    }
    let mut list = MemberList {
        name: BString::from(name),
        expires: EXPIRES,
    };
    if line.args().len() > 1 {
        let invalid = || line.invalid_parameter(1);
        let time = line.text(1).strip_prefix(b"expires=").ok_or_else(invalid)?;
        list.expires = parse::millis(time.as_bstr()).ok_or_else(invalid)?;
        if list.expires < EXPIRES_MIN {
            return Err(line.error_at(1, "an entry is valid for at least 3s"));
        }
    }
    Ok(list)
}

/// Enters this server, and follows the list.
pub(super) async fn follow_list(
    keeper: Rc<MemberKeeper>,
    list: MemberList,
    client: Arc<RedisClient>,
    log: Logger,
) {
    let key = client.settings().key(&format!("members:{}", list.name));
    let own = keeper.known_own();
    if own.is_none() {
        let cluster = keeper.cluster_name();
        log.log_plain(
            LogLevel::Error,
            format_args!(
                "cluster \"{cluster}\": this server enters itself in no list, since its address is not known: add \"self\", or an \
                 address to \"listen … cluster={cluster}\""
            ),
        );
    }
    let own = own.map_or(String::new(), |own| own.to_string());
    let expires_ms = u64::try_from(list.expires.as_millis()).unwrap_or(u64::MAX);
    let mut rounds = 0;
    loop {
        let command = RedisCommand::new("EVAL")
            .arg(SCRIPT)
            .number(1)
            .arg(&key)
            .arg(&own)
            .number(expires_ms);
        // Why it is away is in the log already. What is known from before may still be right.
        if let Ok(reply) = client.ask(command).await {
            let members = elements_of(&reply).iter().take(MEMBERS_MAX);
            let read = |text: &[u8]| text.to_str().ok()?.parse::<SocketAddr>().ok();
            let members = members.filter_map(text_of).filter_map(read);
            keeper.take_listed(members.collect());
            rounds += 1;
        }
        let pause = match rounds < SOON_ROUNDS {
            true => SOON,
            false => list.expires / RENEWALS,
        };
        rt::sleep(pause).await;
    }
}
