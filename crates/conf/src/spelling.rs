//! What a misspelt name was probably meant to be: for the hints of messages about directives, variables, blocks and
//! words of the command line.

/// The nearest of some names to a misspelt one, if one is near enough to be meant.
pub fn nearest_name<'a>(
    name: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let scored = distances(name, candidates);
    scored.min().map(|(_, candidate)| candidate)
}

/// The names that are near enough to be meant, the nearest first.
pub fn nearest_names<'a>(
    name: &str,
    candidates: impl IntoIterator<Item = &'a str>,
    most: usize,
) -> Vec<&'a str> {
    let mut scored: Vec<(usize, &str)> = distances(name, candidates).collect();
    scored.sort_unstable();
    scored.dedup();
    scored.truncate(most);
    scored.into_iter().map(|(_, candidate)| candidate).collect()
}

/// The candidates that may be meant, each with its distance.
fn distances<'a>(
    name: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> impl Iterator<Item = (usize, &'a str)> {
    // A third of the letters may be wrong, but at least one and at most three. Of a single letter nothing would be left.
    let length = name.chars().count();
    let bound = (length >= 2).then(|| (length / 3).clamp(1, 3));
    candidates.into_iter().filter_map(move |candidate| {
        let bound = bound?;
        if candidate == name || candidate.len().abs_diff(name.len()) > bound {
            return None;
        }
        let distance = strsim::damerau_levenshtein(name, candidate);
        (distance <= bound).then_some((distance, candidate))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_names() {
        let names = [
            "root",
            "re",
            "s",
            "return",
            "rewrite",
            "proxy_pass",
            "proxy_params",
        ];
        for (written, meant) in [
            ("rooot", Some("root")),
            ("rot", Some("root")),
            ("retrun", Some("return")),
            ("proxypass", Some("proxy_pass")),
            ("x", None),
            ("r", None),
            ("listen", None),
        ] {
            assert_eq!(nearest_name(written, names), meant, "{written}");
        }
        assert_eq!(nearest_names("rot", names, 3), ["root"]);
        assert_eq!(
            nearest_names("proxy_pas", names, 3),
            ["proxy_pass", "proxy_params"]
        );
        assert_eq!(
            nearest_name("root", ["root"]),
            None,
            "a name is not a correction of itself"
        );
    }
}
