//! The directives of nginx 1.31, whether Weir has them or not.
//!
//! The data file has facts about nginx's command tables, one line per name and module: name,
//! module, contexts, syntax. It tells a directive that Weir lacks from one that does not exist, and
//! is the basis of the compatibility table.

use std::sync::LazyLock;

use crate::directive_contexts::Contexts;

/// One directive of nginx in one of its modules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NginxDirective {
    /// The name.
    pub name: &'static str,
    /// nginx's module, without `ngx_` and `_module`.
    pub module: &'static str,
    /// Where it may stand, separated by commas, in the words of [`crate::Contexts::names`].
    pub contexts: &'static str,
    /// What follows the name; several forms are separated by ` ;; `. May be empty.
    pub syntax: &'static str,
    /// Whether it has braces.
    pub has_braces: bool,
}

impl NginxDirective {
    /// The directive as it is written: `NAME SYNTAX;`, the first form only.
    pub fn syntax_line(&self) -> String {
        let form = self.syntax.split(" ;; ").next().unwrap_or_default();
        let space = if form.is_empty() { "" } else { " " };
        let end = match (self.has_braces, form.ends_with('}')) {
            (true, true) => "",
            (true, false) => " { ... }",
            (false, _) => ";",
        };
        format!("{}{space}{form}{end}", self.name)
    }
}

impl NginxDirective {
    /// Where it may stand.
    pub fn allowed_contexts(&self) -> Contexts {
        let named = |name| {
            if name == "any" {
                Contexts::ANY
            } else {
                Contexts::named(name).unwrap_or(Contexts::NONE)
            }
        };
        self.contexts
            .split(',')
            .fold(Contexts::NONE, |all, name| all.or(named(name)))
    }
}

/// Sorted by name, then module.
static KNOWN: LazyLock<Vec<NginxDirective>> =
    LazyLock::new(|| include_str!("known.tsv").lines().filter_map(row).collect());

fn row(line: &'static str) -> Option<NginxDirective> {
    let mut fields = line.split('\t');
    let (name, module, contexts) = (fields.next()?, fields.next()?, fields.next()?);
    let has_braces = fields.next()? == "{";
    Some(NginxDirective {
        name,
        module,
        contexts,
        has_braces,
        syntax: fields.next().unwrap_or_default(),
    })
}

/// All of them, sorted by name.
pub fn all() -> impl Iterator<Item = &'static NginxDirective> {
    KNOWN.iter()
}

/// The first entry of a name.
pub fn find(name: &str) -> Option<&'static NginxDirective> {
    let at = KNOWN.partition_point(|known| known.name < name);
    KNOWN.get(at).filter(|known| known.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_data_file_is_sorted_and_whole() {
        let rows: Vec<_> = all().collect();
        assert!(
            rows.windows(2)
                .all(|pair| (pair[0].name, pair[0].module) < (pair[1].name, pair[1].module))
        );
        assert_eq!(rows.len(), include_str!("known.tsv").lines().count());
        for row in rows {
            assert!(
                !row.name.is_empty() && row.allowed_contexts() != Contexts::NONE,
                "{row:?}"
            );
            let named = row
                .contexts
                .split(',')
                .all(|name| name == "any" || Contexts::named(name).is_some());
            assert!(named, "{row:?}");
        }
    }

    #[test]
    fn finding() {
        assert_eq!(
            find("gzip").map(NginxDirective::syntax_line).as_deref(),
            Some("gzip on | off;")
        );
        assert_eq!(
            find("events").map(NginxDirective::syntax_line).as_deref(),
            Some("events { ... }")
        );
        assert_eq!(
            find("internal").map(NginxDirective::syntax_line).as_deref(),
            Some("internal;")
        );
        assert_eq!(find("gzi"), None);
        assert_eq!(find(""), None);
    }
}
