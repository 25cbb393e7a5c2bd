//! `weir explain`: what the server would do with a request, and which line of the configuration says so.
//!
//! It is the server's own code that answers: the frozen configuration, the search for server and location, the walk
//! through the phases, the scripts of `rewrite`, the choice of a file, the codec that writes the upstream's request. It is
//! run here for a request that nobody has sent, a step at a time, and what changes between two steps is written down:
//!
//! ```text
//! question   the request: a client, an address, a head; then as in `lifecycle`
//! walk       the steps of `phase::PhaseWalk`, and the filters
//! search     the search for a location, as `route` tells it
//! exchange   what another server would be asked, without asking it
//! places     from a location to the lines that apply to it
//! notes      what modules say of themselves (`ModuleExplain`), and the record
//! ```
//!
//! So it cannot drift from the server, and costs it nothing: the record is not a part of requests, and configurations that
//! are served keep no places. Nothing is written, no script runs, no server is asked.

mod exchange;
pub(crate) mod notes;
pub(crate) mod places;
mod question;
mod search;
mod walk;

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use bstr::{BStr, BString, ByteSlice};
use host::engine::{MainSettings, ZoneRegistry};
use host::error_log::Logger;
use net::counters::ConnectionCounters;
use net::server_name::ServerName;

use crate::absolute_redirect::absolute_location;
use crate::client::AskedName;
use crate::http_loop::HttpLoop;
use crate::http_site::{FrozenHttp, HttpSite, LocationKind, ServerId};
use crate::lifecycle::{RequestRefusal, check_head, start_request};
use crate::module::HttpModule;
use crate::request::Request;
use crate::{current_loop, tls};
use exchange::ExchangeReport;
use question::ExplainCarrier;
use walk::ExplainedWalk;

pub use crate::cache::{ExplainedCache, ExplainedCacheUse};
pub use exchange::{ExplainedServerLine, ExplainedUpstream, describe_cached, describe_direct};
pub use notes::{DescribedHandler, ExplainNotes, ExplainedStep, ModuleExplain, StepResult};
pub use places::{BlockHeads, ExplainedLine, ExplainedPlace, ExplainedTree, WantedBlockHeads};
pub use question::ExplainQuestion;
pub use walk::ExplainEnd;

/// What the server would do with a request.
pub struct Explanation {
    /// The address that the client connects to, and why.
    pub address: ExplainedChoice,
    /// The virtual server, and why.
    pub server: ExplainedChoice,
    /// The location in which the request ended.
    pub location: ExplainedChoice,
    /// The steps, in their order.
    pub steps: Vec<ExplainedStep>,
    /// What was not run, and what the rest depends on.
    pub depends_on: Vec<BString>,
    /// The part of the cache.
    pub cache: Option<ExplainedCache>,
    /// What another server would be asked.
    pub upstream: Option<ExplainedUpstream>,
    /// The response, if it is the server's own.
    pub response: Option<ExplainedResponse>,
}

/// Something that was chosen among others.
#[derive(Clone, Debug, Default)]
pub struct ExplainedChoice {
    /// What.
    pub name: BString,
    /// Why.
    pub why: String,
    /// Where it stands.
    pub place: Option<ExplainedPlace>,
}

/// A response that the server makes itself.
#[derive(Clone, Debug)]
pub struct ExplainedResponse {
    /// The status; 444 for a connection that is closed without a response.
    pub status: u16,
    /// The media type.
    pub content_type: BString,
    /// `Location`.
    pub redirect: Option<BString>,
    /// The other fields.
    pub fields: Vec<(BString, BString)>,
    /// The file that is served.
    pub file: Option<PathBuf>,
}

/// What is explained: a configuration with its text.
pub struct ExplainSubject {
    pub(crate) frozen: Arc<FrozenHttp>,
    pub(crate) modules: &'static [&'static HttpModule],
    /// The settings of the main context.
    pub main: MainSettings,
    /// The tree that the configuration was built from.
    pub tree: Rc<ExplainedTree>,
}

impl ExplainSubject {
    /// Answers a question. To be called on an event loop of a process that serves nothing. The error says why the question
    /// does not concern this configuration.
    pub async fn explain(&self, question: &ExplainQuestion) -> Result<Explanation, String> {
        let http = Rc::new(HttpLoop {
            index: 0,
            modules: self.modules,
            site: RefCell::new(HttpSite::new(Arc::clone(&self.frozen))),
            scratch: RefCell::default(),
            stopping: Cell::new(false),
            lingers_until: Cell::new(None),
            served: Cell::new(0),
            log: RefCell::new(Logger::default()),
            main: RefCell::new(self.main.clone()),
            zones: ZoneRegistry::default(),
            counters: Arc::new(ConnectionCounters::default()),
        });
        // The modules are not started: they have tasks that check servers and renew certificates.
        current_loop::set_current_loop(&http);
        self.answer(&http, question).await
    }

    async fn answer(
        &self,
        http: &HttpLoop,
        question: &ExplainQuestion,
    ) -> Result<Explanation, String> {
        let site = http.site();
        let (endpoint, why_endpoint) = question.endpoint(&site)?;
        let client = question.client(http, &site, endpoint);
        if question.secure {
            set_asked_name(&client, question);
        }
        let server = client.first_server();
        let head = question.head(&site, &client);
        let (head, rejected) = match head {
            Ok(head) => (head, None),
            Err(rejected) => (Default::default(), Some(rejected)),
        };
        let mut request = Request::new(Rc::clone(&site), Rc::clone(&client), Rc::new(head), server);
        start_request(http, &mut request, server);
        let mut carrier = ExplainCarrier {
            body: question.body.clone(),
        };
        let head = rejected.map_or(Ok(()), |rejected| Err(RequestRefusal::Head(rejected)));
        let checked = check_head(&mut carrier, &mut request, head);
        let chosen = self.chosen_server(&request);
        let mut walk = ExplainedWalk {
            modules: self.modules,
            notes: ExplainNotes::new(Rc::clone(&self.tree)),
            answered_by: None,
        };
        let checked = match checked {
            Ok(()) if question.secure => {
                self.note_client_certificate(&request, &mut walk.notes);
                Ok(())
            }
            Ok(()) => tls::check_tls(&mut request),
            Err(refusal) => Err(refusal.status()),
        };
        let end = match checked {
            Ok(()) => walk.run(&mut request).await,
            Err(status) => {
                let text = format!("the request is refused with {status}");
                walk.notes.step("request", StepResult::Applies, text, None);
                walk.refuse(&mut request, status).await
            }
        };
        let response = match end {
            ExplainEnd::Response => Some(response_of(&mut request, &walk)),
            ExplainEnd::Elsewhere => None,
        };
        let exchange = request.fact::<ExchangeReport>();
        let exchange = exchange.map(|exchange| ExchangeReport::clone(&exchange));
        let exchange = exchange.unwrap_or_default();
        Ok(Explanation {
            address: ExplainedChoice {
                name: endpoint.address.to_string().into(),
                why: why_endpoint.to_owned(),
                place: self.listen_place(&site, endpoint.default_server, &endpoint.address),
            },
            server: chosen,
            location: self.location_of(&request),
            steps: walk.notes.steps,
            depends_on: walk.notes.depends_on,
            cache: exchange.cache,
            upstream: exchange.upstream,
            response,
        })
    }

    /// The server of a request, and the rule by which it was chosen.
    fn chosen_server(&self, request: &Request) -> ExplainedChoice {
        let server = self.frozen.server(request.server);
        let host = request.head.host.as_bstr();
        let endpoint = request.client.endpoint.borrow();
        let is_named = match endpoint.names.find(host) {
            Some((found, _)) => found == request.server,
            None => false,
        };
        let name = is_named
            .then(|| matching_name(&server.core.names, host))
            .flatten();
        let lines = self.tree.lines(server.root, &["server_name"]);
        let block = self.tree.block(server.root).and_then(|line| line.place);
        let (why, place) = match name {
            Some((name, rule)) => {
                let text = name.text();
                let is_meant = |word: &conf::DirectiveWord| word.text.eq_ignore_ascii_case(&text);
                let line = lines
                    .iter()
                    .find(|line| line.node.args.iter().any(is_meant));
                let place = line.and_then(|line| line.place.clone());
                (format!("{rule} {text}"), place.or(block))
            }
            None if endpoint.servers.len() == 1 => {
                ("the only server of this address".to_owned(), block)
            }
            None => {
                let text = match host.is_empty() {
                    true => "the default server: the request names no host".to_owned(),
                    false => format!("the default server: none has the name {host}"),
                };
                (text, block)
            }
        };
        ExplainedChoice {
            name: server.name.clone(),
            why,
            place,
        }
    }

    fn location_of(&self, request: &Request) -> ExplainedChoice {
        let location = self.frozen.location(request.location);
        let is_server = request.location == self.frozen.server(request.server).root;
        let line = self.tree.block(request.location);
        let text = match (&line, is_server) {
            (_, true) => "none: the server's own level".into(),
            (Some(line), false) => line.text.clone(),
            (None, false) => location.name.clone(),
        };
        ExplainedChoice {
            name: text,
            why: match &location.kind {
                LocationKind::Exact => "exact",
                LocationKind::Prefix { .. } => "prefix",
                LocationKind::Regex(_) => "regular expression",
                LocationKind::Named => "named",
                LocationKind::Unnamed => "block",
            }
            .to_owned(),
            place: line.and_then(|line| line.place),
        }
    }

    fn listen_place(
        &self,
        site: &HttpSite,
        server: ServerId,
        address: &host::listen::ListenAddress,
    ) -> Option<ExplainedPlace> {
        let listens = &site.server(server).core.listens;
        let listen = listens.iter().find(|listen| listen.address == *address)?;
        self.tree.place(listen.span)
    }

    /// A client certificate cannot be imagined.
    fn note_client_certificate(&self, request: &Request, notes: &mut ExplainNotes) {
        let root = self.frozen.server(request.server).root;
        for line in self.tree.lines(root, &["ssl_verify_client"]) {
            if line.node.args.first().is_some_and(|word| !word.is("off")) {
                notes.not_run("certificate", &line);
            }
        }
    }
}

/// The name in the TLS hello is that of the URL.
fn set_asked_name(client: &crate::client::HttpClient, question: &ExplainQuestion) {
    let host = question.host.to_str_lossy().to_ascii_lowercase();
    let name = host.rsplit_once(':').map_or(&*host, |(name, _)| name);
    // RFC 6066, section 3: no address is sent as a name.
    if name.is_empty() || name.parse::<std::net::IpAddr>().is_ok() || name.starts_with('[') {
        return;
    }
    let server = crate::client::server_of_name(&client.endpoint.borrow(), name);
    *client.asked_name.borrow_mut() = Some(Box::new(AskedName {
        name: name.into(),
        server,
    }));
}

/// The name of a server that a host matches, and its rule, in nginx's order.
fn matching_name<'s>(
    names: &'s [ServerName],
    host: &BStr,
) -> Option<(&'s ServerName, &'static str)> {
    let rank = |name: &ServerName| match name {
        ServerName::Exact(text) if text == host => Some((0, 0, "named")),
        ServerName::Below(text) if text[1..] == **host => Some((0, 0, "named")),
        ServerName::Front(text) | ServerName::Below(text) if host.ends_with(text) => {
            Some((1, usize::MAX - text.len(), "wildcard"))
        }
        ServerName::End(text) if host.starts_with(text) => {
            Some((2, usize::MAX - text.len(), "wildcard"))
        }
        ServerName::Regex(pattern) if pattern.regex.is_match(host) => {
            Some((3, 0, "regular expression"))
        }
        _ => None,
    };
    let ranked = names.iter().filter_map(|name| Some((rank(name)?, name)));
    let best = ranked.min_by_key(|((class, length, _), _)| (*class, *length));
    best.map(|((_, _, rule), name)| (name, rule))
}

fn response_of(request: &mut Request, walk: &ExplainedWalk) -> ExplainedResponse {
    let redirect = request
        .out
        .location
        .is_some()
        .then(|| absolute_location(request).into());
    let file = match walk.answered_by.map(|module| module.explain) {
        Some(ModuleExplain::ServesFiles(ending))
            if matches!(request.out.status, 200 | 206 | 304) || request.flow.jumps > 0 =>
        {
            request.file_path().map(|mut path| {
                path.extend_from_slice(ending.as_bytes());
                path.to_path_lossy().into_owned()
            })
        }
        _ => None,
    };
    let mut content_type = Vec::new();
    request.out.write_content_type(&mut content_type);
    let out = &request.out;
    let mut fields: Vec<(BString, BString)> = out
        .fields
        .iter()
        .map(|(name, value)| (name.into(), value.into()))
        .collect();
    if let Some(etag) = &out.etag {
        fields.insert(0, ("ETag".into(), etag.clone()));
    }
    ExplainedResponse {
        status: out.status,
        content_type: content_type.into(),
        redirect,
        fields,
        file,
    }
}

/// Where a client of `weir explain` is, if nothing is said.
pub const DEFAULT_CLIENT: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 50_000);
