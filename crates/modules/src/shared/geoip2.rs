//! `geoip2`: what a MaxMind database says of an address.
//!
//! The database is read with the configuration, and anew by the thread pool when `auto_reload` asks for it and the file
//! has changed. Whatever is wrong with a new file, the old one stays.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bstr::{BString, ByteSlice};
use conf::{Cidr, Definition, Diagnostic, Expression, Line, Node};
use maxminddb::{PathElement, Reader};
use serde_json::Value;

use super::forwarded::{self, Depth};
use super::session::{Session, define_as};

/// Whose word about a client's address counts: `geoip2_proxy` and `geoip2_proxy_recursive`, which may stand behind the
/// blocks that need them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Proxies(Arc<OnceLock<(Vec<Cidr>, Depth)>>);

impl Proxies {
    /// Says it, once the block that may name them has been read.
    pub(crate) fn settle(&self, trusted: Vec<Cidr>, depth: Depth) {
        // A second block of the kind is refused elsewhere.
        let _ = self.0.set((trusted, depth));
    }
}

/// Reads `geoip2 FILE { … }` and defines its variables.
pub(crate) fn read<S: Session>(line: &mut Line) -> Result<(), Diagnostic> {
    let path = line.path(conf::Access::Opened, line.arg(0));
    let content = line.files().read(&path);
    let reader = content
        .map_err(|error| base::text::errno_text(&error))
        .and_then(|content| Reader::from_source(content).map_err(|error| error.to_string()))
        .map_err(|why| {
            let message = format!("cannot open database \"{}\": {why}", path.display());
            line.error_at(0, message)
        })?;
    let proxies = line.shared::<Proxies>().clone();
    let (reloads, variables): (Vec<_>, Vec<_>) = line
        .entries()
        .into_iter()
        .partition(|entry| entry.name.text == "auto_reload");
    let mut interval = None;
    for entry in reloads {
        interval = Some(read_interval(entry)?);
        line.path(conf::Access::Read, line.arg(0));
    }
    let database = Arc::new(Database::new(path, reader, interval));
    for entry in variables {
        let wanted = Wanted::read(line, entry)?;
        let (database, proxies) = (Arc::clone(&database), proxies.clone());
        let definition = Definition::<S>::dynamic(move |session, out| {
            wanted.value(&database, &proxies, session, out)
        });
        define_as(line, entry, definition)?;
    }
    Ok(())
}

fn read_interval(entry: &Node) -> Result<Duration, Diagnostic> {
    let [time] = &entry.args[..] else {
        return Err(entry.error("invalid number of arguments in \"auto_reload\""));
    };
    base::units::parse_seconds(&time.text)
        .filter(|interval| !interval.is_zero())
        .ok_or_else(|| entry.error_at(time, format!("invalid interval \"{}\"", time.text)))
}

/// What a variable shows.
struct Wanted {
    what: What,
    /// The text with the address; `None` for that of the client.
    source: Option<Expression>,
    default: Option<BString>,
}

enum What {
    /// The value at this path of the address's record.
    Path(Vec<Step>),
    /// When the database was made, in seconds since 1970.
    BuildEpoch,
    /// When the file was last looked at, likewise.
    LastCheck,
    /// When the file last changed, likewise.
    LastChange,
}

enum Step {
    /// A member of a map, or an element of an array if it is a number.
    Key(String),
    Index(usize),
}

impl Wanted {
    fn read(line: &mut Line, entry: &Node) -> Result<Wanted, Diagnostic> {
        let mut wanted = Wanted {
            what: What::Path(Vec::new()),
            source: None,
            default: None,
        };
        let mut words = Vec::new();
        for word in &entry.args {
            if let Some(default) = word.text.strip_prefix(b"default=") {
                wanted.default = Some(default.into());
            } else if let Some(source) = word.text.strip_prefix(b"source=") {
                wanted.source = Some(line.expression_of(word, source)?);
            } else {
                words.push(word);
            }
        }
        wanted.what = match &words[..] {
            [] => return Err(entry.error("a path into the database's records is missing")),
            [first, kind] if first.text == "metadata" => match kind.text.as_slice() {
                b"build_epoch" => What::BuildEpoch,
                b"last_check" => What::LastCheck,
                b"last_change" => What::LastChange,
                _ => {
                    let error = entry.error_at(kind, format!("unknown metadata \"{}\"", kind.text));
                    return Err(
                        error.note("it must be one of: build_epoch, last_check, last_change")
                    );
                }
            },
            path => What::Path(path.iter().map(|word| step(&word.text)).collect()),
        };
        Ok(wanted)
    }

    fn value<S: Session>(
        &self,
        database: &Arc<Database>,
        proxies: &Proxies,
        session: &mut S,
        out: &mut Vec<u8>,
    ) -> bool {
        Database::look_again(database);
        if let Some(trouble) = database.trouble() {
            session.log(rt::error_log::Level::Warn, format_args!("{trouble}"));
        }
        let known = database.present();
        let seconds = match &self.what {
            What::Path(path) => {
                let record = self
                    .address(proxies, session)
                    .and_then(|address| known.find(address, path));
                return match (record, &self.default) {
                    (Some(value), _) => write(&value, out),
                    (None, Some(default)) => {
                        out.extend_from_slice(default);
                        true
                    }
                    (None, None) => false,
                };
            }
            What::BuildEpoch => known.reader.metadata().build_epoch,
            What::LastCheck => database.checked.load(Ordering::Relaxed),
            What::LastChange => known.changed,
        };
        out.extend_from_slice(seconds.to_string().as_bytes());
        true
    }

    fn address<S: Session>(&self, proxies: &Proxies, session: &mut S) -> Option<IpAddr> {
        if let Some(source) = &self.source {
            return forwarded::parse(&source.to_bytes(session)).map(|address| address.ip());
        }
        let peer = session.client()?;
        match proxies.0.get() {
            Some((trusted, depth)) if !trusted.is_empty() => Some(forwarded::client(
                peer,
                &session.forwarded_for(),
                trusted,
                *depth,
            )),
            _ => Some(peer),
        }
    }
}

fn step(text: &[u8]) -> Step {
    let text = text.to_str_lossy();
    match text.parse() {
        Ok(index) => Step::Index(index),
        Err(_) => Step::Key(text.into_owned()),
    }
}

/// Writes a value as the well-known module shows it; maps and arrays are no values.
fn write(value: &Value, out: &mut Vec<u8>) -> bool {
    match value {
        Value::String(text) => out.extend_from_slice(text.as_bytes()),
        Value::Bool(yes) => out.push(b'0' + u8::from(*yes)),
        Value::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
            Some(number) => out.extend_from_slice(format!("{number:.5}").as_bytes()),
            None => out.extend_from_slice(number.to_string().as_bytes()),
        },
        Value::Null | Value::Array(_) | Value::Object(_) => return false,
    }
    true
}

/// A database file.
struct Database {
    path: PathBuf,
    present: RwLock<Arc<Known>>,
    interval: Option<Duration>,
    /// When the file was last looked at, in seconds since 1970. Whoever moves it on is the one who looks.
    checked: AtomicU64,
    /// Why the file could not be read anew: for the log, at the next use.
    trouble: Mutex<Option<String>>,
}

/// What has been read of it.
struct Known {
    reader: Reader<Vec<u8>>,
    /// When the file changed last, in seconds since 1970; when it was read, for that of the configuration.
    changed: u64,
}

impl Known {
    fn find(&self, address: IpAddr, path: &[Step]) -> Option<Value> {
        let path: Vec<PathElement<'_>> = path
            .iter()
            .map(|step| match step {
                Step::Key(name) => PathElement::Key(name),
                Step::Index(index) => PathElement::Index(*index),
            })
            .collect();
        // An address that is not in it, an IPv6 address for a database of IPv4, a damaged record: no value.
        let record = self.reader.lookup(address).ok()?;
        record.decode_path(&path).ok().flatten()
    }
}

impl Database {
    fn new(path: PathBuf, reader: Reader<Vec<u8>>, interval: Option<Duration>) -> Database {
        let now = rt::wall_millis() / 1000;
        let known = Known {
            reader,
            changed: now,
        };
        Database {
            path,
            present: RwLock::new(Arc::new(known)),
            interval,
            checked: AtomicU64::new(now),
            trouble: Mutex::default(),
        }
    }

    fn present(&self) -> Arc<Known> {
        let present = self.present.read();
        Arc::clone(&present.unwrap_or_else(PoisonError::into_inner))
    }

    fn trouble(&self) -> Option<String> {
        let trouble = self.trouble.lock();
        trouble.unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Has a thread of the pool look at the file, if it is time to.
    fn look_again(database: &Arc<Database>) {
        let Some(interval) = database.interval else {
            return;
        };
        let (now, last) = (
            rt::wall_millis() / 1000,
            database.checked.load(Ordering::Relaxed),
        );
        let is_due = now >= last.saturating_add(interval.as_secs());
        let take = |last| {
            let order = Ordering::Relaxed;
            database.checked.compare_exchange(last, now, order, order)
        };
        if !is_due || take(last).is_err() {
            return;
        }
        let database = Arc::clone(database);
        rt::spawn(async move {
            let pool = rt::pool::default_pool();
            pool.run(move || database.reread_or_tell()).await;
        });
    }

    fn reread_or_tell(&self) {
        if let Err(error) = self.reread() {
            let path = self.path.display();
            let message = format!("database \"{path}\" could not be reloaded: {error}");
            *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = Some(message);
        }
    }

    /// Reads the file if it has changed. Waits for the disk.
    fn reread(&self) -> io::Result<()> {
        let modified = std::fs::metadata(&self.path)?.modified()?;
        let changed = seconds(modified);
        if changed <= self.present().changed {
            return Ok(());
        }
        let content = std::fs::read(&self.path)
            .inspect_err(|error| rt::sandbox::note_refusal(&self.path, error))?;
        let reader = Reader::from_source(content).map_err(io::Error::other)?;
        let mut present = self.present.write().unwrap_or_else(PoisonError::into_inner);
        *present = Arc::new(Known { reader, changed });
        Ok(())
    }
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}
