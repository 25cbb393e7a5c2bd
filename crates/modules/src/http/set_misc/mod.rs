//! `set_md5`, `set_escape_uri` and their kin: variables computed from texts, compatible with the
//! module set-misc.
//!
//! ```nginx
//! set_unescape_uri   $name $arg_name;
//! set_quote_json_str $json $name;
//! set_hmac_sha1      $signature $secret "$uri$args";
//! set_encode_base64  $signature;
//! ```
//!
//! They are steps of the same script as `set`, `rewrite` and `if`, in file order. With only the
//! name of a variable, a directive replaces that variable's value. A text that a directive cannot
//! process ends the request with 500.
//!
//! Differences from that module: `set_decode_base32` of an invalid text is empty, as its
//! documentation says, and all characters of `set_secure_random_*` are equally likely.

mod base32;
mod encodings;
mod quote;
mod random;
mod time;
mod uri;

use std::collections::HashMap;
use std::sync::Arc;

use ::http::http_site::LocationId;
use ::http::module::{ScriptProgress, ScriptStep, ScriptSteps, assigned_variable};
use ::http::{HandlerOutcome, HttpModule, Request};
use base::sync::Mutex;
use bstr::BString;
use conf::{
    Arity, Contexts, Diagnostic, Directive, DirectiveLine, DirectiveTable, Expression, HTTP,
    HTTP_SERVER, RepeatRule, SERVER_LOCATION_IF, Setter, VarId,
};

use self::base32::Base32Alphabet;

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "set_misc",
    doc: "Sets variables to transformed text: encodings, digests, quoting, random values, times.",
    location: &DIRECTIVES,
    ..HttpModule::EMPTY
};

const ANYWHERE: Contexts = HTTP.or(SERVER_LOCATION_IF);

/// Computes the new value of a variable from the evaluated arguments.
type TextFunction = fn(&mut Request, Vec<BString>) -> Result<Vec<u8>, InvalidText>;

/// Why a directive cannot process its arguments, for the error log.
#[derive(Debug)]
struct InvalidText(String);

impl InvalidText {
    fn new(message: impl Into<String>) -> InvalidText {
        InvalidText(message.into())
    }
}

/// The setter of a directive.
type SetLine = fn(&mut Conf, &mut DirectiveLine) -> Result<(), Diagnostic>;

/// A directive that computes the value of a variable; `set` adds the step that does.
const fn row(
    name: &'static str,
    syntax: &'static str,
    arity: Arity,
    doc: &'static str,
    set: SetLine,
) -> Directive<Conf> {
    Directive {
        name,
        syntax,
        default: None,
        contexts: ANYWHERE,
        since: "0.1",
        doc,
        set: Setter::Custom(arity, RepeatRule::Many, set),
    }
}

/// A directive that transforms its argument or, without one, the value of its variable.
// Encodings.
const fn text_row(name: &'static str, doc: &'static str, set: SetLine) -> Directive<Conf> {
    row(name, "$variable [text]", Arity::between(1, 2), doc, set)
}

static DIRECTIVES: DirectiveTable<Conf> = DirectiveTable::<Conf>::new(&[
    text_row(
        "set_encode_base64",
        "The text encoded in base64.",
        |_, line| add_text(line, encodings::encode_base64),
    ),
    text_row(
        "set_decode_base64",
        "The text decoded from base64; 500 if it is invalid.",
        |_, line| add_text(line, encodings::decode_base64),
    ),
    text_row(
        // RFC 4648, section 5: safe in URLs and file names.
        "set_encode_base64url",
        "The text encoded in base64url, without padding.",
        |_, line| add_text(line, encodings::encode_base64url),
    ),
    text_row(
        "set_decode_base64url",
        "The text decoded from base64url; 500 if it is invalid.",
        |_, line| add_text(line, encodings::decode_base64url),
    ),
    text_row(
        "set_encode_hex",
        "The text encoded in hexadecimal.",
        |_, line| add_text(line, encodings::encode_hex),
    ),
    text_row(
        "set_decode_hex",
        "The text decoded from hexadecimal; 500 if it is invalid.",
        |_, line| add_text(line, encodings::decode_hex),
    ),
    text_row(
        // Digests. MD5 and SHA-1 are for compatibility with signatures that exist.
        "set_md5",
        "The MD5 digest of the text, in hexadecimal.",
        |_, line| add_text(line, encodings::md5),
    ),
    text_row(
        "set_sha1",
        "The SHA-1 digest of the text, in hexadecimal.",
        |_, line| add_text(line, encodings::sha1),
    ),
    row(
        // The result is binary, so that the next step can choose its encoding.
        "set_hmac_sha1",
        "$variable secret text",
        Arity::exactly(3),
        "The HMAC-SHA-1 of the text with this secret, as raw bytes; often followed by `set_encode_base64`.",
        |_, line| {
            add_step(line, &[1, 2], |_, inputs| {
                encodings::hmac(encodings::SHA1, &inputs)
            })
        },
    ),
    row(
        "set_hmac_sha256",
        "$variable secret text",
        Arity::exactly(3),
        "The HMAC-SHA-256 of the text with this secret, as raw bytes.",
        |_, line| {
            add_step(line, &[1, 2], |_, inputs| {
                encodings::hmac(encodings::SHA256, &inputs)
            })
        },
    ),
    text_row(
        "set_escape_uri",
        "The text percent-encoded as a component of a URI.",
        |_, line| add_text(line, uri::escape),
    ),
    text_row(
        "set_unescape_uri",
        "The text percent-decoded; `+` becomes a space.",
        |_, line| add_text(line, uri::unescape),
    ),
    text_row(
        // Quoting for other languages.
        "set_quote_sql_str",
        "The text quoted as an SQL string for MySQL.",
        |_, line| add_text(line, quote::sql),
    ),
    text_row(
        "set_quote_pgsql_str",
        "The text quoted as an SQL string for PostgreSQL.",
        |_, line| add_text(line, quote::pgsql),
    ),
    text_row(
        "set_quote_json_str",
        "The text quoted as a JSON string; `null` if it is empty.",
        |_, line| add_text(line, quote::json),
    ),
    row(
        // For defaults: the variable usually comes from an argument of the request.
        "set_if_empty",
        "$variable text",
        Arity::exactly(2),
        "Sets the variable to the text if it is empty.",
        |_, line| {
            add_step(line, &[0, 1], |_, inputs| {
                Ok(inputs
                    .into_iter()
                    .find(|text| !text.is_empty())
                    .unwrap_or_default()
                    .into())
            })
        },
    ),
    row(
        // Base32, with an alphabet of the location's choice.
        "set_encode_base32",
        "$variable [text]",
        Arity::between(1, 2),
        "The text encoded in base32.",
        |_, line| {
            add_last(line, |request, inputs| {
                let conf = request.conf::<Conf>();
                Ok(conf.base32.encode(&inputs[0], conf.base32_padding))
            })
        },
    ),
    row(
        "set_decode_base32",
        "$variable [text]",
        Arity::between(1, 2),
        "The text decoded from base32; empty if it is invalid.",
        |_, line| {
            add_last(line, |request, inputs| {
                Ok(request
                    .conf::<Conf>()
                    .base32
                    .decode(&inputs[0])
                    .unwrap_or_default())
            })
        },
    ),
    Directive {
        name: "set_base32_padding",
        syntax: "on | off",
        default: Some("on"),
        contexts: ANYWHERE,
        since: "0.1",
        doc: "Whether `set_encode_base32` pads its output with `=`.",
        set: Setter::Flag(|c| &mut c.base32_padding),
    },
    Directive {
        // Kept, since older configurations have it.
        name: "set_misc_base32_padding",
        syntax: "on | off",
        default: None,
        contexts: ANYWHERE,
        since: "0.1",
        doc: "The former name of `set_base32_padding`.",
        set: Setter::Custom(Arity::exactly(1), RepeatRule::Once, |c, line| {
            line.warn(
                "the \"set_misc_base32_padding\" directive is deprecated, use the \"set_base32_padding\" directive \
                 instead",
            );
            c.base32_padding = line.flag(0)?;
            Ok(())
        }),
    },
    Directive {
        name: "set_base32_alphabet",
        syntax: "characters",
        default: Some("0123456789abcdefghijklmnopqrstuv"),
        contexts: ANYWHERE,
        since: "0.1",
        doc: "The 32 characters of the base32 alphabet.",
        set: Setter::Custom(Arity::exactly(1), RepeatRule::Once, |c, line| {
            c.base32 = Base32Alphabet::read(line)?;
            Ok(())
        }),
    },
    row(
        // Times, evaluated when the script runs and not again until it runs next.
        "set_local_today",
        "$variable",
        Arity::exactly(1),
        "Today's date in the server's time zone, such as `2026-11-22`.",
        |_, line| {
            add_step(line, &[], |_, _| {
                time::format_now(b"%Y-%m-%d", time::ClockZone::Local)
            })
        },
    ),
    row(
        "set_formatted_gmt_time",
        "$variable format",
        Arity::exactly(2),
        "The current time in GMT, in this `strftime` format.",
        |_, line| {
            add_last(line, |_, inputs| {
                time::format_now(&inputs[0], time::ClockZone::Gmt)
            })
        },
    ),
    row(
        "set_formatted_local_time",
        "$variable format",
        Arity::exactly(2),
        "The current local time, in this `strftime` format.",
        |_, line| {
            add_last(line, |_, inputs| {
                time::format_now(&inputs[0], time::ClockZone::Local)
            })
        },
    ),
    row(
        // Random numbers and texts.
        "set_random",
        "$variable from to",
        Arity::exactly(3),
        "A random number in this range, inclusive. Not cryptographically secure.",
        |_, line| add_step(line, &[1, 2], |_, inputs| random::number(&inputs)),
    ),
    row(
        "set_secure_random_alphanum",
        "$variable length",
        Arity::between(1, 2),
        "A cryptographically secure random string of 1 to 64 letters and digits.",
        |_, line| add_last(line, |_, inputs| random::text(&inputs[0], random::ALPHANUM)),
    ),
    row(
        // For names that must not depend on case, such as host names.
        "set_secure_random_lcalpha",
        "$variable length",
        Arity::between(1, 2),
        "A cryptographically secure random string of lower-case letters.",
        |_, line| add_last(line, |_, inputs| random::text(&inputs[0], random::LCALPHA)),
    ),
    row(
        // The count is kept per location, shared by all event loops.
        "set_rotate",
        "$variable from to",
        Arity::exactly(3),
        "The number after the variable's value, or after the last one produced by this line; wraps from `to` to \
         `from`.",
        |_, line| add_step(line, &[0, 1, 2], random::rotate),
    ),
    Directive {
        // Requests spread over groups.
        name: "set_hashed_upstream",
        syntax: "$variable list key",
        default: None,
        contexts: ANYWHERE,
        since: "0.1",
        doc: "A name from an `upstream_list`, chosen by a hash of the key.",
        set: Setter::Custom(Arity::exactly(3), RepeatRule::Many, hashed_upstream),
    },
    Directive {
        name: "upstream_list",
        syntax: "name upstream ...",
        default: None,
        contexts: HTTP_SERVER,
        since: "0.1",
        doc: "Defines a list of upstream groups for `set_hashed_upstream`.",
        set: Setter::Custom(Arity::at_least(2), RepeatRule::Many, upstream_list),
    },
]);

/// The lists of `upstream_list`.
#[derive(Clone, Debug, Default)]
struct UpstreamLists(Vec<(BString, Arc<[BString]>)>);

/// The settings of a location.
#[derive(Clone, Debug, Default)]
struct Conf {
    base32: Base32Alphabet,
    base32_padding: bool,
    /// The number that `set_rotate` returned last in each location. All blocks and event loops
    /// share the map.
    last: Arc<Mutex<HashMap<LocationId, i64>>>,
}

/// The step of one directive.
struct SetStep<F> {
    variable: VarId,
    /// Evaluated by the script, which knows how captures are escaped there.
    inputs: Vec<Expression>,
    function: F,
}

/// Adds the step of a directive whose function only needs its last argument: the text or, without
/// one, the variable itself.
fn add_text(
    line: &mut DirectiveLine,
    function: fn(&[u8]) -> Result<Vec<u8>, InvalidText>,
) -> Result<(), Diagnostic> {
    let last = line.args().len() - 1;
    add_step_with(line, &[last], move |_, mut inputs| {
        function(&inputs.pop().unwrap_or_default())
    })
}

/// As [`add_text`], for functions that need the request, too.
fn add_last(line: &mut DirectiveLine, function: TextFunction) -> Result<(), Diagnostic> {
    let last = line.args().len() - 1;
    add_step(line, &[last], function)
}

/// Adds the step of a directive: what `function` makes of these words becomes the value of the
/// variable.
fn add_step(
    line: &mut DirectiveLine,
    words: &[usize],
    function: TextFunction,
) -> Result<(), Diagnostic> {
    add_step_with(line, words, function)
}

/// As [`add_step`], for closures.
fn add_step_with<F>(
    line: &mut DirectiveLine,
    words: &[usize],
    function: F,
) -> Result<(), Diagnostic>
where
    F: Fn(&mut Request, Vec<BString>) -> Result<Vec<u8>, InvalidText> + Send + Sync + 'static,
{
    let variable = assigned_variable(line)?;
    let inputs = words.iter().map(|word| line.expression(*word));
    let inputs = inputs.collect::<Result<_, _>>()?;
    let step = SetStep {
        variable,
        inputs,
        function,
    };
    ScriptSteps::add(line, step);
    Ok(())
}

impl<F> ScriptStep for SetStep<F>
where
    F: Fn(&mut Request, Vec<BString>) -> Result<Vec<u8>, InvalidText> + Send + Sync,
{
    fn only_computes(&self) -> bool {
        true
    }

    fn inputs(&self) -> &[Expression] {
        &self.inputs
    }

    fn run(&self, request: &mut Request, inputs: Vec<BString>) -> ScriptProgress {
        let outcome = match (self.function)(request, inputs) {
            Ok(value) => {
                request.set_variable(self.variable, &value);
                HandlerOutcome::Declined
            }
            Err(InvalidText(message)) => {
                request.error(format_args!("{message}"));
                HandlerOutcome::Status(500)
            }
        };
        ScriptProgress::Done(outcome)
    }
}

/// `upstream_list`.
fn upstream_list(_: &mut Conf, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    let name = line.text(0).into();
    let members = line.args()[1..].iter();
    let members = members.map(|word| word.text.clone());
    let members = members.collect();
    let lists = line.shared::<UpstreamLists>();
    if lists.0.iter().any(|list| list.0 == name) {
        return Err(line.error_at(0, format!("duplicate upstream list name \"{name}\"")));
    }
    lists.0.push((name, members));
    Ok(())
}

/// `set_hashed_upstream`. The list must be defined further up, so that a wrong name is found when
/// the configuration is read, unless it contains variables.
fn hashed_upstream(_: &mut Conf, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    let name = line.text(1);
    let lists = line.shared::<UpstreamLists>().clone();
    if Expression::has_variables(name) {
        return add_step_with(line, &[1, 2], move |_, inputs| {
            let name = &inputs[0];
            let list = lists.0.iter().find(|list| list.0 == *name);
            let (_, members) = list.ok_or_else(|| {
                InvalidText::new(format!(
                    "set_hashed_upstream: upstream list \"{name}\" not defined yet"
                ))
            })?;
            Ok(hashed_member(members, &inputs[1]))
        });
    }
    let Some((_, members)) = lists.0.into_iter().find(|list| list.0 == name) else {
        return Err(line.error_at(
            1,
            format!("set_hashed_upstream: upstream list \"{name}\" not defined yet"),
        ));
    };
    add_step_with(line, &[2], move |_, inputs| {
        Ok(hashed_member(&members, &inputs[0]))
    })
}

/// Chooses the member of a list for a key, by nginx's hash function for strings: a key is mapped to
/// the same member as there.
fn hashed_member(members: &[BString], key: &[u8]) -> Vec<u8> {
    let step = |hash: u32, byte: &u8| {
        hash.wrapping_mul(31)
            .wrapping_add(u32::from(byte.to_ascii_lowercase()))
    };
    let hash = key.iter().fold(0_u32, step);
    let at = hash as usize % members.len().max(1);
    members.get(at).cloned().unwrap_or_default().into()
}
