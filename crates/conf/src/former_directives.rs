//! Directives that are still written although neither Weir nor current nginx has them, with their
//! replacements.

/// Advice about an unknown directive that was removed, or belongs to a well-known module.
pub(crate) fn former_advice(name: &str) -> Option<&'static str> {
    let exact = EXACT.iter().find(|(known, _)| *known == name);
    let family = || FAMILIES.iter().find(|(prefix, _)| name.starts_with(prefix));
    exact.or_else(family).map(|(_, advice)| *advice)
}

/// By name.
const EXACT: &[(&str, &str)] = &[
    (
        "ssl",
        "removed in nginx 1.25.1: use \"listen 443 ssl;\", which enables TLS for one address",
    ),
    ("spdy", "SPDY was removed; use \"http2 on;\" for HTTP/2"),
    (
        "limit_zone",
        "removed in nginx 1.7.6: use limit_conn_zone and limit_conn",
    ),
    (
        "http2_idle_timeout",
        "removed in nginx 1.19.7: use keepalive_timeout",
    ),
    (
        "http2_max_requests",
        "removed in nginx 1.19.7: use keepalive_requests",
    ),
    (
        "http2_recv_timeout",
        "removed in nginx 1.19.7: use client_header_timeout",
    ),
    (
        "aio_threads",
        "use \"aio threads;\", with \"thread_pool\" for the number of threads",
    ),
];

/// By the beginning of the name.
const FAMILIES: &[(&str, &str)] = &[
    ("spdy_", "SPDY was removed; use \"http2 on;\" for HTTP/2"),
    (
        "js_",
        "from the module njs, which Weir does not have; the *_by_lua_block directives do the same in Lua",
    ),
    (
        "pagespeed",
        "from ngx_pagespeed, which is no longer maintained",
    ),
    (
        "passenger_",
        "from Phusion Passenger, which Weir does not have: run the application separately, and proxy_pass to it",
    ),
    (
        "modsecurity",
        "from ModSecurity, which Weir does not have: put a web application firewall in front, or check requests with \
         access_by_lua_block; under ingress-nginx, remove the annotations modsecurity-snippet, enable-modsecurity and \
         enable-owasp-core-rules, and the keys of the ConfigMap with these names",
    ),
    (
        "vhost_traffic_status",
        "from the module vts, which Weir does not have; stub_status counts connections and requests",
    ),
    (
        "fancyindex",
        "from the module fancyindex, which Weir does not have; use autoindex with \"autoindex_style pretty;\"",
    ),
    (
        "push_stream",
        "from the module push-stream, which Weir does not have",
    ),
    ("rtmp", "from the module rtmp, which Weir does not have"),
    (
        "upload_",
        "from the module upload, which Weir does not have; let an application take uploads through proxy_pass",
    ),
    (
        "auth_pam",
        "from the module auth_pam, which Weir does not have; use auth_request with a service of your own",
    ),
    (
        "auth_ldap",
        "from the module auth_ldap, which Weir does not have; use auth_request with a service of your own",
    ),
];
