//! The modules that `load_module` may name: whether Weir has them, and what their absence means.
//!
//! Distributions load modules by default that no directive uses. If a module does nothing without
//! its directives, it may be absent: a directive of it is an error anyway. An unknown module might
//! reject requests by itself, and a server without it would let them in.

use conf::DirectiveRows;
use conf::describe::rows;

/// What is known about a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ModuleSupport {
    /// Weir implements its directives.
    BuiltIn,
    /// Weir does not, but without its directives the module does nothing.
    Idle,
    /// The module is not known.
    Unknown,
}

/// nginx's modules and those that Debian packages, by the names of their files. Each has a
/// directive that shows whether Weir implements it, and none does anything without its directives.
const MODULES: [(&str, &str); 37] = [
    // Modules of nginx.
    ("ngx_http_geoip_module", "geoip_country"),
    ("ngx_http_image_filter_module", "image_filter"),
    ("ngx_http_js_module", "js_content"),
    ("ngx_http_perl_module", "perl"),
    ("ngx_http_xslt_filter_module", "xslt_stylesheet"),
    ("ngx_mail_module", "mail"),
    ("ngx_stream_geoip_module", "stream geoip_country"),
    ("ngx_stream_js_module", "stream js_preread"),
    ("ngx_stream_module", "stream"),
    ("ngx_http_acme_module", "acme_issuer"),
    ("ngx_otel_module", "otel_exporter"),
    // The contrib project's, under the name that its build and ingress-nginx give it.
    ("otel_ngx_module", "opentelemetry"),
    // Third-party modules in Debian. The development kit has no directives of its own: other
    // modules need it.
    ("ndk_http_module", "content_by_lua_block"),
    ("ngx_http_auth_digest_module", "auth_digest"),
    ("ngx_http_auth_pam_module", "auth_pam"),
    ("ngx_http_brotli_filter_module", "brotli"),
    ("ngx_http_brotli_static_module", "brotli_static"),
    ("ngx_http_cache_purge_module", "proxy_cache_purge"),
    ("ngx_http_dav_ext_module", "dav_ext_methods"),
    ("ngx_http_echo_module", "echo"),
    ("ngx_http_fancyindex_module", "fancyindex"),
    ("ngx_http_geoip2_module", "geoip2"),
    ("ngx_http_headers_more_filter_module", "more_set_headers"),
    ("ngx_http_lua_module", "content_by_lua_block"),
    ("ngx_http_memc_module", "memc_pass"),
    ("ngx_http_modsecurity_module", "modsecurity"),
    ("ngx_http_set_misc_module", "set_unescape_uri"),
    ("ngx_http_srcache_filter_module", "srcache_fetch"),
    ("ngx_http_subs_filter_module", "subs_filter"),
    ("ngx_http_uploadprogress_module", "upload_progress"),
    ("ngx_http_upstream_fair_module", "fair"),
    ("ngx_nchan_module", "nchan_publisher"),
    ("ngx_rtmp_module", "rtmp"),
    ("ngx_stream_geoip2_module", "stream geoip2"),
    ("ngx_stream_lua_module", "stream content_by_lua_block"),
    // Modules that Weir has as well.
    ("ngx_http_zstd_filter_module", "zstd"),
    ("ngx_http_zstd_static_module", "zstd_static"),
];

/// What is known about a module, by the name of its file without `.so`.
pub(crate) fn support_of(name: &str, tables: &[&'static dyn DirectiveRows]) -> ModuleSupport {
    match MODULES.iter().find(|(module, _)| *module == name) {
        Some((_, directive)) if has_directive(tables, directive) => ModuleSupport::BuiltIn,
        Some(_) => ModuleSupport::Idle,
        None => ModuleSupport::Unknown,
    }
}

/// Whether one of these tables has a directive with this name; `stream NAME` asks for one of stream.
pub(crate) fn has_directive(tables: &[&'static dyn DirectiveRows], name: &str) -> bool {
    let in_stream = name.strip_prefix("stream ");
    rows(tables.iter().copied())
        .iter()
        .any(|row| match in_stream {
            Some(name) => row.name == name && row.contexts.text().contains("stream"),
            None => row.name == name,
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str) -> ModuleSupport {
        support_of(name, &crate::reference::tables())
    }

    #[test]
    fn modules_are_told_apart() {
        assert_eq!(of("ngx_http_geoip2_module"), ModuleSupport::BuiltIn);
        assert_eq!(of("ngx_stream_module"), ModuleSupport::BuiltIn);
        assert_eq!(of("ngx_mail_module"), ModuleSupport::Idle);
        assert_eq!(of("ngx_http_naxsi_module"), ModuleSupport::Unknown);
        assert_eq!(of(""), ModuleSupport::Unknown);
    }
}
