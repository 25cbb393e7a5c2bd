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

/// The location for the request's path; the server's own level when none matches.
pub fn search_locations(request: &mut Request) -> FoundLocation {
    let site = Rc::clone(&request.site);
    let server = site.server(request.server);
    let mut chosen = server.root;
    // Out of the request for the search, because matching a regular expression changes the request's captures.
    let path = std::mem::take(&mut request.uri.path);
    let found = search(&site, &server.tree, path.as_bstr(), &mut chosen, request);
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
    site: &FrozenHttp,
    tree: &LocationTree,
    path: &BStr,
    chosen: &mut LocationId,
    request: &mut Request,
) -> LocationSearch {
    if tree.is_empty() {
        return LocationSearch::Nothing;
    }
    if let Ok(at) = tree
        .exact
        .binary_search_by(|(name, _)| name.as_slice().cmp(path))
    {
        *chosen = tree.exact[at].1;
        return LocationSearch::Done;
    }
    let prefix = tree.longest_prefix(path);
    // As in nginx a location with the name of the path wins over one with the slash added, and that one wins over
    // locations nested in a shorter prefix.
    let is_whole = |location: LocationId| site.location(location).name.len() == path.len();
    if !prefix.is_some_and(is_whole)
        && let Some(location) = tree.with_slash(path, |id| site.location(id).adds_slash)
    {
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
            match search(site, tree, path, chosen, request) {
                LocationSearch::Nothing | LocationSearch::Prefix => {}
                decided => return decided,
            }
        }
    }
    if regexes {
        for (pattern, location) in tree.regexes(path) {
            if request.matches(pattern, path) {
                *chosen = *location;
                let Some(tree) = &site.location(*location).tree else {
                    return LocationSearch::Done;
                };
                let inside = search(site, tree, path, chosen, request);
                return if let LocationSearch::AddSlash(_) = inside {
                    inside
                } else {
                    LocationSearch::Done
                };
            }
        }
    }
    result
}

pub use crate::listen::ServerName;
