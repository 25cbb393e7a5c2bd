//! Varnish before the same origin, with its own defaults but for the memory.

use std::fs;
use std::path::Path;

use crate::server::{Server, free_port};
use crate::shell;

const VARNISH: &str = "varnishd";

pub(crate) fn is_installed() -> bool {
    shell::is_installed(VARNISH)
}

pub(crate) fn start(folder: &Path, origin: u16, cpus: Option<&str>) -> Result<Server, String> {
    let port = free_port()?;
    let vcl =
        format!("vcl 4.1;\nbackend default {{ .host = \"127.0.0.1\"; .port = \"{origin}\"; }}\n");
    let file = folder.join("default.vcl");
    fs::write(&file, vcl).map_err(|error| error.to_string())?;
    let address = format!("127.0.0.1:{port}");
    let state = folder.join("varnish");
    let arguments = [
        "-F".as_ref(),
        "-a".as_ref(),
        address.as_ref(),
        "-f".as_ref(),
        file.as_os_str(),
        "-n".as_ref(),
        state.as_os_str(),
        "-s".as_ref(),
        "malloc,1g".as_ref(),
        "-p".as_ref(),
        "thread_pool_max=2000".as_ref(),
    ];
    Server::peer(Path::new(VARNISH), &arguments, cpus, port)
}
