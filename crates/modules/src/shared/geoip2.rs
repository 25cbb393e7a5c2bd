//! `geoip2`: lookups of addresses in a MaxMind database.
//!
//! The database is read together with the configuration. With `auto_reload` a pool thread reads it
//! again after the file has changed; whatever is wrong with a new file, the old contents stay in
//! use.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base::sync::{Mutex, RwLock};
use bstr::{BString, ByteSlice};
use conf::{
    Arity, Cidr, Contexts, Diagnostic, Directive, DirectiveLine, DirectiveNode, Expression,
    RepeatRule, Setter, VariableDefinition,
};
use maxminddb::{PathElement, Reader};
use serde_json::Value;

use super::client_scope::{ClientScope, define_entry_variable};
use super::forwarded_for::{self, ForwardedDepth};

/// The trusted proxies: `geoip2_proxy` and `geoip2_proxy_recursive`, and their namesakes of `geoip`. A shared cell, because these
/// lines can follow the blocks that need them.
#[derive(Clone, Debug, Default)]
pub(crate) struct GeoipProxies(Arc<OnceLock<(Vec<Cidr>, ForwardedDepth)>>);

impl GeoipProxies {
    /// Sets them once all lines have been read.
    pub(crate) fn set(&self, trusted: Vec<Cidr>, depth: ForwardedDepth) {
        // A second `http` block is refused elsewhere, so this is the first call.
        let _ = self.0.set((trusted, depth));
    }

    /// The client's address, from the header if the peer is one of them; `None` on a unix socket.
    pub(crate) fn client_of<S: ClientScope>(&self, session: &S) -> Option<IpAddr> {
        let peer = session.client()?;
        match self.0.get() {
            Some((trusted, depth)) if !trusted.is_empty() => Some(forwarded_for::client_address(
                peer,
                &session.forwarded_for(),
                trusted,
                *depth,
            )),
            _ => Some(peer),
        }
    }
}

/// The row of `geoip2`, in a table of any struct: databases belong to the definitions of their
/// variables.
pub(crate) const fn row<C, S: ClientScope>(contexts: Contexts) -> Directive<C> {
    Directive {
        name: "geoip2",
        syntax: "file { ... }",
        default: None,
        contexts,
        since: "0.2",
        doc: "A MaxMind database and the variables taken from it: `$name [default=value] [source=$address] path …;`, \
              where the path selects a field of the record for the client address. `$name metadata build_epoch | \
              last_check | last_change;` gives facts about the file. With `auto_reload time;` the file is reloaded \
              after it has changed.",
        set: Setter::Block(Arity::ONE, RepeatRule::Many, |_, line| read::<S>(line)),
    }
}

/// Reads `geoip2 FILE { … }` and defines its variables.
fn read<S: ClientScope>(line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    let path = line.path(conf::PathUse::Opened, line.arg(0));
    // Databases are large, and replaced often: a reload is asked to look.
    line.must_read_all();
    let content = line.files().read(&path);
    let reader = content
        .map_err(|error| base::text::errno_text(&error))
        .and_then(|content| Reader::from_source(content).map_err(|error| error.to_string()))
        .map_err(|why| {
            let message = format!("cannot open database \"{}\": {why}", path.display());
            line.error_at(0, message)
        })?;
    let proxies = line.shared::<GeoipProxies>().clone();
    let (reloads, variables): (Vec<_>, Vec<_>) = line
        .entries()
        .partition(|entry| entry.name.text == "auto_reload");
    let mut interval = None;
    for entry in reloads {
        interval = Some(read_interval(&entry)?);
        // The sandbox must let the worker read the file again.
        line.path(conf::PathUse::Read, line.arg(0));
    }
    let database = Arc::new(GeoipDatabase::new(path, reader, interval));
    for entry in variables {
        let wanted = GeoipVariable::read(line, &entry)?;
        let (database, proxies) = (Arc::clone(&database), proxies.clone());
        let definition = VariableDefinition::<S>::dynamic(move |session, out| {
            wanted.value(&database, &proxies, session, out)
        });
        define_entry_variable(line, &entry, definition)?;
    }
    Ok(())
}

/// Reads `auto_reload`.
fn read_interval(entry: &DirectiveNode) -> Result<Duration, Diagnostic> {
    let [time] = &entry.args[..] else {
        return Err(entry.error("invalid number of arguments in \"auto_reload\""));
    };
    base::units::parse_seconds(&time.text)
        .filter(|interval| !interval.is_zero())
        .ok_or_else(|| entry.error_at(time, format!("invalid interval \"{}\"", time.text)))
}

/// A variable of a `geoip2` block.
struct GeoipVariable {
    field: GeoipField,
    /// The text with the address (`source=`); `None`: the client's address.
    source: Option<Expression>,
    /// The value if the database has none.
    default: Option<BString>,
}

/// What the variable shows.
enum GeoipField {
    /// The value at this path of the address's record.
    Path(Vec<PathStep>),
    /// When the database was built, in seconds since the epoch.
    BuildEpoch,
    /// When the file was last checked for changes.
    LastCheck,
    /// When the file last changed.
    LastChange,
}

/// One step of a path into a record.
enum PathStep {
    /// A member of a map.
    Key(String),
    // An element of an array: any step that is a number.
    Index(usize),
}

impl GeoipVariable {
    /// Reads a variable and its options, which may come in any order before or between the path's
    /// words.
    fn read(line: &mut DirectiveLine, entry: &DirectiveNode) -> Result<GeoipVariable, Diagnostic> {
        let mut wanted = GeoipVariable {
            field: GeoipField::Path(Vec::new()),
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
        wanted.field = match &words[..] {
            [] => return Err(entry.error("a path into the database's records is missing")),
            [first, kind] if first.text == "metadata" => match kind.text.as_slice() {
                b"build_epoch" => GeoipField::BuildEpoch,
                b"last_check" => GeoipField::LastCheck,
                b"last_change" => GeoipField::LastChange,
                _ => {
                    let error = entry.error_at(kind, format!("unknown metadata \"{}\"", kind.text));
                    return Err(
                        error.note("it must be one of: build_epoch, last_check, last_change")
                    );
                }
            },
            path => GeoipField::Path(path.iter().map(|word| parse_step(&word.text)).collect()),
        };
        Ok(wanted)
    }

    /// Appends the value; `false` if there is none.
    fn value<S: ClientScope>(
        &self,
        database: &Arc<GeoipDatabase>,
        proxies: &GeoipProxies,
        session: &mut S,
        out: &mut Vec<u8>,
    ) -> bool {
        GeoipDatabase::check_for_change(database);
        if let Some(trouble) = database.reload_error() {
            session.log(host::error_log::LogLevel::Warn, format_args!("{trouble}"));
        }
        let known = database.current();
        let seconds = match &self.field {
            GeoipField::Path(path) => {
                let record = self
                    .address(proxies, session)
                    .and_then(|address| known.find(address, path));
                return match (record, &self.default) {
                    (Some(value), _) => write_value(&value, out),
                    (None, Some(default)) => {
                        out.extend_from_slice(default);
                        true
                    }
                    (None, None) => false,
                };
            }
            GeoipField::BuildEpoch => known.reader.metadata().build_epoch,
            GeoipField::LastCheck => database.checked.load(Ordering::Relaxed),
            GeoipField::LastChange => known.changed,
        };
        out.extend_from_slice(seconds.to_string().as_bytes());
        true
    }

    /// The address to look up.
    fn address<S: ClientScope>(&self, proxies: &GeoipProxies, session: &mut S) -> Option<IpAddr> {
        if let Some(source) = &self.source {
            return forwarded_for::parse_address(&source.to_bytes(session))
                .map(|address| address.ip());
        }
        proxies.client_of(session)
    }
}

/// Parses a step of a path.
fn parse_step(text: &[u8]) -> PathStep {
    let text = text.to_str_lossy();
    match text.parse() {
        Ok(index) => PathStep::Index(index),
        Err(_) => PathStep::Key(text.into_owned()),
    }
}

/// Writes a value in the format of the third-party module. Maps and arrays have no text form.
fn write_value(value: &Value, out: &mut Vec<u8>) -> bool {
    match value {
        Value::String(text) => out.extend_from_slice(text.as_bytes()),
        Value::Bool(yes) => out.push(b'0' + u8::from(*yes)),
        // Fractions have five decimals there.
        Value::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
            Some(number) => out.extend_from_slice(format!("{number:.5}").as_bytes()),
            None => out.extend_from_slice(number.to_string().as_bytes()),
        },
        Value::Null | Value::Array(_) | Value::Object(_) => return false,
    }
    true
}

/// A database file and what was read from it.
struct GeoipDatabase {
    path: PathBuf,
    /// Replaced as a whole on reload: a lookup holds a reference of its own, which a reload does
    /// not invalidate.
    current: RwLock<Arc<LoadedDatabase>>,
    /// `auto_reload`; `None`: never.
    interval: Option<Duration>,
    /// When the file was last checked, in seconds since the epoch. The request that advances it is
    /// the one that starts the check, so that a loop never starts two.
    checked: AtomicU64,
    /// Why the last reload failed. Logged by the next request that uses the database, which has a
    /// log to write to.
    take_reload_error: Mutex<Option<String>>,
}

/// One version of the contents.
struct LoadedDatabase {
    reader: Reader<Vec<u8>>,
    /// When the file changed, in seconds since the epoch; for the version read with the
    /// configuration, when it was read, so that only later changes count.
    changed: u64,
}

impl LoadedDatabase {
    /// The value at a path of an address's record.
    fn find(&self, address: IpAddr, path: &[PathStep]) -> Option<Value> {
        let path: Vec<PathElement<'_>> = path
            .iter()
            .map(|step| match step {
                PathStep::Key(name) => PathElement::Key(name),
                PathStep::Index(index) => PathElement::Index(*index),
            })
            .collect();
        // Unknown addresses, IPv6 addresses in an IPv4 database and damaged records all yield no
        // value.
        let record = self.reader.lookup(address).ok()?;
        record.decode_path(&path).ok().flatten()
    }
}

impl GeoipDatabase {
    /// A database that was just read.
    fn new(path: PathBuf, reader: Reader<Vec<u8>>, interval: Option<Duration>) -> GeoipDatabase {
        let now = rt::wall_millis() / 1000;
        let known = LoadedDatabase {
            reader,
            changed: now,
        };
        GeoipDatabase {
            path,
            current: RwLock::new(Arc::new(known)),
            interval,
            checked: AtomicU64::new(now),
            take_reload_error: Mutex::default(),
        }
    }

    /// The contents to use.
    fn current(&self) -> Arc<LoadedDatabase> {
        Arc::clone(&self.current.read())
    }

    /// Takes the error of the last reload, so that it is logged once.
    fn reload_error(&self) -> Option<String> {
        self.take_reload_error.lock().take()
    }

    /// Starts a check on a pool thread if one is due.
    fn check_for_change(database: &Arc<GeoipDatabase>) {
        let Some(interval) = database.interval else {
            return;
        };
        let (now, last) = (
            rt::wall_millis() / 1000,
            database.checked.load(Ordering::Relaxed),
        );
        let is_due = now >= last.saturating_add(interval.as_secs());
        // Loops share the database: only the one that advances the time starts the check.
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
            pool.run(move || database.reload_or_note()).await;
        });
    }

    /// Reloads the file; an error is kept for the log.
    fn reload_or_note(&self) {
        if let Err(error) = self.reload() {
            let path = self.path.display();
            let message = format!("database \"{path}\" could not be reloaded: {error}");
            *self.take_reload_error.lock() = Some(message);
        }
    }

    /// Reads the file if it has changed. Blocks on the disk.
    fn reload(&self) -> io::Result<()> {
        let modified = std::fs::metadata(&self.path)?.modified()?;
        let changed = unix_seconds(modified);
        // The usual case; the file is not even opened.
        if changed <= self.current().changed {
            return Ok(());
        }
        let content = std::fs::read(&self.path)
            .inspect_err(|error| rt::sandbox::note_refusal(&self.path, error))?;
        let reader = Reader::from_source(content).map_err(io::Error::other)?;
        let mut present = self.current.write();
        *present = Arc::new(LoadedDatabase { reader, changed });
        Ok(())
    }
}

/// Seconds since the epoch.
fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}
