//! Long lists of patterns: the first that matches counts, and those that are passed over leave no trace.

use weir_tests::http;

/// `count` lines made by `line` of a number.
fn lines(count: usize, line: impl Fn(usize) -> String) -> String {
    (0..count).map(|number| line(number) + "\n").collect()
}

#[test]
fn the_first_of_many_patterns_wins_wherever_it_stands() {
    let conf = format!(
        "map $arg_agent $robot {{ default none; ~^$ empty; {} ~*bot anybot; ~. other; }}
        server {{ listen 127.0.0.1:%%PORT%%; server_name known;
            location / {{ return 200 \"$robot $uri\"; }}
            {}
            location ~ \"^/[0-9]{{4}}$\" {{ return 200 digits; }}
            {}
        }}
        server {{ listen 127.0.0.1:%%PORT%%; server_name ~^(?<sub>.+)\\.every\\.test$; return 200 \"every $sub\"; }}
        {}",
        lines(1200, |n| format!("\"~*\\b(?<name>robot{n}x)[/ ]\" \"$name {n}\";")),
        lines(150, |n| format!("location ~* ^/name{n}/(.*)\\.(php|asp)$ {{ return 200 \"{n} $1 $2\"; }}")),
        lines(150, |n| format!("location ~ /name{n}/ {{ return 200 \"late {n}\"; }}")),
        lines(50, |n| format!(
            "server {{ listen 127.0.0.1:%%PORT%%; server_name ~^(www\\.)?site{n}\\.(?<zone>test|example)$; return 200 \"site {n} $zone\"; }}"
        )),
    );
    let server = http(&conf).start();
    server.answers(&[
        ("/?agent=robot7x/1", 200, "robot7x 7 /"),
        ("/?agent=ROBOT1199X/1", 200, "ROBOT1199X 1199 /"),
        ("/?agent=robot1100x/robot3x/", 200, "robot3x 3 /"),
        ("/?agent=robot1200x/", 200, "anybot /"),
        ("/?agent=curl", 200, "other /"),
        ("/?agent=", 200, "none /"),
        ("/name3/a.PHP", 200, "3 a PHP"),
        ("/NAME149/b/c.asp", 200, "149 b/c asp"),
        ("/name3/a.txt", 200, "late 3"),
        ("/name149/name2/x", 200, "late 2"),
        ("/2024", 200, "digits"),
        ("/name150/x.php", 200, "none /name150/x.php"),
    ]);
    for (host, expected) in [
        ("site49.test", "site 49 test"),
        ("www.SITE0.example", "site 0 example"),
        ("a.every.test", "every a"),
        ("other.test", "none /"),
    ] {
        let reply = server.raw(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        let text = reply.expect(200).text();
        assert_eq!(text, expected, "{host}");
    }
}

#[test]
fn rewrites_that_are_passed_over_change_nothing_but_the_captures() {
    let conf = format!(
        "server {{ listen 127.0.0.1:%%PORT%%;
            location /old {{
                if ($arg_first ~ (.*)) {{ set $first $1; }}
                {}
                rewrite ^/old/to(\\d+)$ /old/page$1;
                {}
                return 200 \"$uri [$1] $first\";
            }}
            location /new {{ return 200 \"new $uri $args\"; }}
            location /agent {{
                {}
                if ($arg_agent ~* \"curl|wget\") {{ return 200 \"tool $1\"; }}
                return 200 nobody;
            }}
        }}",
        lines(100, |n| format!(
            "rewrite ^/old/page{n}$ /new/early{n} last;"
        )),
        lines(100, |n| format!(
            "rewrite ^/old/page{n}$ /new/page{n}?n={n} last;"
        )),
        lines(60, |n| format!(
            "if ($arg_agent ~ \"^(Robot{n})/\") {{ return 200 \"robot {n} $1\"; }}"
        )),
    );
    http(&conf).start().answers(&[
        ("/old/page99", 200, "new /new/early99 "),
        ("/old/to7?a=b", 200, "new /new/page7 n=7&a=b"),
        ("/old/to100", 200, "/old/page100 [] "),
        ("/old/none?first=kept", 200, "/old/none [] kept"),
        ("/agent?agent=Robot59/1", 200, "robot 59 Robot59"),
        ("/agent?agent=robot59/wget", 200, "tool "),
        ("/agent", 200, "nobody"),
    ]);
}
