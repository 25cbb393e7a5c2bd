//! Debian packages that a task needs, installed only when they are missing.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::Outcome;
use crate::shell;

/// A program and the package that has it.
pub const NGINX: (&str, &str) = ("nginx", "nginx");
/// A load generator.
pub const WRK: (&str, &str) = ("wrk", "wrk");
/// A peer.
pub const HAPROXY: (&str, &str) = ("haproxy", "haproxy");
/// Shows system calls.
pub const STRACE: (&str, &str) = ("strace", "strace");
/// The name of the program has PHP's version at its end.
pub const PHP_FPM: (&str, &str) = ("php-fpm*", "php-fpm");
/// An application server.
pub const UWSGI: (&str, &str) = ("uwsgi", "uwsgi");
/// A plugin is no program; it comes with a tool of this name.
pub const UWSGI_PYTHON: (&str, &str) = ("uwsgi_python3", "uwsgi-plugin-python3");
/// A peer.
pub const APACHE: (&str, &str) = ("apache2", "apache2");
/// A peer.
pub const VARNISH: (&str, &str) = ("varnishd", "varnish");
/// A peer.
pub const H2O: (&str, &str) = ("h2o", "h2o");
/// Load over HTTP/2.
pub const H2LOAD: (&str, &str) = ("h2load", "nghttp2-client");
/// Downloads over HTTP/2.
pub const CURL: (&str, &str) = ("curl", "curl");
/// Opens a TUN device.
pub const SOCAT: (&str, &str) = ("socat", "socat");
/// Counts instructions.
pub const VALGRIND: (&str, &str) = ("valgrind", "valgrind");
/// Makes certificates.
pub const OPENSSL: (&str, &str) = ("openssl", "openssl");
/// A cache that is asked by key.
pub const MEMCACHED: (&str, &str) = ("memcached", "memcached");

/// lua-nginx-module is no program: a whole path is looked for as it stands.
pub const NGINX_LUA: (&str, &str) = (
    "/usr/lib/nginx/modules/ngx_http_lua_module.so",
    "libnginx-mod-http-lua",
);
/// Writes responses; a whole path as well.
pub const NGINX_ECHO: (&str, &str) = (
    "/usr/lib/nginx/modules/ngx_http_echo_module.so",
    "libnginx-mod-http-echo",
);
/// Sets fields; a whole path as well.
pub const NGINX_HEADERS_MORE: (&str, &str) = (
    "/usr/lib/nginx/modules/ngx_http_headers_more_filter_module.so",
    "libnginx-mod-http-headers-more-filter",
);
/// Computes variables; a whole path as well.
pub const NGINX_SET_MISC: (&str, &str) = (
    "/usr/lib/nginx/modules/ngx_http_set_misc_module.so",
    "libnginx-mod-http-set-misc",
);
/// A library in Lua.
pub const LUA_LRUCACHE: (&str, &str) = (
    "/usr/share/lua/5.1/resty/lrucache.lua",
    "lua-resty-lrucache",
);
/// `stream` is a module of its own in Debian; a whole path as well.
pub const NGINX_STREAM: (&str, &str) = (
    "/usr/lib/nginx/modules/ngx_stream_module.so",
    "libnginx-mod-stream",
);
/// Reads profiles, which needs no kernel that has it.
pub const APPARMOR: (&str, &str) = ("apparmor_parser", "apparmor");
/// What a library in Lua speaks to.
pub const REDIS: (&str, &str) = ("redis-server", "redis-server");

/// Installs what is missing. Works as root or through a `sudo` that asks no password; otherwise
/// it says what to install.
pub fn need(programs: &[(&str, &str)]) -> Outcome {
    let missing: Vec<&str> = programs
        .iter()
        .filter(|(program, _)| !shell::is_installed(program))
        .map(|(_, package)| *package)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let by_hand = format!(
        "missing: install by hand with: apt-get install {}",
        missing.join(" ")
    );
    if !shell::is_installed("apt-get") {
        return Err(format!("{by_hand} (this is no Debian system)"));
    }
    let as_root = shell::is_root();
    if !as_root && !shell::succeeds(Command::new("sudo").args(["-n", "true"])) {
        return Err(format!(
            "{by_hand} (not root, and sudo asks for a password)"
        ));
    }
    let _quiet = QuietServices::begin(as_root);
    let limit = Duration::from_secs(300);
    let apt = |arguments: &[&str]| {
        let mut command = if as_root {
            Command::new("apt-get")
        } else {
            Command::new("sudo")
        };
        if !as_root {
            command.args(["-n", "apt-get"]);
        }
        // Another installation may be under way.
        shell::run(
            command
                .args(["-o", "DPkg::Lock::Timeout=240"])
                .args(arguments)
                .env("DEBIAN_FRONTEND", "noninteractive"),
            limit,
        )
    };
    let mut install = vec!["install", "--yes", "--no-install-recommends"];
    install.extend(&missing);
    // The lists may be fresh already, or absent on a new machine.
    apt(&install)
        .or_else(|_| apt(&["update"]).and_then(|()| apt(&install)))
        .map_err(|error| format!("{error}; {by_hand}"))
}

/// Installs what is missing where that is possible; what stays missing is named, and nothing fails.
pub fn want(programs: &[(&str, &str)]) {
    // One call of apt-get takes seconds, so all at once; one by one if there is a package that cannot be had.
    if need(programs).is_ok() {
        return;
    }
    for program in programs {
        if let Err(why) = need(&[*program]) {
            println!("{}: {why}", program.0);
        }
    }
}

/// Debian starts a service when its package is installed; nobody wants a web server at port 80
/// for having run our tests. `policy-rc.d` is Debian's way to say so.
struct QuietServices {
    placed: bool,
}

const POLICY: &str = "/usr/sbin/policy-rc.d";

impl QuietServices {
    fn begin(as_root: bool) -> Self {
        let placed = as_root
            && !Path::new(POLICY).exists()
            && fs::write(POLICY, "#!/bin/sh\nexit 101\n").is_ok();
        if placed {
            // Without the mode it is not obeyed and the service starts: harmless, only unwanted.
            let _ = Command::new("chmod").args(["0755", POLICY]).status();
        }
        Self { placed }
    }
}

impl Drop for QuietServices {
    fn drop(&mut self) {
        if self.placed {
            let _ = fs::remove_file(POLICY);
        }
    }
}
