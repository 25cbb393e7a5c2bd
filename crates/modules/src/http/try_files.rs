//! `try_files`: the first of several files that is there, else another place or a status.
//!
//! ```nginx
//! location / { try_files $uri $uri/ /index.php?$args; }
//! location /images/ { try_files $uri @resize; }
//! location /api/ { try_files $uri =404; }
//! ```
//!
//! A value that ends with a slash means a directory. The last value is not tested: it is a path that the request is
//! sent to, a named location, or a status. A found file becomes the request's path; the content handlers do the rest.

use std::sync::Arc;

use bstr::{BString, ByteSlice};
use conf::{
    Arity, Diagnostic, Directive, Expression, Line, Repeat, SERVER_LOCATION, Setter, Table,
};
use http::core::location::RootKind;
use http::files::{self, Found, Purpose};
use http::{Module, Outcome, Phase, Request, Step};
use rt::error_log::Level;

pub(crate) static MODULE: Module = Module {
    name: "try_files",
    doc: "Tries files in a given order.",
    location: &DIRECTIVES,
    phases: &[(Phase::Precontent, search)],
    enabled: |location| location.confs.get::<Conf>().plan.is_some(),
    ..Module::EMPTY
};

static DIRECTIVES: Table<Conf> = Table::<Conf>::new(&[Directive {
    name: "try_files",
    syntax: "file … uri | file … =code",
    default: None,
    contexts: SERVER_LOCATION,
    since: "0.1",
    doc: "Tries the files or, with a trailing slash, directories in order and continues with the first that exists. If \
          none exists, redirects internally to the last parameter: a URI, a named location, or `=` and a status code. \
          Not inherited by inner blocks.",
    set: Setter::Custom(Arity::at_least(2), Repeat::Once, read),
}])
.inherit(|_| Conf::default(), |outer| outer.plan.is_none());

#[derive(Clone, Debug, Default)]
struct Conf {
    plan: Option<Arc<Plan>>,
}

#[derive(Debug)]
struct Plan {
    candidates: Vec<Candidate>,
    otherwise: Otherwise,
}

#[derive(Debug)]
struct Candidate {
    /// Without the slash of a directory.
    name: Expression,
    is_directory: bool,
}

#[derive(Debug)]
enum Otherwise {
    Status(u16),
    /// A path with arguments, or a named location.
    Place(Expression),
}

fn read(conf: &mut Conf, line: &mut Line) -> Result<(), Diagnostic> {
    let last = line.args().len() - 1;
    let mut candidates = Vec::with_capacity(last);
    for index in 0..last {
        let word = line.arg(index);
        let (text, is_directory) = match word.text.strip_suffix(b"/") {
            Some(text) => (text, true),
            None => (&word.text[..], false),
        };
        let name = line.expression_of(word, text)?;
        candidates.push(Candidate { name, is_directory });
    }
    let otherwise = match line.arg(last).text.strip_prefix(b"=") {
        Some(code) => Otherwise::Status(status(code).ok_or_else(|| {
            let text = line.text(last);
            line.error_at(last, format!("invalid code \"{text}\""))
        })?),
        None => Otherwise::Place(line.expression(last)?),
    };
    conf.plan = Some(Arc::new(Plan {
        candidates,
        otherwise,
    }));
    Ok(())
}

/// A status of up to three digits.
fn status(code: &[u8]) -> Option<u16> {
    let number = base::text::decimal(code)?;
    u16::try_from(number).ok().filter(|status| *status <= 999)
}

fn search(request: &mut Request) -> Step<'_> {
    let Some(plan) = request.conf::<Conf>().plan.clone() else {
        return Outcome::Declined.into();
    };
    let Some(place) = Place::of(request) else {
        return Outcome::Status(500).into();
    };
    for (index, candidate) in plan.candidates.iter().enumerate() {
        let name = place.name(request, candidate);
        let path = place.path(&name);
        match files::try_open(request, &path, Purpose::Look) {
            Some(found) if is_match(request, candidate, &path, &found) => {
                place.take(request, name, candidate);
                return Outcome::Declined.into();
            }
            Some(_) => {}
            None => return Step::later(search_waiting(request, plan.clone(), place, index)),
        }
    }
    otherwise(request, &plan).into()
}

/// Goes on from candidate `index`, which can not be found without waiting.
async fn search_waiting(
    request: &mut Request,
    plan: Arc<Plan>,
    place: Place,
    index: usize,
) -> Outcome {
    for candidate in &plan.candidates[index..] {
        let name = place.name(request, candidate);
        let path = place.path(&name);
        let found = files::open(request, &path, Purpose::Look).await;
        if is_match(request, candidate, &path, &found) {
            place.take(request, name, candidate);
            return Outcome::Declined;
        }
    }
    otherwise(request, &plan)
}

fn is_match(request: &Request, candidate: &Candidate, path: &[u8], found: &Found) -> bool {
    match found {
        Ok(found) => found.is_directory() == candidate.is_directory,
        Err(error) => {
            if error.status() != 404 {
                let path = path.as_bstr();
                request.log(
                    Level::Crit,
                    format_args!("{} \"{path}\" failed{error}", error.call),
                );
            }
            false
        }
    }
}

fn otherwise(request: &mut Request, plan: &Plan) -> Outcome {
    let target = match &plan.otherwise {
        Otherwise::Status(status) => return Outcome::Status(*status),
        Otherwise::Place(target) => request.value(target),
    };
    if target.starts_with(b"@") {
        return request.redirect_named(target.as_bstr());
    }
    let (path, args) = proto::uri::split_args(&target);
    request.redirect(path, args.unwrap_or_default())
}

/// Where the location's files are, for names that take the place of the request's path.
struct Place {
    root: BString,
    kind: RootKind,
    /// The part of the request's path that an alias replaces.
    aliased: BString,
}

impl Place {
    fn of(request: &mut Request) -> Option<Place> {
        // The request's own path tells, in passing, whether the alias still means anything.
        request.file_path()?;
        let root = request.document_root();
        let kind = request.site.location(request.location).core.root.kind;
        let aliased = match kind {
            RootKind::Alias(length) => request.uri.path.get(..length).unwrap_or_default().into(),
            RootKind::Root | RootKind::Whole => BString::default(),
        };
        Some(Place {
            root,
            kind,
            aliased,
        })
    }

    /// The candidate's name as it is added to the root. What comes from a variable is usually a whole path, of which
    /// an alias replaces the beginning; a name without variables is one below the alias already.
    fn name(&self, request: &mut Request, candidate: &Candidate) -> BString {
        let name = request.value(&candidate.name);
        if candidate.name.constant().is_some() || self.aliased.is_empty() {
            return name;
        }
        match name.strip_prefix(self.aliased.as_slice()) {
            Some(rest) => rest.into(),
            None => name,
        }
    }

    fn path(&self, name: &[u8]) -> Vec<u8> {
        [&self.root[..], name].concat()
    }

    /// Makes a name that was found the request's path.
    fn take(&self, request: &mut Request, name: BString, candidate: &Candidate) {
        match self.kind {
            RootKind::Root => request.uri.path = name,
            RootKind::Alias(_) => request.uri.path = [&self.aliased[..], &name].concat().into(),
            RootKind::Whole if candidate.is_directory => {}
            RootKind::Whole => {
                request.uri.path = name;
                request.flow.path_after_alias = true;
            }
        }
    }
}
