//! `compressed_copies`: what `gzip`, `brotli` and `zstd` made of files and cached responses is kept.
//!
//! ```nginx
//! http {
//!     compressed_copies_memory 64m;
//!     server {
//!         gzip on;
//!         compressed_copies_upgrade hits=100;    # those in use are compressed again, as well as can be
//!         location /once/ { compressed_copies off; }
//!     }
//! }
//! ```
//!
//! How copies are found and made is in [`crate::shared::compressed_copies`]. nginx has no equivalent.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use conf::{
    Arity, Diagnostic, Directive, DirectiveLine, DirectiveTable, HTTP, HTTP_SERVER_LOCATION,
    RepeatRule, Setter, parse,
};
use http::HttpModule;
use net::metrics::{MetricFamily, MetricSink};

use crate::shared::compressed_copies::{
    CopiesConf, CopiesMemory, CopyCounters, CopyUpgrade, UPGRADE_CODINGS,
};

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "compressed_copies",
    doc: "Keeps what was compressed on the fly.",
    main: &MEMORY,
    location: &DIRECTIVES,
    commit: |site, zones| site.main_confs.get::<CopiesMemory>().commit(zones),
    metrics: |site, sink| tell_metrics(site.main_confs.get::<CopiesMemory>(), sink),
    ..HttpModule::EMPTY
};

static MEMORY: DirectiveTable<CopiesMemory> = DirectiveTable::new(&[Directive {
    name: "compressed_copies_memory",
    syntax: "size",
    default: Some("32m"),
    contexts: HTTP,
    since: "0.3",
    doc: "The maximum memory of compressed copies, in each worker process. When it is used up, the least used \
          copies are evicted; a response whose copy does not fit is compressed for its client alone. A body larger than \
          a quarter of it is not kept. `0` disables copies.",
    set: Setter::Size(|c| &mut c.limit),
}]);

static DIRECTIVES: DirectiveTable<CopiesConf> = DirectiveTable::new(&[
    Directive {
        name: "compressed_copies",
        syntax: "on | off",
        default: Some("on"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.3",
        doc: "Whether what `gzip`, `brotli` and `zstd` make of files and of cached responses is kept, so that it is \
              compressed once for all clients. A file is compressed anew once it has changed; one that changed in the \
              last two seconds is compressed for each client.",
        set: Setter::Flag(|c| &mut c.on),
    },
    Directive {
        name: "compressed_copies_upgrade",
        syntax: "off | hits=number [gzip=level] [br=level] [zstd=level]",
        default: Some("off"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.3",
        doc: "After `hits` uses, a copy is compressed once more, in the background, at these levels: by default 9 for \
              gzip, 11 for Brotli and 19 for Zstandard. The better copy takes its place if it is smaller.",
        set: Setter::Custom(Arity::between(1, 4), RepeatRule::Once, read_upgrade),
    },
]);

/// The best levels that are worth their time. Zstandard has three more, which gain a percent or two in several times the
/// time.
const BEST_LEVELS: [i64; 3] = [9, 11, 19];

/// The levels that each coding has, in the order of [`UPGRADE_CODINGS`].
const LEVELS: [(i64, i64); 3] = [(1, 9), (0, 11), (1, 22)];

fn read_upgrade(conf: &mut CopiesConf, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    if line.text(0) == "off" && line.args().len() == 1 {
        conf.upgrade = None;
        return Ok(());
    }
    let (mut hits, mut levels) = (None, BEST_LEVELS);
    for i in 0..line.args().len() {
        let word = line.text(i);
        let number = |value: &[u8], (min, max): (i64, i64)| {
            let number = base::text::decimal(value).filter(|number| (min..=max).contains(number));
            number.ok_or_else(|| {
                line.invalid_value(i)
                    .note(format!("a number from {min} to {max}"))
            })
        };
        if let Some(value) = parse::parameter(word, "hits") {
            hits = Some(number(value, (1, u32::MAX.into()))?);
            continue;
        }
        let mut codings = UPGRADE_CODINGS.iter().enumerate();
        let level = codings.find_map(|(at, name)| Some((at, parse::parameter(word, name)?)));
        let Some((at, value)) = level else {
            return Err(line.invalid_parameter(i));
        };
        levels[at] = number(value, LEVELS[at])?;
    }
    let hits = hits.ok_or_else(|| {
        line.error("\"compressed_copies_upgrade\" must have \"hits\" parameter")
            .note("the number of uses after which a copy is compressed again, such as \"hits=100\"")
    })?;
    conf.upgrade = Some(CopyUpgrade {
        // Within the bounds above.
        hits: hits as u32,
        levels,
    });
    Ok(())
}

type Family = MetricFamily;

static COPIES: Family = Family::gauge("weir_compressed_copies", "Compressed copies in memory.");
static MEMORY_USED: Family = Family::gauge(
    "weir_compressed_copies_bytes",
    "Memory of compressed copies, of those being made and of those still being sent.",
);

/// A family, and where its number stands.
type CopyCounter = (Family, fn(&CopyCounters) -> &AtomicU64);

/// Sums of the process, told even when they are 0: a counter that appears late hides its first increase from `rate()`.
static COUNTERS: [CopyCounter; 10] = [
    (
        Family::counter(
            "weir_compressed_copies_hits",
            "Responses that were a compressed copy.",
        ),
        |all| &all.hits,
    ),
    (
        Family::counter(
            "weir_compressed_copies_followed",
            "Responses that followed a copy while it was made.",
        ),
        |all| &all.followed,
    ),
    (
        Family::counter(
            "weir_compressed_copies_made",
            "Copies made, each by one compression.",
        ),
        |all| &all.made,
    ),
    (
        Family::counter(
            "weir_compressed_copies_loaded",
            "Copies that were read from a cache.",
        ),
        |all| &all.loaded,
    ),
    (
        Family::counter(
            "weir_compressed_copies_stored",
            "Copies that were written to a cache.",
        ),
        |all| &all.stored,
    ),
    (
        Family::counter(
            "weir_compressed_copies_failed",
            "Copies that could not be finished.",
        ),
        |all| &all.failed,
    ),
    (
        Family::counter(
            "weir_compressed_copies_evicted",
            "Copies that left for want of memory.",
        ),
        |all| &all.evicted,
    ),
    (
        Family::counter(
            "weir_compressed_copies_refused",
            "Responses compressed for one client because there was no memory for a copy.",
        ),
        |all| &all.refused,
    ),
    (
        Family::counter(
            "weir_compressed_copies_upgraded",
            "Copies made again at a better level.",
        ),
        |all| &all.upgraded,
    ),
    (
        Family::counter(
            "weir_compressed_copies_saved_bytes",
            "Bytes that were not sent because copies were made again.",
        ),
        |all| &all.saved,
    ),
];

fn tell_metrics(memory: &CopiesMemory, sink: &mut dyn MetricSink) {
    let Some(copies) = memory.copies() else {
        return;
    };
    let totals = copies.totals();
    sink.family(&COPIES);
    sink.count(&[], totals.copies as u64);
    sink.family(&MEMORY_USED);
    sink.count(&[], totals.held);
    for (family, counter) in &COUNTERS {
        sink.family(family);
        sink.count(&[], counter(&copies.counters).load(Relaxed));
    }
}
