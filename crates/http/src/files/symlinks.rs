//! `disable_symlinks`: from which part on a path is checked for links, and how.

use rt::file::{SymlinkCheck, SymlinkPolicy};

use crate::core::DisableSymlinks;
use crate::core::delivery::DeliveryConf;
use crate::request::Request;

/// How `path` has to be checked; `None` if links are allowed.
pub(super) fn symlink_check(
    request: &mut Request,
    delivery: &DeliveryConf,
    path: &[u8],
) -> Option<SymlinkCheck> {
    let links = match delivery.symlinks {
        DisableSymlinks::Allow => return None,
        DisableSymlinks::Refuse => SymlinkPolicy::Refused,
        DisableSymlinks::RefuseUnlessOwner => SymlinkPolicy::OwnersOnly,
        DisableSymlinks::RefuseOutside => SymlinkPolicy::Outside,
    };
    let from = match &delivery.symlinks_from {
        None => 0,
        Some(value) => {
            let value = request.value(value);
            unjudged(&value, path)?
        }
    };
    Some(SymlinkCheck { links, from })
}

/// The length of the beginning of `path` that is trusted because it is `from`: up to, not including, a slash. `None` if
/// that is the whole path; 0 if the path does not begin with `from`, or only in the middle of a name (`from=/srv/a`
/// trusts nothing of `/srv/abc`).
fn unjudged(from: &[u8], path: &[u8]) -> Option<usize> {
    if from.is_empty() || !path.starts_with(from) {
        return Some(0);
    }
    match path.get(from.len()) {
        None => None,
        Some(b'/') => Some(from.len()),
        Some(_) if from.ends_with(b"/") => Some(from.len() - 1),
        Some(_) => Some(0),
    }
}

#[cfg(test)]
mod tests {
    use super::unjudged;

    #[test]
    fn trust_ends_at_a_slash() {
        let path = b"/srv/www/a";
        assert_eq!(unjudged(b"", path), Some(0));
        assert_eq!(unjudged(b"/srv", path), Some(4));
        assert_eq!(unjudged(b"/srv/", path), Some(4));
        assert_eq!(unjudged(b"/srv/w", path), Some(0));
        assert_eq!(unjudged(b"/srv/x", path), Some(0));
        assert_eq!(unjudged(path, path), None);
        assert_eq!(unjudged(b"/srv/www/a/", path), Some(0));
        assert_eq!(unjudged(b"/", path), Some(0));
    }
}
