//! `index`: the file that represents a directory.
//!
//! ```nginx
//! index index.$geo.html index.html /index.php;
//! ```
//!
//! The first existing file is served by an internal redirect, so that the location for its name
//! applies (`/index.php`, for example). An absolute name, which only makes sense as the last, is
//! redirected to without checking.

use std::sync::Arc;

use bstr::{BString, ByteSlice};
use conf::{
    Arity, Diagnostic, Directive, DirectiveLine, DirectiveTable, Expression, HTTP_SERVER_LOCATION,
    RepeatRule, Setter,
};
use host::error_log::LogLevel;
use http::files::{self, FileError, FilePurpose, OpenFileResult};
use http::{HandlerOutcome, HandlerStep, HttpModule, HttpPhase, Request};
use proto::message::Method;
use rt::file::errno;

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "index",
    doc: "Serves index files of directories.",
    location: &DIRECTIVES,
    phases: &[(HttpPhase::Content, search)],
    explain: http::module::ModuleExplain::Runs(&["index"]),
    ..HttpModule::EMPTY
};

static DIRECTIVES: DirectiveTable<Conf> = DirectiveTable::new(&[Directive {
    name: "index",
    syntax: "file …",
    default: Some("index.html"),
    contexts: HTTP_SERVER_LOCATION,
    since: "0.1",
    doc: "The index files to try, in order, for a URI that ends with a slash. May contain variables; the last one may \
          be an absolute path.",
    set: Setter::Custom(
        Arity::at_least(1),
        RepeatRule::Fresh(|c| c.names = Arc::default()),
        read,
    ),
}]);

#[derive(Clone, Debug, Default)]
struct Conf {
    names: Arc<Vec<Expression>>,
}

/// Reads `index`.
fn read(conf: &mut Conf, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    let last = line.args().len() - 1;
    for index in 0..=last {
        let text = line.text(index);
        if text.is_empty() {
            return Err(line.error_at(
                index,
                format!("index \"{text}\" in \"index\" directive is invalid"),
            ));
        }
        // It is redirected to without a test, so those after it are never reached.
        if text.starts_with(b"/") && index != last {
            line.warn_at(
                index,
                "only the last index in \"index\" directive should be absolute",
            );
        }
        let name = line.expression(index)?;
        // Copies the list only if an outer block shares it.
        Arc::make_mut(&mut conf.names).push(name);
    }
    Ok(())
}

/// The content handler. Goes as far as possible without waiting; in the usual case the first name
/// is in the open file cache or in the kernel's memory.
fn search(request: &mut Request) -> HandlerStep<'_> {
    if !request.uri.path.ends_with(b"/")
        // POST, too: the index may be a script.
        || !matches!(request.method, Method::Get | Method::Head | Method::Post)
    {
        return HandlerOutcome::Declined.into();
    }
    let Some(directory) = request.file_path() else {
        return HandlerOutcome::Status(500).into();
    };
    let names = request.conf::<Conf>().names.clone();
    for (position, name) in names.iter().enumerate() {
        let name = request.value(name);
        if name.starts_with(b"/") {
            return request.redirect_path(name).into();
        }
        let path = [&directory[..], &name].concat();
        match files::try_open(request, &path, FilePurpose::Look) {
            Some(Ok(_)) => return redirect_below(request, &name).into(),
            // For the first missing name, the directory itself has to be examined as well, which
            // can take time.
            Some(Err(error)) if error.errno == errno::NOENT && position > 0 => {}
            _ => {
                let search = IndexSearch {
                    directory,
                    names: names.clone(),
                };
                return HandlerStep::later(search.search_from(request, position));
            }
        }
    }
    HandlerOutcome::Declined.into()
}

/// The search where it may have to wait.
struct IndexSearch {
    directory: BString,
    names: Arc<Vec<Expression>>,
}

impl IndexSearch {
    /// Continues the search at a name.
    async fn search_from(self, request: &mut Request, position: usize) -> HandlerOutcome {
        for (index, name) in self.names.iter().enumerate().skip(position) {
            let name = request.value(name);
            if name.starts_with(b"/") {
                return request.redirect_path(name);
            }
            let path = [&self.directory[..], &name].concat();
            let error = match files::open_request_file(request, &path, FilePurpose::Look).await {
                Ok(_) => return redirect_below(request, &name),
                Err(error) => error,
            };
            if let Some(outcome) = refuse(request, &path, error) {
                return outcome;
            }
            // Once is enough: the directory is the same for all names.
            if index == 0
                && let Some(outcome) = self.test_directory(request, &path).await
            {
                return outcome;
            }
            if error.errno != errno::NOENT {
                let path = path.as_bstr();
                request.log(
                    LogLevel::Crit,
                    format_args!("{} \"{path}\" failed{error}", error.call),
                );
                return HandlerOutcome::Status(500);
            }
        }
        HandlerOutcome::Declined
    }

    /// Tests whether the directory exists: if not, the response is 404 instead of the 403 that a
    /// directory without an index gets. `index` is the path of a missing file in it, for the log.
    /// `None`: it exists.
    async fn test_directory(&self, request: &mut Request, index: &[u8]) -> Option<HandlerOutcome> {
        // The root directory keeps its slash.
        let directory = match self.directory.strip_suffix(b"/") {
            Some(rest) if !rest.is_empty() => rest,
            _ => &self.directory[..],
        };
        let found: OpenFileResult =
            files::open_request_file(request, directory, FilePurpose::Look).await;
        let directory = directory.as_bstr();
        match found {
            Ok(found) if found.is_directory() => None,
            Ok(_) => {
                request.log(
                    LogLevel::Alert,
                    format_args!("\"{directory}\" is not a directory"),
                );
                Some(HandlerOutcome::Status(500))
            }
            Err(error) if error.is_link() => Some(HandlerOutcome::Status(403)),
            Err(error) if error.errno == errno::NOENT => {
                refuse_missing(request, index, error).into()
            }
            // Looking up a file in it was permitted, so the directory can be searched even if it
            // cannot be read.
            Err(error) if error.errno == errno::ACCES => None,
            Err(error) => {
                request.log(
                    LogLevel::Crit,
                    format_args!("{} \"{directory}\" failed{error}", error.call),
                );
                Some(HandlerOutcome::Status(500))
            }
        }
    }
}

/// Errors that apply to every name. `None`: the next one may exist.
fn refuse(request: &Request, path: &[u8], error: FileError) -> Option<HandlerOutcome> {
    if error.is_link() {
        return Some(HandlerOutcome::Status(403));
    }
    match error.errno {
        // As in nginx, the search does not go on: the file exists, and a later one is not what the
        // administrator meant.
        errno::ACCES => {
            request.error(format_args!("\"{}\" is forbidden{error}", path.as_bstr()));
            Some(HandlerOutcome::Status(403))
        }
        // The directory itself is wrong, so no other name can exist in it.
        errno::NOTDIR | errno::NAMETOOLONG => Some(refuse_missing(request, path, error)),
        _ => None,
    }
}

/// 404, logged unless `log_not_found` is off.
fn refuse_missing(request: &Request, path: &[u8], error: FileError) -> HandlerOutcome {
    if request.site.location(request.location).core.log_not_found {
        request.error(format_args!("\"{}\" is not found{error}", path.as_bstr()));
    }
    HandlerOutcome::Status(404)
}

/// Redirects to a file in the directory.
fn redirect_below(request: &mut Request, name: &[u8]) -> HandlerOutcome {
    let path = [&request.uri.path[..], name].concat();
    request.redirect_path(path)
}
