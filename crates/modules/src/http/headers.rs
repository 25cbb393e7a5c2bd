//! `add_header`, `add_trailer`, `expires`: fields that a location adds to its responses.
//!
//! ```nginx
//! expires    30d;                       # max-age, and Expires for old caches
//! add_header X-Frame-Options DENY always;
//! add_trailer X-Time $request_time;
//! ```
//!
//! Fields are added to responses that succeeded or redirect, with `always` to every one. A block with `add_header`
//! lines of its own inherits none, unless `add_header_inherit merge` says so.

use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bstr::{BStr, ByteSlice};
use conf::{
    Arity, Diagnostic, Directive, Expression, HTTP_SERVER_LOCATION_IF, Line, Repeat, Setter, Table,
};
use http::body::{Body, BodyError, Chunk, Source};
use http::request::Version;
use http::{Module, Request, Verdict};
use proto::Known;

mod expires;

use expires::Expires;

pub(crate) static MODULE: Module = Module {
    name: "headers",
    doc: "Adds headers to responses.",
    location: &DIRECTIVES,
    filter: Some(add_headers),
    enabled: |location| {
        let conf = location.confs.get::<Conf>();
        !conf.headers.all.is_empty() || conf.expires != Expires::Off
    },
    ..Module::EMPTY
};

/// Trailers follow the content as it is sent, so they are added behind every other filter.
pub(crate) static TRAILERS: Module = Module {
    name: "trailers",
    doc: "Adds trailers to responses.",
    filter: Some(add_trailers),
    enabled: |location| !location.confs.get::<Conf>().trailers.all.is_empty(),
    ..Module::EMPTY
};

static DIRECTIVES: Table<Conf> = Table::<Conf>::new(&[
    Directive {
        name: "add_header",
        syntax: "name value [always]",
        default: None,
        contexts: HTTP_SERVER_LOCATION_IF,
        since: "0.1",
        doc: "Adds a header to responses with status 200, 201, 204, 206, 301, 302, 303, 304, 307 or 308 or, with \
              `always`, to all responses. An empty value adds nothing. `Last-Modified` and `ETag` replace those of the \
              response.",
        set: Setter::Custom(Arity::between(2, 3), Repeat::Many, |c, line| c.headers.read(line)),
    },
    Directive {
        name: "add_trailer",
        syntax: "name value [always]",
        default: None,
        contexts: HTTP_SERVER_LOCATION_IF,
        since: "0.1",
        doc: "Like `add_header`, but for a trailer: it follows the body, and its value is evaluated at the end of the \
              body. Trailers require HTTP/1.1 or later.",
        set: Setter::Custom(Arity::between(2, 3), Repeat::Many, |c, line| c.trailers.read(line)),
    },
    Directive {
        name: "add_header_inherit",
        syntax: "on | off | merge",
        default: Some("on"),
        contexts: HTTP_SERVER_LOCATION_IF,
        since: "0.1",
        doc: "How `add_header` lines of the outer block are inherited: `on`: all, if this block has none; `merge`: \
              all, after those of this block; `off`: none.",
        set: Setter::Word(&INHERIT_WORDS, |c, i| c.headers.inherit = INHERIT[i]),
    },
    Directive {
        name: "add_trailer_inherit",
        syntax: "on | off | merge",
        default: Some("on"),
        contexts: HTTP_SERVER_LOCATION_IF,
        since: "0.1",
        doc: "How `add_trailer` lines of the outer block are inherited: see `add_header_inherit`.",
        set: Setter::Word(&INHERIT_WORDS, |c, i| c.trailers.inherit = INHERIT[i]),
    },
    Directive {
        name: "expires",
        syntax: "[modified] time | @time | epoch | max | off",
        default: Some("off"),
        contexts: HTTP_SERVER_LOCATION_IF,
        since: "0.1",
        doc: "Sets `Expires` and `Cache-Control`: relative to now or (`modified`) to the last modification, to a time \
              of day (`@`), to never fresh (`epoch`), or to ten years (`max`). May contain variables; an invalid value \
              then means `off`.",
        set: Setter::Custom(Arity::between(1, 2), Repeat::Once, |c, line| {
            c.expires = Expires::read(line)?;
            Ok(())
        }),
    },
])
.inherit(Conf::inherited, Conf::serves_inner)
.finish_changed(|conf, outer, _| {
    conf.headers.finish(outer.map(|outer| &outer.headers));
    conf.trailers.finish(outer.map(|outer| &outer.trailers));
    Ok(())
});

#[derive(Clone, Debug, Default)]
struct Conf {
    headers: Lines,
    trailers: Lines,
    expires: Expires,
}

/// The lines of one directive: those of the block, and all that count in it.
#[derive(Clone, Debug, Default)]
struct Lines {
    own: Vec<Added>,
    all: Arc<[Added]>,
    inherit: Inherit,
}

#[derive(Clone, Debug)]
struct Added {
    name: Box<[u8]>,
    kind: Kind,
    value: Expression,
    always: bool,
}

/// Fields that are not just added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Usual,
    LastModified,
    Etag,
}

const INHERIT_WORDS: [&str; 3] = ["on", "off", "merge"];
const INHERIT: [Inherit; 3] = [Inherit::On, Inherit::Off, Inherit::Merge];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Inherit {
    #[default]
    On,
    Off,
    Merge,
}

impl Conf {
    /// Whether all that counts here counts in a block inside that says nothing itself.
    fn serves_inner(&self) -> bool {
        self.headers.inherit != Inherit::Off && self.trailers.inherit != Inherit::Off
    }

    fn inherited(&self) -> Conf {
        let inherited = |lines: &Lines| Lines {
            own: Vec::new(),
            ..lines.clone()
        };
        Conf {
            headers: inherited(&self.headers),
            trailers: inherited(&self.trailers),
            expires: self.expires.clone(),
        }
    }
}

impl Lines {
    fn read(&mut self, line: &mut Line) -> Result<(), Diagnostic> {
        let name = line.text(0);
        let always = match line.get(2) {
            None => false,
            Some(word) if word.is("always") => true,
            Some(_) => return Err(line.invalid_parameter(2)),
        };
        let kind = match name.to_ascii_lowercase().as_slice() {
            b"last-modified" => Kind::LastModified,
            b"etag" => Kind::Etag,
            _ => Kind::Usual,
        };
        let value = line.expression(1)?;
        self.own.push(Added {
            name: name.to_vec().into(),
            kind,
            value,
            always,
        });
        Ok(())
    }

    fn finish(&mut self, outer: Option<&Lines>) {
        let outer = outer
            .map(|outer| &outer.all)
            .filter(|_| self.inherit != Inherit::Off);
        self.all = match (self.own.is_empty(), outer) {
            (true, Some(outer)) => Arc::clone(outer),
            (false, Some(outer)) if self.inherit == Inherit::Merge => {
                self.own.iter().chain(outer.iter()).cloned().collect()
            }
            _ => self.own.clone().into(),
        };
    }
}

/// Statuses of responses that get what is not for `always`.
fn is_usual(status: u16) -> bool {
    matches!(
        status,
        200 | 201 | 204 | 206 | 301 | 302 | 303 | 304 | 307 | 308
    )
}

fn add_headers(request: &mut Request) -> Verdict {
    if request.is_subrequest() || request.flow.has_added_fields {
        return Verdict::Pass;
    }
    let conf = request.conf::<Conf>();
    let usual = is_usual(request.out.status);
    if usual {
        conf.expires.apply(request);
    }
    for added in conf
        .headers
        .all
        .iter()
        .filter(|added| usual || added.always)
    {
        let value = request.value(&added.value);
        match added.kind {
            Kind::Etag => request.out.etag = Some(value).filter(|value| !value.is_empty()),
            Kind::LastModified => set_last_modified(request, value.as_bstr()),
            Kind::Usual if value.is_empty() => {}
            Kind::Usual => request.out.fields.push(&added.name, &value),
        }
    }
    Verdict::Pass
}

/// A date that is written as dates are becomes the response's time; any other text stands as it is, and the response
/// has no time that ranges could depend on.
fn set_last_modified(request: &mut Request, value: &BStr) {
    let out = &mut request.out;
    out.last_modified = None;
    out.fields.remove_known(Known::LastModified);
    if let Some(time) = proto::date::parse(value) {
        let mut text = Vec::new();
        proto::date::write_http(time, &mut text);
        if text == **value {
            out.last_modified = Some(time);
            out.last_modified_was_said = true;
            return;
        }
    }
    if !value.is_empty() {
        out.fields.push_known(Known::LastModified, value);
    }
}

fn add_trailers(request: &mut Request) -> Verdict {
    let out = &request.out;
    let has_content = !request.flow.header_only && !matches!(out.status, 100..=199 | 204 | 304);
    // Before HTTP/1.1, and without chunks, content has nothing behind it.
    let chunks = request
        .site
        .location(request.location)
        .core
        .chunked_transfer_encoding;
    if !has_content
        || request.is_subrequest()
        || request.head.version() < Version::Http11
        || !chunks
    {
        return Verdict::Pass;
    }
    let usual = is_usual(out.status);
    let lines = Arc::clone(&request.conf::<Conf>().trailers.all);
    if !lines.iter().any(|added| usual || added.always) {
        return Verdict::Pass;
    }
    let body = std::mem::take(&mut request.out.body);
    request.out.content_length = None;
    request.out.body = Body::stream(WithTrailers { body, lines, usual });
    Verdict::Pass
}

/// Content, and then the fields that follow it. Its length is not told, so that it is sent in chunks.
struct WithTrailers {
    body: Body,
    lines: Arc<[Added]>,
    usual: bool,
}

impl Source for WithTrailers {
    fn poll_ahead(&mut self, request: &mut Request, context: &mut Context<'_>) {
        self.body.poll_ahead(request, context);
    }

    fn poll_next(
        &mut self,
        request: &mut Request,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Chunk, BodyError>>> {
        let next = ready!(self.body.poll_next(request, context));
        if next.is_none() {
            for added in self.lines.iter().filter(|added| self.usual || added.always) {
                let value = request.value(&added.value);
                if !value.is_empty() {
                    request.out.trailers.push(&added.name, &value);
                }
            }
        }
        Poll::Ready(next)
    }
}
