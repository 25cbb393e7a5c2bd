//! The link checker: every link of the written site is followed, to a file and to the anchor in it. Links to other hosts are
//! counted, and not asked for: a build must not depend on them. A page must load nothing from there either.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use super::files;

/// What was followed.
#[derive(Default)]
pub(crate) struct LinkCounts {
    pages: usize,
    internal: usize,
    anchors: usize,
    images: usize,
    external: BTreeSet<String>,
}

impl fmt::Display for LinkCounts {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "{} links inside ({} to an anchor) and {} pictures and scripts, none broken; {} other addresses, not asked for",
            self.internal,
            self.anchors,
            self.images,
            self.external.len()
        )
    }
}

/// Follows all links below a directory.
pub(crate) fn links(site: &Path) -> Result<LinkCounts, String> {
    let mut pages = BTreeMap::new();
    collect(site, site, &mut pages)?;
    let mut counts = LinkCounts {
        pages: pages.len(),
        ..LinkCounts::default()
    };
    let mut broken = Vec::new();
    for (path, text) in &pages {
        for (attribute, link) in attributes(text) {
            if let Some(problem) = follow(site, &pages, path, (attribute, &link), &mut counts) {
                broken.push(format!("{}: {problem}: {link}", path.display()));
            }
        }
    }
    broken.sort();
    broken.dedup();
    match broken.is_empty() {
        true => Ok(counts),
        false => Err(format!(
            "{} broken links in {} pages:\n  {}",
            broken.len(),
            counts.pages,
            broken.join("\n  ")
        )),
    }
}

/// The pages below a directory, by their paths in the site.
fn collect(
    site: &Path,
    directory: &Path,
    pages: &mut BTreeMap<PathBuf, String>,
) -> Result<(), String> {
    let entries = fs::read_dir(directory).map_err(|error| error.to_string())?;
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            collect(site, &path, pages)?;
        } else if path.extension().is_some_and(|end| end == "html") {
            let place = path.strip_prefix(site).expect("it is below the site");
            pages.insert(place.to_owned(), super::read(&path)?);
        }
    }
    Ok(())
}

/// The values of `href` and `src`, in quotes or without; what a script contains is not a link.
fn attributes(page: &str) -> Vec<(&'static str, String)> {
    let mut found = Vec::new();
    for name in ["href", "src"] {
        for part in page.split(&format!(" {name}=")).skip(1) {
            let value = match part.strip_prefix('"') {
                Some(quoted) => quoted.split('"').next(),
                None => part.split(['>', ' ']).next(),
            };
            found.extend(value.map(|value| (name, value.replace("&amp;", "&"))));
        }
    }
    found
}

/// What is wrong with a link, if something is.
fn follow(
    site: &Path,
    pages: &BTreeMap<PathBuf, String>,
    page: &Path,
    (attribute, link): (&str, &str),
    counts: &mut LinkCounts,
) -> Option<&'static str> {
    if link.starts_with("data:") || link.starts_with("mailto:") {
        return None;
    }
    if link.contains("://") {
        counts.external.insert(link.to_owned());
        return (attribute == "src").then_some("loaded from another host");
    }
    let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
    let target = match file {
        "" => page.to_owned(),
        file => files::target(page, file),
    };
    if attribute == "src" {
        counts.images += 1;
    } else {
        counts.internal += 1;
    }
    if !site.join(&target).is_file() {
        return Some("no such file");
    }
    if anchor.is_empty() {
        return None;
    }
    counts.anchors += 1;
    let text = pages.get(&target)?;
    let has_it = [
        format!("id=\"{anchor}\""),
        format!("id={anchor}>"),
        format!("id={anchor} "),
    ]
    .iter()
    .any(|id| text.contains(id.as_str()));
    (!has_it).then_some("no such anchor")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_found() {
        let page = "<a class=d href=\"a.html#b\">x</a> <img src=\"c.png\"> <a href=#top>";
        let found = attributes(page);
        let links: Vec<&str> = found.iter().map(|(_, link)| link.as_str()).collect();
        assert_eq!(links, ["a.html#b", "#top", "c.png"]);
    }
}
