//! The command line: `-v`, `-V`, `-h`, `-T`, `-g`, and what is not an option.

use std::process::{Command, Stdio};

use weir_tests::{http, is_oracle, run, server_path, skip_on_oracle, whole};

#[test]
fn versions_go_to_standard_error() {
    let short = run(&["-v"]);
    assert_eq!((short.code, short.stdout.as_str()), (0, ""));
    let expected = if is_oracle() {
        "nginx version: nginx/"
    } else {
        "weir version: weir/"
    };
    assert!(
        short.stderr.replace("weir: ", "").starts_with(expected),
        "{}",
        short.stderr
    );
    assert_eq!(short.stderr.lines().count(), 1);

    let long = run(&["-V"]);
    assert_eq!(long.code, 0);
    assert!(
        long.stderr.contains("configure arguments: "),
        "{}",
        long.stderr
    );
}

#[test]
fn under_the_name_nginx_it_presents_itself_as_nginx() {
    if skip_on_oracle("nginx has one name") {
        return;
    }
    let (code, text) = weir_tests::run_as("nginx", &["-V"]);
    assert_eq!(code, 0);
    assert!(text.starts_with("nginx version: nginx/1."), "{text}");
    assert!(text.contains("--with-http_stub_status_module"), "{text}");
}

#[test]
fn help_lists_the_options() {
    for option in ["-h", "-?"] {
        let help = run(&[option]);
        assert_eq!(help.code, 0);
        let text = help.stdout + &help.stderr;
        for name in ["-t", "-T", "-q", "-s", "-p", "-c", "-e", "-g", "-V"] {
            assert!(text.contains(name), "{name} in {text}");
        }
    }
}

#[test]
fn an_unknown_option_is_an_error() {
    let finished = run(&["-x"]);
    assert_eq!(finished.code, 1);
    assert!(
        finished.first_line().contains("invalid option: \"x\""),
        "{}",
        finished.stderr
    );
    let missing = run(&["-c"]);
    assert_eq!(missing.code, 1);
    assert!(
        missing.first_line().contains("option \"-c\" requires"),
        "{}",
        missing.stderr
    );
}

#[test]
fn a_dump_shows_each_file_once() {
    let finished = whole("events { }\nhttp { include part.conf; include part.conf; }\n")
        .file("part.conf", "# a part\n")
        .test_with(&["-T"]);
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    assert!(
        finished
            .stdout
            .starts_with("# configuration file %%DIR%%/nginx.conf:\nevents { }\n"),
        "{}",
        finished.stdout
    );
    let count = finished
        .stdout
        .matches("# configuration file %%DIR%%/part.conf:\n# a part\n")
        .count();
    assert_eq!(count, 1, "{}", finished.stdout);
    assert!(
        finished.stderr.contains("test is successful"),
        "{}",
        finished.stderr
    );
}

#[test]
fn global_directives_come_from_the_command_line() {
    let good = whole("events { }\n").test_with(&["-g", "worker_processes 2;"]);
    assert_eq!(good.code, 0, "{}", good.stderr);
    let bad = whole("events { }\n").test_with(&["-g", "foo bar;"]);
    assert_eq!(bad.code, 1);
    assert_eq!(
        bad.first_line(),
        "weir: [emerg] unknown directive \"foo\" in command line"
    );
    let open = whole("events { }\n").test_with(&["-g", "worker_processes 2"]);
    assert_eq!(
        open.first_line(),
        "weir: [emerg] unexpected end of parameter, expecting \";\" in command line"
    );
    let duplicate =
        whole("worker_processes 1;\nevents { }\n").test_with(&["-g", "worker_processes 2;"]);
    assert_eq!(
        duplicate.first_line(),
        "weir: [emerg] \"worker_processes\" directive is duplicate in %%DIR%%/nginx.conf:1"
    );
}

#[test]
fn help_explains_a_directive() {
    if skip_on_oracle("nginx has no such command") {
        return;
    }
    let help = run(&["help", "keepalive_timeout"]);
    assert_eq!(help.code, 0, "{}", help.stderr);
    assert!(help.stdout.contains("keepalive_timeout"), "{}", help.stdout);
    assert!(
        help.stdout.contains("75s"),
        "the default is shown: {}",
        help.stdout
    );
    let unknown = run(&["help", "keepalive_timeot"]);
    assert_ne!(unknown.code, 0);
    assert!(
        (unknown.stdout + &unknown.stderr).contains("keepalive_timeout"),
        "the nearest name is shown"
    );
}

#[test]
fn help_has_examples_and_suggests_what_was_meant() {
    if skip_on_oracle("nginx has no such command") {
        return;
    }
    let said = |name: &str| {
        let help = run(&["help", name]);
        (help.code, help.stdout + &help.stderr)
    };
    for (name, code, text) in [
        ("limit_req", 0, "\nExample:\n\n  limit_req_zone $binary"),
        ("proxy_cache_lock", 0, "In nginx: It is off."),
        ("fastcgi_cache_lock", 0, "fastcgi_cache_lock_age 1s;"),
        ("root /srv;", 0, "\nExample:\n"),
        ("root;", 0, "\nExample:\n"),
        ("serve", 0, "usage: weir serve DIR"),
        ("remote_addr", 1, "weir help '$remote_addr'"),
        ("proxy_pas", 1, "weir help proxy_pass"),
        ("quic_congestion", 1, "quic_congestion_control"),
    ] {
        let (found, text_found) = said(name);
        assert_eq!(found, code, "{name}: {text_found}");
        assert!(text_found.contains(text), "{name}: {text_found}");
    }
}

/// A terminal is made by `script`, which Debian has everywhere.
#[test]
fn help_is_paged_on_a_terminal_only() {
    if skip_on_oracle("nginx has no such command") {
        return;
    }
    let program = std::path::absolute(server_path()).expect("a path");
    let on_terminal = |arguments: &str| {
        let output = Command::new("script")
            .args(["-qec", &format!("{} {arguments}", program.display())])
            .arg("/dev/null")
            .env("PAGER", "tr a-z A-Z")
            .stdin(Stdio::null())
            .output();
        output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let Ok(paged) = on_terminal("help sendfile") else {
        println!("skipped: no script");
        return;
    };
    assert!(paged.contains("SENDFILE ON | OFF;"), "{paged}");
    let plain = on_terminal("help --no-pager sendfile").expect("it was there before");
    assert!(plain.contains("sendfile on | off;"), "{plain}");
    let piped = run(&["help", "sendfile"]).stdout;
    assert!(piped.starts_with("sendfile on | off;"), "{piped}");
}

#[test]
fn manual_pages_have_every_command_and_directive() {
    if skip_on_oracle("nginx brings its page as a file") {
        return;
    }
    const MACROS: [&str; 16] = [
        ".TH", ".SH", ".SS", ".TP", ".PP", ".B", ".BR", ".BI", ".I", ".IR", ".RB", ".RS", ".RE",
        ".nf", ".fi", ".br",
    ];
    let program = run(&["man", "weir.8"]).stdout;
    let file = run(&["man", "weir.conf.5"]).stdout;
    for line in program.lines().chain(file.lines()) {
        let word = line.split(' ').next().unwrap_or_default();
        assert!(!word.starts_with('.') || MACROS.contains(&word), "{line}");
        let marks = [
            "@OPTIONS@",
            "@COMMANDS@",
            "@SYNOPSIS@",
            "@DIRECTIVES@",
            "@VERSION@",
        ];
        assert!(!marks.iter().any(|mark| line.contains(mark)), "{line}");
    }
    for text in [".SS \"weir serve\"", "\\fB\\-\\-spa\\fR", ".SH SIGNALS"] {
        assert!(program.contains(text), "{text}");
    }
    let listed = file.lines().filter(|line| line.starts_with(".SS ")).count();
    assert!(listed > 1000, "{listed} directives");
    assert_eq!(run(&["man", "nginx.8"]).code, 1);
}

#[test]
fn help_explains_variables_and_statuses() {
    if skip_on_oracle("nginx has no such command") {
        return;
    }
    for (name, text) in [
        ("$http_host", "A request header"),
        ("$remote_addr", "The client address"),
        ("502", "502 Bad Gateway\n"),
        ("location", "longest matching prefix"),
    ] {
        let help = run(&["help", name]);
        assert_eq!(help.code, 0, "{name}: {}", help.stderr);
        // Lines are broken where they fit.
        let words = help.stdout.replace('\n', " ");
        assert!(words.contains(text.trim()), "{}", help.stdout);
    }
    assert_eq!(run(&["help", "$nothing"]).code, 1);
    assert_eq!(run(&["help", "299"]).code, 1);
    let list = run(&["help"]).stdout;
    let is_heading = |line: &&str| !line.is_empty() && !line.starts_with(' ');
    let lines: Vec<&str> = list
        .lines()
        .skip_while(|line| *line != "Directives:")
        .skip(1)
        .collect();
    assert!(lines.iter().all(|line| line.len() <= 80), "{list}");
    assert!(
        lines
            .windows(2)
            .all(|pair| !is_heading(&pair[0]) || pair[1].starts_with("  ")),
        "no empty section: {list}"
    );
}

#[test]
fn the_test_touches_nothing_that_runs() {
    let server =
        http("server { listen 127.0.0.1:%%PORT%%; location / { return 200 ok; } }").start();
    let prefix = format!("{}", server.path("").display());
    let finished = run(&["-p", &prefix, "-c", "nginx.conf", "-e", "error.log", "-t"]);
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    assert_eq!(server.get("/").text(), "ok");
    assert!(server.path("nginx.pid").exists());
}

#[test]
fn a_configuration_in_the_current_directory_is_found() {
    if skip_on_oracle("nginx looks below its prefix only") {
        return;
    }
    let server = http("server { listen 127.0.0.1:%%PORT%%; }").start();
    let script = "cd \"$1\" && exec \"$0\" -t -c nginx.conf";
    let mut shell = std::process::Command::new("sh");
    let program = std::path::absolute(weir_tests::server_path()).expect("a path");
    let output = shell
        .args(["-c", script])
        .arg(program)
        .arg(server.path(""))
        .output()
        .expect("a shell");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("/nginx.conf syntax is ok"), "{said}");
}

/// `weir -V 2>&1 | head -1`: that a reader has gone is not a fault of the command.
#[test]
fn a_reader_that_closes_the_pipe_breaks_nothing() {
    if skip_on_oracle("nginx is ended by SIGPIPE, and has no commands") {
        return;
    }
    let without_reader = || {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        writer
    };
    for arguments in [&["-V"][..], &["-h"], &["-x"]] {
        let whole = run(arguments);
        let status = std::process::Command::new(server_path())
            .args(arguments)
            .stderr(without_reader())
            .stdout(without_reader())
            .status();
        let code = status.expect("the server binary can be executed").code();
        assert_eq!(code, Some(whole.code), "{arguments:?}");
    }
    if skip_on_oracle("nginx has no commands") {
        return;
    }
    for arguments in [
        &["help"][..],
        &["help", "location"],
        &["completions", "bash"],
    ] {
        let status = std::process::Command::new(server_path())
            .args(arguments)
            .stdout(without_reader())
            .status();
        let code = status.expect("the server binary can be executed").code();
        assert_eq!(code, Some(0), "{arguments:?}");
    }
}

#[test]
fn output_that_cannot_be_written_fails() {
    if skip_on_oracle("nginx has no commands") {
        return;
    }
    let full = std::fs::File::options().write(true).open("/dev/full");
    let output = std::process::Command::new(server_path())
        .args(["completions", "bash"])
        .stdout(full.expect("/dev/full"))
        .output()
        .expect("the server binary can be executed");
    assert_eq!(output.status.code(), Some(1));
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("cannot write to standard output"), "{told}");
}
