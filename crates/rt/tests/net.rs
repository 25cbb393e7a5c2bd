//! Sockets on a loop.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use rt::net::{Address, ListenOptions, Listener, Stream};
use weir_rt as rt;

fn run<F: Future + 'static>(main: impl FnOnce() -> F) -> F::Output {
    rt::run(rt::LoopOptions::default(), main).expect("a loop can be made")
}

fn loopback() -> Address {
    Address::Inet(SocketAddr::from(([127, 0, 0, 1], 0)))
}

#[test]
fn an_echo_over_tcp() {
    run(|| async {
        let listener = Listener::bind(&loopback(), &ListenOptions::default()).unwrap();
        let address = listener.local_addr().unwrap();
        rt::spawn_named("server", async move {
            let stream = listener.accept().await.unwrap();
            let mut buf = Vec::new();
            while stream.read_into(&mut buf, 4096).await.unwrap() > 0 {
                stream.write_all(&buf).await.unwrap();
                buf.clear();
            }
        });
        let client = Stream::connect(&address).await.unwrap();
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
        let (a, b) = Stream::pair().unwrap();
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
        let (a, b) = Stream::pair().unwrap();
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
        let (_a, b) = Stream::pair().unwrap();
        let mut buf = [0; 1];
        let read = rt::timeout(Duration::from_millis(5), b.read(&mut buf)).await;
        assert_eq!(read.unwrap_err(), rt::Elapsed);
    });
}
