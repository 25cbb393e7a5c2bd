//! `find_config`: finds the location of a path, as nginx does. The server of a host is found by
//! `crate::virtual_server`.
//!
//! Among the locations (`crate::location_tree`) an exact one wins; then the first matching regular expression, unless
//! the longest prefix was written with `^~`; then the longest prefix
//! (<https://nginx.org/en/docs/http/ngx_http_core_module.html#location>).

use std::rc::Rc;

use bstr::{BStr, ByteSlice as _};

use crate::http_site::{FrozenHttp, LocationId};
use crate::location_tree::{LocationKind, LocationTree};
use crate::request::Request;

/// The result of the search for a location.
pub enum FoundLocation {
    /// The request belongs here.
    Location(LocationId),
    /// The path lacks only the last slash of a location that passes everything to an upstream server: the client is
    /// redirected to the path with the slash.
    AddSlash(LocationId),
}

/// Sees how a search goes, for `weir explain`. The server searches with `()`, which sees nothing and costs nothing.
pub(crate) trait SearchObserver {
    /// An exact location has the path.
    fn exact(&mut self, location: LocationId);
    /// The longest prefix at this level.
    fn prefix(&mut self, tree: &LocationTree, longest: Option<LocationId>);
    /// The path lacks only the last slash of this location.
    fn adds_slash(&mut self, location: LocationId);
    /// The regular expressions of this level were tried: the first that matches.
    fn regexes(&mut self, tree: &LocationTree, first: Option<LocationId>);
    /// They were not tried.
    fn regexes_skipped(&mut self, tree: &LocationTree);
}

impl SearchObserver for () {
    fn exact(&mut self, _: LocationId) {}
    fn prefix(&mut self, _: &LocationTree, _: Option<LocationId>) {}
    fn adds_slash(&mut self, _: LocationId) {}
    fn regexes(&mut self, _: &LocationTree, _: Option<LocationId>) {}
    fn regexes_skipped(&mut self, _: &LocationTree) {}
}

/// The location for the request's path; the server's own level when none matches.
pub fn search_locations(request: &mut Request) -> FoundLocation {
    observe_search(request, &mut ())
}

/// The same under observation.
pub(crate) fn observe_search(
    request: &mut Request,
    observer: &mut impl SearchObserver,
) -> FoundLocation {
    let site = Rc::clone(&request.site);
    let server = site.server(request.server);
    let mut chosen = server.root;
    // Out of the request for the search, because matching a regular expression changes the request's captures.
    let path = std::mem::take(&mut request.uri.path);
    let found = search(
        (&site, &server.tree),
        path.as_bstr(),
        &mut chosen,
        request,
        observer,
    );
    request.uri.path = path;
    match found {
        LocationSearch::Done | LocationSearch::Prefix | LocationSearch::Nothing => {
            FoundLocation::Location(chosen)
        }
        LocationSearch::AddSlash(location) => FoundLocation::AddSlash(location),
    }
}

enum LocationSearch {
    /// An exact or regular expression match: nothing else can win.
    Done,
    /// A prefix matched.
    Prefix,
    Nothing,
    AddSlash(LocationId),
}

fn search(
    (site, tree): (&FrozenHttp, &LocationTree),
    path: &BStr,
    chosen: &mut LocationId,
    request: &mut Request,
    observer: &mut impl SearchObserver,
) -> LocationSearch {
    if tree.is_empty() {
        return LocationSearch::Nothing;
    }
    if let Ok(at) = tree
        .exact
        .binary_search_by(|(name, _)| name.as_slice().cmp(path))
    {
        *chosen = tree.exact[at].1;
        observer.exact(*chosen);
        return LocationSearch::Done;
    }
    let prefix = tree.longest_prefix(path);
    observer.prefix(tree, prefix);
    // As in nginx a location with the name of the path wins over one with the slash added, and that one wins over
    // locations nested in a shorter prefix.
    let is_whole = |location: LocationId| site.location(location).name.len() == path.len();
    if !prefix.is_some_and(is_whole)
        && let Some(location) = tree.with_slash(path, |id| site.location(id).adds_slash)
    {
        observer.adds_slash(location);
        return LocationSearch::AddSlash(location);
    }
    let mut result = LocationSearch::Nothing;
    let mut regexes = true;
    if let Some(location) = prefix {
        *chosen = location;
        result = LocationSearch::Prefix;
        let here = site.location(location);
        if let LocationKind::Prefix { regexes: allowed } = here.kind {
            regexes = allowed;
        }
        // Nested locations come before the regular expressions of this level; a prefix found there does not rule those
        // out.
        if let Some(tree) = &here.tree {
            match search((site, tree), path, chosen, request, observer) {
                LocationSearch::Nothing | LocationSearch::Prefix => {}
                decided => return decided,
            }
        }
    }
    if regexes {
        for (pattern, location) in tree.regexes(path) {
            if request.matches(pattern, path) {
                *chosen = *location;
                observer.regexes(tree, Some(*location));
                let Some(tree) = &site.location(*location).tree else {
                    return LocationSearch::Done;
                };
                let inside = search((site, tree), path, chosen, request, observer);
                return if let LocationSearch::AddSlash(_) = inside {
                    inside
                } else {
                    LocationSearch::Done
                };
            }
        }
        observer.regexes(tree, None);
    } else {
        observer.regexes_skipped(tree);
    }
    result
}

pub use crate::listen::ServerName;
