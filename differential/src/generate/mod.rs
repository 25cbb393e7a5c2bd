//! Generators: what makes cases. Each area has a file of its own and one line in [`AREAS`].

mod caches;
mod cgi;
mod choosing;
mod conversations;
mod error_logs;
mod filters;
mod frames;
mod freshness;
mod gates;
mod gateways;
mod grpc;
mod hellos;
mod http2;
mod locations;
mod lua;
mod media;
mod names;
mod nesting;
mod others;
mod pieces;
mod proxying;
pub mod recombined;
mod repeats;
mod rewritten;
mod rows;
mod shown;
mod slices;
mod statics;
mod streams;
mod tls;
mod tls_behind;
mod writes;

use crate::case::Case;
use crate::case::tree::Node;
use crate::random::Dice;

/// Makes cases of one area.
pub trait Generator: Sync {
    /// The area's name, as `--area` takes it.
    fn area(&self) -> &'static str;

    /// Directives of `http` that all cases of one start inherit.
    fn ambient(&self, _dice: &mut Dice) -> Vec<Node> {
        Vec::new()
    }

    /// A case. It may use nothing but the dice, so that the seed alone decides.
    fn case(&self, dice: &mut Dice) -> Case;
}

/// All areas.
pub const AREAS: &[&dyn Generator] = &[
    &locations::Locations,
    &rows::Rows,
    &statics::Statics,
    &proxying::Proxying,
    &gateways::Gateways,
    &grpc::Grpc,
    &caches::Caches,
    &freshness::Freshness,
    &filters::Filters,
    &gates::Gates,
    &conversations::Conversations,
    &http2::Http2,
    &frames::Frames,
    &tls::Tls,
    &tls_behind::TlsBehind,
    &error_logs::ErrorLogs,
    &others::Others,
    &streams::Streams,
    &streams::Packets,
    &lua::Lua,
    &writes::Writes,
    &nesting::Nesting,
    &rewritten::Rewritten,
    &cgi::Cgi,
    &slices::Slices,
    &shown::Shown,
    &choosing::Choosing,
    &media::Media,
    &hellos::Hellos,
    &names::Names,
    &repeats::Repeats,
];

/// Makes the cases of the start of this number.
pub fn batch(generator: &dyn Generator, seed: u64, number: u64, size: usize) -> Vec<Case> {
    let dice = Dice::new(seed).part(number);
    let ambient = generator.ambient(&mut dice.part(u64::MAX));
    let cases = (0..size as u64).map(|i| {
        let mut case = generator.case(&mut dice.part(i));
        case.name = format!("{}-{seed}-{number}-{i}", generator.area());
        case.ambient.clone_from(&ambient);
        case
    });
    cases.collect()
}

/// Directives that may stand more than once in a block.
const REPEATED: &[&str] = &[
    "location",
    "server",
    "if",
    "limit_except",
    "upstream",
    "map",
    "geo",
    "split_clients",
    "set",
    "rewrite",
    "return",
    "break",
    "add_header",
    "add_trailer",
    "error_page",
    "allow",
    "deny",
    "sub_filter",
    "proxy_set_header",
    "fastcgi_param",
    "uwsgi_param",
    "scgi_param",
    "grpc_set_header",
    "grpc_hide_header",
    "grpc_pass_header",
    "proxy_hide_header",
    "fastcgi_hide_header",
    "proxy_pass_header",
    "proxy_redirect",
    "listen",
    "proxy_cookie_domain",
    "proxy_cookie_path",
    "proxy_cookie_flags",
    "set_real_ip_from",
    "limit_req",
    "limit_conn",
    "proxy_cache_valid",
    "fastcgi_cache_valid",
    "uwsgi_cache_valid",
    "scgi_cache_valid",
    "expires",
    "proxy_cache_path",
    "limit_req_zone",
    "limit_conn_zone",
    "log_format",
    "proxy_ignore_headers",
    "auth_request_set",
    "server_name",
    "mirror",
    "access_log",
    "charset_map",
];

/// Reads what a generator wrote, and leaves the second of two directives out where a block may have one. A generator that
/// writes what is no configuration makes an empty case, which its test finds.
pub fn tree(text: &str) -> Vec<Node> {
    fn cleaned(nodes: Vec<Node>, in_data: bool) -> Vec<Node> {
        let mut seen: Vec<String> = Vec::new();
        let mut kept = Vec::new();
        for mut node in nodes {
            let name = node.name().to_owned();
            if !in_data && seen.contains(&name) && !REPEATED.contains(&name.as_str()) {
                continue;
            }
            let is_data = [
                "map",
                "geo",
                "split_clients",
                "types",
                "upstream",
                "charset_map",
            ];
            if let Some(children) = node.children_mut() {
                let inside = std::mem::take(children);
                *children = cleaned(inside, is_data.contains(&name.as_str()));
            }
            seen.push(name);
            kept.push(node);
        }
        kept
    }
    cleaned(crate::case::tree::parse(text).unwrap_or_default(), false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::text;

    #[test]
    fn the_seed_alone_decides_and_every_case_can_be_kept() {
        for area in AREAS {
            let cases = batch(*area, 7, 3, 400);
            assert_eq!(cases, batch(*area, 7, 3, 400), "{}", area.area());
            for case in &cases {
                let printed = text::print(case);
                assert_eq!(text::parse(&printed).as_ref(), Ok(case), "{printed}");
                assert!(
                    !case.http.is_empty() || !case.stream.is_empty(),
                    "{printed}"
                );
            }
        }
    }
}
