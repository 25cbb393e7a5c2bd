//! A case: a configuration, files, servers behind it and a conversation; everything that two servers are compared on.
//!
//! A case is data. It can be printed and read again ([`text`]), cut into smaller ones (`reduce`), and put together with
//! others in one configuration (`batch`), for which its names and places are written as marks:
//!
//! | mark | stands for |
//! |---|---|
//! | `%%PORT0%%` … | address and port of a socket that the server listens on, `127.0.0.1:18000` |
//! | `%%NUMBER0%%` … | that port alone |
//! | `%%UP0%%` … | address and port of the case's server behind, `UP` for the first of its list |
//! | `%%UPPORT0%%` … | the port of that server alone |
//! | `%%ADDRESS%%` | the address alone |
//! | `%%N%%` | three digits that no other case of the start has, for names of maps, zones and groups |
//! | `%%DIR%%` | the folder with the case's files, which both servers share |
//! | `%%OWN%%` | an empty folder of the case that each server has for itself |

pub mod content;
pub mod fill;
pub mod text;
pub mod tree;

pub use content::Content;
use tree::Node;

/// One comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Case {
    /// The area that made it, the seed and the number: `locations-1-17`.
    pub name: String,
    /// Directives of the main context.
    pub main: Vec<Node>,
    /// Directives of `http` that everything in it inherits. Cases with the same share a start.
    pub ambient: Vec<Node>,
    /// Blocks of `http` whose names are the case's own: maps, groups, zones, servers.
    pub http: Vec<Node>,
    /// Blocks of `stream` of the same kind.
    pub stream: Vec<Node>,
    /// Files that both servers serve.
    pub files: Vec<File>,
    /// The servers behind.
    pub upstreams: Vec<Upstream>,
    /// What the client does.
    pub talk: Vec<Step>,
}

/// A file below `%%DIR%%`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// The path. One that ends in a slash is a folder.
    pub path: String,
    /// The bytes.
    pub content: Content,
}

/// A server behind: what it speaks, and what it does with its requests, one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upstream {
    /// What it speaks.
    pub protocol: Protocol,
    /// What it does with the first request, the second, …; the last counts for all further ones. None: it does not listen.
    pub answers: Vec<Vec<Act>>,
}

/// What a server behind speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.
    Http,
    /// FastCGI; what is sent is packed into records.
    FastCgi,
    /// uwsgi.
    Uwsgi,
    /// SCGI.
    Scgi,
    /// memcached's text protocol.
    Memcached,
    /// HTTP/2 without TLS; each text that is sent is a frame, see `side::grpc`.
    Grpc,
    /// Bytes: acts are carried out when something came.
    Tcp,
    /// Datagrams: acts are carried out for each that came.
    Udp,
    /// A name server; its first answer is its zone, see `side::dns`.
    Dns,
}

/// What a server behind does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// Sends bytes.
    Send(Content),
    /// Lets this many milliseconds pass, so that what follows is another read.
    Pause(u64),
    /// Closes. Without it the connection stays open for the next request.
    Close,
    /// Closes with a reset.
    Reset,
    /// Says nothing until the peer leaves.
    Silence,
}

/// What the client does. Connections have numbers of its own choice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Opens a connection to `%%PORTn%%`.
    Connect {
        /// Its number.
        connection: usize,
        /// Which of the ports.
        port: usize,
    },
    /// Opens a connection of HTTP/2 to `%%PORTn%%`. Requests on it have streams of their own, and are read in their order.
    Http2 {
        /// Its number.
        connection: usize,
        /// Which of the ports.
        port: usize,
        /// The window of each stream.
        window: u32,
    },
    /// Sends one frame of HTTP/2. One of HEADERS opens its stream, whose response is read in its turn.
    Frame {
        /// Where.
        connection: usize,
        /// Its type.
        kind: u8,
        /// Its flags.
        flags: u8,
        /// Its stream; 0 for the connection.
        stream: u32,
        /// What follows its head.
        payload: Content,
    },
    /// From here on the windows of a connection of HTTP/2 open by the case's own frames only.
    Hold {
        /// Where.
        connection: usize,
    },
    /// Waits until this much content of a stream of HTTP/2 has come, or its end, and tells what it has: nothing more came
    /// before the answer to a PING.
    Look {
        /// Where.
        connection: usize,
        /// The stream.
        stream: u32,
        /// How much content.
        bytes: usize,
    },
    /// Begins TLS on a connection that is open; an event tells what came of it.
    Tls {
        /// Where.
        connection: usize,
        /// The name that is asked for; none where it is empty.
        name: String,
        /// What the client has: `h2` offers HTTP/2, which begins at once if it is taken, `http/1.1` and `none` offer that alone,
        /// and what nobody has; `certificate` is a client's, `as:NAME` another one; `1.2` and `1.3` are the only version;
        /// `rsa`, `ecdsa`, `aes128`, `aes256` and `chacha` the only suites, `p256` the only group; `early` sends a request as
        /// early data. Connections of a conversation that have the same share their sessions.
        has: Vec<String>,
    },
    /// Sends bytes as they are.
    Send {
        /// Where.
        connection: usize,
        /// What.
        bytes: Content,
    },
    /// Sends a request.
    Request {
        /// Where.
        connection: usize,
        /// What.
        request: Request,
    },
    /// Reads one response, with the interim ones before it.
    Read {
        /// Where.
        connection: usize,
    },
    /// Reads until the server closes.
    Rest {
        /// Where.
        connection: usize,
    },
    /// Says that no more will be sent.
    Half {
        /// Where.
        connection: usize,
    },
    /// Closes.
    Close {
        /// Where.
        connection: usize,
    },
    /// Waits until the server behind of this number has received this many requests.
    Await {
        /// Which of them.
        upstream: usize,
        /// How many in all.
        requests: usize,
    },
    /// Sends a datagram to `%%PORTn%%` from a socket of this number, and reads what comes back.
    Datagram {
        /// The socket's number.
        connection: usize,
        /// Which of the ports.
        port: usize,
        /// How many datagrams are waited for.
        replies: usize,
        /// What.
        bytes: Content,
    },
    /// Lets time pass, where time itself is what is compared: a lifetime that ends. In milliseconds.
    Pause(u64),
}

/// A request in parts, so that a reduction can leave some out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// The method.
    pub method: String,
    /// The target.
    pub target: String,
    /// `HTTP/1.1`; nothing at all for HTTP/0.9.
    pub version: String,
    /// Names and values.
    pub fields: Vec<(String, String)>,
    /// What follows the head.
    pub body: Body,
}

/// The content of a request. The fields that announce it are written by the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Body {
    /// Nothing.
    #[default]
    None,
    /// With `Content-Length`.
    Length(Content),
    /// In chunks, with trailers.
    Chunked(Vec<Content>, Vec<(String, String)>),
}

impl Request {
    /// A request without content, with `Host: localhost`.
    pub fn new(method: &str, target: &str) -> Self {
        Self {
            method: method.to_owned(),
            target: target.to_owned(),
            version: "HTTP/1.1".to_owned(),
            fields: vec![("Host".to_owned(), "localhost".to_owned())],
            body: Body::None,
        }
    }

    /// With one more field.
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.fields.push((name.to_owned(), value.to_owned()));
        self
    }

    /// With this content.
    pub fn body(mut self, body: Body) -> Self {
        self.body = body;
        self
    }

    /// The bytes on the wire.
    pub fn bytes(&self) -> Vec<u8> {
        let space = if self.version.is_empty() { "" } else { " " };
        let mut head = format!("{} {}{space}{}\r\n", self.method, self.target, self.version);
        let mut line = |name: &str, value: &str| {
            head.push_str(&format!("{name}: {value}\r\n"));
        };
        for (name, value) in &self.fields {
            line(name, value);
        }
        match &self.body {
            Body::None => {}
            Body::Length(content) => line("Content-Length", &content.len().to_string()),
            Body::Chunked(..) => line("Transfer-Encoding", "chunked"),
        }
        if self.version.is_empty() {
            return head.into_bytes();
        }
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(b"\r\n");
        match &self.body {
            Body::None => {}
            Body::Length(content) => bytes.extend(content.bytes()),
            Body::Chunked(chunks, trailers) => {
                for chunk in chunks.iter().filter(|chunk| !chunk.is_empty()) {
                    bytes.extend(format!("{:x}\r\n", chunk.len()).into_bytes());
                    bytes.extend(chunk.bytes());
                    bytes.extend_from_slice(b"\r\n");
                }
                bytes.extend_from_slice(b"0\r\n");
                for (name, value) in trailers {
                    bytes.extend(format!("{name}: {value}\r\n").into_bytes());
                }
                bytes.extend_from_slice(b"\r\n");
            }
        }
        bytes
    }
}

impl Case {
    /// All names of directives in it, each once.
    pub fn directives(&self) -> Vec<String> {
        let mut names: Vec<String> = [&self.main, &self.ambient, &self.http, &self.stream]
            .iter()
            .flat_map(|nodes| tree::names(nodes))
            .collect();
        names.sort();
        names.dedup();
        names
    }

    /// How many ports it listens on: one more than the largest number of a mark.
    pub fn ports(&self) -> usize {
        let mut text = String::new();
        for nodes in [&self.main, &self.ambient, &self.http, &self.stream] {
            tree::print(nodes, 0, &mut text);
        }
        (0..16)
            .rev()
            .find(|i| {
                text.contains(&format!("%%PORT{i}%%")) || text.contains(&format!("%%NUMBER{i}%%"))
            })
            .map_or(0, |last| last + 1)
    }

    /// Adds a conversation of one request on a connection of its own, and reads the response.
    pub fn ask(&mut self, request: Request) {
        let connection = self.next_connection();
        self.talk.push(Step::Connect {
            connection,
            port: 0,
        });
        self.talk.push(Step::Request {
            connection,
            request,
        });
        self.talk.push(Step::Read { connection });
    }

    /// A number that no connection has.
    pub fn next_connection(&self) -> usize {
        let opened = self.talk.iter().filter_map(|step| match step {
            Step::Connect { connection, .. } | Step::Http2 { connection, .. } => {
                Some(*connection + 1)
            }
            _ => None,
        });
        opened.max().unwrap_or(0)
    }
}
