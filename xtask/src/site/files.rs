//! The Markdown files that become pages, and their places in the site.

use std::fs;
use std::path::{Component, Path, PathBuf};

/// The pages of the project's root.
const ROOT: [&str; 6] = [
    "README.md",
    "CHANGELOG.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "benches/README.md",
];

/// The directories of which every page is one.
const DIRECTORIES: [&str; 4] = ["docs", "docs/guide", "docs/reference", "docs/design"];

/// A page as it is in the repository.
pub(crate) struct SourceFile {
    /// Its path in the repository.
    pub(crate) path: PathBuf,
    /// Its path in the site.
    pub(crate) place: String,
    pub(crate) text: String,
}

/// All pages.
pub(crate) fn sources() -> Result<Vec<SourceFile>, String> {
    let mut paths: Vec<PathBuf> = ROOT.iter().map(PathBuf::from).collect();
    for directory in DIRECTORIES {
        let entries = fs::read_dir(directory).map_err(|error| format!("{directory}: {error}"))?;
        let found = entries.flatten().map(|entry| entry.path());
        let mut found: Vec<PathBuf> = found
            .filter(|path| path.extension().is_some_and(|end| end == "md"))
            .collect();
        found.sort();
        paths.append(&mut found);
    }
    paths
        .into_iter()
        .map(|path| {
            let text = super::read(&path)?;
            let place = place_of(&path);
            Ok(SourceFile { path, place, text })
        })
        .collect()
}

/// `docs/guide/tls.md` becomes `docs/guide/tls.html`, and a README the page of its directory.
fn place_of(path: &Path) -> String {
    let place = path.with_extension("html").display().to_string();
    match place.strip_suffix("README.html") {
        Some(directory) => format!("{directory}index.html"),
        None => place,
    }
}

/// Where a link of a page leads, in the repository.
pub(crate) fn target(page: &Path, link: &str) -> PathBuf {
    let mut path = page.parent().map(Path::to_owned).unwrap_or_default();
    for part in Path::new(link).components() {
        match part {
            Component::ParentDir => drop(path.pop()),
            Component::Normal(name) => path.push(name),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_and_targets() {
        assert_eq!(place_of(Path::new("README.md")), "index.html");
        assert_eq!(
            place_of(Path::new("docs/guide/tls.md")),
            "docs/guide/tls.html"
        );
        let page = Path::new("docs/guide/tls.md");
        assert_eq!(target(page, "../compat.md"), Path::new("docs/compat.md"));
        assert_eq!(target(page, "./http3.md"), Path::new("docs/guide/http3.md"));
    }
}
