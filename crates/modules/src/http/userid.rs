//! `userid`: gives clients a cookie by which they are known again.
//!
//! ```nginx
//! userid         on;
//! userid_name    uid;
//! userid_domain  example.com;
//! userid_expires 365d;
//! ```
//!
//! The identifier is 128 bits that Apache's mod_uid and nginx have made alike since: who served, when, which process,
//! and a number that counts up. It is in base64 in the cookie, and in hexadecimal in `$uid_got` and `$uid_set`.

use std::net::IpAddr;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

use base64::Engine;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, STANDARD};
use bstr::{BStr, BString, ByteSlice};
use conf::{
    Arity, Diagnostic, Directive, Expression, HTTP_SERVER_LOCATION, Line, Repeat, Setter, Table,
    Variable,
};
use http::{Module, Request, Verdict};
use proto::Known;
use rt::error_log::Level;

pub(crate) static MODULE: Module = Module {
    name: "userid",
    doc: "Identifies clients by a cookie.",
    location: &DIRECTIVES,
    filter: Some(set_cookie),
    enabled: |location| location.confs.get::<Conf>().mode.gives(),
    variables: &[
        Variable::new(
            "uid_got",
            got,
            "The name of the cookie and the identifier received from the client.",
        )
        .volatile(),
        Variable::new(
            "uid_set",
            set,
            "The name of the cookie and the identifier sent to the client.",
        )
        .volatile(),
        Variable::new(
            "uid_reset",
            reset,
            "Can be set: if it is neither empty nor `0`, the client gets a new identifier; `log` also logs that.",
        )
        .volatile()
        .settable(set_reset),
    ],
    ..Module::EMPTY
};

static DIRECTIVES: Table<Conf> = Table::new(&[
    Directive {
        name: "userid",
        syntax: "on | v1 | log | off",
        default: Some("off"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "`on` sets version 2 cookies and logs received ones, `v1` sets version 1 cookies, `log` only logs \
              received cookies.",
        set: Setter::Custom(Arity::ONE, Repeat::Once, |conf, line| {
            conf.mode = MODES[line.word(0, &["on", "v1", "log", "off"])?];
            conf.reset = line.expression_of(line.arg(0), b"$uid_reset")?;
            Ok(())
        }),
    },
    Directive {
        name: "userid_name",
        syntax: "name",
        default: Some("uid"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "The name of the cookie.",
        set: Setter::Text(|c| &mut c.name),
    },
    Directive {
        name: "userid_domain",
        syntax: "name | none",
        default: Some("none"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "The domain of the cookie; `none` omits it.",
        set: Setter::Custom(Arity::ONE, Repeat::Once, |conf, line| {
            text_or_none(&mut conf.domain, line)
        }),
    },
    Directive {
        name: "userid_path",
        syntax: "path",
        default: Some("/"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "The path of the cookie.",
        set: Setter::Text(|c| &mut c.path),
    },
    Directive {
        name: "userid_expires",
        syntax: "time | max | off",
        default: Some("off"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "How long browsers keep the cookie; `off` for the browser session, `max` until the end of 2037.",
        set: Setter::Custom(Arity::ONE, Repeat::Once, |conf, line| {
            conf.expires = match line.text(0).as_bytes() {
                b"max" => Expires::Max,
                b"off" => Expires::WithBrowser,
                _ => Expires::After(i64::try_from(line.seconds(0)?.as_secs()).unwrap_or(i64::MAX)),
            };
            Ok(())
        }),
    },
    Directive {
        name: "userid_flags",
        syntax: "off | flag …",
        default: Some("off"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Attributes of the cookie: `secure`, `httponly`, `samesite=strict`, `samesite=lax`, `samesite=none`.",
        set: Setter::Bits(&FLAGS, |c| &mut c.flags),
    },
    Directive {
        name: "userid_p3p",
        syntax: "string | none",
        default: Some("none"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "The value of a `P3P` header sent along with the cookie.",
        set: Setter::Custom(Arity::ONE, Repeat::Once, |conf, line| {
            text_or_none(&mut conf.p3p, line)
        }),
    },
    Directive {
        name: "userid_mark",
        syntax: "letter | digit | = | off",
        default: Some("off"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "A character that replaces the first padding character of the base64 value. A client whose cookie has a \
              different mark gets the same identifier again, with the new mark and the current attributes.",
        set: Setter::Custom(Arity::ONE, Repeat::Once, mark),
    },
    Directive {
        name: "userid_service",
        syntax: "number",
        default: None,
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "An identifier of this server, in case several of them issue cookies; by default its address.",
        set: Setter::Custom(Arity::ONE, Repeat::Once, |conf, line| {
            let number = line.number(0, 0, u32::MAX.into())?;
            conf.service = u32::try_from(number).ok();
            Ok(())
        }),
    },
]);

/// The words of `userid_flags`; the first says that there are none.
const FLAGS: [&str; 6] = [
    "off",
    "secure",
    "httponly",
    "samesite=strict",
    "samesite=lax",
    "samesite=none",
];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Mode {
    #[default]
    Off,
    Log,
    V1,
    On,
}

/// In the order of the words of `userid`.
const MODES: [Mode; 4] = [Mode::On, Mode::V1, Mode::Log, Mode::Off];

impl Mode {
    fn gives(self) -> bool {
        matches!(self, Mode::V1 | Mode::On)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Expires {
    #[default]
    WithBrowser,
    /// Seconds.
    After(i64),
    Max,
}

#[derive(Clone, Debug, Default)]
struct Conf {
    mode: Mode,
    name: BString,
    domain: BString,
    path: BString,
    expires: Expires,
    flags: u32,
    p3p: BString,
    mark: Option<u8>,
    service: Option<u32>,
    reset: Expression,
}

fn text_or_none(text: &mut BString, line: &mut Line) -> Result<(), Diagnostic> {
    let word = line.text(0);
    *text = if word == "none" {
        BString::default()
    } else {
        word.to_owned()
    };
    Ok(())
}

fn mark(conf: &mut Conf, line: &mut Line) -> Result<(), Diagnostic> {
    conf.mark = match line.text(0).as_bytes() {
        b"off" => None,
        [mark] if mark.is_ascii_alphanumeric() || *mark == b'=' => Some(*mark),
        _ => {
            return Err(line.error_at(
                0,
                "value must be \"off\" or a single letter, digit or \"=\"",
            ));
        }
    };
    Ok(())
}

/// An identifier: four numbers of 32 bits in the order of this machine, as they lie in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Uid([u8; 16]);

/// How many signs of base64 are the identifier; padding and mark follow.
const ENCODED: usize = 22;

/// Cookies end in all kinds of rubbish, so only the 22 signs are read.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(base64::engine::DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

impl Uid {
    fn of_words(words: [u32; 4]) -> Uid {
        let mut bytes = [0; 16];
        for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        Uid(bytes)
    }

    fn decode(text: &[u8]) -> Option<Uid> {
        let bytes = LENIENT.decode(text).ok()?;
        Some(Uid(bytes.try_into().ok()?))
    }

    /// Whether it is one: the last number of each that was given is not 0.
    fn is_set(self) -> bool {
        self.0[12..] != [0; 4]
    }

    fn write_hex(self, out: &mut Vec<u8>) {
        for word in self.0.chunks_exact(4) {
            // As a number of this machine, which is how they have always been logged.
            let mut bytes = [0; 4];
            bytes.copy_from_slice(word);
            let word = u32::from_ne_bytes(bytes);
            out.extend_from_slice(format!("{word:08X}").as_bytes());
        }
    }
}

/// What is known of the client of a request; its subrequests know it too.
#[derive(Default)]
struct Visitor(std::cell::RefCell<Option<Visit>>);

#[derive(Clone, Default)]
struct Visit {
    /// What the client sent.
    cookie: BString,
    got: Uid,
    /// What it is given.
    set: Uid,
    is_reset: bool,
}

/// What the client sent, read once.
fn visit(request: &mut Request, conf: &Conf) -> Visit {
    let known = request.shared::<Visitor>();
    if let Some(visit) = &*known.0.borrow() {
        return visit.clone();
    }
    let mut visit = Visit::default();
    if let Some(cookie) = proto::cookie::find(&request.head.wire.fields, &conf.name) {
        visit.cookie = cookie.into();
        let line = request.head.known(Known::Cookie).unwrap_or_default();
        match cookie.get(..ENCODED) {
            None => request.error(format_args!(
                "client sent too short userid cookie \"{line}\""
            )),
            Some(text) => match Uid::decode(text) {
                None => request.error(format_args!("client sent invalid userid cookie \"{line}\"")),
                Some(uid) => visit.got = uid,
            },
        }
    }
    *known.0.borrow_mut() = Some(visit.clone());
    visit
}

/// What the client is given, if anything: `set` is an identifier then.
fn give(request: &mut Request, conf: &Conf) -> Visit {
    let mut visit = visit(request, conf);
    if visit.set.is_set() {
        return visit;
    }
    if visit.got.is_set() {
        let reset = request.value(&conf.reset);
        if reset.is_empty() || reset == "0" {
            if !conf.is_marked(&visit.cookie) {
                visit.set = visit.got;
            }
            return remember(request, visit);
        }
        visit.is_reset = true;
        if reset == "log" {
            let mut uid = Vec::new();
            visit.got.write_hex(&mut uid);
            let (name, uid) = (&conf.name, uid.as_bstr());
            request.log(
                Level::Notice,
                format_args!("userid cookie \"{name}={uid}\" was reset"),
            );
        }
    }
    visit.set = new_uid(request, conf);
    remember(request, visit)
}

fn remember(request: &mut Request, visit: Visit) -> Visit {
    *request.shared::<Visitor>().0.borrow_mut() = Some(visit.clone());
    visit
}

impl Conf {
    /// Whether a cookie has the mark that it should have.
    fn is_marked(&self, cookie: &[u8]) -> bool {
        match self.mark {
            None => true,
            Some(mark) => cookie.get(ENCODED..ENCODED + 2) == Some(&[mark, b'=']),
        }
    }
}

/// What distinguishes this process from those before it: its number and the moment at which it began.
static START: LazyLock<u32> = LazyLock::new(|| {
    let millis = rt::wall_millis();
    (((millis % 1000) * 50) as u32) << 16 | (std::process::id() & 0xffff)
});
/// Counts identifiers of version 1.
static NUMBER_1: AtomicU32 = AtomicU32::new(1);
/// Counts identifiers of version 2, from what shows the version.
static NUMBER_2: AtomicU32 = AtomicU32::new(FIRST_NUMBER_2);
const FIRST_NUMBER_2: u32 = 0x0303_0302;
/// The lowest byte is the version's.
const STEP: u32 = 0x100;

fn new_uid(request: &Request, conf: &Conf) -> Uid {
    let now = (rt::wall_millis() / 1000) as u32;
    if conf.mode == Mode::V1 {
        let number = NUMBER_1.fetch_add(STEP, Ordering::Relaxed);
        return Uid::of_words([conf.service.unwrap_or(0), now, *START, number]);
    }
    let number = NUMBER_2.fetch_add(STEP, Ordering::Relaxed);
    let number = if number < FIRST_NUMBER_2 {
        number.wrapping_add(FIRST_NUMBER_2)
    } else {
        number
    };
    let service = match conf.service {
        Some(service) => service,
        None => address(request),
    };
    // Version 2 is in network order.
    Uid::of_words([service.to_be(), now.to_be(), START.to_be(), number.to_be()])
}

/// The address that the client came to, of version 6 its last quarter, as a number.
fn address(request: &Request) -> u32 {
    match request
        .client
        .stream
        .socket()
        .local_addr()
        .ok()
        .and_then(|address| address.ip())
    {
        Some(IpAddr::V4(address)) => address.into(),
        Some(IpAddr::V6(address)) => u128::from(address) as u32,
        None => 0,
    }
}

fn set_cookie(request: &mut Request) -> Verdict {
    if request.is_subrequest() {
        return Verdict::Pass;
    }
    let conf = request.conf::<Conf>();
    let visit = give(request, &conf);
    if visit.set.is_set() {
        let cookie = cookie(&conf, &visit);
        request.out.fields.push(b"Set-Cookie", &cookie);
        if !conf.p3p.is_empty() {
            request.out.fields.push(b"P3P", &conf.p3p);
        }
    }
    Verdict::Pass
}

fn cookie(conf: &Conf, visit: &Visit) -> Vec<u8> {
    let mut out = [&conf.name[..], b"="].concat();
    if !visit.got.is_set() || visit.is_reset {
        let mut text = STANDARD.encode(visit.set.0).into_bytes();
        if let Some(mark) = conf.mark {
            text[ENCODED] = mark;
        }
        out.extend_from_slice(&text);
    } else {
        out.extend_from_slice(&visit.cookie[..ENCODED]);
        out.extend(conf.mark);
        out.push(b'=');
    }
    match conf.expires {
        Expires::WithBrowser => {}
        Expires::Max => out.extend_from_slice(b"; expires=Thu, 31-Dec-37 23:55:55 GMT"),
        Expires::After(seconds) => {
            out.extend_from_slice(b"; expires=");
            let now = i64::try_from(rt::wall_millis() / 1000).unwrap_or(i64::MAX);
            proto::date::write_cookie(now.saturating_add(seconds), &mut out);
        }
    }
    if !conf.domain.is_empty() {
        out.extend_from_slice(b"; domain=");
        out.extend_from_slice(&conf.domain);
    }
    out.extend_from_slice(b"; path=");
    out.extend_from_slice(&conf.path);
    for (bit, flag) in FLAGS.iter().enumerate().skip(1) {
        if conf.flags & (1 << bit) != 0 {
            out.extend_from_slice(b"; ");
            out.extend_from_slice(flag.as_bytes());
        }
    }
    out
}

fn got(request: &mut Request, out: &mut Vec<u8>) -> bool {
    let conf = request.conf::<Conf>();
    if conf.mode == Mode::Off && !request.is_subrequest() {
        return false;
    }
    let visit = visit(request, &conf);
    write(conf.name.as_bstr(), visit.got, out)
}

fn set(request: &mut Request, out: &mut Vec<u8>) -> bool {
    let conf = request.conf::<Conf>();
    if request.is_subrequest() {
        let visit = visit(request, &conf);
        return write(conf.name.as_bstr(), visit.set, out);
    }
    if !conf.mode.gives() {
        return false;
    }
    let visit = give(request, &conf);
    write(conf.name.as_bstr(), visit.set, out)
}

fn write(name: &BStr, uid: Uid, out: &mut Vec<u8>) -> bool {
    if !uid.is_set() {
        return false;
    }
    out.extend_from_slice(name);
    out.push(b'=');
    uid.write_hex(out);
    true
}

/// What `set $uid_reset` said.
#[derive(Default)]
struct Reset(std::cell::RefCell<BString>);

fn reset(request: &mut Request, out: &mut Vec<u8>) -> bool {
    out.extend_from_slice(&request.shared::<Reset>().0.borrow());
    true
}

fn set_reset(request: &mut Request, value: &[u8]) {
    *request.shared::<Reset>().0.borrow_mut() = value.into();
}
