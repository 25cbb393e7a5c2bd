//! Who may read and write what the server makes: the same under every umask, and what was open to others is mended.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use weir_tests::{Server, Signal, Site, http, skip_on_oracle, until, whole};

const WHY: &str = "its modes follow the umask";

fn mode(path: &Path) -> u32 {
    let found = fs::metadata(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    found.permissions().mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("it is ours");
}

/// The files in a folder.
fn files(path: &Path) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    entries
        .map(|entry| entry.expect("it can be read").path())
        .collect()
}

/// A server that has made one of everything.
fn busy(mask: &'static str) -> Server {
    let server = http(
        "log_format line '$uri'; access_log logs/plain.log line;
         proxy_cache_path cache keys_zone=zone:1m;
         server {
             listen 127.0.0.1:%%PORT%%;
             location /origin { return 200 content; }
             location /cached {
                 access_log logs/$arg_name.log line;
                 proxy_cache zone; proxy_cache_valid 1m; proxy_pass http://127.0.0.1:%%PORT%%/origin;
             }
             location /put/ { dav_methods PUT MKCOL; create_full_put_path on; dav_access group:rw all:r; }
             location /private/ { dav_methods PUT MKCOL; create_full_put_path on; }
             location /kept { client_body_in_file_only on; proxy_pass http://127.0.0.1:%%PORT%%/origin; }
             location /stored/ { root store; proxy_store on; proxy_pass http://127.0.0.1:%%PORT%%/origin; }
             location /open/ { root store; proxy_store on; proxy_store_access group:rw all:r;
                               proxy_pass http://127.0.0.1:%%PORT%%/origin; }
         }",
    )
    .umask(mask)
    .start();
    server.get("/cached?name=named").expect(200);
    server.line("logs/named.log", "/cached");
    for target in ["/put/folder/file", "/private/folder/file"] {
        let mut connection = server.connect();
        connection.send(format!(
            "PUT {target} HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody"
        ));
        connection.reply_to("PUT").expect(201);
    }
    server.request("MKCOL", "/put/made/", &[]).expect(201);
    let mut connection = server.connect();
    connection.send("POST /kept HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody");
    connection.reply().expect(200);
    server.get("/stored/folder/file").expect(200);
    server.get("/open/folder/file").expect(200);
    server
}

#[test]
fn modes_do_not_depend_on_the_umask() {
    if skip_on_oracle(WHY) {
        return;
    }
    for mask in ["000", "022", "077"] {
        let mut server = busy(mask);
        assert_eq!(mode(&server.path("nginx.pid")), 0o644);
        let stored = until(|| server.path("store/open/folder/file").exists().then_some(()));
        assert!(stored.is_some());
        // The cache is written down at the end.
        server.signal(Signal::QUIT);
        assert!(server.ended().success());
        for (path, expected) in [
            ("error.log", 0o644),
            ("logs/plain.log", 0o644),
            ("logs/named.log", 0o644),
            ("cache", 0o700),
            ("body_temp", 0o700),
            ("proxy_temp", 0o700),
            ("html/put/folder", 0o775),
            ("html/put/made", 0o775),
            ("html/put/folder/file", 0o664),
            ("html/private/folder", 0o700),
            ("html/private/folder/file", 0o600),
            ("store/stored/folder", 0o700),
            ("store/stored/folder/file", 0o600),
            ("store/open/folder", 0o775),
            ("store/open/folder/file", 0o664),
        ] {
            let found = mode(&server.path(path));
            assert_eq!(found, expected, "{path} is {found:o} with umask {mask}");
        }
        let cache = files(&server.path("cache"));
        assert!(cache.len() >= 3, "{cache:?}");
        let kept = files(&server.path("body_temp"));
        assert!(!kept.is_empty());
        for path in cache.iter().chain(&kept) {
            let found = mode(path);
            assert_eq!(found, 0o600, "{} with umask {mask}", path.display());
        }
    }
}

/// Starts a daemon, lets it do its work and ends it.
fn run_daemon(site: Site) -> (Site, String) {
    let (site, finished) = site.run_bare();
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    let pid = until(|| {
        fs::read_to_string(site.path("nginx.pid"))
            .ok()?
            .trim()
            .parse()
            .ok()
    });
    let pid = pid
        .and_then(rustix::process::Pid::from_raw)
        .expect("the pid file has a number");
    let request = "GET /cached?name=named HTTP/1.0\r\n\r\n";
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", site.port(0))).expect("it listens");
    std::io::Write::write_all(&mut stream, request.as_bytes()).expect("the server reads");
    let text = std::io::read_to_string(stream).expect("the server answers");
    assert!(text.ends_with("content"), "{text}");
    rustix::process::kill_process(pid, Signal::QUIT).expect("the server lives");
    let gone = || rustix::process::test_kill_process(pid).is_err();
    assert!(until(|| gone().then_some(())).is_some(), "it ends");
    (site, finished.stderr)
}

#[test]
fn what_was_open_to_others_is_mended_at_the_start() {
    if skip_on_oracle(WHY) {
        return;
    }
    let user = match rustix::process::geteuid().is_root() {
        true => "user root;",
        false => "",
    };
    let site = whole(&format!(
        "daemon on; {user} pid nginx.pid; error_log error.log notice; events {{ }}
         http {{
             access_log logs/plain.log; client_body_temp_path body_temp; proxy_temp_path sticky;
             proxy_cache_path cache keys_zone=zone:1m;
             server {{
                 listen 127.0.0.1:%%PORT%%; root html;
                 location /origin {{ return 200 content; }}
                 location /cached {{
                     access_log logs/$arg_name.log;
                     proxy_cache zone; proxy_cache_valid 1m; proxy_pass http://127.0.0.1:%%PORT%%/origin;
                 }}
             }}
         }}"
    ))
    .umask("000");
    let (site, said) = run_daemon(site);
    assert!(!said.contains("[warn]"), "{said}");
    let cached = files(&site.path("cache"));
    assert!(cached.len() >= 3, "{cached:?}");
    for path in &cached {
        assert_eq!(mode(path), 0o600, "{}", path.display());
        set_mode(path, 0o666);
    }
    for path in ["logs/plain.log", "logs/named.log", "error.log"] {
        assert_eq!(mode(&site.path(path)), 0o644);
        set_mode(&site.path(path), 0o666);
    }
    for path in ["cache", "body_temp"] {
        set_mode(&site.path(path), 0o777);
    }
    // In such a folder nobody can touch the files of others.
    set_mode(&site.path("sticky"), 0o1777);

    let (site, said) = run_daemon(site);
    for (path, expected) in [
        ("logs/plain.log", 0o644),
        ("logs/named.log", 0o644),
        ("error.log", 0o644),
        ("cache", 0o755),
        ("body_temp", 0o755),
        ("sticky", 0o1777),
    ] {
        assert_eq!(mode(&site.path(path)), expected, "{path}");
    }
    for path in files(&site.path("cache")) {
        assert_eq!(mode(&path), 0o600, "{}", path.display());
    }
    for path in ["logs/plain.log", "error.log", "cache", "body_temp"] {
        let expected = format!("{path}\" had mode 0");
        assert!(said.contains(&expected), "{path} is not in: {said}");
    }
    let log = fs::read_to_string(site.path("error.log")).expect("it is there");
    assert!(log.contains("were accessible to other users"), "{log}");
    assert!(log.contains("named.log\" had mode 0666"), "{log}");
}

#[test]
fn narrow_modes_of_an_operator_stay() {
    if skip_on_oracle(WHY) {
        return;
    }
    let site = http("server { listen 127.0.0.1:%%PORT%%; return 200; }")
        .file("logs/error.log", "")
        .file("access.log", "")
        .file("error.log", "");
    set_mode(&site.path("access.log"), 0o640);
    set_mode(&site.path("error.log"), 0o660);
    let server = site.start();
    server.get("/").expect(200);
    assert_eq!(mode(&server.path("access.log")), 0o640);
    assert_eq!(mode(&server.path("error.log")), 0o660);
}
