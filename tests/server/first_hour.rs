//! What a user meets who has just installed the server: it starts everywhere, it leaves nothing where nobody looks for
//! it, and what it cannot do it says in words that lead on.

use std::fs;

use weir_tests::{Site, http, run, run_with_mounts, skip_on_oracle, whole};

const WHY: &str = "nginx's places are chosen when it is built";

/// A configuration that names no place at all.
const SMALLEST: &str = "events {} http { server { listen 127.0.0.1:%%PORT%%; } }";

/// Beginnings of scripts: no files of the system, and a configuration in `/mnt`; `appears` waits, with a bound, for the pid
/// file of a server that has gone to the background, `wait_for_end` for the end of its process.
const BARE: &str = "for folder in /etc/nginx /var/lib /var/log /run; do
        mkdir -p $folder; mount -t tmpfs -o mode=755 tmpfs $folder
    done
    mount -t tmpfs -o mode=755 tmpfs /mnt
    cd /mnt
    echo 'events {} http { server { listen unix:/mnt/socket; } }' > small.conf
    appears() { n=0; until [ -s \"$1\" ]; do n=$((n+1)); [ $n -lt 3000 ]; sleep 0.01; done; }
    wait_for_end() { tail --pid=\"$1\" -f /dev/null; }
    ";

#[test]
fn the_smallest_configuration_starts_for_root() {
    if skip_on_oracle(WHY) {
        return;
    }
    let script = format!(
        "{BARE}
        \"$SERVER\" -t -c small.conf 2>/dev/null
        echo after -t: $(ls -A /var/lib /var/log /run /etc/nginx | grep -v -e : -e ^mount$)
        \"$SERVER\" -c small.conf
        appears /run/weir.pid
        stat -c '%a %n' /run/weir.pid /var/log/weir /var/log/weir/* /var/lib/weir /var/lib/weir/proxy_temp
        pid=$(cat /run/weir.pid)
        \"$SERVER\" -s quit -c small.conf
        wait_for_end $pid
        ls -A /etc/nginx"
    );
    let Some(finished) = run_with_mounts(&script) else {
        return;
    };
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    let lines: Vec<&str> = finished.stdout.lines().collect();
    assert_eq!(
        lines,
        [
            "after -t:",
            "644 /run/weir.pid",
            "755 /var/log/weir",
            "644 /var/log/weir/access.log",
            "644 /var/log/weir/error.log",
            "755 /var/lib/weir",
            "700 /var/lib/weir/proxy_temp",
        ],
        "{}",
        finished.stderr
    );
}

/// Of nobody, with no home, and of a user with one.
#[test]
fn the_smallest_configuration_starts_for_anybody() {
    if skip_on_oracle(WHY) {
        return;
    }
    for (home, places) in [
        (
            "/nonexistent",
            ["/tmp/weir-65534/weir.pid", "/tmp/weir-65534"],
        ),
        (
            "/mnt/home",
            [
                "/mnt/home/.local/state/weir/weir.pid",
                "/mnt/home/.local/state/weir",
            ],
        ),
    ] {
        let [pid, folder] = places;
        let script = format!(
            "{BARE}
            mount -t tmpfs tmpfs /tmp
            mkdir open home; chown nobody open home
            cp \"$SERVER\" weir
            sed -i s,/mnt/socket,/mnt/open/socket, small.conf
            weir() {{
                setpriv --reuid 65534 --regid 65534 --clear-groups env -i HOME={home} ./weir -c small.conf \"$@\"
            }}
            weir -t; weir; appears {pid}
            pid=$(cat {pid})
            stat -c '%a %U' {folder}
            weir -s quit
            wait_for_end $pid"
        );
        let Some(finished) = run_with_mounts(&script) else {
            return;
        };
        assert_eq!(finished.code, 0, "{}", finished.stderr);
        assert_eq!(finished.stdout.trim(), "700 nobody", "{}", finished.stderr);
        assert!(!finished.stderr.contains("[emerg]"), "{}", finished.stderr);
    }
}

/// In a directory that all users can write to, another user may have been first.
#[test]
fn a_folder_of_somebody_else_is_not_used() {
    if skip_on_oracle(WHY) {
        return;
    }
    let script = format!(
        "{BARE}
        mount -t tmpfs tmpfs /tmp
        mkdir -m 777 /tmp/weir-65534
        cp \"$SERVER\" weir
        setpriv --reuid 65534 --regid 65534 --clear-groups env -i HOME=/nonexistent ./weir -c small.conf"
    );
    let Some(finished) = run_with_mounts(&script) else {
        return;
    };
    assert_eq!(finished.code, 1);
    let told = "directory \"/tmp/weir-65534\" belongs to another user";
    assert!(finished.stderr.contains(told), "{}", finished.stderr);
}

#[test]
fn under_the_name_nginx_the_places_are_nginx_s() {
    if skip_on_oracle(WHY) {
        return;
    }
    let script = format!(
        "{BARE}
        cp small.conf /etc/nginx/nginx.conf
        ln -s \"$SERVER\" nginx
        ./nginx
        appears /run/nginx.pid
        ls /run/nginx.pid /var/log/nginx /var/lib/nginx
        pid=$(cat /run/nginx.pid)
        ./nginx -s quit
        wait_for_end $pid"
    );
    let Some(finished) = run_with_mounts(&script) else {
        return;
    };
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    for name in ["/run/nginx.pid", "access.log", "error.log", "proxy_temp"] {
        assert!(finished.stdout.contains(name), "{}", finished.stdout);
    }
}

fn entries(site: &Site) -> Vec<String> {
    let found = fs::read_dir(site.path("")).expect("the site's folder is there");
    let mut names: Vec<String> = found
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn a_test_leaves_nothing_behind() {
    if skip_on_oracle("nginx makes folders, logs and an empty pid file") {
        return;
    }
    let site = whole(SMALLEST).file("small.conf", SMALLEST.replace("%%PORT%%", "0"));
    let before = entries(&site);
    let prefix = format!("{}/", site.path("").display());
    let finished = run(&["-t", "-p", &prefix, "-c", "small.conf"]);
    // Port 0 is none to listen on; everything else was looked at.
    let _ = finished;
    let text =
        "events {} pid own.pid; error_log own.log; http { server { listen unix:/tmp/none; } }";
    fs::write(site.path("other.conf"), text).expect("the site's folder is writable");
    let finished = run(&["-t", "-p", &prefix, "-c", "other.conf"]);
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    let mut expected = before;
    expected.push("other.conf".to_owned());
    expected.sort();
    assert_eq!(entries(&site), expected);
}

#[test]
fn a_place_that_cannot_be_written_is_told_by_the_test() {
    let text = "events {} pid none/own.pid; http { server { listen 127.0.0.1:%%PORT%%; } }";
    let finished = whole(text).test();
    assert_eq!(finished.code, 1);
    if skip_on_oracle("-g gives nginx another pid file here") {
        return;
    }
    let told = "open() \"%%DIR%%/none/own.pid\" failed (2: No such file or directory)";
    assert!(finished.stderr.contains(told), "{}", finished.stderr);
}

#[test]
fn signals_say_when_nothing_is_running() {
    if skip_on_oracle("nginx has one line") {
        return;
    }
    let site = || http("");
    let absent = site().run(&["-s", "reload"]);
    assert_eq!(absent.code, 1);
    let told = "= no server is running with this configuration";
    assert!(absent.stderr.contains(told), "{}", absent.stderr);
    let empty = site().file("nginx.pid", "").run(&["-s", "stop"]);
    let told = "no server has written this file";
    assert!(empty.stderr.contains(told), "{}", empty.stderr);
    // No process has this number.
    let old = site().file("nginx.pid", "4194999\n").run(&["-s", "stop"]);
    let told = "the last one left its pid file";
    assert!(old.stderr.contains(told), "{}", old.stderr);
}

#[test]
fn without_a_configuration_three_lines_say_what_to_do() {
    if skip_on_oracle("nginx says that there is none") {
        return;
    }
    let Some(finished) = run_with_mounts("mount -t tmpfs tmpfs /etc; ! \"$SERVER\"") else {
        return;
    };
    for line in [
        "[emerg] open() \"/etc/nginx/nginx.conf\" failed (2: No such file or directory)",
        "\"weir serve DIR\"",
        "\"weir proxy URL\"",
        "\"weir -c FILE\"",
    ] {
        assert!(finished.stderr.contains(line), "{}", finished.stderr);
    }
    assert_eq!(finished.stderr.lines().count(), 4, "{}", finished.stderr);
}

#[test]
fn quiet_is_quiet() {
    if skip_on_oracle("the modules are not all here") {
        return;
    }
    let text = "load_module modules/ngx_stream_module.so; events {}\nhttp { access_log off; server { listen unix:/tmp/none; } }";
    let finished = whole(text).test_with(&["-q"]);
    assert_eq!((finished.code, finished.stderr.as_str()), (0, ""));
}

#[test]
fn words_that_others_have_for_it_are_understood() {
    if skip_on_oracle("nginx has no commands") {
        return;
    }
    for (words, told) in [
        (&["test"][..], "that is: weir -t"),
        (&["reload"], "that is: weir -s reload"),
        (&["servr", "x"], "did you mean \"serve\"?"),
        (&["--vesrion"], "did you mean \"--version\"?"),
        (&["serve"], "missing argument DIR"),
        (&["proxy"], "missing argument URL"),
        (&["init", "pph"], "did you mean \"php\"?"),
        (&["proxy", "ftp://a"], "use http or https"),
        (&["serve", ".", "--port", "0"], "is not a port number"),
        (
            &["serve", ".", "--password", "secret"],
            "no password for the user",
        ),
    ] {
        let finished = run(words);
        assert_eq!(finished.code, 1, "{words:?}");
        assert!(
            finished.stderr.contains(told),
            "{words:?}: {}",
            finished.stderr
        );
    }
}
