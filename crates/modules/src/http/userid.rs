//! `userid`: gives clients a cookie by which they are recognised.
//!
//! ```nginx
//! userid         on;
//! userid_name    uid;
//! userid_domain  example.com;
//! userid_expires 365d;
//! ```
//!
//! The identifier has 128 bits, in the format of nginx and of Apache's mod_uid: the server, the
//! time, the process, and a counter. The cookie has it in base64, `$uid_got` and `$uid_set` in
//! hexadecimal.
//!
//! It tells browsers apart, and nothing more: the number can be guessed, so it must not be used as
//! a session.

use std::net::IpAddr;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

use base64::Engine;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, STANDARD};
use bstr::{BStr, BString, ByteSlice};
use conf::{
    Arity, Diagnostic, Directive, DirectiveLine, DirectiveTable, Expression, HTTP_SERVER_LOCATION,
    RepeatRule, Setter, Variable,
};
use host::error_log::LogLevel;
use http::{FilterVerdict, HttpModule, Request};
use proto::KnownField;

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "userid",
    doc: "Identifies clients by a cookie.",
    location: &DIRECTIVES,
    filter: Some(set_cookie),
    enabled: |location| location.confs.get::<Conf>().mode.issues(),
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
    explain: http::module::ModuleExplain::Aside(&["userid"]),
    ..HttpModule::EMPTY
};

static DIRECTIVES: DirectiveTable<Conf> = DirectiveTable::new(&[
    Directive {
        name: "userid",
        syntax: "on | v1 | log | off",
        default: Some("off"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "`on` sets version 2 cookies and logs received ones, `v1` sets version 1 cookies, `log` only logs \
              received cookies.",
        set: Setter::Custom(Arity::ONE, RepeatRule::Once, |conf, line| {
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
        set: Setter::Custom(Arity::ONE, RepeatRule::Once, |conf, line| {
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
        set: Setter::Custom(Arity::ONE, RepeatRule::Once, |conf, line| {
            conf.expires = match line.text(0).as_bytes() {
                b"max" => CookieExpiry::Max,
                b"off" => CookieExpiry::WithBrowser,
                _ => CookieExpiry::After(
                    i64::try_from(line.seconds(0)?.as_secs()).unwrap_or(i64::MAX),
                ),
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
        // An obsolete mechanism of privacy policies; kept because nginx has it.
        name: "userid_p3p",
        syntax: "string | none",
        default: Some("none"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "The value of a `P3P` header sent along with the cookie.",
        set: Setter::Custom(Arity::ONE, RepeatRule::Once, |conf, line| {
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
        set: Setter::Custom(Arity::ONE, RepeatRule::Once, mark),
    },
    Directive {
        // Needed where several servers have the same address, as behind a balancer.
        name: "userid_service",
        syntax: "number",
        default: None,
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "An identifier of this server, in case several of them issue cookies; by default its address.",
        set: Setter::Custom(Arity::ONE, RepeatRule::Once, |conf, line| {
            let number = line.number(0, 0, u32::MAX.into())?;
            conf.service = u32::try_from(number).ok();
            Ok(())
        }),
    },
]);

/// The words of `userid_flags`; the first one stands for none.
const FLAGS: [&str; 6] = [
    "off",
    "secure",
    "httponly",
    "samesite=strict",
    "samesite=lax",
    "samesite=none",
];

/// The value of `userid`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum UseridMode {
    #[default]
    Off,
    Log,
    V1,
    On,
}

/// The modes in the order of the words of `userid`.
const MODES: [UseridMode; 4] = [
    UseridMode::On,
    UseridMode::V1,
    UseridMode::Log,
    UseridMode::Off,
];

impl UseridMode {
    /// Whether clients get cookies.
    fn issues(self) -> bool {
        matches!(self, UseridMode::V1 | UseridMode::On)
    }
}

/// The value of `userid_expires`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum CookieExpiry {
    /// No attribute: until the browser is closed.
    #[default]
    WithBrowser,
    /// Seconds.
    After(i64),
    /// The latest date that 32-bit clients understand.
    Max,
}

#[derive(Clone, Debug, Default)]
struct Conf {
    mode: UseridMode,
    name: BString,
    domain: BString,
    path: BString,
    expires: CookieExpiry,
    flags: u32,
    p3p: BString,
    mark: Option<u8>,
    service: Option<u32>,
    reset: Expression,
}

/// Reads a text; `none` is the empty one.
fn text_or_none(text: &mut BString, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    let word = line.text(0);
    *text = if word == "none" {
        BString::default()
    } else {
        word.to_owned()
    };
    Ok(())
}

/// `userid_mark`.
fn mark(conf: &mut Conf, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
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

/// An identifier: four 32-bit numbers as they are in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct UserId([u8; 16]);

/// The number of base64 characters of an identifier; padding and the mark follow.
const ENCODED: usize = 22;

/// Lenient, since clients send cookies with all kinds of endings: only the 22 characters are
/// decoded.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(base64::engine::DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

impl UserId {
    /// An identifier of four numbers.
    fn of_words(words: [u32; 4]) -> UserId {
        let mut bytes = [0; 16];
        for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
            // In native byte order, like nginx: cookies that nginx has issued on the same machine stay valid.
            place.copy_from_slice(&word.to_ne_bytes());
        }
        UserId(bytes)
    }

    /// Decodes an identifier without its padding.
    fn decode(text: &[u8]) -> Option<UserId> {
        let bytes = LENIENT.decode(text).ok()?;
        Some(UserId(bytes.try_into().ok()?))
    }

    /// Whether it is one: the last number, the counter, is never 0 in an identifier that was
    /// issued.
    fn is_set(self) -> bool {
        self.0[12..] != [0; 4]
    }

    /// Appends the identifier in hexadecimal.
    fn write_hex(self, out: &mut Vec<u8>) {
        for word in self.0.chunks_exact(4) {
            // In the byte order of this machine, as nginx has always logged it.
            let mut bytes = [0; 4];
            bytes.copy_from_slice(word);
            let word = u32::from_ne_bytes(bytes);
            out.extend_from_slice(format!("{word:08X}").as_bytes());
        }
    }
}

/// The client's identifiers, shared by a request and its subrequests.
#[derive(Default)]
struct SharedUserid(std::cell::RefCell<Option<UseridState>>);

/// The identifiers of one client request.
#[derive(Clone, Default)]
struct UseridState {
    /// The cookie as the client sent it.
    cookie: BString,
    /// The identifier in the cookie, or none.
    got: UserId,
    /// The identifier that the client is given, or none.
    set: UserId,
    /// Whether `$uid_reset` asked for a new identifier in place of a valid one.
    is_reset: bool,
}

/// Reads the client's cookie, once per request.
fn received_uid(request: &mut Request, conf: &Conf) -> UseridState {
    let known = request.shared::<SharedUserid>();
    // Parsed once: the messages about an invalid cookie must not be repeated for every use of a variable.
    if let Some(state) = &*known.0.borrow() {
        return state.clone();
    }
    let mut state = UseridState::default();
    if let Some(cookie) = proto::cookie::find(&request.head.wire.fields, &conf.name) {
        state.cookie = cookie.into();
        // The whole field, as nginx logs it.
        let line = request.head.known(KnownField::Cookie).unwrap_or_default();
        match cookie.get(..ENCODED) {
            None => request.error(format_args!(
                "client sent too short userid cookie \"{line}\""
            )),
            // What follows the identifier is only compared with the mark.
            Some(text) => match UserId::decode(text) {
                None => request.error(format_args!("client sent invalid userid cookie \"{line}\"")),
                Some(uid) => state.got = uid,
            },
        }
    }
    *known.0.borrow_mut() = Some(state.clone());
    state
}

/// Decides what the client is given; `set` is an identifier then.
fn issue_uid(request: &mut Request, conf: &Conf) -> UseridState {
    let mut state = received_uid(request, conf);
    // Decided already, by a variable or by a subrequest: there must be one identifier per request.
    if state.set.is_set() {
        return state;
    }
    if state.got.is_set() {
        let reset = request.value(&conf.reset);
        if reset.is_empty() || reset == "0" {
            // The same identifier again, with the current mark and attributes.
            if !conf.is_marked(&state.cookie) {
                state.set = state.got;
            }
            return store(request, state);
        }
        state.is_reset = true;
        if reset == "log" {
            let mut uid = Vec::new();
            state.got.write_hex(&mut uid);
            let (name, uid) = (&conf.name, uid.as_bstr());
            request.log(
                LogLevel::Notice,
                format_args!("userid cookie \"{name}={uid}\" was reset"),
            );
        }
    }
    state.set = new_uid(request, conf);
    store(request, state)
}

/// Stores what was decided for the rest of the request: the variables and the cookie must agree.
fn store(request: &mut Request, state: UseridState) -> UseridState {
    *request.shared::<SharedUserid>().0.borrow_mut() = Some(state.clone());
    state
}

impl Conf {
    /// Whether a cookie has the configured mark.
    fn is_marked(&self, cookie: &[u8]) -> bool {
        match self.mark {
            None => true,
            Some(mark) => cookie.get(ENCODED..ENCODED + 2) == Some(&[mark, b'=']),
        }
    }
}

/// Distinguishes this process from earlier ones: its number and its start time.
static START: LazyLock<u32> = LazyLock::new(|| {
    let millis = rt::wall_millis();
    (((millis % 1000) * 50) as u32) << 16 | (std::process::id() & 0xffff)
});
/// The counter of version 1.
static NUMBER_1: AtomicU32 = AtomicU32::new(1);
/// The counter of version 2. Its start and its lowest byte identify the version.
static NUMBER_2: AtomicU32 = AtomicU32::new(FIRST_NUMBER_2);
/// The first number of version 2.
const FIRST_NUMBER_2: u32 = 0x0303_0302;
/// The step of both counters: the lowest byte belongs to the version.
const STEP: u32 = 0x100;

/// Makes a new identifier.
fn new_uid(request: &Request, conf: &Conf) -> UserId {
    let now = (rt::wall_millis() / 1000) as u32;
    if conf.mode == UseridMode::V1 {
        // Shared by all event loops, so that two clients never get the same number.
        let number = NUMBER_1.fetch_add(STEP, Ordering::Relaxed);
        return UserId::of_words([conf.service.unwrap_or(0), now, *START, number]);
    }
    let number = NUMBER_2.fetch_add(STEP, Ordering::Relaxed);
    // The counter has wrapped around.
    let number = if number < FIRST_NUMBER_2 {
        number.wrapping_add(FIRST_NUMBER_2)
    } else {
        number
    };
    let service = match conf.service {
        Some(service) => service,
        None => address(request),
    };
    // Version 2 is in network byte order, version 1 in that of the machine.
    UserId::of_words([service.to_be(), now.to_be(), START.to_be(), number.to_be()])
}

/// The address that the client connected to, as a number: of an IPv6 address the last quarter.
fn address(request: &Request) -> u32 {
    let local = request.client.connection.local_address();
    match local.and_then(|address| address.ip()) {
        Some(IpAddr::V4(address)) => address.into(),
        // The part that usually tells the machines of a network apart.
        Some(IpAddr::V6(address)) => u128::from(address) as u32,
        None => 0,
    }
}

/// The filter: adds the cookie.
fn set_cookie(request: &mut Request) -> FilterVerdict {
    // A subrequest has no head of its own.
    if request.is_subrequest() {
        return FilterVerdict::Pass;
    }
    let conf = request.conf::<Conf>();
    let state = issue_uid(request, &conf);
    if state.set.is_set() {
        let cookie = cookie(&conf, &state);
        request.out.fields.push(b"Set-Cookie", &cookie);
        if !conf.p3p.is_empty() {
            request.out.fields.push(b"P3P", &conf.p3p);
        }
    }
    FilterVerdict::Pass
}

/// The value of the `Set-Cookie` header.
fn cookie(conf: &Conf, state: &UseridState) -> Vec<u8> {
    let mut out = [&conf.name[..], b"="].concat();
    if !state.got.is_set() || state.is_reset {
        let mut text = STANDARD.encode(state.set.0).into_bytes();
        // The mark takes the place of the first padding character, so it costs no length.
        if let Some(mark) = conf.mark {
            text[ENCODED] = mark;
        }
        out.extend_from_slice(&text);
    } else {
        // Only the mark or the attributes change; the identifier is returned as it was sent.
        out.extend_from_slice(&state.cookie[..ENCODED]);
        out.extend(conf.mark);
        out.push(b'=');
    }
    match conf.expires {
        CookieExpiry::WithBrowser => {}
        CookieExpiry::Max => out.extend_from_slice(b"; expires=Thu, 31-Dec-37 23:55:55 GMT"),
        CookieExpiry::After(seconds) => {
            out.extend_from_slice(b"; expires=");
            let now = i64::try_from(rt::wall_millis() / 1000).unwrap_or(i64::MAX);
            proto::date::write_cookie(now.saturating_add(seconds), &mut out);
        }
    }
    if !conf.domain.is_empty() {
        out.extend_from_slice(b"; domain=");
        out.extend_from_slice(&conf.domain);
    }
    // Always present: without it, browsers would use the directory of the first request.
    out.extend_from_slice(b"; path=");
    out.extend_from_slice(&conf.path);
    // Always in this order, as nginx writes them.
    for (bit, flag) in FLAGS.iter().enumerate().skip(1) {
        if conf.flags & (1 << bit) != 0 {
            out.extend_from_slice(b"; ");
            out.extend_from_slice(flag.as_bytes());
        }
    }
    out
}

/// `$uid_got`.
fn got(request: &mut Request, out: &mut Vec<u8>) -> bool {
    let conf = request.conf::<Conf>();
    if conf.mode == UseridMode::Off && !request.is_subrequest() {
        return false;
    }
    let state = received_uid(request, &conf);
    write(conf.name.as_bstr(), state.got, out)
}

/// `$uid_set`. Using it decides whether the client gets a new identifier.
fn set(request: &mut Request, out: &mut Vec<u8>) -> bool {
    let conf = request.conf::<Conf>();
    if request.is_subrequest() {
        let state = received_uid(request, &conf);
        return write(conf.name.as_bstr(), state.set, out);
    }
    if !conf.mode.issues() {
        return false;
    }
    let state = issue_uid(request, &conf);
    write(conf.name.as_bstr(), state.set, out)
}

/// Appends `name=` and the identifier, the form of the two variables.
fn write(name: &BStr, uid: UserId, out: &mut Vec<u8>) -> bool {
    if !uid.is_set() {
        return false;
    }
    out.extend_from_slice(name);
    out.push(b'=');
    uid.write_hex(out);
    true
}

/// The value assigned to `$uid_reset`.
#[derive(Default)]
struct UidReset(std::cell::RefCell<BString>);

/// `$uid_reset`.
fn reset(request: &mut Request, out: &mut Vec<u8>) -> bool {
    out.extend_from_slice(&request.shared::<UidReset>().0.borrow());
    true
}

/// Assigns `$uid_reset`.
fn set_reset(request: &mut Request, value: &[u8]) {
    *request.shared::<UidReset>().0.borrow_mut() = value.into();
}
