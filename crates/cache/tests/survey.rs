//! What a look at a store's directory shows: what a start would find, and damage.
#![allow(clippy::unwrap_used, reason = "a test may stop at what must not be")]

use std::fs;
use std::path::PathBuf;

use bytes::Bytes;
use weir_cache::{
    CacheKey, CacheStore, FillCoverage, FillStart, ObjectHead, ObjectMeta, PurgeMode, PurgeRequest,
    StoreOptions, survey_store,
};

const NOW: u64 = 1_700_000_000_000;

struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Directory {
        let name = format!("weir-survey-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Directory(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // It lies among temporary files.
        let _ = fs::remove_dir_all(&self.0);
    }
}

async fn put(store: &CacheStore, key: &str, tag: &'static str, length: usize) {
    let key = CacheKey::new(key.as_bytes());
    let seen = store.lookup(&key, NOW).await.seen_location();
    let FillStart::Started(mut writer, follower) =
        store.join_or_start_fill(&key, FillCoverage::Whole, seen, NOW)
    else {
        panic!("no first fill");
    };
    drop(follower);
    writer.start_storing(ObjectHead {
        meta: ObjectMeta {
            stored_ms: NOW,
            fresh_until_ms: NOW + 1000,
            ..ObjectMeta::default()
        },
        tags: vec![Bytes::from_static(tag.as_bytes())],
        length: Some(length as u64),
        ..ObjectHead::default()
    });
    writer.write(vec![b'x'; length].into()).await.unwrap();
    writer.finish();
}

/// Keys, with a mark for those that were softened, and the number of damages.
fn look(directory: &Directory, verify: bool) -> (Vec<String>, usize) {
    let mut keys = Vec::new();
    let found = survey_store(&directory.0, verify, |listed| {
        let mark = if listed.is_softened { "~" } else { "" };
        let key = String::from_utf8_lossy(listed.key.text());
        keys.push(format!("{mark}{key} {}", listed.held));
    });
    keys.sort();
    (keys, found.unwrap().damage.len())
}

#[test]
fn it_shows_what_a_start_would_find() {
    let directory = Directory::new("find");
    let path = directory.0.clone();
    let stored = rt::run(rt::LoopOptions::default(), move || async move {
        let pool = rt::pool::register("survey-test", 2, 100);
        let store = CacheStore::open(StoreOptions::new(&path, pool), NOW).unwrap();
        for (key, tag, length) in [
            ("/a", "one", 10),
            ("/b", "two", 300_000),
            ("/c", "three", 20),
            ("/d/e", "one", 30),
            ("/f", "four", 40),
        ] {
            put(&store, key, tag, length).await;
        }
        store.flush().await;
        store.purge(PurgeRequest::Key(&CacheKey::new(b"/a")), PurgeMode::Hard);
        store.purge(PurgeRequest::Prefix(b"/d/"), PurgeMode::Hard);
        store.purge(PurgeRequest::Tag(b"three"), PurgeMode::Soft);
        store.purge(PurgeRequest::Key(&CacheKey::new(b"/f")), PurgeMode::Soft);
        store.flush().await;
        store
    })
    .unwrap();
    let expected = ["/b 300000", "~/c 20", "~/f 40"];
    // While the store is open, and when only the files are left.
    assert_eq!(
        look(&directory, true),
        (expected.map(str::to_owned).to_vec(), 0)
    );
    drop(stored);
    assert_eq!(
        look(&directory, true),
        (expected.map(str::to_owned).to_vec(), 0)
    );
}

#[test]
fn what_was_let_go_is_no_damage() {
    let directory = Directory::new("evicted");
    let path = directory.0.clone();
    rt::run(rt::LoopOptions::default(), move || async move {
        let pool = rt::pool::register("survey-test", 2, 100);
        let mut options = StoreOptions::new(&path, pool);
        options.max_size = 8 << 20;
        let store = CacheStore::open(options, NOW).unwrap();
        // Bodies and records of the same objects are in different segments now and then, and the oldest go.
        for number in 0..100 {
            put(&store, &format!("/{number}"), "one", 300_000).await;
        }
        store.flush().await;
        assert!(store.stats().evicted > 50);
        store.close().await.unwrap();
        let kept = store.stats().objects;
        let found = survey_store(&path, true, |_| {}).unwrap();
        assert_eq!((found.objects, found.damage), (kept as u64, Vec::new()));
        // Without the checkpoint nobody knows of some that they were let go; what is missing is still no damage.
        fs::remove_file(path.join("checkpoint")).unwrap();
        let found = survey_store(&path, true, |_| {}).unwrap();
        assert_eq!(found.damage, Vec::<String>::new());
    })
    .unwrap();
}

#[test]
fn it_tells_of_damage() {
    let directory = Directory::new("damage");
    let path = directory.0.clone();
    rt::run(rt::LoopOptions::default(), move || async move {
        let pool = rt::pool::register("survey-test", 2, 100);
        let store = CacheStore::open(StoreOptions::new(&path, pool), NOW).unwrap();
        put(&store, "/b", "two", 300_000).await;
        store.close().await.unwrap();
    })
    .unwrap();
    let mut segments: Vec<PathBuf> = fs::read_dir(&directory.0)
        .unwrap()
        .map(|item| item.unwrap().path())
        .filter(|path| path.extension().is_some_and(|end| end == "segment"))
        .collect();
    segments.sort();
    let mut bytes = fs::read(&segments[0]).unwrap();
    bytes[5000] ^= 1;
    fs::write(&segments[0], bytes).unwrap();
    let (keys, damages) = look(&directory, true);
    assert_eq!(keys, ["/b 300000"]);
    // The record, and the object that it is a part of.
    assert_eq!(damages, 2);
    assert_eq!(look(&directory, false).1, 0);
    assert!(survey_store(&std::env::temp_dir(), false, |_| {}).is_err());
}
