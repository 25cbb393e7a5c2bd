//! `empty_gif`: a transparent one-pixel image, from memory.
//!
//! ```nginx
//! location = /pixel.gif { empty_gif; }
//! ```

use bytes::Bytes;
use conf::{Arity, Directive, DirectiveTable, LOCATION_OR_IF, RepeatRule, Setter};
use http::module::ContentHandler;
use http::response_body::ResponseBody;
use http::{HandlerOutcome, HandlerStep, HttpModule, Request};
use proto::message::Method;

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "empty_gif",
    doc: "Responds with a transparent one-pixel GIF.",
    location: &DIRECTIVES,
    content_handler: Some(ContentHandler {
        directives: &["empty_gif"],
        when: |location| location.confs.get::<Conf>().on,
        handler: picture,
        adds_slash: false,
        declines: false,
    }),
    nested: |confs| confs.change_if::<Conf>(|conf| conf.on, |conf| conf.on = false),
    explain: http::module::ModuleExplain::Runs(&["empty_gif"]),
    ..HttpModule::EMPTY
};

static DIRECTIVES: DirectiveTable<Conf> = DirectiveTable::new(&[Directive {
    name: "empty_gif",
    syntax: "",
    default: None,
    contexts: LOCATION_OR_IF,
    since: "0.1",
    doc: "Responds to every `GET` and `HEAD` with a transparent one-pixel GIF, without reading a file.",
    set: Setter::Custom(Arity::NONE, RepeatRule::Many, |conf, _| {
        conf.on = true;
        Ok(())
    }),
}]);

#[derive(Clone, Debug, Default)]
struct Conf {
    on: bool,
}

/// The image's modification time, in seconds since the epoch; nginx's value, so that caches behind
/// either server agree.
const LAST_MODIFIED: i64 = 23_349_600;

/// The image (GIF89a).
///
/// ```text
/// "GIF89a" 0100 0100 80 01 00   header: 1x1, a palette of two colours
/// 000000 ffffff                 the palette
/// 21 f9 04 01 0000 01 00        graphic control extension: colour 1 is transparent
/// 2c 0000 0000 0100 0100 00     image descriptor: 1x1 at 0,0
/// 02 02 4c 01 00                LZW data: one pixel of colour 1
/// 3b                            trailer
/// ```
static PICTURE: [u8; 43] = [
    b'G', b'I', b'F', b'8', b'9', b'a', 1, 0, 1, 0, 0x80, 1, 0, //
    0, 0, 0, 0xff, 0xff, 0xff, //
    0x21, 0xf9, 4, 1, 0, 0, 1, 0, //
    0x2c, 0, 0, 0, 0, 1, 0, 1, 0, 0, //
    2, 2, 0x4c, 1, 0, 0x3b,
];

/// The content handler. There is no file to declare a method unsuitable, so other methods are
/// refused here.
fn picture(request: &mut Request) -> HandlerStep<'_> {
    if !matches!(request.method, Method::Get | Method::Head) {
        return HandlerOutcome::Status(405).into();
    }
    let out = &mut request.out;
    out.status = 200;
    out.content_type = "image/gif".into();
    out.last_modified = Some(LAST_MODIFIED);
    out.body = ResponseBody::bytes(Bytes::from_static(&PICTURE));
    HandlerOutcome::Respond.into()
}
