//! `weir serve` with its options: each over the wire. nginx has no such command.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use base64::Engine as _;
use weir_tests::{Server, Site, run, server_path, skip_on_oracle, until, whole};

use crate::tls::{Client, body};

const WHY: &str = "nginx has no `serve`";

fn site() -> Site {
    whole("")
        .file("html/file1.txt", "one")
        .file("html/file2.txt", "two")
        .file("html/file10.txt", "ten")
        .file("html/.env", "secret")
        .file("html/.well-known/proof", "proof")
        .file("html/sub/in.txt", "in")
        .file("html/a.css", "css { }\n".repeat(500))
        .file("outside/secret.txt", "secret")
}

fn serve(more: &[&str]) -> Server {
    let mut arguments = vec!["--port", "%%PORT%%"];
    arguments.extend(more);
    site().serve(&arguments)
}

#[test]
fn names_with_a_dot_are_served_when_asked_for() {
    if skip_on_oracle(WHY) {
        return;
    }
    serve(&[]).answers(&[("/.env", 404, ""), ("/.well-known/proof", 200, "proof")]);
    serve(&["--hidden"]).answers(&[("/.env", 200, "secret")]);
}

#[test]
fn links_that_lead_out_are_followed_when_asked_for() {
    if skip_on_oracle(WHY) {
        return;
    }
    let linked = |more: &[&str]| {
        let site = site();
        let root = site.path("html");
        symlink("../outside", root.join("out")).expect("writable");
        symlink(site.path("outside/secret.txt"), root.join("absolute.txt")).expect("writable");
        symlink("sub/in.txt", root.join("inside.txt")).expect("writable");
        symlink("sub", root.join("folder")).expect("writable");
        let mut arguments = vec!["--port", "%%PORT%%"];
        arguments.extend(more);
        site.serve(&arguments)
    };
    let server = linked(&[]);
    server.answers(&[
        ("/out/secret.txt", 403, ""),
        ("/out/", 403, ""),
        ("/absolute.txt", 403, ""),
        ("/inside.txt", 200, "in"),
        ("/folder/in.txt", 200, "in"),
    ]);
    assert!(server.get("/folder/").expect(200).text().contains("in.txt"));
    let server = linked(&["--follow"]);
    server.answers(&[
        ("/out/secret.txt", 200, "secret"),
        ("/absolute.txt", 200, "secret"),
    ]);
}

#[test]
fn a_page_of_an_application_is_its_index() {
    if skip_on_oracle(WHY) {
        return;
    }
    let site = site().file("html/index.html", "app");
    let server = site.serve(&["--port", "%%PORT%%", "--spa"]);
    server.answers(&[
        ("/some/page", 200, "app"),
        ("/file1.txt", 200, "one"),
        ("/.env", 404, ""),
    ]);
}

#[test]
fn a_password_is_asked_for() {
    if skip_on_oracle(WHY) {
        return;
    }
    let environment = |value: &str| site().environment("WEIR_PASSWORD", value);
    let port = ["--port", "%%PORT%%"];
    for server in [
        site().serve(&[&port[..], &["--password", "me:a:b"]].concat()),
        site().serve(&[&port[..], &["--password=me:a:b"]].concat()),
        environment("a:b").serve(&[&port[..], &["--password", "me"]].concat()),
        // What is written counts more than what is around.
        environment("c").serve(&[&port[..], &["--password", "me:a:b"]].concat()),
    ] {
        assert!(server.get("/").expect(401).has("WWW-Authenticate"));
        let login = |pair: &str| {
            let word = base64::engine::general_purpose::STANDARD.encode(pair);
            server.get_with("/file1.txt", &[&format!("Authorization: Basic {word}")])
        };
        assert_eq!(login("me:a:b").expect(200).text(), "one");
        login("me:a").expect(401);
        // Any user can read the command line of a process.
        let shown = fs::read(format!("/proc/{}/cmdline", server.pid())).expect("it runs");
        let shown = String::from_utf8_lossy(&shown);
        assert!(!shown.contains("a:b"), "{shown:?}");
    }
}

#[test]
fn a_password_is_read_from_standard_input() {
    if skip_on_oracle(WHY) {
        return;
    }
    // The directory is looked at first, so this needs no port.
    let missing = run(&["serve", "/", "--password", "me"]);
    let told =
        "weir: no password for the user \"me\": set WEIR_PASSWORD, or give it on standard input";
    assert_eq!(missing.first_line(), told);
    let empty = run(&["serve", "/", "--password", ":x"]);
    let told = "weir: --password takes USER or USER:PASSWORD";
    assert_eq!(empty.first_line(), told);
    let site = site();
    fs::write(site.path("secret"), "from a file\nnothing\n").expect("writable");
    let mut child = std::process::Command::new(server_path())
        .args(["serve", "html", "--password", "me"])
        .current_dir(site.path("."))
        .stdin(fs::File::open(site.path("secret")).expect("written"))
        .stderr(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("the binary can be executed");
    let mut said = std::io::BufReader::new(child.stderr.take().expect("piped"));
    let mut line = String::new();
    std::io::BufRead::read_line(&mut said, &mut line).expect("it says where it is");
    let port = line
        .trim()
        .rsplit(':')
        .next()
        .and_then(|port| port.parse().ok());
    let port: u16 = port.unwrap_or_else(|| panic!("a port in {line:?}"));
    let word = base64::engine::general_purpose::STANDARD.encode("me:from a file");
    let request = format!("GET /file1.txt HTTP/1.0\r\nAuthorization: Basic {word}\r\n\r\n");
    let mut answer = String::new();
    let talked =
        until(|| std::net::TcpStream::connect(("127.0.0.1", port)).ok()).map(|mut client| {
            std::io::Write::write_all(&mut client, request.as_bytes())?;
            std::io::Read::read_to_string(&mut client, &mut answer)
        });
    child.kill().expect("it runs");
    child.wait().expect("it was started");
    assert!(talked.is_some_and(|talked| talked.is_ok()), "{line}");
    assert!(answer.ends_with("\r\n\r\none"), "{answer}");
}

#[test]
fn files_come_into_folders_that_are_there_and_replace_none() {
    if skip_on_oracle(WHY) {
        return;
    }
    let site = site();
    symlink("../outside", site.path("html/out")).expect("writable");
    let server = site.serve(&["--port", "%%PORT%%", "--upload"]);
    let put = |path: &str| {
        let head = format!("PUT {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nnew");
        server.raw(head).status
    };
    assert_eq!(put("/sub/new.txt"), 201);
    assert_eq!(server.read("html/sub/new.txt"), "new");
    assert_eq!(put("/file1.txt"), 409);
    assert_eq!(put("/none/new.txt"), 403);
    assert_eq!(put("/out/new.txt"), 403);
    assert_eq!(put("/.profile"), 404);
    // A line feed in a name is a sign like any other.
    assert_eq!(put("/none%0Aa/new.txt"), 403);
    assert!(!server.path("outside/new.txt").exists());
    assert!(server.get("/sub/").text().contains("type=\"file\""));
    let plain = serve(&[]);
    assert!(!plain.get("/sub/").text().contains("type=\"file\""));
    let refused = plain.raw("PUT /x HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nnew");
    assert_eq!(refused.status, 405);
}

#[test]
fn pages_of_other_sites_may_read_when_asked_for() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = serve(&["--cors"]);
    let reply = server.get("/file1.txt");
    assert_eq!(reply.field("Access-Control-Allow-Origin"), "*");
    let preflight = server.request("OPTIONS", "/file1.txt", &[]);
    assert_eq!(preflight.status, 204);
    assert_eq!(preflight.field("Access-Control-Allow-Methods"), "GET, HEAD");
    assert!(
        !serve(&[])
            .get("/file1.txt")
            .has("Access-Control-Allow-Origin")
    );
}

#[test]
fn texts_are_compressed_as_the_client_likes_it() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = serve(&[]);
    for coding in ["br", "zstd", "gzip"] {
        let reply = server.get_with("/a.css", &[&format!("Accept-Encoding: {coding}")]);
        assert_eq!(reply.field("Content-Encoding"), coding);
    }
}

#[test]
fn markdown_is_a_page_for_a_browser() {
    if skip_on_oracle(WHY) {
        return;
    }
    let text = "# Hello\n\n<script>alert(1)</script>\n";
    let server = site()
        .file("html/a.md", text)
        .file("html/long.md", "a\n\n".repeat(400_000))
        .serve(&["--port", "%%PORT%%"]);
    let page = server
        .get_with("/a.md", &["Accept: text/html,*/*"])
        .expect(200);
    assert_eq!(page.field("Content-Type"), "text/html; charset=utf-8");
    let shown = page.text();
    assert!(
        shown.contains("<h1>Hello</h1>") && shown.contains("&lt;script&gt;"),
        "{shown}"
    );
    assert!(!shown.contains("<script>"), "{shown}");
    assert!(page.field("Vary").contains("Accept"));
    let plain = server.get_with("/a.md", &["Accept: */*"]).expect(200);
    assert_eq!(plain.text(), text);
    assert_eq!(plain.field("Vary"), "Accept");
    let long = server
        .get_with("/long.md", &["Accept: text/html"])
        .expect(200);
    assert!(long.field("Content-Type").starts_with("text/plain"));
    server.answers(&[("/none.md", 404, "")]);
}

#[test]
fn the_listing_has_an_order_for_people_and_a_box_to_filter() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = serve(&[]);
    let page = server.get("/").expect(200).text();
    let at = |name: &str| {
        page.find(&format!("href=\"{name}\""))
            .unwrap_or_else(|| panic!("{name}"))
    };
    assert!(at("sub/") < at("a.css") && at("a.css") < at("file1.txt"));
    assert!(at("file1.txt") < at("file2.txt") && at("file2.txt") < at("file10.txt"));
    assert!(page.contains("type=\"search\""), "{page}");
    assert!(page.contains("<footer>1 directory, 4 files, "), "{page}");
    assert!(page.contains("<title>Index of /</title>"), "{page}");
}

#[test]
fn what_is_not_there_has_a_page_of_its_own() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = serve(&[]);
    let page = server.get("/no<b>ne.txt").expect(404);
    assert_eq!(page.field("Content-Type"), "text/html; charset=utf-8");
    let text = page.text();
    assert!(
        text.contains("There is nothing here") && !text.contains("no<b>ne"),
        "{text}"
    );
    let own = site()
        .file("html/404.html", "mine")
        .serve(&["--port", "%%PORT%%"]);
    own.answers(&[("/none", 404, "mine")]);
}

#[test]
fn a_client_cannot_write_to_the_terminal() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = serve(&["--upload"]);
    let referer = "Referer: \u{1b}]0;pwned\u{7}";
    server.request("POST", "/sub/", &[referer]);
    server.get_with("/none\u{1b}", &[referer]);
    server.get_with("/sub", &["User-Agent: \u{1b}[2J"]);
    server.line("stdout", "/sub");
    let said = server.read("stdout") + &server.read("stderr");
    assert!(
        !said.contains('\u{1b}') && !said.contains('\u{7}'),
        "{said:?}"
    );
}

#[test]
fn a_folder_that_cannot_be_read_is_refused() {
    if skip_on_oracle(WHY) {
        return;
    }
    let site = whole("");
    let folder = site.path("closed");
    fs::create_dir(&folder).expect("writable");
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).expect("ours");
    let own = site.path("weir");
    // Root reads everything.
    if fs::copy(server_path(), &own).is_err() || !std::path::Path::new("/usr/bin/setpriv").exists()
    {
        return;
    }
    let _ = fs::set_permissions(site.path(""), fs::Permissions::from_mode(0o755));
    let mut command = std::process::Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
    let output = command.arg(&own).arg("serve").arg(&folder).output();
    let said = String::from_utf8_lossy(&output.expect("setpriv runs").stderr).into_owned();
    if said.contains("setpriv:") {
        return println!("skipped: {said}");
    }
    assert!(said.contains("cannot be read by this user"), "{said}");
}

#[test]
fn a_browser_is_opened() {
    if skip_on_oracle(WHY) {
        return;
    }
    let site = site().file(
        "bin/xdg-open",
        "#!/bin/sh\necho \"$1\" > \"$(dirname \"$0\")/opened\"\n",
    );
    let opener = site.path("bin/xdg-open");
    fs::set_permissions(&opener, fs::Permissions::from_mode(0o755)).expect("ours");
    let path = format!("{}:/usr/bin:/bin", site.path("bin").display());
    let server = site
        .environment("PATH", &path)
        .serve(&["--port", "%%PORT%%", "--open"]);
    let url = format!("http://127.0.0.1:{}\n", server.port(0));
    assert!(until(|| (server.read("bin/opened") == url).then_some(())).is_some());
}

#[test]
fn tls_needs_no_certificate() {
    if skip_on_oracle(WHY) {
        return;
    }
    let start = |data: &str| {
        let site = site().environment("XDG_DATA_HOME", data);
        site.serve(&["--port", "%%PORT%%", "--tls"])
    };
    let server = start("%%DIR%%/data");
    let key = fs::metadata(server.path("data/weir/authority.key")).expect("it is made");
    assert_eq!(key.permissions().mode() & 0o777, 0o600);
    let authority = server.read("data/weir/authority.crt");
    let url = format!("https://localhost:{}/file1.txt", server.port(0));
    server.line("stderr", "authority.crt");
    let client = Client::trusting(&authority);
    for name in ["localhost", "127.0.0.1"] {
        let answer = client
            .get(&server, name, "/file1.txt")
            .expect("it is trusted");
        assert_eq!(body(&answer), "one");
    }
    // A slip of a scheme leads to the right one.
    let moved = server.get("/file1.txt").expect(307);
    assert_eq!(
        moved.field("Location"),
        url.replace(&format!(":{}", server.port(0)), "")
    );
    // The authority stays.
    let data = server.path("data").display().to_string();
    let kept = fs::read_to_string(server.path("data/weir/authority.crt")).expect("it is there");
    let second = start(&data);
    assert_eq!(kept, authority);
    let answer = client
        .get(&second, "localhost", "/file2.txt")
        .expect("it is trusted");
    assert_eq!(body(&answer), "two");
}

#[test]
fn what_does_not_fit_is_told() {
    if skip_on_oracle(WHY) {
        return;
    }
    for (more, told) in [
        (&["--domain", "nodot"][..], "is not a name"),
        (&["--domain", "a.example", "--tls"], "leave out --tls"),
        (&["--listen", "192.0.2.1"], "does not have the address"),
        (&["--porte", "1"], "usage: weir serve DIR"),
    ] {
        let folder = std::env::temp_dir().display().to_string();
        let mut arguments = vec!["serve", &folder];
        arguments.extend(more);
        let refused = run(&arguments);
        assert_eq!(refused.code, 1, "{more:?}");
        assert!(
            refused.stderr.contains(told),
            "{more:?}: {}",
            refused.stderr
        );
        assert!(!refused.stderr.contains("os error"), "{}", refused.stderr);
    }
}
