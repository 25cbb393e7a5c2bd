//! `limit_conn_zone … sync=redis`: the task that tells the other members what is in progress here, and learns what is in progress
//! there. What follows from that is [`net::cluster::SlotShare`].

use std::sync::Arc;
use std::time::Duration;

use bstr::{BStr, ByteSlice};
use net::cluster::{SLOT_SCRIPT, SlotShare};
use net::redis::{RedisClient, RedisCommand};

use super::limit_conn::ConnZone;
use super::limit_req_sync::{ZoneSync, key_of, pairs_of, reporter_name};

/// The interval of reports.
const ROUND: Duration = Duration::from_millis(100);

/// A reply that has not come after this time counts as none.
const REPLY_LIMIT: Duration = Duration::from_millis(300);

/// Keys in one report. A zone with more is told of as a whole in each [`FULL_ROUNDS`]th round, and of what has changed in
/// the others.
const KEYS_MAX: usize = 512;
const FULL_ROUNDS: u32 = 10;

/// For how long a report counts, in milliseconds: a member that has died holds its places for so long.
const REPORT_MS: u64 = 3_000;

/// Reports what a zone has for as long as the result is polled.
pub(crate) async fn report_slots(zone: Arc<ConnZone>) {
    let mut round = 0_u32;
    loop {
        rt::sleep(ROUND).await;
        round = round.wrapping_add(1);
        let (Some(counters), Some(declared)) = (zone.state(), zone.declared()) else {
            continue;
        };
        let Some(sync) = declared.sync.as_ref() else {
            return;
        };
        let Some(client) = sync.cluster().redis() else {
            return;
        };
        let all = round.is_multiple_of(FULL_ROUNDS) || counters.keys() <= KEYS_MAX as u64;
        for group in counters.slot_reports(all).chunks(KEYS_MAX) {
            let report = report(client, sync, zone.name.as_bstr(), group);
            let replies = rt::timeout(REPLY_LIMIT, report).await.ok().flatten();
            for (index, (key, told)) in group.iter().enumerate() {
                let reply = replies.as_ref().map(|replies| replies[index]);
                // Without Redis an equal part of the limit, as for a key that is new.
                let share = reply.map(|(others, sharers)| SlotShare::new(*told, others, sharers));
                counters.set_share(key, share);
            }
        }
    }
}

/// The replies; `None`: there are none, and why is in the log of the client.
async fn report(
    client: &RedisClient,
    sync: &ZoneSync,
    zone: &BStr,
    group: &[(Arc<[u8]>, u32)],
) -> Option<Vec<(u64, u64)>> {
    let mut command = RedisCommand::new("EVAL")
        .arg(SLOT_SCRIPT)
        .number(group.len() as u64);
    for (key, _) in group {
        command = command.arg(key_of(client, "conn", zone, key));
    }
    command = command.arg(reporter_name(sync)).number(REPORT_MS);
    for (_, taken) in group {
        command = command.number(u64::from(*taken));
    }
    let reply = client.ask(command).await.ok()?;
    let replies = pairs_of(&reply);
    (replies.len() == group.len()).then_some(replies)
}
