//! `bench-disk`: one hot file under cold load (SCORE row P1). A disk that reads 120 MB/s, a page
//! cache much smaller than the files on it, 200 clients that ask for random files and 50 for one
//! file that everybody has in memory. A server whose loop waits for the disk keeps the 50
//! waiting too; the question is how many answers they get, and how late.

use std::fs;
use std::path::Path;

use crate::cgroup::Bounds;
use crate::flags::Flags;
use crate::loop_device::{LoopDevice, drop_caches};
use crate::server::{Contender, Folder, Placement, Server, weir};
use crate::wrk::{Load, Report};
use crate::{Outcome, packages, shell};

const HELP: &str = "\
cargo xtask bench-disk [flags]     as root
  --nginx PATH     nginx to compare with (/usr/sbin/nginx)
  --weir PATH      a built Weir (default: builds one)
  --without-weir   nginx alone
  --gigabytes N    files on the disk (4; the seed's experiment: 8)
  --memory MB      the server's memory with its page cache (1024)
  --rate MB        what the disk reads in a second (120)
  --seconds N      per measurement (20)
  --cold N         clients on random files (200)
  --hot N          clients on the hot file (50)";

const FILE: u64 = 4 << 20;

const CONFIGURATION: &str = "
worker_processes 2;
events { worker_connections 2048; }
http {
    access_log off;
    sendfile on;
    sendfile_max_chunk 512k;
    keepalive_requests 1000000000;
    %%DIRECTIVES%%
    server {
        listen 127.0.0.1:%%PORT%% backlog=2048;
        root disk;
    }
}
";

struct Plan {
    files: u64,
    memory: u64,
    rate: u64,
    seconds: u32,
    cold: u32,
    hot: u32,
}

pub(crate) fn run(flags: &mut Flags) -> Outcome {
    if flags.has("--help") {
        println!("{HELP}");
        return Ok(());
    }
    let nginx: String = flags.value("--nginx", "/usr/sbin/nginx".to_owned())?;
    let named: String = flags.value("--weir", String::new())?;
    let alone = flags.has("--without-weir");
    let gigabytes: f64 = flags.value("--gigabytes", 4.0)?;
    let plan = Plan {
        files: (gigabytes * 256.0) as u64,
        memory: flags.value("--memory", 1024_u64)? << 20,
        rate: flags.value("--rate", 120_u64)? << 20,
        seconds: flags.value("--seconds", 20)?,
        cold: flags.value("--cold", 200)?,
        hot: flags.value("--hot", 50)?,
    };
    flags.finish()?;
    if !shell::is_root() {
        return Err(
            "needs root: loop devices, control groups and the page cache are root's".to_owned(),
        );
    }
    packages::need(&[packages::NGINX, packages::WRK])?;

    let contender = |name: &str, binary: &Path, directives: &str| Contender {
        name: name.to_owned(),
        binary: binary.to_owned(),
        directives: directives.to_owned(),
    };
    let nginx = Path::new(&nginx);
    let mut contenders = vec![
        contender("nginx", nginx, ""),
        contender("nginx aio threads", nginx, "aio threads;"),
    ];
    if !alone {
        contenders.push(contender("weir", &weir(&named)?, "aio threads;"));
    }
    measure(&plan, &contenders)
}

fn measure(plan: &Plan, contenders: &[Contender]) -> Outcome {
    let folder = Folder::new("bench-disk")?;
    // A tenth more than the files, for the file system's own blocks.
    let disk = LoopDevice::create(&folder.path, plan.files * FILE * 11 / 10 + (64 << 20))?;
    println!("writing {} files of 4 MB", plan.files);
    fill(&disk, plan.files)?;
    let bounds = Bounds::create(&disk.number()?, plan.rate, plan.memory)?;
    let script = folder.path.join("cold.lua");
    // The hot file is number 0; the cold ones are the others.
    let last = plan.files - 1;
    let text = format!(
        "math.randomseed(os.time())\nrequest = function() return wrk.format(\"GET\", \"/\" .. math.random(1, {last})) end\n"
    );
    fs::write(&script, text).map_err(|error| error.to_string())?;

    println!(
        "{} GB, {} MB of memory, {} MB/s, {} hot and {} cold clients, {} s each",
        plan.files / 256,
        plan.memory >> 20,
        plan.rate >> 20,
        plan.hot,
        plan.cold,
        plan.seconds
    );
    println!(
        "{:<20} {:<10} {:>9} {:>9} {:>9} {:>9} {:>8}",
        "", "", "hot/s", "p50 ms", "p99 ms", "failures", "disk"
    );
    for contender in contenders {
        for with_cold in [false, true] {
            let (report, read) = once(
                plan,
                contender,
                &folder.path,
                &disk,
                &bounds,
                with_cold.then_some(&script),
            )?;
            println!(
                "{:<20} {:<10} {:>9.1} {:>9.1} {:>9.1} {:>9} {:>7.0}%",
                contender.name,
                if with_cold { "under cold" } else { "alone" },
                report.per_second,
                report.p50,
                report.p99,
                report.failures,
                read / plan.rate as f64 * 100.0
            );
        }
    }
    Ok(())
}

/// One measurement: what the hot clients saw, and the bytes a second that the disk read.
fn once(
    plan: &Plan,
    contender: &Contender,
    folder: &Path,
    disk: &LoopDevice,
    bounds: &Bounds,
    cold: Option<&std::path::PathBuf>,
) -> Result<(Report, f64), String> {
    drop_caches()?;
    let placement = Placement {
        cpus: None,
        groups: bounds.folders.clone(),
    };
    let server = Server::start(contender, folder, CONFIGURATION, &placement)?;
    let url = |path: &str| format!("http://127.0.0.1:{}{path}", server.port);
    let hot = |seconds, connections| Load {
        connections,
        seconds,
        url: url("/0"),
        ..Load::default()
    };
    // The hot file comes into memory, by one client.
    hot(2, 1).run()?;
    let background = match cold {
        Some(script) => {
            let script = Some(script.to_string_lossy().into_owned());
            let load = Load {
                connections: plan.cold,
                seconds: plan.seconds + 30,
                url: url("/1"),
                script,
                ..Load::default()
            };
            let running = load.start()?;
            // The load is the condition of the experiment: let all its clients be waiting.
            std::thread::sleep(std::time::Duration::from_secs(3));
            Some(running)
        }
        None => None,
    };
    let before = disk.bytes_read();
    let report = hot(plan.seconds, plan.hot).run()?;
    let read = (disk.bytes_read() - before) as f64 / f64::from(plan.seconds);
    drop(background);
    Ok((report, read))
}

/// Files with contents of their own, so that nothing below can share or skip their blocks.
fn fill(disk: &LoopDevice, files: u64) -> Outcome {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut block: Vec<u8> = Vec::with_capacity(FILE as usize);
    for _ in 0..FILE / 8 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        block.extend_from_slice(&state.to_le_bytes());
    }
    for number in 0..files {
        block[..8].copy_from_slice(&number.to_le_bytes());
        fs::write(disk.mount.join(number.to_string()), &block)
            .map_err(|error| error.to_string())?;
    }
    Ok(())
}
