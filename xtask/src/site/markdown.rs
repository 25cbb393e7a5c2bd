//! One page: Markdown to HTML, with the anchors of headings, links that hold in the site, and code with colours.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use pulldown_cmark::{CodeBlockKind, CowStr, Event, Options, Parser, Tag, TagEnd, html};

use super::files::{self, SourceFile};
use super::{escape, highlight, relative};

/// Where files that are not part of the site are shown.
const FORGE: &str = concat!(env!("CARGO_PKG_REPOSITORY"), "/blob/main/");

/// The directories whose files the site has itself, as they are.
const COPIED: [&str; 4] = ["docs/pictures", "examples", "benches/report", "LICENSE"];

/// The page and anchor of each directive.
pub(crate) type DirectiveLinks = BTreeMap<String, String>;

/// A part of a page below a heading.
pub(crate) struct PageSection {
    pub(crate) level: u8,
    pub(crate) title: String,
    pub(crate) anchor: String,
    /// The words below it, for the search.
    pub(crate) text: String,
}

/// A page as HTML, without its surroundings.
pub(crate) struct RenderedPage {
    pub(crate) title: String,
    pub(crate) body: String,
    pub(crate) sections: Vec<PageSection>,
    /// Files that it names and that are copied.
    pub(crate) assets: Vec<PathBuf>,
    /// Links to other pages, in their order, with their texts.
    pub(crate) links: Vec<(PathBuf, String)>,
}

/// Renders a page.
pub(crate) fn render(
    source: &SourceFile,
    sources: &[SourceFile],
    directives: &DirectiveLinks,
) -> Result<RenderedPage, String> {
    let options = Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH;
    let mut events: Vec<Event> = Parser::new_ext(&source.text, options).collect();
    let mut page = RenderedPage {
        title: source.place.clone(),
        body: String::new(),
        sections: sections(&events),
        assets: Vec::new(),
        links: Vec::new(),
    };
    if let Some(first) = page.sections.first() {
        page.title.clone_from(&first.title);
    }
    rewrite(&mut events, source, sources, &mut page)?;
    let events = coloured(events, source, directives);
    html::push_html(&mut page.body, events.into_iter());
    // A wide table scrolls by itself, not with the page.
    page.body = page
        .body
        .replace("<table>", "<div class=wide><table>")
        .replace("</table>", "</table></div>");
    Ok(page)
}

/// The headings with what is below each.
fn sections(events: &[Event]) -> Vec<PageSection> {
    let mut found: Vec<PageSection> = Vec::new();
    let mut taken: BTreeMap<String, usize> = BTreeMap::new();
    let mut is_heading = false;
    for event in events {
        match event {
            Event::Start(Tag::Heading { level, .. }) => {
                is_heading = true;
                found.push(PageSection {
                    level: *level as u8,
                    title: String::new(),
                    anchor: String::new(),
                    text: String::new(),
                });
            }
            Event::End(TagEnd::Heading(_)) => {
                is_heading = false;
                if let Some(section) = found.last_mut() {
                    section.anchor = unique_anchor(&section.title, &mut taken);
                }
            }
            Event::Text(text) | Event::Code(text) => {
                let Some(section) = found.last_mut() else {
                    continue;
                };
                let part = match is_heading {
                    true => &mut section.title,
                    false => &mut section.text,
                };
                part.push_str(text);
            }
            Event::SoftBreak | Event::End(_) => {
                if let Some(section) = found.last_mut().filter(|_| !is_heading) {
                    section.text.push(' ');
                }
            }
            _ => {}
        }
    }
    found
}

/// The anchor that forges give a heading: lower case, hyphens for spaces, nothing else but letters, digits and `_`.
fn unique_anchor(title: &str, taken: &mut BTreeMap<String, usize>) -> String {
    let lower = title.to_lowercase();
    let letters = lower.chars().filter_map(|letter| match letter {
        ' ' => Some('-'),
        '-' | '_' => Some(letter),
        letter => letter.is_alphanumeric().then_some(letter),
    });
    let anchor: String = letters.collect();
    let count = taken.entry(anchor.clone()).or_default();
    *count += 1;
    match *count {
        1 => anchor,
        count => format!("{anchor}-{}", count - 1),
    }
}

/// Adds anchors, and makes links what they are in the site.
fn rewrite(
    events: &mut [Event],
    source: &SourceFile,
    sources: &[SourceFile],
    page: &mut RenderedPage,
) -> Result<(), String> {
    let mut heading = 0;
    let mut text_of: Option<usize> = None;
    for event in events {
        match event {
            Event::Start(Tag::Heading { id, .. }) => {
                *id = Some(page.sections[heading].anchor.clone().into());
                heading += 1;
            }
            Event::Start(Tag::Link { dest_url, .. }) => {
                let before = page.links.len();
                *dest_url = address(dest_url, source, sources, page)?;
                text_of = (page.links.len() > before).then_some(before);
            }
            Event::Start(Tag::Image { dest_url, .. }) => {
                *dest_url = address(dest_url, source, sources, page)?;
            }
            Event::End(TagEnd::Link) => text_of = None,
            Event::Text(text) => {
                if let Some(link) = text_of.and_then(|at| page.links.get_mut(at)) {
                    link.1.push_str(text);
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// A link of a page, in the site.
fn address<'a>(
    link: &str,
    source: &SourceFile,
    sources: &[SourceFile],
    page: &mut RenderedPage,
) -> Result<CowStr<'a>, String> {
    if link.starts_with('#') || link.contains("://") || link.starts_with("mailto:") {
        return Ok(link.to_owned().into());
    }
    let (file, anchor) = match link.split_once('#') {
        Some((file, anchor)) => (file, format!("#{anchor}")),
        None => (link, String::new()),
    };
    let target = files::target(&source.path, file);
    let readme = target.join("README.md");
    let is_page = |file: &&SourceFile| file.path == target || file.path == readme;
    if let Some(other) = sources.iter().find(is_page) {
        page.links.push((other.path.clone(), String::new()));
        return Ok(format!("{}{anchor}", relative(&source.place, &other.place)).into());
    }
    if !target.exists() {
        return Err(format!(
            "{}: no file for the link {link}",
            source.path.display()
        ));
    }
    if target.is_file() && is_copied(&target) {
        page.assets.push(target.clone());
        let place = target.display().to_string();
        return Ok(relative(&source.place, &place).into());
    }
    Ok(format!("{FORGE}{}{anchor}", target.display()).into())
}

fn is_copied(path: &Path) -> bool {
    let path = path.display().to_string();
    COPIED.iter().any(|start| path.starts_with(start))
}

/// With code blocks as HTML.
fn coloured<'a>(
    events: Vec<Event<'a>>,
    source: &SourceFile,
    directives: &DirectiveLinks,
) -> Vec<Event<'a>> {
    let mut out = Vec::with_capacity(events.len());
    let mut block: Option<(String, String)> = None;
    for event in events {
        match (event, &mut block) {
            (Event::Start(Tag::CodeBlock(kind)), _) => {
                let language = match kind {
                    // What follows is for the test of the guide, such as a file's name.
                    CodeBlockKind::Fenced(words) => {
                        let language = words.split(' ').next().unwrap_or_default();
                        language.to_owned()
                    }
                    CodeBlockKind::Indented => String::new(),
                };
                block = Some((language, String::new()));
            }
            (Event::End(TagEnd::CodeBlock), Some((language, code))) => {
                let code = match language.as_str() {
                    "nginx" => highlight::nginx(code, |name| {
                        let place = directives.get(name)?;
                        Some(relative(&source.place, place))
                    }),
                    "sh" => highlight::commands(code),
                    _ => escape(code),
                };
                out.push(Event::Html(
                    format!("<pre><code>{code}</code></pre>\n").into(),
                ));
                block = None;
            }
            (Event::Text(text), Some((_, code))) => code.push_str(&text),
            (event, _) => out.push(event),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anchors_are_those_of_forges() {
        let mut taken = BTreeMap::new();
        let mut anchor = |title: &str| unique_anchor(title, &mut taken);
        assert_eq!(
            anchor("What would the server do?"),
            "what-would-the-server-do"
        );
        assert_eq!(anchor("proxy_pass"), "proxy_pass");
        assert_eq!(anchor("proxy_pass"), "proxy_pass-1");
    }
}
