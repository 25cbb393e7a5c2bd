//! `bench-connections`: are connections kept, and how do they spread (SCORE rows P2, R1 to R4)?
//!
//! The clients are our own, since the question is not how fast answers come but whether each came,
//! and on which socket. Each row starts its servers itself, in the background with a pid file, as an
//! operator would.

mod clients;
mod rows;
mod site;

use std::path::PathBuf;

use crate::flags::Flags;
use crate::server::weir;
use crate::{Outcome, packages};
use site::{Kind, Program};

const HELP: &str = "\
cargo xtask bench-connections [flags]
  --nginx PATH     nginx to compare with (/usr/sbin/nginx)
  --haproxy PATH   HAProxy to compare with (/usr/sbin/haproxy)
  --weir PATH      a built Weir; R2 needs one with the feature debug-stall (default: builds one without)
  --without A,B    leave out weir, nginx or haproxy
  --rows A,B       only these: R1, R2, R3, R4, P2
  --times N        reloads (30); a third of it upgrades and crashes
  --seconds N      each run of P2 (3)";

/// What a run is made of.
pub(crate) struct Plan {
    pub(crate) programs: Vec<Program>,
    pub(crate) times: u32,
    pub(crate) seconds: u32,
}

type Row = fn(&Plan) -> Outcome;

pub(crate) fn run(flags: &mut Flags) -> Outcome {
    if flags.has("--help") {
        println!("{HELP}");
        return Ok(());
    }
    let nginx: String = flags.value("--nginx", "/usr/sbin/nginx".to_owned())?;
    let haproxy: String = flags.value("--haproxy", "/usr/sbin/haproxy".to_owned())?;
    let named: String = flags.value("--weir", String::new())?;
    let without: String = flags.value("--without", String::new())?;
    let wanted: String = flags.value("--rows", String::new())?;
    let (times, seconds) = (flags.value("--times", 30)?, flags.value("--seconds", 3)?);
    flags.finish()?;
    packages::need(&[packages::NGINX, packages::WRK, packages::HAPROXY])?;

    let with = |name: &str| !without.split(',').any(|word| word == name);
    let mut programs = Vec::new();
    let mut add = |name, kind, binary: PathBuf| programs.push(Program { name, kind, binary });
    if with("weir") {
        add("weir", Kind::Weir, weir(&named)?);
    }
    if with("nginx") {
        add("nginx", Kind::Nginx, nginx.into());
    }
    if with("haproxy") {
        add("haproxy", Kind::Haproxy, haproxy.into());
    }
    let plan = Plan {
        programs,
        times,
        seconds,
    };
    let rows: [(&str, Row); 5] = [
        ("R1", rows::reloads),
        ("R2", rows::stalls),
        ("R3", rows::upgrades),
        ("R4", rows::crashes),
        ("P2", rows::sharding),
    ];
    for (name, row) in rows {
        if wanted.is_empty() || wanted.split(',').any(|word| word == name) {
            row(&plan)?;
        }
    }
    Ok(())
}
