//! `set_real_ip_from`: who the client is when the peer is a proxy that can be trusted.
//!
//! ```nginx
//! set_real_ip_from  192.0.2.0/24;
//! set_real_ip_from  unix:;
//! real_ip_header    X-Forwarded-For;
//! real_ip_recursive on;
//! ```
//!
//! The address replaces the peer's for everything that judges or logs the client, until the request ends. It is
//! settled once: before the server's rewrites, or when the location that is found has settings of its own, then.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;

use base::text::write_number;
use bstr::{BString, ByteSlice};
use conf::{
    Arity, Diagnostic, Directive, HTTP_SERVER_LOCATION, Line, Repeat, Setter, Table, Variable,
};
use http::{Module, Outcome, Phase, Request, Step};
use net::client::Remote;
use rt::net::Address;

use crate::shared::forwarded::{self, Depth};
use crate::shared::realip::Trusted;

pub(crate) static MODULE: Module = Module {
    name: "realip",
    doc: "Takes the client address from a trusted proxy.",
    location: &DIRECTIVES,
    phases: &[(Phase::PostRead, settle), (Phase::Preaccess, settle)],
    enabled: |location| !location.confs.get::<Conf>().trusted.is_empty(),
    variables: &[
        Variable::new(
            "realip_remote_addr",
            original_address,
            "The original address of the peer.",
        ),
        Variable::new(
            "realip_remote_port",
            original_port,
            "The original port of the peer.",
        ),
    ],
    ..Module::EMPTY
};

static DIRECTIVES: Table<Conf> = Table::<Conf>::new(&[
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
            Repeat::Fresh(|c| c.trusted.clear()),
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
        set: Setter::Custom(Arity::ONE, Repeat::Once, |c, line| c.read_header(line)),
    },
    Directive {
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
    trusted: Trusted,
    source: Source,
    recursive: bool,
}

/// Where the address stands.
#[derive(Clone, Debug, Default)]
enum Source {
    #[default]
    RealIp,
    ForwardedFor,
    ProxyProtocol,
    Field(BString),
}

impl Conf {
    fn read_header(&mut self, line: &mut Line) -> Result<(), Diagnostic> {
        self.source = match line.text(0).as_bytes() {
            b"X-Real-IP" => Source::RealIp,
            b"X-Forwarded-For" => Source::ForwardedFor,
            b"proxy_protocol" => Source::ProxyProtocol,
            name => Source::Field(name.into()),
        };
        Ok(())
    }

    /// What says who the client is: the values, of a field that proxies add to all of them.
    fn values(&self, request: &Request) -> Vec<BString> {
        let fields = &request.head.wire.fields;
        let first = |name: &[u8]| fields.get(name).map(BString::from).into_iter().collect();
        match &self.source {
            Source::RealIp => first(b"X-Real-IP"),
            Source::ForwardedFor => fields
                .all_known(proto::Known::XForwardedFor)
                .map(BString::from)
                .collect(),
            Source::ProxyProtocol => {
                let header = request.client.proxy.as_deref();
                header
                    .map(|header| header.source.text.as_str().into())
                    .into_iter()
                    .collect()
            }
            Source::Field(name) => first(name),
        }
    }

    /// The client by the word of a trusted peer.
    fn client(&self, request: &Request) -> Option<SocketAddr> {
        if !self.trusted.includes(&request.remote.address) {
            return None;
        }
        let depth = if self.recursive {
            Depth::Recursive
        } else {
            Depth::Last
        };
        let mut client = forwarded::named(&self.values(request), &self.trusted.networks, depth)?;
        if let (Source::ProxyProtocol, Some(header)) = (&self.source, &request.client.proxy) {
            client.set_port(header.source.port);
        }
        Some(client)
    }
}

/// Whether the client is settled: kept through internal redirects and shared with subrequests.
#[derive(Default)]
struct Settled(Cell<bool>);

fn settle(request: &mut Request) -> Step<'_> {
    let settled = request.shared::<Settled>();
    if !settled.0.get()
        && let Some(client) = request.conf::<Conf>().client(request)
    {
        settled.0.set(true);
        request.remote = Rc::new(Remote::at(Address::Inet(client)));
    }
    Outcome::Declined.into()
}

fn original_address(request: &mut Request, out: &mut Vec<u8>) -> bool {
    out.extend_from_slice(&request.client.remote.text);
    true
}

fn original_port(request: &mut Request, out: &mut Vec<u8>) -> bool {
    let port = request.client.remote.address.port();
    if port > 0 {
        write_number(u64::from(port), out);
    }
    true
}
