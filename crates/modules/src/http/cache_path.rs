//! `proxy_cache_path`, `fastcgi_cache_path`, …: declares caches.
//!
//! ```nginx
//! proxy_cache_path /var/cache/weir keys_zone=pages:10m max_size=50g inactive=1d use_temp_path=off;
//! …
//! proxy_cache pages;
//! ```
//!
//! The rows of locations are in [`crate::shared::upstream_rows`]; what happens with a cache is in
//! [`http::cache`]. All protocols share the caches; the prefix of the line that declares one makes
//! no difference.
//!
//! The store is not nginx's tree of files but a few large segments, so `levels`, `use_temp_path`
//! and the parameters of nginx's loader and manager are parsed and have no effect. A cache that
//! cannot be opened is bypassed: serving slowly is better than not at all.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base::units;
use bstr::{BStr, BString, ByteSlice};
use conf::directive_contexts::HTTP;
use conf::{
    Arity, Diagnostic, Directive, DirectiveLine, DirectiveTable, RepeatRule, Setter, parse,
};
use host::error_log::{LogLevel, Logger};
use http::HttpModule;
use http::cache::{CacheZones, OpenedStore, UPKEEP, ZoneEvent, ZoneParameters};
use http::configure::RequiredDirectories;
use http::http_loop::HttpLoop;

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "cache",
    doc: "Caches for responses.",
    main: &DIRECTIVES,
    complete: CacheZones::check_declared,
    commit: |site, zones| site.main_confs.get::<CacheZones>().open_stores(zones),
    start,
    stop: |engine| {
        UPKEEP_TASK.take();
        // Loop 0 runs until the process ends, so this is the moment to let another process take
        // over the stores.
        if engine.index == 0 {
            engine.site().main_confs.get::<CacheZones>().give_away();
        }
    },
    end: |site, deadline| site.main_confs.get::<CacheZones>().close_stores(deadline),
    ..HttpModule::EMPTY
};

/// The minimum of `keys_zone`, in bytes: two pages, as in nginx.
const MIN_KEYS: u64 = 2 * 4096;

/// The default of `memory=`, in bytes.
const DEFAULT_MEMORY: u64 = 64 * 1024 * 1024;

/// The maximum depth of nginx's directory levels.
const MAX_LEVELS: usize = 3;

/// The row of one protocol; all mean the same.
const fn cache_path_row(name: &'static str) -> Directive<CacheZones> {
    Directive {
        name,
        syntax: "path [levels=levels] [use_temp_path=on|off] keys_zone=name:size [inactive=time] [max_size=size] [min_free=size] [memory=size] …",
        default: None,
        contexts: HTTP,
        since: "0.1",
        doc: "Defines a cache: its directory and `keys_zone`, a name with a size that limits the number of objects (40 \
              bytes each). An object that is not requested within `inactive` (10 minutes) is removed; `max_size` \
              limits the directory, `min_free` is the space to keep free in the file system, `memory` (64 MB) is for \
              small objects in use. `levels`, `use_temp_path`, `purger` and the parameters of nginx's cache loader, \
              manager and purger are accepted and have no effect.",
        set: Setter::Custom(Arity::at_least(2), RepeatRule::Many, |_, line| {
            cache_path(line)
        }),
    }
}

static DIRECTIVES: DirectiveTable<CacheZones> = DirectiveTable::<CacheZones>::new(&[
    cache_path_row("proxy_cache_path"),
    cache_path_row("fastcgi_cache_path"),
    cache_path_row("scgi_cache_path"),
    cache_path_row("uwsgi_cache_path"),
])
.finish(|caches, _, level| {
    // Lines of further prefixes add to the same list, so each table's struct is a handle to it.
    caches.clone_from(level.shared::<CacheZones>());
    Ok(())
});

/// Reads a `…_cache_path` line. Parameters of nginx's cache loader, manager and purger are
/// validated and ignored: there are no such processes here, but a typo in them should still show.
fn cache_path(line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    let mut declared = ZoneParameters {
        path: folder(line),
        keys: 0,
        inactive: Duration::from_secs(600),
        max_size: ZoneParameters::UNLIMITED_SIZE,
        min_free: 0,
        memory: DEFAULT_MEMORY,
    };
    let mut name = BString::default();
    for i in 1..line.args().len() {
        let text = line.text(i);
        let (key, value) = match text.split_once_str("=") {
            Some((key, value)) => (key, value.as_bstr()),
            None => return Err(line.error_at(i, format!("invalid parameter \"{text}\""))),
        };
        let invalid = |what: &str| line.error_at(i, format!("invalid {what} value \"{text}\""));
        let size = |what| parse_size(value).ok_or_else(|| invalid(what));
        let time = |what| parse::seconds(value).ok_or_else(|| invalid(what));
        match key {
            b"levels" => check_levels(line, i, value)?,
            b"use_temp_path" if value != "on" && value != "off" => {
                return Err(line.error_at(
                    i,
                    format!("invalid use_temp_path value \"{text}\", it must be \"on\" or \"off\""),
                ));
            }
            b"keys_zone" => (name, declared.keys) = keys_zone(line, i, value)?,
            b"inactive" => declared.inactive = time("inactive")?,
            b"max_size" => declared.max_size = size("max_size")?,
            b"min_free" => declared.min_free = size("min_free")?,
            b"memory" => declared.memory = size("memory")?,
            b"loader_files" | b"manager_files" | b"purger_files"
                if value.to_str().is_ok_and(|v| v.parse::<u32>().is_ok()) => {}
            b"loader_sleep" | b"loader_threshold" | b"manager_sleep" | b"manager_threshold"
            | b"purger_sleep" | b"purger_threshold"
                if parse::millis(value).is_some() => {}
            b"loader_files" | b"manager_files" | b"purger_files" | b"loader_sleep"
            | b"loader_threshold" | b"manager_sleep" | b"manager_threshold" | b"purger_sleep"
            | b"purger_threshold" => return Err(invalid(&key.to_str_lossy())),
            b"use_temp_path" | b"purger" => {}
            _ => return Err(line.error_at(i, format!("invalid parameter \"{text}\""))),
        }
    }
    if declared.keys == 0 {
        return Err(line.error(format!(
            "\"{}\" must have \"keys_zone\" parameter",
            line.name()
        )));
    }
    line.shared::<RequiredDirectories>()
        .0
        .insert(declared.path.clone());
    CacheZones::declare_zone(line, name.as_bstr(), declared)
}

/// Logs that a cache has been opened.
fn log_opened(log: &Logger, name: &BStr, path: &Path, found: OpenedStore) {
    let (objects, took, path) = (found.objects, found.took.as_millis(), path.display());
    log.log_plain(
        LogLevel::Notice,
        format_args!("keys_zone \"{name}\": {objects} objects found in \"{path}\" in {took} ms"),
    );
    if found.mended > 0 {
        let mended = found.mended;
        log.log_plain(
            LogLevel::Warn,
            format_args!(
                "{mended} files in \"{path}\" were accessible to other users; their mode is now 0600"
            ),
        );
    }
}

/// The directory of the cache.
fn folder(line: &DirectiveLine) -> PathBuf {
    let path = line.prefix_path(conf::PathUse::Write, line.arg(0));
    // Iterating the components drops the trailing slash, so that two spellings of a path are equal.
    path.components().collect()
}

/// A size that can exceed nginx's ordinary sizes: it knows `g` as well.
fn parse_size(value: &[u8]) -> Option<u64> {
    units::parse_offset(value).and_then(|size| u64::try_from(size).ok())
}

/// Validates `levels=1:2`, which has no effect: objects are not files of their own here.
fn check_levels(line: &DirectiveLine, i: usize, value: &[u8]) -> Result<(), Diagnostic> {
    let levels: Vec<&[u8]> = value.split_str(":").collect();
    let valid =
        levels.len() <= MAX_LEVELS && levels.iter().all(|level| matches!(*level, b"1" | b"2"));
    if valid {
        return Ok(());
    }
    Err(line.error_at(i, format!("invalid \"levels\" \"{}\"", line.text(i))))
}

/// Parses `keys_zone=name:size`.
fn keys_zone(line: &DirectiveLine, i: usize, value: &[u8]) -> Result<(BString, u64), Diagnostic> {
    let text = line.text(i);
    let invalid = || line.error_at(i, format!("invalid keys zone size \"{text}\""));
    let (name, size) = value.split_once_str(":").ok_or_else(invalid)?;
    let size = parse::size(size).ok_or_else(invalid)?;
    if size < MIN_KEYS {
        return Err(line.error_at(i, format!("keys zone \"{text}\" is too small")));
    }
    Ok((name.into(), size))
}

rt::local! {
    /// The upkeep task of the current configuration.
    static UPKEEP_TASK: RefCell<Option<UpkeepTask>> = const { RefCell::new(None) };
}

/// A task that is aborted when its handle is dropped.
struct UpkeepTask(rt::JoinHandle<()>);

impl Drop for UpkeepTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Starts the upkeep of all caches, on one loop.
fn start(engine: &HttpLoop) {
    if engine.index != 0 {
        return;
    }
    let site = engine.site();
    let caches = site.main_confs.get::<CacheZones>().clone();
    if caches.all_zones().is_empty() {
        UPKEEP_TASK.take();
        return;
    }
    let log = engine.log();
    let upkeep = async move {
        loop {
            for (cache, news) in caches.run_upkeep() {
                let name = cache.name();
                match news {
                    ZoneEvent::Opened(found) => log_opened(&log, name, cache.path(), found),
                    ZoneEvent::Trouble(why) => log.log_plain(
                        LogLevel::Crit,
                        format_args!(
                            "{why}, keys_zone \"{name}\": requests bypass the cache when it fails"
                        ),
                    ),
                    ZoneEvent::Recovered => log.log_plain(
                        LogLevel::Notice,
                        format_args!("keys_zone \"{name}\": the cache works again"),
                    ),
                }
            }
            rt::sleep(UPKEEP).await;
        }
    };
    let task = UpkeepTask(rt::spawn_handle("cache upkeep", upkeep));
    UPKEEP_TASK.replace(Some(task));
}
