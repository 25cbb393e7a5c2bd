//! DNS messages: queries, and what an answer says (RFC 1035, 2782, 3596, 2308).
//!
//! The `domain` crate encodes and parses the bytes. Here they become questions of three kinds, and answers with
//! what a web server needs. No sockets and no clock.

use std::net::IpAddr;

use bstr::{BStr, BString, ByteSlice};
use domain::base::iana::{Class, Opcode, Rcode, Rtype};
use domain::base::name::NameBuilder;
use domain::base::{Message, MessageBuilder, Name, ParsedName, Question, ToName};
use domain::rdata::{A, Aaaa, Cname, Soa, Srv};

/// How many records of one answer are used; the rest is ignored, so that a hostile zone cannot fill the memory.
pub(super) const MAX_RECORDS: usize = 256;

/// The type of record that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum RecordType {
    A,
    Aaaa,
    Srv,
}

impl RecordType {
    fn record_type(self) -> Rtype {
        match self {
            RecordType::A => Rtype::A,
            RecordType::Aaaa => Rtype::AAAA,
            RecordType::Srv => Rtype::SRV,
        }
    }
}

/// Random bits that choose the case of the letters in a name: 256 bits, one for each of the up to 255 bytes.
pub(super) type CaseBits = [u8; 32];

/// A query that was sent.
pub(super) struct DnsQuery {
    /// An answer must repeat it. Random, so that a forger has to guess it.
    pub(super) id: u16,
    pub(super) kind: RecordType,
    /// The letters of the name are in random case.
    pub(super) random_case: bool,
    name: Name<Vec<u8>>,
    /// The encoded message.
    pub(super) bytes: Vec<u8>,
}

/// What a received message turned out to be.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum DnsReply {
    /// It answers no query of ours or cannot be parsed. The real answer may still come, so waiting goes on. Holds
    /// the text for the error log.
    Useless(String),
    /// It has the right name in other letters. Either the server does not keep the case, or the message is forged.
    OtherCase,
    /// The answer does not fit a datagram (the TC bit): ask again over TCP.
    Truncated,
    /// The server rejects the query as malformed: another server might not.
    NotUnderstood,
    /// The answer.
    Answer(DnsAnswer),
}

/// What a server says about a name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DnsAnswer {
    /// The response code; 0 is success.
    pub(super) code: u8,
    pub(super) addresses: Vec<IpAddr>,
    pub(super) services: Vec<SrvRecord>,
    /// The canonical name (CNAME) that the name stands for; the last one of a chain.
    pub(super) alias: Option<BString>,
    /// The shortest TTL of its records, in seconds: the whole answer is cached under one time.
    pub(super) ttl: u32,
    /// For how many seconds "no such record" may be cached, if the server says so.
    pub(super) negative_ttl: Option<u32>,
}

impl DnsAnswer {
    /// Whether it has any record for the name.
    pub(super) fn has_records(&self) -> bool {
        !self.addresses.is_empty() || !self.services.is_empty() || self.alias.is_some()
    }
}

/// A SRV record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SrvRecord {
    pub(super) priority: u16,
    pub(super) weight: u16,
    pub(super) port: u16,
    pub(super) target: BString,
}

/// Over what a message was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DnsTransport {
    /// UDP. The sender's address can be forged, so the case of the letters has to match too.
    Datagram,
    /// A TCP connection to the server.
    Stream,
}

impl DnsQuery {
    /// A query for `name`, in lower case or with the letters' case from the bits of `case` (1 is upper case).
    ///
    /// `None` if `name` is not valid in DNS: an empty label, a label of more than 63 bytes, or more than 255 in
    /// all.
    pub(super) fn new(
        id: u16,
        name: &BStr,
        kind: RecordType,
        case: Option<&CaseBits>,
    ) -> Option<DnsQuery> {
        let mut name = name.to_ascii_lowercase();
        let mut bits = case.into_iter().flat_map(|case| case.iter());
        for letters in name.chunks_mut(8) {
            let bits = bits.next().copied().unwrap_or(0);
            for (place, letter) in letters.iter_mut().enumerate() {
                if bits >> place & 1 == 1 {
                    letter.make_ascii_uppercase();
                }
            }
        }
        let mut builder = NameBuilder::new_vec();
        for label in name.split_str(".") {
            builder
                .append_label(label)
                .ok()
                .filter(|()| !label.is_empty())?;
        }
        let name = builder.into_name().ok()?;
        let mut message = MessageBuilder::new_vec();
        message.header_mut().set_id(id);
        // The configured server is expected to recurse: there is no iterative resolution here.
        message.header_mut().set_rd(true);
        let mut message = message.question();
        message.push((&name, kind.record_type())).ok()?;
        Some(DnsQuery {
            id,
            kind,
            random_case: case.is_some(),
            bytes: message.finish(),
            name,
        })
    }

    fn asked(&self, question: &Question<ParsedName<&[u8]>>) -> bool {
        question.qtype() == self.kind.record_type()
            && question.qclass() == Class::IN
            // Case-insensitive (RFC 4343); the exact letters are compared separately.
            && question.qname().name_eq(&self.name)
    }

    /// Whether a response repeats the name in the exact letters of the query.
    pub(super) fn is_repeated_by(&self, bytes: &[u8]) -> bool {
        let Ok(message) = Message::from_octets(bytes) else {
            return false;
        };
        message
            .sole_question()
            .is_ok_and(|question| self.has_case_of(&question))
    }

    fn has_case_of(&self, question: &Question<ParsedName<&[u8]>>) -> bool {
        let (ours, theirs) = (self.name.iter(), question.qname().iter());
        ours.zip(theirs)
            .all(|(ours, theirs)| ours.as_slice() == theirs.as_slice())
    }
}

/// Parses a message from the server that was asked. `queries` are the open questions; the number returned says
/// which of them it answers.
pub(super) fn read(
    bytes: &[u8],
    queries: &[&DnsQuery],
    transport: DnsTransport,
) -> (Option<usize>, DnsReply) {
    let useless = |text: String| (None, DnsReply::Useless(text));
    let Ok(message) = Message::from_octets(bytes) else {
        return useless("short DNS response".into());
    };
    let header = message.header();
    if !header.qr() || header.opcode() != Opcode::QUERY {
        return useless(format!("invalid DNS response {}", header.id()));
    }
    let Some(index) = queries.iter().position(|query| query.id == header.id()) else {
        return useless(format!("wrong ident {} in DNS response", header.id()));
    };
    // Before the question is compared: a server that cannot parse the query need not repeat it.
    if header.rcode() == Rcode::FORMERR {
        return (Some(index), DnsReply::NotUnderstood);
    }
    match message.sole_question() {
        Ok(question) if queries[index].asked(&question) => {
            let query = queries[index];
            if transport == DnsTransport::Datagram
                && query.random_case
                && !query.has_case_of(&question)
            {
                return (Some(index), DnsReply::OtherCase);
            }
        }
        Ok(question) => {
            return useless(format!("unexpected DNS response for {}", question.qname()));
        }
        Err(_) => return useless("invalid question in DNS response".into()),
    }
    // After the question was compared, so that a forged datagram cannot force the slower TCP.
    if header.tc() {
        return (Some(index), DnsReply::Truncated);
    }
    match read_records(&message, queries[index].kind) {
        Ok(answer) => (Some(index), DnsReply::Answer(answer)),
        Err(text) => useless(text.into()),
    }
}

/// nginx's message for an answer that is cut short.
const SHORT: &str = "short DNS response";

fn read_records(message: &Message<&[u8]>, kind: RecordType) -> Result<DnsAnswer, &'static str> {
    let mut answer = DnsAnswer {
        code: message.header().rcode().to_int(),
        ttl: u32::MAX,
        ..DnsAnswer::default()
    };
    let records = message.answer().map_err(|_| SHORT)?;
    // Owner names are not compared with the question: the configured server is trusted to answer anything, and a
    // CNAME chain has many owners.
    for record in records.take(MAX_RECORDS) {
        let record = record.map_err(|_| SHORT)?;
        if record.class() != Class::IN {
            return Err("unexpected RR class in DNS response");
        }
        answer.ttl = answer.ttl.min(ttl(record.ttl().as_secs()));
        match (record.rtype(), kind) {
            (Rtype::A, RecordType::A) => {
                let data = record
                    .to_record::<A>()
                    .map_err(|_| "invalid A record in DNS response")?;
                answer
                    .addresses
                    .extend(data.map(|data| IpAddr::V4(data.data().addr())));
            }
            (Rtype::AAAA, RecordType::Aaaa) => {
                let data = record
                    .to_record::<Aaaa>()
                    .map_err(|_| "invalid AAAA record in DNS response")?;
                answer
                    .addresses
                    .extend(data.map(|data| IpAddr::V6(data.data().addr())));
            }
            (Rtype::SRV, RecordType::Srv) => {
                let data = record
                    .to_record::<Srv<_>>()
                    .map_err(|_| "invalid SRV record in DNS response")?;
                answer
                    .services
                    .extend(data.and_then(|data| service(data.data())));
            }
            (Rtype::CNAME, _) => {
                let data = record
                    .to_record::<Cname<_>>()
                    .map_err(|_| "invalid name in DNS response")?;
                answer.alias = data.and_then(|data| text(data.data().cname()));
            }
            // As nginx: an address of the kind that was not asked for is an error of the server.
            (Rtype::A, _) => return Err("unexpected A record in DNS response"),
            (Rtype::AAAA, _) => return Err("unexpected AAAA record in DNS response"),
            // Signatures (RRSIG) and other types that were not asked for.
            _ => {}
        }
    }
    // A stable sort: among equals, the server's own order stays.
    answer.services.sort_by_key(|service| service.priority);
    answer.negative_ttl = negative_ttl(message);
    Ok(answer)
}

/// How long a negative answer may be cached: the lesser of the SOA record's TTL and its MINIMUM field (RFC 2308,
/// section 5).
fn negative_ttl(message: &Message<&[u8]>) -> Option<u32> {
    let records = message
        .authority()
        .ok()?
        .limit_to::<Soa<ParsedName<&[u8]>>>();
    let record = records.take(MAX_RECORDS).find_map(Result::ok)?;
    Some(ttl(record.ttl().as_secs()).min(ttl(record.data().minimum().as_secs())))
}

/// A TTL with the highest bit set counts as zero (RFC 2181, section 8).
fn ttl(seconds: u32) -> u32 {
    if seconds > i32::MAX as u32 {
        0
    } else {
        seconds
    }
}

fn service(data: &Srv<ParsedName<&[u8]>>) -> Option<SrvRecord> {
    Some(SrvRecord {
        priority: data.priority(),
        // RFC 2782 gives weight 0 a very small chance; the smallest weight of a balancer is 1.
        weight: data.weight().max(1),
        port: data.port(),
        target: text(data.target())?,
    })
}

/// A name in lower case with dots. `None` for one that this form cannot express: the root, or a label that contains
/// a dot.
fn text(name: &ParsedName<&[u8]>) -> Option<BString> {
    let mut text = Vec::new();
    for label in name.iter().filter(|label| !label.is_root()) {
        if label.as_slice().contains(&b'.') {
            return None;
        }
        if !text.is_empty() {
            text.push(b'.');
        }
        text.extend(label.as_slice().iter().map(u8::to_ascii_lowercase));
    }
    (!text.is_empty()).then(|| text.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A response to `query` with the given flags and answer section.
    fn response(query: &DnsQuery, flags: u16, records: &[&[u8]]) -> Vec<u8> {
        let mut bytes = query.bytes.clone();
        bytes[2..4].copy_from_slice(&flags.to_be_bytes());
        bytes[7] = records.len() as u8;
        records
            .iter()
            .for_each(|record| bytes.extend_from_slice(record));
        bytes
    }

    fn query(kind: RecordType) -> DnsQuery {
        DnsQuery::new(
            7,
            BStr::new("a.Example.net"),
            kind,
            Some(&[0b1010_1010; 32]),
        )
        .expect("a good name")
    }

    const ADDRESS: &[u8] = &[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 9, 0, 4, 127, 0, 0, 1];
    const ALIAS: &[u8] = &[0xc0, 12, 0, 5, 0, 1, 0, 0, 0, 3, 0, 4, 1, b'B', 0xc0, 14];

    fn answer(bytes: &[u8], query: &DnsQuery) -> Option<DnsAnswer> {
        match read(bytes, &[query], DnsTransport::Datagram) {
            (Some(0), DnsReply::Answer(answer)) => Some(answer),
            _ => None,
        }
    }

    #[test]
    fn an_answer_has_addresses_alias_and_the_least_ttl() {
        let query = query(RecordType::A);
        let answer =
            answer(&response(&query, 0x8180, &[ALIAS, ADDRESS]), &query).expect("an answer");
        assert_eq!(answer.addresses, [IpAddr::from([127, 0, 0, 1])]);
        assert_eq!(answer.alias, Some("b.example.net".into()));
        assert_eq!(answer.ttl, 3);
    }

    #[test]
    fn only_what_was_asked_is_answered() {
        let asked = query(RecordType::A);
        let other =
            DnsQuery::new(7, BStr::new("b.example.net"), RecordType::A, None).expect("a good name");
        assert!(matches!(
            read(
                &response(&asked, 0x8180, &[]),
                &[&other],
                DnsTransport::Datagram
            ),
            (None, DnsReply::Useless(_))
        ));
        let mut bytes = response(&asked, 0x8180, &[ADDRESS]);
        bytes[1] = 8;
        assert!(matches!(
            read(&bytes, &[&asked], DnsTransport::Datagram),
            (None, DnsReply::Useless(_))
        ));
        assert!(matches!(
            read(&asked.bytes, &[&asked], DnsTransport::Datagram),
            (None, DnsReply::Useless(_))
        ));
    }

    #[test]
    fn truncated_and_not_understood_are_told_apart() {
        let query = query(RecordType::A);
        assert_eq!(
            read(
                &response(&query, 0x8380, &[]),
                &[&query],
                DnsTransport::Datagram
            ),
            (Some(0), DnsReply::Truncated)
        );
        assert_eq!(
            read(
                &response(&query, 0x8181, &[]),
                &[&query],
                DnsTransport::Datagram
            ),
            (Some(0), DnsReply::NotUnderstood)
        );
        assert_eq!(
            answer(&response(&query, 0x8183, &[]), &query)
                .expect("an answer")
                .code,
            3
        );
    }

    #[test]
    fn every_cut_of_an_answer_is_useless() {
        let query = query(RecordType::A);
        let whole = response(&query, 0x8180, &[ALIAS, ADDRESS]);
        for end in 0..whole.len() {
            assert!(
                matches!(
                    read(&whole[..end], &[&query], DnsTransport::Datagram),
                    (None, DnsReply::Useless(_))
                ),
                "{end}"
            );
        }
    }

    #[test]
    fn a_pointer_to_itself_ends() {
        let query = query(RecordType::Aaaa);
        let loops: &[u8] = &[0xc0, 31, 0, 28, 0, 1, 0, 0, 0, 9, 0, 0];
        assert!(answer(&response(&query, 0x8180, &[loops]), &query).is_none());
    }

    #[test]
    fn names_that_dns_can_not_ask_for() {
        let long = "a".repeat(64);
        for name in [
            "",
            ".",
            "a..b",
            ".a",
            long.as_str(),
            &"a.".repeat(127),
            &"a.".repeat(128),
        ] {
            assert!(
                DnsQuery::new(1, BStr::new(name), RecordType::A, None).is_none(),
                "{name}"
            );
        }
    }

    #[test]
    fn the_case_of_a_name_is_chosen_and_must_come_back() {
        let plain =
            DnsQuery::new(7, BStr::new("A.Example"), RecordType::A, None).expect("a good name");
        assert_eq!(&plain.bytes[12..23], b"\x01a\x07example\0");
        let case = [0xff; 32];
        let upper = DnsQuery::new(7, BStr::new("a.example"), RecordType::A, Some(&case))
            .expect("a good name");
        assert_eq!(&upper.bytes[12..23], b"\x01A\x07EXAMPLE\0");
        let other = response(&plain, 0x8180, &[ADDRESS]);
        assert_eq!(
            read(&other, &[&upper], DnsTransport::Datagram),
            (Some(0), DnsReply::OtherCase)
        );
        let (index, reply) = read(&other, &[&upper], DnsTransport::Stream);
        assert!(index == Some(0) && matches!(reply, DnsReply::Answer(_)));
    }
}
