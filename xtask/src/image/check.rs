//! Runs the slim image as an engine would, by `bwrap`: without root, in namespaces of its own, on its own files alone.
//!
//! It shares this machine's network, so that the site, a template with the port in it, can be asked from here.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use xtask::{Outcome, packages, shell};

use super::{LIMIT, write};

/// A program that is not optimized, on a machine with other work.
const START: Duration = Duration::from_secs(60);

const TEMPLATE: &str = "server {
    listen 127.0.0.1:${PORT};
    location / { root /usr/share/nginx/html; index index.html; }
    location /name { return 200 \"$host ${SITE_NAME}\"; }
}
";

/// Unpacks the layer, starts the server, asks it, ends it.
pub(super) fn slim(target: &Path) -> Outcome {
    packages::need(&[("bwrap", "bubblewrap")])?;
    let mut try_it = Command::new("bwrap");
    if !shell::succeeds(try_it.args(["--unshare-all", "--ro-bind", "/", "/", "true"])) {
        println!("the image is not run: no namespaces are to be had here");
        return Ok(());
    }
    let root = std::path::absolute(target.join("run")).map_err(|error| error.to_string())?;
    let _ = fs::remove_dir_all(&root);
    fs::create_dir_all(&root).map_err(|error| error.to_string())?;
    unpack(target, &root)?;
    write(
        &root.join("etc/nginx/templates/default.conf.template"),
        TEMPLATE.as_bytes(),
    )?;
    let port = free_port()?;
    let mut container = Container::start(&root, port)?;
    let outcome = container.converse(port).and_then(|()| container.end());
    outcome.map_err(|problem| {
        let said = fs::read_to_string(root.join("said")).unwrap_or_default();
        format!("{problem}\n{said}")
    })?;
    println!("the slim image serves as user 101, and ends with 0 on SIGQUIT");
    Ok(())
}

/// The layer of the slim image, which is the one that the index names first.
fn unpack(target: &Path, root: &Path) -> Outcome {
    let blobs = target.join("oci/blobs/sha256");
    let index =
        fs::read_to_string(target.join("oci/index.json")).map_err(|error| error.to_string())?;
    let manifest = blobs.join(first_sum(&index)?);
    let manifest = fs::read_to_string(manifest).map_err(|error| error.to_string())?;
    let layers = manifest.split_once("\"layers\"").ok_or("no layers")?.1;
    let mut tar = Command::new("tar");
    tar.arg("-xzf").arg(blobs.join(first_sum(layers)?));
    // Owners are root's to give; here the one who unpacks is the server.
    shell::output(tar.arg("--no-same-owner").arg("-C").arg(root), LIMIT).map(|_| ())
}

fn first_sum(json: &str) -> Result<&str, String> {
    let rest = json
        .split_once("\"digest\":\"sha256:")
        .map(|(_, rest)| rest);
    let sum = rest.and_then(|rest| rest.split_once('"'));
    sum.map(|(sum, _)| sum)
        .ok_or_else(|| "a descriptor has no digest".to_owned())
}

/// A port that nobody has at this moment.
fn free_port() -> Result<u16, String> {
    let listener =
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(|error| error.to_string())?;
    let address = listener.local_addr().map_err(|error| error.to_string())?;
    Ok(address.port())
}

struct Container {
    child: Child,
    ended: bool,
}

impl Container {
    fn start(root: &Path, port: u16) -> Result<Container, String> {
        let said = fs::File::create(root.join("said")).map_err(|error| error.to_string())?;
        let errors = said.try_clone().map_err(|error| error.to_string())?;
        let mut run = Command::new("bwrap");
        run.args([
            "--unshare-all",
            "--share-net",
            "--uid",
            "101",
            "--gid",
            "101",
            "--die-with-parent",
        ])
        .arg("--bind")
        .arg(root)
        .args(["/", "--dev", "/dev", "--proc", "/proc", "--clearenv"])
        .args(["--setenv", "PATH", "/usr/sbin:/usr/bin:/sbin:/bin"])
        .args(["--setenv", "PORT", &port.to_string()])
        .args(["--setenv", "SITE_NAME", "blue"])
        .args(["/docker-entrypoint.sh", "nginx", "-g", "daemon off;"]);
        let child = run
            .stdin(Stdio::null())
            .stdout(said)
            .stderr(errors)
            .spawn()
            .map_err(|error| format!("bwrap: {error}"))?;
        Ok(Container {
            child,
            ended: false,
        })
    }

    fn converse(&mut self, port: u16) -> Outcome {
        let deadline = Instant::now() + START;
        let page = loop {
            match get(port, "/") {
                Ok(page) => break page,
                Err(_) if Instant::now() < deadline => {
                    if let Ok(Some(status)) = self.child.try_wait() {
                        self.ended = true;
                        return Err(format!("the container ended: {status}"));
                    }
                    std::thread::sleep(Duration::from_millis(20));
                }
                Err(error) => return Err(format!("nobody answers: {error}")),
            }
        };
        if !page.starts_with("HTTP/1.1 200 ") {
            return Err(format!("the site does not answer: {page}"));
        }
        let named = get(port, "/name").map_err(|error| error.to_string())?;
        match named.ends_with("\r\n\r\nlocalhost blue") {
            true => Ok(()),
            false => Err(format!("the template was not filled in: {named}")),
        }
    }

    /// Sends the image's stop signal to the server, which is a child of the sandbox's first process.
    fn end(&mut self) -> Outcome {
        let mut pid = self.child.id().to_string();
        // The outer process, the first one inside, the server.
        for _ in 0..2 {
            let list = format!("/proc/{pid}/task/{pid}/children");
            let children = fs::read_to_string(&list).map_err(|error| format!("{list}: {error}"))?;
            let child = children.split_whitespace().next();
            pid = child.ok_or_else(|| format!("{list} is empty"))?.to_owned();
        }
        shell::output(Command::new("kill").args(["-QUIT", &pid]), LIMIT)?;
        self.ended = true;
        match shell::wait(&mut self.child, START)? {
            true => Ok(()),
            false => Err("the server does not end with 0".to_owned()),
        }
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        if !self.ended {
            // With it the server ends. It may have ended by itself.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

fn get(port: u16, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_read_timeout(Some(START))?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}
