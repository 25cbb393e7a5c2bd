//! What scripts see: differences of single calls, and changes of lua-nginx-module and of LuaJIT since those of the distribution.

use super::evidence::{any_events, any_pair, is_of_traffic, logged};
use super::{Reason, Rule, Seen};
use crate::case::Act;
use crate::compare::{DifferencePlace, is_told_by_scripts};
use crate::observe::Observation;
use crate::side::client::Event;
use crate::side::reply::Response;
use crate::version::Version;

/// In the order of `docs/compat.md`.
pub(super) const LUA: &[Rule] = &[
    Rule {
        name: "words-of-wrong-arguments",
        text: "The error for an argument of a wrong type names the function that the script called; lua-resty-core's names one inside the \
               module (`ngx_http_lua_ffi_set_resp_status`).",
        reason: Reason::Chance("the names of functions inside the module are no promise"),
        before: None,
        matches: |seen| {
            let (oracle, weir) = (&seen.difference.oracle, &seen.difference.weir);
            let has_name = oracle.contains("_lua_ffi_") || oracle.contains("'ngx_lua_ffi_");
            seen.is("script: ")
                && has_name
                && oracle.contains("cannot convert")
                && weir.contains("error bad argument #")
        },
    },
    Rule {
        name: "statuses-that-are-none",
        text: "`ngx.status` above 999 is a 500, and an error in the log, and content with one below 200 has chunks; nginx sends a status \
               line that no client can read, and content without a frame.",
        reason: Reason::Rfc(
            "RFC 9112, sections 4 and 6.3: a status has three digits, and content an end",
        ),
        before: None,
        matches: |seen| {
            let is_none = |name: &str, value: &str| {
                name == "status"
                    && value
                        .parse::<u64>()
                        .is_ok_and(|status| !(200..=999).contains(&status))
            };
            let is_broken = |a: &Event, _: &Event| matches!(a, Event::Broken(why, _) if why.starts_with("no status line"));
            (is_of_traffic(seen) || seen.is("bytes"))
                && has_script(seen)
                && (logged(seen, is_none) || any_events(seen, is_broken))
        },
    },
    Rule {
        name: "lengths-that-scripts-set",
        text: "A response that is shorter than the `Content-Length` that a script has set ends its connection; nginx leaves the client \
               waiting.",
        reason: Reason::Rfc("RFC 9112, section 8: an incomplete message must be recognisable"),
        before: None,
        matches: |seen| {
            let is_short = |b: &Response| {
                let length = b.field("Content-Length").and_then(|text| text.parse().ok());
                b.cut && length.is_some_and(|length: u64| length > b.body.len() as u64)
            };
            let is_one = |a: &Event, b: &Event| match (a, b) {
                (Event::Silent(_), Event::Response(b)) => is_short(b),
                (Event::Response(a), Event::Response(b)) => a.cut && is_short(b),
                _ => false,
            };
            let classes = ["event silent ", "event kept closed", "log: $"];
            has_script(seen)
                && classes.iter().any(|class| seen.is(class))
                && any_events(seen, is_one)
        },
    },
    Rule {
        name: "content-beyond-its-length",
        text: "Of content that is longer than the `Content-Length` that a script has set, so much is sent as that says; nginx sends all of it.",
        reason: Reason::Safety("one response hidden in another (RFC 9112, section 11.1)"),
        before: None,
        matches: |seen| {
            let sent = [&seen.difference.oracle, &seen.difference.weir]
                .map(|text| text.parse::<u64>().ok());
            let is_more = seen.difference.class == "log: $body_bytes_sent" && sent[0] > sent[1];
            let sets = seen.case.files.iter().any(|file| {
                let text = String::from_utf8_lossy(&file.content.bytes()).into_owned();
                text.contains("ngx.header['Content-Length'] = ")
            });
            let is_one = |a: &Event, b: &Event| matches!((a, b), (Event::Bytes(_), Event::Kept));
            has_script(seen)
                && sets
                && (seen.is("event bytes kept") || is_more)
                && any_events(seen, is_one)
        },
    },
    Rule {
        name: "line-ends-in-arguments",
        text: "A line feed in the arguments of `ngx.exec` is escaped; lua-nginx-module passes it on.",
        reason: Reason::Safety("a request line that a client can end (RFC 9112, section 11.2)"),
        before: None,
        matches: |seen| {
            let oracle = seen
                .difference
                .oracle
                .replace("\\x0A", "%0A")
                .replace("\\x0D", "%0D");
            has_script(seen)
                && (seen.is("log: $args") || seen.is("behind: first line"))
                && oracle != seen.difference.oracle
                && oracle == seen.difference.weir
        },
    },
    Rule {
        name: "order-of-silent-connections",
        text: "When a connection on which a script says nothing ends, and so which of several the server behind gets first.",
        reason: Reason::Chance("the collection of garbage decides"),
        before: None,
        matches: |seen| {
            let DifferencePlace::Behind(number, _) = seen.difference.place else {
                return false;
            };
            let sorted = |side: &Observation| {
                let all = side.received.get(number).into_iter().flatten();
                let head = |head: &[u8]| {
                    let text = String::from_utf8_lossy(head).into_owned();
                    text.replace("Connection: close\r\n", "")
                };
                let mut all: Vec<_> = all.map(|one| (head(&one.head), one.body.clone())).collect();
                all.sort();
                all
            };
            let is_silent = |side: &Observation| {
                let mut all = side.received.get(number).into_iter().flatten();
                all.any(|one| one.cut)
            };
            has_script(seen)
                && seen
                    .sides
                    .is_some_and(|[a, b]| sorted(a) == sorted(b) && is_silent(a) && is_silent(b))
        },
    },
    Rule {
        name: "addresses-of-objects",
        text: "The address in the text of a table or function.",
        reason: Reason::Chance("it is a place in memory"),
        before: None,
        matches: |seen| {
            let (oracle, weir) = (&seen.difference.oracle, &seen.difference.weir);
            let of_text = [
                "md5",
                "sha1",
                "crc32",
                "hmac",
                "base64",
                "escape_uri",
                "ngx.re.",
                "#",
            ];
            let of_object = ["(print", "({", ", print", ", {", "= print"];
            // What is made of the text of one.
            let is_made = of_text
                .iter()
                .any(|word| seen.difference.class.contains(word))
                && of_object.iter().any(|word| oracle.contains(word));
            (seen.is("script: ") || seen.is("field ") || seen.is("log: $sent_http_"))
                && (is_made
                    || (oracle.contains("0x")
                        && without_addresses(oracle) == without_addresses(weir)))
        },
    },
    Rule {
        name: "paths-of-modules",
        text: "The files that `require` looked for, in its error.",
        reason: Reason::Chance("they depend on the installation"),
        before: None,
        matches: |seen| {
            let both = [&seen.difference.oracle, &seen.difference.weir];
            seen.is("script: require") && both.iter().all(|text| text.contains(" not found:~"))
        },
    },
    Rule {
        name: "coroutines-of-functions",
        text: "`coroutine.create` and `coroutine.wrap` take any function; lua-nginx-module refuses those that are not written in Lua, with \
               other words.",
        reason: Reason::Chance("which functions of the API are written in Lua is no promise"),
        before: None,
        matches: |seen| {
            let oracle = &seen.difference.oracle;
            seen.is("script: ")
                && oracle.contains("coroutine.")
                && oracle.contains("(Lua function expected)")
        },
    },
    Rule {
        name: "ends-of-pooled-connections",
        text: "Whether the other side has closed a connection by the time a script puts it into the pool.",
        reason: Reason::Chance("it depends on which comes first"),
        before: None,
        matches: |seen| {
            let closes = seen.case.upstreams.iter().any(|upstream| {
                let mut acts = upstream.answers.iter().flatten();
                acts.any(|act| *act == Act::Close)
            });
            let both = [&seen.difference.oracle, &seen.difference.weir];
            let is_told = |text: &&String| {
                text.contains("\"closed\"")
                    || text.contains("unread data")
                    || text.contains("4=\"{1=1}\"")
            };
            seen.is("script: text") && closes && both.iter().all(is_told)
        },
    },
    Rule {
        name: "longer-bodies-of-filters",
        text: "What `body_filter_by_lua` adds to a body arrives; with nginx a body ends at the length of the original one.",
        reason: Reason::Safety("one response hidden in another (RFC 9112, section 11.1)"),
        before: None,
        matches: |seen| {
            seen.is("body")
                && seen.has("body_filter_by_lua_file")
                && any_pair(seen, |a, b| {
                    let own =
                        a.field("Content-Length").is_some() && b.field("Content-Length").is_none();
                    own && a.status == b.status && b.body.starts_with(&a.body)
                })
        },
    },
    Rule {
        name: "lengths-of-what-scripts-say",
        text: "The length of what a script said, where that differs.",
        reason: Reason::Chance("it follows from the text"),
        before: None,
        matches: |seen| {
            let classes = [
                "field Content-Length",
                "field Transfer-Encoding missing",
                "framing Chunked Length",
                "log: $body_bytes_sent",
                "log: $sent_http_content_length",
                "log: $sent_http_transfer_encoding",
            ];
            classes.iter().any(|class| seen.is(class))
                && any_pair(seen, |a, b| {
                    a.status == b.status && a.body != b.body && is_told_by_scripts(a, b)
                })
        },
    },
];

/// What the distribution's lua-nginx-module 0.10.23 and LuaJIT have otherwise.
pub(super) const LUA_CHANGES: &[Rule] = &[
    Rule {
        name: "lua-5.2",
        text: "`coroutine.running` also returns whether it is the main coroutine.",
        reason: Reason::Changed("OpenResty's LuaJIT has these additions of Lua 5.2"),
        before: Some(Version(1, 23, 0)),
        matches: |seen| seen.is("script: coroutine.running"),
    },
    Rule {
        name: "errors-of-pcre2",
        text: "Errors of patterns are those of PCRE2.",
        reason: Reason::Changed("PCRE"),
        before: Some(Version(1, 23, 0)),
        matches: |seen| {
            let both = [&seen.difference.oracle, &seen.difference.weir];
            let is_error = |text: &&String| text.contains("pcre") && text.contains("() failed");
            // Behind a text with a line break they are not told apart call by call.
            let is_error_of = |line: &str| line.contains("pcre") && line.contains("() failed");
            let is_text = |a: &Response, b: &Response| {
                let [a, b] = [a, b].map(|one| String::from_utf8_lossy(&one.body).into_owned());
                let lines = |text: &str| text.matches('\n').count();
                let mut pairs = a.split('\n').zip(b.split('\n'));
                a != b
                    && lines(&a) == lines(&b)
                    && pairs.all(|(a, b)| a == b || is_error_of(a) && is_error_of(b))
            };
            let follows = ["body", "log: $body_bytes_sent", "field Content-Length"];
            let is_followed = follows.iter().any(|class| seen.is(class)) && any_pair(seen, is_text);
            (seen.is("script: ngx.re.") && both.iter().all(is_error)) || is_followed
        },
    },
    Rule {
        name: "numbers-for-receive",
        text: "A negative number for `receive` is a `bad number argument`.",
        reason: Reason::Changed("a bad pattern"),
        before: Some(Version(1, 23, 0)),
        matches: |seen| {
            // Of long values the same may be shown.
            const OLD: &str = "(bad pattern argument)";
            let oracle = &seen.difference.oracle;
            oracle.contains(OLD)
                && oracle.replace(OLD, "(bad number argument)") == seen.difference.weir
        },
    },
    Rule {
        name: "lists-of-request-headers",
        text: "Several values that a script gives a request header are one value in variables.",
        reason: Reason::Changed("the first one was the value"),
        before: Some(Version(1, 23, 0)),
        matches: |seen| {
            let has_list = |text: &str| text.contains("set_header(") && text.contains(", {1,2})");
            seen.is("script: ") && has_list(&seen.difference.oracle)
        },
    },
];

fn without_addresses(text: &str) -> String {
    let mut parts = text.split("0x");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        out.push_str(part.trim_start_matches(|c: char| c.is_ascii_hexdigit()));
    }
    out
}

/// True when the case has a script.
fn has_script(seen: &Seen<'_>) -> bool {
    seen.facts
        .directives()
        .iter()
        .any(|name| name.contains("_by_lua"))
}
