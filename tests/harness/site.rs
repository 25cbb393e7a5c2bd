//! A configuration with its files, in a folder of its own, before the server starts.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::binary;
use crate::command::{Finished, finish};
use crate::ports::Port;
use crate::server::Server;

/// A folder with an `nginx.conf` and whatever the test put beside it.
///
/// In the configuration `%%PORT%%`, `%%PORT1%%` … `%%PORT9%%` stand for ports of this test and
/// `%%DIR%%` for its folder. Relative paths work too: the server is started with that folder as
/// its prefix, as in `root html;`.
#[derive(Debug)]
pub struct Site {
    folder: PathBuf,
    configuration: String,
    ports: Vec<Port>,
    /// Directives in front of the whole file.
    main: String,
    pub(crate) tolerated: Vec<String>,
    /// Set in the environment of a server without a configuration.
    pub(crate) environment: Vec<(String, String)>,
    /// The umask that the server is started with; `None` is ours.
    umask: Option<&'static str>,
    /// The server is started from a copy of its binary, in the site's folder.
    is_copied: bool,
    /// The words before the command: see [`Site::launched_by`].
    launcher: Vec<String>,
}

/// A site whose `http` block has this text; the usual surroundings are added: one worker, an
/// access log, `root html`.
pub fn http(block: &str) -> Site {
    // At the same level a second access_log would be one more log.
    let log = if block.contains("access_log ") {
        ""
    } else {
        "    access_log access.log;\n"
    };
    whole(&format!(
        "events {{\n}}\n\nhttp {{\n{log}    client_body_temp_path body_temp;\n    \
         root html;\n%%HTTP%%\n{block}\n}}\n"
    ))
}

/// A site with this whole configuration. Only what every test needs is put in front of it:
/// `daemon off`, the pid file, the error log, and `user root` for root.
pub fn whole(configuration: &str) -> Site {
    Site::new(configuration)
}

impl Site {
    fn new(configuration: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "weir-test-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let folder = std::env::temp_dir().join(name);
        // A killed run of an earlier process with our id may have left one.
        let _ = fs::remove_dir_all(&folder);
        for name in ["html", "logs"] {
            fs::create_dir_all(folder.join(name)).expect("the temporary folder is writable");
        }

        let user = if rustix::process::geteuid().is_root() {
            "user root;\n"
        } else {
            ""
        };
        // To run all tests under one more directive: WEIR_TEST_MAIN="worker_sandbox on;".
        let more = std::env::var("WEIR_TEST_MAIN").unwrap_or_default();
        let main =
            format!("daemon off;\npid nginx.pid;\nerror_log error.log info;\n{user}{more}\n");
        Self {
            folder,
            configuration: configuration.to_owned(),
            ports: Vec::new(),
            main,
            tolerated: Vec::new(),
            environment: Vec::new(),
            umask: None,
            is_copied: false,
            launcher: Vec::new(),
        }
    }

    /// Starts the server by another program, whose arguments end with a command that it becomes.
    pub fn launched_by(mut self, launcher: &[&str]) -> Self {
        self.launcher = launcher.iter().map(|word| (*word).to_owned()).collect();
        self
    }

    /// Starts the server with this umask, such as `077`.
    pub fn umask(mut self, mask: &'static str) -> Self {
        self.umask = Some(mask);
        self
    }

    /// Starts the server from a copy of its binary: the file `program` of the site, which the test may replace.
    pub fn copied(mut self) -> Self {
        fs::copy(binary::path(), self.folder.join("program")).expect("the binary can be copied");
        self.is_copied = true;
        self
    }

    /// What starts the server, without its arguments.
    pub(crate) fn command(&self) -> Command {
        let program = match self.is_copied {
            true => self.folder.join("program"),
            false => binary::path().to_path_buf(),
        };
        if let [launcher, arguments @ ..] = &self.launcher[..] {
            let mut command = Command::new(launcher);
            command.args(arguments).arg(program);
            return command;
        }
        let Some(mask) = self.umask else {
            return Command::new(program);
        };
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "umask \"$0\"; exec \"$@\"", mask]);
        command.arg(program);
        command
    }

    /// Adds a file, below the site's folder: `html/index.html`.
    pub fn file(self, path: &str, content: impl AsRef<[u8]>) -> Self {
        let path = self.folder.join(path);
        let parent = path.parent().expect("a path below the folder has a parent");
        fs::create_dir_all(parent).expect("the site's folder is writable");
        fs::write(path, content).expect("the site's folder is writable");
        self
    }

    /// Adds an empty folder.
    pub fn folder(self, path: &str) -> Self {
        fs::create_dir_all(self.folder.join(path)).expect("the site's folder is writable");
        self
    }

    /// Adds directives to the main context, in front of the file: `worker_processes 2;`.
    pub fn main(mut self, directives: &str) -> Self {
        self.main.push_str(directives);
        self.main.push('\n');
        self
    }

    /// Lets lines of the error log pass that would fail the test otherwise (`[alert]`, panics)
    /// when they contain this text.
    pub fn tolerate(mut self, text: &str) -> Self {
        self.tolerated.push(text.to_owned());
        self
    }

    /// Where a file of this site lies on the disk.
    pub fn path(&self, path: &str) -> PathBuf {
        self.folder.join(path)
    }

    /// The port that stands for `%%PORT%%` (0) or `%%PORTn%%`.
    pub fn port(&self, index: usize) -> u16 {
        self.ports[index].number()
    }

    /// Starts the server and waits until it accepts connections.
    pub fn start(mut self) -> Server {
        self.write(true);
        Server::start(self)
    }

    /// Starts `weir serve` on the site's `html` folder with these further arguments, in which
    /// `%%PORT%%` is filled in; the configuration is not used.
    pub fn serve(self, more: &[&str]) -> Server {
        self.serve_folder("html", more)
    }

    /// Starts `weir serve` on another folder of the site.
    pub fn serve_folder(mut self, folder: &str, more: &[&str]) -> Server {
        let mut arguments = vec!["serve".to_owned(), folder.to_owned()];
        arguments.extend(more.iter().map(|text| self.filled(text)));
        Server::start_without_configuration(self, &arguments)
    }

    /// Sets a variable of the environment for [`Site::serve`] and [`Site::proxy`]; `%%DIR%%` is the site's folder.
    pub fn environment(mut self, name: &str, value: &str) -> Site {
        let value = value.replace("%%DIR%%", &self.folder.to_string_lossy());
        self.environment.push((name.to_owned(), value));
        self
    }

    /// Starts `weir proxy` for this origin with these further arguments, in which `%%PORT%%` is filled in; the
    /// configuration is not used.
    pub fn proxy(mut self, origin: &str, more: &[&str]) -> Server {
        let mut arguments = vec!["proxy".to_owned(), origin.to_owned()];
        arguments.extend(more.iter().map(|text| self.filled(text)));
        Server::start_without_configuration(self, &arguments)
    }

    /// Runs `-t` on the configuration exactly as it was given, with nothing put in front of it,
    /// so that line numbers in messages are those of the test's text. The folder is written as
    /// `%%DIR%%` in what comes back.
    pub fn test(self) -> Finished {
        self.test_with(&[])
    }

    /// As [`Site::test`], with more arguments.
    pub fn test_with(mut self, more: &[&str]) -> Finished {
        self.write(false);
        let mut arguments = self.arguments();
        arguments.push("-t".to_owned());
        arguments.extend(more.iter().map(|&text| text.to_owned()));
        if !rustix::process::geteuid().is_root() {
            own_pid_file(&mut arguments);
        }
        self.finished(&arguments)
    }

    /// Runs the binary with the given arguments after `-p`, `-c` and `-e`.
    pub fn run(mut self, more: &[&str]) -> Finished {
        self.write(true);
        let mut arguments = self.arguments();
        arguments.extend(more.iter().map(|&text| text.to_owned()));
        self.finished(&arguments)
    }

    /// Starts the binary on the configuration and does not wait for it to serve.
    pub fn spawn(&mut self) -> std::process::Child {
        self.write(true);
        let arguments = self.arguments();
        let child = self.command().args(&arguments).spawn();
        child.expect("the binary runs")
    }

    /// Runs the binary on the configuration as it was given, and gives the site back, since what
    /// was started may live on in the background.
    pub fn run_bare(mut self) -> (Self, Finished) {
        let finished = self.run_background();
        (self, finished)
    }

    /// The same for one that is run more than once.
    pub fn run_background(&mut self) -> Finished {
        self.write(false);
        self.finished(&self.arguments())
    }

    fn finished(&self, arguments: &[String]) -> Finished {
        let folder = self.folder.to_string_lossy().into_owned();
        let mut finished = finish(self.command().args(arguments));
        finished.stdout = finished.stdout.replace(&folder, "%%DIR%%");
        finished.stderr = finished.stderr.replace(&folder, "%%DIR%%");
        finished
    }

    /// The arguments every start has.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let prefix = format!("{}/", self.folder.display());
        ["-p", &prefix, "-c", "nginx.conf", "-e", "error.log"]
            .map(str::to_owned)
            .to_vec()
    }

    /// Writes `nginx.conf`, with its places filled in. A reload writes another one later.
    pub(crate) fn write(&mut self, with_main: bool) {
        let text = self.configuration.clone();
        let text = self.filled(&text);
        let text = if with_main {
            format!("{}{text}", self.main)
        } else {
            text
        };
        fs::write(self.folder.join("nginx.conf"), text).expect("the site's folder is writable");
    }

    /// Replaces the configuration; `Server::reconfigure` does it for a running server.
    pub(crate) fn set_configuration(&mut self, block: &str) {
        let start = self
            .configuration
            .find("%%HTTP%%")
            .expect("only a site made by http() can be changed");
        self.configuration.truncate(start + "%%HTTP%%".len());
        self.configuration.push_str(&format!("\n{block}\n}}\n"));
    }

    fn filled(&mut self, text: &str) -> String {
        // nginx has temporary folders in places that only root may write.
        let oracle_only = "    proxy_temp_path proxy_temp; fastcgi_temp_path fastcgi_temp;\n    \
                           uwsgi_temp_path uwsgi_temp; scgi_temp_path scgi_temp;";
        let mut text = text.replace("%%DIR%%", &self.folder.to_string_lossy());
        text = text.replace(
            "%%HTTP%%",
            if binary::is_oracle() { oracle_only } else { "" },
        );
        for index in 0..10 {
            let place = if index == 0 {
                "%%PORT%%".to_owned()
            } else {
                format!("%%PORT{index}%%")
            };
            if text.contains(&place) || (index == 0 && self.ports.is_empty()) {
                while self.ports.len() <= index {
                    self.ports.push(Port::take());
                }
                text = text.replace(&place, &self.ports[index].number().to_string());
            }
        }
        text
    }

    pub(crate) fn folder_path(&self) -> &Path {
        &self.folder
    }
}

/// A test of a configuration opens the pid file too, whose usual place is root's.
fn own_pid_file(arguments: &mut Vec<String>) {
    let directive = "pid nginx.pid;";
    match arguments.iter().position(|word| word == "-g") {
        Some(at) => arguments[at + 1].insert_str(0, directive),
        None => arguments.extend(["-g".to_owned(), directive.to_owned()]),
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if std::thread::panicking() && std::env::var_os("WEIR_TEST_LEAVE").is_some() {
            eprintln!("left for a look: {}", self.folder.display());
            return;
        }
        // Best effort: a folder that stays behind harms nobody.
        let _ = fs::remove_dir_all(&self.folder);
    }
}
