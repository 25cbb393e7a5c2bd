//! `uwsgi_pass`: requests that an application answers over the uwsgi protocol: WSGI applications in Python, for one.
//!
//! ```nginx
//! location / {
//!     uwsgi_pass unix:/run/app.sock;
//!     include    uwsgi_params;
//! }
//! ```

use bstr::{BStr, BString};
use conf::contexts::{HTTP_SERVER_LOCATION, LOCATION, LOCATION_IF};
use conf::{Arity, Directive, Repeat, Setter, Table};
use http::module::{Answer, Outcome, Step};
use http::site::ConfRef;
use http::upstream::{Asks, Content, Plan, Settings};
use http::{Module, Request, cache};
use proto::uwsgi::Vars;
use rt::error_log::Level;

use crate::shared::gateway::{CgiHead, Ending, Params, Pass, Schemes, response};
use crate::shared::upstream_rows::{Prefixed, Upstream};

pub(crate) static MODULE: Module = Module {
    name: "uwsgi",
    doc: "Passes requests to uwsgi servers.",
    location: &DIRECTIVES,
    answer: Some(Answer {
        directives: &["uwsgi_pass"],
        when: |location| location.confs.get::<Conf>().pass.is_some(),
        handler: pass,
        adds_slash: true,
    }),
    nested: |confs| confs.change_if::<Conf>(|conf| conf.pass.is_some(), |conf| conf.pass = None),
    ..Module::EMPTY
};

/// The rows that all upstream protocols have.
pub(crate) static UPSTREAM: Module = Module {
    name: "uwsgi_upstream",
    doc: "The directives that uwsgi has in common with other upstream protocols.",
    location: &UPSTREAM_ROWS,
    ..Module::EMPTY
};

/// Tells the settings of uwsgi from those of other protocols.
enum Uwsgi {}

static UPSTREAM_ROWS: Prefixed<Uwsgi> = Prefixed::new(
    "uwsgi_",
    &[
        "X-Accel-Expires",
        "X-Accel-Redirect",
        "X-Accel-Limit-Rate",
        "X-Accel-Buffering",
        "X-Accel-Charset",
    ],
)
.without(&["send_lowat", "cache_convert_head"])
.cached()
.secure();

static DIRECTIVES: Table<Conf> = Table::<Conf>::new(&[
    Directive {
        name: "uwsgi_pass",
        syntax: "address",
        default: None,
        contexts: LOCATION.or(LOCATION_IF),
        since: "0.1",
        doc: "The uwsgi server: `host:port`, `unix:/path` or the name of an `upstream`, optionally after `uwsgi://`, \
              or after `suwsgi://` for TLS.",
        set: Setter::Custom(Arity::exactly(1), Repeat::Once, |c, line| {
            c.secure = SCHEMES.settle(line);
            c.pass = Some(Pass::from_line(line, SCHEMES.of(c.secure).as_bytes())?);
            Ok(())
        }),
    },
    Directive {
        name: "uwsgi_param",
        syntax: "name value [if_not_empty]",
        default: None,
        contexts: HTTP_SERVER_LOCATION.or(LOCATION_IF),
        since: "0.1",
        doc: "A parameter passed to the server. With `if_not_empty` it is passed only if its value is not empty. A \
              block with such lines of its own inherits none.",
        set: Setter::Custom(Arity::between(2, 3), Repeat::Fresh(|c| c.params.clear()), |c, line| c.params.add(line)),
    },
    Directive {
        name: "uwsgi_string",
        syntax: "string",
        default: None,
        contexts: HTTP_SERVER_LOCATION.or(LOCATION_IF),
        since: "0.1",
        doc: "Bytes to send after the parameters.",
        set: Setter::Text(|c| &mut c.string),
    },
    Directive {
        name: "uwsgi_modifier1",
        syntax: "number",
        default: Some("0"),
        contexts: HTTP_SERVER_LOCATION.or(LOCATION_IF),
        since: "0.1",
        doc: "The first modifier of uwsgi requests: the plugin of the server to use.",
        set: Setter::Number(|c| &mut c.modifier1, 0, 255),
    },
    Directive {
        name: "uwsgi_modifier2",
        syntax: "number",
        default: Some("0"),
        contexts: HTTP_SERVER_LOCATION.or(LOCATION_IF),
        since: "0.1",
        doc: "The second modifier of uwsgi requests.",
        set: Setter::Number(|c| &mut c.modifier2, 0, 255),
    },
])
.finish_changed(|conf, _, level| conf.params.settle(level));

/// What directives say about a location.
#[derive(Clone, Default)]
struct Conf {
    pass: Option<Pass>,
    /// It is passed on by TLS.
    secure: bool,
    params: Params,
    string: BString,
    modifier1: i64,
    modifier2: i64,
}

static SCHEMES: Schemes = Schemes {
    plain: "uwsgi://",
    secure: "suwsgi://",
    prefix: "uwsgi_",
};

static SOURCE: cache::Source = cache::Source {
    plan,
    // Which param says what is asked for is for the configuration to know: `uwsgi_cache_key`.
    key: |_, _| Ok(()),
};

fn pass(request: &mut Request) -> Step<'_> {
    let settings = Upstream::<Uwsgi>::of(request);
    cache::serve(request, settings, &SOURCE)
}

fn plan(request: &mut Request) -> Result<Plan, Outcome> {
    let conf = request.conf::<Conf>();
    let settings = Upstream::<Uwsgi>::of(request);
    let Some(pass) = &conf.pass else {
        return Err(Outcome::Declined);
    };
    let secure = pass.secure_host(request, &SCHEMES, conf.secure);
    let scheme = SCHEMES.of(secure.is_some());
    let target = match pass.target(request, scheme.as_bytes()) {
        Ok(target) => target,
        Err(status) => return Err(Outcome::Status(status)),
    };
    let head = Head {
        conf: request.conf::<Conf>(),
        secure,
    };
    Ok(response::plan(request, settings, target, head))
}

/// The head of a request.
struct Head {
    conf: ConfRef<Conf>,
    /// The host that TLS is spoken to.
    secure: Option<BString>,
}

impl CgiHead for Head {
    fn scheme(&self) -> &'static str {
        SCHEMES.of(self.secure.is_some())
    }

    fn secure_host(&self) -> Option<&BStr> {
        self.secure.as_deref().map(BStr::new)
    }

    fn write(
        &mut self,
        request: &mut Request,
        settings: &Settings,
        _: Content,
        out: &mut Vec<u8>,
    ) -> Result<Asks, u16> {
        let mut vars = Vars::new();
        let fields = settings.pass_request_headers;
        let asks = self
            .conf
            .params
            .write(request, fields, Ending::Counted, |name, value| {
                vars.push(name, value)
            })?;
        vars.push_raw(&self.conf.string);
        // The rows let nothing else in.
        let (modifier1, modifier2) = (self.conf.modifier1 as u8, self.conf.modifier2 as u8);
        vars.write_head(modifier1, modifier2, out)
            .map_err(|size| -> u16 {
                request.log(
                    Level::Alert,
                    format_args!("uwsgi request is too big: {size}"),
                );
                500
            })?;
        Ok(asks)
    }
}
