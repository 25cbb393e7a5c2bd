//! The program's name: `weir`, or `nginx` when it was started under that name.
//!
//! Packages, scripts and test suites call `nginx` and parse what it prints. So a symbolic link of
//! that name changes every message; under its own name Weir never claims to be anything else.

use std::ffi::OsStr;
use std::path::Path;

use crate::replaced_build::ReplacedBuild;

/// The version of nginx whose configuration language and messages Weir follows.
pub(crate) const NGINX_VERSION: &str = "1.31.5";

/// A program name, with what depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProgramIdentity {
    /// Started under its own name, or any other.
    Weir,
    /// Started as `nginx`.
    Nginx,
}

impl ProgramIdentity {
    /// The identity for an argument zero.
    pub(crate) fn of(argument_zero: &OsStr) -> ProgramIdentity {
        match Path::new(argument_zero).file_name() {
            Some(name) if name == "nginx" => ProgramIdentity::Nginx,
            Some(_) | None => ProgramIdentity::Weir,
        }
    }

    /// The name in messages and in the process list.
    pub(crate) fn program(self) -> &'static str {
        match self {
            ProgramIdentity::Weir => "weir",
            ProgramIdentity::Nginx => "nginx",
        }
    }

    /// Name and version, as in the `Server` header.
    pub(crate) fn token(self) -> &'static str {
        match self {
            ProgramIdentity::Weir => concat!("weir/", env!("CARGO_PKG_VERSION")),
            ProgramIdentity::Nginx => "nginx/1.31.5",
        }
    }

    /// The line of `-v`.
    pub(crate) fn version_line(self) -> String {
        match self {
            ProgramIdentity::Weir => format!(
                "weir version: {} (nginx {NGINX_VERSION} compatible)",
                self.token()
            ),
            ProgramIdentity::Nginx => format!("nginx version: {}", self.token()),
        }
    }
}

/// A module of nginx: its argument of `configure`, and the directive that shows that Weir has it.
struct ConfigureArgument {
    /// Printed if Weir has the module: nginx builds it only on request.
    with: &'static str,
    /// Printed if Weir lacks the module: nginx builds it unless told otherwise.
    without: &'static str,
    /// Weir has the module if it knows this directive.
    directive: &'static str,
}

/// A module that nginx builds only on request.
const fn with(argument: &'static str, directive: &'static str) -> ConfigureArgument {
    ConfigureArgument {
        with: argument,
        without: "",
        directive,
    }
}

/// A module that nginx builds unless told otherwise.
const fn without(argument: &'static str, directive: &'static str) -> ConfigureArgument {
    ConfigureArgument {
        with: "",
        without: argument,
        directive,
    }
}

/// The modules. Tests and scripts look for them in the output of `-V`. The list changes only when
/// nginx gains a module: whether Weir has one follows from its directives.
const CONFIGURE_ARGUMENTS: &[ConfigureArgument] = &[
    with("--with-debug", "debug_connection"),
    with("--with-threads", "thread_pool"),
    with("--with-http_ssl_module", "ssl_certificate"),
    with("--with-http_v2_module", "http2"),
    with("--with-http_v3_module", "http3"),
    with("--with-http_realip_module", "set_real_ip_from"),
    with("--with-http_addition_module", "add_after_body"),
    with("--with-http_sub_module", "sub_filter"),
    with("--with-http_dav_module", "dav_methods"),
    with("--with-http_flv_module", "flv"),
    with("--with-http_mp4_module", "mp4"),
    with("--with-http_gunzip_module", "gunzip"),
    with("--with-http_gzip_static_module", "gzip_static"),
    with("--with-http_auth_request_module", "auth_request"),
    with("--with-http_random_index_module", "random_index"),
    with("--with-http_secure_link_module", "secure_link"),
    with("--with-http_slice_module", "slice"),
    with("--with-http_geoip_module", "geoip_country"),
    with("--with-http_stub_status_module", "stub_status"),
    with("--with-stream", "stream"),
    with("--with-stream_ssl_module", "ssl_alpn"),
    with("--with-stream_realip_module", "stream set_real_ip_from"),
    with("--with-stream_ssl_preread_module", "ssl_preread"),
    with("--with-stream_geoip_module", "stream geoip_country"),
    with("--with-mail", "mail"),
    without("--without-http_charset_module", "charset"),
    without("--without-http_gzip_module", "gzip"),
    without("--without-http_ssi_module", "ssi"),
    without("--without-http_mirror_module", "mirror"),
    without("--without-http_userid_module", "userid"),
    without("--without-http_access_module", "allow"),
    without("--without-http_auth_basic_module", "auth_basic"),
    without("--without-http_autoindex_module", "autoindex"),
    without("--without-http_geo_module", "geo"),
    without("--without-http_map_module", "map"),
    without("--without-http_split_clients_module", "split_clients"),
    without("--without-http_referer_module", "valid_referers"),
    without("--without-http_rewrite_module", "rewrite"),
    without("--without-http_proxy_module", "proxy_pass"),
    without("--without-http_fastcgi_module", "fastcgi_pass"),
    without("--without-http_uwsgi_module", "uwsgi_pass"),
    without("--without-http_scgi_module", "scgi_pass"),
    without("--without-http_grpc_module", "grpc_pass"),
    without("--without-http_tunnel_module", "tunnel_pass"),
    without("--without-http_memcached_module", "memcached_pass"),
    without("--without-http_limit_conn_module", "limit_conn"),
    without("--without-http_limit_req_module", "limit_req"),
    without("--without-http_empty_gif_module", "empty_gif"),
    without("--without-http_browser_module", "ancient_browser"),
    without("--without-http_upstream_hash_module", "hash"),
    without("--without-http_upstream_ip_hash_module", "ip_hash"),
    without("--without-http_upstream_least_conn_module", "least_conn"),
    without("--without-http_upstream_least_time_module", "least_time"),
    without("--without-http_upstream_random_module", "random"),
    without("--without-http_upstream_keepalive_module", "keepalive"),
    without("--without-http_upstream_zone_module", "zone"),
    without("--without-http_upstream_sticky_module", "sticky"),
    without("--without-http-cache", "proxy_cache_path"),
    without("--without-stream_pass_module", "pass"),
];

/// The text of `-V`, after the version line. `has` says whether a directive is known.
pub(crate) fn build_text(
    identity: ProgramIdentity,
    replaced: Option<&ReplacedBuild>,
    has: impl Fn(&str) -> bool,
) -> String {
    let mut text = format!("built by {}{}\n", env!("WEIR_RUSTC"), env!("WEIR_SOURCE"));
    if has("ssl_certificate") {
        text.push_str(match identity {
            ProgramIdentity::Weir => "built with rustls and aws-lc\nTLS SNI support enabled\n",
            // Test suites and scripts look for the library's name here.
            ProgramIdentity::Nginx => {
                "built with OpenSSL 3.5.1 (compatible; rustls)\nTLS SNI support enabled\n"
            }
        });
    }
    text.push_str("configure arguments:");
    for argument in replaced.iter().flat_map(|build| &build.arguments) {
        text.push(' ');
        text.push_str(argument);
    }
    for part in CONFIGURE_ARGUMENTS {
        let argument = if has(part.directive) {
            part.with
        } else {
            part.without
        };
        if !argument.is_empty() {
            text.push(' ');
            text.push_str(argument);
        }
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_decides() {
        assert_eq!(
            ProgramIdentity::of("/usr/sbin/nginx".as_ref()),
            ProgramIdentity::Nginx
        );
        assert_eq!(
            ProgramIdentity::of("./nginx-weir".as_ref()),
            ProgramIdentity::Weir
        );
        assert_eq!(
            ProgramIdentity::Nginx.version_line(),
            "nginx version: nginx/1.31.5"
        );
        assert_eq!(
            ProgramIdentity::Nginx.token(),
            format!("nginx/{NGINX_VERSION}")
        );
    }

    #[test]
    fn modules_are_listed_by_what_is_there() {
        let text = build_text(ProgramIdentity::Weir, None, |directive| {
            directive == "gzip_static" || directive == "proxy_pass"
        });
        assert!(text.contains(" --with-http_gzip_static_module"));
        assert!(!text.contains("--without-http_proxy_module"));
        assert!(text.contains(" --without-http_ssi_module"));
        assert!(!text.contains("OpenSSL"));
    }
}
