//! What a successful unsafe request invalidates (RFC 9111, section 4.4), and the tags by which
//! operators purge.

use crate::fields::Fields;
use crate::known_fields::KnownField;
use crate::message::Method;

/// Whether a request with this method and this final status has changed the resource: it did not
/// fail, and the method is unsafe or unknown.
pub fn invalidates(method: Method, status: u16) -> bool {
    !method.is_safe() && (200..400).contains(&status)
}

/// The targets (path and query) in `Location` and `Content-Location`, besides that of the request.
/// Only those of the same authority: no origin may make the cache drop another's responses.
pub fn invalidated_targets(authority: &[u8], target: &[u8], response: &Fields) -> Vec<Vec<u8>> {
    [KnownField::Location, KnownField::ContentLocation]
        .into_iter()
        .filter_map(|known| resolve(authority, target, response.get_known(known)?))
        .filter(|other| other != target)
        .collect()
}

/// Whether the content is a representation of the request's own target, as `Content-Location` says.
pub fn is_about_its_target(authority: &[u8], target: &[u8], response: &Fields) -> bool {
    let location = response.get_known(KnownField::ContentLocation);
    location
        .and_then(|location| resolve(authority, target, location))
        .as_deref()
        == Some(target)
}

/// Resolves a reference against a target (RFC 3986, section 5.2); `None` if it is of another
/// authority.
fn resolve(authority: &[u8], base: &[u8], reference: &[u8]) -> Option<Vec<u8>> {
    let reference = reference.split(|&b| b == b'#').next()?.trim_ascii();
    let lower = reference
        .get(..8.min(reference.len()))?
        .to_ascii_lowercase();
    let after_authority = [&b"http://"[..], b"https://", b"//"]
        .into_iter()
        .find(|start| lower.starts_with(start))
        .map(|start| local_part(&reference[start.len()..], authority));
    let reference = match after_authority {
        None => reference,
        Some(local) => match local? {
            query @ [b'?', ..] => return Some([b"/", query].concat()),
            local => local,
        },
    };
    let base_path = base.split(|&b| b == b'?').next()?;
    match reference.first() {
        None => Some(base_path.to_vec()).filter(|path| !path.is_empty()),
        Some(b'/') => Some(without_dots(reference)),
        Some(b'?') => Some([base_path, reference].concat()),
        // Another scheme, such as `mailto:`.
        Some(_) if has_scheme(reference) => None,
        Some(_) => {
            let folder = base_path.iter().rposition(|&b| b == b'/')? + 1;
            Some(without_dots(&[&base_path[..folder], reference].concat()))
        }
    }
}

fn has_scheme(reference: &[u8]) -> bool {
    let end = reference
        .iter()
        .position(|b| matches!(b, b':' | b'/' | b'?'))
        .unwrap_or(reference.len());
    reference.get(end) == Some(&b':')
}

/// The part after the authority, if the authority is ours.
fn local_part<'a>(rest: &'a [u8], authority: &[u8]) -> Option<&'a [u8]> {
    let end = rest
        .iter()
        .position(|b| matches!(b, b'/' | b'?'))
        .unwrap_or(rest.len());
    let (theirs, local) = rest.split_at(end);
    if !theirs.eq_ignore_ascii_case(authority) {
        return None;
    }
    Some(if local.is_empty() { b"/" } else { local })
}

/// Removes `.` and `..` from the path; the query remains as it is.
fn without_dots(target: &[u8]) -> Vec<u8> {
    let end = target
        .iter()
        .position(|&b| b == b'?')
        .unwrap_or(target.len());
    let (path, query) = target.split_at(end);
    let mut segments: Vec<&[u8]> = Vec::new();
    let mut parts = path.split(|&b| b == b'/').skip(1).peekable();
    while let Some(part) = parts.next() {
        let is_last = parts.peek().is_none();
        match part {
            b"." => {}
            b".." => {
                segments.pop();
            }
            _ => {
                segments.push(part);
                continue;
            }
        }
        if is_last {
            segments.push(b"");
        }
    }
    let mut out = Vec::with_capacity(target.len());
    for segment in segments {
        out.push(b'/');
        out.extend_from_slice(segment);
    }
    if out.is_empty() {
        out.push(b'/');
    }
    out.extend_from_slice(query);
    out
}

/// The maximum number of tags per response, and their maximum length.
const MAX_TAGS: usize = 128;
const MAX_TAG: usize = 256;

/// The tags of a response: in `Surrogate-Key` separated by spaces, in `Cache-Tag` by commas. Those
/// beyond the limits are dropped: a purge by them will not find the response.
pub fn response_tags(response: &Fields) -> Vec<Vec<u8>> {
    let spaced = response
        .all(b"Surrogate-Key")
        .flat_map(|value| value.split(|b| matches!(b, b' ' | b'\t')));
    let listed = response
        .all(b"Cache-Tag")
        .flat_map(|value| value.split(|&b| b == b','));
    let mut tags: Vec<Vec<u8>> = spaced
        .chain(listed)
        .map(|tag| tag.trim_ascii())
        .filter(|tag| !tag.is_empty() && tag.len() <= MAX_TAG)
        .take(MAX_TAGS)
        .map(<[u8]>::to_vec)
        .collect();
    tags.sort_unstable();
    tags.dedup();
    tags
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(base: &str, reference: &str) -> Option<String> {
        resolve(b"h:8", base.as_bytes(), reference.as_bytes())
            .map(|target| String::from_utf8_lossy(&target).into_owned())
    }

    #[test]
    fn references_are_resolved() {
        for (base, reference, target) in [
            ("/a/b?c", "d", Some("/a/d")),
            ("/a/b?c", "./d/../e?f/..", Some("/a/e?f/..")),
            ("/a/b", "../../../x", Some("/x")),
            ("/a/b", "/x/.", Some("/x/")),
            ("/a/b", "/x/..", Some("/")),
            ("/a/b?c", "?d", Some("/a/b?d")),
            ("/a/b?c", "", Some("/a/b")),
            ("/a/b", "http://H:8/x#y", Some("/x")),
            ("/a/b", "HTTPS://h:8", Some("/")),
            ("/a/b", "//h:8?x", Some("/?x")),
            ("/a/b", "http://other/x", None),
            ("/a/b", "//h/x", None),
            ("/a/b", "mailto:a@b", None),
            ("/a/b", "x/y:z", Some("/a/x/y:z")),
            ("*", "x", None),
            ("/a//b", "c//d", Some("/a//c//d")),
        ] {
            assert_eq!(
                resolved(base, reference).as_deref(),
                target,
                "{base} {reference}"
            );
        }
    }

    #[test]
    fn targets_are_others_of_the_same_origin() {
        let mut response = Fields::new();
        response.push(b"Location", b"/new");
        response.push(b"Content-Location", b"/old");
        assert_eq!(
            invalidated_targets(b"h", b"/old", &response),
            [b"/new".to_vec()]
        );
        assert!(invalidates(Method::Post, 200) && invalidates(Method::Other, 303));
        assert!(!invalidates(Method::Post, 404) && !invalidates(Method::Head, 200));
    }

    #[test]
    fn tags_are_read_and_bounded() {
        let mut response = Fields::new();
        response.push(b"Surrogate-Key", b"b  a");
        response.push(b"cache-tag", b"c d, a,,");
        response.push(b"cache-tag", "x".repeat(257).as_bytes());
        assert_eq!(
            response_tags(&response),
            [b"a".to_vec(), b"b".to_vec(), b"c d".to_vec()]
        );
        let many: Vec<String> = (0..200).map(|n| n.to_string()).collect();
        response.push(b"Surrogate-Key", many.join(" ").as_bytes());
        assert_eq!(response_tags(&response).len(), 128);
    }
}
