//! Programs that run beside nginx: they read its files and logs, send its signals, look at its processes. The server is at
//! `/usr/sbin/nginx`, as the package `weir-nginx` puts it there, in namespaces of its own (`clients/box.sh`), which takes root.

use super::client;
use crate::case::Case;
use crate::needs::Need;

const CURL: Need = Need::Debian("/usr/bin/curl", "curl");
const NGINX: Need = Need::Debian("/etc/init.d/nginx", "nginx");
const OPENSSL: Need = Need::Debian("/usr/bin/openssl", "openssl");

const OWNER: &str =
    "a log keeps root as its owner: the worker has it open and need not be able to open it";

/// What all of them share. Without a configuration, the client is a script for the box.
fn beside(name: &'static str, what: &'static str, more: Vec<Need>) -> Case {
    let mut case = Case::new(name, what);
    case.needs = vec![NGINX, CURL];
    case.needs.extend(more);
    case.files = vec![client!("box.sh")];
    case
}

/// The script of System V, `service`, cron and ansible; what looks for processes.
pub(super) fn init() -> Case {
    let monit = Need::Debian("/usr/bin/monit", "monit");
    let mut case = beside(
        "init",
        "/etc/init.d/nginx (all its actions), nginx -s, pgrep, pidof, monit",
        vec![monit],
    );
    case.files.push(client!("init.sh"));
    case.client = "init.sh";
    case.differs = vec![("the log belongs to: ", OWNER)];
    case
}

/// The snippet of Debian's package.
pub(super) fn logrotate() -> Case {
    let mut case = beside(
        "logrotate",
        "logrotate with Debian's snippet: three rounds, no line lost",
        vec![Need::Debian("/usr/sbin/logrotate", "logrotate")],
    );
    case.files.push(client!("logrotate.sh"));
    case.client = "logrotate.sh";
    case.differs = vec![("/var/log/nginx/error.log ", OWNER)];
    case
}

/// All filters for nginx, on both logs.
pub(super) fn fail2ban() -> Case {
    let mut case = beside(
        "fail2ban",
        "fail2ban's filters of nginx: what they find after the same visitors",
        vec![Need::Debian("/usr/bin/fail2ban-regex", "fail2ban"), OPENSSL],
    );
    case.files.push(client!("fail2ban.sh"));
    case.client = "fail2ban.sh";
    case
}

/// Readers of `stub_status`.
pub(super) fn status() -> Case {
    let mut case = beside(
        "status",
        "munin, collectd and the Prometheus exporter at stub_status",
        vec![
            Need::Debian(
                "/usr/share/munin/plugins/nginx_status",
                "munin-plugins-core",
            ),
            Need::Debian("/usr/share/doc/libwww-perl", "libwww-perl"),
            Need::Debian("/usr/sbin/collectd", "collectd-core"),
            Need::Debian(
                "/usr/bin/prometheus-nginx-exporter",
                "prometheus-nginx-exporter",
            ),
        ],
    );
    case.files.push(client!("status.sh"));
    case.client = "status.sh";
    case
}

/// The exporter of `stub_status` and of the commercial nginx's API.
pub(super) fn exporter() -> Case {
    let mut case = beside(
        "exporter",
        "nginx-prometheus-exporter in both modes: stub_status, and the API",
        vec![Need::Debian(
            "/usr/bin/prometheus-nginx-exporter",
            "prometheus-nginx-exporter",
        )],
    );
    case.files.push(client!("exporter.sh"));
    case.client = "exporter.sh";
    case.differs = vec![("api: ", "only the commercial nginx has the API")];
    case
}

/// Readers of access logs.
pub(super) fn logs() -> Case {
    let mut case = beside(
        "goaccess",
        "GoAccess on the access logs: formats with and without virtual hosts; JSON",
        vec![Need::Debian("/usr/bin/goaccess", "goaccess")],
    );
    case.files.push(client!("logs.sh"));
    case.client = "logs.sh";
    case
}

/// Files and `-T`, parsed and built again.
pub(super) fn crossplane() -> Case {
    let mut case = beside(
        "crossplane",
        "crossplane: parse, build, minify, and what nginx -T prints",
        vec![Need::Python("crossplane", "crossplane")],
    );
    case.files.push(client!("crossplane.sh"));
    case.client = "crossplane.sh %%PYTHON%%";
    case
}

/// The plugin that edits nginx's files, and an authority.
pub(super) fn certbot() -> Case {
    let pebble = "github.com/letsencrypt/pebble/v2/cmd/pebble@latest";
    let challenges = "github.com/letsencrypt/pebble/v2/cmd/pebble-challtestsrv@latest";
    let mut case = beside(
        "certbot",
        "certbot --nginx against Pebble: run, redirect, HSTS, renew, webroot, expand, delete",
        vec![
            Need::Debian(
                "/usr/share/doc/python3-certbot-nginx",
                "python3-certbot-nginx",
            ),
            Need::Go("pebble", pebble),
            Need::Go("pebble-challtestsrv", challenges),
            OPENSSL,
        ],
    );
    case.files.push(client!("certbot.sh"));
    case.client = "certbot.sh %%GO%%";
    case
}
