//! A caching node before object storage, whose script escapes the path that goes into a bucket: no request leaves it.

use weir_tests::Server;

use crate::lua::lua;

/// What the script leaves as it is.
const KEPT: &[u8] =
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789;,/?:@&=+$_.!~*'()#-";

/// The node, before an origin that shows which path it was asked for.
fn node() -> Option<Server> {
    let block = r#"proxy_cache_path cache levels=2 keys_zone=cache:1m;
        upstream origin { server 127.0.0.1:%%PORT1%% max_fails=0; keepalive 16; }
        server {
            listen 127.0.0.1:%%PORT%%;
            proxy_cache cache;
            proxy_cache_key "$scheme://$host$uri";
            proxy_cache_valid 200 301 302 303 2592000s;
            proxy_cache_valid any 1s;
            proxy_cache_lock on;
            set_by_lua_block $escaped_path {
                local function encode_uri(uri)
                    return uri:gsub("[^A-Za-z0-9;,/?:@&=+$_.!~*'()#-]", function(c)
                        return string.format("%%%02X", string.byte(c))
                    end)
                end
                return encode_uri(ngx.var.uri)
            }
            location / { proxy_pass http://origin/bucket$escaped_path; }
        }
        server { listen 127.0.0.1:%%PORT1%%; return 200 $request_uri; }"#;
    Some(lua(block)?.start())
}

#[test]
fn no_spelling_of_a_path_leaves_the_bucket() {
    let Some(server) = node() else { return };
    for target in [
        "/../otherbucket/x",
        "/%2e%2e/otherbucket/x",
        "/.%2e/otherbucket/x",
        "/%2E./otherbucket/x",
        "/..%2fotherbucket/x",
        "/%2e%2e%2fotherbucket/x",
        "/x/../../otherbucket/x",
        "/x/..//..%2f..%2fotherbucket/x",
    ] {
        server.get(target).expect(400);
    }
    for (target, asked) in [
        ("/..%5cotherbucket/x", "/bucket/..%5Cotherbucket/x"),
        (
            "/%252e%252e/otherbucket/x",
            "/bucket/%252e%252e/otherbucket/x",
        ),
        ("/x/../otherbucket/x", "/bucket/otherbucket/x"),
        ("/...//otherbucket", "/bucket/.../otherbucket"),
    ] {
        assert_eq!(server.get(target).expect(200).text(), asked, "{target}");
    }
}

#[test]
fn every_byte_of_a_path_is_escaped_as_the_script_says() {
    let Some(server) = node() else { return };
    for byte in 1..=255_u8 {
        let kept = KEPT.contains(&byte);
        let written = match kept {
            true => char::from(byte).to_string(),
            false => format!("%{byte:02X}"),
        };
        let text = server.get(&format!("/p%{byte:02x}q")).expect(200).text();
        assert_eq!(text, format!("/bucket/p{written}q"), "{byte}");
    }
    server.get("/p%00q").expect(400);
}
