//! The figures of the design page: `cargo run --release -p weir-cache --example figures DIRECTORY [OBJECTS]`.
//!
//! Puts and hits a second, the restart with many objects, memory per object, and the hit ratio of S3-FIFO beside LRU.
//! DIRECTORY must be empty or a store made by this program; it is left as it is.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;
use std::time::Instant;

use bytes::Bytes;
use weir_cache::s3_fifo::S3Fifo;
use weir_cache::{
    CacheKey, CacheStore, FillCoverage, FillStart, LookupResult, ObjectHead, ObjectMeta,
    StoreOptions,
};

const BODY: usize = 1024;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().expect("a directory");
    let objects = arguments
        .next()
        .map_or(1_000_000, |text| text.parse().expect("a number"));
    hit_ratios();
    let directory = Path::new(&directory).to_owned();
    rt::run(rt::LoopOptions::default(), || {
        store_figures(directory, objects)
    })
    .expect("a loop");
}

fn options(directory: &Path) -> StoreOptions {
    let mut options = StoreOptions::new(directory, rt::pool::default_pool());
    options.inactive_ms = 0;
    options.memory = 0;
    options
}

fn key(number: u64) -> CacheKey {
    CacheKey::new(format!("http://example.org/objects/{number}").as_bytes())
}

async fn store_figures(directory: std::path::PathBuf, objects: u64) {
    let store = CacheStore::open(options(&directory), 1000).expect("a store");
    put(&store, objects).await;
    hits("hit, page cache", &store, objects, 300_000).await;
    hits("hit, 1000 keys, page cache", &store, 1000, 300_000).await;
    drop(store);
    let store = restart("restart after kill: tables", &directory).await;
    let begin = Instant::now();
    store.checkpoint().await.expect("a checkpoint");
    println!(
        "checkpoint written: {:.0} ms",
        begin.elapsed().as_secs_f64() * 1e3
    );
    drop(store);
    let store = restart("restart with checkpoint", &directory).await;
    drop(store);
    fs::remove_file(directory.join("checkpoint")).expect("the checkpoint");
    let store = restart("restart, checkpoint lost", &directory).await;
    drop(store);
    let mut options = options(&directory);
    options.memory = 64 * 1024 * 1024;
    let store = reopen(options);
    hits("hit, memory tier", &store, 1000, 1_000_000).await;
    println!("{:?}", store.stats());
}

async fn put(store: &CacheStore, objects: u64) {
    let body = Bytes::from(vec![7; BODY]);
    let head = ObjectHead {
        meta: ObjectMeta {
            fresh_until_ms: u64::MAX,
            ..ObjectMeta::default()
        },
        opaque: Bytes::from(vec![b'h'; 300]),
        ..ObjectHead::default()
    };
    let begin = Instant::now();
    for number in 0..objects {
        let key = key(number);
        let seen = store.lookup(&key, 1000).await.seen_location();
        let FillStart::Started(mut writer, _) =
            store.join_or_start_fill(&key, FillCoverage::Whole, seen, 1000)
        else {
            continue;
        };
        writer.start_storing(head.clone());
        // It cannot be abandoned: it is stored.
        let _ = writer.write(body.clone()).await;
        writer.finish();
        if number % 10_000 == 0 {
            store.flush().await;
        }
    }
    store.flush().await;
    let seconds = begin.elapsed().as_secs_f64();
    println!(
        "put of {BODY} bytes: {:.0}/s, {:?}",
        objects as f64 / seconds,
        store.stats()
    );
}

async fn hits(what: &str, store: &CacheStore, keys: u64, times: u64) {
    let mut dice = Dice(9);
    let keys: Vec<CacheKey> = (0..times.min(100_000))
        .map(|_| key(dice.next() % keys))
        .collect();
    let mut found = 0u64;
    let begin = Instant::now();
    for number in 0..times as usize {
        if let LookupResult::Hit(object) = store.lookup(&keys[number % keys.len()], 1000).await {
            found += u64::from(
                object
                    .body_in_memory()
                    .is_some_and(|body| body.len() == BODY),
            );
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    println!(
        "{what}: {:.0}/s ({found} of {times})",
        times as f64 / seconds
    );
}

async fn restart(what: &str, directory: &Path) -> CacheStore {
    let begin = Instant::now();
    let store = reopen(options(directory));
    let whole = begin.elapsed();
    let hit = matches!(store.lookup(&key(3), 1000).await, LookupResult::Hit(_));
    let stats = store.stats();
    println!(
        "{what}: index whole after {:.0} ms, first hit ({hit}) after {:.1} ms; {} objects, {:.1} bytes an object",
        whole.as_secs_f64() * 1e3,
        begin.elapsed().as_secs_f64() * 1e3,
        stats.objects,
        stats.index_memory as f64 / stats.objects.max(1) as f64,
    );
    store
}

/// Opens once the writer of the store before has gone.
fn reopen(options: StoreOptions) -> CacheStore {
    loop {
        match CacheStore::open(options.clone(), 1000) {
            Err(weir_cache::StoreOpenError::Locked(_)) => std::thread::yield_now(),
            other => return other.expect("a store"),
        }
    }
}

/// A linear congruential generator; its upper bits are good enough here.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 24
    }

    fn unit(&mut self) -> f64 {
        (self.next() & 0xffff_ffff) as f64 / 4_294_967_296.0
    }
}

/// Requests for 100,000 keys by Zipf's law; after each 50,000 of them a scan of 20,000 keys that never come again.
fn trace(exponent: f64, scans: bool) -> Vec<u64> {
    let mut sum = 0.0;
    let weights: Vec<f64> = (1..=100_000u32)
        .map(|rank| {
            sum += f64::from(rank).powf(-exponent);
            sum
        })
        .collect();
    let mut dice = Dice(4);
    let mut trace = Vec::new();
    for step in 0..2_000_000u64 {
        let at = dice.unit() * sum;
        trace.push(weights.partition_point(|&weight| weight < at) as u64);
        if scans && step % 50_000 == 49_999 {
            trace.extend((0..20_000).map(|i| 1_000_000 + step * 100 + i));
        }
    }
    trace
}

fn hit_ratios() {
    for exponent in [0.7, 0.9, 1.1] {
        for scans in [false, true] {
            let trace = trace(exponent, scans);
            for capacity in [1_000, 10_000] {
                let lru = lru_ratio(&trace, capacity);
                let s3 = s3_ratio(&trace, capacity);
                println!(
                    "zipf {exponent}, scans {scans}, {capacity} of 100000: LRU {:.1} %, S3-FIFO {:.1} %",
                    lru * 100.0,
                    s3 * 100.0
                );
            }
        }
    }
}

fn s3_ratio(trace: &[u64], capacity: usize) -> f64 {
    let mut cache = S3Fifo::new(capacity);
    let mut hits = 0u64;
    for key in trace {
        if cache.get(key).is_some() {
            hits += 1;
        } else {
            cache.insert(*key, (), 1);
        }
    }
    hits as f64 / trace.len() as f64
}

fn lru_ratio(trace: &[u64], capacity: usize) -> f64 {
    let mut used: HashMap<u64, u64> = HashMap::new();
    let mut order: BTreeMap<u64, u64> = BTreeMap::new();
    let mut hits = 0u64;
    for (time, key) in (0u64..).zip(trace) {
        if let Some(last) = used.insert(*key, time) {
            hits += 1;
            order.remove(&last);
        } else if used.len() > capacity
            && let Some((_, oldest)) = order.pop_first()
        {
            used.remove(&oldest);
        }
        order.insert(time, *key);
    }
    hits as f64 / trace.len() as f64
}
