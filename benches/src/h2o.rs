//! h2o with the files of the other servers: one thread, its own defaults but for the length of a connection's life.

use std::fs;
use std::path::Path;

use crate::server::{Server, free_port};
use crate::shell;

pub(crate) const H2O: &str = "h2o";

const CONFIGURATION: &str = "
%%USER%%
num-threads: 1
max-connections: 8192
http1-request-timeout: 600
http2-idle-timeout: 600
hosts:
  default:
    listen:
      host: 127.0.0.1
      port: %%PORT%%
%%TLS%%
    paths:
      /:
        file.dir: %%FOLDER%%/html
";

const TLS: &str = "
      ssl:
        certificate-file: %%FOLDER%%/cert.pem
        key-file: %%FOLDER%%/key.pem
        ocsp-update-interval: 0
";

/// Starts it on `folder`, with its certificate or without.
pub(crate) fn start(folder: &Path, cpus: &str, has_tls: bool) -> Result<Server, String> {
    let port = free_port()?;
    let text = CONFIGURATION
        .replace("%%TLS%%", if has_tls { TLS } else { "" })
        .replace("%%USER%%", if shell::is_root() { "user: root" } else { "" })
        .replace("%%PORT%%", &port.to_string())
        .replace("%%FOLDER%%", &folder.to_string_lossy());
    let file = folder.join("h2o.conf");
    fs::write(&file, text).map_err(|error| error.to_string())?;
    let arguments = ["-c".as_ref(), file.as_os_str()];
    Server::peer(Path::new(H2O), &arguments, Some(cpus), port)
}
