//! A directive and the blocks around it: what is inherited, who has access, which location serves a
//! path.

use std::borrow::Cow;
use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use base::{BString, ByteSlice as _};
use conf::{BlockContent, DirectiveNode, Regex, SourceMap};

/// The whole configuration.
pub(super) struct CheckedTree<'t> {
    /// The directives at the top level.
    pub(super) nodes: &'t [DirectiveNode],
    /// The files they are from.
    pub(super) sources: &'t SourceMap,
    /// The base of relative paths.
    prefix: &'t Path,
    /// `map`, `geo` and the like by the variable that they define, without `$`.
    pub(super) maps: HashMap<&'t [u8], Vec<&'t DirectiveNode>>,
    /// Compiled regular expressions: rules try them many times.
    regexes: RefCell<HashMap<(BString, bool), Option<Regex>>>,
    /// Files that must not be served: listed once, though every server is compared with them.
    secrets: OnceCell<Vec<PathBuf>>,
    /// The default server of each address, by the address as `listen` writes it.
    default_servers: OnceCell<HashMap<&'t [u8], &'t DirectiveNode>>,
    /// The rows of maps whose values have variables: a map may have a million rows, and thousands of directives may
    /// use it.
    variable_rows: RefCell<HashMap<*const DirectiveNode, Rc<[Cow<'t, DirectiveNode>]>>>,
    /// The servers of `http` by address.
    http_servers: OnceCell<HashMap<&'t [u8], AddressServers<'t>>>,
    /// The lines of long blocks by name: each of ten thousand servers asks what it inherits from `http`, which has
    /// ten thousand lines.
    long_blocks: RefCell<HashMap<*const DirectiveNode, Rc<LinesByName<'t>>>>,
}

/// The rows of a `map` that are followed, of those with variables in their values.
const MAX_ROWS: usize = 16;

/// The servers of `http` at one address.
#[derive(Default)]
pub(super) struct AddressServers<'t> {
    /// All, in the order of the text.
    pub(super) all: Vec<&'t DirectiveNode>,
    /// Those that say that they are the default.
    pub(super) defaults: Vec<&'t DirectiveNode>,
}

/// The lines of a block by the name of their directives.
type LinesByName<'t> = HashMap<&'t [u8], Vec<&'t DirectiveNode>>;

/// A block with more lines than this is read once for all questions about it.
const LONG_BLOCK: usize = 32;

impl<'t> CheckedTree<'t> {
    /// Collects what rules look up by name. The rest is found when it is first needed.
    pub(super) fn new(
        nodes: &'t [DirectiveNode],
        sources: &'t SourceMap,
        prefix: &'t Path,
    ) -> CheckedTree<'t> {
        let mut maps: HashMap<&[u8], Vec<&DirectiveNode>> = HashMap::new();
        for node in nodes.iter().flat_map(|engine| engine.block.nodes()) {
            if matches!(
                node.name.text.as_slice(),
                b"map" | b"geo" | b"split_clients"
            ) {
                let name = node
                    .args
                    .last()
                    .and_then(|word| word.text.strip_prefix(b"$"));
                maps.entry(name.unwrap_or_default()).or_default().push(node);
            }
        }
        CheckedTree {
            nodes,
            sources,
            prefix,
            maps,
            regexes: RefCell::default(),
            secrets: OnceCell::new(),
            default_servers: OnceCell::new(),
            variable_rows: RefCell::default(),
            http_servers: OnceCell::new(),
            long_blocks: RefCell::default(),
        }
    }

    /// The lines of a block, by name if there are many.
    fn long_block(&self, block: &'t DirectiveNode) -> Option<Rc<LinesByName<'t>>> {
        let nodes = block.block.nodes();
        if nodes.len() <= LONG_BLOCK {
            return None;
        }
        let mut blocks = self.long_blocks.borrow_mut();
        let lines = blocks.entry(std::ptr::from_ref(block)).or_insert_with(|| {
            let mut lines = LinesByName::new();
            for node in nodes {
                lines.entry(&node.name.text).or_default().push(node);
            }
            Rc::new(lines)
        });
        Some(Rc::clone(lines))
    }

    /// The directives with this name in a block.
    pub(super) fn lines(&self, block: &'t DirectiveNode, name: &str) -> Vec<&'t DirectiveNode> {
        match self.long_block(block) {
            Some(lines) => lines.get(name.as_bytes()).cloned().unwrap_or_default(),
            None => named(block.block.nodes(), name).collect(),
        }
    }

    /// Whether a block has a directive whose name `is_meant`.
    fn has_name(&self, block: &'t DirectiveNode, is_meant: impl Fn(&[u8]) -> bool) -> bool {
        match self.long_block(block) {
            Some(lines) => lines.keys().any(|name| is_meant(name)),
            None => block
                .block
                .nodes()
                .iter()
                .any(|node| is_meant(&node.name.text)),
        }
    }

    /// The default server of an address: the one that says so, or the first.
    pub(super) fn default_server(&self, address: &[u8]) -> Option<&'t DirectiveNode> {
        let all = self.default_servers.get_or_init(|| {
            let mut all = HashMap::new();
            let engines = self.nodes.iter();
            for server in engines.flat_map(|engine| named(engine.block.nodes(), "server")) {
                for listen in named(server.block.nodes(), "listen") {
                    let says_so = |word: &conf::DirectiveWord| {
                        word.is("default_server") || word.is("default")
                    };
                    if listen.args.iter().any(says_so) {
                        // Overwrites an implicit default that came before.
                        all.insert(first(listen), server);
                    } else {
                        all.entry(first(listen)).or_insert(server);
                    }
                }
            }
            all
        });
        all.get(address).copied()
    }

    /// The first [`MAX_ROWS`] rows of a `map` whose values have variables.
    pub(super) fn variable_rows(&self, map: &'t DirectiveNode) -> Rc<[Cow<'t, DirectiveNode>]> {
        let mut all = self.variable_rows.borrow_mut();
        let rows = all.entry(std::ptr::from_ref(map)).or_insert_with(|| {
            if !map.block.may_contain(b"$") {
                return Rc::default();
            }
            let rows = map.block.lines().filter(|row| {
                let value = row.args.last();
                value.is_some_and(|word| word.text.contains(&b'$'))
            });
            rows.take(MAX_ROWS).collect()
        });
        Rc::clone(rows)
    }

    /// The servers of `http` at an address.
    pub(super) fn servers_at(&self, address: &[u8]) -> Option<&AddressServers<'t>> {
        let all = self.http_servers.get_or_init(|| {
            let mut all: HashMap<&[u8], AddressServers> = HashMap::new();
            let blocks = named(self.nodes, "http").map(|http| http.block.nodes());
            for server in blocks.flat_map(|nodes| named(nodes, "server")) {
                let mut own = addresses(server);
                own.sort_unstable();
                own.dedup();
                for address in own {
                    let servers = all.entry(address).or_default();
                    servers.all.push(server);
                    if marks_default(server, address) {
                        servers.defaults.push(server);
                    }
                }
            }
            all
        });
        all.get(address)
    }

    /// A path of the configuration, relative to the prefix if it is not absolute.
    pub(super) fn path(&self, text: &[u8]) -> PathBuf {
        self.prefix.join(OsStr::from_bytes(text))
    }

    /// Files that must not be served, sorted. `find` is called the first time.
    pub(super) fn secrets(&self, find: impl FnOnce(&CheckedTree) -> Vec<PathBuf>) -> &[PathBuf] {
        self.secrets.get_or_init(|| {
            let mut all = find(self);
            all.sort_unstable();
            all.dedup();
            all
        })
    }

    /// Whether the expression matches. An invalid one matches nothing; it is reported elsewhere.
    pub(super) fn matches(&self, pattern: &[u8], caseless: bool, subject: &[u8]) -> bool {
        let mut regexes = self.regexes.borrow_mut();
        let regex = regexes
            .entry((pattern.into(), caseless))
            .or_insert_with(|| Regex::new(pattern, caseless).ok());
        regex.as_ref().is_some_and(|regex| regex.is_match(subject))
    }

    /// Whether the text is anywhere in the configuration, in a word or in a script.
    pub(super) fn mentions(&self, text: &[u8]) -> bool {
        fn within(node: &DirectiveNode, text: &[u8]) -> bool {
            let inside = match &node.block {
                BlockContent::Raw(script) => script.text.contains_str(text),
                BlockContent::None | BlockContent::Known(_) => false,
                block @ (BlockContent::Nodes(_) | BlockContent::Long(_)) => {
                    block.may_contain(text) && block.lines().any(|line| within(&line, text))
                }
            };
            let mut words = std::iter::once(&node.name).chain(&node.args);
            inside || words.any(|word| word.text.contains_str(text))
        }
        self.nodes.iter().any(|node| within(node, text))
    }
}

/// A directive in its place.
pub(super) struct DirectiveView<'a, 't> {
    /// The configuration that it is in.
    pub(super) site: &'a CheckedTree<'t>,
    /// The blocks around it, the outermost first.
    pub(super) around: &'a [&'t DirectiveNode],
    pub(super) node: &'t DirectiveNode,
}

/// The directives in a block. The lines of a long list are data and no directives, and become no nodes for the sake
/// of a search.
pub(super) fn directives(block: &DirectiveNode) -> &[DirectiveNode] {
    let is_data = matches!(
        block.name.text.as_slice(),
        b"map" | b"geo" | b"split_clients" | b"types" | b"charset_map"
    );
    match &block.block {
        BlockContent::Long(_) if is_data => &[],
        content => content.nodes(),
    }
}

/// How a location is selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LocationMatch<'t> {
    Exact(&'t [u8]),
    /// `true` for `^~`: regular expressions are not tried.
    Prefix(&'t [u8], bool),
    /// `true` for `~*`: case does not matter.
    Regex(&'t [u8], bool),
    Named,
}

/// How this `location` is selected. As in nginx the modifier may be attached to the text: `^~/a`.
pub(super) fn matches_of(location: &DirectiveNode) -> LocationMatch<'_> {
    let (modifier, text): (&[u8], &[u8]) = match &location.args[..] {
        [modifier, text, ..] => (&modifier.text, &text.text),
        [one] => {
            let signs = [&b"^~"[..], b"~*", b"~", b"="];
            let modifier = signs.into_iter().find(|sign| one.text.starts_with(sign));
            let modifier = modifier.unwrap_or_default();
            (modifier, &one.text[modifier.len()..])
        }
        [] => (b"", b""),
    };
    match modifier {
        b"=" => LocationMatch::Exact(text),
        b"^~" => LocationMatch::Prefix(text, true),
        b"~" => LocationMatch::Regex(text, false),
        b"~*" => LocationMatch::Regex(text, true),
        _ if text.starts_with(b"@") => LocationMatch::Named,
        _ => LocationMatch::Prefix(text, false),
    }
}

/// The words of an `if`'s condition, without its parentheses.
pub(super) fn condition(node: &DirectiveNode) -> Vec<&[u8]> {
    let mut words: Vec<&[u8]> = node.args.iter().map(|word| word.text.as_slice()).collect();
    if let Some(first) = words.first_mut() {
        *first = first.strip_prefix(b"(").unwrap_or(first);
    }
    if let Some(last) = words.last_mut() {
        *last = last.strip_suffix(b")").unwrap_or(last);
    }
    words.retain(|word| !word.is_empty());
    words
}

/// The directives with this name in a block.
pub(super) fn named<'t>(
    nodes: &'t [DirectiveNode],
    name: &str,
) -> impl Iterator<Item = &'t DirectiveNode> {
    nodes
        .iter()
        .filter(move |node| node.name.text == name.as_bytes())
}

/// The first parameter.
pub(super) fn first(node: &DirectiveNode) -> &[u8] {
    word(node, 0)
}

/// A parameter; empty if there is none.
pub(super) fn word(node: &DirectiveNode, index: usize) -> &[u8] {
    node.args.get(index).map_or(b"", |word| &word.text)
}

impl<'t> DirectiveView<'_, 't> {
    /// The directives of the enclosing block.
    pub(super) fn here(&self) -> &'t [DirectiveNode] {
        match self.around.last() {
            Some(block) => block.block.nodes(),
            None => self.site.nodes,
        }
    }

    /// Whether this is within the block of an engine, such as `http` or `stream`.
    pub(super) fn is_in(&self, engine: &str) -> bool {
        self.around
            .first()
            .is_some_and(|block| block.name.is(engine))
    }

    /// The innermost enclosing block with this name.
    pub(super) fn block(&self, name: &str) -> Option<&'t DirectiveNode> {
        self.around
            .iter()
            .rev()
            .find(|block| block.name.is(name))
            .copied()
    }

    /// The directives with this name that apply here.
    pub(super) fn inherited(&self, name: &str) -> Vec<&'t DirectiveNode> {
        inherited(self.site, self.around, name)
    }

    /// The directive with this name that applies here: the last one, if there are several.
    pub(super) fn nearest(&self, name: &str) -> Option<&'t DirectiveNode> {
        self.inherited(name).last().copied()
    }

    /// Whether access to this place is restricted.
    pub(super) fn is_guarded(&self) -> bool {
        is_guarded(self.site, self.around)
    }

    /// Whether the server listens for local programs only.
    pub(super) fn is_local(&self) -> bool {
        let server = self.block("server");
        server.is_some_and(|server| are_local(&self.site.lines(server, "listen")))
    }
}

/// The directives with this name in the innermost of these blocks that has any: nginx's
/// inheritance, which replaces all lines and never merges.
pub(super) fn inherited<'t>(
    site: &CheckedTree<'t>,
    around: &[&'t DirectiveNode],
    name: &str,
) -> Vec<&'t DirectiveNode> {
    let blocks = around.iter().rev();
    blocks
        .map(|block| site.lines(block, name))
        .find(|found| !found.is_empty())
        .unwrap_or_default()
}

/// Directives that restrict access.
const GUARDS: [&str; 5] = [
    "auth_basic",
    "auth_request",
    "auth_jwt",
    "ssl_verify_client",
    "internal",
];

/// Whether anything in these blocks restricts access. Listening on the loopback address only is no
/// restriction: the clients of a proxy in front get through.
pub(super) fn is_guarded<'t>(site: &CheckedTree<'t>, around: &[&'t DirectiveNode]) -> bool {
    let addresses = around.iter().rev().find_map(|block| {
        let denies = !site.lines(block, "deny").is_empty();
        (denies || !site.lines(block, "allow").is_empty()).then_some(denies)
    });
    let guard = |name: &&str| {
        inherited(site, around, name)
            .last()
            .is_some_and(|node| !matches!(first(node), b"off" | b"optional" | b"optional_no_ca"))
    };
    let is_script =
        |name: &[u8]| name.starts_with(b"access_by_lua") || name.starts_with(b"rewrite_by_lua");
    // Any of these is enough: the rules ask whether access was thought of, not whether it is right.
    addresses == Some(true)
        || GUARDS.iter().any(guard)
        || around.iter().any(|block| site.has_name(block, is_script))
        || around
            .iter()
            .any(|block| site.lines(block, "if").into_iter().any(is_refusal))
}

/// Whether an `if` rejects some requests.
fn is_refusal(node: &DirectiveNode) -> bool {
    let refuses = |node: &DirectiveNode| {
        node.name.is("return") && matches!(first(node), [b'4', ..]) && !word(node, 0).is_empty()
    };
    node.block.nodes().iter().any(refuses)
}

/// The addresses of a server's `listen` lines. Without one it is port 80.
pub(super) fn addresses(server: &DirectiveNode) -> Vec<&[u8]> {
    let listens: Vec<&[u8]> = named(server.block.nodes(), "listen").map(first).collect();
    match listens.is_empty() {
        // nginx's default for `server_name`: requests without a host.
        true => vec![b"80"],
        false => listens,
    }
}

/// Whether the server is marked as the default of this address.
fn marks_default(server: &DirectiveNode, address: &[u8]) -> bool {
    named(server.block.nodes(), "listen").any(|node| {
        first(node) == address
            && node
                .args
                .iter()
                .any(|word| word.is("default_server") || word.is("default"))
    })
}

/// Whether the server listens on local addresses only.
pub(super) fn is_local(server: &DirectiveNode) -> bool {
    are_local(&named(server.block.nodes(), "listen").collect::<Vec<_>>())
}

/// Whether these `listen` lines of a server name local addresses only.
fn are_local(listens: &[&DirectiveNode]) -> bool {
    let local = |node: &&DirectiveNode| {
        let address = first(node);
        let prefixes = [&b"127."[..], b"localhost", b"[::1]", b"unix:"];
        prefixes.iter().any(|prefix| address.starts_with(prefix))
    };
    // Without any `listen` the server is on port 80 of every interface.
    !listens.is_empty() && listens.iter().all(local)
}

/// The locations that serve a path, outermost first; empty if none does. The order is nginx's: an
/// exact match, then the longest prefix and the locations nested in it, then the first regular
/// expression unless the prefix forbids it.
pub(super) fn locate<'t>(
    site: &CheckedTree,
    nodes: &'t [DirectiveNode],
    path: &[u8],
) -> Vec<&'t DirectiveNode> {
    let locations = || named(nodes, "location");
    // Nested locations are matched against the whole path again, as nginx does.
    let inside = |location: &'t DirectiveNode| {
        let mut chain = vec![location];
        chain.extend(locate(site, location.block.nodes(), path));
        chain
    };
    if let Some(exact) = locations().find(|node| matches_of(node) == LocationMatch::Exact(path)) {
        return vec![exact];
    }
    let prefix = locations()
        .filter_map(|node| match matches_of(node) {
            LocationMatch::Prefix(prefix, stops) if path.starts_with(prefix) => {
                Some((prefix.len(), stops, node))
            }
            _ => None,
        })
        .max_by_key(|(length, ..)| *length);
    let chain = prefix.map_or_else(Vec::new, |(_, _, node)| inside(node));
    let is_final = |node: &&DirectiveNode| {
        matches!(
            matches_of(node),
            LocationMatch::Exact(_) | LocationMatch::Regex(..)
        )
    };
    if prefix.is_some_and(|(_, stops, _)| stops) || chain.last().is_some_and(is_final) {
        return chain;
    }
    let regex = locations().find(|node| match matches_of(node) {
        LocationMatch::Regex(pattern, caseless) => site.matches(pattern, caseless, path),
        _ => false,
    });
    regex.map_or(chain, inside)
}

/// Whether something else than files below the root produces the location's responses.
pub(super) fn has_handler(location: &DirectiveNode) -> bool {
    location.block.nodes().iter().any(|node| {
        let name = node.name.text.as_slice();
        name.ends_with(b"_pass") && !name.starts_with(b"auth")
            || name.starts_with(b"content_by_lua")
            || matches!(
                name,
                b"return"
                    | b"stub_status"
                    | b"empty_gif"
                    | b"internal"
                    | b"weir_status"
                    | b"rewrite"
            )
    })
}
