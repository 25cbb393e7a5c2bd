//! Scripts that have a say in TLS handshakes: `ssl_certificate_by_lua`, `ssl_client_hello_by_lua`, `ngx.ssl`.

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use weir_tests::{Server, is_oracle, skip_on_oracle, whole};

use crate::lua::lua;
use crate::tls::{Client, Pair, ask, body, self_signed};

/// The certificate that a client is shown for a name, and what it gets; or why there is none.
fn shown(
    server: &Server,
    index: usize,
    name: &str,
) -> Result<(CertificateDer<'static>, String), String> {
    let mut stream = Client::new().connect(server, index, name);
    let host = format!("Host: {name}");
    let answer = ask(&mut stream, "/", &host).map_err(|error| error.to_string())?;
    let chain = stream.conn.peer_certificates().unwrap_or_default();
    let leaf = chain.first().cloned().ok_or("no certificate")?;
    Ok((leaf.into_owned(), body(&answer).to_owned()))
}

fn der(pair: &Pair) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pair.certificate.as_bytes()).expect("PEM")
}

/// What the scripts of http and of stream do alike.
const CHOOSES: &str = r#"
    ssl_certificate_by_lua_block {
        local ssl = require "ngx.ssl"
        local function read(name)
            local file = assert(io.open("%%DIR%%/" .. name))
            local text = file:read("*a")
            file:close()
            return text
        end
        local name = ssl.server_name()
        if name == "bad.test" then return ngx.exit(ngx.ERROR) end
        if name == "oops.test" then error("oops") end
        if name == "usual.test" then return end
        assert(ssl.clear_certs())
        if name == "none.test" then return end
        if name == "der.test" then
            assert(ssl.set_der_cert(assert(ssl.cert_pem_to_der(read("other.crt")))))
            assert(ssl.set_der_priv_key(assert(ssl.priv_key_pem_to_der(read("other.key")))))
            return
        end
        ngx.sleep(0.001)
        local chain = assert(ssl.parse_pem_cert(read("other.crt")))
        local key = assert(ssl.parse_pem_priv_key(read("other.key")))
        local bytes, kind = ssl.raw_client_addr()
        assert(kind == "inet" and bytes == "\127\0\0\1")
        assert(ssl.get_tls1_version() == ssl.TLS1_3_VERSION)
        assert(ssl.set_cert(chain))
        assert(ssl.set_priv_key(key))
    }"#;

const CERTIFICATE: &str = "ssl_certificate localhost.crt; ssl_certificate_key localhost.key;
                           ssl_protocols TLSv1.2 TLSv1.3;";

fn check(server: &Server, usual: &Pair, other: &Pair) {
    for name in ["der.test", "cdata.test", "der.test"] {
        let (certificate, text) = shown(server, 0, name).expect("a handshake");
        assert!(certificate == der(other), "{name}");
        assert!(text.contains(name), "{name}: {text}");
    }
    let (certificate, _) = shown(server, 0, "usual.test").expect("a handshake");
    assert!(certificate == der(usual));
    for name in ["bad.test", "none.test", "oops.test"] {
        shown(server, 0, name).expect_err("no handshake");
    }
    server.line("error.log", "oops");
    let (certificate, _) = shown(server, 0, "der.test").expect("a handshake");
    assert!(certificate == der(other));
}

#[test]
fn a_script_chooses_the_certificate() {
    let Some(site) = lua(&format!(
        r#"server {{ listen 127.0.0.1:%%PORT%% ssl; {CERTIFICATE} {CHOOSES}
            location / {{ content_by_lua_block {{ ngx.print(require("ngx.ssl").server_name()) }} }}
        }}"#
    )) else {
        return;
    };
    let (usual, other) = (self_signed("localhost"), self_signed("other.test"));
    let server = site
        .file("localhost.crt", &usual.certificate)
        .file("localhost.key", &usual.key)
        .file("other.crt", &other.certificate)
        .file("other.key", &other.key)
        .tolerate("SSL_do_handshake")
        .tolerate("oops")
        .start();
    check(&server, &usual, &other);
}

#[test]
fn a_script_chooses_the_certificate_of_a_session() {
    if skip_on_oracle("Debian has no Lua for stream") {
        return;
    }
    let site = whole(&format!(
        r#"events {{}} stream {{ server {{ listen 127.0.0.1:%%PORT%% ssl; {CERTIFICATE} {CHOOSES}
            content_by_lua_block {{
                local socket = ngx.req.socket()
                repeat local line = socket:receive() until line == nil or line == ""
                ngx.print("HTTP/1.1 200 OK\r\n\r\n", ngx.var.ssl_server_name)
            }}
        }} }}"#
    ));
    let (usual, other) = (self_signed("localhost"), self_signed("other.test"));
    let server = site
        .file("localhost.crt", &usual.certificate)
        .file("localhost.key", &usual.key)
        .file("other.crt", &other.certificate)
        .file("other.key", &other.key)
        .tolerate("SSL_do_handshake")
        .tolerate("oops")
        .start();
    check(&server, &usual, &other);
}

#[test]
fn keys_that_do_not_belong_to_a_certificate_are_refused() {
    let Some(site) = lua(&format!(
        r#"server {{ listen 127.0.0.1:%%PORT%% ssl; {CERTIFICATE}
            ssl_certificate_by_lua_block {{
                local ssl = require "ngx.ssl"
                local function read(name)
                    local file = assert(io.open("%%DIR%%/" .. name))
                    local text = file:read("*a")
                    file:close()
                    return text
                end
                assert(not ssl.cert_pem_to_der("no certificate"))
                assert(not ssl.parse_pem_priv_key("no key"))
                assert(not ssl.set_der_cert("no certificate"))
                assert(ssl.set_der_cert(ssl.cert_pem_to_der(read("other.crt"))))
                local ok, err = ssl.set_der_priv_key(ssl.priv_key_pem_to_der(read("localhost.key")))
                assert(not ok and err)
                ngx.log(ngx.WARN, "key was refused")
                return ngx.exit(ngx.ERROR)
            }}
            location / {{ return 200 "text"; }}
        }}"#
    )) else {
        return;
    };
    let (usual, other) = (self_signed("localhost"), self_signed("other.test"));
    let server = site
        .file("localhost.crt", &usual.certificate)
        .file("localhost.key", &usual.key)
        .file("other.crt", &other.certificate)
        .tolerate("SSL_do_handshake")
        .start();
    shown(&server, 0, "a.test").expect_err("no handshake");
    server.line("error.log", "key was refused");
}

#[test]
fn a_script_reads_the_hello_before_a_server_is_chosen() {
    // Debian's nginx lacks the patch that lets such a script wait.
    let wait = if is_oracle() { "" } else { "ngx.sleep(0.001)" };
    let Some(site) = lua(&format!(
        r#"server {{ listen 127.0.0.1:%%PORT%% ssl; {CERTIFICATE}
            ssl_client_hello_by_lua_block {{
                local hello = require "ngx.ssl.clienthello"
                local name = hello.get_client_hello_server_name()
                if name == "bad.test" then return ngx.exit(ngx.ERROR) end
                {wait}
                ngx.log(ngx.WARN, ngx.get_phase(), " of ", name)
            }}
            return 200 first;
        }}
        server {{ listen 127.0.0.1:%%PORT%% ssl; server_name second.test; {CERTIFICATE} return 200 second; }}"#
    )) else {
        return;
    };
    let usual = self_signed("localhost");
    let server = site
        .file("localhost.crt", &usual.certificate)
        .file("localhost.key", &usual.key)
        .tolerate("SSL_do_handshake")
        .start();
    assert_eq!(shown(&server, 0, "second.test").expect("good").1, "second");
    server.line("error.log", "ssl_client_hello of second.test");
    shown(&server, 0, "bad.test").expect_err("no handshake");
    assert_eq!(shown(&server, 0, "a.test").expect("good").1, "first");
}

#[test]
fn sockets_of_scripts_speak_tls() {
    let Some(site) = lua(&format!(
        r#"default_type text/plain;
        server {{ listen unix:%%DIR%%/tls ssl; {CERTIFICATE} ssl_protocols TLSv1.2;
            ssl_session_cache builtin; ssl_verify_client optional_no_ca;
            location / {{ return 200 "$ssl_session_reused $ssl_client_s_dn $ssl_server_name"; }}
        }}
        server {{ listen 127.0.0.1:%%PORT%%;
            location /trusted {{ lua_ssl_trusted_certificate localhost.crt; content_by_lua_block {{ try("localhost") }} }}
            location /named {{ lua_ssl_trusted_certificate localhost.crt; content_by_lua_block {{ try("other.test") }} }}
            location /strange {{ lua_ssl_trusted_certificate other.crt; content_by_lua_block {{ try("localhost") }} }}
            location /nobody {{ content_by_lua_block {{ try("localhost") }} }}
            location /sessions {{ content_by_lua_block {{
                local first, session = open()
                ngx.print(type(session), " ", ask(first))
                local second, again = open(session)
                ngx.print(" ", type(again), " ", ask(second))
                local third, none = open(false)
                ngx.print(" ", tostring(none), " ", ask(third))
            }} }}
            location /client {{ content_by_lua_block {{
                local function read(name)
                    local file = assert(io.open("%%DIR%%/" .. name))
                    local text = file:read("*a")
                    file:close()
                    return text
                end
                local ssl = require "ngx.ssl"
                local chain, key = ssl.parse_pem_cert(read("other.crt")), ssl.parse_pem_priv_key(read("other.key"))
                ngx.say(type(chain), " ", type(key))
                ngx.say(ask((open(nil, function(socket) assert(socket:setclientcert(chain, key)) end))))
                local socket = ngx.socket.tcp()
                ngx.say(socket:setclientcert(chain))
                ngx.say(socket:setclientcert("x", "y"))
                ngx.say(socket:setclientcert())
            }} }}
        }}
        init_by_lua_block {{
            function open(session, prepare)
                local socket = ngx.socket.tcp()
                assert(socket:connect("unix:%%DIR%%/tls"))
                if prepare then prepare(socket) end
                return socket, assert(socket:sslhandshake(session, "localhost"))
            end
            function ask(socket)
                assert(socket:send("GET / HTTP/1.0\r\n\r\n"))
                return (socket:receive("*a"):gsub("^.*\r\n\r\n", ""))
            end
            function try(name)
                local socket = ngx.socket.tcp()
                assert(socket:connect("unix:%%DIR%%/tls"))
                local ok, err = socket:sslhandshake(nil, name, true)
                ngx.print(ok and "fine" or err)
            end
        }}"#
    )) else {
        return;
    };
    let (usual, other) = (self_signed("localhost"), self_signed("other.test"));
    let server = site
        .file("localhost.crt", &usual.certificate)
        .file("localhost.key", &usual.key)
        .file("other.crt", &other.certificate)
        .file("other.key", &other.key)
        .tolerate("lua ssl certificate")
        .tolerate("SSL_do_handshake")
        .start();
    let said = |target: &str| server.get(target).expect(200).text();
    assert_eq!(said("/trusted"), "fine");
    assert_eq!(said("/named"), "certificate host mismatch");
    assert_eq!(said("/strange"), "18: self-signed certificate");
    assert_eq!(said("/nobody"), "18: self-signed certificate");
    assert_eq!(
        said("/sessions"),
        "cdata .  localhost cdata r  localhost true .  localhost"
    );
    assert_eq!(
        said("/client"),
        "cdata cdata\n. CN=other.test localhost\n\
         nilclient certificate must be supplied with corresponding private key\n\
         nilbad cert arg: cdata expected, got string\ntrue\n"
    );
}

/// Sessions in a dictionary, under their names.
const KEEPS: &str = r#"lua_shared_dict kept 1m;
    ssl_session_store_by_lua_block {
        local session = require "ngx.ssl.session"
        local id = assert(session.get_session_id())
        assert(ngx.shared.kept:set(id, assert(session.get_serialized_session())))
        ngx.log(ngx.WARN, ngx.get_phase(), " keeps ", #id, " digits")
    }
    ssl_session_fetch_by_lua_block {
        local session = require "ngx.ssl.session"
        local id = assert(session.get_session_id())
        if ngx.shared.kept:get("mode") == "error" then error("oops") end
        if ngx.shared.kept:get("mode") == "exit" then return ngx.exit(ngx.ERROR) end
        ngx.log(ngx.WARN, ngx.get_phase(), " wants ", #id, " digits")
        local ok, err = session.set_serialized_session(ngx.shared.kept:get(id))
        if not ok then ngx.log(ngx.WARN, "refused: ", err) end
    }
    init_by_lua_block {
        function spoil()
            for _, key in ipairs(ngx.shared.kept:get_keys()) do ngx.shared.kept:set(key, "spoilt") end
        end
    }"#;

#[test]
fn scripts_keep_the_sessions_of_clients() {
    let Some(site) = lua(&format!(
        r#"{KEEPS}
        server {{ listen 127.0.0.1:%%PORT%% ssl; {CERTIFICATE} ssl_session_tickets off;
            location /reused {{ content_by_lua_block {{ ngx.header.content_length = 1 ngx.print(ngx.var.ssl_session_reused) }} }}
            location /spoil {{ content_by_lua_block {{ spoil() ngx.exit(204) }} }}
            location /mode {{ content_by_lua_block {{ ngx.shared.kept:set("mode", ngx.var.arg_is) ngx.exit(204) }} }}
        }}"#
    )) else {
        return;
    };
    let usual = self_signed("localhost");
    let server = site
        .file("localhost.crt", &usual.certificate)
        .file("localhost.key", &usual.key)
        .tolerate("oops")
        .start();
    let newest = Client::new();
    let older = || Client::with(None, &[&rustls::version::TLS12]);
    let asked = |client: &Client, target: &str| {
        let answer = client.get(&server, "localhost", target).expect("an answer");
        body(&answer).to_owned()
    };
    let client = older();
    assert_eq!(asked(&client, "/reused"), ".");
    assert_eq!(asked(&client, "/reused"), "r");
    server.line("error.log", "ssl_session_store keeps 64 digits");
    server.line("error.log", "ssl_session_fetch wants 64 digits");
    // A script that fails has no session: the client gets another one.
    for mode in ["error", "exit"] {
        assert_eq!(asked(&newest, &format!("/mode?is={mode}")), "");
        assert_eq!(asked(&client, "/reused"), ".");
    }
    assert_eq!(asked(&newest, "/mode?is=none"), "");
    assert_eq!(asked(&client, "/reused"), "r");
    assert_eq!(asked(&newest, "/spoil"), "");
    assert_eq!(asked(&client, "/reused"), ".");
    server.line("error.log", "refused: failed to de-serialize session");
    // Sessions of TLS 1.3 are no matter of scripts.
    let lines = server.read("error.log").matches("keeps 64").count();
    assert_eq!(asked(&Client::new(), "/reused"), ".");
    assert_eq!(server.read("error.log").matches("keeps 64").count(), lines);
}

#[test]
fn kept_sessions_are_of_no_use_to_a_server_with_another_certificate() {
    let Some(site) = lua(&format!(
        r#"{KEEPS}
        server {{ listen 127.0.0.1:%%PORT%% ssl; server_name a.test; {CERTIFICATE} ssl_session_tickets off;
            return 200 "a $ssl_session_reused"; }}
        server {{ listen 127.0.0.1:%%PORT1%% ssl; ssl_certificate other.crt; ssl_certificate_key other.key; ssl_session_tickets off;
            return 200 "b $ssl_session_reused"; }}"#
    )) else {
        return;
    };
    let (usual, other) = (self_signed("localhost"), self_signed("other.test"));
    let server = site
        .file("localhost.crt", &usual.certificate)
        .file("localhost.key", &usual.key)
        .file("other.crt", &other.certificate)
        .file("other.key", &other.key)
        .start();
    let client = Client::with(None, &[&rustls::version::TLS12]);
    let asked = |index: usize| {
        let mut stream = client.connect(&server, index, "a.test");
        let answer = ask(&mut stream, "/", "Host: a.test").expect("an answer");
        body(&answer).to_owned()
    };
    assert_eq!(asked(0), "a .");
    assert_eq!(asked(1), "b .");
    assert_eq!(asked(1), "b r");
    assert_eq!(asked(0), "a .");
}

#[test]
fn a_script_asks_clients_for_a_certificate() {
    let Some(site) = lua(&format!(
        r#"server {{ listen 127.0.0.1:%%PORT1%% ssl; {CERTIFICATE}
            ssl_certificate_by_lua_block {{
                local ssl = require "ngx.ssl"
                local name = ssl.server_name()
                if name == "nobody.test" then return end
                local authority
                if name ~= "any.test" then
                    local file = assert(io.open("%%DIR%%/" .. name .. ".crt"))
                    authority = assert(ssl.parse_pem_cert(file:read("*a")))
                    file:close()
                end
                assert(ssl.verify_client(authority, 1))
            }}
            location / {{ return 200 $ssl_client_verify; }}
        }}
        server {{ listen 127.0.0.1:%%PORT%%;
            proxy_ssl_session_reuse off; proxy_ssl_server_name on; proxy_ssl_name $arg_name;
            location /with {{ proxy_ssl_certificate client.test.crt; proxy_ssl_certificate_key client.test.key;
                proxy_pass https://127.0.0.1:%%PORT1%%; }}
            location /without {{ proxy_pass https://127.0.0.1:%%PORT1%%; }}
        }}"#
    )) else {
        return;
    };
    let (usual, client) = (self_signed("localhost"), self_signed("client.test"));
    let server = site
        .file("localhost.crt", &usual.certificate)
        .file("localhost.key", &usual.key)
        .file("client.test.crt", &client.certificate)
        .file("client.test.key", &client.key)
        .file("other.test.crt", self_signed("other.test").certificate)
        .start();
    let said = |target: &str| server.get(target).expect(200).text();
    assert_eq!(said("/with?name=client.test"), "SUCCESS");
    assert_eq!(said("/without?name=client.test"), "NONE");
    assert_eq!(said("/with?name=nobody.test"), "NONE");
    for name in ["other.test", "any.test"] {
        assert!(said(&format!("/with?name={name}")).starts_with("FAILED:"));
    }
}

#[test]
fn a_script_chooses_the_versions_of_tls() {
    let Some(site) = lua(&format!(
        r#"server {{ listen 127.0.0.1:%%PORT%% ssl; {CERTIFICATE}
            ssl_client_hello_by_lua_block {{
                local hello = require "ngx.ssl.clienthello"
                local name = hello.get_client_hello_server_name()
                if name == "old.test" then assert(hello.set_protocols {{ "TLSv1.1", "TLSv1.2" }}) end
                if name == "new.test" then assert(hello.set_protocols {{ "TLSv1.3" }}) end
                if name == "bad.test" then assert(not hello.set_protocols {{ "TLSv9" }}) end
            }}
            location / {{ return 200 $ssl_protocol; }}
        }}"#
    )) else {
        return;
    };
    let usual = self_signed("localhost");
    let server = site
        .file("localhost.crt", &usual.certificate)
        .file("localhost.key", &usual.key)
        .tolerate("SSL_do_handshake")
        .start();
    assert_eq!(shown(&server, 0, "old.test").expect("good").1, "TLSv1.2");
    assert_eq!(shown(&server, 0, "new.test").expect("good").1, "TLSv1.3");
    assert_eq!(shown(&server, 0, "bad.test").expect("good").1, "TLSv1.3");
    let old = Client::with(None, &[&rustls::version::TLS12]);
    let asked = |name: &str| {
        let mut stream = old.connect(&server, 0, name);
        ask(&mut stream, "/", &format!("Host: {name}")).map(|answer| body(&answer).to_owned())
    };
    assert_eq!(asked("any.test").expect("good"), "TLSv1.2");
    asked("new.test").expect_err("no common version");
}

#[test]
fn a_session_sees_the_ctx_of_its_handshake() {
    if skip_on_oracle("Debian has no Lua for stream") {
        return;
    }
    let site = whole(&format!(
        r#"events {{}} stream {{ server {{ listen 127.0.0.1:%%PORT%% ssl; {CERTIFICATE}
            ssl_certificate_by_lua_block {{
                local ssl = require "ngx.ssl"
                assert(#ssl.get_client_random() == 32 and ssl.get_client_random(0) == 32)
                local shared = ssl.get_req_shared_ssl_ciphers()
                assert(#shared > 0 and shared[1] > 0)
                ngx.ctx.answer, ngx.ctx.count = 42, 0
            }}
            content_by_lua_block {{
                local socket = ngx.req.socket()
                repeat local line = socket:receive() until line == nil or line == ""
                ngx.ctx.count = ngx.ctx.count + 1
                ngx.print("HTTP/1.1 200 OK\r\n\r\n", ngx.ctx.answer, " ", ngx.ctx.count)
            }}
        }}
        server {{ listen 127.0.0.1:%%PORT1%%; content_by_lua_block {{
            local session
            for _ = 1, 2 do
                local socket = ngx.socket.tcp()
                assert(socket:connect("127.0.0.1", %%PORT%%))
                session = assert(socket:sslhandshake(session, "any.test"))
                ngx.print(type(session), " ", ngx.now() - ngx.req.start_time() < 60, " ")
            end
        }} }} }}"#
    ));
    let usual = self_signed("localhost");
    let server = site
        .file("localhost.crt", &usual.certificate)
        .file("localhost.key", &usual.key)
        .start();
    for _ in 0..2 {
        assert_eq!(shown(&server, 0, "any.test").expect("good").1, "42 1");
    }
    let said = server.connect_to(1).rest();
    assert_eq!(said, b"userdata true userdata true ");
}

#[test]
fn a_chosen_server_has_a_name_of_its_own() {
    if skip_on_oracle("Debian's module is older") {
        return;
    }
    let Some(site) = lua(&format!(
        r#"upstream group {{ server 0.0.0.1; balancer_by_lua_block {{
            local balancer = require "ngx.balancer"
            assert(balancer.set_current_peer("127.0.0.1", %%PORT1%%, ngx.var.arg_name))
        }} }}
        server {{ listen 127.0.0.1:%%PORT1%% ssl; {CERTIFICATE}
            location / {{ return 200 $ssl_server_name; }} }}
        server {{ listen 127.0.0.1:%%PORT%%;
            location / {{ proxy_ssl_server_name on; proxy_http_version 1.1; proxy_set_header Connection "";
                proxy_pass https://group; }} }}"#
    )) else {
        return;
    };
    let usual = self_signed("localhost");
    let server = site
        .file("localhost.crt", &usual.certificate)
        .file("localhost.key", &usual.key)
        .start();
    server.answers(&[
        ("/?name=one.test", 200, "one.test"),
        // A connection to one name is not used for another.
        ("/?name=two.test", 200, "two.test"),
        ("/", 200, "group"),
        ("/?name=one.test", 200, "one.test"),
    ]);
}
