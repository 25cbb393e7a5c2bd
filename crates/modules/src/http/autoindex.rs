//! `autoindex`: a page that lists a directory.
//!
//! ```nginx
//! location /pub/ {
//!     autoindex        on;
//!     autoindex_format json;        # html, xml, json, jsonp
//! }
//! ```
//!
//! It answers where no index file did. Names that begin with a dot are left out, directories come first. The directory
//! is read in the location's pool. How a listing is written is in [`plain`] (nginx's page, which scripts parse),
//! [`pretty`] (a page for people, by `autoindex_style pretty`) and [`data`].

mod data;
mod escape;
mod plain;
mod pretty;

use std::cmp::Ordering;
use std::io;
use std::os::unix::ffi::OsStrExt;

use bstr::{BStr, BString, ByteSlice};
use conf::{Directive, HTTP_SERVER_LOCATION, Setter, Table};
use http::body::Body;
use http::{Module, Outcome, Phase, Request, Step, files};
use proto::h1::Method;
use rt::error_log::{Errno, Level};
use rt::file::{Kind, Listed, errno};

use super::charset;

pub(crate) static MODULE: Module = Module {
    name: "autoindex",
    doc: "Generates directory listings.",
    location: &DIRECTIVES,
    phases: &[(Phase::Content, list)],
    enabled: |location| location.confs.get::<Conf>().on,
    ..Module::EMPTY
};

static DIRECTIVES: Table<Conf> = Table::new(&[
    Directive {
        name: "autoindex",
        syntax: "on | off",
        default: Some("off"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Enables listings of directories without an index file.",
        set: Setter::Flag(|c| &mut c.on),
    },
    Directive {
        name: "autoindex_format",
        syntax: "html | xml | json | jsonp",
        default: Some("html"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "The format of the listing. With `jsonp`, the argument `callback` names the function; without it the \
              response is plain JSON.",
        set: Setter::Word(&["html", "json", "jsonp", "xml"], |c, i| {
            c.format = [Format::Html, Format::Json, Format::Jsonp, Format::Xml][i];
        }),
    },
    Directive {
        name: "autoindex_style",
        syntax: "plain | pretty",
        default: Some("plain"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "The style of the `html` listing: `plain` is nginx's; `pretty` is a page with readable sizes, sortable \
              columns, a link to the parent directory, and a light and a dark theme. It loads nothing from other \
              servers.",
        set: Setter::Word(&["plain", "pretty"], |c, i| c.pretty = i == 1),
    },
    Directive {
        name: "autoindex_upload",
        syntax: "on | off",
        default: Some("off"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Whether the pretty `html` listing lets its reader choose files to send into the directory, by `PUT`. \
              `dav_methods PUT` is what takes them.",
        set: Setter::Flag(|c| &mut c.upload),
    },
    Directive {
        name: "autoindex_exact_size",
        syntax: "on | off",
        default: Some("on"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Whether the plain `html` listing shows exact sizes in bytes rather than rounded ones (K, M, G).",
        set: Setter::Flag(|c| &mut c.exact_size),
    },
    Directive {
        name: "autoindex_localtime",
        syntax: "on | off",
        default: Some("off"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Whether the `html` listing shows local time rather than UTC.",
        set: Setter::Flag(|c| &mut c.local_time),
    },
]);

#[derive(Clone, Debug, Default)]
struct Conf {
    on: bool,
    format: Format,
    pretty: bool,
    upload: bool,
    exact_size: bool,
    local_time: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Format {
    #[default]
    Html,
    Json,
    Jsonp,
    Xml,
}

/// A directory larger than this is not listed to its end: nobody reads such a page, and it is made in memory.
const MAX_ENTRIES: usize = 100_000;

/// The longest name of a function in `callback`.
const MAX_CALLBACK: usize = 128;

/// A name in a directory.
struct Entry {
    name: BString,
    kind: Kind,
    size: u64,
    /// Seconds since 1970.
    modified: i64,
}

fn list(request: &mut Request) -> Step<'_> {
    if !request.uri.path.ends_with(b"/") || !matches!(request.method, Method::Get | Method::Head) {
        return Outcome::Declined.into();
    }
    Step::later(respond(request))
}

async fn respond(request: &mut Request) -> Outcome {
    let Some(mut path) = request.file_path() else {
        return Outcome::Status(500);
    };
    if path.len() > 1 {
        path.pop();
    }
    let conf = request.conf::<Conf>();
    let callback = match conf.format {
        Format::Jsonp => match callback(request) {
            Ok(callback) => callback,
            Err(()) => return Outcome::Status(400),
        },
        _ => None,
    };
    let pool = {
        let site = std::rc::Rc::clone(&request.site);
        files::pool(request, &site.location(request.location).core.delivery.aio)
    };
    let listed = rt::file::list_directory(files::as_path(&path), MAX_ENTRIES, &pool).await;
    let mut entries = match listed {
        Ok(listed) => visible(request, path.as_bstr(), listed),
        Err(error) => return Outcome::Status(refuse(request, &path, &error)),
    };
    let natural = conf.pretty && conf.format == Format::Html;
    entries.sort_by(|a, b| {
        let directories = (a.kind != Kind::Directory).cmp(&(b.kind != Kind::Directory));
        directories.then_with(|| match natural {
            true => natural_order(&a.name, &b.name),
            false => a.name.cmp(&b.name),
        })
    });
    write(request, &conf, &entries, callback.as_ref())
}

/// Makes the listing the response.
fn write(
    request: &mut Request,
    conf: &Conf,
    entries: &[Entry],
    callback: Option<&BString>,
) -> Outcome {
    let mut out = Vec::new();
    request.out.status = 200;
    let (content_type, charset) = match conf.format {
        Format::Html if conf.pretty => {
            pretty::write(&request.uri.path, entries, conf, &mut out);
            ("text/html", "utf-8")
        }
        Format::Html => {
            request.out.content_type = "text/html".into();
            let utf8 = charset::announced(request).eq_ignore_ascii_case(b"utf-8");
            plain::write(&request.uri.path, entries, conf, utf8, &mut out);
            ("text/html", "")
        }
        Format::Json | Format::Jsonp => {
            data::write_json(entries, callback, &mut out);
            (
                if callback.is_some() {
                    "application/javascript"
                } else {
                    "application/json"
                },
                "",
            )
        }
        Format::Xml => {
            data::write_xml(entries, &mut out);
            ("text/xml", "utf-8")
        }
    };
    request.out.content_type = content_type.into();
    request.out.charset = charset.into();
    request.out.body = Body::bytes(out);
    Outcome::Respond
}

/// The order that people expect: `file2` before `file10`, `a` beside `A`.
fn natural_order(a: &[u8], b: &[u8]) -> Ordering {
    let (mut left, mut right) = (a, b);
    while let (Some(x), Some(y)) = (left.first(), right.first()) {
        let order = match x.is_ascii_digit() && y.is_ascii_digit() {
            true => number(&mut left).cmp(&number(&mut right)),
            false => {
                (left, right) = (&left[1..], &right[1..]);
                x.to_ascii_lowercase().cmp(&y.to_ascii_lowercase())
            }
        };
        if order.is_ne() {
            return order;
        }
    }
    // What is alike but for zeros in front and capitals has the order of its bytes.
    left.len().cmp(&right.len()).then_with(|| a.cmp(b))
}

/// Takes the digits at the beginning: as many as count, and which.
fn number<'a>(text: &mut &'a [u8]) -> (usize, &'a [u8]) {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (number, rest) = text.split_at(digits);
    *text = rest;
    let zeros = number.iter().take_while(|byte| **byte == b'0').count();
    (digits - zeros, &number[zeros..])
}

/// The time of an entry in seconds of the zone that is shown.
fn shown_time(entry: &Entry, conf: &Conf) -> i64 {
    if !conf.local_time {
        return entry.modified;
    }
    let local = rt::error_log::local_time(u64::try_from(entry.modified).unwrap_or(0));
    entry.modified + i64::from(local.offset)
}

/// What is listed: everything whose name does not begin with a dot, and of which something is known.
fn visible(request: &Request, directory: &BStr, listed: Vec<Listed>) -> Vec<Entry> {
    let mut entries = Vec::with_capacity(listed.len());
    for Listed { name, metadata } in listed {
        let name = BString::from(name.as_os_str().as_bytes());
        if name.starts_with(b".") {
            continue;
        }
        match metadata {
            Ok(metadata) => {
                let (kind, size, modified) = (metadata.kind, metadata.len, metadata.mtime);
                entries.push(Entry {
                    name,
                    kind,
                    size,
                    modified,
                });
            }
            Err(error) => {
                let message = format_args!("stat() \"{directory}/{name}\" failed{}", Errno(&error));
                request.log(Level::Crit, message);
            }
        }
    }
    entries
}

fn refuse(request: &Request, path: &[u8], error: &io::Error) -> u16 {
    let (level, status) = match error.raw_os_error().unwrap_or(errno::IO) {
        errno::NOENT | errno::NOTDIR | errno::NAMETOOLONG => (Level::Error, 404),
        errno::ACCES => (Level::Error, 403),
        _ => (Level::Crit, 500),
    };
    request.log(
        level,
        format_args!("opendir() \"{}\" failed{}", path.as_bstr(), Errno(error)),
    );
    status
}

/// The function that a client wants called with the listing. Anything but a name would let it smuggle a script into
/// the answer.
fn callback(request: &Request) -> Result<Option<BString>, ()> {
    let Some(name) = proto::form::find(&request.uri.args, b"callback") else {
        return Ok(None);
    };
    let shown = name.as_bstr();
    if name.len() > MAX_CALLBACK {
        request.log(
            Level::Info,
            format_args!("client sent too long callback name: \"{shown}\""),
        );
        return Err(());
    }
    if !name
        .iter()
        .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.'))
    {
        request.log(
            Level::Info,
            format_args!("client sent invalid callback name: \"{shown}\""),
        );
        return Err(());
    }
    Ok(Some(shown.to_owned()).filter(|name| !name.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_names_count() {
        let sorted = [
            "a", "A1", "a01", "a2", "a10", "a10b", "B", "file1", "file2", "file10", "file010x",
        ];
        for pair in sorted.windows(2) {
            let order = natural_order(pair[0].as_bytes(), pair[1].as_bytes());
            assert_eq!(order, Ordering::Less, "{pair:?}");
        }
        assert_eq!(natural_order(b"a", b"a"), Ordering::Equal);
    }
}
