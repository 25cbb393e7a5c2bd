//! What surrounds a page: head, navigation, contents of the page, links to the next one.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::files::SourceFile;
use super::markdown::{PageSection, RenderedPage};
use super::{escape, relative};

/// A heading of the navigation, and the pages below it, each with its place and title.
struct SiteChapter {
    title: String,
    pages: Vec<(String, String)>,
    /// Long lists are closed unless the page is one of them.
    is_long: bool,
}

/// The navigation. The guide's order is that of its README, the reference's of its own.
pub(crate) struct SiteMap {
    chapters: Vec<SiteChapter>,
}

const PROJECT: [&str; 8] = [
    "docs/compat.md",
    "benches/README.md",
    "docs/advisories.md",
    "SECURITY.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "ARCHITECTURE.md",
    "docs/style.md",
];

/// More than these are hidden until they are wanted.
const SHORT: usize = 12;

impl SiteMap {
    /// The navigation of these pages. Each page is in it.
    pub(crate) fn of(
        sources: &[SourceFile],
        pages: &BTreeMap<&Path, RenderedPage>,
    ) -> Result<SiteMap, String> {
        let place = |path: &Path| {
            let source = sources.iter().find(|source| source.path == path);
            source.map(|source| (source.place.clone(), pages[path].title.clone()))
        };
        let mut chapters = guide(&pages[Path::new("docs/guide/README.md")], &place);
        let reference = &pages[Path::new("docs/reference/README.md")];
        let mut listed = vec![PathBuf::from("docs/reference/README.md")];
        listed.extend(reference.links.iter().map(|(path, _)| path.clone()));
        chapters.push(chapter("Reference", &listed, &place));
        let design = sources.iter().map(|source| source.path.clone());
        let design: Vec<PathBuf> = design
            .filter(|path| path.starts_with("docs/design"))
            .collect();
        let project: Vec<PathBuf> = PROJECT.iter().map(PathBuf::from).collect();
        chapters.push(chapter("Project", &project, &place));
        chapters.push(chapter("Design", &design, &place));
        let map = SiteMap { chapters };
        let is_there = |source: &&SourceFile| {
            let all = map.chapters.iter().flat_map(|chapter| &chapter.pages);
            source.place != "index.html" && !all.clone().any(|(place, _)| *place == source.place)
        };
        match sources.iter().find(is_there) {
            Some(lost) => Err(format!(
                "{}: no page lists it; a page of the guide belongs into docs/guide/README.md",
                lost.path.display()
            )),
            None => Ok(map),
        }
    }

    /// The pages before and after this one.
    fn neighbours(&self, place: &str) -> [Option<&(String, String)>; 2] {
        let all: Vec<&(String, String)> = self
            .chapters
            .iter()
            .flat_map(|chapter| &chapter.pages)
            .collect();
        let at = all.iter().position(|(other, _)| other == place);
        let before = at.and_then(|at| at.checked_sub(1)).map(|at| all[at]);
        let after = at.and_then(|at| all.get(at + 1)).copied();
        [before, after]
    }
}

type PlaceOfPage<'a> = &'a dyn Fn(&Path) -> Option<(String, String)>;

fn chapter(title: &str, paths: &[PathBuf], place: PlaceOfPage) -> SiteChapter {
    let pages: Vec<(String, String)> = paths.iter().filter_map(|path| place(path)).collect();
    SiteChapter {
        title: title.to_owned(),
        is_long: pages.len() > SHORT,
        pages,
    }
}

/// The chapters of the guide: its README's headings, with the pages that each links to.
fn guide(readme: &RenderedPage, place: PlaceOfPage) -> Vec<SiteChapter> {
    let mut chapters = vec![chapter("", &[PathBuf::from("docs/guide/README.md")], place)];
    let is_guide = |(path, _): &&(PathBuf, String)| path.starts_with("docs/guide");
    let links: Vec<&(PathBuf, String)> = readme.links.iter().filter(is_guide).collect();
    let mut links = links.into_iter();
    let headings = readme.sections.iter().filter(|section| section.level == 2);
    for section in headings {
        // A page is listed by a line that begins with its title.
        let mut paths = Vec::new();
        while let Some((path, title)) = links.as_slice().first() {
            if !section.text.contains(title.as_str()) {
                break;
            }
            paths.push(path.clone());
            links.next();
        }
        chapters.push(chapter(&section.title, &paths, place));
    }
    chapters
}

/// A whole page.
pub(crate) fn page(source: &SourceFile, page: &RenderedPage, map: &SiteMap) -> String {
    let place = &source.place;
    let is_front = place == "index.html";
    let title = match is_front {
        true => "Weir: web server and caching reverse proxy".to_owned(),
        false => format!("{} · Weir", page.title),
    };
    TEMPLATE
        .replace("@ROOT@", &relative(place, ""))
        .replace("@TITLE@", &escape(&title))
        .replace("@NAVIGATION@", &navigation(place, map))
        .replace("@CONTENTS@", &contents(&page.sections))
        .replace("@NEIGHBOURS@", &neighbours(place, map))
        .replace("@BODY@", &page.body)
}

const TEMPLATE: &str = include_str!("page.html");

fn navigation(place: &str, map: &SiteMap) -> String {
    let mut out = String::new();
    for chapter in &map.chapters {
        let is_here = chapter.pages.iter().any(|(other, _)| other == place);
        let mut list = String::from("<ul>");
        for (other, title) in &chapter.pages {
            let current = if other == place {
                " aria-current=page"
            } else {
                ""
            };
            let _ = write!(
                list,
                "<li><a{current} href=\"{}\">{}</a>",
                relative(place, other),
                escape(title)
            );
        }
        list.push_str("</ul>");
        let title = escape(&chapter.title);
        let _ = match (chapter.title.is_empty(), chapter.is_long) {
            (true, _) => write!(out, "{list}"),
            (false, true) => {
                let open = if is_here { " open" } else { "" };
                write!(
                    out,
                    "<details{open}><summary>{title}</summary>{list}</details>"
                )
            }
            (false, false) => write!(out, "<h2>{title}</h2>{list}"),
        };
    }
    out
}

/// The headings of a page, if there are some to choose from.
fn contents(sections: &[PageSection]) -> String {
    let shown: Vec<&PageSection> = sections
        .iter()
        .filter(|section| (2..=3).contains(&section.level))
        .collect();
    if shown.len() < 3 {
        return String::new();
    }
    let mut out = String::from("<h2>On this page</h2><ul>");
    for section in shown {
        let _ = write!(
            out,
            "<li class=l{}><a href=\"#{}\">{}</a>",
            section.level,
            section.anchor,
            escape(&section.title)
        );
    }
    out + "</ul>"
}

fn neighbours(place: &str, map: &SiteMap) -> String {
    let [before, after] = map.neighbours(place);
    let link = |page: Option<&(String, String)>, words: &str, class: &str| {
        page.map_or(String::new(), |(other, title)| {
            let (address, title) = (relative(place, other), escape(title));
            format!(
                "<a class={class} rel={class} href=\"{address}\"><small>{words}</small>{title}</a>"
            )
        })
    };
    link(before, "Before", "prev") + &link(after, "Next", "next")
}
