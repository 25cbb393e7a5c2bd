//! `cluster`: servers that fetch for each other, so that the origin is asked once.
//!
//! ```nginx
//! cluster edge {
//!     member 10.0.0.1:7070;
//!     member 10.0.0.2:7070;
//!     secret "a long random text";
//! }
//! server {
//!     listen 443 ssl;
//!     listen 10.0.0.1:7070 cluster=edge;
//!     location / {
//!         proxy_pass  http://origin;
//!         proxy_cache pages cluster=edge;
//!     }
//! }
//! ```
//!
//! Here are the directives and the tasks that keep the list of members: who is there (`discover`), and who answers
//! ([`heartbeat`]), and what needs Redis ([`shared_state`]). One loop does that for the process. Owners and signatures are `net::cluster`, what members ask each
//! other is `http::cluster`.

mod heartbeat;
mod member_list;
mod metrics;
mod shared_state;
mod tls_line;

use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bstr::{BStr, BString, ByteSlice};
use conf::directive_contexts::CLUSTER;
use conf::{
    AddressHost, Arity, BlockConfs, Diagnostic, Directive, DirectiveLine, DirectiveTable, HTTP,
    HostPort, RepeatRule, Setter, dispatch, parse,
};
use host::error_log::{LogLevel, Logger};
use host::listen::ListenAddress;
use http::HttpModule;
use http::core::resolver::ResolverConf;
use http::http_loop::HttpLoop;
use net::cluster::{
    Cluster, ClusterSettings, ClusterState, Clusters, JournalSettings, MemberList, MemberSource,
    MemberTls, PeerToken,
};
use net::redis::RedisSettings;
use net::resolver::{NameUpdate, NameWatch, Resolver, ResolverSettings};
use rt::sync::mpsc as queue;

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "cluster",
    doc: "Servers that fetch for each other.",
    main: &DIRECTIVES,
    blocks: &[&BLOCK],
    complete: Clusters::check_declared,
    commit: |site, zones| site.main_confs.get::<Clusters>().adopt_states(zones),
    metrics: |site, sink| metrics::tell_metrics(site.main_confs.get::<Clusters>(), sink),
    start,
    stop: |_| drop(TASKS.take()),
    explain: http::module::ModuleExplain::Runs(&[]),
    ..HttpModule::EMPTY
};

/// The time limit of a lookup where no `resolver_timeout` is configured.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(30);

/// The shortest secret, in bytes: a shorter one could be tried out by who has seen one request.
const SECRET_MIN: usize = 16;

/// The shortest `budget`. Below that a garbage collection of the neighbour's would count as its end.
const BUDGET_MIN: Duration = Duration::from_millis(20);

/// The main context's struct is the registry of clusters itself, so that lines of locations find it by its type.
static DIRECTIVES: DirectiveTable<Clusters> = DirectiveTable::<Clusters>::new(&[Directive {
    name: "cluster",
    syntax: "name { ... }",
    default: None,
    contexts: HTTP,
    since: "0.3",
    doc: "Defines the members of a cluster, for `proxy_cache … cluster=name` and `listen … cluster=name`. Members have the \
          same configuration, apart from addresses.",
    set: Setter::Block(Arity::ONE, RepeatRule::Many, |_, line| block(line)),
}])
.finish(|clusters, _, level| {
    clusters.clone_from(level.lasting::<Clusters>());
    Ok(())
});

/// The directives of the block.
static BLOCK: DirectiveTable<ClusterDraft> = DirectiveTable::new(&[
    Directive {
        name: "member",
        syntax: "address:port",
        default: None,
        contexts: CLUSTER,
        since: "0.3",
        doc: "A member, by the address and port at which it has `listen … cluster=name`. This server may be among them, so \
              that the block is the same everywhere.",
        set: Setter::Custom(Arity::ONE, RepeatRule::Many, |draft, line| {
            draft.members.push(address(line)?);
            Ok(())
        }),
    },
    Directive {
        name: "discover",
        syntax: "dns=name port=number | srv=_service._tcp.name | redis=list [expires=time]",
        default: None,
        contexts: CLUSTER,
        since: "0.3",
        doc: "Members are the addresses of a name, such as that of a Kubernetes headless service, with this port, or the \
              servers of its SRV records. They are looked up again when their TTL has passed; a lookup that fails changes \
              nothing. With `redis`, they are those that have entered themselves in a list of this name in the cluster's \
              Redis, as this server does: with its `self` address, or that of its `listen … cluster=name`. An entry that is \
              not renewed for the time of `expires` (30s) is gone.",
        set: Setter::Custom(Arity::between(1, 2), RepeatRule::Many, |draft, line| {
            match line.text(0).strip_prefix(b"redis=").map(ToOwned::to_owned) {
                Some(_) if draft.list.is_some() => {
                    return Err(line.error("there is another list in Redis already"));
                }
                Some(name) => draft.list = Some(member_list::read_list(line, &name)?),
                None => draft.sources.push(source(line)?),
            }
            Ok(())
        }),
    },
    Directive {
        name: "self",
        syntax: "address:port",
        default: None,
        contexts: CLUSTER,
        since: "0.3",
        doc: "The address by which the other members know this server. Needed only where it cannot be told from `listen … \
              cluster=name`, for example behind address translation. A server that is no member asks members and is asked \
              by none.",
        set: Setter::Custom(Arity::ONE, RepeatRule::Once, |draft, line| {
            draft.own = Some(address(line)?);
            Ok(())
        }),
    },
    Directive {
        name: "secret",
        syntax: "text [former text]",
        default: None,
        contexts: CLUSTER,
        since: "0.3",
        doc: "The text by which members recognize each other, at least 16 bytes; keep it in an included file that only root \
              can read. Requests are signed with it (HMAC-SHA256), and never contain it. The second text is accepted but not \
              used, so that a secret can be replaced member by member. Traffic between members is encrypted only with `tls`.",
        set: Setter::Custom(Arity::between(1, 2), RepeatRule::Once, |draft, line| {
            for index in 0..line.args().len() {
                if line.text(index).len() < SECRET_MIN {
                    let text = format!("a secret has at least {SECRET_MIN} bytes");
                    // Not at the word, which may stand on a line of its own, and would be shown.
                    return Err(line.error(text));
                }
                draft.secrets.push(line.text(index).to_owned());
            }
            Ok(())
        }),
    },
    Directive {
        name: "budget",
        syntax: "time",
        default: Some("500ms"),
        contexts: CLUSTER,
        since: "0.3",
        doc: "How long a member may be silent before it counts as gone: what it was asked for is then asked of the next one, \
              or of the origin, from the byte reached. Members ask each other four times in this time whether they are \
              there. How long an origin takes to answer does not matter.",
        set: Setter::Custom(Arity::ONE, RepeatRule::Once, |draft, line| {
            let time = line.millis(0)?;
            if time < BUDGET_MIN {
                return Err(line.error_at(0, "a budget is at least 20ms"));
            }
            draft.budget = time;
            Ok(())
        }),
    },
    Directive {
        name: "min_uses",
        syntax: "number",
        default: Some("3"),
        contexts: CLUSTER,
        since: "0.3",
        doc: "A response of another member is kept here too once its key has been asked for so often here without being \
              found; below that, it is only passed on. A copy is never fresh for longer than the original.",
        set: Setter::Custom(Arity::ONE, RepeatRule::Once, |draft, line| {
            draft.min_uses = u32::try_from(line.number(0, 1, i64::from(u32::MAX))?).unwrap_or(1);
            Ok(())
        }),
    },
    tls_line::TLS_ROW,
    shared_state::REDIS_ROW,
    shared_state::JOURNAL_ROW,
    Directive {
        name: "resolver",
        syntax: "address ... [valid=time] [ipv4=on|off] [ipv6=on|off] [status_zone=zone]",
        default: None,
        contexts: CLUSTER,
        since: "0.3",
        doc: "The DNS servers for `discover` and `redis`, instead of those of `http` or of the system.",
        set: Setter::Custom(Arity::at_least(1), RepeatRule::Once, |draft, line| {
            draft.resolver = Some(Resolver::from_line(line)?);
            Ok(())
        }),
    },
]);

/// A block while it is being read.
#[derive(Clone, Default)]
struct ClusterDraft {
    members: Vec<SocketAddr>,
    sources: Vec<MemberSource>,
    list: Option<MemberList>,
    own: Option<SocketAddr>,
    tls: Option<Arc<MemberTls>>,
    secrets: Vec<BString>,
    budget: Duration,
    min_uses: u32,
    resolver: Option<Arc<Resolver>>,
    redis: Option<RedisSettings>,
    journal: JournalSettings,
}

/// Reads a `cluster` block.
fn block(line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    let mut confs = BlockConfs::new(vec![vec![&BLOCK]]);
    dispatch(
        line.node.block.nodes(),
        &mut confs,
        None,
        &mut line.level.inner_block(CLUSTER),
    );
    let draft = confs.get_mut::<ClusterDraft>().map(std::mem::take);
    let draft = draft.unwrap_or_default();
    let name = line.text(0).to_owned();
    if !name
        .iter()
        .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(byte))
    {
        return Err(line.error_at(0, format!("invalid name of a cluster \"{name}\"")));
    }
    if draft.secrets.is_empty() {
        let error = line.error(format!("no \"secret\" in cluster \"{name}\""));
        return Err(error
            .note("without one, any client that reaches the port could ask for what is stored"));
    }
    if draft.members.is_empty() && draft.sources.is_empty() && draft.list.is_none() {
        let error = line.error(format!("no members in cluster \"{name}\""));
        return Err(error.note("add \"member\" or \"discover\" lines"));
    }
    shared_state::check(&draft, line)?;
    let redis = draft.redis.map(|redis| match redis.prefix.is_empty() {
        true => RedisSettings {
            prefix: format!("weir:{name}").into(),
            ..redis
        },
        false => redis,
    });
    let settings = ClusterSettings {
        members: draft.members,
        sources: draft.sources,
        list: draft.list,
        own: draft.own,
        tls: draft.tls,
        token: PeerToken::new(&draft.secrets),
        budget: draft.budget,
        min_uses: draft.min_uses,
        resolver: draft.resolver,
        redis,
        journal: draft.journal,
    };
    Clusters::declare_cluster(line, name.as_bstr(), settings)
}

/// Reads an address with a port.
fn address(line: &DirectiveLine) -> Result<SocketAddr, Diagnostic> {
    let parsed = HostPort::parse_peer(line.text(0));
    let ip: Option<IpAddr> = match parsed.as_ref().map(|parsed| &parsed.host) {
        Ok(AddressHost::V4(ip)) => Some((*ip).into()),
        Ok(AddressHost::V6(ip)) => Some((*ip).into()),
        _ => None,
    };
    match (ip, parsed.ok().and_then(|parsed| parsed.port)) {
        (Some(ip), Some(port)) => Ok(SocketAddr::new(ip, port)),
        _ => {
            let text = format!("invalid address of a member \"{}\"", line.text(0));
            let note = "write an IP address and a port, or use \"discover\" for a name";
            Err(line.error_at(0, text).note(note))
        }
    }
}

/// Reads `discover`.
fn source(line: &DirectiveLine) -> Result<MemberSource, Diagnostic> {
    let mut found = MemberSource {
        host: BString::default(),
        service: BString::default(),
        port: 0,
    };
    for index in 0..line.args().len() {
        let invalid = || line.invalid_parameter(index);
        let text = line.text(index);
        let (key, value) = text.split_once_str("=").ok_or_else(invalid)?;
        match key {
            b"dns" if !value.is_empty() => found.host = value.into(),
            b"port" => {
                let port = parse::number(value).and_then(|port| u16::try_from(port).ok());
                found.port = port.filter(|port| *port > 0).ok_or_else(invalid)?;
            }
            // The service is the two labels that begin with an underscore (RFC 2782).
            b"srv" => {
                let second = value.find(".").ok_or_else(invalid)? + 1;
                let end = second + value[second..].find(".").ok_or_else(invalid)?;
                if !value.starts_with(b"_") || !value[second..].starts_with(b"_") {
                    return Err(invalid());
                }
                found.service = value[..end].into();
                found.host = value[end + 1..].into();
            }
            _ => return Err(invalid()),
        }
    }
    let is_service = !found.service.is_empty();
    match found.host.is_empty() || is_service == (found.port != 0) {
        true => {
            Err(line.error("\"discover\" is dns=name with port=number, or srv=_service._tcp.name"))
        }
        false => Ok(found),
    }
}

rt::local! {
    /// The tasks of the current configuration, on the loop that runs them.
    static TASKS: RefCell<Vec<rt::JoinHandle<()>>> = const { RefCell::new(Vec::new()) };
}

/// Starts what keeps the members of each cluster, on one loop.
fn start(engine: &HttpLoop) {
    if engine.index != 0 {
        return;
    }
    let site = engine.site();
    let mut tasks = Vec::new();
    let clusters = site.main_confs.get::<Clusters>();
    for cluster in clusters.all_clusters() {
        let Some((settings, state)) = cluster.running() else {
            continue;
        };
        let listens = site.endpoints.iter().filter(|endpoint| {
            let named = endpoint.cluster.as_ref();
            named.is_some_and(|named| named.name() == cluster.name())
        });
        let keeper = Rc::new(MemberKeeper {
            listens: listens
                .filter_map(|endpoint| tcp_address(&endpoint.address))
                .collect(),
            state: Arc::clone(state),
            log: engine.log(),
            cluster: Arc::clone(&cluster),
            found: RefCell::new(vec![Vec::new(); settings.sources.len()]),
            listed: RefCell::default(),
        });
        keeper.take_members(settings);
        tasks.push(heartbeat::watch_members(&cluster, engine.log()).abort_on_drop());
        let outer = site.outer_confs.get::<ResolverConf>();
        let (resolver, timeout) =
            resolver_of(settings, outer, clusters.system_resolver(), &engine.log());
        shared_state::start(engine, &cluster, &resolver, &mut tasks);
        if !settings.sources.is_empty() {
            let watches = name_watches(settings, &resolver, timeout);
            let keeper = Rc::clone(&keeper);
            let task = async move { keeper.follow_names(watches).await };
            tasks.push(rt::spawn_handle("cluster names", task).abort_on_drop());
        }
        if let (Some(list), Some(client)) = (&settings.list, cluster.redis()) {
            let (list, client) = (list.clone(), Arc::clone(client));
            let task = member_list::follow_list(keeper, list, client, engine.log());
            tasks.push(rt::spawn_handle("cluster list", task).abort_on_drop());
        }
    }
    drop(TASKS.replace(tasks));
}

fn tcp_address(address: &ListenAddress) -> Option<SocketAddr> {
    match address {
        ListenAddress::Tcp(address) => Some(*address),
        _ => None,
    }
}

/// The resolver for the names of a cluster, and the time limit of a lookup.
fn resolver_of(
    settings: &ClusterSettings,
    outer: &ResolverConf,
    system: ResolverSettings,
    log: &Logger,
) -> (Arc<Resolver>, Duration) {
    let mut resolver = settings
        .resolver
        .as_ref()
        .unwrap_or(&outer.resolver)
        .clone();
    if resolver.is_empty() {
        resolver = Resolver::new(system, log.clone());
    }
    let timeout = match outer.timeout.is_zero() {
        true => LOOKUP_TIMEOUT,
        false => outer.timeout,
    };
    (resolver, timeout)
}

fn name_watches(
    settings: &ClusterSettings,
    resolver: &Arc<Resolver>,
    timeout: Duration,
) -> Vec<NameWatch> {
    let watch = |source: &MemberSource| {
        let (host, service) = (source.host.clone(), source.service.clone());
        NameWatch::new(Arc::clone(resolver), host, service, source.port, timeout)
    };
    settings.sources.iter().map(watch).collect()
}

/// Keeps the list of members.
struct MemberKeeper {
    cluster: Arc<Cluster>,
    state: Arc<ClusterState>,
    /// Where this server listens for members.
    listens: Vec<SocketAddr>,
    log: Logger,
    /// The members that each name has been resolved to.
    found: RefCell<Vec<Vec<SocketAddr>>>,
    /// The members that are in the list in Redis.
    listed: RefCell<Vec<SocketAddr>>,
}

impl MemberKeeper {
    /// The name of the cluster.
    fn cluster_name(&self) -> &BStr {
        self.cluster.name()
    }

    /// The address of this server, as far as its own configuration says it.
    fn known_own(&self) -> Option<SocketAddr> {
        let given = self.cluster.settings().and_then(|settings| settings.own);
        let is_whole = |listen: &&SocketAddr| !listen.ip().is_unspecified();
        given.or_else(|| self.listens.iter().find(is_whole).copied())
    }

    /// Takes what is in the list in Redis.
    fn take_listed(&self, members: Vec<SocketAddr>) {
        self.listed.replace(members);
        if let Some(settings) = self.cluster.settings() {
            self.take_members(settings);
        }
    }

    /// Takes the members from the configuration, from what names have resolved to, and from the list.
    fn take_members(&self, settings: &ClusterSettings) {
        let (found, listed) = (self.found.borrow(), self.listed.borrow());
        let named = settings.members.iter().chain(found.iter().flatten());
        let members: Vec<SocketAddr> = named.chain(listed.iter()).copied().collect();
        let own = settings.own.or_else(|| self.own_among(&members));
        if self.state.set_members(&members, own, rt::now()) {
            let view = self.state.view();
            let own = own.map_or("none".to_owned(), |own| own.to_string());
            self.log.log_plain(
                LogLevel::Notice,
                format_args!(
                    "cluster \"{}\" has {} members, this one is {own}",
                    self.cluster.name(),
                    view.members.len(),
                ),
            );
        }
    }

    /// This server among the members: the one whose address it listens at.
    fn own_among(&self, members: &[SocketAddr]) -> Option<SocketAddr> {
        let is_own = |member: &&SocketAddr| {
            self.listens.iter().any(|listen| {
                let same_port = listen.port() == member.port();
                listen == *member
                    || same_port && listen.ip().is_unspecified() && is_local(member.ip())
            })
        };
        members.iter().find(is_own).copied()
    }

    async fn follow_names(&self, watches: Vec<NameWatch>) {
        let Some(settings) = self.cluster.settings() else {
            return;
        };
        let (sender, mut receiver) = queue::channel(watches.len().max(1));
        let _tasks: Vec<_> = watches
            .into_iter()
            .enumerate()
            .map(|(index, mut watch)| {
                let sender = sender.clone();
                let task = async move {
                    loop {
                        let update = watch.next_update().await;
                        if sender.send((index, update)).await.is_err() {
                            return;
                        }
                    }
                };
                rt::spawn_handle("cluster name", task).abort_on_drop()
            })
            .collect();
        while let Ok((index, update)) = receiver.recv().await {
            // After a failure, what is known from before may still be right.
            if let NameUpdate::Servers(servers) = update {
                let addresses = servers.into_iter().map(|server| server.address).collect();
                self.found.borrow_mut()[index] = addresses;
                self.take_members(settings);
            }
        }
    }
}

/// Whether an address is this machine's: the kernel binds a socket to no other. Nothing is sent.
fn is_local(ip: IpAddr) -> bool {
    UdpSocket::bind(SocketAddr::new(ip, 0)).is_ok()
}
