//! `cargo xtask site`: the documentation as a site in `target/site`, from the same files that are read on the forge.
//!
//! Every Markdown page becomes a page with navigation, search and two themes; `README.md` is the front page. A site loads nothing
//! from other hosts, and works from a disk as well as from a server. At the end every link is followed: one that leads nowhere is
//! an error, whether in the pages or in what this task made of them.
//!
//! mdBook would want its own tree and list of chapters; ours are read in place, where links between them already hold.

mod check;
mod files;
mod highlight;
mod layout;
mod markdown;
mod search;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use xtask::flags::Flags;
use xtask::{Outcome, shell};

use layout::SiteMap;
use markdown::{DirectiveLinks, RenderedPage};

/// What pages need, beside themselves.
const ASSETS: [(&str, &str); 2] = [
    ("site.css", include_str!("site.css")),
    ("site.js", include_str!("site.js")),
];

/// Writes the site, and checks it. `--to DIR` writes it elsewhere.
pub(crate) fn run(flags: &mut Flags) -> Outcome {
    let to: PathBuf = flags.value("--to", shell::target().join("site"))?;
    flags.finish()?;
    let _ = fs::remove_dir_all(&to);
    let sources = files::sources()?;
    let directives = directive_links()?;
    let mut pages: BTreeMap<&Path, RenderedPage> = BTreeMap::new();
    for source in &sources {
        let page = markdown::render(source, &sources, &directives)?;
        pages.insert(&source.path, page);
    }
    let map = SiteMap::of(&sources, &pages)?;
    for source in &sources {
        let page = &pages[source.path.as_path()];
        write(&to, &source.place, &layout::page(source, page, &map))?;
    }
    for (name, text) in ASSETS {
        write(&to, name, text)?;
    }
    write(&to, "search.js", &search::index(&sources, &pages))?;
    copy_assets(&to, pages.values())?;
    let counts = check::links(&to)?;
    println!("{}: {} pages, {counts}", to.display(), sources.len());
    Ok(())
}

/// Where each directive is described, from the index of the reference.
fn directive_links() -> Result<DirectiveLinks, String> {
    let path = Path::new("docs/reference/directives.md");
    let index = read(path)?;
    let mut links = DirectiveLinks::new();
    for line in index.lines() {
        let name = line
            .strip_prefix("- `")
            .and_then(|rest| rest.split_once('`'));
        let Some((name, rest)) = name else { continue };
        if let Some((_, target)) = rest.split_once("](")
            && let Some((target, _)) = target.split_once(')')
        {
            let target = format!("docs/reference/{}", target.replace(".md#", ".html#"));
            links.insert(name.to_owned(), target);
        }
    }
    Ok(links)
}

/// Copies the pictures and examples that pages name.
fn copy_assets<'a>(to: &Path, pages: impl Iterator<Item = &'a RenderedPage>) -> Outcome {
    let mut all: Vec<&PathBuf> = pages.flat_map(|page| &page.assets).collect();
    all.sort();
    all.dedup();
    for path in all {
        let target = to.join(path);
        let parent = target.parent().expect("a file is in a directory");
        fs::create_dir_all(parent)
            .and_then(|()| fs::copy(path, &target))
            .map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn write(to: &Path, place: &str, text: &str) -> Outcome {
    let path = to.join(place);
    let parent = path.parent().expect("a file is in a directory");
    fs::create_dir_all(parent)
        .and_then(|()| fs::write(&path, text))
        .map_err(|error| format!("{}: {error}", path.display()))
}

/// The address of a page as another one writes it.
pub(crate) fn relative(from: &str, to: &str) -> String {
    let depth = from.matches('/').count();
    format!("{}{to}", "../".repeat(depth))
}

/// Text as HTML.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_go_up_and_down() {
        assert_eq!(relative("index.html", "docs/a.html"), "docs/a.html");
        assert_eq!(relative("docs/guide/a.html", "site.css"), "../../site.css");
    }
}
