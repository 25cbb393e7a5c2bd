//! `try_files`: serves the first of several files that exists, or else redirects internally or
//! responds with a status.
//!
//! ```nginx
//! location / { try_files $uri $uri/ /index.php?$args; }
//! location /images/ { try_files $uri @resize; }
//! location /api/ { try_files $uri =404; }
//! ```
//!
//! A parameter that ends with a slash stands for a directory. The last parameter is not tested: it
//! is a path to redirect to, a named location, or a status. The path of a file that exists becomes
//! the request's; the content handlers do the rest.
//!
//! The files are tested without waiting as long as the kernel has them in memory, which in the
//! usual case answers the request on the spot.

use std::sync::Arc;

use bstr::{BString, ByteSlice};
use conf::{
    Arity, Diagnostic, Directive, DirectiveLine, DirectiveTable, Expression, RepeatRule,
    SERVER_LOCATION, Setter,
};
use host::error_log::LogLevel;
use http::core::RootKind;
use http::explain::StepResult;
use http::files::{self, FilePurpose, OpenFileResult};
use http::module::ExplainNotes;
use http::{HandlerOutcome, HandlerStep, HttpModule, HttpPhase, Request};

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "try_files",
    doc: "Tries files in a given order.",
    location: &DIRECTIVES,
    phases: &[(HttpPhase::Precontent, search)],
    enabled: |location| location.confs.get::<Conf>().plan.is_some(),
    explain: http::module::ModuleExplain::Described(describe),
    ..HttpModule::EMPTY
};

static DIRECTIVES: DirectiveTable<Conf> = DirectiveTable::<Conf>::new(&[Directive {
    name: "try_files",
    syntax: "file … uri | file … =code",
    default: None,
    contexts: SERVER_LOCATION,
    since: "0.1",
    doc: "Tries the files or, with a trailing slash, directories in order and continues with the first that exists. If \
          none exists, redirects internally to the last parameter: a URI, a named location, or `=` and a status code. \
          Not inherited by inner blocks.",
    set: Setter::Custom(Arity::at_least(2), RepeatRule::Once, read),
}])
.inherit(|_| Conf::default(), |outer| outer.plan.is_none());

#[derive(Clone, Debug, Default)]
struct Conf {
    plan: Option<Arc<TryPlan>>,
}

/// The parameters of a `try_files`.
#[derive(Debug)]
struct TryPlan {
    candidates: Vec<TryCandidate>,
    otherwise: TryFallback,
}

/// A file or directory to try.
#[derive(Debug)]
struct TryCandidate {
    /// Without the slash of a directory.
    name: Expression,
    is_directory: bool,
    /// The name is that of the candidate before it, as with `$uri $uri/`: what was found there need not be looked for
    /// again.
    is_repeated: bool,
}

/// The last parameter: what happens if no candidate exists.
#[derive(Debug)]
enum TryFallback {
    Status(u16),
    /// A path with arguments, or a named location.
    Uri(Expression),
}

/// Parses a `try_files` directive.
fn read(conf: &mut Conf, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    let last = line.args().len() - 1;
    let mut candidates: Vec<TryCandidate> = Vec::with_capacity(last);
    for index in 0..last {
        // The slash is removed before variables are parsed, since it is not part of the name.
        let word = line.arg(index);
        let (text, is_directory) = match word.text.strip_suffix(b"/") {
            Some(text) => (text, true),
            None => (&word.text[..], false),
        };
        let name = line.expression_of(word, text)?;
        let is_repeated = candidates
            .last()
            .is_some_and(|before| before.name.source() == name.source());
        candidates.push(TryCandidate {
            name,
            is_directory,
            is_repeated,
        });
    }
    let otherwise = match line.arg(last).text.strip_prefix(b"=") {
        Some(code) => TryFallback::Status(status(code).ok_or_else(|| {
            let text = line.text(last);
            line.error_at(last, format!("invalid code \"{text}\""))
        })?),
        None => TryFallback::Uri(line.expression(last)?),
    };
    conf.plan = Some(Arc::new(TryPlan {
        candidates,
        otherwise,
    }));
    Ok(())
}

/// Parses a status of up to three digits.
fn status(code: &[u8]) -> Option<u16> {
    let number = base::text::decimal(code)?;
    u16::try_from(number).ok().filter(|status| *status <= 999)
}

/// The phase handler: tries the candidates without waiting as far as possible.
fn search(request: &mut Request) -> HandlerStep<'_> {
    let Some(plan) = request.conf::<Conf>().plan.clone() else {
        return HandlerOutcome::Declined.into();
    };
    // Evaluated once: all candidates of a request are below the same root.
    let Some(place) = FileRoot::of(request) else {
        return HandlerOutcome::Status(500).into();
    };
    let mut last: Option<TriedName> = None;
    for (index, candidate) in plan.candidates.iter().enumerate() {
        let tried = match last.take().filter(|_| candidate.is_repeated) {
            Some(tried) => tried,
            None => {
                let name = place.name(request, candidate);
                let path = place.path(&name);
                match files::try_open(request, &path, FilePurpose::Look) {
                    Some(found) => TriedName { name, path, found },
                    // The first match decides, so the rest is tested in order, too, now with waiting.
                    None => {
                        let rest = plan.clone();
                        return HandlerStep::later(async move {
                            search_waiting(request, &rest, &place, index, &mut |_, _| {}).await
                        });
                    }
                }
            }
        };
        if is_match(request, candidate, &tried.path, &tried.found) {
            place.use_file(request, tried.name, candidate);
            return HandlerOutcome::Declined.into();
        }
        last = Some(tried);
    }
    fall_back(request, &plan).into()
}

/// A name that was looked for.
struct TriedName {
    name: BString,
    path: Vec<u8>,
    found: OpenFileResult,
}

/// Continues from candidate `index`, which cannot be tested without waiting. `tell` learns of each path and whether it
/// was what was sought.
async fn search_waiting(
    request: &mut Request,
    plan: &TryPlan,
    place: &FileRoot,
    index: usize,
    tell: &mut impl FnMut(&[u8], bool),
) -> HandlerOutcome {
    for candidate in &plan.candidates[index..] {
        let name = place.name(request, candidate);
        let path = place.path(&name);
        let found = files::open_request_file(request, &path, FilePurpose::Look).await;
        let is_found = is_match(request, candidate, &path, &found);
        tell(&path, is_found);
        if is_found {
            place.use_file(request, name, candidate);
            return HandlerOutcome::Declined;
        }
    }
    fall_back(request, plan)
}

/// For `weir explain`: the same search, with a line for each candidate: its path on the disk, and whether it is there and of
/// the kind that is sought. A candidate that ends with a slash is a directory, and is shown with the slash. The redirect to
/// the last parameter is a step of the walk, like every other one.
fn describe<'a>(
    request: &'a mut Request,
    _: HttpPhase,
    notes: &'a mut ExplainNotes,
) -> HandlerStep<'a> {
    let Some(plan) = request.conf::<Conf>().plan.clone() else {
        return HandlerOutcome::Declined.into();
    };
    let line = notes.place_of(request.location, &["try_files"]);
    // Waits for the disk even where the kernel knows the answer: one search for both would be the waiting one.
    HandlerStep::later(async move {
        let Some(place) = FileRoot::of(request) else {
            return HandlerOutcome::Status(500);
        };
        let mut number = 0;
        let outcome = search_waiting(request, &plan, &place, 0, &mut |path, is_found| {
            let slash = match plan.candidates.get(number) {
                Some(candidate) if candidate.is_directory => "/",
                _ => "",
            };
            number += 1;
            let (result, what) = match is_found {
                true => (StepResult::Applies, "exists"),
                false => (StepResult::Passes, "does not exist"),
            };
            let text = format!("{}{slash} {what}", path.as_bstr());
            notes.step("try_files", result, text, line.clone());
        })
        .await;
        if let HandlerOutcome::Status(status) = outcome {
            notes.step("try_files", StepResult::Applies, format!("={status}"), line);
        }
        outcome
    })
}

/// Whether a candidate exists and is of the requested kind.
fn is_match(
    request: &Request,
    candidate: &TryCandidate,
    path: &[u8],
    found: &OpenFileResult,
) -> bool {
    match found {
        Ok(found) => found.is_directory() == candidate.is_directory,
        Err(error) => {
            // A missing file is the normal case; anything else, such as missing permission, is
            // worth logging.
            if error.status() != 404 {
                let path = path.as_bstr();
                request.log(
                    LogLevel::Crit,
                    format_args!("{} \"{path}\" failed{error}", error.call),
                );
            }
            false
        }
    }
}

/// Executes the last parameter.
fn fall_back(request: &mut Request, plan: &TryPlan) -> HandlerOutcome {
    let target = match &plan.otherwise {
        // Also for codes that are no errors, such as 200, for which nginx never responds.
        TryFallback::Status(status) => return HandlerOutcome::Status(*status),
        TryFallback::Uri(target) => request.value(target),
    };
    if target.starts_with(b"@") {
        return request.redirect_named(target.as_bstr());
    }
    let (path, args) = proto::uri::split_args(&target);
    request.redirect(path, args.unwrap_or_default())
}

/// How names are mapped to files in this location.
struct FileRoot {
    /// What the root or alias evaluates to for this request.
    root: BString,
    kind: RootKind,
    /// The part of the request's path that an alias replaces.
    aliased: BString,
}

impl FileRoot {
    /// How names are mapped for this request; `None` if they cannot be, which has been logged.
    fn of(request: &mut Request) -> Option<FileRoot> {
        // Fails if a rewrite has moved the path out of the alias, of which the part to cut off
        // would be meaningless.
        request.file_path()?;
        let root = request.document_root();
        let kind = request.site.location(request.location).core.root.kind;
        let aliased = match kind {
            RootKind::Alias(length) => request.uri.path.get(..length).unwrap_or_default().into(),
            RootKind::Root | RootKind::Whole => BString::default(),
        };
        Some(FileRoot {
            root,
            kind,
            aliased,
        })
    }

    /// The candidate's name as it is appended to the root. The value of a variable is usually a
    /// whole path, from which the aliased prefix is removed; a name without variables is relative
    /// to the alias already.
    fn name(&self, request: &mut Request, candidate: &TryCandidate) -> BString {
        let name = request.value(&candidate.name);
        if candidate.name.constant().is_some() || self.aliased.is_empty() {
            return name;
        }
        match name.strip_prefix(self.aliased.as_slice()) {
            Some(rest) => rest.into(),
            None => name,
        }
    }

    /// The file that a name stands for.
    fn path(&self, name: &[u8]) -> Vec<u8> {
        [&self.root[..], name].concat()
    }

    /// Makes the name of an existing candidate the request's path.
    fn use_file(&self, request: &mut Request, name: BString, candidate: &TryCandidate) {
        match self.kind {
            RootKind::Root => request.uri.path = name,
            RootKind::Alias(_) => request.uri.path = [&self.aliased[..], &name].concat().into(),
            RootKind::Whole if candidate.is_directory => {}
            RootKind::Whole => {
                request.uri.path = name;
                request.flow.add_uri_to_alias = true;
            }
        }
    }
}
