//! `tunnel_pass`: CONNECT, by which a client asks a forward proxy for a connection (RFC 9110, section 9.3.6).
//!
//! ```nginx
//! server {
//!     listen               3128;
//!     resolver             127.0.0.1;
//!     auth_basic           "proxy";
//!     auth_basic_user_file htpasswd;
//!     tunnel_pass;
//! }
//! ```
//!
//! A server in which the directive stands takes CONNECT; others refuse it, as does HTTP/1.0. Once the connection is
//! made the client gets a 200, and then bytes go both ways until both sides have ended. The peer is chosen, and tried
//! again, as by every other protocol. Where a client may go is for `if`, `map` and access rules to say: without them
//! the server is an open proxy.

use conf::contexts::{HTTP_SERVER_LOCATION, LOCATION_IF, SERVER_LOCATION};
use conf::{Arity, Diagnostic, Directive, Expression, Line, Repeat, Setter, Table};
use http::module::{Answer, Outcome, Step};
use http::upstream::settings::NextUpstream;
use http::upstream::{
    Content, ContentLength, Fault, HeadProgress, Piece, Plan, Protocol, RequestContent, Settings,
};
use http::{Module, Request};
use proto::h1::Method;
use proto::h1::response::ResponseHead;

use crate::shared::gateway::{Pass, connection_tag};
use crate::shared::upstream_rows::{Bare, Prefixed, Upstream, next_upstream_words};

pub(crate) static MODULE: Module = Module {
    name: "tunnel",
    doc: "Handles CONNECT requests.",
    location: &DIRECTIVES,
    answer: Some(Answer {
        directives: &["tunnel_pass"],
        when: |location| location.confs.get::<Conf>().pass.is_some(),
        handler: tunnel,
        adds_slash: false,
    }),
    nested: |confs| confs.change_if::<Conf>(|conf| conf.pass.is_some(), |conf| conf.pass = None),
    ..Module::EMPTY
};

/// The rows that all upstream protocols have, as far as they make sense here.
pub(crate) static UPSTREAM: Module = Module {
    name: "tunnel_upstream",
    doc: "The directives that tunnels have in common with upstream protocols.",
    location: &UPSTREAM_ROWS,
    ..Module::EMPTY
};

/// Tells the settings of tunnels from those of protocols.
enum Tunnel {}

static UPSTREAM_ROWS: Bare<Tunnel> = Bare::new(
    Prefixed::new("tunnel_", &[]).without(&[
        "buffering",
        "buffers",
        "busy_buffers_size",
        "force_ranges",
        "hide_header",
        "ignore_client_abort",
        "ignore_headers",
        "intercept_errors",
        "limit_rate",
        "max_temp_file_size",
        "next_upstream",
        "pass_header",
        "pass_request_body",
        "pass_request_headers",
        "request_buffering",
        "store",
        "store_access",
        "temp_file_write_size",
        "temp_path",
    ]),
    &NEXT_UPSTREAM,
);

/// `tunnel_next_upstream` has fewer words: a server says nothing before the tunnel is there.
static NEXT_UPSTREAM: Table<Settings> = Table::new(&[Directive {
    name: "tunnel_next_upstream",
    syntax: "error | timeout | off …",
    default: Some("error timeout"),
    contexts: HTTP_SERVER_LOCATION,
    since: "0.1",
    doc: "When to try the next server.",
    set: Setter::Custom(Arity::at_least(1), Repeat::Once, next_upstream),
}]);

static DIRECTIVES: Table<Conf> = Table::new(&[Directive {
    name: "tunnel_pass",
    syntax: "[address]",
    default: None,
    contexts: SERVER_LOCATION.or(LOCATION_IF),
    since: "0.1",
    doc: "Responds to CONNECT by opening a tunnel to this address, which may contain variables; without one, to the \
          host and port that the client requests, `$host:$request_port`.",
    set: Setter::Custom(Arity::between(0, 1), Repeat::Once, tunnel_pass),
}]);

/// Where the client itself says.
const WHERE_THE_CLIENT_SAYS: &[u8] = b"$host:$request_port";

/// What directives say about a location.
#[derive(Clone, Default)]
struct Conf {
    pass: Option<Pass>,
}

fn tunnel_pass(conf: &mut Conf, line: &mut Line) -> Result<(), Diagnostic> {
    conf.pass = Some(match line.args().is_empty() {
        true => Pass::Variable(Expression::parse(
            WHERE_THE_CLIENT_SAYS,
            line.node.span,
            line.level.names,
        )?),
        false => Pass::from_line(line, b"")?,
    });
    http::configure::take_connect(line);
    Ok(())
}

fn next_upstream(settings: &mut Settings, line: &mut Line) -> Result<(), Diagnostic> {
    settings.next_upstream = next_upstream_words(
        line,
        &[
            ("error", NextUpstream::ERROR),
            ("timeout", NextUpstream::TIMEOUT),
            ("off", NextUpstream::OFF),
        ],
    )?;
    Ok(())
}

fn tunnel(request: &mut Request) -> Step<'_> {
    if request.method != Method::Connect {
        return Outcome::Status(405).into();
    }
    Step::later(async move {
        let conf = request.conf::<Conf>();
        let Some(pass) = &conf.pass else {
            return Outcome::Declined;
        };
        let target = match pass.target(request, b"") {
            Ok(target) => target,
            Err(status) => return Outcome::Status(status),
        };
        let plan = Plan {
            settings: Upstream::<Tunnel>::of(request),
            target,
            protocol: Box::new(Silence),
            content: RequestContent::Dropped,
            watch_client: true,
            tag: connection_tag(request),
        };
        http::upstream::pass(request, plan).await
    })
}

/// The protocol of a tunnel: there is none.
struct Silence;

impl Protocol for Silence {
    fn scheme(&self) -> &'static str {
        ""
    }

    fn write_head(&mut self, _: &mut Request, _: Content, _: &mut Vec<u8>) -> Result<(), u16> {
        Ok(())
    }

    fn begin_response(&mut self) {}

    fn read_head(
        &mut self,
        _: &Request,
        _: &[u8],
        _: &mut ResponseHead,
    ) -> Result<HeadProgress, Fault> {
        Ok(HeadProgress::Complete(0))
    }

    fn content_length(&self) -> ContentLength {
        ContentLength::Unknown
    }

    fn read_content(&mut self, _: &Request, input: &[u8]) -> Result<Piece, Fault> {
        Ok(if input.is_empty() {
            Piece::More
        } else {
            Piece::Data(0..input.len())
        })
    }

    fn end_of_input(&mut self) -> Result<(), Fault> {
        Ok(())
    }

    fn keeps_alive(&self) -> bool {
        false
    }

    fn is_tunnel(&self) -> bool {
        true
    }
}
