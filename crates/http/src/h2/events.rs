//! What the client's frames do (RFC 9113, sections 5 and 6).
//!
//! An error of a stream resets it; an error of the connection is returned and ends it. A client can make the server reset
//! streams as easily as it can reset them itself, and the requests behind them have begun all the same: both cost it as
//! much.

use std::rc::Rc;

use host::error_log::Level;
use proto::Known;
use proto::fields::Fields;
use proto::h2::hpack::{HpackError, ListLimits};
use proto::h2::{Block, ConnectionError, ErrorCode, Event, Priority, Window, frame, rules};

use super::budget::price;
use super::connection::Connection;
use super::limits::{Limits, list_limits, request_limits};
use super::link::{Closed, How};
use super::stream::Stream;
use super::stream_task::{ConnectProtocol, HeadFacts, StreamStart, serve_stream};
use crate::http_loop;
use crate::request::ReceivedHead;
use crate::site::Site;

/// A WINDOW_UPDATE that brings less is counted, in bytes.
const SMALL_WINDOW: u32 = 256;

/// Priorities that are kept for streams which have not begun.
const EARLY_PRIORITIES: usize = 16;

/// Refused streams that are too many even where few are allowed at once; nginx's bound.
const REFUSED_LEAST: usize = 100;

impl Connection {
    /// Takes one event.
    pub(super) fn event(&mut self, event: Event<'_>) -> Result<(), ConnectionError> {
        match event {
            Event::More => Ok(()),
            Event::Data {
                stream,
                bytes,
                counted,
                begins,
                end_stream,
            } => {
                if begins {
                    self.debug(format_args!("http2 DATA frame"));
                }
                self.data(stream, bytes, counted, end_stream)
            }
            Event::Headers {
                stream,
                block,
                end_stream,
                depends_on_itself,
            } => self.headers(stream, &block, end_stream, depends_on_itself),
            Event::Priority { stream } => {
                self.debug(format_args!("http2 PRIORITY frame sid:{stream}"));
                self.spend(price::FRAME)
            }
            Event::Reset { stream, code } => self.reset(stream, code),
            Event::Settings(payload) => self.settings(payload),
            Event::SettingsAck => {
                self.settings_acknowledged = true;
                self.spend(price::FRAME)
            }
            // The reader refuses it before.
            Event::PushPromise { .. } => Ok(()),
            Event::Ping { ack, opaque } => {
                self.debug(format_args!("http2 PING frame"));
                if !ack {
                    self.link
                        .write(|output| frame::write_ping(true, opaque, &mut output.bytes));
                }
                self.spend(price::FRAME)
            }
            Event::GoAway { code, .. } => {
                self.debug(format_args!("http2 GOAWAY frame, error {}", code.0));
                // It begins no more streams; what it has begun it may still want.
                self.drain();
                self.spend(price::FRAME)
            }
            Event::WindowUpdate { stream, increment } => self.window_update(stream, increment),
            Event::PriorityUpdate { stream, value } => self.priority_update(stream, value),
            Event::Unknown { kind, .. } => {
                self.log(
                    Level::Info,
                    format_args!(
                        "client sent frame with unknown type {kind} while processing HTTP/2 connection"
                    ),
                );
                self.spend(price::FRAME)
            }
            Event::StreamError { stream, code, what } => {
                self.check_not_idle_for(stream, what)?;
                self.stream_error(stream, code, what)
            }
        }
    }

    fn spend(&mut self, price: u32) -> Result<(), ConnectionError> {
        self.budget.spend(price, rt::now())
    }

    // -- content --

    fn data(
        &mut self,
        id: u32,
        bytes: &[u8],
        counted: u32,
        ends: bool,
    ) -> Result<(), ConnectionError> {
        self.check_not_idle(id, "DATA frame for an idle stream")?;
        self.count_window(counted)?;
        if bytes.is_empty() && !ends {
            self.spend(price::EMPTY)?;
        }
        let Some(stream) = self.link.stream(id) else {
            return self.late_data(id, bytes.len() as u64, ends);
        };
        if stream.was_reset() {
            return self.after_reset(id, "DATA frame for closed stream");
        }
        self.of_use += bytes.len() as u64;
        self.content += bytes.len() as u64;
        match stream.receive(bytes, counted, ends) {
            Ok(()) => Ok(()),
            Err(ErrorCode::STREAM_CLOSED) => self.stream_error(
                id,
                ErrorCode::STREAM_CLOSED,
                "DATA frame for half-closed stream",
            ),
            Err(code) => self.stream_error(id, code, "more DATA than the window of the stream"),
        }
    }

    /// A frame that came although the client had reset the stream.
    fn after_reset(&mut self, id: u32, what: &'static str) -> Result<(), ConnectionError> {
        self.link.write_reset(id, ErrorCode::STREAM_CLOSED);
        self.stream_error(id, ErrorCode::STREAM_CLOSED, what)
    }

    /// Content for a stream that has ended.
    fn late_data(&mut self, id: u32, bytes: u64, ends: bool) -> Result<(), ConnectionError> {
        self.debug(format_args!("unknown http2 stream"));
        match self.link.closed(id).map(|closed| closed.how) {
            Some(How::Ours) => {
                if self.link.count_late_content(id, bytes, ends) {
                    return self.spend(price::FRAME);
                }
                let what = "body data other than declared";
                self.stream_error(id, ErrorCode::PROTOCOL_ERROR, what)
            }
            Some(How::Ended | How::Reset) => {
                let what = "DATA frame for closed stream";
                self.stream_error(id, ErrorCode::STREAM_CLOSED, what)
            }
            // It ended so long ago that nothing is known of it.
            None => self.spend(price::FRAME),
        }
    }

    /// The window of the connection only has to be large: those of the streams bound what is kept.
    fn count_window(&mut self, counted: u32) -> Result<(), ConnectionError> {
        let Some(left) = self.receive_window.checked_sub(counted) else {
            return Err(ConnectionError::flow_control(
                "more DATA than the window of the connection",
            ));
        };
        self.receive_window = left;
        if left < Window::MAX / 4 {
            let increment = Window::MAX - left;
            self.link
                .write(|output| frame::write_window_update(0, increment, &mut output.bytes));
            self.receive_window = Window::MAX;
        }
        Ok(())
    }

    // -- requests --

    fn headers(
        &mut self,
        id: u32,
        block: &Block<'_>,
        ends: bool,
        depends_on_itself: bool,
    ) -> Result<(), ConnectionError> {
        self.debug(format_args!(
            "http2 HEADERS frame sid:{id} len:{}",
            block.len()
        ));
        if let Block::Gathered(_) = block {
            self.spend(price::PIECE)?;
        }
        if id.is_multiple_of(2) {
            return Err(ConnectionError::protocol(
                "HEADERS frame with incorrect identifier",
            ));
        }
        if id <= self.last {
            return self.trailers(id, block, ends);
        }
        let site = self.link.http.site();
        if !http_loop::refresh_endpoint(&self.link.client, &site) {
            // The client may ask again elsewhere: nothing was done (RFC 9113, section 8.7).
            self.last = id;
            self.skip_block(block)?;
            return self.refuse(id);
        }
        self.limits = Limits {
            // As they were announced.
            max_streams: self.limits.max_streams,
            preread: self.limits.preread,
            ..Limits::of(&site, &self.link.client)
        };
        self.last = id;
        if self.is_draining() {
            self.debug(format_args!("skipping http2 HEADERS frame"));
            return self.skip_block(block);
        }
        if depends_on_itself {
            self.skip_block(block)?;
            let what = "HEADERS frame with incorrect dependency";
            return self.stream_error(id, ErrorCode::PROTOCOL_ERROR, what);
        }
        if let Some(why) = self.why_refuse(ends) {
            self.log(
                Level::Info,
                format_args!("{why} while processing HTTP/2 connection"),
            );
            self.skip_block(block)?;
            return self.refuse(id);
        }
        self.begin(id, block, ends, &site)
    }

    /// Why a new stream can not be taken now, if so.
    fn why_refuse(&mut self, ends: bool) -> Option<String> {
        let most = self.limits.max_streams;
        let open = self.link.streams.borrow().len();
        if open >= most {
            return Some(format!("concurrent streams exceeded {open}"));
        }
        self.begun += 1;
        if self.begun as usize > 2 * most {
            return Some("client sent too many streams at once".to_owned());
        }
        if !self.settings_acknowledged && !ends && self.limits.preread < Window::DEFAULT {
            return Some(
                "client sent stream with data before settings were acknowledged".to_owned(),
            );
        }
        None
    }

    fn refuse(&mut self, id: u32) -> Result<(), ConnectionError> {
        self.refused += 1;
        if self.refused as usize > self.limits.max_streams.max(REFUSED_LEAST) {
            return Err(ConnectionError {
                code: ErrorCode::ENHANCE_YOUR_CALM,
                what: "too many refused streams",
            });
        }
        self.link.write_reset(id, ErrorCode::REFUSED_STREAM);
        self.link.note_closed(Closed {
            stream: id,
            how: How::Ours,
            content_left: None,
        });
        self.spend(price::STREAM)
    }

    /// A request begins.
    fn begin(
        &mut self,
        id: u32,
        block: &Block<'_>,
        ends: bool,
        site: &Rc<Site>,
    ) -> Result<(), ConnectionError> {
        let mut request = self.link.spare();
        let head = Rc::get_mut(&mut request.head)
            .expect("a request that has ended is alone with its head");
        let verdict = self.read_head(block, site, head)?;
        if verdict.is_err() {
            self.spend(price::STREAM)?;
        }
        self.of_use += block.len() as u64;
        let stream = Stream::new(id, &self.link, self.limits.preread, ends);
        stream.priority.set(self.priority_of(id, &request.head));
        let stream = Rc::new(stream);
        let protocol = match self.requests.protocol() {
            None => ConnectProtocol::None,
            Some(b"websocket") => ConnectProtocol::WebSocket,
            Some(_) => ConnectProtocol::Unknown,
        };
        let ignored = self.requests.ignored().to_vec();
        self.requests.clear();
        self.link.streams.borrow_mut().push(Rc::clone(&stream));
        self.is_busy();
        let client = &self.link.client;
        client.requests.set(client.requests.get() + 1);
        self.check_keepalive();
        let start = StreamStart {
            request,
            verdict,
            about: HeadFacts {
                protocol,
                has_content: !ends,
                ignored,
            },
        };
        let rank = self.link.rank.get();
        let task = rt::spawn_ranked("http2 stream", rank, serve_stream(stream, start));
        self.link.tasks.borrow_mut().push(task);
        Ok(())
    }

    /// Decompresses a request's head. The inner error is the request's, not the connection's.
    fn read_head(
        &mut self,
        block: &[u8],
        site: &Site,
        head: &mut ReceivedHead,
    ) -> Result<Result<(), proto::h2::Malformed>, ConnectionError> {
        let server = self.link.client.endpoint.borrow().default_server;
        let core = &site.server(server).core;
        let limits = request_limits(core);
        let requests = &mut self.requests;
        let decoded = self
            .decoder
            .decode_or_stop(block, list_limits(core), |field| {
                requests.take(field, &limits, &mut head.wire);
            })
            .map_err(compression_error)?;
        if decoded.too_large || requests.is_too_large() {
            return Err(ConnectionError::calm("too large header"));
        }
        let size = block.len() as u32;
        let verdict = requests.finish(size, &mut head.wire);
        if verdict.is_ok() && requests.protocol() == Some(b"websocket") {
            as_upgrade(&mut head.wire.fields);
        }
        Ok(verdict)
    }

    /// The last request that this connection may bring.
    fn check_keepalive(&mut self) {
        let core = self.core();
        let client = &self.link.client;
        if core.keepalive_timeout.is_zero()
            || client.requests.get() >= core.keepalive_requests as u64
            || rt::now().duration_since(client.accepted) > core.keepalive_time
        {
            self.drain();
        }
    }

    fn priority_of(&mut self, id: u32, head: &ReceivedHead) -> Option<Priority> {
        let early = self.early_priorities.iter().find(|early| early.0 == id);
        let early = early.map(|early| early.1);
        self.early_priorities.retain(|early| early.0 > id);
        let field = head.wire.fields.get_known(Known::Priority);
        early.or(field.map(Priority::parse))
    }

    /// A block that nobody wants must be decompressed all the same: the next one builds upon it.
    fn skip_block(&mut self, block: &[u8]) -> Result<(), ConnectionError> {
        const NOTHING: ListLimits = ListLimits {
            max_size: 0,
            max_fields: 0,
        };
        self.decoder
            .decode(block, NOTHING, |_| {})
            .map(drop)
            .map_err(compression_error)
    }

    /// Fields that follow the content.
    fn trailers(&mut self, id: u32, block: &Block<'_>, ends: bool) -> Result<(), ConnectionError> {
        let Some(stream) = self.link.stream(id) else {
            self.skip_block(block)?;
            return match self.link.closed(id).map(|closed| closed.how) {
                Some(How::Ours) if ends => self.spend(price::FRAME),
                Some(How::Ours) => {
                    self.stream_error(id, ErrorCode::PROTOCOL_ERROR, "invalid trailers")
                }
                Some(How::Ended | How::Reset) => Err(ConnectionError {
                    code: ErrorCode::STREAM_CLOSED,
                    what: "HEADERS frame for closed stream",
                }),
                None => Err(ConnectionError::protocol(
                    "HEADERS frame with incorrect identifier",
                )),
            };
        };
        let site = self.link.http.site();
        let server = self.link.client.endpoint.borrow().default_server;
        let core = &site.server(server).core;
        let mut fields = Fields::new();
        let mut valid = true;
        let decoded = self
            .decoder
            .decode(block, list_limits(core), |field| {
                valid &= rules::is_name(field.name)
                    && rules::is_value(field.value)
                    && !rules::is_padded(field.value)
                    && !rules::is_connection_specific(field.known, field.value);
                if valid {
                    fields.push_numbered(field.known, field.name, field.value);
                }
            })
            .map_err(compression_error)?;
        if stream.was_reset() {
            return self.after_reset(id, "HEADERS frame for closed stream");
        }
        if stream.has_all_input() {
            let what = "HEADERS frame for half-closed stream";
            return self.stream_error(id, ErrorCode::STREAM_CLOSED, what);
        }
        if !ends || !valid || decoded.too_large {
            return self.stream_error(id, ErrorCode::PROTOCOL_ERROR, "invalid trailers");
        }
        *stream.trailers.borrow_mut() = fields;
        stream.end_input();
        Ok(())
    }

    // -- streams and windows --

    fn reset(&mut self, id: u32, code: ErrorCode) -> Result<(), ConnectionError> {
        self.debug(format_args!(
            "http2 RST_STREAM frame, sid:{id} status:{}",
            code.0
        ));
        self.check_not_idle(id, "RST_STREAM frame for an idle stream")?;
        let Some(stream) = self.link.stream(id) else {
            self.debug(format_args!("unknown http2 stream"));
            self.link.reset_closed(id);
            return self.spend(price::FRAME);
        };
        let log = |message: std::fmt::Arguments<'_>| {
            self.log(
                Level::Info,
                format_args!("{message} while processing HTTP/2 connection"),
            );
        };
        match code {
            ErrorCode::CANCEL => log(format_args!("client canceled stream {id}")),
            ErrorCode::INTERNAL_ERROR => log(format_args!(
                "client terminated stream {id} due to internal error"
            )),
            _ => log(format_args!(
                "client terminated stream {id} with status {}",
                code.0
            )),
        }
        stream.take_reset();
        self.spend(price::STREAM)
    }

    fn settings(&mut self, payload: &[u8]) -> Result<(), ConnectionError> {
        self.debug(format_args!("http2 SETTINGS frame"));
        self.spend(price::SETTINGS)?;
        let link = Rc::clone(&self.link);
        let (result, _) = link.write(|output| {
            let before = output.peer.initial_window_size;
            let table = output.peer.header_table_size;
            output.peer.apply(payload)?;
            frame::write_settings_ack(&mut output.bytes);
            if output.peer.header_table_size != table {
                output.encoder.set_peer_limit(output.peer.header_table_size);
            }
            Ok(i64::from(output.peer.initial_window_size) - i64::from(before))
        });
        let change = result?;
        if change == 0 {
            return Ok(());
        }
        for stream in link.streams.borrow().iter() {
            let mut window = stream.send_window.get();
            if window.shift(change).is_err() {
                return Err(ConnectionError::flow_control(
                    "SETTINGS frame that makes a window too large",
                ));
            }
            stream.send_window.set(window);
        }
        Ok(())
    }

    fn window_update(&mut self, id: u32, increment: u32) -> Result<(), ConnectionError> {
        self.debug(format_args!(
            "http2 WINDOW_UPDATE frame sid:{id} window:{increment}"
        ));
        if increment < SMALL_WINDOW {
            self.spend(price::SMALL_WINDOW)?;
        }
        if id == 0 {
            let given = self.link.output.borrow_mut().window.give(increment);
            return given.map_err(|_| {
                ConnectionError::flow_control("WINDOW_UPDATE frame that makes a window too large")
            });
        }
        self.check_not_idle(id, "WINDOW_UPDATE frame for an idle stream")?;
        let Some(stream) = self.link.stream(id) else {
            return self.late_window_update(id, increment);
        };
        let mut window = stream.send_window.get();
        if window.give(increment).is_err() {
            let what = "WINDOW_UPDATE frame that makes a window too large";
            return self.stream_error(id, ErrorCode::FLOW_CONTROL_ERROR, what);
        }
        stream.send_window.set(window);
        Ok(())
    }

    /// A window of a stream that has ended is of no use, but it can be too large all the same.
    fn late_window_update(&mut self, id: u32, increment: u32) -> Result<(), ConnectionError> {
        let initial = self.link.output.borrow().peer.initial_window_size;
        let is_ours = self
            .link
            .closed(id)
            .is_some_and(|closed| closed.how == How::Ours);
        match Window::new(initial).give(increment) {
            Err(_) if is_ours => {
                let what = "WINDOW_UPDATE frame that makes a window too large";
                self.stream_error(id, ErrorCode::FLOW_CONTROL_ERROR, what)
            }
            _ => Ok(()),
        }
    }

    fn priority_update(&mut self, id: u32, value: &[u8]) -> Result<(), ConnectionError> {
        self.spend(price::FRAME)?;
        let priority = Priority::parse(value);
        if let Some(stream) = self.link.stream(id) {
            stream.priority.set(Some(priority));
        } else if id.is_multiple_of(2) {
            // Nothing is pushed here, so that it is idle (RFC 9218, section 7.1).
            return Err(ConnectionError::protocol(
                "PRIORITY_UPDATE frame for a pushed stream that has not begun",
            ));
        } else if id > self.last {
            self.early_priorities.retain(|early| early.0 != id);
            if self.early_priorities.len() < EARLY_PRIORITIES {
                self.early_priorities.push((id, priority));
            }
        }
        Ok(())
    }

    /// A frame for a stream that has not begun is an error of the connection (RFC 9113, section 5.1).
    fn check_not_idle(&self, id: u32, what: &'static str) -> Result<(), ConnectionError> {
        match id > self.last || id.is_multiple_of(2) {
            true => Err(ConnectionError::protocol(what)),
            false => Ok(()),
        }
    }

    /// PRIORITY may name a stream that has not begun.
    fn check_not_idle_for(&self, id: u32, what: &'static str) -> Result<(), ConnectionError> {
        match what.starts_with("PRIORITY") {
            true => Ok(()),
            false => self.check_not_idle(id, what),
        }
    }

    /// Resets a stream for what the client did.
    fn stream_error(
        &mut self,
        id: u32,
        code: ErrorCode,
        what: &'static str,
    ) -> Result<(), ConnectionError> {
        self.log(
            Level::Info,
            format_args!("client sent {what} while processing HTTP/2 connection, stream {id}"),
        );
        match self.link.stream(id) {
            Some(stream) => {
                stream.reset(code);
                stream.leave();
            }
            None => self.link.write_reset(id, code),
        }
        self.spend(price::STREAM)
    }
}

/// A WebSocket's request as it is over HTTP/1.1, which is how servers behind this one know it. The key proves nothing
/// there, and is of no use here (RFC 8441, section 5).
fn as_upgrade(fields: &mut Fields) {
    fields.push(b"upgrade", b"websocket");
    fields.push(b"connection", b"Upgrade");
    if fields.get(b"sec-websocket-key").is_none() {
        fields.push(b"sec-websocket-key", b"d2Vpci1vdmVyLWh0dHAvMg==");
    }
}

fn compression_error(error: HpackError) -> ConnectionError {
    ConnectionError::compression(match error {
        HpackError::Truncated => "header block that ends inside a field",
        HpackError::InvalidIndex => "invalid hpack table index",
        HpackError::InvalidHuffman => "invalid encoded header field",
        HpackError::InvalidTableSize => "invalid table size update",
    })
}
