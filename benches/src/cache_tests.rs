//! `cache-tests`: the public conformance suite of HTTP caches (github.com/http-tests/cache-tests), SCORE row S2. The
//! suite is not part of this project: `--suite` names a copy, in which `npm install` was run once (its tests of interim
//! responses need `undici`). Each contender is started before the suite's own origin, and asked all of it.
//!
//! The suite has three kinds of tests: what is required of a cache, what an optimal one does, and what is only asked
//! for. A test counts as passed if those that it depends on are passed too.

use std::fmt::Write as _;
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use xtask::flags::Flags;
use xtask::{Outcome, shell};

use crate::Bench;
use crate::server::{Contender, Folder, Placement, Server};

pub(crate) const FLAGS: &str = "\
  --suite PATH     a copy of github.com/http-tests/cache-tests after `npm install`
  --plain          Weir with nginx's directives only, as the suite configures nginx
  --with-nginx     nginx beside it
  --failed         names the tests that are not passed
  --id TEST        only this test, with its whole conversation";

/// As the suite's own configuration of nginx, with a folder below ours.
const CONFIGURATION: &str = "
worker_processes 1;
events { worker_connections 1024; }
http {
    access_log off;
    proxy_cache_path cache levels=1:2 keys_zone=my-cache:8m max_size=1000m inactive=600m;
    server {
        listen 127.0.0.1:%%PORT%%;
        location / {
            proxy_pass http://127.0.0.1:%%ORIGIN%%;
            proxy_cache my-cache;
            proxy_cache_revalidate on;
            proxy_http_version 1.1;
            proxy_set_header Connection \"\";
            %%DIRECTIVES%%
        }
    }
}
";

/// What an operator says to get a cache that does all that the RFC allows, where nginx's defaults are more careful:
/// cookies are for one user, a lifetime is not guessed, a stale response needs permission, interim responses are dropped.
const FULL: &str = "
            proxy_ignore_headers Set-Cookie;
            proxy_cache_use_stale error timeout;
            proxy_cache_background_update on;
            proxy_cache_heuristic 10%;
            proxy_cache_language on;
            proxy_cache_post on;
            interim_responses 1;
            early_hints 1;
            if_modified_since before;";

/// Prints a line for each test: area, kind, id, result, what was wrong.
const SUMMARY: &str = "
import { readFileSync } from 'fs'
const suite = process.argv[2]
const tests = (await import(suite + '/tests/index.mjs')).default
const { determineTestResult, resultTypes } = await import(suite + '/test-engine/lib/results.mjs')
const results = JSON.parse(readFileSync(process.argv[3]))
const name = result => Object.keys(resultTypes).find(key => resultTypes[key] === result)
for (const area of tests) {
  for (const test of area.tests) {
    if (test.browser_only) continue
    const result = name(determineTestResult(tests, test.id, results, true))
    const detail = Array.isArray(results[test.id]) ? results[test.id].join(': ') : ''
    console.log([area.id, test.kind || 'required', test.id, result, detail].join('\\t'))
  }
}
";

/// A test of the suite and how it went.
struct Test {
    area: String,
    kind: String,
    id: String,
    result: String,
    detail: String,
}

impl Test {
    fn passed(&self) -> bool {
        matches!(self.result.as_str(), "pass" | "yes")
    }
}

pub(crate) fn run(bench: &Bench, flags: &mut Flags) -> Outcome {
    let suite: String = flags.value("--suite", String::new())?;
    let with_nginx = flags.has("--with-nginx");
    let id: String = flags.value("--id", String::new())?;
    let is_plain = flags.has("--plain");
    let show_failed = flags.has("--failed");
    flags.finish()?;
    if suite.is_empty() {
        return Err(format!("--suite is needed\n{FLAGS}"));
    }
    let suite = Path::new(&suite)
        .canonicalize()
        .map_err(|error| format!("{suite}: {error}"))?;
    if !shell::is_installed("node") {
        return Err("node is needed (apt-get install nodejs)".to_owned());
    }
    let mut contenders = vec![Contender::new(
        "weir",
        &bench.weir,
        if is_plain { "" } else { FULL },
    )];
    if with_nginx {
        contenders.push(Contender::new("nginx", &bench.nginx, ""));
    }
    let mut columns = Vec::new();
    for contender in &contenders {
        let tests = measure(contender, &suite, &id)?;
        if show_failed {
            list_failed(contender, &tests);
        }
        columns.push((contender.name.as_str(), tests));
    }
    if id.is_empty() {
        println!("{}", table(&columns));
    }
    Ok(())
}

/// The suite against one server.
fn measure(contender: &Contender, suite: &Path, id: &str) -> Result<Vec<Test>, String> {
    let folder = Folder::new(&format!("cache-tests-{}", contender.name))?;
    let origin = Origin::start(suite, &folder.path)?;
    let configuration = CONFIGURATION.replace("%%ORIGIN%%", &origin.port.to_string());
    let server = Server::start(
        contender,
        &folder.path,
        &configuration,
        &Placement::default(),
    )?;
    let mut client = node(suite);
    client
        .arg("test-engine/cli.mjs")
        .env(
            "npm_config_base",
            format!("http://127.0.0.1:{}", server.port),
        )
        .env("npm_package_config_id", "")
        .env("npm_config_id", id);
    let text = shell::output(&mut client, Duration::from_secs(600))?;
    if !id.is_empty() {
        println!("{text}");
        return Ok(Vec::new());
    }
    let results = folder.path.join("results.json");
    let script = folder.path.join("summary.mjs");
    // The suite's messages may stand before the object.
    let object = text.find("\n{").map_or(text.as_str(), |at| &text[at + 1..]);
    fs::write(&results, object).map_err(|error| error.to_string())?;
    fs::write(&script, SUMMARY).map_err(|error| error.to_string())?;
    let mut summary = node(suite);
    summary.arg(&script).arg(suite).arg(&results);
    let lines = shell::output(&mut summary, Duration::from_secs(60))?;
    Ok(lines.lines().filter_map(parse).collect())
}

fn parse(line: &str) -> Option<Test> {
    let mut columns = line.split('\t').map(str::to_owned);
    Some(Test {
        area: columns.next()?,
        kind: columns.next()?,
        id: columns.next()?,
        result: columns.next()?,
        detail: columns.next()?,
    })
}

fn node(suite: &Path) -> Command {
    let mut command = Command::new("node");
    command.arg("--no-warnings").current_dir(suite);
    command
}

/// The suite's own origin, stopped when dropped.
struct Origin {
    child: Child,
    port: u16,
}

impl Origin {
    fn start(suite: &Path, folder: &Path) -> Result<Origin, String> {
        let listener = TcpListener::bind("127.0.0.1:0").map_err(|error| error.to_string())?;
        let port = listener
            .local_addr()
            .map_err(|error| error.to_string())?
            .port();
        drop(listener);
        let log = fs::File::create(folder.join("origin.log")).map_err(|error| error.to_string())?;
        let child = node(suite)
            .arg("test-engine/server/server.mjs")
            .env("npm_config_protocol", "http")
            .env("npm_config_port", port.to_string())
            .env("npm_config_pidfile", folder.join("origin.pid"))
            .stdin(Stdio::null())
            .stdout(log)
            .spawn()
            .map_err(|error| format!("node: {error}"))?;
        let origin = Origin { child, port };
        let deadline = Instant::now() + Duration::from_secs(20);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if Instant::now() > deadline {
                return Err("the suite's origin does not listen".to_owned());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(origin)
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn list_failed(contender: &Contender, tests: &[Test]) {
    println!("\n{}: not passed", contender.name);
    for test in tests
        .iter()
        .filter(|test| !test.passed() && test.kind != "check")
    {
        println!(
            "  {:<9} {:<16} {:<48} {:<15} {}",
            test.kind, test.area, test.id, test.result, test.detail
        );
    }
}

/// Passed of all, by area and kind, a column for each server.
fn table(columns: &[(&str, Vec<Test>)]) -> String {
    let mut areas: Vec<&str> = Vec::new();
    for test in columns.iter().flat_map(|(_, tests)| tests) {
        if !areas.contains(&test.area.as_str()) {
            areas.push(&test.area);
        }
    }
    let mut text = String::from("\n| area |");
    for (name, _) in columns {
        write!(text, " {name}: required | optimal | asked for |").expect("a string takes all");
    }
    text.push_str("\n|---|");
    text.push_str(&"---|".repeat(3 * columns.len()));
    for area in areas.iter().map(Some).chain([None]) {
        write!(text, "\n| {} |", area.unwrap_or(&"all")).expect("a string takes all");
        for (_, tests) in columns {
            for kind in ["required", "optimal", "check"] {
                let of_kind = tests
                    .iter()
                    .filter(|test| test.kind == kind && area.is_none_or(|area| test.area == *area));
                let (all, passed) = of_kind.fold((0, 0), |(all, passed), test| {
                    (all + 1, passed + u32::from(test.passed()))
                });
                write!(text, " {passed}/{all} |").expect("a string takes all");
            }
        }
    }
    text
}
