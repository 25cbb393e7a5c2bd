//! What a caller that fetches relies on: fills that turn out to be something else, and what is true at once.
#![allow(clippy::unwrap_used, reason = "a test says what failed by its line")]

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use bytes::Bytes;
use cache::{
    CacheKey, CacheStore, FillCoverage, FillFeed, FillFollower, FillMessage, FillStart, FillWriter,
    FollowError, LookupResult, ObjectHead, ObjectKind, ObjectMeta, PurgeRequest, SeenLocation,
    StaleReason, StoreOptions, WantedFill,
};
use weir_cache as cache;

const NOW: u64 = 1_000_000;

/// A directory of its own, removed at the end.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Relaxed);
        let name = format!("weir-fetching-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn options(&self) -> StoreOptions {
        StoreOptions::new(&self.0, rt::pool::register("cache-test", 4, 1000))
    }

    fn open(&self) -> CacheStore {
        CacheStore::open(self.options(), NOW).unwrap()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn run<T: 'static>(future: impl Future<Output = T> + 'static) -> T {
    rt::run(rt::LoopOptions::default(), || future).unwrap()
}

fn head(text: &str, fresh_until_ms: u64) -> ObjectHead {
    ObjectHead {
        meta: ObjectMeta {
            fresh_until_ms,
            ..ObjectMeta::default()
        },
        opaque: Bytes::copy_from_slice(text.as_bytes()),
        ..ObjectHead::default()
    }
}

async fn put(store: &CacheStore, key: &CacheKey, head: ObjectHead, body: &'static str) {
    let (mut writer, follower) = store.start_fill(key, NOW);
    drop(follower);
    writer.start_storing(head);
    writer.write(body.into()).await.unwrap();
    writer.finish();
    store.flush().await;
}

async fn found(store: &CacheStore, key: &CacheKey) -> Option<(Bytes, Bytes)> {
    match store.lookup(key, NOW).await {
        LookupResult::Hit(object) => Some((
            object.head().opaque.clone(),
            object.body_in_memory()?.clone(),
        )),
        LookupResult::Stale(..) | LookupResult::Miss(..) => None,
    }
}

#[test]
fn a_fill_may_be_of_a_variant() {
    let directory = Directory::new();
    let store = directory.open();
    run(async move {
        let primary = CacheKey::new(b"page");
        let (mut writer, mut first) = store.start_fill(&primary, NOW);
        let marker = ObjectHead {
            meta: ObjectMeta {
                kind: ObjectKind::Variants,
                fresh_until_ms: u64::MAX,
                ..ObjectMeta::default()
            },
            length: Some(0),
            ..head("by language", 0)
        };
        let born = store.put_marker(&primary, marker, NOW);
        let german = primary.variant_of(born, b"de");
        writer.head_as(german.clone(), head("de", NOW + 1));
        // Both keys lead to it while it comes.
        for key in [&primary, &german] {
            let FillStart::Joined(mut follower) =
                store.join_or_start_fill(key, FillCoverage::Whole, SeenLocation::NOTHING, NOW)
            else {
                // The marker may be in the index by now; then the primary key says to look again.
                assert_eq!(key, &primary);
                continue;
            };
            assert_eq!(&follower.wait_for_head().await.unwrap().opaque[..], b"de");
        }
        writer.write("Guten Tag".into()).await.unwrap();
        writer.finish();
        assert_eq!(first.next_bytes(100).await.unwrap().unwrap(), "Guten Tag");
        store.flush().await;
        let LookupResult::Hit(marker) = store.lookup(&primary, NOW).await else {
            panic!("no marker");
        };
        assert_eq!(
            (marker.head().meta.kind, marker.born()),
            (ObjectKind::Variants, born)
        );
        assert_eq!(marker.length(), 0);
        let key = primary.variant_of(marker.born(), b"de");
        assert_eq!(found(&store, &key).await.unwrap().1, "Guten Tag");
        store.purge(PurgeRequest::Key(&primary), cache::PurgeMode::Hard);
        assert!(matches!(
            store.lookup(&primary, NOW).await,
            LookupResult::Miss(..)
        ));
    });
}

#[test]
fn followers_are_told_what_is_there_instead() {
    let directory = Directory::new();
    let store = directory.open();
    run(async move {
        let key = CacheKey::new(b"key");
        let FillStart::Started(writer, mut first) =
            store.join_or_start_fill(&key, FillCoverage::Whole, SeenLocation::NOTHING, NOW)
        else {
            panic!("no first");
        };
        let FillStart::Joined(mut second) =
            store.join_or_start_fill(&key, FillCoverage::Whole, SeenLocation::NOTHING, NOW)
        else {
            panic!("no second");
        };
        assert!(first.is_first() && !second.is_first() && writer.first_stays());
        writer.end_with_message(FillMessage::new(7_u32));
        for follower in [&mut first, &mut second] {
            match follower.wait_for_head().await {
                Err(FollowError::Message(told)) => assert_eq!(told.get::<u32>(), Some(&7)),
                other => panic!("{other:?}"),
            }
        }
        // Nobody joins what is over, and nothing was stored.
        assert!(matches!(
            store.join_or_start_fill(&key, FillCoverage::Whole, SeenLocation::NOTHING, NOW),
            FillStart::Started(..)
        ));
    });
}

#[test]
fn a_fill_anew_takes_the_place_of_what_is_there_and_of_who_fills() {
    let directory = Directory::new();
    let store = directory.open();
    run(async move {
        let key = CacheKey::new(b"key");
        let FillStart::Started(slow, _follower) =
            store.join_or_start_fill(&key, FillCoverage::Whole, SeenLocation::NOTHING, NOW)
        else {
            panic!("no first");
        };
        put(&store, &key, received("new", NOW - 1), "new").await;
        assert_eq!(found(&store, &key).await.unwrap().1, "new");
        // The head of the one that was replaced comes late, and is the newer one then.
        let mut slow = slow;
        slow.start_storing(received("late", NOW));
        slow.write("late".into()).await.unwrap();
        slow.finish();
        store.flush().await;
        assert_eq!(found(&store, &key).await.unwrap().1, "late");
    });
}

/// A head that came then, with a minute of freshness.
fn received(text: &str, validated_ms: u64) -> ObjectHead {
    let mut head = head(text, validated_ms + 60_000);
    head.meta.validated_ms = validated_ms;
    head
}

/// Begins a fill of a key whose body is not whole yet, and another one in its place.
async fn overtaken(store: &CacheStore, key: &CacheKey) -> (FillWriter, FillFollower, FillWriter) {
    let (mut old, follower) = store.start_fill(key, NOW);
    old.start_storing(received("old", NOW - 5_000));
    old.write("ol".into()).await.unwrap();
    let wanted = WantedFill {
        key,
        coverage: FillCoverage::Whole,
        seen: SeenLocation::NOTHING,
        feed: FillFeed::Origin,
        instead_of: Some(follower.born()),
    };
    let FillStart::Started(new, _) = store.join_or_start(wanted, NOW) else {
        panic!("the fill that is not wanted was joined");
    };
    (old, follower, new)
}

#[test]
fn a_fill_whose_response_is_too_old_goes_on_beside_a_newer_one() {
    for old_ends_first in [true, false] {
        let directory = Directory::new();
        let store = directory.open();
        run(async move {
            let key = CacheKey::new(b"key");
            let (mut old, mut follower, mut new) = overtaken(&store, &key).await;
            // Requests from now on join the newer one.
            let FillStart::Joined(joined) =
                store.join_or_start_fill(&key, FillCoverage::Whole, SeenLocation::NOTHING, NOW)
            else {
                panic!("it was not joined");
            };
            assert_eq!(joined.born(), new.born());
            new.start_storing(received("new", NOW));
            new.write("new".into()).await.unwrap();
            old.write("d".into()).await.unwrap();
            let body = async |follower: &mut FillFollower| {
                let mut body = Vec::new();
                while let Some(bytes) = follower.next_bytes(100).await.unwrap() {
                    body.extend_from_slice(&bytes);
                }
                body
            };
            // Nothing is committed in between: whichever ends last, the newer response is what is found.
            match old_ends_first {
                true => [old, new].map(FillWriter::finish),
                false => [new, old].map(FillWriter::finish),
            };
            let pending = store.completed_fill(&key);
            assert!(pending.is_none_or(|pending| pending.born() == joined.born()));
            assert_eq!(body(&mut follower).await, b"old");
            store.flush().await;
            assert_eq!(found(&store, &key).await.unwrap().1, "new");
            assert_eq!(store.stats().fills, 0, "both have left the tables");
        });
    }
}

#[test]
fn a_purge_of_the_key_reaches_a_fill_that_was_overtaken() {
    let directory = Directory::new();
    let store = directory.open();
    run(async move {
        let key = CacheKey::new(b"key");
        let (mut old, mut follower, new) = overtaken(&store, &key).await;
        store.purge(PurgeRequest::Key(&key), cache::PurgeMode::Hard);
        assert!(old.was_stopped() && new.was_stopped());
        drop(new);
        old.write("d".into()).await.unwrap();
        old.finish();
        store.flush().await;
        // Who asked before the purge gets the rest; nothing of it is stored.
        assert_eq!(follower.next_bytes(100).await.unwrap().unwrap(), "ol");
        assert_eq!(follower.next_bytes(100).await.unwrap().unwrap(), "d");
        assert!(found(&store, &key).await.is_none());
        assert_eq!(store.stats().fills, 0);
    });
}

#[test]
fn a_fill_that_was_purged_before_its_head_is_not_stored() {
    for mode in [cache::PurgeMode::Hard, cache::PurgeMode::Soft] {
        for is_varied in [false, true] {
            let directory = Directory::new();
            let store = directory.open();
            run(async move {
                let key = CacheKey::new(b"key");
                let (mut fill, mut follower) = store.start_fill(&key, NOW);
                store.purge(PurgeRequest::Key(&key), mode);
                let variant = key.variant_of(5, b"values");
                match is_varied {
                    true => fill.head_as(variant.clone(), received("head", NOW)),
                    false => fill.start_storing(received("head", NOW)),
                }
                // The next purge would not find it: neither do requests.
                for key in [&key, &variant] {
                    assert!(store.running_fill(key, FillCoverage::Whole).is_none());
                }
                fill.write("body".into()).await.unwrap();
                fill.finish();
                store.flush().await;
                assert_eq!(follower.next_bytes(100).await.unwrap().unwrap(), "body");
                for key in [&key, &variant] {
                    assert!(found(&store, key).await.is_none());
                }
                assert_eq!(store.stats().fills, 0);
            });
        }
    }
}

#[test]
fn a_purge_of_a_key_reaches_the_fills_of_its_variants() {
    for mode in [cache::PurgeMode::Hard, cache::PurgeMode::Soft] {
        for ends_before in [false, true] {
            let directory = Directory::new();
            let store = directory.open();
            run(async move {
                let key = CacheKey::new(b"key");
                let variant = key.variant_of(5, b"values");
                // Its marker was known, so that it began under the key of the variant.
                let (mut fill, _follower) = store.start_fill(&variant, NOW);
                let (other, _) = store.start_fill(&CacheKey::new(b"key2"), NOW);
                let mut head = received("head", NOW);
                head.length = Some(4);
                fill.start_storing(head);
                fill.write(if ends_before { "body" } else { "bo" }.into())
                    .await
                    .unwrap();
                store.purge(PurgeRequest::Key(&key), mode);
                assert!(store.running_fill(&variant, FillCoverage::Whole).is_none());
                assert!(store.completed_fill(&variant).is_none());
                assert!(!other.was_stopped());
                drop((fill, other));
                store.flush().await;
                // What was committed before the purge is in the index, where the marker above it counts.
                let found = store.lookup(&variant, NOW).await;
                assert!(
                    ends_before || matches!(found, LookupResult::Miss(..)),
                    "{found:?}"
                );
            });
        }
    }
}

#[test]
fn what_was_renewed_is_renewed_at_once() {
    let directory = Directory::new();
    let store = directory.open();
    run(async move {
        let key = CacheKey::new(b"key");
        put(&store, &key, head("old", NOW), "body").await;
        let LookupResult::Stale(object, StaleReason::Expired) = store.lookup(&key, NOW).await
        else {
            panic!("it should be stale");
        };
        let renewed = head("renewed", NOW + 5);
        store.refresh(&object, renewed.meta, Some(renewed.opaque.clone()), 0);
        // Without waiting for the store's writer, and after it.
        for _ in 0..2 {
            let (head, body) = found(&store, &key).await.unwrap();
            assert_eq!((&head[..], &body[..]), (&b"renewed"[..], &b"body"[..]));
            store.flush().await;
        }
    });
}

#[test]
fn a_soft_purge_hits_what_was_renewed_and_is_not_written_yet() {
    let directory = Directory::new();
    let mut options = directory.options();
    options.pool = rt::pool::register("cache-test-renewed", 1, 1000);
    let pool = options.pool.clone();
    let store = CacheStore::open(options, NOW).unwrap();
    run(async move {
        let key = CacheKey::new(b"key");
        put(&store, &key, head("old", NOW), "body").await;
        let LookupResult::Stale(object, StaleReason::Expired) = store.lookup(&key, NOW).await
        else {
            panic!("it should be stale");
        };
        let held = hold(&pool);
        let renewed = head("renewed", NOW + 5).meta;
        store.refresh(&object, renewed, None, 0);
        assert!(matches!(
            store.lookup_in_memory(&key, NOW),
            Some(LookupResult::Hit(_))
        ));
        store.purge(PurgeRequest::Key(&key), cache::PurgeMode::Soft);
        let is_purged = |found| matches!(found, Some(LookupResult::Stale(_, StaleReason::Purged)));
        assert!(is_purged(store.lookup_in_memory(&key, NOW)));
        // What is validated after the purge is not hit by it.
        store.refresh(&object, renewed, None, 0);
        assert!(!is_purged(store.lookup_in_memory(&key, NOW)));
        store.purge(PurgeRequest::Key(&key), cache::PurgeMode::Soft);
        drop(held);
        store.flush().await;
        assert!(is_purged(Some(store.lookup(&key, NOW).await)));
    });
}

#[test]
fn a_complete_fill_gives_its_body_at_once() {
    let directory = Directory::new();
    let store = directory.open();
    run(async move {
        let (mut writer, follower) = store.start_fill(&CacheKey::new(b"key"), NOW);
        writer.start_storing(head("h", NOW + 1));
        writer.write("one ".into()).await.unwrap();
        assert!(follower.whole_body().is_none() && !follower.is_complete());
        writer.write("two".into()).await.unwrap();
        writer.finish();
        assert!(follower.is_complete());
        assert_eq!(follower.whole_body().unwrap(), "one two");
    });
}

/// Keeps the only thread of a pool until it is dropped.
fn hold(pool: &rt::pool::PoolHandle) -> std::sync::mpsc::Sender<()> {
    let (sender, receiver) = std::sync::mpsc::channel();
    let wait = move || {
        let _ = receiver.recv();
    };
    pool.submit(rt::pool::DeviceNumber::UNKNOWN, Box::new(wait));
    sender
}

#[test]
fn what_has_arrived_is_there_though_the_disk_waits() {
    let directory = Directory::new();
    let mut options = directory.options();
    options.pool = rt::pool::register("cache-test-held", 1, 1000);
    let pool = options.pool.clone();
    let store = CacheStore::open(options, NOW).unwrap();
    run(async move {
        let key = CacheKey::new(b"key");
        let mut first = head("1", NOW + 1);
        first.length = Some(3);
        put(&store, &key, first.clone(), "old").await;
        let held = hold(&pool);

        let (mut writer, _follower) = store.start_fill(&key, NOW);
        first.opaque = Bytes::from_static(b"2");
        writer.start_storing(first.clone());
        writer.write("n".into()).await.unwrap();
        assert!(store.completed_fill(&key).is_none());
        writer.write("ew".into()).await.unwrap();
        // Another fetch may begin before that is written, and its end is no matter.
        let (other, _) = store.start_fill(&key, NOW);
        let follower = store.completed_fill(&key).unwrap();
        assert_eq!(follower.known_head().unwrap().opaque, "2");
        assert_eq!(follower.whole_body().unwrap(), "new");
        drop(other);
        assert!(store.completed_fill(&key).is_some());
        // What comes after the last byte is not taken.
        writer.write("er".into()).await.unwrap();
        drop(writer);
        drop(held);
        store.flush().await;
        assert!(store.completed_fill(&key).is_none());
        assert_eq!(found_text(&store, &key).await, "2 new");

        let held = hold(&pool);
        let (mut writer, _follower) = store.start_fill(&key, NOW);
        first.length = Some(0);
        writer.start_storing(first);
        assert_eq!(
            store.completed_fill(&key).unwrap().whole_body().unwrap(),
            ""
        );
        store.purge(PurgeRequest::Key(&key), cache::PurgeMode::Hard);
        assert!(store.completed_fill(&key).is_none());
        drop(held);
        store.flush().await;
        assert!(found(&store, &key).await.is_none());
    });
}

async fn found_text(store: &CacheStore, key: &CacheKey) -> String {
    let (head, body) = found(store, key).await.unwrap();
    [&head[..], b" ", &body[..]]
        .concat()
        .escape_ascii()
        .to_string()
}

#[test]
fn the_number_of_objects_is_bounded() {
    let directory = Directory::new();
    let mut options = directory.options();
    options.max_objects = 300;
    let store = CacheStore::open(options.clone(), NOW).unwrap();
    run(async move {
        for number in 0..1000 {
            put(
                &store,
                &CacheKey::new(format!("{number}").as_bytes()),
                head("h", NOW + 1),
                "body",
            )
            .await;
        }
        store.run_upkeep(NOW);
        store.flush().await;
        let kept = store.stats().objects;
        assert!((100..=300).contains(&kept), "{kept}");
        // Less by a new configuration.
        options.max_objects = 50;
        store.set_limits(&options);
        store.run_upkeep(NOW);
        store.flush().await;
        assert!(store.stats().objects <= 50, "{}", store.stats().objects);
    });
}

#[test]
fn a_directory_that_was_replaced_is_noticed() {
    let directory = Directory::new();
    let store = directory.open();
    let path = directory.0.clone();
    run(async move {
        store.run_upkeep(NOW);
        store.flush().await;
        assert!(!store.has_vanished());
        fs::remove_dir_all(&path).unwrap();
        store.run_upkeep(NOW);
        store.flush().await;
        assert!(store.has_vanished() && store.last_error().is_some());
    });
}

/// What comes from the device while it is sent is compared with its checksum, though it was good before.
#[test]
fn what_is_loaded_to_be_sent_is_verified() {
    let directory = Directory::new();
    let store = directory.open();
    let path = directory.0.clone();
    run(async move {
        let key = CacheKey::new(b"large");
        let (mut writer, follower) = store.start_fill(&key, NOW);
        drop(follower);
        writer.start_storing(head("", NOW + 1));
        writer.write(vec![7; 700_000].into()).await.unwrap();
        writer.finish();
        store.flush().await;
        let LookupResult::Hit(object) = store.lookup(&key, NOW).await else {
            panic!("it is there");
        };
        let pool = rt::pool::register("cache-test", 4, 1000);
        let range = object.file_range(0).unwrap();
        let load = range.file.load_range(range.offset, range.len, 0, &pool);
        load.await.unwrap();
        let segment = fs::read_dir(path)
            .unwrap()
            .map(|item| item.unwrap().path())
            .find(|path| path.extension().is_some_and(|end| end == "segment"));
        let file = fs::OpenOptions::new()
            .write(true)
            .open(segment.unwrap())
            .unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, b"!", range.offset + 600_000).unwrap();
        // Only what was overwritten is refused.
        let first = range.file.load_range(range.offset, 100_000, 0, &pool);
        first.await.unwrap();
        let load = range.file.load_range(range.offset, range.len, 0, &pool);
        assert!(load.await.is_err());
        assert!(matches!(
            store.lookup(&key, NOW).await,
            LookupResult::Miss(..)
        ));
    });
}
