//! `lua`: what a request costs whose variable or response a script makes, beside nginx with lua-nginx-module, and what
//! other clients notice of a script that never ends.
//!
//! The server is pinned to one core and wrk to another; the contenders take turns within each round.

use std::fs;
use std::path::Path;
use std::process::Command;

use xtask::flags::Flags;
use xtask::{packages, shell};

use crate::Bench;
use crate::report::{Cell, Goal, Row, Section, Table};
use crate::server::{Contender, Folder, Placement, Server, names};
use crate::wrk::Load;

/// Clients whose requests are measured.
const CLIENTS: u32 = 16;

/// Scripts that never end, in the last row.
const ENDLESS: [u32; 3] = [0, 1, 8];

/// `escape` is the script of a node before object storage: a path is escaped by a pattern and a function.
const SITE: &str = r#"
%%MODULES%%
worker_processes 1;
events { worker_connections 1024; }
http {
    access_log off;
    keepalive_requests 1000000000;
    %%DIRECTIVES%%
    server {
        listen 127.0.0.1:%%PORT%% backlog=1024;
        location = /plain { return 200 "hello\n"; }
        location = /set { set_by_lua_block $text { return "hello" } return 200 "$text\n"; }
        location /escape {
            set_by_lua_block $text {
                local function encode_uri(uri)
                    return uri:gsub("[^A-Za-z0-9;,/?:@&=+$_.!~*'()#-]", function(c)
                        return string.format("%%%02X", string.byte(c))
                    end)
                end
                return encode_uri(ngx.var.uri)
            }
            return 200 "$text\n";
        }
        location = /content {
            content_by_lua_block { ngx.header.content_length = 6 ngx.say("hello") }
        }
        location = /endless { content_by_lua_block { while true do end } }
    }
}
"#;

/// The rows: a name and what is asked for.
const ROWS: [(&str, &str); 4] = [
    ("return, no Lua", "/plain"),
    ("set_by_lua", "/set"),
    (
        "set_by_lua that escapes a path",
        "/escape/a%20path/of%20some/%C3%A4",
    ),
    ("content_by_lua", "/content"),
];

/// Where Debian's nginx finds its modules.
const MODULES: &str = "/usr/lib/nginx/modules";

pub(crate) fn run(bench: &Bench, flags: &mut Flags) -> Result<Section, String> {
    flags.finish()?;
    packages::need(&[packages::NGINX, packages::NGINX_LUA, packages::WRK])?;
    let folder = Folder::new("bench-lua")?;
    let nginx = nginx_with_lua(bench, &folder.path)?;
    let contenders = [
        Contender::new("nginx", nginx, ""),
        Contender::new(
            "weir",
            &bench.weir,
            "lua_run_limit 1h; lua_check_client_abort on;",
        ),
    ];
    Ok(Section {
        title: "Lua".to_owned(),
        how: format!(
            "{CLIENTS} keep-alive clients. One loop on core {}, load on core {}, {} s a measurement, {} rounds. nginx has \
             Debian's lua-nginx-module, and is Debian's own where that does not load into the one of the other rows. Then what clients of `content_by_lua` wait while other clients have asked for a \
             script that never ends; nginx's worker would never come back.",
            bench.server_cpu, bench.load_cpu, bench.seconds, bench.rounds
        ),
        tables: vec![
            cpu_per_request(bench, &contenders, &folder.path)?,
            beside_endless_scripts(bench, &contenders[1], &folder.path)?,
        ],
        ..Section::default()
    })
}

/// A module loads into the nginx that it was built for: the one that was named, or Debian's.
fn nginx_with_lua<'a>(bench: &'a Bench, folder: &Path) -> Result<&'a Path, String> {
    let file = folder.join("modules.conf");
    fs::write(&file, format!("{}\nevents {{}}\n", modules())).map_err(|error| error.to_string())?;
    let loads = |nginx: &&Path| {
        let mut command = Command::new(nginx);
        shell::succeeds(
            command
                .args(["-t", "-q", "-p"])
                .arg(folder)
                .arg("-c")
                .arg(&file),
        )
    };
    [bench.nginx.as_path(), Path::new("/usr/sbin/nginx")]
        .into_iter()
        .find(loads)
        .ok_or_else(|| format!("the modules of {MODULES} load into no nginx here"))
}

fn modules() -> String {
    format!(
        "load_module {MODULES}/ndk_http_module.so;\nload_module {MODULES}/ngx_http_lua_module.so;"
    )
}

fn start(bench: &Bench, contender: &Contender, folder: &Path) -> Result<Server, String> {
    let modules = match contender.name.as_str() {
        "nginx" => modules(),
        _ => String::new(),
    };
    let placement = Placement {
        cpus: Some(bench.server_cpu.clone()),
        ..Placement::default()
    };
    Server::start(
        contender,
        folder,
        &SITE.replace("%%MODULES%%", &modules),
        &placement,
    )
}

fn load(bench: &Bench, port: u16, target: &str, seconds: u32) -> Load {
    Load {
        cpus: Some(bench.load_cpu.clone()),
        connections: CLIENTS,
        seconds,
        url: format!("http://127.0.0.1:{port}{target}"),
        ..Load::default()
    }
}

fn cpu_per_request(
    bench: &Bench,
    contenders: &[Contender],
    folder: &Path,
) -> Result<Table, String> {
    let servers = contenders
        .iter()
        .map(|contender| start(bench, contender, &subfolder(folder, &contender.name)?))
        .collect::<Result<Vec<_>, String>>()?;
    let mut rows = Vec::new();
    for (name, target) in ROWS {
        let mut samples = vec![Vec::new(); servers.len()];
        for _ in 0..bench.rounds {
            for (server, samples) in servers.iter().zip(&mut samples) {
                load(bench, server.port, target, 1).run()?;
                let before = server.cpu_time();
                let report = load(bench, server.port, target, bench.seconds).run()?;
                let used = server.cpu_time() - before;
                if report.requests == 0.0 || report.failures > 0.0 {
                    let (requests, failures) = (report.requests, report.failures);
                    return Err(format!(
                        "{target}: {requests} requests, {failures} failures"
                    ));
                }
                samples.push(used.as_secs_f64() * 1e6 / report.requests);
            }
        }
        rows.push(Row {
            name: name.to_owned(),
            goal: Some(Goal::RatioAtMost(1.0)),
            cells: samples.into_iter().map(Cell::of).collect(),
            ..Row::default()
        });
    }
    Ok(Table {
        title: "CPU time per request".to_owned(),
        unit: "µs of the server, ratio to nginx".to_owned(),
        contenders: names(contenders),
        base: Some(0),
        rows,
    })
}

/// Each server has a folder of its own, since they run side by side.
fn subfolder(folder: &Path, name: &str) -> Result<std::path::PathBuf, String> {
    let path = folder.join(name);
    std::fs::create_dir_all(path.join("html")).map_err(|error| error.to_string())?;
    Ok(path)
}

fn beside_endless_scripts(bench: &Bench, weir: &Contender, folder: &Path) -> Result<Table, String> {
    let server = start(bench, weir, &subfolder(folder, &weir.name)?)?;
    let mut rows = Vec::new();
    for count in ENDLESS {
        let endless = Load {
            connections: count,
            ..load(bench, server.port, "/endless", 3600)
        };
        // The scripts end with their connections.
        let background = (count > 0).then(|| endless.start()).transpose()?;
        let mut cells = [Vec::new(), Vec::new(), Vec::new()];
        for _ in 0..bench.rounds {
            let report = load(bench, server.port, "/content", bench.seconds).run()?;
            for (cell, value) in cells
                .iter_mut()
                .zip([report.p50, report.p99, report.per_second])
            {
                cell.push(value);
            }
        }
        drop(background);
        rows.push(Row {
            name: format!("{count} endless scripts"),
            cells: cells.into_iter().map(Cell::of).collect(),
            ..Row::default()
        });
    }
    Ok(Table {
        title: "Other clients beside scripts that never end".to_owned(),
        unit: "ms, ms, requests/s".to_owned(),
        contenders: ["p50", "p99", "requests/s"].map(str::to_owned).to_vec(),
        base: None,
        rows,
    })
}
