//! Directives that people still write and that neither Weir nor today's nginx has, with what to write in their place.

/// What to do about an unknown directive, if it is one that was removed or that comes from a module that people know.
pub(crate) fn advice(name: &str) -> Option<&'static str> {
    let exact = EXACT.iter().find(|(known, _)| *known == name);
    let family = || FAMILIES.iter().find(|(prefix, _)| name.starts_with(prefix));
    exact.or_else(family).map(|(_, advice)| *advice)
}

/// By name.
const EXACT: &[(&str, &str)] = &[
    (
        "ssl",
        "removed in nginx 1.25.1: \"listen 443 ssl;\" says for each address whether it speaks TLS",
    ),
    ("spdy", "SPDY is gone; \"http2 on;\" switches HTTP/2 on"),
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
        "use \"aio threads;\"; a thread_pool says how many there are",
    ),
];

/// By the beginning of the name.
const FAMILIES: &[(&str, &str)] = &[
    ("spdy_", "SPDY is gone; \"http2 on;\" switches HTTP/2 on"),
    (
        "js_",
        "of the module njs, which Weir does not have; the *_by_lua_block directives do the same in Lua",
    ),
    (
        "pagespeed",
        "of ngx_pagespeed, which is no longer maintained",
    ),
    (
        "passenger_",
        "of Phusion Passenger, which Weir does not have: run the application by itself, and proxy_pass to it",
    ),
    (
        "modsecurity",
        "of ModSecurity, which Weir does not have; a filter in front of Weir, or access_by_lua_block, can do it",
    ),
    (
        "vhost_traffic_status",
        "of the module vts, which Weir does not have; stub_status counts connections and requests",
    ),
    (
        "fancyindex",
        "of the module fancyindex, which Weir does not have; autoindex shows folders",
    ),
    (
        "push_stream",
        "of the module push-stream, which Weir does not have",
    ),
    ("rtmp", "of the module rtmp, which Weir does not have"),
    (
        "upload_",
        "of the module upload, which Weir does not have; an application takes uploads through proxy_pass",
    ),
    (
        "auth_pam",
        "of the module auth_pam, which Weir does not have; auth_request asks a service of yours",
    ),
    (
        "auth_ldap",
        "of the module auth_ldap, which Weir does not have; auth_request asks a service of yours",
    ),
];
