//! Suites that know themselves what is right: h2spec, and tlsfuzzer. Weir must pass all but what docs/compat.md names.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use xtask::shell;

use crate::Options;
use crate::needs::{self, Need};
use crate::outcome::Row;
use crate::stage::{Server, Stage};

/// How long one run of a suite may take.
const RUN: Duration = Duration::from_secs(300);

/// The figure of a server, and what is wrong with it.
type Figure = (String, Option<String>);

/// A suite.
pub(crate) struct Scored {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    needs: &'static [Need],
    configuration: &'static str,
    measure: fn(&Stage, &Options) -> Result<Figure, String>,
}

pub(crate) const ALL: &[Scored] = &[H2SPEC, TLSFUZZER];

const H2SPEC: Scored = Scored {
    name: "h2spec",
    what: "conformance of HTTP/2, without TLS and with it, and --strict",
    needs: &[
        Need::Go("h2spec", "github.com/summerwind/h2spec/cmd/h2spec@latest"),
        Need::Debian("/usr/bin/openssl", "openssl"),
    ],
    configuration: "
events { }
http {
    access_log off;
    server {
        listen 127.0.0.1:%%PORT%% http2;
        listen 127.0.0.1:%%PORT2%% ssl http2;
        ssl_certificate %%DIR%%/rsa.pem;
        ssl_certificate_key %%DIR%%/rsa.key;
        root %%DIR%%/html;
    }
}
",
    measure: h2spec,
};

const TLSFUZZER: Scored = Scored {
    name: "tlsfuzzer",
    what: "what a server of TLS does with messages that are wrong; needs --suite",
    needs: &[
        // The version that the suite asks for.
        Need::Python("tlslite", "tlslite-ng==0.9.0b2"),
        Need::Debian("/usr/bin/openssl", "openssl"),
    ],
    configuration: "
events { }
http {
    access_log off;
    server {
        listen 127.0.0.1:%%PORT%% ssl;
        ssl_protocols TLSv1.2 TLSv1.3;
        ssl_certificate %%DIR%%/rsa.pem;
        ssl_certificate_key %%DIR%%/rsa.key;
        root %%DIR%%/html;
    }
}
",
    measure: tlsfuzzer,
};

/// One suite at both servers.
pub(crate) fn run(scored: &Scored, servers: &[Server; 2], options: &Options) -> Row {
    println!("== {}: {}", scored.name, scored.what);
    if let Err(why) = needs::install(scored.needs) {
        println!("   skipped: {why}");
        return Row::skipped(scored.name, why);
    }
    if scored.name == TLSFUZZER.name && options.suite.is_empty() {
        return Row::skipped(scored.name, "--suite names no copy of it".to_owned());
    }
    let [nginx, weir] = servers.each_ref().map(|server| at(scored, server, options));
    let text = |result: &Result<Figure, String>| match result {
        Ok((figure, _)) => figure.clone(),
        Err(why) => why.clone(),
    };
    let failed = match &weir {
        Ok((_, failed)) => failed.clone(),
        Err(why) => Some(why.clone()),
    };
    Row::scored(scored.name, text(&nginx), text(&weir), failed)
}

fn at(scored: &Scored, server: &Server, options: &Options) -> Result<Figure, String> {
    let mut stage = Stage::set(scored.name, server.name, options.keep)?;
    stage.write("html/index.html", &"content ".repeat(500))?;
    stage.output(
        "openssl req -x509 -newkey rsa:2048 -nodes -keyout rsa.key -out rsa.pem -days 30 -subj /CN=localhost \
         -addext subjectAltName=DNS:localhost,IP:127.0.0.1",
        RUN,
    )?;
    stage.serve(server, scored.configuration)?;
    let figure = (scored.measure)(&stage, options)?;
    stage.end()?;
    Ok(figure)
}

/// What h2spec passes: plainly and strictly, without TLS and with it.
fn h2spec(stage: &Stage, options: &Options) -> Result<Figure, String> {
    let mut figures = Vec::new();
    let mut failed = None;
    for more in [
        "-p %%PORT%%",
        "-p %%PORT%% --strict",
        "-p %%PORT2%% -t -k",
        "-p %%PORT2%% -t -k --strict",
    ] {
        let program = needs::go("h2spec");
        // Its exit code tells of failed tests, of which there is more to say.
        let line = format!("{} -h 127.0.0.1 -o 2 {more} || true", program.display());
        let mut text = stage.output(&line, RUN)?;
        // 6.9.1 test 3 sends what is wrong beside a request that may have had its whole answer by then: that is a race.
        if text.matches('×').count() == 2 {
            text = stage.output(&line, RUN)?;
        }
        let last = text.lines().rev().find(|line| line.contains(" passed"));
        let number = |word: &str| -> Option<u32> {
            let part = last?.split(", ").find(|part| part.ends_with(word))?;
            part.split(' ').next()?.parse().ok()
        };
        let (all, passed) = (number("tests"), number("passed"));
        let (Some(all), Some(passed)) = (all, passed) else {
            return Err("h2spec says nothing".to_owned());
        };
        if options.lines {
            println!("{text}");
        }
        if passed < all {
            let titles = text.lines().filter(|line| line.contains('×'));
            let titles: Vec<&str> = titles.map(str::trim).collect();
            failed = Some(format!("failed: {}", titles.join("; ")));
        }
        figures.push(format!("{passed}/{all}"));
    }
    Ok((figures.join(" "), failed))
}

/// Scripts of tlsfuzzer that ask for nothing but TLS 1.3 with the usual groups and suites, and their arguments. Those that
/// begin with RSA key transport, finite-field groups or CBC, and cannot begin otherwise, are about what Weir does not have.
const SCRIPTS: &[(&str, &str)] = &[
    ("test-tls13-ccs.py", ""),
    ("test-tls13-connection-abort.py", ""),
    ("test-tls13-count-tickets.py", ""),
    ("test-tls13-empty-alert.py", ""),
    ("test-tls13-finished-plaintext.py", ""),
    ("test-tls13-hrr.py", ""),
    ("test-tls13-invalid-ciphers.py", ""),
    ("test-tls13-keyshare-omitted.py", ""),
    ("test-tls13-keyupdate.py", ""),
    ("test-tls13-legacy-version.py", ""),
    ("test-tls13-nociphers.py", ""),
    ("test-tls13-record-padding.py", ""),
    ("test-tls13-unencrypted-alert.py", ""),
    (
        // Its own default for TLS 1.2 is RSA key transport with CBC.
        "test-tls13-version-negotiation.py",
        "-d -M -C TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    ),
];

/// Tests that fail by a choice (docs/compat.md): the beginnings of the script's name and of the test's.
const CHOICES: &[(&str, &str)] = &[
    // Tickets leave with the first response.
    ("test-tls13-connection-abort", "After NewSessionTicket"),
    // The connection ends with another alert.
    ("test-tls13-empty-alert", "empty alert"),
    ("test-tls13-finished-plaintext", "Unencrypted Finished"),
    ("test-tls13-keyshare-omitted", "key_share extension omitted"),
    (
        "test-tls13-keyupdate",
        "1/4 fragmented keyupdate msg, appdata between",
    ),
    (
        "test-tls13-keyupdate",
        "3/2 fragmented keyupdate msg, appdata between",
    ),
    // Several requests for new keys that come together have one answer.
    ("test-tls13-keyupdate", "multiple KeyUpdate messages"),
    // There is no TLS 1.1, and nginx here has none either.
    (
        "test-tls13-version-negotiation",
        "fallback from TLS 1.8 to 1.1",
    ),
];

/// What of tlsfuzzer's scripts is passed.
fn tlsfuzzer(stage: &Stage, options: &Options) -> Result<Figure, String> {
    let suite = Path::new(&options.suite)
        .canonicalize()
        .map_err(|error| format!("{}: {error}", options.suite))?;
    let (mut passed, mut all, mut by_choice, mut failed) = (0, 0, 0, Vec::new());
    for (script, arguments) in SCRIPTS {
        let mut command = Command::new(needs::python());
        let port = stage.fill("%%PORT%%");
        command
            .arg(suite.join("scripts").join(script))
            .args(["-h", "127.0.0.1", "-p", &port])
            .args(arguments.split_whitespace())
            .env("PYTHONPATH", &suite)
            .current_dir(&stage.folder);
        // A test that fails makes the exit code, and its text is what counts.
        let text = match shell::output(&mut command, RUN) {
            Ok(text) => text,
            Err(text) => text,
        };
        let number = |word: &str| -> u32 {
            let line = text.lines().rev().find(|line| line.starts_with(word));
            let last = line.and_then(|line| line.split_whitespace().last());
            last.and_then(|last| last.parse().ok()).unwrap_or(0)
        };
        all += number("TOTAL:");
        passed += number("PASS:");
        let names = text.lines().skip_while(|line| !line.starts_with("FAILED:"));
        for name in names.filter_map(|line| line.trim().strip_prefix('\'')) {
            let is_choice = CHOICES
                .iter()
                .any(|(of, test)| script.starts_with(of) && name.starts_with(test));
            match is_choice {
                true => by_choice += 1,
                false => failed.push(format!("{script}: {name}")),
            }
        }
    }
    if options.lines {
        failed.iter().for_each(|line| println!("   {line}"));
    }
    let figure = format!("{passed}/{all}, {by_choice} by choice");
    let first = failed
        .first()
        .map(|first| format!("{} failed: {first}", failed.len()));
    Ok((figure, first))
}
