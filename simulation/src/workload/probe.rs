//! The last client: when the weather is calm again, it asks each location once, and then what the server says of itself.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rt::net::{SocketAddress, StreamSocket};

use super::configuration::KEEPALIVE;
use super::invariants::ProxiedWay;
use super::ledger::{CacheFlavour, WorkloadLedger};
use super::message::{BodyEnd, MessageStream};

/// How often a location is asked before it counts as one that does not answer, and how long after the last time: servers that
/// have failed are left alone for 10 s.
const TRIES: usize = 8;
const PAUSE: Duration = Duration::from_secs(5);
const PATIENCE: Duration = Duration::from_secs(20);
/// Segments beyond `max_size`: one of each side that is being written, and one for what is moved on.
const SEGMENT: u64 = 4 << 20;

/// The server that is asked for metrics.
const ASKED_SERVER: &str = "second.simulated";

/// The numbers of `prometheus`, by family and labels.
pub(crate) type ProbedMetrics = BTreeMap<String, f64>;

/// Asks, and leaves what it has got in the ledger.
pub(super) async fn probe(ledger: Arc<WorkloadLedger>, server: SocketAddr) {
    ledger.state().origin_rests = true;
    // Slices of two versions that were stored fit together no sooner than they are stale, as in nginx.
    let is_whole = |flavour: &CacheFlavour| *flavour != CacheFlavour::Slice;
    let flavours = CacheFlavour::ALL.into_iter().filter(is_whole);
    let flavours = flavours.map(CacheFlavour::letter);
    let ways = ProxiedWay::ALL.map(ProxiedWay::letter);
    let letters = ways.into_iter().chain(['n', 'q']).chain(flavours);
    let hot = ledger.hot;
    let paths = letters.map(|letter| format!("/{letter}/{hot}"));
    for path in ["/return".to_owned(), "/file0".to_owned()]
        .into_iter()
        .chain(paths)
    {
        if !answers(&ledger, server, &path).await {
            ledger.violate(format!(
                "W17: {path} is not answered when all is calm again"
            ));
        }
    }
    // Times of sessions and of idle connections pass.
    rt::sleep(Duration::from_secs(15)).await;
    let metrics = match ask(&ledger, server, (ASKED_SERVER, "/metrics")).await {
        Ok((200, body)) => parse(&String::from_utf8_lossy(&body)),
        other => {
            ledger.violate(format!(
                "W17: no metrics: {:?}",
                other.map(|(status, _)| status)
            ));
            ProbedMetrics::new()
        }
    };
    ledger.state().probed = Some(metrics);
}

async fn answers(ledger: &WorkloadLedger, server: SocketAddr, path: &str) -> bool {
    for _ in 0..TRIES {
        let asked = rt::timeout(PATIENCE, ask(ledger, server, ("simulated", path))).await;
        if matches!(asked, Ok(Ok((200, _)))) {
            return true;
        }
        rt::sleep(PAUSE).await;
    }
    false
}

async fn ask(
    ledger: &WorkloadLedger,
    server: SocketAddr,
    (host, path): (&str, &str),
) -> io::Result<(u16, Vec<u8>)> {
    let way = ProxiedWay::ALL
        .into_iter()
        .find(|way| path.chars().nth(1) == Some(way.letter()));
    ledger.state().asked += way.map_or(1, ProxiedWay::requests);
    let socket = StreamSocket::connect(&SocketAddress::Inet(server)).await?;
    let mut stream = MessageStream::new(socket);
    let text = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.socket.write_all(text.as_bytes()).await?;
    let head = stream.head().await?.ok_or(io::ErrorKind::UnexpectedEof)?;
    let (body, end) = stream.body(&head, true, async |_| ()).await;
    match (head.status(), end) {
        (Some(status), BodyEnd::Complete | BodyEnd::Closed) => Ok((status, body)),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

fn parse(text: &str) -> ProbedMetrics {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let numbers = lines.filter_map(|line| {
        let (name, value) = line.rsplit_once(' ')?;
        Some((name.to_owned(), value.parse().ok()?))
    });
    numbers.collect()
}

/// The numbers of a family.
fn family<'a>(metrics: &'a ProbedMetrics, name: &'a str) -> impl Iterator<Item = (&'a str, f64)> {
    let is_of = move |key: &str| {
        let rest = key.strip_prefix(name);
        rest.is_some_and(|rest| {
            rest.is_empty() || rest.starts_with('{') || rest.starts_with("_total")
        })
    };
    let all = metrics.iter().map(|(key, value)| (key.as_str(), *value));
    all.filter(move |(key, _)| is_of(key))
}

/// W18.
pub(super) fn check_gauges(
    ledger: &WorkloadLedger,
    metrics: &ProbedMetrics,
    (loops, cache_bytes): (usize, u64),
) {
    let zero = [
        "weir_http_requests_in_progress",
        "weir_upstream_active",
        "weir_upstream_queued",
        "weir_cache_fills",
        "weir_stream_sessions_in_progress",
        "weir_pool_waiting",
    ];
    let bounds = [
        ("weir_upstream_idle", loops as u64 * KEEPALIVE),
        ("weir_cache_size_bytes", cache_bytes + 3 * SEGMENT),
    ];
    let zero = zero.map(|name| (name, 0));
    for (name, most) in zero.into_iter().chain(bounds) {
        let mut seen = false;
        for (key, value) in family(metrics, name) {
            seen = true;
            // The request that asks is under way itself.
            let own = f64::from(u8::from(key.contains(ASKED_SERVER)));
            if value - own > most as f64 {
                ledger.violate(format!(
                    "W18: {key} is {value}, and {most} at most is allowed"
                ));
            }
        }
        // What is not there cannot be judged: a name has changed.
        if !seen && !metrics.is_empty() {
            ledger.violate(format!("W18: {name} is not among the metrics"));
        }
    }
}

/// W19. `begun`: what the counter of all loops says.
pub(super) fn check_totals(ledger: &WorkloadLedger, metrics: &ProbedMetrics, begun: u64) {
    let state = ledger.state();
    let (asked, heard, named) = (state.asked, state.heard, state.named);
    drop(state);
    let counted = family(metrics, "weir_upstream_requests").map(|(_, value)| value);
    let given = counted.sum::<f64>() as u64;
    if begun != asked {
        ledger.violate(format!(
            "W19: {begun} requests were begun, {asked} were sent"
        ));
    }
    // What is asked for by name has no group, and one that meets the origin's close is given twice.
    if given + named < heard {
        ledger.violate(format!(
            "W19: {given} requests were given to servers, {heard} came"
        ));
    }
}
