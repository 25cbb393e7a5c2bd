//! OCSP: what authorities say about certificates, those of the server and those of clients.

use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use rcgen::{CertifiedIssuer, KeyPair, SigningKey};
use weir_tests::{Scripted, http, read_until, send, skip_on_oracle, until, whole};

use crate::tls::{CERTIFICATE, Client, Pair, authority, body, https, https_files, signed_by};

/// What a responder says.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Says {
    Good,
    Revoked,
    /// Good, but signed by somebody else.
    Forged,
    /// That it can not tell now.
    TryLater,
}

/// A responder of an authority.
struct Responder {
    server: Scripted,
    says: Arc<Mutex<Says>>,
}

impl Responder {
    fn of(issuer: &CertifiedIssuer<'static, KeyPair>) -> Responder {
        let says = Arc::new(Mutex::new(Says::Good));
        let key = KeyPair::from_pem(&issuer.key().serialize_pem()).expect("it was one");
        let other = KeyPair::generate().expect("random bytes");
        let now = Arc::clone(&says);
        let server = Scripted::start(move |stream, _| {
            let head = read_until(stream, b"\r\n\r\n");
            let Some(question) = question(&head) else {
                return;
            };
            let says = *now.lock().expect("nobody panics with it");
            let answer = match says {
                Says::TryLater => vec![0x30, 0x03, 0x0a, 0x01, 0x03],
                Says::Forged => answer(&question, Says::Good, &other),
                says => answer(&question, says, &key),
            };
            send(
                stream,
                "HTTP/1.1 200 OK\r\nContent-Type: application/ocsp-response\r\nConnection: close\r\n\r\n",
            );
            send(stream, answer);
        });
        Responder { server, says }
    }

    fn says(&self, says: Says) {
        *self.says.lock().expect("nobody panics with it") = says;
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}/", self.server.port())
    }
}

/// The question in the path of a request.
fn question(head: &[u8]) -> Option<Vec<u8>> {
    let head = String::from_utf8_lossy(head);
    let path = head.strip_prefix("GET /")?.split(' ').next()?;
    let encoded = path
        .replace("%2B", "+")
        .replace("%2F", "/")
        .replace("%3D", "=");
    BASE64.decode(encoded).ok()
}

fn element(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let content = parts.concat();
    let mut out = vec![tag];
    match content.len() {
        length @ 0..0x80 => out.push(length as u8),
        length @ 0x80..0x100 => out.extend([0x81, length as u8]),
        length => out.extend([0x82, (length >> 8) as u8, length as u8]),
    }
    out.extend(content);
    out
}

/// An OCSPResponse (RFC 6960, section 4.2.1) to a question about one certificate.
fn answer(question: &[u8], says: Says, key: &KeyPair) -> Vec<u8> {
    // Behind the heads of OCSPRequest, TBSRequest, the list and Request; all of them are short.
    let id = &question[8..10 + usize::from(question[9])];
    let issuer_key = &id[37..57];
    let status = match says {
        Says::Revoked => element(0xa1, &[&element(0x18, &[b"20200101000000Z"])]),
        _ => vec![0x80, 0],
    };
    let from = element(0x18, &[b"20200101000000Z"]);
    let until = element(0xa0, &[&element(0x18, &[b"20990101000000Z"])]);
    let single = element(0x30, &[id, &status, &from, &until]);
    let responder = element(0xa2, &[&element(0x04, &[issuer_key])]);
    let data = element(0x30, &[&responder, &from, &element(0x30, &[&single])]);
    let ecdsa_with_sha256 = [
        0x30, 0x0a, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02,
    ];
    let signature = key.sign(&data).expect("a key that signs");
    let signature = element(0x03, &[&[0], &signature]);
    let basic = element(0x30, &[&data, &ecdsa_with_sha256, &signature]);
    let kind = [
        0x06, 0x09, 0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x30, 0x01, 0x01,
    ];
    let bytes = element(0x30, &[&kind, &element(0x04, &[&basic])]);
    element(0x30, &[&[0x0a, 0x01, 0x00], &element(0xa0, &[&bytes])])
}

const BOTH: [&[&rustls::SupportedProtocolVersion]; 2] =
    [&[&rustls::version::TLS12], &[&rustls::version::TLS13]];

#[test]
fn clients_are_asked_about() {
    let ours = authority("Ours");
    let pair = signed_by(&ours, "client.example");
    let responder = Responder::of(&ours);
    let url = responder.url();
    let server = https(&format!(
        "server {{ listen 127.0.0.1:%%PORT%% ssl; {CERTIFICATE} ssl_verify_client on;
         ssl_client_certificate ca.crt; ssl_ocsp leaf; ssl_ocsp_responder {url};
         add_header X-Verify $ssl_client_verify always; location / {{ return 200 'in'; }} }}"
    ))
    .file("ca.crt", ours.pem())
    .start();
    let get = |version: usize| {
        let client = Client::with(Some(&pair), BOTH[version]);
        client.get(&server, "localhost", "/").expect("an answer")
    };
    for version in 0..2 {
        for (says, expected) in [
            (Says::Good, "SUCCESS"),
            (Says::Revoked, "FAILED:certificate revoked"),
            (Says::Forged, "FAILED:certificate status request failed"),
            (Says::TryLater, "FAILED:certificate status request failed"),
        ] {
            responder.says(says);
            let answer = get(version);
            assert!(
                answer.contains(&format!("X-Verify: {expected}\r\n")),
                "{answer}"
            );
            assert_eq!(body(&answer) == "in", says == Says::Good, "{answer}");
        }
    }
    assert_eq!(responder.server.connections(), 8);
}

#[test]
fn a_revoked_client_is_refused_in_stream_too() {
    if skip_on_oracle("ssl_ocsp in stream is newer") {
        return;
    }
    let ours = authority("Ours");
    let pair = signed_by(&ours, "client.example");
    let responder = Responder::of(&ours);
    let url = responder.url();
    let server = https_files(whole(&format!(
        "events {{ }} stream {{ server {{ listen 127.0.0.1:%%PORT%% ssl; {CERTIFICATE} ssl_verify_client on;
         ssl_client_certificate ca.crt; ssl_ocsp leaf; ssl_ocsp_responder {url}; return in; }} }}"
    )))
    .file("ca.crt", ours.pem())
    .start();
    for (says, expected) in [(Says::Good, "in"), (Says::Revoked, "")] {
        responder.says(says);
        for version in BOTH {
            let client = Client::with(Some(&pair), version);
            let mut stream = client.connect(&server, 0, "localhost");
            let mut answer = Vec::new();
            // A refusal may be an alert or an end.
            let _ = stream.read_to_end(&mut answer);
            assert_eq!(String::from_utf8_lossy(&answer), expected);
        }
    }
}

#[test]
fn what_was_said_of_clients_is_kept() {
    let ours = authority("Ours");
    let pairs = [
        signed_by(&ours, "one.example"),
        signed_by(&ours, "two.example"),
    ];
    let responder = Responder::of(&ours);
    let url = responder.url();
    let server = https(&format!(
        "server {{ listen 127.0.0.1:%%PORT%% ssl; {CERTIFICATE} ssl_verify_client on;
         ssl_client_certificate ca.crt; ssl_ocsp on; ssl_ocsp_responder {url};
         ssl_ocsp_cache shared:answers:1m; location / {{ return 200 $ssl_client_verify; }} }}"
    ))
    .file("ca.crt", ours.pem())
    .start();
    for pair in &pairs {
        responder.says(Says::Good);
        for _ in 0..3 {
            let client = Client::with(Some(pair), BOTH[1]);
            let answer = client.get(&server, "localhost", "/").expect("an answer");
            assert_eq!(body(&answer), "SUCCESS");
            // The second and the third do not hear of it.
            responder.says(Says::Revoked);
        }
    }
    assert_eq!(responder.server.connections(), 2);
}

#[test]
fn clients_that_come_while_an_authority_is_asked_share_its_answer() {
    if skip_on_oracle("nginx asks for each of them") {
        return;
    }
    const CLIENTS: usize = 8;
    let ours = authority("Ours");
    let pair = signed_by(&ours, "client.example");
    let responder = Responder::of(&ours);
    // The responder has to wait for it until all clients have begun.
    let gate = responder.says.lock().expect("nobody panics with it");
    let url = responder.url();
    let server = https(&format!(
        "server {{ listen 127.0.0.1:%%PORT%% ssl; {CERTIFICATE} ssl_verify_client on;
         ssl_client_certificate ca.crt; ssl_ocsp on; ssl_ocsp_responder {url};
         ssl_ocsp_cache shared:shared_answers:1m; location / {{ return 200 $ssl_client_verify; }} }}"
    ))
    .file("ca.crt", ours.pem())
    .start();
    let begun = std::sync::Barrier::new(CLIENTS + 1);
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                let client = Client::with(Some(&pair), BOTH[1]);
                begun.wait();
                let answer = client.get(&server, "localhost", "/").expect("an answer");
                assert_eq!(body(&answer), "SUCCESS");
            });
        }
        begun.wait();
        until(|| (responder.server.connections() > 0).then_some(())).expect("it is asked");
        drop(gate);
    });
    assert_eq!(responder.server.connections(), 1);
}

/// A server whose certificate `issuer` has signed, with something about stapling.
fn stapling(issuer: &CertifiedIssuer<'static, KeyPair>, lines: &str) -> weir_tests::Site {
    let Pair { certificate, key } = signed_by(issuer, "localhost");
    http(&format!(
        "server {{ listen 127.0.0.1:%%PORT%% ssl; {CERTIFICATE} ssl_stapling on; {lines}
         ssl_trusted_certificate ca.crt; location / {{ return 200 ok; }} }}"
    ))
    .file("localhost.crt", certificate + &issuer.pem())
    .file("localhost.key", key)
    .file("ca.crt", issuer.pem())
}

#[test]
fn answers_are_stapled_once_they_are_there() {
    let ours = authority("Ours");
    let responder = Responder::of(&ours);
    let url = responder.url();
    let lines = format!("ssl_stapling_responder {url}; ssl_stapling_verify on;");
    let server = stapling(&ours, &lines).start();
    for version in BOTH {
        let stapled = until(|| {
            let client = Client::with(None, version);
            let answer = client.get(&server, "localhost", "/").expect("an answer");
            assert_eq!(body(&answer), "ok");
            let stapled = client
                .stapled
                .lock()
                .expect("nobody panics with it")
                .clone();
            (!stapled.is_empty()).then_some(stapled)
        });
        let stapled = stapled.expect("the answer comes");
        assert!(stapled.windows(9).any(|part| part == b"202001010"));
    }
    // One answer serves everybody.
    assert_eq!(responder.server.connections(), 1);
}

#[test]
fn answers_that_are_of_no_use_are_not_stapled() {
    for (says, line) in [
        (
            Says::Revoked,
            "certificate status \"revoked\" in the OCSP response",
        ),
        (Says::Forged, "OCSP_basic_verify() failed"),
        (Says::TryLater, "OCSP response not successful"),
    ] {
        let ours = authority("Ours");
        let responder = Responder::of(&ours);
        responder.says(says);
        let url = responder.url();
        let lines = format!("ssl_stapling_responder {url}; ssl_stapling_verify on;");
        let server = stapling(&ours, &lines).start();
        let seen = AtomicBool::new(false);
        let get = || {
            let client = Client::new();
            client.get(&server, "localhost", "/").expect("an answer");
            let stapled = client.stapled.lock().expect("nobody panics with it");
            seen.fetch_or(!stapled.is_empty(), Ordering::Relaxed);
        };
        get();
        server.line("error.log", line);
        get();
        assert!(!seen.load(Ordering::Relaxed));
    }
}

#[test]
fn a_script_asks_and_staples_itself() {
    let ours = authority("Ours");
    let responder = Responder::of(&ours);
    let port = responder.server.port();
    let code = format!(
        "lua_shared_dict kept 1m;
        server {{ listen 127.0.0.1:%%PORT%% ssl; {CERTIFICATE} location / {{ return 200 ok; }}
        ssl_certificate_by_lua_block {{
            local ssl, ocsp, kept = require 'ngx.ssl', require 'ngx.ocsp', ngx.shared.kept
            local file = assert(io.open('%%DIR%%/localhost.crt'))
            local chain = assert(ssl.cert_pem_to_der(file:read('*a')))
            file:close()
            if not kept:get('answer') then
                local url, err = ocsp.get_ocsp_responder_from_der_chain(chain)
                kept:set('url', tostring(url) .. ' ' .. tostring(err))
                local request = assert(ocsp.create_ocsp_request(chain))
                local _, small = ocsp.create_ocsp_request(chain, 10)
                kept:set('small', small)
                local socket = ngx.socket.tcp()
                assert(socket:connect('127.0.0.1', {port}))
                assert(socket:send('GET /' .. ngx.escape_uri(ngx.encode_base64(request)) .. ' HTTP/1.0\\r\\n\\r\\n'))
                local answer = assert(socket:receive('*a'))
                answer = answer:sub(select(2, answer:find('\\r\\n\\r\\n', 1, true)) + 1)
                local ok, until_when = ocsp.validate_ocsp_response(answer, chain)
                kept:set('valid', tostring(ok) .. ' ' .. tostring(until_when))
                if ok then kept:set('answer', answer) end
            end
            local answer = kept:get('answer')
            if answer then
                local ok, remark = ocsp.set_ocsp_status_resp(answer)
                kept:set('stapled', tostring(ok) .. ' ' .. tostring(remark))
            end
        }} }}
        server {{ listen 127.0.0.1:%%PORT1%%; location / {{ content_by_lua_block {{
            local kept, ocsp = ngx.shared.kept, require 'ngx.ocsp'
            for _, name in ipairs {{ 'url', 'small', 'valid', 'stapled' }} do ngx.say(kept:get(name)) end
            ngx.say(ocsp.create_ocsp_request('x'))
            ngx.say(pcall(ocsp.set_ocsp_status_resp, 'x'))
        }} }} }}"
    );
    let Some(site) = crate::lua::lua(&code) else {
        return;
    };
    if skip_on_oracle("Debian's lua-resty-core has no ngx.ocsp for its module") {
        return;
    }
    let pair = signed_by(&ours, "localhost");
    let server = site
        .file("localhost.crt", pair.certificate + &ours.pem())
        .file("localhost.key", pair.key)
        .start();
    responder.says(Says::Revoked);
    let stapled = |version| {
        let client = Client::with(None, version);
        let answer = client.get(&server, "localhost", "/").expect("an answer");
        assert_eq!(body(&answer), "ok");
        client
            .stapled
            .lock()
            .expect("nobody panics with it")
            .clone()
    };
    let told = || {
        let mut connection = server.connect_to(1);
        connection.send("GET / HTTP/1.0\r\n\r\n");
        String::from_utf8_lossy(&connection.rest()).into_owned()
    };
    assert!(stapled(BOTH[0]).is_empty());
    assert!(
        told().contains("nil certificate status \"revoked\" in the OCSP response"),
        "{}",
        told()
    );
    responder.says(Says::Good);
    for version in BOTH {
        assert!(stapled(version).windows(9).any(|part| part == b"202001010"));
    }
    let told = told();
    for line in [
        "nil nil\n",
        "output buffer too small: ",
        "true 4070908800\n",
        "true nil\n",
        "nild2i_X509_bio() failed\n",
        "falseAPI disabled in the context of content_by_lua*\n",
    ] {
        assert!(told.contains(line), "{line} is not in {told}");
    }
}
