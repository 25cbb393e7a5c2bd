//! `auth_basic_cache`: a slow hash is compared once, and again as soon as anything about it is another; and how many are
//! compared at a time. Without it nginx compares at each request, and so does Weir.

use std::fs;
use std::sync::Barrier;
use std::thread;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use weir_tests::{Server, http, skip_on_oracle, until};

const WHY: &str = "it compares at each request";

/// `secret` and `other`, made by libxcrypt.
const BOB: &str = "$6$rounds=2000$saltsalt$GBImuhotpiUgeciq/ZS6UaMklAGJMK25wd5Tacv1I0CcSmxHOQQLpmVKYRPIU6LoFrr4iPAAmsqUTjBoZ.Fwr/";
const ALICE: &str = "$6$rounds=2000$saltsalt$ZiZgA2VRNULlRD8yoBfUX8cUVstKLaesrpO2G0VN10HUy/dcMWb7HSTtrow/tkbC/dBjvLAFJMgsNyA1L2ajy0";

fn credentials(name: &str, password: &str) -> String {
    let text = STANDARD.encode(format!("{name}:{password}"));
    format!("Authorization: Basic {text}")
}

fn status(server: &Server, name: &str, password: &str) -> u16 {
    let line = credentials(name, password);
    server.get_with("/a", &[&line]).status
}

fn site(directives: &str, users: &str) -> Server {
    let conf = format!(
        "server {{ listen 127.0.0.1:%%PORT%%; auth_basic x; auth_basic_user_file %%DIR%%/users; {directives}
           location = /status {{ auth_basic off; weir_status json; }} }}"
    );
    http(&conf)
        .main("worker_processes 2;")
        .file("users", users)
        .file("html/a", "a")
        .start()
}

/// How many slow hashes have been compared.
fn compared(server: &Server) -> u64 {
    let text = server.get("/status").expect(200).text();
    let Some((_, pool)) = text.split_once("\"pool\":\"password hashes\"") else {
        return 0;
    };
    let (_, rest) = pool.split_once("\"done\":").expect("each pool has it");
    let digits = rest.split(['}', ',']).next().unwrap_or_default();
    digits.parse().expect("a number")
}

/// Fails unless this many have been compared. A comparison is counted a moment after its result is known.
#[track_caller]
fn assert_compared(server: &Server, count: u64) {
    let reached = until(|| (compared(server) >= count).then_some(()));
    assert!(reached.is_some(), "{} of {count}", compared(server));
    assert_eq!(compared(server), count);
}

fn users() -> String {
    format!("bob:{BOB}\nalice:{ALICE}\n")
}

#[test]
fn a_proof_is_remembered_until_anything_is_another() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = site("auth_basic_cache 1h;", &users());
    for _ in 0..10 {
        assert_eq!(status(&server, "bob", "secret"), 200);
    }
    assert_compared(&server, 1);
    // A wrong password is compared each time, and so is that of an unknown user.
    for (at, name) in ["bob", "bob", "mallory", "mallory"].iter().enumerate() {
        assert_eq!(status(&server, name, "wrong"), 401);
        assert_compared(&server, 2 + at as u64);
    }
    // The proof is bob's.
    assert_eq!(status(&server, "alice", "secret"), 401);
    assert_eq!(status(&server, "bob", "secret"), 200);
    assert_compared(&server, 6);
    // Any change of the file makes all of it new, even one that leaves the entry as it was.
    fs::write(server.path("users"), users() + "# changed\n").expect("it is ours");
    assert_eq!(status(&server, "bob", "secret"), 200);
    assert_eq!(status(&server, "bob", "secret"), 200);
    assert_compared(&server, 7);
    // Another password.
    fs::write(server.path("users"), format!("bob:{ALICE}\n")).expect("it is ours");
    assert_eq!(status(&server, "bob", "secret"), 401);
    assert_eq!(status(&server, "bob", "other"), 200);
    fs::remove_file(server.path("users")).expect("it is ours");
    assert_eq!(status(&server, "bob", "other"), 403);
}

#[test]
fn requests_at_the_same_moment_wait_for_one_comparison() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = site("auth_basic_cache 1h;", &users());
    let begin = Barrier::new(60);
    thread::scope(|scope| {
        for _ in 0..60 {
            scope.spawn(|| {
                begin.wait();
                assert_eq!(status(&server, "bob", "secret"), 200);
            });
        }
    });
    assert_compared(&server, 1);
}

#[test]
fn it_is_off_by_default_ends_and_is_bounded() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = site("", &users());
    for at in 1..4 {
        assert_eq!(status(&server, "bob", "secret"), 200);
        assert_compared(&server, at);
    }
    let server = site("auth_basic_cache 1s;", &users());
    let again = until(|| {
        assert_eq!(status(&server, "bob", "secret"), 200);
        (compared(&server) > 1).then_some(())
    });
    assert!(again.is_some(), "after a second it is compared again");
    let server = site("auth_basic_cache 1h entries=1;", &users());
    for at in 0..3 {
        assert_eq!(status(&server, "bob", "secret"), 200);
        assert_eq!(status(&server, "alice", "other"), 200);
        assert_compared(&server, 2 * at + 2);
    }
}

#[test]
fn an_address_and_a_user_have_so_many_comparisons_and_no_more() {
    if skip_on_oracle("it compares in its loop") {
        return;
    }
    // So many rounds that all clients have come before the first comparison ends.
    let slow = BOB.replace("rounds=2000", "rounds=5000");
    let server = site("", &format!("bob:{slow}\nquick:{{PLAIN}}x\n"));
    let begin = Barrier::new(120);
    let answers: Vec<u16> = thread::scope(|scope| {
        let clients: Vec<_> = (0..120)
            .map(|at| {
                let (server, begin) = (&server, &begin);
                scope.spawn(move || {
                    begin.wait();
                    status(server, "bob", &format!("guess {at}"))
                })
            })
            .collect();
        // What needs no slow comparison is not held up.
        begin_with(&server);
        let answers = clients.into_iter().map(|client| client.join());
        answers
            .map(|answer| answer.expect("no client panics"))
            .collect()
    });
    let refused = answers.iter().filter(|status| **status == 503).count();
    let compared = answers.iter().filter(|status| **status == 401).count();
    assert_eq!(refused + compared, 120, "{answers:?}");
    assert!(
        refused > 0 && compared >= 68,
        "{refused} refused, {compared} compared"
    );
    let log = server.read("error.log");
    assert!(
        log.contains("too many passwords are being compared"),
        "{log}"
    );
}

fn begin_with(server: &Server) {
    assert_eq!(status(server, "quick", "x"), 200);
}

#[test]
fn mistakes_are_pointed_at() {
    if skip_on_oracle("the directive is Weir's own") {
        return;
    }
    for (line, message) in [
        ("auth_basic_cache 0;", "must be at least a second, or off"),
        ("auth_basic_cache soon;", "invalid value"),
        (
            "auth_basic_cache 1h entries=0;",
            "invalid value \"entries=0\"",
        ),
        (
            "auth_basic_cache 1h most=3;",
            "invalid parameter \"most=3\"",
        ),
        ("auth_basic_cache off entries=3;", "invalid value"),
    ] {
        let finished = http(&format!("server {{ {line} }}")).test();
        assert_eq!(finished.code, 1, "{line}");
        assert!(
            finished.stderr.contains(message),
            "{line}: {}",
            finished.stderr
        );
    }
}
