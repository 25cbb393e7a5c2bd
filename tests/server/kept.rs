//! What a reload, another number of loops and another binary do to connections of every kind: nothing, where that can be;
//! never a reset in the middle of a request.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};

use rustls::{ClientConnection, StreamOwned};
use weir_tests::{
    Connection, Http2, PATIENCE, Server, Signal, read_until, run, send, skip_on_oracle, until,
    whole,
};

use crate::tls::{CERTIFICATE, Client, https_files};

const WHY: &str = "nginx closes idle connections at a reload (docs/compat.md#processes)";

/// Plain HTTP/1 and 2 on the first port, then TLS, a TCP stream, a UDP stream.
fn server(loops: usize, echo: u16, datagrams: u16) -> Server {
    let configuration = format!(
        "worker_processes {loops};
         events {{ }}
         http {{
             server {{
                 listen 127.0.0.1:%%PORT%%;
                 listen 127.0.0.1:%%PORT1%% ssl;
                 {CERTIFICATE}
                 http2 on;
                 root html;
                 location = / {{ return 200 'old $pid'; }}
                 location /slow {{ limit_rate 50k; }}
                 location /status {{ weir_status json; }}
                 location /echo {{
                     proxy_pass http://127.0.0.1:{echo};
                     proxy_http_version 1.1;
                     proxy_set_header Upgrade $http_upgrade;
                     proxy_set_header Connection upgrade;
                 }}
             }}
         }}
         stream {{
             server {{ listen 127.0.0.1:%%PORT2%%; proxy_pass 127.0.0.1:{echo}; }}
             server {{ listen 127.0.0.1:%%PORT3%% udp; proxy_pass 127.0.0.1:{datagrams}; }}
         }}"
    );
    https_files(whole(&configuration))
        .file("html/slow", vec![b'x'; 40_000])
        // A machine that is busy kills a worker before it has ended.
        .tolerate("exited on signal 9")
        .start()
}

/// Answers a head with an upgrade, and then sends everything back. The answer is its port.
fn echo() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    let port = listener.local_addr().expect("it is bound").port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            std::thread::spawn(move || {
                read_until(&mut stream, b"\r\n\r\n");
                let head = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\nConnection: Upgrade\r\n\r\n";
                send(&mut stream, head);
                let mut copy: TcpStream = stream.try_clone().expect("a descriptor can be copied");
                let _ = std::io::copy(&mut copy, &mut stream);
            });
        }
    });
    port
}

/// Reads until so much has come that `enough` says so.
fn receive(connection: &mut Connection, enough: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let mut received = Vec::new();
    while !enough(&received) {
        let more = connection.at_least(1);
        assert!(!more.is_empty(), "closed after {received:?}");
        received.extend(more);
    }
    received
}

/// Sends datagrams back, with the port that they came from in front.
fn datagrams() -> u16 {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("there is a free port");
    let port = socket.local_addr().expect("it is bound").port();
    std::thread::spawn(move || {
        let mut buffer = [0; 64];
        while let Ok((_, session)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(session.port().to_string().as_bytes(), session);
        }
    });
    port
}

/// A client with TLS.
struct Secure(StreamOwned<ClientConnection, TcpStream>);

impl Secure {
    fn connect(server: &Server) -> Secure {
        let stream = Client::new().connect(server, 1, "localhost");
        let patience = Some(PATIENCE);
        stream
            .sock
            .set_read_timeout(patience)
            .expect("it is not zero");
        Secure(stream)
    }

    fn request(&mut self, target: &str) {
        write!(self.0, "GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("it is taken");
        self.0.flush().expect("it is taken");
    }

    /// The head and the content of an answer.
    fn reply(&mut self) -> (String, Vec<u8>) {
        let mut received = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            let text = String::from_utf8_lossy(&received);
            if let Some((head, _)) = text.split_once("\r\n\r\n") {
                let length = head.split("Content-Length: ").nth(1).expect("a length");
                let length: usize = length.lines().next().unwrap_or("").parse().expect("digits");
                if received.len() >= head.len() + 4 + length {
                    return (head.to_owned(), received.split_off(head.len() + 4));
                }
            }
            match self.0.read(&mut buffer) {
                Ok(n) if n > 0 => received.extend_from_slice(&buffer[..n]),
                end => panic!("{end:?} after {:?}", String::from_utf8_lossy(&received)),
            }
        }
    }

    fn get(&mut self, target: &str) -> String {
        self.request(target);
        String::from_utf8_lossy(&self.reply().1).into_owned()
    }

    /// The server has closed it, and by the end of TLS, not by a reset.
    #[track_caller]
    fn assert_ended_well(&mut self) {
        let end = self.0.read(&mut [0; 16]);
        assert!(matches!(end, Ok(0)), "{end:?}");
    }
}

/// One client of each kind, each with something done already.
struct Clients {
    plain: Vec<Connection>,
    multiplexed: Http2,
    secure: Vec<Secure>,
    socket: Connection,
    stream: Connection,
}

impl Clients {
    fn connect(server: &Server) -> Clients {
        let mut clients = Clients {
            plain: (0..6).map(|_| server.connect()).collect(),
            multiplexed: Http2::connect(server, &[]),
            secure: (0..6).map(|_| Secure::connect(server)).collect(),
            socket: server.connect(),
            stream: server.connect_to(2),
        };
        let upgrade = ["Upgrade: echo", "Connection: Upgrade"];
        clients.socket.request("GET", "/echo", &upgrade);
        clients.stream.request("GET", "/", &[]);
        for connection in [&mut clients.socket, &mut clients.stream] {
            receive(connection, |head| head.ends_with(b"\r\n\r\n"));
        }
        clients
    }

    /// All that is between client and origin goes on.
    fn tunnels_go_on(&mut self) {
        for connection in [&mut self.socket, &mut self.stream] {
            connection.send("again");
            assert_eq!(receive(connection, |text| text.len() >= 5), b"again");
        }
    }

    fn requests_are_answered(&mut self, word: &str) {
        for client in &mut self.plain {
            let text = client.get("/").text();
            assert!(text.starts_with(word), "{text}");
        }
        for client in &mut self.secure {
            let text = client.get("/");
            assert!(text.starts_with(word), "{text}");
        }
    }
}

/// A client of the UDP stream.
struct Datagrams(UdpSocket);

impl Datagrams {
    fn connect(server: &Server) -> Datagrams {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("there is a free port");
        let address = ("127.0.0.1", server.port(3));
        socket.connect(address).expect("it is local");
        let patience = Some(PATIENCE);
        socket.set_read_timeout(patience).expect("it is not zero");
        Datagrams(socket)
    }

    /// The port that the origin knows the session by.
    fn session(&self) -> String {
        self.0.send(b"x").expect("it goes out");
        let mut buffer = [0; 16];
        let length = self.0.recv(&mut buffer).expect("an answer");
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    }
}

/// Replaces text of the configuration.
fn rewrite(server: &Server, from: &str, to: &str) {
    let path = server.path("nginx.conf");
    let text = std::fs::read_to_string(&path).expect("the harness wrote it");
    assert!(text.contains(from));
    std::fs::write(&path, text.replace(from, to)).expect("it may be written");
}

#[test]
fn a_reload_keeps_connections_of_every_kind() {
    if skip_on_oracle(WHY) {
        return;
    }
    let (echo, datagrams) = (echo(), datagrams());
    let mut server = server(2, echo, datagrams);
    let mut clients = Clients::connect(&server);
    clients.requests_are_answered("old");
    assert!(clients.multiplexed.get("/").text().starts_with("old"));
    let datagrams = Datagrams::connect(&server);
    let session = datagrams.session();
    let mut busy = Http2::connect(&server, &[]);
    let slow = busy.request("GET", "/slow", &[], true);
    let mut words = ["old", "new", "newer", "newest"].iter();
    let mut before = words.next().expect("four");
    for word in words {
        rewrite(&server, &format!("'{before} "), &format!("'{word} "));
        before = word;
        // It returns when the new configuration is in use, everywhere.
        let folder = server.path("").to_string_lossy().into_owned();
        let told = run(&["-p", &folder, "-c", "nginx.conf", "-s", "reload"]);
        assert_eq!(told.code, 0, "{}", told.stderr);
        clients.requests_are_answered(word);
        let text = clients.multiplexed.get("/").text();
        assert!(text.starts_with(word), "{text}");
        let text = busy.get("/").text();
        assert!(text.starts_with(word), "beside a stream: {text}");
        clients.tunnels_go_on();
        assert_eq!(datagrams.session(), session, "the same session");
    }
    assert_eq!(busy.reply(slow).body.len(), 40_000);
    assert!(busy.get("/").text().starts_with("newest"));
    // The session of datagrams would go on for a while.
    server.signal(Signal::TERM);
    assert!(server.ended().success());
}

/// Connections of each loop, the one that asks included.
fn loops(server: &Server) -> usize {
    server.get("/status").text().matches("\"loop\":").count()
}

#[test]
fn connections_with_tls_move_between_loops() {
    if skip_on_oracle(WHY) {
        return;
    }
    let (echo, datagrams) = (echo(), datagrams());
    let server = server(4, echo, datagrams);
    let mut clients = Clients::connect(&server);
    clients.requests_are_answered("old");
    // One that has not asked for anything yet.
    let mut silent = Secure::connect(&server);
    silent
        .0
        .conn
        .complete_io(&mut silent.0.sock)
        .expect("a handshake");
    let mut number = 4;
    for wanted in [1, 3, 2] {
        let line = |number| format!("worker_processes {number};");
        rewrite(&server, &line(number), &line(wanted));
        number = wanted;
        server.signal(Signal::HUP);
        assert!(until(|| (loops(&server) == wanted).then_some(())).is_some());
        clients.requests_are_answered("old");
        clients.tunnels_go_on();
    }
    assert!(silent.get("/").starts_with("old"));
}

fn pid_in(server: &Server, file: &str) -> Option<rustix::process::Pid> {
    let text = std::fs::read_to_string(server.path(file)).ok()?;
    rustix::process::Pid::from_raw(text.trim().parse().ok()?)
}

#[test]
fn another_binary_ends_what_can_not_move_between_two_requests() {
    if skip_on_oracle("nginx does not hand connections over, and refuses USR2 in the foreground") {
        return;
    }
    let (echo, datagrams) = (echo(), datagrams());
    let mut server = server(2, echo, datagrams);
    let mut clients = Clients::connect(&server);
    clients.requests_are_answered("old");
    let mut silent = Secure::connect(&server);
    silent
        .0
        .conn
        .complete_io(&mut silent.0.sock)
        .expect("a handshake");
    let mut slow = Secure::connect(&server);
    slow.request("/slow");
    let stream = clients.multiplexed.request("GET", "/slow", &[], true);
    clients
        .multiplexed
        .hear(|heard| heard.stream() == Some(stream));
    server.signal(Signal::USR2);
    server.line("error.log", " is ready");
    // Sent before the end: answered, and told that it is the last one.
    for client in &mut clients.secure {
        client.request("/");
    }
    let old = pid_in(&server, "nginx.pid.oldbin").expect("the old master");
    rustix::process::kill_process(old, Signal::QUIT).expect("it lives");
    for client in &mut clients.secure {
        let (head, _) = client.reply();
        // Whoever was faster: the request or the word to end.
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        client.assert_ended_well();
    }
    server.line("error.log", "gracefully shutting down");
    silent.request("/");
    let (head, _) = silent.reply();
    assert!(head.contains("Connection: close"), "{head}");
    silent.assert_ended_well();
    let (head, body) = slow.reply();
    assert_eq!(body.len(), 40_000);
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    slow.assert_ended_well();
    let mut content = 0;
    clients
        .multiplexed
        .hear(|heard| matches!(heard, weir_tests::Heard::GoAway(..)));
    while content < 39_000 {
        match clients
            .multiplexed
            .hear(|heard| heard.stream() == Some(stream))
        {
            weir_tests::Heard::Data { bytes, .. } => content += bytes.len(),
            other => assert!(other.stream().is_some(), "{other:?}"),
        }
    }
    clients.tunnels_go_on();
    for client in &mut clients.plain {
        assert!(client.get("/").text().starts_with("old"));
    }
    drop((clients.socket, clients.stream, clients.multiplexed));
    assert!(server.ended().success());
    let mut again = Secure::connect(&server);
    assert!(again.get("/").starts_with("old"));
    let new = pid_in(&server, "nginx.pid").expect("the new master");
    rustix::process::kill_process(new, Signal::QUIT).expect("it lives");
    let gone = until(|| (!server.path("nginx.pid").exists()).then_some(()));
    assert!(gone.is_some());
    let end = again.0.read(&mut [0; 16]);
    assert!(
        !matches!(&end, Err(error) if error.kind() == ErrorKind::ConnectionReset),
        "{end:?}"
    );
}
