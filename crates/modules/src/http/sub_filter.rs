//! `sub_filter`: replaces text in responses on their way.
//!
//! ```nginx
//! sub_filter      '<a href="http://127.0.0.1:8080/' '<a href="https://$host/';
//! sub_filter      '</head>' '<script src="/added.js"></script></head>';
//! sub_filter_once on;
//! ```
//!
//! Letter case does not matter. Several texts are looked for at once, those named first win where two begin at the
//! same place, and with `sub_filter_once` each is replaced once. How they are found is in [`search`]. What is held
//! back of the content is never more than the longest text less one byte.

mod search;

use std::sync::Arc;

use bstr::BString;
use bytes::Bytes;
use conf::{
    Arity, Diagnostic, Directive, Expression, HTTP_SERVER_LOCATION, Level, Line, Repeat, Setter,
    Table,
};
use http::body::BodyError;
use http::{Module, Request, Verdict};

use crate::shared::media_types::MediaTypes;
use crate::shared::transform::{Transform, Transformed};
use search::{Found, Search};

pub(crate) static MODULE: Module = Module {
    name: "sub",
    doc: "Replaces text in responses.",
    location: &DIRECTIVES,
    filter: Some(substitute),
    enabled: |location| !location.confs.get::<Conf>().pairs.is_empty(),
    ..Module::EMPTY
};

static DIRECTIVES: Table<Conf> = Table::<Conf>::new(&[
    Directive {
        name: "sub_filter",
        syntax: "string replacement",
        default: None,
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Replaces a string, ignoring case, with another. Both may contain variables.",
        set: Setter::Custom(Arity::exactly(2), Repeat::Fresh(|c| c.pairs = Arc::default()), read),
    },
    Directive {
        name: "sub_filter_types",
        syntax: "mime-type … | *",
        default: Some("text/html"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "The media types in which to replace text, in addition to `text/html`. `*` means all.",
        set: Setter::Custom(Arity::at_least(1), Repeat::Fresh(|c| c.types.clear()), |c, line| {
            c.types.read(line, &["text/html"])
        }),
    },
    Directive {
        name: "sub_filter_once",
        syntax: "on | off",
        default: Some("on"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Whether to replace only the first occurrence of each string.",
        set: Setter::Flag(|c| &mut c.once),
    },
    Directive {
        name: "sub_filter_last_modified",
        syntax: "on | off",
        default: Some("off"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Whether to keep `Last-Modified` and a weak entity tag. By default both are removed, since the content \
              can change while the file does not.",
        set: Setter::Flag(|c| &mut c.last_modified),
    },
])
.finish_changed(prepare);

#[derive(Clone, Debug, Default)]
struct Conf {
    pairs: Arc<Vec<Pair>>,
    /// The search for the texts, when none of them has variables.
    search: Option<Arc<Search>>,
    once: bool,
    last_modified: bool,
    types: MediaTypes,
}

#[derive(Clone, Debug)]
struct Pair {
    text: Expression,
    replacement: Expression,
}

/// The texts that one location may look for; nginx's bound.
const MAX_PAIRS: usize = 255;

fn read(conf: &mut Conf, line: &mut Line) -> Result<(), Diagnostic> {
    if line.text(0).is_empty() {
        return Err(line.error_at(0, "empty search pattern"));
    }
    if conf.pairs.len() == MAX_PAIRS {
        return Err(line.error(format!("number of search patterns exceeds {MAX_PAIRS}")));
    }
    let pair = Pair {
        text: line.expression(0)?,
        replacement: line.expression(1)?,
    };
    Arc::make_mut(&mut conf.pairs).push(pair);
    Ok(())
}

/// Builds the search of a block that has texts of its own; others have their outer block's.
fn prepare(conf: &mut Conf, _: Option<&Conf>, block: &mut Level) -> Result<(), Diagnostic> {
    if block.seen("sub_filter").is_some() {
        let texts: Option<Vec<BString>> = conf
            .pairs
            .iter()
            .map(|pair| pair.text.constant().map(|text| text.to_owned()))
            .collect();
        conf.search =
            texts.map(|texts| Arc::new(Search::new(texts.into_iter().enumerate().collect())));
    }
    Ok(())
}

fn substitute(request: &mut Request) -> Verdict {
    let conf = request.conf::<Conf>();
    if request.out.is_said_to_be_empty() || !conf.types.has(&request.out.content_type) {
        return Verdict::Pass;
    }
    let Some(search) = conf.search.clone().or_else(|| search_of(request, &conf)) else {
        return Verdict::Pass;
    };
    let out = &mut request.out;
    let body = std::mem::take(&mut out.body);
    out.content_changes();
    if !conf.last_modified {
        out.drop_validators();
    }
    let left = conf
        .once
        .then(|| search.texts().map(|text| text.pair).collect());
    let substitution = Substitution {
        pairs: Arc::clone(&conf.pairs),
        search,
        left,
        replacements: vec![None; conf.pairs.len()],
        held: Vec::new(),
    };
    out.body = Transformed::body(body, substitution);
    Verdict::Pass
}

/// The search for texts with variables, of which the empty ones are left out; `None` when all are.
fn search_of(request: &mut Request, conf: &Conf) -> Option<Arc<Search>> {
    let texts = conf
        .pairs
        .iter()
        .map(|pair| request.value(&pair.text))
        .enumerate();
    let texts: Vec<_> = texts.filter(|(_, text)| !text.is_empty()).collect();
    (!texts.is_empty()).then(|| Arc::new(Search::new(texts)))
}

/// Replaces texts in content that comes in pieces.
struct Substitution {
    pairs: Arc<Vec<Pair>>,
    search: Arc<Search>,
    /// With `sub_filter_once`, the pairs that have not been replaced yet.
    left: Option<Vec<usize>>,
    /// Replacements by pair, each evaluated when it is needed first.
    replacements: Vec<Option<BString>>,
    /// The end of the content so far, which may be the beginning of a text.
    held: Vec<u8>,
}

impl Substitution {
    /// Replaces what is found in `content`, and says how much of it is done with.
    fn replace(
        &mut self,
        request: &mut Request,
        content: &[u8],
        is_end: bool,
        out: &mut Vec<u8>,
    ) -> usize {
        let mut at = 0;
        loop {
            let left = self.left.as_deref();
            let wanted = |pair: usize| left.is_none_or(|left| left.contains(&pair));
            match self.search.find(content, at, is_end, wanted) {
                Found::Nothing => {
                    out.extend_from_slice(&content[at..]);
                    return content.len();
                }
                Found::Beginning(start) => {
                    out.extend_from_slice(&content[at..start]);
                    return start;
                }
                Found::Text { start, end, pair } => {
                    out.extend_from_slice(&content[at..start]);
                    self.write_replacement(request, pair, out);
                    at = end;
                }
            }
        }
    }

    fn write_replacement(&mut self, request: &mut Request, pair: usize, out: &mut Vec<u8>) {
        let expression = &self.pairs[pair].replacement;
        let replacement = self.replacements[pair].get_or_insert_with(|| request.value(expression));
        out.extend_from_slice(replacement);
        if let Some(left) = &mut self.left {
            left.retain(|&other| other != pair);
        }
    }

    /// Whether all texts have been replaced that were to be.
    fn is_through(&self) -> bool {
        self.left.as_ref().is_some_and(Vec::is_empty)
    }
}

impl Transform for Substitution {
    fn push(
        &mut self,
        request: &mut Request,
        input: &mut Bytes,
        out: &mut Vec<u8>,
    ) -> Result<(), BodyError> {
        let content = std::mem::take(input);
        if self.is_through() && self.held.is_empty() {
            out.extend_from_slice(&content);
            return Ok(());
        }
        if self.held.is_empty() {
            let done = self.replace(request, &content, false, out);
            self.held.extend_from_slice(&content[done..]);
            return Ok(());
        }
        let mut held = std::mem::take(&mut self.held);
        held.extend_from_slice(&content);
        let done = self.replace(request, &held, false, out);
        held.drain(..done);
        self.held = held;
        Ok(())
    }

    fn end(&mut self, request: &mut Request, out: &mut Vec<u8>) -> Result<(), BodyError> {
        let held = std::mem::take(&mut self.held);
        self.replace(request, &held, true, out);
        Ok(())
    }
}
