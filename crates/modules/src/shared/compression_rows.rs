//! The directives that every content coding has (`gzip`, `gzip_types`, …), and the settings behind
//! them.
//!
//! A module gives each row its name and what differs, and adds rows of its own, whose settings are
//! [`ResponseCoding::Own`].

use std::io;
use std::rc::Rc;

use conf::{
    Arity, BufferSizes, Directive, HTTP_SERVER_LOCATION, HTTP_SERVER_LOCATION_IF, RepeatRule,
    Setter,
};
use http::http_site::Location;
use http::{FilterVerdict, Request};

use crate::shared::compression::{self, CompressionCriteria, ContentEncoder};

/// A content coding that responses are compressed with on the fly.
pub(crate) trait ResponseCoding: ContentEncoder + Sized {
    /// Its name in `Content-Encoding`.
    const NAME: &'static [u8];

    /// The settings that only this coding has. The type also distinguishes the settings of one
    /// coding from those of another, which are looked up by type.
    type Own: Clone + Default + Send + Sync + 'static;

    /// An encoder for a response of this length, if it is known.
    fn start(conf: &CompressionConf<Self::Own>, length: Option<u64>) -> io::Result<Self>;

    /// What changes its output besides the level, as a number.
    fn variant(_conf: &CompressionConf<Self::Own>) -> u32 {
        0
    }
}

/// The settings of a coding in a location.
#[derive(Clone, Default)]
pub(crate) struct CompressionConf<Own> {
    pub(crate) on: bool,
    pub(crate) criteria: CompressionCriteria,
    pub(crate) level: i64,
    pub(crate) own: Own,
    /// `gzip_buffers` and its kin, accepted for compatibility.
    buffers: BufferSizes,
}

/// Whether a location compresses with this coding: the module's `enabled`.
pub(crate) fn is_on<C: ResponseCoding>(location: &Location) -> bool {
    location.confs.get::<CompressionConf<C::Own>>().on
}

/// Compresses the response if it meets the conditions: the module's filter.
pub(crate) fn compress<C: ResponseCoding>(request: &mut Request) -> FilterVerdict {
    // Borrowed from the site rather than the request, which changes.
    let site = Rc::clone(&request.site);
    let location = site.location(request.location);
    let conf = location.confs.get::<CompressionConf<C::Own>>();
    compression::compress_response::<C>(request, conf)
}

/// `gzip on | off;`.
pub(crate) const fn switch<Own>(
    name: &'static str,
    since: &'static str,
    doc: &'static str,
) -> Directive<CompressionConf<Own>> {
    Directive {
        name,
        syntax: "on | off",
        default: Some("off"),
        contexts: HTTP_SERVER_LOCATION_IF,
        since,
        doc,
        set: Setter::Flag(|c| &mut c.on),
    }
}

/// `gzip_types mime-type …;`.
pub(crate) const fn types<Own>(
    name: &'static str,
    since: &'static str,
) -> Directive<CompressionConf<Own>> {
    Directive {
        name,
        syntax: "mime-type … | *",
        default: Some("text/html"),
        contexts: HTTP_SERVER_LOCATION,
        since,
        doc: "The media types to compress, in addition to `text/html`, which is always compressed. `*` means all.",
        set: Setter::Custom(
            Arity::at_least(1),
            // A block with its own list inherits none.
            RepeatRule::Fresh(|c: &mut CompressionConf<Own>| c.criteria.types.clear()),
            |c, line| c.criteria.types.read(line, &["text/html"]),
        ),
    }
}

/// `gzip_comp_level level;`, with its default and both bounds.
pub(crate) const fn level<Own>(
    name: &'static str,
    since: &'static str,
    default: &'static str,
    (min, max): (i64, i64),
    doc: &'static str,
) -> Directive<CompressionConf<Own>> {
    Directive {
        name,
        syntax: "level",
        default: Some(default),
        contexts: HTTP_SERVER_LOCATION,
        since,
        doc,
        set: Setter::Number(|c| &mut c.level, min, max),
    }
}

/// `gzip_min_length length;`.
pub(crate) const fn min_length<Own>(
    name: &'static str,
    since: &'static str,
) -> Directive<CompressionConf<Own>> {
    Directive {
        name,
        syntax: "length",
        // nginx's default: below that, the framing of the coding outweighs what it saves.
        default: Some("20"),
        contexts: HTTP_SERVER_LOCATION,
        since,
        doc: "The minimum length of a response to compress; responses of unknown length are always compressed.",
        set: Setter::Size(|c| &mut c.criteria.min_length),
    }
}

/// `gzip_buffers number size;`.
pub(crate) const fn buffers<Own>(
    name: &'static str,
    since: &'static str,
) -> Directive<CompressionConf<Own>> {
    Directive {
        name,
        syntax: "number size",
        // In many configurations, so it must not be an error.
        default: Some("32 4k"),
        contexts: HTTP_SERVER_LOCATION,
        since,
        doc: "Accepted; Weir sizes its buffers itself.",
        set: Setter::Buffers(|c| &mut c.buffers),
    }
}
