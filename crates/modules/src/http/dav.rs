//! `dav_methods`: files are written, removed, copied and moved by clients (the file part of WebDAV, RFC 4918).
//!
//! ```nginx
//! location /files/ {
//!     root                  /data;
//!     dav_methods           PUT DELETE MKCOL COPY MOVE;
//!     create_full_put_path  on;
//!     dav_access            group:rw all:r;
//! }
//! ```
//!
//! Content goes to a temporary file first, and gets its name when all of it is there: nobody sees half a file, and a
//! broken upload leaves the old one. It is best when `client_body_temp_path` is on the same file system, so that
//! this is one rename. Everything that touches the disk happens on a pool; the steps are in [`crate::shared::file_tree`].
//!
//! There are no locks and no properties. A directory that can be removed in part only is 500, not 207.

use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};

use bstr::{BStr, BString, ByteSlice};
use conf::{Arity, Directive, HTTP_SERVER_LOCATION, Repeat, Setter, Table};
use http::core::location::RootKind;
use http::{Module, Outcome, Phase, Request, Step, body_reader, files};
use proto::Known;
use proto::h1::Method;

use crate::shared::file_access;
use crate::shared::file_tree::{self, Failure, Overwrite, Parents, Placed, Transfer};

pub(crate) static MODULE: Module = Module {
    name: "dav",
    doc: "WebDAV methods that write, delete, copy and move files.",
    location: &DIRECTIVES,
    phases: &[(Phase::Content, serve)],
    enabled: |location| location.confs.get::<Conf>().methods & !OFF != 0,
    ..Module::EMPTY
};

/// The methods in the order of their bits; the last word is none.
const METHODS: [&str; 6] = ["PUT", "DELETE", "MKCOL", "COPY", "MOVE", "off"];
const OFF: u32 = 1 << 5;

static DIRECTIVES: Table<Conf> = Table::<Conf>::new(&[
    Directive {
        name: "dav_methods",
        syntax: "off | PUT | DELETE | MKCOL | COPY | MOVE ...",
        default: Some("off"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "The WebDAV methods to allow.",
        set: Setter::Bits(&METHODS, |c| &mut c.methods),
    },
    Directive {
        name: "create_full_put_path",
        syntax: "on | off",
        default: Some("off"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Whether `PUT` may create missing directories.",
        set: Setter::Flag(|c| &mut c.create_full_put_path),
    },
    Directive {
        name: "min_delete_depth",
        syntax: "number",
        default: Some("0"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "The minimum number of path elements for `DELETE`.",
        set: Setter::Number(|c| &mut c.min_delete_depth, 0, i64::MAX),
    },
    Directive {
        name: "dav_access",
        syntax: "users:permissions ...",
        default: Some("user:rw"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "The permissions of created files and directories, such as `group:rw all:r`.",
        set: Setter::Custom(Arity::between(1, 3), Repeat::Once, |c, line| {
            c.access = file_access::read(line)?;
            Ok(())
        }),
    },
])
.finish_changed(|conf, _, level| {
    level.build.needs().changes_roots |= conf.methods & !OFF != 0;
    Ok(())
});

#[derive(Clone, Debug, Default)]
struct Conf {
    methods: u32,
    create_full_put_path: bool,
    min_delete_depth: i64,
    access: u32,
}

fn serve(request: &mut Request) -> Step<'_> {
    let bit = match request.method {
        Method::Put => 0,
        Method::Delete => 1,
        Method::Mkcol => 2,
        Method::Copy => 3,
        Method::Move => 4,
        _ => return Outcome::Declined.into(),
    };
    if request.conf::<Conf>().methods & (1 << bit) == 0 {
        return Outcome::Declined.into();
    }
    Step::later(async move {
        let done = match request.method {
            Method::Put => put(request).await,
            Method::Delete => delete(request).await,
            Method::Mkcol => make_collection(request).await,
            _ => copy_or_move(request).await,
        };
        match done {
            Ok(201) if request.out.location.is_some() => {
                request.out.status = 201;
                Outcome::Respond
            }
            Ok(status) | Err(status) => Outcome::Status(status),
        }
    })
}

/// The status of an answer, or of a refusal that was logged.
type Done = Result<u16, u16>;

async fn put(request: &mut Request) -> Done {
    if request.uri.path.ends_with(b"/") {
        return refuse(request, 409, "cannot PUT to a collection");
    }
    if request.head.field(b"Content-Range").is_some() {
        return refuse(request, 501, "PUT with range is unsupported");
    }
    let content = body_reader::read_to_file(request).await?;
    let path = file_path(request)?;
    let conf = request.conf::<Conf>();
    let date = request
        .head
        .known(Known::Date)
        .and_then(|date| proto::date::parse(date));
    let modified = date
        .and_then(|date| UNIX_EPOCH.checked_add(Duration::from_secs(u64::try_from(date).ok()?)));
    let parents = if conf.create_full_put_path {
        Parents::Made
    } else {
        Parents::Needed
    };
    let (temporary, access) = (content.path.clone(), conf.access);
    let placed = on_pool(request, move || {
        file_tree::place(&temporary, &path, access, modified, parents)
    })
    .await?;
    content.moved();
    match placed {
        Placed::New => Ok(created(request)),
        Placed::Replaced => Ok(204),
    }
}

async fn delete(request: &mut Request) -> Done {
    if request.body.exists() {
        return refuse(request, 415, "DELETE with body is unsupported");
    }
    let least = request.conf::<Conf>().min_delete_depth;
    let depth = elements(&request.uri.path);
    if depth < least {
        request.error(format_args!("insufficient URI depth:{depth} to DELETE"));
        return Err(409);
    }
    let is_collection = request.uri.path.ends_with(b"/");
    let depth = depth_field(request);
    let path = file_path(request)?;
    let looked = path.clone();
    let found = on_pool(request, move || file_tree::look(&looked, 409)).await?;
    match found.is_dir() {
        true if !is_collection => {
            request.error(format_args!(
                "DELETE \"{}\" failed (21: Is a directory)",
                path.display()
            ));
            return Err(409);
        }
        true if depth.unwrap_or(Depth::Infinity) != Depth::Infinity => {
            return refuse(request, 400, "\"Depth\" header must be infinity");
        }
        false if !matches!(depth.unwrap_or(Depth::Zero), Depth::Zero | Depth::Infinity) => {
            return refuse(request, 400, "\"Depth\" header must be 0 or infinity");
        }
        _ => {}
    }
    on_pool(request, move || file_tree::remove(&path)).await?;
    Ok(204)
}

async fn make_collection(request: &mut Request) -> Done {
    if request.body.exists() {
        return refuse(request, 415, "MKCOL with body is unsupported");
    }
    if !request.uri.path.ends_with(b"/") {
        return refuse(request, 409, "MKCOL can create a collection only");
    }
    let access = rt::file::modes::of_folder(request.conf::<Conf>().access);
    let path = file_path(request)?;
    on_pool(request, move || {
        file_tree::make_directory(&path, access, 409)
    })
    .await?;
    Ok(created(request))
}

async fn copy_or_move(request: &mut Request) -> Done {
    if request.body.exists() {
        return refuse(request, 415, "COPY and MOVE with body are unsupported");
    }
    let target = destination(request)?;
    let is_collection = request.uri.path.ends_with(b"/");
    let moves = request.method == Method::Move;
    match (moves, depth_field(request).unwrap_or(Depth::Infinity)) {
        (_, Depth::Infinity) | (false, Depth::Zero) => {}
        (false, _) => return refuse(request, 400, "\"Depth\" header must be 0 or infinity"),
        (true, _) => return refuse(request, 400, "\"Depth\" header must be infinity"),
    }
    let overwrite = overwrite_field(request)?;
    let from = file_path(request)?;
    let own = std::mem::replace(&mut request.uri.path, target.clone());
    let to = file_path(request);
    request.uri.path = own;
    let transfer = Transfer {
        from: without_double_slashes(from),
        to: without_double_slashes(to?),
        moves,
        is_collection,
        overwrite,
        directory_access: rt::file::modes::of_folder(request.conf::<Conf>().access),
    };
    on_pool(request, move || transfer.run()).await
}

/// Runs something that may wait for a disk. A failure is logged, and its status given.
async fn on_pool<T: Send + 'static>(
    request: &mut Request,
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, u16> {
    let core = request.core();
    let pool = files::pool(request, &core.delivery.aio);
    pool.run(work).await.map_err(|failure| {
        request.log(failure.level, format_args!("{}", failure.message));
        failure.status
    })
}

fn refuse(request: &Request, status: u16, why: &str) -> Done {
    request.error(format_args!("{why}"));
    Err(status)
}

fn file_path(request: &mut Request) -> Result<PathBuf, u16> {
    request
        .file_path()
        .map(|path| files::as_path(&path).to_owned())
        .ok_or(500)
}

/// The answer is about something new: its path is in `Location`.
fn created(request: &mut Request) -> u16 {
    let mut location = Vec::new();
    proto::uri::escape(proto::uri::Escape::Uri, &request.uri.path, &mut location);
    request.out.location = Some(location.into());
    201
}

/// How many elements a path has; a collection's final slash begins none.
fn elements(path: &[u8]) -> i64 {
    let slashes = path.iter().filter(|byte| **byte == b'/').count() as i64;
    if path.ends_with(b"/") {
        slashes - 1
    } else {
        slashes
    }
}

fn without_double_slashes(path: PathBuf) -> PathBuf {
    let mut out = Vec::new();
    for byte in path.into_os_string().into_encoded_bytes() {
        if byte != b'/' || out.last() != Some(&b'/') {
            out.push(byte);
        }
    }
    files::as_path(&out).to_owned()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Depth {
    Zero,
    One,
    Infinity,
    Invalid,
}

/// The `Depth` field (RFC 4918, section 10.2); `None` when there is none.
fn depth_field(request: &Request) -> Option<Depth> {
    let value = request.head.known(Known::Depth)?;
    Some(match value.as_bytes() {
        b"0" => Depth::Zero,
        b"1" => Depth::One,
        b"infinity" => Depth::Infinity,
        _ => {
            request.error(format_args!(
                "client sent invalid \"Depth\" header: \"{value}\""
            ));
            Depth::Invalid
        }
    })
}

/// The `Overwrite` field (RFC 4918, section 10.6).
fn overwrite_field(request: &Request) -> Result<Overwrite, u16> {
    match request.head.known(Known::Overwrite) {
        None => Ok(Overwrite::Allowed),
        Some(value) if value.eq_ignore_ascii_case(b"T") => Ok(Overwrite::Allowed),
        Some(value) if value.eq_ignore_ascii_case(b"F") => Ok(Overwrite::Refused),
        Some(value) => {
            request.error(format_args!(
                "client sent invalid \"Overwrite\" header: \"{value}\""
            ));
            Err(400)
        }
    }
}

/// The path in the `Destination` field (RFC 4918, section 10.3), which must be on this very host.
fn destination(request: &Request) -> Result<BString, u16> {
    let Some(value) = request.head.known(Known::Destination) else {
        request.error(format_args!("client sent no \"Destination\" header"));
        return Err(400);
    };
    let invalid = || {
        request.error(format_args!(
            "client sent invalid \"Destination\" header: \"{value}\""
        ));
        400
    };
    let text = destination_path(request, value)?.ok_or_else(invalid)?;
    let mut path = Vec::new();
    proto::uri::parse_internal(text, &mut path).map_err(|_| invalid())?;
    if request.uri.path.ends_with(b"/") != text.ends_with(b"/") {
        let own = &request.uri.path;
        request.error(format_args!(
            "both URI \"{own}\" and \"Destination\" URI \"{value}\" should be either collections or non-collections"
        ));
        return Err(409);
    }
    match request.core().root.kind {
        RootKind::Alias(length) if path.len() < length => Err(invalid()),
        _ => Ok(path.into()),
    }
}

/// The path of a `Destination`: the whole of it, or what follows scheme and host. `None` when it has neither.
fn destination_path<'a>(request: &Request, value: &'a BStr) -> Result<Option<&'a [u8]>, u16> {
    if value.starts_with(b"/") {
        return Ok(Some(value));
    }
    let host = &request.head.host;
    if host.is_empty() {
        request.error(format_args!("client sent no \"Host\" header"));
        return Err(400);
    }
    let rest = value
        .strip_prefix(request.scheme().as_bytes())
        .and_then(|rest| rest.strip_prefix(b"://"));
    let Some(rest) = rest else { return Ok(None) };
    let Some(at) = rest.find_byte(b'/') else {
        return Ok(None);
    };
    let (authority, path) = rest.split_at(at);
    let named = proto::host::parse(authority).is_ok_and(|parsed| {
        let mut name = Vec::new();
        parsed.write_lowercase(&mut name);
        name == **host
    });
    if !named {
        request.error(format_args!(
            "\"Destination\" URI \"{value}\" is handled by different repository than the source URI"
        ));
        return Err(400);
    }
    Ok(Some(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_counted_without_the_last_slash() {
        assert_eq!(
            [&b"/"[..], b"/a", b"/a/", b"/a/b/c"].map(elements),
            [0, 1, 1, 3]
        );
    }
}
