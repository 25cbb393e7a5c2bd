//! `dav_methods`: lets clients write, delete, copy and move files (the file part of WebDAV, RFC
//! 4918).
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
//! An upload goes to a temporary file and gets its name when it is complete: nobody sees half a
//! file, and a broken upload leaves the old one in place. `client_body_temp_path` should be on the
//! same file system, so that this is a single rename. Everything that touches the disk happens on a
//! thread pool; the steps are in [`crate::shared::file_tree`].
//!
//! There are no locks and no properties. A directory that can only be deleted in part is 500, not
//! 207.
//!
//! Differences from nginx: `PUT` to a path without its parent is 409, not 500 (RFC 4918, section
//! 9.7.1), and `DELETE` of a symbolic link with a trailing slash removes the link, not its target.

use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};

use bstr::{BStr, BString, ByteSlice};
use conf::{Arity, Directive, DirectiveTable, HTTP_SERVER_LOCATION, RepeatRule, Setter};
use http::core::RootKind;
use http::module::ExplainNotes;
use http::{HandlerOutcome, HandlerStep, HttpModule, HttpPhase, Request, body_reader, files};
use proto::KnownField;
use proto::message::Method;

use crate::shared::file_permissions;
use crate::shared::file_tree::{
    self, FileTreeError, OverwritePolicy, ParentDirectories, PlaceOutcome, TreeTransfer,
};

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "dav",
    doc: "WebDAV methods that write, delete, copy and move files.",
    location: &DIRECTIVES,
    phases: &[(HttpPhase::Content, serve)],
    enabled: |location| location.confs.get::<Conf>().methods & !OFF != 0,
    explain: http::module::ModuleExplain::Described(describe),
    ..HttpModule::EMPTY
};

/// The methods in the order of their bits; the last word is not one.
const METHODS: [&str; 6] = ["PUT", "DELETE", "MKCOL", "COPY", "MOVE", "off"];
const OFF: u32 = 1 << 5;

static DIRECTIVES: DirectiveTable<Conf> = DirectiveTable::<Conf>::new(&[
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
        set: Setter::Custom(Arity::between(1, 3), RepeatRule::Once, |c, line| {
            c.access = file_permissions::parse_permissions(line)?;
            Ok(())
        }),
    },
])
.finish_changed(|conf, _, level| {
    level.build.needs().changes_roots |= conf.methods & !OFF != 0;
    Ok(())
});

/// What clients may do in a location.
#[derive(Clone, Debug, Default)]
struct Conf {
    methods: u32,
    create_full_put_path: bool,
    min_delete_depth: i64,
    access: u32,
}

/// The content handler. Methods that are not enabled are left to other handlers, which refuse them.
fn serve(request: &mut Request) -> HandlerStep<'_> {
    if !is_served(request) {
        return HandlerOutcome::Declined.into();
    }
    HandlerStep::later(async move {
        let done = match request.method {
            Method::Put => put(request).await,
            Method::Delete => delete(request).await,
            Method::Mkcol => make_collection(request).await,
            _ => copy_or_move(request).await,
        };
        match done {
            Ok(201) if request.out.location.is_some() => {
                request.out.status = 201;
                HandlerOutcome::Respond
            }
            Ok(status) | Err(status) => HandlerOutcome::Status(status),
        }
    })
}

/// Whether the method is one of `dav_methods`.
fn is_served(request: &Request) -> bool {
    let bit = match request.method {
        Method::Put => 0,
        Method::Delete => 1,
        Method::Mkcol => 2,
        Method::Copy => 3,
        Method::Move => 4,
        // `GET` is for the static files, and other methods are refused there.
        _ => return false,
    };
    request.conf::<Conf>().methods & (1 << bit) != 0
}

/// For `weir explain`: nothing is changed on the disk, and whether a change would succeed is not known without it: the
/// explanation ends here. Methods that are not served decline, as in the handler.
fn describe<'a>(
    request: &'a mut Request,
    _: HttpPhase,
    notes: &'a mut ExplainNotes,
) -> HandlerStep<'a> {
    if !is_served(request) {
        return HandlerOutcome::Declined.into();
    }
    let tree = std::rc::Rc::clone(&notes.tree);
    for line in tree.lines(request.location, &["dav_methods"]) {
        notes.not_run("dav", &line);
    }
    // Not a status: 201, 204 and 409 depend on what a change would meet.
    notes.ends_elsewhere();
    HandlerOutcome::Ok.into()
}

/// The status of a response, or of a refusal that has been logged.
type DavResult = Result<u16, u16>;

/// `PUT`.
async fn put(request: &mut Request) -> DavResult {
    if request.uri.path.ends_with(b"/") {
        return refuse(request, 409, "cannot PUT to a collection");
    }
    // RFC 9110, section 14.5: storing a part as if it were the whole would destroy the file.
    if request.head.field(b"Content-Range").is_some() {
        return refuse(request, 501, "PUT with range is unsupported");
    }
    // After the checks: a refused upload is not received first.
    let content = body_reader::read_to_file(request).await?;
    let path = file_path(request)?;
    let conf = request.conf::<Conf>();
    // As in nginx, the client can set the modification time with `Date`.
    let date = request
        .head
        .known(KnownField::Date)
        .and_then(|date| proto::date::parse(date));
    let modified = date
        .and_then(|date| UNIX_EPOCH.checked_add(Duration::from_secs(u64::try_from(date).ok()?)));
    let parents = if conf.create_full_put_path {
        ParentDirectories::Create
    } else {
        ParentDirectories::MustExist
    };
    let (temporary, access) = (content.path.clone(), conf.access);
    let placed = on_pool(request, move || {
        // A missing parent is 409 (RFC 4918, section 9.7.1), where nginx says 500.
        file_tree::install_file(&temporary, &path, access, modified, parents)
    })
    .await?;
    // The temporary file has become the target, so it must not be removed.
    content.mark_moved();
    match placed {
        PlaceOutcome::New => Ok(created(request)),
        PlaceOutcome::Replaced => Ok(204),
    }
}

/// `DELETE`.
async fn delete(request: &mut Request) -> DavResult {
    // RFC 4918, section 8.4: a body that is not understood must be refused with 415, since ignoring it could mean
    // doing something else than the client wants.
    if request.body.exists() {
        return refuse(request, 415, "DELETE with body is unsupported");
    }
    let least = request.conf::<Conf>().min_delete_depth;
    let depth = count_elements(&request.uri.path);
    // A safety net of the administrator against deleting whole trees near the root.
    if depth < least {
        request.error(format_args!("insufficient URI depth:{depth} to DELETE"));
        return Err(409);
    }
    // WebDAV calls directories collections.
    let is_collection = request.uri.path.ends_with(b"/");
    let depth = depth_field(request);
    let path = file_path(request)?;
    // The closure runs on another thread and needs a path of its own.
    let looked = path.clone();
    let found = on_pool(request, move || file_tree::lstat(&looked, 409)).await?;
    match found.is_dir() {
        // A directory is only deleted by its URI with a slash: without it the client means a file.
        true if !is_collection => {
            request.error(format_args!(
                "DELETE \"{}\" failed (21: Is a directory)",
                path.display()
            ));
            return Err(409);
        }
        // RFC 4918, section 9.6.1: deleting a collection always means all of it.
        true if depth.unwrap_or(DepthHeader::Infinity) != DepthHeader::Infinity => {
            return refuse(request, 400, "\"Depth\" header must be infinity");
        }
        false
            if !matches!(
                depth.unwrap_or(DepthHeader::Zero),
                DepthHeader::Zero | DepthHeader::Infinity
            ) =>
        {
            return refuse(request, 400, "\"Depth\" header must be 0 or infinity");
        }
        _ => {}
    }
    on_pool(request, move || file_tree::remove(&path)).await?;
    Ok(204)
}

/// `MKCOL`.
async fn make_collection(request: &mut Request) -> DavResult {
    if request.body.exists() {
        // RFC 4918, section 9.3.1.
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

/// `COPY` and `MOVE`.
async fn copy_or_move(request: &mut Request) -> DavResult {
    if request.body.exists() {
        return refuse(request, 415, "COPY and MOVE with body are unsupported");
    }
    // All headers are checked before the disk is touched.
    let target = destination(request)?;
    let is_collection = request.uri.path.ends_with(b"/");
    let moves = request.method == Method::Move;
    match (moves, depth_field(request).unwrap_or(DepthHeader::Infinity)) {
        // RFC 4918, sections 9.8.3 and 9.9.2.
        (_, DepthHeader::Infinity) | (false, DepthHeader::Zero) => {}
        (false, _) => return refuse(request, 400, "\"Depth\" header must be 0 or infinity"),
        (true, _) => return refuse(request, 400, "\"Depth\" header must be infinity"),
    }
    let overwrite = overwrite_field(request)?;
    let from = file_path(request)?;
    // The target's path is found by the same rules, `root` or `alias`, as the request's own.
    let own = std::mem::replace(&mut request.uri.path, target.clone());
    let to = file_path(request);
    // Also on failure: the error page and the log need the request's own path.
    request.uri.path = own;
    let transfer = TreeTransfer {
        from: without_double_slashes(from),
        to: without_double_slashes(to?),
        is_move: moves,
        is_collection,
        overwrite,
        directory_access: rt::file::modes::of_folder(request.conf::<Conf>().access),
    };
    on_pool(request, move || transfer.run()).await
}

/// Runs something that may block on a disk. A failure is logged, and its status returned.
async fn on_pool<T: Send + 'static>(
    request: &mut Request,
    work: impl FnOnce() -> Result<T, FileTreeError> + Send + 'static,
) -> Result<T, u16> {
    let core = request.core();
    let pool = files::file_pool(request, &core.delivery.aio);
    pool.run(work).await.map_err(|failure| {
        request.log(failure.level, format_args!("{}", failure.message));
        failure.status
    })
}

/// Logs a refusal and returns its status.
fn refuse(request: &Request, status: u16, why: &str) -> DavResult {
    request.error(format_args!("{why}"));
    Err(status)
}

/// The file that the URI means.
fn file_path(request: &mut Request) -> Result<PathBuf, u16> {
    request
        .file_path()
        .map(|path| files::as_path(&path).to_owned())
        .ok_or(500)
}

/// A new resource: 201 with its path in `Location` (RFC 9110, section 15.3.2).
fn created(request: &mut Request) -> u16 {
    let mut location = Vec::new();
    proto::uri::escape(
        proto::uri::EscapeClass::Uri,
        &request.uri.path,
        &mut location,
    );
    request.out.location = Some(location.into());
    201
}

/// The number of path components; the trailing slash of a directory begins none.
fn count_elements(path: &[u8]) -> i64 {
    let slashes = path.iter().filter(|byte| **byte == b'/').count() as i64;
    if path.ends_with(b"/") {
        slashes - 1
    } else {
        slashes
    }
}

/// Paths are compared as text later, so each must have one spelling.
fn without_double_slashes(path: PathBuf) -> PathBuf {
    let mut out = Vec::new();
    for byte in path.into_os_string().into_encoded_bytes() {
        if byte != b'/' || out.last() != Some(&b'/') {
            out.push(byte);
        }
    }
    files::as_path(&out).to_owned()
}

/// The `Depth` field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DepthHeader {
    Zero,
    One,
    Infinity,
    /// Sent, but none of these: refused where a depth matters.
    Invalid,
}

/// Parses the `Depth` field (RFC 4918, section 10.2); `None` if there is none.
fn depth_field(request: &Request) -> Option<DepthHeader> {
    let value = request.head.known(KnownField::Depth)?;
    Some(match value.as_bytes() {
        b"0" => DepthHeader::Zero,
        b"1" => DepthHeader::One,
        b"infinity" => DepthHeader::Infinity,
        _ => {
            request.error(format_args!(
                "client sent invalid \"Depth\" header: \"{value}\""
            ));
            DepthHeader::Invalid
        }
    })
}

/// Parses the `Overwrite` field (RFC 4918, section 10.6).
fn overwrite_field(request: &Request) -> Result<OverwritePolicy, u16> {
    match request.head.known(KnownField::Overwrite) {
        None => Ok(OverwritePolicy::Allowed),
        Some(value) if value.eq_ignore_ascii_case(b"T") => Ok(OverwritePolicy::Allowed),
        Some(value) if value.eq_ignore_ascii_case(b"F") => Ok(OverwritePolicy::Refused),
        Some(value) => {
            request.error(format_args!(
                "client sent invalid \"Overwrite\" header: \"{value}\""
            ));
            Err(400)
        }
    }
}

/// The path in the `Destination` field (RFC 4918, section 10.3), which must be on the same host.
fn destination(request: &Request) -> Result<BString, u16> {
    let Some(value) = request.head.known(KnownField::Destination) else {
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
        // An alias replaces a prefix of this length, so a shorter path would be outside the
        // location.
        RootKind::Alias(length) if path.len() < length => Err(invalid()),
        _ => Ok(path.into()),
    }
}

/// The path of a `Destination`: all of it, or what follows scheme and host. `None` if it is
/// neither.
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
    // A host without a path names no resource.
    let Some(at) = rest.find_byte(b'/') else {
        return Ok(None);
    };
    let (authority, path) = rest.split_at(at);
    // The host has to match, the port need not, as in nginx.
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
            [&b"/"[..], b"/a", b"/a/", b"/a/b/c"].map(count_elements),
            [0, 1, 1, 3]
        );
    }
}
