//! What follows from a request's fields: the addresses of both ends, and which file a path means.
//!
//! Everything here only reads; the exceptions are [`Request::set_host`], which is called while the head is read, and
//! [`Request::change_fields`].

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::rc::Rc;

use bstr::{BString, ByteSlice};
use host::error_log::LogLevel;
use proto::Fields;

use crate::core::RootKind;
use crate::request::{AfterResponse, Request};

impl Request {
    /// Whether the connection is encrypted.
    pub fn is_tls(&self) -> bool {
        self.client.connection.is_secure()
    }

    /// `http` or `https`.
    pub fn scheme(&self) -> &'static str {
        if self.is_tls() { "https" } else { "http" }
    }

    /// The port that the client connected to; 0 for a UNIX domain socket.
    pub fn local_port(&self) -> u16 {
        self.client.local().port()
    }

    /// Whether the client's connection ends with the response. A tunnel through one that is shared ends a stream.
    pub fn ends_connection(&self) -> bool {
        match self.delivery.after_response() {
            AfterResponse::KeepAlive => false,
            AfterResponse::Close | AfterResponse::Silent => true,
            AfterResponse::Upgraded => self.stream.exclusive_bytes().is_some(),
        }
    }

    /// Appends the address that the client connected to, without the port: `127.0.0.1`, `::1`, `unix:/run/x`.
    pub fn write_server_address(&self, out: &mut Vec<u8>) {
        net::client::write_address(&self.client.local(), out);
    }

    /// Sets the host of the request. Only while the head is not shared yet, which is before any handler sees the
    /// request.
    pub fn set_host(&mut self, name: Vec<u8>, port: Option<u16>) {
        if let Some(head) = Rc::get_mut(&mut self.head) {
            head.host = name.into();
            head.port = port;
        }
    }

    /// Changes the request's fields called `name`. A head that is shared with subrequests is copied first, so that each
    /// request's changes are its own. Variables that have been read keep their values until [`Request::forget_field`].
    pub fn change_fields(&mut self, name: &[u8], change: impl FnOnce(&mut Fields)) {
        // `Connection: close` was meant for us: it counts even if the field is changed for an upstream server.
        if name.eq_ignore_ascii_case(b"connection") && !self.head.wire.wants_keep_alive() {
            self.delivery.close();
        }
        let head = Rc::make_mut(&mut self.head);
        change(&mut head.wire.fields);
        if name.eq_ignore_ascii_case(b"host") {
            head.host.clear();
            let value = head.wire.fields.get(b"host");
            if let Some(host) = value.and_then(|value| proto::host::parse(value).ok()) {
                host.write_lowercase(&mut head.host);
                head.port = host.port;
            }
        }
    }

    /// Drops the cached values of the variables that show this field.
    pub fn forget_field(&mut self, name: &[u8]) {
        if name.eq_ignore_ascii_case(b"host") {
            self.forget_variable("host");
        }
        let variable = name.to_str_lossy().to_ascii_lowercase().replace('-', "_");
        self.forget_variable(&format!("http_{variable}"));
        if name.eq_ignore_ascii_case(b"cookie") {
            // Which cookies the field held before is not known, so all of them are dropped.
            self.forget_variables("cookie_");
        }
    }

    /// Drops the cached value of a variable.
    fn forget_variable(&mut self, name: &str) {
        if let Some(id) = self.site.variables.id(name) {
            self.variables.values.forget(id);
        }
    }

    /// Drops the cached values of variables whose names begin with `start`.
    fn forget_variables(&mut self, start: &str) {
        for n in 0..self.site.variables.len() {
            let id = conf::VarId(n as u32);
            if self.site.variables.get(id).name.starts_with(start) {
                self.variables.values.forget(id);
            }
        }
    }

    /// Whether the path, as the client sent it, had escapes or a plus sign. What regular expressions capture of such
    /// a path is escaped again where it becomes a part of arguments or of a redirect.
    pub fn has_escaped_path(&self) -> bool {
        let target = self.head.wire.target();
        let end = target.find_byte(b'?').unwrap_or(target.len());
        memchr::memchr2(b'%', b'+', &target[..end]).is_some()
    }

    /// Appends the path from `skip` on, and the arguments, as a request to an upstream server needs them: escaped again
    /// if the client, or the server itself, had escaped them. Bytes that would end a request line are escaped in any
    /// case.
    pub fn write_target(&self, skip: usize, out: &mut Vec<u8>) {
        let start = out.len();
        let path = self.uri.path.get(skip..).unwrap_or_default();
        // A path without escapes is sent as it came: escaping it might change characters that the client had a right to
        // send unescaped.
        if self.flow.internal || self.has_escaped_path() {
            proto::uri::escape(proto::uri::EscapeClass::Uri, path, out);
        } else {
            out.extend_from_slice(path);
        }
        if !self.uri.args.is_empty() {
            out.push(b'?');
            out.extend_from_slice(&self.uri.args);
        }
        // A decoded space or line break would otherwise become part of the request to the upstream server, or a second
        // one.
        proto::uri::make_target(out, start);
    }

    /// The folder of `root` in the current location, or what `alias` puts in place of the location's name.
    pub fn document_root(&mut self) -> BString {
        let site = Rc::clone(&self.site);
        let root = &site.location(self.location).core.root;
        if let Some(constant) = root.path.constant() {
            // With room for the path that will be appended.
            let mut path = Vec::with_capacity(constant.len() + self.uri.path.len());
            path.extend_from_slice(constant);
            return path.into();
        }
        let path = self.value(&root.path);
        if path.starts_with(b"/") {
            return path;
        }
        // Constant paths were made absolute when the configuration was read.
        let path = site.prefix.join(OsStr::from_bytes(&path));
        path.into_os_string().into_encoded_bytes().into()
    }

    /// The file that the request's path means in its location, by `root` or `alias`. `None` if a rewrite has made an
    /// `alias` meaningless; that is logged, and the status is 500.
    pub fn file_path(&mut self) -> Option<BString> {
        let site = Rc::clone(&self.site);
        let location = site.location(self.location);
        let kind = location.core.root.kind;
        // `alias` replaces the beginning that the location matched. After a rewrite the path need not begin with it any
        // more. Where the search for another location did not come (a `return`, a cycle), nginx takes as much off as ever,
        // and reads the memory behind a path that is shorter than that.
        let is_shorter = |name: usize| self.flow.uri_changed && self.uri.path.len() < name;
        let is_meaningless = match kind {
            RootKind::Root => false,
            RootKind::Alias(name) => self.flow.rewritten || is_shorter(name),
            RootKind::Whole => self.flow.rewritten,
        };
        if is_meaningless {
            let name = &location.name;
            self.log(
                LogLevel::Alert,
                format_args!(
                    "\"alias\" cannot be used in location \"{name}\" where URI was rewritten"
                ),
            );
            return None;
        }
        let mut path = self.document_root();
        match kind {
            RootKind::Root => path.extend_from_slice(&self.uri.path),
            RootKind::Alias(length) => {
                path.extend_from_slice(self.uri.path.get(length..).unwrap_or_default())
            }
            RootKind::Whole if self.flow.add_uri_to_alias => path.extend_from_slice(&self.uri.path),
            RootKind::Whole => {}
        }
        Some(path)
    }

    /// Milliseconds since the first byte of the request, by the wall clock, as `$request_time` counts.
    pub fn elapsed_ms(&self) -> u64 {
        rt::wall_millis().saturating_sub(self.times.started_wall_ms)
    }
}
