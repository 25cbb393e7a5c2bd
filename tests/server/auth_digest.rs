//! `auth_digest`: names and passwords by digest. The directives are those of a third-party module; nginx has none.

use std::fs;

use md5::{Digest, Md5};
use weir_tests::{Reply, Server, Signal, http, skip_on_oracle};

const WHY: &str = "a third-party module";

fn md5(text: &str) -> String {
    let mut out = Vec::new();
    base::text::write_hex(&Md5::digest(text), &mut out);
    String::from_utf8(out).expect("hexadecimal digits")
}

fn line(name: &str, realm: &str, password: &str) -> String {
    let digest = md5(&format!("{name}:{realm}:{password}"));
    format!("{name}:{realm}:{digest}\n")
}

fn site(directives: &str) -> Server {
    let conf = format!(
        "server {{ listen 127.0.0.1:%%PORT%%; auth_digest Closed; auth_digest_user_file %%DIR%%/users; {directives}
           add_header X-User $remote_user; location /open {{ auth_digest off; }} }}"
    );
    let users = line("bob", "Closed", "secret") + &line("eve", "Other", "secret");
    http(&conf)
        .file("users", &users)
        .file("html/a", "a")
        .file("html/b", "b")
        .file("html/open", "o")
        .start()
}

/// A challenge's value.
fn parameter<'a>(challenge: &'a str, name: &str) -> &'a str {
    let (_, rest) = challenge.split_once(&format!("{name}=\"")).expect(name);
    rest.split('"').next().expect("it is quoted")
}

fn challenge(server: &Server, target: &str) -> String {
    let reply = server.get(target).expect(401);
    reply.field("WWW-Authenticate").to_owned()
}

/// What a client sends in answer to a challenge.
struct Answer<'a> {
    name: &'a str,
    password: &'a str,
    nonce: String,
    uri: &'a str,
}

impl<'a> Answer<'a> {
    fn new(challenge: &str, uri: &'a str) -> Answer<'a> {
        Answer {
            name: "bob",
            password: "secret",
            nonce: parameter(challenge, "nonce").to_owned(),
            uri,
        }
    }

    fn field(&self, count: u32) -> String {
        let Answer {
            name,
            password,
            nonce,
            uri,
        } = self;
        let known = md5(&format!("{name}:Closed:{password}"));
        let asked = md5(&format!("GET:{uri}"));
        let response = md5(&format!("{known}:{nonce}:{count:08x}:own:auth:{asked}"));
        format!(
            "Authorization: Digest username=\"{name}\", realm=\"Closed\", nonce=\"{nonce}\", uri=\"{uri}\", \
             algorithm=MD5, qop=auth, nc={count:08x}, cnonce=\"own\", response=\"{response}\""
        )
    }

    fn get(&self, server: &Server, count: u32) -> Reply {
        server.get_with(self.uri, &[&self.field(count)])
    }
}

#[test]
fn a_user_with_the_right_password_comes_in() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = site("");
    server.get("/open").expect(200);
    let challenge = challenge(&server, "/a");
    assert_eq!(parameter(&challenge, "realm"), "Closed");
    assert!(challenge.contains("qop=\"auth\"") && !challenge.contains("stale"));
    let answer = Answer::new(&challenge, "/a");
    let reply = answer.get(&server, 1).expect(200);
    assert_eq!((reply.text(), reply.field("X-User")), ("a".into(), "bob"));
    // The server knows the password, too.
    let known = md5("bob:Closed:secret");
    let proof = md5(&format!(
        "{known}:{}:00000001:own:auth:{}",
        answer.nonce,
        md5(":/a")
    ));
    let info = reply.field("Authentication-Info");
    assert_eq!(parameter(info, "rspauth"), proof);
    answer.get(&server, 2).expect(200);
    // For another password, user, realm or target the digest is another.
    for (name, password) in [("bob", "wrong"), ("eve", "secret"), ("nobody", "secret")] {
        let other = Answer {
            name,
            password,
            ..Answer::new(&challenge, "/a")
        };
        other.get(&server, 3).expect(401);
    }
    server.get_with("/b", &[&answer.field(4)]).expect(401);
    // A digest without the query counts, as some clients make it; one with another query does not.
    server.get_with("/a?x=1", &[&answer.field(5)]).expect(200);
    let query = Answer::new(&challenge, "/a?x=1");
    server.get_with("/a?x=2", &[&query.field(6)]).expect(401);
}

#[test]
fn a_request_cannot_be_repeated() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = site("auth_digest_replays 3;");
    let answer = Answer::new(&challenge(&server, "/a"), "/a");
    answer.get(&server, 1).expect(200);
    // The password is right, so the client need not ask its user again.
    for count in [1, 0, 4] {
        let reply = answer.get(&server, count).expect(401);
        assert!(
            reply.field("WWW-Authenticate").contains(", stale=true"),
            "{count}"
        );
    }
    answer.get(&server, 3).expect(200);
    answer.get(&server, 2).expect(200);
    let forged = Answer {
        nonce: "0".repeat(64),
        ..Answer::new(&challenge(&server, "/a"), "/a")
    };
    let reply = forged.get(&server, 1).expect(401);
    let fresh = Answer::new(reply.field("WWW-Authenticate"), "/a");
    fresh.get(&server, 1).expect(200);
    // A nonce outlives a reload.
    server.signal(Signal::HUP);
    server.line("error.log", "reconfiguring");
    fresh.get(&server, 2).expect(200);
    fresh.get(&server, 2).expect(401);
}

#[test]
fn a_client_that_guesses_is_refused_for_a_while() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = site("auth_digest_maxtries 2; auth_digest_evasion_time 1h;");
    let challenge = challenge(&server, "/a");
    let wrong = Answer {
        password: "wrong",
        ..Answer::new(&challenge, "/a")
    };
    wrong.get(&server, 1).expect(401);
    // A success between forgives.
    Answer::new(&challenge, "/a").get(&server, 1).expect(200);
    wrong.get(&server, 2).expect(401);
    wrong.get(&server, 3).expect(401);
    Answer::new(&challenge, "/a").get(&server, 4).expect(401);
    server.line("error.log", "address is refused");
}

#[test]
fn a_changed_file_counts_at_once() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = site("auth_digest_maxtries 100;");
    let answer = Answer::new(&challenge(&server, "/a"), "/a");
    answer.get(&server, 1).expect(200);
    fs::write(server.path("users"), line("bob", "Closed", "another")).expect("it is ours");
    answer.get(&server, 2).expect(401);
    let other = Answer {
        password: "another",
        ..answer
    };
    other.get(&server, 3).expect(200);
    fs::remove_file(server.path("users")).expect("it is ours");
    other.get(&server, 4).expect(403);
}

#[test]
fn whatever_a_client_sends_it_stays_outside() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = site("");
    let whole = Answer::new(&challenge(&server, "/a"), "/a").field(1);
    // Not the last byte: that of the response, whose closing quotation mark it is.
    for end in "Authorization:".len()..whole.len() - 1 {
        server.get_with("/a", &[&whole[..end]]).expect(401);
    }
    for value in [
        "Basic Ym9iOnNlY3JldA==",
        "Digest",
        "Digest ,,,=\"",
        "Digest x=\"\\",
    ] {
        server
            .get_with("/a", &[&format!("Authorization: {value}")])
            .expect(401);
    }
    server.get_with("/a", &[&whole]).expect(200);
}
