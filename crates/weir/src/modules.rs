//! The modules that `load_module` may name: what Weir has of them, and what their absence means.
//!
//! Distributions load modules by default, with nothing that uses them. A module of which it is known that it does nothing
//! where none of its directives stands may be absent: a directive of it is an error of its own. Of any other module nobody
//! knows whether it refuses requests by itself.

/// What is known of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loadable {
    /// Weir has its directives.
    BuiltIn,
    /// Weir has not, and without them the module does nothing.
    Idle,
    /// Nothing.
    Unknown,
}

/// The modules of nginx, and those of Debian, by the names of their files. Each with a directive that shows whether Weir
/// has it; every one of them does nothing without its directives.
const MODULES: [(&str, &str); 35] = [
    // nginx's own.
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
    // Debian's packages of others. The development kit has no directives but those of the modules that need it.
    ("ndk_http_module", "content_by_lua_block"),
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
    // What Weir has besides.
    ("ngx_http_zstd_filter_module", "zstd"),
    ("ngx_http_zstd_static_module", "zstd_static"),
];

/// Judges a module by the name of its file, without `.so`.
pub(crate) fn judge(name: &str) -> Loadable {
    match MODULES.iter().find(|(module, _)| *module == name) {
        Some((_, directive)) if crate::engines::knows(directive) => Loadable::BuiltIn,
        Some(_) => Loadable::Idle,
        None => Loadable::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_told_apart() {
        assert_eq!(judge("ngx_http_geoip2_module"), Loadable::BuiltIn);
        assert_eq!(judge("ngx_stream_module"), Loadable::BuiltIn);
        assert_eq!(judge("ngx_mail_module"), Loadable::Idle);
        assert_eq!(judge("ngx_http_naxsi_module"), Loadable::Unknown);
        assert_eq!(judge(""), Loadable::Unknown);
    }
}
