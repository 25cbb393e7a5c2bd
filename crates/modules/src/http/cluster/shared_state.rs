//! The lines of a `cluster` block about Redis, which keeps what members share, and the tasks that need it: the connection,
//! and the readers of the journals of purges.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bstr::{BString, ByteSlice};
use conf::directive_contexts::CLUSTER;
use conf::{Arity, Diagnostic, Directive, DirectiveLine, PathUse, RepeatRule, Setter, parse};
use http::cache::{CacheZones, JournaledZone};
use http::http_loop::HttpLoop;
use net::cluster::{Cluster, JournalAway, JournalReading, JournalSettings, read_journal};
use net::redis::{RedisServer, RedisSettings};
use net::resolver::Resolver;
use net::tls::{ClientOptions, TrustStore};
use net::upstream::{CertifiedName, UpstreamTls};

use super::ClusterDraft;

/// The port of Redis where a line names none, and that of Sentinel.
const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26_379;

/// How long a reply may take if the line does not say so.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The longest chain of certificates.
const DEPTH: usize = 5;

/// The fewest entries of a journal: fewer would be none to who is away for a moment.
const LENGTH_MIN: i64 = 100;

/// `redis`.
pub(super) const REDIS_ROW: Directive<ClusterDraft> = Directive {
    name: "redis",
    syntax: "address[:port] ... [sentinel=name] [user=name] [password=text] [database=number] [tls=on|off] \
             [trusted_certificate=file] [timeout=time] [prefix=text]",
    default: None,
    contexts: CLUSTER,
    since: "0.3",
    doc: "Redis or Valkey, in which members keep what they share: the journal of purges, and the counters of zones with \
          `sync=redis`. Several addresses are tried in this order, and the first that is a master is used; with `sentinel`, \
          they are those of Sentinel, which names the master. With `tls=on`, the server's certificate has to be valid for \
          its name, by the system's authorities or those of the file. A reply that takes longer than `timeout` (2s) counts \
          as the end of the connection. Keys begin with `prefix`, the cluster's name by default. While Redis is away, \
          requests are served as before: see the guide.",
    set: Setter::Custom(Arity::at_least(1), RepeatRule::Once, |draft, line| {
        draft.redis = Some(read_redis(line)?);
        Ok(())
    }),
};

/// `journal`.
pub(super) const JOURNAL_ROW: Directive<ClusterDraft> = Directive {
    name: "journal",
    syntax: "[length=number] [away=refuse|keep]",
    default: None,
    contexts: CLUSTER,
    since: "0.3",
    doc: "How purges are kept in `redis`: about `length` of them (100000) for members that are away; one that has missed \
          more drops what it has stored. While Redis is away, a purge is refused with 503, or with `away=keep` done by the \
          members that answer and written when Redis is back.",
    set: Setter::Custom(Arity::between(1, 2), RepeatRule::Once, |draft, line| {
        for index in 0..line.args().len() {
            let (key, value) = line.text(index).split_once_str("=").unwrap_or_default();
            match (key, value) {
                (b"length", value) => {
                    let length = parse::number(value).filter(|length| *length >= LENGTH_MIN);
                    let length = length.and_then(|length| u64::try_from(length).ok());
                    draft.journal.length = length.ok_or_else(|| {
                        let text = format!("a journal has at least {LENGTH_MIN} entries");
                        line.error_at(index, text)
                    })?;
                }
                (b"away", b"refuse") => draft.journal.away = JournalAway::Refuse,
                (b"away", b"keep") => draft.journal.away = JournalAway::Keep,
                _ => return Err(line.invalid_parameter(index)),
            }
        }
        Ok(())
    }),
};

/// Checks what a whole block says.
pub(super) fn check(draft: &ClusterDraft, line: &DirectiveLine) -> Result<(), Diagnostic> {
    if draft.redis.is_none() && draft.list.is_some() {
        let error = line.error("\"discover redis=\" without \"redis\"");
        return Err(error.note("the list of members is kept in Redis: add a \"redis\" line"));
    }
    if draft.redis.is_none() && draft.journal != JournalSettings::default() {
        let error = line.error("\"journal\" without \"redis\"");
        return Err(error.note("the journal of purges is kept in Redis: add a \"redis\" line"));
    }
    Ok(())
}

fn read_redis(line: &mut DirectiveLine) -> Result<RedisSettings, Diagnostic> {
    let mut settings = RedisSettings {
        servers: Vec::new(),
        sentinel: None,
        user: None,
        password: None,
        database: 0,
        tls: None,
        timeout: TIMEOUT,
        prefix: BString::default(),
    };
    let (mut addresses, mut is_tls, mut trusted) = (Vec::new(), false, None);
    for index in 0..line.args().len() {
        let text = line.text(index).to_owned();
        let invalid = || line.invalid_parameter(index);
        let Some((key, value)) = text.split_once_str("=") else {
            addresses.push(index);
            continue;
        };
        if value.is_empty() {
            return Err(invalid());
        }
        match key {
            b"sentinel" => settings.sentinel = Some(value.into()),
            b"user" => settings.user = Some(value.into()),
            b"password" => settings.password = Some(value.into()),
            b"prefix" => settings.prefix = value.into(),
            b"database" => {
                let number = parse::number(value).and_then(|number| u32::try_from(number).ok());
                settings.database = number.ok_or_else(invalid)?;
            }
            b"timeout" => {
                let time = parse::millis(value).filter(|time| !time.is_zero());
                settings.timeout = time.ok_or_else(invalid)?;
            }
            b"tls" if value == b"on" || value == b"off" => is_tls = value == b"on",
            b"trusted_certificate" => {
                let path = parse::path(value.as_bstr());
                trusted = Some(line.level.build.in_prefix(PathUse::Opened, path));
            }
            _ => return Err(invalid()),
        }
    }
    if settings.user.is_some() && settings.password.is_none() {
        return Err(line.error("\"user\" without \"password\""));
    }
    if settings.prefix.iter().any(|byte| b"{}".contains(byte)) {
        return Err(line.error(
            "the prefix of keys has no braces: they mark the hash tag, which is the prefix",
        ));
    }
    if is_tls {
        settings.tls = Some(read_tls(line, trusted)?);
    }
    let default = match settings.sentinel {
        Some(_) => SENTINEL_PORT,
        None => PORT,
    };
    for index in addresses {
        settings.servers.push(read_server(line, index, default)?);
    }
    match settings.servers.is_empty() {
        true => Err(line.error("\"redis\" has no address")),
        false => Ok(settings),
    }
}

/// Reads an address or a name, with a port or without.
fn read_server(
    line: &DirectiveLine,
    index: usize,
    default: u16,
) -> Result<RedisServer, Diagnostic> {
    let text = line.text(index);
    let invalid = || line.error_at(index, format!("invalid address of Redis \"{text}\""));
    let (host, port) = match text.strip_prefix(b"[") {
        Some(rest) => {
            let (host, rest) = rest.split_once_str("]").ok_or_else(invalid)?;
            match rest.strip_prefix(b":") {
                Some(port) => (host, Some(port)),
                None if rest.is_empty() => (host, None),
                None => return Err(invalid()),
            }
        }
        None => match text.rsplit_once_str(":") {
            Some((host, port)) => (host, Some(port)),
            None => (text.as_bytes(), None),
        },
    };
    let port = port_or(port, default).ok_or_else(invalid)?;
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || b".-_:".contains(byte);
    if host.is_empty() || !host.iter().all(is_name) {
        return Err(invalid());
    }
    Ok(RedisServer {
        host: host.into(),
        port,
    })
}

/// The port, or the default if there is none.
fn port_or(port: Option<&[u8]>, default: u16) -> Option<u16> {
    let Some(port) = port else {
        return Some(default);
    };
    let port = parse::number(port.as_bstr()).and_then(|port| u16::try_from(port).ok());
    port.filter(|port| *port > 0)
}

fn read_tls(line: &mut DirectiveLine, trusted: Option<PathBuf>) -> Result<UpstreamTls, Diagnostic> {
    let system = || net::tls::system_trust().map(Path::to_owned);
    let path = match trusted.or_else(system) {
        Some(path) => path,
        None => {
            let error = line.error("no CA certificates are installed, so Redis cannot be verified");
            return Err(error.note("name a file with \"trusted_certificate\""));
        }
    };
    let read = line.level.build.files.read(&path);
    let text =
        read.map_err(|error| line.error(format!("cannot read \"{}\": {error}", path.display())))?;
    let mut trust = TrustStore::without_anchors(DEPTH);
    let added = trust.add_certificates(&text, &path.display().to_string());
    let options = ClientOptions {
        server_name: true,
        trust: Some(Arc::new(trust)),
        session_reuse: true,
        ..ClientOptions::default()
    };
    added
        .and_then(|()| options.build())
        .map(|settings| UpstreamTls::of_client(settings, CertifiedName::Asked))
        .map_err(|problem| line.error(problem.message))
}

/// Starts the connection to the Redis of a cluster, and the readers of its journals.
pub(super) fn start(
    engine: &HttpLoop,
    cluster: &Arc<Cluster>,
    resolver: &Arc<Resolver>,
    tasks: &mut Vec<rt::JoinHandle<()>>,
) {
    let (Some(client), Some(settings)) = (cluster.redis(), cluster.settings()) else {
        return;
    };
    let task = Arc::clone(client).run(
        cluster.name().to_owned(),
        Arc::clone(resolver),
        engine.log(),
    );
    tasks.push(rt::spawn_handle("redis", task).abort_on_drop());
    let site = engine.site();
    for zone in site.main_confs.get::<CacheZones>().all_zones() {
        let keeper = zone.journal_keeper();
        let is_ours = keeper.is_some_and(|keeper| Arc::ptr_eq(keeper, cluster));
        let Some(journal) = zone.journal().filter(|_| is_ours) else {
            continue;
        };
        let reading = JournalReading {
            journal: Arc::clone(journal),
            target: Rc::new(JournaledZone(Arc::clone(&zone))),
            client: Arc::clone(client),
            resolver: Arc::clone(resolver),
            length: settings.journal.length,
            log: engine.log(),
        };
        tasks.push(rt::spawn_handle("journal", read_journal(reading)).abort_on_drop());
    }
}
