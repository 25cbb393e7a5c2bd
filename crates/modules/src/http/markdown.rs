//! `markdown`: shows Markdown files as pages to clients that accept HTML.
//!
//! ```nginx
//! markdown on;      # /README.md is a page for a browser, and the text for curl
//! ```
//!
//! The author of a file gets no power over its reader: HTML in it is shown as text, links are
//! limited to harmless schemes, and the page's policy forbids scripts. Files above [`MAX_LENGTH`]
//! are served as they are.

use bstr::ByteSlice as _;
use conf::{Directive, DirectiveTable, HTTP_SERVER_LOCATION, Setter};
use http::files::{self, FilePurpose};
use http::response_body::ResponseBody;
use http::{HandlerOutcome, HandlerStep, HttpModule, HttpPhase, Request};
use proto::KnownField;
use proto::message::Method;
use pulldown_cmark::{CowStr, Event, Options, Parser, Tag};

use crate::shared::html_page;

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "markdown",
    doc: "Shows Markdown files as pages.",
    location: &DIRECTIVES,
    phases: &[(HttpPhase::Content, serve)],
    enabled: |location| location.confs.get::<Conf>().on,
    explain: http::module::ModuleExplain::Runs(&["markdown"]),
    ..HttpModule::EMPTY
};

static DIRECTIVES: DirectiveTable<Conf> = DirectiveTable::new(&[Directive {
    name: "markdown",
    syntax: "on | off",
    default: Some("off"),
    contexts: HTTP_SERVER_LOCATION,
    since: "0.1",
    doc: "Whether to show files that end in `.md` or `.markdown` as pages to clients whose `Accept` names `text/html`. HTML \
          in them is shown as text, only `http`, `https`, `mailto` and relative links work, and scripts are forbidden. \
          Other clients get the file itself; so do all clients if it is larger than 1 MB.",
    set: Setter::Flag(|c| &mut c.on),
}]);

#[derive(Clone, Debug, Default)]
struct Conf {
    on: bool,
}

/// The maximum length of a file that is converted, in bytes: it is kept in memory several times.
const MAX_LENGTH: u64 = 1 << 20;

/// Link schemes that only lead somewhere; `javascript:` runs in the page.
const SCHEMES: [&str; 3] = ["http", "https", "mailto"];

const STYLE: &str = "\
article{background:var(--paper);border:1px solid var(--line);border-radius:.6rem;padding:1.2rem 1.6rem;overflow-wrap:anywhere}
h1,h2{border-bottom:1px solid var(--line);padding-bottom:.2rem}
pre,code{font:.9em/1.5 ui-monospace,Menlo,Consolas,monospace;background:var(--back);border-radius:.3rem}
code{padding:.1rem .3rem}
pre{padding:.8rem;overflow:auto}
pre code{padding:0}
blockquote{margin:0;padding-left:1rem;border-left:.25rem solid var(--line);color:var(--soft)}
table{border-collapse:collapse}
th,td{border:1px solid var(--line);padding:.3rem .6rem}
img{max-width:100%}
";

/// Allows the page's own style and images, and nothing else. A second line of defence, should the
/// conversion let something through.
const POLICY: &str = "<meta http-equiv=\"Content-Security-Policy\" \
                      content=\"default-src 'none';style-src 'unsafe-inline';img-src *\">\n";

/// The content handler. Other clients get the file from the static module.
fn serve(request: &mut Request) -> HandlerStep<'_> {
    let path = &request.uri.path;
    let is_text = path.ends_with(b".md") || path.ends_with(b".markdown");
    if !is_text || !matches!(request.method, Method::Get | Method::Head) {
        return HandlerOutcome::Declined.into();
    }
    // For clients that get the file, too, since caches must keep the two apart.
    let fields = &mut request.out.fields;
    fields.push_known(KnownField::Vary, b"Accept");
    let accept = request.head.known(KnownField::Accept);
    let takes = accept.is_some_and(|accept| accept.contains_str("text/html"));
    match takes {
        true => HandlerStep::later(answer(request)),
        false => HandlerOutcome::Declined.into(),
    }
}

/// The page for a file.
async fn answer(request: &mut Request) -> HandlerOutcome {
    let Some(path) = request.file_path() else {
        return HandlerOutcome::Status(500);
    };
    // The static module reports what cannot be read.
    let Ok(found) = files::open_request_file(request, &path, FilePurpose::Read).await else {
        return HandlerOutcome::Declined;
    };
    let length = found.length();
    let Some(file) = found
        .file
        .clone()
        .filter(|_| found.is_file() && length <= MAX_LENGTH)
    else {
        return HandlerOutcome::Declined;
    };
    let site = std::rc::Rc::clone(&request.site);
    let pool = files::file_pool(request, &site.location(request.location).core.delivery.aio);
    let length = usize::try_from(length).unwrap_or(0);
    let Ok(text) = file.read_at(Vec::new(), 0, length, &pool).await else {
        return HandlerOutcome::Declined;
    };
    let name = request.uri.path.clone();
    // A megabyte of Markdown takes longer than a turn of the loop should.
    let page = pool.run(move || render(&name, &text)).await;
    request.out.status = 200;
    request.out.last_modified = Some(found.modified());
    request.out.content_type = "text/html".into();
    request.out.charset = "utf-8".into();
    request.out.body = ResponseBody::bytes(page);
    HandlerOutcome::Respond
}

/// The page.
fn render(path: &[u8], text: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(text);
    let mut out = Vec::from(html_page::HEAD);
    out.extend_from_slice(POLICY.as_bytes());
    out.extend_from_slice(b"<title>");
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    http::text::write_html(name, &mut out);
    let style = [html_page::STYLE, STYLE].concat();
    out.extend_from_slice(format!("</title>\n<style>\n{style}</style>\n").as_bytes());
    out.extend_from_slice(b"</head>\n<body>\n<main>\n<article>\n");
    let options =
        Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH | Options::ENABLE_TASKLISTS;
    let mut html = String::with_capacity(text.len() * 3 / 2);
    pulldown_cmark::html::push_html(&mut html, Parser::new_ext(&text, options).map(neutralize));
    out.extend_from_slice(html.as_bytes());
    out.extend_from_slice(b"</article>\n</main>\n</body>\n</html>\n");
    out
}

/// Turns HTML into text, and defuses links and images.
fn neutralize(event: Event<'_>) -> Event<'_> {
    match event {
        Event::Html(html) | Event::InlineHtml(html) => Event::Text(html),
        Event::Start(Tag::Link {
            link_type,
            dest_url,
            title,
            id,
        }) => Event::Start(Tag::Link {
            link_type,
            dest_url: neutralize_url(dest_url),
            title,
            id,
        }),
        Event::Start(Tag::Image {
            link_type,
            dest_url,
            title,
            id,
        }) => Event::Start(Tag::Image {
            link_type,
            dest_url: neutralize_url(dest_url),
            title,
            id,
        }),
        other => other,
    }
}

/// The URL, or `#` if its scheme is not harmless.
fn neutralize_url(url: CowStr<'_>) -> CowStr<'_> {
    // Browsers skip spaces and control characters before and inside a scheme, so `java\tscript:` is
    // one.
    let seen: String = url.chars().filter(|c| *c > ' ' && *c != '\u{7f}').collect();
    let end = seen.find(['/', '?', '#', ':']).unwrap_or(seen.len());
    let has_scheme = seen[end..].starts_with(':');
    let known = |scheme: &&str| scheme.eq_ignore_ascii_case(&seen[..end]);
    match !has_scheme || SCHEMES.iter().any(known) {
        true => url,
        false => "#".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn article(text: &str) -> String {
        let page = String::from_utf8(render(b"/a.md", text.as_bytes())).expect("text stays text");
        let (_, rest) = page.split_once("<article>\n").expect("it is there");
        rest.split("</article>")
            .next()
            .expect("one part")
            .to_owned()
    }

    #[test]
    fn texts_become_pages() {
        assert_eq!(article("# A *b*"), "<h1>A <em>b</em></h1>\n");
        assert!(article("|a|\n|-|\n|b|").contains("<td>b</td>"));
        assert_eq!(
            article("[a](b.md) [c](https://d/?e)"),
            "<p><a href=\"b.md\">a</a> <a href=\"https://d/?e\">c</a></p>\n"
        );
    }

    #[test]
    fn nothing_in_a_text_is_done() {
        for text in [
            "<script>alert(1)</script>",
            "a <img src=x onerror=alert(1)>",
            "<a href=\"javascript:alert(1)\">x</a>",
        ] {
            let shown = article(text);
            assert!(shown.contains("&lt;"), "{shown}");
            assert!(
                !shown.contains("<script") && !shown.contains("<img"),
                "{shown}"
            );
        }
        for url in [
            "javascript:alert(1)",
            "JaVaScRiPt:alert(1)",
            "java&#10;script:alert(1)",
            "&#1;javascript:alert(1)",
            "data:text/html,x",
            "vbscript:x",
        ] {
            for text in [
                format!("[x]({url})"),
                format!("![x]({url})"),
                format!("<{url}>"),
            ] {
                let shown = article(&text);
                assert!(
                    !shown.contains("=\"java") && !shown.contains("=\"data"),
                    "{text}: {shown}"
                );
                assert!(
                    !shown.to_lowercase().contains("=\"javascript"),
                    "{text}: {shown}"
                );
            }
        }
    }
}
