//! `load_module`: a stock machine starts, and what may guard requests is not left out silently. And where the server writes
//! when nobody says where.

use weir_tests::{Finished, Site, http, is_oracle, run_with_mounts, skip_on_oracle, whole};

const EMPTY: &str = "events { }\n";
const WHY: &str = "nginx loads shared objects, which are not all here";

/// What the packages of Debian put into `modules-enabled`.
const DEBIAN: [&str; 8] = [
    "ngx_http_geoip2_module",
    "ngx_http_image_filter_module",
    "ngx_http_xslt_filter_module",
    "ngx_mail_module",
    "ngx_stream_module",
    "ngx_http_headers_more_filter_module",
    "ngx_http_echo_module",
    "ngx_http_perl_module",
];

fn tested(main: &str) -> Finished {
    whole(&format!("{main}\n{EMPTY}")).test()
}

fn lines(modules: &[&str]) -> String {
    let line = |module: &&str| format!("load_module modules/{module}.so;\n");
    modules.iter().map(line).collect()
}

#[test]
fn a_stock_debian_machine_starts() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = http("server { listen 127.0.0.1:%%PORT%%; return 200 ok; }")
        .main(&lines(&DEBIAN))
        .start();
    server.answers(&[("/", 200, "ok")]);
}

#[test]
fn what_is_built_in_is_silent() {
    if skip_on_oracle(WHY) {
        return;
    }
    let built_in = [
        "ngx_http_geoip2_module",
        "ngx_stream_geoip2_module",
        "ngx_stream_module",
        "ndk_http_module",
        "ngx_http_lua_module",
        "ngx_http_brotli_filter_module",
        "ngx_http_brotli_static_module",
        "ngx_http_headers_more_filter_module",
        "ngx_http_set_misc_module",
    ];
    let finished = tested(&lines(&built_in));
    assert_eq!(finished.code, 0);
    let said = finished.stderr;
    assert_eq!(said.lines().count(), 2, "{said}");
}

#[test]
fn what_does_nothing_by_itself_is_one_warning() {
    if skip_on_oracle(WHY) {
        return;
    }
    let finished = tested(&lines(&["ngx_mail_module"]));
    assert_eq!(finished.code, 0);
    assert_eq!(
        finished.first_line(),
        "weir: [warn] module \"ngx_mail_module\" is not available; its directives are errors in %%DIR%%/nginx.conf:1"
    );
    let said = finished.stderr;
    assert_eq!(said.matches("[warn]").count(), 1, "{said}");

    // Then its directive is what stops the server.
    let site = http("server { listen 127.0.0.1:%%PORT%%; fancyindex on; }");
    let finished = site
        .main(&lines(&["ngx_http_fancyindex_module"]))
        .run(&["-t"]);
    assert_eq!(finished.code, 1);
    let said = finished.stderr;
    assert!(said.contains("unknown directive \"fancyindex\""), "{said}");
}

#[test]
fn what_may_guard_requests_is_an_error_unless_it_is_allowed() {
    if skip_on_oracle(WHY) {
        return;
    }
    for module in [
        "ngx_http_naxsi_module",
        "ngx_http_somebodys_firewall_module",
    ] {
        let line = lines(&[module]);
        let expected = format!("module \"{module}\" is not available in %%DIR%%/nginx.conf:");
        for main in [line.clone(), format!("{line}load_module_unknown error;")] {
            let finished = tested(&main);
            assert_eq!(finished.code, 1);
            let first = finished.first_line();
            assert!(
                first.starts_with(&format!("weir: [emerg] {expected}")),
                "{first}"
            );
        }
        // Wherever it stands.
        for main in [
            format!("load_module_unknown warn;\n{line}"),
            format!("{line}load_module_unknown warn;"),
        ] {
            let finished = tested(&main);
            assert_eq!(finished.code, 0, "{}", finished.stderr);
            let first = finished.first_line();
            assert!(
                first.starts_with(&format!("weir: [warn] {expected}")),
                "{first}"
            );
        }
    }
    assert_eq!(tested("load_module_unknown maybe;").code, 1);
}

/// A start with the files of the system, in which `/etc` cannot be written.
#[test]
fn a_read_only_etc_is_enough() {
    if is_oracle() && skip_on_oracle("its folders were chosen when it was built") {
        return;
    }
    let finished = run_with_mounts(
        "mount -t tmpfs tmpfs /mnt
         cp /etc/passwd /etc/group /mnt
         mkdir /mnt/weir
         echo 'user root; events { } http { access_log off; server { listen unix:/run/s;
               location / { proxy_pass http://127.0.0.1:1; fastcgi_pass_header X; } } }' > /mnt/weir/weir.conf
         mount --bind /mnt /etc
         mount -o remount,bind,ro /etc
         for folder in /var/lib /var/log /run; do mount -t tmpfs tmpfs $folder; done
         mkdir /var/log/weir
         umask 077
         \"$SERVER\" -t
         \"$SERVER\"
         n=0; until [ -s /run/weir.pid ]; do n=$((n+1)); [ $n -lt 3000 ]; sleep 0.01; done
         stat -c '%a %n' /var/lib/weir /var/lib/weir/*
         pid=$(cat /run/weir.pid)
         \"$SERVER\" -s quit
         tail --pid=$pid -f /dev/null",
    );
    let Some(finished) = finished else { return };
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    let mut found: Vec<&str> = finished.stdout.lines().collect();
    found.sort_unstable();
    assert_eq!(
        found,
        [
            "700 /var/lib/weir/client_body_temp",
            "700 /var/lib/weir/fastcgi_temp",
            "700 /var/lib/weir/proxy_temp",
            "700 /var/lib/weir/scgi_temp",
            "700 /var/lib/weir/uwsgi_temp",
            "755 /var/lib/weir",
        ]
    );
}

/// With a prefix of their own, folders stay below it, as with nginx.
#[test]
fn a_prefix_has_its_temporary_folders() {
    let site: Site = whole(
        "events { } http { access_log off; server { listen 127.0.0.1:%%PORT%%; return 200; } }",
    );
    if is_oracle() && skip_on_oracle("its folders were chosen when it was built") {
        return;
    }
    let server = site.start();
    for folder in ["client_body_temp", "proxy_temp"] {
        assert!(server.path(folder).is_dir());
    }
}
