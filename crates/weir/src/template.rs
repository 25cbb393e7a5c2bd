//! Fills in the configurations of `weir serve` and `weir proxy`.

/// Replaces each `@NAME@` of a template by its value. In one pass, so that a value may contain such a
/// word: the name of a folder is any text.
pub(crate) fn fill_template(template: &str, values: &[(&str, &str)]) -> String {
    let mut out = String::with_capacity(template.len());
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('@') {
        out.push_str(before);
        let named = after.split_once('@').and_then(|(name, tail)| {
            let (_, value) = values.iter().find(|(known, _)| *known == name)?;
            Some((value, tail))
        });
        rest = match named {
            Some((value, tail)) => {
                out.push_str(value);
                tail
            }
            // Not a placeholder, but the name of a location.
            None => {
                out.push('@');
                after
            }
        };
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_not_filled_in_themselves() {
        let values = [("A", "@B@"), ("B", "b@"), ("C", "")];
        for (template, filled) in [
            ("@A@ @B@@C@.", "@B@ b@."),
            ("error_page 404 @a; @B@", "error_page 404 @a; b@"),
            ("@A@B@", "@B@B@"),
            ("@", "@"),
            ("", ""),
        ] {
            assert_eq!(fill_template(template, &values), filled, "{template}");
        }
    }
}
