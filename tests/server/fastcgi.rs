//! `fastcgi_pass`: PHP-FPM as it is, and applications that do what they should not.

use std::net::TcpStream;

use weir_tests::{
    Application, Scripted, Server, Site, http, is_oracle, read_until, send, skip_on_oracle,
};

const PHP_FPM: &str = "[global]
error_log = php.log
daemonize = no
[www]
listen = php.sock
listen.mode = 0666
user = root
group = root
pm = static
pm.max_children = 2
catch_workers_output = no
";

const PHP_SITE: &str = "server {
    listen 127.0.0.1:%%PORT%%;
    location ~ \\.php(/|$) {
        fastcgi_split_path_info ^(.+?\\.php)(/.*)$;
        fastcgi_param SCRIPT_FILENAME $document_root$fastcgi_script_name;
        fastcgi_param SCRIPT_NAME $fastcgi_script_name;
        fastcgi_param PATH_INFO $fastcgi_path_info;
        fastcgi_param QUERY_STRING $query_string;
        fastcgi_param REQUEST_METHOD $request_method;
        fastcgi_param CONTENT_TYPE $content_type;
        fastcgi_param CONTENT_LENGTH $content_length;
        fastcgi_param NOT_THERE $arg_absent if_not_empty;
        fastcgi_param HTTP_X_SECRET '';
        fastcgi_pass unix:%%DIR%%/php.sock;
        location ~ ^/stream { fastcgi_request_buffering off; fastcgi_buffering off; fastcgi_pass unix:%%DIR%%/php.sock;
            fastcgi_param SCRIPT_FILENAME $document_root/echo.php;
            fastcgi_param REQUEST_METHOD $request_method; fastcgi_param CONTENT_TYPE $content_type;
            fastcgi_param CONTENT_LENGTH $content_length; }
    }
}";

fn php(site: Site) -> Option<(Site, Application)> {
    let site = site.file("php-fpm.conf", PHP_FPM);
    let folder = site.path("").to_string_lossy().into_owned();
    let arguments = [
        "--nodaemonize",
        "--allow-to-run-as-root",
        "--prefix",
        &folder,
        "--fpm-config",
        "php-fpm.conf",
    ];
    let application = Application::start(&site, "php-fpm", &arguments, "php.sock")?;
    Some((site, application))
}

#[test]
fn php_gets_params_and_content_and_answers() {
    let site = http(PHP_SITE)
        .file(
            "html/env.php",
            "<?php header('X-Two: a'); header('X-Two: b', false); http_response_code(203);
            foreach (['PATH_INFO', 'QUERY_STRING', 'HTTP_X_MANY', 'HTTP_X_SECRET', 'NOT_THERE', 'HTTP_HOST'] as $name)
                echo $name, '=', $_SERVER[$name] ?? 'none', \"\\n\";",
        )
        .file("html/echo.php", "<?php echo strlen(file_get_contents('php://input')), ' ', md5(file_get_contents('php://input'));")
        .file("html/away.php", "<?php header('Location: /elsewhere');")
        .file("html/log.php", "<?php file_put_contents('php://stderr', \"something odd.\\n\"); error_log('a warning'); echo 'done';");
    let Some((site, _php)) = php(site) else {
        return;
    };
    let server = site.start();

    let reply = server.get_with(
        "/env.php/more/path?a=b",
        &["X-Many: 1", "X-Secret: s", "X-Many: 2"],
    );
    assert_eq!((reply.status, reply.all("X-Two")), (203, vec!["a", "b"]));
    // Before 1.23 nginx sent such fields one by one, and the application took the last.
    let many = if is_oracle() && !reply.text().contains("=1, 2") {
        "2"
    } else {
        "1, 2"
    };
    assert_eq!(
        reply.text(),
        format!(
            "PATH_INFO=/more/path\nQUERY_STRING=a=b\nHTTP_X_MANY={many}\nHTTP_X_SECRET=none\nNOT_THERE=none\nHTTP_HOST=localhost\n"
        )
    );
    let away = server.get("/away.php");
    assert_eq!(away.status, 302);
    assert!(
        away.field("Location").ends_with("/elsewhere"),
        "{}",
        away.field("Location")
    );
    assert_eq!(server.get("/missing.php").status, 404);
    server.line(
        "error.log",
        "FastCGI sent in stderr: \"Primary script unknown\"",
    );
    assert_eq!(server.get("/log.php").text(), "done");
    server.line(
        "error.log",
        "FastCGI sent in stderr: \"PHP message: a warning\"",
    );

    // More than one record, and more than one buffer.
    for target in ["/echo.php", "/stream/echo.php"] {
        let content = "0123456789".repeat(30_000);
        let mut connection = server.connect();
        connection.request("POST", target, &["Content-Length: 300000"]);
        connection.send(&content);
        let reply = connection.reply().expect(200);
        assert!(
            reply.text().starts_with("300000 "),
            "{target}: {}",
            reply.text()
        );
    }
}

#[test]
fn large_output_of_php_arrives_whole() {
    let site = http(PHP_SITE)
        .file(
            "html/big.php",
            "<?php for ($i = 0; $i < 200000; $i++) echo '0123456789';",
        )
        .file(
            "html/head.php",
            "<?php header('Content-Length: 5'); echo '12345';",
        );
    let Some((site, _php)) = php(site) else {
        return;
    };
    let server = site.start();
    let reply = server.get("/big.php").expect(200);
    assert_eq!((reply.body.len(), reply.cut), (2_000_000, false));
    let mut connection = server.connect();
    for _ in 0..3 {
        connection.request("HEAD", "/head.php", &[]);
        let reply = connection.reply_to("HEAD");
        assert_eq!((reply.status, reply.field("Content-Length")), (200, "5"));
    }
}

#[test]
fn connections_to_php_are_kept() {
    let site = http(
        "upstream php { server unix:%%DIR%%/php.sock; keepalive 1; }
        server {
            listen 127.0.0.1:%%PORT%%;
            fastcgi_keep_conn on;
            fastcgi_param SCRIPT_FILENAME $document_root$fastcgi_script_name;
            fastcgi_param REQUEST_METHOD $request_method;
            location / { fastcgi_pass php; }
        }",
    )
    // A process of PHP stays with its connection, so the same one answers again.
    .file("html/pid.php", "<?php echo getmypid();");
    let Some((site, _php)) = php(site) else {
        return;
    };
    let server = site.start();
    let first = server.get("/pid.php").expect(200).text();
    for _ in 0..5 {
        assert_eq!(server.get("/pid.php").expect(200).text(), first);
    }
}

/// A record of FastCGI.
fn record(kind: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![
        1,
        kind,
        0,
        1,
        (content.len() >> 8) as u8,
        content.len() as u8,
        0,
        0,
    ];
    bytes.extend_from_slice(content);
    bytes
}

const END_REQUEST: u8 = 3;
const STDOUT: u8 = 6;
const STDERR: u8 = 7;

/// Reads a request without content: to the end of the stream that would have it.
fn read_request(stream: &mut TcpStream) {
    read_until(stream, &[1, 5, 0, 1, 0, 0, 0, 0]);
}

/// The next response ends before its end, or does not even begin.
#[track_caller]
fn assert_cut(server: &Server) {
    let reply = server.raw_or_closed("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(reply.as_ref().is_none_or(|reply| reply.cut), "{reply:?}");
}

fn site_of(port: u16, more: &str) -> Site {
    http(&format!(
        "server {{ listen 127.0.0.1:%%PORT%%; location / {{ fastcgi_pass 127.0.0.1:{port}; {more} }} }}"
    ))
}

/// What an application sends, and the line of the error log that says what is wrong with it.
const WRONG: &[(&[u8], &str)] = &[
    (
        b"HTTP/1.1 200 OK\r\n\r\n",
        "upstream sent unsupported FastCGI protocol version: 72",
    ),
    (
        &[1, 9, 0, 1, 0, 0, 0, 0],
        "upstream sent invalid FastCGI record type: 9",
    ),
    (
        &[1, 6, 0, 2, 0, 0, 0, 0],
        "upstream sent unexpected FastCGI request id low byte: 2",
    ),
    (
        &[1, 6, 0, 1, 0, 0, 0, 0],
        "upstream prematurely closed FastCGI stdout",
    ),
    (
        b"\x01\x06\x00\x01\x00\x0f\x00\x00Status: what\r\n\r",
        "upstream prematurely closed connection",
    ),
    (
        b"\x01\x06\x00\x01\x00\x10\x00\x00Status: what\r\n\r\n",
        "upstream sent invalid status \"what\"",
    ),
    (b"", "upstream prematurely closed connection"),
];

#[test]
fn nonsense_in_place_of_a_head_is_502_with_a_line_that_says_why() {
    let application = Scripted::start(|stream, number| {
        read_request(stream);
        send(stream, WRONG[number].0);
    });
    let server = site_of(application.port(), "").start();
    for (number, (_, line)) in WRONG.iter().enumerate() {
        assert_eq!(server.get(&format!("/{number}")).status, 502, "{line}");
        let request = format!("GET /{number} ");
        let logged = server.line("error.log", &request);
        assert!(
            logged.contains(line) && logged.contains("upstream: \"fastcgi://127.0.0.1:"),
            "{logged}"
        );
    }
}

#[test]
fn a_response_that_breaks_off_can_not_be_taken_for_whole() {
    if skip_on_oracle("nginx takes the end of the connection for the end of the response") {
        return;
    }
    let application = Scripted::start(|stream, _| {
        read_request(stream);
        send(
            stream,
            record(STDOUT, b"Content-Type: text/plain\r\n\r\nhalf of it"),
        );
    });
    let server = site_of(application.port(), "").start();
    assert_cut(&server);
    server.line(
        "error.log",
        "upstream prematurely closed connection while reading upstream",
    );
}

#[test]
fn messages_are_logged_and_some_make_the_response_invalid() {
    if skip_on_oracle("messages fill nginx's buffer for the head") {
        return;
    }
    let application = Scripted::start(|stream, number| {
        read_request(stream);
        // More of them than the buffer for the head could hold.
        for _ in 0..2_000 {
            send(stream, record(STDERR, b"just so you know.\n"));
        }
        if number > 0 {
            send(stream, record(STDERR, b"PHP Fatal error: gone"));
        }
        send(stream, record(STDOUT, b"Status: 200 OK\r\n"));
        send(stream, record(STDOUT, b"X: y\r\n\r\nfine"));
        send(stream, record(STDOUT, b""));
        send(stream, record(END_REQUEST, &[0; 8]));
    });
    let server = site_of(
        application.port(),
        "fastcgi_catch_stderr 'PHP Fatal error';",
    )
    .start();
    let reply = server.get("/").expect(200);
    assert_eq!((reply.field("X"), reply.text().as_str()), ("y", "fine"));
    server.line("error.log", "FastCGI sent in stderr: \"just so you know\"");
    assert_eq!(server.get("/").status, 502);
    server.line("error.log", "PHP Fatal error: gone");
}

#[test]
fn an_application_that_ignores_its_length_does_not_reach_the_client() {
    let application = Scripted::start(|stream, number| {
        read_request(stream);
        let content: &[u8] = if number == 0 {
            b"12345too much"
        } else {
            b"123"
        };
        let head = b"Content-Length: 5\r\n\r\n";
        send(stream, record(STDOUT, &[head, content].concat()));
        send(
            stream,
            [record(STDOUT, b""), record(END_REQUEST, &[0; 8])].concat(),
        );
    });
    let server = site_of(application.port(), "").start();
    assert_eq!(server.get("/").expect(200).text(), "12345");
    assert_cut(&server);
    server.line(
        "error.log",
        "upstream sent more data than specified in \"Content-Length\" header",
    );
    server.line("error.log", "upstream prematurely closed FastCGI stdout");
}
