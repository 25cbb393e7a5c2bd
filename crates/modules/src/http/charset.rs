//! `charset`: announces the charset of a response, and converts the response if it is in another
//! one.
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
//! Nearly all configurations have only the first line, which costs one comparison of the media
//! type. How a map converts is in [`table`].

mod table;

use std::cell::RefCell;
use std::sync::Arc;

use base::sync::{Mutex, MutexGuard};
use bstr::{BStr, BString, ByteSlice};
use bytes::Bytes;
use conf::{
    Arity, BlockContext as Block, Diagnostic, Directive, DirectiveLine, DirectiveTable, Expression,
    HTTP, HTTP_SERVER_LOCATION, HTTP_SERVER_LOCATION_IF, RepeatRule, Setter,
};
use http::response_body::{BodyError, ResponseBody};
use http::{FilterVerdict, HttpModule, Request};
use proto::KnownField;

use crate::shared::media_types::MediaTypes;
use crate::shared::transform::{BodyTransform, TransformedBody};
use table::{CharsetMap, MapDirection};

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "charset",
    doc: "Sets and converts the charset of responses.",
    main: &MAPS,
    location: &DIRECTIVES,
    filter: Some(filter),
    enabled: |location| {
        let conf = location.confs.get::<Conf>();
        conf.charset.is_some() || conf.source.is_some() || conf.names.any()
    },
    explain: http::module::ModuleExplain::Runs(&["charset"]),
    ..HttpModule::EMPTY
};

static MAPS: DirectiveTable<CharsetMainConf> = DirectiveTable::new(&[Directive {
    name: "charset_map",
    syntax: "charset1 charset2 { … }",
    default: None,
    contexts: HTTP,
    since: "0.1",
    doc: "A conversion table between two charsets: each row has a byte of the first and a byte of the second, in \
          hexadecimal. The second may be `utf-8`, whose characters have up to four bytes. ASCII characters may be \
          omitted.",
    set: Setter::Block(Arity::exactly(2), RepeatRule::Many, |_, line| {
        let map = CharsetMap::read(line)?;
        let maps = &mut line.lasting::<CharsetMaps>().0;
        if maps.iter().any(|known| known.is_same_pair(&map)) {
            let (from, to) = (line.text(0), line.text(1));
            return Err(line.error(format!(
                "duplicate \"charset_map\" between \"{from}\" and \"{to}\""
            )));
        }
        maps.push(Arc::new(map));
        let (from, to) = (line.text(0).to_owned(), line.text(1).to_owned());
        let names = line.lasting::<CharsetNames>();
        names.add(from.as_bstr());
        names.add(to.as_bstr());
        Ok(())
    }),
}]);

static DIRECTIVES: DirectiveTable<Conf> = DirectiveTable::<Conf>::new(&[
    Directive {
        name: "charset",
        syntax: "charset | off",
        default: Some("off"),
        contexts: HTTP_SERVER_LOCATION_IF,
        since: "0.1",
        doc: "The charset added to `Content-Type`. If the response is in another charset (`source_charset`), it is \
              converted with a `charset_map`. May contain variables.",
        set: Setter::Custom(Arity::ONE, RepeatRule::Once, |conf, line| {
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
        set: Setter::Custom(Arity::ONE, RepeatRule::Once, |conf, line| {
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
        set: Setter::Custom(Arity::at_least(1), RepeatRule::Fresh(|c| c.types.clear()), |c, line| {
            c.types.read(line, &["text/html"])
        }),
    },
])
.finish_changed(take_maps);

/// Empty: maps are kept in the configuration being built, and with the locations.
#[derive(Clone, Default)]
struct CharsetMainConf;

/// All maps of a configuration.
#[derive(Clone, Default)]
struct CharsetMaps(Vec<Arc<CharsetMap>>);

/// The charsets named anywhere in the configuration: `X-Accel-Charset` can only select one of
/// these. Blocks share the list while it grows; it is no longer than the configuration.
#[derive(Clone, Default)]
struct CharsetNames(Arc<Mutex<Vec<BString>>>);

impl CharsetNames {
    /// Adds a charset that the configuration names.
    fn add(&self, name: &BStr) {
        if !self.has(name) {
            self.list().push(name.to_owned());
        }
    }

    /// Whether the configuration names this charset.
    fn has(&self, name: &BStr) -> bool {
        self.list()
            .iter()
            .any(|known| known.eq_ignore_ascii_case(name))
    }

    /// Whether the configuration names any charset at all.
    fn any(&self) -> bool {
        !self.list().is_empty()
    }

    /// The lock is held for a search of a short list. The list no longer changes once the
    /// configuration is read.
    fn list(&self) -> MutexGuard<'_, Vec<BString>> {
        self.0.lock()
    }
}

#[derive(Clone, Default)]
struct Conf {
    /// `charset`; `None`: `off`.
    charset: Option<Expression>,
    /// `source_charset`; `None`: the same as `charset`.
    source: Option<Expression>,
    overrides: bool,
    types: MediaTypes,
    /// All maps, since the pair to convert between is not known in advance: content can come with
    /// its own charset, be requested in another, or be part of another response.
    maps: Arc<[Arc<CharsetMap>]>,
    names: CharsetNames,
}

/// Reads a charset: `off`, a name or a variable.
fn charset(line: &mut DirectiveLine) -> Result<Option<Expression>, Diagnostic> {
    match line.text(0) == "off" {
        true => Ok(None),
        // Only a leading `$` makes it a variable; anything else is a name, whatever characters it
        // has.
        false if !line.text(0).starts_with(b"$") => {
            let name = line.text(0).to_owned();
            line.lasting::<CharsetNames>().add(name.as_bstr());
            Ok(Some(Expression::literal(name.as_bstr())))
        }
        false => line.expression(0).map(Some),
    }
}

/// Gives each block the maps. A pair of charsets without a map is an error now, since maps can
/// follow the lines that need them.
fn take_maps(conf: &mut Conf, _: Option<&Conf>, block: &mut Block) -> Result<(), Diagnostic> {
    conf.maps = block.lasting::<CharsetMaps>().0.as_slice().into();
    conf.names = block.lasting::<CharsetNames>().clone();
    let (Some(to), Some(from)) = (&conf.charset, &conf.source) else {
        return Ok(());
    };
    match (from.constant(), to.constant()) {
        (Some(from), Some(to))
            if !from.eq_ignore_ascii_case(to) && find_map(&conf.maps, from, to).is_none() =>
        {
            Err(Diagnostic::error(
                format!("no \"charset_map\" between the charsets \"{from}\" and \"{to}\""),
                None,
            ))
        }
        _ => Ok(()),
    }
}

/// The map between two charsets, and the direction to use it in.
fn find_map(
    maps: &[Arc<CharsetMap>],
    from: &BStr,
    to: &BStr,
) -> Option<(Arc<CharsetMap>, MapDirection)> {
    maps.iter()
        .find_map(|map| Some((Arc::clone(map), map.direction(from, to)?)))
}

/// The body filter.
fn filter(request: &mut Request) -> FilterVerdict {
    let conf = request.conf::<Conf>();
    if request.is_subrequest() {
        // Its own header is never sent.
        filter_part(request, &conf);
        return FilterVerdict::Pass;
    }
    filter_whole(request, &conf);
    if !conf.maps.is_empty() {
        let whole = request.shared::<WholeCharset>();
        // Parts included later are converted to this.
        whole.0.replace(request.out.charset.clone());
    }
    FilterVerdict::Pass
}

/// Announces the charset of a response of its own, and converts it if necessary.
fn filter_whole(request: &mut Request, conf: &Conf) {
    let Some(to) = target_charset(request, conf) else {
        return;
    };
    let from = match (&request.out.charset, &conf.source) {
        // What the producer of the content says counts more than the configuration.
        (own, _) if !own.is_empty() => own.clone(),
        (_, Some(source)) => request.value(source),
        (_, None) => to.clone(),
    };
    if from.eq_ignore_ascii_case(&to) {
        set_charset(request, to);
        return;
    }
    // Compressed bytes cannot be converted.
    if is_encoded(request) {
        return;
    }
    match find_map(&conf.maps, from.as_bstr(), to.as_bstr()) {
        Some((map, direction)) => {
            set_charset(request, to);
            translate(request, map, direction);
        }
        None => log_no_map(request, &from, &to),
    }
}

/// The charset of the response that subrequests become part of.
#[derive(Default)]
struct WholeCharset(RefCell<BString>);

/// Converts an included part into the charset of the whole, which alone has a header to announce
/// one.
fn filter_part(request: &mut Request, conf: &Conf) {
    let to = request.shared::<WholeCharset>().0.borrow().clone();
    let own = request.out.charset.clone();
    let from = match &conf.source {
        _ if !own.is_empty() => own,
        Some(source) => request.value(source),
        None => return,
    };
    if to.is_empty() || from.eq_ignore_ascii_case(&to) || is_encoded(request) {
        return;
    }
    match find_map(&conf.maps, from.as_bstr(), to.as_bstr()) {
        Some((map, direction)) => translate(request, map, direction),
        None => log_no_map(request, &from, &to),
    }
}

/// Whether the response has a content coding.
fn is_encoded(request: &Request) -> bool {
    let coding = request.out.fields.get_known(KnownField::ContentEncoding);
    coding.is_some_and(|coding| !coding.is_empty())
}

/// Logs a missing map; the response is left as it is.
fn log_no_map(request: &Request, from: &BString, to: &BString) {
    request.error(format_args!(
        "no \"charset_map\" between the charsets \"{from}\" and \"{to}\""
    ));
}

/// The charset that the response should have; `None` to leave it alone.
fn target_charset(request: &mut Request, conf: &Conf) -> Option<BString> {
    let out = &request.out;
    // A charset inside the media type comes from `types` or `default_type` and is deliberate.
    if out.content_type.is_empty() || out.content_type.contains_str("charset=") {
        return None;
    }
    if let Some(name) = request
        .delivery
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
    // A response that already has a charset is converted only with `override_charset`.
    let applies = if out.charset.is_empty() {
        conf.types.has(&out.content_type)
    } else {
        conf.overrides
    };
    let name = applies.then_some(conf.charset.as_ref()?)?;
    Some(request.value(name)).filter(|name| !name.is_empty())
}

/// The charset that the response's header will announce, for content that depends on it; empty if
/// none.
pub(super) fn announced(request: &mut Request) -> BString {
    let conf = request.conf::<Conf>();
    target_charset(request, &conf).unwrap_or_else(|| request.out.charset.clone())
}

/// Announces the charset.
fn set_charset(request: &mut Request, name: BString) {
    // Browsers of the nineties applied a redirect's charset to the page it led to. nginx still
    // spares them.
    let is_redirect = matches!(request.out.status, 301 | 302);
    request.out.charset = if is_redirect {
        BString::default()
    } else {
        name
    };
}

/// Converts the body.
fn translate(request: &mut Request, map: Arc<CharsetMap>, direction: MapDirection) {
    let out = &mut request.out;
    let length = out.length();
    let body = std::mem::take(&mut out.body);
    out.identity = None;
    // If bytes map to bytes, the length stays right; otherwise it is unknown until the end.
    match map.keeps_length() {
        true => out.content_length = length,
        false => out.content_changes(),
    }
    if !matches!(body, ResponseBody::Empty) {
        let rest = Vec::new();
        out.body = TransformedBody::body(
            body,
            CharsetTranslation {
                map,
                direction,
                partial_char: rest,
            },
        );
    }
}

/// The conversion of one body.
struct CharsetTranslation {
    map: Arc<CharsetMap>,
    /// A map serves both ways.
    direction: MapDirection,
    /// The beginning of a character whose end has not arrived.
    partial_char: Vec<u8>,
}

impl BodyTransform for CharsetTranslation {
    fn push(
        &mut self,
        _: &mut Request,
        input: &mut Bytes,
        out: &mut Vec<u8>,
    ) -> Result<(), BodyError> {
        let content = std::mem::take(input);
        self.map
            .write(self.direction, &content, &mut self.partial_char, out);
        Ok(())
    }

    fn end(&mut self, _: &mut Request, out: &mut Vec<u8>) -> Result<(), BodyError> {
        // A character that was cut off for good.
        if !std::mem::take(&mut self.partial_char).is_empty() {
            out.push(b'?');
        }
        Ok(())
    }
}
