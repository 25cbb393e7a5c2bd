//! `charset`: says in which charset a response is, and translates it when it is in another.
//!
//! ```nginx
//! charset        utf-8;
//! source_charset koi8-r;
//! charset_map koi8-r utf-8 {
//!     C0 D18E;   # ю
//!     C1 D0B0;   # а
//! }
//! ```
//!
//! Nearly all configurations have the first line only, which costs a comparison of the media type. How a map
//! translates is in [`table`].

mod table;

use std::cell::RefCell;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bstr::{BStr, BString, ByteSlice};
use bytes::Bytes;
use conf::{
    Arity, Diagnostic, Directive, Expression, HTTP, HTTP_SERVER_LOCATION, HTTP_SERVER_LOCATION_IF,
    Level as Block, Line, Repeat, Setter, Table,
};
use http::body::{Body, BodyError};
use http::{Module, Request, Verdict};
use proto::Known;

use crate::shared::media_types::MediaTypes;
use crate::shared::transform::{Transform, Transformed};
use table::{Direction, Map};

pub(crate) static MODULE: Module = Module {
    name: "charset",
    doc: "Sets and converts the charset of responses.",
    main: &MAPS,
    location: &DIRECTIVES,
    filter: Some(filter),
    enabled: |location| {
        let conf = location.confs.get::<Conf>();
        conf.charset.is_some() || conf.source.is_some() || conf.names.any()
    },
    ..Module::EMPTY
};

static MAPS: Table<Main> = Table::new(&[Directive {
    name: "charset_map",
    syntax: "charset1 charset2 { … }",
    default: None,
    contexts: HTTP,
    since: "0.1",
    doc: "A conversion table between two charsets: each row has a byte of the first and a byte of the second, in \
          hexadecimal. The second may be `utf-8`, whose characters have up to four bytes. ASCII characters may be \
          omitted.",
    set: Setter::Block(Arity::exactly(2), Repeat::Many, |_, line| {
        let map = Map::read(line)?;
        let maps = &mut line.shared::<Maps>().0;
        if maps.iter().any(|known| known.is_same_pair(&map)) {
            let (from, to) = (line.text(0), line.text(1));
            return Err(line.error(format!(
                "duplicate \"charset_map\" between \"{from}\" and \"{to}\""
            )));
        }
        maps.push(Arc::new(map));
        let (from, to) = (line.text(0).to_owned(), line.text(1).to_owned());
        let names = line.shared::<Names>();
        names.add(from.as_bstr());
        names.add(to.as_bstr());
        Ok(())
    }),
}]);

static DIRECTIVES: Table<Conf> = Table::<Conf>::new(&[
    Directive {
        name: "charset",
        syntax: "charset | off",
        default: Some("off"),
        contexts: HTTP_SERVER_LOCATION_IF,
        since: "0.1",
        doc: "The charset added to `Content-Type`. If the response is in another charset (`source_charset`), it is \
              converted with a `charset_map`. May contain variables.",
        set: Setter::Custom(Arity::ONE, Repeat::Once, |conf, line| {
            conf.charset = charset(line)?;
            Ok(())
        }),
    },
    Directive {
        name: "source_charset",
        syntax: "charset",
        default: None,
        contexts: HTTP_SERVER_LOCATION_IF,
        since: "0.1",
        doc: "The original charset of the response. May contain variables.",
        set: Setter::Custom(Arity::ONE, Repeat::Once, |conf, line| {
            conf.source = charset(line)?;
            Ok(())
        }),
    },
    Directive {
        name: "override_charset",
        syntax: "on | off",
        default: Some("off"),
        contexts: HTTP_SERVER_LOCATION_IF,
        since: "0.1",
        doc: "Whether to convert responses of proxied servers that already have a charset.",
        set: Setter::Flag(|c| &mut c.overrides),
    },
    Directive {
        name: "charset_types",
        syntax: "mime-type … | *",
        default: Some("text/html text/xml text/plain text/vnd.wap.wml application/javascript application/rss+xml"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "The media types that get a charset, in addition to `text/html`, which always gets one. `*` means all.",
        set: Setter::Custom(Arity::at_least(1), Repeat::Fresh(|c| c.types.clear()), |c, line| {
            c.types.read(line, &["text/html"])
        }),
    },
])
.finish_changed(take_maps);

/// Maps are kept with the configuration that is being built, and with the locations.
#[derive(Clone, Default)]
struct Main;

/// The maps of a configuration.
#[derive(Clone, Default)]
struct Maps(Vec<Arc<Map>>);

/// The charsets that a configuration names anywhere: only those may be asked for by `X-Accel-Charset`. Blocks share the
/// list while it grows; there are no more of them than lines.
#[derive(Clone, Default)]
struct Names(Arc<Mutex<Vec<BString>>>);

impl Names {
    fn add(&self, name: &BStr) {
        if !self.has(name) {
            self.list().push(name.to_owned());
        }
    }

    fn has(&self, name: &BStr) -> bool {
        self.list()
            .iter()
            .any(|known| known.eq_ignore_ascii_case(name))
    }

    fn any(&self) -> bool {
        !self.list().is_empty()
    }

    fn list(&self) -> MutexGuard<'_, Vec<BString>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Clone, Default)]
struct Conf {
    /// `None`: `off`.
    charset: Option<Expression>,
    /// `None`: whatever `charset` says.
    source: Option<Expression>,
    overrides: bool,
    types: MediaTypes,
    /// All maps: content may come with a charset of its own, be asked for in another, or be a part of a response.
    maps: Arc<[Arc<Map>]>,
    names: Names,
}

fn charset(line: &mut Line) -> Result<Option<Expression>, Diagnostic> {
    match line.text(0) == "off" {
        true => Ok(None),
        // Anything but a variable is a name, whatever signs it has.
        false if !line.text(0).starts_with(b"$") => {
            let name = line.text(0).to_owned();
            line.shared::<Names>().add(name.as_bstr());
            Ok(Some(Expression::literal(name.as_bstr())))
        }
        false => line.expression(0).map(Some),
    }
}

/// Hands the maps to the blocks that may need them; a pair of charsets without a map is an error now.
fn take_maps(conf: &mut Conf, _: Option<&Conf>, block: &mut Block) -> Result<(), Diagnostic> {
    conf.maps = block.shared::<Maps>().0.as_slice().into();
    conf.names = block.shared::<Names>().clone();
    let (Some(to), Some(from)) = (&conf.charset, &conf.source) else {
        return Ok(());
    };
    match (from.constant(), to.constant()) {
        (Some(from), Some(to))
            if !from.eq_ignore_ascii_case(to) && find(&conf.maps, from, to).is_none() =>
        {
            Err(Diagnostic::error(
                format!("no \"charset_map\" between the charsets \"{from}\" and \"{to}\""),
                None,
            ))
        }
        _ => Ok(()),
    }
}

fn find(maps: &[Arc<Map>], from: &BStr, to: &BStr) -> Option<(Arc<Map>, Direction)> {
    maps.iter()
        .find_map(|map| Some((Arc::clone(map), map.direction(from, to)?)))
}

fn filter(request: &mut Request) -> Verdict {
    let conf = request.conf::<Conf>();
    if request.is_subrequest() {
        filter_part(request, &conf);
        return Verdict::Pass;
    }
    filter_whole(request, &conf);
    if !conf.maps.is_empty() {
        let whole = request.shared::<Whole>();
        whole.0.replace(request.out.charset.clone());
    }
    Verdict::Pass
}

fn filter_whole(request: &mut Request, conf: &Conf) {
    let Some(to) = wanted(request, conf) else {
        return;
    };
    let from = match (&request.out.charset, &conf.source) {
        (own, _) if !own.is_empty() => own.clone(),
        (_, Some(source)) => request.value(source),
        (_, None) => to.clone(),
    };
    if from.eq_ignore_ascii_case(&to) {
        set_charset(request, to);
        return;
    }
    if is_encoded(request) {
        return;
    }
    match find(&conf.maps, from.as_bstr(), to.as_bstr()) {
        Some((map, direction)) => {
            set_charset(request, to);
            translate(request, map, direction);
        }
        None => no_map(request, &from, &to),
    }
}

/// The charset of the whole that a subrequest's response is a part of.
#[derive(Default)]
struct Whole(RefCell<BString>);

/// A part of another response is translated into the charset of the whole, which alone has a head that names one.
fn filter_part(request: &mut Request, conf: &Conf) {
    let to = request.shared::<Whole>().0.borrow().clone();
    let own = request.out.charset.clone();
    let from = match &conf.source {
        _ if !own.is_empty() => own,
        Some(source) => request.value(source),
        None => return,
    };
    if to.is_empty() || from.eq_ignore_ascii_case(&to) || is_encoded(request) {
        return;
    }
    match find(&conf.maps, from.as_bstr(), to.as_bstr()) {
        Some((map, direction)) => translate(request, map, direction),
        None => no_map(request, &from, &to),
    }
}

fn is_encoded(request: &Request) -> bool {
    let coding = request.out.fields.get_known(Known::ContentEncoding);
    coding.is_some_and(|coding| !coding.is_empty())
}

fn no_map(request: &Request, from: &BString, to: &BString) {
    request.error(format_args!(
        "no \"charset_map\" between the charsets \"{from}\" and \"{to}\""
    ));
}

/// The charset that the response is to have; `None` when it is left alone.
fn wanted(request: &mut Request, conf: &Conf) -> Option<BString> {
    let out = &request.out;
    // A charset that stands in the media type itself came from `types` or `default_type`: somebody meant it.
    if out.content_type.is_empty() || out.content_type.contains_str("charset=") {
        return None;
    }
    if let Some(name) = request
        .flow
        .charset
        .as_ref()
        .filter(|name| !name.is_empty())
    {
        if conf.names.has(name.as_bstr()) {
            return Some(name.clone());
        }
        request.error(format_args!("unknown charset \"{name}\" to override"));
        return None;
    }
    let applies = if out.charset.is_empty() {
        conf.types.has(&out.content_type)
    } else {
        conf.overrides
    };
    let name = applies.then_some(conf.charset.as_ref()?)?;
    Some(request.value(name)).filter(|name| !name.is_empty())
}

/// The charset that the head of the response is going to name, for content that depends on it; empty when it names none.
pub(super) fn announced(request: &mut Request) -> BString {
    let conf = request.conf::<Conf>();
    wanted(request, &conf).unwrap_or_else(|| request.out.charset.clone())
}

fn set_charset(request: &mut Request, name: BString) {
    // Browsers of the nineties took the charset of a redirect for that of the page it led to; nginx still spares them.
    let is_redirect = matches!(request.out.status, 301 | 302);
    request.out.charset = if is_redirect {
        BString::default()
    } else {
        name
    };
}

fn translate(request: &mut Request, map: Arc<Map>, direction: Direction) {
    let out = &mut request.out;
    let length = out.length();
    let body = std::mem::take(&mut out.body);
    // Byte for byte, everything that was said of the content stays true.
    match map.keeps_length() {
        true => out.content_length = length,
        false => out.content_changes(),
    }
    if !matches!(body, Body::Empty) {
        let rest = Vec::new();
        out.body = Transformed::body(
            body,
            Translation {
                map,
                direction,
                rest,
            },
        );
    }
}

/// Content in another charset.
struct Translation {
    map: Arc<Map>,
    direction: Direction,
    /// The beginning of a sign whose end has not come yet.
    rest: Vec<u8>,
}

impl Transform for Translation {
    fn push(
        &mut self,
        _: &mut Request,
        input: &mut Bytes,
        out: &mut Vec<u8>,
    ) -> Result<(), BodyError> {
        let content = std::mem::take(input);
        self.map
            .write(self.direction, &content, &mut self.rest, out);
        Ok(())
    }

    fn end(&mut self, _: &mut Request, out: &mut Vec<u8>) -> Result<(), BodyError> {
        // A sign that was cut off for good.
        if !std::mem::take(&mut self.rest).is_empty() {
            out.push(b'?');
        }
        Ok(())
    }
}
