//! TLS 1.3 early data (RFC 8446, section 2.3): requests that come with a client's first message.

use std::cell::{Cell, RefCell};
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::rc::Rc;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use weir_tests::{Http2, Server, is_oracle, skip_on_oracle, whole};

use crate::tls::{CERTIFICATE, Client, authority, https, https_files, self_signed, signed_by};

/// A connection that has not said yet that its handshake is complete, unless it is told to.
struct Early {
    tls: ClientConnection,
    socket: TcpStream,
    /// Nothing is sent any more, while this is so, once early data was.
    held: Rc<Cell<bool>>,
    /// All that was sent.
    sent: Rc<RefCell<Vec<u8>>>,
}

impl Early {
    fn connect(client: &Client, server: &Server) -> Early {
        Early::connect_to(client, server, 0)
    }

    fn connect_to(client: &Client, server: &Server, index: usize) -> Early {
        let mut config = ClientConfig::clone(client.config());
        config.enable_early_data = true;
        let name = ServerName::try_from("localhost").expect("a host name");
        Early {
            tls: ClientConnection::new(Arc::new(config), name).expect("a good configuration"),
            socket: TcpStream::connect(("127.0.0.1", server.port(index))).expect("it listens"),
            held: Rc::new(Cell::new(true)),
            sent: Rc::default(),
        }
    }

    fn push(&mut self) -> io::Result<()> {
        let mut records = Vec::new();
        while self.tls.wants_write() {
            self.tls.write_tls(&mut records)?;
        }
        self.sent.borrow_mut().extend_from_slice(&records);
        self.socket.write_all(&records)
    }

    /// Completes the handshake.
    fn release(&mut self) {
        self.held.set(false);
        self.push().expect("the server listens");
    }

    /// Waits for the server's part of the handshake, and completes it.
    fn complete(&mut self) {
        while self.tls.is_handshaking() {
            let n = self.tls.read_tls(&mut self.socket).expect("its flight");
            assert!(n > 0, "the connection has ended");
            self.tls.process_new_packets().expect("a good flight");
            // A server that wants another key first is sent a second hello.
            if self.tls.is_handshaking() {
                self.push().expect("the server listens");
            }
        }
        self.release();
    }

    /// Reads until what came ends with `end`.
    fn read_until(&mut self, end: &str) -> String {
        let mut text = Vec::new();
        while !text.ends_with(end.as_bytes()) {
            let mut piece = [0; 1000];
            let n = self.read(&mut piece).expect("an answer");
            assert!(n > 0, "{}", String::from_utf8_lossy(&text));
            text.extend_from_slice(&piece[..n]);
        }
        String::from_utf8(text).expect("text")
    }
}

impl Write for Early {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.tls.is_handshaking() {
            let mut early = self.tls.early_data().expect("a session that allows it");
            early.write_all(bytes)?;
            self.push()?;
        } else {
            self.tls.writer().write_all(bytes)?;
            if !self.held.get() {
                self.push()?;
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Early {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.tls.reader().read(into) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return done,
            }
            if self.tls.read_tls(&mut self.socket)? == 0 {
                return Ok(0);
            }
            self.tls.process_new_packets().map_err(io::Error::other)?;
            if !self.held.get() {
                self.push()?;
            }
        }
    }
}

fn get(target: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n")
}

const ECHO: &str = "location / { return 200 'early=$ssl_early_data reused=$ssl_session_reused;'; }";

fn site(more: &str) -> Server {
    https(&format!(
        "server {{ listen 127.0.0.1:%%PORT%% ssl; {CERTIFICATE} ssl_early_data on; {more} }}"
    ))
    .start()
}

/// A client that has been there, so that it may send early data the next time.
fn known(server: &Server) -> Client {
    let client = Client::with(None, &[&rustls::version::TLS13]);
    let first = client.get(server, "localhost", "/").expect("an answer");
    assert!(first.contains("200 OK"), "{first}");
    client
}

#[test]
fn a_request_is_answered_before_the_handshake_ends() {
    let server = site(ECHO);
    let client = known(&server);
    let mut early = Early::connect(&client, &server);
    early.write_all(get("/").as_bytes()).expect("it is taken");
    // The client's last word of the handshake has not been sent.
    let answer = early.read_until(";");
    assert!(answer.ends_with("early=1 reused=r;"), "{answer}");
    assert!(early.tls.is_early_data_accepted());
    early.release();
    early.write_all(get("/").as_bytes()).expect("it is taken");
    let answer = early.read_until(";");
    assert!(answer.ends_with("early= reused=r;"), "{answer}");
}

#[test]
fn content_may_begin_early_and_end_later() {
    let server = https(&format!(
        "server {{ listen 127.0.0.1:%%PORT%% ssl; {CERTIFICATE} ssl_early_data on;
         location = / {{ return 200 ok; }}
         location / {{ proxy_pass http://127.0.0.1:%%PORT1%%; proxy_set_header Early-Data $ssl_early_data;
         proxy_request_buffering off; proxy_http_version 1.1; }} }}
         server {{ listen 127.0.0.1:%%PORT1%%; location / {{ return 200 '$content_length $http_early_data;'; }} }}"
    ))
    .start();
    for content in [0, 10, 9_000] {
        let client = known(&server);
        let mut early = Early::connect(&client, &server);
        let head = "POST /on HTTP/1.1\r\nHost: localhost\r\nContent-Length: 20000\r\n\r\n";
        let begun = format!("{head}{}", "x".repeat(content));
        early.write_all(begun.as_bytes()).expect("it is taken");
        early.complete();
        let rest = "y".repeat(20_000 - content);
        early.write_all(rest.as_bytes()).expect("it is taken");
        let answer = early.read_until(";");
        assert!(answer.contains("\r\n\r\n20000 "), "{answer}");
    }
}

#[test]
fn http_2_begins_early() {
    let server = https(&format!(
        "server {{ listen 127.0.0.1:%%PORT%% ssl http2; {CERTIFICATE} ssl_early_data on; {ECHO} }}"
    ))
    .start();
    let client = Client::with(None, &[&rustls::version::TLS13]).offering(&[b"h2".to_vec()]);
    let reply = client.http2(&server).get("/");
    assert_eq!(reply.text(), "early= reused=.;");
    let early = Early::connect(&client, &server);
    let held = Rc::clone(&early.held);
    let socket = early.socket.try_clone().expect("there are descriptors");
    let mut http2 = Http2::over(early, socket, &[]);
    assert_eq!(http2.get("/").text(), "early=1 reused=r;");
    held.set(false);
    assert_eq!(http2.get("/").text(), "early= reused=r;");
}

#[test]
fn the_same_early_data_counts_once() {
    if skip_on_oracle("nginx leaves it to applications") {
        return;
    }
    let server = https(&format!(
        "server {{ listen 127.0.0.1:%%PORT%% ssl; {CERTIFICATE} ssl_early_data on; access_log access.log; {ECHO} }}"
    ))
    .start();
    let client = known(&server);
    let mut early = Early::connect(&client, &server);
    early
        .write_all(get("/once").as_bytes())
        .expect("it is taken");
    early.read_until(";");
    // Somebody on the way sends the same bytes again, and can not say more.
    let mut again = TcpStream::connect(("127.0.0.1", server.port(0))).expect("it listens");
    again.write_all(&early.sent.borrow()).expect("it is taken");
    again.shutdown(Shutdown::Write).expect("it is connected");
    again.read_to_end(&mut Vec::new()).ok();
    early.release();
    early
        .write_all(get("/last").as_bytes())
        .expect("it is taken");
    early.read_until(";");
    drop(early);
    let lines = server.lines("access.log", 3);
    let once = lines.iter().filter(|line| line.contains("/once")).count();
    assert_eq!(once, 1, "{lines:?}");
}

/// A session that a server does not know: the client sends its request again, after the handshake.
#[test]
fn refused_early_data_is_skipped() {
    let other = self_signed("localhost");
    let server = https(&format!(
        "ssl_early_data on; ssl_protocols TLSv1.3; server {{ listen 127.0.0.1:%%PORT%% ssl; ssl_certificate localhost.crt; ssl_certificate_key localhost.key; {ECHO} }}
         server {{ listen 127.0.0.1:%%PORT1%% ssl; ssl_certificate other.crt; ssl_certificate_key other.key; {ECHO} }}"
    ))
    .file("other.crt", &other.certificate)
    .file("other.key", &other.key)
    .start();
    for length in [1, 5_000] {
        let client = known(&server);
        let mut early = Early::connect_to(&client, &server, 1);
        let request = get(&format!("/{}", "x".repeat(length)));
        early.write_all(request.as_bytes()).expect("it is taken");
        early.complete();
        assert!(!early.tls.is_early_data_accepted());
        early.write_all(request.as_bytes()).expect("it is taken");
        let answer = early.read_until(";");
        assert!(answer.ends_with("early= reused=.;"), "{answer}");
    }
}

/// What a server is told to skip has no end that a client of another one could know: all that it was promised comes,
/// in one piece and in many, with a session that this server does not know, where it takes no early data at all, and
/// where it asks for another key first.
#[test]
fn all_the_early_data_that_a_client_may_send_is_skipped() {
    let other = self_signed("localhost");
    let other_files = "ssl_certificate other.crt; ssl_certificate_key other.key;";
    // nginx has stream in a module that is not everywhere.
    let stream = format!(
        "stream {{ server {{ listen 127.0.0.1:%%PORT7%% ssl; {other_files} ssl_protocols TLSv1.3;
         proxy_pass 127.0.0.1:%%PORT8%%; }} }}"
    );
    // And OpenSSL counts some of the records' own bytes where it knows no sessions.
    let (stream, last, most) = match is_oracle() {
        true => ("", 6, 15_000),
        false => (stream.as_str(), 7, 16 * 1024),
    };
    let server = https_files(whole(&format!(
        "events {{ }} http {{ ssl_protocols TLSv1.3;
         server {{ listen 127.0.0.1:%%PORT%% ssl; {CERTIFICATE} ssl_early_data on; {ECHO} }}
         server {{ listen 127.0.0.1:%%PORT1%% ssl; {other_files} ssl_early_data on; {ECHO} }}
         server {{ listen 127.0.0.1:%%PORT2%% ssl; {other_files} {ECHO} }}
         server {{ listen 127.0.0.1:%%PORT3%% ssl; {other_files} ssl_session_tickets off;
             ssl_session_cache shared:few:1m; {ECHO} }}
         server {{ listen 127.0.0.1:%%PORT4%% ssl; {CERTIFICATE} {ECHO} }}
         server {{ listen 127.0.0.1:%%PORT5%% ssl; {other_files} ssl_early_data on; ssl_ecdh_curve secp384r1; {ECHO} }}
         server {{ listen 127.0.0.1:%%PORT6%% ssl; {other_files} ssl_ecdh_curve secp384r1; {ECHO} }}
         server {{ listen 127.0.0.1:%%PORT8%%; {ECHO} }} }}
         {stream}"
    )))
    .file("other.crt", &other.certificate)
    .file("other.key", &other.key)
    .start();
    let head = "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 20000\r\n\r\n";
    let early_part = format!("{head}{}", "x".repeat(most - head.len()));
    let late_part = "y".repeat(20_000 + head.len() - early_part.len());
    for index in 1..=last {
        for size in [16 * 1024, 1000, 400] {
            let client = known(&server);
            let mut early = Early::connect_to(&client, &server, index);
            for piece in early_part.as_bytes().chunks(size) {
                early.write_all(piece).expect("it is taken");
            }
            early.complete();
            assert!(!early.tls.is_early_data_accepted(), "{index} {size}");
            for part in [&early_part, &late_part] {
                early.write_all(part.as_bytes()).expect("it is taken");
            }
            let answer = early.read_until(";");
            assert!(answer.contains("200 OK"), "{index} {size}: {answer}");
        }
    }
}

/// A client is not let go on for ever with data that nobody can read.
#[test]
fn what_is_skipped_has_an_end() {
    let other = self_signed("localhost");
    let server = https(&format!(
        "ssl_protocols TLSv1.3; server {{ listen 127.0.0.1:%%PORT%% ssl; {CERTIFICATE} ssl_early_data on; {ECHO} }}
         server {{ listen 127.0.0.1:%%PORT1%% ssl; ssl_certificate other.crt; ssl_certificate_key other.key; {ECHO} }}"
    ))
    .file("other.crt", &other.certificate)
    .file("other.key", &other.key)
    .start();
    let client = known(&server);
    let mut early = Early::connect_to(&client, &server, 1);
    early.write_all(b"GET").expect("it is taken");
    let record = [&[0x17, 3, 3, 0x40, 0][..], &[7; 0x4000]].concat();
    // It is closed while these are sent, and what was not read of them may take the alert along.
    let sent = (0..1000).take_while(|_| early.socket.write_all(&record).is_ok());
    let sent = sent.count();
    let mut rest = Vec::new();
    early.socket.read_to_end(&mut rest).ok();
    // As much as the sockets hold may have been sent in vain.
    assert!(sent < 1000 && rest.len() < 10_000, "{sent} {}", rest.len());
}

#[test]
fn a_certificate_of_the_session_counts_in_early_requests() {
    let ours = authority("Ours");
    let good = signed_by(&ours, "good.example");
    let server = https(&format!(
        "server {{ listen 127.0.0.1:%%PORT%% ssl; {CERTIFICATE} ssl_early_data on; ssl_verify_client on;
         ssl_client_certificate ca.crt; location / {{ return 200 '$ssl_early_data $ssl_client_verify $ssl_client_s_dn;'; }} }}"
    ))
    .file("ca.crt", ours.pem())
    .start();
    let client = Client::with(Some(&good), &[&rustls::version::TLS13]);
    let first = client.get(&server, "localhost", "/").expect("an answer");
    assert!(first.ends_with(" SUCCESS CN=good.example;"), "{first}");
    let mut early = Early::connect(&client, &server);
    early.write_all(get("/").as_bytes()).expect("it is taken");
    let answer = early.read_until(";");
    assert!(answer.ends_with("1 SUCCESS CN=good.example;"), "{answer}");
}

/// A client whose handshake never ends, or ends badly, after its request was served.
#[test]
fn a_handshake_that_breaks_after_early_data_ends_the_connection() {
    let server = site(ECHO);
    let client = known(&server);
    let mut early = Early::connect(&client, &server);
    early.write_all(get("/").as_bytes()).expect("it is taken");
    early.read_until(";");
    let garbage = [&[0x17, 3, 3, 0, 32][..], &[7; 32]].concat();
    early.socket.write_all(&garbage).expect("it is taken");
    let mut rest = Vec::new();
    early.socket.read_to_end(&mut rest).ok();
    // A fatal alert, if anything: nothing that looks like an answer.
    assert!(rest.len() < 100, "{} bytes", rest.len());
}
