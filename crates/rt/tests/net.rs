//! Sockets on a loop.
#![allow(clippy::unwrap_used, reason = "a test says what failed by its line")]

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use rt::net::{SocketListener, StreamSocket};
use weir_rt as rt;

fn run<F: Future + 'static>(main: impl FnOnce() -> F) -> F::Output {
    rt::run(rt::LoopOptions::default(), main).expect("a loop can be made")
}

fn listener() -> SocketListener {
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    SocketListener::from_fd(socket.into()).unwrap()
}

#[test]
fn an_echo_over_tcp() {
    run(|| async {
        let listener = listener();
        let address = listener.local_addr().unwrap();
        rt::spawn_named("server", async move {
            let stream = listener.accept().await.unwrap();
            let mut buf = Vec::new();
            while stream.read_into(&mut buf, 4096).await.unwrap() > 0 {
                stream.write_all(&buf).await.unwrap();
                buf.clear();
            }
        });
        let client = StreamSocket::connect(&address).await.unwrap();
        let mut reply = [0; 64];
        for text in [b"hello", b"again"] {
            client.write_all(text).await.unwrap();
            let n = client.read(&mut reply).await.unwrap();
            assert_eq!(&reply[..n], text);
        }
        client.shutdown_write().unwrap();
        assert_eq!(client.read(&mut reply).await.unwrap(), 0);
    });
}

#[test]
fn more_than_the_socket_takes_is_written_as_it_is_read() {
    run(|| async {
        let (a, b) = StreamSocket::pair().unwrap();
        let data: Rc<Vec<u8>> = Rc::new((0..3_000_000u32).map(|i| i as u8).collect());
        let sent = Rc::clone(&data);
        rt::spawn(async move {
            let (head, tail) = sent.split_at(1_000_001);
            a.write_all_vectored(&[b"", head, b"", tail]).await.unwrap();
        });
        let mut got = Vec::new();
        while b.read_into(&mut got, 65_536).await.unwrap() > 0 {}
        assert!(got == *data);
    });
}

#[test]
fn closing_is_seen_without_reading() {
    run(|| async {
        let (a, b) = StreamSocket::pair().unwrap();
        a.write_all(b"left behind").await.unwrap();
        drop(a);
        b.closed().await;
        let mut buf = [0; 32];
        assert_eq!(b.read(&mut buf).await.unwrap(), 11);
        assert_eq!(b.read(&mut buf).await.unwrap(), 0);
    });
}

#[test]
fn a_timeout_ends_a_read() {
    run(|| async {
        let (_a, b) = StreamSocket::pair().unwrap();
        let mut buf = [0; 1];
        let read = rt::timeout(Duration::from_millis(5), b.read(&mut buf)).await;
        assert_eq!(read.unwrap_err(), rt::Elapsed);
    });
}

#[test]
fn a_task_whose_socket_is_always_ready_does_not_hold_the_loop() {
    run(|| async {
        let (a, b) = StreamSocket::pair().unwrap();
        rt::spawn_named("writes for ever", async move {
            while a.write_all(&[0; 1000]).await.is_ok() {}
        });
        rt::spawn_named("reads for ever", async move {
            let mut buf = [0; 1000];
            while b.read(&mut buf).await.is_ok_and(|n| n > 0) {}
        });
        let turns = rt::handle().stats().turns;
        for _ in 0..50 {
            rt::yield_now().await;
        }
        assert!(rt::handle().stats().turns >= turns + 49);
    });
}

#[test]
fn many_connections_in_a_burst_are_all_accepted() {
    run(|| async {
        let listener = listener();
        let address = listener.local_addr().unwrap();
        let accepting = rt::spawn_handle("accepts", async move {
            let mut streams = Vec::new();
            for _ in 0..200 {
                let stream = listener.accept().await.unwrap();
                assert!(stream.peer_addr().port() > 0);
                stream.set_reset_on_close().unwrap();
                streams.push(stream);
            }
            (listener, streams)
        });
        let mut clients = Vec::new();
        for _ in 0..200 {
            clients.push(StreamSocket::connect(&address).await.unwrap());
        }
        let (listener, streams) = accepting.await.unwrap();
        drop(streams);
        let mut buf = [0; 1];
        for client in &clients {
            let error = client.read(&mut buf).await.unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
        }
        // Left without anybody accepting, the listener must not keep the loop busy.
        let waits = StreamSocket::connect(&address).await.unwrap();
        let turns = rt::handle().stats().turns;
        rt::sleep(Duration::from_millis(20)).await;
        assert!(
            rt::handle().stats().turns < turns + 10,
            "an unheeded listener leaves the epoll set"
        );
        listener.accept().await.unwrap();
        drop(waits);
    });
}

#[test]
fn a_refused_connection_says_so() {
    run(|| async {
        let listener = listener();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let error = StreamSocket::connect(&address).await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
    });
}

#[test]
fn a_stream_moves_to_another_loop_with_what_it_has() {
    run(|| async {
        let (a, b) = StreamSocket::pair().unwrap();
        let mut buf = [0; 8];
        // Registered here first.
        assert!(
            rt::timeout(Duration::from_millis(1), b.read(&mut buf))
                .await
                .is_err()
        );
        a.write_all(b"moved").await.unwrap();
        let fd = b.into_fd();
        let (sender, receiver) = rt::sync::remote_oneshot::channel();
        let thread = std::thread::spawn(move || {
            run(move || async move {
                let stream = StreamSocket::from_fd(fd).unwrap();
                let mut buf = [0; 8];
                let n = stream.read(&mut buf).await.unwrap();
                sender.send(buf[..n].to_vec()).unwrap();
            });
        });
        assert_eq!(receiver.await.unwrap(), b"moved");
        thread.join().unwrap();
    });
}

#[test]
fn datagrams_arrive() {
    use rt::net::{SocketAddress, UdpSocket};
    run(|| async {
        let any = SocketAddress::Inet(SocketAddr::from(([127, 0, 0, 1], 0)));
        let server = UdpSocket::bind(&any).unwrap();
        let client = UdpSocket::connect(&server.local_addr().unwrap()).unwrap();
        let echo = rt::spawn_handle("echo", async move {
            let mut buf = [0; 100];
            for _ in 0..3 {
                let (n, from) = server.recv_from(&mut buf).await.unwrap();
                server.send_to(&buf[..n], &from).await.unwrap();
            }
        });
        let mut buf = [0; 100];
        for text in ["one", "two", "three"] {
            client.send(text.as_bytes()).await.unwrap();
            let n = client.recv(&mut buf).await.unwrap();
            assert_eq!(&buf[..n], text.as_bytes());
        }
        echo.await.unwrap();
    });
}

#[test]
fn addresses_print_as_nginx_prints_them() {
    use rt::net::{SocketAddress, UnixPath};
    let v6: SocketAddr = "[::1]:80".parse().unwrap();
    assert_eq!(SocketAddress::from(v6).to_string(), "[::1]:80");
    let unix = SocketAddress::Unix(UnixPath::new("/run/x".as_ref()));
    assert_eq!(unix.to_string(), "unix:/run/x");
    assert_eq!(
        SocketAddress::Unix(UnixPath::default()).to_string(),
        "unix:"
    );
}

#[test]
fn a_pipe_moves_all_bytes_in_order() {
    use rt::net::SplicePipe;
    run(|| async {
        let (a, b) = StreamSocket::pair().unwrap();
        let (c, d) = StreamSocket::pair().unwrap();
        let data: Rc<Vec<u8>> = Rc::new((0..1_000_000u32).map(|i| (i / 3) as u8).collect());
        let sent = Rc::clone(&data);
        rt::spawn(async move { a.write_all(&sent).await.unwrap() });
        rt::spawn(async move {
            let pipe = SplicePipe::new().unwrap();
            while pipe.transfer(&b, &c, 100_000).await.unwrap() > 0 {}
        });
        let mut got = Vec::new();
        while d.read_into(&mut got, 30_000).await.unwrap() > 0 {}
        assert!(got == *data);
    });
}
