//! `php`: bursts of clients for a slow page (SCORE row P3). The page costs 50 ms of CPU and is 52 KB long; PHP-FPM
//! answers it behind Weir, nginx and Apache, and PHP inside Apache's own processes.
//!
//! N clients come within a second. For each N and server: the mean and longest time until a client had all of its page,
//! and how many got none.

use std::fs;
use std::net::TcpStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use xtask::flags::Flags;
use xtask::{Outcome, packages, shell};

use crate::Bench;
use crate::clients::{self, Visit};
use crate::report::{Cell, Plot, Row, Section, Table};
use crate::server::{Contender, Folder, Placement, Server, free_port};

pub(crate) const FLAGS: &str = "\
  --clients A,B    the bursts (1,50,200,500,1000)
  --servers A,B    only these (nginx, weir, weir-queue, nginx-cache, weir-cache, prefork, worker, event)";

const SERVERS: &str = "nginx,weir,weir-queue,nginx-cache,weir-cache,prefork,worker,event";

/// The processes of PHP-FPM: what a machine of two cores can use.
const CHILDREN: usize = 8;

/// The page. CPU time is what it takes, not time: a machine that is busy must not make it cheaper.
const PAGE: &str = r#"<?php
function spent() {
    $usage = getrusage();
    return $usage["ru_utime.tv_sec"] + $usage["ru_stime.tv_sec"]
        + ($usage["ru_utime.tv_usec"] + $usage["ru_stime.tv_usec"]) / 1e6;
}
$begin = spent();
$rows = [];
while (spent() - $begin < 0.05) {
    for ($i = 0; $i < 200; $i++) {
        $rows[$i] = md5($i . json_encode($rows[$i] ?? null));
    }
}
echo "<!doctype html><title>slow</title>\n";
$line = "<p>" . implode(" ", array_slice($rows, 0, 15)) . "</p>\n";
echo substr(str_repeat($line, 200), 0, 52 * 1024 - 60), "\n<p>end of page</p>\n";
"#;

const FPM: &str = "
[global]
error_log = %%DIR%%/fpm.log
daemonize = no
[www]
%%USER%%
listen = %%DIR%%/fpm.sock
listen.mode = 0666
listen.backlog = 511
pm = static
pm.max_children = %%CHILDREN%%
";

/// Weir and nginx.
const CONFIGURATION: &str = "
worker_processes 2;
events { worker_connections 4096; }
http {
    access_log off;
    %%DIRECTIVES%%
    server {
        listen 127.0.0.1:%%PORT%% backlog=4096;
        location / {
            fastcgi_pass php;
            fastcgi_read_timeout 120s;
            fastcgi_param SCRIPT_FILENAME %%DIR%%/html/page.php;
            fastcgi_param REQUEST_METHOD $request_method;
            fastcgi_param QUERY_STRING $query_string;
            %%LOCATION%%
        }
    }
}
";

const CACHE: &str = "
            fastcgi_cache pages;
            fastcgi_cache_key $request_uri;
            fastcgi_cache_valid 200 1s;
            fastcgi_cache_lock on;
            fastcgi_cache_use_stale updating;
            fastcgi_cache_background_update on;";

const APACHE: &str = "
ServerName localhost
ServerRoot %%DIR%%
PidFile %%DIR%%/apache.pid
Listen 127.0.0.1:%%PORT%%
ListenBacklog 4096
ErrorLog %%DIR%%/apache.log
DocumentRoot %%DIR%%/html
%%USER%%
Mutex file:%%DIR%%
LoadModule mpm_%%MPM%%_module %%MODULES%%/mod_mpm_%%MPM%%.so
LoadModule authz_core_module %%MODULES%%/mod_authz_core.so
LoadModule mime_module %%MODULES%%/mod_mime.so
TypesConfig /etc/mime.types
%%PHP%%
<Directory %%DIR%%/html>
    Require all granted
</Directory>
";

/// One server under the bursts, ended when this is dropped.
enum Running {
    Ours(Server),
    Apache(Apache),
}

struct Apache {
    child: Child,
    port: u16,
}

impl Running {
    fn port(&self) -> u16 {
        match self {
            Running::Ours(server) => server.port,
            Running::Apache(apache) => apache.port,
        }
    }
}

impl Drop for Apache {
    fn drop(&mut self) {
        stop(&mut self.child);
    }
}

/// PHP-FPM, ended when this is dropped.
struct Fpm(Child);

impl Drop for Fpm {
    fn drop(&mut self) {
        stop(&mut self.0);
    }
}

/// TERM, so that a master takes its children along.
fn stop(child: &mut Child) {
    let _ = Command::new("kill").arg(child.id().to_string()).status();
    let _ = child.wait();
}

pub(crate) fn run(bench: &Bench, flags: &mut Flags) -> Result<Section, String> {
    let bursts: String = flags.value("--clients", "1,50,200,500,1000".to_owned())?;
    let servers: String = flags.value("--servers", SERVERS.to_owned())?;
    flags.finish()?;
    packages::need(&[packages::NGINX, packages::PHP_FPM])?;
    let bursts: Vec<usize> = bursts
        .split(',')
        .map(|number| number.parse().map_err(|_| format!("no number: {number}")))
        .collect::<Result<_, _>>()?;
    let folder = Folder::new("bench-php")?;
    fs::write(folder.path.join("html/page.php"), PAGE).map_err(|error| error.to_string())?;
    let _fpm = start_fpm(&folder.path)?;
    let mut measured = Vec::new();
    for name in servers.split(',') {
        let running = match name {
            "prefork" | "worker" | "event" => start_apache(name, &folder.path).map(Running::Apache),
            _ if name.starts_with("nginx") => {
                start(name, &bench.nginx, &folder.path).map(Running::Ours)
            }
            _ if name.starts_with("weir") => {
                start(name, &bench.weir, &folder.path).map(Running::Ours)
            }
            other => return Err(format!("no server {other:?}")),
        };
        let running = match running {
            Ok(running) => running,
            Err(why) => {
                println!("{name} left out: {why}");
                continue;
            }
        };
        let page = |_| "/page.php".to_owned();
        let come = |&count: &usize| clients::burst(running.port(), page, count, SECOND);
        measured.push((name.to_owned(), bursts.iter().map(come).collect()));
    }
    Ok(section(&bursts, &measured))
}

/// In this time a burst comes.
const SECOND: Duration = Duration::from_secs(1);

/// A server, and what each burst saw.
type Measured = (String, Vec<Vec<Visit>>);

fn section(bursts: &[usize], measured: &[Measured]) -> Section {
    let seconds = |visits: &[Visit]| -> Vec<f64> {
        let whole = visits.iter().filter(|visit| visit.is_whole);
        whole.map(|visit| visit.took.as_secs_f64()).collect()
    };
    let table = |title: &str, of: &dyn Fn(&[f64]) -> f64| Table {
        title: title.to_owned(),
        unit: "s, failures where there were any".to_owned(),
        contenders: measured.iter().map(|(name, _)| name.clone()).collect(),
        base: None,
        rows: bursts
            .iter()
            .enumerate()
            .map(|(at, count)| Row {
                score: "P3".to_owned(),
                name: format!("{count} clients in a second"),
                goal: None,
                cells: measured
                    .iter()
                    .map(|(_, visits)| {
                        let times = seconds(&visits[at]);
                        let cell = match times.is_empty() {
                            true => Cell::default(),
                            false => Cell::one(of(&times)),
                        };
                        match visits[at].len() - times.len() {
                            0 => cell,
                            failed => cell.with(format!("{failed} failed")),
                        }
                    })
                    .collect(),
            })
            .collect(),
    };
    let mean = |times: &[f64]| times.iter().sum::<f64>() / times.len().max(1) as f64;
    let longest = |times: &[f64]| times.iter().copied().fold(0.0, f64::max);
    let plots = bursts
        .iter()
        .enumerate()
        .filter(|(_, count)| **count >= 100);
    Section {
        title: "A slow page of PHP".to_owned(),
        how: format!(
            "The page takes 50 ms of CPU and has 52 KB. {CHILDREN} processes of PHP-FPM behind nginx, Weir, Apache worker and event; PHP inside Apache prefork. \
             queue: Weir keeps what PHP cannot take. cache: one second, stale while it is fetched anew, with the lock."
        ),
        tables: vec![
            table("Mean time until a client had its page", &mean),
            table("Longest time", &longest),
        ],
        plots: plots
            .map(|(at, count)| Plot::Latencies {
                title: format!("{count} clients in a second"),
                curves: measured
                    .iter()
                    .map(|(name, visits)| (name.clone(), clients::percentiles(&visits[at])))
                    .collect(),
            })
            .collect(),
        ..Section::default()
    }
}

fn start(name: &str, binary: &Path, folder: &Path) -> Result<Server, String> {
    let has_queue = name == "weir-queue";
    let is_cache = name.ends_with("-cache");
    let socket = folder.join("fpm.sock");
    let socket = socket.display();
    // Without, what is more than there are processes waits in the socket's queue, where nobody sees it.
    let group = match has_queue {
        true => format!(
            "upstream php {{ server unix:{socket} max_conns={CHILDREN}; queue 4096 timeout=120s; }}"
        ),
        false => format!("upstream php {{ server unix:{socket}; }}"),
    };
    let zone = format!(
        "fastcgi_cache_path {}/cache-{name} keys_zone=pages:10m;",
        folder.display()
    );
    let contender = Contender {
        name: name.to_owned(),
        binary: binary.to_owned(),
        directives: match is_cache {
            true => group + &zone,
            false => group,
        },
    };
    let configuration = CONFIGURATION
        .replace("%%DIR%%", &folder.display().to_string())
        .replace("%%LOCATION%%", if is_cache { CACHE } else { "" });
    let place = folder.join(name);
    fs::create_dir_all(&place).map_err(|error| error.to_string())?;
    Server::start(&contender, &place, &configuration, &Placement::default())
}

fn start_fpm(folder: &Path) -> Result<Fpm, String> {
    let program = find(&["/usr/sbin", "/usr/bin"], "php-fpm").ok_or("there is no php-fpm")?;
    let user = match shell::is_root() {
        true => "user = www-data\ngroup = www-data",
        false => "",
    };
    let configuration = FPM
        .replace("%%DIR%%", &folder.display().to_string())
        .replace("%%USER%%", user)
        .replace("%%CHILDREN%%", &CHILDREN.to_string());
    let file = folder.join("fpm.conf");
    fs::write(&file, configuration).map_err(|error| error.to_string())?;
    let child = Command::new(program)
        .args([
            "-n",
            "-d",
            "zend_extension=opcache.so",
            "-d",
            "opcache.enable=1",
            "-F",
            "-y",
        ])
        .arg(&file)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("php-fpm: {error}"))?;
    let mut fpm = Fpm(child);
    let socket = folder.join("fpm.sock");
    await_it(&mut fpm.0, "php-fpm", || {
        std::os::unix::net::UnixStream::connect(&socket).is_ok()
    })?;
    Ok(fpm)
}

/// Apache with PHP in its processes (`prefork`), or with threads and PHP-FPM (`event`).
fn start_apache(mpm: &str, folder: &Path) -> Result<Apache, String> {
    if packages::need(&[packages::APACHE]).is_err() {
        return Err("apache2 is not installed".to_owned());
    }
    let modules = Path::new("/usr/lib/apache2/modules");
    let php = match mpm {
        "prefork" => {
            let name = find(&["/usr/lib/apache2/modules"], "libphp")
                .ok_or("libapache2-mod-php is not installed")?;
            format!(
                "StartServers 8\nMaxRequestWorkers 256\nLoadModule php_module {}\nAddHandler application/x-httpd-php .php",
                name.display()
            )
        }
        _ => format!(
            "ThreadsPerChild 64\nMaxRequestWorkers 1024\nServerLimit 16\n\
             LoadModule proxy_module {0}/mod_proxy.so\nLoadModule proxy_fcgi_module {0}/mod_proxy_fcgi.so\n\
             ProxyTimeout 120\n<FilesMatch php$>\nSetHandler \"proxy:unix:{1}/fpm.sock|fcgi://localhost\"\n</FilesMatch>",
            modules.display(),
            folder.display()
        ),
    };
    let port = free_port()?;
    let user = match shell::is_root() {
        true => "User www-data\nGroup www-data",
        false => "",
    };
    let configuration = APACHE
        .replace("%%PHP%%", &php)
        .replace("%%MODULES%%", &modules.display().to_string())
        .replace("%%DIR%%", &folder.display().to_string())
        .replace("%%USER%%", user)
        .replace("%%MPM%%", mpm)
        .replace("%%PORT%%", &port.to_string());
    let file = folder.join("apache.conf");
    fs::write(&file, configuration).map_err(|error| error.to_string())?;
    let child = Command::new("/usr/sbin/apache2")
        .args(["-D", "FOREGROUND", "-f"])
        .arg(&file)
        // At its end it ends its whole process group, and that must not be ours.
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("apache2: {error}"))?;
    let mut apache = Apache { child, port };
    await_it(&mut apache.child, "apache2", || {
        TcpStream::connect(("127.0.0.1", port)).is_ok()
    })?;
    Ok(apache)
}

fn await_it(child: &mut Child, name: &str, is_there: impl Fn() -> bool) -> Outcome {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !is_there() {
        if !matches!(child.try_wait(), Ok(None)) {
            return Err(format!("{name} ended at once"));
        }
        if Instant::now() > deadline {
            return Err(format!("{name} does not listen"));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// The first file in these folders whose name begins so.
fn find(folders: &[&str], start: &str) -> Option<PathBuf> {
    folders.iter().find_map(|folder| {
        let entries = fs::read_dir(folder).ok()?.flatten();
        let mut found: Vec<PathBuf> = entries
            .filter(|entry| entry.file_name().to_string_lossy().starts_with(start))
            .map(|entry| entry.path())
            .collect();
        found.sort();
        found.into_iter().next()
    })
}
