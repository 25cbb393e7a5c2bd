//! Asking DNS servers: over UDP, over TCP when the answer was too long for that, and again when none came.
//!
//! Every attempt has a socket of its own, so that its port is one that the kernel chose by lot. A forger would have to
//! guess that and the random number in the query, and can not send from anywhere but the server's address: the socket
//! is connected to it.

use std::io;
use std::time::Duration;

use bstr::BStr;
use rt::error_log::{Errno, Level};
use rt::net::{Address, UdpSocket};

use super::Resolver;
use super::error::ResolveError;
use super::message::{self, Answer, Kind, Query, Reply};
use crate::{ConnectOptions, connect};

/// After how long a question is asked again, of the next server, when nobody has answered.
const RESEND: Duration = Duration::from_secs(5);

/// After how long servers are tried again none of which could be reached.
const RETRY: Duration = Duration::from_secs(1);

/// How often a question is asked at most. Those who wait for it have gone long before.
const MAX_ATTEMPTS: u32 = 200;

/// The longest datagram that is taken in. Without an OPT record in the query, servers send 512 bytes at most.
const DATAGRAM: usize = 4096;

/// A question, and the answer once there is one.
struct Question {
    query: Query,
    answer: Option<Answer>,
}

/// How an attempt ended.
enum Attempt {
    /// Everything is answered.
    Complete,
    /// The server can not be reached.
    Unreachable,
    /// The server does not understand what we ask.
    NotUnderstood,
}

/// Asks for all `kinds` of records of a name. The answers are in their order.
///
/// It goes on for as long as `wanted` says that somebody waits.
pub(super) async fn ask(
    resolver: &Resolver,
    name: &BStr,
    kinds: &[Kind],
    wanted: impl Fn() -> bool,
) -> Result<Vec<Answer>, ResolveError> {
    let mut questions = Vec::new();
    for &kind in kinds {
        let id = getrandom::u32().map_err(|_| ResolveError::FAILURE)? as u16;
        let query = Query::new(id, name, kind).ok_or(ResolveError::UNKNOWN)?;
        questions.push(Question {
            query,
            answer: None,
        });
    }
    let servers = &resolver.settings.servers;
    let mut server = resolver.first_server();
    let mut useless_servers = 0;
    for _ in 0..MAX_ATTEMPTS {
        let attempt = attempt(resolver, &servers[server], &mut questions);
        match rt::timeout(RESEND, attempt).await {
            Ok(Attempt::Complete) => {
                return Ok(questions
                    .into_iter()
                    .filter_map(|question| question.answer)
                    .collect());
            }
            Ok(Attempt::NotUnderstood) if useless_servers + 1 >= servers.len() => {
                return Err(ResolveError::FORMAT);
            }
            Ok(Attempt::Unreachable) if useless_servers + 1 >= servers.len() => {
                useless_servers = 0;
                rt::sleep(RETRY).await;
            }
            Ok(Attempt::NotUnderstood | Attempt::Unreachable) => useless_servers += 1,
            Err(_) => useless_servers = 0,
        }
        if !wanted() {
            break;
        }
        server = (server + 1) % servers.len();
    }
    Err(ResolveError::TimedOut)
}

/// Asks one server everything that is not answered yet. Does not end by itself while the server is silent.
async fn attempt(resolver: &Resolver, server: &Address, questions: &mut [Question]) -> Attempt {
    match over_udp(resolver, server, questions).await {
        Ok(attempt) => attempt,
        Err(error) => {
            let errno = Errno(&error);
            resolver.log.plain(
                Level::Error,
                format_args!("DNS query failed{errno}, resolver: {server}"),
            );
            Attempt::Unreachable
        }
    }
}

async fn over_udp(
    resolver: &Resolver,
    server: &Address,
    questions: &mut [Question],
) -> io::Result<Attempt> {
    let socket = UdpSocket::connect(server)?;
    for question in questions
        .iter()
        .filter(|question| question.answer.is_none())
    {
        socket.send(&question.query.bytes).await?;
    }
    let mut buffer = vec![0; DATAGRAM];
    while questions.iter().any(|question| question.answer.is_none()) {
        let length = socket.recv(&mut buffer).await?;
        let mut reply = take(resolver, server, questions, &buffer[..length]);
        if let (Some(index), Reply::Truncated) = reply {
            let bytes = over_tcp(server, &questions[index].query).await?;
            reply = take(resolver, server, questions, &bytes);
            if let (_, Reply::Truncated | Reply::Useless(_)) = reply {
                return Ok(Attempt::Unreachable);
            }
        }
        if reply.1 == Reply::NotUnderstood {
            return Ok(Attempt::NotUnderstood);
        }
    }
    Ok(Attempt::Complete)
}

/// Reads a message and keeps the answer in it.
fn take(
    resolver: &Resolver,
    server: &Address,
    questions: &mut [Question],
    bytes: &[u8],
) -> (Option<usize>, Reply) {
    let open: Vec<usize> = (0..questions.len())
        .filter(|&index| questions[index].answer.is_none())
        .collect();
    let queries: Vec<&Query> = open.iter().map(|&index| &questions[index].query).collect();
    let (index, reply) = message::read(bytes, &queries);
    let index = index.map(|index| open[index]);
    match (index, &reply) {
        (Some(index), Reply::Answer(answer)) => questions[index].answer = Some(answer.clone()),
        (_, Reply::Useless(why)) => resolver
            .log
            .plain(Level::Error, format_args!("{why}, resolver: {server}")),
        _ => {}
    }
    (index, reply)
}

/// RFC 1035, section 4.2.2: the length in two bytes, then the message; in both directions.
async fn over_tcp(server: &Address, query: &Query) -> io::Result<Vec<u8>> {
    let stream = connect(
        server,
        &ConnectOptions {
            timeout: RESEND,
            ..ConnectOptions::default()
        },
    )
    .await?;
    let length =
        u16::try_from(query.bytes.len()).expect("a query holds one name of 255 bytes at most");
    stream
        .write_all_vectored(&[&length.to_be_bytes(), &query.bytes])
        .await?;
    let mut bytes = Vec::new();
    loop {
        if let Some((length, message)) = bytes.split_first_chunk() {
            let length = usize::from(u16::from_be_bytes(*length));
            if message.len() >= length {
                return Ok(message[..length].to_vec());
            }
        }
        if stream.read_into(&mut bytes, DATAGRAM).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}
