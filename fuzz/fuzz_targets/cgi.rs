//! The head of a CGI response means the same in one piece and in two; requests to SCGI and uwsgi have their bounds.
#![no_main]

use libfuzzer_sys::fuzz_target;
use proto::cgi::{CgiStatusLine, HeadParser};
use proto::message::ResponseHead;
use proto::{scgi, uwsgi};

fuzz_target!(|data: &[u8]| {
    let Some((&cut, wire)) = data.split_first() else {
        return;
    };
    let cut = usize::from(cut).min(wire.len());
    for kind in [CgiStatusLine::Never, CgiStatusLine::Tolerated] {
        let (mut parser, mut head) = (HeadParser::new(kind), ResponseHead::default());
        let whole = parser.parse(wire, 512, &mut head);
        let (mut parser, mut other) = (HeadParser::new(kind), ResponseHead::default());
        let first = parser.parse(&wire[..cut], 512, &mut other);
        let pieces = if first == Ok(None) {
            parser.parse(wire, 512, &mut other)
        } else {
            first
        };
        assert_eq!(whole, pieces);
        if let Ok(Some(length)) = whole {
            assert!(length <= wire.len().min(512) && (100..1000).contains(&head.status));
            assert_eq!(head.status_text(), other.status_text());
        }
    }

    let (name, value) = wire.split_at(cut);
    let (mut params, mut out) = (Vec::new(), Vec::new());
    scgi::push_param(name, value, &mut params);
    assert_eq!(params.iter().filter(|&&byte| byte == 0).count(), 2);
    let mut vars = uwsgi::UwsgiVars::new();
    vars.push(name, value);
    assert_eq!(
        vars.write_head(0, 0, &mut out).is_ok(),
        wire.len() + 4 <= uwsgi::UwsgiVars::MAX_SIZE
    );
});
