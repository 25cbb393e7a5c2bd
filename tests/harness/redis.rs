//! Debian's `redis-server` for a test, on a port of its own, and a relay that can part it from those who use it.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::ports::Port;
use crate::wait::until;

/// A Redis that keeps nothing on the disk. It ends when this is dropped.
#[derive(Debug)]
pub struct Redis {
    port: Port,
    folder: PathBuf,
    arguments: Vec<String>,
    child: Option<Child>,
}

impl Redis {
    /// Starts with these lines of configuration; `None` if the program is not installed, which is said.
    pub fn start(lines: &[&str]) -> Option<Redis> {
        Redis::start_as(lines, &[])
    }

    /// Starts as Sentinel, with these lines of configuration.
    pub fn start_sentinel(lines: &[&str]) -> Option<Redis> {
        Redis::start_as(lines, &["--sentinel"])
    }

    fn start_as(lines: &[&str], more: &[&str]) -> Option<Redis> {
        let port = Port::take();
        let folder = std::env::temp_dir().join(format!("weir-test-redis-{}", port.number()));
        fs::create_dir_all(&folder).expect("the temporary folder is writable");
        let file = folder.join("redis.conf");
        let mut text = format!(
            "port {}\nbind 127.0.0.1\ndir {}\n",
            port.number(),
            folder.display()
        );
        if more.is_empty() {
            text.push_str("save \"\"\nappendonly no\nrepl-diskless-sync-delay 0\n");
        }
        for line in lines {
            text.push_str(line);
            text.push('\n');
        }
        fs::write(&file, text).expect("the folder was made");
        let mut arguments = vec![file.to_string_lossy().into_owned()];
        arguments.extend(more.iter().map(|word| (*word).to_owned()));
        let mut redis = Redis {
            port,
            folder,
            arguments,
            child: None,
        };
        if redis.run().is_err() {
            println!("skipped: redis-server is not installed");
            return None;
        }
        Some(redis)
    }

    fn run(&mut self) -> io::Result<()> {
        let child = Command::new("redis-server")
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        self.child = Some(child);
        until(|| TcpStream::connect(("127.0.0.1", self.port())).ok()).expect("Redis listens");
        Ok(())
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Sends a command, and gives the reply as `redis-cli` prints it.
    pub fn ask(&self, words: &[&str]) -> String {
        let output = Command::new("redis-cli")
            .args(["-p", &self.port().to_string()])
            .args(words)
            .stdin(Stdio::null())
            .output()
            .expect("redis-cli comes with redis-server");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        if let Some(child) = &self.child {
            // It may have ended.
            let _ = kill_process(Pid::from_child(child), signal);
        }
    }

    /// Kills it: what it had is lost.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Starts it again, empty.
    pub fn start_again(&mut self) {
        self.kill();
        self.run().expect("it was started before");
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.kill();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Passes connections on to a port of 127.0.0.1, until it is cut.
#[derive(Debug)]
pub struct Relay {
    port: u16,
    state: Arc<RelayState>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct RelayState {
    is_cut: AtomicBool,
    is_over: AtomicBool,
    streams: Mutex<Vec<TcpStream>>,
}

impl Relay {
    /// Starts on a free port.
    pub fn start(target: u16) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let state = Arc::new(RelayState::default());
        let shared = Arc::clone(&state);
        let thread = thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if shared.is_over.load(SeqCst) {
                    return;
                }
                if shared.is_cut.load(SeqCst) {
                    continue;
                }
                let Ok(server) = TcpStream::connect(("127.0.0.1", target)) else {
                    continue;
                };
                pass_on(&shared, client, server);
            }
        });
        Relay {
            port,
            state,
            thread: Some(thread),
        }
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Ends all connections, and lets none through.
    pub fn cut(&self) {
        self.state.is_cut.store(true, SeqCst);
        let streams =
            std::mem::take(&mut *self.state.streams.lock().expect("nobody panics with it"));
        for stream in streams {
            // It may have ended.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Lets connections through again.
    pub fn mend(&self) {
        self.state.is_cut.store(false, SeqCst);
    }
}

fn pass_on(state: &Arc<RelayState>, client: TcpStream, server: TcpStream) {
    for (mut from, mut to) in [
        (client.try_clone(), server.try_clone()),
        (Ok(server), Ok(client)),
    ]
    .into_iter()
    .filter_map(|(from, to)| from.ok().zip(to.ok()))
    {
        let copy = from.try_clone().expect("sockets can be cloned");
        state
            .streams
            .lock()
            .expect("nobody panics with it")
            .push(copy);
        thread::spawn(move || {
            let mut bytes = [0; 16 * 1024];
            while let Ok(count) = from.read(&mut bytes)
                && count > 0
                && to.write_all(&bytes[..count]).is_ok()
            {}
            let _ = to.shutdown(Shutdown::Both);
        });
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.cut();
        self.state.is_over.store(true, SeqCst);
        // The connection ends the wait for one.
        let _ =
            TcpStream::connect_timeout(&([127, 0, 0, 1], self.port).into(), Duration::from_secs(1));
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
