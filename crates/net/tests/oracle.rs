//! The same keys go to the same servers as in nginx, and a round has the same order.
//!
//! Runs where there is an nginx (`$ORACLE`, or `/usr/sbin/nginx`) and passes without one elsewhere.

use std::fmt::Write as _;
use std::io::{Read, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use conf::Expression;
use net::upstream::{
    BalanceMethod, ConsistentHash, GroupOrigin, GroupSettings, HashMethod, IpHash, PeerSelection,
    RoundRobin, SelectionRequest, UpstreamGroup, UpstreamServer,
};
use weir_net as net;

/// The weights of the servers.
const WEIGHTS: [u32; 4] = [1, 2, 1, 5];
/// How many keys are tried.
const KEYS: usize = 300;

/// An nginx with a group for each method, in front of servers that tell their port.
struct Oracle {
    process: Child,
    directory: PathBuf,
    front: u16,
    backends: Vec<u16>,
}

impl Drop for Oracle {
    fn drop(&mut self) {
        let _gone = self.process.kill();
        let _gone = self.process.wait();
        let _left_behind = std::fs::remove_dir_all(&self.directory);
    }
}

fn free_ports(count: usize) -> Vec<u16> {
    let listeners: Vec<TcpListener> = (0..count)
        .map(|_| TcpListener::bind("127.0.0.1:0").expect("a free port"))
        .collect();
    listeners
        .iter()
        .map(|listener| listener.local_addr().expect("bound").port())
        .collect()
}

impl Oracle {
    fn start() -> Option<Oracle> {
        let program = std::env::var("ORACLE").unwrap_or_else(|_| "/usr/sbin/nginx".to_owned());
        if !Path::new(&program).exists() {
            eprintln!("no {program}: nothing to compare with");
            return None;
        }
        let ports = free_ports(WEIGHTS.len() + 1);
        let (front, backends) = (ports[0], ports[1..].to_vec());
        let directory = std::env::temp_dir().join(format!("weir-oracle-{}", std::process::id()));
        std::fs::create_dir_all(directory.join("logs")).expect("a temporary directory");
        let file = directory.join("nginx.conf");
        std::fs::write(&file, configuration(front, &backends, &directory)).expect("writable");
        let mut command = Command::new(program);
        command
            .arg("-p")
            .arg(&directory)
            .arg("-c")
            .arg(&file)
            .arg("-e")
            .arg(directory.join("logs/error.log"));
        let process = command.stderr(Stdio::inherit()).spawn().expect("it starts");
        let oracle = Oracle {
            process,
            directory,
            front,
            backends,
        };
        let end = Instant::now() + Duration::from_secs(10);
        while TcpStream::connect(("127.0.0.1", front)).is_err() {
            assert!(Instant::now() < end, "nginx does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(oracle)
    }

    /// The position of the server that a request for `path` is sent to.
    fn ask(&self, path: &str) -> usize {
        let mut stream = TcpStream::connect(("127.0.0.1", self.front)).expect("it listens");
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n").expect("open");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let port = answer
            .rsplit("\r\n\r\n")
            .next()
            .and_then(|body| body.trim().parse().ok())
            .expect("a port");
        self.backends
            .iter()
            .position(|&backend| backend == port)
            .expect("one of them")
    }

    fn group(&self, balance: Arc<dyn BalanceMethod>) -> Arc<UpstreamGroup> {
        let mut settings = GroupSettings::new("u", GroupOrigin::Block);
        for (&port, weight) in self.backends.iter().zip(WEIGHTS) {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            settings.add_server(UpstreamServer {
                weight,
                ..UpstreamServer::new(format!("127.0.0.1:{port}"), vec![address.into()])
            });
        }
        settings.balance = Some(balance);
        Arc::new(UpstreamGroup::new(settings))
    }

    fn choose(&self, group: &Arc<UpstreamGroup>, key: &str) -> usize {
        let client = Some(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let request = SelectionRequest {
            key: key.as_bytes(),
            client,
            sticky: b"",
        };
        let mut selection = PeerSelection::new(group.clone(), &request);
        let Ok(lease) = selection.try_pick() else {
            panic!("all servers are alive")
        };
        self.backends
            .iter()
            .position(|&backend| backend == lease.address().port())
            .expect("one of them")
    }
}

fn configuration(front: u16, backends: &[u16], directory: &Path) -> String {
    let mut servers = String::new();
    let mut listeners = String::new();
    for (port, weight) in backends.iter().zip(WEIGHTS) {
        let _infallible = writeln!(servers, "server 127.0.0.1:{port} weight={weight};");
        let _infallible = writeln!(
            listeners,
            "server {{ listen 127.0.0.1:{port}; return 200 {port}; }}"
        );
    }
    let mut groups = String::new();
    let mut locations = String::new();
    let methods = [
        ("round", ""),
        ("hash", "hash $arg_k;"),
        ("ring", "hash $arg_k consistent;"),
        ("ip", "ip_hash;"),
    ];
    for (name, method) in methods {
        let _infallible = writeln!(groups, "upstream {name} {{ {method} {servers} }}");
        let _infallible = writeln!(
            locations,
            "location /{name} {{ proxy_pass http://{name}; }}"
        );
    }
    let directory = directory.display();
    format!(
        "daemon off; master_process off; pid {directory}/pid; events {{}}
         http {{ access_log off; client_body_temp_path {directory}/b; proxy_temp_path {directory}/p;
                fastcgi_temp_path {directory}/f; uwsgi_temp_path {directory}/u; scgi_temp_path {directory}/s;
                {groups} {listeners} server {{ listen 127.0.0.1:{front}; {locations} }} }}"
    )
}

#[test]
fn the_same_servers_as_in_nginx() {
    let Some(oracle) = Oracle::start() else {
        return;
    };
    let key = || Expression::literal(b"unused");
    let methods: [(&str, Arc<dyn BalanceMethod>); 2] = [
        ("hash", Arc::new(HashMethod { key: key() })),
        ("ring", Arc::new(ConsistentHash { key: key() })),
    ];
    for (path, method) in methods {
        let group = oracle.group(method);
        for i in 0..KEYS {
            let key = format!("key-{}", i * 7919);
            let expected = oracle.ask(&format!("/{path}?k={key}"));
            assert_eq!(oracle.choose(&group, &key), expected, "{path} {key}");
        }
    }
    let group = oracle.group(Arc::new(IpHash));
    assert_eq!(oracle.choose(&group, ""), oracle.ask("/ip"));
    let group = oracle.group(Arc::new(RoundRobin));
    for i in 0..20 {
        assert_eq!(oracle.choose(&group, ""), oracle.ask("/round"), "turn {i}");
    }
}
