//! Varnish before the same origin, with its own defaults but for the memory.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::server::children_of;
use crate::shell;

#[derive(Debug)]
pub(crate) struct Varnish {
    child: Child,
    pub(crate) port: u16,
}

impl Varnish {
    pub(crate) fn is_installed() -> bool {
        shell::is_installed("varnishd")
    }

    pub(crate) fn start(folder: &Path, origin: u16, cpus: Option<&str>) -> Result<Varnish, String> {
        let listener = TcpListener::bind("127.0.0.1:0").map_err(|error| error.to_string())?;
        let port = listener
            .local_addr()
            .map_err(|error| error.to_string())?
            .port();
        drop(listener);
        let vcl = format!(
            "vcl 4.1;\nbackend default {{ .host = \"127.0.0.1\"; .port = \"{origin}\"; }}\n"
        );
        let file = folder.join("default.vcl");
        fs::write(&file, vcl).map_err(|error| error.to_string())?;
        let mut command = match cpus {
            None => Command::new("varnishd"),
            Some(cpus) => {
                let mut command = Command::new("taskset");
                command.args(["-c", cpus, "varnishd"]);
                command
            }
        };
        command
            .arg("-F")
            .args(["-a", &format!("127.0.0.1:{port}")])
            .arg("-f")
            .arg(&file)
            .arg("-n")
            .arg(folder.join("varnish"))
            .args(["-s", "malloc,1g", "-p", "thread_pool_max=2000"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = command
            .spawn()
            .map_err(|error| format!("varnishd: {error}"))?;
        let mut varnish = Varnish { child, port };
        let deadline = Instant::now() + Duration::from_secs(30);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if Instant::now() > deadline || !matches!(varnish.child.try_wait(), Ok(None)) {
                return Err("varnishd does not listen".to_owned());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(varnish)
    }

    pub(crate) fn workers(&self) -> Vec<u32> {
        children_of(self.child.id())
    }
}

impl Drop for Varnish {
    fn drop(&mut self) {
        // TERM, so that it takes its worker along.
        let _ = Command::new("kill")
            .arg(self.child.id().to_string())
            .status();
        let _ = self.child.wait();
    }
}
