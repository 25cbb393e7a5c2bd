//! The configuration of each run, as users write it.

use std::path::Path;

use super::echo::{DATAGRAM_ECHO, ECHO_PORTS, NAME_SERVER};
use super::invariants::{LIMIT_BURST, LIMIT_CONNECTIONS, LIMIT_RATE, VALID_SECONDS, return_text};
use super::stream_client::{DATAGRAM_PORTS, STREAM_PORTS};

/// The ports that speak TLS or QUIC.
pub(super) const ENCRYPTED: [u16; 2] = [8443, 8083];
/// Idle connections to a group, for each loop.
pub(super) const KEEPALIVE: u64 = 4;

/// What `max_size` says.
pub(super) fn cache_bytes(is_small: bool) -> u64 {
    match is_small {
        true => 1 << 20,
        false => 20 << 20,
    }
}

/// The text. `generation`: how many there were before; `directory`: how many directories of the cache.
pub(super) fn configuration(
    prefix: &Path,
    has_small_cache: bool,
    (generation, directory): (usize, usize),
) -> String {
    let size = cache_bytes(has_small_cache);
    let prefix = prefix.display();
    let servers = http_servers(generation);
    let stream = stream_servers();
    format!(
        "events {{}}
http {{
    access_log off;
    client_header_timeout 5s; client_body_timeout 5s; send_timeout 5s; keepalive_timeout 10s;
    proxy_connect_timeout 2s; proxy_read_timeout 5s; proxy_send_timeout 5s;
    proxy_http_version 1.1; proxy_set_header Connection \"\";
    resolver 127.0.0.1:{NAME_SERVER} ipv6=off; resolver_timeout 3s;
    ssl_certificate {prefix}/certificate.pem; ssl_certificate_key {prefix}/key.pem;
    proxy_cache_path {prefix}/cache{directory} levels=1:2 keys_zone=one:1m max_size={size} inactive=10m;
    map $request_method $purges {{ PURGE 1; default 0; }}
    limit_conn_zone $server_port zone=at_once:1m;
    limit_req_zone $server_port zone=paced:1m rate={LIMIT_RATE}r/s;
    upstream origin {{ zone origin 64k; server 127.0.0.1:9001; server 127.0.0.1:9002; keepalive {KEEPALIVE}; }}
    upstream secured {{ server 127.0.0.1:8443; keepalive {KEEPALIVE}; }}
    upstream by_quic {{ server 127.0.0.1:8443; keepalive {KEEPALIVE}; }}
    {servers}
}}
stream {{
    ssl_certificate {prefix}/certificate.pem; ssl_certificate_key {prefix}/key.pem;
    {stream}
}}
"
    )
}

fn http_servers(generation: usize) -> String {
    let (first, second) = (return_text(false), return_text(true));
    let cached = format!(
        "proxy_pass http://origin; proxy_cache one; proxy_cache_purge $purges;
            proxy_cache_valid 200 206 {VALID_SECONDS}s; proxy_cache_revalidate on;
            add_header X-Cache $upstream_cache_status;"
    );
    let locked = format!("{cached} proxy_cache_lock on;");
    format!(
        "add_header X-Generation {generation} always;
    server {{
        listen 127.0.0.1:8080;
        http2 on;
        server_name simulated;
        status_zone main;
        root files;
        location = /return {{ return 200 '{first}'; }}
        location = /purge {{ cache_purge one; }}
        location /p/ {{ proxy_pass http://origin; }}
        location /d/ {{ set $name origin.simulated; proxy_pass http://$name:9001; }}
        location /t/ {{ proxy_pass https://secured/p/; }}
        location /h/ {{ proxy_http_version 3; proxy_pass https://by_quic/p/; }}
        location /n/ {{ limit_conn at_once {LIMIT_CONNECTIONS}; proxy_pass http://origin; }}
        location /q/ {{ limit_req zone=paced burst={LIMIT_BURST} nodelay; proxy_pass http://origin; }}
        location /c/ {{ {locked} }}
        location /s/ {{ {locked} proxy_cache_use_stale error timeout invalid_header updating; proxy_cache_background_update on; }}
        location /r/ {{ {locked} proxy_cache_partial on; }}
        location /v/ {{ {locked} }}
        location /u/ {{ {cached} }}
        location /l/ {{
            {locked} slice 16k; proxy_cache_key $uri$slice_range; proxy_set_header Range $slice_range;
            proxy_set_header Connection \"\";
        }}
    }}
    server {{
        listen 127.0.0.1:8080;
        http2 on;
        server_name second.simulated;
        location = /return {{ return 200 '{second}'; }}
        location = /metrics {{ prometheus; }}
    }}
    server {{
        listen 127.0.0.1:8443 ssl;
        listen 127.0.0.1:8443 quic;
        location /p/ {{ proxy_pass http://origin; }}
    }}"
    )
}

fn stream_servers() -> String {
    let [plain, secured] = STREAM_PORTS;
    let [first, second] = ECHO_PORTS;
    let [one, several] = DATAGRAM_PORTS;
    format!(
        "proxy_connect_timeout 2s; proxy_timeout 10s; proxy_half_close on;
    upstream echoes {{ server 127.0.0.1:{first}; server 127.0.0.1:{second}; }}
    server {{ listen 127.0.0.1:{plain}; status_zone main; proxy_pass echoes; }}
    server {{ listen 127.0.0.1:{secured}; proxy_ssl on; proxy_pass 127.0.0.1:8083; }}
    server {{ listen 127.0.0.1:8083 ssl; ssl_handshake_timeout 5s; proxy_pass echoes; }}
    server {{ listen 127.0.0.1:{one} udp; proxy_timeout 3s; proxy_responses 1; proxy_pass 127.0.0.1:{DATAGRAM_ECHO}; }}
    server {{ listen 127.0.0.1:{several} udp; proxy_timeout 3s; proxy_pass 127.0.0.1:{DATAGRAM_ECHO}; }}"
    )
}
