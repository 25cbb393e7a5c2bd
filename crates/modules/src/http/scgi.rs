//! `scgi_pass`: requests that an application answers over SCGI.
//!
//! ```nginx
//! location / {
//!     scgi_pass localhost:9000;
//!     include   scgi_params;
//! }
//! ```

use conf::contexts::{HTTP_SERVER_LOCATION, LOCATION, LOCATION_IF};
use conf::{Arity, Directive, Repeat, Setter, Table};
use http::module::{Answer, Outcome, Step};
use http::site::ConfRef;
use http::upstream::{
    Content, ContentLength, Fault, HeadProgress, Piece, Plan, Protocol, SettingsRef,
};
use http::{Module, Request, cache};
use proto::h1::response::ResponseHead;
use proto::{Known, scgi};

use crate::shared::gateway::{CgiResponse, Params, Pass, connection_tag, request_content};
use crate::shared::upstream_rows::{Prefixed, Upstream};

pub(crate) static MODULE: Module = Module {
    name: "scgi",
    doc: "Passes requests to SCGI applications.",
    location: &DIRECTIVES,
    answer: Some(Answer {
        when: |location| location.confs.get::<Conf>().pass.is_some(),
        handler: pass,
        adds_slash: true,
    }),
    nested: |confs| {
        if let Some(conf) = confs.get_mut::<Conf>() {
            conf.pass = None;
        }
    },
    ..Module::EMPTY
};

/// The rows that all upstream protocols have.
pub(crate) static UPSTREAM: Module = Module {
    name: "scgi_upstream",
    doc: "What SCGI has in common with other upstream protocols.",
    location: &UPSTREAM_ROWS,
    ..Module::EMPTY
};

/// Tells the settings of SCGI from those of other protocols.
enum Scgi {}

static UPSTREAM_ROWS: Prefixed<Scgi> = Prefixed::new(
    "scgi_",
    &[
        "Status",
        "X-Accel-Expires",
        "X-Accel-Redirect",
        "X-Accel-Limit-Rate",
        "X-Accel-Buffering",
        "X-Accel-Charset",
    ],
)
.without(&["send_lowat"])
.cached()
.without(&["cache_convert_head"]);

static DIRECTIVES: Table<Conf> = Table::<Conf>::new(&[
    Directive {
        name: "scgi_pass",
        syntax: "address",
        default: None,
        contexts: LOCATION.or(LOCATION_IF),
        since: "0.1",
        doc: "The SCGI server that answers: `host:port`, `unix:/path` or the name of an `upstream`.",
        set: Setter::Custom(Arity::exactly(1), Repeat::Once, |c, line| {
            c.pass = Some(Pass::from_line(line, b"")?);
            Ok(())
        }),
    },
    Directive {
        name: "scgi_param",
        syntax: "name value [if_not_empty]",
        default: None,
        contexts: HTTP_SERVER_LOCATION.or(LOCATION_IF),
        since: "0.1",
        doc: "A param of requests to the server. With `if_not_empty` it is left away when the value is empty.",
        set: Setter::Custom(Arity::between(2, 3), Repeat::Fresh(|c| c.params.clear()), |c, line| c.params.add(line)),
    },
])
.finish(|conf, _, level| conf.params.settle(level));

/// What directives say about a location.
#[derive(Clone, Default)]
struct Conf {
    pass: Option<Pass>,
    params: Params,
}

static SOURCE: cache::Source = cache::Source {
    plan,
    // Which param says what is asked for is for the configuration to know: `scgi_cache_key`.
    key: |_, _| Ok(()),
};

fn pass(request: &mut Request) -> Step<'_> {
    let settings = Upstream::<Scgi>::of(request);
    cache::serve(request, settings, &SOURCE)
}

fn plan(request: &mut Request) -> Result<Plan, Outcome> {
    let conf = request.conf::<Conf>();
    let settings = Upstream::<Scgi>::of(request);
    let Some(pass) = &conf.pass else {
        return Err(Outcome::Declined);
    };
    let target = match pass.target(request, b"") {
        Ok(target) => target,
        Err(status) => return Err(Outcome::Status(status)),
    };
    // SCGI begins with the length of the content, which chunks do not have.
    let has_length = !request.head.wire.fields.has(Known::TransferEncoding);
    let codec = Codec {
        conf: request.conf::<Conf>(),
        response: CgiResponse::new(settings.buffer_size),
        settings: settings.clone(),
        upgrades: request.head.known(Known::Upgrade).is_some(),
    };
    Ok(Plan {
        content: request_content(&settings, has_length),
        protocol: Box::new(codec),
        settings,
        target,
        watch_client: true,
        tag: connection_tag(request),
    })
}

/// One exchange.
struct Codec {
    conf: ConfRef<Conf>,
    settings: SettingsRef,
    response: CgiResponse,
    upgrades: bool,
}

impl Protocol for Codec {
    fn scheme(&self) -> &'static str {
        "scgi://"
    }

    fn write_head(
        &mut self,
        request: &mut Request,
        content: Content,
        out: &mut Vec<u8>,
    ) -> Result<(), u16> {
        let mut params = Vec::new();
        let fields = self.settings.pass_request_headers;
        self.conf.params.write(request, fields, |name, value| {
            scgi::push_param(name, value, &mut params)
        });
        let length = match content {
            Content::Length(length) => length,
            Content::None | Content::Unknown => 0,
        };
        scgi::write_head(length, &params, out);
        Ok(())
    }

    fn content_is_plain(&self) -> bool {
        true
    }

    fn begin_response(&mut self) {
        self.response.begin();
    }

    fn read_head(
        &mut self,
        request: &Request,
        input: &[u8],
        head: &mut ResponseHead,
    ) -> Result<HeadProgress, Fault> {
        self.response.read_head(request, input, head)
    }

    fn content_length(&self) -> ContentLength {
        self.response.content_length()
    }

    fn read_content(&mut self, _: &Request, input: &[u8]) -> Result<Piece, Fault> {
        Ok(self.response.read_content(input))
    }

    fn end_of_input(&mut self) -> Result<(), Fault> {
        self.response.end_of_input()
    }

    fn keeps_alive(&self) -> bool {
        false
    }

    fn may_upgrade(&self) -> bool {
        self.upgrades
    }
}
