//! Whether a client may get compressed content: what `gzip`, `brotli`, `zstd`, the precompressed
//! files and `gunzip` share.
//!
//! ```nginx
//! gzip_http_version 1.1;
//! gzip_proxied      expired no-cache private;
//! gzip_disable      msie6;
//! gzip_vary         on;
//! ```
//!
//! The directives keep their `gzip_` names but apply to every coding: what they protect against,
//! old clients and shared caches, does not depend on the format.

use std::sync::Arc;

use conf::{
    Arity, Diagnostic, Directive, DirectiveLine, DirectiveTable, HTTP_SERVER_LOCATION, Regex,
    RepeatRule, Setter,
};
use http::request::HttpVersion;
use http::{HttpModule, Request};
use proto::KnownField;
use proto::cache_control::CacheControl;

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "gzip_accept",
    doc: "Decides which clients get compressed responses.",
    location: &DIRECTIVES,
    ..HttpModule::EMPTY
};

static DIRECTIVES: DirectiveTable<Conf> = DirectiveTable::new(&[
    Directive {
        name: "gzip_vary",
        syntax: "on | off",
        default: Some("off"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Whether to add `Vary: Accept-Encoding` to responses that are compressed for some clients, so that caches \
              keep both forms.",
        set: Setter::Flag(|c| &mut c.vary),
    },
    Directive {
        name: "gzip_http_version",
        syntax: "1.0 | 1.1",
        default: Some("1.1"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "The minimum HTTP version of a request for a compressed response.",
        set: Setter::Word(&["1.0", "1.1"], |c, i| {
            c.version = [HttpVersion::Http10, HttpVersion::Http11][i]
        }),
    },
    Directive {
        name: "gzip_proxied",
        syntax: "off | expired | no-cache | no-store | private | no_last_modified | no_etag | auth | any …",
        default: Some("off"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Which responses to proxied requests (those with a `Via` header) to compress: `off` none, `any` all, \
              otherwise those with these properties.",
        set: Setter::Bits(&PROXIED, |c| &mut c.proxied),
    },
    Directive {
        name: "gzip_disable",
        syntax: "regex … | msie6",
        default: None,
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Disables compression for clients whose `User-Agent` matches. `msie6` stands for Internet Explorer 4 to \
              6, except 6 with its last service pack.",
        set: Setter::Custom(
            Arity::at_least(1),
            RepeatRule::Fresh(Conf::clear_disabled),
            gzip_disable,
        ),
    },
]);

/// The words of `gzip_proxied`; their positions are the bits below.
const PROXIED: [&str; 9] = [
    "off",
    "expired",
    "no-cache",
    "no-store",
    "private",
    "no_last_modified",
    "no_etag",
    "auth",
    "any",
];
/// The bits of `gzip_proxied`, in the order of [`PROXIED`].
const OFF: u32 = 1;
const EXPIRED: u32 = 1 << 1;
const NO_CACHE: u32 = 1 << 2;
const NO_STORE: u32 = 1 << 3;
const PRIVATE: u32 = 1 << 4;
const NO_LAST_MODIFIED: u32 = 1 << 5;
const NO_ETAG: u32 = 1 << 6;
const AUTH: u32 = 1 << 7;
const ANY: u32 = 1 << 8;

/// Which clients get compressed responses.
#[derive(Clone, Debug, Default)]
struct Conf {
    vary: bool,
    version: HttpVersion,
    proxied: u32,
    /// The expressions of `gzip_disable`.
    disabled: Arc<Vec<Regex>>,
    /// `gzip_disable msie6`: a fixed test, since nginx promises that this word is faster than an
    /// expression.
    not_for_msie6: bool,
}

impl Conf {
    /// Drops inherited `gzip_disable` lines: a block with such a line inherits none.
    fn clear_disabled(&mut self) {
        self.disabled = Arc::default();
        self.not_for_msie6 = false;
    }
}

/// Reads a `gzip_disable` line.
fn gzip_disable(conf: &mut Conf, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    for index in 0..line.args().len() {
        match line.arg(index).text.as_slice() {
            b"msie6" => conf.not_for_msie6 = true,
            // nginx accepts the word and ignores it, unless it was built for it.
            b"degradation" => {}
            pattern => {
                let regex = line.regex(index, pattern, true)?;
                Arc::make_mut(&mut conf.disabled).push(regex);
            }
        }
    }
    Ok(())
}

/// Whether the client of this request may get gzip.
pub(crate) fn accepts(request: &Request) -> bool {
    accepts_coding(request, b"gzip")
}

/// Whether the client of this request may get content in this coding. The cheap tests come first:
/// most requests that fail do so by `Accept-Encoding`.
pub(crate) fn accepts_coding(request: &Request, coding: &[u8]) -> bool {
    // An included part must stay plain, since it becomes a part of another response, which is
    // compressed as a whole.
    if request.is_subrequest() {
        return false;
    }
    let Some(accepted) = request.head.known(KnownField::AcceptEncoding) else {
        return false;
    };
    if !proto::accept_encoding::accepts(accepted, coding) {
        return false;
    }
    let conf = request.conf::<Conf>();
    let agent = request.head.known(KnownField::UserAgent);
    if conf.not_for_msie6 && agent.is_some_and(http::text::is_msie6) {
        return false;
    }
    if request.head.version() < conf.version {
        return false;
    }
    // `Via` means a proxy in between, which may cache the response and serve it to clients that
    // cannot decode it.
    if request.head.known(KnownField::Via).is_some() && !conf.allows_proxied(request) {
        return false;
    }
    !agent.is_some_and(|agent| conf.disabled.iter().any(|regex| regex.is_match(agent)))
}

/// Records that the response depends on `Accept-Encoding`, if `gzip_vary` wants that said. The
/// field itself is written with the head.
pub(crate) fn mark_varying(request: &mut Request) {
    if has_gzip_vary(request) {
        request.delivery.varies_by_encoding = true;
    }
}

/// Whether this location has `gzip_vary on`.
pub(crate) fn has_gzip_vary(request: &Request) -> bool {
    request.conf::<Conf>().vary
}

impl Conf {
    /// Whether `gzip_proxied` allows this response. The first property that concerns caches
    /// decides, in nginx's order: credentials, `Expires`, `Cache-Control`, and then the absence of
    /// validators.
    fn allows_proxied(&self, request: &Request) -> bool {
        let chosen = |bit| self.proxied & bit != 0;
        if chosen(OFF) {
            return false;
        }
        if chosen(ANY) || (chosen(AUTH) && request.head.known(KnownField::Authorization).is_some())
        {
            return true;
        }
        let out = &request.out;
        if let Some(expires) = out.fields.get_known(KnownField::Expires) {
            // An upstream's clock may differ from ours, so its `Expires` is compared with its own
            // `Date`.
            let date = match out.fields.get_known(KnownField::Date) {
                Some(date) => proto::date::parse(date),
                None => i64::try_from(rt::wall_millis() / 1000).ok(),
            };
            let expired = proto::date::parse(expires)
                .zip(date)
                .is_some_and(|(expires, date)| expires < date);
            return chosen(EXPIRED) && expired;
        }
        if out.fields.has(KnownField::CacheControl) {
            let said = CacheControl::parse(out.fields.all_known(KnownField::CacheControl));
            return (chosen(NO_CACHE) && said.no_cache)
                || (chosen(NO_STORE) && said.no_store)
                || (chosen(PRIVATE) && said.private);
        }
        let is_dated = chosen(NO_LAST_MODIFIED) && out.last_modified.is_some();
        let is_tagged = chosen(NO_ETAG) && out.etag.is_some();
        !is_dated && !is_tagged
    }
}
