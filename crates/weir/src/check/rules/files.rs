//! Files that are served and should not be.
//!
//! There are two sources of such files: those that the configuration itself names, such as keys and
//! password files, and well-known ones that tools leave behind, which are looked for on the disk. A
//! file counts as served only if the location that nginx would select for its path serves it, from
//! that directory and without any condition.

use std::path::{Path, PathBuf};

use base::ByteSlice as _;
use conf::DirectiveNode;

use super::{CheckRule, RuleDanger, RuleHit};
use crate::check::view::{
    CheckedTree, DirectiveView, LocationMatch, condition, directives, first, has_handler,
    inherited, is_guarded, locate, matches_of,
};

pub(super) const RULES: &[CheckRule] = &[
    CheckRule {
        name: "alias-traversal",
        danger: RuleDanger::Attack,
        at: &["alias"],
        why: "the location is cut off the path, and the rest is appended to the directory: of \"/x../\" the two dots \
              remain and escape from it",
        write: "add a trailing slash to the location, to match the alias",
        bad: "server { location /x { alias /srv/x/; } }",
        good: "server { location /x/ { alias /srv/x/; } location = /y { alias /srv/y/; } location /f.ico { alias /srv/f.ico; } }",
        find: alias_traversal,
    },
    CheckRule {
        name: "secret-served",
        danger: RuleDanger::Attack,
        at: &["server"],
        why: "the file is below a directory that is served to everyone",
        write: "point \"root\" to a directory with public files only, or add \"location ~ /\\. { deny all; }\" for \
                names that start with a dot",
        bad: "server { root /srv/site; ssl_certificate_key /srv/site/tls/site.key; }",
        good: "server { root /srv/site/public; ssl_certificate_key /srv/site/tls/site.key; }
               server { root /srv/a; auth_basic_user_file /srv/a/.htpasswd; location ~ /\\. { deny all; } }",
        find: secret_served,
    },
    CheckRule {
        name: "system-root-served",
        danger: RuleDanger::Attack,
        at: &["root", "alias"],
        why: "it contains passwords, keys and the configuration itself",
        write: "use the directory of the site",
        bad: "server { location / { root /; } }",
        good: "server { location / { root /var/www; } location = /x { root /; } location /y { root /etc; proxy_pass http://a; } }",
        find: root_of_the_system,
    },
    CheckRule {
        name: "application-listing",
        danger: RuleDanger::Risk,
        at: &["autoindex"],
        why: "listings reveal the names of backups, uploads and libraries of the application that runs here",
        write: "move \"autoindex on\" to the location whose files should be listed",
        bad: "server { autoindex on; location ~ \\.php$ { fastcgi_pass unix:/php; } }",
        good: "server { location /files/ { autoindex on; } location ~ \\.php$ { fastcgi_pass unix:/php; } }
               server { autoindex on; }",
        find: listing_of_an_application,
    },
    CheckRule {
        name: "script-pattern-unanchored",
        danger: RuleDanger::Risk,
        at: &["fastcgi_pass"],
        why: "files with \".php\" anywhere in their names are executed, such as an uploaded \"photo.php.jpg\"",
        write: "use \"\\.php$\" or \"\\.php(/|$)\", and \"try_files\" or an \"if\" with \"-f\" to check that the script exists",
        bad: "server { location ~ \\.php { fastcgi_pass unix:/php; } }",
        good: "server { location ~ \\.php$ { fastcgi_pass unix:/php; } location ~ [.]php { try_files $uri =404; fastcgi_pass unix:/php; } }",
        find: script_by_any_name,
    },
];

/// `/x../` matches the prefix `/x`; its rest `../` is appended to the alias.
fn alias_traversal(view: &DirectiveView, found: &mut Vec<RuleHit>) {
    let Some(LocationMatch::Prefix(prefix, _)) =
        view.around.last().map(|location| matches_of(location))
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
        found.push(RuleHit::new(view.node.head, text));
    }
}

/// Secrets that tools leave behind, and that are below many roots.
const FORGOTTEN: [&str; 6] = [
    ".git/HEAD",
    ".env",
    ".htpasswd",
    ".svn/wc.db",
    ".hg/requires",
    ".aws/credentials",
];

/// Directives whose first parameter is a file or directory that no visitor should get.
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

/// A directory that is served: the prefix of its URLs, and its place on the disk.
struct ServedFolder<'t> {
    /// The part of the URL path that the directory stands for.
    prefix: &'t [u8],
    /// The directory.
    folder: PathBuf,
    /// The `root` or `alias`.
    node: &'t DirectiveNode,
}

/// Collects the directories that these nodes serve. Those with variables are left out: their value
/// is not known.
fn served_folders<'t>(
    view: &DirectiveView<'_, 't>,
    nodes: &'t [DirectiveNode],
    prefix: &'t [u8],
    all: &mut Vec<ServedFolder<'t>>,
) {
    for node in nodes {
        let is_alias = node.name.is("alias");
        let path = first(node);
        if (is_alias || node.name.is("root")) && !path.contains(&b'$') {
            let prefix = if is_alias { prefix } else { b"/" };
            let folder = view.site.path(path);
            all.push(ServedFolder {
                prefix,
                folder,
                node,
            });
        }
        if let (true, LocationMatch::Prefix(prefix, _)) =
            (node.name.is("location"), matches_of(node))
        {
            served_folders(view, directives(node), prefix, all);
        }
    }
}

/// One finding per directory is enough: the remedy is the same for all its files.
fn secret_served(view: &DirectiveView, found: &mut Vec<RuleHit>) {
    if !view.is_in("http") || view.is_guarded() {
        return;
    }
    let server = view.node;
    let mut folders = Vec::new();
    if let Some(root) = view.nearest("root") {
        served_folders(view, std::slice::from_ref(root), b"/", &mut folders);
    }
    served_folders(view, server.block.nodes(), b"/", &mut folders);
    let secrets = view.site.secrets(named_files);
    // For system directories there is a rule of its own.
    folders.retain(|place| !is_of_system(first(place.node)));
    for place in &folders {
        // The paths are sorted, so those below a directory directly follow it.
        let begin = secrets.partition_point(|secret| *secret < place.folder);
        let below = secrets[begin..].iter();
        let named = below
            .take_while(|secret| secret.starts_with(&place.folder))
            .cloned();
        // These are looked for on the disk: a root without them is fine.
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
                found.push(RuleHit::new(place.node.head, text));
                break;
            }
        }
    }
}

/// The URL path of a file, if it is below the directory.
fn path_to(place: &ServedFolder, file: &Path) -> Option<Vec<u8>> {
    let rest = file.strip_prefix(&place.folder).ok()?;
    let rest = rest.as_os_str().as_encoded_bytes();
    let slash = if place.prefix.ends_with(b"/") {
        &b""[..]
    } else {
        b"/"
    };
    (!rest.is_empty()).then(|| [place.prefix, slash, rest].concat())
}

/// The files that directives name, and the configuration's own files.
fn named_files(site: &CheckedTree) -> Vec<PathBuf> {
    let sources = site.sources.unique_files().into_iter();
    let mut all = sources.map(|source| source.path.clone()).collect();
    named_within(site, site.nodes, &mut all);
    all
}

/// Collects the paths that directives name, in all blocks.
fn named_within(site: &CheckedTree, nodes: &[DirectiveNode], all: &mut Vec<PathBuf>) {
    for node in nodes {
        let path = first(node);
        let is_named = NAMED.iter().any(|name| node.name.is(name));
        let is_path = !path.contains(&b'$') && !path.contains(&b':');
        let is_log = matches!(path, b"off" | b"on" | b"stderr" | b"" | b"memory");
        if is_named && is_path && !is_log {
            all.push(site.path(path));
        }
        named_within(site, directives(node), all);
    }
}

/// Whether the server sends this file for this path, to everyone. Anything in between that may
/// prevent it counts as a no.
fn is_served(view: &DirectiveView, path: &[u8], place: &ServedFolder) -> bool {
    let server = view.node.block.nodes();
    let mut around = [view.around, &[view.node]].concat();
    around.extend(locate(view.site, server, path));
    let location = around.last().filter(|block| block.name.is("location"));
    let folder = around.iter().rev().find_map(|block| {
        let lines = |name| view.site.lines(block, name).first().copied();
        lines("root").or_else(|| lines("alias"))
    });
    let is_same = folder.is_some_and(|node| std::ptr::eq(node, place.node));
    let elsewhere = location.is_some_and(|location| has_handler(location))
        || server
            .iter()
            .any(|node| node.name.is("return") || node.name.is("rewrite"));
    let tries = |node: &&DirectiveNode| {
        node.args
            .iter()
            .any(|word| word.text.contains_str("uri") || word.text.contains_str("filename"))
    };
    let tried = inherited(view.site, &around, "try_files")
        .last()
        .is_none_or(tries);
    is_same
        && tried
        && !elsewhere
        && !is_guarded(view.site, &around)
        && !is_turned_away(view, &around, path)
}

/// Whether an `if` in these blocks matches the path. Whatever it does, the operator has thought of
/// such paths.
fn is_turned_away<'t>(
    view: &DirectiveView<'_, 't>,
    around: &[&'t DirectiveNode],
    path: &[u8],
) -> bool {
    let mut ifs = around.iter().flat_map(|block| view.site.lines(block, "if"));
    ifs.any(|node| match condition(node)[..] {
        [
            b"$uri" | b"$request_uri" | b"$document_uri" | b"$request_filename",
            sign,
            pattern,
        ] => view.site.matches(pattern, sign == b"~*", path),
        _ => false,
    })
}

/// Directories of the system that contain more than sites.
const SYSTEM: [&[u8]; 8] = [
    b"", b"/etc", b"/root", b"/home", b"/proc", b"/sys", b"/dev", b"/var",
];

fn is_of_system(path: &[u8]) -> bool {
    path.starts_with(b"/") && SYSTEM.contains(&path.trim_end_with(|char| char == '/').as_bytes())
}

/// A system directory as root or alias of a location that serves files from it.
fn root_of_the_system(view: &DirectiveView, found: &mut Vec<RuleHit>) {
    let path = first(view.node);
    let is_system = is_of_system(path);
    let location = view.around.last().filter(|block| block.name.is("location"));
    let harmless = location.is_some_and(|location| {
        // It serves only some of the files, or none.
        !matches!(matches_of(location), LocationMatch::Prefix(..))
            || has_handler(location)
            || matches_of(location) != LocationMatch::Prefix(b"/", false)
                && view.node.name.is("root")
    });
    if is_system && !harmless && !view.is_guarded() && view.block("if").is_none() {
        let text = format!("the system directory \"{}\" is served", path.as_bstr());
        found.push(RuleHit::new(view.node.head, text));
    }
}

/// Listings for the whole of a server that runs an application.
fn listing_of_an_application(view: &DirectiveView, found: &mut Vec<RuleHit>) {
    fn runs(nodes: &[DirectiveNode]) -> bool {
        nodes.iter().any(|node| {
            let name = node.name.text.as_slice();
            matches!(name, b"fastcgi_pass" | b"uwsgi_pass" | b"scgi_pass") || runs(directives(node))
        })
    }
    let whole = view.around.last().is_some_and(|block| {
        block.name.is("server")
            || block.name.is("location") && matches_of(block) == LocationMatch::Prefix(b"/", false)
    });
    let server = view.block("server");
    if first(view.node) == b"on"
        && whole
        && !view.is_guarded()
        && server.is_some_and(|server| runs(server.block.nodes()))
    {
        let text = "the directories of an application are listed";
        found.push(RuleHit::new(view.node.head, text));
    }
}

/// Tries a name that the pattern should not match: the script interpreter runs what it is given.
fn script_by_any_name(view: &DirectiveView, found: &mut Vec<RuleHit>) {
    let Some(location) = view.block("location") else {
        return;
    };
    let LocationMatch::Regex(pattern, caseless) = matches_of(location) else {
        return;
    };
    let name = b"/uploads/photo.php.jpg";
    let is_php = view.site.matches(pattern, caseless, b"/uploads/photo.php")
        && !view.site.matches(pattern, caseless, b"/uploads/photo");
    let tests = |node: &DirectiveNode| {
        node.name.is("if") && matches!(condition(node)[..], [b"!-f" | b"!-e", ..])
    };
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
        found.push(RuleHit::new(span, text));
    }
}
