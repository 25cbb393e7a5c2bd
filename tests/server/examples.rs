//! Every example of the reference is a configuration that `-t` accepts, in a place where its directives may stand.
//!
//! The examples are read from the pages, and what a page does not show of them, such as the `map` that a line needs, from the
//! notes in `crates/weir/src/notes`. Absolute paths become paths in the test's folder, where the files that they name are.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use weir_tests::{Site, run, skip_on_oracle, whole};

use super::geoip2;

/// Where an example may stand; the most frequent ones come first.
const PLACES: [&str; 7] = [
    "events {} http { %%NEEDS%% %%EXAMPLE%% }",
    "events {} http { %%NEEDS%% server { %%EXAMPLE%% } }",
    "events {} stream { %%EXAMPLE%% }",
    "events {} http { %%NEEDS%% server { location / { %%EXAMPLE%% } } }",
    "events {} %%EXAMPLE%%",
    "%%EXAMPLE%%",
    "events {} stream { server { listen 1; %%EXAMPLE%% } }",
];

/// What an example may be warned about: what it is there to show, and what differs between users and machines.
const EXPECTED: [&str; 5] = [
    "deprecated",
    "has no effect",
    "makes sense only",
    "built in",
    "bind()",
];

/// The directories whose paths are the test's.
const ROOTS: [&str; 5] = ["/etc/", "/var/", "/srv/", "/usr/", "/mnt/"];

fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The examples of all pages, each with the page and the directive where it was found first.
fn examples() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let pages = fs::read_dir(project().join("docs/reference")).expect("the reference is there");
    let mut pages: Vec<PathBuf> = pages.flatten().map(|entry| entry.path()).collect();
    pages.sort();
    for path in pages {
        let page = fs::read_to_string(&path).expect("text");
        let mut heading = "";
        let mut example: Option<String> = None;
        for line in page.lines() {
            match &mut example {
                Some(text) if line == "```" => {
                    let place = format!("{}: {heading}", path.display());
                    found.entry(std::mem::take(text)).or_insert(place);
                    example = None;
                }
                Some(text) => text.extend([line, "\n"]),
                None if line == "```nginx" => example = Some(String::new()),
                None => heading = line.strip_prefix("### ").unwrap_or(heading),
            }
        }
    }
    found
}

/// What the examples of the notes need around them, by the example. An example of `proxy_cache` is also one of
/// `fastcgi_cache`, so the prefix is left out.
fn needs() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let notes = fs::read_dir(project().join("crates/weir/src/notes")).expect("the notes are there");
    for path in notes.flatten().map(|entry| entry.path()) {
        let text = fs::read_to_string(path).expect("text");
        let (mut lines, mut example) = (String::new(), String::new());
        for line in text.lines().chain(["#: end"]) {
            match line.strip_prefix("#: ") {
                Some(marked) => {
                    if !example.trim().is_empty() {
                        let key = without_family(&example);
                        found.insert(key, std::mem::take(&mut lines));
                        example.clear();
                    }
                    if let Some(needed) = marked.strip_prefix("http: ") {
                        lines.extend([needed, "\n"]);
                    }
                }
                None => example.extend([line, "\n"]),
            }
        }
    }
    found
}

fn without_family(example: &str) -> String {
    let mut text = example.trim().replace("_pass http://", "_pass ");
    for family in [
        "proxy_",
        "fastcgi_",
        "scgi_",
        "uwsgi_",
        "grpc_",
        "memcached_",
    ] {
        text = text.replace(family, "");
    }
    text.replace("pass grpc://", "pass ")
}

/// The folder, with the files that examples name.
fn site() -> Site {
    let certified = rcgen::generate_simple_self_signed(vec!["example.org".to_owned()]);
    let certified = certified.expect("a certificate");
    let mut site = whole("")
        .file("mime.types", "types { text/html html; }")
        .file("etc/ssl/passwords", "a password\n")
        .file(
            "etc/ssl/example.org.key",
            certified.signing_key.serialize_pem(),
        )
        .file("etc/weir/opentelemetry.toml", OPENTELEMETRY)
        .file(
            "usr/share/GeoIP/GeoLite2-Country.mmdb",
            geoip2::database("XA"),
        );
    for name in ["example.org", "clients-ca", "chain"] {
        site = site.file(&format!("etc/ssl/{name}.pem"), certified.cert.pem());
    }
    for name in [
        "access",
        "balancer",
        "body",
        "certificate",
        "exit",
        "fetch",
        "header",
        "hello",
        "init",
        "log",
        "precontent",
        "preread",
        "rewrite",
        "session",
        "store",
        "sum",
        "worker",
    ] {
        site = site.file(&format!("etc/weir/lua/{name}.lua"), "return 1");
    }
    for folder in ["var/lib/weir", "var/cache/weir", "var/log/weir", "srv/www"] {
        site = site.folder(folder);
    }
    site
}

/// As ingress-nginx writes it.
const OPENTELEMETRY: &str = "exporter = \"otlp\"\nprocessor = \"batch\"\n\n[exporters.otlp]\nhost = \"127.0.0.1\"\nport = 4317\n\n\
     [processors.batch]\nmax_queue_size = 2048\nschedule_delay_millis = 5000\nmax_export_batch_size = 512\n\n\
     [service]\nname = \"shop\"\n\n[sampler]\nname = \"AlwaysOn\"\nratio = 0.1\nparent_based = false\n";

/// What is wrong with an example in the place where it has the fewest errors.
fn complaint(example: &str, needs: &str, folder: &Path, number: usize) -> Option<String> {
    let mut least: Option<Vec<String>> = None;
    for place in PLACES {
        let text = place
            .replace("%%NEEDS%%", needs)
            .replace("%%EXAMPLE%%", &format!("\n{example}\n"));
        let text = ROOTS.iter().fold(text, |text, root| {
            [" ", "\"", "="].iter().fold(text, |text, before| {
                let inside = format!("{before}{}{root}", folder.display());
                text.replace(&format!("{before}{root}"), &inside)
            })
        });
        let file = folder.join(format!("example-{number}.conf"));
        fs::write(&file, text).expect("the folder is writable");
        let (folder, file) = (folder.display().to_string(), file.display().to_string());
        let said = run(&["-t", "-p", &folder, "-c", &file, "-e", "stderr"]).stderr;
        let wrong = said.lines().filter(|line| {
            let is_message = ["[emerg]", "[alert]", "[error]", "[warn]"]
                .iter()
                .any(|level| line.contains(level));
            is_message && !EXPECTED.iter().any(|expected| line.contains(expected))
        });
        let wrong: Vec<String> = wrong.map(str::to_owned).collect();
        if wrong.is_empty() {
            return None;
        }
        if least.as_ref().is_none_or(|least| wrong.len() < least.len()) {
            least = Some(wrong);
        }
    }
    least.map(|lines| lines.join("\n"))
}

#[test]
fn every_example_of_the_reference_is_accepted() {
    if skip_on_oracle("some directives are Weir's own") {
        return;
    }
    let examples: Vec<(String, String)> = examples().into_iter().collect();
    let needs = needs();
    let site = site();
    let folder = site.path("");
    let next = AtomicUsize::new(0);
    let wrong = Mutex::new(Vec::new());
    let work = || {
        while let Some((example, place)) = examples.get(next.fetch_add(1, Ordering::Relaxed)) {
            let needed = needs.get(&without_family(example));
            let needed = needed.map(String::as_str).unwrap_or_default();
            let number = next.load(Ordering::Relaxed);
            if let Some(said) = complaint(example, needed, &folder, number) {
                let mut wrong = wrong.lock().expect("no thread panics");
                wrong.push(format!("{place}\n{example}{said}"));
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(work);
        work();
    });
    let wrong = wrong.into_inner().expect("no thread panicked");
    println!("{} examples, {} refused", examples.len(), wrong.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    assert!(
        examples.len() > 300,
        "{} examples were found",
        examples.len()
    );
}
