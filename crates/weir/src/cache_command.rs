//! `weir cache ls|show|stat|verify|purge PATH`: a cache's folder from the command line.
//!
//! Reading takes no lock and changes nothing, so it may be done while a server runs; only what the
//! server has not yet written is missing. Purging needs the store to itself: with a running server,
//! use a location with `cache_purge`.
//!
//! The exit code is 1 if the directory cannot be read, if nothing was found, or if something is
//! damaged.

use std::ffi::OsStr;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};

use http::cache::{
    CacheKey, CacheStore, CopyHead, MarkerHead, ObjectKind, PurgeMode, PurgeRequest,
    StoreOpenError, StoreOptions, StoreSurvey, StoredHead, SurveyedObject, survey_store,
};
use lexopt::prelude::*;

use crate::command_hints::{nearest_hint, unexpected};
use crate::commands;
use crate::terminal;

/// The parsed command line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CacheCommand {
    pub(crate) path: PathBuf,
    pub(crate) task: CacheTask,
}

/// The subcommand.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CacheTask {
    /// `ls`: a line for each object whose key begins with this.
    List(Vec<u8>),
    /// `show`: the headers of the objects with this key, or whose keys end with the path of this
    /// URL.
    Show(Vec<u8>),
    /// `stat`: numbers and sizes.
    Stat,
    /// `verify`: compares all bytes with their checksums.
    Verify,
    /// `purge`: removes objects or, if `true`, marks them as stale.
    Purge(PurgeSelection, bool),
}

/// Which objects are purged.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PurgeSelection {
    Key(Vec<u8>),
    Prefix(Vec<u8>),
    Tag(Vec<u8>),
    All,
}

/// Reads the arguments after `cache`.
pub(crate) fn parse(mut parser: lexopt::Parser) -> Result<CacheCommand, String> {
    let (mut words, mut named, mut soft) = (Vec::new(), None, false);
    while let Some(argument) = parser.next().map_err(|error| error.to_string())? {
        let name = match argument {
            Value(word) => {
                words.push(word);
                continue;
            }
            Long("soft") => {
                soft = true;
                continue;
            }
            Long("all") => PurgeSelection::All,
            Long(option @ ("key" | "prefix" | "tag")) => {
                let make = match option {
                    "key" => PurgeSelection::Key,
                    "prefix" => PurgeSelection::Prefix,
                    _ => PurgeSelection::Tag,
                };
                let text = parser.value().map_err(|error| error.to_string())?;
                make(std::os::unix::ffi::OsStringExt::into_vec(text))
            }
            other => return Err(unexpected(&commands::CACHE, other)),
        };
        // Two selections would be a union or an intersection: an irreversible command must not guess.
        if named.replace(name).is_some() {
            return Err("give only one of --key, --prefix, --tag and --all".to_owned());
        }
    }
    if let Some(task) = words.first().filter(|task| !is_task(task)) {
        return Err(unknown_task(task));
    }
    let (task, path) = match &words[..] {
        [task, path] => (task, path),
        [task, path, url] if task == "show" && named.is_none() && !soft => {
            return Ok(CacheCommand {
                path: path.into(),
                task: CacheTask::Show(url.as_encoded_bytes().to_vec()),
            });
        }
        [] => return Err("missing task".to_owned()),
        [_] => return Err("missing argument PATH".to_owned()),
        _ => return Err("unexpected argument".to_owned()),
    };
    let task = match (task.to_str(), named) {
        (Some("ls"), None) if !soft => CacheTask::List(Vec::new()),
        (Some("ls"), Some(PurgeSelection::Prefix(prefix))) if !soft => CacheTask::List(prefix),
        (Some("stat"), None) if !soft => CacheTask::Stat,
        (Some("verify"), None) if !soft => CacheTask::Verify,
        (Some("purge"), Some(named)) => CacheTask::Purge(named, soft),
        (Some("purge"), None) => {
            return Err("missing --key, --prefix, --tag or --all".to_owned());
        }
        (Some("show"), None) if !soft => return Err("missing argument URL".to_owned()),
        _ => return Err(format!("\"{}\" does not take this option", task.display())),
    };
    Ok(CacheCommand {
        path: path.into(),
        task,
    })
}

fn is_task(word: &OsStr) -> bool {
    commands::CACHE_TASKS.iter().any(|task| word == *task)
}

fn unknown_task(word: &OsStr) -> String {
    let word = word.to_string_lossy();
    let near = nearest_hint(&word, commands::CACHE_TASKS);
    format!("unknown task \"{word}\"{near}")
}

/// Runs the command. Returns the exit code.
pub(crate) fn run(arguments: &CacheCommand) -> i32 {
    let path = &arguments.path;
    let done = match &arguments.task {
        CacheTask::List(prefix) => list_objects(path, prefix).map(|()| 0),
        CacheTask::Show(url) => show(path, url),
        CacheTask::Stat => stat(path).map(|()| 0),
        CacheTask::Verify => verify(path),
        CacheTask::Purge(named, soft) => purge(path, named, *soft).map(|()| 0),
    };
    match done {
        Ok(code) => code,
        // The reader of a pipe, such as `head`, has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => 0,
        Err(error) => {
            terminal::report_line(format_args!("weir: cache \"{}\": {error}", path.display()));
            1
        }
    }
}

/// `ls`: one line per object. The heading is written with the first line, so that an unreadable
/// cache has an error and nothing else.
fn list_objects(path: &Path, prefix: &[u8]) -> io::Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    let now_ms = rt::wall_millis();
    let mut failed = None;
    let mut begun = false;
    let mut begin = |out: &mut BufWriter<_>| match std::mem::replace(&mut begun, true) {
        true => Ok(()),
        false => writeln!(out, "status  seconds left       bytes  key"),
    };
    survey_store(path, false, |listed| {
        // The survey cannot be stopped from here, so after an error the rest is skipped.
        if failed.is_none() && listed.key.text().starts_with(prefix) {
            let written = begin(&mut out).and_then(|()| write_line(&mut out, listed, now_ms));
            failed = written.err();
        }
    })?;
    if let Some(error) = failed {
        return Err(error);
    }
    begin(&mut out)?;
    out.flush()
}

/// An object's line: status, remaining freshness, size and key. A head from another version of the
/// server has no status that could be shown.
fn write_line(out: &mut impl Write, object: &SurveyedObject, now_ms: u64) -> io::Result<()> {
    let stored = StoredHead::decode(&object.head.opaque);
    let (status, left) = match (&stored, object.head.meta.kind) {
        (_, ObjectKind::Variants) => ("vary".to_owned(), String::new()),
        (Some(_), _) if object.is_softened => (stored_status(&stored), "purged".to_owned()),
        (Some(head), _) => (
            stored_status(&stored),
            head.freshness.ttl_s(now_ms).to_string(),
        ),
        // A compressed copy has neither status nor freshness of its own: it is found through the response that it was
        // made of, as long as that one is served.
        (None, _) if CopyHead::decode(&object.head.opaque).is_some() => {
            ("copy".to_owned(), String::new())
        }
        (None, _) => ("?".to_owned(), String::new()),
    };
    let key = printable(object.key.text());
    writeln!(out, "{status:<6}{left:>14}{:>12}  {key}", object.held)
}

/// Replaces what is no printable text. The keys of variants contain zeros and any bytes that a
/// client sent, and terminals act on control characters.
fn printable(text: &[u8]) -> String {
    let mut out = String::new();
    for chunk in text.utf8_chunks() {
        out.extend(
            chunk
                .valid()
                .chars()
                .map(|c| if c.is_control() { '·' } else { c }),
        );
        out.extend(chunk.invalid().iter().map(|_| '·'));
    }
    out
}

/// Shows the objects with a key; if there are none, those whose keys end with the path of a URL.
/// With nginx's default key, `$scheme$proxy_host$request_uri`, the host is the upstream's name,
/// which is not in the URL.
fn show(path: &Path, url: &[u8]) -> io::Result<i32> {
    let target = path_of(url);
    let (mut of_key, mut of_path) = (Vec::new(), Vec::new());
    let now_ms = rt::wall_millis();
    survey_store(path, false, |listed| {
        // A zero separates the key from the values that variants differ by.
        let text = listed.key.text();
        let key = text.split(|&byte| byte == 0).next().unwrap_or(text);
        if key == url {
            of_key.push(describe_object(listed, now_ms));
        } else if key.ends_with(target) && of_path.len() < MAX_SHOWN {
            of_path.push(describe_object(listed, now_ms));
        }
    })?;
    // An exact key wins: the argument may be a key that is itself the end of others.
    let shown = if of_key.is_empty() { of_path } else { of_key };
    if shown.is_empty() {
        terminal::report_line(format_args!(
            "weir: cache \"{}\": nothing is stored for \"{}\"",
            path.display(),
            printable(url)
        ));
        return Ok(1);
    }
    terminal::print_text(format_args!("{}", shown.join("\n")));
    Ok(0)
}

/// The limit for objects found by their path: a path that fits more is too short to be meant.
const MAX_SHOWN: usize = 1000;

/// The part of a URL after scheme and host.
fn path_of(url: &[u8]) -> &[u8] {
    let behind_scheme = url
        .windows(3)
        .position(|bytes| bytes == b"://")
        .map_or(url, |at| &url[at + 3..]);
    let slash = behind_scheme.iter().position(|&byte| byte == b'/');
    slash.map_or(behind_scheme, |at| &behind_scheme[at..])
}

/// An object as text: the store's record of it, then its header.
fn describe_object(object: &SurveyedObject, now_ms: u64) -> String {
    let head = &object.head;
    let mut out = format!("key       {}\n", printable(object.key.text()));
    let whole = match head.length {
        Some(length) if length == object.held => ", complete".to_owned(),
        Some(length) => format!(" of {length}, incomplete"),
        None => String::new(),
    };
    if head.meta.kind == ObjectKind::Variants {
        let names = MarkerHead::decode(&head.opaque).map_or(Vec::new(), |marker| marker.names);
        let names: Vec<String> = names.iter().map(|name| printable(name)).collect();
        // A marker has only the names of the fields; the responses are stored under keys of their own.
        out.push_str(&format!("varies    by {}\n", names.join(", ")));
        return out;
    }
    out.push_str(&format!("body      {} bytes{whole}\n", object.held));
    for tag in &head.tags {
        out.push_str(&format!("tag       {}\n", printable(tag)));
    }
    if let Some(copy) = CopyHead::decode(&head.opaque) {
        let original = copy.original;
        out.push_str(&format!("copy      of {original} bytes, compressed\n"));
        return out;
    }
    // Only the header's encoding depends on the version; what was printed so far does not.
    let Some(stored) = StoredHead::decode(&head.opaque) else {
        out.push_str("head      from another version of Weir; it will be fetched again\n");
        return out;
    };
    let ttl = stored.freshness.ttl_s(now_ms);
    let fresh = match ttl {
        _ if object.is_softened => "no, purged softly".to_owned(),
        0.. => format!("for {ttl} seconds"),
        _ => format!("no, expired {} seconds ago", -ttl),
    };
    out.push_str(&format!(
        "age       {} seconds\n",
        stored.freshness.age_s(now_ms)
    ));
    out.push_str(&format!("fresh     {fresh}\n"));
    out.push_str(&format!("status    {}\n", stored.head.status));
    for (name, value) in stored.head.fields.iter() {
        out.push_str(&format!("  {}: {}\n", printable(name), printable(value)));
    }
    out
}

/// The status of the stored response, as text.
fn stored_status(stored: &Option<StoredHead>) -> String {
    stored
        .as_ref()
        .map_or(String::new(), |stored| stored.head.status.to_string())
}

/// `stat`: objects by freshness, and the space they take. Markers are counted apart: they hold the
/// names that variants differ by, and no response; so are compressed copies of responses.
fn stat(path: &Path) -> io::Result<()> {
    let now_ms = rt::wall_millis();
    let (mut fresh, mut stale, mut markers, mut copies) = (0u64, 0u64, 0u64, 0u64);
    let found = survey_store(path, false, |listed| {
        let meta = &listed.head.meta;
        match meta.kind {
            ObjectKind::Variants => markers += 1,
            // Not an object that a request could ask for, so it would distort both numbers.
            ObjectKind::Object if CopyHead::decode(&listed.head.opaque).is_some() => copies += 1,
            // A soft purge leaves the stored times as they are, so it has to be looked at separately.
            ObjectKind::Object if listed.is_softened || meta.fresh_until_ms <= now_ms => stale += 1,
            ObjectKind::Object => fresh += 1,
        }
    })?;
    terminal::print_line(format_args!(
        "objects     {} ({fresh} fresh, {stale} stale)",
        fresh + stale
    ));
    terminal::print_line(format_args!(
        "varying     {markers} keys with several variants"
    ));
    if copies > 0 {
        terminal::print_line(format_args!("compressed  {copies} copies of responses"));
    }
    terminal::print_line(format_args!("bodies      {} bytes", found.body_bytes));
    terminal::print_line(format_args!(
        "on disk     {} bytes in {} segments",
        found.bytes, found.segments
    ));
    print_damage(&found);
    Ok(())
}

/// `verify`: reads everything. Exits with 1 if anything is damaged, so that scripts can tell.
fn verify(path: &Path) -> io::Result<i32> {
    let found = survey_store(path, true, |_| {})?;
    print_damage(&found);
    terminal::print_line(format_args!(
        "{} objects, {} bytes of bodies: {}",
        found.objects,
        found.body_bytes,
        match found.damage.len() {
            0 => "OK".to_owned(),
            damages => format!(
                "{damages} damaged places; damaged objects are not served, but fetched again"
            ),
        }
    ));
    Ok(i32::from(!found.damage.is_empty()))
}

/// Prints a line for each damaged place.
fn print_damage(found: &StoreSurvey) {
    found
        .damage
        .iter()
        .for_each(|what| terminal::print_line(format_args!("damage      {what}")));
}

/// `purge`: opens the store as a server would, and therefore only if none has it open.
fn purge(path: &Path, named: &PurgeSelection, soft: bool) -> io::Result<()> {
    // The owner is looked up first: purging as root must not change it. A directory without a store
    // is rejected, since opening would create one.
    let owner = std::fs::metadata(path.join("store")).map_err(|error| {
        match error.kind() == io::ErrorKind::NotFound && path.is_dir() {
            true => io::Error::other("not a Weir cache directory"),
            false => error,
        }
    })?;
    let mut options = StoreOptions::new(path, rt::pool::default_pool());
    // The configuration's limits are not known here, and opening the store must not evict anything.
    options.max_size = u64::MAX >> 1;
    options.max_objects = 0;
    options.inactive_ms = 0;
    options.min_free = 0;
    let store = CacheStore::open(options, rt::wall_millis()).map_err(|error| match error {
        StoreOpenError::Locked(_) => io::Error::other(
            "in use by a running server; purge through a location with \"cache_purge\"",
        ),
        other => io::Error::other(other.to_string()),
    })?;
    let mode = if soft {
        PurgeMode::Soft
    } else {
        PurgeMode::Hard
    };
    match named {
        PurgeSelection::Key(text) => {
            // HEAD requests are stored under a key of their own; both are meant.
            let head = [&text[..], b"\0HEAD"].concat();
            store.purge(PurgeRequest::Key(&CacheKey::new(text)), mode);
            store.purge(PurgeRequest::Key(&CacheKey::new(&head)), mode);
        }
        PurgeSelection::Prefix(text) => store.purge(PurgeRequest::Prefix(text), mode),
        PurgeSelection::Tag(text) => store.purge(PurgeRequest::Tag(text), mode),
        PurgeSelection::All => store.purge(PurgeRequest::All, mode),
    }
    rt::run(rt::LoopOptions::default(), move || async move {
        // Not by dropping it: closing waits until the purge is on the disk.
        store.close().await
    })??;
    // Purging writes to the store, often as root; the server's user must be able to go on with it.
    for item in std::fs::read_dir(path)? {
        let file = item?.path();
        let found = std::fs::metadata(&file)?;
        if (found.uid(), found.gid()) != (owner.uid(), owner.gid()) {
            chown(&file, Some(owner.uid()), Some(owner.gid()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    fn read(words: &[&str]) -> Result<CacheCommand, String> {
        parse(lexopt::Parser::from_args(words.iter().map(OsString::from)))
    }

    #[test]
    fn arguments_are_read() {
        let task = |words: &[&str]| read(words).map(|cache| cache.task);
        assert_eq!(
            task(&["ls", "/c", "--prefix", "a"]),
            Ok(CacheTask::List(b"a".to_vec()))
        );
        assert_eq!(
            task(&["show", "/c", "http://a/b?c"]),
            Ok(CacheTask::Show(b"http://a/b?c".to_vec()))
        );
        assert_eq!(path_of(b"http://a:1/b?c=d://e"), b"/b?c=d://e");
        assert_eq!(path_of(b"/b"), b"/b");
        assert_eq!(task(&["stat", "/c"]), Ok(CacheTask::Stat));
        assert_eq!(task(&["verify", "/c"]), Ok(CacheTask::Verify));
        assert_eq!(
            task(&["purge", "/c", "--all", "--soft"]),
            Ok(CacheTask::Purge(PurgeSelection::All, true))
        );
        assert_eq!(
            task(&["purge", "--tag=t", "/c"]),
            Ok(CacheTask::Purge(PurgeSelection::Tag(b"t".to_vec()), false))
        );
        for wrong in [
            &["purge", "/c"][..],
            &["purge", "/c", "--all", "--key", "x"],
            &["ls"],
            &["show", "/c"],
            &["stat", "/c", "/a"],
            &["ls", "/c", "--soft"],
            &["stat", "/c", "--all"],
            &["frob", "/c"],
            &["ls", "/c", "--frob"],
        ] {
            assert!(read(wrong).is_err(), "{wrong:?}");
        }
    }
}
