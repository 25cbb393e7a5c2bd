//! `grpc_pass`: requests are answered by a gRPC server.
//!
//! ```nginx
//! location /helloworld.Greeter {
//!     grpc_pass grpc://127.0.0.1:50051;
//! }
//! ```
//!
//! gRPC is HTTP/2 with trailers, in which both sides may speak at any time: content goes on to the server as it comes
//! from the client, and the other way, unbuffered. The codec is [`crate::shared::http2`].

use bstr::{BStr, BString, ByteSlice};
use conf::contexts::{HTTP_SERVER_LOCATION, LOCATION, LOCATION_IF};
use conf::{Arity, Confs, Directive, Expression, Repeat, Setter, Table};
use http::module::{Answer, Module, Outcome, Step};
use http::site::ConfRef;
use http::upstream::{Content, Plan, RequestContent};
use http::{Request, upstream};
use proto::Known;

use crate::shared::gateway::{Pass, Schemes, connection_tag};
use crate::shared::http2::{Http2, Speaker, Wanted};
use crate::shared::request_fields::{Directives, FieldPlan};
use crate::shared::upstream_rows::{Prefixed, Upstream};

pub(crate) static MODULE: Module = Module {
    name: "grpc",
    doc: "Passes requests to gRPC servers.",
    location: &DIRECTIVES,
    answer: Some(Answer {
        directives: &["grpc_pass"],
        when: |location| location.confs.get::<Conf>().pass.is_some(),
        handler,
        adds_slash: true,
    }),
    group: |location| match &location.confs.get::<Conf>().pass {
        Some(Pass::Group(group)) => Some(group.clone()),
        Some(Pass::Variable(_)) | None => None,
    },
    nested,
    ..Module::EMPTY
};

const DIRECTIVE_NAMES: Directives = Directives {
    set: "grpc_set_header",
    pass: "grpc_pass",
};

/// The rows that all upstream protocols have, as far as they make sense without buffers.
pub(crate) static UPSTREAM: Module = Module {
    name: "grpc_upstream",
    doc: "The directives that gRPC has in common with other upstream protocols.",
    location: &UPSTREAM_ROWS,
    ..Module::EMPTY
};

/// The type parameter of the shared rows.
enum Grpc {}

/// Fields of responses that end here.
const HIDDEN: &[&str] = &[
    "Date",
    "Server",
    "X-Accel-Expires",
    "X-Accel-Redirect",
    "X-Accel-Limit-Rate",
    "X-Accel-Buffering",
    "X-Accel-Charset",
];

static UPSTREAM_ROWS: Prefixed<Grpc> = Prefixed::new("grpc_", HIDDEN)
    .without(&[
        "buffering",
        "buffers",
        "busy_buffers_size",
        "force_ranges",
        "ignore_client_abort",
        "limit_rate",
        "max_temp_file_size",
        "pass_request_body",
        "pass_request_headers",
        "request_buffering",
        "send_lowat",
        "store",
        "store_access",
        "temp_file_write_size",
        "temp_path",
    ])
    .secure();

static SCHEMES: Schemes = Schemes {
    plain: "grpc://",
    secure: "grpcs://",
    prefix: "grpc_",
};

static DIRECTIVES: Table<Conf> = Table::<Conf>::new(&[
    Directive {
        name: "grpc_pass",
        syntax: "address",
        default: None,
        contexts: LOCATION.or(LOCATION_IF),
        since: "0.2",
        doc: "The gRPC server: `host:port`, `unix:/path` or the name of an `upstream`, optionally after `grpc://`, or \
              after `grpcs://` for TLS. May contain variables.",
        set: Setter::Custom(Arity::ONE, Repeat::Once, |c, line| {
            c.secure = SCHEMES.settle(line);
            let scheme = SCHEMES.of(c.secure).as_bytes();
            c.authority = authority(line.text(0), scheme);
            c.pass = Some(Pass::from_line(line, scheme)?);
            Ok(())
        }),
    },
    Directive {
        name: "grpc_set_header",
        syntax: "field value",
        default: None,
        contexts: HTTP_SERVER_LOCATION,
        since: "0.2",
        doc: "Sets a header of the request to the upstream server, replacing the client's. An empty value removes it. \
              A location with such lines of its own inherits none.",
        set: Setter::Custom(
            Arity::exactly(2),
            Repeat::Fresh(|c| c.set_header.clear()),
            |c, line| {
                let value = line.expression_if_inherited(1)?;
                c.set_header.push((line.arg(0).text.clone(), value));
                Ok(())
            },
        ),
    },
])
.finish_changed(|conf, _, level| {
    level.require(conf.set_header.iter().map(|(_, value)| value));
    conf.fields = FieldPlan::new(DIRECTIVE_NAMES, &conf.set_header);
    Ok(())
});

#[derive(Clone, Default)]
struct Conf {
    pass: Option<Pass>,
    /// It is passed on by TLS.
    secure: bool,
    /// The host that `grpc_pass` names, with its port if it names one.
    authority: BString,
    set_header: Vec<(BString, Expression)>,
    /// What `set_header` comes to.
    fields: FieldPlan,
}

/// A nested location has a `grpc_pass` of its own or none.
fn nested(confs: &mut Confs) {
    confs.change_if::<Conf>(|conf| conf.pass.is_some(), |conf| conf.pass = None);
}

/// The host and port of an address, as `:authority` says it.
fn authority(address: &[u8], scheme: &[u8]) -> BString {
    let rest = match address.get(..scheme.len()) {
        Some(start) if start.eq_ignore_ascii_case(scheme) => &address[scheme.len()..],
        _ => address,
    };
    match rest.starts_with(b"unix:") {
        true => "localhost".into(),
        false => rest.into(),
    }
}

fn handler(request: &mut Request) -> Step<'_> {
    let conf = request.conf::<Conf>();
    let settings = Upstream::<Grpc>::of(request);
    let Some(pass) = &conf.pass else {
        return Outcome::Declined.into();
    };
    let secure = pass.secure_host(request, &SCHEMES, conf.secure);
    let scheme = SCHEMES.of(secure.is_some()).as_bytes();
    let target = match pass.target(request, scheme) {
        Ok(target) => target,
        Err(status) => return Outcome::Status(status).into(),
    };
    let authority = match pass {
        Pass::Group(_) => conf.authority.clone(),
        Pass::Variable(url) => authority(&request.value(url), scheme),
    };
    let asker = Asker {
        conf: request.conf::<Conf>(),
        authority,
        secure,
    };
    let tag = connection_tag(request);
    Step::later(upstream::pass(
        request,
        Plan {
            settings,
            target,
            protocol: Box::new(Http2::new(asker)),
            content: RequestContent::Streamed,
            watch_client: true,
            tag,
        },
    ))
}

/// One request.
struct Asker {
    conf: ConfRef<Conf>,
    authority: BString,
    /// The host that TLS is spoken to.
    secure: Option<BString>,
}

impl Speaker for Asker {
    fn scheme(&self) -> &'static str {
        SCHEMES.of(self.secure.is_some())
    }

    fn secure_host(&self) -> Option<&BStr> {
        self.secure.as_deref().map(BStr::new)
    }

    fn ask(
        &mut self,
        request: &mut Request,
        _content: Content,
        wanted: &mut Wanted,
    ) -> Result<(), u16> {
        wanted.scheme = match self.secure {
            Some(_) => "https",
            None => "http",
        };
        wanted.method = match request.method == request.head.wire.method {
            true => request.head.wire.method_text().into(),
            false => request.method.name().into(),
        };
        write_target(request, &mut wanted.path);
        // The client's own word: what it did not announce is not announced here either.
        let content = match request.body.announced_length() {
            Some(length) if request.head.known(Known::ContentLength).is_some() => {
                Content::Length(length)
            }
            _ => Content::None,
        };
        let mut lines = Vec::new();
        self.conf
            .fields
            .write(request, content, &self.authority, false, true, &mut lines)?;
        for line in lines.split_str(b"\r\n") {
            if let Some((name, value)) = line.split_once_str(b": ") {
                wanted.add(name, value);
            }
        }
        let te = request.head.known(Known::Te).unwrap_or_default();
        let takes_trailers = te.to_ascii_lowercase().contains_str("trailers");
        if takes_trailers && !self.conf.fields.sets(Known::Te) {
            wanted.fields.push_known(Known::Te, b"trailers");
        }
        Ok(())
    }

    fn passes_trailers(&self) -> bool {
        true
    }
}

/// The path and arguments to ask for: as they were sent, unless something was rewritten.
fn write_target(request: &Request, out: &mut Vec<u8>) {
    if request.uri.original {
        return out.extend_from_slice(request.head.wire.target());
    }
    request.write_target(0, out);
}
