//! `modern_browser`, `ancient_browser`: variables that tell old browsers from new ones by
//! `User-Agent`.
//!
//! ```nginx
//! modern_browser msie 6.0;
//! modern_browser gecko 1.0.0;
//! modern_browser unlisted;
//! if ($ancient_browser) { rewrite ^ /ancient.html; }
//! ```
//!
//! The browsers and how they are recognised are nginx's.

use bstr::{BStr, BString, ByteSlice};
use conf::{
    Arity, Diagnostic, Directive, DirectiveLine, DirectiveTable, HTTP_SERVER_LOCATION, RepeatRule,
    Setter, Variable,
};
use http::{HttpModule, Request};
use proto::KnownField;

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "browser",
    doc: "Variables that distinguish modern and ancient browsers.",
    location: &DIRECTIVES,
    variables: &[
        Variable::new(
            "modern_browser",
            |r, out| value(r, BrowserAge::Modern, out),
            "The value of `modern_browser_value` if the browser is modern.",
        ),
        Variable::new(
            "ancient_browser",
            |r, out| value(r, BrowserAge::Ancient, out),
            "The value of `ancient_browser_value` if the browser is ancient.",
        ),
        Variable::new(
            "msie",
            msie,
            "`1` if the browser is any version of Internet Explorer.",
        ),
    ],
    ..HttpModule::EMPTY
};

static DIRECTIVES: DirectiveTable<Conf> = DirectiveTable::<Conf>::new(&[
    Directive {
        name: "modern_browser",
        syntax: "msie | gecko | opera | safari | konqueror version | unlisted",
        default: None,
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "The minimum version from which a browser counts as modern; `unlisted` makes browsers that match no line \
              modern.",
        set: Setter::Custom(
            Arity::between(1, 2),
            RepeatRule::Fresh(Conf::clear_modern),
            |c, line| c.read_modern(line),
        ),
    },
    Directive {
        name: "ancient_browser",
        syntax: "string ...",
        default: None,
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Browsers whose `User-Agent` contains one of these strings count as ancient; `netscape4` stands for \
              `Mozilla/1` to `Mozilla/4`.",
        set: Setter::Custom(
            Arity::at_least(1),
            RepeatRule::Fresh(Conf::clear_ancient),
            |c, line| {
                for word in line.args() {
                    match word.is("netscape4") {
                        true => c.netscape4 = true,
                        false => c.ancient.push(word.text.clone()),
                    }
                }
                Ok(())
            },
        ),
    },
    Directive {
        name: "modern_browser_value",
        syntax: "string",
        default: Some("1"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "The value of `$modern_browser`.",
        set: Setter::Text(|c| &mut c.modern_value),
    },
    Directive {
        name: "ancient_browser_value",
        syntax: "string",
        default: Some("1"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "The value of `$ancient_browser`.",
        set: Setter::Text(|c| &mut c.ancient_value),
    },
]);

#[derive(Clone, Debug, Default)]
struct Conf {
    /// The minimum modern versions, in the order of [`MARKS`].
    modern: Vec<ModernVersion>,
    modern_unlisted: bool,
    ancient: Vec<BString>,
    netscape4: bool,
    modern_value: BString,
    ancient_value: BString,
}

/// One `modern_browser` line.
#[derive(Clone, Debug)]
struct ModernVersion {
    /// The position in [`MARKS`].
    browser: usize,
    /// The minimum version, as [`version`] encodes it.
    version: u64,
}

/// How to recognise a browser: the text in front of its version.
struct BrowserMark {
    browser: &'static str,
    text: &'static [u8],
    /// The search for the text skips this many bytes, which all versions have in common.
    skip: usize,
}

/// Opera comes first, because it can also claim to be Internet Explorer.
const MARKS: [BrowserMark; 5] = [
    BrowserMark {
        browser: "opera",
        text: b"Opera",
        skip: 0,
    },
    BrowserMark {
        browser: "msie",
        text: b"MSIE ",
        skip: "Mozilla/4.0 (compatible; ".len(),
    },
    BrowserMark {
        browser: "gecko",
        text: b"rv:",
        skip: "Mozilla/5.0 (".len(),
    },
    BrowserMark {
        browser: "safari",
        text: b"Safari/",
        skip: "Mozilla/5.0 (".len(),
    },
    BrowserMark {
        browser: "konqueror",
        text: b"Konqueror/",
        skip: "Mozilla/5.0 (compatible; ".len(),
    },
];

/// The position of Opera in [`MARKS`].
const OPERA: usize = 0;

/// The classification of a browser.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BrowserAge {
    Modern,
    Ancient,
}

impl Conf {
    /// Forgets the outer block's `modern_browser` lines.
    fn clear_modern(&mut self) {
        self.modern.clear();
        self.modern_unlisted = false;
    }

    /// Forgets the outer block's `ancient_browser` lines.
    fn clear_ancient(&mut self) {
        self.ancient.clear();
        self.netscape4 = false;
    }

    /// Reads `modern_browser`.
    fn read_modern(&mut self, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
        let name = line.text(0);
        let Some(word) = line.get(1) else {
            self.modern_unlisted = true;
            return match name.as_bytes() {
                b"unlisted" => Ok(()),
                _ => Err(line.invalid_value(0)),
            };
        };
        let browser = MARKS
            .iter()
            .position(|mark| mark.browser.as_bytes().eq_ignore_ascii_case(name));
        let browser =
            browser.ok_or_else(|| line.error_at(0, format!("unknown browser name \"{name}\"")))?;
        let (version, rest) = version(&word.text);
        if !rest.is_empty() {
            return Err(line.error_at(1, format!("invalid browser version \"{}\"", word.text)));
        }
        if self.modern.is_empty() && browser != OPERA {
            // An Opera that no line mentions must not be taken for the browser it claims to be. The
            // impossible version makes it ancient.
            self.modern.push(ModernVersion {
                browser: OPERA,
                version: u64::MAX,
            });
        } else if browser == OPERA {
            self.modern
                .retain(|known| known.browser != OPERA || known.version != u64::MAX);
        }
        self.modern.push(ModernVersion { browser, version });
        // In the order of the marks: Opera must be tested before the browsers that it imitates.
        self.modern.sort_by_key(|known| known.browser);
        Ok(())
    }

    /// Classifies a `User-Agent`.
    fn age(&self, agent: Option<&BStr>) -> BrowserAge {
        // Without `modern_browser unlisted`, what is not known is taken for old.
        let unlisted = if self.modern_unlisted {
            BrowserAge::Modern
        } else {
            BrowserAge::Ancient
        };
        // Every browser sends one, so this is something else.
        let Some(agent) = agent else { return unlisted };
        // The first mark that is found decides, even if a later one would match too.
        for known in &self.modern {
            if let Some(version) = version_of(agent, &MARKS[known.browser]) {
                return if version >= known.version {
                    BrowserAge::Modern
                } else {
                    BrowserAge::Ancient
                };
            }
        }
        // `Mozilla/1` to `Mozilla/4`; the length is nginx's test.
        let netscape4 = self.netscape4
            && agent.len() > "Mozilla/4.72 ".len()
            && agent
                .strip_prefix(b"Mozilla/")
                .is_some_and(|rest| matches!(rest[0], b'1'..=b'4'));
        if netscape4 || self.ancient.iter().any(|text| agent.contains_str(text)) {
            return BrowserAge::Ancient;
        }
        unlisted
    }
}

/// The version of a browser, if the agent is that browser.
fn version_of(agent: &BStr, mark: &BrowserMark) -> Option<u64> {
    let rest = agent.get(mark.skip..)?;
    let after = &rest[rest.find(mark.text)? + mark.text.len()..];
    // Opera writes its version after a slash or a space.
    let after = if mark.text == b"Opera" {
        after.get(1..)?
    } else {
        after
    };
    (!after.is_empty()).then(|| version(after).0)
}

/// Parses `1.2.3.4` into a number that can be compared, two digits per part; also returns the rest.
fn version(text: &[u8]) -> (u64, &[u8]) {
    let (mut version, mut part, mut scale) = (0_u64, 0_u64, 1_000_000_u64);
    for (at, byte) in text.iter().enumerate() {
        match byte {
            b'0'..=b'9' => {
                part = part
                    .saturating_mul(10)
                    .saturating_add(u64::from(byte - b'0'))
            }
            b'.' => {
                version = version.saturating_add(part.saturating_mul(scale));
                // From the fifth part on the scale is 0, so they do not count.
                (part, scale) = (0, scale / 100);
            }
            _ => {
                return (
                    version.saturating_add(part.saturating_mul(scale)),
                    &text[at..],
                );
            }
        }
    }
    (version.saturating_add(part.saturating_mul(scale)), b"")
}

/// The value of `$modern_browser` or `$ancient_browser`.
fn value(request: &mut Request, age: BrowserAge, out: &mut Vec<u8>) -> bool {
    let conf = request.conf::<Conf>();
    if conf.age(request.head.known(KnownField::UserAgent)) == age {
        out.extend_from_slice(match age {
            BrowserAge::Modern => &conf.modern_value,
            BrowserAge::Ancient => &conf.ancient_value,
        });
    }
    true
}

/// `$msie`.
fn msie(request: &mut Request, out: &mut Vec<u8>) -> bool {
    if request
        .head
        .known(KnownField::UserAgent)
        .is_some_and(http::text::is_msie)
    {
        out.push(b'1');
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conf(modern: &[(usize, &str)]) -> Conf {
        let modern = modern.iter();
        let read = |&(browser, text): &(usize, &str)| ModernVersion {
            browser,
            version: version(text.as_bytes()).0,
        };
        Conf {
            modern: modern.map(read).collect(),
            ..Conf::default()
        }
    }

    #[test]
    fn versions_compare_part_by_part() {
        let gecko = conf(&[(2, "1.5")]);
        let age = |version: &str| {
            let agent = format!(
                "Mozilla/5.0 (Windows; U; Windows NT 5.1; ru-RU; rv:{version}) Gecko/20040206"
            );
            gecko.age(Some(agent.as_str().into()))
        };
        assert_eq!(
            [age("1.4.9"), age("1.5"), age("1.10"), age("2")].map(|age| age == BrowserAge::Modern),
            [false, true, true, true]
        );
        assert_eq!(gecko.age(None), BrowserAge::Ancient);
    }

    #[test]
    fn an_opera_is_no_msie() {
        let both = conf(&[(0, "9"), (1, "5.0")]);
        let opera = "Mozilla/4.0 (compatible; MSIE 6.0; Windows NT 5.0; en) Opera 8.0";
        let msie = "Mozilla/4.0 (compatible; MSIE 6.0; Windows NT 5.1)";
        assert_eq!(both.age(Some(opera.into())), BrowserAge::Ancient);
        assert_eq!(both.age(Some(msie.into())), BrowserAge::Modern);
    }

    #[test]
    fn the_old_mozillas_are_netscape() {
        let conf = Conf {
            netscape4: true,
            modern_unlisted: true,
            ..Conf::default()
        };
        assert_eq!(
            conf.age(Some("Mozilla/4.72 [en] (X11)".into())),
            BrowserAge::Ancient
        );
        assert_eq!(
            conf.age(Some("Mozilla/5.0 [en] (X11)".into())),
            BrowserAge::Modern
        );
        assert_eq!(conf.age(Some("Mozilla/".into())), BrowserAge::Modern);
    }
}
