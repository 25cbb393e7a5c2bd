//! The folder that a configuration runs in: its roots with files, its certificates, its logs. It is built anew for
//! each server, with the same files.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use xtask::shell;

use crate::facts::{Facts, File};
use crate::prepare::below;

/// Files that every root has.
const FILES: &[(&str, &str)] = &[
    (
        "index.html",
        "<html><head></head><body>index</body></html>\n",
    ),
    ("index.php", "<?php echo 'index';\n"),
    ("index.htm", "htm\n"),
    ("50x.html", "an error page\n"),
    ("404.html", "not found here\n"),
    ("robots.txt", "User-agent: *\n"),
    ("favicon.ico", "icon\n"),
    ("picture.png", "\u{1}png\n"),
    ("style.css", "body { color: red }\n"),
    ("script.js", "alert(1)\n"),
    ("data.json", "{\"a\": 1}\n"),
    ("page.html", "<html>page</html>\n"),
    ("wp-login.php", "<?php\n"),
    ("backup.sql~", "secret\n"),
    (".htaccess", "deny\n"),
    (".env", "secret\n"),
    (".git/config", "[core]\n"),
    (".well-known/acme-challenge/token", "token\n"),
    ("folder/index.html", "<html>folder</html>\n"),
    ("folder/page.html", "<html>folder's page</html>\n"),
    ("plain/file.txt", "text\n"),
    ("static/style.css", "p {}\n"),
    ("static/page.html", "static page\n"),
    ("images/picture.png", "\u{1}png\n"),
    ("api/page.html", "api page\n"),
    ("caf\u{e9}", "coffee\n"),
];

/// What all sites of a run share: made once, linked into each.
#[derive(Debug, Clone)]
pub(crate) struct Common {
    folder: PathBuf,
}

const PATIENCE: Duration = Duration::from_secs(60);

impl Common {
    /// Makes the certificate, the key and the files, with `openssl`.
    pub(crate) fn make(folder: &Path) -> Result<Common, String> {
        let say = |error: io::Error| format!("{}: {error}", folder.display());
        fs::create_dir_all(folder.join("root")).map_err(say)?;
        let at = |name: &str| folder.join(name).display().to_string();
        let mut command = Command::new("openssl");
        command.args([
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "30",
            "-subj",
            "/CN=stranger.example",
        ]);
        command.args([
            "-addext",
            "subjectAltName=DNS:stranger.example",
            "-keyout",
            &at("key"),
            "-out",
            &at("certificate"),
        ]);
        shell::output(&mut command, PATIENCE)?;
        let mut command = Command::new("openssl");
        command.args(["dhparam", "-dsaparam", "-out", &at("parameters"), "2048"]);
        shell::output(&mut command, PATIENCE)?;
        fs::write(folder.join("passwords"), "user:{PLAIN}password\n").map_err(say)?;
        fs::write(folder.join("ticket"), [7; 80]).map_err(say)?;
        fs::write(folder.join("empty"), "").map_err(say)?;
        for (name, text) in FILES {
            write(&folder.join("root").join(name), text.as_bytes()).map_err(say)?;
        }
        let big: String = (0..4_000).map(|line| format!("line {line}\n")).collect();
        write(&folder.join("root/big.txt"), big.as_bytes()).map_err(say)?;
        Ok(Common {
            folder: folder.to_owned(),
        })
    }

    /// The certificate and its key, as PEM.
    pub(crate) fn certificate(&self) -> (PathBuf, PathBuf) {
        (self.folder.join("certificate"), self.folder.join("key"))
    }

    /// Builds the folder of a configuration.
    pub(crate) fn build(&self, folder: &Path, text: &str, facts: &Facts) -> io::Result<()> {
        let _ = fs::remove_dir_all(folder);
        fs::create_dir_all(folder.join("site/html"))?;
        fs::create_dir_all(folder.join("logs"))?;
        fs::write(folder.join("nginx.conf"), text)?;
        let mut roots: Vec<PathBuf> = facts
            .roots
            .iter()
            .take(60)
            .map(|root| below(folder, root))
            .collect();
        // nginx's own default root is `html` below the prefix.
        roots.push(folder.join("html"));
        roots.sort();
        roots.dedup();
        for root in &roots {
            // An alias may be a file.
            let is_file = root.extension().is_some() && !root.display().to_string().ends_with('/');
            if is_file && !root.exists() {
                link(&self.folder.join("root/index.html"), root)?;
            } else if root.is_dir() || !root.exists() {
                self.fill(root)?;
            }
        }
        for (inner, kind) in &facts.files {
            let path = below(folder, inner);
            let source = match kind {
                File::Certificate => "certificate",
                File::Key => "key",
                File::Parameters => "parameters",
                File::Passwords => "passwords",
                File::Ticket => "ticket",
                File::Folder | File::Empty => {
                    fs::create_dir_all(path.parent().unwrap_or(folder))?;
                    continue;
                }
            };
            if !path.exists() {
                link(&self.folder.join(source), &path)?;
            }
        }
        Ok(())
    }

    fn fill(&self, root: &Path) -> io::Result<()> {
        let names = FILES.iter().map(|(name, _)| *name).chain(["big.txt"]);
        for name in names {
            let path = root.join(name);
            if !path.exists() {
                link(&self.folder.join("root").join(name), &path)?;
            }
        }
        Ok(())
    }
}

/// Links keep the time of modification, so that both servers have the same validators.
fn link(from: &Path, to: &Path) -> io::Result<()> {
    if let Some(parent) = to.parent()
        && fs::create_dir_all(parent).is_err()
    {
        // What was a file for one directive is a folder for another: the first wins.
        return Ok(());
    }
    match fs::hard_link(from, to) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        outcome => outcome,
    }
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    fs::create_dir_all(path.parent().unwrap_or(path))?;
    fs::write(path, bytes)?;
    // 2020-08-01 10:00:00, which the requests with conditions name.
    let time = std::time::UNIX_EPOCH + Duration::from_secs(1_596_276_000);
    fs::File::options()
        .write(true)
        .open(path)?
        .set_modified(time)
}
