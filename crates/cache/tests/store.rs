//! The store as its user meets it: what goes in comes out, and after any damage either that or nothing.
#![allow(clippy::unwrap_used, reason = "a test says what failed by its line")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use cache::{
    CacheKey, CacheStore, CachedObject, FillCoverage, FillFailure, FillStart, FollowError,
    LookupResult, MissReason, ObjectHead, ObjectKind, ObjectMeta, PurgeMode, PurgeRequest,
    SeenLocation, StaleReason, StoreOpenError, StoreOptions,
};
use rt::pool::PoolHandle;
use weir_cache as cache;

const NOW: u64 = 1_000_000;

/// A directory of its own, removed at the end.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "weir-cache-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Relaxed)
        );
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn pool() -> PoolHandle {
    rt::pool::register("cache-test", 4, 1000)
}

fn options(path: &Path) -> StoreOptions {
    let mut options = StoreOptions::new(path, pool());
    options.memory = 0;
    options
}

fn open(path: &Path) -> CacheStore {
    CacheStore::open(options(path), NOW).unwrap()
}

fn run<T: 'static>(future: impl Future<Output = T> + 'static) -> T {
    rt::run(rt::LoopOptions::default(), || future).unwrap()
}

fn head(text: &str) -> ObjectHead {
    ObjectHead {
        meta: ObjectMeta {
            stored_ms: NOW,
            validated_ms: NOW,
            fresh_until_ms: NOW + 1000,
            ..ObjectMeta::default()
        },
        opaque: Bytes::copy_from_slice(text.as_bytes()),
        ..ObjectHead::default()
    }
}

/// Bytes that are different at every place and for every seed.
fn body(seed: u32, len: usize) -> Bytes {
    let mut dice = seed.wrapping_mul(2_654_435_761) | 1;
    let bytes = (0..len).map(|_| {
        dice = dice.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (dice >> 24) as u8
    });
    bytes.collect()
}

async fn put(store: &CacheStore, key: &CacheKey, head: ObjectHead, body: Bytes) {
    let seen = store.lookup(key, NOW).await.seen_location();
    let FillStart::Started(mut writer, follower) =
        store.join_or_start_fill(key, FillCoverage::Whole, seen, NOW)
    else {
        panic!("no first fill of {key:?}");
    };
    drop(follower);
    writer.start_storing(head);
    writer.write(body).await.unwrap();
    writer.finish();
}

async fn content(object: &CachedObject) -> Option<Bytes> {
    let mut out = Vec::new();
    while (out.len() as u64) < object.length() {
        let part = object.read(out.len() as u64, 1 << 20).await.ok()?;
        out.extend_from_slice(&part);
    }
    Some(out.into())
}

async fn get(store: &CacheStore, key: &CacheKey) -> Option<(ObjectHead, Bytes)> {
    match store.lookup(key, NOW).await {
        LookupResult::Hit(object) => Some((object.head().clone(), content(&object).await?)),
        LookupResult::Stale(..) | LookupResult::Miss(..) => None,
    }
}

#[test]
fn what_is_stored_comes_back_now_and_after_a_restart() {
    let directory = Directory::new();
    let path = directory.0.clone();
    let sizes = [0, 1, 100, 65_536, 65_537, 262_144, 1_000_000];
    let check = move |store: CacheStore| async move {
        for (i, len) in sizes.into_iter().enumerate() {
            let key = CacheKey::new(format!("key{i}").as_bytes());
            let (found, bytes) = get(&store, &key)
                .await
                .unwrap_or_else(|| panic!("{len} bytes are missing"));
            assert_eq!(found.opaque, head("h").opaque);
            assert!(bytes == body(i as u32, len), "{len}");
        }
    };
    let first = open(&path);
    run({
        let store = first.clone();
        async move {
            for (i, len) in sizes.into_iter().enumerate() {
                put(
                    &store,
                    &CacheKey::new(format!("key{i}").as_bytes()),
                    head("h"),
                    body(i as u32, len),
                )
                .await;
            }
            store.flush().await;
            check(store.clone()).await;
        }
    });
    // As after kill -9: nothing was finished, there is no checkpoint.
    drop(first);
    run(check(reopen(&path)));
    let again = reopen(&path);
    run({
        let again = again.clone();
        async move { again.close().await.unwrap() }
    });
    drop(again);
    assert!(path.join("checkpoint").exists());
    run(check(reopen(&path)));
}

/// Opens when the writer of the store before has let go of it.
fn reopen(path: &Path) -> CacheStore {
    for _ in 0..100_000 {
        match CacheStore::open(options(path), NOW) {
            Err(StoreOpenError::Locked(_)) => std::thread::yield_now(),
            other => return other.unwrap(),
        }
    }
    panic!("the lock is never free");
}

/// A small store with every sort of record; finished with a checkpoint, or left as a crash leaves it.
fn sample(path: &Path, closed: bool) -> Vec<(CacheKey, Bytes)> {
    let objects: Vec<(CacheKey, Bytes)> = (0..4u32)
        .map(|i| {
            (
                CacheKey::new(format!("/{i}").as_bytes()),
                body(i, 40 + i as usize * 90),
            )
        })
        .collect();
    let store = open(path);
    let model = objects.clone();
    run(async move {
        put(&store, &CacheKey::new(b"/3"), head("old"), body(99, 10)).await;
        store.flush().await;
        put(&store, &CacheKey::new(b"/gone"), head("h"), body(98, 10)).await;
        store.flush().await;
        store.purge(PurgeRequest::Key(&CacheKey::new(b"/gone")), PurgeMode::Hard);
        store.purge(PurgeRequest::Tag(b"none"), PurgeMode::Hard);
        store.purge(PurgeRequest::Key(&CacheKey::new(b"/3")), PurgeMode::Hard);
        store.flush().await;
        for (key, body) in &model {
            put(&store, key, head("h"), body.clone()).await;
        }
        store.flush().await;
        if closed {
            store.close().await.unwrap();
        }
    });
    objects
}

/// Damages a copy of the store at every place of a file and looks what is served: what was stored, or nothing.
fn damage_everywhere(
    closed: bool,
    file: &str,
    damage: impl Fn(&mut Vec<u8>, usize),
) -> (usize, usize) {
    let directory = Directory::new();
    let objects = sample(&directory.0, closed);
    let copy = Directory::new();
    let files: Vec<(PathBuf, Vec<u8>)> = fs::read_dir(&directory.0)
        .unwrap()
        .map(|item| {
            let item = item.unwrap();
            (
                copy.0.join(item.file_name()),
                fs::read(item.path()).unwrap(),
            )
        })
        .collect();
    let (target, good) = files
        .iter()
        .find(|(path, _)| path.ends_with(file))
        .unwrap()
        .clone();
    let (mut served, mut lost) = (0, 0);
    for at in 0..good.len() {
        for item in fs::read_dir(&copy.0).unwrap() {
            fs::remove_file(item.unwrap().path()).unwrap();
        }
        for (path, bytes) in &files {
            fs::write(path, bytes).unwrap();
        }
        let mut bytes = good.clone();
        damage(&mut bytes, at);
        fs::write(&target, bytes).unwrap();
        let store = reopen(&copy.0);
        let objects = objects.clone();
        let (ok, gone) = run(async move {
            assert!(
                get(&store, &CacheKey::new(b"/gone"))
                    .await
                    .is_none_or(|(_, bytes)| bytes == body(98, 10))
            );
            let mut counts = (0, 0);
            for (key, body) in &objects {
                match get(&store, key).await {
                    Some((found, bytes)) => {
                        // An older whole object may come back when the disk loses the newer one.
                        let old = *key == CacheKey::new(b"/3")
                            && found.opaque == "old"
                            && bytes == self::body(99, 10);
                        assert!(
                            old || (bytes == *body && found.opaque == "h"),
                            "{key:?} at {at}"
                        );
                        counts.0 += 1;
                    }
                    None => counts.1 += 1,
                }
            }
            counts
        });
        served += ok;
        lost += gone;
    }
    (served, lost)
}

#[allow(clippy::ptr_arg, reason = "it stands in one array with cut")]
fn flip(bytes: &mut Vec<u8>, at: usize) {
    bytes[at] ^= 0x10;
}

fn cut(bytes: &mut Vec<u8>, at: usize) {
    bytes.truncate(at);
}

#[test]
fn a_store_cut_anywhere_serves_nothing_wrong() {
    let (served, lost) = damage_everywhere(false, "00000001.segment", cut);
    assert!(served > 0 && lost > 0);
    damage_everywhere(true, "00000001.segment", cut);
}

#[test]
fn a_store_flipped_anywhere_serves_nothing_wrong() {
    let (served, lost) = damage_everywhere(false, "00000001.segment", flip);
    assert!(served > 0 && lost > 0);
    let (served, lost) = damage_everywhere(true, "00000001.segment", flip);
    assert!(served > 4 * lost, "{served} {lost}");
}

#[test]
fn a_damaged_checkpoint_costs_nothing() {
    for damage in [flip as fn(&mut Vec<u8>, usize), cut] {
        let (_, lost) = damage_everywhere(true, "checkpoint", damage);
        assert_eq!(lost, 0);
    }
}

#[test]
fn a_second_process_is_told() {
    let directory = Directory::new();
    let _first = open(&directory.0);
    assert!(matches!(
        CacheStore::open(options(&directory.0), NOW),
        Err(StoreOpenError::Locked(_))
    ));
}

#[test]
fn a_directory_that_cannot_be_is_told() {
    let directory = Directory::new();
    fs::write(directory.0.join("file"), b"").unwrap();
    assert!(matches!(
        CacheStore::open(options(&directory.0.join("file/x")), NOW),
        Err(StoreOpenError::Io(..))
    ));
}

#[test]
fn purges_hit_what_is_older_and_hold_after_a_crash() {
    let directory = Directory::new();
    let path = directory.0.clone();
    let store = open(&path);
    run(async move {
        for name in ["/a/1", "/a/2", "/b/1", "/c", "/d"] {
            let mut head = head("h");
            if name.starts_with("/b") {
                head.tags = vec![Bytes::from_static(b"tag")];
            }
            put(&store, &CacheKey::new(name.as_bytes()), head, body(1, 100)).await;
        }
        store.flush().await;
        store.purge(PurgeRequest::Prefix(b"/a/"), PurgeMode::Hard);
        store.purge(PurgeRequest::Tag(b"tag"), PurgeMode::Soft);
        store.purge(PurgeRequest::Key(&CacheKey::new(b"/c")), PurgeMode::Hard);
        store.purge(PurgeRequest::Key(&CacheKey::new(b"/d")), PurgeMode::Soft);
        purged(&store).await;
        put(&store, &CacheKey::new(b"/a/2"), head("new"), body(2, 100)).await;
        store.flush().await;
    });
    let store = reopen(&path);
    run(async move {
        purged(&store).await;
        assert_eq!(
            get(&store, &CacheKey::new(b"/a/2")).await.unwrap().1,
            body(2, 100)
        );
        store.close().await.unwrap();
    });
    let store = reopen(&path);
    run(async move { purged(&store).await });
}

async fn purged(store: &CacheStore) {
    let look = |name: &'static str| async move {
        store.lookup(&CacheKey::new(name.as_bytes()), NOW).await
    };
    assert!(matches!(
        look("/a/1").await,
        LookupResult::Miss(MissReason::Purged, _)
    ));
    assert!(matches!(
        look("/b/1").await,
        LookupResult::Stale(_, StaleReason::Purged)
    ));
    assert!(matches!(
        look("/c").await,
        LookupResult::Miss(MissReason::Absent, _)
    ));
    assert!(matches!(
        look("/d").await,
        LookupResult::Stale(_, StaleReason::Purged)
    ));
}

#[test]
fn a_fill_that_began_before_a_purge_is_not_served_after_it() {
    let directory = Directory::new();
    let store = open(&directory.0);
    run(async move {
        for what in [
            PurgeRequest::Key(&CacheKey::new(b"k")),
            PurgeRequest::Prefix(b"k"),
            PurgeRequest::All,
        ] {
            let FillStart::Started(mut writer, mut follower) = store.join_or_start_fill(
                &CacheKey::new(b"k"),
                FillCoverage::Whole,
                SeenLocation::NOTHING,
                NOW,
            ) else {
                panic!("not first");
            };
            writer.start_storing(head("h"));
            writer.write(body(1, 500)).await.unwrap();
            store.purge(what, PurgeMode::Hard);
            assert!(
                store
                    .running_fill(&CacheKey::new(b"k"), FillCoverage::Whole)
                    .is_none(),
                "{what:?}: nobody joins what was purged"
            );
            writer.finish();
            assert_eq!(follower.next_bytes(1000).await, Ok(Some(body(1, 500))));
            store.flush().await;
            assert!(
                get(&store, &CacheKey::new(b"k")).await.is_none(),
                "{what:?}"
            );
        }
    });
}

#[test]
fn variants_go_with_their_marker() {
    let directory = Directory::new();
    let store = open(&directory.0);
    run(async move {
        let key = CacheKey::new(b"k");
        let mut marker = head("accept-encoding");
        marker.meta.kind = ObjectKind::Variants;
        put(&store, &key, marker, Bytes::new()).await;
        store.flush().await;
        let LookupResult::Hit(marker) = store.lookup(&key, NOW).await else {
            panic!("no marker")
        };
        assert_eq!(marker.head().meta.kind, ObjectKind::Variants);
        put(
            &store,
            &key.variant_of(marker.born(), b"gzip"),
            head("v"),
            body(5, 10),
        )
        .await;
        store.flush().await;
        assert!(
            get(&store, &key.variant_of(marker.born(), b"gzip"))
                .await
                .is_some()
        );
        store.purge(PurgeRequest::Key(&key), PurgeMode::Hard);
        put(&store, &key, head("m"), Bytes::new()).await;
        store.flush().await;
        let LookupResult::Hit(marker) = store.lookup(&key, NOW).await else {
            panic!("no marker")
        };
        assert!(
            get(&store, &key.variant_of(marker.born(), b"gzip"))
                .await
                .is_none()
        );
    });
}

#[test]
fn a_validation_changes_the_head_and_keeps_the_body() {
    let directory = Directory::new();
    let path = directory.0.clone();
    let store = open(&path);
    run(async move {
        for (i, len) in [(0u32, 300), (1, 700_000)] {
            let key = CacheKey::new(&i.to_le_bytes());
            put(&store, &key, head("h"), body(i, len)).await;
            store.flush().await;
            let LookupResult::Stale(object, StaleReason::Expired) =
                store.lookup(&key, NOW + 5000).await
            else {
                panic!("not stale")
            };
            let meta = ObjectMeta {
                fresh_until_ms: NOW + 10_000,
                ..object.head().meta
            };
            store.refresh(&object, meta, Some(Bytes::from_static(b"new")), 0);
            store.flush().await;
            let LookupResult::Hit(object) = store.lookup(&key, NOW + 5000).await else {
                panic!("not fresh")
            };
            assert_eq!(object.head().opaque, "new");
            assert!(content(&object).await.unwrap() == body(i, len));
        }
    });
    let store = reopen(&path);
    run(async move {
        assert_eq!(
            get(&store, &CacheKey::new(&1u32.to_le_bytes()))
                .await
                .unwrap()
                .1,
            body(1, 700_000)
        );
    });
}

#[test]
fn parts_are_joined_when_they_are_of_one_version() {
    let directory = Directory::new();
    let store = open(&directory.0);
    run(async move {
        let key = CacheKey::new(b"k");
        let whole = body(3, 900_000);
        let part = |version| {
            let mut head = head("h");
            head.meta.version = version;
            head.length = Some(900_000);
            head
        };
        // A part of another version takes the place of what is incomplete.
        for (version, range) in [(8, 0..10), (7, 600_000..900_000), (7, 0..300_000)] {
            let seen = store.lookup(&key, NOW).await.seen_location();
            let FillStart::Started(mut writer, _) =
                store.join_or_start_fill(&key, FillCoverage::Part(range.start as u64), seen, NOW)
            else {
                panic!("not first")
            };
            writer.start_storing(part(version));
            writer.write(whole.slice(range)).await.unwrap();
            writer.fail(FillFailure::ProducerGone);
            store.flush().await;
        }
        let LookupResult::Hit(object) = store.lookup(&key, NOW).await else {
            panic!("no part")
        };
        assert_eq!(object.first_hole(0), Some(300_000..600_000));
        assert!(matches!(
            object.read(300_000, 10).await,
            Err(cache::ReadError::Hole)
        ));
        let FillStart::Started(mut writer, _) = store.join_or_start_fill(
            &key,
            FillCoverage::Part(300_000),
            store.lookup(&key, NOW).await.seen_location(),
            NOW,
        ) else {
            panic!("not first")
        };
        writer.start_storing(part(7));
        writer.write(whole.slice(300_000..600_000)).await.unwrap();
        writer.fail(FillFailure::ProducerGone);
        store.flush().await;
        assert!(get(&store, &key).await.unwrap().1 == whole);
    });
}

#[test]
fn space_is_bounded_and_what_is_used_stays() {
    let directory = Directory::new();
    let path = directory.0.clone();
    let mut small = options(&path);
    small.max_size = 8 * 1024 * 1024;
    let store = CacheStore::open(small, NOW).expect("the store opens");
    let watched = store.clone();
    run(async move {
        let store = watched;
        for round in 0..1500u32 {
            let key = CacheKey::new(format!("scan{round}").as_bytes());
            put(&store, &key, head("h"), body(round, 10_000)).await;
            for hot in 0..10u32 {
                let key = CacheKey::new(format!("hot{hot}").as_bytes());
                match get(&store, &key).await {
                    Some((_, bytes)) => assert!(round % 50 > 0 || bytes == body(hot, 20_000)),
                    None => {
                        assert!(round < 50, "hot object {hot} was lost in round {round}");
                        put(&store, &key, head("h"), body(hot, 20_000)).await;
                        store.flush().await;
                    }
                }
            }
            assert!(store.stats().size <= 8 * 1024 * 1024, "{:?}", store.stats());
        }
        store.flush().await;
        assert!(
            store.stats().reclaimed > 10 && store.stats().evicted > 300,
            "{:?}",
            store.stats()
        );
    });
    assert_eq!(store.last_error(), None);
}

/// Found by `weir-simulation`: the copy that reclaiming makes is younger than the record of the purge.
#[test]
fn what_a_soft_purge_has_hit_stays_stale_when_it_is_moved() {
    let directory = Directory::new();
    let path = directory.0.clone();
    let mut small = options(&path);
    (small.max_size, small.segment_size) = (200 * 1024, Some(8 * 1024));
    let store = CacheStore::open(small, NOW).expect("the store opens");
    let watched = store.clone();
    run(async move {
        let (store, soft) = (watched, CacheKey::new(b"soft"));
        put(&store, &soft, head("h"), body(1, 3_000)).await;
        store.flush().await;
        for _ in 0..3 {
            assert!(get(&store, &soft).await.is_some());
        }
        store.purge(PurgeRequest::Key(&soft), PurgeMode::Soft);
        for round in 0..6u32 {
            let other = CacheKey::new(&round.to_le_bytes());
            put(&store, &other, head("h"), body(round, 40_000)).await;
            store.flush().await;
        }
        assert!(store.stats().reclaimed > 0, "{:?}", store.stats());
        let found = store.lookup(&soft, NOW).await;
        assert!(matches!(found, LookupResult::Stale(..)), "{found:?}");
    });
    drop(store);
    let store = reopen(&path);
    run(async move {
        let found = store.lookup(&CacheKey::new(b"soft"), NOW).await;
        assert!(matches!(found, LookupResult::Stale(..)), "{found:?}");
    });
}

#[test]
fn what_nobody_asks_for_goes() {
    let directory = Directory::new();
    let store = open(&directory.0);
    run(async move {
        put(&store, &CacheKey::new(b"k"), head("h"), body(1, 10)).await;
        store.flush().await;
        let later = NOW + 700_000;
        for _ in 0..16 {
            store.run_upkeep(later);
        }
        store.flush().await;
        assert_eq!(store.stats().objects, 0);
    });
}

#[test]
fn a_vanished_directory_is_told_and_nothing_stops() {
    let directory = Directory::new();
    let path = directory.0.clone();
    let mut small = options(&path);
    small.segment_size = Some(64 * 1024);
    let store = CacheStore::open(small, NOW).expect("the store opens");
    fs::remove_dir_all(&path).unwrap();
    run(async move {
        let FillStart::Started(mut writer, mut follower) = store.join_or_start_fill(
            &CacheKey::new(b"k"),
            FillCoverage::Whole,
            SeenLocation::NOTHING,
            NOW,
        ) else {
            panic!("not first")
        };
        writer.start_storing(head("h"));
        let whole = body(1, 3_000_000);
        let expected = whole.clone();
        let reader = rt::spawn_handle("reader", async move {
            let mut out = Vec::new();
            while let Some(bytes) = follower.next_bytes(1 << 16).await.unwrap() {
                out.extend_from_slice(&bytes);
            }
            out
        });
        writer.write(whole).await.unwrap();
        writer.finish();
        assert!(reader.await.unwrap() == expected);
        store.run_upkeep(NOW);
        store.flush().await;
        assert!(store.last_error().unwrap().contains("has disappeared"));
        assert_eq!(store.stats().fills, 0);
    });
}

#[test]
fn many_follow_one_fill_on_many_loops() {
    let directory = Directory::new();
    let store = open(&directory.0);
    let key = CacheKey::new(b"big");
    let FillStart::Started(mut writer, first) =
        store.join_or_start_fill(&key, FillCoverage::Whole, SeenLocation::NOTHING, NOW)
    else {
        panic!("not first")
    };
    let whole = body(1, 6_000_000);
    let loops: Vec<_> = (0..4)
        .map(|_| {
            let (store, key, whole) = (store.clone(), key.clone(), whole.clone());
            std::thread::spawn(move || {
                run(async move {
                    let mut readers = Vec::new();
                    for i in 0..50 {
                        let follower = store.join_or_start_fill(
                            &key,
                            FillCoverage::Whole,
                            SeenLocation::NOTHING,
                            NOW,
                        );
                        let whole = whole.clone();
                        readers.push(rt::spawn_handle("reader", async move {
                            let FillStart::Joined(mut follower) = follower else {
                                return false;
                            };
                            let mut at = 0;
                            while let Some(bytes) =
                                follower.next_bytes(1000 + i * 9000).await.unwrap()
                            {
                                assert!(bytes == whole[at..at + bytes.len()]);
                                at += bytes.len();
                                if i % 10 == 0 {
                                    rt::yield_now().await;
                                }
                            }
                            at == whole.len()
                        }));
                    }
                    let mut joined = 0;
                    for reader in readers {
                        joined += usize::from(reader.await.unwrap());
                    }
                    joined
                })
            })
        })
        .collect();
    run({
        let whole = whole.clone();
        async move {
            // A follower that reads nothing must not hold up the others.
            let _stalled = first;
            rt::timeout(Duration::from_secs(20), async move {
                while writer.follower_count() < 201 {
                    rt::yield_now().await;
                }
                writer.start_storing(head("h"));
                for at in (0..whole.len()).step_by(70_000) {
                    writer
                        .write(whole.slice(at..whole.len().min(at + 70_000)))
                        .await
                        .unwrap();
                }
                writer.finish();
            })
            .await
            .unwrap();
        }
    });
    let joined: usize = loops.into_iter().map(|thread| thread.join().unwrap()).sum();
    assert_eq!(joined, 200);
    run(async move {
        store.flush().await;
        assert!(get(&store, &key).await.unwrap().1 == whole);
        assert_eq!(store.stats().fills, 0);
    });
}

#[test]
fn private_answers_release_who_joined_and_are_remembered() {
    let directory = Directory::new();
    let store = open(&directory.0);
    run(async move {
        let key = CacheKey::new(b"private");
        let FillStart::Started(mut writer, mut first) =
            store.join_or_start_fill(&key, FillCoverage::Whole, SeenLocation::NOTHING, NOW)
        else {
            panic!("not first")
        };
        let FillStart::Joined(mut second) =
            store.join_or_start_fill(&key, FillCoverage::Whole, SeenLocation::NOTHING, NOW)
        else {
            panic!("not joined")
        };
        writer.start_passing(head("p"), NOW + 120_000);
        assert_eq!(second.wait_for_head().await, Err(FollowError::Released));
        assert_eq!(first.wait_for_head().await.unwrap().opaque, "p");
        writer.write(body(1, 100)).await.unwrap();
        assert_eq!(first.next_bytes(1000).await, Ok(Some(body(1, 100))));
        drop((first, second));
        assert!(writer.write(body(1, 100)).await.is_err());
        assert!(matches!(
            store.join_or_start_fill(&key, FillCoverage::Whole, SeenLocation::NOTHING, NOW),
            FillStart::HitForMiss { .. }
        ));
        assert!(matches!(
            store.join_or_start_fill(
                &key,
                FillCoverage::Whole,
                SeenLocation::NOTHING,
                NOW + 120_000
            ),
            FillStart::Started(..)
        ));
    });
}

#[test]
fn a_producer_that_goes_is_noticed() {
    let directory = Directory::new();
    let store = open(&directory.0);
    run(async move {
        let key = CacheKey::new(b"k");
        let FillStart::Started(mut writer, mut follower) =
            store.join_or_start_fill(&key, FillCoverage::Whole, SeenLocation::NOTHING, NOW)
        else {
            panic!("not first")
        };
        writer.start_storing(ObjectHead {
            length: Some(10),
            ..head("h")
        });
        writer.write(body(1, 4)).await.unwrap();
        drop(writer);
        assert_eq!(follower.next_bytes(10).await, Ok(Some(body(1, 4))));
        assert_eq!(
            follower.next_bytes(10).await,
            Err(FollowError::Failed(FillFailure::ProducerGone))
        );
        let FillStart::Started(mut writer, mut follower) =
            store.join_or_start_fill(&key, FillCoverage::Whole, SeenLocation::NOTHING, NOW)
        else {
            panic!("not first")
        };
        writer.start_storing(ObjectHead {
            length: Some(10),
            ..head("h")
        });
        writer.write(body(1, 4)).await.unwrap();
        writer.finish();
        assert_eq!(follower.next_bytes(10).await, Ok(Some(body(1, 4))));
        assert_eq!(
            follower.next_bytes(10).await,
            Err(FollowError::Failed(FillFailure::Length))
        );
        store.flush().await;
        assert!(get(&store, &key).await.is_none());
    });
}

/// In the child of the test below: stores for ever, and says how far the files have it.
#[test]
fn child_that_is_killed() {
    let Ok(path) = std::env::var("WEIR_CACHE_KILLED") else {
        return;
    };
    let store = reopen(Path::new(&path));
    run(async move {
        for i in 0u32.. {
            put(
                &store,
                &CacheKey::new(&i.to_le_bytes()),
                head("h"),
                body(i, 1 + i as usize % 40 * 7000),
            )
            .await;
            if i % 5 == 4 {
                store.flush().await;
                println!("written {i}");
            }
            if i % 64 == 63 {
                store.checkpoint().await.unwrap();
            }
        }
    });
}

#[test]
fn after_kill_9_all_that_was_written_is_served_and_nothing_else() {
    use std::io::{BufRead, BufReader};
    for stop in [4u32, 39, 64, 124, 199] {
        let directory = Directory::new();
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_that_is_killed", "--nocapture"])
            .env("WEIR_CACHE_KILLED", &directory.0)
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut numbers =
            lines.filter_map(|line| line.unwrap().rsplit_once("written ")?.1.parse().ok());
        let last: u32 = numbers.find(|&last| last >= stop).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let store = reopen(&directory.0);
        run(async move {
            for i in 0..last + 50 {
                let found = get(&store, &CacheKey::new(&i.to_le_bytes())).await;
                assert!(found.is_some() || i > last, "{i} of {last} is lost");
                assert!(
                    found.is_none_or(|(_, bytes)| bytes == body(i, 1 + i as usize % 40 * 7000)),
                    "{i} is wrong"
                );
            }
        });
    }
}
