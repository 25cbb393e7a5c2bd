//! The request that `weir explain` is asked about, as the engine would have received it: a client, an address, a head.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use bstr::{BString, ByteSlice};
use host::listen::ListenAddress;
use net::tls::TlsSession;
use proto::Fields;
use proto::h1::{RequestParser, RequestProgress};
use proto::message::{RejectKind, RejectedHead};
use rt::net::{SocketAddress, TcpInfo};

use crate::byte_stream::ByteStream;
use crate::client::{ConnectionOrigin, HttpClient, next_connection};
use crate::client_stream::{ClientConnection, ClientStream};
use crate::http_loop::HttpLoop;
use crate::http_site::HttpSite;
use crate::lifecycle::{RequestCarrier, RequestRefusal};
use crate::listen::ListenEndpoint;
use crate::received_head::ReceivedHead;
use crate::request::Request;
use crate::request_body::RequestBody;
use crate::response_send::ResponseSendError;
use crate::virtual_server::LastVirtualServer;

/// A question: what would the server do with this request?
#[derive(Clone, Debug)]
pub struct ExplainQuestion {
    /// The method.
    pub method: BString,
    /// The path and the arguments, as they stand in a request line.
    pub target: BString,
    /// `Host`; empty for a request without one.
    pub host: BString,
    /// The other header fields.
    pub fields: Vec<(BString, BString)>,
    /// The body.
    pub body: Vec<u8>,
    /// Where the client is.
    pub client: SocketAddr,
    /// Whether it speaks TLS.
    pub secure: bool,
    /// The port that it connects to; `None` for a URL that names no host: any address.
    pub port: Option<u16>,
}

impl ExplainQuestion {
    /// The head as it comes in HTTP/1.1.
    fn wire(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend_from_slice(&self.method);
        out.push(b' ');
        out.extend_from_slice(&self.target);
        out.extend_from_slice(b" HTTP/1.1\r\n");
        let names = |name: &str| {
            let is_name =
                |(field, _): &&(BString, BString)| field.eq_ignore_ascii_case(name.as_bytes());
            self.fields.iter().any(|field| is_name(&field))
        };
        if !self.host.is_empty() && !names("Host") {
            proto::h1::response::write_field(b"Host", &self.host, &mut out);
        }
        if !self.body.is_empty() && !names("Content-Length") {
            let length = self.body.len().to_string();
            proto::h1::response::write_field(b"Content-Length", length.as_bytes(), &mut out);
        }
        for (name, value) in &self.fields {
            proto::h1::response::write_field(name, value, &mut out);
        }
        out.extend_from_slice(b"\r\n");
        out
    }

    /// The address that the client connects to, and why it is this one.
    pub(super) fn endpoint<'s>(
        &self,
        site: &'s HttpSite,
    ) -> Result<(&'s Arc<ListenEndpoint>, &'static str), String> {
        let inet = |endpoint: &Arc<ListenEndpoint>| match &endpoint.address {
            ListenAddress::Tcp(address) => Some(*address),
            ListenAddress::Unix(_) | ListenAddress::Udp(_) | ListenAddress::UnixDatagram(_) => None,
        };
        let Some(port) = self.port else {
            let first = site.endpoints.iter().find(|one| one.tls == self.secure);
            let first = first.or(site.endpoints.first());
            return first
                .map(|first| (first, "the first one: the URL names none"))
                .ok_or_else(|| "no server listens anywhere".to_owned());
        };
        let at_port: Vec<&Arc<ListenEndpoint>> = site
            .endpoints
            .iter()
            .filter(|one| inet(one).is_some_and(|address| address.port() == port))
            .collect();
        let host = self.host.to_str_lossy();
        let name = host.rsplit_once(':').map_or(&*host, |(name, _)| name);
        let asked: Option<IpAddr> = name.trim_matches(['[', ']']).parse().ok();
        let is_asked = |one: &&&Arc<ListenEndpoint>| inet(one).map(|address| address.ip()) == asked;
        if let Some(own) = at_port.iter().find(|one| asked.is_some() && is_asked(one)) {
            return Ok((own, "the address of the URL"));
        }
        let all = |one: &&&Arc<ListenEndpoint>, ip: IpAddr| {
            inet(one).is_some_and(|address| address.ip() == ip)
        };
        let every = at_port
            .iter()
            .find(|one| all(one, Ipv4Addr::UNSPECIFIED.into()))
            .or(at_port
                .iter()
                .find(|one| all(one, Ipv6Addr::UNSPECIFIED.into())));
        if let Some(every) = every {
            return Ok((every, "every address of this port"));
        }
        match at_port.first() {
            Some(first) => Ok((first, "the first one with this port")),
            None => {
                let known = site.endpoints.iter().map(|one| one.address.to_string());
                let known = known.collect::<Vec<_>>().join(", ");
                Err(format!(
                    "no server listens on port {port}; there are: {known}"
                ))
            }
        }
    }

    /// The client, connected to an address.
    pub(super) fn client(
        &self,
        http: &HttpLoop,
        site: &HttpSite,
        endpoint: &Arc<ListenEndpoint>,
    ) -> Rc<HttpClient> {
        let local = match &endpoint.address {
            ListenAddress::Tcp(address) if address.ip().is_unspecified() => {
                let ip: IpAddr = match address.is_ipv4() {
                    true => Ipv4Addr::LOCALHOST.into(),
                    false => Ipv6Addr::LOCALHOST.into(),
                };
                Some(SocketAddress::Inet(SocketAddr::new(ip, address.port())))
            }
            ListenAddress::Tcp(address) => Some(SocketAddress::Inet(*address)),
            ListenAddress::Unix(_) | ListenAddress::Udp(_) | ListenAddress::UnixDatagram(_) => None,
        };
        let connection = Rc::new(ImaginedConnection {
            local,
            secure: self.secure,
        });
        let origin = ConnectionOrigin {
            peer: SocketAddress::Inet(self.client),
            socket: endpoint.socket.clone(),
            passed_at: None,
            control: Rc::default(),
            number: next_connection(),
            accepted: rt::now(),
        };
        let client = http.new_client(site, endpoint, connection, origin);
        client.requests.set(1);
        client
    }

    /// The head, read as HTTP/1 reads it.
    pub(super) fn head(
        &self,
        site: &Rc<HttpSite>,
        client: &HttpClient,
    ) -> Result<ReceivedHead, RejectedHead> {
        let mut head = ReceivedHead {
            number: 1,
            ..ReceivedHead::default()
        };
        let limits = crate::h1::limits_of(site, client.first_server(), false);
        match RequestParser::new().parse(&self.wire(), &limits, &mut head.wire)? {
            RequestProgress::Complete(_) => Ok(head),
            RequestProgress::Partial | RequestProgress::Host(_) => {
                Err(RejectedHead::new(RejectKind::InvalidUri))
            }
        }
    }
}

/// Takes the part of a protocol where an explained request begins; it sends nothing.
pub(super) struct ExplainCarrier {
    pub(super) body: Vec<u8>,
}

impl RequestCarrier for ExplainCarrier {
    type End = ();

    const HAS_REQUEST_LINE: bool = true;

    fn choose_server(&mut self, request: &mut Request) -> Result<(), RejectedHead> {
        LastVirtualServer::default().choose_server(request)
    }

    fn check_head(&mut self, request: &mut Request) -> Result<(), RequestRefusal> {
        let takes_connect = request.site.server(request.server).takes_connect;
        request.head.wire.check(takes_connect)?;
        Ok(())
    }

    fn attach_content(&mut self, request: &mut Request) {
        if !self.body.is_empty() {
            request.body = RequestBody::from_bytes(std::mem::take(&mut self.body));
        }
    }

    fn is_given_up(&self) -> bool {
        false
    }

    async fn settle_content(&mut self, _: &mut Request) -> Result<(), u16> {
        Ok(())
    }

    fn end_silently(&mut self, _: &mut Request) {}

    async fn send(&mut self, _: &mut Request) -> Result<(), ResponseSendError> {
        Ok(())
    }

    async fn after_response(&mut self, _: &mut Request) {}

    fn after_failure(&mut self, _: &mut Request, _: ResponseSendError) {}

    fn closing_words((): &()) -> &'static str {
        "explained"
    }
}

/// A connection that nobody has opened.
struct ImaginedConnection {
    local: Option<SocketAddress>,
    secure: bool,
}

impl ClientConnection for ImaginedConnection {
    fn stream(self: Rc<Self>) -> Rc<dyn ClientStream> {
        self
    }

    fn tls(&self) -> Option<&TlsSession> {
        None
    }

    fn is_secure(&self) -> bool {
        self.secure
    }

    fn local_address(&self) -> Option<SocketAddress> {
        self.local.clone()
    }

    fn tcp_info(&self) -> Option<TcpInfo> {
        None
    }

    fn send_without_delay(&self) {}

    fn force_close(&self) {}

    fn bytes(&self) -> Option<&ByteStream> {
        None
    }
}

impl ClientStream for ImaginedConnection {
    fn poll_left(&self, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }

    fn has_all(&self, _: Option<u64>, _: u64) -> bool {
        true
    }

    fn send_interim(&self, _: u16, _: &Fields) {}

    fn poll_take(&self, _: &mut Vec<u8>, _: usize, _: &mut Context<'_>) -> Poll<bool> {
        Poll::Ready(false)
    }

    fn end_output(&self) {}

    fn can_be_reset(&self) -> bool {
        false
    }

    fn exclusive_bytes(&self) -> Option<&ByteStream> {
        None
    }
}
