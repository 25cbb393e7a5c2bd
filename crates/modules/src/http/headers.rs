//! `add_header`, `add_trailer`, `expires`: fields that a location adds to its responses.
//!
//! ```nginx
//! expires    30d;                       # max-age, and Expires for old caches
//! add_header X-Frame-Options DENY always;
//! add_trailer X-Time $request_time;
//! ```
//!
//! Fields are added to successful responses and redirects, with `always` to all. A block with
//! `add_header` lines of its own inherits none, unless `add_header_inherit merge` says so.

use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bstr::{BStr, ByteSlice};
use conf::{
    Arity, Diagnostic, Directive, DirectiveLine, DirectiveTable, Expression,
    HTTP_SERVER_LOCATION_IF, RepeatRule, Setter,
};
use http::request::HttpVersion;
use http::response_body::{BodyChunk, BodyError, BodySource, ResponseBody};
use http::{FilterVerdict, HttpModule, Request};
use proto::KnownField;

mod expires;

use expires::ExpiresRule;

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "headers",
    doc: "Adds headers to responses.",
    location: &DIRECTIVES,
    filter: Some(add_headers),
    enabled: |location| {
        let conf = location.confs.get::<Conf>();
        !conf.headers.all.is_empty() || conf.expires != ExpiresRule::Off
    },
    explain: http::module::ModuleExplain::Runs(&["add_header", "expires"]),
    ..HttpModule::EMPTY
};

/// Trailers follow the content as it is sent, so this runs after every other filter.
pub(crate) static TRAILERS: HttpModule = HttpModule {
    name: "trailers",
    doc: "Adds trailers to responses.",
    filter: Some(add_trailers),
    enabled: |location| !location.confs.get::<Conf>().trailers.all.is_empty(),
    explain: http::module::ModuleExplain::Aside(&["add_trailer"]),
    ..HttpModule::EMPTY
};

static DIRECTIVES: DirectiveTable<Conf> = DirectiveTable::<Conf>::new(&[
    Directive {
        name: "add_header",
        syntax: "name value [always]",
        default: None,
        contexts: HTTP_SERVER_LOCATION_IF,
        since: "0.1",
        doc: "Adds a header to responses with status 200, 201, 204, 206, 301, 302, 303, 304, 307 or 308 or, with \
              `always`, to all responses. An empty value adds nothing. `Last-Modified` and `ETag` replace those of the \
              response.",
        set: Setter::Custom(Arity::between(2, 3), RepeatRule::Many, |c, line| c.headers.read(line)),
    },
    Directive {
        name: "add_trailer",
        syntax: "name value [always]",
        default: None,
        contexts: HTTP_SERVER_LOCATION_IF,
        since: "0.1",
        doc: "Like `add_header`, but for a trailer: it follows the body, and its value is evaluated at the end of the \
              body. Trailers require HTTP/1.1 or later.",
        set: Setter::Custom(Arity::between(2, 3), RepeatRule::Many, |c, line| c.trailers.read(line)),
    },
    Directive {
        // The default is nginx's rule, which surprises many: one line hides all inherited ones.
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
        set: Setter::Custom(Arity::between(1, 2), RepeatRule::Once, |c, line| {
            c.expires = ExpiresRule::read(line)?;
            Ok(())
        }),
    },
])
.inherit(Conf::inherited, Conf::is_shareable)
.finish_changed(|conf, outer, _| {
    conf.headers.finish(outer.map(|outer| &outer.headers));
    conf.trailers.finish(outer.map(|outer| &outer.trailers));
    Ok(())
});

#[derive(Clone, Debug, Default)]
struct Conf {
    headers: AddedFields,
    trailers: AddedFields,
    expires: ExpiresRule,
}

/// The lines of one directive: those of the block itself, and all that apply in it.
#[derive(Clone, Debug, Default)]
struct AddedFields {
    /// The lines of the block itself, while it is being read.
    own: Vec<AddedField>,
    /// All lines that apply, shared by blocks without their own.
    all: Arc<[AddedField]>,
    inherit: InheritMode,
}

/// One `add_header` or `add_trailer` line.
#[derive(Clone, Debug)]
struct AddedField {
    name: Box<[u8]>,
    known: KnownField,
    kind: AddedFieldKind,
    value: Expression,
    /// Whether the field is added to errors as well.
    always: bool,
}

/// How a field is added. Two are attributes of the response that other filters depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AddedFieldKind {
    Plain,
    LastModified,
    Etag,
}

/// The words of `add_header_inherit`, in the order of [`INHERIT`].
const INHERIT_WORDS: [&str; 3] = ["on", "off", "merge"];
const INHERIT: [InheritMode; 3] = [InheritMode::On, InheritMode::Off, InheritMode::Merge];

/// The value of `add_header_inherit` and `add_trailer_inherit`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum InheritMode {
    #[default]
    On,
    Off,
    Merge,
}

impl Conf {
    /// Whether a nested block without lines of its own can share this one's settings.
    fn is_shareable(&self) -> bool {
        self.headers.inherit != InheritMode::Off && self.trailers.inherit != InheritMode::Off
    }

    /// The settings that a nested block starts from.
    fn inherited(&self) -> Conf {
        let inherited = |lines: &AddedFields| AddedFields {
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

impl AddedFields {
    /// Reads one line.
    fn read(&mut self, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
        let name = line.text(0);
        let always = match line.get(2) {
            None => false,
            Some(word) if word.is("always") => true,
            Some(_) => return Err(line.invalid_parameter(2)),
        };
        let kind = match name.to_ascii_lowercase().as_slice() {
            b"last-modified" => AddedFieldKind::LastModified,
            b"etag" => AddedFieldKind::Etag,
            _ => AddedFieldKind::Plain,
        };
        let value = line.expression(1)?;
        self.own.push(AddedField {
            name: name.to_vec().into(),
            known: KnownField::from_name(name),
            kind,
            value,
            always,
        });
        Ok(())
    }

    /// Combines the block's own lines with the outer block's. Done once here, so that a request
    /// only walks one list.
    fn finish(&mut self, outer: Option<&AddedFields>) {
        let outer = outer
            .map(|outer| &outer.all)
            .filter(|_| self.inherit != InheritMode::Off);
        self.all = match (self.own.is_empty(), outer) {
            (true, Some(outer)) => Arc::clone(outer),
            (false, Some(outer)) if self.inherit == InheritMode::Merge => {
                self.own.iter().chain(outer.iter()).cloned().collect()
            }
            _ => self.own.clone().into(),
        };
    }
}

/// Statuses for which fields without `always` are added; nginx's list.
fn is_success_or_redirect(status: u16) -> bool {
    matches!(
        status,
        200 | 201 | 204 | 206 | 301 | 302 | 303 | 304 | 307 | 308
    )
}

/// The header filter. An error page that replaces a response passes here again, hence the flag.
fn add_headers(request: &mut Request) -> FilterVerdict {
    // A subrequest has no head of its own.
    if request.is_subrequest() || request.delivery.has_added_fields {
        return FilterVerdict::Pass;
    }
    let conf = request.conf::<Conf>();
    let usual = is_success_or_redirect(request.out.status);
    if usual {
        // Errors should not be cached for that long, so `expires` does not apply to them.
        conf.expires.apply(request);
    }
    // One buffer for all values.
    let mut buffer = Vec::new();
    for added in conf
        .headers
        .all
        .iter()
        .filter(|added| usual || added.always)
    {
        let value = match added.value.constant() {
            Some(text) => text,
            None => {
                buffer.clear();
                buffer.reserve(VALUE_SIZE);
                added.value.eval(request, &mut buffer);
                buffer.as_bstr()
            }
        };
        match added.kind {
            AddedFieldKind::Etag => {
                request.out.etag = Some(value.to_owned()).filter(|value| !value.is_empty())
            }
            AddedFieldKind::LastModified => set_last_modified(request, value),
            AddedFieldKind::Plain if value.is_empty() => {}
            AddedFieldKind::Plain => {
                let fields = &mut request.out.fields;
                fields.push_spelled(added.known, &added.name, value);
            }
        }
    }
    FilterVerdict::Pass
}

/// Room for the value of a field, in bytes: enough for most, so that the buffer does not grow step by step.
const VALUE_SIZE: usize = 128;

/// Sets `Last-Modified`. A valid date in the usual format becomes the response's modification time.
/// Any other text is sent as it is, and the response then has no time that conditions and ranges
/// could refer to.
fn set_last_modified(request: &mut Request, value: &BStr) {
    let out = &mut request.out;
    out.last_modified = None;
    out.fields.remove_known(KnownField::LastModified);
    if let Some(time) = proto::date::parse(value) {
        let mut text = Vec::new();
        proto::date::write_http(time, &mut text);
        if text == **value {
            out.last_modified = Some(time);
            // The text is this server's usual form, so the modification time alone carries it.
            out.last_modified_was_said = true;
            return;
        }
    }
    if !value.is_empty() {
        out.fields.push_known(KnownField::LastModified, value);
    }
}

/// The body filter that adds trailers.
fn add_trailers(request: &mut Request) -> FilterVerdict {
    let out = &request.out;
    let has_content = !request.delivery.header_only && !matches!(out.status, 100..=199 | 204 | 304);
    // Before HTTP/1.1, and without chunked encoding, nothing can follow the content. HTTP/2 has frames for it.
    let version = request.head.version();
    let chunks = request
        .site
        .location(request.location)
        .core
        .chunked_transfer_encoding
        && version == HttpVersion::Http11;
    let has_frames = version > HttpVersion::Http11;
    if !has_content || request.is_subrequest() || !(chunks || has_frames) {
        return FilterVerdict::Pass;
    }
    let usual = is_success_or_redirect(out.status);
    let lines = Arc::clone(&request.conf::<Conf>().trailers.all);
    if !lines.iter().any(|added| usual || added.always) {
        return FilterVerdict::Pass;
    }
    // A length and trailers exclude each other in HTTP/1 only (RFC 9112, section 7.1.2).
    request.out.content_length = match has_frames {
        true => request.out.length(),
        false => None,
    };
    let body = std::mem::take(&mut request.out.body);
    request.out.body = ResponseBody::stream(WithTrailers { body, lines, usual });
    FilterVerdict::Pass
}

/// Content with trailers. On HTTP/1 its length is not announced, so that it is sent in chunks.
struct WithTrailers {
    body: ResponseBody,
    lines: Arc<[AddedField]>,
    /// Whether the status is one that lines without `always` apply to; decided before the content
    /// is sent.
    usual: bool,
}

impl BodySource for WithTrailers {
    fn poll_ahead(&mut self, request: &mut Request, context: &mut Context<'_>) {
        self.body.poll_ahead(request, context);
    }

    fn may_have_trailers(&self) -> bool {
        true
    }

    fn poll_next(
        &mut self,
        request: &mut Request,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<BodyChunk, BodyError>>> {
        let next = ready!(self.body.poll_next(request, context));
        if next.is_none() {
            for added in self.lines.iter().filter(|added| self.usual || added.always) {
                // Evaluated at the end of the body, so that its variables cover the whole transfer.
                let value = request.value(&added.value);
                if !value.is_empty() {
                    request.out.trailers.push(&added.name, &value);
                }
            }
        }
        Poll::Ready(next)
    }
}
