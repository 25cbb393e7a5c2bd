//! What the image does before the server starts, each under the name of a file in `/docker-entrypoint.d`. A derived image
//! leaves a step out by removing the file, and replaces it by another file of that name.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use super::templates;
use super::{EntrypointLog, Environment, is_set};

/// Of both images: Weir runs under the name nginx there, and its configuration is where people mount theirs.
const CONFIGURATION: &str = "/etc/nginx/nginx.conf";
/// The site that the image comes with, and the copy of it by which a change is seen.
const DEFAULT_SITE: &str = "/etc/nginx/conf.d/default.conf";
const PACKAGED_SITE: &str = "/usr/share/nginx/default.conf";
/// The line of the packaged site, and the one that is added behind it.
const LISTEN: &str = "    listen       8080;\n";
const LISTEN_IPV6: &str = "    listen  [::]:8080;\n";

/// Runs a step. It gives an environment if it has changed something there.
pub(super) fn run(
    name: &OsStr,
    environment: &Environment,
    log: &EntrypointLog,
) -> Result<Option<Environment>, String> {
    match name.to_str() {
        Some("10-listen-on-ipv6-by-default.sh") => listen_on_ipv6(log),
        Some("15-local-resolvers.envsh") => return Ok(local_resolvers(environment, log)),
        // Templates come after the variables that other steps may have made.
        Some("20-envsubst-on-templates.sh") => {
            templates::fill(Path::new(CONFIGURATION), environment, log)?;
        }
        Some("30-tune-worker-processes.sh") => tune_workers(environment, log)?,
        _ => return Err("the image has no step of this name".to_owned()),
    }
    Ok(None)
}

/// Listens on IPv6, too, if the machine has it, in a site that nobody has changed.
fn listen_on_ipv6(log: &EntrypointLog) {
    if !Path::new("/proc/net/if_inet6").exists() {
        return log.info("info: ipv6 not available");
    }
    let Ok(text) = std::fs::read_to_string(DEFAULT_SITE) else {
        return log.info(&format!(
            "info: {DEFAULT_SITE} is not a file or does not exist"
        ));
    };
    // The container was started before, or the image already has the line.
    if text.contains(LISTEN_IPV6.trim()) {
        return log.info("info: IPv6 listen already enabled");
    }
    let packaged = std::fs::read_to_string(PACKAGED_SITE);
    // Somebody who has changed the site has decided where it listens.
    if !packaged.is_ok_and(|packaged| packaged == text) {
        return log.info(&format!(
            "info: {DEFAULT_SITE} differs from the packaged version"
        ));
    }
    let with_both = text.replace(LISTEN, &format!("{LISTEN}{LISTEN_IPV6}"));
    // A read-only file system is a choice, and the server answers on IPv4.
    match std::fs::write(DEFAULT_SITE, with_both) {
        Ok(()) => log.info(&format!("info: Enabled listen on IPv6 in {DEFAULT_SITE}")),
        Err(error) => log.info(&format!("info: cannot modify {DEFAULT_SITE} ({error})")),
    }
}

/// `NGINX_LOCAL_RESOLVERS` for templates: the name servers of this container, as `resolver` wants them.
fn local_resolvers(environment: &Environment, log: &EntrypointLog) -> Option<Environment> {
    if !is_set(environment, "NGINX_ENTRYPOINT_LOCAL_RESOLVERS") {
        return None;
    }
    let text = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    let list = resolvers(&text);
    log.info(&format!("NGINX_LOCAL_RESOLVERS is {list:?}"));
    let mut changed = environment.clone();
    changed.insert("NGINX_LOCAL_RESOLVERS".into(), OsString::from(list));
    Some(changed)
}

/// The name servers in the text of a `resolv.conf` (resolv.conf(5)), in its order. IPv6 addresses need brackets in a
/// configuration.
fn resolvers(text: &str) -> String {
    let servers = text.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let server = words.next().filter(|word| *word == "nameserver");
        server.and_then(|_| words.next())
    });
    let shown = servers.map(|server| match server.contains(':') {
        true => format!("[{server}]"),
        false => server.to_owned(),
    });
    shown.collect::<Vec<_>>().join(" ")
}

/// As many workers as this container may use processors, by its cgroup's quota and its affinity.
fn tune_workers(environment: &Environment, log: &EntrypointLog) -> Result<(), String> {
    if !is_set(environment, "NGINX_ENTRYPOINT_WORKER_PROCESSES_AUTOTUNE") {
        return Ok(());
    }
    let Ok(text) = std::fs::read_to_string(CONFIGURATION) else {
        log.info(&format!("error: cannot read {CONFIGURATION}"));
        return Ok(());
    };
    // `worker_processes auto` means the same number; here it also replaces one that was written for a larger machine.
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let tuned = with_workers(&text, processors);
    match std::fs::write(CONFIGURATION, tuned) {
        Ok(()) => log.info(&format!("info: worker_processes {processors}")),
        Err(error) => log.info(&format!("error: cannot modify {CONFIGURATION} ({error})")),
    }
    Ok(())
}

/// The line as it was stays as a comment, for people who look into the container.
fn with_workers(text: &str, processors: usize) -> String {
    let mut out = String::with_capacity(text.len() + 100);
    for line in text.split_inclusive('\n') {
        if line.starts_with("worker_processes") {
            out.push_str("# Set by 30-tune-worker-processes.sh, before:\n#");
            out.push_str(line);
            out.push_str(&format!("worker_processes {processors};\n"));
        } else {
            out.push_str(line);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_servers_are_listed() {
        let text = "# nameserver 1.1.1.1\nsearch x\nnameserver 10.0.0.2\nnameserver\t fe80::1 \nnameserver\n";
        assert_eq!(resolvers(text), "10.0.0.2 [fe80::1]");
        assert_eq!(resolvers(""), "");
    }

    #[test]
    fn the_number_of_workers_is_replaced() {
        let text = "user nginx;\nworker_processes  auto;\nevents {}\n";
        assert_eq!(
            with_workers(text, 3),
            "user nginx;\n# Set by 30-tune-worker-processes.sh, before:\n#worker_processes  auto;\n\
             worker_processes 3;\nevents {}\n"
        );
    }
}
