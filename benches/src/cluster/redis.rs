//! Debian's Redis and Sentinel for the rows that need them, and a relay that makes them slow.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::server::{Folder, Server, free_port};

/// A Redis that keeps nothing on the disk.
pub(crate) struct RedisProcess {
    pub(crate) server: Server,
    _folder: Folder,
}

impl RedisProcess {
    /// Starts it with these lines of configuration; `name` tells those of one run apart.
    pub(crate) fn start(name: &str, lines: &str) -> Result<RedisProcess, String> {
        RedisProcess::start_at(
            free_port()?,
            name,
            &format!("save \"\"\nappendonly no\n{lines}"),
            None,
        )
    }

    /// Starts Sentinel.
    pub(crate) fn start_sentinel(name: &str, lines: &str) -> Result<RedisProcess, String> {
        RedisProcess::start_at(free_port()?, name, lines, Some("--sentinel"))
    }

    /// Starts it at the port of one that was killed.
    pub(crate) fn start_again(port: u16, name: &str) -> Result<RedisProcess, String> {
        RedisProcess::start_at(port, name, "save \"\"\nappendonly no\n", None)
    }

    fn start_at(
        port: u16,
        name: &str,
        lines: &str,
        mode: Option<&str>,
    ) -> Result<RedisProcess, String> {
        let folder = Folder::new(&format!("bench-redis-{name}"))?;
        let file = folder.path.join("redis.conf");
        let place = folder.path.display();
        let text = format!("port {port}\nbind 127.0.0.1\ndir {place}\n{lines}\n");
        fs::write(&file, text).map_err(|error| error.to_string())?;
        let mut words = vec![file.as_os_str()];
        words.extend(mode.map(std::ffi::OsStr::new));
        let server = Server::peer(Path::new("redis-server"), &words, None, port)?;
        Ok(RedisProcess {
            server,
            _folder: folder,
        })
    }

    pub(crate) fn port(&self) -> u16 {
        self.server.port
    }

    /// Sends a command of words without blanks; the first line of the reply.
    pub(crate) fn ask(&self, command: &str) -> Result<String, String> {
        let asked = || -> std::io::Result<String> {
            let mut stream = TcpStream::connect(("127.0.0.1", self.port()))?;
            stream.set_read_timeout(Some(Duration::from_secs(5)))?;
            stream.write_all(format!("{command}\r\n").as_bytes())?;
            let mut reader = BufReader::new(stream);
            let mut line = String::new();
            reader.read_line(&mut line)?;
            // A text stands after its length.
            if let Some(length) = line.strip_prefix('$') {
                let length = length.trim().parse().unwrap_or(0);
                let mut text = vec![0; length];
                reader.read_exact(&mut text)?;
                line = String::from_utf8_lossy(&text).into_owned();
            }
            Ok(line)
        };
        asked().map_err(|error| format!("redis: {error}"))
    }

    /// Waits until the reply to a command has these words.
    pub(crate) fn until(&self, command: &str, words: &str) -> Result<(), String> {
        let end = Instant::now() + Duration::from_secs(30);
        while !self.ask(command)?.contains(words) {
            if Instant::now() > end {
                return Err(format!("redis: {command} never says {words}"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }
}

/// Passes connections on to a port, and every piece by so much later as it is told. It ends with the process.
pub(crate) fn start_slow_relay(
    target: u16,
    delay: std::sync::Arc<std::sync::atomic::AtomicU64>,
) -> Result<u16, String> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(|error| error.to_string())?;
    let port = listener
        .local_addr()
        .map_err(|error| error.to_string())?
        .port();
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let Ok(server) = TcpStream::connect(("127.0.0.1", target)) else {
                continue;
            };
            let both = (client.try_clone(), server.try_clone());
            let (Ok(client_too), Ok(server_too)) = both else {
                continue;
            };
            // Only what comes from Redis is late: the sum is what counts.
            let delay = std::sync::Arc::clone(&delay);
            std::thread::spawn(move || pass_on(client_too, server, None));
            std::thread::spawn(move || pass_on(server_too, client, Some(&delay)));
        }
    });
    Ok(port)
}

fn pass_on(mut from: TcpStream, mut to: TcpStream, delay: Option<&std::sync::atomic::AtomicU64>) {
    let mut bytes = [0; 16 * 1024];
    while let Ok(count) = from.read(&mut bytes)
        && count > 0
    {
        let late = delay.map_or(0, |delay| delay.load(std::sync::atomic::Ordering::Relaxed));
        std::thread::sleep(Duration::from_millis(late));
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    // The other direction may have ended already.
    let _ = to.shutdown(std::net::Shutdown::Both);
}
