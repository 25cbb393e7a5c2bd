//! `api`: the state of the server for programs, as the commercial nginx's API has it (version 9), and what of it can be
//! changed: servers of upstream groups, and entries of `keyval` zones.
//!
//! ```nginx
//! location /api/ {
//!     api write=on;
//!     allow 127.0.0.1; deny all;
//! }
//! ```
//!
//! `GET /api/9/http/upstreams/backend` and so on; [`resources`] has the tree, [`changes`] and [`keyval_changes`] what is
//! changed, [`failure`] the errors. Who may ask is in [`guard`](crate::shared::status::guard).
//!
//! Angie's form `api /status/;` is told apart by its slash, and answers with Angie's tree ([`angie`]), which is read-only.
//!
//! With `worker_groups`, numbers are sums over all groups, and changes are made in all of them.

mod angie;
mod changes;
mod failure;
mod groups;
mod keyval_changes;
mod resources;

use bstr::{BString, ByteSlice};
use conf::{Arity, Directive, DirectiveTable, LOCATION, RepeatRule, Setter};
use http::http_loop::HttpLoop;
use http::module::ContentHandler;
use http::response_body::ResponseBody;
use http::{HandlerOutcome, HandlerStep, HttpModule, Request};
use proto::message::Method;
use proto::{form, uri};
use serde_json::{Value, json};

use crate::shared::observation;
use crate::shared::status::{StatusView, guard};
use changes::UpstreamChange;
use failure::ApiFailure;
use keyval_changes::KeyvalChange;
use resources::ApiQuery;

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "api",
    doc: "The state of the server for programs, and changes while it runs.",
    location: &DIRECTIVES,
    content_handler: Some(ContentHandler {
        directives: &["api"],
        when: |location| !matches!(location.confs.get::<Conf>(), Conf::Off),
        handler: answer,
        adds_slash: false,
        declines: false,
    }),
    nested: |confs| {
        confs.change_if::<Conf>(|conf| !matches!(conf, Conf::Off), |conf| *conf = Conf::Off);
    },
    commit: |site, zones| {
        let mut locations = site.all_locations();
        let is_used = |conf: &Conf| !matches!(conf, Conf::Off);
        let has_api = locations.any(|location| is_used(location.confs.get()));
        observation::commit(site, zones, has_api);
    },
    start: |http| {
        observation::start(http);
        groups::answer_groups(http);
    },
    explain: http::module::ModuleExplain::Depends(&[(http::HttpPhase::Content, &["api"])]),
    ..HttpModule::EMPTY
};

static DIRECTIVES: DirectiveTable<Conf> = DirectiveTable::new(&[Directive {
    name: "api",
    syntax: "[write=on | off] | path",
    default: None,
    contexts: LOCATION,
    since: "0.2",
    doc: "Responds with the state of the server as JSON, as the commercial nginx's API does, version 9. With `write=on`, \
          servers of upstream groups and entries of `keyval` zones can be changed, by clients that an access rule of the \
          location has let in, or from this machine if it has none. With a path, as Angie has it, such as `/status/`, it \
          responds with what Angie has there.",
    set: Setter::Custom(Arity::between(0, 1), RepeatRule::Many, |conf, line| {
        *conf = match line.get(0).map(|word| word.text.as_slice()) {
            None | Some(b"write=off") => Conf::Read,
            Some(b"write=on") => Conf::Write,
            Some(path) if path.starts_with(b"/") => {
                if path.contains(&b'$') {
                    return Err(line.error_at(0, "\"api\" with variables is not supported"));
                }
                Conf::Angie(path.into())
            }
            Some(_) => return Err(line.invalid_parameter(0)),
        };
        Ok(())
    }),
}]);

#[derive(Clone, Debug, Default)]
enum Conf {
    #[default]
    Off,
    /// It may be read.
    Read,
    /// It may be changed.
    Write,
    /// What Angie has under this path.
    Angie(BString),
}

/// What a request asks for: the version, and the names behind it.
#[derive(Debug, PartialEq, Eq)]
struct ApiTarget {
    /// `None`: the list of versions.
    version: Option<u32>,
    names: Vec<String>,
}

/// The versions of the API that are known. What they differ in is what a later one has added.
const VERSIONS: std::ops::RangeInclusive<u32> = 1..=9;

impl ApiTarget {
    /// Reads a path. What comes before the version is the location's; its name is not always a beginning of the path.
    fn parse(path: &[u8], location: &[u8]) -> ApiTarget {
        let rest = path.strip_prefix(location).unwrap_or(path);
        let mut names = rest.split_str("/").filter(|name| !name.is_empty());
        let version = |name: &[u8]| name.to_str().ok()?.parse::<u32>().ok();
        let version = names.by_ref().find_map(version);
        ApiTarget {
            version,
            names: names.map(|name| name.to_str_lossy().into_owned()).collect(),
        }
    }
}

/// An answer.
struct ApiReply {
    status: u16,
    /// `None`: no content.
    text: Option<String>,
    /// Where something new is found.
    location: Option<String>,
}

impl ApiReply {
    fn of(text: String) -> ApiReply {
        ApiReply {
            status: 200,
            text: Some(text),
            location: None,
        }
    }

    fn empty(status: u16) -> ApiReply {
        ApiReply {
            status,
            text: None,
            location: None,
        }
    }
}

/// A value as text. What may be large is written, and its tree taken apart, on a thread of a pool.
async fn large_text(value: Value) -> String {
    let pool = rt::pool::default_pool();
    pool.run(move || value.to_string()).await
}

/// The content handler.
fn answer(request: &mut Request) -> HandlerStep<'_> {
    let is_read = matches!(request.method, Method::Get | Method::Head);
    let admitted = match is_read {
        true => guard::admit_reader(request),
        false => guard::admit_writer(request),
    };
    if let Err(why) = admitted {
        return guard::refuse(request, why).into();
    }
    HandlerStep::later(async move {
        let conf = request.conf::<Conf>();
        let result = match (&*conf, is_read) {
            (Conf::Angie(path), true) => read_angie(request, path).await,
            (Conf::Write, false) => change(request).await,
            (_, true) => read(request).await,
            (_, false) => Err(ApiFailure::METHOD_DISABLED),
        };
        match result {
            Ok(reply) => respond(request, reply),
            Err(failure) => {
                let id = request_id(request);
                let value = failure.value(&id);
                let status = failure.status;
                respond(
                    request,
                    ApiReply {
                        status,
                        text: Some(value.to_string()),
                        location: None,
                    },
                )
            }
        }
    })
}

/// `$request_id`, by which the error is found in the logs.
fn request_id(request: &mut Request) -> String {
    let id = request.site.variables.id("request_id");
    let value = id.and_then(|id| {
        let mut out = Vec::new();
        conf::VariableScope::variable(request, id, &mut out).then_some(out)
    });
    String::from_utf8_lossy(&value.unwrap_or_default()).into_owned()
}

fn respond(request: &mut Request, reply: ApiReply) -> HandlerOutcome {
    let out = &mut request.out;
    out.status = reply.status;
    out.fields.set(b"Cache-Control", b"no-store");
    if let Some(location) = reply.location {
        out.fields.set(b"Location", location.as_bytes());
    }
    out.body = match reply.text {
        Some(text) => {
            out.content_type = "application/json".into();
            ResponseBody::bytes(text)
        }
        None => ResponseBody::Empty,
    };
    HandlerOutcome::Respond
}

/// The loop's HTTP, the target, and the view.
fn prepare(
    request: &Request,
) -> Result<(std::rc::Rc<HttpLoop>, ApiTarget, StatusView), ApiFailure> {
    let engine = http::current_loop::http_loop().ok_or(ApiFailure::PATH_NOT_FOUND)?;
    let location = request.site.location(request.location);
    let target = ApiTarget::parse(&request.uri.path, &location.name);
    let view = StatusView::new(request.site.shared(), &engine.zones);
    Ok((engine, target, view))
}

/// An argument, decoded.
fn argument(request: &Request, name: &[u8]) -> Option<String> {
    let mut text = Vec::new();
    form::decode(form::find(&request.uri.args, name)?, &mut text);
    Some(String::from_utf8_lossy(&text).into_owned())
}

/// Checks the version.
fn names_of(target: ApiTarget) -> Result<Vec<String>, ApiFailure> {
    match target.version {
        Some(version) if VERSIONS.contains(&version) => Ok(target.names),
        _ => Err(ApiFailure::UNKNOWN_VERSION),
    }
}

async fn read(request: &mut Request) -> Result<ApiReply, ApiFailure> {
    let (engine, target, view) = prepare(request)?;
    if target.version.is_none() && target.names.is_empty() {
        let location = &request.site.location(request.location).name;
        let rest = request.uri.path.strip_prefix(&location[..]);
        return match rest.unwrap_or_default().trim_with(|sign| sign == '/') {
            b"" => Ok(ApiReply::of(
                json!(VERSIONS.collect::<Vec<_>>()).to_string(),
            )),
            _ => Err(ApiFailure::UNKNOWN_VERSION),
        };
    }
    let query = ApiQuery {
        names: names_of(target)?,
        fields: argument(request, b"fields"),
        key: argument(request, b"key"),
    };
    let mut value = groups::read_all(&engine, view, &query).await?;
    if query.names == ["nginx"] && query.has_field("address") {
        let mut address = Vec::new();
        request.write_server_address(&mut address);
        value["address"] = json!(String::from_utf8_lossy(&address));
    }
    Ok(ApiReply::of(large_text(value).await))
}

/// Angie's tree below the configured path and what the request adds to it.
async fn read_angie(request: &mut Request, path: &[u8]) -> Result<ApiReply, ApiFailure> {
    let (engine, _, view) = prepare(request)?;
    let location = &request.site.location(request.location).name;
    let rest = request.uri.path.strip_prefix(&location[..]);
    let path = [path, rest.unwrap_or_default()].join(&b"/"[..]);
    let names = path.split_str("/").filter(|name| !name.is_empty());
    let names: Vec<String> = names.map(|name| name.to_str_lossy().into_owned()).collect();
    let mut address = Vec::new();
    request.write_server_address(&mut address);
    let address = String::from_utf8_lossy(&address).into_owned();
    let parts = groups::read_angie(&engine, view).await?;
    let pool = rt::pool::default_pool();
    let found = pool.run(move || Ok(angie::find(parts, &names, &address)?.to_string()));
    Ok(ApiReply::of(found.await?))
}

/// Changes something.
async fn change(request: &mut Request) -> Result<ApiReply, ApiFailure> {
    let (engine, target, view) = prepare(request)?;
    let names = names_of(target)?;
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let body = match request.method {
        Method::Post | Method::Patch => Some(read_object(request).await?),
        Method::Delete => None,
        _ => return Err(ApiFailure::METHOD_DISABLED),
    };
    let method = request.method;
    match &names[..] {
        [engine_name, "upstreams", group, "servers", rest @ ..] if rest.len() <= 1 => {
            let kind = resources::group_kind(engine_name)?;
            let change = UpstreamChange::of_request(method, kind, group, rest.first(), body)?;
            let made = changes::make(&engine, view, change).await?;
            let mut reply = ApiReply::of(made.value.to_string());
            if let Some(id) = made.added {
                reply.status = 201;
                let path = request.uri.path.trim_end_with(|sign| sign == '/');
                let mut location = Vec::new();
                uri::escape(uri::EscapeClass::Uri, path, &mut location);
                reply.location = Some(format!("{}/{id}", String::from_utf8_lossy(&location)));
            }
            Ok(reply)
        }
        [engine_name, "keyvals", zone] => {
            let kind = resources::group_kind(engine_name)?;
            let changes = KeyvalChange::of_request(method, body)?;
            keyval_changes::make(&engine, view, (kind, zone), changes).await?;
            Ok(ApiReply::empty(match method {
                Method::Post => 201,
                _ => 204,
            }))
        }
        // Counters are not reset: a program that compares two readings would be misled, and Prometheus is.
        _ => {
            resources::read(&view, &ApiQuery::of(&names))?;
            Err(ApiFailure::METHOD_DISABLED)
        }
    }
}

/// The content of the request, which must be a JSON object.
async fn read_object(request: &mut Request) -> Result<serde_json::Map<String, Value>, ApiFailure> {
    http::body_reader::read_body(request)
        .await
        .map_err(|status| match status {
            413 => ApiFailure::TOO_LARGE,
            _ => ApiFailure::BODY_READ,
        })?;
    // As in the commercial nginx, what does not fit into `client_body_buffer_size` is too much.
    let body = request.body.in_memory().ok_or(ApiFailure::TOO_LARGE)?;
    match serde_json::from_slice(body) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(ApiFailure::JSON),
        Err(_) => Err(ApiFailure::JSON),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_stands_behind_the_location() {
        let target = |version, names: &[&str]| ApiTarget {
            version,
            names: names.iter().map(|name| (*name).to_owned()).collect(),
        };
        for (path, location, expected) in [
            ("/api/", "/api", target(None, &[])),
            ("/api/9", "/api", target(Some(9), &[])),
            ("/api/9/nginx", "/api/", target(Some(9), &["nginx"])),
            ("/api/9/http/", "", target(Some(9), &["http"])),
            ("/7/api/9/http/x", "/7/api", target(Some(9), &["http", "x"])),
        ] {
            let parsed = ApiTarget::parse(path.as_bytes(), location.as_bytes());
            assert_eq!(parsed, expected, "{path}");
        }
    }
}
