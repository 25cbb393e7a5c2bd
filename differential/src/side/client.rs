//! The client: carries out the steps of a conversation and notes what it gets.

use std::collections::{BTreeMap, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use crate::case::Step;
use crate::case::fill::Places;

use super::http2::Http2;
use super::reply::{Parsed, Response, parse};
use super::tls::{EARLY, EarlyData, Secured, Sessions};
use super::upstream::Behind;

/// What the client got, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A response.
    Response(Response),
    /// Bytes that are no response, up to the end of the connection.
    Bytes(Vec<u8>),
    /// Bytes that look like a response and are none: why.
    Broken(String, Vec<u8>),
    /// The server closed without another word.
    Closed,
    /// The connection stays open.
    Kept,
    /// Nothing came in time, or not all of it: this did.
    Silent(Vec<u8>),
    /// There was no connection.
    Refused,
    /// A server behind did not get that many requests in time.
    NotAsked,
    /// A stream of HTTP/2 was reset, with this code.
    Reset(u32),
    /// HTTP/2 has ended behind this stream, with this code.
    GoAway(u32, u32),
    /// The other side showed something here, and this one did not.
    Nothing,
}

impl Event {
    /// True where the time was over before it was there.
    fn is_missing(&self) -> bool {
        matches!(self, Event::Silent(_) | Event::NotAsked)
    }
}

/// What is bounded, and by how much.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// For what has to come.
    pub wait: Duration,
}

/// An event, with the number of the step that observed it, and of its connection.
pub type Observed = (usize, usize, Event);

/// Puts what two sides observed beside each other, step by step: where one of them saw fewer events, it has [`Event::Nothing`].
/// The last event of a step is that of its response, so what is missing is in front of it: interim responses. Also the steps.
pub fn aligned(sides: [Vec<Observed>; 2]) -> ([Vec<(usize, Event)>; 2], Vec<usize>) {
    let mut out = [Vec::new(), Vec::new()];
    let mut steps = Vec::new();
    let mut rest = sides.map(|side| side.into_iter().peekable());
    while let Some(next) = rest
        .iter_mut()
        .filter_map(|side| side.peek())
        .map(key)
        .min()
    {
        let found = rest.each_mut().map(|side| {
            let mut found = Vec::new();
            while let Some((_, connection, event)) = side.next_if(|event| key(event) == next) {
                found.push((connection, event));
            }
            found
        });
        let most = found.iter().map(Vec::len).max().unwrap_or(0);
        steps.extend((0..most).map(|_| next.0));
        for (out, found) in out.iter_mut().zip(found) {
            out.extend((found.len()..most).map(|_| (next.1, Event::Nothing)));
            out.extend(found);
        }
    }
    (out, steps)
}

/// What events of two sides are told to belong together by.
fn key(event: &Observed) -> (usize, usize) {
    (event.0, event.1)
}

/// The connections of a conversation by the client's port, by which a server's log names them.
pub type ClientPorts = BTreeMap<u16, usize>;

/// Carries out the steps; an event each for what they observe.
pub fn converse(
    steps: &[Step],
    places: &Places,
    behind: &[Behind],
    patience: Patience,
) -> (Vec<Observed>, ClientPorts) {
    let mut ports = ClientPorts::new();
    let mut open: BTreeMap<usize, Connection> = BTreeMap::new();
    let mut sockets: BTreeMap<usize, Datagrams> = BTreeMap::new();
    let mut events: Vec<Observed> = Vec::new();
    let mut sessions = Sessions::default();
    let (mut patience, mut looked_at) = (patience, 0);
    for (number, step) in steps.iter().enumerate() {
        // After something that did not come, the rest mostly does not come either.
        let told = events.len();
        if told > looked_at && events.last().is_some_and(|(.., event)| event.is_missing()) {
            patience = patience.halved();
            for connection in open.values_mut() {
                connection.patience = patience;
            }
        }
        looked_at = told;
        match step {
            Step::Connect { .. } | Step::Http2 { .. } | Step::Tls { .. } => {
                let seen = begin(step, &mut open, &mut sessions, places, patience);
                events.extend(
                    seen.into_iter()
                        .map(|(connection, event)| (number, connection, event)),
                );
                ports.extend(ports_of(&open));
            }
            Step::Await { upstream, requests } => {
                let asked = behind.get(*upstream);
                if !asked.is_some_and(|behind| behind.await_requests(*requests, patience.wait)) {
                    events.push((number, usize::MAX, Event::NotAsked));
                }
            }
            // A case says so where a lifetime has to end: no event tells of it.
            Step::Pause(time) => std::thread::sleep(Duration::from_millis((*time).min(5_000))),
            Step::Datagram { connection, .. } => {
                let socket = sockets.entry(*connection);
                let socket = socket.or_insert_with(|| Datagrams::open(places.address));
                let event = ask(socket, step, places, patience);
                events.extend(event.map(|event| (number, *connection, event)));
            }
            Step::Close { connection } => drop(open.remove(connection)),
            Step::Send { connection, .. }
            | Step::Frame { connection, .. }
            | Step::Hold { connection }
            | Step::Look { connection, .. }
            | Step::Request { connection, .. }
            | Step::Read { connection }
            | Step::Rest { connection }
            | Step::Half { connection } => {
                if let Some(opened) = open.get_mut(connection) {
                    let seen = opened.step(step, places);
                    events.extend(seen.into_iter().map(|event| (number, *connection, event)));
                }
            }
        }
    }
    for (connection, mut opened) in open {
        events.push((steps.len(), connection, opened.state()));
    }
    (events, ports)
}

/// Sends the datagram of a step, and what comes back.
fn ask(socket: &mut Datagrams, step: &Step, places: &Places, patience: Patience) -> Option<Event> {
    let Step::Datagram {
        port,
        replies,
        bytes,
        ..
    } = step
    else {
        return None;
    };
    let to = (
        places.address,
        places.ports.get(*port).copied().unwrap_or(0),
    );
    let bytes = places.fill(&bytes.bytes());
    Some(socket.ask(to, &bytes, *replies, patience))
}

/// The ports of the open connections.
fn ports_of(open: &BTreeMap<usize, Connection>) -> impl Iterator<Item = (u16, usize)> {
    let all = open.iter();
    all.filter_map(|(of, opened)| Some((opened.port()?, *of)))
}

/// Opens a connection, or begins TLS on it, and what there is to tell of that.
fn begin(
    step: &Step,
    open: &mut BTreeMap<usize, Connection>,
    sessions: &mut Sessions,
    places: &Places,
    patience: Patience,
) -> Vec<(usize, Event)> {
    let at = |port: &usize| places.ports.get(*port).copied().unwrap_or(0);
    let (number, opened) = match step {
        Step::Connect { connection, port } => {
            (*connection, Connection::open(places, at(port), patience))
        }
        Step::Http2 {
            connection,
            port,
            window,
        } => {
            let mut opened = Connection::open(places, at(port), patience);
            if let Some(opened) = &mut opened {
                opened.begin_http2(*window);
            }
            (*connection, opened)
        }
        Step::Tls {
            connection,
            name,
            has,
        } => {
            let Some(plain) = open.remove(connection) else {
                return Vec::new();
            };
            let (secured, events) = plain.secure(sessions, name, has);
            open.extend(secured.map(|secured| (*connection, secured)));
            let events = events.into_iter();
            return events.map(|event| (*connection, event)).collect();
        }
        _ => return Vec::new(),
    };
    match opened {
        Some(opened) => {
            open.insert(number, opened);
            Vec::new()
        }
        None => vec![(number, Event::Refused)],
    }
}

/// A socket for datagrams; none where the machine has no more.
struct Datagrams(Option<UdpSocket>);

impl Datagrams {
    fn open(address: &str) -> Self {
        Self(UdpSocket::bind((address, 0)).ok())
    }

    /// Sends one and reads this many; what came stands in one text, each behind its length.
    fn ask(&self, to: (&str, u16), bytes: &[u8], replies: usize, patience: Patience) -> Event {
        let Some(socket) = &self.0 else {
            return Event::Refused;
        };
        if socket.send_to(bytes, to).is_err() {
            return Event::Refused;
        }
        // One that does not come is no reason to wait as long as for a response.
        let _ = socket.set_read_timeout(Some(patience.wait / 8));
        let mut got = Vec::new();
        let mut buffer = vec![0; 65536];
        for _ in 0..replies {
            let Ok((count, _)) = socket.recv_from(&mut buffer) else {
                return Event::Silent(got);
            };
            got.extend_from_slice(format!("[{count}]").as_bytes());
            got.extend_from_slice(&buffer[..count]);
        }
        Event::Bytes(got)
    }
}

/// Has the server answer a request that is no case's.
fn probe(at: (&str, u16)) {
    const LIMIT: Duration = Duration::from_secs(20);
    let asked = TcpStream::connect(at).and_then(|mut stream| {
        stream.set_read_timeout(Some(LIMIT))?;
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
        stream.read_to_end(&mut Vec::new())
    });
    // A server that has ended shows in what the case sees.
    drop(asked);
}

/// Where bytes go and come from.
enum Wire {
    Plain(TcpStream),
    Tls(Box<Secured>),
}

impl Wire {
    fn socket(&self) -> &TcpStream {
        match self {
            Wire::Plain(stream) => stream,
            Wire::Tls(secured) => &secured.sock,
        }
    }

    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Wire::Plain(stream) => stream.read(buffer),
            Wire::Tls(secured) => secured.read(buffer),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        match self {
            Wire::Plain(stream) => stream.write_all(bytes),
            Wire::Tls(secured) => secured.write_all(bytes).and_then(|()| secured.flush()),
        }
    }
}

struct Connection {
    stream: Wire,
    received: Vec<u8>,
    /// Methods of the requests whose responses were not read yet.
    methods: VecDeque<String>,
    /// The server said that it will close.
    will_close: bool,
    closed: bool,
    patience: Patience,
    probe: (&'static str, u16),
    http2: Option<Box<Http2>>,
}

impl Connection {
    fn open(places: &Places, port: u16, patience: Patience) -> Option<Self> {
        let stream = TcpStream::connect((places.address, port)).ok()?;
        stream.set_nodelay(true).ok()?;
        stream.set_write_timeout(Some(patience.wait)).ok()?;
        Some(Self {
            stream: Wire::Plain(stream),
            received: Vec::new(),
            methods: VecDeque::new(),
            will_close: false,
            closed: false,
            patience,
            probe: (places.address, places.probe),
            http2: None,
        })
    }

    /// The client's port.
    fn port(&self) -> Option<u16> {
        let address = self.stream.socket().local_addr().ok()?;
        Some(address.port())
    }

    /// Speaks HTTP/2 from here on, with streams that have such a window.
    fn begin_http2(&mut self, window: u32) {
        let mut http2 = Http2::default();
        self.send(&http2.begin(window));
        self.http2 = Some(Box::new(http2));
    }

    /// The same connection over TLS, and what the handshake showed; none where there was no handshake.
    fn secure(
        mut self,
        sessions: &mut Sessions,
        name: &str,
        has: &[String],
    ) -> (Option<Self>, Vec<Event>) {
        let Wire::Plain(stream) = self.stream else {
            return (None, vec![Event::Refused]);
        };
        match sessions.begin(stream, name, has, self.patience.wait * 12) {
            Ok((secured, told, early)) => {
                let is_http2 = secured.conn.alpn_protocol() == Some(b"h2");
                self.stream = Wire::Tls(Box::new(secured));
                if is_http2 {
                    self.begin_http2(65535);
                }
                let mut events = vec![Event::Bytes(told.into_bytes())];
                if early == EarlyData::Refused {
                    self.send(EARLY);
                }
                if early != EarlyData::None {
                    events.extend(self.response());
                }
                (Some(self), events)
            }
            Err(why) => (None, vec![Event::Broken(why, Vec::new())]),
        }
    }

    fn step(&mut self, step: &Step, places: &Places) -> Vec<Event> {
        match step {
            Step::Send { bytes, .. } => {
                let bytes = places.fill(&bytes.bytes());
                let word = bytes.split(|byte| *byte == b' ').next().unwrap_or_default();
                if word.len() > 2 && word.iter().all(u8::is_ascii_uppercase) {
                    let method = String::from_utf8_lossy(word).into_owned();
                    self.methods.push_back(method);
                }
                self.send(&bytes);
                Vec::new()
            }
            Step::Request { request, .. } if self.http2.is_some() => {
                let mut request = request.clone();
                request.target = places.text(&request.target);
                for (_, value) in &mut request.fields {
                    *value = places.text(value);
                }
                let bytes = self.http2.as_mut().map(|http2| http2.request(&request));
                self.send(&bytes.unwrap_or_default());
                Vec::new()
            }
            Step::Request { request, .. } => {
                self.methods.push_back(request.method.clone());
                self.send(&places.fill(&request.bytes()));
                Vec::new()
            }
            Step::Read { .. } => match self.http2.take() {
                Some(mut http2) => {
                    let events = self.stream(&mut http2);
                    self.http2 = Some(http2);
                    events
                }
                None => self.response(),
            },
            Step::Frame { .. } => {
                self.send_frame(step, places);
                Vec::new()
            }
            Step::Hold { .. } => {
                if let Some(http2) = &mut self.http2 {
                    http2.holds = true;
                }
                Vec::new()
            }
            Step::Look { stream, bytes, .. } => match self.http2.take() {
                Some(mut http2) => {
                    let event = self.look(&mut http2, *stream, *bytes);
                    self.http2 = Some(http2);
                    vec![event]
                }
                None => Vec::new(),
            },
            Step::Rest { .. } => vec![self.rest()],
            Step::Half { .. } => {
                // The server may have left.
                let _ = self.stream.socket().shutdown(Shutdown::Write);
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    fn send_frame(&mut self, step: &Step, places: &Places) {
        if let Step::Frame {
            kind,
            flags,
            stream,
            payload,
            ..
        } = step
            && let Some(http2) = &mut self.http2
        {
            let payload = places.fill(&payload.bytes());
            let bytes = http2.send(*kind, *flags, *stream, &payload);
            self.send(&bytes);
        }
    }

    /// A server that closed already is no error: its answer is still to be read.
    fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write(bytes);
    }

    fn response(&mut self) -> Vec<Event> {
        let method = self.methods.pop_front().unwrap_or_else(|| "GET".to_owned());
        let deadline = Instant::now() + self.patience.wait;
        let mut events = Vec::new();
        loop {
            match parse(&self.received, &method, self.closed) {
                Parsed::Done(response, used) => {
                    self.received.drain(..used);
                    let interim = response.is_interim();
                    self.will_close |= response.closes() && !interim;
                    events.push(Event::Response(*response));
                    if !interim {
                        return events;
                    }
                }
                Parsed::Broken(why) => {
                    let bytes = std::mem::take(&mut self.received);
                    events.push(Event::Broken(why, bytes));
                    return events;
                }
                Parsed::Incomplete if self.closed => {
                    events.push(Event::Closed);
                    return events;
                }
                Parsed::Incomplete if !self.receive(deadline) => {
                    events.push(Event::Silent(std::mem::take(&mut self.received)));
                    return events;
                }
                Parsed::Incomplete => {}
            }
        }
    }

    /// The next response of HTTP/2: of the oldest stream that was not read.
    fn stream(&mut self, http2: &mut Http2) -> Vec<Event> {
        let deadline = Instant::now() + self.patience.wait;
        loop {
            match http2.take(&mut self.received) {
                Ok(answers) => self.send(&answers),
                Err(why) => return vec![Event::Broken(why, std::mem::take(&mut self.received))],
            }
            if let Some((responses, reset)) = http2.response(self.closed) {
                let mut events: Vec<Event> = responses.into_iter().map(Event::Response).collect();
                events.extend(reset.map(Event::Reset));
                if events.is_empty() {
                    let why = "a stream ended without a response".to_owned();
                    events.push(Event::Broken(why, Vec::new()));
                }
                return events;
            }
            if self.closed {
                let last = http2.goaway.take();
                return vec![last.map_or(Event::Closed, |(last, code)| Event::GoAway(last, code))];
            }
            if !self.receive(deadline) {
                return vec![Event::Silent(Vec::new())];
            }
        }
    }

    /// What a stream of HTTP/2 has when this much content has come, or its end, and nothing more came with it.
    fn look(&mut self, http2: &mut Http2, stream: u32, bytes: usize) -> Event {
        let deadline = Instant::now() + self.patience.wait;
        let mut asked = None;
        loop {
            match http2.take(&mut self.received) {
                Ok(answers) => self.send(&answers),
                Err(why) => return Event::Broken(why, std::mem::take(&mut self.received)),
            }
            if asked.is_some_and(|before| http2.pongs > before) {
                return Event::Bytes(http2.told(stream).into_bytes());
            }
            // What comes at an end, and what a reset says, may have come before it.
            if self.closed {
                let last = http2.goaway.take();
                return last.map_or(Event::Closed, |(last, code)| Event::GoAway(last, code));
            }
            if asked.is_none() && http2.has(stream, bytes) {
                asked = Some(http2.pongs);
                self.send(&http2.ping());
            }
            if !self.receive(deadline) {
                return Event::Silent(http2.told(stream).into_bytes());
            }
        }
    }

    fn rest(&mut self) -> Event {
        let deadline = Instant::now() + self.patience.wait;
        while !self.closed {
            if !self.receive(deadline) {
                return Event::Silent(std::mem::take(&mut self.received));
            }
        }
        Event::Bytes(std::mem::take(&mut self.received))
    }

    /// Whether it is open at the end of the conversation. A close that was announced is waited for; one that was not
    /// counts when it is there.
    fn state(&mut self) -> Event {
        let deadline = Instant::now() + self.patience.wait;
        while !self.closed && self.received.is_empty() {
            let more = match self.will_close {
                true => self.receive(deadline),
                false => self.receive_within(Duration::from_millis(1)),
            };
            if !more {
                return Event::Kept;
            }
            // Settings, windows and pings are no news; a GOAWAY is.
            if let Some(http2) = &mut self.http2 {
                let answers = http2.take(&mut self.received).unwrap_or_default();
                let goaway = http2.goaway.take();
                if let Some((last, code)) = goaway {
                    return Event::GoAway(last, code);
                }
                self.send(&answers);
            }
        }
        match self.received.is_empty() {
            true => Event::Closed,
            false => Event::Bytes(std::mem::take(&mut self.received)),
        }
    }

    /// Receives something, or sees the end; false when neither came in time. A reset counts as an end.
    fn receive(&mut self, deadline: Instant) -> bool {
        let left = deadline.saturating_duration_since(Instant::now());
        if !left.is_zero() && self.receive_within(left) {
            return true;
        }
        // Time alone says nothing of a server on a busy machine. It was silent if it has answered another client since.
        probe(self.probe);
        self.receive_within(self.patience.wait / 8)
    }

    fn receive_within(&mut self, time: Duration) -> bool {
        if self.stream.socket().set_read_timeout(Some(time)).is_err() {
            return false;
        }
        let mut buffer = [0; 65536];
        match self.stream.read(&mut buffer) {
            Ok(0) => self.closed = true,
            Ok(count) => self.received.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if [ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&error.kind()) => {
                return false;
            }
            Err(_) => self.closed = true,
        }
        true
    }
}

impl Patience {
    /// Half as patient, within reason.
    fn halved(self) -> Self {
        Self {
            wait: (self.wait / 2).max(Duration::from_millis(200)),
        }
    }

    /// Twice as patient.
    pub fn doubled(self) -> Self {
        Self {
            wait: self.wait * 2,
        }
    }
}
