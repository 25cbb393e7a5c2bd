//! What the file, pool and log calls cost, in nanoseconds: the figures of
//! docs/design/2026-11-21-event-loop.md. `bench_probe DIRECTORY` writes two files there.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use host::log_sink::LogSink;
use rt::file::{self, OpenOptions};
use rt::net::StreamSocket;
use weir_host as host;

const LEN: u64 = 4 << 20;

fn main() -> std::io::Result<()> {
    let directory: PathBuf = std::env::args_os()
        .nth(1)
        .unwrap_or_else(|| "/tmp".into())
        .into();
    let options = rt::LoopOptions {
        slow_turn: Duration::ZERO,
        ..Default::default()
    };
    rt::run(options, || measure(directory))?
}

async fn measure(directory: PathBuf) -> std::io::Result<()> {
    let pool = rt::pool::default_pool();
    let path = directory.join("bench_probe");
    std::fs::write(&path, vec![1; LEN as usize])?;

    each(
        "open, fstat and close of a cached path",
        20_000,
        async |_| {
            let _opened = file::open(&path, OpenOptions::READ, &pool)
                .await?
                .metadata()?;
            Ok(())
        },
    )
    .await?;
    each("the same on the pool", 5_000, async |_| {
        let path = path.clone();
        pool.run(move || std::fs::File::open(path)?.metadata())
            .await?;
        Ok(())
    })
    .await?;
    each("stat of a cached path", 20_000, async |_| {
        file::stat(&path, &pool).await.map(drop)
    })
    .await?;
    each("a trip to the pool", 5_000, async |_| {
        pool.run(|| ()).await;
        Ok(())
    })
    .await?;

    let file = file::open(&path, OpenOptions::READ, &pool).await?;
    for kilobytes in [1, 10, 100] {
        let mut buf = Vec::new();
        each(
            &format!("read_at of {kilobytes} KB in memory"),
            10_000,
            async |_| {
                buf.clear();
                let len = kilobytes * 1024;
                buf = file
                    .read_at(std::mem::take(&mut buf), 0, len, &pool)
                    .await?;
                Ok(())
            },
        )
        .await?;
    }
    // A block that was proven is believed for a while: without the pause that is what is measured.
    each("resident_prefix of 128 KB, believed", 10_000, async |_| {
        assert_eq!(file.resident_prefix(0, 128 << 10), 128 << 10);
        Ok(())
    })
    .await?;
    let mut proven = Duration::ZERO;
    for _ in 0..20 {
        rt::sleep(Duration::from_millis(260)).await;
        let begin = Instant::now();
        assert_eq!(file.resident_prefix(0, LEN), LEN);
        proven += begin.elapsed();
    }
    println!(
        "{:8} ns  resident_prefix of 128 KB, proven",
        proven.as_nanos() / 20 / u128::from(LEN >> 17)
    );

    sendfile(&file, &pool).await?;

    let log = directory.join("bench_probe.log");
    let sink = LogSink::file("bench", std::fs::File::create(&log)?.into());
    let mut waited = Duration::ZERO;
    for i in 1..=200 {
        rt::sleep(Duration::from_millis(1)).await;
        let begin = Instant::now();
        sink.write(b"line\n");
        rt::yield_now().await;
        while std::fs::metadata(&log)?.len() < 5 * i {}
        waited += begin.elapsed();
    }
    println!(
        "{:8} ns  until a line is in the file",
        waited.as_nanos() / 200
    );
    let line = [b'x'; 120];
    each("a log line, one a turn", 20_000, async |_| {
        sink.write(&line);
        rt::yield_now().await;
        Ok(())
    })
    .await?;
    each("a log line, many a turn", 20_000, async |_| {
        sink.write(&line);
        Ok(())
    })
    .await
}

/// 128 KB over a socket pair, the other end emptied on the same loop: what the proof is to be held against.
async fn sendfile(file: &file::File, pool: &rt::pool::PoolHandle) -> std::io::Result<()> {
    let (a, b) = StreamSocket::pair()?;
    let (sending, pool) = (file.clone(), pool.clone());
    let begin = Instant::now();
    let sender = rt::spawn_handle("sender", async move {
        for _ in 0..50 {
            a.sendfile(&sending, &mut 0, LEN, &pool).await?;
        }
        Ok::<_, std::io::Error>(())
    });
    let mut buf = vec![0; 256 << 10];
    while b.read(&mut buf).await? > 0 {}
    sender.await.map_err(std::io::Error::other)??;
    println!(
        "{:8} ns  sendfile and read of 128 KB",
        begin.elapsed().as_nanos() / 50 / u128::from(LEN >> 17)
    );
    Ok(())
}

async fn each(
    what: &str,
    times: u32,
    mut f: impl AsyncFnMut(u32) -> std::io::Result<()>,
) -> std::io::Result<()> {
    let begin = Instant::now();
    for i in 0..times {
        f(i).await?;
    }
    println!(
        "{:8} ns  {what}",
        begin.elapsed().as_nanos() / u128::from(times)
    );
    Ok(())
}
