//! A fixed answer over keep-alive connections: what the loop itself costs for each request.
//!
//! `bench_return PORT [close]` serves 128 bytes for whatever ends in an empty line;
//! docs/design/2026-11-21-event-loop.md compares its CPU time per request with that of other servers. It is not an HTTP
//! server: it parses nothing, but it does what one has to do around the parser (a task and a buffer for each
//! connection, an idle timer set at each request, one write for head and body).

use std::cell::RefCell;
use std::net::SocketAddr;
use std::task::Poll;
use std::time::Duration;

use rt::net::{SocketListener, StreamSocket};
use weir_rt as rt;

/// As long as the idle timeout of a real server.
const IDLE: Duration = Duration::from_secs(75);

fn main() -> std::io::Result<()> {
    let close = std::env::args().any(|word| word == "close");
    let port = std::env::args()
        .nth(1)
        .and_then(|port| port.parse().ok())
        .unwrap_or(8080);
    rt::run(rt::LoopOptions::default(), move || async move {
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let listener = SocketListener::from_fd(std::net::TcpListener::bind(address)?.into())?;
        loop {
            let stream = listener.accept().await?;
            rt::spawn_named("connection", async move {
                // A client that breaks the connection off is no news.
                let _ = serve(stream, close).await;
            });
        }
    })?
}

async fn serve(stream: StreamSocket, close: bool) -> std::io::Result<()> {
    let timer = rt::Timer::new();
    let answer = answer(if close { "close" } else { "keep-alive" });
    let mut buf = Vec::new();
    loop {
        timer.set(IDLE);
        let n = std::future::poll_fn(|cx| {
            if buf.capacity() == 0 {
                buf = SPARE
                    .with_borrow_mut(Vec::pop)
                    .unwrap_or_else(|| Vec::with_capacity(1024));
            }
            if let Poll::Ready(result) = stream.poll_read_into(cx, &mut buf, 1024) {
                return Poll::Ready(result);
            }
            give_back(&mut buf);
            timer.poll_expired(cx).map(|()| Ok(0))
        })
        .await?;
        if n == 0 {
            return Ok(());
        }
        if buf.ends_with(b"\r\n\r\n") {
            buf.clear();
            stream.write_all(&answer).await?;
            if close {
                return Ok(());
            }
        }
    }
}

/// An idle connection holds no buffer: the few in use stay in the processor's cache.
fn give_back(buf: &mut Vec<u8>) {
    if buf.is_empty() {
        SPARE.with_borrow_mut(|spare| spare.push(std::mem::take(buf)));
    }
}

thread_local! {
    static SPARE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

fn answer(connection: &str) -> Vec<u8> {
    let mut answer = format!(
        "HTTP/1.1 200 OK\r\nServer: weir\r\nDate: Sat, 21 Nov 2026 08:00:00 GMT\r\n\
         Content-Type: application/octet-stream\r\nContent-Length: 128\r\n\
         Connection: {connection}\r\n\r\n"
    )
    .into_bytes();
    answer.resize(answer.len() + 128, b'x');
    answer
}
