//! `autoindex`: directory listings.
//!
//! ```nginx
//! location /pub/ {
//!     autoindex        on;
//!     autoindex_format json;        # html, xml, json, jsonp
//! }
//! ```
//!
//! It responds where no index file did. Names that begin with a dot are left out, and directories
//! come first. The directory is read in the location's thread pool. The formats are in [`plain_page`]
//! (nginx's page, which scripts parse), [`pretty_page`] (a page for people, with `autoindex_style
//! pretty`) and [`data_formats`].

mod data_formats;
mod escape;
mod plain_page;
mod pretty_page;

use std::cmp::Ordering;
use std::io;
use std::os::unix::ffi::OsStrExt;

use base::ErrnoText;
use bstr::{BStr, BString, ByteSlice};
use conf::{Directive, DirectiveTable, HTTP_SERVER_LOCATION, Setter};
use host::error_log::LogLevel;
use http::response_body::ResponseBody;
use http::{HandlerOutcome, HandlerStep, HttpModule, HttpPhase, Request, files};
use proto::message::Method;
use rt::file::{InodeKind, ListedFile, errno};

use super::charset;

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "autoindex",
    doc: "Generates directory listings.",
    location: &DIRECTIVES,
    phases: &[(HttpPhase::Content, list)],
    enabled: |location| location.confs.get::<Conf>().on,
    explain: http::module::ModuleExplain::Runs(&["autoindex"]),
    ..HttpModule::EMPTY
};

static DIRECTIVES: DirectiveTable<Conf> = DirectiveTable::new(&[
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
            c.format = [
                ListingFormat::Html,
                ListingFormat::Json,
                ListingFormat::Jsonp,
                ListingFormat::Xml,
            ][i];
        }),
    },
    Directive {
        // Weir's own. The default is nginx's page, which scripts parse.
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
        // Weir's own. Off, since the page would offer what the server refuses without
        // `dav_methods`.
        name: "autoindex_upload",
        syntax: "on | off",
        default: Some("off"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Whether visitors can upload files to the directory from the pretty `html` listing, by `PUT`. Requires \
              `dav_methods PUT`.",
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
        // UTC by default, as in nginx: clients can be anywhere.
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
    format: ListingFormat,
    pretty: bool,
    upload: bool,
    exact_size: bool,
    local_time: bool,
}

/// The value of `autoindex_format`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ListingFormat {
    #[default]
    Html,
    Json,
    Jsonp,
    Xml,
}

/// The maximum number of entries in a listing. Nobody reads a longer page, and it is built in
/// memory.
const MAX_ENTRIES: usize = 100_000;

/// The maximum length of the function name in `callback`.
const MAX_CALLBACK: usize = 128;

/// An entry of a listing.
struct ListingEntry {
    name: BString,
    kind: InodeKind,
    /// In bytes; has a meaning for regular files only.
    size: u64,
    /// In seconds since the epoch.
    modified: i64,
}

/// The content handler. Only a URI with a trailing slash means a directory.
fn list(request: &mut Request) -> HandlerStep<'_> {
    if !request.uri.path.ends_with(b"/") || !matches!(request.method, Method::Get | Method::Head) {
        return HandlerOutcome::Declined.into();
    }
    HandlerStep::later(respond_with_listing(request))
}

/// Reads the directory and builds the response.
async fn respond_with_listing(request: &mut Request) -> HandlerOutcome {
    let Some(mut path) = request.file_path() else {
        return HandlerOutcome::Status(500);
    };
    // The root directory is nothing but its slash.
    if path.len() > 1 {
        // Without the trailing slash, as the error log shows it.
        path.pop();
    }
    let conf = request.conf::<Conf>();
    let callback = match conf.format {
        ListingFormat::Jsonp => match callback(request) {
            Ok(callback) => callback,
            // A mistake of the client, unlike everything below.
            Err(()) => return HandlerOutcome::Status(400),
        },
        _ => None,
    };
    // Reading a directory can wait for the disk, and examining its entries even more so.
    let pool = {
        let site = std::rc::Rc::clone(&request.site);
        files::file_pool(request, &site.location(request.location).core.delivery.aio)
    };
    let listed = rt::file::list_directory(files::as_path(&path), MAX_ENTRIES, &pool).await;
    let mut entries = match listed {
        Ok(listed) => visible_entries(request, path.as_bstr(), listed),
        Err(error) => return HandlerOutcome::Status(refuse(request, &path, &error)),
    };
    // The other formats are nginx's to the byte, so their order must be too.
    let natural = conf.pretty && conf.format == ListingFormat::Html;
    entries.sort_by(|a, b| {
        let directories = (a.kind != InodeKind::Directory).cmp(&(b.kind != InodeKind::Directory));
        directories.then_with(|| match natural {
            true => natural_order(&a.name, &b.name),
            false => a.name.cmp(&b.name),
        })
    });
    write(request, &conf, &entries, callback.as_ref())
}

/// Makes the listing the response in the configured format.
fn write(
    request: &mut Request,
    conf: &Conf,
    entries: &[ListingEntry],
    callback: Option<&BString>,
) -> HandlerOutcome {
    let mut out = Vec::new();
    request.out.status = 200;
    let (content_type, charset) = match conf.format {
        ListingFormat::Html if conf.pretty => {
            pretty_page::write(&request.uri.path, entries, conf, &mut out);
            ("text/html", "utf-8")
        }
        ListingFormat::Html => {
            request.out.content_type = "text/html".into();
            // nginx counts characters rather than bytes if the response is announced as UTF-8.
            let utf8 = charset::announced(request).eq_ignore_ascii_case(b"utf-8");
            plain_page::write(&request.uri.path, entries, conf, utf8, &mut out);
            ("text/html", "")
        }
        ListingFormat::Json | ListingFormat::Jsonp => {
            data_formats::write_json(entries, callback, &mut out);
            (
                if callback.is_some() {
                    "application/javascript"
                } else {
                    "application/json"
                },
                "",
            )
        }
        ListingFormat::Xml => {
            data_formats::write_xml(entries, &mut out);
            ("text/xml", "utf-8")
        }
    };
    request.out.content_type = content_type.into();
    request.out.charset = charset.into();
    request.out.body = ResponseBody::bytes(out);
    HandlerOutcome::Respond
}

/// The order that people expect: `file2` before `file10`, `a` next to `A`.
fn natural_order(a: &[u8], b: &[u8]) -> Ordering {
    let (mut left, mut right) = (a, b);
    while let (Some(x), Some(y)) = (left.first(), right.first()) {
        let order = match x.is_ascii_digit() && y.is_ascii_digit() {
            true => take_number(&mut left).cmp(&take_number(&mut right)),
            false => {
                (left, right) = (&left[1..], &right[1..]);
                x.to_ascii_lowercase().cmp(&y.to_ascii_lowercase())
            }
        };
        if order.is_ne() {
            return order;
        }
    }
    // Names that differ only in leading zeros and case are ordered by their bytes, so that the
    // order is total.
    left.len().cmp(&right.len()).then_with(|| a.cmp(b))
}

/// Takes the digits at the beginning: the number of significant ones, and these. Comparing the pair
/// compares the numbers without a limit on their size.
fn take_number<'a>(text: &mut &'a [u8]) -> (usize, &'a [u8]) {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (number, rest) = text.split_at(digits);
    *text = rest;
    let zeros = number.iter().take_while(|byte| **byte == b'0').count();
    (digits - zeros, &number[zeros..])
}

/// The time of an entry, shifted into the time zone to be shown.
fn shown_time(entry: &ListingEntry, conf: &Conf) -> i64 {
    if !conf.local_time {
        return entry.modified;
    }
    let local = rt::local_time(u64::try_from(entry.modified).unwrap_or(0));
    entry.modified + i64::from(local.offset)
}

/// The entries to list: those whose names do not begin with a dot and that could be examined.
fn visible_entries(
    request: &Request,
    directory: &BStr,
    listed: Vec<ListedFile>,
) -> Vec<ListingEntry> {
    let mut entries = Vec::with_capacity(listed.len());
    for ListedFile { name, metadata } in listed {
        let name = BString::from(name.as_os_str().as_bytes());
        if name.starts_with(b".") {
            continue;
        }
        match metadata {
            Ok(metadata) => {
                let (kind, size, modified) = (metadata.kind, metadata.len, metadata.mtime);
                entries.push(ListingEntry {
                    name,
                    kind,
                    size,
                    modified,
                });
            }
            Err(error) => {
                // A file that vanished meanwhile, or a broken link: the others are listed all the
                // same.
                let message =
                    format_args!("stat() \"{directory}/{name}\" failed{}", ErrnoText(&error));
                request.log(LogLevel::Crit, message);
            }
        }
    }
    entries
}

/// Logs why a directory cannot be read; returns the status.
fn refuse(request: &Request, path: &[u8], error: &io::Error) -> u16 {
    let (level, status) = match error.raw_os_error().unwrap_or(errno::IO) {
        errno::NOENT | errno::NOTDIR | errno::NAMETOOLONG => (LogLevel::Error, 404),
        errno::ACCES => (LogLevel::Error, 403),
        _ => (LogLevel::Crit, 500),
    };
    request.log(
        level,
        format_args!(
            "opendir() \"{}\" failed{}",
            path.as_bstr(),
            ErrnoText(error)
        ),
    );
    status
}

/// The function name of a JSONP request. Anything but an identifier would let the client place a
/// script of its own in the response.
fn callback(request: &Request) -> Result<Option<BString>, ()> {
    let Some(name) = proto::form::find(&request.uri.args, b"callback") else {
        return Ok(None);
    };
    let shown = name.as_bstr();
    if name.len() > MAX_CALLBACK {
        request.log(
            LogLevel::Info,
            format_args!("client sent too long callback name: \"{shown}\""),
        );
        return Err(());
    }
    if !name
        .iter()
        .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.'))
    {
        request.log(
            LogLevel::Info,
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
