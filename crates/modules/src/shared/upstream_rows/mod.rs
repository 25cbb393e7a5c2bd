//! The directives that every upstream protocol has, written once: `proxy_connect_timeout`, `fastcgi_connect_timeout`, …
//!
//! ```text
//! pub(crate) enum Fastcgi {}
//! static UPSTREAM: Prefixed<Fastcgi> = Prefixed::new("fastcgi_", HIDDEN);
//! …
//! let settings = Upstream::<Fastcgi>::of(request);
//! ```
//!
//! The type parameter is a name only: it makes the struct of each protocol a type of its own, by which a location finds
//! it. What only one protocol has is in that protocol's own table.

mod cache_rows;
mod rows;

use std::marker::PhantomData;
use std::sync::{Arc, OnceLock};

use conf::confs::{downcast, downcast_mut};
use conf::{AnyConf, Confs, Diagnostic, Level, Line, RowInfo, Rows, Table};
use http::Request;
use http::upstream::settings::NextUpstream;
use http::upstream::{Settings, SettingsRef};

use super::tls_rows;

/// The settings of one protocol in a location.
pub(crate) struct Upstream<P> {
    /// The settings.
    pub(crate) settings: Settings,
    protocol: PhantomData<fn() -> P>,
}

impl<P: 'static> Upstream<P> {
    /// The settings in the request's present location.
    pub(crate) fn of(request: &Request) -> SettingsRef {
        SettingsRef::new::<Upstream<P>>(request, |confs, position| {
            &confs.at::<Upstream<P>>(position).settings
        })
    }
}

/// A row in one of the tables.
#[derive(Clone, Copy)]
enum Row {
    Common(usize),
    Cached(usize),
    Secure(usize),
}

impl Row {
    fn info(self) -> RowInfo {
        match self {
            Row::Common(row) => rows::ROWS.info(row),
            Row::Cached(row) => cache_rows::ROWS.info(row),
            Row::Secure(row) => tls_rows::ROWS.info(row),
        }
    }
}

/// The rows of all protocols under the prefix of one.
pub(crate) struct Prefixed<P> {
    prefix: &'static str,
    /// Fields of responses that are not passed on unless `…_pass_header` names them.
    hidden: &'static [&'static str],
    /// Rows that the protocol does not have.
    without: &'static [&'static str],
    /// Whether responses can be cached.
    cached: bool,
    /// Whether servers may be spoken to by TLS.
    secure: bool,
    infos: OnceLock<Vec<(Row, RowInfo)>>,
    protocol: PhantomData<fn() -> P>,
}

impl<P> Prefixed<P> {
    /// All rows, under `prefix`, which ends with `_`.
    pub(crate) const fn new(prefix: &'static str, hidden: &'static [&'static str]) -> Prefixed<P> {
        Prefixed {
            prefix,
            hidden,
            without: &[],
            cached: false,
            secure: false,
            infos: OnceLock::new(),
            protocol: PhantomData,
        }
    }

    /// Without these rows, named without the prefix.
    #[allow(dead_code, reason = "for protocols that have fewer rows")]
    pub(crate) const fn without(mut self, rows: &'static [&'static str]) -> Prefixed<P> {
        self.without = rows;
        self
    }

    /// With the rows about caching.
    pub(crate) const fn cached(mut self) -> Prefixed<P> {
        self.cached = true;
        self
    }

    /// With the rows about TLS.
    pub(crate) const fn secure(mut self) -> Prefixed<P> {
        self.secure = true;
        self
    }

    /// The rows as data, each with its place in the tables. The names and texts are made once and stay for the life of
    /// the program, as those of every other row do.
    fn infos(&self) -> &[(Row, RowInfo)] {
        self.infos.get_or_init(|| {
            let rows_of = |count, wanted: bool| 0..if wanted { count } else { 0 };
            let common = rows_of(rows::ROWS.len(), true).map(Row::Common);
            let cached = rows_of(cache_rows::ROWS.len(), self.cached).map(Row::Cached);
            let secure = rows_of(tls_rows::ROWS.len(), self.secure).map(Row::Secure);
            let all = common.chain(cached).chain(secure);
            let all = all.map(|row| (row, row.info()));
            let kept = all.filter(|(_, info)| !self.without.contains(&info.name));
            kept.map(|(row, info)| (row, self.prefixed(info))).collect()
        })
    }

    fn prefixed(&self, info: RowInfo) -> RowInfo {
        let name: &'static str = format!("{}{}", self.prefix, info.name).leak();
        let doc: &'static str = info.doc.replace("PREFIX_", self.prefix).leak();
        let default = match info.name {
            // Each protocol has a folder of its own.
            "temp_path" => Some(&*format!("{}temp", self.prefix).leak()),
            _ => info.default,
        };
        RowInfo {
            name,
            doc,
            default,
            ..info
        }
    }
}

impl<P: 'static> Rows for Prefixed<P> {
    fn len(&self) -> usize {
        self.infos().len()
    }

    fn info(&self, row: usize) -> RowInfo {
        self.infos()[row].1
    }

    fn create(&self) -> Arc<dyn AnyConf> {
        Arc::new(Upstream::<P> {
            settings: Settings::default(),
            protocol: PhantomData,
        })
    }

    fn shares(&self, _: &dyn AnyConf) -> bool {
        true
    }

    fn child(&self, parent: &dyn AnyConf) -> Arc<dyn AnyConf> {
        self.copy(parent)
    }

    fn copy(&self, conf: &dyn AnyConf) -> Arc<dyn AnyConf> {
        let settings = downcast::<Upstream<P>>(conf).settings.clone();
        Arc::new(Upstream::<P> {
            settings,
            protocol: PhantomData,
        })
    }

    fn apply(&self, row: usize, conf: &mut dyn AnyConf, line: &mut Line) -> Result<(), Diagnostic> {
        let settings = &mut downcast_mut::<Upstream<P>>(conf).settings;
        match self.infos()[row].0 {
            Row::Common(row) => rows::ROWS.apply(row, settings, line),
            Row::Cached(row) => cache_rows::ROWS.apply(row, settings, line),
            Row::Secure(row) => tls_rows::ROWS.apply(row, &mut settings.secure, line),
        }
    }

    fn apply_deferred(&self, _: usize, _: &mut Line, _: &mut Confs) -> Result<(), Diagnostic> {
        Ok(())
    }

    fn finishes(&self, is_shared: bool, level: &mut Level) -> bool {
        // The directive that passes requests on, which is another table's, may ask for TLS here.
        !is_shared || self.secure && tls_rows::is_wanted(self.prefix, level)
    }

    fn finish(
        &self,
        conf: &mut dyn AnyConf,
        _parent: Option<&dyn AnyConf>,
        level: &mut Level,
    ) -> Result<(), Diagnostic> {
        let settings = &mut downcast_mut::<Upstream<P>>(conf).settings;
        settings.hide = rows::hidden(settings, self.hidden);
        if self.cached {
            cache_rows::finish(settings, self.prefix, level);
        }
        if self.secure {
            tls_rows::finish(&mut settings.secure, self.prefix, level)?;
        }
        rows::check_buffers(settings, self.prefix)
    }
}

/// The rows of a protocol without buffers and fields, and then those in which it differs, over the same struct.
pub(crate) struct Bare<P> {
    common: Prefixed<P>,
    own: &'static Table<Settings>,
}

impl<P> Bare<P> {
    /// `common` must be without the rows that `own` has.
    pub(crate) const fn new(common: Prefixed<P>, own: &'static Table<Settings>) -> Bare<P> {
        Bare { common, own }
    }
}

impl<P: 'static> Rows for Bare<P> {
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

    fn apply(&self, row: usize, conf: &mut dyn AnyConf, line: &mut Line) -> Result<(), Diagnostic> {
        match row.checked_sub(self.common.len()) {
            None => self.common.apply(row, conf, line),
            Some(row) => self
                .own
                .apply(row, &mut downcast_mut::<Upstream<P>>(conf).settings, line),
        }
    }

    fn apply_deferred(&self, _: usize, _: &mut Line, _: &mut Confs) -> Result<(), Diagnostic> {
        Ok(())
    }

    fn finishes(&self, _: bool, _: &mut Level) -> bool {
        // There are no buffers to check, and no fields to hide.
        false
    }

    fn finish(
        &self,
        _: &mut dyn AnyConf,
        _: Option<&dyn AnyConf>,
        _: &mut Level,
    ) -> Result<(), Diagnostic> {
        Ok(())
    }
}

/// The value of a `next_upstream` row that has words of its own.
pub(crate) fn next_upstream_words(
    line: &mut Line,
    words: &[(&str, u32)],
) -> Result<NextUpstream, Diagnostic> {
    let names: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
    let chosen = line.bits(&names, 0)?;
    let bits = words
        .iter()
        .enumerate()
        .filter(|(index, _)| chosen & 1 << index != 0);
    Ok(NextUpstream(
        bits.map(|(_, (_, bit))| bit).fold(0, |all, bit| all | bit),
    ))
}
