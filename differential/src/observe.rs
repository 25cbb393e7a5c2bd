//! What one side showed of a case, with what belongs to the place and not to the case made equal.

use crate::case::fill::replaced;
use crate::side::client::{ClientPorts, Event};
use crate::side::reply::Response;
use crate::side::upstream::Received;

/// All that is compared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observation {
    /// What the client got, with the number of its connection.
    pub events: Vec<(usize, Event)>,
    /// The steps of the conversation that observed them.
    pub steps: Vec<usize>,
    /// The ports of its connections.
    pub ports: ClientPorts,
    /// What each server behind received.
    pub received: Vec<Vec<Received>>,
    /// Lines of the access log: names and values of variables.
    pub log: Vec<LogLine>,
    /// Lines of the case's own error log, `%%OWN%%/error.log`, without time, process and connection.
    pub errors: Vec<String>,
    /// Files that the server wrote below `%%OWN%%`, with their bytes.
    pub files: Vec<(String, Vec<u8>)>,
}

/// A line of the access log: the names of its variables, and their values.
pub type LogLine = Vec<(String, String)>;

/// The variables of the access log. Left out is what differs from run to run: times, process ids, numbers of connections,
/// ports of clients.
pub const VARIABLES: &[&str] = &[
    "status",
    "request",
    "request_method",
    "request_uri",
    "uri",
    "args",
    "is_args",
    "document_uri",
    "document_root",
    "realpath_root",
    "request_filename",
    "host",
    "http_host",
    "server_name",
    "server_protocol",
    "scheme",
    "https",
    "remote_addr",
    "remote_user",
    "realip_remote_addr",
    "server_addr",
    "server_port",
    "content_length",
    "content_type",
    "body_bytes_sent",
    "request_length",
    "request_completion",
    "request_body",
    "request_body_file",
    "connection_requests",
    "pipe",
    "limit_rate",
    "http_referer",
    "http_user_agent",
    "http_cookie",
    "http_x_forwarded_for",
    "arg_a",
    "cookie_a",
    "sent_http_content_type",
    "sent_http_content_length",
    "sent_http_content_range",
    "sent_http_location",
    "sent_http_last_modified",
    "sent_http_etag",
    "sent_http_connection",
    "sent_http_keep_alive",
    "sent_http_transfer_encoding",
    "sent_http_cache_control",
    "sent_http_link",
    "sent_http_vary",
    "proxy_host",
    "proxy_port",
    "proxy_add_x_forwarded_for",
    "upstream_addr",
    "upstream_status",
    "upstream_cache_status",
    "upstream_response_length",
    "upstream_bytes_received",
    "upstream_http_content_type",
    "upstream_http_x_a",
    "upstream_cookie_a",
    "gzip_ratio",
    "fastcgi_script_name",
    "fastcgi_path_info",
    "slice_range",
    "limit_req_status",
    "limit_conn_status",
    "uid_got",
];

/// What a line has beside its variables: the number of the connection in its case, which the client's port tells.
pub const CONNECTION: &str = "connection";

/// The `log_format` of the machine. The first values are the server's port, by which the line's case is found, and the client's.
pub fn log_format() -> String {
    let mut format = String::from("log_format differential '$server_port\t$realip_remote_port");
    for name in VARIABLES {
        format.push_str(&format!("\t${name}"));
    }
    format.push_str("';\n");
    format
}

/// Parts a line of the access log: the server's port and the client's, and the variables that have a value.
pub fn log_line(line: &str) -> Option<(u16, u16, LogLine)> {
    let mut values = line.split('\t');
    let port = values.next()?.parse().ok()?;
    // A client at a UNIX domain socket has none.
    let client = values.next()?.parse().unwrap_or(0);
    let pairs = VARIABLES.iter().zip(values);
    let pairs = pairs.filter(|(_, value)| *value != "-");
    Some((
        port,
        client,
        pairs
            .map(|(name, value)| ((*name).to_owned(), value.to_owned()))
            .collect(),
    ))
}

/// A line of an error log without what differs from run to run: the time, the process and the number of the connection, and
/// the numbers of temporary files.
pub fn error_line(line: &str) -> String {
    let (_, rest) = line.split_once(" [").unwrap_or(("", line));
    let (level, rest) = rest.split_once("] ").unwrap_or(("", rest));
    let (_, message) = rest.split_once(": ").unwrap_or(("", rest));
    let message = match message
        .strip_prefix('*')
        .and_then(|rest| rest.split_once(' '))
    {
        Some((number, rest)) if number.bytes().all(|byte| byte.is_ascii_digit()) => rest,
        _ => message,
    };
    let message = match message.split_once(" temporary file ") {
        Some((before, after)) => {
            let path = after.split([' ', ',']).next().unwrap_or("");
            let kept = path.trim_end_matches(|c: char| c.is_ascii_digit() || c == '/');
            format!("{before} temporary file {kept}{}", &after[path.len()..])
        }
        None => message.to_owned(),
    };
    // How long it was since the last request is chance.
    let message = match message.split_once("excess: ") {
        Some((before, after)) => {
            let rest = after.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
            format!("{before}excess: #{rest}")
        }
        None => message,
    };
    format!("[{level}] {message}")
}

/// What of the second side is written as the first one writes it.
#[derive(Clone, Debug)]
pub struct Equal {
    /// Pairs of texts: as it is here, and as it is there.
    pub pairs: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Equal {
    fn bytes(&self, bytes: &mut Vec<u8>) {
        for (from, to) in &self.pairs {
            if crate::case::fill::find(bytes, from).is_some() {
                *bytes = replaced(bytes, from, to);
            }
        }
    }

    fn text(&self, text: &mut String) {
        for (from, to) in &self.pairs {
            let (from, to) = (String::from_utf8_lossy(from), String::from_utf8_lossy(to));
            if text.contains(from.as_ref()) {
                *text = text.replace(from.as_ref(), &to);
            }
        }
    }

    fn fields(&self, fields: &mut [(String, String)]) {
        for (_, value) in fields {
            self.text(value);
        }
    }

    fn response(&self, response: &mut Response) {
        self.fields(&mut response.fields);
        self.fields(&mut response.trailers);
        self.bytes(&mut response.body);
    }

    /// Makes an observation equal where only the places differ.
    pub fn make(&self, seen: &mut Observation) {
        for (_, event) in &mut seen.events {
            match event {
                Event::Response(response) => self.response(response),
                Event::Bytes(bytes) | Event::Silent(bytes) | Event::Broken(_, bytes) => {
                    self.bytes(bytes);
                }
                Event::Closed
                | Event::Kept
                | Event::Refused
                | Event::NotAsked
                | Event::Reset(_)
                | Event::GoAway(..)
                | Event::Nothing => {}
            }
        }
        for received in seen.received.iter_mut().flatten() {
            self.bytes(&mut received.head);
            self.bytes(&mut received.body);
        }
        for line in &mut seen.log {
            self.fields(line);
        }
        for line in &mut seen.errors {
            self.text(line);
        }
        for (_, bytes) in &mut seen.files {
            self.bytes(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_no_time_and_no_numbers() {
        let line = "2026/11/23 17:00:00 [warn] 7#7: *42 a file is buffered to a temporary file /t/1/02/0000000021, client: x";
        let wanted = "[warn] a file is buffered to a temporary file /t, client: x";
        assert_eq!(error_line(line), wanted);
        assert_eq!(
            error_line("2026/11/23 17:00:00 [error] 7#8: x: y"),
            "[error] x: y"
        );
    }

    #[test]
    fn a_line_of_the_log_has_its_variables() {
        let line = "18000\t40000\t200\tGET / HTTP/1.1\t-\t/";
        let (port, client, pairs) = log_line(line).expect("it is a line");
        assert_eq!((port, client), (18000, 40000));
        assert_eq!(pairs.len(), 3);
        assert_eq!(pairs[2], ("request_uri".to_owned(), "/".to_owned()));
        assert_eq!(log_line("x"), None);
    }
}
