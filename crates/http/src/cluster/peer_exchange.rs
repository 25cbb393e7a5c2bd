//! The request to another member, and its answer: HTTP/1.1 with the client's own request (RFC 9112).
//!
//! Only the fields about the connection, the conditions and the range are not the client's: the answer is for all clients,
//! so the fetch says what it wants of them. Whatever the location would change for the origin is changed by the member that
//! asks the origin.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use bstr::{BStr, BString};
use net::cluster::{Cluster, JournalPosition, PeerClaim};
use proto::KnownField;
use proto::connection::NominatedFields;
use proto::fields::Fields;
use proto::h1::body::ChunkDecoder;
use proto::h1::response::{ResponseParser, ResponseProgress};
use proto::message::{Method, ResponseFraming, ResponseHead};

use super::admit_member::host_of;
use super::object_field::{REQUEST_FIELD, RESPONSE_FIELD};
use crate::cache::{CachedProtocol, FetchFields};
use crate::request::Request;
use crate::upstream::{
    ChunkPiece, ContentLength, HeadProgress, NoResponse, ProtocolFault, RequestLength,
    RequestTraits, UpstreamProtocol,
};

/// What is asked.
pub(crate) struct AskedMember {
    /// The cluster, which signs.
    pub(crate) cluster: Arc<Cluster>,
    /// The host for TLS; `None`: the connection is plain.
    pub(crate) secure_host: Option<BString>,
    /// The location's protocol, which rewrites redirects and cookies of responses that are passed on.
    pub(crate) source: &'static CachedProtocol,
    /// The hop of the request: see [`PeerClaim`].
    pub(crate) hop: u8,
    /// The epoch of this server's view.
    pub(crate) epoch: u64,
    /// This server as a member.
    pub(crate) from: Option<SocketAddr>,
    /// The hash of the key.
    pub(crate) key: [u8; 16],
    /// Nothing is to be fetched for it.
    pub(crate) only_stored: bool,
    /// How far this server has read the journal of purges.
    pub(crate) journal: Option<JournalPosition>,
}

/// One request to a member.
pub(crate) struct PeerExchange {
    asked: AskedMember,
    method: Method,
    traits: RequestTraits,
    parser: ResponseParser,
    body: PeerBody,
    length: ContentLength,
    keeps_alive: bool,
}

/// What is left of the answer's content.
enum PeerBody {
    Length(u64),
    Chunked(Box<ChunkDecoder>),
}

impl PeerExchange {
    pub(crate) fn new(asked: AskedMember) -> PeerExchange {
        PeerExchange {
            asked,
            method: Method::Get,
            traits: RequestTraits::default(),
            parser: ResponseParser::new(),
            body: PeerBody::Length(0),
            length: ContentLength::None,
            keeps_alive: false,
        }
    }

    /// Appends the line by which the member recognizes this server.
    fn sign(&self, request: &Request, host: &[u8], out: &mut Vec<u8>) -> Result<(), NoResponse> {
        let asked = &self.asked;
        let settings = asked.cluster.settings().ok_or(NoResponse::new(500))?;
        let claim = PeerClaim {
            hop: asked.hop,
            epoch: asked.epoch,
            from: asked.from,
            key: asked.key,
            client: request.remote.address.ip(),
            is_secure: request.is_tls(),
            only_stored: asked.only_stored,
            journal: asked.journal,
        };
        let signed = [
            request.method.name().as_bytes(),
            host,
            request.head.wire.target(),
        ];
        out.extend_from_slice(REQUEST_FIELD);
        out.extend_from_slice(b": ");
        let name = asked.cluster.name();
        settings
            .token
            .sign(name, &claim, signed, rt::wall_millis(), out);
        out.extend_from_slice(b"\r\n");
        Ok(())
    }
}

/// Whether a field of the client stays here: it is about its connection, or the fetch says it otherwise.
fn stays_here(known: KnownField, name: &[u8], nominated: &NominatedFields) -> bool {
    let is_ours = |ours: &[u8]| name.eq_ignore_ascii_case(ours);
    matches!(
        known,
        KnownField::Host
            | KnownField::Connection
            | KnownField::KeepAlive
            | KnownField::TransferEncoding
            | KnownField::ContentLength
            | KnownField::Upgrade
            | KnownField::Expect
    ) || FetchFields::replaces_field(known)
        || [
            &b"TE"[..],
            b"Trailer",
            b"Proxy-Connection",
            REQUEST_FIELD,
            RESPONSE_FIELD,
        ]
        .into_iter()
        .any(is_ours)
        || nominated.has(name)
}

fn push_line(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    for part in [name, b": ", value, b"\r\n"] {
        out.extend_from_slice(part);
    }
}

impl UpstreamProtocol for PeerExchange {
    fn scheme(&self) -> &'static str {
        match self.asked.secure_host {
            Some(_) => "https://",
            None => "http://",
        }
    }

    fn secure_host(&self) -> Option<&BStr> {
        self.asked.secure_host.as_ref().map(AsRef::as_ref)
    }

    fn write_head(
        &mut self,
        request: &mut Request,
        _content: RequestLength,
        out: &mut Vec<u8>,
    ) -> Result<(), NoResponse> {
        let head = Rc::clone(&request.head);
        let host = host_of(request);
        self.method = request.method;
        for part in [
            request.method.name().as_bytes(),
            b" ",
            head.wire.target(),
            b" HTTP/1.1\r\n",
        ] {
            out.extend_from_slice(part);
        }
        let record = request.upstream.get_or_make();
        record.target.extend_from_slice(head.wire.target());
        push_line(b"Host", &host, out);
        self.sign(request, &host, out)?;
        let fields = &head.wire.fields;
        let nominated = NominatedFields::from_fields(fields);
        for (known, name, value) in fields.iter_known() {
            if !stays_here(known, name, &nominated) {
                push_line(name, value, out);
            }
        }
        if let Some(ask) = FetchFields::of_request(request) {
            self.traits.part = ask.range.is_some();
            for (known, value) in ask.fields() {
                push_line(known.name().as_bytes(), &value, out);
            }
        }
        out.extend_from_slice(b"\r\n");
        Ok(())
    }

    fn begin_response(&mut self) {
        self.parser.reset();
        self.body = PeerBody::Length(0);
        self.keeps_alive = false;
    }

    fn read_head(
        &mut self,
        _request: &Request,
        input: &[u8],
        head: &mut ResponseHead,
    ) -> Result<HeadProgress, ProtocolFault> {
        let used = match self.parser.parse(input, usize::MAX, head) {
            Ok(ResponseProgress::Partial) => return Ok(HeadProgress::Partial),
            Ok(ResponseProgress::Complete(used)) => used,
            Ok(ResponseProgress::NotHttp) => {
                return Err(ProtocolFault::new(
                    "member of the cluster sent no HTTP/1 header",
                ));
            }
            Err(bad) => return Err(ProtocolFault::new(bad.log_line())),
        };
        if head.status < 200 {
            self.parser.reset();
            return Ok(HeadProgress::Interim(used));
        }
        let framing = ResponseFraming::of_response(self.method, head.status, &head.fields)
            .map_err(|_| ProtocolFault::new("member of the cluster sent an invalid length"))?;
        self.keeps_alive = head.keeps_alive();
        (self.body, self.length) = match framing {
            ResponseFraming::None => (PeerBody::Length(0), ContentLength::None),
            ResponseFraming::Length(length) => {
                (PeerBody::Length(length), ContentLength::Known(length))
            }
            ResponseFraming::Chunked => (
                PeerBody::Chunked(Box::new(ChunkDecoder::new())),
                ContentLength::Unknown,
            ),
            // A member never frames content so: its end could not be told from a crash.
            ResponseFraming::UntilClose => {
                return Err(ProtocolFault::new(
                    "member of the cluster sent content without a length",
                ));
            }
        };
        Ok(HeadProgress::Complete(used))
    }

    fn content_length(&self) -> ContentLength {
        self.length
    }

    fn plain_content(&self) -> Option<u64> {
        match (&self.body, self.length) {
            (PeerBody::Length(length), ContentLength::Known(_)) => Some(*length),
            _ => None,
        }
    }

    fn read_content(&mut self, _: &Request, input: &[u8]) -> Result<ChunkPiece, ProtocolFault> {
        match &mut self.body {
            PeerBody::Length(0) => Ok(ChunkPiece::End(0)),
            _ if input.is_empty() => Ok(ChunkPiece::More),
            PeerBody::Length(left) => {
                let taken = usize::try_from(*left)
                    .unwrap_or(usize::MAX)
                    .min(input.len());
                *left -= taken as u64;
                Ok(ChunkPiece::Data(0..taken))
            }
            PeerBody::Chunked(decoder) => decoder
                .next_piece(input)
                .map_err(|_| ProtocolFault::new("member of the cluster sent invalid chunks")),
        }
    }

    fn end_of_input(&mut self) -> Result<(), ProtocolFault> {
        Err(ProtocolFault::new(
            "member of the cluster closed the connection before the end of its answer",
        ))
    }

    fn trailers(&self) -> Option<&Fields> {
        match &self.body {
            PeerBody::Chunked(decoder) => Some(decoder.trailers()),
            PeerBody::Length(_) => None,
        }
    }

    fn keeps_alive(&self) -> bool {
        self.keeps_alive
    }

    fn map_field(
        &mut self,
        request: &mut Request,
        field: KnownField,
        value: &[u8],
        out: &mut Vec<u8>,
    ) -> bool {
        let plan = (self.asked.source.plan)(request);
        plan.is_ok_and(|mut plan| plan.protocol.map_field(request, field, value, out))
    }

    fn request_traits(&self) -> RequestTraits {
        self.traits
    }
}
