//! `gzip`: compresses responses on the fly.
//!
//! ```nginx
//! gzip            on;
//! gzip_types      text/css application/javascript application/json image/svg+xml;
//! gzip_min_length 1000;
//! ```
//!
//! Only for clients that accept it (see `gzip_proxied` and its neighbours), only for the listed
//! media types, and not if the response has a coding already. A strong entity tag becomes weak, and
//! ranges are no longer offered, because the bytes are not the same any more. The mechanism is
//! [`crate::shared::compression`], with the encoder in [`encoder`].

mod encoder;

use std::io;

use conf::{
    Arity, Diagnostic, Directive, DirectiveLine, DirectiveTable, HTTP_SERVER_LOCATION, RepeatRule,
    Setter, Variable,
};
use http::HttpModule;

use encoder::GzipEncoder;

use crate::shared::compression::write_ratio;
use crate::shared::compression_rows::{self, CompressionConf, ResponseCoding};

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "gzip",
    doc: "Compresses responses with gzip.",
    location: &DIRECTIVES,
    identifies_content: true,
    filter: Some(compression_rows::compress::<GzipEncoder>),
    enabled: compression_rows::is_on::<GzipEncoder>,
    variables: &[Variable::new(
        "gzip_ratio",
        write_ratio::<GzipEncoder>,
        "The compression ratio achieved.",
    )
    .volatile()],
    explain: http::module::ModuleExplain::Runs(&["gzip"]),
    ..HttpModule::EMPTY
};

static DIRECTIVES: DirectiveTable<CompressionConf<GzipSettings>> = DirectiveTable::new(&[
    compression_rows::switch("gzip", "0.1", "Enables gzip compression."),
    compression_rows::types("gzip_types", "0.1"),
    compression_rows::level(
        "gzip_comp_level",
        "0.1",
        "1",
        (1, 9),
        "The compression level, from 1 to 9. Levels above 6 gain little and cost much CPU time.",
    ),
    compression_rows::min_length("gzip_min_length", "0.1"),
    compression_rows::buffers("gzip_buffers", "0.1"),
    Directive {
        // Checked like nginx does, so that a configuration is valid for both.
        name: "gzip_window",
        syntax: "size",
        default: Some("32k"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Accepted, from 512 bytes to 32k; the window is always 32k.",
        set: Setter::Custom(Arity::ONE, RepeatRule::Once, |_, line| {
            power_of_two(line, "512, 1k, 2k, 4k, 8k, 16k, or 32k", 32 * 1024)
        }),
    },
    Directive {
        name: "gzip_hash",
        syntax: "size",
        default: Some("64k"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Accepted, from 512 bytes to 128k; has no effect.",
        set: Setter::Custom(Arity::ONE, RepeatRule::Once, |_, line| {
            power_of_two(
                line,
                "512, 1k, 2k, 4k, 8k, 16k, 32k, 64k, or 128k",
                128 * 1024,
            )
        }),
    },
    Directive {
        name: "postpone_gzipping",
        syntax: "size",
        default: Some("0"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Accepted; output is always gathered until there is enough to send.",
        set: Setter::Size(|c| &mut c.own.postponed),
    },
    Directive {
        name: "gzip_no_buffer",
        syntax: "on | off",
        default: Some("off"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Accepted; has no effect.",
        set: Setter::Flag(|c| &mut c.own.unbuffered),
    },
]);

/// What gzip has beside the settings that all codings share.
#[derive(Clone, Default)]
struct GzipSettings {
    /// `postpone_gzipping`, accepted for compatibility.
    postponed: u64,
    /// `gzip_no_buffer`, likewise.
    unbuffered: bool,
}

impl ResponseCoding for GzipEncoder {
    const NAME: &'static [u8] = b"gzip";
    type Own = GzipSettings;

    fn start(conf: &CompressionConf<GzipSettings>, _: Option<u64>) -> io::Result<GzipEncoder> {
        Ok(GzipEncoder::new(conf.level))
    }
}

/// Checks a size as nginx does, for directives without effect.
fn power_of_two(line: &mut DirectiveLine, choice: &str, max: u64) -> Result<(), Diagnostic> {
    let size = line.size(0)?;
    if size.is_power_of_two() && (512..=max).contains(&size) {
        return Ok(());
    }
    Err(line.directive_error_at(0, &format!("must be {choice}")))
}
