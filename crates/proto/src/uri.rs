//! The path and arguments of the request target: normalised as nginx does, and escaped again.
//!
//! A path is *normal* if `%xx` is decoded, `.` and `..` are resolved and, unless switched off, `//`
//! is `/`. Locations are selected and files are opened by the normal form only; the original is
//! kept for `$request_uri` and for upstream servers.

use memchr::memchr;
use std::ops::Range;

/// A normalised target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NormalizedTarget {
    /// The arguments: this part of the target, after `?` and before `#`; empty if there are none.
    pub args: Range<usize>,
    /// The path had a `%xx`, so it must be escaped again when it is proxied.
    pub quoted: bool,
    /// The path was not in normal form: it had `//`, `/.`, `%xx` or `#`.
    pub complex: bool,
    /// The path contains `+`.
    pub plus: bool,
    /// The target can be forwarded as it is: it begins with a path.
    pub valid_unparsed: bool,
}

/// Whether `//` in a path counts as `/`: `merge_slashes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlashMerging {
    /// `on`, the default.
    Merge,
    /// `off`
    Keep,
}

/// The target cannot be normalised: 400.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidUri;

/// Appends the normalised path of `target`, such as
/// [`RequestHead::target`](crate::message::RequestHead::target), to `path`. Errors are invalid
/// escapes, `%00` and `..` above the root; then `path` is unchanged.
///
/// Control characters are rejected by the parser of the request line; decoded ones are a part of
/// the path.
pub fn normalize_path(
    target: &[u8],
    slashes: SlashMerging,
    path: &mut Vec<u8>,
) -> Result<NormalizedTarget, InvalidUri> {
    let scan = scan_path(target);
    let valid_unparsed = target.first() == Some(&b'/');
    if !valid_unparsed && !matches!(target.first(), Some(b'?')) {
        return Err(InvalidUri);
    }
    let base = path.len();
    if !valid_unparsed {
        path.push(b'/');
    }
    let mut plus = scan.plus;
    if scan.simple {
        path.extend_from_slice(&target[..scan.end]);
    } else {
        let mut walk = PathNormalizer {
            path,
            base,
            slashes,
            state: PathState::Usual,
            plus: false,
        };
        if walk.run(&target[..scan.end]).is_err() {
            path.truncate(base);
            return Err(InvalidUri);
        }
        plus = walk.plus;
    }
    let (args, fragment) = find_args(target, scan.end);
    Ok(NormalizedTarget {
        args,
        quoted: scan.quoted,
        complex: !scan.simple || fragment,
        plus,
        valid_unparsed,
    })
}

/// The result of one pass over a target's path.
struct PathScan {
    /// The end of the path: `?`, `#`, or that of the target.
    end: usize,
    /// The path is already normal.
    simple: bool,
    quoted: bool,
    plus: bool,
}

fn scan_path(target: &[u8]) -> PathScan {
    let mut scan = PathScan {
        end: target.len(),
        simple: true,
        quoted: false,
        plus: false,
    };
    let mut after_slash = false;
    for (i, &byte) in target.iter().enumerate() {
        if ORDINARY[byte as usize] {
            after_slash = false;
            continue;
        }
        match byte {
            b'?' | b'#' => {
                scan.end = i;
                break;
            }
            b'/' if !after_slash => {
                after_slash = true;
                continue;
            }
            b'/' => scan.simple = false,
            b'.' => scan.simple &= !after_slash,
            b'%' => {
                scan.quoted = true;
                scan.simple = false;
            }
            _ => scan.plus = true,
        }
        after_slash = false;
    }
    scan
}

/// The bytes without a meaning for [`scan_path`].
const ORDINARY: [bool; 256] = {
    let mut table = [true; 256];
    let special = b"?#/.%+";
    let mut i = 0;
    while i < special.len() {
        table[special[i] as usize] = false;
        i += 1;
    }
    table
};

/// The arguments after a path that ends at `end`, and whether there is a fragment, which is
/// dropped.
fn find_args(target: &[u8], end: usize) -> (Range<usize>, bool) {
    if target.get(end) != Some(&b'?') {
        return (end..end, end < target.len());
    }
    let start = end + 1;
    match memchr(b'#', &target[start..]) {
        Some(length) => (start..start + length, true),
        None => (start..target.len(), false),
    }
}

/// What the path so far ends with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PathState {
    Usual,
    /// `/`
    Slash,
    /// `/.`
    Dot,
    /// `/..`
    DotDot,
}

/// Writes the normal form of a path.
struct PathNormalizer<'a> {
    path: &'a mut Vec<u8>,
    /// The start of our path in `path`.
    base: usize,
    slashes: SlashMerging,
    state: PathState,
    plus: bool,
}

impl PathNormalizer<'_> {
    fn run(&mut self, text: &[u8]) -> Result<(), InvalidUri> {
        let mut rest = text;
        while let Some((&byte, after)) = rest.split_first() {
            rest = after;
            if byte != b'%' {
                self.push_byte(byte)?;
                continue;
            }
            let (&[high, low], after) = rest.split_first_chunk::<2>().ok_or(InvalidUri)?;
            rest = after;
            match hex_value(high).zip(hex_value(low)).map(|(h, l)| h << 4 | l) {
                None | Some(0) => return Err(InvalidUri),
                // Escaped, these are ordinary characters; literally they would end the path.
                Some(letter @ (b'%' | b'#' | b'?')) => {
                    self.path.push(letter);
                    self.state = PathState::Usual;
                }
                // An escaped slash or dot counts like a literal one: otherwise `%2e%2e` would hide
                // a `..`.
                Some(byte) => self.push_byte(byte)?,
            }
        }
        match self.state {
            PathState::Usual | PathState::Slash => Ok(()),
            PathState::Dot => self.drop_dot(),
            PathState::DotDot => self.drop_segment(),
        }
    }

    fn push_byte(&mut self, byte: u8) -> Result<(), InvalidUri> {
        use PathState::*;
        self.plus |= byte == b'+';
        self.state = match (self.state, byte) {
            (Slash, b'/') if self.slashes == SlashMerging::Merge => return Ok(()),
            (Dot, b'/') => {
                self.drop_dot()?;
                self.state = Slash;
                return Ok(());
            }
            (DotDot, b'/') => {
                self.drop_segment()?;
                self.state = Slash;
                return Ok(());
            }
            (Usual | Slash, b'/') => Slash,
            (Slash, b'.') => Dot,
            (Dot, b'.') => DotDot,
            (Usual | Slash | Dot | DotDot, _) => Usual,
        };
        self.path.push(byte);
        Ok(())
    }

    /// `/a/.` becomes `/a/`.
    fn drop_dot(&mut self) -> Result<(), InvalidUri> {
        self.path.pop();
        Ok(())
    }

    /// `/a/b/..` becomes `/a/`; leaving the root is an error.
    fn drop_segment(&mut self) -> Result<(), InvalidUri> {
        let slash = self.path.len() - b"/..".len();
        let parent = self.path[self.base..slash]
            .iter()
            .rposition(|&b| b == b'/')
            .ok_or(InvalidUri)?;
        self.path.truncate(self.base + parent + 1);
        Ok(())
    }
}

fn hex_value(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

/// A path's file name extension without the dot, for the `types` table. A name whose only dot is at
/// its beginning has none.
pub fn path_extension(path: &[u8]) -> Option<&[u8]> {
    // From the end, since the last dot stands near it; mostly there is none before the slash.
    let at = path.iter().rposition(|&b| matches!(b, b'.' | b'/'))?;
    let (before, extension) = (&path[..at], &path[at + 1..]);
    let begins_segment = before.last().is_none_or(|&b| b == b'/');
    (path[at] == b'.' && !begins_segment && !extension.is_empty()).then_some(extension)
}

/// Appends the decoded path of an internal redirect that came from outside the configuration
/// (X-Accel-Redirect, an SSI include, a DAV destination), and returns its arguments as a part of
/// `uri`. Errors are what could leave the site: `..` as a segment, before or after decoding, and
/// NUL.
pub fn parse_internal(uri: &[u8], path: &mut Vec<u8>) -> Result<Range<usize>, InvalidUri> {
    let end = memchr(b'?', uri).unwrap_or(uri.len());
    let text = &uri[..end];
    let base = path.len();
    if text.is_empty() || !is_safe(text) {
        return Err(InvalidUri);
    }
    if memchr(b'%', text).is_none() {
        path.extend_from_slice(text);
    } else {
        unescape(text, path);
        if path.len() == base || !is_safe(&path[base..]) {
            path.truncate(base);
            return Err(InvalidUri);
        }
    }
    Ok((end + 1).min(uri.len())..uri.len())
}

fn is_safe(path: &[u8]) -> bool {
    memchr(0, path).is_none() && path.split(|&b| b == b'/').all(|segment| segment != b"..")
}

/// The bytes that [`escape`] replaces by `%XX`: nginx's classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EscapeClass {
    /// A path.
    Uri,
    /// A query argument.
    Args,
    /// A component: everything except unreserved characters.
    UriComponent,
    /// A path within an HTML attribute.
    Html,
    /// A complete URI in a Refresh field.
    Refresh,
    /// A memcached key.
    Memcached,
    /// A target that is forwarded as it is: only what would end it or its line.
    Target,
}

/// One table per class, indexed by byte.
static ESCAPED: [[bool; 256]; 7] = [
    escape_table(EscapeClass::Uri),
    escape_table(EscapeClass::Args),
    escape_table(EscapeClass::UriComponent),
    escape_table(EscapeClass::Html),
    escape_table(EscapeClass::Refresh),
    escape_table(EscapeClass::Memcached),
    escape_table(EscapeClass::Target),
];

const fn escape_table(class: EscapeClass) -> [bool; 256] {
    let mut table = [false; 256];
    let mut i = 0;
    while i < 256 {
        let byte = i as u8;
        table[i] = match class {
            EscapeClass::Uri => is_no_uri_byte(byte) || matches!(byte, b'#' | b'%' | b'?'),
            EscapeClass::Args => {
                is_no_uri_byte(byte) || matches!(byte, b'#' | b'%' | b'?' | b'&' | b'+' | b';')
            }
            EscapeClass::UriComponent => {
                !(byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~'))
            }
            // `?` remains: nginx escapes complete redirect targets with this class.
            EscapeClass::Html => is_no_uri_byte(byte) || matches!(byte, b'#' | b'%' | b'\''),
            // Already a URI, so only what would end the field's value.
            EscapeClass::Refresh => is_no_uri_byte(byte) || byte == b'\'',
            EscapeClass::Memcached => byte <= b' ' || byte == b'%',
            EscapeClass::Target => is_target_end(byte),
        };
        i += 1;
    }
    table
}

/// Bytes that RFC 3986 permits nowhere in a URI.
const fn is_no_uri_byte(byte: u8) -> bool {
    byte <= b' '
        || byte >= 0x7f
        || matches!(
            byte,
            b'"' | b'<' | b'>' | b'\\' | b'^' | b'`' | b'{' | b'|' | b'}'
        )
}

/// Control characters and the space, at which a request line is split (RFC 9112, section 3).
const fn is_target_end(byte: u8) -> bool {
    byte <= b' ' || byte == 0x7f
}

/// Makes the text since `start` safe as the target in a request line: escapes control characters
/// and spaces, but never `%`, so that existing escapes remain what they are.
#[inline]
pub fn make_target(out: &mut Vec<u8>, start: usize) {
    // No early exit, so that the compiler can turn the loop into a few instructions.
    let clean = out[start..]
        .iter()
        .fold(true, |clean, &byte| clean & !is_target_end(byte));
    if !clean {
        escape_target(out, start);
    }
}

#[cold]
fn escape_target(out: &mut Vec<u8>, start: usize) {
    let text = out.split_off(start);
    escape(EscapeClass::Target, &text, out);
}

/// Appends `text` with the bytes of the class replaced by `%XX`.
pub fn escape(class: EscapeClass, text: &[u8], out: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    let table = &ESCAPED[class as usize];
    out.reserve(text.len());
    for &byte in text {
        if table[byte as usize] {
            out.extend_from_slice(&[
                b'%',
                HEX[usize::from(byte >> 4)],
                HEX[usize::from(byte & 15)],
            ]);
        } else {
            out.push(byte);
        }
    }
}

/// Whether [`escape`] would change `text`.
pub fn needs_escape(class: EscapeClass, text: &[u8]) -> bool {
    let table = &ESCAPED[class as usize];
    text.iter().any(|&byte| table[byte as usize])
}

/// Appends `text` with each `%xx` decoded. As in nginx, `%` without a hexadecimal digit is dropped,
/// and `%` with only one is dropped together with the character after it.
pub fn unescape(text: &[u8], out: &mut Vec<u8>) {
    unescape_until(text, out, UnescapeMode::All);
}

/// Like [`unescape`], for a path with arguments: nothing after a `?`, escaped or not, is decoded.
pub fn unescape_path(text: &[u8], out: &mut Vec<u8>) {
    unescape_until(text, out, UnescapeMode::Path);
}

/// Like [`unescape_path`], for the target of a redirect: only visible characters above `%` are
/// decoded, since the others must remain escaped.
pub fn unescape_redirect(text: &[u8], out: &mut Vec<u8>) {
    unescape_until(text, out, UnescapeMode::Visible);
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum UnescapeMode {
    All,
    Path,
    Visible,
}

fn unescape_until(text: &[u8], out: &mut Vec<u8>, decode: UnescapeMode) {
    let mut i = 0;
    while i < text.len() {
        let byte = text[i];
        i += 1;
        if byte == b'?' && decode != UnescapeMode::All {
            out.extend_from_slice(&text[i - 1..]);
            return;
        }
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let Some(&first) = text.get(i) else { return };
        i += 1;
        let Some(high) = hex_value(first) else {
            out.push(first);
            continue;
        };
        let Some(&second) = text.get(i) else { return };
        i += 1;
        let Some(low) = hex_value(second) else {
            continue;
        };
        match high << 4 | low {
            b'?' if decode != UnescapeMode::All => {
                out.push(b'?');
                out.extend_from_slice(&text[i..]);
                return;
            }
            value if decode == UnescapeMode::Visible && !(value > b'%' && value < 0x7f) => {
                out.extend_from_slice(&[b'%', first, second]);
            }
            value => out.push(value),
        }
    }
}

/// Splits a URI of the configuration or of a rewrite at the first `?`.
pub fn split_args(uri: &[u8]) -> (&[u8], Option<&[u8]>) {
    match memchr(b'?', uri) {
        Some(at) => (&uri[..at], Some(&uri[at + 1..])),
        None => (uri, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(target: &str, slashes: SlashMerging) -> Result<String, InvalidUri> {
        let mut path = Vec::new();
        normalize_path(target.as_bytes(), slashes, &mut path)?;
        Ok(String::from_utf8_lossy(&path).into_owned())
    }

    fn merged(target: &str) -> String {
        path(target, SlashMerging::Merge).unwrap_or_else(|_| "400".to_string())
    }

    #[test]
    fn paths_become_normal() {
        for (target, expected) in [
            ("/", "/"),
            ("/a/b.html", "/a/b.html"),
            ("?args", "/"),
            ("/a?b", "/a"),
            ("/a#b", "/a"),
            ("/a/.", "/a/"),
            ("/a/./", "/a/"),
            ("/a/./b", "/a/b"),
            ("/a/..", "/"),
            ("/a/../b", "/b"),
            ("/a/b/..", "/a/"),
            ("/a/b/../..", "/"),
            ("/a/.?x", "/a/"),
            ("/a/..?x", "/"),
            ("/a/..#x", "/"),
            ("/a/...", "/a/..."),
            ("/a/.../b", "/a/.../b"),
            ("/a/.b", "/a/.b"),
            ("/a/..b", "/a/..b"),
            ("/.", "/"),
            ("/a.", "/a."),
            ("/a..", "/a.."),
            ("//", "/"),
            ("/a//b", "/a/b"),
            ("/a///b/", "/a/b/"),
            ("/a//../b", "/b"),
            ("/%61", "/a"),
            ("/%2f", "/"),
            ("/a%2Fb", "/a/b"),
            ("/a/%2e%2E/b", "/b"),
            ("/a%2f%2e%2e%2fb", "/b"),
            ("/a/.%2e", "/"),
            ("/%25", "/%"),
            ("/%2541", "/%41"),
            ("/%3f", "/?"),
            ("/%23", "/#"),
            ("/a%3Fb?c", "/a?b"),
            ("/a/%3f..", "/a/?.."),
            ("/%02", "/\u{2}"),
            ("/%2b", "/+"),
            ("/..", "400"),
            ("/../a", "400"),
            ("/a/../..", "400"),
            ("/a/../../b", "400"),
            ("/%2e%2e/", "400"),
            ("/./..", "400"),
            ("/%", "400"),
            ("/%1", "400"),
            ("/%1?", "400"),
            ("/%zz", "400"),
            ("/%1z", "400"),
            ("/%00", "400"),
            ("/a%00b", "400"),
            ("", "400"),
            ("a", "400"),
            ("*", "400"),
            ("#", "400"),
        ] {
            assert_eq!(merged(target), expected, "{target}");
        }
    }

    #[test]
    fn slashes_are_kept_when_asked() {
        let kept = |target| path(target, SlashMerging::Keep).unwrap_or_else(|_| "400".to_string());
        assert_eq!(kept("//"), "//");
        assert_eq!(kept("/a//b"), "/a//b");
        assert_eq!(kept("/a//.."), "/a/");
        assert_eq!(kept("//.."), "/");
        assert_eq!(kept("/a/%2fb"), "/a//b");
        assert_eq!(kept("/./a"), "/a");
        assert_eq!(kept("/.."), "400");
    }

    #[test]
    fn args_and_flags_are_found() {
        let mut path = Vec::new();
        let mut look = |target: &str| {
            path.clear();
            let found = normalize_path(target.as_bytes(), SlashMerging::Merge, &mut path)
                .expect("a valid target");
            (target[found.args.clone()].to_string(), found)
        };
        for (target, args) in [
            ("/", ""),
            ("/?", ""),
            ("/?a=b", "a=b"),
            ("/?a?b", "a?b"),
            ("/?a#b", "a"),
            ("/#a?b", ""),
            ("/%3fx?y", "y"),
            ("?a#b", "a"),
            ("/a/../?x%", "x%"),
        ] {
            assert_eq!(look(target).0, args, "{target}");
        }
        assert!(!look("/a+b").1.complex && look("/a+b").1.plus && !look("/a?+").1.plus);
        assert!(look("/%2b").1.plus && look("/%2b").1.quoted);
        assert!(look("/a//b").1.complex && !look("/a//b").1.quoted);
        assert!(look("/a#b").1.complex && look("/a?b#c").1.complex && !look("/a?b//").1.complex);
        assert!(look("/a").1.valid_unparsed && !look("?a").1.valid_unparsed);
    }

    #[test]
    fn a_refused_target_leaves_the_buffer_as_it_was() {
        let mut path = b"before".to_vec();
        assert_eq!(
            normalize_path(b"/abc/%zz", SlashMerging::Merge, &mut path),
            Err(InvalidUri)
        );
        assert_eq!(path, b"before");
        assert!(normalize_path(b"/../x", SlashMerging::Merge, &mut path).is_err());
        assert!(normalize_path(b"/y/../x", SlashMerging::Merge, &mut path).is_ok());
        assert_eq!(path, b"before/x");
    }

    /// Every target of up to seven bytes over the bytes that matter: what comes out is absolute,
    /// holds no way up, no NUL and no double slash, and normalising it again changes nothing.
    #[test]
    fn every_short_target_is_normal_afterwards() {
        let alphabet = b"/.%2ef?";
        let base = alphabet.len() as u64;
        for length in 0..=7u32 {
            for number in 0..base.pow(length) {
                let mut target = vec![b'/'];
                target
                    .extend((0..length).map(|i| alphabet[(number / base.pow(i) % base) as usize]));
                let mut path = Vec::new();
                let Ok(_) = normalize_path(&target, SlashMerging::Merge, &mut path) else {
                    continue;
                };
                assert_eq!(path[0], b'/');
                let unclean = path.windows(2).any(|w| w == b"//")
                    || path.split(|&b| b == b'/').any(|s| s == b".." || s == b".");
                assert!(!unclean, "{:?} -> {:?}", target, path);
                let mut escaped = Vec::new();
                escape(EscapeClass::Uri, &path, &mut escaped);
                let mut again = Vec::new();
                assert!(normalize_path(&escaped, SlashMerging::Merge, &mut again).is_ok());
                assert_eq!(again, path);
            }
        }
    }

    #[test]
    fn extensions_are_what_follows_the_last_dot_of_the_name() {
        for (path, expected) in [
            ("/a.html", Some("html")),
            ("/a.tar.gz", Some("gz")),
            ("/a", None),
            ("/a.", None),
            ("/.htaccess", None),
            ("/a.b/c", None),
            ("/a/.b.c", Some("c")),
            ("/", None),
            ("", None),
        ] {
            assert_eq!(
                path_extension(path.as_bytes()),
                expected.map(str::as_bytes),
                "{path}"
            );
        }
    }

    #[test]
    fn internal_uris_stay_inside() {
        let look = |uri: &str| {
            let mut path = Vec::new();
            parse_internal(uri.as_bytes(), &mut path).map(|args| {
                (
                    String::from_utf8_lossy(&path).into_owned(),
                    uri[args].to_string(),
                )
            })
        };
        assert_eq!(
            look("/a%20b?c=d"),
            Ok(("/a b".to_string(), "c=d".to_string()))
        );
        assert_eq!(look("a..b/"), Ok(("a..b/".to_string(), String::new())));
        assert_eq!(look("/a/..b"), Ok(("/a/..b".to_string(), String::new())));
        assert_eq!(
            look("/a?/../x"),
            Ok(("/a".to_string(), "/../x".to_string()))
        );
        for uri in [
            "",
            "?a",
            "..",
            "../a",
            "/..",
            "/../a",
            "/a/../b",
            "/a/%2e%2e/b",
            "/a%2f..",
            "/%00",
            "\0",
            "%",
        ] {
            assert_eq!(look(uri), Err(InvalidUri), "{uri}");
        }
    }

    #[test]
    fn escape_classes_are_the_documented_sets() {
        let escaped = |class| -> String {
            (0x20..0x7fu8)
                .filter(|&b| needs_escape(class, &[b]))
                .map(char::from)
                .collect()
        };
        assert_eq!(escaped(EscapeClass::Uri), " \"#%<>?\\^`{|}");
        assert_eq!(escaped(EscapeClass::Args), " \"#%&+;<>?\\^`{|}");
        assert_eq!(
            escaped(EscapeClass::UriComponent),
            " !\"#$%&'()*+,/:;<=>?@[\\]^`{|}"
        );
        assert_eq!(escaped(EscapeClass::Html), " \"#%'<>\\^`{|}");
        assert_eq!(escaped(EscapeClass::Refresh), " \"'<>\\^`{|}");
        assert_eq!(escaped(EscapeClass::Memcached), " %");
        for class in [
            EscapeClass::Uri,
            EscapeClass::Args,
            EscapeClass::UriComponent,
            EscapeClass::Html,
            EscapeClass::Refresh,
        ] {
            assert!(
                (0x7f..=0xffu8)
                    .chain(0..0x20)
                    .all(|b| needs_escape(class, &[b]))
            );
        }
        assert!(
            !needs_escape(EscapeClass::Memcached, &[0x7f])
                && needs_escape(EscapeClass::Memcached, &[0x1f])
        );
        let mut out = Vec::new();
        escape(EscapeClass::Uri, b"/a b\xc3\xa9?", &mut out);
        assert_eq!(out, b"/a%20b%C3%A9%3F");
    }

    #[test]
    fn unescape_follows_nginx_on_bad_escapes() {
        let plain = |text: &str| {
            let mut out = Vec::new();
            unescape(text.as_bytes(), &mut out);
            String::from_utf8_lossy(&out).into_owned()
        };
        for (text, expected) in [
            ("a%20b", "a b"),
            ("%41%", "A"),
            ("%4", ""),
            ("%zz", "zz"),
            ("%4zz", "z"),
            ("%3f?", "??"),
            ("", ""),
        ] {
            assert_eq!(plain(text), expected, "{text}");
        }
        let redirect = |text: &str| {
            let mut out = Vec::new();
            unescape_redirect(text.as_bytes(), &mut out);
            String::from_utf8_lossy(&out).into_owned()
        };
        assert_eq!(redirect("/%41%20%0a%25%7f?%41"), "/A%20%0a%25%7f?%41");
        assert_eq!(redirect("/a%3f%41"), "/a?%41");
        let mut out = Vec::new();
        unescape_path(b"/%20?%20", &mut out);
        assert_eq!(out, b"/ ?%20");
    }

    #[test]
    fn args_are_split_at_the_first_question_mark() {
        assert_eq!(split_args(b"/a?b?c"), (&b"/a"[..], Some(&b"b?c"[..])));
        assert_eq!(split_args(b"/a?"), (&b"/a"[..], Some(&b""[..])));
        assert_eq!(split_args(b"/a"), (&b"/a"[..], None));
    }
}
