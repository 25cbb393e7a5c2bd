//! Asking DNS servers: over UDP, over TCP when the answer did not fit a datagram, and again when no answer came.
//!
//! An answer could be forged by anyone who can guess what it must contain (RFC 5452). So every attempt has a new
//! socket, with a port that the kernel chooses at random, and a random number in the query. The socket is
//! connected, so the kernel drops datagrams from any address but the server's. The letters of the name are in
//! random case, which the answer must repeat ("0x20", the bit in which the cases of an ASCII letter differ): one
//! more bit to guess for each letter. How servers that do not repeat the case are handled is in
//! [`super::case_randomization`].

use std::io;
use std::time::Duration;

use base::ErrnoText;
use bstr::BStr;
use host::error_log::LogLevel;
use rt::net::{SocketAddress, UdpSocket};

use super::Resolver;
use super::case_randomization::{CaseVerdict, QueryCase};
use super::error::ResolveError;
use super::message::{self, CaseBits, DnsAnswer, DnsQuery, DnsReply, DnsTransport, RecordType};
use crate::{ConnectSettings, connect};

/// After how long without an answer the query is sent to the next server; nginx's interval.
const RESEND: Duration = Duration::from_secs(5);

/// The pause before the servers are tried again when none of them could be reached.
const RETRY: Duration = Duration::from_secs(1);

/// How many attempts a question gets at most. `resolver_timeout` ends the wait of every request long before.
const MAX_ATTEMPTS: u32 = 200;

/// The size of the receive buffer. Without an OPT record in the query, a server sends 512 bytes at most (RFC 1035,
/// section 4.2.1; RFC 6891).
const DATAGRAM: usize = 4096;

/// A question, and the answer once there is one.
struct PendingQuestion {
    query: DnsQuery,
    /// It is in lower case because the server had nothing under the name in mixed case.
    again: bool,
    answer: Option<DnsAnswer>,
}

impl PendingQuestion {
    fn new(
        name: &BStr,
        kind: RecordType,
        random_case: bool,
    ) -> Result<PendingQuestion, ResolveError> {
        // From the kernel's generator: a predictable number would make forging easy. Without randomness nothing is
        // asked at all.
        let id = rt::random::number().map_err(|_| ResolveError::FAILURE)? as u16;
        let mut case = CaseBits::default();
        if random_case {
            rt::random::fill(&mut case).map_err(|_| ResolveError::FAILURE)?;
        }
        let query = DnsQuery::new(id, name, kind, random_case.then_some(&case));
        Ok(PendingQuestion {
            query: query.ok_or(ResolveError::UNKNOWN)?,
            again: false,
            answer: None,
        })
    }
}

impl PendingQuestion {
    fn query_case(&self) -> QueryCase {
        match (self.query.random_case, self.again) {
            (true, _) => QueryCase::Randomly,
            (false, true) => QueryCase::Again,
            (false, false) => QueryCase::Plainly,
        }
    }
}

/// A DNS server and its number in the settings.
#[derive(Clone, Copy)]
struct NumberedServer<'a> {
    number: usize,
    address: &'a SocketAddress,
}

/// How an attempt ended.
enum QueryAttempt {
    /// All questions are answered.
    Complete,
    /// The server cannot be reached.
    Unreachable,
    /// The server rejects the query as malformed (FORMERR).
    NotUnderstood,
    /// The answer has the name in another case, and the server cannot be asked over TCP whether it sent that.
    OtherCase,
}

/// Asks for all `kinds` of records of a name. The answers are in the order of `kinds`.
///
/// It goes on for as long as `wanted` says that a request waits for the answer.
pub(super) async fn query_servers(
    resolver: &Resolver,
    name: &BStr,
    kinds: &[RecordType],
    wanted: impl Fn() -> bool,
) -> Result<Vec<DnsAnswer>, ResolveError> {
    let mut questions = Vec::new();
    for &kind in kinds {
        questions.push(PendingQuestion::new(name, kind, false)?);
    }
    let servers = &resolver.settings.servers;
    // Servers take turns from question to question, as in nginx.
    let mut server = resolver.first_server();
    let mut useless_servers = 0;
    let mut silence = false;
    for _ in 0..MAX_ATTEMPTS {
        let random_case = resolver.cases.asks_randomly(server, silence);
        // A new number and new letters for each attempt: a forger who has seen a query time out must start again.
        for question in questions
            .iter_mut()
            .filter(|question| question.answer.is_none())
        {
            *question = PendingQuestion::new(name, question.query.kind, random_case)?;
        }
        let asked = NumberedServer {
            number: server,
            address: &servers[server],
        };
        match rt::timeout(RESEND, query_server(resolver, asked, name, &mut questions)).await {
            Ok(QueryAttempt::Complete) => {
                return Ok(questions
                    .into_iter()
                    .filter_map(|question| question.answer)
                    .collect());
            }
            // Every server has rejected the query: to wait would not change that.
            Ok(QueryAttempt::NotUnderstood) if useless_servers + 1 >= servers.len() => {
                return Err(ResolveError::FORMAT);
            }
            // No server can be reached: a pause, or this would spin while the network is down.
            Ok(QueryAttempt::Unreachable) if useless_servers + 1 >= servers.len() => {
                useless_servers = 0;
                rt::sleep(RETRY).await;
            }
            Ok(QueryAttempt::NotUnderstood | QueryAttempt::Unreachable) => useless_servers += 1,
            // Ask the same server again at once. After a few times the state machine in `case` gives up on its
            // letters, so this ends.
            Ok(QueryAttempt::OtherCase) if wanted() => continue,
            Ok(QueryAttempt::OtherCase) => {}
            Err(_) => {
                // Silence is no proof that a server is useless: the count begins again.
                useless_servers = 0;
                silence = true;
            }
        }
        if !wanted() {
            break;
        }
        server = (server + 1) % servers.len();
    }
    Err(ResolveError::TimedOut)
}

/// Asks one server all questions that are still open. It has no timeout of its own and waits while the server is
/// silent; the caller limits it.
async fn query_server(
    resolver: &Resolver,
    server: NumberedServer<'_>,
    name: &BStr,
    questions: &mut [PendingQuestion],
) -> QueryAttempt {
    // The warning comes once for each server: at the attempt that finds it out.
    let known = resolver.cases.is_not_kept(server.number);
    let attempt = over_udp(resolver, server, name, questions).await;
    if !known && resolver.cases.is_not_kept(server.number) {
        let text = "the DNS server does not preserve the case of names, which makes its responses easier to forge";
        resolver.log.log_plain(
            LogLevel::Warn,
            format_args!("{text}, resolver: {}", server.address),
        );
    }
    match attempt {
        Ok(attempt) => attempt,
        Err(error) => {
            let errno = ErrnoText(&error);
            resolver.log.log_plain(
                LogLevel::Error,
                format_args!("DNS query failed{errno}, resolver: {}", server.address),
            );
            QueryAttempt::Unreachable
        }
    }
}

async fn over_udp(
    resolver: &Resolver,
    server: NumberedServer<'_>,
    name: &BStr,
    questions: &mut [PendingQuestion],
) -> io::Result<QueryAttempt> {
    // All queries leave before the first answer is waited for: A and AAAA take one round trip together.
    let socket = UdpSocket::connect(server.address)?;
    for question in questions
        .iter()
        .filter(|question| question.answer.is_none())
    {
        socket.send(&question.query.bytes).await?;
    }
    let mut buffer = vec![0; DATAGRAM];
    while questions.iter().any(|question| question.answer.is_none()) {
        let length = socket.recv(&mut buffer).await?;
        let bytes = &buffer[..length];
        let (Some(index), mut reply) =
            read(resolver, server, questions, bytes, DnsTransport::Datagram)
        else {
            continue;
        };
        let other_case = reply == DnsReply::OtherCase;
        if other_case && resolver.cases.is_kept(server.number) {
            // The server is known to repeat the case, so this was not sent by it. Its own answer is still on its
            // way.
            continue;
        }
        // RFC 7766, section 5: a truncated answer is asked for again over TCP.
        if other_case || reply == DnsReply::Truncated {
            let query = &questions[index].query;
            let bytes = match over_tcp(server.address, query).await {
                Ok(bytes) => bytes,
                Err(error) if !other_case => return Err(error),
                Err(_) => {
                    resolver.cases.note_other_case(server.number);
                    return Ok(QueryAttempt::OtherCase);
                }
            };
            // Over TCP an attacker off the path would have to guess sequence numbers too, so this is the server's
            // own answer.
            if other_case && !query.is_repeated_by(&bytes) {
                resolver.cases.note_not_kept(server.number);
            }
            reply = read(resolver, server, questions, &bytes, DnsTransport::Stream).1;
        }
        match reply {
            DnsReply::NotUnderstood => return Ok(QueryAttempt::NotUnderstood),
            DnsReply::Answer(answer) => {
                let question = &mut questions[index];
                let kind = question.query.kind;
                match resolver
                    .cases
                    .judge_answer(server.number, question.query_case(), &answer)
                {
                    CaseVerdict::Good => question.answer = Some(answer),
                    // On the same socket: this attempt's time limit covers both.
                    CaseVerdict::AskInLowerCase => {
                        let again = PendingQuestion::new(name, kind, false);
                        *question = again.map_err(|_| io::ErrorKind::Other)?;
                        question.again = true;
                        socket.send(&question.query.bytes).await?;
                    }
                }
            }
            DnsReply::Truncated | DnsReply::OtherCase | DnsReply::Useless(_) => {
                return Ok(QueryAttempt::Unreachable);
            }
        }
    }
    Ok(QueryAttempt::Complete)
}

/// Parses a message and finds the open question that it answers. A message that answers none is logged, and the
/// caller goes on waiting: to give up would let anyone end a lookup with one forged datagram.
fn read(
    resolver: &Resolver,
    server: NumberedServer<'_>,
    questions: &[PendingQuestion],
    bytes: &[u8],
    transport: DnsTransport,
) -> (Option<usize>, DnsReply) {
    // An answered question is not matched again: a late duplicate must not replace the first answer.
    let open: Vec<usize> = (0..questions.len())
        .filter(|&index| questions[index].answer.is_none())
        .collect();
    let queries: Vec<&DnsQuery> = open.iter().map(|&index| &questions[index].query).collect();
    let (index, reply) = message::read(bytes, &queries, transport);
    if let DnsReply::Useless(why) = &reply {
        let server = server.address;
        resolver
            .log
            .log_plain(LogLevel::Error, format_args!("{why}, resolver: {server}"));
    }
    (index.map(|index| open[index]), reply)
}

/// Asks over TCP: the length in two bytes, then the message, in both directions (RFC 1035, section 4.2.2).
async fn over_tcp(server: &SocketAddress, query: &DnsQuery) -> io::Result<Vec<u8>> {
    let stream = connect(
        server,
        &ConnectSettings {
            timeout: RESEND,
            ..ConnectSettings::default()
        },
    )
    .await?;
    let length =
        u16::try_from(query.bytes.len()).expect("a query holds one name of 255 bytes at most");
    stream
        .write_all_vectored(&[&length.to_be_bytes(), &query.bytes])
        .await?;
    // Bounded by the 16-bit length: at most 65,537 bytes and one more read.
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
