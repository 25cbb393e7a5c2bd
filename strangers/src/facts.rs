//! What a configuration says of itself, and what requests are made from: servers, paths, patterns, fields.

use crate::addresses::Listen;

/// A `server` block.
#[derive(Debug, Clone, Default)]
pub(crate) struct Server {
    pub(crate) is_stream: bool,
    pub(crate) listens: Vec<Listen>,
    pub(crate) names: Vec<String>,
    /// Paths to ask for, from locations, rewrites, `try_files`, `error_page`.
    pub(crate) paths: Vec<String>,
}

/// A field of a request that a condition looks at: name and value.
pub(crate) type Hint = (String, String);

/// All of one configuration.
#[derive(Debug, Clone, Default)]
pub(crate) struct Facts {
    pub(crate) servers: Vec<Server>,
    /// Fields that conditions and maps look at.
    pub(crate) fields: Vec<Hint>,
    /// Arguments that conditions and maps look at.
    pub(crate) arguments: Vec<Hint>,
    /// Paths of maps over `$uri`.
    pub(crate) paths: Vec<String>,
    pub(crate) hosts: Vec<String>,
    pub(crate) methods: Vec<String>,
    /// Folders below the site's that are to have files.
    pub(crate) roots: Vec<String>,
    /// Files below the site's that are to be there: what they are decides what is in them.
    pub(crate) files: Vec<(String, File)>,
    /// The names of all directives.
    pub(crate) directives: Vec<String>,
}

/// What a file holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum File {
    Certificate,
    Key,
    Parameters,
    Passwords,
    Ticket,
    Folder,
    Empty,
}

impl Facts {
    /// Takes what `$variable` is compared with. `is_pattern` when the value is a regular expression.
    pub(crate) fn hint(&mut self, variable: &str, value: &str, is_pattern: bool) {
        let values = if is_pattern {
            weir_differential::samples::samples(value)
        } else {
            vec![value.to_owned()]
        };
        let variable = variable.trim_matches(['$', '{', '}', '"', '(', ')']);
        for value in values
            .into_iter()
            .filter(|value| !value.contains(['\r', '\n', '$']))
        {
            if let Some(name) = variable.strip_prefix("http_") {
                push(&mut self.fields, (name.replace('_', "-"), value));
            } else if let Some(name) = variable.strip_prefix("cookie_") {
                push(
                    &mut self.fields,
                    ("cookie".to_owned(), format!("{name}={value}")),
                );
            } else if let Some(name) = variable.strip_prefix("arg_") {
                push(&mut self.arguments, (name.to_owned(), value));
            } else {
                match variable {
                    "request_method" => push(&mut self.methods, value),
                    "host" | "server_name" => push(&mut self.hosts, value),
                    "args" | "query_string" => push(&mut self.arguments, (value, String::new())),
                    "content_type" => push(&mut self.fields, ("content-type".to_owned(), value)),
                    "uri" | "request_uri" | "document_uri" | "request_filename" => {
                        push(&mut self.paths, rooted(&value));
                    }
                    _ => {}
                }
            }
        }
    }

    /// The kind that the figures are given by.
    pub(crate) fn kind(&self) -> &'static str {
        let has = |name: &str| self.directives.iter().any(|known| known == name);
        let ends = |end: &str| self.directives.iter().any(|known| known.ends_with(end));
        let rewrites = self
            .directives
            .iter()
            .filter(|name| *name == "rewrite")
            .count();
        if has("stream") || self.servers.iter().any(|server| server.is_stream) {
            "stream"
        } else if ends("_by_lua_block") || ends("_by_lua_file") || ends("_by_lua") {
            "lua"
        } else if has("proxy_cache") || has("fastcgi_cache") || has("uwsgi_cache") {
            "cache"
        } else if rewrites > 4 {
            "rewrites"
        } else if has("fastcgi_pass") {
            "php"
        } else if has("grpc_pass") || has("uwsgi_pass") || has("scgi_pass") || has("memcached_pass")
        {
            "gateways"
        } else if has("upstream") {
            "balancer"
        } else if has("proxy_pass") {
            "proxy"
        } else if has("ssl_certificate") || has("ssl_protocols") {
            "tls"
        } else {
            "static"
        }
    }
}

/// Adds what is not there.
pub(crate) fn push<T: PartialEq>(all: &mut Vec<T>, one: T) {
    if !all.contains(&one) {
        all.push(one);
    }
}

/// A text as a path.
pub(crate) fn rooted(text: &str) -> String {
    if text.starts_with('/') {
        text.to_owned()
    } else {
        format!("/{text}")
    }
}
