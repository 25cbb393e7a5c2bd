//! `set_md5`, `set_escape_uri` and their kin: variables that are computed from a text, as the module set-misc has them.
//!
//! ```nginx
//! set_unescape_uri   $name $arg_name;
//! set_quote_json_str $json $name;
//! set_hmac_sha1      $signature $secret "$uri$args";
//! set_encode_base64  $signature;
//! ```
//!
//! They are steps of the script that `set`, `rewrite` and `if` are steps of, in the order of the file. With the name of a
//! variable alone a directive replaces its value. A text that it cannot work on ends the request with 500.

mod base32;
mod codec;
mod quote;
mod random;
mod time;
mod uri;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use ::http::module::{ScriptProgress, ScriptStep, ScriptSteps};
use ::http::site::LocationId;
use ::http::{Module, Outcome, Request};
use bstr::BString;
use conf::{
    Arity, Contexts, Definition, Diagnostic, Directive, Expression, Get, HTTP, HTTP_SERVER, Line,
    Repeat, SERVER_LOCATION_IF, Setter, Table, VarId,
};

use self::base32::Alphabet;

pub(crate) static MODULE: Module = Module {
    name: "set_misc",
    doc: "Sets variables to transformed text: encodings, digests, quoting, random values, times.",
    location: &DIRECTIVES,
    ..Module::EMPTY
};

const ANYWHERE: Contexts = HTTP.or(SERVER_LOCATION_IF);

/// What becomes of the values of a line's texts.
type Function = fn(&mut Request, Vec<BString>) -> Result<Vec<u8>, Unfit>;

/// A text that a directive cannot work on, and what the error log says of it.
#[derive(Debug)]
struct Unfit(String);

impl Unfit {
    fn new(message: impl Into<String>) -> Unfit {
        Unfit(message.into())
    }
}

/// A directive that makes a text of another one, or of what its variable has.
macro_rules! one {
    ($name:literal, $doc:literal, $function:expr) => {
        Directive {
            name: $name,
            syntax: "$variable [text]",
            default: None,
            contexts: ANYWHERE,
            since: "0.1",
            doc: $doc,
            set: Setter::Custom(Arity::between(1, 2), Repeat::Many, |_, line| {
                let last = line.args().len() - 1;
                add(line, &[last], |_, mut inputs| {
                    let function: fn(&[u8]) -> Result<Vec<u8>, Unfit> = $function;
                    function(&inputs.pop().unwrap_or_default())
                })
            }),
        }
    };
}

/// As [`one!`], for what needs the request's settings.
macro_rules! set {
    ($name:literal, $syntax:literal, $arity:expr, $inputs:expr, $doc:literal, $function:expr) => {
        Directive {
            name: $name,
            syntax: $syntax,
            default: None,
            contexts: ANYWHERE,
            since: "0.1",
            doc: $doc,
            set: Setter::Custom($arity, Repeat::Many, |_, line| {
                let inputs: fn(usize) -> &'static [usize] = $inputs;
                add(line, inputs(line.args().len()), $function)
            }),
        }
    };
}

/// The positions of the texts of a line: the last word of one or two.
fn last(words: usize) -> &'static [usize] {
    match words {
        1 => &[0],
        _ => &[1],
    }
}

static DIRECTIVES: Table<Conf> = Table::<Conf>::new(&[
    one!(
        "set_encode_base64",
        "The text encoded in base64.",
        codec::encode_base64
    ),
    one!(
        "set_decode_base64",
        "The text decoded from base64; 500 if it is invalid.",
        codec::decode_base64
    ),
    one!(
        "set_encode_base64url",
        "The text encoded in base64url, without padding.",
        codec::encode_base64url
    ),
    one!(
        "set_decode_base64url",
        "The text decoded from base64url; 500 if it is invalid.",
        codec::decode_base64url
    ),
    one!(
        "set_encode_hex",
        "The text encoded in hexadecimal.",
        codec::encode_hex
    ),
    one!(
        "set_decode_hex",
        "The text decoded from hexadecimal; 500 if it is invalid.",
        codec::decode_hex
    ),
    one!(
        "set_md5",
        "The MD5 digest of the text, in hexadecimal.",
        codec::md5
    ),
    one!(
        "set_sha1",
        "The SHA-1 digest of the text, in hexadecimal.",
        codec::sha1
    ),
    set!(
        "set_hmac_sha1",
        "$variable secret text",
        Arity::exactly(3),
        |_| &[1, 2],
        "The HMAC-SHA-1 of the text with this secret, as raw bytes; often followed by `set_encode_base64`.",
        |_, inputs| codec::hmac(codec::SHA1, &inputs)
    ),
    set!(
        "set_hmac_sha256",
        "$variable secret text",
        Arity::exactly(3),
        |_| &[1, 2],
        "The HMAC-SHA-256 of the text with this secret, as raw bytes.",
        |_, inputs| codec::hmac(codec::SHA256, &inputs)
    ),
    one!(
        "set_escape_uri",
        "The text percent-encoded as a component of a URI.",
        uri::escape
    ),
    one!(
        "set_unescape_uri",
        "The text percent-decoded; `+` becomes a space.",
        uri::unescape
    ),
    one!(
        "set_quote_sql_str",
        "The text quoted as an SQL string for MySQL.",
        quote::sql
    ),
    one!(
        "set_quote_pgsql_str",
        "The text quoted as an SQL string for PostgreSQL.",
        quote::pgsql
    ),
    one!(
        "set_quote_json_str",
        "The text quoted as a JSON string; `null` if it is empty.",
        quote::json
    ),
    set!(
        "set_if_empty",
        "$variable text",
        Arity::exactly(2),
        |_| &[0, 1],
        "Sets the variable to the text if it is empty.",
        |_, inputs| Ok(inputs
            .into_iter()
            .find(|text| !text.is_empty())
            .unwrap_or_default()
            .into())
    ),
    set!(
        "set_encode_base32",
        "$variable [text]",
        Arity::between(1, 2),
        last,
        "The text encoded in base32.",
        |request, inputs| {
            let conf = request.conf::<Conf>();
            Ok(conf.base32.encode(&inputs[0], conf.base32_padding))
        }
    ),
    set!(
        "set_decode_base32",
        "$variable [text]",
        Arity::between(1, 2),
        last,
        "The text decoded from base32; empty if it is invalid.",
        |request, inputs| Ok(request
            .conf::<Conf>()
            .base32
            .decode(&inputs[0])
            .unwrap_or_default())
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
        name: "set_misc_base32_padding",
        syntax: "on | off",
        default: None,
        contexts: ANYWHERE,
        since: "0.1",
        doc: "The former name of `set_base32_padding`.",
        set: Setter::Custom(Arity::exactly(1), Repeat::Once, |c, line| {
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
        set: Setter::Custom(Arity::exactly(1), Repeat::Once, |c, line| {
            c.base32 = Alphabet::read(line)?;
            Ok(())
        }),
    },
    set!(
        "set_local_today",
        "$variable",
        Arity::exactly(1),
        |_| &[],
        "Today's date in the server's time zone, such as `2026-11-22`.",
        |_, _| time::formatted(b"%Y-%m-%d", time::Zone::Local)
    ),
    set!(
        "set_formatted_gmt_time",
        "$variable format",
        Arity::exactly(2),
        last,
        "The current time in GMT, in this `strftime` format.",
        |_, inputs| time::formatted(&inputs[0], time::Zone::Gmt)
    ),
    set!(
        "set_formatted_local_time",
        "$variable format",
        Arity::exactly(2),
        last,
        "The current local time, in this `strftime` format.",
        |_, inputs| time::formatted(&inputs[0], time::Zone::Local)
    ),
    set!(
        "set_random",
        "$variable from to",
        Arity::exactly(3),
        |_| &[1, 2],
        "A random number in this range, inclusive. Not cryptographically secure.",
        |_, inputs| random::number(&inputs)
    ),
    set!(
        "set_secure_random_alphanum",
        "$variable length",
        Arity::between(1, 2),
        last,
        "A cryptographically secure random string of 1 to 64 letters and digits.",
        |_, inputs| random::text(&inputs[0], random::ALPHANUM)
    ),
    set!(
        "set_secure_random_lcalpha",
        "$variable length",
        Arity::between(1, 2),
        last,
        "A cryptographically secure random string of lower-case letters.",
        |_, inputs| random::text(&inputs[0], random::LCALPHA)
    ),
    set!(
        "set_rotate",
        "$variable from to",
        Arity::exactly(3),
        |_| &[0, 1, 2],
        "The number after the variable's value, or after the last one produced by this line; wraps from `to` to \
         `from`.",
        random::rotate
    ),
    Directive {
        name: "set_hashed_upstream",
        syntax: "$variable list key",
        default: None,
        contexts: ANYWHERE,
        since: "0.1",
        doc: "A name from an `upstream_list`, chosen by a hash of the key.",
        set: Setter::Custom(Arity::exactly(3), Repeat::Many, hashed_upstream),
    },
    Directive {
        name: "upstream_list",
        syntax: "name upstream ...",
        default: None,
        contexts: HTTP_SERVER,
        since: "0.1",
        doc: "Defines a list of upstream groups for `set_hashed_upstream`.",
        set: Setter::Custom(Arity::at_least(2), Repeat::Many, upstream_list),
    },
]);

/// The lists of `upstream_list`.
#[derive(Clone, Debug, Default)]
struct Lists(Vec<(BString, Arc<[BString]>)>);

/// What a location says of the directives.
#[derive(Clone, Debug, Default)]
struct Conf {
    base32: Alphabet,
    base32_padding: bool,
    /// The numbers that `set_rotate` gave last, by place. All blocks share them.
    last: Arc<Mutex<HashMap<LocationId, i64>>>,
}

/// One line.
struct Set<F> {
    variable: VarId,
    inputs: Vec<Expression>,
    function: F,
}

/// Adds the step of a line: what its function makes of these words becomes the value of its variable.
fn add(line: &mut Line, words: &[usize], function: Function) -> Result<(), Diagnostic> {
    add_with(line, words, function)
}

fn add_with<F>(line: &mut Line, words: &[usize], function: F) -> Result<(), Diagnostic>
where
    F: Fn(&mut Request, Vec<BString>) -> Result<Vec<u8>, Unfit> + Send + Sync + 'static,
{
    let name = line.variable_name(0)?;
    let registry = line
        .level
        .registry::<Request>()
        .expect("http's rows stand in http");
    let variable = match registry.is_defined(name) {
        true => registry.slot(name),
        false => registry.define(name, Definition::new(Get::Slot)),
    };
    let variable = variable.map_err(|message| line.error_at(0, message))?;
    let inputs = words.iter().map(|word| line.expression(*word));
    let inputs = inputs.collect::<Result<_, _>>()?;
    let step = Set {
        variable,
        inputs,
        function,
    };
    let index = line.index;
    line.shared::<ScriptSteps>().0.push((index, Arc::new(step)));
    Ok(())
}

impl<F> ScriptStep for Set<F>
where
    F: Fn(&mut Request, Vec<BString>) -> Result<Vec<u8>, Unfit> + Send + Sync,
{
    fn inputs(&self) -> &[Expression] {
        &self.inputs
    }

    fn run(&self, request: &mut Request, inputs: Vec<BString>) -> ScriptProgress {
        let outcome = match (self.function)(request, inputs) {
            Ok(value) => {
                request.set_variable(self.variable, &value);
                Outcome::Declined
            }
            Err(Unfit(message)) => {
                request.error(format_args!("{message}"));
                Outcome::Status(500)
            }
        };
        ScriptProgress::Done(outcome)
    }
}

fn upstream_list(_: &mut Conf, line: &mut Line) -> Result<(), Diagnostic> {
    let name = line.text(0).into();
    let members = line.args()[1..].iter();
    let members = members.map(|word| word.text.clone());
    let members = members.collect();
    let lists = line.shared::<Lists>();
    if lists.0.iter().any(|list| list.0 == name) {
        return Err(line.error_at(0, format!("duplicate upstream list name \"{name}\"")));
    }
    lists.0.push((name, members));
    Ok(())
}

fn hashed_upstream(_: &mut Conf, line: &mut Line) -> Result<(), Diagnostic> {
    let name = line.text(1);
    let lists = line.shared::<Lists>().clone();
    if Expression::has_variables(name) {
        return add_with(line, &[1, 2], move |_, inputs| {
            let name = &inputs[0];
            let list = lists.0.iter().find(|list| list.0 == *name);
            let (_, members) = list.ok_or_else(|| {
                Unfit::new(format!(
                    "set_hashed_upstream: upstream list \"{name}\" not defined yet"
                ))
            })?;
            Ok(chosen(members, &inputs[1]))
        });
    }
    let Some((_, members)) = lists.0.into_iter().find(|list| list.0 == name) else {
        return Err(line.error_at(
            1,
            format!("set_hashed_upstream: upstream list \"{name}\" not defined yet"),
        ));
    };
    add_with(line, &[2], move |_, inputs| {
        Ok(chosen(&members, &inputs[0]))
    })
}

/// The member of a list for a key: by nginx's hash of keys, so that a key means the same one there.
fn chosen(members: &[BString], key: &[u8]) -> Vec<u8> {
    let step = |hash: u32, byte: &u8| {
        hash.wrapping_mul(31)
            .wrapping_add(u32::from(byte.to_ascii_lowercase()))
    };
    let hash = key.iter().fold(0_u32, step);
    let at = hash as usize % members.len().max(1);
    members.get(at).cloned().unwrap_or_default().into()
}
