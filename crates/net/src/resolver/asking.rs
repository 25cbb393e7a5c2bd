//! Asking DNS servers: over UDP, over TCP when the answer was too long for that, and again when none came.
//!
//! Every attempt has a socket of its own, so that its port is one that the kernel chose by lot. A forger would have to
//! guess that and the random number in the query, and can not send from anywhere but the server's address: the socket
//! is connected to it. The letters of the name are written in a case chosen by lot, which the answer must repeat
//! ("0x20", the bit that the cases of a letter differ by): one more bit to guess for each letter. What becomes of servers
//! that do not go along with it is in [`super::case`].

use std::io;
use std::time::Duration;

use base::Errno;
use bstr::BStr;
use host::error_log::Level;
use rt::net::{Address, UdpSocket};

use super::Resolver;
use super::case::{Asked, Verdict};
use super::error::ResolveError;
use super::message::{self, Answer, Case, Kind, Query, Reply, Way};
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
    /// In small letters because there was nothing by the name with capitals.
    again: bool,
    answer: Option<Answer>,
}

impl Question {
    fn new(name: &BStr, kind: Kind, random_case: bool) -> Result<Question, ResolveError> {
        let id = rt::random::number().map_err(|_| ResolveError::FAILURE)? as u16;
        let mut case = Case::default();
        if random_case {
            rt::random::fill(&mut case).map_err(|_| ResolveError::FAILURE)?;
        }
        let query = Query::new(id, name, kind, random_case.then_some(&case));
        Ok(Question {
            query: query.ok_or(ResolveError::UNKNOWN)?,
            again: false,
            answer: None,
        })
    }
}

impl Question {
    fn asked(&self) -> Asked {
        match (self.query.random_case, self.again) {
            (true, _) => Asked::Randomly,
            (false, true) => Asked::Again,
            (false, false) => Asked::Plainly,
        }
    }
}

/// A server and its number in the settings.
#[derive(Clone, Copy)]
struct Server<'a> {
    number: usize,
    address: &'a Address,
}

/// How an attempt ended.
enum Attempt {
    /// Everything is answered.
    Complete,
    /// The server can not be reached.
    Unreachable,
    /// The server does not understand what we ask.
    NotUnderstood,
    /// It has answered in another case, and cannot be asked by a connection whether it meant that.
    OtherCase,
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
        questions.push(Question::new(name, kind, false)?);
    }
    let servers = &resolver.settings.servers;
    let mut server = resolver.first_server();
    let mut useless_servers = 0;
    let mut silence = false;
    for _ in 0..MAX_ATTEMPTS {
        let random_case = resolver.cases.asks_randomly(server, silence);
        for question in questions
            .iter_mut()
            .filter(|question| question.answer.is_none())
        {
            *question = Question::new(name, question.query.kind, random_case)?;
        }
        let asked = Server {
            number: server,
            address: &servers[server],
        };
        match rt::timeout(RESEND, attempt(resolver, asked, name, &mut questions)).await {
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
            // The same server at once. After a few times it counts as one that does not keep the case.
            Ok(Attempt::OtherCase) if wanted() => continue,
            Ok(Attempt::OtherCase) => {}
            Err(_) => {
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

/// Asks one server everything that is not answered yet. Does not end by itself while the server is silent.
async fn attempt(
    resolver: &Resolver,
    server: Server<'_>,
    name: &BStr,
    questions: &mut [Question],
) -> Attempt {
    let known = resolver.cases.is_not_kept(server.number);
    let attempt = over_udp(resolver, server, name, questions).await;
    if !known && resolver.cases.is_not_kept(server.number) {
        let text = "the DNS server does not preserve the case of names, which makes its responses easier to forge";
        resolver.log.plain(
            Level::Warn,
            format_args!("{text}, resolver: {}", server.address),
        );
    }
    match attempt {
        Ok(attempt) => attempt,
        Err(error) => {
            let errno = Errno(&error);
            resolver.log.plain(
                Level::Error,
                format_args!("DNS query failed{errno}, resolver: {}", server.address),
            );
            Attempt::Unreachable
        }
    }
}

async fn over_udp(
    resolver: &Resolver,
    server: Server<'_>,
    name: &BStr,
    questions: &mut [Question],
) -> io::Result<Attempt> {
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
        let (Some(index), mut reply) = read(resolver, server, questions, bytes, Way::Datagram)
        else {
            continue;
        };
        let other_case = reply == Reply::OtherCase;
        if other_case && resolver.cases.is_kept(server.number) {
            // Not from the server, then; its own answer is on its way.
            continue;
        }
        if other_case || reply == Reply::Truncated {
            let query = &questions[index].query;
            let bytes = match over_tcp(server.address, query).await {
                Ok(bytes) => bytes,
                Err(error) if !other_case => return Err(error),
                Err(_) => {
                    resolver.cases.note_other_case(server.number);
                    return Ok(Attempt::OtherCase);
                }
            };
            // Nobody can forge that from afar.
            if other_case && !query.is_repeated_by(&bytes) {
                resolver.cases.note_not_kept(server.number);
            }
            reply = read(resolver, server, questions, &bytes, Way::Stream).1;
        }
        match reply {
            Reply::NotUnderstood => return Ok(Attempt::NotUnderstood),
            Reply::Answer(answer) => {
                let question = &mut questions[index];
                let kind = question.query.kind;
                match resolver
                    .cases
                    .judge(server.number, question.asked(), &answer)
                {
                    Verdict::Good => question.answer = Some(answer),
                    Verdict::AskInLowerCase => {
                        let again = Question::new(name, kind, false);
                        *question = again.map_err(|_| io::ErrorKind::Other)?;
                        question.again = true;
                        socket.send(&question.query.bytes).await?;
                    }
                }
            }
            Reply::Truncated | Reply::OtherCase | Reply::Useless(_) => {
                return Ok(Attempt::Unreachable);
            }
        }
    }
    Ok(Attempt::Complete)
}

/// Reads a message, and says to which question it belongs. What is of no use is logged.
fn read(
    resolver: &Resolver,
    server: Server<'_>,
    questions: &[Question],
    bytes: &[u8],
    way: Way,
) -> (Option<usize>, Reply) {
    let open: Vec<usize> = (0..questions.len())
        .filter(|&index| questions[index].answer.is_none())
        .collect();
    let queries: Vec<&Query> = open.iter().map(|&index| &questions[index].query).collect();
    let (index, reply) = message::read(bytes, &queries, way);
    if let Reply::Useless(why) = &reply {
        let server = server.address;
        resolver
            .log
            .plain(Level::Error, format_args!("{why}, resolver: {server}"));
    }
    (index.map(|index| open[index]), reply)
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
