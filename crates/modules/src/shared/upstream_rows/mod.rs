//! The directives that every upstream protocol has, written once: `proxy_connect_timeout`,
//! `fastcgi_connect_timeout`, …
//!
//! ```text
//! pub(crate) enum Fastcgi {}
//! static UPSTREAM: Prefixed<Fastcgi> = Prefixed::new("fastcgi_", HIDDEN);
//! …
//! let settings = Upstream::<Fastcgi>::of(request);
//! ```
//!
//! The type parameter is only a name: it makes each protocol's struct a distinct type, by which a
//! location finds it. A location can have several protocols, through `if` blocks, and each has its
//! own settings. What only one protocol has is in that protocol's own table.

mod cache_rows;
mod rows;

use std::marker::PhantomData;
use std::sync::{Arc, OnceLock};

use conf::block_confs::{downcast, downcast_mut};
use conf::{
    AnyConf, BlockConfs, BlockContext, Diagnostic, DirectiveLine, DirectiveRows, DirectiveTable,
    RowInfo,
};
use http::Request;
use http::response::OmittedFields;
use http::upstream::RetryReasons;
use http::upstream::{SettingsRef, UpstreamSettings};

use super::upstream_tls_rows;

/// The settings of one protocol in a location.
pub(crate) struct ProtocolSettings<P> {
    /// The settings proper.
    pub(crate) settings: UpstreamSettings,
    protocol: PhantomData<fn() -> P>,
}

impl<P: 'static> ProtocolSettings<P> {
    /// The settings in the request's current location.
    pub(crate) fn of(request: &Request) -> SettingsRef {
        SettingsRef::new::<ProtocolSettings<P>>(request, |confs, position| {
            &confs.at::<ProtocolSettings<P>>(position).settings
        })
    }
}

/// A row, as an index into one of the tables.
#[derive(Clone, Copy)]
enum RowIndex {
    Common(usize),
    Cached(usize),
    Secure(usize),
}

impl RowIndex {
    /// The row without a prefix.
    fn info(self) -> RowInfo {
        match self {
            RowIndex::Common(row) => rows::ROWS.info(row),
            RowIndex::Cached(row) => cache_rows::ROWS.info(row),
            RowIndex::Secure(row) => upstream_tls_rows::ROWS.info(row),
        }
    }
}

/// The rows shared by all protocols, under the prefix of one.
pub(crate) struct PrefixedRows<P> {
    prefix: &'static str,
    /// Response fields that are not passed on unless `…_pass_header` names them.
    hidden_fields: &'static [&'static str],
    /// Rows that this protocol does not have.
    without: &'static [&'static str],
    /// Words of `…_next_upstream` and `…_cache_use_stale` that it does not have.
    missing_reasons: &'static [&'static str],
    /// Whether its responses can be cached.
    cached: bool,
    /// Whether its servers can be reached over TLS.
    secure: bool,
    /// The rows with their full names, built on first use.
    infos: OnceLock<Vec<(RowIndex, RowInfo)>>,
    protocol: PhantomData<fn() -> P>,
}

impl<P> PrefixedRows<P> {
    /// The common rows, under `prefix`, which ends with `_`.
    pub(crate) const fn new(
        prefix: &'static str,
        hidden: &'static [&'static str],
    ) -> PrefixedRows<P> {
        PrefixedRows {
            prefix,
            hidden_fields: hidden,
            without: &[],
            missing_reasons: &[],
            cached: false,
            secure: false,
            infos: OnceLock::new(),
            protocol: PhantomData,
        }
    }

    /// Removes rows, named without the prefix.
    #[allow(dead_code, reason = "for protocols that have fewer rows")]
    pub(crate) const fn without(mut self, rows: &'static [&'static str]) -> PrefixedRows<P> {
        self.without = rows;
        self
    }

    /// Removes reasons for another server, or for a stale object: a word that nginx does not know is a mistake there, and
    /// should not go unnoticed here.
    pub(crate) const fn without_reasons(mut self, words: &'static [&'static str]) -> Self {
        self.missing_reasons = words;
        self
    }

    /// Adds the rows about caching.
    pub(crate) const fn cached(mut self) -> PrefixedRows<P> {
        self.cached = true;
        self
    }

    /// Adds the rows about TLS.
    pub(crate) const fn secure(mut self) -> PrefixedRows<P> {
        self.secure = true;
        self
    }

    /// The rows with their positions in the tables. The names and texts are created once and never
    /// freed, like those of all other rows, which are constants.
    fn infos(&self) -> &[(RowIndex, RowInfo)] {
        self.infos.get_or_init(|| {
            let rows_of = |count, wanted: bool| 0..if wanted { count } else { 0 };
            let common = rows_of(rows::ROWS.len(), true).map(RowIndex::Common);
            let cached = rows_of(cache_rows::ROWS.len(), self.cached).map(RowIndex::Cached);
            let secure = rows_of(upstream_tls_rows::ROWS.len(), self.secure).map(RowIndex::Secure);
            let all = common.chain(cached).chain(secure);
            let all = all.map(|row| (row, row.info()));
            let kept = all.filter(|(_, info)| !self.without.contains(&info.name));
            kept.map(|(row, info)| (row, self.prefixed(info))).collect()
        })
    }

    /// A row under this protocol's prefix.
    fn prefixed(&self, info: RowInfo) -> RowInfo {
        let name: &'static str = format!("{}{}", self.prefix, info.name).leak();
        let doc: &'static str = info.doc.replace("PREFIX_", self.prefix).leak();
        let default = match info.name {
            // Each protocol has its own directory.
            "temp_path" => Some(&*format!("{}temp", self.prefix).leak()),
            _ => info.default,
        };
        let mut syntax = info.syntax.to_owned();
        if has_reasons(info.name) {
            for word in self.missing_reasons {
                syntax = syntax.replace(&format!("{word} | "), "");
            }
        }
        RowInfo {
            name,
            doc,
            default,
            syntax: match syntax == info.syntax {
                true => info.syntax,
                false => syntax.leak(),
            },
            ..info
        }
    }

    /// Refuses words that this protocol does not have.
    fn check_reasons(&self, name: &str, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
        if self.missing_reasons.is_empty() || !has_reasons(name) {
            return Ok(());
        }
        let words = RetryReasons::WORDS.iter().copied();
        let known: Vec<&str> = words
            .filter(|word| !self.missing_reasons.contains(word))
            .collect();
        (0..line.args().len()).try_for_each(|i| line.word(i, &known).map(drop))
    }
}

/// Whether a row, named without its prefix, takes [`RetryReasons::WORDS`].
fn has_reasons(name: &str) -> bool {
    ["next_upstream", "cache_use_stale"].contains(&name)
}

impl<P: 'static> DirectiveRows for PrefixedRows<P> {
    fn len(&self) -> usize {
        self.infos().len()
    }

    fn info(&self, row: usize) -> RowInfo {
        self.infos()[row].1
    }

    fn create(&self) -> Arc<dyn AnyConf> {
        Arc::new(ProtocolSettings::<P> {
            settings: UpstreamSettings::default(),
            protocol: PhantomData,
        })
    }

    fn shares(&self, _: &dyn AnyConf) -> bool {
        true
    }

    fn child(&self, parent: &dyn AnyConf) -> Arc<dyn AnyConf> {
        // Inheritance is a copy of the outer block's settings, changed by this block's lines.
        self.copy(parent)
    }

    fn copy(&self, conf: &dyn AnyConf) -> Arc<dyn AnyConf> {
        let settings = downcast::<ProtocolSettings<P>>(conf).settings.clone();
        Arc::new(ProtocolSettings::<P> {
            settings,
            protocol: PhantomData,
        })
    }

    fn apply(
        &self,
        row: usize,
        conf: &mut dyn AnyConf,
        line: &mut DirectiveLine,
    ) -> Result<(), Diagnostic> {
        let settings = &mut downcast_mut::<ProtocolSettings<P>>(conf).settings;
        match self.infos()[row].0 {
            RowIndex::Common(row) => {
                self.check_reasons(rows::ROWS.info(row).name, line)?;
                rows::ROWS.apply(row, settings, line)
            }
            RowIndex::Cached(row) => {
                self.check_reasons(cache_rows::ROWS.info(row).name, line)?;
                cache_rows::ROWS.apply(row, settings, line)
            }
            RowIndex::Secure(row) => upstream_tls_rows::ROWS.apply(row, &mut settings.secure, line),
        }
    }

    fn apply_deferred(
        &self,
        _: usize,
        _: &mut DirectiveLine,
        _: &mut BlockConfs,
    ) -> Result<(), Diagnostic> {
        Ok(())
    }

    fn finishes(&self, is_shared: bool, level: &mut BlockContext) -> bool {
        // The `…_pass` line, in another table, may ask for TLS in a block that has no lines of this
        // one.
        !is_shared || self.secure && upstream_tls_rows::is_tls_required(self.prefix, level)
    }

    fn finish(
        &self,
        conf: &mut dyn AnyConf,
        _parent: Option<&dyn AnyConf>,
        level: &mut BlockContext,
    ) -> Result<(), Diagnostic> {
        let settings = &mut downcast_mut::<ProtocolSettings<P>>(conf).settings;
        // From here on, per request, hiding a field is a lookup in one set.
        settings.hide = rows::hidden_fields(settings, self.hidden_fields);
        if self.prefix == "proxy_" {
            let passes = |name: &str| {
                let mut names = settings.pass_header.iter();
                names.any(|passed| passed.eq_ignore_ascii_case(name.as_bytes()))
            };
            settings.left_to_upstream = OmittedFields {
                server: passes("Server"),
                date: passes("Date"),
                expires: false,
            };
        }
        if self.cached {
            cache_rows::finish(settings, self.prefix, level);
        }
        if self.secure {
            upstream_tls_rows::finish(&mut settings.secure, self.prefix, level)?;
        }
        rows::check_buffers(settings, self.prefix)
    }
}

/// The rows of a protocol without buffers and header fields (memcached, tunnels), followed by those
/// in which it differs, over the same struct.
pub(crate) struct UnbufferedRows<P> {
    common: PrefixedRows<P>,
    /// Rows that replace common ones.
    own: &'static DirectiveTable<UpstreamSettings>,
}

impl<P> UnbufferedRows<P> {
    /// `common` must be without the rows that `own` has.
    pub(crate) const fn new(
        common: PrefixedRows<P>,
        own: &'static DirectiveTable<UpstreamSettings>,
    ) -> UnbufferedRows<P> {
        UnbufferedRows { common, own }
    }
}

impl<P: 'static> DirectiveRows for UnbufferedRows<P> {
    fn len(&self) -> usize {
        self.common.len() + self.own.len()
    }

    fn info(&self, row: usize) -> RowInfo {
        match row.checked_sub(self.common.len()) {
            None => self.common.info(row),
            Some(row) => self.own.info(row),
        }
    }

    fn create(&self) -> Arc<dyn AnyConf> {
        self.common.create()
    }

    fn shares(&self, parent: &dyn AnyConf) -> bool {
        self.common.shares(parent)
    }

    fn child(&self, parent: &dyn AnyConf) -> Arc<dyn AnyConf> {
        self.common.child(parent)
    }

    fn copy(&self, conf: &dyn AnyConf) -> Arc<dyn AnyConf> {
        self.common.copy(conf)
    }

    fn apply(
        &self,
        row: usize,
        conf: &mut dyn AnyConf,
        line: &mut DirectiveLine,
    ) -> Result<(), Diagnostic> {
        match row.checked_sub(self.common.len()) {
            None => self.common.apply(row, conf, line),
            Some(row) => self.own.apply(
                row,
                &mut downcast_mut::<ProtocolSettings<P>>(conf).settings,
                line,
            ),
        }
    }

    fn apply_deferred(
        &self,
        _: usize,
        _: &mut DirectiveLine,
        _: &mut BlockConfs,
    ) -> Result<(), Diagnostic> {
        Ok(())
    }

    fn finishes(&self, _: bool, _: &mut BlockContext) -> bool {
        // No buffers to check and no fields to hide.
        false
    }

    fn finish(
        &self,
        _: &mut dyn AnyConf,
        _: Option<&dyn AnyConf>,
        _: &mut BlockContext,
    ) -> Result<(), Diagnostic> {
        Ok(())
    }
}

/// Reads a `…_next_upstream` row with its own set of words.
pub(crate) fn next_upstream_words(
    line: &mut DirectiveLine,
    words: &[(&str, RetryReasons)],
) -> Result<RetryReasons, Diagnostic> {
    let names: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
    let chosen = line.bits(&names, 0)?;
    let named = words
        .iter()
        .enumerate()
        .filter(|(index, _)| chosen & 1 << index != 0);
    let reasons = named.map(|(_, (_, reason))| *reason);
    Ok(reasons.fold(RetryReasons::NONE, |all, reason| all | reason))
}
