//! What is served from the disk, and should not be.

use std::path::{Path, PathBuf};

use base::ByteSlice as _;
use conf::Node;

use super::{Danger, Found, Rule};
use crate::check::view::{
    Matches, Site, View, condition, first, has_handler, inherited, is_guarded, locate, matches_of,
    named,
};

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "alias-traversal",
        danger: Danger::Attack,
        at: &["alias"],
        why: "the location is cut off the path, and the rest is appended to the directory: of \"/x../\" the two dots \
              remain and escape from it",
        write: "add a trailing slash to the location, to match the alias",
        bad: "server { location /x { alias /srv/x/; } }",
        good: "server { location /x/ { alias /srv/x/; } location = /y { alias /srv/y/; } location /f.ico { alias /srv/f.ico; } }",
        find: alias_traversal,
    },
    Rule {
        name: "secret-served",
        danger: Danger::Attack,
        at: &["server"],
        why: "the file is below a directory that is served to everyone",
        write: "point \"root\" to a directory with public files only, or add \"location ~ /\\. { deny all; }\" for \
                names that start with a dot",
        bad: "server { root /srv/site; ssl_certificate_key /srv/site/tls/site.key; }",
        good: "server { root /srv/site/public; ssl_certificate_key /srv/site/tls/site.key; }
               server { root /srv/a; auth_basic_user_file /srv/a/.htpasswd; location ~ /\\. { deny all; } }",
        find: secret_served,
    },
    Rule {
        name: "root-of-the-system",
        danger: Danger::Attack,
        at: &["root", "alias"],
        why: "it contains passwords, keys and the configuration itself",
        write: "use the directory of the site",
        bad: "server { location / { root /; } }",
        good: "server { location / { root /var/www; } location = /x { root /; } location /y { root /etc; proxy_pass http://a; } }",
        find: root_of_the_system,
    },
    Rule {
        name: "listing-of-an-application",
        danger: Danger::Risk,
        at: &["autoindex"],
        why: "listings reveal the names of backups, uploads and libraries of the application that runs here",
        write: "move \"autoindex on\" to the location whose files should be listed",
        bad: "server { autoindex on; location ~ \\.php$ { fastcgi_pass unix:/php; } }",
        good: "server { location /files/ { autoindex on; } location ~ \\.php$ { fastcgi_pass unix:/php; } }
               server { autoindex on; }",
        find: listing_of_an_application,
    },
    Rule {
        name: "script-by-any-name",
        danger: Danger::Risk,
        at: &["fastcgi_pass"],
        why: "files with \".php\" anywhere in their names are executed, such as an uploaded \"photo.php.jpg\"",
        write: "use \"\\.php$\" or \"\\.php(/|$)\", and \"try_files\" or an \"if\" with \"-f\" to check that the script exists",
        bad: "server { location ~ \\.php { fastcgi_pass unix:/php; } }",
        good: "server { location ~ \\.php$ { fastcgi_pass unix:/php; } location ~ [.]php { try_files $uri =404; fastcgi_pass unix:/php; } }",
        find: script_by_any_name,
    },
];

fn alias_traversal(view: &View, found: &mut Vec<Found>) {
    let Some(Matches::Prefix(prefix, _)) = view.around.last().map(|location| matches_of(location))
    else {
        return;
    };
    let folder = first(view.node);
    if folder.ends_with(b"/") && !prefix.ends_with(b"/") && !view.is_guarded() {
        let text = format!(
            "\"{}../\" escapes from the directory \"{}\"",
            prefix.as_bstr(),
            folder.as_bstr()
        );
        found.push(Found::new(view.node.head, text));
    }
}

/// Files that no visitor is meant to have, which are below many roots.
const FORGOTTEN: [&str; 6] = [
    ".git/HEAD",
    ".env",
    ".htpasswd",
    ".svn/wc.db",
    ".hg/requires",
    ".aws/credentials",
];

/// Directives that name such a file or folder, with the number of the word.
const NAMED: [&str; 9] = [
    "ssl_certificate_key",
    "ssl_password_file",
    "ssl_session_ticket_key",
    "proxy_ssl_certificate_key",
    "auth_basic_user_file",
    "proxy_cache_path",
    "fastcgi_cache_path",
    "access_log",
    "error_log",
];

/// Folders of files as clients see them: where paths begin, and where that is on the disk.
struct Served<'t> {
    prefix: &'t [u8],
    folder: PathBuf,
    node: &'t Node,
}

fn served<'t>(view: &View<'_, 't>, nodes: &'t [Node], prefix: &'t [u8], all: &mut Vec<Served<'t>>) {
    for node in nodes {
        let is_alias = node.name.is("alias");
        let path = first(node);
        if (is_alias || node.name.is("root")) && !path.contains(&b'$') {
            let prefix = if is_alias { prefix } else { b"/" };
            let folder = view.site.path(path);
            all.push(Served {
                prefix,
                folder,
                node,
            });
        }
        if let (true, Matches::Prefix(prefix, _)) = (node.name.is("location"), matches_of(node)) {
            served(view, node.block.nodes(), prefix, all);
        }
    }
}

fn secret_served(view: &View, found: &mut Vec<Found>) {
    if !view.is_in("http") || view.is_guarded() {
        return;
    }
    let server = view.node;
    let mut folders = Vec::new();
    if let Some(root) = view.nearest("root") {
        served(view, std::slice::from_ref(root), b"/", &mut folders);
    }
    served(view, server.block.nodes(), b"/", &mut folders);
    let secrets = view.site.secrets(named_files);
    // Of a folder of the system another rule says enough.
    folders.retain(|place| !is_of_system(first(place.node)));
    for place in &folders {
        // What is below a folder stands behind it, in their order.
        let begin = secrets.partition_point(|secret| *secret < place.folder);
        let below = secrets[begin..].iter();
        let named = below
            .take_while(|secret| secret.starts_with(&place.folder))
            .cloned();
        let forgotten = FORGOTTEN.iter().map(|name| place.folder.join(name));
        let all = named.chain(forgotten.filter(|path| path.is_file()));
        for secret in all {
            if let Some(path) = path_to(place, &secret).filter(|path| is_served(view, path, place))
            {
                let text = format!(
                    "anyone can download \"{}\", as {}",
                    secret.display(),
                    path.as_bstr()
                );
                found.push(Found::new(place.node.head, text));
                break;
            }
        }
    }
}

/// What clients ask for to have the file.
fn path_to(place: &Served, file: &Path) -> Option<Vec<u8>> {
    let rest = file.strip_prefix(&place.folder).ok()?;
    let rest = rest.as_os_str().as_encoded_bytes();
    let slash = if place.prefix.ends_with(b"/") {
        &b""[..]
    } else {
        b"/"
    };
    (!rest.is_empty()).then(|| [place.prefix, slash, rest].concat())
}

/// The files that directives name, and those of the configuration.
fn named_files(site: &Site) -> Vec<PathBuf> {
    let sources = site.sources.unique_files().into_iter();
    let mut all = sources.map(|source| source.path.clone()).collect();
    named_within(site, site.nodes, &mut all);
    all
}

fn named_within(site: &Site, nodes: &[Node], all: &mut Vec<PathBuf>) {
    for node in nodes {
        let path = first(node);
        let is_named = NAMED.iter().any(|name| node.name.is(name));
        let is_path = !path.contains(&b'$') && !path.contains(&b':');
        let is_log = matches!(path, b"off" | b"on" | b"stderr" | b"" | b"memory");
        if is_named && is_path && !is_log {
            all.push(site.path(path));
        }
        named_within(site, node.block.nodes(), all);
    }
}

/// Does the server send a file of this folder for this path, to everybody?
fn is_served(view: &View, path: &[u8], place: &Served) -> bool {
    let server = view.node.block.nodes();
    let mut around = [view.around, &[view.node]].concat();
    around.extend(locate(view.site, server, path));
    let location = around.last().filter(|block| block.name.is("location"));
    let folder = around.iter().rev().find_map(|block| {
        let mut nodes = block.block.nodes().iter();
        nodes.find(|node| node.name.is("root") || node.name.is("alias"))
    });
    let is_same = folder.is_some_and(|node| std::ptr::eq(node, place.node));
    let elsewhere = location.is_some_and(|location| has_handler(location))
        || server
            .iter()
            .any(|node| node.name.is("return") || node.name.is("rewrite"));
    let tries = |node: &&Node| {
        node.args
            .iter()
            .any(|word| word.text.contains_str("uri") || word.text.contains_str("filename"))
    };
    let tried = inherited(&around, "try_files").last().is_none_or(tries);
    is_same && tried && !elsewhere && !is_guarded(&around) && !is_turned_away(view, &around, path)
}

/// Does an `if` of these blocks match the path? Whatever it does then, it is about it.
fn is_turned_away(view: &View, around: &[&Node], path: &[u8]) -> bool {
    let mut ifs = around
        .iter()
        .flat_map(|block| named(block.block.nodes(), "if"));
    ifs.any(|node| match condition(node)[..] {
        [
            b"$uri" | b"$request_uri" | b"$document_uri" | b"$request_filename",
            sign,
            pattern,
        ] => view.site.matches(pattern, sign == b"~*", path),
        _ => false,
    })
}

/// Folders of the system that have more than sites in them.
const SYSTEM: [&[u8]; 8] = [
    b"", b"/etc", b"/root", b"/home", b"/proc", b"/sys", b"/dev", b"/var",
];

fn is_of_system(path: &[u8]) -> bool {
    path.starts_with(b"/") && SYSTEM.contains(&path.trim_end_with(|char| char == '/').as_bytes())
}

fn root_of_the_system(view: &View, found: &mut Vec<Found>) {
    let path = first(view.node);
    let is_system = is_of_system(path);
    let location = view.around.last().filter(|block| block.name.is("location"));
    let harmless = location.is_some_and(|location| {
        // Only some files of it, or none.
        !matches!(matches_of(location), Matches::Prefix(..))
            || has_handler(location)
            || matches_of(location) != Matches::Prefix(b"/", false) && view.node.name.is("root")
    });
    if is_system && !harmless && !view.is_guarded() && view.block("if").is_none() {
        let text = format!("the system directory \"{}\" is served", path.as_bstr());
        found.push(Found::new(view.node.head, text));
    }
}

fn listing_of_an_application(view: &View, found: &mut Vec<Found>) {
    fn runs(nodes: &[Node]) -> bool {
        nodes.iter().any(|node| {
            let name = node.name.text.as_slice();
            matches!(name, b"fastcgi_pass" | b"uwsgi_pass" | b"scgi_pass")
                || runs(node.block.nodes())
        })
    }
    let whole = view.around.last().is_some_and(|block| {
        block.name.is("server")
            || block.name.is("location") && matches_of(block) == Matches::Prefix(b"/", false)
    });
    let server = view.block("server");
    if first(view.node) == b"on"
        && whole
        && !view.is_guarded()
        && server.is_some_and(|server| runs(server.block.nodes()))
    {
        let text = "the directories of an application are listed";
        found.push(Found::new(view.node.head, text));
    }
}

/// Looks at names that a pattern should not match.
fn script_by_any_name(view: &View, found: &mut Vec<Found>) {
    let Some(location) = view.block("location") else {
        return;
    };
    let Matches::Regex(pattern, caseless) = matches_of(location) else {
        return;
    };
    let name = b"/uploads/photo.php.jpg";
    let is_php = view.site.matches(pattern, caseless, b"/uploads/photo.php")
        && !view.site.matches(pattern, caseless, b"/uploads/photo");
    let tests =
        |node: &Node| node.name.is("if") && matches!(condition(node)[..], [b"!-f" | b"!-e", ..]);
    let checked = view
        .here()
        .iter()
        .any(|node| node.name.is("try_files") || tests(node));
    let inner = view
        .around
        .iter()
        .filter(|block| block.name.is("location"))
        .count()
        > 1;
    if is_php && view.site.matches(pattern, caseless, name) && !checked && !inner {
        let text = "files that merely contain \".php\" in their names are executed";
        let span = location.args.last().map_or(location.head, |word| word.span);
        found.push(Found::new(span, text));
    }
}
