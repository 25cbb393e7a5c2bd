//! `set_real_ip_from`: the client's address if the peer is a trusted proxy.
//!
//! ```nginx
//! set_real_ip_from  192.0.2.0/24;
//! set_real_ip_from  unix:;
//! real_ip_header    X-Forwarded-For;
//! real_ip_recursive on;
//! ```
//!
//! The address replaces the peer's for everything that evaluates or logs the client, until the
//! request ends. It is determined once: before the server's rewrites or, if only the location has
//! settings, when the location has been found.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;

use bstr::{BString, ByteSlice};
use conf::{
    Arity, Diagnostic, Directive, DirectiveLine, DirectiveTable, HTTP_SERVER_LOCATION, RepeatRule,
    Setter, Variable,
};
use http::{HandlerOutcome, HandlerStep, HttpModule, HttpPhase, Request};
use net::client::RemoteClient;
use rt::net::SocketAddress;

use crate::shared::forwarded_for::{self, ForwardedDepth};
use crate::shared::realip::{self, TrustedPeers};

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "realip",
    doc: "Takes the client address from a trusted proxy.",
    location: &DIRECTIVES,
    phases: &[
        (HttpPhase::PostRead, replace_client),
        (HttpPhase::Preaccess, replace_client),
    ],
    enabled: |location| !location.confs.get::<Conf>().trusted.is_empty(),
    variables: &VARIABLES,
    explain: http::module::ModuleExplain::Runs(&["set_real_ip_from"]),
    ..HttpModule::EMPTY
};

static VARIABLES: [Variable<Request>; 2] = realip::variables();

static DIRECTIVES: DirectiveTable<Conf> = DirectiveTable::<Conf>::new(&[
    Directive {
        name: "set_real_ip_from",
        syntax: "address | CIDR | host | unix:",
        default: None,
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Trusted proxies, whose information about the client address is used. A host name stands for all of its \
              addresses.",
        set: Setter::Custom(
            Arity::ONE,
            RepeatRule::Fresh(|c| c.trusted.clear()),
            |c, line| c.trusted.read(line),
        ),
    },
    Directive {
        name: "real_ip_header",
        syntax: "field | X-Real-IP | X-Forwarded-For | proxy_protocol",
        default: Some("X-Real-IP"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Where to find the client address: in this request header, which may include a port, or in the PROXY \
              protocol header.",
        set: Setter::Custom(Arity::ONE, RepeatRule::Once, |c, line| c.read_header(line)),
    },
    Directive {
        // Off as in nginx. With several trusted proxies in a row it has to be on.
        name: "real_ip_recursive",
        syntax: "on | off",
        default: Some("off"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "`on` takes the last address in the header that is not itself trusted, `off` the last address.",
        set: Setter::Flag(|c| &mut c.recursive),
    },
]);

#[derive(Clone, Debug, Default)]
struct Conf {
    trusted: TrustedPeers,
    source: RealipSource,
    recursive: bool,
}

/// Where to find the address.
#[derive(Clone, Debug, Default)]
enum RealipSource {
    #[default]
    RealIp,
    ForwardedFor,
    ProxyProtocol,
    Field(BString),
}

impl Conf {
    /// Reads `real_ip_header`. The usual names are told apart here once, not per request.
    fn read_header(&mut self, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
        self.source = match line.text(0).as_bytes() {
            // nginx's default.
            b"X-Real-IP" => RealipSource::RealIp,
            b"X-Forwarded-For" => RealipSource::ForwardedFor,
            b"proxy_protocol" => RealipSource::ProxyProtocol,
            name => RealipSource::Field(name.into()),
        };
        Ok(())
    }

    /// The values that name the client. `X-Forwarded-For` can be repeated, since each proxy may add
    /// a field of its own; of the others only the first counts.
    fn values(&self, request: &Request) -> Vec<BString> {
        let fields = &request.head.wire.fields;
        let first = |name: &[u8]| fields.get(name).map(BString::from).into_iter().collect();
        match &self.source {
            RealipSource::RealIp => first(b"X-Real-IP"),
            RealipSource::ForwardedFor => fields
                .all_known(proto::KnownField::XForwardedFor)
                .map(BString::from)
                .collect(),
            RealipSource::ProxyProtocol => {
                let header = request.client.proxy.get();
                header
                    .map(|header| header.source.text.as_str().into())
                    .into_iter()
                    .collect()
            }
            RealipSource::Field(name) => first(name),
        }
    }

    /// The client's address as named by a trusted peer.
    fn client(&self, request: &Request) -> Option<SocketAddr> {
        if !self.trusted.includes(&request.remote.address) {
            return None;
        }
        // Without it, the last address counts: the one that the trusted peer added.
        let depth = if self.recursive {
            ForwardedDepth::Recursive
        } else {
            ForwardedDepth::Last
        };
        let mut client =
            forwarded_for::forwarded_address(&self.values(request), &self.trusted.networks, depth)?;
        if let (RealipSource::ProxyProtocol, Some(header)) =
            (&self.source, request.client.proxy.get())
        {
            // The PROXY protocol transmits the port separately.
            client.set_port(header.source.port);
        }
        Some(client)
    }
}

/// Whether the client has been determined. Kept through internal redirects and shared with
/// subrequests: the new address is the client's, which no rule may take for that of a proxy.
#[derive(Default)]
struct RealipDone(Cell<bool>);

/// The handler of both phases.
fn replace_client(request: &mut Request) -> HandlerStep<'_> {
    let settled = request.shared::<RealipDone>();
    if !settled.0.get()
        && let Some(client) = request.conf::<Conf>().client(request)
    {
        settled.0.set(true);
        request.remote = Rc::new(RemoteClient::from_address(SocketAddress::Inet(client)));
    }
    HandlerOutcome::Declined.into()
}
