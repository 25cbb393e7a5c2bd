//! `sub_filter`: replaces text in responses.
//!
//! ```nginx
//! sub_filter      '<a href="http://127.0.0.1:8080/' '<a href="https://$host/';
//! sub_filter      '</head>' '<script src="/added.js"></script></head>';
//! sub_filter_once on;
//! ```
//!
//! Case is ignored. All texts are searched for at once; if two begin at the same position, the
//! first in the configuration wins; with `sub_filter_once` each is replaced once. The search is in
//! [`search`]. It never holds back more of the content than the longest text, less one byte.
//!
//! Two differences from nginx: a response that ends in the middle of a possible match is still
//! searched for the shorter texts, and `Accept-Ranges` of an upstream server is removed, because it
//! refers to other content (RFC 9110, section 14.3).

mod search;

use std::sync::Arc;

use bstr::BString;
use bytes::Bytes;
use conf::{
    Arity, BlockContext, Diagnostic, Directive, DirectiveLine, DirectiveTable, Expression,
    HTTP_SERVER_LOCATION, RepeatRule, Setter,
};
use http::response_body::BodyError;
use http::{FilterVerdict, HttpModule, Request};

use crate::shared::media_types::MediaTypes;
use crate::shared::transform::{BodyTransform, TransformedBody};
use search::{SearchResult, TextSearch};

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "sub",
    doc: "Replaces text in responses.",
    location: &DIRECTIVES,
    filter: Some(substitute),
    enabled: |location| !location.confs.get::<Conf>().pairs.is_empty(),
    explain: http::module::ModuleExplain::Depends(&[(http::HttpPhase::Content, &["sub_filter"])]),
    ..HttpModule::EMPTY
};

static DIRECTIVES: DirectiveTable<Conf> = DirectiveTable::<Conf>::new(&[
    Directive {
        name: "sub_filter",
        syntax: "string replacement",
        default: None,
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Replaces a string, ignoring case, with another. Both may contain variables.",
        set: Setter::Custom(Arity::exactly(2), RepeatRule::Fresh(|c| c.pairs = Arc::default()), read),
    },
    Directive {
        name: "sub_filter_types",
        syntax: "mime-type … | *",
        default: Some("text/html"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "The media types in which to replace text, in addition to `text/html`. `*` means all.",
        set: Setter::Custom(Arity::at_least(1), RepeatRule::Fresh(|c| c.types.clear()), |c, line| {
            c.types.read(line, &["text/html"])
        }),
    },
    Directive {
        // On as in nginx: once all texts are replaced, the rest needs no search.
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
.finish_changed(build_constant_search);

#[derive(Clone, Debug, Default)]
struct Conf {
    pairs: Arc<Vec<SubFilter>>,
    /// The search, prepared in advance if no text contains variables.
    search: Option<Arc<TextSearch>>,
    once: bool,
    last_modified: bool,
    types: MediaTypes,
}

/// The two arguments of a `sub_filter`.
#[derive(Clone, Debug)]
struct SubFilter {
    text: Expression,
    replacement: Expression,
}

/// The maximum number of texts per location; nginx's bound.
const MAX_PAIRS: usize = 255;

/// Reads `sub_filter`.
fn read(conf: &mut Conf, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    if line.text(0).is_empty() {
        return Err(line.error_at(0, "empty search pattern"));
    }
    if conf.pairs.len() == MAX_PAIRS {
        return Err(line.error(format!("number of search patterns exceeds {MAX_PAIRS}")));
    }
    let pair = SubFilter {
        text: line.expression(0)?,
        replacement: line.expression(1)?,
    };
    Arc::make_mut(&mut conf.pairs).push(pair);
    Ok(())
}

/// Builds the search of a block with texts of its own; other blocks inherit it.
fn build_constant_search(
    conf: &mut Conf,
    _: Option<&Conf>,
    block: &mut BlockContext,
) -> Result<(), Diagnostic> {
    if block.seen_directive("sub_filter").is_some() {
        let texts: Option<Vec<BString>> = conf
            .pairs
            .iter()
            .map(|pair| pair.text.constant().map(|text| text.to_owned()))
            .collect();
        conf.search =
            texts.map(|texts| Arc::new(TextSearch::new(texts.into_iter().enumerate().collect())));
    }
    Ok(())
}

/// The filter: replaces the body.
fn substitute(request: &mut Request) -> FilterVerdict {
    let conf = request.conf::<Conf>();
    if request.out.is_said_to_be_empty() || !conf.types.has(&request.out.content_type) {
        return FilterVerdict::Pass;
    }
    let Some(search) = conf.search.clone().or_else(|| build_search(request, &conf)) else {
        return FilterVerdict::Pass;
    };
    let out = &mut request.out;
    let body = std::mem::take(&mut out.body);
    // The length, the ranges and the checksums of the original no longer apply.
    out.content_changes();
    // A replacement may contain variables, so the content can change without the file.
    if !conf.last_modified {
        out.drop_validators();
    }
    // Only with `sub_filter_once`; without it nothing is ever used up.
    let left = conf
        .once
        .then(|| search.texts().map(|text| text.pair).collect());
    let substitution = TextSubstitution {
        pairs: Arc::clone(&conf.pairs),
        search,
        pending: left,
        replacements: vec![None; conf.pairs.len()],
        held: Vec::new(),
    };
    out.body = TransformedBody::body(body, substitution);
    FilterVerdict::Pass
}

/// The search for texts with variables. Empty ones are left out; `None` if all are empty.
fn build_search(request: &mut Request, conf: &Conf) -> Option<Arc<TextSearch>> {
    let texts = conf
        .pairs
        .iter()
        .map(|pair| request.value(&pair.text))
        .enumerate();
    let texts: Vec<_> = texts.filter(|(_, text)| !text.is_empty()).collect();
    (!texts.is_empty()).then(|| Arc::new(TextSearch::new(texts)))
}

/// Replaces texts in content that arrives in pieces.
struct TextSubstitution {
    pairs: Arc<Vec<SubFilter>>,
    search: Arc<TextSearch>,
    /// The pairs still to be replaced, with `sub_filter_once`.
    pending: Option<Vec<usize>>,
    /// The replacement of each pair, evaluated when it is first needed and the same for the rest of
    /// the response.
    replacements: Vec<Option<BString>>,
    /// The end of the content so far, held back because it may be the start of a text.
    held: Vec<u8>,
}

impl TextSubstitution {
    /// Replaces all texts in `content` and returns how many bytes are done with.
    fn replace(
        &mut self,
        request: &mut Request,
        content: &[u8],
        is_end: bool,
        out: &mut Vec<u8>,
    ) -> usize {
        let mut at = 0;
        loop {
            let left = self.pending.as_deref();
            let wanted = |pair: usize| left.is_none_or(|left| left.contains(&pair));
            match self.search.find(content, at, is_end, wanted) {
                SearchResult::Nothing => {
                    out.extend_from_slice(&content[at..]);
                    return content.len();
                }
                SearchResult::Prefix(start) => {
                    out.extend_from_slice(&content[at..start]);
                    return start;
                }
                SearchResult::Text { start, end, pair } => {
                    out.extend_from_slice(&content[at..start]);
                    self.write_replacement(request, pair, out);
                    at = end;
                }
            }
        }
    }

    /// Appends the replacement of a pair.
    fn write_replacement(&mut self, request: &mut Request, pair: usize, out: &mut Vec<u8>) {
        let expression = &self.pairs[pair].replacement;
        let replacement = self.replacements[pair].get_or_insert_with(|| request.value(expression));
        out.extend_from_slice(replacement);
        if let Some(left) = &mut self.pending {
            left.retain(|&other| other != pair);
        }
    }

    /// Whether nothing is left to replace.
    fn is_done(&self) -> bool {
        self.pending.as_ref().is_some_and(Vec::is_empty)
    }
}

impl BodyTransform for TextSubstitution {
    fn push(
        &mut self,
        request: &mut Request,
        input: &mut Bytes,
        out: &mut Vec<u8>,
    ) -> Result<(), BodyError> {
        let content = std::mem::take(input);
        // Nothing left to do: the rest passes without a search.
        if self.is_done() && self.held.is_empty() {
            out.extend_from_slice(&content);
            return Ok(());
        }
        if self.held.is_empty() {
            let done = self.replace(request, &content, false, out);
            self.held.extend_from_slice(&content[done..]);
            return Ok(());
        }
        // Something is held back, which is short: joining it with the new content is simpler than a
        // search across the border.
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
