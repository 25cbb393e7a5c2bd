//! Which files of a repository an `include` means, although the repository is not laid out as a machine is.

/// The paths that `wanted`, in the file at `from`, stands for.
pub(crate) fn find(paths: &[String], from: &str, wanted: &str) -> Vec<String> {
    let wanted = wanted.trim_start_matches("./").trim_start_matches('/');
    let parts: Vec<&str> = wanted.split('/').filter(|part| *part != "..").collect();
    if parts.iter().any(|part| part.contains('$')) {
        return Vec::new();
    }
    let mut folder = from;
    while let Some((parent, _)) = folder.rsplit_once('/') {
        folder = parent;
        if let Some(found) = below(paths, from, folder, &parts) {
            return found;
        }
    }
    below(paths, from, "", &parts).unwrap_or_default()
}

/// Looks in one folder, with fewer and fewer of the leading parts.
fn below(paths: &[String], from: &str, folder: &str, parts: &[&str]) -> Option<Vec<String>> {
    for start in 0..parts.len() {
        let rest = &parts[start..];
        // Any file at all is not what a bare `*` of another folder means.
        if rest.len() == 1 && parts.len() > 1 && rest[0].contains('*') {
            return None;
        }
        let mut pattern = folder.to_owned();
        for part in rest {
            if !pattern.is_empty() {
                pattern.push('/');
            }
            pattern.push_str(part);
        }
        let found: Vec<String> = paths
            .iter()
            .filter(|path| *path != from && matches(pattern.as_bytes(), path.as_bytes()))
            .take(60)
            .cloned()
            .collect();
        if !found.is_empty() {
            return Some(found);
        }
    }
    None
}

/// Globs with `*` and `?`, neither of which is a slash.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    match (pattern.first(), text.first()) {
        (None, None) => true,
        (Some(b'*'), _) => {
            matches(&pattern[1..], text)
                || text.first().is_some_and(|&byte| byte != b'/') && matches(pattern, &text[1..])
        }
        (Some(b'?'), Some(&byte)) if byte != b'/' => matches(&pattern[1..], &text[1..]),
        (Some(a), Some(b)) if a == b => matches(&pattern[1..], &text[1..]),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::find;

    #[test]
    fn an_include_is_looked_for_where_it_may_be() {
        let paths = [
            "a/nginx.conf",
            "a/conf.d/x.conf",
            "a/conf.d/y.conf",
            "snippets/tls.conf",
        ]
        .map(str::to_owned);
        let from = "a/nginx.conf";
        assert_eq!(find(&paths, from, "/etc/nginx/conf.d/*.conf").len(), 2);
        assert_eq!(
            find(&paths, from, "snippets/tls.conf"),
            ["snippets/tls.conf"]
        );
        assert!(find(&paths, from, "/etc/nginx/other/*.conf").is_empty());
        assert!(find(&paths, from, "nginx.conf").is_empty());
    }
}
