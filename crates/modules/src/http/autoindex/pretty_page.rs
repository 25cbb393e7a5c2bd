//! A page for people: follows the system's light or dark mode, with icons, readable sizes, the path
//! as links, and sortable columns. It loads nothing from elsewhere. Without scripts it is the same
//! page, not sortable.

use proto::date::TimeZone;
use rt::file::InodeKind;

use super::{Conf, ListingEntry, escape};
use crate::shared::html_page;

/// The style of the table; on a narrow screen the date column disappears.
const STYLE: &str = "\
nav{font-size:1.25rem;font-weight:600;overflow-wrap:anywhere}
nav span{color:var(--soft);font-weight:400;padding:0 .15rem}
a{color:var(--link);text-decoration:none}
a:hover{text-decoration:underline}
table{width:100%;border-collapse:collapse;background:var(--paper);border:1px solid var(--line);border-radius:.6rem;overflow:hidden;border-spacing:0}
th,td{padding:.5rem .9rem;text-align:left;border-top:1px solid var(--line);white-space:nowrap}
thead th{border-top:0;font-size:.8rem;font-weight:600;color:var(--soft)}
th button{all:unset;cursor:pointer}
th button:hover,th button:focus-visible{color:var(--ink);text-decoration:underline}
th[aria-sort=ascending] button::after{content:' \\2191'}
th[aria-sort=descending] button::after{content:' \\2193'}
td:first-child{white-space:normal;overflow-wrap:anywhere;width:100%;padding-left:2.7rem;text-indent:-1.8rem}
td:nth-child(n+2){color:var(--soft);font-variant-numeric:tabular-nums}
th:nth-child(2),td:nth-child(2){text-align:right}
tbody tr:hover{background:var(--over)}
svg{width:1.1rem;height:1.1rem;vertical-align:-.2rem;margin-right:.7rem;fill:none;stroke:var(--soft);stroke-width:1.6;stroke-linejoin:round}
.d svg{stroke:var(--link);fill:var(--over)}
header{display:flex;gap:.7rem;align-items:center;flex-wrap:wrap;margin-bottom:1rem}
header nav{flex:1 1 12rem}
input,header button{font:inherit;color:inherit;background:var(--paper);border:1px solid var(--line);border-radius:.4rem;padding:.3rem .6rem}
header button{color:var(--link);cursor:pointer}
footer{color:var(--soft);font-size:.85rem;margin-top:.9rem}
@media(max-width:36rem){th:nth-child(3),td:nth-child(3){display:none}}
";

/// Sorts by the clicked column, directories first, and filters names by what is typed. The filter
/// box is hidden without scripts.
const SCRIPT: &str = "\
document.querySelectorAll('th button').forEach(function(b,i){b.onclick=function(){\
var h=b.parentNode,up=h.getAttribute('aria-sort')!='ascending',t=document.querySelector('tbody');\
document.querySelectorAll('th').forEach(function(o){o.removeAttribute('aria-sort')});\
h.setAttribute('aria-sort',up?'ascending':'descending');\
var key=function(r){var v=r.cells[i].dataset.v;return i?+v:v};\
var c=new Intl.Collator(undefined,{numeric:true});\
Array.from(t.rows).filter(function(r){return!r.dataset.up}).sort(function(a,b){\
var d=(b.className=='d')-(a.className=='d');if(d)return d;\
var x=key(a),y=key(b),n=i?x-y:c.compare(x,y);return up?n:-n}).forEach(function(r){t.appendChild(r)})}});\
(function(){var f=document.getElementById('f'),s=document.querySelector('footer'),all=s.textContent;\
f.hidden=false;f.oninput=function(){var w=f.value.toLowerCase(),n=0;\
document.querySelectorAll('tbody tr').forEach(function(r){if(r.dataset.up)return;\
r.hidden=r.cells[0].dataset.v.toLowerCase().indexOf(w)<0;n+=!r.hidden});\
s.textContent=w?n+' shown of '+all:all}})();";

/// Uploads the chosen files to this directory by `PUT`, one after the other.
const UPLOAD: &str = "\
(function(){var u=document.getElementById('u'),s=document.getElementById('s'),b=document.getElementById('b');\
b.hidden=false;b.onclick=function(){u.click()};\
u.onchange=async function(){for(var f of u.files){s.textContent='sending '+f.name;\
var r=await fetch(encodeURIComponent(f.name),{method:'PUT',body:f});\
if(!r.ok){s.textContent=f.name+': '+(r.status==409?'a file with this name exists':r.status+' '+r.statusText);return}}\
location.reload()}})();";

/// The icons, as paths in SVG so that they follow the colours of the page.
const FOLDER: &str = "<svg viewBox=\"0 0 24 24\"><path d=\"M3 6.5h6l2 2.5h10v10.5H3z\"/></svg>";
const FILE: &str =
    "<svg viewBox=\"0 0 24 24\"><path d=\"M6 3h8l4.5 4.5V21H6zM14 3v4.5h4.5\"/></svg>";
const IMAGE: &str = "<svg viewBox=\"0 0 24 24\"><path d=\"M4 5h16v14H4zM4 16l4.5-4.5L13 16l2.5-2.5L20 18M15.5 9h.01\"/></svg>";
const SOUND: &str = "<svg viewBox=\"0 0 24 24\"><path d=\"M9 17.5V5l10-1.5V16M9 17.5a2.5 2.5 0 1 1-5 0 2.5 2.5 0 0 1 5 0M19 \
                     16a2.5 2.5 0 1 1-5 0 2.5 2.5 0 0 1 5 0\"/></svg>";
const VIDEO: &str = "<svg viewBox=\"0 0 24 24\"><path d=\"M4 5h16v14H4zM10 9l5 3-5 3z\"/></svg>";
const ARCHIVE: &str =
    "<svg viewBox=\"0 0 24 24\"><path d=\"M4 4h16v4H4zM5 8h14v12H5zM10 12h4\"/></svg>";
const TEXT: &str =
    "<svg viewBox=\"0 0 24 24\"><path d=\"M6 3h8l4.5 4.5V21H6zM9 11h6M9 14h6M9 17h4\"/></svg>";

/// Elements that only work with scripts are hidden until the script shows them.
const FILTER_BOX: &[u8] =
    b"<input id=\"f\" type=\"search\" placeholder=\"Filter\" aria-label=\"Filter\" hidden>\n";
const UPLOAD_BUTTON: &[u8] =
    b"<span id=\"s\" role=\"status\"></span><button id=\"b\" hidden>Upload</button>\
    <input id=\"u\" type=\"file\" multiple hidden>\n";

/// Icons by file name extension.
const ICONS: [(&str, &[&str]); 5] = [
    (
        IMAGE,
        &[
            "png", "jpg", "jpeg", "gif", "webp", "avif", "svg", "ico", "bmp", "tiff", "heic",
        ],
    ),
    (SOUND, &["mp3", "ogg", "flac", "wav", "m4a", "opus", "aac"]),
    (
        VIDEO,
        &["mp4", "mkv", "webm", "mov", "avi", "m4v", "mpg", "mpeg"],
    ),
    (
        ARCHIVE,
        &[
            "zip", "gz", "tgz", "xz", "zst", "bz2", "tar", "7z", "rar", "deb", "rpm", "iso", "jar",
        ],
    ),
    (
        TEXT,
        &[
            "txt", "md", "html", "htm", "css", "js", "json", "xml", "csv", "log", "rs", "c", "h",
            "py", "toml", "yaml", "yml", "pdf", "conf", "sh",
        ],
    ),
];

/// Appends the page.
pub(super) fn write(path: &[u8], entries: &[ListingEntry], conf: &Conf, out: &mut Vec<u8>) {
    out.extend_from_slice(html_page::HEAD.as_bytes());
    out.extend_from_slice(b"<title>Index of ");
    escape::html(path, out);
    out.extend_from_slice(b"</title>\n<style>\n");
    // Inline, so that the page is complete with one request and works without access to other
    // servers.
    out.extend_from_slice(html_page::STYLE.as_bytes());
    out.extend_from_slice(STYLE.as_bytes());
    out.extend_from_slice(b"</style>\n</head>\n<body>\n<main>\n");
    out.extend_from_slice(b"<header>");
    write_breadcrumbs(path, out);
    out.extend_from_slice(FILTER_BOX);
    // Only where a PUT will be accepted: a button that always fails is worse than none.
    if conf.upload {
        out.extend_from_slice(UPLOAD_BUTTON);
    }
    out.extend_from_slice(b"</header>\n<table>\n<thead><tr>");
    for (column, sorted) in [
        ("Name", " aria-sort=\"ascending\""),
        ("Size", ""),
        ("Changed", ""),
    ] {
        out.extend_from_slice(
            format!("<th scope=\"col\"{sorted}><button>{column}</button></th>").as_bytes(),
        );
    }
    out.extend_from_slice(b"</tr></thead>\n<tbody>\n");
    // Marked, so that sorting and filtering leave the link to the parent in place.
    if path != b"/" {
        out.extend_from_slice(b"<tr data-up=\"1\" class=\"d\"><td>");
        out.extend_from_slice(FOLDER.as_bytes());
        out.extend_from_slice(b"<a href=\"../\">..</a></td><td></td><td></td></tr>\n");
    }
    for entry in entries {
        write_entry(entry, conf, out);
    }
    out.extend_from_slice(b"</tbody>\n</table>\n");
    write_totals(entries, out);
    out.extend_from_slice(b"</main>\n<script>");
    out.extend_from_slice(SCRIPT.as_bytes());
    if conf.upload {
        out.extend_from_slice(UPLOAD.as_bytes());
    }
    out.extend_from_slice(b"</script>\n</body>\n</html>\n");
}

/// The path with each component as a link. The links are relative, so that the page also works
/// behind a proxy that serves it at another path.
fn write_breadcrumbs(path: &[u8], out: &mut Vec<u8>) {
    let parts: Vec<&[u8]> = path
        .split(|byte| *byte == b'/')
        .filter(|part| !part.is_empty())
        .collect();
    out.extend_from_slice(b"<nav aria-label=\"Path\">");
    for depth in 0..=parts.len() {
        let above = parts.len() - depth;
        let name = if depth == 0 { b"/" } else { parts[depth - 1] };
        if depth > 1 {
            out.extend_from_slice(b"<span>/</span>");
        }
        // The page itself: its own name is not a link.
        if above == 0 {
            escape::html(name, out);
            break;
        }
        out.extend_from_slice(b"<a href=\"");
        out.extend_from_slice("../".repeat(above).as_bytes());
        out.extend_from_slice(b"\">");
        escape::html(name, out);
        out.extend_from_slice(b"</a>");
        if depth == 0 {
            out.push(b' ');
        }
    }
    out.extend_from_slice(b"</nav>\n");
}

/// Appends the row of an entry. `data-v` carries the value to sort by.
fn write_entry(entry: &ListingEntry, conf: &Conf, out: &mut Vec<u8>) {
    let is_directory = entry.kind == InodeKind::Directory;
    out.extend_from_slice(if is_directory {
        b"<tr class=\"d\"><td data-v=\""
    } else {
        b"<tr><td data-v=\""
    });
    // A file name may have any bytes but a slash and zero, so it is escaped wherever it appears.
    escape::html(&entry.name, out);
    out.extend_from_slice(b"\">");
    out.extend_from_slice(icon(entry).as_bytes());
    out.extend_from_slice(b"<a href=\"");
    // A link needs two escapes: for the URL and for HTML.
    escape::link(&entry.name, out);
    out.extend_from_slice(if is_directory { b"/\">" } else { b"\">" });
    escape::html(&entry.name, out);
    out.extend_from_slice(if is_directory {
        b"/</a></td>"
    } else {
        b"</a></td>"
    });
    let (number, shown) = if is_directory {
        // A directory's own size says nothing about its content.
        (0, String::new())
    } else {
        (entry.size, readable(entry.size))
    };
    out.extend_from_slice(
        format!("<td data-v=\"{number}\" title=\"{number} bytes\">{shown}</td>").as_bytes(),
    );
    out.extend_from_slice(format!("<td data-v=\"{}\">", entry.modified).as_bytes());
    // The time is already shifted into the zone to be shown.
    let zone = TimeZone::UTC;
    let begin = out.len();
    // Of "1994-11-06T08:49:37+00:00", show the date and the minute.
    proto::date::write_iso8601(super::shown_time(entry, conf), &zone, out);
    out.truncate(out.len().min(begin + "1994-11-06T08:49".len()));
    if let Some(byte) = out.get_mut(begin + "1994-11-06".len()) {
        *byte = b' ';
    }
    out.extend_from_slice(b"</td></tr>\n");
}

/// The icon of an entry.
fn icon(entry: &ListingEntry) -> &'static str {
    if entry.kind == InodeKind::Directory {
        return FOLDER;
    }
    let dot = entry
        .name
        .iter()
        .rposition(|byte| *byte == b'.')
        .unwrap_or(entry.name.len());
    // A name without a dot has an empty ending, which no icon has.
    let ending = entry.name.get(dot + 1..).unwrap_or_default();
    let known = |(_, endings): &&(&str, &[&str])| {
        endings
            .iter()
            .any(|known| known.as_bytes().eq_ignore_ascii_case(ending))
    };
    ICONS.iter().find(known).map_or(FILE, |(icon, _)| icon)
}

/// The totals below the table.
fn write_totals(entries: &[ListingEntry], out: &mut Vec<u8>) {
    let folders = entries
        .iter()
        .filter(|entry| entry.kind == InodeKind::Directory)
        .count();
    let files = entries.len() - folders;
    let size = entries
        .iter()
        // Devices and sockets have no size to add.
        .filter(|entry| entry.kind == InodeKind::Regular)
        .map(|entry| entry.size)
        .sum();
    let counted = |count: usize, one: &str, several: &str| match count {
        1 => format!("1 {one}"),
        _ => format!("{count} {several}"),
    };
    let directories = || counted(folders, "directory", "directories");
    let file_count = || counted(files, "file", "files");
    let text = match (folders, files) {
        (0, 0) => "This directory is empty.".to_owned(),
        (_, 0) => directories(),
        (0, _) => format!("{}, {}", file_count(), readable(size)),
        _ => format!("{}, {}, {}", directories(), file_count(), readable(size)),
    };
    out.extend_from_slice(format!("<footer>{text}</footer>\n").as_bytes());
}

/// A readable size: `0 B`, `1.5 KB`, `12 MB`. Units are powers of 1024, as everywhere in nginx.
fn readable(size: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KB", "MB", "GB", "TB", "PB"];
    let mut value = size as f64;
    let mut unit = 0;
    // Rounded to three digits at most, so 999.5 is the first value that needs the next unit.
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit > 0 && value < 9.95 {
        format!("{value:.1} {}", UNITS[unit])
    } else {
        format!("{value:.0} {}", UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_two_or_three_digits() {
        let sizes = [0, 999, 1000, 1536, 10_240, 1_048_576, 5 << 30];
        let shown = [
            "0 B", "999 B", "1.0 KB", "1.5 KB", "10 KB", "1.0 MB", "5.0 GB",
        ];
        for (size, shown) in sizes.into_iter().zip(shown) {
            assert_eq!(readable(size), shown);
        }
    }

    #[test]
    fn the_way_up_is_relative_and_escaped() {
        let mut out = Vec::new();
        write_breadcrumbs(b"/a/<b>/", &mut out);
        let text = String::from_utf8(out).expect("ASCII");
        assert!(
            text.contains(
                "<a href=\"../../\">/</a> <a href=\"../\">a</a><span>/</span>&lt;b&gt;</nav>"
            ),
            "{text}"
        );
    }
}
