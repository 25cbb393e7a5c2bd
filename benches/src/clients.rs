//! Clients that keep every time: for distributions, and for what came when.

use std::io::{Error, ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// One request of one client.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Visit {
    /// From the start of the run to the end of the answer.
    pub(crate) at: Duration,
    pub(crate) took: Duration,
    /// The whole answer came, with status 200.
    pub(crate) is_whole: bool,
}

/// No client waits longer for the next bytes.
const PATIENCE: Duration = Duration::from_secs(120);

/// Each client asks again and again on a connection of its own until the time is over; its last request ends after that.
pub(crate) fn visits(port: u16, path: &str, clients: u32, time: Duration) -> Vec<Visit> {
    walks(port, |_, _| path.to_owned(), clients, time)
}

/// The same, each request for what `path` says for the client's number and its request's.
pub(crate) fn walks(
    port: u16,
    path: impl Fn(usize, usize) -> String + Sync,
    clients: u32,
    time: Duration,
) -> Vec<Visit> {
    let began = Instant::now();
    let client = |number: usize| {
        let mut visits = Vec::new();
        let mut stream = None;
        while began.elapsed() < time {
            let path = path(number, visits.len());
            let asked = Instant::now();
            let is_whole = ask(&mut stream, port, &path).is_ok();
            visits.push(Visit {
                at: began.elapsed(),
                took: asked.elapsed(),
                is_whole,
            });
        }
        visits
    };
    side_by_side(clients, client)
}

/// Each client asks for all of these, one after the other, on a connection of its own.
pub(crate) fn walk(port: u16, paths: &[String], clients: u32) -> Vec<Visit> {
    let began = Instant::now();
    let client = |_: usize| {
        let mut stream = None;
        let visit = |path: &String| {
            let asked = Instant::now();
            let is_whole = ask(&mut stream, port, path).is_ok();
            Visit {
                at: began.elapsed(),
                took: asked.elapsed(),
                is_whole,
            }
        };
        paths.iter().map(visit).collect()
    };
    side_by_side(clients, client)
}

fn side_by_side(clients: u32, client: impl Fn(usize) -> Vec<Visit> + Sync) -> Vec<Visit> {
    let client = &client;
    std::thread::scope(|scope| {
        let start = |number| scope.spawn(move || client(number));
        let threads: Vec<_> = (0..clients as usize).map(start).collect();
        let ended = threads.into_iter().filter_map(|thread| thread.join().ok());
        ended.flatten().collect()
    })
}

/// Clients that come one after the other within a time, each with one request; in the order in which they came.
pub(crate) fn burst(
    port: u16,
    path: impl Fn(usize) -> String + Sync,
    clients: usize,
    within: Duration,
) -> Vec<Visit> {
    let began = Instant::now();
    let client = &|number: usize| {
        let wait = within.mul_f64(number as f64 / clients as f64);
        std::thread::sleep(wait.saturating_sub(began.elapsed()));
        let asked = Instant::now();
        let is_whole = ask(&mut None, port, &path(number)).is_ok();
        Visit {
            at: began.elapsed(),
            took: asked.elapsed(),
            is_whole,
        }
    };
    std::thread::scope(|scope| {
        let start = |number| {
            let builder = std::thread::Builder::new().stack_size(256 << 10);
            builder.spawn_scoped(scope, move || client(number))
        };
        let threads: Vec<_> = (0..clients)
            .filter_map(|number| start(number).ok())
            .collect();
        threads
            .into_iter()
            .filter_map(|thread| thread.join().ok())
            .collect()
    })
}

/// One request on the connection that is there, or on a new one; the connection stays when it can.
pub(crate) fn ask(stream: &mut Option<TcpStream>, port: u16, path: &str) -> std::io::Result<u64> {
    let mut open = match stream.take() {
        Some(stream) => stream,
        None => connect(port)?,
    };
    // In one piece: `write!` would send three, each a packet and for the server a turn of its own.
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    open.write_all(request.as_bytes())?;
    let mut buffer = vec![0; 64 << 10];
    let mut have = 0;
    let head = loop {
        let count = open.read(&mut buffer[have..])?;
        if count == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        have += count;
        if let Some(end) = buffer[..have]
            .windows(4)
            .position(|four| four == b"\r\n\r\n")
        {
            break String::from_utf8_lossy(&buffer[..end + 4]).to_lowercase();
        }
    };
    if !head.starts_with("http/1.1 200") {
        let status = head.lines().next().unwrap_or_default();
        return Err(Error::other(status.to_owned()));
    }
    let field = |name: &str| {
        head.lines()
            .find_map(|line| line.strip_prefix(name))
            .map(str::trim)
    };
    let length: Option<u64> = field("content-length:").and_then(|text| text.parse().ok());
    let mut left = length.map(|length| length.saturating_sub((have - head.len()) as u64));
    let mut last = buffer[head.len()..have].to_vec();
    let is_chunked = field("transfer-encoding:").is_some_and(|coding| coding.contains("chunked"));
    let mut total = (have - head.len()) as u64;
    loop {
        if left == Some(0) || (is_chunked && last.ends_with(b"0\r\n\r\n")) {
            break;
        }
        let count = open.read(&mut buffer)?;
        match (count, left) {
            // Without a length the end of the connection is the end.
            (0, None) if !is_chunked => return Ok(total),
            (0, _) => return Err(ErrorKind::UnexpectedEof.into()),
            _ => {}
        }
        total += count as u64;
        left = left.map(|left| left.saturating_sub(count as u64));
        if is_chunked {
            last.extend_from_slice(&buffer[..count]);
            let end = last.len().saturating_sub(5);
            last.drain(..end);
        }
    }
    if !field("connection:").is_some_and(|value| value.contains("close")) {
        *stream = Some(open);
    }
    Ok(total)
}

fn connect(port: u16) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// The percentiles of these times, in milliseconds, for a plot: as many nines as there are times for.
pub(crate) fn percentiles(visits: &[Visit]) -> Vec<(f64, f64)> {
    curve(visits.iter().map(|visit| visit.took).collect())
}

/// The same of bare times.
pub(crate) fn curve(mut times: Vec<Duration>) -> Vec<(f64, f64)> {
    times.sort_unstable();
    let marks = crate::wrk::PERCENTILES.iter();
    let known = marks.filter(|mark| times.len() as f64 * (100.0 - **mark) >= 99.0);
    known.map(|&mark| (mark, at(&times, mark))).collect()
}

/// The time of this percentile in milliseconds.
pub(crate) fn percentile(visits: &[Visit], percentile: f64) -> f64 {
    let mut times: Vec<Duration> = visits.iter().map(|visit| visit.took).collect();
    times.sort_unstable();
    at(&times, percentile)
}

fn at(times: &[Duration], percentile: f64) -> f64 {
    let last = times.len().saturating_sub(1);
    let at = ((times.len() as f64 * percentile / 100.0) as usize).min(last);
    times
        .get(at)
        .map_or(f64::NAN, |time| time.as_secs_f64() * 1e3)
}

/// How many ended in each step of time, for each second.
pub(crate) fn progress(visits: &[Visit], step: Duration, time: Duration) -> Vec<f64> {
    let count = (time.as_secs_f64() / step.as_secs_f64()).ceil() as usize;
    let mut steps = vec![0.0; count];
    for visit in visits.iter().filter(|visit| visit.is_whole) {
        let at = (visit.at.as_secs_f64() / step.as_secs_f64()) as usize;
        if let Some(step_count) = steps.get_mut(at) {
            *step_count += 1.0 / step.as_secs_f64();
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_become_percentiles_and_steps() {
        let visit = |ms: u64| Visit {
            at: Duration::from_millis(ms * 10),
            took: Duration::from_millis(ms),
            is_whole: true,
        };
        let visits: Vec<Visit> = (0..100).map(visit).collect();
        assert_eq!(percentile(&visits, 50.0), 50.0);
        assert_eq!(percentile(&visits, 100.0), 99.0);
        let steps = progress(&visits, Duration::from_millis(500), Duration::from_secs(1));
        assert_eq!(steps, [100.0, 100.0]);
        assert!(percentiles(&visits).contains(&(90.0, 90.0)));
    }
}
