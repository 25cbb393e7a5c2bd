//! `valid_referers` and `$invalid_referer`: which pages can link here.
//!
//! ```nginx
//! location /pictures/ {
//!     valid_referers none blocked server_names *.example.com example.* www.example.org/gallery/ ~\.images\.;
//!     if ($invalid_referer) { return 403; }
//! }
//! ```
//!
//! The module only provides the variable. A client can send any `Referer` it likes, so this keeps
//! out browsers that follow links on other sites, and nothing else.

use std::collections::HashMap;

use bstr::{BStr, BString, ByteSlice};
use conf::{
    Arity, Diagnostic, Directive, DirectiveLine, DirectiveTable, PatternFilter, Regex, RepeatRule,
    SERVER_LOCATION, Setter, Variable,
};
use http::route::ServerName;
use http::{HttpModule, Request};
use proto::KnownField;

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "referer",
    doc: "Detects requests with an unwanted `Referer`.",
    location: &DIRECTIVES,
    variables: &[Variable::new(
        "invalid_referer",
        invalid_referer,
        "Empty if the `Referer` header is one of `valid_referers`, otherwise `1`.",
    )],
    ..HttpModule::EMPTY
};

static DIRECTIVES: DirectiveTable<Conf> = DirectiveTable::<Conf>::new(&[
    Directive {
        name: "valid_referers",
        syntax: "none | blocked | server_names | name | ~regex ...",
        default: None,
        contexts: SERVER_LOCATION,
        since: "0.1",
        doc: "The `Referer` values for which `$invalid_referer` is empty. `none`: there is no such header. `blocked`: \
              it starts with neither `http://` nor `https://`, because a proxy or firewall removed its value. \
              `server_names`: one of the names of the server. Otherwise a host name, with an optional leading or \
              trailing `*` and an optional path prefix, or `~` and a regular expression for the text after the scheme.",
        set: Setter::Custom(Arity::at_least(1), RepeatRule::Fresh(|conf| *conf = Conf::default()), valid_referers),
    },
    Directive {
        name: "referer_hash_max_size",
        syntax: "size",
        default: None,
        contexts: SERVER_LOCATION,
        since: "0.1",
        doc: "Accepted; has no effect.",
        set: Setter::Ignored(Arity::ONE, "Weir's tables size themselves"),
    },
    Directive {
        name: "referer_hash_bucket_size",
        syntax: "size",
        default: None,
        contexts: SERVER_LOCATION,
        since: "0.1",
        doc: "Accepted; has no effect.",
        set: Setter::Ignored(Arity::ONE, "Weir's tables size themselves"),
    },
])
.finish_changed(|conf, _, _| match (conf.none || conf.blocked) && conf.is_empty() {
    false => {
        conf.filter = PatternFilter::new(conf.regexes.iter());
        Ok(())
    }
    true => Err(Diagnostic::error(
        "the \"none\" or \"blocked\" referers are specified in the \"valid_referers\" directive without any valid referer",
        None,
    )),
});

/// The valid referers of a location.
#[derive(Clone, Debug, Default)]
struct Conf {
    /// `none`: a request without a `Referer` is valid.
    none: bool,
    /// `blocked`: so is a value without a scheme, which is what firewalls leave of one.
    blocked: bool,
    /// `server_names`: so are the names of the server itself.
    server_names: bool,
    /// Names with and without wildcards.
    names: RefererNames,
    /// Regular expressions, in the order of the configuration.
    regexes: Vec<Regex>,
    /// Which of `regexes` can match at all.
    filter: PatternFilter,
}

impl Conf {
    /// Whether no referer could be valid. Then the variable is empty, as without the directive.
    fn is_empty(&self) -> bool {
        !self.server_names && self.names.is_empty() && self.regexes.is_empty()
    }
}

/// Reads `valid_referers`.
fn valid_referers(conf: &mut Conf, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    for index in 0..line.args().len() {
        let text = line.text(index);
        match text.as_bytes() {
            b"" => return Err(line.error_at(index, "invalid referer \"\"")),
            b"none" => conf.none = true,
            b"blocked" => conf.blocked = true,
            b"server_names" => conf.server_names = true,
            b"~" => return Err(line.error_at(index, "empty regex in \"~\"")),
            [b'~', pattern @ ..] => conf.regexes.push(line.regex(index, pattern, true)?),
            _ => conf
                .names
                .add(text)
                .map_err(|message| line.error_at(index, message))?,
        }
    }
    Ok(())
}

/// Host names in lower case, each with the required prefix of the path; empty if any path is valid.
#[derive(Clone, Debug, Default)]
struct RefererNames {
    /// Names without a wildcard.
    exact: HashMap<BString, BString>,
    /// `*.example.com`, by `.example.com`.
    leading_wildcards: HashMap<BString, BString>,
    /// `www.example.*`, by `www.example.`.
    trailing_wildcards: HashMap<BString, BString>,
}

impl RefererNames {
    /// Whether the list has no names at all.
    fn is_empty(&self) -> bool {
        self.exact.is_empty()
            && self.leading_wildcards.is_empty()
            && self.trailing_wildcards.is_empty()
    }

    /// Adds a name. `.example.com` stands for the name itself and all names below it.
    fn add(&mut self, text: &BStr) -> Result<(), String> {
        let (name, path) = text.split_at(text.find_byte(b'/').unwrap_or(text.len()));
        let name: BString = name.to_ascii_lowercase().into();
        let stars = name.iter().filter(|byte| **byte == b'*').count();
        let body = name
            .strip_prefix(b"*.")
            .or(name.strip_suffix(b".*"))
            .or(name.strip_prefix(b"."))
            .unwrap_or(&name);
        if body.is_empty() || stars > 1 || body.contains(&b'*') || name.contains_str("..") {
            return Err(format!("invalid hostname or wildcard \"{name}\""));
        }
        let former = if name.starts_with(b"*") {
            self.leading_wildcards.insert(name[1..].into(), path.into())
        } else if name.ends_with(b"*") {
            self.trailing_wildcards
                .insert(name[..name.len() - 1].into(), path.into())
        } else if name.starts_with(b".") {
            let itself = self.exact.insert(body.into(), path.into());
            self.leading_wildcards
                .insert(name.clone(), path.into())
                .or(itself)
        } else {
            self.exact.insert(name.clone(), path.into())
        };
        match former {
            Some(_) => Err(format!("conflicting parameter \"{name}\"")),
            None => Ok(()),
        }
    }

    /// The required prefix of the path; `None` if the host is not in the list.
    fn find(&self, host: &BStr) -> Option<&BString> {
        // The longest match wins: the first dot leaves the longest suffix, the last one the longest
        // prefix.
        let front = || {
            host.find_iter(b".")
                .filter(|at| *at > 0)
                .find_map(|at| self.leading_wildcards.get(host[at..].as_bstr()))
        };
        let end = || {
            let dots = host.rfind_iter(b".").filter(|at| at + 1 < host.len());
            dots.into_iter()
                .find_map(|at| self.trailing_wildcards.get(host[..=at].as_bstr()))
        };
        self.exact.get(host).or_else(front).or_else(end)
    }
}

/// The longest host name that is considered, in bytes; nginx's limit.
const MAX_HOST: usize = 256;
/// A shorter value is not considered a URL: the length of `http://i.ru`, as in nginx.
const MIN_URL: usize = 11;

/// `$invalid_referer`.
fn invalid_referer(request: &mut Request, out: &mut Vec<u8>) -> bool {
    if !is_valid(request) {
        out.push(b'1');
    }
    true
}

/// Whether the request's referer is valid.
fn is_valid(request: &mut Request) -> bool {
    let conf = request.conf::<Conf>();
    if conf.is_empty() {
        return true;
    }
    let Some(referer) = request.head.known(KnownField::Referer) else {
        return conf.none;
    };
    let Some(rest) = without_scheme(referer) else {
        return conf.blocked;
    };
    // The port does not count.
    let host_length = rest.find_byteset(b"/:").unwrap_or(rest.len());
    if host_length > MAX_HOST {
        return false;
    }
    let host: BString = rest[..host_length].to_ascii_lowercase().into();
    if let Some(path) = conf.names.find(host.as_bstr()) {
        let there = rest.find_byte(b'/').map_or(&b""[..], |at| &rest[at..]);
        return there.starts_with(path);
    }
    if conf.server_names {
        let names = &request.site.server(request.server).core.names;
        if names.iter().any(|name| is_name(name, host.as_bstr())) {
            return true;
        }
    }
    // Last, since they cost most.
    let candidates = conf.filter.candidates(rest);
    let mut regexes = candidates.filter_map(|place| conf.regexes.get(place));
    regexes.any(|regex| regex.is_match(rest))
}

/// What follows the scheme; `None` if there is none, as with values that a proxy has blanked out.
fn without_scheme(referer: &BStr) -> Option<&BStr> {
    if referer.len() < MIN_URL {
        return None;
    }
    [&b"http://"[..], b"https://"].iter().find_map(|scheme| {
        let (start, rest) = referer.split_at_checked(scheme.len())?;
        start.eq_ignore_ascii_case(scheme).then_some(rest.as_bstr())
    })
}

/// Whether a server name matches a host.
fn is_name(name: &ServerName, host: &BStr) -> bool {
    match name {
        ServerName::Exact(text) => text == host,
        ServerName::Front(rest) => host.len() > rest.len() && host.ends_with(rest),
        ServerName::Below(rest) => host.ends_with(rest) || *host == rest[1..],
        ServerName::End(start) => host.len() > start.len() && host.starts_with(start),
        ServerName::Regex(pattern) => pattern.regex.is_match(host),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(texts: &[&str]) -> RefererNames {
        let mut names = RefererNames::default();
        for text in texts {
            names.add(BStr::new(text)).expect("a valid name");
        }
        names
    }

    #[test]
    fn names_and_wildcards() {
        let names = names(&[
            "www.example.org/uri",
            "*.example.com",
            "www.example.*",
            "example.*",
            ".below.net",
        ]);
        let find = |host: &str| names.find(host.into()).map(ToString::to_string);
        assert_eq!(find("www.example.org").as_deref(), Some("/uri"));
        for host in [
            "a.example.com",
            "a.b.example.com",
            "www.example.net",
            "example.net",
            "below.net",
            "x.below.net",
        ] {
            assert_eq!(find(host).as_deref(), Some(""), "{host}");
        }
        for host in ["example", "other.org", "", "notbelow.net"] {
            assert_eq!(find(host), None, "{host}");
        }
    }

    #[test]
    fn bad_names_are_refused() {
        for text in [
            "*",
            ".",
            "*.",
            "*example.com",
            "a.*.com",
            "example*",
            "a..b",
            "*.a.*",
        ] {
            assert!(
                RefererNames::default().add(BStr::new(text)).is_err(),
                "{text}"
            );
        }
        let mut twice = names(&["example.com"]);
        assert!(twice.add("example.com/x".into()).is_err());
    }

    #[test]
    fn a_scheme_is_needed() {
        assert_eq!(without_scheme("HTTP://i.ru".into()), Some("i.ru".into()));
        assert_eq!(
            without_scheme("https://example.org/".into()),
            Some("example.org/".into())
        );
        assert_eq!(without_scheme("http://su".into()), None);
        assert_eq!(without_scheme("example.org/long/enough".into()), None);
    }
}
