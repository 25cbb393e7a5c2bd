//! What a misspelt name was probably meant to be: for the hints of messages about directives, variables, blocks and
//! words of the command line.

/// The nearest of some names to a misspelt one, if one is near enough to be meant.
pub fn nearest_name<'a>(
    name: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    // A third of the letters may be wrong, but at least one and at most three.
    let length = name.chars().count();
    let bound = (length / 3).clamp(1, 3);
    // Of a single letter nothing would be left.
    if length < 2 {
        return None;
    }
    let scored = candidates.into_iter().filter_map(|candidate| {
        let length_gap = candidate.len().abs_diff(name.len());
        if candidate == name || length_gap > bound {
            return None;
        }
        let distance = strsim::damerau_levenshtein(name, candidate);
        (distance <= bound).then_some((distance, candidate))
    });
    scored.min().map(|(_, candidate)| candidate)
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
        assert_eq!(
            nearest_name("root", ["root"]),
            None,
            "a name is not a correction of itself"
        );
    }
}
